"""Operators that read or add elements at computed places: interpolation, borders, rolling, unfolding.

Positions that torch computes in floating point are ratios of integers here, so it is never in doubt which element is
read. Spatial dims are the last ones.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from math import prod

from tiebreak.engine.lowering.builder import Ref
from tiebreak.engine.lowering.convolution import spread, windows
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction, row_major

Sizes = tuple[int, ...]
FINEST_SCALE = 1 << 12
"""The largest denominator of a scale factor, which is rounded to the nearest such fraction (0.7 is 7/10)."""


def _places(c: Context, indices: Sequence[Ref], space: Sizes) -> Ref:
    """The row-major index into `space`, from one index (out,) per dim; i64 (outs)."""
    place: Ref | None = None
    for index, stride in zip(indices, row_major(space), strict=True):
        scaled = index if stride == 1 else c.b.mul(index, c.b.i64(stride))
        place = scaled if place is None else c.b.add(place.unsqueeze(-1), scaled)
    assert place is not None  # there is a spatial dim
    return place


def pick(c: Context, x: Ref, place: Ref, rank: int) -> Ref:
    """x at in-bounds row-major places in its last `rank` dims, which those of `place` replace: one gather."""
    lead, space = x.shape[: x.rank - rank], x.shape[x.rank - rank :]
    x = c.b.copy(x)
    return c.b.gather(
        x, place.expand((*lead, *place.shape)), 1, prod(space), (*x.strides[: len(lead)], *(0 for _ in place.shape))
    )


def _put(c: Context, grad: Ref, place: Ref, shape: Sizes) -> Ref:
    """The transpose of `pick`: each element of `shape` gets the exact sum of everything that was read from it."""
    return c.b.put(grad, place.expand(grad.shape), shape, range(len(shape) - place.rank, len(shape)))


# nearest


def _ratio(size: int, out: int, scale: float | None) -> Fraction:
    """The number of input elements per output element."""
    if scale:
        return 1 / Fraction(scale).limit_denominator(FINEST_SCALE)
    return Fraction(size, out)


def _nearest(c: Context, space: Sizes, out: Sizes, scales: Sequence[float | None], centred: bool) -> Ref:
    """The place of floor(o * ratio), or floor((o + 1/2) * ratio), at most size - 1, in each dim; i64 (outs)."""
    indices = []
    for n, o, scale in zip(space, out, scales, strict=True):
        ratio = _ratio(n, o, scale)
        ramp = c.b.iota((o,), ((1 + centred) * ratio.numerator,), centred * ratio.numerator)
        index = c.b.map(MapFunction.FLOORDIV, ramp, c.b.i64((1 + centred) * ratio.denominator))
        indices.append(c.b.map(MapFunction.MIN, index, c.b.i64(n - 1)))
    return _places(c, indices, space)


def _tiles(space: Sizes, out: Sizes, scales: Sequence[float | None]) -> Sizes | None:
    """(size, repeats, ...) if all elements occur equally often; otherwise None."""
    ratios = [_ratio(n, o, s) for n, o, s in zip(space, out, scales, strict=True)]
    if any(r.numerator != 1 or o != n * r.denominator for n, o, r in zip(space, out, ratios, strict=True)):
        return None
    return tuple(size for n, r in zip(space, ratios, strict=True) for size in (n, r.denominator))


_NEAREST, _EXACT = (
    [f"{name}{rank}d{{}}.default" for rank in (1, 2, 3)] for name in ("upsample_nearest", "_upsample_nearest_exact")
)


@lowers(*(name.format("") for name in _NEAREST), whole=True, centred=False)
@lowers(*(name.format("") for name in _EXACT), whole=True, centred=True)
def upsample_nearest(c: Context, x: Ref, out: Sequence[int], *scales: float | None, centred: bool) -> Ref:
    """The element at floor(o * ratio), or of `exact` floor((o + 1/2) * ratio): a view or, if uneven, one gather."""
    rank, out = len(out), tuple(out)
    lead, space = x.shape[:-rank], x.shape[-rank:]
    tiles = _tiles(space, out, scales or (None,) * rank)
    if tiles is None:
        return pick(c, x, _nearest(c, space, out, scales or (None,) * rank, centred), rank)
    for d in range(rank):
        x = x.unsqueeze(len(lead) + 2 * d + 1)
    return c.b.reshape(x.expand((*lead, *tiles)), (*lead, *out))


@lowers(*(name.format("_backward") for name in _NEAREST), whole=True, centred=False)
@lowers(*(name.format("_backward") for name in _EXACT), whole=True, centred=True)
def upsample_nearest_backward(
    c: Context, grad: Ref, out: Sequence[int], shape: Sequence[int], *scales: float | None, centred: bool
) -> Ref:
    """Each element gets the exact sum of what was read from it: one sum over tiles, else a scatter_sum."""
    rank, out, shape = len(out), tuple(out), tuple(shape)
    lead, space = shape[:-rank], shape[-rank:]
    tiles = _tiles(space, out, scales or (None,) * rank)
    if tiles is None:
        return _put(c, grad, _nearest(c, space, out, scales or (None,) * rank, centred), shape)
    return c.b.sum(c.b.reshape(grad, (*lead, *tiles)), [len(lead) + 2 * d + 1 for d in range(rank)])


# linear


def _position(c: Context, size: int, out: int, scale: float | None, align: bool) -> tuple[Ref, int]:
    """The position of each output element among the inputs: numerators i64 (out,) over one denominator, clamped."""
    if align:
        steps = max(out - 1, 1)
        return c.b.iota((out,), (size - 1 if out > 1 else 0,)), steps
    ratio = _ratio(size, out, scale)
    whole = 2 * ratio.denominator
    ramp = c.b.iota((out,), (2 * ratio.numerator,), ratio.numerator - ratio.denominator)
    return c.b.clamp(ramp, 0, (size - 1) * whole), whole


def _tents(c: Context, size: int, out: int, scale: float | None, align: bool) -> Ref:
    """The weight of input i in output o, max(0, 1 - |position(o) - i|), correctly rounded; f32 (out, size)."""
    position, whole = _position(c, size, out, scale, align)
    away = c.b.abs(c.b.sub(position.unsqueeze(1), c.b.iota((size,), (whole,))))
    near = c.b.map(MapFunction.MAX, c.b.sub(c.b.i64(whole), away), c.b.i64(0))
    return c.b.div(c.b.cast(near, DType.F32), c.b.const(float(whole)))


def _filtered(c: Context, size: int, out: int, scale: float | None, align: bool, *, cubic: bool) -> Ref:
    """The same for a filter as wide as what an output stands for: a tent, or Keys' cubic (a = -1/2); its sum is 1."""
    ratio = Fraction(size - 1, out - 1) if align and out > 1 else Fraction(0) if align else _ratio(size, out, scale)
    unit = 2 * max(ratio.numerator, ratio.denominator)
    centre = c.b.iota((out,), (2 * ratio.numerator,), ratio.numerator)
    away = c.b.sub(centre.unsqueeze(1), c.b.iota((size,), (2 * ratio.denominator,), ratio.denominator))
    away = c.b.abs(away)
    if cubic:
        weights = _cubic(c, c.b.div(c.b.cast(away, DType.F32), c.b.const(float(unit))))
    else:
        weights = c.b.cast(c.b.map(MapFunction.MAX, c.b.sub(c.b.i64(unit), away), c.b.i64(0)), DType.F32)
    return c.b.div(weights, c.b.sum(weights, [1], keepdim=True))


def _cubic(c: Context, t: Ref) -> Ref:
    """(1.5 t - 2.5) t^2 + 1 below 1, ((2.5 - 0.5 t) t - 4) t + 2 below 2, then 0."""
    b, one, two = c.b, c.b.const(1.0), c.b.const(2.0)
    near = b.add(b.mul(b.mul(b.sub(b.scale(t, 1.5), b.const(2.5)), t), t), one)
    far = b.add(b.mul(b.sub(b.mul(b.sub(b.const(2.5), b.scale(t, 0.5)), t), b.const(4.0)), t), two)
    far = b.where(b.lt(t, two), far, b.const(0.0))
    return b.where(b.lt(t, one), near, far)


Weights = Callable[[Context, int, int, float | None, bool], Ref]


def _linear(
    c: Context, x: Ref, space: Sizes, out: Sizes, align: bool, scales: Sequence[float | None], transposed: bool,
    weights: Weights,
) -> Ref:  # fmt: skip
    """Interpolates (or applies the transpose) one dim at a time: shrinking dims first, growing ones last."""
    rank = len(out)
    factors = list(zip(range(x.rank - rank, x.rank), space, out, scales or (None,) * rank, strict=True))
    for d, n, o, s in sorted(factors, key=lambda f: f[1] / f[2] if transposed else f[2] / f[1]):
        dims = "abcdefgh"[: x.rank]
        old, new = dims.replace(dims[d], "i"), dims.replace(dims[d], "o")
        x = c.b.einsum(f"{old},{'io' if transposed else 'oi'}->{new}|i", x, weights(c, n, o, s, align))
    return x


_LINEAR = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
_TENT, _CUBIC = partial(_filtered, cubic=False), partial(_filtered, cubic=True)


@lowers(*(f"{name}.default" for name in _LINEAR), whole=True, weights=_tents)
@lowers("_upsample_bilinear2d_aa.default", weights=_TENT)
@lowers("_upsample_bicubic2d_aa.default", weights=_CUBIC)
def upsample_linear(
    c: Context, x: Ref, out: Sequence[int], align: bool, *scales: float | None, weights: Weights
) -> Ref:
    """A contraction for each dim with a matrix of tents, max(0, 1 - distance); antialiased: wider ones, or cubics."""
    return _linear(c, x, x.shape[-len(out) :], tuple(out), align, scales, False, weights)


@lowers(*(f"{name}_backward.default" for name in _LINEAR), whole=True, weights=_tents)
@lowers("_upsample_bilinear2d_aa_backward.default", weights=_TENT)
@lowers("_upsample_bicubic2d_aa_backward.default", weights=_CUBIC)
def upsample_linear_backward(
    c: Context, grad: Ref, out: Sequence[int], shape: Sequence[int], align: bool, *scales: float | None,
    weights: Weights,
) -> Ref:  # fmt: skip
    """A contraction for each dim with the transposed matrix."""
    return _linear(c, grad, tuple(shape[-len(out) :]), tuple(out), align, scales, True, weights)


# borders


def _border(c: Context, x: Ref, padding: Sequence[int], reflect: bool) -> Ref:
    """The place in x's space that each place of the padded one reads. `padding` is as in torch, last dim first."""
    space = x.shape[-len(padding) // 2 :]
    indices = []
    for d, n in enumerate(space):
        at = 2 * (len(space) - 1 - d)
        before, after = padding[at], padding[at + 1]
        ramp = c.b.iota((n + before + after,), (1,), -before)
        if reflect:
            last = c.b.i64(n - 1)
            mirrored = c.b.abs(c.b.sub(last, c.b.abs(ramp)))
            indices.append(c.b.sub(last, mirrored))
        else:
            indices.append(c.b.clamp(ramp, 0, n - 1))
    return _places(c, indices, space)


_REFLECTION, _REPLICATION = (
    [f"{name}_pad{rank}d{{}}.default" for rank in (1, 2, 3)] for name in ("reflection", "replication")
)


@lowers(*(name.format("") for name in _REFLECTION), whole=True, reflect=True)
@lowers(*(name.format("") for name in _REPLICATION), whole=True, reflect=False)
def border(c: Context, x: Ref, padding: Sequence[int], *, reflect: bool) -> Ref:
    """A border of mirrored (reflection) or repeated (replication) elements: one gather."""
    return pick(c, x, _border(c, x, padding, reflect), len(padding) // 2)


@lowers(*(name.format("_backward") for name in _REFLECTION), whole=True, reflect=True)
@lowers(*(name.format("_backward") for name in _REPLICATION), whole=True, reflect=False)
def border_backward(c: Context, grad: Ref, x: Ref, padding: Sequence[int], *, reflect: bool) -> Ref:
    """Each element gets the exact sum of what was read from it: a scatter_sum."""
    return _put(c, grad, _border(c, x, padding, reflect), x.shape)


# rolling and unfolding


@lowers("roll.default", whole=True)
def roll(c: Context, x: Ref, shifts: Sequence[int], dims: Sequence[int] = ()) -> Ref:
    """The end of a dim put in front: two windows."""
    if 0 in x.shape:
        return x
    if not dims:
        flat = roll(c, c.b.reshape(x, (-1,)), shifts, [0])
        return c.b.reshape(flat, x.shape)
    for shift, d in zip(shifts, dims, strict=True):
        n = x.shape[x.dim(d)]
        first = -shift % n
        if first:
            x = c.b.cat([x.slice(d, first, n), x.slice(d, 0, first)], d)
    return x


@lowers("repeat.default")
def repeat(c: Context, x: Ref, _times: Sequence[int]) -> Ref:
    """Tiled: a view that reads every element again."""
    if 0 in c.shape:
        return c.b.full(c.shape, 0, x.dtype)
    x = x.expand((*(1,) * (len(c.shape) - x.rank), *x.shape))
    for d in range(x.rank):
        x = x.unsqueeze(2 * d)
    apart = [n for whole, size in zip(c.shape, x.shape[1::2], strict=True) for n in (whole // size, size)]
    return c.b.reshape(x.expand(apart), c.shape)


@lowers("unfold.default")
def unfold(c: Context, x: Ref, d: int, size: int, step: int) -> Ref:
    """Windows of a dim, as an overlapping view."""
    if not x.rank:
        return x.expand(c.shape)  # one window of one element, or of none
    return x.unfold(d, c.shape[x.dim(d)], size, step)


@lowers("unfold_backward.default", whole=True)
def unfold_backward(c: Context, grad: Ref, shape: Sequence[int], d: int, size: int, step: int) -> Ref:
    """Each element gets the exact sum of the windows that hold it: a scatter_sum."""
    if not shape:
        return c.b.sum(grad)
    d %= len(shape)
    place = c.b.iota((grad.shape[d], size), (step, 1))
    grad = grad.permute([*(e for e in range(grad.rank - 1) if e != d), d, -1])
    return c.b.put(grad, place.expand(grad.shape), shape, [d])


@lowers("im2col.default", whole=True)
def im2col(
    c: Context, x: Ref, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Ref:
    """Windows of a plane as columns: an overlapping view, copied."""
    k, e, p, s = (spread(v, 2) for v in (kernel, dilation, padding, stride))
    lead, space = x.shape[:-2], x.shape[-2:]
    if any(p):
        x = c.b.window((*lead, space[0] + 2 * p[0], space[1] + 2 * p[1]), x, (*(0 for _ in lead), *p))
    view = windows(x, _columns(space, k, e, p, s), k, s, e)
    return c.b.reshape(view.permute([*range(len(lead)), -2, -1, -4, -3]), c.shape)


def _columns(space: Sizes, k: Sizes, e: Sizes, p: Sizes, s: Sizes) -> Sizes:
    return tuple((n + 2 * q - f * (a - 1) - 1) // t + 1 for n, a, f, q, t in zip(space, k, e, p, s, strict=True))


@lowers("col2im.default", whole=True)
def col2im(
    c: Context, x: Ref, space: Sequence[int], kernel: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], stride: Sequence[int],
) -> Ref:  # fmt: skip
    """Columns added back into a plane: a scatter_sum onto the padded plane, then a view of its inside."""
    k, e, p, s = (spread(v, 2) for v in (kernel, dilation, padding, stride))
    out = _columns(tuple(space), k, e, p, s)
    lead = c.shape[:-2]
    plane = tuple(n + 2 * q for n, q in zip(space, p, strict=True))
    x = c.b.reshape(x, (*lead, *k, *out))
    place = c.b.iota((*k, *out), (e[0] * plane[1], e[1], s[0] * plane[1], s[1]))
    whole = c.b.put(x, place.expand(x.shape), (*lead, *plane), [len(lead), len(lead) + 1])
    for d in range(2):
        whole = whole.slice(len(lead) + d, p[d], p[d] + space[d])
    return whole
