"""Runs a program, step by step, on one device. A value is freed after its last use."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.chains import CHAINED, Member
from tiebreak.engine.arithmetic.elementwise import Chains, ElementwiseChain, all_finite
from tiebreak.engine.arithmetic.elementwise_fused import FusedChain, FusedChains
from tiebreak.engine.arithmetic.threads import torch_alone
from tiebreak.engine.arithmetic.ziv import NearTies
from tiebreak.engine.data.formats import Empty, fresh
from tiebreak.engine.data.tensors import canonical
from tiebreak.engine.run import schedule
from tiebreak.engine.run.graphs import Graphs
from tiebreak.engine.run.offload import Budget, Offload
from tiebreak.engine.run.placement import place
from tiebreak.engine.run.schedule import Unit
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import ConfigurationError, StateError
from tiebreak.protocol.numbers.float32 import INF, NAN_BITS
from tiebreak.protocol.program.isa import (
    Access,
    DType,
    Instruction,
    MapFunction,
    Opcode,
    Slot,
    SourceKind,
    row_major,
)
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import pack_tolerances, sum_kind

State = dict[str, Tensor]
"""Tensors by name, on the interpreter's device, contiguous."""

Observer = Callable[[int, Tensor], Tensor]
"""Called with each leaf of the value tree (a body value or a commit) and its tensor; its result is used instead."""


class Sums(Protocol):
    """Settles logged sums (SPEC section 5.1): a trainer records how they were rounded, an auditor follows a log."""

    def settle(
        self, value: int, instruction: Instruction, operands: Sequence[Tensor], result: Tensor, near: NearTies
    ) -> None:
        """Called with each logged sum of a step before anything reads it; may write into the result.

        near: the elements whose computed value is too near a middle to tell how the exact value would be rounded.
        """


class NotFiniteError(StateError):
    """A step left infinities or NaN in the state. Training stops, and nothing of that step is committed."""

    def __init__(self, step: int, name: str) -> None:
        self.step = step
        self.name = name
        super().__init__(
            f"step {step}: {name} is no longer finite; look at the learning rate and at the data of that step"
        )


@dataclass(frozen=True)
class StepResult:
    """The state after a step, and the bits of its loss."""

    state: State
    loss_bits: int

    @property
    def loss(self) -> float:
        return torch.tensor(self.loss_bits, dtype=torch.int64).to(torch.int32).view(torch.float32).item()


def loss_bits(loss: Tensor) -> int:
    """The bits of an f32 of rank 0, with NaN made canonical. Reads from the loss's device once."""
    return _unsigned(int(loss.reshape(1).view(torch.int32).item()))


def _unsigned(bits: int) -> int:
    return NAN_BITS if bits & 0x7FFFFFFF > INF else bits & 0xFFFFFFFF


class Interpreter:
    """Executes the steps of one program.

    Without an observer, instructions are executed in the order of `tiebreak.engine.run.schedule`. If the compiled
    kernel for chains is available, the intermediate results of a chain are never materialised. With an observer,
    instructions are executed one by one in the program's own order. Where Triton kernels run, the host reads from the
    device once, after everything else, what it has to know of a step.
    """

    def __init__(
        self, program: Program, arithmetic: Arithmetic, planned: tuple[Unit, ...] | None = None, *,
        budget: Budget | None = None, graphs: bool = False,
    ) -> None:  # fmt: skip
        """planned: the order of execution, if it is to be that of a program that differs only in sizes.

        budget: for the values of a step in memory; others wait in a file (`tiebreak.engine.run.offload`). Raises
        `ConfigurationError` if it is too little for one instruction.

        graphs: whether donated states go through a CUDA graph (`tiebreak.engine.run.graphs`). The state of a result is
        overwritten by the next step then.
        """
        self.program = program
        self.arithmetic = arithmetic
        self._committed = [commit.operands[0].value for commit in program.commits]
        self._in_order = schedule.in_order(program)
        self._chained = CHAINED if arithmetic.chains is None else arithmetic.chains.functions
        self._planned = schedule.plan(program, self._chained) if planned is None else planned
        self._chains = self._make_chains()
        chains = arithmetic.chains
        self._fused = chains if isinstance(chains, FusedChains) and budget is None else None
        self._seals = {} if self._fused is None else self._make_seals(self._fused)
        self._noting = tuple(c for c in (*self._chains.values(), *self._seals.values()) if isinstance(c, FusedChain))
        sources = [(n, i) for n, i in enumerate(program.body) if i.opcode == Opcode.SOURCE]
        self._constants = {n: arithmetic.execute(i, (), 0) for n, i in sources if _is_constant(i)}
        self._read = tuple((n, i) for n, i in sources if n not in self._constants)
        self._work = tuple(
            (unit, self._chains.get(position))
            for position, unit in enumerate(self._planned)
            if program.body[unit.members[0]].opcode != Opcode.SOURCE
        )
        self._offload = None if budget is None else self._make_offload(budget)
        self._graphs = Graphs(arithmetic) if graphs else None

    def to_device(self, tensors: Mapping[str, Tensor]) -> State:
        """The tensors on this interpreter's device, contiguous."""
        state = {name: tensor.to(self.arithmetic.device).contiguous() for name, tensor in tensors.items()}
        if self._offload is not None:
            self._offload.adopt(state)
        return state

    @property
    def empty(self) -> Empty:
        """Makes the tensors, of undefined contents, into which a state for `to_device` is read."""
        return fresh if self._offload is None else self._offload.on_disk

    def place_data(self, data: Mapping[str, Tensor]) -> State:
        """The job's data where the steps read them: on this interpreter's device, except tables too large for it."""
        return place(self.program, data, self.arithmetic.device)

    def starts_at(self, step: int) -> int:
        """The step after which a computation begins that would begin after `step` on this machine alone."""
        return step

    def whole(self, state: State) -> State:
        """A state of this interpreter as others know it, to be committed."""
        return state if self._offload is None else self._offload.all_on_disk(state)

    def step(
        self, number: int, state: State, data: State, observe: Observer | None = None, *, check_finite: bool = True,
        donate: bool = False, sums: Sums | None = None,
    ) -> StepResult:  # fmt: skip
        """Runs step `number` (from 1) on the state before it.

        `state` must be on the device and `data` where `place_data` put them, and both must fit the program. With
        `check_finite`, a state that is no longer finite raises `NotFiniteError`; replays of a disputed step switch that
        off. With `donate`, the memory of `state` may be reused for the new state, even if the step fails: it must be
        writable, and no thread may read its tensors again. Without `donate`, no argument is written to. `sums` has the
        last word on logged sums; without it, the arithmetic's own results stand (policy `exact`).
        """
        if self._fused is not None and observe is None:
            if self._graphs is not None and donate and sums is None:
                new = self._graphs.step(self._launch, number, state, data)
            else:
                new = self._launch(state, data, self._steps_before(number), sums, donated=donate)
            finite, bits = self._fused.look(self._noting)
            if check_finite:
                self._check_finite(number, new, lambda value, _: finite.get(value, True))
            return StepResult(new, _unsigned(bits))
        given = self._given(state, data) if donate and self._chains else frozenset[int]()  # only chains use it
        run = Running(self, self._steps_before(number), state, data, observe, given, sums)
        with nullcontext() if self.arithmetic.buffers is None else torch_alone():
            return self._step(run, number, state, check_finite=check_finite, donated=donate)

    def _steps_before(self, number: int) -> Tensor:
        return torch.full((), number - 1, dtype=torch.int64, device=self.arithmetic.device)

    def _launch(
        self, state: Mapping[str, Tensor], data: Mapping[str, Tensor], before: Tensor, sums: Sums | None = None, *,
        donated: bool = True,
    ) -> State:  # fmt: skip
        """Launches a step where Triton kernels run; `FusedChains.look` tells its loss, and what is finite.

        before: the number of steps before it, i64 of rank 0, on the device.
        """
        assert self._fused is not None
        self._fused.begin()
        given = self._given(state, data) if donated else frozenset[int]()
        run = Running(self, before, state, data, None, given, sums)
        self._execute_planned(run)
        for value, seal in self._seals.items():
            run.seal(value, seal)
        self._fused.note(run.values[len(self.program.body) - 1])
        return self._committed_by(run)

    def _step(self, run: "Running", number: int, state: State, *, check_finite: bool, donated: bool) -> StepResult:
        observed = run.observed
        if observed:
            for unit in self._in_order:
                run.one_by_one(unit)
        elif self._offload is not None:
            self._offload.begin(run.values, state, run.sealed, donated=donated)
            for position in self._offload.positions():
                run.execute(self._planned[position], self._chains.get(position))
        else:
            self._execute_planned(run)
        new = self._committed_by(run)
        if check_finite:
            self._check_finite(number, new, run.is_finite)
        if self._offload is not None and not observed:
            self._offload.end(new)
        result = StepResult(new, loss_bits(run.values[len(self.program.body) - 1]))
        if self.arithmetic.buffers is not None:
            self.arithmetic.buffers.end_step()
        return result

    def _execute_planned(self, run: "Running") -> None:
        run.values = self._constants | {n: run.read(i) for n, i in self._read}
        for unit, chain in self._work:
            self._execute(run, unit, chain)

    def _execute(self, run: "Running", unit: Unit, chain: ElementwiseChain | FusedChain | None) -> None:
        run.execute(unit, chain)

    def _committed_by(self, run: "Running") -> State:
        """The state that a step has made."""
        return {
            _slot(commit).name: run.commit(value, self.program.leaf_of_commit(slot))
            for slot, (commit, value) in enumerate(zip(self.program.commits, self._committed, strict=True))
        }

    def _check_finite(self, number: int, new: State, is_finite: Callable[[int, Tensor], bool]) -> None:
        for name, value in zip(new, self._committed, strict=True):
            if not is_finite(value, new[name]):
                raise NotFiniteError(number, name)

    def check_job(self, job: Job) -> None:
        """Raises `ConfigurationError` unless precision and tolerances are those of the job."""
        precision, logging = self.arithmetic.options.precision, self.arithmetic.options.logging
        if precision != job.precision:
            raise ConfigurationError(
                f"expected an arithmetic of the job's precision {job.precision}, got one of precision {precision}"
            )
        if logging is not None and pack_tolerances(dict(logging.tolerances)) != job.tolerances:
            raise ConfigurationError(
                f"expected an arithmetic with the job's tolerances {job.tolerances:#08x}, got "
                f"{pack_tolerances(dict(logging.tolerances)):#08x}"
            )

    def _make_chains(self) -> dict[int, ElementwiseChain | FusedChain]:
        """The chains of the planned order, by position in it."""
        if self.arithmetic.chains is None:
            return {}
        committed, body = set(self._committed), self.program.body
        replaces = schedule.replacements(self.program, self._planned, self._chained)
        made = dict[int, ElementwiseChain | FusedChain]()
        for position, unit in enumerate(self._planned):
            if schedule.is_elementwise(body[unit.members[0]], self._chained):
                members = tuple(
                    Member(
                        number=n,
                        instruction=body[n],
                        operand_dtypes=self.program.operand_dtypes(body[n]),
                        operand_numels=tuple(body[operand.value].numel for operand in body[n].operands),
                        exported=n in unit.outputs,
                        sealed=n in committed,
                        replaces=replaces.get(n),
                    )
                    for n in unit.members
                )
                made[position] = self.arithmetic.chains.make(members)
        return made

    def _make_seals(self, fused: FusedChains) -> dict[int, FusedChain]:
        """Copies, in place where possible, that seal what is committed and comes from no chain, by value."""
        made = dict[int, FusedChain]()
        from_chains = {n for chain in self._chains.values() if isinstance(chain, FusedChain) for n in chain.code.sealed}
        for value in self._committed:
            i = self.program.body[value]
            if i.dtype != DType.F32 or value in from_chains or value in made:
                continue
            copy = Instruction(
                opcode=Opcode.MAP, function=MapFunction.COPY, dtype=i.dtype, shape=i.shape,
                operands=(Access(value, 0, row_major(i.shape)),),
            )  # fmt: skip
            made[value] = fused.make((Member(value, copy, (i.dtype,), (i.numel,), True, True, value),))
        return made

    def _make_offload(self, budget: Budget) -> Offload:
        if self.arithmetic.device.type != "cpu":
            raise ConfigurationError(f"expected a CPU where memory is limited, got {self.arithmetic.device}")
        buffers = self.arithmetic.buffers
        if buffers is not None:
            buffers.limit = budget.room
        in_place = {} if buffers is None else schedule.replacements(self.program, self._planned)
        empty = fresh if buffers is None else buffers.empty
        return Offload(self.program, self._planned, in_place, self._chains, budget, empty)

    def _given(self, state: Mapping[str, Tensor], data: Mapping[str, Tensor]) -> frozenset[int]:
        """The sources of state entries that share their memory with no other tensor."""
        owners = Counter(tensor.untyped_storage().data_ptr() for tensor in (*state.values(), *data.values()))
        return frozenset(
            n
            for n, i in enumerate(self.program.body)
            if i.opcode == Opcode.SOURCE
            and i.function == SourceKind.STATE
            and owners[state[_slot(i).name].untyped_storage().data_ptr()] == 1
        )


class Running:
    """One step while it runs: the values that are still needed, and what is known about them."""

    def __init__(
        self, interpreter: Interpreter, before: Tensor, state: Mapping[str, Tensor], data: Mapping[str, Tensor],
        observe: Observer | None, given: frozenset[int], sums: Sums | None,
    ) -> None:  # fmt: skip
        """before: the number of steps before this one, i64 of rank 0, on the device."""
        self._body, self._arithmetic = interpreter.program.body, interpreter.arithmetic
        self._before, self._state, self._data, self._observe = before, state, data, observe
        self._given, self._sums = given, sums
        self._offload = interpreter._offload if observe is None else None
        self._fused = interpreter._fused is not None and observe is None
        self._finite: dict[int, bool] = {}
        self.values: dict[int, Tensor] = {}

    @property
    def observed(self) -> bool:
        """Whether an observer sees each value: instructions are executed one by one then, in the program's order."""
        return self._observe is not None

    def execute(self, unit: Unit, chain: ElementwiseChain | FusedChain | None) -> None:
        """Executes a unit, in one pass if it is a chain."""
        if chain is None:
            self.one_by_one(unit)
        else:
            self.at_once(unit, chain)

    def one_by_one(self, unit: Unit) -> None:
        """Executes the members of a unit one after the other."""
        for n, dying in zip(unit.members, unit.dying, strict=True):
            value = self._value(n)
            self.values[n] = value if self._observe is None else self._observe(n, value)
            del value
            for dead in dying:
                del self.values[dead]

    def at_once(self, unit: Unit, chain: ElementwiseChain | FusedChain) -> None:
        """Executes a unit in one pass."""
        result = chain.run(self.values, self._given)
        self.values |= result.tensors
        self._finite |= result.finite
        for dying in unit.dying:
            for dead in dying:
                self.values.pop(dead, None)  # intermediate results were never made

    def seal(self, value: int, copy: FusedChain) -> None:
        """Seals what is committed; a source only where it may be overwritten."""
        own = self._body[value].opcode != Opcode.SOURCE
        self.values |= copy.run(self.values, {value} if own else self._given).tensors

    def operands(self, number: int) -> list[Tensor]:
        return [self.values[operand.value] for operand in self._body[number].operands]

    def put(self, unit: Unit, results: Sequence[Tensor]) -> None:
        """Takes the results of a unit that was executed elsewhere."""
        self.values |= zip(unit.members, results, strict=True)
        for dying in unit.dying:
            for dead in dying:
                del self.values[dead]

    def commit(self, value: int, leaf: int) -> Tensor:
        """The tensor that committing a body value puts into the state."""
        tensor = None if self._offload is None else self._offload.committed(value)
        if tensor is None:
            tensor = self.sealed(value)
        if _is_constant(self._body[value]):  # the state is its owner's to write to, and the constant is not
            tensor = tensor.clone()
        return tensor if self._observe is None else self._observe(leaf, tensor)

    def is_finite(self, value: int, tensor: Tensor) -> bool:
        if self._observe is None and value in self._finite:
            return self._finite[value]
        return tensor.dtype != torch.float32 or bool(torch.isfinite(tensor).all())

    def sealed(self, value: int) -> Tensor:
        """The value as it is committed: with NaN made canonical. Takes note of whether it is finite."""
        tensor, chains = self.values[value], self._arithmetic.chains
        if value in self._finite or self._fused:
            return tensor
        if isinstance(chains, Chains) and tensor.dtype == torch.float32 and all_finite(chains.kernel, tensor):
            self._finite[value] = True
            return tensor
        return canonical(tensor)

    def read(self, source: Instruction) -> Tensor:
        """The value of a source; it belongs to the state, the data or the program, and is not to be written to."""
        if source.function == SourceKind.STATE:
            return self._state[_slot(source).name]
        if source.function == SourceKind.DATA:
            return self._data[_slot(source).name]
        if source.function == SourceKind.STEP:
            return self._before
        return self._arithmetic.execute(source, (), 0)

    def _value(self, number: int) -> Tensor:
        instruction = self._body[number]
        if instruction.opcode == Opcode.SOURCE:
            return self.read(instruction)
        operands = self.operands(number)
        if self._sums is None or sum_kind(instruction) is None:
            return self._arithmetic.execute(instruction, operands, 0)
        result, near = self._arithmetic.execute_logged(instruction, operands, 0)
        self._sums.settle(number, instruction, operands, result, near)
        return result


def _is_constant(instruction: Instruction) -> bool:
    return instruction.opcode == Opcode.SOURCE and instruction.function == SourceKind.CONST


def _slot(instruction: Instruction) -> Slot:
    assert isinstance(instruction.params, Slot)  # the program was validated
    return instruction.params
