"""The evidence that a party can show for a job, from a run in memory, and the first place where it is false.

A run in memory keeps all states, and all values of a step once they were asked for.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import ClassVar, Final

from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.data.tensors import identities, tensor_bytes
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.journal import Recorder, Supply, no_late_data, recorder
from tiebreak.engine.logged.log_replay import Follower
from tiebreak.engine.run.commit import make_record
from tiebreak.engine.run.evidence import Evidence, tree_of_values
from tiebreak.engine.run.interpreter import Interpreter, State
from tiebreak.engine.run.logs import NO_LOGS
from tiebreak.engine.run.loop import ComputedStep, steps
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.log_tree import LogTree, logs_tree
from tiebreak.protocol.commitments.records import ZERO_DIGEST, StepRecord
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.game.sides import Oracle
from tiebreak.protocol.numbers.float32 import is_finite
from tiebreak.protocol.program.isa import Opcode
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import StepLog
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree

_BARGAINED: Final = {"client", "trainer"} | {field.name for field in fields(Terms)}


def computation(job: Job) -> tuple[object, ...]:
    """The fields of a job that fix what is computed and how it is committed, without parties and prices."""
    return tuple(getattr(job, name) for name in Job.kinds() if name not in _BARGAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lie:
    """The first position, in the order in which a game descends, where a commitment differs from the truth.

    The walk goes to the first checkpoint that differs, in its segment to the first step, and there to the first leaf of
    the value tree. A difference before that which reaches no checkpoint is not committed.
    """

    step: int
    leaf: int
    element: int | None
    """The element; None where the game ends at the leaf: commits and sources are settled by their ids."""


Kept = Callable[[int], State]


@dataclass(frozen=True, kw_only=True)
class Work:
    """The evidence of a trainer or a challenger for a job."""

    records: tuple[StepRecord, ...]
    """The records of all checkpoints."""
    oracle: "MemoryEvidence"
    """Answers for this job."""
    computed_steps: int
    """Steps that this party would have had to execute: its real cost, without the simulator's caches."""
    lie: Lie | None
    """The first false position; None for the true run."""
    kept: Kept | None = None
    """The stored state after a step, published with the run for replays that start there. None: withheld."""
    logs: Mapping[int, StepLog] | None = None
    """The published logs by step. None under policy `exact`, or if they were withheld."""

    def run_root(self, count: int) -> Digest:
        """The run root in the head over the first `count` checkpoints."""
        return self.oracle.run_tree(count).root


def first_lie(shown: Oracle, truth: Oracle) -> Lie | None:
    """The first position where two parties' trees differ, in the order of the descent; None if their runs agree.

    Raises `ConfigurationError` if the records of a step differ and its values do not: nobody can open that.
    """
    job = truth.job
    for checkpoint in range(job.checkpoints):
        last = job.last_step(checkpoint)
        if shown.record(last) == truth.record(last):
            continue
        steps = range(job.first_step(checkpoint), last + 1)
        step = next(step for step in steps if shown.record(step) != truth.record(step))
        return _first_leaf(shown, truth, step)
    return None


def _first_leaf(shown: Oracle, truth: Oracle, step: int) -> Lie:
    program, own, true = truth.program, shown.value_tree(step), truth.value_tree(step)
    half = 1 << program.half_depth
    body, commits = range(len(program.body)), range(half, half + len(program.commits))
    for leaf in (*body, *commits):
        if own.node(0, leaf) == true.node(0, leaf):
            continue
        if leaf >= half or program.body[leaf].opcode == Opcode.SOURCE:
            return Lie(step=step, leaf=leaf, element=None)
        size = program.body[leaf].dtype.size
        pairs = zip(shown.tensor(step, leaf), truth.tensor(step, leaf), strict=True)
        return Lie(step=step, leaf=leaf, element=next(k for k, (a, b) in enumerate(pairs) if a != b) // size)
    raise ConfigurationError(f"expected values that differ in step {step}, as its records do, got the same")


@dataclass(frozen=True, slots=True)
class KeptStep:
    """The parts of an executed step that are kept."""

    state: State
    loss_bits: int
    log: StepLog | None
    log_root: Digest
    """The root of the tree over the step's own log; zero under policy `exact`."""


Trees = Callable[[Program, int, StepLog], LogTree]
"""Builds the tree that a party commits to for the log of a step."""


def own_tree(program: Program, _step: int, log: StepLog) -> LogTree:
    """The honest tree: the one over the log itself."""
    return LogTree(program, log)


@dataclass(frozen=True, kw_only=True)
class MemoryRun:
    """The part of a run directory that `Evidence` needs. All states are kept, so no step is recomputed to reach one."""

    job: Job
    program: Program
    initial: State
    inputs: State
    steps: tuple[KeptStep, ...]
    step_records: tuple[StepRecord, ...]
    trees: Trees
    """Builds the committed log trees."""
    path: str = "a run in memory"

    def records(self) -> list[StepRecord]:
        return [self.step_records[self.job.last_step(checkpoint) - 1] for checkpoint in range(self.job.checkpoints)]

    @property
    def forbidden(self) -> list[int]:
        """The steps whose loss the job forbids."""
        found = [n for n, step in enumerate(self.steps, 1) if not is_finite(step.loss_bits)]
        return found if self.job.demands_finite_losses else []

    def kept_before(self, step: int) -> int:
        return step

    def state(self, step: int) -> State:
        """The state after a step; step 0 is the initial state."""
        return self.steps[step - 1].state if step else self.initial

    def data(self) -> State:
        return self.inputs

    def step_log(self, step: int) -> StepLog:
        log = self.steps[step - 1].log
        assert log is not None  # `Evidence` asks only under that policy
        return log

    def log_tree(self, step: int) -> LogTree:
        """The committed tree of a step's log."""
        return self.trees(self.program, step, self.step_log(step))

    def logs(self) -> dict[int, StepLog] | None:
        """The logs of all steps; None under policy `exact`."""
        return {k: self.step_log(k) for k in range(1, self.job.steps + 1)} if self.job.is_logged else None


class OwnLogs(CommittedLogs):
    """The logs of a run in this memory.

    They need no check against their commitment, since nobody can have changed them.
    """

    def __init__(self, run: MemoryRun) -> None:
        super().__init__(run, lambda checkpoint: run.records()[checkpoint])
        self._memory = run

    def step_log(self, step: int) -> StepLog:
        return self._memory.step_log(step)

    def log_tree(self, step: int) -> LogTree:
        """The committed tree, which a forger may have built otherwise."""
        return self._memory.log_tree(step)


def compute(
    job: Job, interpreter: Interpreter, initial: State, data: State, *, known: Sequence[KeptStep] = (),
    logs: Mapping[int, StepLog] | None = None, trees: Trees = own_tree, supply: Supply = no_late_data,
) -> MemoryRun:  # fmt: skip
    """Computes a whole run.

    known: its first steps, already computed. logs: the logs to follow; a step without one makes its own, with late data
    from the supply. trees: builds the committed log trees.
    """
    program, arithmetic = interpreter.program, interpreter.arithmetic
    made, state = list(known), known[-1].state if known else initial
    inputs, numbers = interpreter.place_data(data), range(len(known) + 1, job.steps + 1)

    def sums(step: int, _: Arithmetic, before: State) -> Recorder | Follower | None:
        if not job.is_logged:
            return None
        if logs is None or step not in logs:
            return recorder(program, step, arithmetic, supply(step, before))
        return Follower(program, logs[step], job, arithmetic, step)

    computed: Iterator[ComputedStep[Recorder | Follower]] = steps(interpreter, state, inputs, numbers, sums=sums)
    for _, result, found in computed:
        log = None if found is None else found.log
        root = ZERO_DIGEST if log is None else LogTree(program, log).root
        made.append(KeptStep(result.state, result.loss_bits, log, root))
    records = list[StepRecord]()
    for checkpoint in range(job.checkpoints):
        segment = range(job.first_step(checkpoint), job.last_step(checkpoint) + 1)
        roots = [
            step.log_root if trees is own_tree or step.log is None else trees(program, n, step.log).root
            for n in segment
            for step in [made[n - 1]]
        ]
        root = logs_tree(roots).root if job.is_logged else ZERO_DIGEST
        records += [make_record(n, made[n - 1].state, made[n - 1].loss_bits, root) for n in segment]
    return MemoryRun(
        job=job,
        program=program,
        initial=initial,
        inputs=data,
        steps=tuple(made),
        step_records=tuple(records),
        trees=trees,
    )


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a step: their tree, and the bytes of the body values."""

    tree: Tree
    data: Mapping[int, bytes]


class MemoryEvidence(Evidence):
    """The `Evidence` of a run in memory. A step is executed once for all its values, which are then kept."""

    KEPT: ClassVar = {"accumulators": 256, "log_tree": 2}
    run: MemoryRun

    def __init__(self, run: MemoryRun, interpreter: Interpreter) -> None:
        super().__init__(run, interpreter, OwnLogs(run) if run.job.is_logged else NO_LOGS)
        self._values = lru_cache(maxsize=run.job.steps)(self._make_values)

    def record(self, step: int) -> StepRecord:
        return self.run.step_records[step - 1] if step else self.job.initial_record

    def value_tree(self, step: int) -> Tree:
        return self._values(step).tree

    def tensor(self, step: int, value: int) -> bytes:
        return self._values(step).data[value]

    def _make_values(self, step: int) -> Values:
        seen: dict[int, Tensor] = {}

        def observe(leaf: int, tensor: Tensor) -> Tensor:
            seen[leaf] = tensor
            return tensor

        next(self._steps(step, step, self._state_after(step - 1), observe))
        data = {leaf: bytes(tensor_bytes(seen[leaf])) for leaf in range(len(self.program.body))}
        ids = {int(leaf): found for leaf, found in identities({str(n): x for n, x in seen.items()}).items()}
        return self._shown(step, data, ids)

    def _shown(self, _step: int, data: dict[int, bytes], ids: dict[int, Digest]) -> Values:
        """The values of a step. `ids` maps leaves to the ids of their values."""
        return Values(tree_of_values(self.program, ids), data)


def bound(evidence: MemoryEvidence, job: Job) -> MemoryEvidence:
    """The evidence as that of this job. Jobs share its caches, since nothing in it depends on the job.

    Raises `ConfigurationError` for a job over another computation.
    """
    if computation(job) != computation(evidence.job):
        raise ConfigurationError(f"expected a job over {computation(evidence.job)}, got {computation(job)}")
    found = copy(evidence)
    found.run = replace(evidence.run, job=job)
    return found
