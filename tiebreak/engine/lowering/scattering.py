"""Indexed writes. The last of several writes to one element counts, in row-major order of the indices."""

from collections.abc import Callable, Sequence
from math import inf, prod
from typing import Final

from tiebreak.engine.lowering.builder import Ref, Scalar
from tiebreak.engine.lowering.indexing import Indexed, from_end, gather
from tiebreak.engine.lowering.ordering import MAX_COMPARISONS
from tiebreak.engine.lowering.reductions import backwards
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.engine.lowering.scans import halved, prefix_sums
from tiebreak.protocol.program.isa import DType, MapFunction


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
        places = b.iota(part.shape, tuple(int(e == d) for e in range(x.rank)))
        hit = b.eq(index.expand(part.shape), places)
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
    places = c.b.reshape(index, (-1,))
    for _ in range(x.rank - 1 - x.dim(d)):
        places = places.unsqueeze(-1)
    return scatter_reduce(c, x, d, places.expand(source.shape), source, kind, include_self=include_self)


@lowers("index_put.default")
def index_put(c: Context, x: Ref, indices: Sequence[Ref | None], values: Ref, accumulate: bool = False) -> Ref:
    """x[index, ...] replaced, of several at one place by the last; or (accumulate) with exact sums added.

    One value may be put where a mask of leading dims holds.
    """
    b = c.b
    if not accumulate and any(index is not None and index.dtype == DType.BOOL for index in indices):
        return _masked(c, x, indices, values)
    several = Indexed.of(c, x, indices)
    if several is None:
        return b.add(x, values.expand(x.shape)) if accumulate else values.expand(x.shape)
    if 0 in several.shape:
        return x
    moved, lead = several.moved, len(several.dims)
    count = prod(moved.shape[:lead])
    source = several.unplaced(values.expand(several.result))
    row = several.row() if lead > 1 else from_end(c, several.indices[0], moved.shape[0])
    if accumulate:
        rows = b.scatter_rows(source, row, count)
    else:
        flat = b.reshape(source, (prod(several.shape), *several.rest))
        hit, last = _last(c, _hits(c, b.reshape(row, (-1,)), count))
        for _ in several.rest:
            hit = hit.unsqueeze(-1)
        rows = b.where(hit, b.rows(flat, last), b.reshape(moved, (count, *several.rest)))
    found = b.reshape(rows, moved.shape).unpermute(
        [*several.dims, *(d for d in range(x.rank) if d not in several.dims)]
    )
    return found if not accumulate or b.constant_value(x) == 0 else b.add(x, found)


def _masked(c: Context, x: Ref, indices: Sequence[Ref | None], value: Ref) -> Ref:
    mask = indices[0]
    if len(indices) != 1 or mask is None or prod(value.shape) != 1:
        raise NotImplementedError("index_put of several values under a mask; use `where`")
    for _ in range(x.rank - mask.rank):
        mask = mask.unsqueeze(-1)
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
    found = b.reshape(b.rows(b.reshape(source, (-1,)), _ranks(c, mask, c.shape)), c.shape)
    return b.where(mask, found, x)


@lowers("masked_scatter_backward.default")
def masked_scatter_backward(c: Context, grad: Ref, mask: Ref, _sizes: Sequence[int]) -> Ref:
    """The elements that the mask selects, in row-major order, followed by zeros."""
    b = c.b
    rows = b.scatter_rows(b.reshape(grad, (-1,)), _ranks(c, mask, grad.shape), prod(c.shape))
    return b.reshape(rows, c.shape)


@lowers("put.default")
def put(c: Context, x: Ref, index: Ref, source: Ref, accumulate: bool = False) -> Ref:
    """x with elements at places in row-major order replaced, or (accumulate) with exact sums added."""
    flat = [c.b.reshape(ref, (-1,)) for ref in (x, index, source)]
    return c.b.reshape(index_put(c, flat[0], [flat[1]], flat[2], accumulate), x.shape)
