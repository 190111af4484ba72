"""Sums, means, maxima, matrix products, softmax; cumulative sums and products."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

from tiebreak.engine.lowering.builder import Ref, Scalar, broadcast
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction, ReduceFunction

Order = Callable[[Context, Ref], Ref]


def _dims(x: Ref, dims: Sequence[int] | int | None) -> Sequence[int]:
    chosen = [dims] if isinstance(dims, int) else list(dims or [])
    return chosen or list(range(x.rank))


@lowers("sum.dim_IntList")
def sum_(c: Context, x: Ref, dims: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> Ref:
    """Exact sum; of bools and integers an i64."""
    x = c.ref(x)
    return c.b.sum(x, _dims(x, dims), keepdim=keepdim)


@lowers("mean.dim", "mean.default")
def mean(c: Context, x: Ref, dims: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> Ref:
    """Sum, then a division."""
    return c.b.mean(x, _dims(x, dims), keepdim=keepdim) if x.rank else x


def ordered(c: Context, x: Ref) -> Ref:
    """x as numbers: bools have no order of their own."""
    return c.b.cast(x, DType.I64) if x.dtype == DType.BOOL else x


def backwards(c: Context, x: Ref) -> Ref:
    """x in reversed order: -x, or -1 - x of integers, whose least has no negative."""
    x = ordered(c, x)
    return c.b.neg(x) if x.dtype == DType.F32 else c.b.sub(c.b.const(-1, x.dtype), x)


@lowers("min.default", "amin.default", order=backwards)
@lowers("max.default", "amax.default", order=ordered)
def extreme(c: Context, x: Ref, dims: Sequence[int] | None = None, keepdim: bool = False, *, order: Order) -> Ref:
    """Greatest, or (min) least: the greatest in reversed order."""
    return c.ref(order(c, c.b.max(order(c, x), _dims(x, dims), keepdim=keepdim)))


@lowers("argmin.default", order=backwards)
@lowers("argmax.default", order=ordered)
def position(c: Context, x: Ref, d: int | None = None, keepdim: bool = False, *, order: Order) -> Ref:
    """First index of the greatest, or (argmin) of the least."""
    return c.b.reduce_dims(ReduceFunction.ARGMAX, _dims(x, d), order(c, x), keepdim=keepdim)


@lowers("min.dim", order=backwards)
@lowers("max.dim", order=ordered)
def extreme_and_position(c: Context, x: Ref, d: int, keepdim: bool = False, *, order: Order) -> tuple[Ref, Ref]:
    """Greatest, or (min) least, and its first index."""
    x = order(c, x)
    values = order(c, c.b.max(x, [d], keepdim=keepdim))
    return c.ref(values), c.b.reduce_dims(ReduceFunction.ARGMAX, [d], x, keepdim=keepdim)


@lowers("any.dim", "any.default", "any.dims")
def any_(c: Context, x: Ref, dims: Sequence[int] | int | None = None, keepdim: bool = False) -> Ref:
    """Whether any element is true."""
    if 0 in x.shape:
        return c.b.full(c.shape, False, DType.BOOL)
    counts = c.b.cast(c.b.cast(x, DType.BOOL), DType.I64)
    return c.b.cast(c.b.max(counts, _dims(x, dims), keepdim=keepdim), DType.BOOL)


@lowers("var_mean.correction")
def var_mean(
    c: Context, x: Ref, dims: Sequence[int] | None = None, *, correction: Scalar | None = None, keepdim: bool = False
) -> tuple[Ref, Ref]:
    """Variance (divided by n - correction) and mean."""
    chosen = _dims(x, dims)
    average = c.b.mean(x, chosen, keepdim=True)
    centred = c.b.sub(x, average)
    squares = c.b.dot(centred, centred, chosen, keepdim=keepdim)
    count = prod(x.shape) // max(1, prod(squares.shape))
    divisor = max(0, count - (1 if correction is None else correction))
    flat = average if keepdim else average.squeeze(chosen)
    return c.b.div(squares, c.b.const(float(divisor))), flat


@lowers("var.correction")
def var(
    c: Context, x: Ref, dims: Sequence[int] | None = None, *, correction: Scalar | None = None, keepdim: bool = False
) -> Ref:
    """Variance (divided by n - correction)."""
    return var_mean(c, x, dims, correction=correction, keepdim=keepdim)[0]


@lowers("mm.default", "bmm.default")
def matmul(c: Context, a: Ref, b: Ref) -> Ref:
    """A product of matrices, or of batches of them."""
    return c.b.matmul(a, b)


@lowers("addmm.default", "addmv.default", "addbmm.default")
def addmm(c: Context, bias: Ref, x: Ref, y: Ref, *, beta: Scalar = 1, alpha: Scalar = 1) -> Ref:
    """beta * bias + alpha * (x @ y), or (addbmm) times the sum of all products: it is rounded before the sum."""
    if y.rank == 1:
        product = c.b.einsum("mk,k->m|k", x, y)
    else:
        product = c.b.matmul(x, y) if len(c.shape) == x.rank else c.b.einsum("bmk,bkn->mn|bk", x, y)
    if alpha != 1:
        product = c.b.scale(product, alpha)
    if beta == 0:
        return product
    return c.b.add(product, bias if beta == 1 else c.b.scale(bias, beta))


@lowers("_trilinear.default")
def trilinear(
    c: Context, x: Ref, y: Ref, z: Ref, of_x: Sequence[int], of_y: Sequence[int], of_z: Sequence[int],
    dims: Sequence[int], _unroll: int = 1,
) -> Ref:  # fmt: skip
    """The exact sum over some dims of (x * y) * z, each with new dims of its own; the first product is rounded."""
    parts = []
    for part, new in ((x, of_x), (y, of_y), (z, of_z)):
        for d in sorted(new):
            part = part.unsqueeze(d)
        parts.append(part)
    whole = broadcast(*(part.shape for part in parts))
    product = c.b.mul(parts[0], parts[1]).expand(whole)
    if not dims:
        return c.b.mul(product, parts[2])
    return c.b.dot(product, parts[2].expand(whole), dims)


def _shifted(c: Context, x: Ref, d: int) -> Ref:
    return c.b.sub(x, c.b.max(x, [d], keepdim=True))


@lowers("_softmax.default")
def softmax(c: Context, x: Ref, d: int, _half_to_float: bool = False) -> Ref:
    """exp(x - max) / sum."""
    powers = c.b.map(MapFunction.EXP, _shifted(c, x, d))
    return c.b.div(powers, c.b.sum(powers, [d], keepdim=True))


@lowers("_log_softmax.default")
def log_softmax(c: Context, x: Ref, d: int, _half_to_float: bool = False) -> Ref:
    """(x - max) - log(sum(exp(x - max)))."""
    shifted = _shifted(c, x, d)
    total = c.b.sum(c.b.map(MapFunction.EXP, shifted), [d], keepdim=True)
    return c.b.sub(shifted, c.b.map(MapFunction.LOG, total))


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
    if x.dtype != DType.F32:
        return prefix_sums(c, x, d)
    place = c.b.iota((x.shape[d],), (1,))
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
def product(c: Context, x: Ref, d: int | None = None, _keepdim: bool = False, **_: Any) -> Ref:
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
