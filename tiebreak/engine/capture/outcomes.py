"""Outcomes of a step, by the engine or by eager PyTorch, and how far apart two of them are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, sqrt
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.capture.task import Task

NOISE: Final = 16.0
"""A result may be this many times as far from FP64 as eager FP32 is."""
RELATIVE: Final = 2.0**-18
"""The distance that is allowed in addition, as a share of the result's norm: 32 units of FP32's rounding."""
LARGEST: Final = 2.0**-20
"""The same, as a share of the largest gradient of the model, since some gradients are zero but for rounding."""
BLOCK: Final = 1 << 18
"""The elements that are compared at a time: large models leave no room for a second copy of a tensor in FP64."""

Tensors = Mapping[str, Tensor]


@dataclass
class StepOutcome:
    """The outcome of a phase of a step, in names of the task's own model."""

    loss: Tensor
    gradients: Tensors
    buffers: Tensors
    step: int = 1
    phase: int = 0
    before: Tensors = field(default_factory=dict)
    state: Tensors = field(default_factory=dict)
    """The state before and after the phase, where the engine has run."""
    drawn: Sequence[Tensor | None] = ()
    """The numbers from which each draw is made (None if the program leaves it out), where the engine has run."""

    def results(self) -> dict[str, Tensor]:
        """The tensors that are compared, by what a message calls them."""
        return {
            "the loss": self.loss,
            **{f"buffer {name}": tensor for name, tensor in self.buffers.items()},
            **{f"the gradient of {name}": tensor for name, tensor in self.gradients.items()},
        }


def allowance(count: int, size: float, largest: float = 0.0, *, noise: float = 0.0, least: float = 1.0) -> float:
    return NOISE * noise + least * sqrt(count) * (RELATIVE * size + LARGEST * largest) + 1e-30


def size_of(tensor: Tensor) -> float:
    """The root mean square of the finite elements."""
    total, count = 0.0, 0
    for (block,) in blocks_of(tensor):
        finite = block
        if not isfinite(square := torch.dot(block, block).item()):
            finite = block[torch.isfinite(block)]
            square = torch.dot(finite, finite).item()
        total, count = total + square, count + finite.numel()
    return sqrt(total / count) if count else 0.0


def distance_of(a: Tensor, b: Tensor) -> float:
    """The norm of the difference; infinite if not the same elements are finite, or integers differ."""
    if a.shape != b.shape:
        return float("inf")
    total = 0.0
    for x, y in blocks_of(a, b):
        apart = x - y
        if not isfinite(square := torch.dot(apart, apart).item()):
            finite = torch.isfinite(y)
            if not torch.equal(torch.isfinite(x), finite):
                return float("inf")
            square = torch.dot(apart[finite], apart[finite]).item()
        total += square
    return sqrt(total)


def blocks_of(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yields equally many elements of each tensor, few enough for a cache, in FP64 on the device of the last one."""
    flat = [tensor.detach().reshape(-1) for tensor in tensors]
    for start in range(0, flat[-1].numel(), BLOCK):
        yield tuple(part[start : start + BLOCK].to(flat[-1].device, torch.float64) for part in flat)


def dtypes_of(task: Task, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """The dtypes of the tensors that do not take `dtype`: FP32 runs leave bfloat16 as it is."""
    return {name: own for name, own in task.narrow().items() if dtype != torch.float64 or not own.is_floating_point}
