"""Colluding parties: a job whose clock is too short, and a trainer that challenges itself."""

from dataclasses import replace
from random import Random

from tests.lab.sim.adversaries.playing import HALF, party, played
from tiebreak.lab.sim.adversaries.base import TRAINER, false_sum, seat_trainer
from tiebreak.lab.sim.adversaries.collusion import BaitingTrainer
from tiebreak.lab.sim.world.agents import AuditorAgent
from tiebreak.lab.sim.world.game import TERMS, Cast, CastMember, play
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.protocol.parties.board import PublicJob


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
