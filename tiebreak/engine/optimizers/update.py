"""The parts that all optimizers share: inputs and outputs of rules, clipping before them, and averages after them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from mmap import ACCESS_COPY, mmap
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.optimizers.settings import Clip, f32
from tiebreak.protocol.program.isa import DType, MapFunction

AVERAGE: Final = "average."
"""Prefix of the averages in the state."""
MARGIN: Final = 1e-6
"""`clip_grad_norm_` adds this to the norm before it divides."""
MAPPED: Final = 1 << 16
"""Zeros of at least this many elements are left to the system, which gives them memory when they are first written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedParameter:
    """A parameter with a gradient of the same shape. rate: its learning rate in this step, f32 of rank 0."""

    name: str
    value: Ref
    gradient: Ref
    rate: Ref
    weight_decay: float


@dataclass
class Update:
    """New values by state name (without the group prefix), and the initial values of the optimizer's own entries."""

    parameters: dict[str, Ref] = field(default_factory=dict)
    state: dict[str, Ref] = field(default_factory=dict)
    initial: dict[str, Tensor] = field(default_factory=dict)

    def entry(self, builder: Builder, name: str, initial: Tensor) -> Ref:
        """The state entry of this name before the step."""
        self.initial[name] = initial
        return builder.state(f"optimizer.{name}", DType.F32, tuple(initial.shape))

    def moment(self, builder: Builder, name: str, shape: tuple[int, ...]) -> Ref:
        """A state entry that is zero before the first step."""
        if (count := prod(shape)) < MAPPED:
            return self.entry(builder, name, torch.zeros(shape))
        memory = mmap(-1, 4 * count, access=ACCESS_COPY)
        return self.entry(builder, name, torch.frombuffer(memory, dtype=torch.float32).view(shape))


def sum_of_squares(b: Builder, x: Ref) -> Ref:
    """The exact sum of squares, rounded once; f32 of rank 0."""
    return b.dot(x, x) if x.rank else b.mul(x, x)


def decayed(b: Builder, p: TrainedParameter, *, decoupled: bool) -> tuple[Ref, Ref]:
    """Value and gradient with weight decay, which shrinks the value (decoupled) or is added to the gradient."""
    if not p.weight_decay:
        return p.value, p.gradient
    if decoupled:
        return b.mul(p.value, b.sub(b.const(1.0), b.scale(p.rate, p.weight_decay))), p.gradient
    return p.value, b.add(p.gradient, b.scale(p.value, p.weight_decay))


def averaged(b: Builder, key: str, share: float, new: Ref, result: Update) -> Ref:
    """The entry times `share`, plus (1 - share) * new; 1 - share of the FP32 number."""
    kept = b.scale(result.moment(b, key, new.shape), share)
    average = result.state[key] = b.add(kept, b.mul(new, b.const(1.0 - f32(share))))
    return average


# Before the update: clipping, by value 2 elementwise instructions per gradient; by norm 1, and an exact sum.


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


# After the update: a moving average of the parameters, 3 elementwise instructions for each. Training does not read it.


def moving_averages(b: Builder, decay: float, before: Mapping[str, Ref], after: Mapping[str, Ref]) -> dict[str, Ref]:
    """average + (1 - decay) * (parameter after the step - average), by state entry.

    before: the parameters in the state before the step, for their shapes. The average starts from the initial
    parameters, like `torch.optim.swa_utils.AveragedModel` with `get_ema_avg_fn(decay)` if it is updated once before
    training.
    """
    found = {}
    for name, p in before.items():
        held = b.state(AVERAGE + name, p.dtype, p.shape)
        b.origin = f"average:{name}"
        found[AVERAGE + name] = b.add(held, b.scale(b.sub(after[name], held), 1 - decay))
    return found
