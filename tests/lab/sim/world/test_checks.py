"""Each promise, broken by hand in a game that kept it: the check names it."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.lab.sim.adversaries.playing import HALF, RELIEF
from tests.lab.sim.world.cheats import cheating, seats
from tiebreak.lab.sim.world import checks
from tiebreak.lab.sim.world.agents import AuditorAgent
from tiebreak.lab.sim.world.board import differences
from tiebreak.lab.sim.world.checks import Finished, ending
from tiebreak.lab.sim.world.game import Cast, conclude, false_jobs, gained, is_watched, seat
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import SignedHead
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.moves import Phase, Side
from tiebreak.protocol.parties.board import JobStatus, PublicGame
from tiebreak.protocol.tags import Digest


def finish(cast: Cast, seed: int) -> Finished:
    """A game played to its end, as the checks see it."""
    world, agents = seat(cast, Random(seed))
    for agent in agents.values():
        agent.start()
    while world.env.peek() < 40_000:
        world.env.step()
    conclude(cast, "", world, agents)
    return Finished(
        world=world,
        agents=agents,
        wei={name: gained(world, agent, 1000 * 10**18) for name, agent in agents.items()},
        deviations=cast.deviations(),
        expected=cast.expected,
        catches={},
        false_jobs=false_jobs(world, agents),
        watched=is_watched(cast, agents),
        cut_short=False,
    )


@pytest.fixture(scope="module")
def settled(workshop: Workshop) -> Finished:
    """An honest game."""
    return finish(Cast(workshop=workshop), 31)


@pytest.fixture(scope="module")
def slashed(workshop: Workshop) -> Finished:
    """A game of two auditors against a cheat."""
    return finish(cheating(workshop, auditors=seats(AuditorAgent, AuditorAgent)), 32)


def test_games_that_kept_all_promises_report_no_violation(settled: Finished, slashed: Finished) -> None:
    assert checks.violations(settled) == checks.violations(slashed) == ()
    assert slashed.false_jobs == {job.job.id for job in slashed.jobs}
    assert slashed.watched


def only(found: tuple[str, ...], promise: int, words: str) -> None:
    """The one sentence, about this promise."""
    (sentence,) = found
    assert sentence.startswith(f"{promise}: "), sentence
    assert words in sentence, sentence


@pytest.mark.parametrize("name", ["trainer", "client", "auditor", "builder"])
def test_promise_1_reports_an_honest_party_that_lost_a_wei(settled: Finished, name: str) -> None:
    robbed = replace(settled, wei={**settled.wei, name: settled.wei[name] - 1})
    only(checks.violations(robbed), 1, f"{name}, honest: expected at least")


def test_promise_1_reports_an_unpaid_winner(slashed: Finished) -> None:
    name = max(("auditor 1", "auditor 2"), key=lambda name: slashed.wei[name])
    unpaid = replace(slashed, wei={**slashed.wei, name: 0})
    only(checks.violations(unpaid), 1, f"expected at least {HALF - RELIEF}")


def test_promise_1_reports_an_honest_trainer_that_was_slashed(slashed: Finished) -> None:
    found = checks.nobody_loses(replace(slashed, deviations={}))
    assert any("the honest trainer's job ended SLASHED" in sentence for sentence in found)


def test_promise_2_reports_a_watched_false_head_that_settled(settled: Finished) -> None:
    untrue = replace(settled, false_jobs=frozenset(job.job.id for job in settled.jobs))
    only(checks.violations(untrue), 2, "a false head was watched")
    assert checks.violations(replace(untrue, watched=False)) == ()
    elsewhere = replace(settled, false_jobs=frozenset({Digest(bytes(32))}))
    assert checks.violations(elsewhere) == (), "another job's head says nothing of this one"


def test_promise_3_reports_an_adversary_with_an_unexpected_ending(slashed: Finished) -> None:
    allowed = {"changed": frozenset({"recomputed", "timeout"})}
    kept = replace(slashed, expected=allowed, catches={"changed": "recomputed"})
    assert checks.violations(kept) == ()
    undetected = replace(kept, catches={"changed": "undetected"})
    only(checks.violations(undetected), 3, "expected an end by recomputed, timeout")
    only(checks.violations(replace(kept, catches={})), 3, "got nowhere")


def test_promise_4_reports_a_board_balance_that_is_off_by_a_wei(
    settled: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = settled.world.chain
    balance, board = chain.balance, chain.deployment.board
    monkeypatch.setattr(chain, "balance", lambda account: balance(account) + (account == board))
    only(checks.violations(settled), 4, "the board owes 0 wei and owns 1")


def test_promise_4_reports_credit_not_withdrawn_by_an_honest_party(
    settled: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, owner = settled.world.chain, settled.agents["auditor"].address
    monkeypatch.setattr(chain, "credit", lambda account: 5 * (account == owner))
    found = checks.violations(settled)
    assert [sentence for sentence in found if "auditor left 5 wei" in sentence]


def test_promise_4_reports_games_and_jobs_that_did_not_end(slashed: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    """It allows stuck money of cheats only."""
    monkeypatch.setattr(next(found for found in slashed.games if found.void), "void", False)
    monkeypatch.setattr(slashed.jobs[0], "status", JobStatus.ACTIVE)
    stuck = [sentence for sentence in checks.violations(slashed) if "did not end" in sentence]
    assert [sentence.split()[:2] for sentence in stuck] == [["4:", "game"], ["4:", "job"]]
    everyone = dict.fromkeys(slashed.agents, "somebody")
    assert not [s for s in checks.money_adds_up(replace(slashed, deviations=everyone)) if "did not end" in s]


def test_promise_4_reports_a_simulation_that_had_to_be_stopped(settled: Finished) -> None:
    only(checks.violations(replace(settled, cut_short=True)), 4, "until it was stopped")


@pytest.mark.parametrize(
    "change",
    [
        {"phase": 3}, {"level": 0}, {"height": 9}, {"position": 9}, {"challenger": Address(bytes(20))}, {"verdict": 2},
        {"reason": 4}, {"last": 1}, {"defender_rest": 1}, {"challenger_rest": 1},
    ],
)  # fmt: skip
def test_promise_5_compares_each_field_of_contract_and_python_game_state(
    slashed: Finished, change: dict[str, Any]
) -> None:
    found = next(found for found in slashed.games if not found.void)
    record = slashed.world.chain.game_state(found.id)
    assert differences(found, record) == []
    assert len(differences(found, type(record)(**(vars(record) | change)))) == 1


@pytest.mark.parametrize("change", [{"node": bytes(32)}, {"step": 9}, {"instruction": 1}, {"element": 77}])
def test_promise_5_compares_the_disputed_position_in_contract_and_python(
    slashed: Finished, change: dict[str, Any]
) -> None:
    """It is found in the middle of a game, where the place still counts."""
    items = [item for block in slashed.world.blocks for item in block.transactions]
    item = next(item for item in items if item.record is not None and item.pending.call.kind == "openTerms")
    found, record = next(found for found in slashed.games if found.id == item.pending.call.game_id), item.record
    assert record is not None
    at = next(k for k, move in enumerate(found.moves) if move.KIND is Phase.OPEN_TERMS)
    then = replace(found, state=replay_to(slashed, found, at + 1), void=False)
    assert differences(then, record) == []
    assert len(differences(then, type(record)(**(vars(record) | change)))) == 1


def replay_to(finished: Finished, found: PublicGame, moves: int) -> game.GameState:
    """The Python referee's state after so many moves of a game."""
    instants = [
        block.timestamp
        for block in finished.world.blocks
        for item in block.transactions
        if item.pending.call.game_id == found.id and item.pending.call.is_move and item.applied.reverted is None
    ]
    state = game.start(found.job.job, found.head.head, found.id, found.started)
    for move, now in zip(found.moves[:moves], instants, strict=False):
        state = game.apply(state, move, now)
    return state


def test_promise_5_reports_contract_and_python_disagreements(
    settled: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settled.world.board, "disagreements", ["phase: 2 in Python, 3 in the contract"])
    only(checks.violations(settled), 5, "phase: 2 in Python")


def test_promise_6_reports_a_conviction_away_from_the_first_lie(
    slashed: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer: Any = slashed.agents["trainer"]
    lie = trainer.work.lie
    for other in (replace(lie, step=lie.step + 1), replace(lie, leaf=0), replace(lie, element=5)):
        monkeypatch.setattr(trainer, "work", replace(trainer.work, lie=other))
        only(checks.violations(slashed), 6, f"expected a conviction at step, leaf, element ({other.step}, {other.leaf}")


def test_promise_8_reports_a_journal_entry_written_twice(settled: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = settled.agents["trainer"]
    monkeypatch.setattr(trainer, "kept", [*trainer.kept, trainer.journal()[0]])
    only(checks.violations(settled), 8, "trainer has two things at")


def test_promise_8_reports_two_conflicting_heads_of_an_honest_trainer(
    settled: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An accomplice may have signed the second one of a dishonest trainer."""
    mail, trainer = settled.world.mail, settled.agents["trainer"]
    known = mail.heads[0]
    other = SignedHead.sign(replace(known.head.head, run_root=Digest(bytes(32))), settled.world.domain, trainer.key)
    monkeypatch.setattr(mail, "heads", [*mail.heads, replace(known, head=other)])
    only(checks.violations(settled), 8, "trainer has two things at 'head shown'")
    assert checks.nothing_twice(replace(settled, deviations={"trainer": "x"})) == []


# ---------------------------------------------------------------- where adversaries end


def test_an_adversarys_ending_follows_from_job_and_game_outcomes(
    slashed: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(name: str, untrue: frozenset[Digest] = slashed.false_jobs) -> str:
        return ending(slashed.world, slashed.agents[name], slashed.wei, untrue)

    (job,) = slashed.jobs
    loser, winner = sorted(("auditor 1", "auditor 2"), key=lambda name: slashed.wei[name])
    assert [ends(name) for name in ("trainer", loser, winner)] == ["recomputed", "refused", "harmless"]
    assert [ends("builder"), ends("client")] == ["harmless", "harmless"]
    monkeypatch.setattr(job, "equivocation", True)
    assert ends("trainer") == "equivocation"
    monkeypatch.setattr(job, "status", JobStatus.ABANDONED)
    assert ends("trainer") == "abandoned"
    monkeypatch.setattr(job, "status", JobStatus.SETTLED)
    assert [ends("trainer"), ends("trainer", frozenset())] == ["undetected", "unpaid"]
    monkeypatch.setattr(slashed.agents[loser].account, "refused", 1)
    assert ends(loser) == "refused"
    won = next(found for found in slashed.games if not found.void)
    assert won.state.verdict is not None
    lost = replace(won.state, verdict=replace(won.state.verdict, winner=Side.DEFENDER))
    monkeypatch.setattr(won, "state", lost)
    assert ends(winner) == "recomputed"
