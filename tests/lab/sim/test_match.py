"""Whole games over real runs: every place of a step in its segment, and what is not played."""

import random
from dataclasses import replace

import pytest

from tests.lab.sim.yard import CLASSES, Yard, any_cheat, assert_same_end
from tests.parts import slow_except
from tiebreak.engine.run.evidence import Evidence
from tiebreak.lab.sim.adversaries.tampering import Cheat, poisoned_label
from tiebreak.lab.sim.games import disputes
from tiebreak.lab.sim.games.disputes import play, replay_on_chain
from tiebreak.protocol.commitments.job import Head, SignedHead
from tiebreak.protocol.errors import SignatureError, StateError, VerificationError
from tiebreak.protocol.game.moves import Phase, Select, Side
from tiebreak.protocol.game.rules import Level, Reason
from tiebreak.protocol.program.isa import Opcode


@pytest.mark.parametrize(
    ("interval", "step", "levels"),
    slow_except(
        [
            (3, 1, 1),  # the first step: its state is the initial one
            (3, 4, 3),  # first of its segment: its state is a checkpoint
            (7, 8, 2),  # a last segment of one step
            (8, 8, 5),  # inside of the only segment: its state is in no checkpoint
        ],
        (3, 4, 3),
        several=True,
    ),
)
def test_a_lie_at_any_place_of_a_segment_is_found(yard: Yard, interval: int, step: int, levels: int) -> None:
    cheat = Cheat(
        name="state", step=step, leaf=0, element=3, change=lambda weight: weight * 2
    )  # a source of state: its witness is the record before, wherever that stands
    match = yard.convict(cheat, interval=interval, levels=levels)
    job, state = yard.arena(interval).run.job, match.final
    assert yard.program.body[0].opcode == Opcode.SOURCE
    assert state.checkpoint == (step - 1) // interval
    assert job.first_step(state.checkpoint) <= step <= job.last_step(state.checkpoint)
    assert state.level is Level.VALUES
    assert state.verdict is not None
    assert state.verdict.reason is Reason.RECOMPUTED


def test_a_match_records_every_move_and_selection_of_its_game(yard: Yard) -> None:
    duel = yard.duel(poisoned_label(yard.program, labels="labels", step=5, element=2, classes=CLASSES), levels=2)
    assert duel is not None
    match = duel.match
    selects = [m for m in match.moves if isinstance(m.move, Select)]
    assert [chosen.index for _, chosen in match.selections] == [m.move.index for m in selects]  # type: ignore[union-attr]
    assert all(m.by is m.move.KIND.mover for m in match.moves)
    assert match.moves[-1].move.KIND is Phase.PROVE
    assert {m.gas for m in match.moves} == {None}
    levels = [state.level for state, _ in match.selections]
    assert levels == sorted(levels)
    last = {state.level: state.below(chosen.index) for state, chosen in match.selections}
    assert (last[Level.RUN], last[Level.STEPS], last[Level.VALUES]) == (1, 1, match.final.leaf)
    assert all(1 <= state.levels <= min(2, state.height) for state, _ in match.selections)


def test_a_false_challenge_is_conceded(yard: Yard) -> None:
    mistake = any_cheat(yard.program, 0, step=5, rng=random.Random(2))
    match = disputes.challenge_falsely(yard.arena(), mistake, yard.fresh("wrong").name).match
    assert match.loser is Side.CHALLENGER
    assert match.final.verdict is not None
    assert (match.final.step, match.final.leaf, match.final.verdict.reason) == (5, 0, Reason.CONCEDED)
    assert_same_end(match)


# ---------------------------------------------------------------- what is not played


def test_a_head_that_nobody_signed_is_not_disputed(yard: Yard) -> None:
    arena = yard.arena(1)
    agreement, head = arena.run.agreement, arena.run.heads()[-1]
    sides = (Evidence(arena.run, yard.interpreter), Evidence(arena.replay, yard.interpreter))
    for wrong in (
        SignedHead.sign(head.head, agreement.domain, yard.market.parties.challenger),
        replace(head, head=replace(head.head, run_root=bytes(32))),
        SignedHead.sign(
            Head(job_id=yard.job().id, count=1, run_root=head.head.run_root),
            agreement.domain,
            yard.market.parties.trainer,
        ),
    ):
        with pytest.raises(VerificationError):
            play(agreement, wrong, *sides)
    assert issubclass(SignatureError, VerificationError)


@pytest.mark.slow
def test_a_match_that_stops_short_has_no_verdict_on_the_chain(yard: Yard) -> None:
    cheat, before = any_cheat(yard.program, 0, step=2, rng=random.Random(3)), yard.credits()
    duel = yard.duel(cheat)
    assert duel is not None
    cut = replace(duel, match=replace(duel.match, moves=duel.match.moves[:-1]))
    with pytest.raises(StateError, match="a game that goes on"):
        yard.settle(cut)
    assert yard.credits() == before


@pytest.mark.slow
def test_a_match_cannot_be_replayed_in_another_game(yard: Yard) -> None:
    """What the challenger sealed in one game is worth nothing in another."""
    duel = yard.duel(any_cheat(yard.program, 0, step=2, rng=random.Random(4)))
    assert duel is not None
    yard.open(duel.agreement)
    with pytest.raises(StateError, match="expected a match of game"):
        replay_on_chain(yard.market, duel.agreement, duel.head, duel.match, nonce=1)


@pytest.mark.slow
def test_a_cheat_that_nothing_depends_on_is_an_error(yard: Yard) -> None:
    """The state after the step is the honest one: there is no lie to find."""
    rng = random.Random(5)
    dropped = next(n for n, i in enumerate(yard.program.body) if i.opcode == Opcode.RANDOM)
    idle = any_cheat(yard.program, dropped, step=2, rng=rng)  # a number in 0 ... 1 stays on its side of the rate
    idle = replace(idle, change=lambda drawn: drawn - 2.0**-20 if drawn > 0.5 else drawn + 2.0**-20)
    assert yard.duel(idle) is None
    job = yard.job()
    yard.jobs.append(job.id)
    with pytest.raises(StateError, match="expected a run that differs from the honest one"):
        disputes.fight(yard.arena(), idle, job, yard.fresh("idle").name)
