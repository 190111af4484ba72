"""Losses that torch's own decompositions get wrong."""

from tiebreak.engine.lowering.builder import Ref
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction

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
        same = b.eq(self.labels.unsqueeze(2), place)
        hits = b.cast(b.both(same, is_label.unsqueeze(2)), DType.I64)
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
