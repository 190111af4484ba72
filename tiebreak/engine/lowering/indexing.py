"""Indexed reads; what is written at indices is in `tiebreak.engine.lowering.scattering`."""

from collections.abc import Sequence
from dataclasses import dataclass

from tiebreak.engine.lowering.builder import Ref, Scalar, broadcast
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction


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
    if not x.rank:
        return x
    order = [x.dim(d), *(e for e in range(x.rank) if e != x.dim(d))]
    return c.b.rows(x.permute(order), index).unpermute(order)


@lowers("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(c: Context, x: Ref, indices: Sequence[Ref | None]) -> Ref:
    """x[index, ...] for integer tensors in any positions; known ranges cost no instruction."""
    if (several := Indexed.of(c, x, indices)) is None:
        return x
    if (view := several.view()) is not None:
        return several.placed(view)
    if len(several.dims) == 1:
        return several.placed(c.b.rows(several.moved, from_end(c, several.indices[0], several.moved.shape[0])))
    rows = c.b.rows(c.b.reshape(several.moved, (-1, *several.rest)), several.row())
    return several.placed(rows)


@dataclass(frozen=True)
class Indexed:
    """x under index tensors of one shape.

    `dims` are the dims that they index; `moved` is x with those dims in front.
    """

    c: Context
    x: Ref
    dims: list[int]
    indices: list[Ref]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, c: Context, x: Ref, indices: Sequence[Ref | None]) -> "Indexed | None":
        """Returns None if nothing is indexed. Raises `NotImplementedError` for a mask."""
        used = {d: index for d, index in enumerate(indices) if index is not None}
        if any(index.dtype != DType.I64 for index in used.values()):
            raise NotImplementedError("indexing by a mask: the shape of its result depends on data; use `where`")
        shape = broadcast(*(index.shape for index in used.values())) if used else ()
        return cls(c, x, list(used), [index.expand(shape) for index in used.values()], shape) if used else None

    @property
    def moved(self) -> Ref:
        return self.x.permute([*self.dims, *(d for d in range(self.x.rank) if d not in self.dims)])

    @property
    def rest(self) -> tuple[int, ...]:
        return self.moved.shape[len(self.dims) :]

    @property
    def result(self) -> tuple[int, ...]:
        """The shape of torch's x[indices]."""
        whole = (*self.shape, *self.rest)
        return tuple(whole[d] for d in self._order)

    @property
    def _order(self) -> list[int]:
        """The places of the dims (index dims, rest) in torch's result.

        The index dims stay in place if the indexed dims are adjacent, and go in front otherwise.
        """
        lead = list(range(len(self.shape)))
        rest = list(range(len(self.shape), len(self.shape) + len(self.rest)))
        adjacent = self.dims == list(range(self.dims[0], self.dims[-1] + 1))
        before = self.dims[0] if adjacent else 0
        return [*rest[:before], *lead, *rest[before:]]

    def placed(self, rows: Ref) -> Ref:
        """Permutes a result of dims (index dims, rest) to torch's order of dims."""
        return rows.permute(self._order)

    def unplaced(self, values: Ref) -> Ref:
        """The inverse of `placed`."""
        return values.unpermute(self._order)

    def view(self) -> Ref | None:
        """x as a view, if the places read are known to be an affine function of the coordinates."""
        moved, offset, strides = self.moved, self.x.offset, [0] * len(self.shape)
        for index, stride, size in zip(self.indices, moved.strides, moved.shape, strict=False):
            if (places := self.c.b.affine(index)) is None:
                return None
            first, steps = places
            reach = [s * (n - 1) for s, n in zip(steps, self.shape, strict=True)]
            low, high = first + sum(min(r, 0) for r in reach), first + sum(max(r, 0) for r in reach)
            if high < 0:
                first, low, high = first + size, low + size, high + size
            if low < 0 or high >= size:
                return None
            offset += first * stride
            strides = [a + s * stride for a, s in zip(strides, steps, strict=True)]
        return Ref(moved.value, moved.dtype, (*self.shape, *self.rest),
                   (*strides, *moved.strides[len(self.dims):]), offset)  # fmt: skip

    def row(self) -> Ref:
        """Row numbers in row-major order of the indexed dims; -1, which is no row, for an index out of range."""
        b, zero = self.c.b, self.c.b.const(0, DType.I64)
        row, right = zero, b.const(True, DType.BOOL)
        for index, size in zip(self.indices, self.moved.shape, strict=False):
            limit = b.const(size, DType.I64)
            at = from_end(self.c, index, size)
            fits = b.map(MapFunction.AND, b.compare(MapFunction.LE, zero, at), b.compare(MapFunction.LT, at, limit))
            right = b.map(MapFunction.AND, right, fits)
            row = b.add(b.mul(row, limit), at)
        return b.where(right, row, b.const(-1, DType.I64))


def from_end(c: Context, index: Ref, size: int) -> Ref:
    """Replaces negative indices, which count from the end, by non-negative ones."""
    negative = c.b.compare(MapFunction.LT, index, c.b.const(0, DType.I64))
    return c.b.where(negative, c.b.add(index, c.b.const(size, DType.I64)), index)


@lowers("gather.default")
def gather(c: Context, x: Ref, d: int, index: Ref, **_: bool) -> Ref:
    """x at index along dim d, at the same coordinate elsewhere."""
    if x.rank == 0:
        return x
    d = x.dim(d)
    strides = tuple(0 if e == d else s for e, s in enumerate(x.strides))
    return c.b.gather(x, index, x.strides[d], x.shape[d], strides)
