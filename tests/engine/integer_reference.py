"""Exact products, and what docs/kernels.md says about them, in Python integers: the oracle of products by integers."""

from collections.abc import Callable
from fractions import Fraction
from math import frexp, isqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.engine.arithmetic_cases import matmul
from tiebreak.engine.arithmetic import Arithmetic, Counts
from tiebreak.protocol.numbers.float32 import plus_zero, round_ratio

Matrix = NDArray[np.float32]
UNIT = 149
"""Every finite f32 is an integer times 2^-149."""


def integers_of(x: Matrix) -> NDArray[Any]:
    """The matrix times 2^149, as Python integers."""
    numbers = [Fraction(float(v)) * 2**UNIT for v in x.ravel()]
    return np.array([int(n) for n in numbers], object).reshape(x.shape)


def exact_product(a: Matrix, b: Matrix, precision: int) -> NDArray[np.uint32]:
    """The bits of the product of finite matrices, each element rounded once."""
    sums = integers_of(a).dot(integers_of(b))
    bits = [plus_zero(round_ratio(int(s), 1 << 2 * UNIT, precision=precision)) for s in sums.ravel()]
    return np.array(bits, np.uint32).reshape(sums.shape)


def multiply(a: Matrix, b: Matrix, precision: int = 32, permute: int | None = None) -> tuple[Any, Counts]:
    """The bits of a product by the engine, and what it counted."""
    arithmetic = Arithmetic(precision=precision, permute=permute)
    operands = [torch.from_numpy(np.ascontiguousarray(x)).view(-1) for x in (a, b)]
    found = arithmetic.execute(matmul(len(a), a.shape[1], b.shape[1]), operands, 0)
    bits = found.view(torch.int32).numpy().view(np.uint32).reshape(len(a), b.shape[1])
    return bits, arithmetic.stats.of("reduce.sum.products")


def check_non_finite(m: int, k: int, n: int) -> int:
    """Infinite factors and NaN make their own rows and columns NaN, also times zeros, and change no others."""
    a, b = factors("gauss", m, k, n)
    b[:, 11] = 0
    want = exact_product(a, b, 32)
    a[1, 3], a[2, 4], b[5, 7] = np.inf, np.nan, -np.inf
    found, _ = multiply(a, b)
    nan = np.zeros_like(found, bool)
    nan[1] = nan[2] = nan[:, 7] = True
    assert np.array_equal(found[~nan], want[~nan])
    assert np.isnan(found.view(np.float32)[nan]).all()
    return found.size


class Scaled:
    """A row's numbers times the greatest power of two with which the norm stays below a reach, cut to integers."""

    def __init__(self, row: Matrix, reach: int) -> None:
        exact = [Fraction(float(v)) for v in row]
        norm = sum(v * v for v in exact)
        room = reach - isqrt(len(row)) // 2 - 2
        self.exponent = frexp(room)[1] - (frexp(float(norm))[1] // 2 if norm else 0) + 2
        while norm * Fraction(4) ** self.exponent > room * room:
            self.exponent -= 1
        scale = Fraction(2) ** self.exponent
        self.integers = [round(v * scale) for v in exact]
        self.cut = [v * scale - n for v, n in zip(exact, self.integers, strict=True)]


def squares(x: list[Any]) -> Fraction:
    return Fraction(sum(v * v for v in x))


def _gauss(r: np.random.Generator, m: int, k: int) -> Matrix:
    return r.standard_normal((m, k)).astype(np.float32)


def _wide(r: np.random.Generator, m: int, k: int) -> Matrix:
    return np.ldexp(_gauss(r, m, k), r.integers(-60, 60, (m, k))).astype(np.float32)


def _huge(r: np.random.Generator, m: int, k: int) -> Matrix:
    x = _gauss(r, m, k)
    x[:, k // 3] = 2.0**60
    x[m // 2 :, k // 3] *= 2.0**40
    return x


def _zeros(r: np.random.Generator, m: int, k: int) -> Matrix:
    x = _gauss(r, m, k)
    x[::2] = 0
    x[1::4, 1:] = -0.0
    return x


def _ties(r: np.random.Generator, m: int, k: int) -> Matrix:
    """Sums midway between two f32 numbers; a little more in some rows, and less than integers hold in others.

    What is more has up to 35 bits here, and 55 with the last column of `factors`.
    """
    x = np.zeros((m, k), np.float32)
    x[:, 0] = 1 + r.integers(0, 8, m) * 2.0**-23
    x[:, k // 2] = 2.0**-24
    x[1::3, k - 1] = np.ldexp(1.0, -r.integers(25, 36, len(x[1::3])))
    x[2::3, k - 1] = -(2.0**-60)
    return x


def _cancelling(r: np.random.Generator, m: int, k: int) -> Matrix:
    x = _gauss(r, m, k)
    x[:, k // 2 : k // 2 * 2] = -x[:, : k // 2]
    return x


HOSTILE: dict[str, Callable[[np.random.Generator, int, int], Matrix]] = {
    "gauss": _gauss,
    "positive": lambda r, m, k: r.random((m, k)).astype(np.float32),
    "lognormal": lambda r, m, k: np.exp(2 * r.standard_normal((m, k))).astype(np.float32),
    "heavy tails": lambda r, m, k: r.standard_t(1.5, (m, k)).astype(np.float32),
    "huge": _huge,
    "zeros": _zeros,
    "subnormal": lambda r, m, k: (r.integers(-1 << 20, 1 << 20, (m, k)) * 2.0**-149).astype(np.float32),
    "wide": _wide,
    "ties": _ties,
    "small integers": lambda r, m, k: r.integers(-100, 100, (m, k)).astype(np.float32),
    "cancelling": _cancelling,
    "overflowing": lambda r, m, k: np.full((m, k), 2.0**100, np.float32) * r.choice([-1, 1], (m, 1)).astype(np.float32),
}
"""Rows of a kind, by name: (source of numbers, rows, terms)."""


def factors(kind: str, m: int, k: int, n: int) -> tuple[Matrix, Matrix]:
    """A of a kind, and B: of the same kind, but where sums of products are to be ties or to cancel."""
    r = np.random.default_rng(m * k * n)
    a = HOSTILE[kind](r, m, k)
    if kind in ("ties", "subnormal"):
        b = np.ones((k, n), np.float32)
        b[k - 1, ::2] = 2.0**-20
        return a, b
    if kind == "cancelling":
        b = _gauss(r, n, k)
        b[:, k // 2 : k // 2 * 2] = b[:, : k // 2]
        return a, np.ascontiguousarray(b.T)
    return a, np.ascontiguousarray(HOSTILE["gauss" if kind == "huge" else kind](r, n, k).T)
