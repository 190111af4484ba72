"""Whole games of those who use up all their time."""

import pytest

from tests.sim.adversaries.playing import duel, party, played
from tiebreak.sim.adversaries.base import Adversary
from tiebreak.sim.adversaries.stalling import ADVERSARIES, LastSecondHeads, StalledChallenge, StalledDefence
from tiebreak.sim.world.cast import TERMS
from tiebreak.sim.world.world import BLOCK_SECONDS

LONGEST = 2 * TERMS.clock + 6 * TERMS.replay_time + 1
"""Invariant 12."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ADVERSARIES, ids=lambda kind: kind.name)
def test_it_ends_where_it_must(kind: type[Adversary]) -> None:
    played(kind, 1)


@pytest.mark.slow
@pytest.mark.parametrize("levels", [1, 5])
def test_a_stalled_defence_takes_its_clock_and_three_allowances_and_loses(levels: int) -> None:
    result = played(StalledDefence, 3, descent_levels=levels)
    found = duel(result, "auditor")
    assert TERMS.clock < found.seconds <= TERMS.clock + 3 * TERMS.replay_time + found.rounds * BLOCK_SECONDS
    assert party(result, "auditor").wei == TERMS.trainer_stake // 2


def test_a_stalled_challenge_ends_within_the_bound_and_pays_for_the_wait() -> None:
    result = played(StalledChallenge, 2)
    assert TERMS.clock < duel(result, "challenger 1").seconds <= LONGEST
    assert party(result, "trainer").wei == TERMS.reward + TERMS.challenger_stake


def test_heads_at_the_last_second_make_a_job_as_long_as_its_windows() -> None:
    result = played(LastSecondHeads, 2)
    assert 5 * TERMS.challenge_window - 200 < result.seconds < 5 * TERMS.challenge_window + 200
