"""A run that is held in memory, and what it shows: every state and, once a step was asked for, every value of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from engine.evidence import Evidence
from engine.interpreter import Interpreter, State
from engine.logged.following import Follower
from engine.logged.recording import Recorder
from engine.tensors import identities, tensor_bytes
from engine.training import Tamper, make_record
from protocol.accumulator import decode_for, finish
from protocol.accumulator_tree import AccumulatorTree
from protocol.commitments import ZERO_DIGEST, StepRecord, state_leaf
from protocol.isa import Slot
from protocol.job import Job
from protocol.logs import WORD_ELEMENTS, LogTree, StepLog, code_in, logs_tree
from protocol.merkle import Tree
from protocol.program import Program, half_and_half
from protocol.rounding import Direction, element_rounding, sum_kind
from protocol.tags import Digest
from sim.tampering.forgery import Bend, ForgedEvidence, halfway


@dataclass(frozen=True, slots=True)
class Step:
    """What is left of a step that was executed."""

    state: State
    loss_bits: int
    log: StepLog | None
    log_root: Digest
    """Of its own log tree; zero under policy `exact`."""


@dataclass(frozen=True, kw_only=True)
class MemoryRun:
    """What `Evidence` asks of a run directory. All states are kept, so nothing is ever computed twice to reach one."""

    job: Job
    program: Program
    initial: State
    inputs: State
    steps: tuple[Step, ...]
    step_records: tuple[StepRecord, ...]
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

    def logs(self) -> dict[int, StepLog] | None:
        """All logs by step; None under policy `exact`."""
        return {k: self.step_log(k) for k in range(1, self.job.steps + 1)} if self.job.is_logged else None


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
    ) -> MemoryRun:
        """A whole run. known: its first steps, already computed. logs: to follow; without, they are made."""
        steps, state = list(known), known[-1].state if known else self.initial
        inputs = self.interpreter.place_data(self.data)
        for number in range(len(known) + 1, self.job.steps + 1):
            sums = self._sums(number, logs)
            result = self.interpreter.step(number, state, inputs, tamper(number), check_finite=False, sums=sums)
            log = None if sums is None else sums.log
            root = ZERO_DIGEST if log is None else LogTree(self.interpreter.program, log).root
            steps.append(Step(result.state, result.loss_bits, log, root))
            state = result.state
        return self.made(steps)

    def made(self, steps: Sequence[Step]) -> MemoryRun:
        """The run of steps that were executed."""
        job = self.job
        records = list[StepRecord]()
        for checkpoint in range(job.checkpoints):
            numbers = range(job.first_step(checkpoint), job.last_step(checkpoint) + 1)
            roots = [steps[n - 1].log_root for n in numbers]
            root = logs_tree(roots).root if job.is_logged else ZERO_DIGEST
            records += [make_record(n, steps[n - 1].state, steps[n - 1].loss_bits, root) for n in numbers]
        return MemoryRun(
            job=job,
            program=self.interpreter.program,
            initial=self.initial,
            inputs=self.data,
            steps=tuple(steps),
            step_records=tuple(records),
        )

    def _sums(self, step: int, logs: Mapping[int, StepLog] | None) -> "Recorder | Follower | None":
        if not self.job.is_logged:
            return None
        if logs is None:
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


class MemoryEvidence(ForgedEvidence):
    """`Evidence` of a run in memory. A step is executed once for all its values, which are then kept.

    Accumulators are bent where the value that they lead to is not the one that is committed: of an honest run nowhere.
    """

    run: MemoryRun

    def __init__(self, run: MemoryRun, interpreter: Interpreter, tamper: Tamper, bend: Bend = halfway) -> None:
        super().__init__(run, interpreter, _Everything(tamper), bend)
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

    def _make_values(self, step: int) -> _Values:
        seen: dict[int, Tensor] = {}

        def observe(leaf: int, tensor: Tensor) -> Tensor:
            seen[leaf] = tensor
            return tensor

        self._step(step, self._state_after(step - 1), observe)
        program = self.program
        ids = identities({str(leaf): tensor for leaf, tensor in seen.items()})
        commits = list[Digest]()
        for slot, commit in enumerate(program.commits):
            assert isinstance(commit.params, Slot)
            commits.append(state_leaf(commit.params.name, ids[str(program.leaf_of_commit(slot))]))
        body = range(len(program.body))
        tree = half_and_half([ids[str(leaf)] for leaf in body], commits, program.half_depth)
        return _Values(tree, {leaf: bytes(tensor_bytes(seen[leaf])) for leaf in body})

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
