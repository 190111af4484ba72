"""Rounding of f32 sums: to nearest or, under policy `logged`, as the step's rounding log says (SPEC section 5.1).

A log can only choose between the two neighbours of a sum that lies near the midpoint between them. Elsewhere it has no
effect, so it cannot move a result away from what the exact value allows.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.numbers.float32 import (
    FRACTION_BITS,
    INF,
    MAX_PRECISION,
    MIN_PRECISION,
    SIGN,
    plus_zero,
    round_f32,
)
from tiebreak.protocol.program.isa import Instruction, Opcode

MIN_TOLERANCE: Final = 2
MAX_TOLERANCE: Final = 64
_LEAST_EXPONENT: Final = -126


class Policy(IntEnum):
    """A job's policy for rounding its sums."""

    EXACT = 0
    LOGGED = 1


class Direction(IntEnum):
    """The code for an element in a log word. Directions are by magnitude: up is away from zero."""

    NONE = 0
    DOWN = 1
    UP = 2


class SumKind(IntEnum):
    """The kinds of logged sums, each with its own tolerance."""

    PLAIN = 0
    PRODUCTS = 1
    SCATTER = 2


def sum_kind(instruction: Instruction) -> SumKind | None:
    """The kind of a logged sum, or None for any other instruction."""
    if not instruction.is_f32_sum or instruction.is_bf16_sum:
        return None
    if instruction.opcode == Opcode.SCATTER_SUM:
        return SumKind.SCATTER
    return SumKind.PRODUCTS if len(instruction.operands) == 2 else SumKind.PLAIN


def pack_tolerances(tolerances: dict[SumKind, int]) -> int:
    """The job's `tolerances` field: one byte for each kind, 0 (never follow a log) or 2 ... 64."""
    packed = sum(n << 8 * kind for kind, n in tolerances.items())
    check_tolerances(packed)
    return packed


def tolerance_of(tolerances: int, kind: SumKind) -> int:
    """The tolerance n of a kind: a log is followed within 2^-n of the gap around its midpoint, or never if n is 0."""
    return tolerances >> 8 * kind & 0xFF


def check_tolerances(tolerances: int) -> None:
    """Raise `VerificationError` unless each kind's tolerance is 0 or 2 ... 64 and no other bits are set."""
    for kind in SumKind:
        n = tolerance_of(tolerances, kind)
        if n and not MIN_TOLERANCE <= n <= MAX_TOLERANCE:
            raise VerificationError(
                f"tolerances: expected 0 or {MIN_TOLERANCE} to {MAX_TOLERANCE} for {kind.name} sums, got {n}"
            )
    if tolerances >> 8 * len(SumKind):
        raise VerificationError(f"tolerances: expected a number below 2^{8 * len(SumKind)}, got {tolerances:#x}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """The rounding of one element: the number of bits, the tolerance and the direction."""

    precision: int = MAX_PRECISION
    tolerance: int = 0
    direction: Direction = Direction.NONE


NEAREST: Final = Rounding()
"""Round to FP32 without a log."""
BF16: Final = Rounding(precision=MIN_PRECISION)
"""Round to bfloat16 without a log."""


def element_rounding(
    instruction: Instruction, *, precision: int, tolerances: int, direction: Direction = Direction.NONE
) -> Rounding:
    """The rounding by which a job makes an element of this instruction. The direction only matters for logged sums."""
    kind = sum_kind(instruction)
    if kind is None:
        return BF16 if instruction.is_bf16_sum else Rounding(precision=precision)
    return Rounding(precision=precision, tolerance=tolerance_of(tolerances, kind), direction=direction)


def round_sum(n: int, e: int, rounding: Rounding = NEAREST) -> int:
    """The f32 bits of the exact sum n * 2^e after rounding. A zero result is +0."""
    if rounding.direction != Direction.NONE and rounding.tolerance:
        lower, near_middle = neighbours(n, e, rounding)
        if near_middle:
            step = 1 << (MAX_PRECISION - rounding.precision)
            magnitude = lower + (step if rounding.direction == Direction.UP else 0)
            return plus_zero((SIGN if n < 0 else 0) | min(magnitude, INF))
    return plus_zero(round_f32(n, e, precision=rounding.precision))


def neighbours(n: int, e: int, rounding: Rounding) -> tuple[int, bool]:
    """The neighbour d below x = |n * 2^e|, and whether x is near the midpoint of d and u above, as in SPEC 5.1.

    Near means within 2^-tolerance of the gap u - d. d is a bit pattern without sign. An x with too
    few bits to need rounding gives (0, False).
    """
    magnitude, fraction_bits = abs(n), rounding.precision - 9
    top = max(magnitude.bit_length() + e - 1, _LEAST_EXPONENT)  # exponent of the binade of d
    shift = top - fraction_bits - e  # the gap is 2^shift units of 2^e
    if shift <= 0:
        return 0, False  # x is a number of that precision, or zero: no middle is near
    quotient, rest = magnitude >> shift, magnitude & ((1 << shift) - 1)
    pattern = (quotient << (FRACTION_BITS - fraction_bits)) + ((top - _LEAST_EXPONENT) << FRACTION_BITS)
    if pattern >= INF:
        return INF, False
    # |rest - gap / 2| <= gap / 2^tolerance, with both sides multiplied by 2^tolerance
    return pattern, abs(2 * rest - (1 << shift)) << (rounding.tolerance - 1) <= 1 << shift
