"""Pooling: reductions over overlapping windows."""

from collections.abc import Sequence
from math import prod

from engine.builder import Ref
from engine.lowering.convolution import input_gradient
from engine.lowering.registry import Context, lowers
from protocol.isa import Access, DType, MapFunction, ReduceFunction


def _pair(values: Sequence[int], default: Sequence[int] = ()) -> tuple[int, int]:
    chosen = list(values) or list(default)
    return (chosen[0], chosen[-1])


def _windows(
    c: Context,
    x: Ref,
    out: tuple[int, ...],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    fill: float,
) -> Ref:
    """A view (..., OH, OW, KH, KW) of x padded with `fill` as far as the last window reaches."""
    lead, space = x.shape[:-2], x.shape[-2:]
    reach = [(o - 1) * s + (k - 1) * e + 1 for o, s, k, e in zip(out, stride, kernel, dilation, strict=True)]
    sizes = [max(n + p, r) for n, p, r in zip(space, padding, reach, strict=True)]
    if tuple(sizes) != space:
        lo = (*(0 for _ in lead), *padding)
        x = c.b.window((*lead, *sizes), x, lo, fill=fill)
    rows, columns = x.strides[-2:]
    strides = (*x.strides[:-2], rows * stride[0], columns * stride[1], rows * dilation[0], columns * dilation[1])
    return Ref(x.value, x.dtype, (*lead, *out, *kernel), strides, x.offset)


@lowers("max_pool2d_with_indices.default")
def max_pool2d(
    c: Context,
    x: Ref,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    _ceil_mode: bool = False,
) -> tuple[Ref, Ref]:
    """Greatest of each window, and its index h * W + w in the input plane."""
    b = c.b
    k, s = _pair(kernel), _pair(stride, kernel)
    p, e = _pair(padding), _pair(dilation)
    out = c.shape[-2:]
    view = _windows(c, x, out, k, s, p, e, float("-inf"))
    lead, width = c.shape, x.shape[-1]
    access = view.access()
    values = b.reduce(ReduceFunction.MAX, lead, k, access)
    local = b.reduce(ReduceFunction.ARGMAX, lead, k, access, dtype=DType.I64)
    columns = b.const(k[1], DType.I64)
    row = b.map(MapFunction.FLOORDIV, local, columns)
    column = b.map(MapFunction.MOD, local, columns)
    outer = (0,) * (len(lead) - 2)
    corner = b.iota(lead, (*outer, s[0] * width, s[1]), -p[0] * width - p[1])
    inside = b.add(b.mul(row, b.const(e[0] * width, DType.I64)), b.mul(column, b.const(e[1], DType.I64)))
    return values, b.add(corner, inside)


@lowers("max_pool2d_with_indices_backward.default")
def max_pool2d_backward(
    c: Context,
    grad: Ref,
    x: Ref,
    _kernel: Sequence[int],
    _stride: Sequence[int],
    _padding: Sequence[int],
    _dilation: Sequence[int],
    _ceil_mode: bool,
    indices: Ref,
) -> Ref:
    """Each gradient goes to the element that its window chose."""
    lead = x.rank - 2
    reduction = grad.shape[-2:]
    dims = (*x.shape, *reduction)

    def spread(ref: Ref) -> Access:
        return ref.access_over(dims, (*ref.strides[:-2], 0, 0, *ref.strides[-2:]))

    match = (*(0,) * lead, x.shape[-1], 1)
    return c.b.scatter(x.shape, reduction, spread(grad), spread(indices), match)


@lowers("avg_pool2d.default")
def avg_pool2d(
    c: Context,
    x: Ref,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Ref:
    """Sum of each window over its size."""
    k, s, p = _pair(kernel), _pair(stride, kernel), _pair(padding)
    if ceil_mode or (any(p) and not count_include_pad):
        raise NotImplementedError("avg_pool2d with ceil_mode or without the padding in its count")
    view = _windows(c, x, c.shape[-2:], k, s, p, (1, 1), 0.0)
    total = c.b.reduce(ReduceFunction.SUM, c.shape, k, view.access())
    return c.b.div(total, c.b.const(float(divisor or prod(k))))


@lowers("avg_pool2d_backward.default")
def avg_pool2d_backward(
    c: Context,
    grad: Ref,
    x: Ref,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Ref:
    """Each element gets the sum over the windows that hold it: a depthwise convolution's gradient, with ones."""
    k, s, p = _pair(kernel), _pair(stride, kernel), _pair(padding)
    if ceil_mode or (any(p) and not count_include_pad):
        raise NotImplementedError("avg_pool2d with ceil_mode or without the padding in its count")
    share = c.b.div(grad, c.b.const(float(divisor or prod(k))))
    channels = x.shape[1]
    ones = c.b.full((channels, 1, *k), 1.0)
    return input_gradient(c, share, ones, x.shape, s, p, (1, 1), channels)
