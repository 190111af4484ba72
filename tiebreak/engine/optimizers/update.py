"""The inputs and outputs that all optimizers share."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.protocol.program.isa import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
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
        return self.entry(builder, name, torch.zeros(shape))


def sum_of_squares(b: Builder, x: Ref) -> Ref:
    """The exact sum of squares, rounded once; f32 of rank 0."""
    return b.dot(x, x) if x.rank else b.mul(x, x)
