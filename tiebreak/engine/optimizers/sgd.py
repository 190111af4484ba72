"""SGD with momentum: 2 elementwise instructions per parameter, plus 2 with weight decay and 2 to 4 with momentum."""

from collections.abc import Sequence

from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.optimizers.settings import SGD
from tiebreak.engine.optimizers.update import TrainedParameter, Update, decayed


def sgd(b: Builder, o: SGD, trained: Sequence[TrainedParameter], result: Update) -> None:
    """Emits one step: buf = momentum * buf + g; p -= rate * buf, or rate * (g + momentum * buf) with Nesterov.

    g includes weight decay.
    """
    for p in trained:
        b.origin = f"optimizer:{p.name}"
        _, g = decayed(b, p, decoupled=False)
        if o.momentum:
            key = f"momentum.{p.name}"
            kept = b.scale(result.moment(b, key, p.value.shape), o.momentum)
            buffer = b.add(kept, b.mul(g, _share(b, o.dampening)) if o.dampening else g)
            result.state[key] = buffer
            g = b.add(g, b.scale(buffer, o.momentum)) if o.nesterov else buffer
        result.parameters[p.name] = b.sub(p.value, b.mul(g, p.rate))


def _share(b: Builder, dampening: float) -> Ref:
    """The weight of the gradient in the buffer: 1 in the first step, as in torch, then 1 - dampening."""
    first = b.eq(b.step(), b.i64(0))
    return b.where(first, b.const(1.0), b.const(1 - dampening))
