"""Rules of whole layers and losses: fake quantization, products with the matrix of a row's group, the margin loss.

Fake quantization rounds numbers to levels that an integer dtype would hold; observers set these. Grouped products are
the layers of mixtures of experts, whose rows are sorted by expert: `ends` (G,) counts the rows up to the end of each
group. Rows behind the last end belong to none, and give zeros. torch's own decomposition of the margin loss is wrong.
"""

from typing import Any, Final

from tiebreak.engine.lowering import elementwise, indexing
from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction

_LEAST_SCALE: Final = 6.1e-5
"""The least distance of two levels that torch's observers set."""


def _quantized(c: Context, x: Ref, scale: Ref, zero: Ref, low: int, high: int) -> tuple[Ref, Ref]:
    b = c.b
    level = b.add(elementwise.round_(c, b.mul(x, b.div(b.const(1.0), scale))), zero)
    kept = b.clamp(level, float(low), float(high))
    return b.mul(b.sub(kept, zero), scale), b.eq(kept, level)


@lowers("fake_quantize_per_tensor_affine_cachemask.default")
def fake_quantize(c: Context, x: Ref, scale: float, zero: int, low: int, high: int) -> tuple[Ref, Ref]:
    """(clamp(round(x * (1 / scale)) + zero, low, high) - zero) * scale, and where nothing was clamped."""
    return _quantized(c, x, c.b.const(scale), c.b.const(float(zero)), low, high)


@lowers("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def fake_quantize_by_tensors(
    c: Context, x: Ref, scale: Ref, zero: Ref, enabled: Ref, low: int, high: int
) -> tuple[Ref, Ref]:
    """The same with scale and zero from tensors; x itself where that is switched off."""
    scale, zero, enabled = (c.b.reshape(ref, ()) for ref in (scale, zero, enabled))
    return _if(c.b, enabled, _quantized(c, x, scale, c.ref(zero), low, high), x)


def _if(b: Builder, enabled: Ref, found: tuple[Ref, Ref], x: Ref) -> tuple[Ref, Ref]:
    is_on = _is_on(b, enabled)
    return b.where(is_on, found[0], x), b.where(is_on, found[1], b.const(True, DType.BOOL))


def _is_on(b: Builder, enabled: Ref) -> Ref:
    return b.ne(enabled, b.const(0, enabled.dtype))


@lowers("fake_quantize_per_channel_affine_cachemask.default")
def fake_quantize_channels(
    c: Context, x: Ref, scale: Ref, zero: Ref, axis: int, low: int, high: int
) -> tuple[Ref, Ref]:
    """The same with a scale and a zero for each index of a dim."""
    if zero.dtype != DType.I64:
        raise NotImplementedError("zero points that are floats; use int32")
    shape = [x.shape[axis] if d == axis else 1 for d in range(x.rank)]
    scale, zero = (c.b.reshape(ref, shape) for ref in (scale, c.ref(zero)))
    return _quantized(c, x, scale, zero, low, high)


@lowers("_fused_moving_avg_obs_fq_helper_functional.default")
def observed(
    c: Context, x: Ref, observes: Ref, quantizes: Ref, least: Ref, greatest: Ref, scale: Ref, zero: Ref,
    rate: float, low: int, high: int, _axis: int, by_row: bool = False, symmetric: bool = False,
) -> tuple[Ref, ...]:  # fmt: skip
    """Moving averages of the extremes (of all, or of each row) set scale and zero, by which x is quantized."""
    b, rows = c.b, c.b.reshape(x, (x.shape[0] if by_row else 1, -1))
    observes, quantizes, zero = b.reshape(observes, ()), b.reshape(quantizes, ()), c.ref(zero)

    def moved(held: Ref, now: Ref) -> Ref:
        new = b.add(held, b.scale(b.sub(b.reshape(now, held.shape), held), rate))
        return b.where(_is_on(b, observes), new, held)

    least, greatest = moved(least, b.neg(b.max(b.neg(rows), [1]))), moved(greatest, b.max(rows, [1]))
    levels = zip(_levels(c, least, greatest, low, high, symmetric=symmetric), (scale, zero), strict=True)
    scale, zero = (b.where(_is_on(b, quantizes), b.reshape(new, old.shape), old) for new, old in levels)
    shape = (-1, *(1 for _ in x.shape[1:])) if by_row else ()
    found = _quantized(c, x, b.reshape(scale, shape), b.reshape(zero, shape), low, high)
    return *_if(b, quantizes, found, x), least, greatest, scale, b.cast(zero, DType.I64)


def _levels(c: Context, least: Ref, greatest: Ref, low: int, high: int, *, symmetric: bool) -> tuple[Ref, Ref]:
    """Scale and zero, as torch's observers choose them: 0 is a level, and is the middle one if they are symmetric."""
    b, nothing = c.b, c.b.const(0.0)
    both = b.both(b.lt(least, nothing), b.lt(nothing, greatest))
    if symmetric:
        down, up = float((high - low) // 2 + 1), float((high - low) // 2)
        reach = b.map(MapFunction.MAX, b.div(b.neg(least), b.const(down)), b.div(greatest, b.const(up)))
        least, greatest = b.where(both, b.scale(reach, -down), least), b.where(both, b.scale(reach, up), greatest)
    least, greatest = b.map(MapFunction.MIN, least, nothing), b.map(MapFunction.MAX, greatest, nothing)
    scale = b.div(b.sub(greatest, least), b.const(float(high - low)))
    scale = b.where(b.eq(b.div(b.const(1.0), scale), b.const(float("inf"))), b.const(0.1), scale)
    below, above = b.div(least, scale), b.div(greatest, scale)
    from_low, from_high = b.sub(b.const(float(low)), below), b.sub(b.const(float(high)), above)
    nearer = b.lt(b.add(b.const(float(abs(low))), below), b.sub(b.const(float(abs(high))), above))
    zero = b.where(nearer, from_low, from_high)
    zero = b.where(both, b.const((low + high) / 2), zero) if symmetric else zero
    zero = elementwise.round_(c, b.clamp(zero, float(low), float(high)))
    return b.map(MapFunction.MAX, scale, b.const(_LEAST_SCALE)), zero


def _groups(c: Context, ends: Ref, rows: int) -> Ref:
    """The group of each row, i64 (rows,): the number of groups that end before it."""
    return c.b.sum(c.b.cast(c.b.le(ends, c.b.iota((rows,), (1,)).unsqueeze(-1)), DType.I64), [-1])


def _rows_times_matrices(c: Context, x: Ref, weight: Ref, ends: Ref) -> Ref:
    """x (S, K) times weight (G, K, N) as (S, N): every row times every matrix, and the row's own product chosen."""
    b, count = c.b, weight.shape[0]
    group = _groups(c, ends, x.shape[0]).unsqueeze(-1)
    last = b.i64(count - 1)
    products = b.einsum("sk,gkn->sng|k", x, weight)
    index = b.map(MapFunction.MIN, group, last).expand(products.shape[:2]).unsqueeze(-1)
    return b.where(b.le(group, last), indexing.gather(c, products, -1, index).squeeze([-1]), b.const(0.0))


def _sums_by_group(c: Context, x: Ref, y: Ref, ends: Ref) -> Ref:
    """The sums of x (K, S) times y (S, N) over the rows s of each group, (G, K, N)."""
    own = c.b.eq(_groups(c, ends, y.shape[0]), c.b.iota(ends.shape, (1,)).unsqueeze(-1))
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


_MEAN, _SUM = 1, 2


class _Hinges:
    """The hinges of a multi-label margin loss: 1 - x[target j] + x[d] for each label j and each class d.

    Labels end before the first -1. Dims are (batch, label, class); a hinge counts if d is no label and it is positive.
    """

    def __init__(self, c: Context, x: Ref, target: Ref) -> None:
        b = c.b
        self.classes = x.shape[-1] if x.rank else 1
        self.rows = b.reshape(x, (-1, self.classes))
        labels = b.reshape(target, (-1, self.classes))
        place, size, zero = b.iota((self.classes,), (1,)), b.i64(self.classes), b.i64(0)
        ends = b.where(b.eq(labels, b.i64(-1)), b.sub(size, place), zero)
        is_label = b.lt(place, b.sub(size, b.max(ends, [1], keepdim=True)))
        self.labels = b.where(is_label, labels, zero)
        hits = b.cast(b.both(b.eq(self.labels.unsqueeze(2), place), is_label.unsqueeze(2)), DType.I64)
        self.is_target = b.cast(b.max(hits, [1]), DType.BOOL)
        own = b.gather(self.rows, self.labels, self.rows.strides[1], self.classes, (self.rows.strides[0], 0))
        hinge = b.add(b.sub(b.const(1.0), own).unsqueeze(2), self.rows.unsqueeze(1))
        counts = b.both(is_label.unsqueeze(2), b.map(MapFunction.NOT, self.is_target).unsqueeze(1))
        self.positive = b.both(counts, b.lt(b.const(0.0), hinge))
        self.values = b.where(self.positive, hinge, b.const(0.0))


@lowers("multilabel_margin_loss_forward.default", whole=True)
def multilabel_margin_loss(c: Context, x: Ref, target: Ref, reduction: int) -> tuple[Ref, Ref]:
    """Sums of max(0, 1 - x[label] + x[other]) over the number of classes, labels ending at -1; and a mask of labels."""
    b, hinges = c.b, _Hinges(c, x, target)
    losses = b.div(b.sum(hinges.values, [1, 2]), b.const(float(hinges.classes)))
    found = b.mean(losses) if reduction == _MEAN else b.sum(losses) if reduction == _SUM else losses
    return b.reshape(found, c.shape), b.reshape(b.cast(hinges.is_target, DType.F32), target.shape)


@lowers("multilabel_margin_loss_backward.default", whole=True)
def multilabel_margin_loss_backward(c: Context, grad: Ref, x: Ref, target: Ref, reduction: int, _is_target: Ref) -> Ref:
    """+grad for the class and -grad for the label of each hinge that counts, over the number of classes."""
    b, hinges = c.b, _Hinges(c, x, target)
    ones = b.cast(hinges.positive, DType.F32)
    given = b.put(b.sum(ones, [2]), hinges.labels, hinges.rows.shape, [1])
    batch = hinges.rows.shape[0] if reduction == _MEAN else 1
    share = b.div(grad, b.const(float(hinges.classes * batch)))
    shares = share.expand((hinges.rows.shape[0],)).unsqueeze(1) if share.rank <= 1 else share
    return b.reshape(b.mul(b.sub(b.sum(ones, [1]), given), shares), c.shape)
