"""Adam and AdamW: 12 elementwise instructions per parameter, plus 1 (AdamW) or 2 (Adam) with weight decay.

With amsgrad, the root is that of the greatest v so far, which costs 1 more.

b1 and b2 are the betas as FP32 numbers, and t is the step from 1:

    m = b1 * m + (1 - b1) * g                  v = b2 * v + (1 - b2) * (g * g)
    p = p - rate * sqrt(1 - b2^t) / (1 - b1^t) * (m / (sqrt(v) + eps * sqrt(1 - b2^t)))

This is torch's p - rate / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps) with numerator and denominator multiplied
by sqrt(1 - b2^t) (Kingma and Ba, end of section 2), which leaves one root and one division per element. The powers of
the betas are state, multiplied once per step, so `pow` is not needed. 1 - b is computed from the FP32 number b (exact
from 1/2 on), so that the weights of a moving average agree with its correction.
"""

from collections.abc import Sequence

import torch

from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.optimizers.settings import Adam, AdamW
from tiebreak.engine.optimizers.update import TrainedParameter, Update, averaged, decayed
from tiebreak.protocol.program.isa import MapFunction


def adam(b: Builder, o: Adam, trained: Sequence[TrainedParameter], result: Update) -> None:
    """One step of Adam (decay added to the gradient) or AdamW (decay of the parameter itself)."""
    first, second = (_correction(b, i, beta, result) for i, beta in enumerate(o.betas, start=1))
    root = b.map(MapFunction.SQRT, second)
    eps, scale = b.mul(root, b.const(o.eps)), b.div(root, first)
    for p in trained:
        b.origin = f"optimizer:{p.name}"
        value, g = decayed(b, p, decoupled=isinstance(o, AdamW))
        m = averaged(b, f"exp_avg.{p.name}", o.betas[0], g, result)
        v = averaged(b, f"exp_avg_sq.{p.name}", o.betas[1], b.mul(g, g), result)
        if o.amsgrad:
            key = f"max_exp_avg_sq.{p.name}"
            v = result.state[key] = b.map(MapFunction.MAX, result.moment(b, key, v.shape), v)
        deviation = b.add(b.map(MapFunction.SQRT, v), eps)
        result.parameters[p.name] = b.sub(value, b.mul(b.div(m, deviation), b.mul(p.rate, scale)))


def _correction(b: Builder, number: int, beta: float, result: Update) -> Ref:
    """1 - beta^t, with the power kept as state."""
    b.origin = f"optimizer:beta{number}_power"
    key = f"beta{number}_power"
    power = result.state[key] = b.scale(result.entry(b, key, torch.ones(())), beta)
    return b.sub(b.const(1.0), power)
