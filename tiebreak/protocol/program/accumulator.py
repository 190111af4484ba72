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
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tiebreak.protocol.codec import Reader, signed, unsigned
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.numbers import float32
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.program.isa import TERMS_PER_LEAF, DType, Instruction, Opcode, ReduceFunction
from tiebreak.protocol.program.rounding import BF16, NEAREST, Rounding, round_sum

SUM_BYTES: Final = 96
SUM_EXPONENT: Final = 2 * float32.MIN_EXPONENT
"""The exponent of the unit of a sum: the product of any two finite f32 is an integer multiple of 2^-298."""
_MINUS_INF: Final = float32.SIGN | float32.INF
_I64_MIN: Final = -(1 << 63)


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
    if instruction.opcode == Opcode.SCATTER_SUM or instruction.function == ReduceFunction.SUM:
        return Kind.F32_SUM if is_float else Kind.I64_SUM
    if instruction.function == ReduceFunction.MAX:
        return Kind.F32_MAX if is_float else Kind.I64_MAX
    return Kind.F32_ARGMAX if is_float else Kind.I64_ARGMAX


def leaf_count(terms: int) -> int:
    """Number of leaves in the accumulator tree of an element with this many terms."""
    return -(-terms // TERMS_PER_LEAF)


def initial(kind: Kind) -> Accumulator:
    """The accumulator before the first term."""
    starts = {Kind.F32_MAX: _MINUS_INF, Kind.F32_ARGMAX: _MINUS_INF, Kind.I64_MAX: _I64_MIN, Kind.I64_ARGMAX: _I64_MIN}
    return Accumulator(kind=kind, value=starts.get(kind, 0))


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
            return _add_product(accumulator, factors)
        case Kind.I64_SUM:
            return Accumulator(kind=accumulator.kind, value=wrap_i64(accumulator.value + factors[0]))
        case Kind.F32_MAX:
            return Accumulator(kind=accumulator.kind, value=float32.maximum(accumulator.value, factors[0]))
        case Kind.I64_MAX:
            return Accumulator(kind=accumulator.kind, value=max(accumulator.value, factors[0]))
    if accumulator.index == -1 or _replaces(accumulator.kind, accumulator.value, factors[0]):
        return Accumulator(kind=accumulator.kind, value=_element(accumulator.kind, factors[0]), index=position)
    return accumulator


def _add_product(accumulator: Accumulator, factors: Sequence[int]) -> Accumulator:
    if accumulator.invalid or not all(float32.is_finite(x) for x in factors):
        return Accumulator(kind=accumulator.kind, value=0, invalid=True)
    n, e = 1, 0
    for factor in factors:
        m, d = float32.decode(factor)
        n, e = n * m, e + d
    return Accumulator(kind=accumulator.kind, value=wrap_sum(accumulator.value + (n << (e - SUM_EXPONENT))))


def _element(kind: Kind, x: int) -> int:
    return float32.canonical(x) if kind == Kind.F32_ARGMAX else x


def _replaces(kind: Kind, held: int, x: int) -> bool:
    """Whether x is greater than the held element. A NaN counts as greater than everything except a NaN."""
    if kind == Kind.I64_ARGMAX:
        return x > held
    if float32.is_nan(held):
        return False
    return float32.is_nan(x) or float32.less(held, x)


def finish(accumulator: Accumulator, rounding: Rounding = NEAREST) -> int:
    """The element that the final accumulator yields: f32 bits (a sum is rounded as specified) or an i64."""
    match accumulator.kind:
        case Kind.F32_SUM | Kind.BF16_SUM if accumulator.invalid:
            return NAN_BITS
        case Kind.F32_SUM:
            return round_sum(accumulator.value, SUM_EXPONENT, rounding)
        case Kind.BF16_SUM:
            return round_sum(accumulator.value, SUM_EXPONENT, BF16)
        case Kind.F32_MAX:
            return float32.plus_zero(accumulator.value)
        case Kind.F32_ARGMAX | Kind.I64_ARGMAX:
            return accumulator.index
    return accumulator.value


def encode(accumulator: Accumulator) -> bytes:
    """The encoding that is hashed."""
    value, kind = accumulator.value, accumulator.kind
    match kind:
        case Kind.F32_SUM | Kind.BF16_SUM:
            return unsigned(accumulator.invalid, 1) + signed(value, SUM_BYTES)
        case Kind.I64_SUM | Kind.I64_MAX:
            return signed(value, 8)
        case Kind.F32_MAX:
            return unsigned(value, 4)
        case Kind.F32_ARGMAX:
            return unsigned(value, 4) + signed(accumulator.index, 8)
    return signed(value, 8) + signed(accumulator.index, 8)


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
    if kind in (Kind.F32_MAX, Kind.F32_ARGMAX):
        value = reader.unsigned(4)
        if value != float32.canonical(value):
            raise EncodingError(f"expected NaN as {NAN_BITS:#010x}, got {value:#010x}")
    else:
        value = reader.signed(8)
    index = reader.signed(8) if reader.remaining else -1
    return Accumulator(kind=kind, value=value, index=index)


def decode_for(instruction: Instruction, data: bytes) -> Accumulator:
    """Decode an accumulator of this instruction without knowing its operand's dtype. Raises `EncodingError`."""
    operand = instruction.dtype
    if instruction.opcode == Opcode.REDUCE and instruction.function == ReduceFunction.ARGMAX:
        # Its result is an index, so the length tells the dtype of the elements.
        operand = DType.F32 if len(data) == Kind.F32_ARGMAX.value[1] else DType.I64
    return decode(kind_of(instruction, operand), data)
