"""Chains of elementwise instructions in one compiled pass (elementwise.c), without memory for intermediate results.

A chain is prepared once: its instructions become code for a small register machine that works through tiles of
contiguous elements. Operands that a chain reads element by element are used in place, and scalars as one element;
operands that are broadcast, strided or reversed are first copied into the tile through their access map.

The pure twin is `Arithmetic.execute`, instruction by instruction. It runs if there is no C compiler, on devices other
than CPUs, and when each value is observed.
"""

import ctypes
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.buffers import Buffers
from tiebreak.engine.arithmetic.stats import Stats
from tiebreak.engine.arithmetic.threads import together
from tiebreak.engine.arithmetic.views import Dim, coalesce
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.engine.native import Build, load
from tiebreak.protocol.program.isa import Access, DType, Instruction, IotaParams, MapFunction, Opcode, RandomParams

TILES_PER_TURN: Final = 32
"""The number of tiles that a thread takes at a time."""
_MAX_REGISTERS: Final = 512
_REGISTER_WORDS: Final = 3
_OPERATION_WORDS: Final = 6
_STAGGER: Final = 320
"""Bytes between scratch registers, so that equal positions in two registers differ in their low address bits."""
_RESOLVED: Final = (MapFunction.EXP, MapFunction.TANH)
"""Functions that need exact results where FP64 cannot decide; the position is the kernel's number for them."""
_Resolver = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint32)


class Exact(Protocol):
    """Decides results that FP64 cannot."""

    @property
    def precision(self) -> int:
        """The number of bits of a result."""

    def exact_bits(self, function: MapFunction, bits: int) -> int:
        """The bits of the rounded exact result for the bits of an argument."""


@dataclass(frozen=True)
class Kernel:
    """The loaded library, its operations by name, and the number of elements in a tile."""

    library: ctypes.CDLL
    codes: Mapping[str, int]
    tile: int


def build() -> Build:
    """The compiled library, or the reason why there is none."""
    return load(Path(__file__).with_name("elementwise.c"))


def kernel() -> Kernel | None:
    """The kernel, or None if this machine has none or it is switched off."""
    library = build().library
    return None if library is None else _kernel(library)


@cache
def _kernel(library: ctypes.CDLL) -> Kernel:
    words, pointer = ctypes.c_int64, ctypes.c_void_p
    library.chain_codes.restype, library.chain_tile.restype = ctypes.c_char_p, words
    library.chain_run.argtypes, library.chain_run.restype = (pointer, pointer, words, words, _Resolver, pointer), words
    library.chain_finite.argtypes, library.chain_finite.restype = (pointer, words, words), words
    names = library.chain_codes().decode().split()
    return Kernel(library, {name: code for code, name in enumerate(names)}, library.chain_tile())


class Turns:
    """Divides 0 ... size - 1 into parts, each of which goes to one of the iterating threads."""

    def __init__(self, size: int, step: int) -> None:
        self._size, self._step = size, step
        self._shared = count()  # its `next` is atomic

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for turn in self._shared:
            begin = turn * self._step
            if begin >= self._size:
                return
            yield begin, min(begin + self._step, self._size)

    def threads(self) -> int:
        """The number of threads that find work."""
        return min(torch.get_num_threads(), -(-self._size // self._step))


def all_finite(found: Kernel, tensor: Tensor) -> bool:
    """Whether a contiguous f32 CPU tensor holds neither infinities nor NaN. One pass without a temporary."""
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"expected a contiguous f32 tensor on a CPU, got {tensor.dtype} on {tensor.device}")
    address, turns = tensor.data_ptr(), Turns(tensor.numel(), found.tile * TILES_PER_TURN)
    finite = found.library.chain_finite
    return all(together(lambda: all(finite(address, *turn) for turn in turns), turns.threads()))


@dataclass(frozen=True, slots=True)
class Member:
    """An instruction of a chain."""

    number: int
    instruction: Instruction
    operand_dtypes: tuple[DType, ...]
    operand_numels: tuple[int, ...]
    exported: bool
    """Whether its result is used outside the chain."""
    sealed: bool
    """Whether its result is committed: NaN becomes canonical, and the kernel notes whether all elements are finite."""
    replaces: int | None = None
    """The value whose memory the result may reuse: this chain reads it in place, and nothing reads it afterwards."""


@dataclass(frozen=True, slots=True)
class Result:
    """The exported results of a chain by value number; for the sealed ones, whether all elements are finite."""

    tensors: dict[int, Tensor]
    finite: dict[int, bool]


class Chains:
    """Makes and runs the chains of one `Arithmetic`."""

    def __init__(self, found: Kernel, exact: Exact, stats: Stats) -> None:
        self.kernel, self.stats, self.buffers = found, stats, Buffers()
        self.precision = exact.precision

        def resolve(function: int, bits: int) -> int:
            return exact.exact_bits(_RESOLVED[function], bits)

        self.resolver = _Resolver(resolve)

    def make(self, members: tuple[Member, ...]) -> "Chain":
        """Prepares a chain. `members` are in program order and have the same number of elements.

        An operand that is a member's result must be read in place (`tiebreak.engine.run.schedule.reads_in_place`).
        """
        return Chain(self, members)

    def alone(self, instruction: Instruction, operands: Sequence[Tensor]) -> Tensor:
        """Runs one instruction as a chain of its own, for qualification and tests."""
        types = {torch_dtype: dtype for dtype, torch_dtype in TORCH_DTYPES.items()}
        read = [operands[access.value] for access in instruction.operands]
        member = Member(
            number=len(operands),
            instruction=instruction,
            operand_dtypes=tuple(types[x.dtype] for x in read),
            operand_numels=tuple(x.numel() for x in read),
            exported=True,
            sealed=True,
        )
        return self.make((member,)).run(dict(enumerate(operands))).tensors[len(operands)]


class Chain:
    """One chain, ready to run."""

    def __init__(self, chains: Chains, members: tuple[Member, ...]) -> None:
        self._chains = chains
        self._numel = members[0].instruction.numel
        # SAFETY: every register is a run of this many elements.
        if any(m.instruction.numel != self._numel for m in members):
            raise ValueError(
                f"expected members of {self._numel} elements, got {[m.instruction.numel for m in members]}"
            )
        writer = _Writer(members, chains.precision)
        self._inputs = tuple(writer.inputs.items())
        self._outputs = tuple(
            (m.number, m.instruction.shape, TORCH_DTYPES[m.instruction.dtype], m.replaces) for m in writer.outputs
        )
        self._words = writer.code.encode(chains.kernel.codes, chains.kernel.tile)
        self._code = self._words.ctypes.data
        self._pointers = ctypes.c_void_p * (len(self._inputs) + len(self._outputs))
        self._counters = ctypes.c_int64 * writer.code.counters
        self._sealed, self._resolved = tuple(writer.sealed.items()), tuple(writer.resolved)

    def run(self, values: Mapping[int, Tensor], given: Collection[int] = ()) -> Result:
        """Executes the chain on the values that it reads.

        Results may overwrite the values in `given` that they replace.
        """
        tensors = [self._checked(values[number], number, *kind) for number, kind in self._inputs]
        made = {
            number: values[old].view(shape)
            if old is not None and old in given
            else self._chains.buffers.empty(shape, dtype)
            for number, shape, dtype, old in self._outputs
        }
        counters = self._execute(self._pointers(*(t.data_ptr() for t in (*tensors, *made.values()))))
        for function, at in self._resolved:
            counts = self._chains.stats.of(f"map.{function.name.lower()}")
            counts.elements += self._numel
            counts.undecided += sum(own[at] for own in counters)
            counts.double_rounded += sum(own[at + 1] for own in counters)
        return Result(made, {number: not any(own[at] for own in counters) for number, at in self._sealed})

    def _execute(self, pointers: "ctypes.Array[ctypes.c_void_p]") -> "list[ctypes.Array[ctypes.c_int64]]":
        """Runs all tiles; returns the counters of each thread."""
        found, code, resolver = self._chains.kernel, self._code, self._chains.resolver
        turns = Turns(self._numel, found.tile * TILES_PER_TURN)

        def work() -> "ctypes.Array[ctypes.c_int64]":
            own = self._counters()
            for begin, end in turns:
                if found.library.chain_run(code, pointers, begin, end, resolver, own):
                    raise MemoryError("no memory for the registers of a chain")
            return own

        return together(work, turns.threads())

    @staticmethod
    def _checked(tensor: Tensor, number: int, dtype: DType, numel: int) -> Tensor:
        """SAFETY: the kernel reads `numel` elements from the tensor's first on, and nothing else of it."""
        wanted = TORCH_DTYPES[dtype]
        fits = tensor.dtype == wanted and tensor.numel() == numel and tensor.is_contiguous()
        if not fits or tensor.device.type != "cpu":
            raise ValueError(
                f"value {number}: expected {numel} contiguous elements of {wanted} on a CPU, got {tensor.dtype} "
                f"{tuple(tensor.shape)} on {tensor.device}"
            )
        return tensor


@dataclass(frozen=True, slots=True)
class _Register:
    """The location of a register."""

    pointer: int
    """The number of the tensor, inputs before outputs; -1 for scratch."""
    offset: int
    """The offset from the tensor's first element, in bytes."""
    step: int
    """The number of bytes from one element to the next; 0 if one element stands for all."""


@dataclass(frozen=True, slots=True)
class _Operation:
    name: str
    result: int
    operands: tuple[int, ...]
    parameters: tuple[int, ...] = ()


@dataclass
class _Code:
    """The code of a chain: registers and operations as elementwise.c expects them."""

    registers: list[_Register] = field(default_factory=list)
    operations: list[_Operation] = field(default_factory=list)
    counters: int = 0

    def register(self, pointer: int, offset: int, step: int) -> int:
        """Adds a register and returns its number."""
        self.registers.append(_Register(pointer, offset, step))
        return len(self.registers) - 1

    def count(self, number: int) -> int:
        """Adds counters and returns their place."""
        self.counters += number
        return self.counters - number

    def encode(self, codes: Mapping[str, int], tile: int) -> npt.NDArray[np.int64]:
        """The words that `chain_run` reads."""
        assert len(self.registers) <= _MAX_REGISTERS
        slots = self._slots()
        slot_bytes = tile * DType.I64.size + _STAGGER
        words = [len(self.registers), len(self.operations), (max(slots.values(), default=-1) + 1) * slot_bytes]
        for number, register in enumerate(self.registers):
            offset = slots[number] * slot_bytes if register.pointer < 0 else register.offset
            words += [register.pointer, offset, register.step]
        parameters: list[int] = []
        start = len(words) + _OPERATION_WORDS * len(self.operations)
        for operation in self.operations:
            a, b, c = (*operation.operands, *(0,) * (3 - len(operation.operands)))
            words += [codes[operation.name], operation.result, a, b, c, start + len(parameters)]
            parameters += operation.parameters
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


class _Writer:
    """Translates a chain's instructions into code."""

    def __init__(self, members: tuple[Member, ...], precision: int) -> None:
        self.code = _Code()
        self._precision = precision
        self.inputs: dict[int, tuple[DType, int]] = {}
        """The values read from outside, in the order of their pointers: dtype and number of elements."""
        self.outputs = tuple(m for m in members if m.exported)
        self.sealed: dict[int, int] = {}
        self.resolved: list[tuple[MapFunction, int]] = []
        self._made: dict[int, int] = {}
        self._loaded: dict[tuple[int, int, tuple[Dim, ...]], int] = {}
        inside = {m.number for m in members}
        for m in members:
            for access, dtype, numel in zip(m.instruction.operands, m.operand_dtypes, m.operand_numels, strict=True):
                if access.value not in inside:
                    self.inputs[access.value] = dtype, numel
        self._pointers = {value: k for k, value in enumerate((*self.inputs, *(m.number for m in self.outputs)))}
        for m in members:
            self._member(m)
        # A result that may overwrite an operand is stored after the tile has read all of that operand.
        for m in self.outputs:
            if m.replaces is not None:
                result = self.code.register(self._pointers[m.number], 0, m.instruction.dtype.size)
                self._emit(f"COPY{m.instruction.dtype.size}", result, (self._made[m.number],))
                self._seal(m, result)

    def _member(self, m: Member) -> None:
        i = m.instruction
        stored = m.exported and m.replaces is None
        result = self.code.register(self._pointers[m.number] if stored else -1, 0, i.dtype.size)
        match i.opcode, i.params:
            case Opcode.IOTA, IotaParams() as params:
                dims = coalesce(i.shape, [params.strides])
                self._emit("IOTA", result, (), (params.offset, *_box(dims)))
            case Opcode.RANDOM, RandomParams() as params:
                seed, step = (self._scalar(access, DType.I64) for access in i.operands)
                self._emit("RANDOM", result, (seed, step), (params.stream,))
            case _:
                self._map(m, result)
        self._made[m.number] = result
        if stored:
            self._seal(m, result)

    def _seal(self, m: Member, result: int) -> None:
        if m.sealed and m.instruction.dtype == DType.F32:
            self.sealed[m.number] = self.code.count(1)
            self._emit("SEAL", result, (), (self.sealed[m.number],))

    def _map(self, m: Member, result: int) -> None:
        i = m.instruction
        function = MapFunction(i.function)
        operands = [self._operand(i, access, t) for access, t in zip(i.operands, m.operand_dtypes, strict=True)]
        scalar = [i.numel > 1 and self.code.registers[r].step == 0 for r in operands]
        # The kernel has no loops for a scalar as the only operand, two scalars of two, or a scalar condition of
        # `where`.
        if scalar[0] and (all(scalar[:2]) or function == MapFunction.WHERE):
            operands[0] = self._spread(operands[0], m.operand_dtypes[0], i.numel)
        parameters: tuple[int, ...] = ()
        if function in _RESOLVED:
            at = self.code.count(2)
            self.resolved.append((function, at))
            parameters = (at, self._precision)
        self._emit(_name(function, m.operand_dtypes[0], i.dtype), result, tuple(operands), parameters)

    def _emit(self, name: str, result: int, operands: tuple[int, ...], parameters: tuple[int, ...] = ()) -> None:
        self.code.operations.append(_Operation(name, result, operands, parameters))

    def _operand(self, i: Instruction, access: Access, dtype: DType) -> int:
        """The register of an operand, which is loaded first if its elements are not contiguous."""
        if access.value in self._made:
            return self._made[access.value]
        dims = coalesce(i.shape, [access.strides])
        strides = [dim.strides[0] for dim in dims]
        key = access.value, access.offset, tuple(dims)
        if key not in self._loaded:
            pointer, offset = self._pointers[access.value], access.offset * dtype.size
            plain = strides == [1]
            register = self.code.register(pointer, offset, dtype.size if plain else 0)
            if any(strides) and not plain:
                source, register = register, self.code.register(-1, 0, dtype.size)
                self._emit(f"LOAD{dtype.size}", register, (source,), _box(dims))
            self._loaded[key] = register
        return self._loaded[key]

    def _scalar(self, access: Access, dtype: DType) -> int:
        """The register of a single element, which a `random` instruction reads with all strides 0."""
        if access.value in self._made:
            return self._made[access.value]
        return self.code.register(self._pointers[access.value], access.offset * dtype.size, 0)

    def _spread(self, scalar: int, dtype: DType, numel: int) -> int:
        """A register with the same element at every position."""
        register = self.code.register(-1, 0, dtype.size)
        self._emit(f"LOAD{dtype.size}", register, (scalar,), (1, numel, 0))
        return register


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
