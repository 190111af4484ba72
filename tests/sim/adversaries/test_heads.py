"""Whole games of trainers that do with heads what was not agreed."""

import pytest

from tests.sim.adversaries.playing import duel, party, played, result_of
from tiebreak.sim.world.cast import TERMS
from tiebreak.sim.world.small_task import STEPS
from tiebreak.sim.world.world import STEP_SECONDS


def test_two_heads_are_reported_without_a_game() -> None:
    result = played("equivocation", 2)
    assert result.duels == ()
    assert party(result, "auditor").wei == TERMS.trainer_stake // 2
    assert party(result, "trainer").wei == -TERMS.trainer_stake


def test_a_head_of_the_last_second_has_a_window_of_its_own() -> None:
    result = played("false head swapped in late", 2)
    assert duel(result, "auditor").verdict == "challenger"
    assert result.seconds > TERMS.challenge_window


def test_who_shows_no_head_loses_its_stake_to_the_client() -> None:
    result = played("withheld heads", 2)
    assert party(result, "client").wei == TERMS.trainer_stake


@pytest.mark.parametrize("name", ["malformed and malleable signatures", "heads beyond the run"])
def test_what_is_refused_costs_gas_and_nothing_else(name: str) -> None:
    result = played(name, 2)
    assert (result.job_status, party(result, "trainer").wei) == ("settled", TERMS.reward)
    assert party(result, "trainer").refused >= 4 * 4, "four at each of four checkpoints"


def test_heads_at_the_last_second_make_a_job_as_long_as_its_windows() -> None:
    result = played("heads at the last second", 2)
    assert 5 * TERMS.challenge_window - 200 < result.seconds < 5 * TERMS.challenge_window + 200


# ---------------------------------------------------------------- the final head at once


def test_a_final_head_at_once_waits_until_the_run_could_be_audited() -> None:
    """The window holds no replay of the run; the time for audits does."""
    result = played("final head at once, in a short window", 1)
    assert (result.watched, result.false_head, result.job_status) == (True, True, "slashed")


def test_the_rest_of_a_run_at_once_brings_all_its_audit_times() -> None:
    """Whenever it is posted; without audit times the window alone is too short, and the lie is paid."""
    name = "true heads at the last second, then the rest at once"
    result = played(name, 1)
    assert (result.watched, result.false_head, result.job_status) == (True, True, "slashed")
    assert result_of(name, 1, audit_time=0).job_status == "settled"


def test_records_that_were_rewritten_are_reported_before_a_replay_is_done() -> None:
    result = played("records rewritten", 1)
    assert (result.job_status, result.duels) == ("slashed", ())
    assert party(result, "auditor").wei == TERMS.trainer_stake // 2


def test_heads_at_the_last_second_end_at_the_deadline() -> None:
    result = played("heads at the last second, past the deadline", 1)
    assert result.job_status == "abandoned"
    assert party(result, "client").wei == TERMS.trainer_stake
    assert 3 * STEPS * STEP_SECONDS < result.seconds < 3 * STEPS * STEP_SECONDS + 200
