"""Rounding of f32 sums: to nearest or, under policy `logged`, as the step's rounding log says (SPEC section 5.1).

A log can only choose between the two neighbours of a sum that lies near the midpoint between them. Elsewhere it has no
effect, so it cannot move a result away from what the exact value allows.

The tree that commits to a log (`tiebreak.protocol.commitments.log_tree`) has one place for every element that could be
logged, so nothing in it can be out of order, repeated or out of range. Log *files* can have these faults, and so can a
`StepLog` built by hand; `StepLog.check` finds them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.numbers import float32
from tiebreak.protocol.numbers.float32 import INF, SIGN, plus_zero, round_f32
from tiebreak.protocol.program.isa import DType, Instruction, Opcode
from tiebreak.protocol.program.program import Program

MIN_TOLERANCE: Final = 2
MAX_TOLERANCE: Final = 64
_LEAST_EXPONENT: Final = -126

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


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

    precision: int = float32.MAX_PRECISION
    tolerance: int = 0
    direction: Direction = Direction.NONE


NEAREST: Final = Rounding()
"""Round to FP32 without a log."""
BF16: Final = Rounding(precision=float32.MIN_PRECISION)
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
            step = 1 << (float32.MAX_PRECISION - rounding.precision)
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
    pattern = (quotient << (float32.FRACTION_BITS - fraction_bits)) + ((top - _LEAST_EXPONENT) << float32.FRACTION_BITS)
    if pattern >= INF:
        return INF, False
    # |rest - gap / 2| <= gap / 2^tolerance, with both sides multiplied by 2^tolerance
    return pattern, abs(2 * rest - (1 << shift)) << (rounding.tolerance - 1) <= 1 << shift


class LogError(VerificationError):
    """A malformed rounding log. Names the step, instruction and element as far as they are known."""

    def __init__(
        self, rule: str, *, step: int | None = None, index: int | None = None, element: int | None = None
    ) -> None:
        self.rule = rule
        self.step = step
        self.index = index
        self.element = element
        parts = (("step", step), ("instruction", index), ("element", element))
        where = ", ".join(f"{name} {number}" for name, number in parts if number is not None)
        super().__init__(f"rounding log{' of ' if where else ''}{where}: {rule}")


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """The log of one value: strictly ascending row-major element numbers, and for each whether it was rounded up."""

    elements: Integers
    up: Mask

    __hash__ = None  # type: ignore[assignment]  # arrays can change

    def __len__(self) -> int:
        return len(self.elements)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entries):
            return NotImplemented
        return np.array_equal(self.elements, other.elements) and np.array_equal(self.up, other.up)

    def directions(self) -> Iterator[tuple[int, Direction]]:
        """Each logged element with its direction."""
        for element, up in zip(self.elements.tolist(), self.up.tolist(), strict=True):
            yield element, Direction.UP if up else Direction.DOWN


@dataclass(frozen=True, slots=True)
class StepLog:
    """Entries by the index of their instruction, in ascending order; instructions without entries are left out.

    late: the bytes of the step's late data by name.
    """

    entries: Mapping[int, Entries] = field(default_factory=dict)
    late: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(map(len, self.entries.values()))

    def check(self, program: Program, step: int) -> None:
        """Raise `LogError` unless every entry names a logged sum's element of the program, in order and only once.

        The late data must be those that the program reads.
        """
        spec = program.late_spec()
        sizes = {name: dtype.size * prod(shape) for name, (dtype, shape) in spec.items()}
        bools = (self.late.get(name, b"") for name, (dtype, _) in spec.items() if dtype == DType.BOOL)
        if {name: len(data) for name, data in self.late.items()} != sizes or any(max(data) > 1 for data in bools):
            raise LogError(
                f"expected late data {', '.join(sizes) or 'of no name'} of their sizes, got others", step=step
            )
        before = -1
        for index, entries in self.entries.items():
            if index <= before:
                rule = "instruction twice" if index == before else f"expected instructions after {before} in order"
                raise LogError(rule, step=step, index=index)
            before = index
            if index >= len(program.body) or sum_kind(program.body[index]) is None:
                raise LogError("expected a sum of f32, which alone is logged", step=step, index=index)
            _check_entries(entries, program.body[index].numel, step, index)


def _check_entries(entries: Entries, numel: int, step: int, index: int) -> None:
    if not len(entries) or entries.elements.shape != entries.up.shape:
        raise LogError(
            f"expected as many directions as elements, at least one, got {len(entries)}", step=step, index=index
        )
    wrong = np.flatnonzero(np.diff(entries.elements) <= 0)
    if wrong.size:
        first, second = (int(entries.elements[wrong[0] + k]) for k in (0, 1))
        rule = "element twice" if first == second else f"unsorted: comes after element {first}"
        raise LogError(rule, step=step, index=index, element=second)
    for element in (int(entries.elements[0]), int(entries.elements[-1])):
        if not 0 <= element < numel:
            raise LogError(f"out of range: expected an element below {numel}", step=step, index=index, element=element)
