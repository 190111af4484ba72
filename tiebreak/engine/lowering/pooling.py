"""Pooling in one, two and three dims: reductions over overlapping windows.

Shapes are (lead..., space...); the number of spatial dims is that of the kernel.
"""

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import Any

from tiebreak.engine.lowering import convolution, resampling
from tiebreak.engine.lowering.builder import Ref
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction, ReduceFunction, row_major

Sizes = tuple[int, ...]


def _padded_windows(
    c: Context, x: Ref, out: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, fill: float
) -> Ref:
    """A view (lead, out, kernel) of x, padded with `fill` as far as the last window reaches."""
    rank = len(kernel)
    lead, space = x.shape[:-rank], x.shape[-rank:]
    reach = [(o - 1) * s + (k - 1) * e + 1 for o, s, k, e in zip(out, stride, kernel, dilation, strict=True)]
    if (sizes := tuple(max(n + p, r) for n, p, r in zip(space, padding, reach, strict=True))) != space:
        x = c.b.window((*lead, *sizes), x, (*(0 for _ in lead), *padding), fill=fill)
    return convolution.windows(x, out, kernel, stride, dilation)


@lowers("max_pool2d_with_indices.default", rank=2)
@lowers("max_pool3d_with_indices.default", rank=3)
def max_pool(
    c: Context, x: Ref, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), _ceil_mode: bool = False, *, rank: int,
) -> tuple[Ref, Ref]:  # fmt: skip
    """Greatest of each window, and its first index in the input's space; two reductions over overlapping windows."""
    k, s, p, e = (convolution.spread(sizes, rank) for sizes in (kernel, stride or kernel, padding, dilation))
    least = float("-inf") if x.dtype == DType.F32 else -(1 << 63)
    view = _padded_windows(c, x, c.shape[-rank:], k, s, p, e, least)
    space = row_major(x.shape[-rank:])
    strides = (*(0 for _ in c.shape[:-rank]), *(a * n for a, n in zip(s, space, strict=True)))
    corner = c.b.iota(c.shape, strides, -sum(a * n for a, n in zip(p, space, strict=True)))
    return _greatest(c, view, k, corner, [a * n for a, n in zip(e, space, strict=True)])


def _greatest(c: Context, view: Ref, kernel: Sizes, corner: Ref, steps: Sequence[int]) -> tuple[Ref, Ref]:
    """The maximum of each window of a view (..., kernel), and its index: corner + sum of kernel coordinates * steps."""
    b = c.b
    dims, access = view.shape[: -len(kernel)], view.access()
    values = b.reduce(ReduceFunction.MAX, dims, kernel, access, dtype=view.dtype)
    rest = b.reduce(ReduceFunction.ARGMAX, dims, kernel, access, dtype=DType.I64)
    index = corner
    for size, step in zip(reversed(kernel), reversed(steps), strict=True):
        width = b.i64(size)
        coordinate = b.map(MapFunction.MOD, rest, width)
        rest = b.map(MapFunction.FLOORDIV, rest, width)
        index = b.add(index, coordinate if step == 1 else b.mul(coordinate, b.i64(step)))
    return values, index


@lowers("max_pool2d_with_indices_backward.default", "adaptive_max_pool2d_backward.default", rank=2)
@lowers("max_pool3d_with_indices_backward.default", "adaptive_max_pool3d_backward.default", rank=3)
def max_pool_backward(c: Context, grad: Ref, x: Ref, *arguments: Any, rank: int) -> Ref:
    """Each gradient goes to the element that its window chose."""
    return c.b.put(grad, arguments[-1], x.shape, range(x.rank - rank, x.rank))


def _outer(c: Context, parts: Sequence[Ref]) -> Ref:
    """The outer product of vectors (A,), (B,), ... as (A, B, ...)."""
    return reduce(lambda product, part: c.b.mul(product.unsqueeze(-1), part), parts)


def _divisor(
    c: Context, out: Sizes, space: Sizes, k: Sizes, s: Sizes, p: Sizes, counts_padding: bool, fixed: int | None
) -> Ref:
    """The divisor of each window, f32, by torch's rule: parts beyond the padding never count."""
    if fixed is not None:
        return c.b.const(float(fixed))
    inside = all(
        (o - 1) * b + a <= n + (2 * q if counts_padding else 0) and (counts_padding or q == 0)
        for o, n, a, b, q in zip(out, space, k, s, p, strict=True)
    )
    if inside:
        return c.b.const(float(prod(k)))
    counts = []
    for o, n, a, b, q in zip(out, space, k, s, p, strict=True):
        low, high = (-q, n + q) if counts_padding else (0, n)
        end = c.b.clamp(c.b.iota((o,), (b,), a - q), low, n + q)
        first = c.b.clamp(c.b.iota((o,), (b,), -q), low, high)
        counts.append(c.b.sub(c.b.map(MapFunction.MIN, end, c.b.i64(high)), first))
    return c.b.cast(_outer(c, counts), DType.F32)


@lowers("avg_pool2d.default", rank=2)
@lowers("avg_pool3d.default", rank=3)
def avg_pool(
    c: Context, x: Ref, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    _ceil_mode: bool = False, count_include_pad: bool = True, divisor: int | None = None, *, rank: int,
) -> Ref:  # fmt: skip
    """Sum of each window, divided by its size."""
    k, s, p = (convolution.spread(sizes, rank) for sizes in (kernel, stride or kernel, padding))
    out, space = c.shape[-rank:], x.shape[-rank:]
    count = _divisor(c, out, space, k, s, p, count_include_pad, divisor)
    for d, (o, n, a, q) in enumerate(zip(out, space, k, p, strict=True)):
        if o == 1 and a - q > n:  # one window, larger than the space: only what is inside is read
            k, p = (*k[:d], n, *k[d + 1 :]), (*p[:d], 0, *p[d + 1 :])
    view = _padded_windows(c, x, out, k, s, p, (1,) * rank, 0.0)
    return c.b.div(c.b.reduce(ReduceFunction.SUM, c.shape, k, view.access()), count)


@lowers("avg_pool2d_backward.default", rank=2)
@lowers("avg_pool3d_backward.default", rank=3)
def avg_pool_backward(
    c: Context, grad: Ref, x: Ref, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    _ceil_mode: bool = False, count_include_pad: bool = True, divisor: int | None = None, *, rank: int,
) -> Ref:  # fmt: skip
    """Each element gets the sum of the shares of the windows that hold it: a convolution's gradient, with ones."""
    k, s, p = (convolution.spread(sizes, rank) for sizes in (kernel, stride or kernel, padding))
    share = c.b.div(grad, _divisor(c, grad.shape[-rank:], x.shape[-rank:], k, s, p, count_include_pad, divisor))
    return _summed_windows(c, share, x.shape, k, s, p)


def _summed_windows(c: Context, share: Ref, shape: Sizes, k: Sizes, s: Sizes, p: Sizes) -> Ref:
    """The sum, for each element of `shape`, of the shares of the windows that contain it."""
    rank = len(k)
    lead, space = shape[:-rank], shape[-rank:]
    out = share.shape[-rank:]
    if k == s and not any(p):  # windows side by side: each element is in at most one
        for d in range(rank):
            share = share.unsqueeze(len(lead) + 2 * d + 1)
        apart = [n for o, a in zip(out, k, strict=True) for n in (o, a)]
        tiled = c.b.reshape(share.expand((*lead, *apart)), (*lead, *(o * a for o, a in zip(out, k, strict=True))))
        for d, n in enumerate(space):
            tiled = tiled.slice(len(lead) + d, 0, n)
        return tiled if tiled.shape == shape else c.b.window(shape, tiled, (0,) * len(shape))
    ones = c.b.full((1, 1, *k), 1.0)
    flat = c.b.reshape(share, (prod(lead), 1, *out))
    found = convolution.input_gradient(c, flat, ones, (prod(lead), 1, *space), s, p, (1,) * rank, 1)
    return c.b.reshape(found, shape)


def _bounds(c: Context, size: int, out: int) -> tuple[Ref, Ref]:
    """The first element of each of `out` adaptive windows over `size` elements, and the last plus 1; i64 (out,)."""
    count = c.b.i64(out)
    first = c.b.map(MapFunction.FLOORDIV, c.b.iota((out,), (size,)), count)
    return first, c.b.map(MapFunction.FLOORDIV, c.b.iota((out,), (size,), size + out - 1), count)


def _masks(c: Context, space: Sizes, out: Sizes) -> tuple[Ref, Ref]:
    """The membership (out, space) in all dims together, and the sizes (out) of the windows; f32."""
    rank = len(space)
    mask: Ref | None = None
    for d, (n, o) in enumerate(zip(space, out, strict=True)):
        # Whether element i lies in adaptive window o of this dim: 1 or 0.
        first, end = (bound.unsqueeze(1) for bound in _bounds(c, n, o))
        place = c.b.iota((n,), (1,))
        inside = c.b.cast(c.b.both(c.b.le(first, place), c.b.lt(place, end)), DType.F32)
        inside = c.b.reshape(inside, [{d: o, rank + d: n}.get(e, 1) for e in range(2 * rank)])
        mask = inside if mask is None else c.b.mul(mask, inside)
    assert mask is not None  # every pooling has a spatial dim
    counts = [c.b.sub(end, first) for first, end in (_bounds(c, n, o) for n, o in zip(space, out, strict=True))]
    return mask, c.b.cast(_outer(c, counts), DType.F32)


def _weighted(c: Context, x: Ref, mask: Ref, rank: int) -> Ref:
    """The sum over the space of x (lead, space) times mask (out, space), as (lead, out)."""
    lead, xyz, ijk = "abcde"[: x.rank - rank], "xyz"[:rank], "ijk"[:rank]
    return c.b.einsum(f"{lead}{ijk},{xyz}{ijk}->{lead}{xyz}|{ijk}", x, mask)


def _divides(space: Sizes, out: Sizes) -> Sizes | None:
    """The kernel that makes adaptive pooling plain pooling; None if the sizes do not divide."""
    if any(n % o for n, o in zip(space, out, strict=True)):
        return None
    return tuple(n // o for n, o in zip(space, out, strict=True))


@lowers("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def adaptive_avg_pool(c: Context, x: Ref, out: Sequence[int]) -> Ref:
    """Sum of each window over its size; where sizes do not divide, a product with a matrix of ones and zeros."""
    rank = len(out)
    if (kernel := _divides(x.shape[-rank:], tuple(out))) is not None:
        return avg_pool(c, x, kernel, rank=rank)
    mask, counts = _masks(c, x.shape[-rank:], tuple(out))
    return c.b.div(_weighted(c, x, mask, rank), counts)


@lowers("_adaptive_avg_pool2d_backward.default", rank=2)
@lowers("_adaptive_avg_pool3d_backward.default", rank=3)
def adaptive_avg_pool_backward(c: Context, grad: Ref, x: Ref, *, rank: int) -> Ref:
    """Each element gets the sum of the shares of the windows that hold it."""
    space, out = x.shape[-rank:], grad.shape[-rank:]
    if (kernel := _divides(space, out)) is not None:
        return avg_pool_backward(c, grad, x, kernel, kernel, (0,), rank=rank)
    mask, counts = _masks(c, space, out)
    return _weighted(c, c.b.div(grad, counts), mask.permute([*range(rank, 2 * rank), *range(rank)]), rank)


@lowers("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max_pool(c: Context, x: Ref, out: Sequence[int]) -> tuple[Ref, Ref]:
    """Greatest of each window, and its index in the input's space.

    Windows that are smaller than the largest are read as if their last element came again: neither the greatest nor
    its first place changes.
    """
    b = c.b
    rank = len(out)
    space = x.shape[-rank:]
    strides = row_major(space)
    kernel = tuple(
        max(-(-(o + 1) * n // size) - o * n // size for o in range(size)) for n, size in zip(space, out, strict=True)
    )
    place, corner = b.i64(0), b.i64(0)
    for n, size, k, stride in zip(space, out, kernel, strides, strict=True):
        first, end = _bounds(c, n, size)
        last = b.sub(end, b.i64(1)).unsqueeze(1)
        inside = b.map(MapFunction.MIN, b.add(first.unsqueeze(1), b.iota((k,), (1,))), last)
        step = b.i64(stride)
        place = b.add(place.unsqueeze(-1).unsqueeze(-1), b.mul(inside, step))
        corner = b.add(corner.unsqueeze(-1), b.mul(first, step))
    # dims alternate between (out, kernel) here; all outs must come first
    view = resampling.pick(c, x, place.permute([*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]), rank)
    return _greatest(c, view, kernel, corner.expand(c.shape), strides)
