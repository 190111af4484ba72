"""The moduli of products by integers, and the numbers that follow from them alone.

docs/kernels.md explains and proves what is computed with them.
"""

from fractions import Fraction
from math import ceil, isqrt, prod
from typing import Final

MODULI: Final = (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217)
"""Coprime in pairs. A sum takes the first few of them."""
LONG: Final = 4000
"""The number of terms from which on one more modulus pays."""
SHORT: Final = 64
"""The number of terms up to which one modulus less does."""
MOST_TERMS: Final = 1 << 22
"""The most terms: a bound of the proof that leaves room."""
PAYS: Final = 0.9
"""Integers compute a product if they take at most this part of the cycles of FP64."""
START: Final = 1 << 30
"""The first value of a sum of products of residues, by which it is never negative."""


def count_of(terms: int, precision: int) -> int:
    """The number of moduli for sums of `terms` terms, rounded to b bits: 11 for FP32, 7 for bfloat16."""
    return 7 + ceil((precision - 16) / 4) + (terms > LONG) - (precision == 32 and terms <= SHORT)


def round_up(size: int, step: int) -> int:
    """The least multiple of `step` that is not below `size`."""
    return ceil(size / step) * step


class Moduli:
    """The first `count` moduli. Raises `ValueError` if they are not coprime in pairs."""

    def __init__(self, count: int) -> None:
        self.count, self.numbers = count, MODULI[:count]
        self.product = prod(self.numbers)
        """The product of the moduli, P in docs/kernels.md: sums are computed modulo this number."""
        self.reach = isqrt(self.product // 2) * (1 - 2.0**-20)
        """The most that the norm of a row of integers may be: two of them have sums of products within P / 2."""
        self.weights = [pow(self.product // m, -1, m) for m in self.numbers]
        """v of each modulus m: the inverse of P / m modulo m."""

    def fractions(self, bits: int) -> tuple[int, ...]:
        """The fraction v / m of each modulus, cut to `bits` bits."""
        return tuple((v << bits) // m for v, m in zip(self.weights, self.numbers, strict=True))

    def offset(self, sums: int, bits: int) -> int:
        """The fraction that `START` adds in `sums` sums of each modulus, cut once to `bits` bits."""
        total = sum(map(Fraction, self.weights, self.numbers), Fraction(0))
        return int(START * sums * total % 1 * (1 << bits))
