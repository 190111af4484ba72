"""Clocks in simulated time, at their edge, and what may not stand in one block."""

from dataclasses import replace
from random import Random

import pytest

from tests.lab.sim.adversaries.playing import duel, party
from tests.lab.sim.world.cheats import Staller, cheating, tardy
from tiebreak.lab.sim.world.agents import AuditorAgent, Process
from tiebreak.lab.sim.world.game import TERMS, Cast, conclude, play, seat
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.lab.sim.world.world import World
from tiebreak.protocol.chain import Reverted
from tiebreak.protocol.chain.calls import Call, move_call
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.moves import Phase
from tiebreak.protocol.game.rules import Reason
from tiebreak.protocol.parties.player import GameView, Reply

SHORT = replace(TERMS, clock=200, replay_time=60)


def run(cast: Cast, seed: int) -> World:
    """A game played to its end, and its world."""
    world, agents = seat(cast, Random(seed))
    for agent in agents.values():
        agent.start()
    while world.env.peek() < 40_000:
        world.env.step()
    assert conclude(cast, "", world, agents).violations == ()
    return world


@pytest.mark.parametrize(("offset", "rest"), [(-1, 1), (0, 0), (1, None)])
def test_a_move_counts_up_to_the_last_second_of_its_clock(workshop: Workshop, offset: int, rest: int | None) -> None:
    cast = cheating(workshop, trainer=tardy(offset), terms=SHORT, block_seconds=1)
    world = run(cast, 22)
    (played,) = world.board.games.values()
    opened = [item for block in world.blocks for item in block.transactions if item.pending.call.kind == "openSteps"]
    assert played.state.verdict is not None
    assert played.state.verdict.reason is Reason.TIMEOUT, "whoever used its clock up has none left for the next move"
    if rest is None:
        assert [item.applied.reverted.name for item in opened if item.applied.reverted] == ["ClockExhausted"]
        assert all(move.KIND is not Phase.OPEN_STEPS for move in played.moves)
    else:
        assert [item.record.defender_rest for item in opened if item.record] == [rest]


def test_a_timeout_is_claimed_in_the_first_block_that_takes_it(workshop: Workshop) -> None:
    cast = cheating(workshop, trainer=Staller, terms=SHORT)
    world = run(cast, 23)
    (played,) = world.board.games.values()
    state = played.state
    deadline = state.last + SHORT.replay_time + state.defender_rest
    assert deadline < played.ended <= deadline + 2 * world.block_seconds


class Pressed(AuditorAgent):
    """Selects and proves in one breath, untried; then goes on as an honest auditor does."""

    rushed = False
    refusal = ""

    def reply(self, game_: GameView) -> Reply:
        plain = super().reply(game_)
        if plain.move is None or self.rushed:
            return plain
        after = game.apply(game_.state, plain.move, self.world.next_block)
        if after.phase is Phase.PROVE:
            self.rushed = True
            self.spawn(self.rush(move_call(after, self.party_of(game_.game).move(after, plain.move))))
        return plain

    def rush(self, proof: Call) -> Process:
        yield from self.sleep(1)  # its selection waits for the block; the proof joins it
        try:
            yield from self.send(proof, untried=True)
        except Reverted as error:
            self.refusal = error.name


def test_a_proof_mined_with_its_seal_reverts_and_is_sent_again(workshop: Workshop) -> None:
    cast = cheating(workshop)
    cast.auditors[0].make = Pressed
    world, agents = seat(cast, Random(24))
    for agent in agents.values():
        agent.start()
    while world.env.peek() < 40_000:
        world.env.step()
    result = conclude(cast, "pressed", world, agents)
    auditor = agents["auditor"]
    assert isinstance(auditor, Pressed)
    assert auditor.refusal == "TooEarly"
    assert party(result, "auditor").refused == 1
    assert (result.job_status, result.violations) == ("slashed", ())
    assert duel(result).reason == "recomputed"
    together = [block for block in world.blocks if len(block.transactions) > 1]
    kinds = [[item.pending.call.kind for item in block.transactions] for block in together]
    assert ["select", "prove"] in kinds or ["selectElement", "prove"] in kinds


def test_a_game_at_a_slow_pace_is_still_won(workshop: Workshop) -> None:
    """Blocks every minute, clocks of a quarter of an hour: an honest party acts in each block it can."""
    cast = cheating(workshop, terms=replace(TERMS, clock=900, replay_time=60, descent_levels=5), block_seconds=60)
    result = play(cast, "slow", Random(25))
    assert (result.job_status, result.violations) == ("slashed", ())
    assert duel(result).seconds == 60 * (duel(result).moves - 1) + 900, "the proof waits for a clock"
