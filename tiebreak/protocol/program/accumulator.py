"""Exact partial results of a reduction (SPEC section 6), which the leaves of an accumulator tree commit to.

Encodings, big-endian:

| kind | bytes | content |
| --- | --- | --- |
| f32 sum, scatter_sum | 97 | u8 flag (a term was not finite), 96-byte two's complement sum in units of 2^-298 |
| i64 sum | 8 | i64 |
| f32 max | 4 | f32 bits |
| i64 max | 8 | i64 |
| argmax of f32 | 12 | f32 bits, i64 index |
| argmax of i64 | 16 | i64, i64 index |

`add_term` takes one term at a time, 6.6 microseconds each, and is the meaning of the others. `after_leaves` and
`PartialSums` are its fast twins, thousands of leaves at a time, below a microsecond for each term: numpy reads the
terms of a block and multiplies significands, exactly; Python's integers add them up. Norms by which gradients are
clipped are sums of tens of millions of terms, and a party has to show their accumulators within its time for a move.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from operator import lshift
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tiebreak.protocol.codec import Reader, signed, unsigned
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.numbers import float32
from tiebreak.protocol.numbers.float32 import NAN_BITS, canonical
from tiebreak.protocol.program import isa
from tiebreak.protocol.program.isa import TERMS_PER_LEAF, Access, DType, Instruction, Opcode, unravel
from tiebreak.protocol.program.rounding import BF16, NEAREST, Rounding, round_sum

SUM_BYTES: Final = 96
SUM_EXPONENT: Final = 2 * float32.MIN_EXPONENT
"""The exponent of the unit of a sum: the product of any two finite f32 is an integer multiple of 2^-298."""
_MINUS_INF: Final = float32.SIGN | float32.INF
_I64_MIN: Final = -(1 << 63)

BLOCK_HEIGHT: Final = 12
BLOCK_LEAVES: Final = 1 << BLOCK_HEIGHT
BLOCK_TERMS: Final = BLOCK_LEAVES * TERMS_PER_LEAF

_TYPES: Final[dict[DType, np.dtype[Any]]] = {DType.F32: np.dtype("<u4"), DType.I64: np.dtype("<i8")}
"""The numpy type of each operand dtype; f32 is read as its bits."""

Array = NDArray[Any]
Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Kind(Enum):
    """An accumulated quantity and its dtype, with the length of its encoding in bytes."""

    F32_SUM = "f32 sum", 1 + SUM_BYTES
    I64_SUM = "i64 sum", 8
    F32_MAX = "f32 max", 4
    I64_MAX = "i64 max", 8
    F32_ARGMAX = "f32 argmax", 12
    I64_ARGMAX = "i64 argmax", 16
    BF16_SUM = "f32 sum to bf16", 1 + SUM_BYTES

    @property
    def is_f32_sum(self) -> bool:
        """Whether it is the exact sum of f32 numbers, whatever it is rounded to in the end."""
        return self in (Kind.F32_SUM, Kind.BF16_SUM)

    @property
    def is_f32(self) -> bool:
        """Whether `value` is the bits of one of the elements, which are f32."""
        return self in (Kind.F32_MAX, Kind.F32_ARGMAX)

    @property
    def is_argmax(self) -> bool:
        return self in (Kind.F32_ARGMAX, Kind.I64_ARGMAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulator:
    """The result after some of the terms.

    `value` is the sum (f32: in units of 2^-298; 0 if `invalid`) or the maximum so far (f32: its bits). `index` is the
    position of the maximum (argmax) or -1. `invalid` means that a term of an f32 sum was not finite.
    """

    kind: Kind
    value: int
    index: int = -1
    invalid: bool = False


def kind_of(instruction: Instruction, operand: DType) -> Kind:
    """The kind of accumulator of a `reduce` or `scatter_sum` whose first operand has this dtype."""
    if not instruction.is_reduction:
        raise ValueError(f"expected a reduction, got {instruction.opcode.name}")
    is_float = operand == DType.F32
    if instruction.is_bf16_sum:
        return Kind.BF16_SUM
    if instruction.opcode == Opcode.SCATTER_SUM or instruction.function == isa.ReduceFunction.SUM:
        return Kind.F32_SUM if is_float else Kind.I64_SUM
    if instruction.function == isa.ReduceFunction.MAX:
        return Kind.F32_MAX if is_float else Kind.I64_MAX
    return Kind.F32_ARGMAX if is_float else Kind.I64_ARGMAX


def leaf_count(terms: int) -> int:
    """Number of leaves in the accumulator tree of an element with this many terms."""
    return -(-terms // TERMS_PER_LEAF)


def initial(kind: Kind) -> Accumulator:
    """The accumulator before the first term."""
    starts = {Kind.I64_MAX: _I64_MIN, Kind.I64_ARGMAX: _I64_MIN}
    return Accumulator(kind=kind, value=_MINUS_INF if kind.is_f32 else starts.get(kind, 0))


def wrap_i64(x: int) -> int:
    """The i64 congruent to x modulo 2^64."""
    return (x + (1 << 63)) % (1 << 64) - (1 << 63)


def wrap_sum(x: int) -> int:
    """Wrap to 768 bits. True sums (2^32 products stay below 2^586) never change; forged ones become well-defined."""
    half = 1 << (8 * SUM_BYTES - 1)
    return (x + half) % (2 * half) - half


def add_term(accumulator: Accumulator, factors: Sequence[int], position: int) -> Accumulator:
    """Add a term: the factors of a product for sums, else one element. `position`: its place in the reduction space."""
    match accumulator.kind:
        case Kind.F32_SUM | Kind.BF16_SUM:
            if accumulator.invalid or not all(float32.is_finite(x) for x in factors):
                return Accumulator(kind=accumulator.kind, value=0, invalid=True)
            n, e = 1, 0
            for factor in factors:
                m, d = float32.decode(factor)
                n, e = n * m, e + d
            return Accumulator(kind=accumulator.kind, value=wrap_sum(accumulator.value + (n << (e - SUM_EXPONENT))))
        case Kind.I64_SUM:
            return Accumulator(kind=accumulator.kind, value=wrap_i64(accumulator.value + factors[0]))
        case Kind.F32_MAX:
            return Accumulator(kind=accumulator.kind, value=float32.maximum(accumulator.value, factors[0]))
        case Kind.I64_MAX:
            return Accumulator(kind=accumulator.kind, value=max(accumulator.value, factors[0]))
    x, held = factors[0], accumulator.value
    is_greater = x > held
    if accumulator.kind.is_f32:  # a NaN counts as greater than everything except a NaN
        x = canonical(x)
        is_greater = float32.order(x) > float32.order(held)
    if is_greater or accumulator.index == -1:
        return Accumulator(kind=accumulator.kind, value=x, index=position)
    return accumulator


def finish(accumulator: Accumulator, rounding: Rounding = NEAREST) -> int:
    """The element that the final accumulator yields: f32 bits (a sum is rounded as specified) or an i64."""
    kind = accumulator.kind
    if kind.is_f32_sum:
        exact = (accumulator.value, SUM_EXPONENT)
        return NAN_BITS if accumulator.invalid else round_sum(*exact, BF16 if kind is Kind.BF16_SUM else rounding)
    if kind.is_argmax:
        return accumulator.index
    return float32.plus_zero(accumulator.value) if kind.is_f32 else accumulator.value


def encode(accumulator: Accumulator) -> bytes:
    """The encoding that is hashed."""
    value, kind = accumulator.value, accumulator.kind
    if kind.is_f32_sum:
        return unsigned(accumulator.invalid, 1) + signed(value, SUM_BYTES)
    encoded = unsigned(value, 4) if kind.is_f32 else signed(value, 8)
    return encoded + signed(accumulator.index, 8) if kind.is_argmax else encoded


def decode(kind: Kind, data: bytes) -> Accumulator:
    """Decode what `encode` produced. Raises `EncodingError` for anything that it cannot produce."""
    name, length = kind.value
    if len(data) != length:
        raise EncodingError(f"expected {length} bytes of an accumulator ({name}), got {len(data)}")
    reader = Reader(data)
    if kind.is_f32_sum:
        flag, value = reader.unsigned(1), reader.signed(SUM_BYTES)
        if flag > 1 or (flag and value):
            raise EncodingError(f"expected flag 0, or flag 1 and integer 0, got flag {flag} and integer {value}")
        return Accumulator(kind=kind, value=value, invalid=bool(flag))
    if kind.is_f32:
        value = reader.unsigned(4)
        if value != float32.canonical(value):
            raise EncodingError(f"expected NaN as {NAN_BITS:#010x}, got {value:#010x}")
    else:
        value = reader.signed(8)
    index = reader.signed(8) if kind.is_argmax else -1
    return Accumulator(kind=kind, value=value, index=index)


def decode_for(instruction: Instruction, data: bytes) -> Accumulator:
    """Decode an accumulator of this instruction without knowing its operand's dtype. Raises `EncodingError`."""
    operand = instruction.dtype
    if instruction.opcode == Opcode.REDUCE and instruction.function == isa.ReduceFunction.ARGMAX:
        # Its result is an index, so the length tells the dtype of the elements.
        operand = DType.F32 if len(data) == Kind.F32_ARGMAX.value[1] else DType.I64
    return decode(kind_of(instruction, operand), data)


# ---------------------------------------------------------------- many leaves at a time


class ElementTerms:
    """The terms of one output element: elements of the operands, for any range of positions in the reduction space."""

    def __init__(
        self, instruction: Instruction, index: int, tensors: Sequence[bytes | memoryview], dtypes: Sequence[DType]
    ) -> None:
        """`tensors` holds the data of each operand's value, `dtypes` the dtype of each operand."""
        if not instruction.is_reduction:
            raise ValueError(f"expected a reduction, got {instruction.opcode.name}")
        if not 0 <= index < instruction.numel:
            raise ValueError(f"expected an element below {instruction.numel}, got {index}")
        self.kind = kind_of(instruction, dtypes[0])
        self.count = instruction.terms
        self._tensors = [np.frombuffer(data, _TYPES[dtype]) for data, dtype in zip(tensors, dtypes, strict=True)]
        coordinate = unravel(index, instruction.shape)
        rank, accesses = len(coordinate), []
        for access in instruction.operands:  # over the reduction coordinates alone
            offset = access.offset + sum(c * s for c, s in zip(coordinate, access.strides, strict=False))
            accesses.append(Access(access.value, offset, access.strides[rank:]))
        for number, (access, tensor) in enumerate(zip(accesses, self._tensors, strict=True)):
            # numpy counts a negative index from the end, so the range of all positions is checked here.
            low, high = access.extent(instruction.reduction)
            if low < 0 or high >= tensor.size:
                raise ValueError(f"operand {number}: expected elements below {tensor.size}, got {low} to {high}")
        self._offsets = [access.offset for access in accesses]
        self._dims = _merged(instruction.reduction, [access.strides for access in accesses])
        self._target: int | None = None
        if isinstance(instruction.params, isa.ScatterParams):
            self._target = sum(c * s for c, s in zip(coordinate, instruction.params.match, strict=True))

    def read(self, first: int, stop: int) -> tuple[list[Array], Mask | None]:
        """The factors of terms first ... stop - 1 and, for a `scatter_sum`, which of them match."""
        found = [tensor[at] for tensor, at in zip(self._tensors, self._places(first, stop), strict=True)]
        if self._target is None:
            return found, None
        return found[:1], found[1] == self._target

    def _places(self, first: int, stop: int) -> list[Longs]:
        """The elements read from each operand. Cannot overflow: every stride of a dim above 1 stays within a tensor."""
        rest = np.arange(first, stop, dtype=np.int64)
        places = [np.full(stop - first, offset, dtype=np.int64) for offset in self._offsets]
        for number, (dim, strides) in reversed(list(enumerate(self._dims))):
            coordinate = rest
            if number:
                rest = coordinate // dim
                coordinate = coordinate - rest * dim
            for at, stride in zip(places, strides, strict=True):
                if stride:
                    at += coordinate * stride
        return places


def _merged(dims: Sequence[int], strides: Sequence[Sequence[int]]) -> list[tuple[int, tuple[int, ...]]]:
    """The dims as (size, stride of each operand), without those of size 1, and with contiguous neighbours merged."""
    found: list[tuple[int, tuple[int, ...]]] = []
    for dim, steps in zip(dims, zip(*strides, strict=True), strict=True):
        if dim == 1:
            continue
        if found and found[-1][1] == tuple(step * dim for step in steps):
            found[-1] = found[-1][0] * dim, steps
        else:
            found.append((dim, steps))
    return found


class PartialSums:
    """The encoded accumulators of one element, block by block. Only the accumulator before each block is kept."""

    def __init__(self, terms: ElementTerms) -> None:
        self.count = leaf_count(terms.count)
        self._terms = terms
        self._starts = [encode(initial(terms.kind))]

    def block(self, number: int) -> bytes:
        """The concatenated encodings of the leaves from number * BLOCK_LEAVES; fewer of them in the last block."""
        if not 0 <= number * BLOCK_LEAVES < self.count:
            raise ValueError(f"expected a block of {self.count} leaves, got number {number}")
        while len(self._starts) <= number:
            self._compute(len(self._starts) - 1)
        return self._compute(number)

    def _compute(self, number: int) -> bytes:
        first = number * BLOCK_TERMS
        factors, matches = self._terms.read(first, min(first + BLOCK_TERMS, self._terms.count))
        made = after_leaves(decode(self._terms.kind, self._starts[number]), factors, matches, first)
        if len(self._starts) == number + 1:
            self._starts.append(made[-1])
        return b"".join(made)


def after_leaves(
    start: Accumulator, factors: Sequence[Array], matches: Mask | None = None, first: int = 0
) -> list[bytes]:
    """The encoded accumulators after every leaf, for at most BLOCK_TERMS terms.

    `factors` holds two arrays for a sum of products, otherwise one; f32 are given as bits. `first` is the position of
    the first term, which starts a leaf. `matches` marks the terms that count, if not all do (f32 sums only).
    """
    kind, count = start.kind, factors[0].size
    if not 1 <= count <= BLOCK_TERMS:
        raise ValueError(f"expected 1 to {BLOCK_TERMS} terms, got {count}")
    ends = [*range(TERMS_PER_LEAF, count, TERMS_PER_LEAF), count]
    if kind.is_f32_sum:
        product, shift, invalid = _products(factors)
        if matches is not None:
            product, invalid = np.where(matches, product, 0), invalid & matches
        sums = [*accumulate(map(lshift, product.tolist(), shift.tolist()), initial=start.value)]
        valid = 0 if start.invalid else int(invalid.argmax()) if invalid.any() else count
        return [
            encode(Accumulator(kind=kind, value=wrap_sum(sums[end]) if end <= valid else 0, invalid=end > valid))
            for end in ends
        ]
    if kind is Kind.I64_SUM:
        sums = [*accumulate(factors[0].tolist(), initial=start.value)]
        return [encode(Accumulator(kind=kind, value=wrap_i64(sums[end]))) for end in ends]
    return [encode(found) for found in _greatest(start, factors[0].tolist(), ends, first)]


def _greatest(start: Accumulator, elements: list[int], ends: Sequence[int], first: int) -> Iterator[Accumulator]:
    """The accumulators of a maximum or its position after each block of elements: the greatest so far of (key, order).

    Of equal keys the one held wins, whose order is 1, then the one that came first.
    """
    kind = start.kind
    elements = [canonical(x) for x in elements] if kind.is_f32 else elements
    keys = [float32.order(x) for x in elements] if kind.is_f32 else elements
    held = (float32.order(start.value) if kind.is_f32 else start.value, 1)
    if kind.is_argmax and start.index == -1:  # even the smallest element replaces none
        held = keys[0], -len(keys)
    greatest = [*accumulate(zip(keys, range(0, -len(keys), -1), strict=True), max, initial=held)]
    for key, order in (greatest[end] for end in ends):
        if not kind.is_argmax:
            yield Accumulator(kind=kind, value=float32.SIGN - key if kind.is_f32 and key < 0 else key)
        elif order == 1:
            yield Accumulator(kind=kind, value=start.value, index=start.index)
        else:
            yield Accumulator(kind=kind, value=elements[-order], index=first - order)


def _products(factors: Sequence[Array]) -> tuple[Longs, Longs, Mask]:
    """Products as (n, s, invalid): n * 2^s units with |n| < 2^48 and 0 <= s <= 506, unless a factor is not finite."""
    product, shift = np.ones(1, dtype=np.int64), np.full(1, (2 - len(factors)) * -float32.MIN_EXPONENT)
    invalid = np.zeros(factors[0].size, dtype=np.bool_)
    for bits in factors:
        exponent = (bits >> np.uint32(float32.FRACTION_BITS) & np.uint32(0xFF)).astype(np.int64)
        significand = (bits & np.uint32(0x7FFFFF)).astype(np.int64)
        significand |= (exponent != 0).astype(np.int64) << float32.FRACTION_BITS
        product = product * np.where(bits & np.uint32(float32.SIGN), -significand, significand)
        shift = shift + np.maximum(exponent - 1, 0)
        invalid |= exponent == 0xFF
    return product, shift, invalid
