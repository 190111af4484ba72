"""Indexed reads and their gradients, and dropout."""

from collections.abc import Sequence

from engine.builder import Ref, Scalar
from engine.lowering.registry import Context, lowers
from protocol.isa import DType, MapFunction


@lowers("embedding.default")
def embedding(c: Context, weight: Ref, index: Ref, *_: Scalar) -> Ref:
    """Rows of the weight."""
    return c.b.rows(weight, index)


@lowers("embedding_dense_backward.default", whole=True)
def embedding_backward(
    c: Context, grad: Ref, index: Ref, rows: int, padding_index: int, scale_by_frequency: bool
) -> Ref:
    """Exact sums of the rows of grad with the same index; the padding row gets none."""
    if scale_by_frequency:
        raise NotImplementedError("embedding with scale_grad_by_freq")
    if padding_index >= 0:
        hit = c.b.compare(MapFunction.EQ, index, c.b.const(padding_index, DType.I64))
        index = c.b.where(hit, c.b.const(-1, DType.I64), index)
    return c.b.scatter_rows(grad, index, rows)


@lowers("index_select.default")
def index_select(c: Context, x: Ref, d: int, index: Ref) -> Ref:
    """Chosen indices of a dim."""
    order = [x.dim(d), *(e for e in range(x.rank) if e != x.dim(d))]
    rows = c.b.rows(x.permute(order), index)
    back = [order.index(e) for e in range(x.rank)]
    return rows.permute(back)


@lowers("index.Tensor")
def index_tensor(c: Context, x: Ref, indices: Sequence[Ref | None]) -> Ref:
    """x[index] for one index tensor, in any position."""
    used = [(d, index) for d, index in enumerate(indices) if index is not None]
    if len(used) != 1 or used[0][1].dtype != DType.I64:
        raise NotImplementedError("indexing with several index tensors or a mask")
    d, index = used[0]
    size = c.b.const(x.shape[d], DType.I64)
    negative = c.b.compare(MapFunction.LT, index, c.b.const(0, DType.I64))
    index = c.b.where(negative, c.b.add(index, size), index)
    moved = x.permute([d, *(e for e in range(x.rank) if e != d)])
    rows = c.b.rows(moved, index)
    lead = list(range(index.rank))
    rest = list(range(index.rank, rows.rank))
    return rows.permute([*rest[:d], *lead, *rest[d:]])


@lowers("gather.default")
def gather(c: Context, x: Ref, d: int, index: Ref, **_: bool) -> Ref:
    """x at index along dim d, at the same coordinate elsewhere."""
    if x.rank == 0:
        return x
    d = x.dim(d)
    strides = tuple(0 if e == d else s for e, s in enumerate(x.strides))
    return c.b.gather(x, index, x.strides[d], x.shape[d], strides)


@lowers("scatter.value", "scatter.src")
def scatter(c: Context, x: Ref, d: int, index: Ref, value: Ref | Scalar) -> Ref:
    """x with one element along dim d replaced (an index of size 1 there)."""
    d = x.dim(d)
    if index.shape[d] != 1 or any(n != m for e, (n, m) in enumerate(zip(index.shape, x.shape, strict=True)) if e != d):
        raise NotImplementedError("scatter with more than one index along its dim")
    positions = c.b.iota(x.shape, tuple(int(e == d) for e in range(x.rank)))
    hit = c.b.compare(MapFunction.EQ, index.expand(x.shape), positions)
    if isinstance(value, Ref):
        value = value.slice(d, 0, 1)
    return c.b.where(hit, c.ref(value), c.ref(x))


@lowers("scatter_add.default")
def scatter_add(c: Context, x: Ref, d: int, index: Ref, source: Ref) -> Ref:
    """x plus the exact sums of what lands on each element; index and source of equal shape, full outside d."""
    d = x.dim(d)
    if index.shape != source.shape or any(index.shape[e] != x.shape[e] for e in range(x.rank) if e != d):
        raise NotImplementedError("scatter_add of a part")
    dims = (*x.shape, index.shape[d])

    def spread(ref: Ref) -> Ref:
        outer = tuple(0 if e == d else s for e, s in enumerate(ref.strides))
        return Ref(ref.value, ref.dtype, dims, (*outer, ref.strides[d]), ref.offset)

    match = tuple(int(e == d) for e in range(x.rank))
    sums = c.b.scatter(x.shape, (index.shape[d],), spread(source).access(), spread(index).access(), match)
    return sums if c.b.constant_value(x) == 0 else c.b.add(x, sums)


@lowers("index_put.default", "_unsafe_index_put.default")
def index_put(c: Context, x: Ref, indices: Sequence[Ref | None], values: Ref, accumulate: bool = False) -> Ref:
    """x[index] += values for one index tensor in the first position, with exact sums."""
    if not accumulate or indices[0] is None or any(i is not None for i in indices[1:]):
        raise NotImplementedError("index_put other than accumulation by one leading index")
    index = indices[0]
    size = c.b.const(x.shape[0], DType.I64)
    negative = c.b.compare(MapFunction.LT, index, c.b.const(0, DType.I64))
    index = c.b.where(negative, c.b.add(index, size), index)
    sums = c.b.scatter_rows(values.expand((*index.shape, *x.shape[1:])), index, x.shape[0])
    return sums if c.b.constant_value(x) == 0 else c.b.add(x, sums)


@lowers("native_dropout.default")
def native_dropout(c: Context, x: Ref, p: float, train: bool | None) -> tuple[Ref, Ref]:
    """x scaled by 1/(1-p) where kept, and the mask. Philox in place of the device's generator."""
    b = c.b
    if not train or p == 0:
        return x, b.full(x.shape, True, DType.BOOL)
    if p == 1:
        return b.full(x.shape, 0.0), b.full(x.shape, False, DType.BOOL)
    kept = b.compare(MapFunction.LT, b.random(x.shape), b.const(1 - p))
    return b.mul(x, b.scale(b.cast(kept, DType.F32), 1 / (1 - p))), kept
