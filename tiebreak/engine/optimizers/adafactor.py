"""Adafactor as in `torch.optim.Adafactor`: 6 elementwise instructions and 4 sums per element of a matrix.

For a matrix g, with w = t^beta2_decay (a table, see `second_moment_weights`) and rate the learning rate:

    row += w * (mean of g^2 over columns - row)      col += w * (mean of g^2 over rows - col)
    v = row / max(mean of row, eps1) * col           u = g / sqrt(max(v, eps1^2))
    step = max(eps2, RMS(p)) * min(rate, 1 / sqrt(t)) / max(1, RMS(u) / d)
    p = p * (1 - rate * weight_decay) - u * step

Tensors of more dims are stacks of matrices (the last two dims); a vector keeps v itself. Sums of squares are exact and
rounded once. torch multiplies row by col before it divides, which underflows for gradients below 1e-11; here row / mean
comes first. The squares themselves underflow for gradients below 1e-23; there eps1 dominates, as in torch.
"""

from collections.abc import Sequence
from decimal import Context, Decimal
from math import prod, sqrt

import torch
from torch import Tensor

from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.optimizers.settings import Adafactor
from tiebreak.engine.optimizers.update import TrainedParameter, Update, decayed, sum_of_squares
from tiebreak.protocol.program.isa import DType, MapFunction

TABLE = "second_moment_weight"
"""The data entry f32 [steps] with the weight of the newest squared gradient."""


def second_moment_weights(steps: int, decay: float) -> Tensor:
    """t^decay for t = 1 ... steps, correctly rounded, f32 [steps]: whoever makes the table gets the same bytes.

    An FP64 power is used if changing it by 2^-40 (far beyond any library's error) gives the same FP32 number; otherwise
    50 decimal digits decide.
    """
    powers = torch.arange(1, steps + 1, dtype=torch.float64) ** decay
    low, high = ((powers * (1 + e)).float() for e in (-(2.0**-40), 2.0**-40))
    context, table = Context(prec=50), low.clone()
    for i in (low != high).nonzero().flatten().tolist():
        table[i] = _nearest(context.power(Decimal(i + 1), Decimal(decay)), low[i].item(), high[i].item())
    return table


def _nearest(exact: Decimal, low: float, high: float) -> float:
    """The nearer of two neighbouring FP32 numbers."""
    return low if exact < (Decimal(low) + Decimal(high)) / 2 else high


def adafactor(b: Builder, o: Adafactor, steps: int, trained: Sequence[TrainedParameter], result: Update) -> None:
    """One step of every parameter."""
    b.origin = "optimizer:relative_step"
    weight = b.rows(b.data(TABLE, DType.F32, (steps,)), b.step())
    one, number = b.const(1.0), b.cast(b.add(b.step(), b.i64(1)), DType.F32)
    fading = b.div(one, b.map(MapFunction.SQRT, number))
    floor = 2.0**-23 if o.eps[0] is None else o.eps[0]
    for p in trained:
        b.origin = f"optimizer:{p.name}"
        relative = b.map(MapFunction.MIN, p.rate, fading)
        size = b.map(MapFunction.MAX, _rms(b, p.value), b.const(o.eps[1]))
        v = (_factored if p.value.rank > 1 else _whole)(b, p, weight, floor, result)
        u = b.div(p.gradient, b.map(MapFunction.SQRT, b.map(MapFunction.MAX, v, b.const(floor * floor))))
        excess = b.map(MapFunction.MAX, _rms(b, u, o.d), one)
        step = b.div(b.mul(size, relative), excess)
        value, _ = decayed(b, p, decoupled=True)
        result.parameters[p.name] = b.sub(value, b.mul(u, step))


def _rms(b: Builder, x: Ref, unit: float = 1.0) -> Ref:
    """The root mean square in some unit: root of the exact sum, divided by the root of the count times the unit."""
    return b.div(b.map(MapFunction.SQRT, sum_of_squares(b, x)), b.const(sqrt(prod(x.shape)) * unit))


def _towards(b: Builder, key: str, new: Ref, weight: Ref, result: Update) -> Ref:
    """The entry moved towards `new` by the share `weight` of the difference."""
    held = result.moment(b, key, new.shape)
    moved = result.state[key] = b.add(held, b.mul(b.sub(new, held), weight))
    return moved


def _factored(b: Builder, p: TrainedParameter, weight: Ref, floor: float, result: Update) -> Ref:
    g = p.gradient
    row_mean = b.div(b.dot(g, g, [-1], keepdim=True), b.const(float(g.shape[-1])))
    col_mean = b.div(b.dot(g, g, [-2], keepdim=True), b.const(float(g.shape[-2])))
    row = _towards(b, f"row_var.{p.name}", row_mean, weight, result)
    col = _towards(b, f"col_var.{p.name}", col_mean, weight, result)
    mean = b.map(MapFunction.MAX, b.mean(row, [-2], keepdim=True), b.const(floor))
    return b.mul(b.div(row, mean), col)


def _whole(b: Builder, p: TrainedParameter, weight: Ref, _floor: float, result: Update) -> Ref:
    return _towards(b, f"variance.{p.name}", b.mul(p.gradient, p.gradient), weight, result)
