"""Launches of Triton kernels. Nothing here imports Triton before a kernel is asked for.

They run on CUDA devices where Triton is installed (the extra `gpu`), and on CPUs under TRITON_INTERPRET=1, for tests.
"""

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tiebreak.engine.native import interprets


@cache
def kernels(name: str) -> ModuleType:
    """Imports `gpu/kernels/<name>.py`, and with it Triton, when a kernel is first needed."""
    return import_module(f"{__package__}.kernels.{name}")


def launch(kernel: Any, programs: int, first: Tensor, *others: Any, **options: Any) -> None:
    """Launches a number of programs of a kernel on the device of its first argument."""
    with torch.cuda.device_of(first):  # type: ignore[no-untyped-call]
        kernel[(programs,)](first, *others, **options)


def target(device: torch.device) -> tuple[str, int]:
    """A device as a target of Triton, such as ("cuda", 90)."""
    if interprets():
        return "cpu", 0
    major, minor = torch.cuda.get_device_capability(device)
    return "hip" if torch.version.hip else "cuda", 10 * major + minor


@cache
def programs(device: torch.device) -> int:
    """The number of programs that gives every multiprocessor work."""
    return 4 * (1 if interprets() else torch.cuda.get_device_properties(device).multi_processor_count)
