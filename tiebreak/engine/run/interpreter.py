"""Runs a program, step by step, on one device. A value is freed after its last use.

A program that halves its weights and adds them up, as the loss, for two steps:

>>> from tiebreak.protocol.program.isa import Access, MapFunction, ReduceFunction, Slot, SourceConst
>>> weights, half, halved = Access(0, 0, (1,)), Access(1, 0, (0,)), Access(2, 0, (1,))
>>> w, kind = Slot(slot=0, name="w"), DType.F32
>>> body = (
...     Instruction(opcode=Opcode.SOURCE, function=SourceKind.STATE, dtype=kind, shape=(2,), params=w),
...     Instruction(opcode=Opcode.SOURCE, function=SourceKind.CONST, dtype=kind, params=SourceConst(bits=0x3F000000)),
...     Instruction(opcode=Opcode.MAP, function=MapFunction.MUL, dtype=kind, shape=(2,), operands=(weights, half)),
...     Instruction(opcode=Opcode.REDUCE, function=ReduceFunction.SUM, dtype=kind, reduction=(2,), operands=(halved,)),
... )
>>> commit = Instruction(opcode=Opcode.COMMIT, dtype=kind, shape=(2,), operands=(halved,), params=w)
>>> interpreter = Interpreter(Program(body=body, commits=(commit,)), Arithmetic(device=torch.device("cpu")))
>>> state, data = interpreter.to_device({"w": torch.tensor([4.0, 6.0])}), interpreter.place_data({})
>>> for number in (1, 2):
...     result = interpreter.step(number, state, data, donate=True)
...     state = result.state
...     print(number, result.loss, interpreter.whole(state)["w"].tolist())
1 5.0 [2.0, 3.0]
2 2.5 [1.0, 1.5]

The order of calls: (1) `to_device` and `place_data` come before the first step, and only their tensors go into one;
(2) steps are numbered from 1, each on the state of the one before, and a state that was donated is never read again;
(3) `whole` makes of a state what is committed, and all workers of a run call it at the same steps; (4) with several
workers, whoever begins in the middle of a run asks `starts_at` first. A step that raises commits nothing: after it,
begin again at a state that was kept.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any, ClassVar, Final, Protocol

import torch
from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.backend import free_memory, is_host
from tiebreak.engine.arithmetic.plan.chains import CHAINED, Member, PreparedChain, PreparedSeries, Unit, Work
from tiebreak.engine.arithmetic.plan.ziv import NearTies
from tiebreak.engine.data.tensors import PIECE, canonical, widened
from tiebreak.engine.native import traces
from tiebreak.engine.run import schedule
from tiebreak.engine.run.cost import planned_peak, require_memory
from tiebreak.engine.run.graphs import INTERVAL, Graphs, owned
from tiebreak.engine.run.rematerialization import rematerialized
from tiebreak.engine.run.schedule import slot_name
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import ConfigurationError, StateError
from tiebreak.protocol.numbers.float32 import INF, NAN_BITS
from tiebreak.protocol.program.isa import DType, Instruction, Opcode, SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import pack_tolerances, sum_kind

State = dict[str, Tensor]
"""Tensors by name, on the interpreter's device, contiguous."""

REUSED: Final = 1 << 22
"""The least bytes of a result that takes another's place where memory is not slow: its tiles are copied once more."""

NARROW: Final = (Opcode.GATHER, Opcode.REDUCE)
"""The instructions that take operands held in bfloat16; all others take copies."""

Observer = Callable[[int, Tensor], Tensor]
"""Called with each leaf of the value tree (a body value or a commit) and its tensor; its result is used instead."""


class Sums(Protocol):
    """Settles logged sums (SPEC section 5.1): a trainer records how they were rounded, an auditor follows a log."""

    @property
    def late(self) -> Mapping[str, Tensor]:
        """The step's late data by name, on the interpreter's device."""

    @property
    def settles(self) -> bool:
        """Whether there is anything to settle: not in a job without tolerances, whose logs have late data alone."""

    def settle(
        self, index: int, instruction: Instruction, operands: Sequence[Tensor], result: Tensor, near: NearTies
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

    Without an observer, instructions are executed in the order of `tiebreak.engine.run.schedule`, and where the
    back-end has chains, their intermediate results are never materialised. With an observer, they are executed one by
    one in the program's own order. The host reads from the device once, after everything else, what it has to know of a
    step.
    """

    joins: ClassVar = True
    """Whether units may be executed several at a time, and not each by `Planned.execute`."""

    def __init__(
        self, program: Program, arithmetic: Arithmetic, planned: tuple[Unit, ...] | None = None, *,
        graphs: bool = False, compares: Callable[[int], bool] = lambda number: number % INTERVAL == 0,
    ) -> None:  # fmt: skip
        """planned: the order of execution, if it is to be that of a program that differs only in sizes.

        graphs: whether donated states go through a CUDA graph (`tiebreak.engine.run.graphs`). The state of a result is
        overwritten by the next step then. compares: which steps, by number, are also computed without the graph.
        """
        self.program = program
        self.arithmetic = arithmetic
        self.committed = [commit.operands[0].value for commit in program.commits]
        self._chained = CHAINED if arithmetic.chains is None else arithmetic.chains.functions
        self.in_order = schedule.in_order(program)
        self._reused = frozenset[int]()
        """The results whose memory chains take for their own."""
        chains, reuses = arithmetic.chains, -1
        if planned is None:
            again, prologues = (False, False) if chains is None else (chains.repeats, chains.prologues)
            planned = schedule.plan(program, self._chained, again=again, prologues=prologues)
            reuses = 0 if again else -1
            if not again and arithmetic.options.logging is None:  # a logged sum is settled once
                planned, reuses = rematerialized(program, planned), REUSED
        self.planned = planned
        self.chains = self._make_chains(reuses)
        """The chains of the planned order, by position in it."""
        self._frozen, self._examined = program.frozen, dict[str, tuple[Tensor, bool]]()
        sourced = program.sources(SourceKind.STATE)
        self.unchanged = frozenset(n for n in sourced if slot_name(program.body[n]) in self._frozen)
        """The sources of the entries that no step changes."""
        done = self.unchanged.union(*(chain.code.finalized for chain in self.chains.values()))
        self.finalizers = {
            index: arithmetic.backend.finalize(index, program.body[index])
            for index in dict.fromkeys(self.committed)
            if program.body[index].dtype == DType.F32 and index not in done
        }
        """Finalizers of committed f32 values that come from no chain, by value."""
        self._ran = (*self.chains.values(), *self.finalizers.values())
        sources = [(n, i) for n, i in enumerate(program.body) if i.opcode == Opcode.SOURCE]
        self.constants = {n: arithmetic.execute(i, (), 0) for n, i in sources if _is_constant(i)}
        self.read = tuple((n, i) for n, i in sources if n not in self.constants)
        """The sources that are not constants, read anew in each step."""
        self._entries = program.sources(SourceKind.STATE)
        self._traces = traces()
        late = bool(program.late_slots)  # they are elsewhere in each step
        self.graphs = Graphs(arithmetic, compares, self._frozen) if graphs and not self._traces and not late else None
        self._compiles = True
        """Whether kernels are still to be compiled before the next step that is launched without the host."""

    @cached_property
    def _peak(self) -> tuple[int, int]:
        return planned_peak(self.program, self.planned)

    @cached_property
    def work(self) -> Sequence[tuple[Sequence[Work], PreparedSeries | None]]:
        """All units but sources, with what executes several of them together."""
        body, chains = self.program.body, self.chains
        units = [(unit, chains.get(position)) for position, unit in enumerate(self.planned)]
        units = [(unit, chain) for unit, chain in units if body[unit.members[0]].opcode != Opcode.SOURCE]
        joins = self.joins and not self._traces
        return self.arithmetic.backend.join(units, body) if joins else [(units, None)]

    def to_device(self, tensors: Mapping[str, Tensor]) -> State:
        """The tensors on this interpreter's device, contiguous. Entries that no step changes may be in bfloat16.

        Raises `ConfigurationError` if the memory of this machine is too little for them and a step on a CPU.
        """
        if is_host(self.arithmetic.device):
            require_memory(self.program, peak=self._peak, held=sum(tensor.nbytes for tensor in tensors.values()))
        return {name: tensor.to(self.arithmetic.device).contiguous() for name, tensor in tensors.items()}

    def place_data(self, data: Mapping[str, Tensor]) -> State:
        """The job's data where the steps read them: on this interpreter's device, except tables too large for it."""
        return place(self.program, data, self.arithmetic.device)

    def starts_at(self, step: int) -> int:
        """The step after which a computation begins that would begin after `step` on this machine alone."""
        return step

    def whole(self, state: State) -> State:
        """A state of this interpreter as others know it, to be committed."""
        return state

    def step(
        self, number: int, state: State, data: State, observe: Observer | None = None, *, check_finite: bool = True,
        donate: bool = False, sums: Sums | None = None,
    ) -> StepResult:  # fmt: skip
        """Runs step `number` (from 1) on the state before it.

        `state` must be on the device and `data` where `place_data` put them, with the step's late data, and both must
        fit the program. With `check_finite`, a state that is no longer finite raises `NotFiniteError`; replays of a
        disputed step switch that off. With `donate`, the memory of `state` may be reused for the new state, even if the
        step fails: it must be writable, and no thread may read its tensors again. Without `donate`, no argument is
        written to. `sums` has the last word on logged sums; without it, the arithmetic's own results stand (policy
        `exact`).
        """
        backend, body = self.arithmetic.backend, self.program.body
        torch.set_flush_denormal(False)  # in this thread; somebody may have switched it on after qualification
        with backend.step():
            if self._compiles and sums is None and not self._traces:
                self._compiles = False
                backend.compile_ahead(lambda: self._launch(state, data, self._steps_before(number), donated=False))
            if observe is not None:
                before = self._steps_before(number)
                one_by_one = OneByOne(machine=self, before=before, state=state, data=data, sums=sums, observe=observe)
                if self._traces:
                    _trace(number, one_by_one, self.program, self.arithmetic)
                new, finite = one_by_one.run(), one_by_one.finite
                bits = loss_bits(one_by_one.values[len(body) - 1])
            else:
                if self.graphs is not None and donate and sums is None:
                    new = self.graphs.step(self._launch, number, state, data)
                else:
                    new = self._launch(state, data, self._steps_before(number), sums, donated=donate)
                finite, bits = backend.look(self._ran)
            for name, index in zip(new, self.committed, strict=True):
                is_finite = finite.get(index, True)
                if name in self._frozen:  # no step changes it, so each tensor is examined once
                    known, is_finite = self._examined.get(name, (None, True))
                    if known is not new[name] and new[name].dtype in (torch.float32, torch.bfloat16):
                        parts = torch.split(new[name].flatten(), PIECE)
                        is_finite = all(backend.is_finite(widened(part)) for part in parts)
                        self._examined[name] = new[name], is_finite
                if check_finite and not is_finite:
                    raise NotFiniteError(number, name)
                if name in self._frozen and not is_finite:
                    new[name] = canonical(new[name])
        return StepResult(new, _unsigned(bits))

    def _steps_before(self, number: int) -> Tensor:
        return torch.full((), number - 1, dtype=torch.int64, device=self.arithmetic.device)

    def _launch(
        self, state: State, data: State, before: Tensor, sums: Sums | None = None, *, donated: bool = True
    ) -> State:
        """Computes a step; the back-end's `look` tells its loss, and what is finite.

        before: the number of steps before it, i64 of rank 0, on the device.
        """
        backend = self.arithmetic.backend
        backend.begin_step()
        executor = self._executor(before, state, data, sums, donated=donated)
        if self._traces:
            _trace(int(before) + 1, executor, self.program, self.arithmetic)
        new = executor.run()
        backend.end_step(executor.values[len(self.program.body) - 1])
        return new

    def _executor(self, before: Tensor, state: State, data: State, sums: Sums | None, *, donated: bool) -> "Planned":
        """Executes a step without an observer."""
        given = self._reused
        if donated and self.arithmetic.chains is not None:
            # Sources of state entries that share their memory with no other tensor.
            own = owned(state, data)
            given |= {n for n in self._entries if slot_name(self.program.body[n]) in own}
        return Planned(machine=self, before=before, state=state, data=data, sums=sums, given=given)

    def check_job(self, job: Job) -> None:
        """Raises `ConfigurationError` unless precision and tolerances are those of the job, and late data have logs."""
        precision, logging = self.arithmetic.options.precision, self.arithmetic.options.logging
        if self.program.late_slots and not job.is_logged:
            raise ConfigurationError("expected a job of policy logged for a program with late data, got policy exact")
        if precision != job.precision:
            raise ConfigurationError(
                f"expected an arithmetic of the job's precision {job.precision}, got one of precision {precision}"
            )
        if logging is not None and pack_tolerances(dict(logging.tolerances)) != job.sum_tolerances:
            raise ConfigurationError(
                f"expected an arithmetic with the job's tolerances {job.sum_tolerances:#08x}, got "
                f"{pack_tolerances(dict(logging.tolerances)):#08x}"
            )

    def _make_chains(self, reuses: int) -> dict[int, PreparedChain]:
        """reuses: the least bytes of results that take the place of other results; -1: none do."""
        if self.arithmetic.chains is None:
            return {}
        committed, body = set(self.committed), self.program.body
        values = reuses >= 0
        replaces = schedule.replacements(self.program, self.planned, self._chained, values=values, least=reuses)
        self._reused = frozenset(replaces.values()).difference(self.program.sources(SourceKind.STATE))
        made = dict[int, PreparedChain]()
        for position, unit in enumerate(self.planned):
            if schedule.is_elementwise(body[unit.members[0]], self._chained):
                members = tuple(
                    Member(
                        index=index,
                        instruction=body[index],
                        operand_dtypes=self.program.operand_dtypes(body[index]),
                        operand_numels=tuple(body[operand.value].numel for operand in body[index].operands),
                        exported=index in unit.outputs,
                        committed=index in committed,
                        replaces=replaces.get(index),
                    )
                    for index in unit.members
                )
                made[position] = self.arithmetic.chains.make(members)
        return made


@dataclass(kw_only=True, eq=False)
class Planned:
    """One step in the planned order: the values that are still needed while it runs."""

    machine: Interpreter
    before: Tensor
    """The number of steps before this one, i64 of rank 0, on the device."""
    state: State
    data: State
    sums: Sums | None
    given: frozenset[int] = frozenset()
    """The values whose memory may be overwritten."""
    values: dict[int, Tensor] = field(default_factory=dict)
    narrow: set[int] = field(default_factory=set)
    """The values that are held in bfloat16."""
    _finalized: set[int] = field(default_factory=set)

    @cached_property
    def body(self) -> Sequence[Instruction]:
        return self.machine.program.body

    def run(self) -> State:
        """Computes everything; returns the new state."""
        self.values = self.machine.constants | {n: self._read(i) for n, i in self.machine.read}
        self.narrow = {n for n in self.machine.unchanged if self.values[n].dtype == torch.bfloat16}
        for units, series in self.machine.work:
            if series is None or self.sums is not None or self.narrow & series.reads:
                for unit, chain in units:
                    self.execute(unit, chain)
                continue
            self.values |= series.run(self.values, self.given)
            for dead in series.dying:
                del self.values[dead]
        return self.new_state()

    def execute(self, unit: Unit, chain: PreparedChain | None) -> None:
        """Executes a unit, in one pass if it is a chain."""
        backend = self.machine.arithmetic.backend
        self.values |= {n: backend.wide(self.values[n]) for n in unit.widened}
        if chain is None:
            for index, dying in zip(unit.members, unit.dying, strict=True):
                self.values[index] = self.value(index)
                for dead in dying:
                    del self.values[dead]
        else:
            values: Mapping[int, Tensor] = self.values
            if self.narrow and (read := {a.value for n in unit.members for a in self.body[n].operands} & self.narrow):
                values = {**values, **{n: backend.wide(values[n]) for n in read}}
            self.put(unit, chain.run(values, self.given))
        for n in unit.narrowed:
            self.values[n] = backend.empty(self.values[n].shape, torch.bfloat16).copy_(self.values[n])

    def put(self, unit: Unit, results: Mapping[int, Tensor]) -> None:
        """Takes the results of a unit that was executed as a whole."""
        self.values |= results
        for dying in unit.dying:
            for dead in dying:
                self.values.pop(dead, None)  # intermediate results of a chain were never made

    def operands(self, index: int) -> list[Tensor]:
        found = [self.values[operand.value] for operand in self.body[index].operands]
        backend = self.machine.arithmetic.backend
        return found if self.body[index].opcode in NARROW else [backend.wide(tensor) for tensor in found]

    def value(self, index: int) -> Tensor:
        """The value of instruction `index`, from operands that are already computed."""
        instruction = self.body[index]
        if instruction.opcode == Opcode.SOURCE:
            return self._read(instruction)
        operands, arithmetic = self.operands(index), self.machine.arithmetic
        if self.sums is None or sum_kind(instruction) is None:
            return widened(arithmetic.execute(instruction, operands, 0))
        result, near = arithmetic.execute_logged(instruction, operands, 0)
        self.sums.settle(index, instruction, operands, result, near)
        return result

    def new_state(self) -> State:
        """The state that the step has made, finalized."""
        program, committed = self.machine.program, self.machine.committed
        return {
            slot_name(commit): self.commit(index, program.leaf_of_commit(slot))
            for slot, (commit, index) in enumerate(zip(program.commits, committed, strict=True))
        }

    def commit(self, index: int, leaf: int) -> Tensor:  # noqa: ARG002
        """The tensor that committing a body value puts into the state."""
        tensor = self.finalized(index)
        if _is_constant(self.body[index]):  # the state is its owner's to write to, and the constant is not
            tensor = tensor.clone()
        return tensor

    def finalized(self, index: int) -> Tensor:
        """The value as it is committed; a source only where it may be overwritten."""
        finalize = self.machine.finalizers.get(index)
        if finalize is not None and index not in self._finalized:
            own = self.body[index].opcode != Opcode.SOURCE
            self.values |= finalize.run(self.values, {index} if own else self.given)
            self._finalized.add(index)
        return self.values[index]

    def _read(self, source: Instruction) -> Tensor:
        """The value of a source; it belongs to the state, the data or the program, and is not to be written to."""
        if source.function == SourceKind.STATE:
            return self.state[slot_name(source)]
        if source.function in (SourceKind.DATA, SourceKind.LATE):
            if (name := slot_name(source)) not in self.data:
                raise ConfigurationError(
                    f"expected late data {name}, which `tiebreak.train` takes of a supply, got none"
                )
            return self.data[name]
        if source.function == SourceKind.STEP:
            return self.before
        return self.machine.arithmetic.execute(source, (), 0)


@dataclass(kw_only=True, eq=False)
class OneByOne(Planned):
    """One step in the program's order, each of whose values an observer sees and may replace."""

    observe: Observer
    finite: dict[int, bool] = field(default_factory=dict)
    """Whether each f32 value that the step committed anew is finite in all its elements."""

    def run(self) -> State:
        for unit in self.machine.in_order:
            self.execute(unit, None)
        return self.new_state()

    def value(self, index: int) -> Tensor:
        return self._observed(index, super().value(index))

    def _observed(self, leaf: int, value: Tensor) -> Tensor:
        """A value after the observer has seen it as f32; one that it did not replace stays as narrow as it was."""
        wide = widened(value)
        seen = self.observe(leaf, wide)
        return value if seen is wide else seen

    def commit(self, index: int, leaf: int) -> Tensor:
        tensor = self._observed(leaf, super().commit(index, leaf))
        if tensor.dtype == torch.float32 and index not in self.machine.unchanged:
            is_finite = self.machine.arithmetic.backend.is_finite(tensor)
            self.finite[index] = is_finite and self.finite.get(index, True)
        return tensor

    def finalized(self, index: int) -> Tensor:
        return canonical(self.values[index])


def _is_constant(instruction: Instruction) -> bool:
    return instruction.opcode == Opcode.SOURCE and instruction.function == SourceKind.CONST


def _trace(step: int, executor: Any, program: Program, arithmetic: Arithmetic) -> None:
    """Makes an executor of a step (`Planned`) write a line to stderr for each unit that it has executed.

    With TIEBREAK_TRACE=1, for whoever looks for the place where two runs part: the step, the unit's instructions by
    index and by name, the shape of the last result, the back-end, the time in ms until it returned (a GPU may still be
    at work), and the place in the model.
    """
    execute = executor.execute

    def shown(unit: Unit, chain: Any) -> None:
        started = perf_counter()
        execute(unit, chain)
        took = 1e3 * (perf_counter() - started)
        members = [program.body[n] for n in unit.members]
        last, backend = members[-1], arithmetic.backend
        by = "given" if last.opcode == Opcode.SOURCE else "torch" if id(last) in backend.left else backend.name
        indices = str(unit.members[0]) if len(members) == 1 else f"{unit.members[0]} to {unit.members[-1]}"
        names = [f"{i.opcode.name}.{getattr(i.function, 'name', '')}".rstrip(".").lower() for i in members]
        what = f"{last.dtype.name} {' x '.join(map(str, last.shape)) or 'scalar'}, {by}, {last.origin or '-'}"
        sys.stderr.write(f"step {step}, {indices}: {' '.join(names)}, {what}, {took:.3f} ms\n")

    executor.execute = shown


SHARE: Final = 2
"""Tables may take 1/SHARE of the device's free memory; the rest is for the steps."""


def tables(program: Program) -> frozenset[str]:
    """The names of data that only gathers read, and only as their table."""
    otherwise = {commit.operands[0].value for commit in program.commits}
    for instruction in program.body:
        first = 1 if instruction.opcode == Opcode.GATHER else 0
        otherwise |= {operand.value for operand in instruction.operands[first:]}
    return frozenset(slot_name(program.body[n]) for n in program.sources(SourceKind.DATA) if n not in otherwise)


def place(
    program: Program, data: Mapping[str, Tensor], device: torch.device, room: int | None = None
) -> dict[str, Tensor]:
    """The data, contiguous, on the device, except tables (from the smallest up) that exceed `room` bytes in total.

    Those stay on the CPU, mapped from their files: only gathers read them, so the indices are sent there and the
    gathered rows come back. The placement affects no result. room: by default half of the free memory on a CUDA device,
    and unlimited elsewhere.
    """
    if room is None and (free := free_memory(device)) is not None:
        room = free // SHARE
    left = {name for name in data if name in tables(program)} if room is not None else set()
    for name in sorted(left, key=lambda name: (data[name].nbytes, name)):
        assert room is not None
        if data[name].nbytes > room:
            break
        room -= data[name].nbytes
        left.discard(name)
    return {name: (tensor.cpu() if name in left else tensor.to(device)).contiguous() for name, tensor in data.items()}
