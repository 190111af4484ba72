"""Trainers of policy `logged` that lie in their logs, beside them, or by not showing them."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.sim.adversaries.playing import deviate, fight, job_of, lied
from tests.protocol.oracles import nearest, value
from tiebreak.lab.sim.adversaries.logs import ExactSum, greater, with_entry, wrong_way
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.protocol.errors import CannotCheck
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.program.rounding import Direction, Rounding, StepLog

PADDING = "codes of padding in a log"


@pytest.fixture
def workshop() -> Workshop:
    return Workshop.open("logged")


def test_auditors_follow_a_trainers_logged_tie_breaking(workshop: Workshop) -> None:
    """The auditor that follows its log comes to the same run; whoever takes its own log for the law loses."""
    job, work = job_of(workshop), deviate("tie breaking", 0, workshop)
    truth, honest = workshop.audited(job, work), workshop.honest(job)
    assert work.lie is None
    assert truth.records == work.records != honest.records
    assert fight(job, job.checkpoints, work.oracle, honest.oracle).loser is Side.CHALLENGER


@pytest.mark.parametrize("name", [PADDING, "code 3 in a log", "logs withheld", "other logs than committed"])
def test_whoever_guesses_at_what_was_withheld_loses(name: str, workshop: Workshop) -> None:
    """Nobody can check it; a challenge from an honest run of its own is in policy `logged` no truth."""
    job, work = job_of(workshop), deviate(name, 1, workshop)
    assert (work.lie is None) == (name == PADDING)
    with pytest.raises(CannotCheck):
        workshop.audited(job, work)
    match = fight(job, job.checkpoints, work.oracle, workshop.honest(job).oracle)
    first = job.first_step(job.checkpoint_of(match.final.step))
    assert match.final.step == first, "all records of the segment differ by their log root"
    if work.lie is None or work.lie.step != first:
        assert match.loser is Side.CHALLENGER


def test_false_steps_before_the_first_unreadable_log_are_found(workshop: Workshop) -> None:
    """Logs withheld from the lie on are withheld; logs withheld after it come too late."""
    job, found = job_of(workshop), (lied("silent rounding", seed, workshop) for seed in range(100))
    work, lie = next((work, lie) for work, lie in found if lie.step <= 3)
    assert work.logs is not None
    late = replace(work, logs={step: log for step, log in work.logs.items() if step <= 3})
    match = fight(job, job.checkpoints, work.oracle, workshop.audited(job, late).oracle)
    assert match.loser is Side.DEFENDER
    assert (match.final.step, match.final.leaf) == (lie.step, lie.leaf)


def test_an_invalid_log_code_is_convicted_once_the_log_is_known(workshop: Workshop) -> None:
    """The open part is the reading, not the judging."""
    job, (work, lie) = job_of(workshop), lied("code 3 in a log", 2, workshop)
    match = fight(job, job.checkpoints, work.oracle, workshop.told(job, work).oracle)
    assert match.loser is Side.DEFENDER
    assert (match.final.step, match.final.leaf, match.final.element) == (lie.step, lie.leaf, lie.element)


# ---------------------------------------------------------------- sums and entries


@given(st.integers(-(2**60), 2**60), st.integers(-190, 60), st.integers(16, 32), st.integers(2, 10))
def test_an_exact_sum_lies_between_its_rounded_neighbours(n: int, e: int, precision: int, tolerance: int) -> None:
    exact = ExactSum(index=0, element=0, n=n, e=e, rounding=Rounding(precision=precision, tolerance=tolerance))
    x = n * Fraction(2) ** e
    rounded = nearest(x, precision)
    if rounded & 0x7FFFFFFF == 0x7F800000:
        assert not exact.between
        return
    assert exact.between == (value(rounded) != x)
    if not exact.between:
        return
    low, high = (abs(value(exact.bits(way))) for way in (Direction.DOWN, Direction.UP))
    assert low < abs(x) < high
    assert exact.bits(exact.nearest) == (0 if rounded & 0x7FFFFFFF == 0 else rounded)
    assert {exact.nearest, wrong_way(exact)} == {Direction.DOWN, Direction.UP}
    assert value(exact.bits(greater(exact))) > x
    assert exact.near == (abs(abs(x) - (low + high) / 2) <= (high - low) / 2**tolerance)


def test_with_entry_adds_replaces_and_removes_log_entries() -> None:
    log = with_entry(StepLog(), 3, 7, Direction.UP)
    log = with_entry(with_entry(log, 3, 2, Direction.DOWN), 1, 0, Direction.UP)
    assert list(log.entries) == [1, 3]
    assert list(log.entries[3].directions()) == [(2, Direction.DOWN), (7, Direction.UP)]
    log = with_entry(with_entry(log, 3, 7, Direction.DOWN), 1, 0, Direction.NONE)
    assert list(log.entries) == [3]
    assert list(log.entries[3].directions()) == [(2, Direction.DOWN), (7, Direction.DOWN)]
    assert with_entry(log, 5, 5, Direction.NONE) == log
