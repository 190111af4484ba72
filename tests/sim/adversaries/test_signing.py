"""Whole games of trainers that do with heads what was not agreed."""

import pytest

from tests.sim.adversaries.playing import duel, party, played, result_of
from tiebreak.protocol.errors import TiebreakError
from tiebreak.sim.adversaries.base import Adversary
from tiebreak.sim.adversaries.signing import (
    ADVERSARIES,
    Equivocation,
    HastyHead,
    HeadsBeyondTheRun,
    MalformedSignatures,
    SwappedHead,
    UnreplayableHead,
    WithheldHeads,
)
from tiebreak.sim.incentives.figures import PRESETS
from tiebreak.sim.incentives.recommend import times
from tiebreak.sim.world.cast import TERMS
from tiebreak.sim.world.small_task import STEPS
from tiebreak.sim.world.world import STEP_SECONDS

CAUGHT = [kind for kind in ADVERSARIES if not kind.open]


@pytest.mark.slow
@pytest.mark.parametrize("kind", CAUGHT, ids=lambda kind: kind.name)
def test_it_ends_where_it_must(kind: type[Adversary]) -> None:
    played(kind, 1)


def test_two_heads_are_reported_without_a_game() -> None:
    result = played(Equivocation, 2)
    assert result.duels == ()
    assert party(result, "auditor").wei == TERMS.trainer_stake // 2
    assert party(result, "trainer").wei == -TERMS.trainer_stake


def test_a_head_of_the_last_second_has_a_window_of_its_own() -> None:
    result = played(SwappedHead, 2)
    assert duel(result, "auditor").verdict == "challenger"
    assert result.seconds > TERMS.challenge_window


def test_who_shows_no_head_loses_its_stake_to_the_client() -> None:
    result = played(WithheldHeads, 2)
    assert party(result, "client").wei == TERMS.trainer_stake


@pytest.mark.parametrize("kind", [MalformedSignatures, HeadsBeyondTheRun], ids=lambda kind: kind.name)
def test_what_is_refused_costs_gas_and_nothing_else(kind: type[Adversary]) -> None:
    result = played(kind, 2)
    assert (result.job_status, party(result, "trainer").wei) == ("settled", TERMS.reward)
    assert party(result, "trainer").refused >= 4 * 4, "four at each of four checkpoints"


# ---------------------------------------------------------------- the final head at once


def test_a_window_that_holds_no_replay_of_the_run_pays_for_a_false_one() -> None:
    """An open weakness, as it is: the same cheat is caught where the window holds the replay."""
    result = result_of(UnreplayableHead, 1)
    assert (result.watched, result.false_head) == (True, True)
    assert (result.job_status, result.catches[UnreplayableHead.name]) == ("settled", "undetected")
    window = STEPS * STEP_SECONDS + 4 * 12  # and the blocks in which head and challenge stand
    assert played(HastyHead, 1, challenge_window=window).job_status == "slashed"


def test_recommended_windows_hold_a_replay_of_the_whole_run() -> None:
    found = 0
    for preset in PRESETS.values():
        try:
            window = times(preset.figures).challenge_window
        except TiebreakError:
            continue  # no window is long enough
        assert window > preset.figures.training_seconds * preset.figures.replay_ratio
        found += 1
    assert found
