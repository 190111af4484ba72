"""Gradient clipping: by value, 2 elementwise instructions per gradient; by norm, 1 and an exact sum."""

from functools import reduce

from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.optimizers.settings import Clip
from tiebreak.engine.optimizers.update import sum_of_squares
from tiebreak.protocol.program.isa import MapFunction

MARGIN = 1e-6
"""`clip_grad_norm_` adds this to the norm before it divides."""


def clipped(b: Builder, clip: Clip, gradients: dict[str, Ref]) -> dict[str, Ref]:
    """The clipped gradients by name. When clipping by norm, one that is not finite makes all NaN, which stops the run.

    (torch differs: if its norm is infinite, finite gradients become zero and infinite ones NaN.)
    """
    b.origin = "clip"
    if clip.value is not None:
        low, high = b.const(-clip.value), b.const(clip.value)
        inside = {name: b.map(MapFunction.MAX, g, low) for name, g in gradients.items()}
        gradients = {name: b.map(MapFunction.MIN, g, high) for name, g in inside.items()}
    if clip.norm is not None:
        ratio = b.div(b.const(clip.norm), b.add(total_norm(b, gradients), b.const(MARGIN)))
        factor = b.map(MapFunction.MIN, ratio, b.const(1.0))
        gradients = {name: b.mul(g, factor) for name, g in gradients.items()}
    return gradients


def total_norm(b: Builder, gradients: dict[str, Ref]) -> Ref:
    """The 2-norm of all gradients, f32 of rank 0.

    Each gradient's sum of squares is exact and rounded once. These sums are added one after the other, in the model's
    order of parameters, and the root is correctly rounded.
    """
    squares = [sum_of_squares(b, g) for g in gradients.values()]
    return b.map(MapFunction.SQRT, reduce(b.add, squares))
