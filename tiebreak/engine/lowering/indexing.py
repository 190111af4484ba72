"""Indexed reads; what is written at indices is in `tiebreak.engine.lowering.scattering`."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from tiebreak.engine.lowering.builder import Builder, Ref, Scalar, broadcast
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction


@lowers("embedding.default")
def embedding(c: Context, weight: Ref, index: Ref, *_: Scalar) -> Ref:
    """Rows of the weight."""
    return c.b.rows(weight, index)


def _require_unscaled(scale_by_frequency: bool) -> None:
    if scale_by_frequency:
        raise NotImplementedError("embedding with scale_grad_by_freq")


@lowers("embedding_dense_backward.default", whole=True)
def embedding_backward(
    c: Context, grad: Ref, index: Ref, rows: int, padding_index: int, scale_by_frequency: bool
) -> Ref:
    """Exact sums of the rows of grad with the same index; the padding row gets none."""
    _require_unscaled(scale_by_frequency)
    if padding_index >= 0:
        hit = c.b.eq(index, c.b.i64(padding_index))
        index = c.b.where(hit, c.b.i64(-1), index)
    return c.b.scatter_rows(grad, index, rows)


@dataclass(frozen=True)
class _Bags:
    """Consecutive indices belong together: to the last bag whose offset is not greater than their place."""

    every: Ref
    """The bag of each index; i64 (indices)."""
    number: Ref
    """The same, but -1 for one that is left out."""
    count: Ref
    """The number of indices in each bag; i64 (bags)."""

    @classmethod
    def of(cls, b: Builder, index: Ref, offsets: Ref, bags: int, padding_index: int) -> "_Bags":
        """The bags that begin at the first `bags` offsets; `padding_index` is left out."""
        one = b.i64(1)
        places = b.iota(index.shape, (1,)).unsqueeze(1)
        begun = b.le(offsets.slice(0, 0, bags).unsqueeze(0), places)
        every = number = b.sub(b.sum(b.cast(begun, DType.I64), [1]), one)
        if padding_index >= 0:
            hit = b.eq(index, b.i64(padding_index))
            number = b.where(hit, b.i64(-1), number)
        inside = b.eq(number.unsqueeze(0), b.iota((bags,), (1,)).unsqueeze(1))
        return cls(every, number, b.sum(b.cast(inside, DType.I64), [1]))

    def size(self, b: Builder) -> Ref:
        """The divisor of each bag's mean; f32 (bags, 1)."""
        return b.cast(b.map(MapFunction.MAX, self.count, b.i64(1)), DType.F32).unsqueeze(1)

    def spread(self, b: Builder, rows: Ref) -> Ref:
        """The row of each index's bag; zeros for an index that is left out."""
        left_out = b.lt(self.number, b.i64(0))
        found = b.rows(rows, b.where(left_out, b.i64(0), self.number))
        return b.where(left_out.unsqueeze(1), b.const(0.0), found)

    def greatest(self, b: Builder, rows: Ref) -> tuple[Ref, Ref]:
        """The greatest numbers of each bag's rows, by doubling, and the first index with each; (bags, columns).

        Both are 0 for a bag that has none.
        """
        n, step = self.number.shape[0], 1
        least, none = b.const(-inf), b.i64(0)
        value = b.where(b.lt(self.number, none).unsqueeze(1), least, rows)
        place = b.iota((n,), (1,)).unsqueeze(1).expand(rows.shape)
        while step < n:
            lo = (step, 0)
            before = b.window(rows.shape, value.slice(0, 0, n - step), lo, fill=-inf)
            bag = b.window((n,), self.every.slice(0, 0, n - step), (step,), fill=-1)
            is_same = b.eq(bag, self.every).unsqueeze(1)
            wins = b.both(is_same, b.le(value, before))
            value = b.where(wins, before, value)
            place = b.where(wins, b.window(rows.shape, place.slice(0, 0, n - step), lo), place)
            step *= 2
        bags = b.iota(self.count.shape, (1,)).unsqueeze(1)
        ends = b.sum(b.cast(b.le(self.every.unsqueeze(0), bags), DType.I64), [1])
        ends = b.sub(ends, b.i64(1))
        has_any = b.lt(none, self.count).unsqueeze(1)
        return b.where(has_any, b.rows(value, ends), b.const(0.0)), b.where(has_any, b.rows(place, ends), none)


_MEAN, _MAX = 1, 2


@lowers("_embedding_bag.default")
def embedding_bag(
    c: Context, weight: Ref, index: Ref, offsets: Ref, scale_by_frequency: bool = False, mode: int = 0,
    _sparse: bool = False, factors: Ref | None = None, _include_last: bool = False, padding_index: int = -1,
) -> tuple[Ref, Ref, Ref, Ref]:  # fmt: skip
    """The exact sum of each bag's rows, or of their products with the rows' factors, divided for a mean; or maxima."""
    _require_unscaled(scale_by_frequency)
    b, bags = c.b, c.shape[0]
    found = _Bags.of(b, index, offsets, bags, padding_index)
    rows = b.rows(weight, index)
    if mode == _MAX:
        value, place = found.greatest(b, rows)
        return value, found.number, found.count, b.rows(index, place)
    rows = rows if factors is None else b.mul(rows, factors.unsqueeze(1))
    total = b.scatter_rows(rows, found.number, bags)
    total = b.div(total, found.size(b)) if mode == _MEAN else total
    return total, found.number, found.count, b.full(c.result[3].shape, 0, DType.I64)


@lowers("_embedding_bag_backward.default")
def embedding_bag_backward(
    c: Context, grad: Ref, index: Ref, offsets: Ref, _number: Ref, _count: Ref, greatest: Ref, rows: int,
    scale_by_frequency: bool, mode: int, _sparse: bool, factors: Ref | None, padding_index: int = -1,
) -> Ref:  # fmt: skip
    """Each row's exact sum of its bags' gradients: for a mean, divided first; for a maximum, where it is greatest."""
    _require_unscaled(scale_by_frequency)
    b = c.b
    found = _Bags.of(b, index, offsets, grad.shape[0], padding_index)
    if mode == _MAX:
        has_any = b.lt(b.i64(0), found.count).unsqueeze(1)
        into = b.where(has_any, greatest, b.i64(-1))
        return b.put(grad.permute([1, 0]), into.permute([1, 0]), (rows, grad.shape[1]), [0])
    grad = b.div(grad, found.size(b)) if mode == _MEAN else grad
    shares = found.spread(b, grad)
    return b.scatter_rows(shares if factors is None else b.mul(shares, factors.unsqueeze(1)), index, rows)


@lowers("_embedding_bag_per_sample_weights_backward.default")
def embedding_bag_factors_backward(
    c: Context, grad: Ref, weight: Ref, index: Ref, offsets: Ref, _number: Ref, _mode: int, padding_index: int = -1
) -> Ref:
    """The exact product of each index's row and the gradient of its bag."""
    found = _Bags.of(c.b, index, offsets, grad.shape[0], padding_index)
    return c.b.dot(found.spread(c.b, grad), c.b.rows(weight, index), [1])


@lowers("index_select.default")
def index_select(c: Context, x: Ref, d: int, index: Ref) -> Ref:
    """Chosen indices of a dim."""
    if not x.rank:
        return x
    order = [x.dim(d), *(e for e in range(x.rank) if e != x.dim(d))]
    return c.b.rows(x.permute(order), index).unpermute(order)


@lowers("index.Tensor")
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
        b, zero = self.c.b, self.c.b.i64(0)
        row, right = zero, b.const(True, DType.BOOL)
        for index, size in zip(self.indices, self.moved.shape, strict=False):
            limit = b.i64(size)
            at = from_end(self.c, index, size)
            fits = b.both(b.le(zero, at), b.lt(at, limit))
            right = b.both(right, fits)
            row = b.add(b.mul(row, limit), at)
        return b.where(right, row, b.i64(-1))


def from_end(c: Context, index: Ref, size: int) -> Ref:
    """Replaces negative indices, which count from the end, by non-negative ones."""
    negative = c.b.lt(index, c.b.i64(0))
    return c.b.where(negative, c.b.add(index, c.b.i64(size)), index)


@lowers("gather.default")
def gather(c: Context, x: Ref, d: int, index: Ref, **_: bool) -> Ref:
    """x at index along dim d, at the same coordinate elsewhere."""
    if x.rank == 0:
        return x
    d = x.dim(d)
    strides = tuple(0 if e == d else s for e, s in enumerate(x.strides))
    return c.b.gather(x, index, x.strides[d], x.shape[d], strides)
