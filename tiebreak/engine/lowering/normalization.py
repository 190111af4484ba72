"""Batch, instance, group and layer norm, forward, and norms. Backwards are traced as elementwise operators and sums."""

from collections.abc import Sequence
from math import inf, prod
from typing import Any

from tiebreak.engine.lowering.builder import Ref
from tiebreak.engine.lowering.powers import power_of
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction


def _inverse_deviation(c: Context, variance: Ref, eps: float) -> Ref:
    root = c.b.map(MapFunction.SQRT, c.b.add(variance, c.b.const(eps)))
    return c.b.div(c.b.const(1.0), root)


def _per_channel(x: Ref, rank: int) -> Ref:
    """(C,) as (1, C, 1, ...)."""
    x = x.unsqueeze(0)
    for _ in range(rank - 2):
        x = x.unsqueeze(-1)
    return x


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
        other = b.cast(b.ne(x, b.const(0.0)), DType.F32)
        return b.sum(other, chosen, keepdim=keepdim)
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
    others = [e for e in range(v.rank) if e != v.dim(d)]
    dg = b.div(b.dot(grad, v, others, keepdim=True), norms)
    dv = b.mul(b.div(g, norms), b.sub(grad, b.mul(v, b.div(dg, norms))))
    return dv, dg
