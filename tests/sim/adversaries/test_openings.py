"""Whole games of trainers that do not open what they committed."""

import pytest

from tests.sim.adversaries.playing import duel, party, played
from tiebreak.sim.adversaries.base import Adversary
from tiebreak.sim.adversaries.openings import ADVERSARIES, EndlessOpenings, GarbageBehindTheValues, OversizedOpenings
from tiebreak.sim.world.cast import TERMS


@pytest.mark.slow
@pytest.mark.parametrize("kind", ADVERSARIES, ids=lambda kind: kind.name)
def test_it_ends_where_it_must(kind: type[Adversary]) -> None:
    result = played(kind, 1)
    assert party(result, "auditor").wei == TERMS.trainer_stake // 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2])
def test_an_opening_of_kilobytes_is_a_broken_tie_to_both_referees(seed: int) -> None:
    """No message can carry it. The contract takes the transaction, and the walk ends there."""
    assert duel(played(OversizedOpenings, seed), "auditor").reason == "broken tie"


@pytest.mark.slow
def test_an_endless_stream_costs_who_sends_it() -> None:
    result = played(EndlessOpenings, 2)
    trainer, auditor = party(result, "trainer"), party(result, "auditor")
    assert trainer.refused >= 20, "transactions and messages"
    assert auditor.gas < 600_000 < trainer.gas
    assert duel(result, "auditor").seconds <= TERMS.clock + TERMS.replay_time + 200


def test_garbage_between_values_and_state_is_found_where_it_lies() -> None:
    found = duel(played(GarbageBehindTheValues, 2), "auditor")
    assert (found.reason, found.level) == ("padding", "values")
