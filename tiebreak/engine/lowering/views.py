"""Operators that only change how data is read: no instruction, or a window where parts are put together."""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

from tiebreak.engine.lowering.builder import Ref, Scalar
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import row_major


@lowers("view.default", "view_copy.default")
def view(c: Context, x: Ref, _shape: Sequence[int]) -> Ref:
    """The same elements in another shape."""
    return c.b.reshape(x, c.shape)


@lowers("permute.default", "permute_copy.default")
def permute(_c: Context, x: Ref, dims: Sequence[int]) -> Ref:
    """Dims in another order."""
    return x.permute(dims)


@lowers("expand.default")
def expand(c: Context, x: Ref, _shape: Sequence[int], **_: Any) -> Ref:
    """Broadcast."""
    return x.expand(c.shape)


@lowers("unsqueeze.default")
def unsqueeze(_c: Context, x: Ref, d: int) -> Ref:
    """A dim of size 1."""
    return x.unsqueeze(d)


@lowers("squeeze.dims")
def squeeze(_c: Context, x: Ref, dims: Sequence[int]) -> Ref:
    """The tensor without dims of size 1."""
    return x.squeeze(dims)


@lowers("slice.Tensor")
def slice_(_c: Context, x: Ref, d: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Ref:
    """Part of a dim."""
    return x.slice(d, 0 if start is None else start, x.shape[x.dim(d)] if end is None else end, step)


@lowers("narrow_copy.default")
def narrow(_c: Context, x: Ref, d: int, start: int, length: int) -> Ref:
    """`length` elements of a dim from `start` on, which counts from the end if it is negative."""
    start += x.shape[x.dim(d)] * (start < 0)
    return x.slice(d, start, start + length)


@lowers("select.int")
def select(_c: Context, x: Ref, d: int, index: int) -> Ref:
    """One index of a dim."""
    return x.select(d, index)


@lowers("diagonal.default")
def diagonal(c: Context, x: Ref, offset: int = 0, d1: int = 0, d2: int = 1) -> Ref:
    """Elements whose indices of two dims differ by `offset`, as a last dim."""
    d1, d2 = x.dim(d1), x.dim(d2)
    rest = [d for d in range(x.rank) if d not in (d1, d2)]
    strides = (*(x.strides[d] for d in rest), x.strides[d1] + x.strides[d2])
    first = x.strides[d2] * offset if offset > 0 else -x.strides[d1] * offset
    return Ref(x.value, x.dtype, c.shape, strides, x.offset + first)


@lowers("as_strided.default", "as_strided_copy.default")
def as_strided(c: Context, x: Ref, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Ref:
    """Any elements of a contiguous tensor, by their distances."""
    flat = _memory(c, x)
    last = (offset or 0) + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if last >= flat.shape[0]:
        raise NotImplementedError("it reads memory beyond its tensor; use slices, `unfold`, `permute` or `expand`")
    step = flat.strides[0]
    return Ref(flat.value, flat.dtype, c.shape, tuple(s * step for s in stride), flat.offset + (offset or 0) * step)


@lowers("as_strided_scatter.default")
def as_strided_scatter(
    c: Context, x: Ref, src: Ref, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Ref:
    """x with elements that lie side by side replaced."""
    if any(n > 1 and s != dense for n, s, dense in zip(size, stride, row_major(tuple(size)), strict=True)):
        raise NotImplementedError("only elements side by side have a form; use slices")
    flat, part = _memory(c, x), c.b.reshape(c.ref(src), (prod(size),))
    return c.b.reshape(c.b.window(flat.shape, part, (offset or 0,), outside=flat), c.shape)


def _memory(c: Context, x: Ref) -> Ref:
    """A tensor's elements in the order of its memory."""
    if not c.operands[0].is_contiguous() or c.operands[0].storage_offset():
        raise NotImplementedError("a part of another tensor's memory; use slices, `unfold`, `permute` or `expand`")
    return c.b.reshape(c.ref(x), (prod(x.shape),))


@lowers("diagonal_scatter.default")
def diagonal_scatter(c: Context, x: Ref, src: Ref, offset: int = 0, d1: int = 0, d2: int = 1) -> Ref:
    """x with a diagonal replaced: in the row-major order of the two dims its elements are equally far apart."""
    d1, d2 = x.dim(d1), x.dim(d2)
    order = [*(d for d in range(x.rank) if d not in (d1, d2)), d1, d2]
    moved = c.ref(x).permute(order)
    *rest, rows, columns = moved.shape
    start = offset if offset > 0 else -columns * offset
    flat = c.b.reshape(moved, (*rest, rows * columns))
    step = (*(1 for _ in rest), columns + 1)
    replaced = c.b.window(flat.shape, c.ref(src), (*(0 for _ in rest), start), step=step, outside=flat)
    return c.b.reshape(replaced, moved.shape).unpermute(order)


@lowers("split_with_sizes.default")
def split(_c: Context, x: Ref, sizes: Sequence[int], d: int = 0) -> list[Ref]:
    """Consecutive parts of a dim."""
    return [x.slice(d, end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]


@lowers("unbind_copy.int")
def unbind(_c: Context, x: Ref, d: int = 0) -> list[Ref]:
    """Every index of a dim."""
    return [x.select(d, index) for index in range(x.shape[x.dim(d)])]


@lowers("alias.default", "clone.default", "lift_fresh_copy.default")
def same(_c: Context, x: Ref, **_: Any) -> Ref:
    """The same values."""
    return x


@lowers("tiebreak.again.default")
def again(c: Context, x: Ref) -> Ref:
    """The same values, from which others are computed anew."""
    return c.b.again(x)


@lowers("flip.default")
def flip(_c: Context, x: Ref, dims: Sequence[int]) -> Ref:
    """Dims backwards."""
    for d in dims:
        x = x.flip(d)
    return x


@lowers("cat.default")
def cat(c: Context, parts: Sequence[Ref], d: int = 0) -> Ref:
    """The parts one after the other; parts of size 0 are skipped as in torch."""
    whole = [c.ref(part) for part in parts if 0 not in part.shape]
    return c.b.cat(whole, d) if whole else c.b.full(c.shape, 0, c.dtype)


@lowers("constant_pad_nd.default")
def constant_pad_nd(c: Context, x: Ref, pad: Sequence[int], value: Scalar = 0) -> Ref:
    """A border of a constant; negative widths crop."""
    lo = [0] * x.rank
    for i in range(len(pad) // 2):
        d = x.rank - 1 - i
        before, after = pad[2 * i], pad[2 * i + 1]
        x = x.slice(d, max(0, -before), x.shape[d] - max(0, -after))
        lo[d] = max(0, before)
    return x if x.shape == c.shape else c.b.window(c.shape, x, lo, fill=value)


@lowers("slice_scatter.default")
def slice_scatter(
    c: Context, x: Ref, src: Ref, d: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Ref:
    """x with part of a dim replaced."""
    if 0 in src.shape:
        return c.ref(x)
    d = x.dim(d)
    span = range(x.shape[d])[start:end:step]
    lo = [span.start if e == d else 0 for e in range(x.rank)]
    return c.b.window(x.shape, c.ref(src), lo, step=[step if e == d else 1 for e in range(x.rank)], outside=c.ref(x))
