"""Batch norm and layer norm, forward. Their backward is traced as elementwise operators and sums."""

from collections.abc import Sequence
from math import prod

from engine.builder import Ref
from engine.lowering.registry import Context, lowers
from protocol.isa import MapFunction


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


@lowers("_native_batch_norm_legit_functional.default")
def batch_norm(
    c: Context,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    running_mean: Ref,
    running_var: Ref,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Ref, Ref, Ref, Ref, Ref]:
    """Output, batch mean, inverse deviation, new running mean and (unbiased) variance."""
    if not training:
        raise NotImplementedError("batch norm that mutates its statistics outside training")
    b = c.b
    dims = [0, *range(2, x.rank)]
    count = prod(x.shape) // x.shape[1]
    mean = b.mean(x, dims)
    centred = b.sub(x, _per_channel(mean, x.rank))
    squares = b.dot(centred, centred, dims)
    variance = b.div(squares, b.const(float(count)))
    inverse = _inverse_deviation(c, variance, eps)
    shaped = [None if p is None else _per_channel(p, x.rank) for p in (weight, bias)]
    out = _affine(c, b.mul(centred, _per_channel(inverse, x.rank)), shaped[0], shaped[1])
    unbiased = b.div(squares, b.const(float(max(count - 1, 1))))
    new_mean = b.add(b.scale(running_mean, 1 - momentum), b.scale(mean, momentum))
    new_var = b.add(b.scale(running_var, 1 - momentum), b.scale(unbiased, momentum))
    return out, mean, inverse, new_mean, new_var


@lowers("_native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    c: Context, x: Ref, weight: Ref | None, bias: Ref | None, mean: Ref, var: Ref, _momentum: float, eps: float
) -> tuple[Ref, Ref, Ref]:
    """Output by the running statistics; the two saved statistics are unused."""
    inverse = _inverse_deviation(c, var, eps)
    shaped = [None if p is None else _per_channel(p, x.rank) for p in (weight, bias)]
    centred = c.b.sub(x, _per_channel(mean, x.rank))
    return _affine(c, c.b.mul(centred, _per_channel(inverse, x.rank)), shaped[0], shaped[1]), mean, inverse


@lowers("native_layer_norm.default")
def layer_norm(
    c: Context, x: Ref, normalized: Sequence[int], weight: Ref | None, bias: Ref | None, eps: float
) -> tuple[Ref, Ref, Ref]:
    """Output, mean and inverse deviation over the last dims."""
    b = c.b
    dims = list(range(x.rank - len(normalized), x.rank))
    mean = b.mean(x, dims, keepdim=True)
    centred = b.sub(x, mean)
    variance = b.div(b.dot(centred, centred, dims, keepdim=True), b.const(float(prod(normalized))))
    inverse = _inverse_deviation(c, variance, eps)
    return _affine(c, b.mul(centred, inverse), weight, bias), mean, inverse
