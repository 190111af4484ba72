"""What a party can show for a job, and the first place where it is false."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tiebreak.engine.run.interpreter import State
from tiebreak.protocol.commitments.accumulator_tree import AccumulatorTree
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.log_tree import LogTree
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.game.sides import Oracle
from tiebreak.protocol.program.isa import Opcode
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.step_log import StepLog
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree

_BARGAINED: Final = frozenset(
    ("client", "trainer", "reward", "trainer_stake", "challenger_stake", "challenge_window", "clock", "replay_time")
) | {"talk_time", "audit_time", "deadline", "descent_levels", "nonce"}


def computation(job: Job) -> tuple[object, ...]:
    """The fields of a job that fix what is computed and how it is committed, without parties and prices."""
    return tuple(getattr(job, name) for name in Job.__slots__ if name not in _BARGAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lie:
    """The first place, in the order of the game's walk, where a commitment differs from the truth.

    The walk goes to the first checkpoint that differs, in its segment to the first step, and there to the first leaf of
    the value tree. A difference before that which reaches no checkpoint is not committed.
    """

    step: int
    leaf: int
    element: int | None
    """None where the game ends at the leaf: commits and sources are settled by their ids."""


Kept = Callable[[int], State]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a trainer or a challenger can show for a job."""

    records: tuple[StepRecord, ...]
    """The records of all checkpoints."""
    oracle: Oracle
    """Answers for this job."""
    computed_steps: int
    """Steps that this party would have had to execute: its real cost, without the simulator's caches."""
    lie: Lie | None
    """None for the true run."""
    kept: Kept | None = None
    """The stored state after a step, published beside the run for replays that start there. None: withheld."""
    logs: Mapping[int, StepLog] | None = None
    """The published logs by step. None under policy `exact`, or if they were withheld."""

    def run_root(self, count: int) -> Digest:
        """The run root in the head over the first `count` checkpoints."""
        return self.oracle.run_tree(count).root


class Bound:
    """The evidence of a computation, bound to one job. Jobs share the evidence, since nothing in it depends on the job.

    `replayed_steps` counts the steps that `tiebreak.engine.run.evidence.Evidence` would have executed to answer the
    same questions for a party that kept the states of its checkpoints and no cache.
    """

    def __init__(self, job: Job, evidence: Oracle) -> None:
        """Raises `ConfigurationError` for a job over another computation."""
        if computation(job) != computation(evidence.job):
            raise ConfigurationError(f"expected a job over {computation(evidence.job)}, got {computation(job)}")
        self._job = job
        self.evidence = evidence
        self._held: int | None = None
        self._asked = set[object]()
        self.replayed_steps = 0

    @property
    def job(self) -> Job:
        return self._job

    @property
    def program(self) -> Program:
        return self.evidence.program

    def run_tree(self, count: int) -> Tree:
        return self.evidence.run_tree(count)

    def steps_tree(self, checkpoint: int) -> Tree:
        self._replay_segment(checkpoint)
        return self.evidence.steps_tree(checkpoint)

    def record(self, step: int) -> StepRecord:
        if step:
            self._replay_segment(self._job.checkpoint_of(step))
        return self.evidence.record(step)

    def value_tree(self, step: int) -> Tree:
        self._replay_step(("values", step), step)
        return self.evidence.value_tree(step)

    def tensor(self, step: int, value: int) -> bytes:
        self._replay_step(("tensor", step, value), step)
        return self.evidence.tensor(step, value)

    def tensor_tree(self, step: int, value: int) -> Tree:
        self._replay_step(("tensor", step, value), step)
        return self.evidence.tensor_tree(step, value)

    def accumulators(self, step: int, value: int, element: int) -> AccumulatorTree:
        for operand in self.program.body[value].operands:
            self._replay_step(("tensor", step, operand.value), step)
        return self.evidence.accumulators(step, value, element)

    def log_tree(self, step: int) -> LogTree:
        """The tree of a step's log. The log is kept, so nothing is executed."""
        return self.evidence.log_tree(step)

    def state_leaves(self, step: int) -> Tree:
        self._reach(step)
        return self.evidence.state_leaves(step)

    def state_id(self, step: int, name: str) -> Digest:
        self._reach(step)
        return self.evidence.state_id(step, name)

    def data_id(self, name: str) -> Digest:
        return self.evidence.data_id(name)

    def _replay_segment(self, checkpoint: int) -> None:
        if self._first(("segment", checkpoint)):
            self._reach(self._job.first_step(checkpoint) - 1)
            self.replayed_steps += self._job.segment_steps(checkpoint)

    def _replay_step(self, question: object, step: int) -> None:
        if self._first(question):
            self._reach(step - 1)
            self.replayed_steps += 1

    def _first(self, question: object) -> bool:
        first = question not in self._asked
        self._asked.add(question)
        return first

    def _reach(self, step: int) -> None:
        """Count the steps to the state after `step`, from the state held or from the last checkpoint."""
        at_end = step == self._job.steps
        kept = step if at_end else step - step % self._job.checkpoint_interval
        start = self._held if self._held is not None and kept <= self._held <= step else kept
        self.replayed_steps += step - start
        self._held = step


def first_lie(shown: Oracle, truth: Oracle) -> Lie | None:
    """Where two parties' trees first differ, in the order of the game's walk; None if their runs are the same.

    Raises `ConfigurationError` if the records of a step differ and its values do not: that is a broken tie, not a lie.
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
