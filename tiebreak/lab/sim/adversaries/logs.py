"""Trainers of policy `logged` that lie in their rounding logs, contradict them, or withhold them.

A log can lie in two ways: it says more than the sums allow, or it keeps silent. A cheat moves elements of one sum, in
one step or in many, to the neighbour of its choice, with or without a log entry. Everything else follows consistently:
logs, records and openings agree with each other, and only the exact sum can convict the cheat. A choice that the rules
leave to the log (SPEC section 5.1) is not a cheat.

Three of them show no logs, or others than they committed to. A party that cannot read the committed logs cannot tell
what the right run is, and the contract cannot see that they are missing. So the client signs no receipt, and without it
the trainer is not paid.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from random import Random
from typing import Final

import numpy as np
from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plan.ziv import NearTies
from tiebreak.engine.logged.elements import put_bits
from tiebreak.engine.logged.journal import Recorder
from tiebreak.engine.run.interpreter import Observer
from tiebreak.engine.run.loop import ComputedStep
from tiebreak.engine.run.loop import steps as loop
from tiebreak.lab.sim.adversaries.base import Catch, computes, onward, step_of
from tiebreak.lab.sim.adversaries.tampering import deviating
from tiebreak.lab.sim.adversaries.training import poisoned_label
from tiebreak.lab.sim.world.work import Work
from tiebreak.lab.sim.world.workshop import Deviation, Workshop
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.log_tree import WORD_ELEMENTS, LogTree
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, SIGN, plus_zero, round_f32, to_float
from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Direction, Entries, Rounding, StepLog, neighbours, sum_kind, tolerance_of

SAMPLE: Final = 64
"""The largest number of elements of a sum that a cheat considers."""

# ---------------------------------------------------------------- one sum, and how it can be rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSum:
    """One element of one logged sum: the exact value n * 2^e, before rounding."""

    index: int
    element: int
    n: int
    e: int
    rounding: Rounding
    """The job's precision, and its tolerance for this kind of sum; no direction."""

    @property
    def near(self) -> bool:
        """Whether a log may decide how the sum is rounded."""
        return bool(self.rounding.tolerance) and neighbours(self.n, self.e, self.rounding)[1]

    @property
    def between(self) -> bool:
        """Whether there are two ways to round it: it is not a number of the precision, and is finite when rounded."""
        bits = round_f32(self.n, self.e, precision=self.rounding.precision)
        rounded = to_float(bits)
        return abs(rounded) < float("inf") and Fraction(rounded) != self.n * Fraction(2) ** self.e

    @property
    def nearest(self) -> Direction:
        """The direction of the nearest number."""
        rounded = plus_zero(round_f32(self.n, self.e, precision=self.rounding.precision))
        return Direction.DOWN if rounded == self.bits(Direction.DOWN) else Direction.UP

    def bits(self, way: Direction) -> int:
        """The bits of the neighbour on one side, by magnitude, whether or not a log may choose it."""
        lower, _ = neighbours(self.n, self.e, self.rounding)
        step = 1 << (MAX_PRECISION - self.rounding.precision)
        return plus_zero((SIGN if self.n < 0 else 0) | lower + (step if way == Direction.UP else 0))


Choice = Callable[[ExactSum], Direction]
"""The direction in which a cheat rounds a sum; NONE to leave it unchanged."""


def wrong_way(exact: ExactSum) -> Direction:
    """The way to the number that is not nearest."""
    return Direction.UP if exact.nearest == Direction.DOWN else Direction.DOWN


def greater(exact: ExactSum) -> Direction:
    """The way to the greater of the two numbers, which makes sums drift."""
    return Direction.DOWN if exact.n < 0 else Direction.UP


def if_near(choose: Choice) -> Choice:
    return lambda exact: choose(exact) if exact.near else Direction.NONE


# ---------------------------------------------------------------- a run in which a sum is steered


@dataclass(frozen=True, slots=True, kw_only=True)
class Nudge:
    """A trainer's choice for one element of one sum of one step, with the exact sum."""

    step: int
    exact: ExactSum
    way: Direction

    def put(self, tensor: Tensor) -> None:
        """Write the chosen number into the tensor of the sums."""
        put_bits(tensor, np.array([self.exact.element]), np.array([self.exact.bits(self.way)], dtype=np.uint32))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCheat:
    """The nudges of a trainer, and the logs that it publishes for each step from the first nudged segment on."""

    nudges: tuple[Nudge, ...]
    logs: Mapping[int, StepLog]

    def tamper(self, step: int) -> Observer | None:
        """The `Tamper` of this cheat, which writes its numbers whatever the log holds."""
        nudged = [nudge for nudge in self.nudges if nudge.step == step]

        def put(leaf: int, tensor: Tensor) -> Tensor:
            for nudge in nudged:
                if nudge.exact.index == leaf:
                    tensor = tensor.clone()
                    nudge.put(tensor)
            return tensor

        return put if nudged else None


class _Steering(Recorder):
    """Records as a trainer does, but rounds elements of one sum as the cheat wants, with log entries or without."""

    def __init__(
        self,
        job: Job,
        arithmetic: Arithmetic,
        step: int,
        index: int,
        elements: Sequence[int],
        choose: Choice,
        entry: bool,
    ) -> None:
        super().__init__()
        self._job, self._arithmetic, self._step = job, arithmetic, step
        self._index, self._elements, self._choose, self._entry = index, elements, choose, entry
        self.nudges: list[Nudge] = []

    def settle(
        self, index: int, instruction: Instruction, operands: Sequence[Tensor], result: Tensor, near: NearTies
    ) -> None:
        """Records the log as `tiebreak.engine.logged.journal.Recorder` does, and writes the cheat's numbers."""
        super().settle(index, instruction, operands, result, near)
        for element in self._elements if index == self._index else ():
            kind = sum_kind(instruction)
            assert kind is not None  # the interpreter passes only logged sums
            (total,) = self._arithmetic.exact_sums(instruction, operands, [element])
            if total is None:
                continue  # it is not finite
            rounding = Rounding(precision=self._job.precision, tolerance=tolerance_of(self._job.tolerances, kind))
            exact = ExactSum(index=index, element=element, n=total[0], e=total[1], rounding=rounding)
            way = self._choose(exact) if exact.between else Direction.NONE
            if way != Direction.NONE:
                self.nudges.append(Nudge(step=self._step, exact=exact, way=way))
                self.nudges[-1].put(result)

    @property
    def log(self) -> StepLog:
        """The honest log with the cheat's entries, or with no entries for the cheat's elements."""
        log = super().log
        for nudge in self.nudges:
            log = with_entry(log, nudge.exact.index, nudge.exact.element, nudge.way if self._entry else Direction.NONE)
        return log


def with_entry(log: StepLog, index: int, element: int, way: Direction) -> StepLog:
    """The log with its entry for an element replaced; NONE removes the entry."""
    old = log.entries.get(index, Entries(np.empty(0, np.int64), np.empty(0, np.bool_)))
    pairs = dict(zip(old.elements.tolist(), old.up.tolist(), strict=True))
    pairs.pop(element, None)
    if way != Direction.NONE:
        pairs[element] = way == Direction.UP
    elements = sorted(pairs)
    new = Entries(np.array(elements, dtype=np.int64), np.array([pairs[k] for k in elements], dtype=np.bool_))
    entries = {other: found for other, found in log.entries.items() if other != index}
    return StepLog(dict(sorted((entries | ({index: new} if len(new) else {})).items())))


def steer(
    workshop: Workshop, index: int, elements: Sequence[int], steps: Sequence[int], choose: Choice, *, entry: bool
) -> LogCheat:
    """A trainer that rounds these elements of a sum as it chooses, in these steps.

    The run is computed to its end, because later logs depend on it. There are no nudges if no sum left a choice.
    """
    run, interpreter, job = workshop.run, workshop.interpreter, workshop.run.job
    first = job.first_step(job.checkpoint_of(steps[0]))
    state, data = interpreter.to_device(run.state(first - 1)), interpreter.place_data(run.data())
    nudges, logs = list[Nudge](), dict[int, StepLog]()

    def sums(step: int, arithmetic: Arithmetic, _: Mapping[str, Tensor]) -> Recorder:
        if step not in steps:
            return Recorder()
        return _Steering(job, arithmetic, step, index, elements, choose, entry)

    computed: Iterator[ComputedStep[Recorder]] = loop(interpreter, state, data, range(first, job.steps + 1), sums=sums)
    for step, _, found in computed:
        assert found is not None
        logs[step] = found.log
        if isinstance(found, _Steering):
            nudges += found.nudges
    return LogCheat(nudges=tuple(nudges), logs=logs)


# ---------------------------------------------------------------- what the cheats are made of


def _sums(program: Program) -> list[int]:
    """The indices of the logged sums."""
    return [n for n, i in enumerate(program.body) if sum_kind(i) is not None]


def _once(workshop: Workshop, step: int, rng: Random, choose: Choice, *, entry: bool) -> LogCheat:
    """Rounds elements of a random sum in one step."""
    index = rng.choice(_sums(workshop.program))
    numel = workshop.program.body[index].numel
    elements = sorted(rng.sample(range(numel), min(numel, SAMPLE)))
    return steer(workshop, index, elements, [step], choose, entry=entry)


def _all_logs(workshop: Workshop, job: Job, changed: Mapping[int, StepLog]) -> dict[int, StepLog]:
    """The logs of all steps: these, and the honest ones."""
    return {step: workshop.run.step_log(step) for step in onward(job, 1)} | dict(changed)


def _with_logs(workshop: Workshop, job: Job, cheat: LogCheat, logs: Mapping[int, StepLog]) -> Work:
    """The run with the cheat's numbers and these logs."""
    followed = _all_logs(workshop, job, logs)
    others = [step for step, log in followed.items() if log != workshop.run.step_log(step)]
    first = job.first_step(job.checkpoint_of(min(cheat.nudges[0].step, *(others or [job.steps]))))
    return deviating(workshop, job, cheat.tamper, first_step=first, logs=followed)


def _first_only(choose: Choice) -> Choice:
    """Decides the first element where `choose` has a choice, and leaves all others alone."""
    decided: list[ExactSum] = []

    def first(exact: ExactSum) -> Direction:
        way = Direction.NONE if decided else choose(exact)
        if way != Direction.NONE:
            decided.append(exact)
        return way

    return first


# ---------------------------------------------------------------- rounding, and logs that do not belong to it


def rounded(*choices: Choice, entry: bool, count: int, always: bool = False) -> Deviation:
    """Elements of a sum are rounded by one of these choices, with or without a log entry.

    `always`: in every step from a random one on; otherwise in one step.
    """

    def attempt(workshop: Workshop, job: Job, rng: Random) -> Work:
        while True:
            index, step = rng.choice(_sums(workshop.program)), step_of(job, rng)
            numel = workshop.program.body[index].numel
            elements = sorted(rng.sample(range(numel), min(numel, count)))
            choose = rng.choice(choices) if len(choices) > 1 else choices[0]
            cheat = steer(workshop, index, elements, onward(job, step) if always else [step], choose, entry=entry)
            if cheat.nudges:  # else none of these elements can be rounded in two ways
                return _with_logs(workshop, job, cheat, cheat.logs)

    return attempt


def entry_of_another_step(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A near tie is decided by an entry in the log of another step."""
    step, other = rng.sample(onward(job, 1), 2)
    cheat = _once(workshop, step, rng, _first_only(if_near(wrong_way)), entry=False)
    if not cheat.nudges:
        return workshop.honest(job)  # no near tie among them, so the caller draws again
    (nudge,) = cheat.nudges
    logs = dict(cheat.logs)
    filed = logs.get(other, workshop.run.step_log(other))
    logs[other] = with_entry(filed, nudge.exact.index, nudge.exact.element, nudge.way)
    return _with_logs(workshop, job, cheat, logs)


def swapped_logs(workshop: Workshop, job: Job, rng: Random) -> Work:
    """The logs of two steps are swapped, and the numbers follow them as they were before."""
    step, other = rng.sample(onward(job, 1), 2)
    cheat = _once(workshop, step, rng, if_near(wrong_way), entry=True)
    if not cheat.nudges:
        return workshop.honest(job)
    logs = _all_logs(workshop, job, cheat.logs)
    logs[step], logs[other] = logs[other], logs[step]
    return _with_logs(workshop, job, cheat, logs)


def is_another_right_run(workshop: Workshop, work: Work) -> bool:
    """Whether its states differ from the honest trainer's. They are equally right."""
    honest = workshop.run.records()
    return any(own.state_root != their.state_root for own, their in zip(work.records, honest, strict=True))


# ---------------------------------------------------------------- words that no file holds, files that are not there


def _with_code(word: bytes, place: int, code: int) -> bytes:
    raw = bytearray(word)
    shift = 2 * (place % 4)
    raw[place // 4] = raw[place // 4] & ~(3 << shift) | code << shift
    return bytes(raw)


def padding_words(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A log word names an element after the last one of a sum, which means nothing. The numbers are right.

    No log file can hold such words, so nobody can audit the run, and a client should not accept it. The computation
    itself harms nobody.
    """
    program, step = workshop.program, step_of(job, rng)
    index = rng.choice([n for n in _sums(program) if program.body[n].numel % WORD_ELEMENTS])
    last, inside = divmod(program.body[index].numel, WORD_ELEMENTS)
    word = LogTree(program, workshop.run.step_log(step)).word(index, last)
    code = rng.choice((Direction.DOWN, Direction.UP, 3))
    forged = _with_code(word, rng.randrange(inside, WORD_ELEMENTS), code)
    # Only the log is false, and no number.
    return deviating(workshop, job, lambda _: None, first_step=job.steps + 1, words={step: {(index, last): forged}})


def code_three(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A near tie is rounded the wrong way, with a code in its log word that means nothing.

    No log file can hold the word, so an auditor cannot check the segment, and the client gets no logs to sign for. A
    challenger that knew the words would win, because the code excuses nothing.
    """
    step = step_of(job, rng)
    cheat = _once(workshop, step, rng, _first_only(if_near(wrong_way)), entry=False)
    if not cheat.nudges:
        return workshop.honest(job)
    index, (chunk, place) = cheat.nudges[0].exact.index, divmod(cheat.nudges[0].exact.element, WORD_ELEMENTS)
    forged = _with_code(LogTree(workshop.program, cheat.logs[step]).word(index, chunk), place, 3)
    logs, words = _all_logs(workshop, job, cheat.logs), {step: {(index, chunk): forged}}
    return deviating(workshop, job, cheat.tamper, first_step=step, logs=logs, words=words)


def withheld_logs(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A false run whose logs are not published.

    Without the logs nobody can say what the right run is, and an auditor that guesses loses its stake. The contract
    cannot see what was published. The client does not sign for what it does not have.
    """
    return replace(poisoned_label(workshop, job, rng), logs=None)


def other_logs(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A false run that is published with the logs of two steps exchanged.

    The published logs do not hash to the records, so they are not the run's logs.
    """
    work = poisoned_label(workshop, job, rng)
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


_computes: Final = partial(computes, needs=("logged",))
_PARTED: Final = {Catch.PARTED}
# fmt: off
ADVERSARIES: Final = (
    _computes("log entry far from a tie",
        rounded(lambda exact: Direction.NONE if exact.near else wrong_way(exact), entry=True, count=4),
        "moves a number by its log, as if any sum were near a tie"),
    # wrong for every sum, or only where a log might have allowed it
    _computes("silent rounding", rounded(wrong_way, if_near(wrong_way), entry=False, count=4),
        "moves a number and leaves no trace in the log"),
    _computes("drift by log entries", rounded(greater, entry=True, count=1, always=True),
        "steers a weight, a unit in the last place at a time"),
    # to the greater neighbour where the rules leave it open: what a log is for, and no cheat
    _computes("tie breaking", rounded(if_near(greater), entry=True, count=SAMPLE, always=True),
        "half a unit in the last place of what the rule leaves open", {Catch.HARMLESS},
        has_deviated=is_another_right_run),
    _computes("log entry of another step", entry_of_another_step,
        "entries made up after the fact, wherever there is room"),
    _computes("swapped logs", swapped_logs, "near ties decided first, and logs found for them later"),
    _computes("codes of padding in a log", padding_words, "a run that is right, and that nobody can check",
        _PARTED, has_deviated=lambda workshop, work: work.records != tuple(workshop.run.records())),
    _computes("code 3 in a log", code_three, "a wrong number that nobody can check, its log unreadable", _PARTED),
    _computes("logs withheld", withheld_logs, "the reward for anything at all, for nobody can check it", _PARTED),
    _computes("other logs than committed", other_logs, "looks as if it published its logs", _PARTED),
)
# fmt: on
