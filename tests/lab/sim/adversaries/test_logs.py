"""Trainers of policy `logged` that lie in their logs, beside them, or by not showing them."""

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.sim.adversaries.playing import deviation, fight, job_of
from tests.protocol.oracles import nearest, value
from tiebreak.lab.sim.adversaries.forgery import ForgedLogTree
from tiebreak.lab.sim.adversaries.logs import ExactSum, greater, with_entry, wrong_way
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.protocol.commitments.log_tree import LogTree
from tiebreak.protocol.errors import CannotCheck
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.program.rounding import Direction, Rounding, StepLog

OPEN = ["code 3 in a log", "logs withheld", "other logs than committed"]


def test_auditors_follow_a_trainers_logged_tie_breaking() -> None:
    """The auditor that follows its log comes to the same run; whoever takes its own log for the law loses."""
    workshop = Workshop.open("logged")
    job = job_of(workshop)
    work = deviation("tie breaking").work(workshop, job, Random(0))
    truth, honest = workshop.audited(job, work), workshop.honest(job)
    assert work.lie is None
    assert truth.records == work.records != honest.records
    match = fight(job, job.checkpoints, work.oracle, honest.oracle)
    assert match.loser is Side.CHALLENGER


@pytest.mark.parametrize("name", ["codes of padding in a log", *OPEN])
def test_whoever_guesses_at_what_was_withheld_loses(name: str) -> None:
    """Nobody can check it; a challenge from an honest run of its own is in policy `logged` no truth."""
    workshop = Workshop.open("logged")
    job = job_of(workshop)
    work = deviation(name).work(workshop, job, Random(1))
    assert (work.lie is None) == (name == "codes of padding in a log")
    with pytest.raises(CannotCheck):
        workshop.audited(job, work)
    match = fight(job, job.checkpoints, work.oracle, workshop.honest(job).oracle)
    first = job.first_step(job.checkpoint_of(match.final.step))
    assert match.final.step == first, "all records of the segment differ by their log root"
    if work.lie is None or work.lie.step != first:
        assert match.loser is Side.CHALLENGER


def test_false_steps_before_the_first_unreadable_log_are_found() -> None:
    """Logs withheld from the lie on are withheld; logs withheld after it come too late."""
    workshop = Workshop.open("logged")
    job = job_of(workshop)
    rng = Random(0)
    while (work := deviation("silent rounding").work(workshop, job, rng)).lie is None or work.lie.step > 3:
        pass
    assert work.logs is not None
    assert work.lie is not None
    hidden = {step: log for step, log in work.logs.items() if step <= 3}
    late = replace(work, logs=hidden)
    truth = workshop.audited(job, late)
    match = fight(job, job.checkpoints, work.oracle, truth.oracle)
    assert match.loser is Side.DEFENDER
    assert (match.final.step, match.final.leaf) == (work.lie.step, work.lie.leaf)


def test_an_invalid_log_code_is_convicted_once_the_log_is_known() -> None:
    """The open part is the reading, not the judging."""
    workshop = Workshop.open("logged")
    job = job_of(workshop)
    work = deviation("code 3 in a log").work(workshop, job, Random(2))
    assert work.lie is not None
    told = workshop.told(job, work)
    match = fight(job, job.checkpoints, work.oracle, told.oracle)
    assert match.loser is Side.DEFENDER
    assert (match.final.step, match.final.leaf, match.final.element) == (work.lie.step, work.lie.leaf, work.lie.element)


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


def test_a_log_tree_without_forgery_equals_the_honest_one() -> None:
    workshop = Workshop.open("logged")
    logs = workshop.run().logs()
    assert logs is not None
    log = logs[4]
    honest, same = LogTree(workshop.program, log), ForgedLogTree(workshop.program, log, {})
    assert same.root == honest.root
    for leaf in log.entries:
        forged = ForgedLogTree(workshop.program, log, {(leaf, 0): honest.word(leaf, 0)})
        assert forged.root == honest.root
        assert forged.proof(leaf, 0) == honest.proof(leaf, 0)
        other = ForgedLogTree(workshop.program, log, {(leaf, 0): b"\xff" * 32})
        assert other.word(leaf, 0) == b"\xff" * 32
        assert other.root != honest.root
