"""Triton kernels: where they run, and how they are launched. Nothing here imports Triton before a kernel is asked for.

They run on CUDA devices where Triton is installed (the extra `gpu`), and on CPUs under TRITON_INTERPRET=1, for tests.
"""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tiebreak.engine.native import enabled, interprets


@cache
def _module(name: str, device: str) -> ModuleType | None:
    runs = device == "cuda" or (device == "cpu" and interprets())
    return import_module(name) if runs and find_spec("triton") else None


def kernels(name: str, device: torch.device) -> ModuleType | None:
    """A module of kernels, by its full name; None where kernels do not run or `TIEBREAK_NATIVE` is 0."""
    return _module(name, device.type) if enabled() else None


def launch(kernel: Any, programs: int, first: Tensor, *others: Any, **options: Any) -> None:
    """Launches a number of programs of a kernel on the device of its first argument."""
    with torch.cuda.device_of(first):  # type: ignore[no-untyped-call]
        kernel[(programs,)](first, *others, **options)


def target(device: torch.device) -> tuple[str, int]:
    """A device as a target of Triton, such as ("cuda", 90)."""
    if device.type == "cpu":
        return "cpu", 0
    major, minor = torch.cuda.get_device_capability(device)
    return "hip" if torch.version.hip else "cuda", 10 * major + minor


@cache
def programs(device: torch.device) -> int:
    """The number of programs that gives every multiprocessor work."""
    return 4 * (1 if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count)
