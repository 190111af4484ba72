"""Cumulative sums and products."""

from typing import Any, Final

from tiebreak.engine.lowering.builder import Ref
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction

_LONG: Final = 1024
"""Sums of more integers go by doubling: n log n terms instead of n^2."""


@lowers("cumsum.default")
def cumsum(c: Context, x: Ref, d: int, **_: Any) -> Ref:
    """Every prefix's exact sum, one reduction: a product with a triangle of ones.

    An i64 is summed over windows of a padded x or, with more than 1,024 elements, by doubling as products are.
    """
    x = c.ref(x)
    if x.rank == 0:
        return x
    d = x.dim(d)
    return _prefixes(c, x, d) if x.dtype == DType.F32 else prefix_sums(c, x, d)


def _prefixes(c: Context, x: Ref, d: int) -> Ref:
    n = x.shape[d]
    place = c.b.iota((n,), (1,))
    ones = c.b.cast(c.b.le(place, place.unsqueeze(1)), DType.F32)
    dims = "abcdefgh"[: x.rank]
    return c.b.einsum(f"{dims.replace(dims[d], 'i')},{dims[d]}i->{dims}|i", x, ones)


def prefix_sums(c: Context, x: Ref, d: int) -> Ref:
    """Every prefix's sum along dim d of an i64, which wraps."""
    n = x.shape[d]
    if n > _LONG:
        return _doubled(c, x, d, MapFunction.ADD)
    shape = tuple(2 * n - 1 if e == d else m for e, m in enumerate(x.shape))
    padded = c.b.window(shape, x, tuple(n - 1 if e == d else 0 for e in range(x.rank)))
    return c.b.sum(padded.unfold(d, n, n), [-1])


@lowers("cumprod.default")
def cumprod(c: Context, x: Ref, d: int, **_: Any) -> Ref:
    """Every prefix's product, by doubling: p[i] = p[i] * p[i - 2^k], k = 0, 1, ..."""
    x = c.ref(x)
    if x.rank == 0:
        return x
    return _doubled(c, x, x.dim(d), MapFunction.MUL)


def _doubled(c: Context, x: Ref, d: int, function: MapFunction) -> Ref:
    """Every prefix's sum or product (`ADD` or `MUL`): of 1 element, then of 2, of 4, and so on."""
    n, step = x.shape[d], 1
    while step < n:
        lo = tuple(step if e == d else 0 for e in range(x.rank))
        before = c.b.window(x.shape, x.slice(d, 0, n - step), lo, fill=int(function == MapFunction.MUL))
        x = c.b.map(function, x, before)
        step *= 2
    return x


@lowers("prod.dim_int", "prod.default")
def prod(c: Context, x: Ref, d: int | None = None, _keepdim: bool = False, **_: Any) -> Ref:
    """The product along a dim (or of all), by halves: the first half times the second, the odd one kept for later."""
    x = c.ref(x)
    if d is None or not x.rank:
        x, d = c.b.reshape(x, (-1,)), 0
    if 0 in x.shape:
        return c.b.full(c.shape, 1, x.dtype)
    return c.b.reshape(halved(c, x, x.dim(d)), c.shape)


def halved(c: Context, x: Ref, d: int) -> Ref:
    """The product along dim d, which keeps size 1."""
    while (n := x.shape[d]) > 1:
        half = n // 2
        product = c.b.mul(x.slice(d, 0, half), x.slice(d, half, 2 * half))
        x = c.b.cat([product, x.slice(d, 2 * half, n)], d) if n % 2 else product
    return x
