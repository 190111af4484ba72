"""What protects from conspirators: looking past what waits in the mempool, and reading the terms."""

from dataclasses import replace
from random import Random

import pytest
import simpy

from tests.lab.sim.adversaries.playing import HALF, party, played, stage
from tiebreak.lab.sim.adversaries.base import TRAINER, false_sum, seat_trainer
from tiebreak.lab.sim.adversaries.collusion import BaitingTrainer
from tiebreak.lab.sim.world.agents import Agent, AuditorAgent
from tiebreak.lab.sim.world.game import TERMS, Cast, CastMember, play, seat
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.lab.sim.world.world import World
from tiebreak.protocol.chain import Call, ChainError
from tiebreak.protocol.parties.board import PublicJob


def on_the_pending_state(world: World, sender: Agent, call: Call, *, untried: bool = False) -> simpy.Event:
    """Tries transactions as was once done: behind all that wait."""
    pending = world.new_pending(sender, call, untried=untried)
    try:
        world._execute(world._draft_of_next(), pending, in_block=untried)
    except ChainError as error:
        pending.done.fail(error)
        return pending.done
    world.pending.append(pending)
    if not world._arrival.triggered:
        world._arrival.succeed()
    return pending.done


@pytest.mark.slow
def test_a_decoy_in_the_mempool_does_not_stop_a_challenge(monkeypatch: pytest.MonkeyPatch) -> None:
    """A party that did not look past what waits would send no challenge and claim no timeout."""
    result = played("decoy in the mempool", 4)
    (duel,) = result.duels
    assert (duel.verdict, duel.reason) == ("challenger", "recomputed")
    monkeypatch.setattr(World, "submit", on_the_pending_state)
    world, agents = seat(stage("decoy in the mempool", Random(4), challenge_window=300), Random(4))
    for agent in agents.values():
        agent.start()
    while world.env.peek() <= 900:
        world.env.step()
    (job,) = world.board.jobs.values()
    assert world.now > job.window_end
    assert not world.board.games, "nobody can challenge any more"


# ---------------------------------------------------------------- bait


class Careless(AuditorAgent):
    """Honest, but does not read terms."""

    def objects(self, job: PublicJob) -> bool:
        return False


def test_a_challenger_that_ignores_a_short_clock_loses_though_it_is_right() -> None:
    cast = Cast(workshop=Workshop.open("exact"), terms=replace(TERMS, clock=11))
    cast.deviation = false_sum()
    seat_trainer(cast, Random(0), "bait", BaitingTrainer)
    cast.dishonest["client"] = "bait"
    cast.auditors = [CastMember(name="careless", make=Careless)]
    result = play(cast, "-", Random(5))
    (duel,) = result.duels
    assert (duel.challenger, duel.verdict, duel.reason, duel.moves) == ("careless", "trainer", "timeout", 1)
    assert party(result, "careless").wei == -TERMS.challenger_stake
    assert party(result, TRAINER).wei == TERMS.reward + TERMS.challenger_stake // 2


def test_a_self_challenging_cheat_gains_the_same_with_or_without_a_game() -> None:
    found = [played("self-challenge to keep the stake", seed) for seed in (0, 1)]
    assert {len(result.duels) for result in found} == {0, 1}
    for result in found:
        assert (party(result, TRAINER).wei, party(result, "puppet 1").wei) == (-TERMS.trainer_stake, HALF)
