"""Naive oracles for the arithmetic tests: rationals and comparisons only, nothing shared with the code under test."""

from fractions import Fraction
from hashlib import shake_128

NAN = 0x7FC00000
INF = 0x7F800000
SIGN = 0x80000000


def value(bits: int) -> Fraction:
    sign = -1 if bits >> 31 else 1
    exponent, fraction = bits >> 23 & 255, bits & 0x7FFFFF
    assert exponent < 255
    if exponent == 0:
        return sign * Fraction(fraction) * Fraction(2) ** -149
    return sign * Fraction(2**23 + fraction) * Fraction(2) ** (exponent - 150)


def grid(precision: int) -> tuple[int, int]:
    """(step between neighbouring patterns, greatest finite pattern) of the format of `precision` bits."""
    step = 1 << (32 - precision)
    return step, INF - step


def neighbours_of(magnitude: Fraction, precision: int = 32) -> tuple[int, int]:
    """Patterns d <= magnitude < u of the format, by bisection; infinity is the last, and above 2^128 both."""
    step, _ = grid(precision)
    low, high = 0, INF // step + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle * step) <= magnitude else (low, middle)
    return low * step, min(high * step, INF)


def size(bits: int) -> Fraction:
    """The magnitude of a pattern; that of infinity is 2^128."""
    return Fraction(2) ** 128 if bits == INF else value(bits)


def nearest(exact: Fraction, precision: int = 32) -> int:
    """RN, ties to even; exact zero is +0, overflow infinity."""
    d, u = neighbours_of(abs(exact), precision)
    twice, middle = 2 * abs(exact), size(d) + size(u)
    up = twice > middle or (twice == middle and d // grid(precision)[0] % 2 == 1)
    return (SIGN if exact < 0 else 0) | (u if up else d)


class Stream:
    """Reproducible test inputs out of SHAKE-128; no global random state."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def bits(self, width: int) -> int:
        self._count += 1
        raw = shake_128(f"{self._name}/{self._count}".encode()).digest(width // 8 + 1)
        return int.from_bytes(raw, "big") >> 8 - width % 8

    def below(self, bound: int) -> int:
        return self.bits(64) % bound
