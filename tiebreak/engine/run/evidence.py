"""The evidence that a party can show in a dispute: every tree of SPEC section 10, computed again on request.

Training stores none of this, except the rounding logs of policy `logged`, which every replay follows. A disputed
segment is replayed once for the records of its steps. A disputed step is replayed once for the ids of its values, and
once more for each value that is opened, so that memory use stays that of training. A checkpoint that was not kept is
computed again from the last kept one before it.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.backend import identity
from tiebreak.engine.data.hashing import hasher
from tiebreak.engine.data.tensors import tensor_bytes
from tiebreak.engine.run.commit import Identified, make_record
from tiebreak.engine.run.interpreter import Interpreter, Observer, State, Sums
from tiebreak.engine.run.logs import NO_LOGS, Logs, RunIdentity, check_logs
from tiebreak.engine.run.loop import ComputedStep, steps
from tiebreak.protocol.commitments.accumulator_tree import AccumulatorTree
from tiebreak.protocol.commitments.log_tree import LogTree
from tiebreak.protocol.commitments.records import StepRecord, run_tree, state_leaf, tensor_tree
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.program.program import Program, half_and_half
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree


class Source(RunIdentity, Protocol):
    """The parts of a run that evidence needs."""

    def records(self) -> list[StepRecord]:
        """The records of the checkpoints so far."""

    def kept_before(self, step: int) -> int:
        """The last step up to this one whose state is kept."""

    def state(self, step: int) -> Mapping[str, Tensor]:
        """The state after a step, which must be kept."""

    def data(self) -> Mapping[str, Tensor]:
        """The job's data by name."""


class _Found(Exception):
    """Stops a replay once the wanted value is found."""


class Evidence:
    """The trees that a party shows in a dispute (`sides.Oracle`), rebuilt from its run directory on request.

    The interpreter must compute what the run's did.
    """

    KEPT: ClassVar[Mapping[str, int]] = {
        "value_tree": 4, "tensor": 64, "tensor_tree": 4, "accumulators": 1, "log_tree": 2,
    }  # fmt: skip
    """The number of answers of a method that are kept, because a bisection asks for the same tree at every move."""

    def __init__(self, run: Source, interpreter: Interpreter, logs: Logs = NO_LOGS) -> None:
        """logs: for a job of policy `logged`, those that the run's records commit to."""
        interpreter.check_job(run.job)
        check_logs(run.job, logs)
        self.run, self.job, self.program, self._interpreter, self._logs = run, run.job, run.program, interpreter, logs
        self._data: State | None = None
        self._ids = Identified(run.program)
        self._held: tuple[int, State] | None = None
        self._records: dict[int, StepRecord] = {}
        self.replayed_steps = 0
        for method, size in self.KEPT.items():
            setattr(self, method, lru_cache(maxsize=size)(getattr(self, method)))

    def run_tree(self, count: int) -> Tree:
        """The run tree of this party's first `count` checkpoints."""
        records = self.run.records()
        if len(records) < count:
            raise StateError(f"expected {count} checkpoints in {self.run.path}, got {len(records)}")
        digests = [record.digest for record in records[:count]]
        return run_tree(digests, self.job.steps, self.job.checkpoint_interval, hasher=hasher())

    def steps_tree(self, checkpoint: int) -> Tree:
        """The tree over the records of a segment's steps."""
        steps = range(self.job.first_step(checkpoint), self.job.last_step(checkpoint) + 1)
        return Tree([self.record(step).digest for step in steps], hasher=hasher())

    def record(self, step: int) -> StepRecord:
        """The record of any step (0: of the initial state)."""
        if step == 0:
            return self.job.initial_record
        if step not in self._records:
            self._replay_segment(self.job.checkpoint_of(step))
        return self._records[step]

    def value_tree(self, step: int) -> Tree:
        """The value tree of a step, of depth D + 1."""
        ids: dict[int, Digest] = {}

        def observe(leaf: int, tensor: Tensor) -> Tensor:
            ids[leaf] = identity(tensor)
            return tensor

        next(self._steps(step, step, self._state_after(step - 1), observe))
        return tree_of_values(self.program, ids)

    def tensor(self, step: int, value: int) -> bytes:
        """The data of a body value of a step."""
        found: list[bytes] = []

        def observe(leaf: int, tensor: Tensor) -> Tensor:
            if leaf == value:
                found.append(bytes(tensor_bytes(tensor)))
                raise _Found
            return tensor

        try:
            next(self._steps(step, step, self._state_after(step - 1), observe))
        except _Found:
            return found[0]
        raise StateError(f"step {step} has no value {value}")

    def tensor_tree(self, step: int, value: int) -> Tree:
        """The chunk tree of a body value of a step."""
        return tensor_tree(self.tensor(step, value), hasher=hasher(torch.get_num_threads()))

    def state_leaves(self, step: int) -> Tree:
        """The state tree after a step (0: of the initial state)."""
        state = self._state_after(step)
        return Tree([state_leaf(name, identity(state[name])) for name in self.program.state_spec()])

    def state_id(self, step: int, name: str) -> Digest:
        """The id of a state entry after a step."""
        return identity(self._state_after(step)[name])

    def data_id(self, name: str) -> Digest:
        """The id of a data entry."""
        return identity(self._inputs()[name])

    def accumulators(self, step: int, value: int, element: int) -> AccumulatorTree:
        """The accumulator tree of one output element of a reduction, in about 0.1 microseconds per term."""
        instruction = self.program.body[value]
        tensors = [self.tensor(step, operand.value) for operand in instruction.operands]
        dtypes = self.program.operand_dtypes(instruction)
        return AccumulatorTree.of(instruction, element, tensors, dtypes, hasher=hasher())

    def log_tree(self, step: int) -> LogTree:
        """The tree over the rounding log of a step. Raises `CannotCheck` if the log is not the recorded one."""
        return self._logs.log_tree(step)

    def _inputs(self) -> State:
        if self._data is None:
            self._data = self._interpreter.place_data(self.run.data())
        return self._data

    def _steps(
        self, first: int, last: int, state: State, observe: Observer | None = None
    ) -> Iterator[ComputedStep[Sums]]:
        """Computes the steps from `first` to `last` again."""

        def before(step: int, arithmetic: Arithmetic, state: State) -> Sums | None:
            self.replayed_steps += 1
            return self._logs.before(step, arithmetic, state)

        return steps(self._interpreter, state, self._inputs(), range(first, last + 1), sums=before, observe=observe)

    def _replay_segment(self, checkpoint: int) -> None:
        """Computes the records of a segment's steps, with only one of their states in memory at a time."""
        first, last = self.job.first_step(checkpoint), self.job.last_step(checkpoint)
        for step, result, _ in self._steps(first, last, self._state_after(first - 1)):
            log_root = self._logs.log_root(checkpoint)
            self._records[step] = make_record(step, result.state, result.loss_bits, log_root, self._ids.of)

    def _state_after(self, step: int) -> State:
        """The state after a step. The last one is cached, because a dispute stays with the step that it has reached."""
        if self._held is None or self._held[0] != step:
            self._held = step, self._reach(step)
        return self._held[1]

    def _reach(self, step: int) -> State:
        before = self.run.kept_before(step)
        if self._held is not None and before <= self._held[0] < step:
            before, state = self._held
        else:
            state = self._interpreter.to_device(self.run.state(before))
        for done in self._steps(before + 1, step, state):
            state = done.result.state
        return state


def tree_of_values(program: Program, ids: Mapping[int, Digest]) -> Tree:
    """The value tree of a step. ids: maps each leaf to the id of its tensor."""
    body = [ids[leaf] for leaf in range(len(program.body))]
    commits = [state_leaf(name, ids[program.leaf_of_commit(slot)]) for slot, name in enumerate(program.state_spec())]
    return half_and_half(body, commits, program.half_depth)
