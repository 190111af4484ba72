"""Whole games of trainers that do not open what they committed, or as late as they can."""

import pytest

from tests.sim.adversaries.playing import duel, party, played
from tiebreak.sim.world.cast import TERMS
from tiebreak.sim.world.world import BLOCK_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2])
def test_an_opening_of_kilobytes_is_refused_by_both_referees(seed: int) -> None:
    """No message can carry it, and the contract reverts; the clock runs on."""
    assert duel(played("oversized openings", seed), "auditor").reason == "timeout"


@pytest.mark.slow
def test_an_endless_stream_costs_who_sends_it() -> None:
    result = played("endless openings", 2)
    trainer, auditor = party(result, "trainer"), party(result, "auditor")
    assert trainer.refused >= 20, "transactions and messages"
    assert auditor.gas < 600_000 < trainer.gas
    assert duel(result, "auditor").seconds <= TERMS.clock + TERMS.replay_time + 200


def test_garbage_between_values_and_state_is_found_where_it_lies() -> None:
    found = duel(played("garbage behind the values", 2), "auditor")
    assert (found.reason, found.level) == ("padding", "values")


@pytest.mark.slow
@pytest.mark.parametrize("levels", [1, 5])
def test_a_stalled_defence_takes_its_clock_and_three_allowances_and_loses(levels: int) -> None:
    result = played("stalled defence of a false run", 3, descent_levels=levels)
    found = duel(result, "auditor")
    longest = TERMS.clock + 3 * TERMS.replay_time + found.rounds * BLOCK_SECONDS
    assert 2 * TERMS.clock < found.seconds <= longest + TERMS.clock, "the proof waits for a clock"
    assert party(result, "auditor").wei == TERMS.trainer_stake // 2
