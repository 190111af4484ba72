"""The workloads of `benchmarks.gpu` at full size, and tiny ones of the same names for a trial on a CPU."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import torch

from benchmarks.real_models import make_real_task
from benchmarks.table import Row
from tiebreak.demo.tasks.loader import load_task
from tiebreak.engine.capture.task import Task


@dataclass(frozen=True)
class Workload:
    """A task and the number of steps that are compared with the CPU's."""

    make: Callable[..., Task]
    steps: int

    @property
    def interval(self) -> int:
        """The number of steps between checkpoints that are hashed."""
        return min(5, self.steps)

    def task(self, steps: int | None = None) -> Task:
        return self.make(steps=self.steps if steps is None else steps)


@dataclass(frozen=True)
class Context:
    """The device of a part, the folder of all parts' files, and remarks in addition to its rows."""

    device: torch.device
    folder: Path
    """Holds the files of the parts before, such as the CPU's records."""
    told: dict[str, str] = field(default_factory=dict)
    """Remarks of a part in addition to its rows; they stand in the environment of its file."""

    @property
    def trial(self) -> bool:
        """Whether this is a trial on a CPU, with little of everything."""
        return self.device.type == "cpu"

    @property
    def workloads(self) -> Mapping[str, Workload]:
        return TINY if self.trial else FULL

    @property
    def repeats(self) -> int:
        """Times of a step or kernel; the median counts."""
        return 1 if self.trial else 15


Function = Callable[[Context], list[Row]]


def _real(name: str, steps: int, **sizes: int) -> Workload:
    return Workload(partial(make_real_task, name, **sizes), steps)


FULL: Final = {
    "digits": Workload(partial(load_task, "digits"), 25),
    "text": Workload(partial(load_task, "text"), 25),
    "resnet-50": _real("resnet-50", 25),
    "gpt2-64": _real("gpt2-124m", 25),
    "resnet-50-224": _real("resnet-50", 2, pixels=224),
    "gpt2-1024": _real("gpt2-124m", 2, length=1024),
}
TINY: Final = {
    "digits": Workload(partial(load_task, "digits"), 6),
    "gpt2-1024": _real("gpt2-small", 1),
}
"""The workloads of a trial, which leaves some out."""
