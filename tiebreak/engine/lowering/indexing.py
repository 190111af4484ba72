"""Indexed reads and writes. The last of several writes to one element counts, in row-major order of the indices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Final

from tiebreak.engine.lowering.builder import Builder, Ref, Scalar, broadcast
from tiebreak.engine.lowering.reductions import backwards, halved, prefix_sums
from tiebreak.engine.lowering.registry import MAX_COMPARISONS, Context, lowers
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
        index = c.b.where(c.b.eq(index, c.b.i64(padding_index)), c.b.i64(-1), index)
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
        begun = b.le(offsets.slice(0, 0, bags).unsqueeze(0), b.iota(index.shape, (1,)).unsqueeze(1))
        every = number = b.sub(b.sum(b.cast(begun, DType.I64), [1]), one)
        if padding_index >= 0:
            number = b.where(b.eq(index, b.i64(padding_index)), b.i64(-1), number)
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
            wins = b.both(b.eq(bag, self.every).unsqueeze(1), b.le(value, before))
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
        into = b.where(b.lt(b.i64(0), found.count).unsqueeze(1), greatest, b.i64(-1))
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
    return several.placed(c.b.rows(c.b.reshape(several.moved, (-1, *several.rest)), several.row()))


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
        return tuple(whole[d] for d in self.order)

    @property
    def order(self) -> list[int]:
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
        return rows.permute(self.order)

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
            right = b.both(right, b.both(b.le(zero, at), b.lt(at, limit)))
            row = b.add(b.mul(row, limit), at)
        return b.where(right, row, b.i64(-1))


def from_end(c: Context, index: Ref, size: int) -> Ref:
    """Replaces negative indices, which count from the end, by non-negative ones."""
    return c.b.where(c.b.lt(index, c.b.i64(0)), c.b.add(index, c.b.i64(size)), index)


@lowers("gather.default")
def gather(c: Context, x: Ref, d: int, index: Ref, **_: bool) -> Ref:
    """x at index along dim d, at the same coordinate elsewhere."""
    if x.rank == 0:
        return x
    d = x.dim(d)
    return c.b.gather(x, index, x.strides[d], x.shape[d], tuple(0 if e == d else s for e, s in enumerate(x.strides)))


def _hits(c: Context, index: Ref, size: int) -> Ref:
    """Whether the j-th index (..., j) is i, as (..., i, j)."""
    if prod(index.shape) * size > MAX_COMPARISONS:
        raise NotImplementedError(
            f"{prod(index.shape)} indices compared with {size} places; at most {MAX_COMPARISONS} comparisons have a "
            "form: write fewer at once, or use `scatter_add`, whose sums need none"
        )
    return c.b.eq(index.unsqueeze(-2), c.b.iota((size,), (1,)).unsqueeze(-1))


def _last(c: Context, hits: Ref) -> tuple[Ref, Ref]:
    """Whether anything hits each place, and the last j that does (0 if none)."""
    b, one, none = c.b, c.b.i64(1), c.b.i64(0)
    last = b.max(b.where(hits, b.iota((hits.shape[-1],), (1,), 1), none), [-1])
    return b.le(one, last), b.map(MapFunction.MAX, b.sub(last, one), none)


def _cut(x: Ref, shape: Sequence[int], without: int | None = None) -> Ref:
    """The first elements of x in each dim but one; indices and sources may be smaller than what they are for."""
    for e, n in enumerate(shape):
        x = x if e == without else x.slice(e, 0, n)
    return x


def _laid(x: Ref, part: Ref, c: Context) -> Ref:
    """x with its first elements replaced by a part."""
    return part if part.shape == x.shape else c.b.window(x.shape, part, (0,) * x.rank, outside=x)


def _last_dim(x: Ref, d: int) -> list[int]:
    """The order of dims with d behind the others."""
    return [*(e for e in range(x.rank) if e != d), d]


@lowers("scatter.value", "scatter.src")
def scatter(c: Context, x: Ref, d: int, index: Ref, value: Ref | Scalar) -> Ref:
    """x with elements along dim d replaced; of several at one place the last counts."""
    b = c.b
    if not x.rank or 0 in index.shape:
        return x if x.rank else b.reshape(c.ref(value), ())
    d = x.dim(d)
    part = _cut(x, index.shape, d)
    value = _cut(value, index.shape) if isinstance(value, Ref) and value.rank else value
    if index.shape[d] == 1:  # as in the gradient of a loss over classes
        hit = b.eq(index.expand(part.shape), b.iota(part.shape, tuple(int(e == d) for e in range(x.rank))))
        return _laid(x, b.where(hit, c.ref(value), part), c)
    order = _last_dim(x, d)
    hit, last = _last(c, _hits(c, index.permute(order), x.shape[d]))
    new = c.ref(value)
    new = gather(c, new.permute(order), -1, last) if new.rank else new
    return _laid(x, b.where(hit, new, part.permute(order)).unpermute(order), c)


def _sums(c: Context, x: Ref, d: int, index: Ref, source: Ref) -> Ref:
    """The exact sums of what lands on each element of x that an index can reach."""
    order = _last_dim(x, d)
    shape = tuple(x.shape[e] if e == d else n for e, n in enumerate(index.shape))
    return c.b.put(_cut(source, index.shape).permute(order), index.permute(order), shape, [d])


@lowers("scatter_add.default")
def scatter_add(c: Context, x: Ref, d: int, index: Ref, source: Ref) -> Ref:
    """x plus the exact sums of what lands on each element."""
    if not x.rank or 0 in index.shape:
        return x if 0 in index.shape else c.b.add(x, c.b.reshape(source, ()))
    d = x.dim(d)
    sums, part = _sums(c, x, d, index, source), _cut(x, index.shape, d)
    zero = c.b.constant_value(x) == 0
    return _laid(x, sums if zero else c.b.add(part, sums), c)


_REDUCED: Final[dict[str, Callable[[Context, Ref], Ref]]] = {
    "amax": lambda c, x: c.b.max(x, [-1]),
    "amin": lambda c, x: backwards(c, c.b.max(backwards(c, x), [-1])),
    "prod": lambda c, x: halved(c, x, x.rank - 1).squeeze([-1]),
}
"""Reductions of the last dim that are not sums, by torch's name."""


@lowers("scatter_reduce.two")
def scatter_reduce(c: Context, x: Ref, d: int, index: Ref, source: Ref, kind: str, *, include_self: bool = True) -> Ref:
    """x reduced with what lands on each element: exact sums, their means, greatest, least, or products."""
    if not x.rank or 0 in index.shape:
        raise NotImplementedError("scatter_reduce of a number or with no indices")
    b, d = c.b, x.dim(d)
    order, part = _last_dim(x, d), _cut(x, index.shape, d)
    counts = _sums(c, x, d, index, b.full(index.shape, 1.0))
    hit = b.ne(counts, b.const(0.0))
    if kind in ("sum", "mean"):
        found = _sums(c, x, d, index, source)
        found = b.add(part, found) if include_self else found
        if kind == "mean":
            found = b.div(found, b.add(counts, b.const(1.0)) if include_self else counts)
    else:
        hits = _hits(c, index.permute(order), x.shape[d])
        neutral = {"amax": -inf, "amin": inf, "prod": 1.0}[kind]
        terms = b.where(hits, _cut(source, index.shape).permute(order).unsqueeze(-2), b.const(neutral))
        if include_self:
            terms = b.cat([terms, part.permute(order).unsqueeze(-1)], -1)
        found = _REDUCED[kind](c, terms).unpermute(order)
    return _laid(x, b.where(hit, found, part), c)


@lowers("index_reduce.default")
def index_reduce(
    c: Context, x: Ref, d: int, index: Ref, source: Ref, kind: str, *, include_self: bool = True
) -> Ref:  # fmt: skip
    """x reduced with slices of a dim that land on each of its own: means, greatest, least, or products."""
    if not x.rank:
        raise NotImplementedError("index_reduce of a number; give it a dim")
    places = c.b.reshape(index, (-1,)).append_dims(x.rank - 1 - x.dim(d))
    return scatter_reduce(c, x, d, places.expand(source.shape), source, kind, include_self=include_self)


@lowers("index_put.default")
def index_put(c: Context, x: Ref, indices: Sequence[Ref | None], values: Ref, accumulate: bool = False) -> Ref:
    """x[index, ...] replaced, of several at one place by the last; or (accumulate) with exact sums added.

    One value may be put where a mask of leading dims holds.
    """
    b = c.b
    if not accumulate and any(index is not None and index.dtype == DType.BOOL for index in indices):
        return _masked(c, x, indices, values)
    if (several := Indexed.of(c, x, indices)) is None:
        return b.add(x, values.expand(x.shape)) if accumulate else values.expand(x.shape)
    if 0 in several.shape:
        return x
    moved, lead = several.moved, len(several.dims)
    count = prod(moved.shape[:lead])
    source = values.expand(several.result).unpermute(several.order)
    row = several.row() if lead > 1 else from_end(c, several.indices[0], moved.shape[0])
    if accumulate:
        rows = b.scatter_rows(source, row, count)
    else:
        flat = b.reshape(source, (prod(several.shape), *several.rest))
        hit, last = _last(c, _hits(c, b.reshape(row, (-1,)), count))
        hit = hit.append_dims(len(several.rest))
        rows = b.where(hit, b.rows(flat, last), b.reshape(moved, (count, *several.rest)))
    found = b.reshape(rows, moved.shape).unpermute(
        [*several.dims, *(d for d in range(x.rank) if d not in several.dims)]
    )
    return found if not accumulate or b.constant_value(x) == 0 else b.add(x, found)


def _masked(c: Context, x: Ref, indices: Sequence[Ref | None], value: Ref) -> Ref:
    mask = indices[0]
    if len(indices) != 1 or mask is None or prod(value.shape) != 1:
        raise NotImplementedError("index_put of several values under a mask; use `where`")
    mask = mask.append_dims(x.rank - mask.rank)
    return c.b.where(mask.expand(x.shape), c.b.reshape(value, ()), x)


def _ranks(c: Context, mask: Ref, shape: Sequence[int]) -> Ref:
    """The number of elements that the mask selects before each, in row-major order; -1 for those that it does not."""
    b = c.b
    flat = b.cast(b.reshape(mask.expand(shape), (-1,)), DType.I64)
    return b.sub(b.mul(prefix_sums(c, flat, 0), flat), b.i64(1))


@lowers("masked_scatter.default")
def masked_scatter(c: Context, x: Ref, mask: Ref, source: Ref) -> Ref:
    """x with the elements that the mask selects replaced by the first ones of the source, in row-major order."""
    b = c.b
    return b.where(mask, b.reshape(b.rows(b.reshape(source, (-1,)), _ranks(c, mask, c.shape)), c.shape), x)


@lowers("masked_scatter_backward.default")
def masked_scatter_backward(c: Context, grad: Ref, mask: Ref, _sizes: Sequence[int]) -> Ref:
    """The elements that the mask selects, in row-major order, followed by zeros."""
    b = c.b
    return b.reshape(b.scatter_rows(b.reshape(grad, (-1,)), _ranks(c, mask, grad.shape), prod(c.shape)), c.shape)


@lowers("put.default")
def put(c: Context, x: Ref, index: Ref, source: Ref, accumulate: bool = False) -> Ref:
    """x with elements at places in row-major order replaced, or (accumulate) with exact sums added."""
    flat = [c.b.reshape(ref, (-1,)) for ref in (x, index, source)]
    return c.b.reshape(index_put(c, flat[0], [flat[1]], flat[2], accumulate), x.shape)
