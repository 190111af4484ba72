"""`map`, `iota` and `random`: one instruction at a time in torch, and chains of them in one compiled pass.

**In torch** (`function_of`, `Transcendentals`; SPEC 4.4). IEEE hardware rounds f32 add, sub, mul and div correctly.
This path must not use a Python scalar or a CPU scalar tensor as a divisor (CUDA multiplies by the reciprocal), `alpha`,
`addcmul`, `addcdiv`, `lerp` or anything else that contracts into FMA, nor write to operands in place.

**exp, log, tanh, erf, sin and cos** are computed in FP64 with a relative bound; then come Ziv's test, and integers for
the rest. Every supported backend computes these in FP64 within a few ulp. The bound is 16 ulp of 2^-52 each, plus the
roundings of y (1 -+ d). Results whose FP64 value overflows or is subnormal are far outside the range of f32, and both
ends of the interval round to infinity or zero; exact zeros keep their sign.

**Chains** (elementwise.c) need no memory for intermediate results. A chain is prepared once: its instructions become
code for a small register machine that works through tiles of contiguous elements. Operands that a chain reads element
by element are used in place, and scalars as one element; operands that are broadcast, strided or reversed are first
copied into the tile through their access map. GPUs have a kernel of their own (elementwise_fused.py). Without either,
and when each value is observed, instructions run one at a time instead (`Arithmetic.execute`).
"""

import ctypes
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.buffers import Buffers
from tiebreak.engine.arithmetic.chains import CHAINED, Member, Result, check_value, common_numel, sole_member
from tiebreak.engine.arithmetic.random import first_of
from tiebreak.engine.arithmetic.rounding import Round
from tiebreak.engine.arithmetic.stats import Counts, Stats
from tiebreak.engine.arithmetic.threads import available, sharing, together
from tiebreak.engine.arithmetic.views import Dim, coalesce
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.engine.native import Build, load
from tiebreak.protocol.numbers.float32 import MAX_PRECISION
from tiebreak.protocol.program.isa import Access, DType, Instruction, IotaParams, MapFunction, Opcode, RandomParams
from tiebreak.protocol.program.reference import TRANSCENDENTAL_FUNCTIONS

Function = Callable[[Sequence[Tensor], Tensor], None]
"""Writes a function of the operands into `out`, which is new, contiguous and of the result's dtype.

Operands are broadcastable views, one of which has the result's shape.
"""

# one instruction at a time

_I64_MAX: Final = (1 << 63) - 1
_I64_MIN: Final = -(1 << 63)
_STICKY_BITS: Final = 11


def _direct(function: Callable[..., Tensor]) -> Function:
    def write(x: Sequence[Tensor], out: Tensor) -> None:
        function(*x, out=out)

    return write


def _copy(x: Sequence[Tensor], out: Tensor) -> None:
    out.copy_(x[0])


def _plus_zero(function: Callable[..., Tensor]) -> Function:
    """f32 max and min, whose zero results are made +0."""

    def write(x: Sequence[Tensor], out: Tensor) -> None:
        function(*x, out=out)
        if out.dtype == torch.float32:
            out.add_(0.0)

    return write


def _sqrt(x: Sequence[Tensor], out: Tensor) -> None:
    # torch.sqrt of f32 on CPUs is MKL's, which is not correctly rounded: it takes 0x3f7fffff to 1. In FP64 an error of
    # some ulp is harmless: the significand s of a root, 2^23 <= s < 2^24, and a midpoint m of two f32 differ by
    # |s^2 - m^2| / (s + m) >= (1/4) / 2^25 = 2^-27, that is 4 ulp of FP64.
    out.copy_(x[0].to(torch.float64).sqrt_())


def _to_bf16(x: Sequence[Tensor], out: Tensor) -> None:
    out.copy_(x[0].to(torch.bfloat16))


def _floordiv(x: Sequence[Tensor], out: Tensor) -> None:
    a, b = x
    # Division by 0, and of -2^63 by -1, traps on CPUs, so neither reaches the hardware.
    safe = torch.where((b == 0) | (b == -1), 1, b)
    quotient = torch.div(a, safe, rounding_mode="floor")
    quotient = torch.where(b == -1, a.neg(), quotient)
    out.copy_(torch.where(b == 0, 0, quotient))


def _mod(x: Sequence[Tensor], out: Tensor) -> None:
    a, b = x
    none = (b == 0) | (b == -1)
    out.copy_(torch.where(none, 0, torch.remainder(a, torch.where(none, 1, b))))


def _f32_to_i64(x: Sequence[Tensor], out: Tensor) -> None:
    # In C++ a cast of NaN, or of a value that does not fit, is undefined, so only values that fit are cast.
    value = x[0]
    limit = torch.full((), 2.0**63, dtype=torch.float32, device=value.device)
    fits = value.abs() < limit
    out.copy_(torch.where(fits, value, 0.0).to(torch.int64))
    out.masked_fill_(value >= limit, _I64_MAX)
    out.masked_fill_(value <= -limit, _I64_MIN)


def _i64_to_f32(x: Sequence[Tensor], out: Tensor) -> None:
    # Some vector units go through FP64 and round twice. Up to 53 bits FP64 is exact; longer integers are first cut
    # to 53 bits with a sticky bit (rounding to odd), after which one rounding to FP32 is right.
    value = x[0]
    top = value >> 53
    long = (top != 0) & (top != -1)
    exact = torch.where(long, 0, value).to(torch.float64)
    if bool(long.any()):
        cut = (value >> _STICKY_BITS) | ((value & ((1 << _STICKY_BITS) - 1)) != 0)
        exact = torch.where(long, cut.to(torch.float64) * 2.0**_STICKY_BITS, exact)
    out.copy_(exact)


def _to_bool(x: Sequence[Tensor], out: Tensor) -> None:
    torch.ne(x[0], 0, out=out)


_FUNCTIONS: Final[dict[MapFunction, Function]] = {
    MapFunction.COPY: _copy,
    MapFunction.ADD: _direct(torch.add),
    MapFunction.SUB: _direct(torch.sub),
    MapFunction.MUL: _direct(torch.mul),
    MapFunction.DIV: _direct(torch.div),
    MapFunction.SQRT: _sqrt,
    MapFunction.BF16: _to_bf16,
    MapFunction.NEG: _direct(torch.neg),
    MapFunction.ABS: _direct(torch.abs),
    MapFunction.MAX: _plus_zero(torch.maximum),
    MapFunction.MIN: _plus_zero(torch.minimum),
    MapFunction.LT: _direct(torch.lt),
    MapFunction.LE: _direct(torch.le),
    MapFunction.EQ: _direct(torch.eq),
    MapFunction.NE: _direct(torch.ne),
    MapFunction.AND: _direct(torch.logical_and),
    MapFunction.OR: _direct(torch.logical_or),
    MapFunction.NOT: _direct(torch.logical_not),
    MapFunction.WHERE: _direct(torch.where),
    MapFunction.FLOORDIV: _floordiv,
    MapFunction.MOD: _mod,
}

_CASTS: Final[dict[tuple[torch.dtype, DType], Function]] = {
    (torch.float32, DType.I64): _f32_to_i64,
    (torch.float32, DType.BOOL): _to_bool,
    (torch.int64, DType.F32): _i64_to_f32,
    (torch.int64, DType.BOOL): _to_bool,
    (torch.bool, DType.F32): _copy,
    (torch.bool, DType.I64): _copy,
}


def function_of(function: MapFunction, source: torch.dtype, result: DType) -> Function:
    """The implementation of a function that is not transcendental. `source` is the dtype of the first operand."""
    return _CASTS[source, result] if function == MapFunction.CAST else _FUNCTIONS[function]


# exp, log, tanh, erf, sin and cos

_RELATIVE: Final = 17 * 2.0**-52
"""The relative error bound: 16 ulp plus the roundings of the two products."""
_PIECE: Final = 1 << 16
"""The number of elements computed at once: the FP64 temporaries stay in cache."""

FP64: Final[dict[MapFunction, Callable[[Tensor], Tensor]]] = {
    MapFunction.EXP: torch.exp,
    MapFunction.LOG: torch.log,
    MapFunction.TANH: torch.tanh,
    MapFunction.ERF: torch.erf,
    MapFunction.SIN: torch.sin,
    MapFunction.COS: torch.cos,
}


class Transcendentals:
    """The functions on one device. Integer results are cached by operand bits."""

    def __init__(self, precision: int = MAX_PRECISION) -> None:
        self.precision = precision
        self._rounded = Round(precision)
        self._known: dict[tuple[MapFunction, int], int] = {}

    def apply(self, function: MapFunction, x: Tensor, counts: Counts) -> Tensor:
        """f(x), f32, contiguous, of x's shape."""
        x = x.contiguous()
        source, out = x.view(-1), torch.empty(x.shape, dtype=torch.float32, device=x.device)
        target = out.view(-1)
        counts.elements += x.numel()
        step = _PIECE if x.device.type == "cpu" else x.numel()
        for begin in range(0, x.numel(), step):
            self._piece(function, source[begin : begin + step], target[begin : begin + step], counts)
        return out

    def _piece(self, function: MapFunction, x: Tensor, out: Tensor, counts: Counts) -> None:
        y = FP64[function](x.to(torch.float64))
        if self.precision == MAX_PRECISION:
            torch.mul(y, 1.0 - _RELATIVE, out=out)
        else:
            out.copy_(self._rounded(y * (1.0 - _RELATIVE)))
        undecided = out.ne(self._rounded(y * (1.0 + _RELATIVE)))
        if bool(undecided.any()):
            undecided &= ~torch.isnan(y)
            at = undecided.nonzero().view(-1)
            counts.undecided += len(at)
            exact = self._exact(function, x[at])
            counts.double_rounded += int(self._rounded(y[at]).ne(exact).sum())
            out[at] = exact

    def exact_bits(self, function: MapFunction, bits: int) -> int:
        """The bits of the rounded exact result, computed in integers, for the bits of an argument."""
        key = function, bits
        if key not in self._known:
            self._known[key] = TRANSCENDENTAL_FUNCTIONS[function](bits, self.precision)
        return self._known[key]

    def _exact(self, function: MapFunction, x: Tensor) -> Tensor:
        bits, which = torch.unique(x.view(torch.int32), return_inverse=True)
        found = []
        for pattern in bits.tolist():
            value = self.exact_bits(function, pattern & 0xFFFFFFFF)
            found.append(value - (1 << 32) if value >> 31 else value)
        return torch.tensor(found, dtype=torch.int32, device=x.device).view(torch.float32)[which]


# chains

TILES_PER_TURN: Final = 32
"""The number of tiles that a thread takes at a time."""
OPERATION: Final = 4
"""The number of multiplications of a product that take as long as one operation of a chain."""
_MAX_REGISTERS: Final = 512
_STAGGER: Final = 320
"""Bytes between scratch registers, so that equal positions in two registers differ in their low address bits."""
RESOLVED: Final = (MapFunction.EXP, MapFunction.TANH)
"""Functions that need exact results where FP64 cannot decide; the position is the kernel's number for them."""
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


def kernel() -> ElementwiseKernel | None:
    """The kernel, or None if this machine has none or it is switched off."""
    library = build().library
    return None if library is None else _kernel(library)


@cache
def _kernel(library: ctypes.CDLL) -> ElementwiseKernel:
    names = library.chain_codes().decode().split()
    return ElementwiseKernel(library, {name: code for code, name in enumerate(names)}, library.chain_tile())


class _Turns:
    """Divides 0 ... size - 1 into parts, each of which goes to one of the iterating threads."""

    def __init__(self, size: int, found: ElementwiseKernel) -> None:
        self._size, self._step = size, found.tile * TILES_PER_TURN
        self._shared = count()  # its `next` is atomic
        self.threads = min(available(), -(-size // self._step))
        """The number of threads that find work."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for turn in self._shared:
            begin = turn * self._step
            if begin >= self._size:
                return
            yield begin, min(begin + self._step, self._size)


def all_finite(found: ElementwiseKernel, tensor: Tensor) -> bool:
    """Whether a contiguous f32 CPU tensor holds neither infinities nor NaN. One pass without a temporary."""
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"expected a contiguous f32 tensor on a CPU, got {tensor.dtype} on {tensor.device}")
    address, turns = tensor.data_ptr(), _Turns(tensor.numel(), found)
    finite = found.library.chain_finite
    return all(together(lambda: all(finite(address, *turn) for turn in turns), turns.threads))


class Chains:
    """Makes and runs the chains of one `Arithmetic`."""

    functions: Final = CHAINED

    def __init__(self, found: ElementwiseKernel, exact: Transcendentals, stats: Stats) -> None:
        self.kernel, self.stats, self.buffers = found, stats, Buffers()
        self.precision = exact.precision
        self.resolver = _Resolver(lambda function, bits: exact.exact_bits(RESOLVED[function], bits))

    def make(self, members: tuple[Member, ...]) -> "ElementwiseChain":
        """Prepares a chain. `members` are in program order and have the same number of elements.

        An operand that is a member's result must be read in place (`tiebreak.engine.run.schedule.reads_in_place`).
        """
        return ElementwiseChain(self, members)

    def alone(self, instruction: Instruction, operands: Sequence[Tensor]) -> Tensor:
        """Runs one instruction as a chain of its own, for qualification and tests."""
        return self.make((sole_member(instruction, operands),)).run(dict(enumerate(operands))).tensors[len(operands)]


class ElementwiseChain:
    """One chain, planned once and run in every step."""

    def __init__(self, chains: Chains, members: tuple[Member, ...]) -> None:
        self._chains = chains
        self._numel = common_numel(members)
        code = _Code(members, chains.precision)
        self._inputs = tuple((n, TORCH_DTYPES[dtype], numel) for n, (dtype, numel) in code.inputs.items())
        self._outputs = tuple(
            (m.number, m.instruction.shape, TORCH_DTYPES[m.instruction.dtype], m.replaces) for m in code.outputs
        )
        self._words = code.encode(chains.kernel)
        self._work = OPERATION * self._numel * len(code.operations)
        self._code = self._words.ctypes.data
        self._pointers = ctypes.c_void_p * (len(self._inputs) + len(self._outputs))
        self._counters = ctypes.c_int64 * code.counters
        self._sealed, self._resolved = tuple(code.sealed.items()), tuple(code.resolved)

    def run(self, values: Mapping[int, Tensor], given: Collection[int] = ()) -> Result:
        """Executes the chain on the values that it reads.

        Results may overwrite the values in `given` that they replace.
        """
        tensors = [check_value(values[n], n, dtype, numel, "cpu") for n, dtype, numel in self._inputs]
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
        turns = _Turns(self._numel, found) if sharing(self._work) > 1 else None

        def work() -> "ctypes.Array[ctypes.c_int64]":
            own = self._counters()
            for begin, end in turns or ((0, self._numel),):
                if found.library.chain_run(code, pointers, begin, end, resolver, own):
                    raise MemoryError("no memory for the registers of a chain")
            return own

        return [work()] if turns is None else together(work, turns.threads)


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


class _Code:
    """A chain's instructions, translated into registers and operations as elementwise.c expects them."""

    def __init__(self, members: tuple[Member, ...], precision: int) -> None:
        self.registers: list[_Register] = []
        self.operations: list[_Operation] = []
        self.counters = 0
        self.inputs: dict[int, tuple[DType, int]] = {}
        """The values read from outside, in the order of their pointers: dtype and number of elements."""
        self.outputs = tuple(m for m in members if m.exported)
        self.sealed: dict[int, int] = {}
        self.resolved: list[tuple[MapFunction, int]] = []
        self._precision = precision
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
                result = self._register(self._pointers[m.number], 0, m.instruction.dtype.size)
                self._emit(f"COPY{m.instruction.dtype.size}", result, (self._made[m.number],))
                self._seal(m, result)

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

    def _count(self, number: int) -> int:
        """Adds counters and returns their place."""
        self.counters += number
        return self.counters - number

    def _emit(self, name: str, result: int, operands: tuple[int, ...], parameters: tuple[int, ...] = ()) -> None:
        self.operations.append(_Operation(name, result, operands, parameters))

    def _member(self, m: Member) -> None:
        i = m.instruction
        stored = m.exported and m.replaces is None
        result = self._register(self._pointers[m.number] if stored else -1, 0, i.dtype.size)
        match i.opcode, i.params:
            case Opcode.IOTA, IotaParams() as params:
                dims = coalesce(i.shape, [params.strides])
                self._emit("IOTA", result, (), (params.offset, *_box(dims)))
            case Opcode.RANDOM, RandomParams() as params:
                seed, step = (self._scalar(access) for access in i.operands)
                self._emit("RANDOM", result, (seed, step), (params.stream, first_of(params)))
            case _:
                self._map(m, result)
        self._made[m.number] = result
        if stored:
            self._seal(m, result)

    def _seal(self, m: Member, result: int) -> None:
        if m.sealed and m.instruction.dtype == DType.F32:
            self.sealed[m.number] = self._count(1)
            self._emit("SEAL", result, (), (self.sealed[m.number],))

    def _map(self, m: Member, result: int) -> None:
        i = m.instruction
        function = MapFunction(i.function)
        operands = [self._operand(i, access, t) for access, t in zip(i.operands, m.operand_dtypes, strict=True)]
        scalar = [i.numel > 1 and self.registers[r].step == 0 for r in operands]
        # The kernel has no loops for a scalar as the only operand, two scalars of two, or a scalar condition of
        # `where`.
        if scalar[0] and (all(scalar[:2]) or function == MapFunction.WHERE):
            size, spread = m.operand_dtypes[0].size, operands[0]
            operands[0] = self._register(-1, 0, size)
            self._emit(f"LOAD{size}", operands[0], (spread,), (1, i.numel, 0))
        parameters: tuple[int, ...] = ()
        if function in RESOLVED:
            at = self._count(2)
            self.resolved.append((function, at))
            parameters = (at, self._precision)
        self._emit(_name(function, m.operand_dtypes[0], i.dtype), result, tuple(operands), parameters)

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
            register = self._register(pointer, offset, dtype.size if plain else 0)
            if any(strides) and not plain:
                source, register = register, self._register(-1, 0, dtype.size)
                self._emit(f"LOAD{dtype.size}", register, (source,), _box(dims))
            self._loaded[key] = register
        return self._loaded[key]

    def _scalar(self, access: Access) -> int:
        """The register of a single i64, which a `random` instruction reads with all strides 0."""
        if access.value in self._made:
            return self._made[access.value]
        return self._register(self._pointers[access.value], access.offset * DType.I64.size, 0)


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
