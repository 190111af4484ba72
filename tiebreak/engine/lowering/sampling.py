"""Images sampled at places that a grid names, between -1 and 1 in each direction."""

from collections.abc import Sequence
from dataclasses import dataclass

from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.engine.lowering.resampling import clamped
from tiebreak.engine.lowering.scalars import floor, round_
from tiebreak.protocol.program.isa import DType, MapFunction

_NEAREST, _BICUBIC = 1, 2
_BORDER, _REFLECTION = 1, 2


@dataclass(frozen=True)
class _Direction:
    """One direction of the places: f32 (N, out, out)."""

    size: int
    at: Ref
    """In elements of the image, moved inside where the padding says so."""
    slope: Ref
    """By what `at` changes with the grid's number."""


def _direction(c: Context, x: Ref, size: int, padding: int, align: bool) -> _Direction:
    b, one, zero = c.b, c.b.const(1.0), c.b.const(0.0)
    # The product with a whole number of elements, then an exact half.
    slope = b.const((size - 1) / 2 if align else size / 2)
    at = b.mul(b.add(x, one), slope) if align else b.scale(b.sub(b.scale(b.add(x, one), float(size)), one), 0.5)
    if padding == _REFLECTION:
        at, slope = _mirrored(c, at, slope, 0.0 if align else -0.5, float(size - 1 if align else size))
    if padding in (_BORDER, _REFLECTION):
        last = b.const(float(size - 1))
        inside = b.map(MapFunction.AND, b.compare(MapFunction.LT, zero, at), b.compare(MapFunction.LT, at, last))
        at, slope = b.map(MapFunction.MIN, b.map(MapFunction.MAX, at, zero), last), b.where(inside, slope, zero)
    return _Direction(size, at, slope)


def _mirrored(c: Context, at: Ref, slope: Ref, low: float, span: float) -> tuple[Ref, Ref]:
    """Reflected until it is between low and low + span; the slope turns with every reflection."""
    b, first = c.b, c.b.const(low)
    if span == 0:
        return b.full(at.shape, 0.0), b.const(0.0)
    away = b.sub(at, first)
    size = b.map(MapFunction.ABS, away)
    turns = floor(c, b.div(size, b.const(span)), up=False)
    rest = b.sub(size, b.scale(turns, span))
    half = b.scale(turns, 0.5)
    is_even = b.compare(MapFunction.EQ, floor(c, half, up=False), half)
    forwards = b.compare(MapFunction.NE, b.compare(MapFunction.LT, away, b.const(0.0)), is_even)
    slope = b.where(forwards, slope, b.map(MapFunction.NEG, slope))
    return b.add(b.where(is_even, rest, b.sub(b.const(span), rest)), first), slope


@dataclass(frozen=True)
class _Corner:
    """One of the elements around each place: (N, out, out)."""

    place: Ref
    """Row-major in the image, -1 outside; i64."""
    value: Ref
    """(N, C, out, out), 0 outside."""


def _corner(c: Context, image: Ref, y: Ref, x: Ref) -> _Corner:
    """The elements in these rows and columns, i64."""
    b, zero = c.b, c.b.const(0, DType.I64)
    height, width = image.shape[-2:]
    row, column = clamped(c, y, 0, height - 1), clamped(c, x, 0, width - 1)
    inside = b.map(MapFunction.AND, b.compare(MapFunction.EQ, row, y), b.compare(MapFunction.EQ, column, x))
    place = b.add(b.mul(row, b.const(width, DType.I64)), column)
    whole = place.unsqueeze(1).expand((image.shape[0], image.shape[1], *place.shape[1:]))
    value = b.where(inside.unsqueeze(1), _picked(c, image, whole), b.const(0.0))
    return _Corner(b.where(inside, place, b.sub(zero, b.const(1, DType.I64))), value)


def _picked(c: Context, image: Ref, place: Ref) -> Ref:
    """image[n, c] at place[n, c, ...]."""
    b, image = c.b, c.b.copy(image)
    height, width = image.shape[2:]
    return b.gather(image, place, 1, height * width, (*image.strides[:2], 0, 0))


def _whole(b: Builder, x: Ref) -> Ref:
    return b.cast(x, DType.I64)


def _plan(c: Context, image: Ref, grid: Ref, padding: int, align: bool) -> tuple[_Direction, _Direction]:
    height, width = image.shape[-2:]
    return (
        _direction(c, grid.select(-1, 1), height, padding, align),
        _direction(c, grid.select(-1, 0), width, padding, align),
    )


def _corners(c: Context, image: Ref, y: Ref, x: Ref) -> tuple[list[tuple[_Corner, Ref]], tuple[Ref, Ref]]:
    """The four elements around each place with their weights, and the place's distances from the first one."""
    b, one = c.b, c.b.const(1.0)
    (top, left), more = (floor(c, v, up=False) for v in (y, x)), b.const(1, DType.I64)
    down, right = b.sub(y, top), b.sub(x, left)
    rows, columns = ((_whole(b, v), b.add(_whole(b, v), more)) for v in (top, left))
    weights = [(b.sub(one, down), down), (b.sub(one, right), right)]
    found = [
        (_corner(c, image, rows[i], columns[j]), b.mul(weights[0][i], weights[1][j]).unsqueeze(1))
        for i in (0, 1)
        for j in (0, 1)
    ]
    return found, (down, right)


def _require_form(mode: int) -> None:
    if mode == _BICUBIC:
        raise NotImplementedError("grid_sample with mode='bicubic'")


@lowers("grid_sampler_2d.default")
def grid_sample(c: Context, image: Ref, grid: Ref, mode: int, padding: int, align: bool) -> Ref:
    """The nearest element, or the four around each place by their distances; beyond the border 0, or moved inside."""
    _require_form(mode)
    b = c.b
    y, x = _plan(c, image, grid, padding, align)
    if mode == _NEAREST:
        return _corner(c, image, _whole(b, round_(c, y.at)), _whole(b, round_(c, x.at))).value
    corners, _ = _corners(c, image, y.at, x.at)
    first, *others = (b.mul(corner.value, weight) for corner, weight in corners)
    for other in others:
        first = b.add(first, other)
    return first


@lowers("grid_sampler_2d_backward.default")
def grid_sample_backward(
    c: Context, grad: Ref, image: Ref, grid: Ref, mode: int, padding: int, align: bool, _wanted: Sequence[bool]
) -> tuple[Ref, Ref]:
    """Each element's exact sum of what was read from it; and the grid's, by the differences of the four elements."""
    _require_form(mode)
    b = c.b
    y, x = _plan(c, image, grid, padding, align)
    if mode == _NEAREST:
        corner = _corner(c, image, _whole(b, round_(c, y.at)), _whole(b, round_(c, x.at)))
        return _put(c, [(corner, grad)], image), b.full(grid.shape, 0.0)
    corners, (down, right) = _corners(c, image, y.at, x.at)
    into_image = _put(c, [(corner, b.mul(grad, weight)) for corner, weight in corners], image)
    (a, d), (e, f) = ([corner.value for corner, _ in corners[i : i + 2]] for i in (0, 2))
    one = b.const(1.0)
    shares = []
    for low, high, distance, way in (((a, e), (d, f), down, x), ((a, d), (e, f), right, y)):
        near, far = (b.sub(after, before) for before, after in zip(low, high, strict=True))
        rest = distance.unsqueeze(1)
        steep = b.add(b.mul(near, b.sub(one, rest)), b.mul(far, rest))
        shares.append(b.mul(b.dot(grad, steep, [1]), way.slope))
    return into_image, b.cat([share.unsqueeze(-1) for share in shares], 3)


def _put(c: Context, parts: Sequence[tuple[_Corner, Ref]], image: Ref) -> Ref:
    """Each element's exact sum of the parts at its place; what lies outside goes nowhere."""
    b, shape = c.b, image.shape
    flat = (*shape[:2], -1)
    sources = b.cat([b.reshape(part, flat) for _, part in parts], 2)
    places = b.cat([b.reshape(corner.place, (shape[0], 1, -1)) for corner, _ in parts], 2)
    return b.put(sources, places.expand(sources.shape), shape, [2, 3])
