"""Orders of values, by comparing each with each: topk, sort, median, and counts by bins.

Every order is stable: of equal values the first comes first, whichever way the order runs. Zeros of both signs are
equal, and NaN counts as the greatest number, infinity.
"""

from math import inf, prod

from tiebreak.engine.lowering import indexing, reductions
from tiebreak.engine.lowering.builder import Ref, Scalar
from tiebreak.engine.lowering.registry import MAX_COMPARISONS, Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction, ReduceFunction

MAX_ROUNDS = 16
"""The most places that are found one after the other, each by an extreme of what is left."""


def _keys(c: Context, x: Ref, *, descending: bool) -> Ref:
    """Sort keys of x: the element with the greatest key comes first."""
    x = reductions.ordered(c, x)
    if x.dtype == DType.F32:
        x = c.b.where(c.b.ne(x, x), c.b.const(inf), x)
    return x if descending else reductions.backwards(c, x)


def _ranks(c: Context, keys: Ref) -> Ref:
    """The number of keys before each in its row, the last dim: the greater ones, and the equal ones to its left."""
    b = c.b
    if prod(keys.shape) * keys.shape[-1] > MAX_COMPARISONS:
        raise NotImplementedError(
            f"to order {keys.shape[-1]} elements takes as many comparisons for each of {prod(keys.shape)}; at most "
            f"{MAX_COMPARISONS} in all have a form: order fewer, or find the greatest {MAX_ROUNDS}"
        )
    mine, other = keys.unsqueeze(-1), keys.unsqueeze(-2)
    place = b.iota((keys.shape[-1],), (1,))
    equal = b.both(b.lt(place, place.unsqueeze(-1)), b.eq(mine, other))
    return b.sum(b.cast(b.either(equal, b.lt(mine, other)), DType.I64), [-1])


def _first(c: Context, holds: Ref) -> Ref:
    """The first place in the last dim at which a condition holds; 0 if there is none."""
    return c.b.reduce_dims(ReduceFunction.ARGMAX, [-1], c.b.cast(holds, DType.I64))


def _by_rounds(c: Context, keys: Ref, count: int) -> Ref:
    """The places of the first `count` keys, (..., count): again and again the greatest of those that are left."""
    b, n = c.b, keys.shape[-1]
    least = b.const(-inf if keys.dtype == DType.F32 else -(1 << 63), keys.dtype)
    found = [b.reduce_dims(ReduceFunction.ARGMAX, [-1], keys).unsqueeze(-1)]
    left: Ref | None = None
    while len(found) < count:
        others = b.ne(found[-1], b.iota((n,), (1,)))
        left = others if left is None else b.both(left, others)
        greatest = b.max(b.where(left, keys, least), [-1], keepdim=True)
        found.append(_first(c, b.both(left, b.eq(keys, greatest))).unsqueeze(-1))
    return b.cat(found, -1)


def _order(c: Context, x: Ref, d: int, places: range, *, descending: bool) -> tuple[Ref, Ref]:
    """The values along dim d that stand at these places of the order, and their indices."""
    shape = tuple(len(places) if e == d % max(1, x.rank) else n for e, n in enumerate(x.shape))
    if not x.rank or 0 in shape:
        return x.expand(shape) if not x.rank else c.b.full(shape, 0, x.dtype), c.b.full(shape, 0, DType.I64)
    dims = [e for e in range(x.rank) if e != x.dim(d)] + [x.dim(d)]
    keys = _keys(c, x.permute(dims), descending=descending)
    if places.stop <= MAX_ROUNDS and 2 * places.stop <= keys.shape[-1]:
        index = _by_rounds(c, keys, places.stop).slice(-1, places.start, places.stop)
    else:
        wanted = c.b.iota((len(places),), (1,), places.start).unsqueeze(-1)
        index = _first(c, c.b.eq(_ranks(c, keys).unsqueeze(-2), wanted))
    index = index.unpermute(dims)
    return indexing.gather(c, x, d, index), index


@lowers("topk.default")
def topk(c: Context, x: Ref, k: int, d: int = -1, largest: bool = True, _sorted: bool = True) -> tuple[Ref, Ref]:
    """The k greatest or least, in order, and their indices; of equal values the first."""
    return _order(c, x, d, range(k), descending=largest)


@lowers("sort.default", "sort.stable")
def sort(c: Context, x: Ref, dim: int = -1, descending: bool = False, **_: bool) -> tuple[Ref, Ref]:
    """The values in order, and their indices; equal ones stay in the order that they had."""
    return _order(c, x, dim, range(x.shape[dim] if x.rank else 1), descending=descending)


@lowers("kthvalue.default")
def kthvalue(c: Context, x: Ref, k: int, d: int = -1, keepdim: bool = False) -> tuple[Ref, Ref]:
    """The k-th least, and its index; of equal values in their order."""
    value, index = _order(c, x, d, range(k - 1, k), descending=False)
    return (value, index) if keepdim or not x.rank else (value.squeeze([d]), index.squeeze([d]))


@lowers("median.dim")
def median(c: Context, x: Ref, d: int = -1, keepdim: bool = False) -> tuple[Ref, Ref]:
    """The lower of the middle values, and its index; NaN if there is one."""
    value, index = kthvalue(c, x, (x.shape[d] + 1) // 2 if x.rank else 1, d, keepdim)
    if x.rank and x.dtype == DType.F32:
        greatest = c.b.max(x, [d], keepdim=keepdim)
        value = c.b.where(c.b.ne(greatest, greatest), greatest, value)
    return value, index


@lowers("median.default")
def median_of_all(c: Context, x: Ref) -> Ref:
    """The lower of the middle values; NaN if there is one."""
    return median(c, c.b.reshape(x, (-1,)))[0]


@lowers("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    c: Context, sequence: Ref, x: Ref | Scalar, *, right: bool = False, side: str | None = None,
    sorter: Ref | None = None, **_: bool,
) -> Ref:  # fmt: skip
    """The place of each number in a sequence, before or (right) after equal ones, by torch's own halvings."""
    b, n = c.b, sequence.shape[-1]
    if isinstance(x, float) and sequence.dtype != DType.F32:
        raise NotImplementedError("a number that is no integer among integers; give floats")
    x = (x if isinstance(x, Ref) else b.const(x, sequence.dtype)).expand(c.shape)
    low = b.full(c.shape, 0, DType.I64)
    high = b.full(c.shape, n, DType.I64)

    def read(table: Ref, index: Ref) -> Ref:
        strides = (0,) * len(c.shape) if table.rank == 1 else (*table.strides[:-1], 0)
        return b.gather(table, index, table.strides[-1], n, strides)

    for _round in range(n.bit_length() if 0 not in c.shape else 0):
        middle = b.map(MapFunction.FLOORDIV, b.add(low, high), b.i64(2))
        at = b.map(MapFunction.MIN, middle, b.i64(n - 1))
        there = read(sequence, at if sorter is None else read(sorter, at))
        is_past = b.lt(x, there) if right or side == "right" else b.le(x, there)
        stays, after = b.either(is_past, b.le(high, low)), b.add(middle, b.i64(1))
        high = b.where(is_past, middle, high)
        low = b.where(stays, low, after)
    return low


@lowers("bucketize.Tensor", "bucketize.Scalar")
def bucketize(c: Context, x: Ref | Scalar, boundaries: Ref, **options: bool) -> Ref:
    """The same, of a number and then a sequence."""
    return searchsorted(c, boundaries, x, **options)  # type: ignore[arg-type]


@lowers("histc.default")
def histc(c: Context, x: Ref, bins: int = 100, low: Scalar = 0, high: Scalar = 0) -> Ref:
    """Counts of the bins, the last one closed: bin trunc((x - low) * bins / (high - low)) in f32, as torch has it."""
    b = c.b
    if low >= high:
        raise NotImplementedError("histc with limits that are read from the data; give `min` and `max`")
    x = b.reshape(x, (-1,))
    bottom, top = b.const(float(low)), b.const(float(high))
    scaled = b.div(b.mul(b.sub(x, bottom), b.const(float(bins))), b.sub(top, bottom))
    inside = b.both(b.le(bottom, x), b.le(x, top))
    place = b.map(MapFunction.MIN, b.cast(b.where(inside, scaled, b.const(0.0)), DType.I64), b.i64(bins - 1))
    return b.put(b.full(x.shape, 1.0), b.where(inside, place, b.i64(-1)), (bins,), [0])
