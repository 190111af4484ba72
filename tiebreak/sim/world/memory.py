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
from tiebreak.engine.run.train import Tamper, make_record
from tiebreak.protocol.commitments.accumulator_tree import AccumulatorTree
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.log_tree import WORD_ELEMENTS, LogTree, code_in, logs_tree
from tiebreak.protocol.commitments.records import ZERO_DIGEST, StepRecord, identify, state_leaf
from tiebreak.protocol.program.accumulator import decode_for, finish
from tiebreak.protocol.program.program import Program, half_and_half
from tiebreak.protocol.program.rounding import Direction, element_rounding, sum_kind
from tiebreak.protocol.program.step_log import StepLog
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree
from tiebreak.sim.tampering.forgery import Bend, ForgedEvidence, halfway
from tiebreak.sim.tampering.logs import ForgedLogTree, Words


@dataclass(frozen=True, slots=True)
class Step:
    """What is left of a step that was executed."""

    state: State
    loss_bits: int
    log: StepLog | None
    log_root: Digest
    """Of the tree over its own log; zero under policy `exact`."""


@dataclass(frozen=True, kw_only=True)
class MemoryRun:
    """What `Evidence` asks of a run directory. All states are kept, so nothing is ever computed twice to reach one."""

    job: Job
    program: Program
    initial: State
    inputs: State
    steps: tuple[Step, ...]
    step_records: tuple[StepRecord, ...]
    words: Words
    """Words of log trees that are not what the logs make them; of an honest run none."""
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
        return tree_of(self.program, self.step_log(step), self.words.get(step, {}))

    def logs(self) -> dict[int, StepLog] | None:
        """All logs by step; None under policy `exact`."""
        return {k: self.step_log(k) for k in range(1, self.job.steps + 1)} if self.job.is_logged else None


def tree_of(program: Program, log: StepLog, words: Mapping[tuple[int, int], bytes]) -> LogTree:
    """The tree over a log, with these words in the place of its own."""
    return ForgedLogTree(program, log, words) if words else LogTree(program, log)


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
        words: Words | None = None,
    ) -> MemoryRun:
        """A whole run. known: its first steps, already computed. logs: to follow; where there is none, one is made.

        words: of log trees, as they are to be committed.
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
        return self._made(made, {} if words is None else words)

    def _made(self, steps: Sequence[Step], words: Words) -> MemoryRun:
        job, program = self.job, self.interpreter.program
        records = list[StepRecord]()
        for checkpoint in range(job.checkpoints):
            numbers = range(job.first_step(checkpoint), job.last_step(checkpoint) + 1)
            roots = [self._log_root(steps[n - 1], words.get(n, {})) for n in numbers]
            root = logs_tree(roots).root if job.is_logged else ZERO_DIGEST
            records += [make_record(n, steps[n - 1].state, steps[n - 1].loss_bits, root) for n in numbers]
        return MemoryRun(
            job=job,
            program=program,
            initial=self.initial,
            inputs=self.data,
            steps=tuple(steps),
            step_records=tuple(records),
            words=words,
        )

    def _log_root(self, step: Step, words: Mapping[tuple[int, int], bytes]) -> Digest:
        if not words or step.log is None:
            return step.log_root
        return tree_of(self.interpreter.program, step.log, words).root

    def _sums(self, step: int, logs: Mapping[int, StepLog] | None) -> "Recorder | Follower | None":
        if not self.job.is_logged:
            return None
        if logs is None or step not in logs:
            return Recorder()
        return Follower(self.interpreter.program, logs[step], self.job, self.interpreter.arithmetic, step)


@dataclass(frozen=True, slots=True)
class _Values:
    """All values of a step."""

    tree: Tree
    data: Mapping[int, bytes]


class _Everything:
    """As a cheat that may have put another number anywhere; `MemoryEvidence` looks where it did."""

    def __init__(self, tamper: Tamper) -> None:
        self.tamper = tamper

    def tells(self, _step: int, _leaf: int, _element: int) -> bool:
        return True


Raw = Mapping[tuple[int, int], Callable[[bytes], bytes]]
"""By step and body value: what becomes of its bytes where they are committed and shown."""


class MemoryEvidence(ForgedEvidence):
    """`Evidence` of a run in memory. A step is executed once for all its values, which are then kept.

    Accumulators are bent where the value that they lead to is not the one that is committed: of an honest run nowhere.
    raw: bytes that no tensor of this process can be made to hold, as a NaN's other patterns.
    """

    run: MemoryRun

    def __init__(
        self,
        run: MemoryRun,
        interpreter: Interpreter,
        tamper: Tamper,
        bend: Bend = halfway,
        raw: Raw | None = None,
    ) -> None:
        super().__init__(run, interpreter, _Everything(tamper), bend)
        self._raw = {} if raw is None else raw
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

    def _make_values(self, step: int) -> _Values:
        seen: dict[int, Tensor] = {}

        def observe(leaf: int, tensor: Tensor) -> Tensor:
            seen[leaf] = tensor
            return tensor

        next(self._steps(step, step, self._state_after(step - 1), observe))
        program = self.program
        body = range(len(program.body))
        data = {leaf: bytes(tensor_bytes(seen[leaf])) for leaf in body}
        ids = {int(leaf): found for leaf, found in identities({str(n): x for n, x in seen.items()}).items()}
        for (number, leaf), change in self._raw.items():
            if number == step:
                data[leaf] = change(data[leaf])
                ids[leaf] = identify(program.body[leaf].dtype, program.body[leaf].shape, data[leaf])
        commits = [
            state_leaf(name, ids[program.leaf_of_commit(slot)]) for slot, name in enumerate(program.state_spec())
        ]
        return _Values(half_and_half([ids[leaf] for leaf in body], commits, program.half_depth), data)

    def _make_accumulators(self, step: int, value: int, element: int) -> AccumulatorTree:
        honest, instruction = Evidence._make_accumulators(self, step, value, element), self.program.body[value]
        size, direction = instruction.dtype.size, self._direction(step, value, element)
        rounding = element_rounding(
            instruction, precision=self.job.precision, tolerances=self.job.tolerances, direction=direction
        )
        right = finish(decode_for(instruction, honest.last), rounding) % (1 << 8 * size)
        if right.to_bytes(size, "little") == self.tensor(step, value)[size * element : size * (element + 1)]:
            return honest
        return super()._make_accumulators(step, value, element)

    def _direction(self, step: int, value: int, element: int) -> Direction:
        if not self.job.is_logged or sum_kind(self.program.body[value]) is None:
            return Direction.NONE
        chunk, place = divmod(element, WORD_ELEMENTS)
        return code_in(self.log_tree(step).word(value, chunk), place)
