"""What every optimizer reads and leaves behind."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.protocol.program.isa import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A parameter that has a gradient of its own shape. rate: f32 of rank 0, its learning rate in this step."""

    name: str
    value: Ref
    gradient: Ref
    rate: Ref
    weight_decay: float


@dataclass
class Update:
    """New values by state name (without the group prefix), and the initial bytes of the optimizer's own entries."""

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
    """Exact, rounded once; f32 of rank 0."""
    return b.dot(x, x) if x.rank else b.mul(x, x)
