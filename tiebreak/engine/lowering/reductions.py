"""Sums, means, maxima, matrix products, softmax; cumulative sums and products; batch, instance, group and layer norm.

Of norms only the forward pass is here: backwards are traced as elementwise operators and sums.
"""

from collections.abc import Callable, Sequence
from math import inf, prod
from typing import Any, Final

from tiebreak.engine.lowering.builder import Ref, Scalar, broadcast
from tiebreak.engine.lowering.elementwise import power_of
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
    return c.b.dot(product, parts[2].expand(whole), dims) if dims else c.b.mul(product, parts[2])


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
    if (n := x.shape[d]) > _LONG:
        return _doubled(c, x, d, MapFunction.ADD)
    shape = tuple(2 * n - 1 if e == d else m for e, m in enumerate(x.shape))
    padded = c.b.window(shape, x, tuple(n - 1 if e == d else 0 for e in range(x.rank)))
    return c.b.sum(padded.unfold(d, n, n), [-1])


@lowers("cumprod.default")
def cumprod(c: Context, x: Ref, d: int, **_: Any) -> Ref:
    """Every prefix's product, by doubling: p[i] = p[i] * p[i - 2^k], k = 0, 1, ..."""
    x = c.ref(x)
    return _doubled(c, x, x.dim(d), MapFunction.MUL) if x.rank else x


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


def _inverse_deviation(c: Context, variance: Ref, eps: float) -> Ref:
    root = c.b.map(MapFunction.SQRT, c.b.add(variance, c.b.const(eps)))
    return c.b.div(c.b.const(1.0), root)


def _per_channel(x: Ref, rank: int) -> Ref:
    """Reshapes values of channels, (C,), to (1, C, 1, ...) of this rank, to be broadcast over a batch."""
    return x.unsqueeze(0).append_dims(rank - 2)


def _affine(c: Context, x: Ref, weight: Ref | None, bias: Ref | None) -> Ref:
    if weight is not None:
        x = c.b.mul(x, weight)
    return x if bias is None else c.b.add(x, bias)


def _scaled(c: Context, centred: Ref, inverse: Ref, weight: Ref | None, bias: Ref | None) -> Ref:
    """The output by channel, from the inverse deviations (C,) and the affine parameters (C,)."""
    shaped = [None if p is None else _per_channel(p, centred.rank) for p in (weight, bias)]
    return _affine(c, c.b.mul(centred, _per_channel(inverse, centred.rank)), *shaped)


def _of_batch(
    c: Context, x: Ref, weight: Ref | None, bias: Ref | None, eps: float
) -> tuple[Ref, Ref, Ref, tuple[Ref, int]]:
    """Output, mean and inverse deviation by channel (dim 1), and the sum of squares around that mean with its terms."""
    dims, count = [0, *range(2, x.rank)], prod(x.shape) // x.shape[1]
    mean = c.b.mean(x, dims)
    centred = c.b.sub(x, _per_channel(mean, x.rank))
    squares = c.b.dot(centred, centred, dims)
    inverse = _inverse_deviation(c, c.b.div(squares, c.b.const(float(count))), eps)
    return _scaled(c, centred, inverse, weight, bias), mean, inverse, (squares, count)


def _over(c: Context, x: Ref, dims: Sequence[int], eps: float) -> tuple[Ref, Ref, Ref]:
    """x normalised over some dims, its mean and its inverse deviation, which keep those dims."""
    b = c.b
    mean = b.mean(x, dims, keepdim=True)
    centred = b.sub(x, mean)
    count = float(prod(x.shape[d] for d in dims))
    inverse = _inverse_deviation(c, b.div(b.dot(centred, centred, dims, keepdim=True), b.const(count)), eps)
    return b.mul(centred, inverse), mean, inverse


@lowers("_native_batch_norm_legit_functional.default")
def batch_norm(
    c: Context, x: Ref, weight: Ref | None, bias: Ref | None, running_mean: Ref, running_var: Ref, training: bool,
    momentum: float, eps: float,
) -> tuple[Ref, Ref, Ref, Ref, Ref]:  # fmt: skip
    """Output, batch mean, inverse deviation, new running mean and (unbiased) variance."""
    if not training:
        raise NotImplementedError("batch norm that mutates its statistics outside training")
    b = c.b
    out, mean, inverse, (squares, count) = _of_batch(c, x, weight, bias, eps)
    unbiased = b.div(squares, b.const(float(max(count - 1, 1))))
    new_mean = b.add(b.scale(running_mean, 1 - momentum), b.scale(mean, momentum))
    new_var = b.add(b.scale(running_var, 1 - momentum), b.scale(unbiased, momentum))
    return out, mean, inverse, new_mean, new_var


@lowers("_native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    c: Context, x: Ref, weight: Ref | None, bias: Ref | None, mean: Ref, var: Ref, _momentum: float, eps: float
) -> tuple[Ref, Ref, Ref]:
    """Output by the running statistics; the two saved statistics are empty."""
    centred, empty = c.b.sub(x, _per_channel(mean, x.rank)), c.b.full((0,), 0.0, x.dtype)
    return _scaled(c, centred, _inverse_deviation(c, var, eps), weight, bias), empty, empty


@lowers("native_layer_norm.default")
def layer_norm(
    c: Context, x: Ref, normalized: Sequence[int], weight: Ref | None, bias: Ref | None, eps: float
) -> tuple[Ref, Ref, Ref]:
    """Output, mean and inverse deviation over the last dims."""
    normal, mean, inverse = _over(c, x, range(x.rank - len(normalized), x.rank), eps)
    return _affine(c, normal, weight, bias), mean, inverse


@lowers("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    c: Context, x: Ref, weight: Ref | None, bias: Ref | None, _training: bool, _momentum: float, eps: float
) -> tuple[Ref, Ref, Ref]:
    """Output, batch mean and inverse deviation: batch norm that keeps no running statistics, and instance norm."""
    return _of_batch(c, x, weight, bias, eps)[:3]


@lowers("native_group_norm.default")
def group_norm(
    c: Context, x: Ref, weight: Ref | None, bias: Ref | None, batch: int, channels: int, _space: int, groups: int,
    eps: float,
) -> tuple[Ref, Ref, Ref]:  # fmt: skip
    """Output, mean and inverse deviation (N, groups) over the channels of each group and space."""
    b = c.b
    normal_NGR, mean, inverse = _over(c, b.reshape(x, (batch, groups, -1)), [2], eps)
    shaped = [None if p is None else _per_channel(b.reshape(p, (channels,)), x.rank) for p in (weight, bias)]
    return _affine(c, b.reshape(normal_NGR, x.shape), *shaped), mean.squeeze([2]), inverse.squeeze([2])


@lowers("linalg_vector_norm.default")
def vector_norm(
    c: Context, x: Ref, order: float = 2, dims: Sequence[int] | None = None, keepdim: bool = False, **_: Any
) -> Ref:
    """(sum of |x|^p)^(1/p), of order 2 a square root; for inf and -inf an extreme, for 0 the number of nonzeros."""
    b = c.b
    chosen = list(dims) if dims is not None else list(range(x.rank))
    size = b.abs(x)
    if x.rank == 0 and order != 0:
        return size
    if order == 2:
        return b.map(MapFunction.SQRT, b.dot(x, x, chosen, keepdim=keepdim))
    if order == 1:
        return b.sum(size, chosen, keepdim=keepdim)
    if order == inf:
        return b.max(size, chosen, keepdim=keepdim)
    if order == 0:
        return b.sum(b.cast(b.ne(x, b.const(0.0)), DType.F32), chosen, keepdim=keepdim)
    if order == -inf:
        return b.neg(b.max(b.neg(size), chosen, keepdim=keepdim))
    if order < 0:
        raise NotImplementedError("a vector norm of a negative order other than -inf")
    return power_of(c, b.sum(power_of(c, size, order), chosen, keepdim=keepdim), 1 / order)


@lowers("dist.default")
def dist(c: Context, x: Ref, y: Ref, order: float = 2) -> Ref:
    """The vector norm of the difference."""
    return vector_norm(c, c.b.sub(c.ref(x), c.ref(y)), order)


@lowers("_cdist_forward.default")
def cdist(c: Context, x: Ref, y: Ref, order: float, _mode: int | None = None) -> Ref:
    """The vector norm of the difference of each row of one with each row of the other."""
    return vector_norm(c, c.b.sub(x.unsqueeze(-2), y.unsqueeze(-3)), order, [-1])


@lowers("_cdist_backward.default")
def cdist_backward(c: Context, grad: Ref, x: Ref, y: Ref, order: float, distances: Ref) -> Ref:
    """The exact sum, over the rows of the other, of each difference's share in its norm; 0 at a distance of 0."""
    b, zero, one = c.b, c.b.const(0.0), c.b.const(1.0)
    apart = b.sub(x.unsqueeze(-2), y.unsqueeze(-3))
    size, whole = b.abs(apart), distances.unsqueeze(-1)
    if order == 0:
        return b.full(c.shape, 0.0)
    if order == 1:
        share = one
    elif order == inf:
        share = b.where(b.eq(size, whole), one, zero)
    else:
        share = b.div(size, whole) if order == 2 else power_of(c, b.div(size, whole), order - 1)
    share = b.signed(share, apart)
    nowhere = b.either(b.eq(apart, zero), b.eq(whole, zero))
    return b.sum(b.mul(b.where(nowhere, zero, share), grad.unsqueeze(-1)), [-2])


@lowers("_weight_norm_interface_backward.default")
def weight_norm_backward(c: Context, grad: Ref, v: Ref, g: Ref, norms: Ref, d: int) -> tuple[Ref, Ref]:
    """dg = sum(grad * v) / |v| and dv = (g / |v|) * (grad - v * (dg / |v|)) over the dims other than d."""
    b = c.b
    dg = b.div(b.dot(grad, v, [e for e in range(v.rank) if e != v.dim(d)], keepdim=True), norms)
    dv = b.mul(b.div(g, norms), b.sub(grad, b.mul(v, b.div(dg, norms))))
    return dv, dg
