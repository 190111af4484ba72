"""Whole games with builders that make no blocks, or other blocks than those that everyone has seen."""

from random import Random
from typing import Any

import pytest

from tests.lab.sim.adversaries.playing import HALF, RELIEF, SEATS, party, played, stage
from tiebreak.lab.sim.adversaries.base import false_sum
from tiebreak.lab.sim.adversaries.blocks import Halting, Reorganiser, Retaking, Unsealer, Unsealing
from tiebreak.lab.sim.world.game import TERMS, Cast, CastMember, play, seat
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.lab.sim.world.world import World

LONG = {"clock": 3600, "challenge_window": 7200}
SEATED = {"challenge_window": 600, **SEATS}


@pytest.mark.slow
def test_block_adversaries_do_reorganise_and_delay_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adversaries do what they are named for."""
    vanished, halted = list[int](), list[int]()
    vanish, order = World._vanish, Halting.order

    def counted(world: World) -> None:
        before = len(world.blocks)
        vanish(world)
        vanished.append(before - len(world.blocks))

    def noted(builder: Halting, pending: list, now: int) -> list:  # type: ignore[type-arg]
        found = order(builder, pending, now)
        halted.append(len(pending) - len(found))
        return found

    monkeypatch.setattr(World, "_vanish", counted)
    monkeypatch.setattr(Reorganiser, "chance", 0.6)
    played("reorganised blocks", 2, **LONG)
    assert sum(vanished) >= 2
    monkeypatch.setattr(Halting, "order", noted)
    played("delayed blocks", 2, **LONG)
    assert sum(halted) >= 10


@pytest.mark.slow
def test_answers_to_reorganised_selections_harm_no_honest_party(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is made where another choice stands by then, and reverts."""
    builders, begin = list[Retaking](), Retaking.start

    def noted(builder: Retaking) -> None:
        builders.append(builder)
        begin(builder)

    monkeypatch.setattr(Retaking, "start", noted)
    result = played("choice taken back under its answer", 1, **LONG)
    assert (result.job_status, party(result, "trainer").wei > TERMS.reward) == ("settled", True)
    assert all(builder.answers_met >= 3 for builder in builders)


@pytest.mark.slow
def test_a_reorganised_seal_does_not_let_a_copied_proof_win() -> None:
    """Whatever number of blocks its maker wants on top of a transaction's."""
    result = played("reorganised seal", 2, **LONG)
    assert (result.job_status, party(result, "auditor").wei) == ("slashed", HALF - RELIEF)
    mirror = next(found for found in result.parties if found.name.startswith("challenger"))
    assert mirror.wei == RELIEF

    cast = Cast(workshop=Workshop.open("exact"), deviation=false_sum())
    cast.auditors.append(CastMember(name="mirror", make=Unsealing, adversary="mirror"))

    def unsealer(*known: object) -> Unsealer:
        builder = Unsealer(*known)  # type: ignore[arg-type]
        builder.depth, builder.friend = 2, "mirror"
        return builder

    cast.builder, cast.dishonest = unsealer, {"builder": "mirror", "trainer": "cheat"}
    for confirmations in range(3):
        cast.confirmations = confirmations
        result = play(cast, "unsealed", Random(5))
        assert [party(result, name).wei for name in ("auditor", "mirror")] == [HALF - RELIEF, RELIEF]
        assert result.violations == ()


@pytest.mark.parametrize(("terms", "ends"), [({}, 4000), (SEATED, 4000)], ids=["heads", "seats"])
def test_reorganised_blocks_restore_board_balances_and_mempool(terms: dict[str, Any], ends: int) -> None:
    """Board, balances and accounts are what they were, in the same objects, and what was in the blocks waits again."""
    world, agents = seat(stage("one false sum", Random(6), **terms), Random(6))
    for agent in agents.values():
        agent.start()

    def told() -> object:
        board = world.board
        jobs = [(str(job), job.status, job.head_count, job.last_progress) for job in board.jobs.values()]
        games = [(len(game.moves), game.state, game.void) for game in board.games.values()]
        money = [(world.chain.balance(a.address), a.account.gas, a.account.refused) for a in agents.values()]
        return jobs, games, dict(board.credits), str(board.pools), money

    seen, checked = [told()], 0
    made = len(world.blocks)
    objects = dict(world.board.games)
    while world.env.peek() <= ends:
        world.env.step()
        if len(world.blocks) > made:
            made = len(world.blocks)
            seen.append(told())
            objects |= world.board.games
    assert made > 10
    kinds = {included.pending.call.kind for block in world.blocks for included in block.transactions}
    assert kinds >= ({"sealRoot", "claimSeat"} if terms else {"postHead", "challenge", "prove"})
    for depth in (1, 5, made - 7):
        kept = [included.pending for block in world.blocks[-depth:] for included in block.transactions]
        world.pending.clear()
        world._vanishing = -((world.blocks[-depth].timestamp - world.now) // world.block_seconds)
        world._vanish()
        del seen[len(seen) - depth :]
        assert (told(), world.pending) == (seen[-1], kept)
        assert all(objects[number] is game for number, game in world.board.games.items())
        checked += 1
    assert checked == 3
