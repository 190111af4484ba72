"""A run that is held in memory, and what it shows: every state and, once a step was asked for, every value of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from tiebreak.engine.data.tensors import identities, tensor_bytes
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.following import Follower
from tiebreak.engine.logged.recording import Recorder
from tiebreak.engine.run.evidence import Evidence
from tiebreak.engine.run.interpreter import Interpreter, State
from tiebreak.engine.run.loop import Done, steps
from tiebreak.engine.run.train import Tamper, honest, make_record
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.log_tree import LogTree, logs_tree
from tiebreak.protocol.commitments.records import ZERO_DIGEST, StepRecord, state_leaf
from tiebreak.protocol.program.program import Program, half_and_half
from tiebreak.protocol.program.step_log import StepLog
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree


@dataclass(frozen=True, slots=True)
class Step:
    """What is left of a step that was executed."""

    state: State
    loss_bits: int
    log: StepLog | None
    log_root: Digest
    """Of the tree over its own log; zero under policy `exact`."""


Trees = Callable[[Program, int, StepLog], LogTree]
"""The tree that a party commits to for the log of a step."""


def own_tree(program: Program, _step: int, log: StepLog) -> LogTree:
    """The tree of the log."""
    return LogTree(program, log)


@dataclass(frozen=True, kw_only=True)
class MemoryRun:
    """What `Evidence` asks of a run directory. All states are kept, so nothing is ever computed twice to reach one."""

    job: Job
    program: Program
    initial: State
    inputs: State
    steps: tuple[Step, ...]
    step_records: tuple[StepRecord, ...]
    trees: Trees
    """How the logs are committed."""
    path: str = "a run in memory"

    def records(self) -> list[StepRecord]:
        """The records of all checkpoints."""
        return [self.step_records[self.job.last_step(checkpoint) - 1] for checkpoint in range(self.job.checkpoints)]

    def kept_before(self, step: int) -> int:
        """Every state is there."""
        return step

    def state(self, step: int) -> State:
        """The state after a step."""
        return self.steps[step - 1].state if step else self.initial

    def data(self) -> State:
        """The job's data."""
        return self.inputs

    def step_log(self, step: int) -> StepLog:
        """The log of a step, of a job of policy `logged`."""
        log = self.steps[step - 1].log
        assert log is not None  # `Evidence` asks under that policy alone
        return log

    def log_tree(self, step: int) -> LogTree:
        """The tree of a step's log, as it is committed."""
        return self.trees(self.program, step, self.step_log(step))

    def logs(self) -> dict[int, StepLog] | None:
        """All logs by step; None under policy `exact`."""
        return {k: self.step_log(k) for k in range(1, self.job.steps + 1)} if self.job.is_logged else None


class OwnLogs(CommittedLogs):
    """Logs of a run in this memory: nobody can have changed them since they were committed."""

    def __init__(self, run: MemoryRun) -> None:
        super().__init__(run, lambda checkpoint: run.records()[checkpoint])
        self._memory = run

    def step_log(self, step: int) -> StepLog:
        """As it is."""
        return self._memory.step_log(step)


@dataclass(frozen=True, kw_only=True)
class Computer:
    """Computes runs of one job with one interpreter."""

    job: Job
    interpreter: Interpreter
    initial: State
    data: State

    def run(
        self,
        *,
        tamper: Tamper,
        known: Sequence[Step] = (),
        logs: Mapping[int, StepLog] | None = None,
        trees: Trees = own_tree,
    ) -> MemoryRun:
        """A whole run. known: its first steps, already computed. logs: to follow; where there is none, one is made.

        trees: the log trees that are committed.
        """
        made, state = list(known), known[-1].state if known else self.initial
        inputs, numbers = self.interpreter.place_data(self.data), range(len(known) + 1, self.job.steps + 1)
        computed: Iterator[Done[Recorder | Follower]] = steps(
            self.interpreter, state, inputs, numbers, sums=lambda step: self._sums(step, logs), observe=tamper
        )
        for _, result, sums in computed:
            log = None if sums is None else sums.log
            root = ZERO_DIGEST if log is None else LogTree(self.interpreter.program, log).root
            made.append(Step(result.state, result.loss_bits, log, root))
        return self._made(made, trees)

    def _made(self, steps: Sequence[Step], trees: Trees) -> MemoryRun:
        job, program = self.job, self.interpreter.program
        records = list[StepRecord]()
        for checkpoint in range(job.checkpoints):
            numbers = range(job.first_step(checkpoint), job.last_step(checkpoint) + 1)
            roots = [self._log_root(n, steps[n - 1], trees) for n in numbers]
            root = logs_tree(roots).root if job.is_logged else ZERO_DIGEST
            records += [make_record(n, steps[n - 1].state, steps[n - 1].loss_bits, root) for n in numbers]
        return MemoryRun(
            job=job,
            program=program,
            initial=self.initial,
            inputs=self.data,
            steps=tuple(steps),
            step_records=tuple(records),
            trees=trees,
        )

    def _log_root(self, number: int, step: Step, trees: Trees) -> Digest:
        if trees is own_tree or step.log is None:
            return step.log_root
        return trees(self.interpreter.program, number, step.log).root

    def _sums(self, step: int, logs: Mapping[int, StepLog] | None) -> "Recorder | Follower | None":
        if not self.job.is_logged:
            return None
        if logs is None or step not in logs:
            return Recorder()
        return Follower(self.interpreter.program, logs[step], self.job, self.interpreter.arithmetic, step)


@dataclass(frozen=True, slots=True)
class Values:
    """All values of a step: their tree, and the bytes of those of the body."""

    tree: Tree
    data: Mapping[int, bytes]


class MemoryEvidence(Evidence):
    """`Evidence` of a run in memory. A step is executed once for all its values, which are then kept."""

    run: MemoryRun

    def __init__(self, run: MemoryRun, interpreter: Interpreter, tamper: Tamper = honest) -> None:
        super().__init__(run, interpreter, tamper)
        self._logs = OwnLogs(run)
        self._values = lru_cache(maxsize=run.job.steps)(self._make_values)
        self._accumulators = lru_cache(maxsize=256)(self._make_accumulators)

    def record(self, step: int) -> StepRecord:
        """The record of a step, which is kept."""
        return self.run.step_records[step - 1] if step else self.job.initial_record

    def value_tree(self, step: int) -> Tree:
        """The value tree of a step."""
        return self._values(step).tree

    def tensor(self, step: int, value: int) -> bytes:
        """The data of a body value."""
        return self._values(step).data[value]

    def _make_log_tree(self, step: int) -> LogTree:
        return self.run.log_tree(step)

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
        """The values of a step, whose ids by leaf are these."""
        program = self.program
        commits = [
            state_leaf(name, ids[program.leaf_of_commit(slot)]) for slot, name in enumerate(program.state_spec())
        ]
        body = [ids[leaf] for leaf in range(len(program.body))]
        return Values(half_and_half(body, commits, program.half_depth), data)
