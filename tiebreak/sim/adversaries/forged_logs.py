"""Cheating trainers of policy `logged`, which lie in their rounding logs or beside them.

A log can lie in two ways: it says more than the sums allow, or it keeps silent. Each cheat here moves elements of one
sum, in one step or in many, to the neighbour of its choice, with or without a log entry. Everything else follows
consistently, as in `tiebreak.sim.adversaries.cheats`: logs, records and openings agree with each other, and only the
exact sum can convict the cheat. A choice that the rules leave to the log (SPEC section 5.1) is not a cheat.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.near_ties import NearTies
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.elements import put_bits
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.logged.recording import Recorder
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.evidence import Source
from tiebreak.engine.run.interpreter import Interpreter, Observer, Sums
from tiebreak.engine.run.loop import Done, steps
from tiebreak.protocol.commitments.job import Job, SignedJob
from tiebreak.protocol.commitments.log_tree import LogTree, depth_of_value, logs_tree, word_leaf
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, SIGN, plus_zero, round_f32
from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Direction, Rounding, neighbours, sum_kind, tolerance_of
from tiebreak.protocol.program.step_log import Entries, StepLog
from tiebreak.protocol.tags import EMPTY, Digest
from tiebreak.protocol.trees import Tree
from tiebreak.sim.adversaries.forgery import ForgedEvidence, Lies
from tiebreak.sim.world.forking import fork


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSum:
    """One element of one logged sum: the exact value n * 2^e, before rounding."""

    leaf: int
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
        rounded: float = struct.unpack("<f", bits.to_bytes(4, "little"))[0]
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
Words = Mapping[int, Mapping[tuple[int, int], bytes]]
"""Words of log trees: maps step to (value, chunk) to the word."""


def wrong_way(exact: ExactSum) -> Direction:
    """Away from the nearest number."""
    return Direction.UP if exact.nearest == Direction.DOWN else Direction.DOWN


def greater_if_near(exact: ExactSum) -> Direction:
    """As `greater` where a log may choose; else no choice."""
    return greater(exact) if exact.near else Direction.NONE


def greater(exact: ExactSum) -> Direction:
    """Always to the greater of the two numbers, which makes sums drift."""
    return Direction.DOWN if exact.n < 0 else Direction.UP


@dataclass(frozen=True, slots=True, kw_only=True)
class Nudge:
    """A trainer's choice for one element of one sum of one step, with the exact sum."""

    step: int
    exact: ExactSum
    way: Direction
    logged: bool
    """Whether the log has an entry for this choice; otherwise it has no entry for the element."""

    @property
    def lawful(self) -> bool:
        """Whether this is the right result under the log as it is (SPEC section 5.1)."""
        return self.way == self.exact.nearest or (self.logged and self.exact.near)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCheat:
    """The nudges of a trainer, and the logs that it publishes for each step from the first nudged segment on."""

    name: str = "a cheat"
    nudges: tuple[Nudge, ...]
    logs: Mapping[int, StepLog]

    @property
    def step(self) -> int:
        """The first nudged step."""
        return self.nudges[0].step

    @property
    def first_lie(self) -> Nudge:
        """The nudge at which the trainer will be caught: the first unlawful one."""
        return next(nudge for nudge in self.nudges if not nudge.lawful)

    def tells(self, step: int, leaf: int, element: int) -> bool:
        """Whether the trainer nudged this element of this value."""
        return any((n.step, n.exact.leaf, n.exact.element) == (step, leaf, element) for n in self.nudges)

    def tamper(self, step: int) -> Observer | None:
        """The `Tamper` of this cheat. It sets the cheat's numbers, whatever its log says."""
        nudged = [nudge for nudge in self.nudges if nudge.step == step]
        return _putter(nudged) if nudged else None


def _putter(nudged: Sequence[Nudge]) -> Observer:
    def put(leaf: int, tensor: Tensor) -> Tensor:
        for nudge in nudged:
            if nudge.exact.leaf == leaf:
                tensor = tensor.clone()
                _put(tensor, nudge.exact.element, nudge.exact.bits(nudge.way))
        return tensor

    return put


def _put(tensor: Tensor, element: int, bits: int) -> None:
    put_bits(tensor, np.array([element]), np.array([bits], dtype=np.uint32))


# ---------------------------------------------------------------- looking at sums, and steering one


class Survey:
    """Runs as a trainer and collects the exact sums of all elements of all logged sums. Only for small programs."""

    def __init__(self, job: Job, arithmetic: Arithmetic) -> None:
        self._job, self._arithmetic = job, arithmetic
        self.sums: list[ExactSum] = []

    def settle(
        self, value: int, instruction: Instruction, operands: Sequence[Tensor], result: Tensor, near: NearTies
    ) -> None:
        """Collect the exact sums; nothing is changed."""
        del result, near
        for element in range(instruction.numel):
            found = _exact(self._job, self._arithmetic, value, instruction, operands, element)
            if found is not None:
                self.sums.append(found)


class _Steering:
    """Records as a trainer does, but rounds elements of one sum as the cheat wants."""

    def __init__(self, plan: "_Plan", step: int) -> None:
        self._plan, self._step = plan, step
        self._recorder = Recorder()
        self.nudges: list[Nudge] = []

    def settle(
        self, value: int, instruction: Instruction, operands: Sequence[Tensor], result: Tensor, near: NearTies
    ) -> None:
        """As `tiebreak.engine.logged.recording.Recorder`, and writes the cheat's numbers."""
        self._recorder.settle(value, instruction, operands, result, near)
        plan = self._plan
        for element in plan.elements if value == plan.leaf else ():
            exact = _exact(plan.job, plan.interpreter.arithmetic, value, instruction, operands, element)
            way = Direction.NONE if exact is None or not exact.between else plan.choose(exact)
            if exact is not None and way != Direction.NONE:
                self.nudges.append(Nudge(step=self._step, exact=exact, way=way, logged=plan.entry))
                _put(result, element, exact.bits(way))

    @property
    def log(self) -> StepLog:
        """The honest log with the cheat's entries, or with no entries for the cheat's elements."""
        log = self._recorder.log
        for nudge in self.nudges:
            way = nudge.way if nudge.logged else Direction.NONE
            log = with_entry(log, nudge.exact.leaf, nudge.exact.element, way)
        return log


def _exact(
    job: Job, arithmetic: Arithmetic, value: int, instruction: Instruction, operands: Sequence[Tensor], element: int
) -> ExactSum | None:
    kind = sum_kind(instruction)
    assert kind is not None  # the interpreter passes only logged sums
    (total,) = arithmetic.exact_sums(instruction, operands, [element])
    if total is None:
        return None
    rounding = Rounding(precision=job.precision, tolerance=tolerance_of(job.tolerances, kind))
    return ExactSum(leaf=value, element=element, n=total[0], e=total[1], rounding=rounding)


def with_entry(log: StepLog, value: int, element: int, way: Direction) -> StepLog:
    """The log with its entry for an element replaced; NONE removes the entry."""
    old = log.entries.get(value, Entries(np.empty(0, np.int64), np.empty(0, np.bool_)))
    pairs = dict(zip(old.elements.tolist(), old.up.tolist(), strict=True))
    pairs.pop(element, None)
    if way != Direction.NONE:
        pairs[element] = way == Direction.UP
    elements = sorted(pairs)
    new = Entries(np.array(elements, dtype=np.int64), np.array([pairs[k] for k in elements], dtype=np.bool_))
    entries = {number: found for number, found in log.entries.items() if number != value}
    return StepLog(dict(sorted((entries | ({value: new} if len(new) else {})).items())))


def survey(run: Source, interpreter: Interpreter, step: int) -> list[ExactSum]:
    """The exact sums of one step of an honest run, computed from the kept state before it."""
    found = Survey(run.job, interpreter.arithmetic)
    before = run.kept_before(step - 1)
    state, data = interpreter.to_device(run.state(before)), interpreter.place_data(run.data())

    def sums(number: int, _arithmetic: Arithmetic) -> Sums:
        return found if number == step else Recorder()

    for _ in steps(interpreter, state, data, range(before + 1, step + 1), sums=sums):
        pass
    return found.sums


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Which elements to steer, how, and whether the log says so."""

    job: Job
    interpreter: Interpreter
    leaf: int
    elements: Sequence[int]
    choose: Choice
    entry: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The elements of one sum that a trainer steers, and the steps in which it does."""

    leaf: int
    elements: Sequence[int]
    steps: Sequence[int]

    @classmethod
    def of(cls, exact: ExactSum, *steps: int) -> "Course":
        """A course for one element."""
        return cls(leaf=exact.leaf, elements=(exact.element,), steps=steps)


def steer(
    run: Source, interpreter: Interpreter, course: Course, *, name: str = "a cheat", choose: Choice, entry: bool
) -> LogCheat:
    """A trainer that rounds sums as it chooses, in some steps of a run that is honest otherwise.

    The run is computed to its end, because later logs depend on it. Raises `ConfigurationError` if no sum left a
    choice.
    """
    job = run.job
    plan = _Plan(
        job=job, interpreter=interpreter, leaf=course.leaf, elements=course.elements, choose=choose, entry=entry
    )
    first = job.first_step(job.checkpoint_of(course.steps[0]))
    state, data = interpreter.to_device(run.state(first - 1)), interpreter.place_data(run.data())
    nudges, logs = list[Nudge](), dict[int, StepLog]()

    def steered(step: int, _arithmetic: Arithmetic) -> "Recorder | _Steering":
        return _Steering(plan, step) if step in course.steps else Recorder()

    computed: Iterator[Done[Recorder | _Steering]] = steps(
        interpreter, state, data, range(first, job.steps + 1), sums=steered
    )
    for step, _, sums in computed:
        assert sums is not None
        logs[step] = sums.log
        if isinstance(sums, _Steering):
            nudges += sums.nudges
    if not nudges:
        raise ConfigurationError(f"{name}: expected a sum with two ways to round it, got none in steps {course.steps}")
    return LogCheat(name=name, nudges=tuple(nudges), logs=logs)


# ---------------------------------------------------------------- the catalogue


def bad_entry(run: Source, interpreter: Interpreter, course: Course) -> LogCheat:
    """Rounds sums the wrong way and logs it."""
    return steer(run, interpreter, course, name="bad entry", choose=wrong_way, entry=True)


def silent_rounding(run: Source, interpreter: Interpreter, course: Course) -> LogCheat:
    """Rounds sums the wrong way without a log entry."""
    return steer(run, interpreter, course, name="silent rounding", choose=wrong_way, entry=False)


def drift(run: Source, interpreter: Interpreter, course: Course) -> LogCheat:
    """Rounds a gradient to the greater neighbour in every step, each time with an entry."""
    return steer(run, interpreter, course, name="drift", choose=greater, entry=True)


def tie_breaking(run: Source, interpreter: Interpreter, course: Course) -> LogCheat:
    """Rounds near ties to the greater neighbour and logs it. This is what a log is for, and no cheat."""
    return steer(run, interpreter, course, name="tie breaking", choose=greater_if_near, entry=True)


# ---------------------------------------------------------------- words that no log has


class ForgedLogTree(LogTree):
    """A log tree with some words, by (value, chunk), that no log can have: code 3, or codes of padding."""

    def __init__(self, program: Program, log: StepLog, words: Mapping[tuple[int, int], bytes]) -> None:
        super().__init__(program, log)
        self._forged = dict(words)
        self._trees = {value: self._subtree(value) for value, _ in words}
        leaves = [
            self._trees[value].root if value in self._trees
            else EMPTY if sum_kind(instruction) is None
            else self._subtree(value).root
            for value, instruction in enumerate(program.body)
        ]  # fmt: skip
        self._forged_top = Tree(leaves, program.half_depth)

    @property
    def root(self) -> Digest:
        return self._forged_top.root

    def word(self, value: int, chunk: int) -> bytes:
        """The forged word, or else the log's own."""
        return self._forged.get((value, chunk)) or super().word(value, chunk)

    def proof(self, value: int, chunk: int) -> list[Digest]:
        """The siblings of the word's leaf."""
        tree = self._trees.get(value) or self._subtree(value)
        return tree.proof(chunk) + self._forged_top.proof(value)

    def _subtree(self, value: int) -> Tree:
        depth = depth_of_value(self._program, value)
        return Tree([word_leaf(self.word(value, chunk)) for chunk in range(1 << depth)], depth)


class ForgedLogs(CommittedLogs):
    """Logs whose trees have forged words: by step, then by (value, chunk)."""

    def __init__(self, run: RunDirectory, logs: Mapping[int, StepLog], words: Words) -> None:
        super().__init__(LogFiles(run), run.record_at)
        self._job, self._program, self._logs, self._words = run.job, run.program, logs, words

    def step_log(self, step: int) -> StepLog:
        return self._logs[step]

    def log_tree(self, step: int) -> LogTree:
        return ForgedLogTree(self._program, self.step_log(step), self._words.get(step, {}))

    def log_root(self, checkpoint: int) -> Digest:
        steps = range(self._job.first_step(checkpoint), self._job.last_step(checkpoint) + 1)
        return logs_tree([self.log_tree(step).root for step in steps]).root


class ForgedWords(ForgedEvidence):
    """Evidence of a run whose log trees have forged words."""

    def __init__(self, run: RunDirectory, interpreter: Interpreter, cheat: Lies, words: Words) -> None:
        super().__init__(run, interpreter, cheat, ForgedLogs(run, _all_logs(run), words))


def _all_logs(run: RunDirectory) -> dict[int, StepLog]:
    files = LogFiles(run)
    return {step: files.step_log(step) for step in range(1, run.job.steps + 1)}


def with_words(source: RunDirectory, path: Path, agreement: SignedJob, words: Words) -> RunDirectory:
    """The same run with records that commit to forged log words. Its files hold the logs without them."""
    run = fork(source, path, agreement, upto=0)
    job = agreement.job
    own, files = _all_logs(source), LogFiles(run)
    logs = ForgedLogs(run, own, words)
    for checkpoint, record in enumerate(source.records()):
        for step in range(job.first_step(checkpoint), record.step + 1):
            files.write(step, own[step])
        run.write_state(record.step, source.state(record.step))
        run.append_record(replace(record, log_root=logs.log_root(checkpoint)))
    return run
