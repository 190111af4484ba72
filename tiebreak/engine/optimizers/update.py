"""The inputs and outputs that all optimizers share."""

from dataclasses import dataclass, field
from math import prod
from mmap import ACCESS_COPY, mmap
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.optimizers.settings import f32
from tiebreak.protocol.program.isa import DType

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
        zeros = torch.zeros(shape) if (count := prod(shape)) < MAPPED else _mapped(count).view(shape)
        return self.entry(builder, name, zeros)


def _mapped(count: int) -> Tensor:
    return torch.frombuffer(mmap(-1, 4 * count, access=ACCESS_COPY), dtype=torch.float32)


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
