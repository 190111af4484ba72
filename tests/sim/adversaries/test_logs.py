"""Trainers of policy `logged` that lie in their logs, beside them, or by not showing them."""

from dataclasses import replace
from random import Random

import pytest

from tests.parts import slow_except
from tests.sim.adversaries.playing import convict, fight, job_of
from tiebreak.protocol.errors import CannotCheck
from tiebreak.protocol.game.moves import Side
from tiebreak.sim.adversaries.base import Catch
from tiebreak.sim.adversaries.deviations import DeviatingTrainer
from tiebreak.sim.adversaries.logs import (
    ADVERSARIES,
    CodeThree,
    OtherLogs,
    PaddingWords,
    SilentRounding,
    TieBreaking,
    WithheldLogs,
)
from tiebreak.sim.world.workshop import Workshop

CAUGHT = [kind for kind in ADVERSARIES if Catch.RECOMPUTED in kind.caught]
OPEN = [kind for kind in ADVERSARIES if kind.open]


@pytest.mark.parametrize("seed", slow_except([0, 1], 0))
@pytest.mark.parametrize("kind", CAUGHT, ids=lambda kind: kind.name)
def test_it_is_convicted_at_its_first_lie(kind: type[DeviatingTrainer], seed: int) -> None:
    assert convict(kind, seed).workshop is Workshop.open("logged")


def test_every_kind_is_caught_harmless_or_open() -> None:
    harmless = {kind for kind in ADVERSARIES if kind.caught == {Catch.HARMLESS}}
    assert harmless == {TieBreaking, PaddingWords}
    assert set(OPEN) == {CodeThree, WithheldLogs, OtherLogs}
    assert len(CAUGHT) + len(harmless) + len(OPEN) == len(ADVERSARIES)
    assert all(not kind.caught for kind in OPEN)


@pytest.mark.parametrize("seed", slow_except([0, 1], 0))
def test_ties_are_the_trainers_to_break(seed: int) -> None:
    """The auditor that follows its log comes to the same run; whoever takes its own log for the law loses."""
    workshop = Workshop.open("logged")
    job = job_of(workshop)
    work = TieBreaking().work(workshop, job, Random(seed))
    truth, honest = workshop.audited(job, work), workshop.honest(job)
    assert work.lie is None
    assert truth.records == work.records != honest.records
    match = fight(job, job.checkpoints, work.oracle, honest.oracle)
    assert match.loser is Side.CHALLENGER


@pytest.mark.parametrize("kind", [PaddingWords, *OPEN], ids=lambda kind: kind.name)
def test_what_cannot_be_read_cannot_be_checked(kind: type[DeviatingTrainer]) -> None:
    workshop = Workshop.open("logged")
    job = job_of(workshop)
    for seed in range(3):
        work = kind().work(workshop, job, Random(seed))
        assert (work.lie is None) == (kind is PaddingWords)
        assert work.records != workshop.honest(job).records
        with pytest.raises(CannotCheck):
            workshop.audited(job, work)


@pytest.mark.parametrize("kind", [PaddingWords, *OPEN], ids=lambda kind: kind.name)
def test_whoever_guesses_at_what_was_withheld_loses(kind: type[DeviatingTrainer]) -> None:
    """A challenge from an honest run of its own: in policy `logged` that is no truth."""
    workshop = Workshop.open("logged")
    job = job_of(workshop)
    work = kind().work(workshop, job, Random(1))
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
    while (work := SilentRounding().work(workshop, job, rng)).lie is None or work.lie.step > 3:
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
    work = CodeThree().work(workshop, job, Random(2))
    assert work.lie is not None
    told = workshop.told(job, work)
    match = fight(job, job.checkpoints, work.oracle, told.oracle)
    assert match.loser is Side.DEFENDER
    assert (match.final.step, match.final.leaf, match.final.element) == (
        work.lie.step,
        work.lie.leaf,
        work.lie.element,
    )
