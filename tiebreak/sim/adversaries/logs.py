"""Trainers of policy `logged` that lie in their rounding logs, beside them, or by withholding them.

Three of them are `open`: no rule stops them today, as docs/security.md says under *Residual risks*. A party that cannot
read the committed logs cannot tell what the right run is, and the contract cannot see that they are missing.
"""

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import ClassVar

from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.log_tree import WORD_ELEMENTS, LogTree
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Direction, sum_kind
from tiebreak.protocol.program.step_log import StepLog
from tiebreak.sim.adversaries.base import Adversary, Catch
from tiebreak.sim.adversaries.data import PoisonedLabel
from tiebreak.sim.adversaries.deviations import DeviatingTrainer, onward, step_of
from tiebreak.sim.adversaries.forged_logs import (
    Choice,
    Course,
    ExactSum,
    LogCheat,
    greater,
    greater_if_near,
    steer,
    with_entry,
    wrong_way,
)
from tiebreak.sim.adversaries.forged_runs import deviating
from tiebreak.sim.adversaries.observers import Tamper
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.workshop import Workshop

SAMPLE = 64
"""The largest number of elements of a sum that a cheat considers."""


def _sums(program: Program, more_than: int = 0) -> list[int]:
    """The numbers of the logged sums with more than `more_than` terms."""
    return [n for n, i in enumerate(program.body) if sum_kind(i) is not None and i.terms > more_than]


def _course(program: Program, leaf: int, steps: range, rng: Random, count: int) -> Course:
    """A random sample of elements of a sum."""
    numel = program.body[leaf].numel
    return Course(leaf=leaf, elements=sorted(rng.sample(range(numel), min(numel, count))), steps=steps)


class _Logged(DeviatingTrainer):
    needs: ClassVar[str | None] = "logged"

    def steered(self, workshop: Workshop, course: Course, choose: Choice, *, entry: bool) -> LogCheat:
        """A cheat that rounds sums as it chooses. Raises `ConfigurationError` if there is nothing to choose."""
        run, machine = workshop.run(), workshop.interpreter
        return steer(run, machine, course, name=self.name, gain=self.gain, choose=choose, entry=entry)

    def with_logs(self, workshop: Workshop, job: Job, cheat: LogCheat, logs: Mapping[int, StepLog]) -> Work:
        """The run with the cheat's numbers and these logs."""
        followed = {step: workshop.run().step_log(step) for step in onward(job, 1)} | dict(logs)
        first = job.first_step(job.checkpoint_of(min(cheat.step, *_changed(workshop, followed))))
        return deviating(workshop, job, cheat.tamper, first_step=first, logs=followed)


def _changed(workshop: Workshop, logs: Mapping[int, StepLog]) -> list[int]:
    """The steps whose logs differ from the honest ones; the last step if there are none."""
    return [step for step, log in logs.items() if log != workshop.run().step_log(step)] or [max(logs)]


def _unless_near(choose: Choice) -> Choice:
    return lambda exact: Direction.NONE if exact.near else choose(exact)


def _if_near(choose: Choice) -> Choice:
    return lambda exact: choose(exact) if exact.near else Direction.NONE


class _Steering(_Logged):
    """Rounds sums as it chooses, with or without a log entry."""

    count: ClassVar[int]
    entry: ClassVar[bool]

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Steer some elements of a random sum."""
        while True:
            leaf, steps = rng.choice(_sums(workshop.program)), self.steps(job, rng)
            course = _course(workshop.program, leaf, steps, rng, self.count)
            try:
                cheat = self.steered(workshop, course, self.choice(rng), entry=self.entry)
            except ConfigurationError:
                continue  # none of these elements can be rounded in two ways
            return self.with_logs(workshop, job, cheat, cheat.logs)

    def steps(self, job: Job, rng: Random) -> range:
        """The steps in which sums are steered."""
        step = step_of(job, rng)
        return range(step, step + 1)

    def choice(self, rng: Random) -> Choice:
        """How sums are rounded."""
        raise NotImplementedError


class BadEntry(_Steering):
    """A sum far from a tie is rounded the wrong way, with a log entry."""

    name: ClassVar[str] = "log entry far from a tie"
    gain: ClassVar[str] = "moves a number by its log, as if any sum were near a tie"
    count: ClassVar[int] = 4
    entry: ClassVar[bool] = True

    def choice(self, rng: Random) -> Choice:  # noqa: ARG002  # there is one wrong way
        return _unless_near(wrong_way)


class SilentRounding(_Steering):
    """A sum near a tie or far from one is rounded the wrong way, without a log entry."""

    name: ClassVar[str] = "silent rounding"
    gain: ClassVar[str] = "moves a number and leaves no trace in the log"
    count: ClassVar[int] = 4
    entry: ClassVar[bool] = False

    def choice(self, rng: Random) -> Choice:
        """Wrong for every sum, or only where a log might have allowed it."""
        return rng.choice((wrong_way, _if_near(wrong_way)))


class Drift(_Steering):
    """The same sum is rounded to the greater neighbour in every step, each time with an entry."""

    name: ClassVar[str] = "drift by log entries"
    gain: ClassVar[str] = "steers a weight, a unit in the last place at a time"
    count: ClassVar[int] = 1
    entry: ClassVar[bool] = True

    def steps(self, job: Job, rng: Random) -> range:
        return onward(job, step_of(job, rng))

    def choice(self, rng: Random) -> Choice:  # noqa: ARG002
        return greater


class TieBreaking(_Steering):
    """Sums near a tie go to the greater neighbour, with a log entry. This is what a log is for, and no cheat."""

    name: ClassVar[str] = "tie breaking"
    gain: ClassVar[str] = "half a unit in the last place of what the rule leaves open"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.HARMLESS})
    count: ClassVar[int] = SAMPLE
    entry: ClassVar[bool] = True

    def steps(self, job: Job, rng: Random) -> range:
        return onward(job, step_of(job, rng))

    def choice(self, rng: Random) -> Choice:  # noqa: ARG002
        """To the greater neighbour where the rules leave it open."""
        return greater_if_near

    def has_deviated(self, workshop: Workshop, work: Work) -> bool:
        """Whether its states differ from the honest trainer's. They are equally right."""
        honest = workshop.run().records()
        return any(own.state_root != their.state_root for own, their in zip(work.records, honest, strict=True))


class EntryOfAnotherStep(_Logged):
    """A near tie is decided by an entry in the log of another step."""

    name: ClassVar[str] = "log entry of another step"
    gain: ClassVar[str] = "entries made up after the fact, wherever there is room"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Draw a sum near a tie, and another step."""
        step, other = rng.sample(onward(job, 1), 2)
        leaf = rng.choice(_sums(workshop.program))
        course = _course(workshop.program, leaf, range(step, step + 1), rng, SAMPLE)
        try:
            cheat = self.steered(workshop, course, _first_only(_if_near(wrong_way)), entry=False)
        except ConfigurationError:
            return workshop.honest(job)  # no near tie among them, so the caller draws again
        (nudge,) = cheat.nudges
        logs = dict(cheat.logs)
        filed = logs.get(other, workshop.run().step_log(other))
        logs[other] = with_entry(filed, leaf, nudge.exact.element, nudge.way)
        return self.with_logs(workshop, job, cheat, logs)


def _first_only(choose: Choice) -> Choice:
    """Decides the first element where `choose` has a choice, and leaves all others alone."""
    decided: list[ExactSum] = []

    def first(exact: ExactSum) -> Direction:
        way = Direction.NONE if decided else choose(exact)
        if way != Direction.NONE:
            decided.append(exact)
        return way

    return first


class SwappedLogs(_Logged):
    """The logs of two steps are swapped, so that each is committed for the wrong step."""

    name: ClassVar[str] = "swapped logs"
    gain: ClassVar[str] = "near ties decided first, and logs found for them later"

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """The numbers follow the logs as they were before the swap."""
        step, other = rng.sample(onward(job, 1), 2)
        leaf = rng.choice(_sums(workshop.program))
        course = _course(workshop.program, leaf, range(step, step + 1), rng, SAMPLE)
        try:
            cheat = self.steered(workshop, course, _if_near(wrong_way), entry=True)
        except ConfigurationError:
            return workshop.honest(job)
        logs = {k: workshop.run().step_log(k) for k in onward(job, 1)} | dict(cheat.logs)
        logs[step], logs[other] = logs[other], logs[step]
        return self.with_logs(workshop, job, cheat, logs)


# ---------------------------------------------------------------- words that no file holds, files that are not there


def _with_code(word: bytes, place: int, code: int) -> bytes:
    raw = bytearray(word)
    shift = 2 * (place % 4)
    raw[place // 4] = raw[place // 4] & ~(3 << shift) | code << shift
    return bytes(raw)


class PaddingWords(_Logged):
    """Log words name elements that do not exist. These entries mean nothing, and the numbers are right.

    No log file can hold such words, so nobody can audit the run, and a client should not accept it. The computation
    itself harms nobody.
    """

    name: ClassVar[str] = "codes of padding in a log"
    gain: ClassVar[str] = "a run that is right, and that nobody can check"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.HARMLESS})

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Name an element after the last one of a sum, in a random step."""
        program, step = workshop.program, step_of(job, rng)
        leaf = rng.choice([n for n in _sums(program) if program.body[n].numel % WORD_ELEMENTS])
        last, inside = divmod(program.body[leaf].numel, WORD_ELEMENTS)
        word = LogTree(program, workshop.run().step_log(step)).word(leaf, last)
        code = rng.choice((Direction.DOWN, Direction.UP, 3))
        forged = _with_code(word, rng.randrange(inside, WORD_ELEMENTS), code)
        return deviating(workshop, job, _nothing, first_step=job.steps + 1, words={step: {(leaf, last): forged}})

    def has_deviated(self, workshop: Workshop, work: Work) -> bool:
        """Whether its commitments differ from the honest trainer's."""
        return work.records != tuple(workshop.run().records())


_nothing: Tamper = lambda _step: None  # noqa: E731  # an honest run's numbers


class CodeThree(_Logged):
    """A near tie is rounded the wrong way, with a code in its log word that means nothing.

    **Not stopped.** No log file can hold the word, so an auditor cannot check the segment. A challenger that knew the
    words would win, because the code excuses nothing.
    """

    name: ClassVar[str] = "code 3 in a log"
    gain: ClassVar[str] = "a wrong number that nobody can check, for its log is unreadable"
    caught: ClassVar[frozenset[Catch]] = frozenset()
    open: ClassVar[bool] = True

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Draw a sum near a tie."""
        program, step = workshop.program, step_of(job, rng)
        leaf = rng.choice(_sums(program))
        course = _course(program, leaf, range(step, step + 1), rng, SAMPLE)
        try:
            cheat = self.steered(workshop, course, _first_only(_if_near(wrong_way)), entry=False)
        except ConfigurationError:
            return workshop.honest(job)
        chunk, place = divmod(cheat.nudges[0].exact.element, WORD_ELEMENTS)
        forged = _with_code(LogTree(program, cheat.logs[step]).word(leaf, chunk), place, 3)
        logs = {k: workshop.run().step_log(k) for k in onward(job, 1)} | dict(cheat.logs)
        words = {step: {(leaf, chunk): forged}}
        return deviating(workshop, job, cheat.tamper, first_step=step, logs=logs, words=words)


class WithheldLogs(_Logged):
    """A false run whose logs are not published.

    **Not stopped.** Without the logs nobody can say what the right run is, and an auditor that guesses loses its stake.
    The contract cannot see what was published. A client needs the logs before the window ends. If it does not get them,
    it has no move to make, and pays.
    """

    name: ClassVar[str] = "logs withheld"
    gain: ClassVar[str] = "the reward for anything at all, for nobody can check it"
    caught: ClassVar[frozenset[Catch]] = frozenset()
    open: ClassVar[bool] = True

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """A run with a poisoned label, without logs."""
        return replace(PoisonedLabel().attempt(workshop, job, rng), logs=None)


class OtherLogs(_Logged):
    """A false run that is published with other logs than those that it commits to.

    **Not stopped**, as `WithheldLogs`: the published logs do not hash to the records, so they are not the run's logs.
    """

    name: ClassVar[str] = "other logs than committed"
    gain: ClassVar[str] = "looks as if it published its logs"
    caught: ClassVar[frozenset[Catch]] = frozenset()
    open: ClassVar[bool] = True

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """A run with a poisoned label, and the logs of two steps exchanged."""
        work = PoisonedLabel().attempt(workshop, job, rng)
        assert work.logs is not None  # the workshop "logged" has logs
        if work.lie is None:
            return work
        # An auditor reads as far as it can, so the logs of the lie's own segment must not be readable.
        segment = job.checkpoint_of(work.lie.step)
        first = rng.randint(job.first_step(segment), job.last_step(segment))
        second = rng.choice([step for step in onward(job, 1) if step != first])
        if work.logs[first] == work.logs[second]:
            return workshop.honest(job)  # the caller draws again
        return replace(work, logs=dict(work.logs) | {first: work.logs[second], second: work.logs[first]})


ADVERSARIES: tuple[type[Adversary], ...] = (
    BadEntry,
    SilentRounding,
    Drift,
    TieBreaking,
    EntryOfAnotherStep,
    SwappedLogs,
    PaddingWords,
    CodeThree,
    WithheldLogs,
    OtherLogs,
)
