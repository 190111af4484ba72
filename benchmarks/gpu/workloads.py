"""The workloads of `benchmarks.gpu` at full size, and tiny ones of the same names for a trial on a CPU."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

import torch

from tiebreak.api.builtin.loader import load_task
from tiebreak.engine.capture.captured import Captured, capture_in_place, rehearsed, with_state
from tiebreak.engine.capture.step_run import untouched
from tiebreak.engine.capture.task import Task

EAGER: Final = ("eager FP32", "eager FP64", "bf16 autocast")
"""The steps in plain PyTorch with which a workload of FP32 is compared; `benchmarks.gpu.steps` has all of them."""


@dataclass(frozen=True)
class Workload:
    """A task of any number of steps, and the steps in plain PyTorch that it is compared with."""

    name: str
    """Names the file of the CPU's roots, too."""
    make: Callable[..., Task]
    eager: tuple[str, ...] = EAGER

    def task(self, steps: int) -> Task:
        return self.make(steps=steps)


@dataclass(frozen=True)
class Context:
    """The device of a slice, and remarks in addition to its rows."""

    device: torch.device
    told: dict[str, str] = field(default_factory=dict)
    """Remarks in addition to the rows; they stand in the environment of the slice's file."""

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


def caches(folder: Path) -> dict[str, str]:
    """The environment in which everything that is compiled is kept in this folder."""
    return {name: str(folder / name.lower()) for name in ("TRITON_CACHE_DIR", "TIEBREAK_CACHE")}


def release() -> None:
    """Gives the device's memory back that nothing holds any more, such as that of a graph of before."""
    gc.collect()
    torch.cuda.empty_cache()


def capture(task: Task) -> Captured:
    """Captures a task. The rehearsal has no numbers: with them it takes a minute, and a GPU is lent for few."""
    with untouched(task.model):
        return with_state(task, capture_in_place(task, rehearsed(task, None)))


def make(name: str, steps: int, sizes: Mapping[str, int]) -> Task:
    """A real task. Imports `transformers` only here, so that slices without it run where it is not installed."""
    task: Task = import_module("benchmarks.real_models").make_real_task(name, steps, **sizes)
    return task


def _real(name: str, model: str, eager: tuple[str, ...] = EAGER, **sizes: int) -> Workload:
    return Workload(name, partial(make, model, sizes=sizes), eager)


FULL: Final = {
    each.name: each
    for each in (
        Workload("digits", partial(load_task, "digits")),
        Workload("text", partial(load_task, "text")),
        _real("resnet-50", "resnet-50"),
        _real("gpt2-64", "gpt2-124m"),
        _real("resnet-50-224", "resnet-50", pixels=224),
        _real("gpt2-1024", "gpt2-124m", length=1024),
        _real("bf16", "gpt2-124m-bf16", ("bf16 autocast",), length=1024),
        _real("llama", "llama-1b-lora", ("as written",), size=1, length=2048),
    )
}
TINY: Final = {
    "digits": FULL["digits"],
    "gpt2-1024": _real("gpt2-small", "gpt2-small"),
    "bf16": _real("gpt2-small-bf16", "gpt2-small-bf16", ("bf16 autocast",)),
    "llama": _real("llama-small-lora", "llama-small-lora", ("as written",)),
}
"""The workloads of a trial, which leaves some out."""
