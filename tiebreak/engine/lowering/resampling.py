"""Operators that read or add elements at computed places: interpolation, borders, rolling, unfolding.

Positions that torch computes in floating point are ratios of integers here, so it is never in doubt which element is
read. Spatial dims are the last ones.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

from tiebreak.engine.lowering.builder import Ref
from tiebreak.engine.lowering.convolution import spread
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction, ReduceFunction, row_major

Sizes = tuple[int, ...]
FINEST_SCALE = 1 << 12
"""The largest denominator of a scale factor, which is rounded to the nearest such fraction (0.7 is 7/10)."""


def _i64(c: Context, value: int) -> Ref:
    return c.b.const(value, DType.I64)


def _clamp(c: Context, index: Ref, high: int) -> Ref:
    """min(max(index, 0), high)."""
    raised = c.b.map(MapFunction.MAX, index, _i64(c, 0))
    return c.b.map(MapFunction.MIN, raised, _i64(c, high))


def _places(c: Context, indices: Sequence[Ref], space: Sizes) -> Ref:
    """The row-major index into `space`, from one index (out,) per dim; i64 (outs)."""
    place: Ref | None = None
    for index, stride in zip(indices, row_major(space), strict=True):
        scaled = index if stride == 1 else c.b.mul(index, _i64(c, stride))
        place = scaled if place is None else c.b.add(place.unsqueeze(-1), scaled)
    assert place is not None  # there is a spatial dim
    return place


def _pick(c: Context, x: Ref, indices: Sequence[Ref]) -> Ref:
    """x[..., i, j, ...] for an in-bounds index (out,) per spatial dim: one gather."""
    rank = len(indices)
    space = x.shape[-rank:]
    x = c.b.copy(x)
    place = _places(c, indices, space).expand(c.shape)
    return c.b.gather(x, place, 1, prod(space), (*x.strides[:-rank], *(0,) * rank))


def _put(c: Context, grad: Ref, indices: Sequence[Ref], shape: Sizes) -> Ref:
    """The transpose of `_pick`: each element of `shape` gets the exact sum of everything that was read from it."""
    rank = len(indices)
    place = _places(c, indices, shape[-rank:])
    out = grad.shape[-rank:]
    dims = (*shape, *out)
    source = grad.access_over(dims, (*grad.strides[:-rank], *(0,) * rank, *grad.strides[-rank:]))
    index = place.access_over(dims, (*(0 for _ in shape), *place.strides))
    match = (*(0,) * (len(shape) - rank), *row_major(shape[-rank:]))
    return c.b.scatter(shape, out, source, index, match)


# nearest


def _ratio(size: int, out: int, scale: float | None) -> Fraction:
    """The number of input elements per output element."""
    if scale:
        return 1 / Fraction(scale).limit_denominator(FINEST_SCALE)
    return Fraction(size, out)


def _nearest(c: Context, size: int, out: int, scale: float | None, centred: bool) -> Ref:
    """floor(o * ratio), or floor((o + 1/2) * ratio), at most size - 1; i64 (out,)."""
    ratio = _ratio(size, out, scale)
    ramp = c.b.iota((out,), ((1 + centred) * ratio.numerator,), centred * ratio.numerator)
    index = c.b.map(MapFunction.FLOORDIV, ramp, _i64(c, (1 + centred) * ratio.denominator))
    return c.b.map(MapFunction.MIN, index, _i64(c, size - 1))


def _repeats(space: Sizes, out: Sizes, scales: Sequence[float | None]) -> Sizes | None:
    """How often each element occurs, if all of them occur equally often."""
    ratios = [_ratio(n, o, s) for n, o, s in zip(space, out, scales, strict=True)]
    if any(r.numerator != 1 or o != n * r.denominator for n, o, r in zip(space, out, ratios, strict=True)):
        return None
    return tuple(r.denominator for r in ratios)


def _upsample_nearest(c: Context, x: Ref, out: Sequence[int], scales: Sequence[float | None], centred: bool) -> Ref:
    rank, out = len(out), tuple(out)
    space, lead = x.shape[-rank:], x.shape[:-rank]
    repeats = _repeats(space, out, scales)
    if repeats is None:
        return _pick(c, x, [_nearest(c, n, o, s, centred) for n, o, s in zip(space, out, scales, strict=True)])
    for d in range(rank):
        x = x.unsqueeze(len(lead) + 2 * d + 1)
    apart = [size for pair in zip(space, repeats, strict=True) for size in pair]
    return c.b.reshape(x.expand((*lead, *apart)), (*lead, *out))


def _upsample_nearest_backward(
    c: Context, grad: Ref, shape: Sequence[int], scales: Sequence[float | None], centred: bool
) -> Ref:
    rank, shape = len(scales), tuple(shape)
    space, lead, out = shape[-rank:], shape[:-rank], grad.shape[-rank:]
    repeats = _repeats(space, out, scales)
    if repeats is None:
        indices = [_nearest(c, n, o, s, centred) for n, o, s in zip(space, out, scales, strict=True)]
        return _put(c, grad, indices, shape)
    apart = [size for pair in zip(space, repeats, strict=True) for size in pair]
    tiles = c.b.reshape(grad, (*lead, *apart))
    return c.b.sum(tiles, [len(lead) + 2 * d + 1 for d in range(rank)])


def _nearest_forward(centred: bool) -> Any:
    def rule(c: Context, x: Ref, out: Sequence[int], *scales: float | None) -> Ref:
        return _upsample_nearest(c, x, out, scales or (None,) * len(out), centred)

    rule.__doc__ = f"""The element at floor({"(o + 1/2)" if centred else "o"} * ratio): a view where all come equally
    often, else one gather."""
    return rule


def _nearest_backward(centred: bool) -> Any:
    def rule(c: Context, grad: Ref, out: Sequence[int], shape: Sequence[int], *scales: float | None) -> Ref:
        return _upsample_nearest_backward(c, grad, shape, scales or (None,) * len(out), centred)

    rule.__doc__ = "Each element gets the exact sum of what was read from it: one sum over tiles, else a scatter_sum."
    return rule


for _rank in (1, 2, 3):
    for _name, _centred in ((f"upsample_nearest{_rank}d", False), (f"_upsample_nearest_exact{_rank}d", True)):
        lowers(f"{_name}.default", whole=True)(_nearest_forward(_centred))
        lowers(f"{_name}_backward.default", whole=True)(_nearest_backward(_centred))


# linear


def _position(c: Context, size: int, out: int, scale: float | None, align: bool) -> tuple[Ref, int]:
    """The position of each output element among the inputs: numerators i64 (out,) over one denominator, clamped."""
    if align:
        steps = max(out - 1, 1)
        return c.b.iota((out,), (size - 1 if out > 1 else 0,)), steps
    ratio = _ratio(size, out, scale)
    whole = 2 * ratio.denominator
    ramp = c.b.iota((out,), (2 * ratio.numerator,), ratio.numerator - ratio.denominator)
    return _clamp(c, ramp, (size - 1) * whole), whole


def _tents(c: Context, size: int, out: int, scale: float | None, align: bool) -> Ref:
    """The weight of input i in output o, max(0, 1 - |position(o) - i|), correctly rounded; f32 (out, size)."""
    position, whole = _position(c, size, out, scale, align)
    away = c.b.map(MapFunction.ABS, c.b.sub(position.unsqueeze(1), c.b.iota((size,), (whole,))))
    near = c.b.map(MapFunction.MAX, c.b.sub(_i64(c, whole), away), _i64(c, 0))
    return c.b.div(c.b.cast(near, DType.F32), c.b.const(float(whole)))


def _along(c: Context, x: Ref, matrix: Ref, d: int) -> Ref:
    """The product of `matrix` (out, size) with dim d of x: one contraction."""
    out, size = matrix.shape
    shape = (*x.shape[:d], out, *x.shape[d + 1 :])
    whole = (*shape, size)
    left = x.access_over(whole, (*(0 if e == d else s for e, s in enumerate(x.strides)), x.strides[d]))
    right = matrix.access_over(whole, (*(matrix.strides[0] if e == d else 0 for e in range(x.rank)), matrix.strides[1]))
    return c.b.reduce(ReduceFunction.SUM, shape, (size,), left, right)


def _linear(
    c: Context, x: Ref, space: Sizes, out: Sizes, align: bool, scales: Sequence[float | None], transposed: bool
) -> Ref:
    """Interpolates (or applies the transpose) one dim at a time: shrinking dims first, growing ones last."""
    rank = len(out)
    factors = list(zip(range(x.rank - rank, x.rank), space, out, scales, strict=True))
    for d, n, o, s in sorted(factors, key=lambda f: f[1] / f[2] if transposed else f[2] / f[1]):
        tents = _tents(c, n, o, s, align)
        x = _along(c, x, tents.permute([1, 0]) if transposed else tents, d)
    return x


def _linear_forward(c: Context, x: Ref, out: Sequence[int], align: bool, *scales: float | None) -> Ref:
    """For each dim one contraction with a matrix of tents, max(0, 1 - distance)."""
    rank = len(out)
    return _linear(c, x, x.shape[-rank:], tuple(out), align, scales or (None,) * rank, False)


def _linear_backward(
    c: Context, grad: Ref, out: Sequence[int], shape: Sequence[int], align: bool, *scales: float | None
) -> Ref:
    """For each dim one contraction with the transposed matrix of tents."""
    rank = len(out)
    return _linear(c, grad, tuple(shape[-rank:]), tuple(out), align, scales or (None,) * rank, True)


for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
    lowers(f"{_name}.default", whole=True)(_linear_forward)
    lowers(f"{_name}_backward.default", whole=True)(_linear_backward)


# borders


def _border(c: Context, x_space: Sizes, padding: Sequence[int], reflect: bool) -> list[Ref]:
    """For each spatial dim, the input element at each place. `padding` is as in torch, last dim first."""
    found = []
    for d, n in enumerate(x_space):
        at = 2 * (len(x_space) - 1 - d)
        before, after = padding[at], padding[at + 1]
        ramp = c.b.iota((n + before + after,), (1,), -before)
        if reflect:
            last = _i64(c, n - 1)
            mirrored = c.b.map(MapFunction.ABS, c.b.sub(last, c.b.map(MapFunction.ABS, ramp)))
            found.append(c.b.sub(last, mirrored))
        else:
            found.append(_clamp(c, ramp, n - 1))
    return found


def _border_forward(reflect: bool) -> Any:
    def rule(c: Context, x: Ref, padding: Sequence[int]) -> Ref:
        return _pick(c, x, _border(c, x.shape[-len(padding) // 2 :], padding, reflect))

    rule.__doc__ = f"""A border of {"mirrored" if reflect else "repeated"} elements: one gather."""
    return rule


def _border_backward(reflect: bool) -> Any:
    def rule(c: Context, grad: Ref, x: Ref, padding: Sequence[int]) -> Ref:
        return _put(c, grad, _border(c, x.shape[-len(padding) // 2 :], padding, reflect), x.shape)

    rule.__doc__ = "Each element gets the exact sum of what was read from it: a scatter_sum."
    return rule


for _rank in (1, 2, 3):
    for _name, _reflect in ((f"reflection_pad{_rank}d", True), (f"replication_pad{_rank}d", False)):
        lowers(f"{_name}.default", whole=True)(_border_forward(_reflect))
        lowers(f"{_name}_backward.default", whole=True)(_border_backward(_reflect))


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
    x = x.expand((*(1,) * (len(c.shape) - x.rank), *x.shape))
    for d in range(x.rank):
        x = x.unsqueeze(2 * d)
    apart = [n for whole, size in zip(c.shape, x.shape[1::2], strict=True) for n in (whole // size, size)]
    return c.b.reshape(x.expand(apart), c.shape)


@lowers("unfold.default")
def unfold(_c: Context, x: Ref, d: int, size: int, step: int) -> Ref:
    """Windows of a dim, as an overlapping view."""
    if not x.rank:
        return x.expand(_c.shape)  # one window of one element, or of none
    d = x.dim(d)
    count = (x.shape[d] - size) // step + 1
    shape = (*x.shape[:d], count, *x.shape[d + 1 :], size)
    strides = (*x.strides[:d], x.strides[d] * step, *x.strides[d + 1 :], x.strides[d])
    return Ref(x.value, x.dtype, shape, strides, x.offset)


@lowers("unfold_backward.default", whole=True)
def unfold_backward(c: Context, grad: Ref, shape: Sequence[int], d: int, size: int, step: int) -> Ref:
    """Each element gets the exact sum of the windows that hold it: a scatter_sum."""
    shape = tuple(shape)
    if not shape:
        return c.b.sum(grad)
    d %= len(shape)
    reduction = (grad.shape[d], size)
    dims = (*shape, *reduction)
    source = grad.access_over(
        dims, (*(0 if e == d else s for e, s in enumerate(grad.strides[:-1])), grad.strides[d], grad.strides[-1])
    )
    place = c.b.iota(reduction, (step, 1))
    index = place.access_over(dims, (*(0 for _ in shape), *place.strides))
    return c.b.scatter(shape, reduction, source, index, tuple(int(e == d) for e in range(len(shape))))


@lowers("im2col.default", whole=True)
def im2col(
    c: Context, x: Ref, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Ref:
    """Windows of a plane as columns: an overlapping view, copied."""
    k, e, p, s = (spread(v, 2) for v in (kernel, dilation, padding, stride))
    lead, space = x.shape[:-2], x.shape[-2:]
    out = _columns(space, k, e, p, s)
    if any(p):
        x = c.b.window((*lead, space[0] + 2 * p[0], space[1] + 2 * p[1]), x, (*(0 for _ in lead), *p))
    steps = x.strides[-2:]
    taps, moves = (tuple(n * t for n, t in zip(steps, scale, strict=True)) for scale in (e, s))
    view = Ref(x.value, x.dtype, (*lead, *k, *out), (*x.strides[:-2], *taps, *moves), x.offset)
    return c.b.reshape(view, c.shape)


def _columns(space: Sizes, k: Sizes, e: Sizes, p: Sizes, s: Sizes) -> Sizes:
    return tuple((n + 2 * q - f * (a - 1) - 1) // t + 1 for n, a, f, q, t in zip(space, k, e, p, s, strict=True))


@lowers("col2im.default", whole=True)
def col2im(
    c: Context, x: Ref, space: Sequence[int], kernel: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], stride: Sequence[int],
) -> Ref:  # fmt: skip
    """Columns added back into a plane: a scatter_sum onto the padded plane, of which the inside is read."""
    k, e, p, s = (spread(v, 2) for v in (kernel, dilation, padding, stride))
    out = _columns(tuple(space), k, e, p, s)
    lead = c.shape[:-2]
    plane = tuple(n + 2 * q for n, q in zip(space, p, strict=True))
    x = c.b.reshape(x, (*lead, *k, *out))
    width = plane[1]
    place = c.b.iota((*k, *out), (e[0] * width, e[1], s[0] * width, s[1]))
    dims = (*lead, *plane, *k, *out)
    source = x.access_over(dims, (*x.strides[: len(lead)], 0, 0, *x.strides[len(lead) :]))
    index = place.access_over(dims, (*(0 for _ in lead), 0, 0, *place.strides))
    whole = c.b.scatter((*lead, *plane), (*k, *out), source, index, (*(0 for _ in lead), width, 1))
    for d in range(2):
        whole = whole.slice(len(lead) + d, p[d], p[d] + space[d])
    return whole
