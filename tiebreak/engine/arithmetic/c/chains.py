"""Chains on CPUs: code for chains.c, a small register machine that works through tiles of contiguous elements.

Operands that a chain reads element by element are used in place, and scalars as one element; operands that are
broadcast, strided or reversed are first copied into the tile through their access map.
"""

import ctypes
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tiebreak.engine.arithmetic.c.threads import available, sharing, together
from tiebreak.engine.arithmetic.plain.maps import Transcendentals
from tiebreak.engine.arithmetic.plan.chains import CHAINED, Apply, ChainCode, Draw, Iota, Load, Member, NewTensor
from tiebreak.engine.arithmetic.plan.options import Stats
from tiebreak.engine.arithmetic.plan.views import Dim
from tiebreak.engine.native import Build, load
from tiebreak.protocol.program.isa import DType, MapFunction

TILES_PER_TURN: Final = 32
"""The number of tiles that a thread takes at a time."""
OPERATION: Final = 4
"""The number of multiplications of a product that take as long as one operation of a chain."""
_MAX_REGISTERS: Final = 512
_STAGGER: Final = 320
"""Bytes between scratch registers, so that equal positions in two registers differ in their low address bits."""
RESOLVED: Final = (MapFunction.EXP, MapFunction.TANH)
"""Functions that need exact results where FP64 cannot decide; the position is the kernel's number for them."""
_MADE: Final = {Iota: DType.I64, Draw: DType.F32}
"""The dtypes of operations that have one."""
_Resolver = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint32)


def build() -> Build:
    """The compiled kernel, or the reason why there is none."""
    words, pointer = ctypes.c_int64, ctypes.c_void_p
    return load(
        __file__,
        chain_codes=(ctypes.c_char_p,),
        chain_tile=(words,),
        chain_run=(words, pointer, pointer, words, words, _Resolver, pointer),
        chain_finite=(words, pointer, words, words),
    )


@dataclass(frozen=True)
class ElementwiseKernel:
    """The loaded library, its operations by name, and the number of elements in a tile."""

    library: ctypes.CDLL
    codes: Mapping[str, int]
    tile: int

    def all_finite(self, tensor: Tensor) -> bool:
        """Whether a contiguous f32 CPU tensor holds neither infinities nor NaN. One pass without a temporary."""
        address, finite = tensor.data_ptr(), self.library.chain_finite
        turns, threads = _turns(tensor.numel(), self)
        return all(together(lambda: all(finite(address, *turn) for turn in turns), threads))


def kernel() -> ElementwiseKernel | None:
    """The kernel, or None if this machine has none or it is switched off."""
    library = build().library
    return None if library is None else _kernel(library)


@cache
def _kernel(library: ctypes.CDLL) -> ElementwiseKernel:
    names = library.chain_codes().decode().split()
    return ElementwiseKernel(library, {name: code for code, name in enumerate(names)}, library.chain_tile())


def _turns(size: int, found: ElementwiseKernel) -> tuple[Iterable[tuple[int, int]], int]:
    """Parts of 0 ... size - 1, which threads take from one iterator, and the number of threads that find work."""
    step = found.tile * TILES_PER_TURN
    ends = (*range(step, size, step), size)
    return zip(range(0, size, step), ends, strict=True), min(available(), len(ends))  # its `next` is atomic


class CompiledChains:
    """Makes and runs the chains of one `Arithmetic`. They note in `finite` whether finalized values are."""

    functions = CHAINED
    repeats = False
    prologues = False

    def __init__(
        self, found: ElementwiseKernel, exact: Transcendentals, stats: Stats, empty: NewTensor, finite: dict[int, bool]
    ) -> None:
        self.kernel, self.stats, self.empty, self.finite = found, stats, empty, finite
        self.precision = exact.precision
        self.resolver = _Resolver(lambda function, bits: exact.exact_bits(RESOLVED[function], bits))

    def make(self, members: Sequence[Member]) -> "CompiledChain":
        return CompiledChain(self, members)


class CompiledChain:
    """One chain, planned once and run in every step."""

    def __init__(self, chains: CompiledChains, members: Sequence[Member]) -> None:
        self._chains, self.code = chains, ChainCode(members)
        coded = _Encoder(self.code, chains.precision)
        self.words = coded.encode(chains.kernel)
        self._address = self.words.ctypes.data
        self.work = OPERATION * self.code.numel * len(coded.operations)
        self._pointers = ctypes.c_void_p * (len(self.code.inputs) + len(self.code.stores))
        self.counters = coded.counters
        self.finalized, self.resolved = tuple(coded.finalized.items()), tuple(coded.resolved)

    def run(self, values: Mapping[int, Tensor], given: Collection[int] = ()) -> dict[int, Tensor]:
        read = self.code.operands(values, "cpu")
        made = self.code.results(values, given, self._chains.empty)
        counters = self._execute(self._pointers(*(x.data_ptr() for x in (*read, *made.values()))))
        for function, at in self.resolved:
            counts = self._chains.stats.of(f"map.{function.name.lower()}")
            counts.elements += self.code.numel
            counts.undecided += sum(own[at] for own in counters)
            counts.double_rounded += sum(own[at + 1] for own in counters)
        for index, at in self.finalized:
            self._chains.finite[index] = not any(own[at] for own in counters)
        return made

    def _execute(self, pointers: "ctypes.Array[ctypes.c_void_p]") -> "list[ctypes.Array[ctypes.c_int64]]":
        """Runs all tiles; returns the counters of each thread."""
        found, code, resolver = self._chains.kernel, self._address, self._chains.resolver
        numel = self.code.numel
        turns, threads = _turns(numel, found) if sharing(self.work) > 1 else ([(0, numel)], 1)

        def work() -> "ctypes.Array[ctypes.c_int64]":
            own = (ctypes.c_int64 * self.counters)()
            for begin, end in turns:
                if found.library.chain_run(code, pointers, begin, end, resolver, own):
                    raise MemoryError("no memory for the registers of a chain")
            return own

        return together(work, threads)


class _Register(NamedTuple):
    """The place of a register while a chain runs."""

    pointer: int
    """The number of the tensor, inputs before outputs; -1 for scratch."""
    offset: int
    """The offset from the tensor's first element, in bytes."""
    step: int
    """The number of bytes from one element to the next; 0 if one element stands for all."""


class _Operation(NamedTuple):
    name: str
    result: int
    operands: tuple[int, ...]
    parameters: tuple[int, ...]


class _Encoder:
    """A chain's code as chains.c expects it: operations on registers that have places in memory."""

    def __init__(self, code: ChainCode, precision: int) -> None:
        self.registers: list[_Register] = []
        self.operations: list[_Operation] = []
        self.counters = 0
        self.finalized: dict[int, int] = {}
        self.resolved: list[tuple[MapFunction, int]] = []
        self._numel, self._precision = code.numel, precision
        self._pointers = {v: k for k, v in enumerate((*code.inputs, *(s.member.index for s in code.stores)))}
        self._made: list[int] = []
        """The register of chains.c for each of the code's."""
        early = {store.register: store.member for store in code.stores if store.member.replaces is None}
        for number, operation in enumerate(code.operations):
            if isinstance(operation, Load):
                self._made.append(self._load(operation))
                continue
            member = early.get(number)
            dtype = operation.dtype if isinstance(operation, Apply) else _MADE[type(operation)]
            result = self._register(-1, 0, dtype.size) if member is None else self._stored(member)
            self._compute(operation, result)
            self._made.append(result)
            if member is not None:
                self._finalize(member, result)
        # A result that may overwrite an operand is stored after the tile has read all of that operand.
        for register, member in code.stores:
            if member.replaces is not None:
                result = self._stored(member)
                self._emit(f"COPY{member.instruction.dtype.size}", result, (self._made[register],))
                self._finalize(member, result)

    def encode(self, found: ElementwiseKernel) -> npt.NDArray[np.int64]:
        """The words that `chain_run` reads."""
        if len(self.registers) > _MAX_REGISTERS:
            raise ValueError(f"expected at most {_MAX_REGISTERS} registers of a chain, got {len(self.registers)}")
        slots = self._slots()
        slot_bytes = found.tile * DType.I64.size + _STAGGER
        words = [len(self.registers), len(self.operations), (max(slots.values(), default=-1) + 1) * slot_bytes]
        for number, register in enumerate(self.registers):
            offset = slots[number] * slot_bytes if register.pointer < 0 else register.offset
            words += [register.pointer, offset, register.step]
        parameters: list[int] = []
        start = len(words) + 6 * len(self.operations)
        for name, result, operands, own in self.operations:
            a, b, c = (*operands, *(0,) * (3 - len(operands)))
            words += [found.codes[name], result, a, b, c, start + len(parameters)]
            parameters += own
        return np.array([*words, *parameters, 0], dtype=np.int64)

    def _slots(self) -> dict[int, int]:
        """Assigns a slot to each scratch register, free again once nothing reads it.

        Operands and result never share one.
        """
        last = {r: k for k, op in enumerate(self.operations) for r in (op.result, *op.operands)}
        slots: dict[int, int] = {}
        free: list[int] = []
        made = 0
        for k, op in enumerate(self.operations):
            if self.registers[op.result].pointer < 0 and op.result not in slots:
                if not free:
                    free.append(made)
                    made += 1
                slots[op.result] = free.pop()
            free += [slots[r] for r in {op.result, *op.operands} if r in slots and last[r] == k]
        return slots

    def _register(self, pointer: int, offset: int, step: int) -> int:
        self.registers.append(_Register(pointer, offset, step))
        return len(self.registers) - 1

    def _stored(self, member: Member) -> int:
        """A register in the memory of a result."""
        return self._register(self._pointers[member.index], 0, member.instruction.dtype.size)

    def _count(self, number: int) -> int:
        """Adds counters and returns their place."""
        self.counters += number
        return self.counters - number

    def _emit(self, name: str, result: int, operands: tuple[int, ...], parameters: tuple[int, ...] = ()) -> None:
        self.operations.append(_Operation(name, result, operands, parameters))

    def _finalize(self, member: Member, result: int) -> None:
        if member.notes_finite:
            self.finalized[member.index] = self._count(1)
            self._emit("FINALIZE", result, (), (self.finalized[member.index],))

    def _load(self, operand: Load) -> int:
        """The register of an operand, which is copied into the tile if its elements are not contiguous."""
        size = operand.dtype.size
        step = size if operand.is_plain else 0
        register = self._register(self._pointers[operand.value], operand.offset * size, step)
        if operand.is_plain or operand.is_scalar:
            return register
        copied = self._register(-1, 0, size)
        self._emit(f"LOAD{size}", copied, (register,), _box(operand.dims))
        return copied

    def _compute(self, operation: Iota | Draw | Apply, result: int) -> None:
        match operation:
            case Iota(offset, dims):
                self._emit("IOTA", result, (), (offset, *_box(dims)))
            case Draw(seed, step, stream, first):
                self._emit("RANDOM", result, (self._made[seed], self._made[step]), (stream, first))
            case Apply():
                self._apply(operation, result)

    def _apply(self, operation: Apply, result: int) -> None:
        function, operands = operation.function, [self._made[r] for r in operation.operands]
        scalar = [self._numel > 1 and self.registers[r].step == 0 for r in operands]
        # The kernel has no loops for a scalar as the only operand, two scalars of two, or a scalar condition of
        # `where`.
        if scalar[0] and (all(scalar[:2]) or function == MapFunction.WHERE):
            size, spread = operation.source.size, operands[0]
            operands[0] = self._register(-1, 0, size)
            self._emit(f"LOAD{size}", operands[0], (spread,), (1, self._numel, 0))
        parameters: tuple[int, ...] = ()
        if function in RESOLVED:
            at = self._count(2)
            self.resolved.append((function, at))
            parameters = (at, self._precision)
        self._emit(_name(function, operation.source, operation.dtype), result, tuple(operands), parameters)


def _box(dims: Sequence[Dim]) -> tuple[int, ...]:
    """Rank, sizes and strides. A single element is a box of rank 1."""
    if not dims:
        return 1, 1, 0
    return len(dims), *(dim.size for dim in dims), *(dim.strides[0] for dim in dims)


def _name(function: MapFunction, operand: DType, result: DType) -> str:
    """The kernel's name for a function on a dtype."""
    match function:
        case MapFunction.EXP | MapFunction.TANH:
            return function.name
        case MapFunction.COPY | MapFunction.WHERE:
            return f"{function.name}{result.size}"
        case MapFunction.CAST:
            return f"CAST_{operand.name}_{result.name}"
    return f"{function.name}_{operand.name}"
