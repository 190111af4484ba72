"""Images and volumes sampled at places that a grid names, between -1 and 1 in each direction."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.lowering.elementwise import floor, round_
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction

_NEAREST, _BICUBIC = 1, 2
_BORDER, _REFLECTION = 1, 2


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
    if mode == _BICUBIC:
        first = floor(c, at, up=False)
        places = [_inside(c, b.add(first, b.const(float(k))), one, size, padding, align)[0] for k in range(-1, 3)]
        return [
            _Tap(b.cast(place, DType.I64), weight, b.mul(steep, slope))
            for place, (weight, steep) in zip(places, _keys(b, b.sub(at, first)), strict=True)
        ]
    at, slope = _inside(c, at, slope, size, padding, align)
    if mode == _NEAREST:
        return [_Tap(b.cast(round_(c, at), DType.I64), one, b.const(0.0))]
    first = floor(c, at, up=False)
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
    if padding == _REFLECTION:
        at, slope = _mirrored(c, at, slope, 0.0 if align else -0.5, float(size - 1 if align else size))
    if padding in (_BORDER, _REFLECTION):
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
    turns = floor(c, b.div(size, b.const(span)), up=False)
    rest = b.sub(size, b.scale(turns, span))
    half = b.scale(turns, 0.5)
    is_even = b.eq(floor(c, half, up=False), half)
    forwards = b.ne(b.lt(away, b.const(0.0)), is_even)
    slope = b.where(forwards, slope, b.neg(slope))
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
        factors = [tap.slope if d == direction else tap.weight for d, tap in enumerate(self.taps)]
        return reduce(b.mul, factors)


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
        strides = (*image.strides[:2], *(0 for _ in sizes))
        found = b.gather(image, whole, 1, image.strides[1], strides)
        outside = b.i64(-1)
        yield _Corner(taps, b.where(inside, place, outside), b.where(inside.unsqueeze(1), found, b.const(0.0)))


@lowers("grid_sampler_2d.default", "grid_sampler_3d.default")
def grid_sample(c: Context, image: Ref, grid: Ref, mode: int, padding: int, align: bool) -> Ref:
    """The nearest element, or those around each place by their distances; beyond the border 0, or moved inside."""
    b = c.b
    corners = list(_corners(c, image, grid, mode, padding, align))
    if mode == _NEAREST:
        return corners[0].value
    return reduce(b.add, [b.mul(corner.value, corner.weight(b).unsqueeze(1)) for corner in corners])


@lowers("grid_sampler_2d_backward.default", "grid_sampler_3d_backward.default")
def grid_sample_backward(
    c: Context, grad: Ref, image: Ref, grid: Ref, mode: int, padding: int, align: bool, _wanted: Sequence[bool]
) -> tuple[Ref, Ref]:
    """The exact sum of what was read from each element; and the grid's gradient, by how the weights change."""
    b = c.b
    corners = list(_corners(c, image, grid, mode, padding, align))
    if mode == _NEAREST:
        return _put(c, [(corners[0], grad)], image), b.full(grid.shape, 0.0)
    into_image = _put(c, [(corner, b.mul(grad, corner.weight(b).unsqueeze(1))) for corner in corners], image)
    felt = [b.dot(grad, corner.value, [1]) for corner in corners]
    shares = []
    for direction in reversed(range(image.rank - 2)):
        parts = [b.mul(f, corner.weight(b, direction)) for f, corner in zip(felt, corners, strict=True)]
        shares.append(reduce(b.add, parts).unsqueeze(-1))
    return into_image, b.cat(shares, -1)


def _put(c: Context, parts: Sequence[tuple[_Corner, Ref]], image: Ref) -> Ref:
    """The exact sum, for each element, of the parts at its place; what lies outside goes nowhere."""
    b, shape = c.b, image.shape
    flat = (*shape[:2], -1)
    sources = b.cat([b.reshape(part, flat) for _, part in parts], 2)
    places = b.cat([b.reshape(corner.place, (shape[0], 1, -1)) for corner, _ in parts], 2)
    return b.put(sources, places.expand(sources.shape), shape, range(2, len(shape)))
