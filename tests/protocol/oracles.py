"""Naive oracles for the arithmetic tests: rationals and comparisons only, nothing shared with the code under test."""

from fractions import Fraction
from hashlib import shake_128

NAN = 0x7FC00000
INF = 0x7F800000
SIGN = 0x80000000


def value(bits: int) -> Fraction:
    """The exact value of a finite f32."""
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


def nearest(exact: Fraction, precision: int = 32) -> int:
    """RN, ties to even, by bisection over the patterns of the format; exact zero is +0, overflow infinity."""
    sign = SIGN if exact < 0 else 0
    exact = abs(exact)
    step, _ = grid(precision)
    low, high = 0, INF // step  # the answer is among low * step ... high * step; infinity stands for 2^128
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if value(middle * step) <= exact else (low, middle)
    above = Fraction(2) ** 128 if high * step == INF else value(high * step)
    midpoint = (value(low * step) + above) / 2
    up = exact > midpoint or (exact == midpoint and low % 2 == 1)
    bits = (high if up else low) * step
    return sign | bits


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
