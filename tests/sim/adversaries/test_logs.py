"""Trainers of policy `logged` that lie in their logs, beside them, or by not showing them."""

from dataclasses import replace
from random import Random

import pytest

from tests.parts import slow_except
from tests.sim.adversaries.playing import deviation, fight, job_of
from tiebreak.protocol.errors import CannotCheck
from tiebreak.protocol.game.moves import Side
from tiebreak.sim.world.workshop import Workshop

OPEN = ["code 3 in a log", "logs withheld", "other logs than committed"]


@pytest.mark.parametrize("seed", slow_except([0, 1], 0))
def test_ties_are_the_trainers_to_break(seed: int) -> None:
    """The auditor that follows its log comes to the same run; whoever takes its own log for the law loses."""
    workshop = Workshop.open("logged")
    job = job_of(workshop)
    work = deviation("tie breaking").work(workshop, job, Random(seed))
    truth, honest = workshop.audited(job, work), workshop.honest(job)
    assert work.lie is None
    assert truth.records == work.records != honest.records
    match = fight(job, job.checkpoints, work.oracle, honest.oracle)
    assert match.loser is Side.CHALLENGER


@pytest.mark.parametrize("name", ["codes of padding in a log", *OPEN])
def test_what_cannot_be_read_cannot_be_checked(name: str) -> None:
    workshop = Workshop.open("logged")
    job = job_of(workshop)
    for seed in range(3):
        work = deviation(name).work(workshop, job, Random(seed))
        assert (work.lie is None) == (name == "codes of padding in a log")
        assert work.records != workshop.honest(job).records
        with pytest.raises(CannotCheck):
            workshop.audited(job, work)


@pytest.mark.parametrize("name", ["codes of padding in a log", *OPEN])
def test_whoever_guesses_at_what_was_withheld_loses(name: str) -> None:
    """A challenge from an honest run of its own: in policy `logged` that is no truth."""
    workshop = Workshop.open("logged")
    job = job_of(workshop)
    work = deviation(name).work(workshop, job, Random(1))
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


def test_code_3_is_no_excuse_to_who_knows_the_words() -> None:
    """The open part is the reading, not the judging."""
    workshop = Workshop.open("logged")
    job = job_of(workshop)
    work = deviation("code 3 in a log").work(workshop, job, Random(2))
    assert work.lie is not None
    told = workshop.told(job, work)
    match = fight(job, job.checkpoints, work.oracle, told.oracle)
    assert match.loser is Side.DEFENDER
    assert (match.final.step, match.final.leaf, match.final.element) == (
        work.lie.step,
        work.lie.leaf,
        work.lie.element,
    )
