"""Operators that read or add elements at computed places: interpolation, borders, rolling, unfolding, grids.

Positions that torch computes in floating point are ratios of integers here, so it is never in doubt which element is
read; those of a grid are the user's numbers. Spatial dims are the last ones.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from itertools import product
from math import prod

from tiebreak.engine.lowering import convolution, elementwise
from tiebreak.engine.lowering.builder import Builder, Ref
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
    return 1 / Fraction(scale).limit_denominator(FINEST_SCALE) if scale else Fraction(size, out)


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
    if (tiles := _tiles(space, out, scales or (None,) * rank)) is None:
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
    if (tiles := _tiles(space, out, scales or (None,) * rank)) is None:
        return _put(c, grad, _nearest(c, space, out, scales or (None,) * rank, centred), shape)
    return c.b.sum(c.b.reshape(grad, (*lead, *tiles)), [len(lead) + 2 * d + 1 for d in range(rank)])


# linear


def _position(c: Context, size: int, out: int, scale: float | None, align: bool) -> tuple[Ref, int]:
    """The position of each output element among the inputs: numerators i64 (out,) over one denominator, clamped."""
    if align:
        return c.b.iota((out,), (size - 1 if out > 1 else 0,)), max(out - 1, 1)
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
            indices.append(c.b.sub(last, c.b.abs(c.b.sub(last, c.b.abs(ramp)))))
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
        return c.b.reshape(roll(c, c.b.reshape(x, (-1,)), shifts, [0]), x.shape)
    for shift, d in zip(shifts, dims, strict=True):
        n = x.shape[x.dim(d)]
        if first := -shift % n:
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
    # A number has one window, of one element or of none.
    return x.unfold(d, c.shape[x.dim(d)], size, step) if x.rank else x.expand(c.shape)


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
    k, e, p, s = (convolution.spread(v, 2) for v in (kernel, dilation, padding, stride))
    lead, space = x.shape[:-2], x.shape[-2:]
    if any(p):
        x = c.b.window((*lead, space[0] + 2 * p[0], space[1] + 2 * p[1]), x, (*(0 for _ in lead), *p))
    view = convolution.windows(x, _columns(space, k, e, p, s), k, s, e)
    return c.b.reshape(view.permute([*range(len(lead)), -2, -1, -4, -3]), c.shape)


def _columns(space: Sizes, k: Sizes, e: Sizes, p: Sizes, s: Sizes) -> Sizes:
    return tuple((n + 2 * q - f * (a - 1) - 1) // t + 1 for n, a, f, q, t in zip(space, k, e, p, s, strict=True))


@lowers("col2im.default", whole=True)
def col2im(
    c: Context, x: Ref, space: Sequence[int], kernel: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], stride: Sequence[int],
) -> Ref:  # fmt: skip
    """Columns added back into a plane: a scatter_sum onto the padded plane, then a view of its inside."""
    k, e, p, s = (convolution.spread(v, 2) for v in (kernel, dilation, padding, stride))
    out = _columns(tuple(space), k, e, p, s)
    lead = c.shape[:-2]
    plane = tuple(n + 2 * q for n, q in zip(space, p, strict=True))
    x = c.b.reshape(x, (*lead, *k, *out))
    place = c.b.iota((*k, *out), (e[0] * plane[1], e[1], s[0] * plane[1], s[1]))
    whole = c.b.put(x, place.expand(x.shape), (*lead, *plane), [len(lead), len(lead) + 1])
    for d in range(2):
        whole = whole.slice(len(lead) + d, p[d], p[d] + space[d])
    return whole


_GRID_NEAREST, _GRID_BICUBIC = 1, 2
_GRID_BORDER, _GRID_REFLECTION = 1, 2


@dataclass(frozen=True)
class _Tap:
    """An element that a place reads in one direction: its index, its weight, and how that changes with the grid.

    All are (N, outs); the index is i64, and may be outside.
    """

    index: Ref
    weight: Ref
    slope: Ref


def _taps(c: Context, x: Ref, size: int, mode: int, padding: int, align: bool) -> list[_Tap]:
    """The nearest element, the two around a place, or four of them. x: the grid's numbers of this direction."""
    b, one = c.b, c.b.const(1.0)
    # The product with a whole number of elements, then an exact half.
    slope = b.const((size - 1) / 2 if align else size / 2)
    at = b.mul(b.add(x, one), slope) if align else b.scale(b.sub(b.scale(b.add(x, one), float(size)), one), 0.5)
    if mode == _GRID_BICUBIC:
        first = elementwise.floor(c, at, up=False)
        places = [_inside(c, b.add(first, b.const(float(k))), one, size, padding, align)[0] for k in range(-1, 3)]
        return [
            _Tap(b.cast(place, DType.I64), weight, b.mul(steep, slope))
            for place, (weight, steep) in zip(places, _keys(b, b.sub(at, first)), strict=True)
        ]
    at, slope = _inside(c, at, slope, size, padding, align)
    if mode == _GRID_NEAREST:
        return [_Tap(b.cast(elementwise.round_(c, at), DType.I64), one, b.const(0.0))]
    first = elementwise.floor(c, at, up=False)
    rest, index = b.sub(at, first), b.cast(first, DType.I64)
    after = b.add(index, b.i64(1))
    return [_Tap(index, b.sub(one, rest), b.neg(slope)), _Tap(after, rest, slope)]


def _keys(b: Builder, t: Ref) -> list[tuple[Ref, Ref]]:
    """Keys' cubic (a = -3/4) at 1 + t, t, 1 - t and 2 - t, and its change with t."""
    one = b.const(1.0)
    back, near, far = b.sub(one, t), (1.0, 0.0, -2.25, 1.25), (3.0, -6.0, 3.75, -0.75)
    near_slope, far_slope = (0.0, -4.5, 3.75), (-6.0, 7.5, -2.25)
    ahead, behind = b.add(one, t), b.add(one, back)
    return [
        (b.polynomial(ahead, far), b.polynomial(ahead, far_slope)),
        (b.polynomial(t, near), b.polynomial(t, near_slope)),
        (b.polynomial(back, near), b.neg(b.polynomial(back, near_slope))),
        (b.polynomial(behind, far), b.neg(b.polynomial(behind, far_slope))),
    ]


def _inside(c: Context, at: Ref, slope: Ref, size: int, padding: int, align: bool) -> tuple[Ref, Ref]:
    """Places, in elements, moved into the image where the padding says so, and how they change with the grid."""
    b, zero = c.b, c.b.const(0.0)
    if padding == _GRID_REFLECTION:
        at, slope = _mirrored(c, at, slope, 0.0 if align else -0.5, float(size - 1 if align else size))
    if padding in (_GRID_BORDER, _GRID_REFLECTION):
        last = b.const(float(size - 1))
        inside = b.both(b.lt(zero, at), b.lt(at, last))
        at, slope = b.map(MapFunction.MIN, b.map(MapFunction.MAX, at, zero), last), b.where(inside, slope, zero)
    return at, slope


def _mirrored(c: Context, at: Ref, slope: Ref, low: float, span: float) -> tuple[Ref, Ref]:
    """Reflected until it is between low and low + span; the slope turns with every reflection."""
    b, first = c.b, c.b.const(low)
    if span == 0:
        return b.full(at.shape, 0.0), b.const(0.0)
    away = b.sub(at, first)
    size = b.abs(away)
    turns = elementwise.floor(c, b.div(size, b.const(span)), up=False)
    rest = b.sub(size, b.scale(turns, span))
    half = b.scale(turns, 0.5)
    is_even = b.eq(elementwise.floor(c, half, up=False), half)
    slope = b.where(b.ne(b.lt(away, b.const(0.0)), is_even), slope, b.neg(slope))
    return b.add(b.where(is_even, rest, b.sub(b.const(span), rest)), first), slope


@dataclass(frozen=True)
class _Corner:
    """One of the elements that each place reads: a tap in every direction."""

    taps: tuple[_Tap, ...]
    place: Ref
    """Row-major in the image, -1 outside; i64 (N, outs)."""
    value: Ref
    """The element at `place` of each channel, or 0 where that is outside; f32 (N, C, outs)."""

    def weight(self, b: Builder, direction: int | None = None) -> Ref:
        """The product of its taps' weights, or how it changes with the grid's number of a direction; (N, outs)."""
        return reduce(b.mul, [tap.slope if d == direction else tap.weight for d, tap in enumerate(self.taps)])


def _corners(c: Context, image: Ref, grid: Ref, mode: int, padding: int, align: bool) -> Iterator[_Corner]:
    b, sizes = c.b, image.shape[2:]
    image = b.copy(image)
    directions = [
        _taps(c, grid.select(-1, len(sizes) - 1 - d), size, mode, padding, align) for d, size in enumerate(sizes)
    ]
    for taps in product(*directions):
        place = inside = None
        for tap, size in zip(taps, sizes, strict=True):
            index = c.b.clamp(tap.index, 0, size - 1)
            is_index = b.eq(index, tap.index)
            place = index if place is None else b.add(b.mul(place, b.i64(size)), index)
            inside = is_index if inside is None else b.both(inside, is_index)
        assert place is not None
        assert inside is not None
        whole = place.unsqueeze(1).expand((*image.shape[:2], *place.shape[1:]))
        found = b.gather(image, whole, 1, image.strides[1], (*image.strides[:2], *(0 for _ in sizes)))
        yield _Corner(taps, b.where(inside, place, b.i64(-1)), b.where(inside.unsqueeze(1), found, b.const(0.0)))


@lowers("grid_sampler_2d.default", "grid_sampler_3d.default")
def grid_sample(c: Context, image: Ref, grid: Ref, mode: int, padding: int, align: bool) -> Ref:
    """The nearest element, or those around each place by their distances; beyond the border 0, or moved inside."""
    b = c.b
    corners = list(_corners(c, image, grid, mode, padding, align))
    if mode == _GRID_NEAREST:
        return corners[0].value
    return reduce(b.add, [b.mul(corner.value, corner.weight(b).unsqueeze(1)) for corner in corners])


@lowers("grid_sampler_2d_backward.default", "grid_sampler_3d_backward.default")
def grid_sample_backward(
    c: Context, grad: Ref, image: Ref, grid: Ref, mode: int, padding: int, align: bool, _wanted: Sequence[bool]
) -> tuple[Ref, Ref]:
    """The exact sum of what was read from each element; and the grid's gradient, by how the weights change."""
    b = c.b
    corners = list(_corners(c, image, grid, mode, padding, align))
    if mode == _GRID_NEAREST:
        return _put_corners(c, [(corners[0], grad)], image), b.full(grid.shape, 0.0)
    into_image = _put_corners(c, [(corner, b.mul(grad, corner.weight(b).unsqueeze(1))) for corner in corners], image)
    felt = [b.dot(grad, corner.value, [1]) for corner in corners]
    shares = []
    for direction in reversed(range(image.rank - 2)):
        parts = [b.mul(f, corner.weight(b, direction)) for f, corner in zip(felt, corners, strict=True)]
        shares.append(reduce(b.add, parts).unsqueeze(-1))
    return into_image, b.cat(shares, -1)


def _put_corners(c: Context, parts: Sequence[tuple[_Corner, Ref]], image: Ref) -> Ref:
    """The exact sum, for each element, of the parts at its place; what lies outside goes nowhere."""
    b, shape = c.b, image.shape
    sources = b.cat([b.reshape(part, (*shape[:2], -1)) for _, part in parts], 2)
    places = b.cat([b.reshape(corner.place, (shape[0], 1, -1)) for corner, _ in parts], 2)
    return b.put(sources, places.expand(sources.shape), shape, range(2, len(shape)))
