"""Roundings as the contract's referee takes them, and sums at the edges of what a rounding log decides (SPEC 5.1)."""

import random
from typing import Final

from tests.protocol.instructions import reduced, scattered
from tiebreak.protocol.numbers.float32 import INF, MAX_PRECISION, MIN_PRECISION, decode, round_f32
from tiebreak.protocol.program.accumulator import SUM_EXPONENT
from tiebreak.protocol.program.isa import Access, DType, Instruction
from tiebreak.protocol.program.reference import pack
from tiebreak.protocol.program.rounding import MAX_TOLERANCE, MIN_TOLERANCE, Direction, Rounding

FOUR: Final = 4
"""Terms of an element that is computed at once, at most."""
_SCALE: Final = 60
Term = tuple[int, int]
"""n and e of a number n * 2^e."""


def any_rounding(rng: random.Random) -> int:
    """Packed: any precision; a tolerance and a code as often as not; also the code 3, which means nothing."""
    precision = rng.randrange(MIN_PRECISION, MAX_PRECISION + 1)
    tolerance = rng.choice((0, MIN_TOLERANCE, 3, 4, rng.randrange(MIN_TOLERANCE, MAX_TOLERANCE + 1), MAX_TOLERANCE))
    return precision | tolerance << 8 | rng.choice((0, 1, 1, 1, 2, 2, 2, 3)) << 16


def no_rounding(rng: random.Random) -> int:
    """Packed: one field out of range, or something above them all."""
    good = any_rounding(rng)
    return rng.choice(
        (
            good & ~0xFF | rng.choice((0, 1, MIN_PRECISION - 1, MAX_PRECISION + 1, 255)),
            good & ~0xFF00 | rng.choice((1, MAX_TOLERANCE + 1, 128, 255)) << 8,
            good | 1 << rng.randrange(18, 32),
        )
    )


def unpacked(packed: int) -> Rounding | None:
    """What it says; None if it is none."""
    precision, tolerance, code = packed & 0xFF, packed >> 8 & 0xFF, packed >> 16
    is_tolerance = tolerance == 0 or MIN_TOLERANCE <= tolerance <= MAX_TOLERANCE
    if not MIN_PRECISION <= precision <= MAX_PRECISION or not is_tolerance or code > 3:
        return None
    direction = Direction(code) if code <= Direction.UP else Direction.NONE
    return Rounding(precision=precision, tolerance=tolerance, direction=direction)


def edge(rng: random.Random, packed: int, most: int = INF) -> list[Term]:
    """Four numbers whose sum lies at, or next to, an end of what the log decides, or the middle between two numbers.

    d is below `most`; the last number is 0 or so small that only an exact sum sees it.
    """
    step = 1 << MAX_PRECISION - (packed & 0xFF)
    tolerance = (packed >> 8 & 0xFF) or rng.randrange(MIN_TOLERANCE, MAX_TOLERANCE + 1)
    places = (rng.randrange(most), rng.randrange(most), rng.randrange(1 << 24), most - 1 - rng.randrange(1 << 17))
    binade = rng.randrange(1, most >> 23) << 23
    d = rng.choice((*places, binade, binade - 1)) // step * step
    n, e = decode(d)
    gap = max(d >> 23, 1) - 150 + MAX_PRECISION - (packed & 0xFF)  # the exponent of u - d
    end = (rng.choice((-1, 0, 1, 1, -1)), gap - tolerance)
    little = (rng.choice((-1, 0, 0, 1)), rng.choice((SUM_EXPONENT, gap - tolerance - 1, -149 - _SCALE)))
    sign = rng.choice((-1, 1))
    return [(sign * m, at) for m, at in ((n, e), (1, gap - 1), end, little)]


def edge_sum(rng: random.Random, packed: int) -> int:
    """Such a sum in units of the accumulator's."""
    return sum(n << e - SUM_EXPONENT for n, e in edge(rng, packed))


def edge_instruction(rng: random.Random, packed: int) -> tuple[Instruction, list[tuple[DType, tuple[int, ...], bytes]]]:
    """Such a sum as an element of each kind of logged sum, and its operands' tensors."""
    kind = rng.choice(("plain", "products", "scatter"))
    # As products of 2^-60 also sums around subnormal numbers have terms that f32 can hold.
    scale = rng.choice((0, _SCALE)) if kind == "products" else 0
    terms = edge(rng, packed, most=(127 + 60) << 23 if scale else INF)
    held = [round_f32(n, e + scale) for n, e in terms]  # exact, but for what is far below all others
    rng.shuffle(held)
    tensors: list[tuple[DType, tuple[int, ...], bytes]] = [(DType.F32, (FOUR,), pack(DType.F32, held))]
    if kind == "products":
        tensors.append((DType.F32, (FOUR,), pack(DType.F32, [(127 - scale) << 23] * FOUR)))
    if kind == "scatter":
        tensors.append((DType.I64, (FOUR,), pack(DType.I64, [0] * FOUR)))
    operands = [Access(k, 0, (0, 1)) for k in range(len(tensors))]
    if kind == "scatter":
        return scattered((1,), (FOUR,), *operands, match=(1,)), tensors
    return reduced(DType.F32, (1,), (FOUR,), *operands), tensors
