"""Products of rows with the matrix of their group: the layers of mixtures of experts, whose rows are sorted by expert.

`ends` (G,) counts the rows up to the end of each group. Rows behind the last end belong to none, and give zeros.
"""

from typing import Any

from tiebreak.engine.lowering.builder import Ref
from tiebreak.engine.lowering.indexing import gather
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction


def _groups(c: Context, ends: Ref, rows: int) -> Ref:
    """The group of each row, i64 (rows,): the number of groups that end before it."""
    ended = c.b.le(ends, c.b.iota((rows,), (1,)).unsqueeze(-1))
    return c.b.sum(c.b.cast(ended, DType.I64), [-1])


def _rows_times_matrices(c: Context, x: Ref, weight: Ref, ends: Ref) -> Ref:
    """x (S, K) times weight (G, K, N) as (S, N): every row times every matrix, and the row's own product chosen."""
    b, count = c.b, weight.shape[0]
    group = _groups(c, ends, x.shape[0]).unsqueeze(-1)
    last = b.i64(count - 1)
    products = b.einsum("sk,gkn->sng|k", x, weight)
    index = b.map(MapFunction.MIN, group, last).expand(products.shape[:2]).unsqueeze(-1)
    return b.where(b.le(group, last), gather(c, products, -1, index).squeeze([-1]), b.const(0.0))


def _sums_by_group(c: Context, x: Ref, y: Ref, ends: Ref) -> Ref:
    """The sums of x (K, S) times y (S, N) over the rows s of each group, (G, K, N)."""
    group = _groups(c, ends, y.shape[0])
    own = c.b.eq(group, c.b.iota(ends.shape, (1,)).unsqueeze(-1))
    return c.b.einsum("gks,sn->gkn|s", c.b.where(own.unsqueeze(1), x, c.b.const(0.0)), y)


@lowers("_grouped_mm.default", "transformers.grouped_mm_fallback.default")
def grouped_mm(c: Context, x: Ref, y: Ref, ends: Ref | None = None, bias: Ref | None = None, *_: Any) -> Ref:
    """Rows (S, K) times the matrix (K, N) of their group; or, of matrices (K, S) and (S, N), the product by group."""
    if ends is None or bias is not None or (x.rank, y.rank) not in ((2, 3), (2, 2)):
        raise NotImplementedError("grouped_mm of anything but rows and matrices by offsets without bias; use `bmm`")
    return _rows_times_matrices(c, x, y, ends) if y.rank == 3 else _sums_by_group(c, x, y, ends)


@lowers("transformers.grouped_mm_fallback_backward.default")
def grouped_mm_backward(c: Context, x: Ref, weight: Ref, ends: Ref, grad: Ref) -> tuple[Ref, Ref]:
    """Gradients of rows and matrices."""
    rows = _rows_times_matrices(c, grad, weight.permute([0, 2, 1]), ends)
    return rows, _sums_by_group(c, x.permute([1, 0]), grad, ends)
