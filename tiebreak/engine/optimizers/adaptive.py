"""RMSprop, Adagrad, NAdam, RAdam and Lion: elementwise instructions, with what depends on the step alone in tables.

b1 and b2 are the betas as FP32 numbers, and t is the step from 1. Weight decay costs 2 passes over a parameter, or 1
where it is decoupled, in addition to these:

    RMSprop  9, with momentum 11, centered 15      p - rate * (g / (sqrt(v) + eps))
    Adagrad  7      p - rate * decay(t) * (g / (sqrt(s) + eps))
    NAdam   15      p - rate * root(t) * ((x(t) * g + y(t) * m) / (sqrt(v) + eps * root(t)))
    RAdam   13      p - rate * scale(t) * (m / (sqrt(v) + eps)), at first m / 1
    Lion    11      p - rate * sign(b1 * m + (1 - b1) * g)

The centered second moment, v less the squared mean, is taken as 0 where rounding makes it negative (torch: NaN).
"""

from collections.abc import Sequence

import torch

from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.optimizers.exact import ADAGRAD, NADAM, RADAM, radam_begins
from tiebreak.engine.optimizers.settings import Adagrad, Lion, NAdam, RAdam, RMSprop, f32
from tiebreak.engine.optimizers.update import TrainedParameter, Update, averaged, decayed
from tiebreak.protocol.program.isa import DType, MapFunction


def rmsprop(b: Builder, o: RMSprop, trained: Sequence[TrainedParameter], result: Update) -> None:
    """One step of every parameter."""
    for p in trained:
        b.origin = f"optimizer:{p.name}"
        value, g = decayed(b, p, decoupled=False)
        v = averaged(b, f"square_avg.{p.name}", o.alpha, b.mul(g, g), result)
        if o.centered:
            mean = averaged(b, f"grad_avg.{p.name}", o.alpha, g, result)
            v = b.map(MapFunction.MAX, b.sub(v, b.mul(mean, mean)), b.const(0.0))
        move = b.div(g, _deviation(b, v, b.const(o.eps)))
        if o.momentum:
            key = f"momentum.{p.name}"
            move = result.state[key] = b.add(b.scale(result.moment(b, key, g.shape), o.momentum), move)
        result.parameters[p.name] = b.sub(value, b.mul(move, p.rate))


def adagrad(b: Builder, o: Adagrad, steps: int, trained: Sequence[TrainedParameter], result: Update) -> None:
    """One step of every parameter."""
    b.origin = "optimizer:rate_decay"
    decay = _entry(b, ADAGRAD, steps) if o.lr_decay else None
    for p in trained:
        b.origin = f"optimizer:{p.name}"
        value, g = decayed(b, p, decoupled=False)
        key = f"sum.{p.name}"
        held = result.entry(b, key, torch.full(g.shape, f32(o.initial_accumulator_value)))
        total = result.state[key] = b.add(held, b.mul(g, g))
        rate = p.rate if decay is None else b.mul(p.rate, decay)
        result.parameters[p.name] = b.sub(value, b.mul(b.div(g, _deviation(b, total, b.const(o.eps))), rate))


def nadam(b: Builder, o: NAdam, steps: int, trained: Sequence[TrainedParameter], result: Update) -> None:
    """One step of every parameter; see `nadam_tables`."""
    b.origin = "optimizer:shares"
    of_gradient, of_moment, root = (_entry(b, name, steps) for name in NADAM)
    eps = b.mul(root, b.const(o.eps))
    for p in trained:
        b.origin = f"optimizer:{p.name}"
        value, g = decayed(b, p, decoupled=o.decoupled_weight_decay)
        m = averaged(b, f"exp_avg.{p.name}", o.betas[0], g, result)
        v = averaged(b, f"exp_avg_sq.{p.name}", o.betas[1], b.mul(g, g), result)
        move = b.div(b.add(b.mul(g, of_gradient), b.mul(m, of_moment)), _deviation(b, v, eps))
        result.parameters[p.name] = b.sub(value, b.mul(move, b.mul(p.rate, root)))


def radam(b: Builder, o: RAdam, steps: int, trained: Sequence[TrainedParameter], result: Update) -> None:
    """One step of every parameter; see `radam_table`."""
    b.origin = "optimizer:rectification"
    scale, one = _entry(b, RADAM, steps), b.const(1.0)
    plain = b.lt(b.step(), b.i64(radam_begins(o, steps)))
    for p in trained:
        b.origin = f"optimizer:{p.name}"
        value, g = decayed(b, p, decoupled=o.decoupled_weight_decay)
        m = averaged(b, f"exp_avg.{p.name}", o.betas[0], g, result)
        v = averaged(b, f"exp_avg_sq.{p.name}", o.betas[1], b.mul(g, g), result)
        unit = b.where(plain, one, _deviation(b, v, b.const(o.eps)))
        result.parameters[p.name] = b.sub(value, b.mul(b.div(m, unit), b.mul(p.rate, scale)))


def lion(b: Builder, o: Lion, trained: Sequence[TrainedParameter], result: Update) -> None:
    """One step of every parameter. Where b1 * m + (1 - b1) * g is zero, it stays as it is but for its decay."""
    zero = b.const(0.0)
    for p in trained:
        b.origin = f"optimizer:{p.name}"
        value, g = decayed(b, p, decoupled=True)
        held, share = result.moment(b, f"exp_avg.{p.name}", g.shape), f32(o.betas[0])
        mixed = b.add(b.scale(held, share), b.mul(g, b.const(1.0 - share)))
        falling = b.where(b.lt(mixed, zero), b.neg(p.rate), zero)
        move = b.where(b.lt(zero, mixed), p.rate, falling)
        averaged(b, f"exp_avg.{p.name}", o.betas[1], g, result)
        result.parameters[p.name] = b.sub(value, move)


def _entry(b: Builder, name: str, steps: int) -> Ref:
    """This step's number of a table."""
    return b.rows(b.data(name, DType.F32, (steps,)), b.step())


def _deviation(b: Builder, square: Ref, eps: Ref) -> Ref:
    return b.add(b.map(MapFunction.SQRT, square), eps)
