"""Memory of undefined contents, filled with what is right nowhere (no tests in here).

A kernel that does not write its result leaves what was in memory before. That may be the right result, of the same
kernel a moment ago, and then no test notices. So every buffer that the engine's modules allocate without contents, or
use again, begins with `BYTE`s. In FP32 they are 1.5e16 and in FP64 1.8e127: no test has such a result, and unlike NaN,
which some results are and which sends an element to exact arithmetic, they go through all that is computed from them.
As a place in a list they are outside every operand, and as a truth value they are neither of the two.
"""

import ctypes
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import ModuleType
from typing import Any, Final
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.c.backend import Buffers
from tiebreak.engine.arithmetic.c.units import SeriesMemory

BYTE: Final = 0x5A
PACKAGES: Final = ("arithmetic", "data", "distributed", "logged", "run")
"""The parts of the engine that compute; the others only describe tensors."""
ALLOCATING: Final = {torch: ("empty", "empty_like", "empty_strided"), np: ("empty", "empty_like")}
KEPT: Final[list[tuple[Any, str]]] = [(Buffers, "empty"), (SeriesMemory, "taken")]
"""What gives memory that was used before."""


class _Filling(ModuleType):
    """A module as it is, except for functions that allocate."""

    def __init__(self, module: ModuleType, byte: int) -> None:
        super().__init__(module.__name__)
        self.__dict__.update({name: filling(getattr(module, name), byte) for name in ALLOCATING[module]})
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def filling(allocate: Callable[..., Any], byte: int = BYTE) -> Callable[..., Any]:
    def filled(*given: Any, **more: Any) -> Any:
        return fill(allocate(*given, **more), byte)

    return filled


def fill(made: Any, byte: int = BYTE) -> Any:
    """Fills a contiguous tensor or array in the host's memory, or several, behind torch's back."""
    for each in made if isinstance(made, tuple) else (made,):
        if isinstance(each, np.ndarray):
            ctypes.memset(each.ctypes.data, byte, each.nbytes)
        elif type(each) is Tensor and each.device.type == "cpu" and each.is_contiguous():
            ctypes.memset(each.data_ptr(), byte, each.nbytes)
    return made


@cache
def modules() -> list[ModuleType]:
    """The engine's modules that allocate."""
    names: list[str] = []
    for package in PACKAGES:
        path = importlib.import_module(f"tiebreak.engine.{package}").__path__
        names += [each.name for each in pkgutil.walk_packages(path, f"tiebreak.engine.{package}.")]
    return [importlib.import_module(name) for name in names if ".kernels" not in name]  # those Triton compiles


@contextmanager
def undefined(byte: int = BYTE) -> Iterator[None]:
    """Memory that the engine takes is filled with this."""
    own = {module: _Filling(module, byte) for module in ALLOCATING}
    with ExitStack() as stack:
        for module in modules():
            for name, value in vars(module).copy().items():
                real = value._module if isinstance(value, _Filling) else value
                if isinstance(real, ModuleType) and real in own:
                    stack.enter_context(mock.patch.object(module, name, own[real]))
        for where, name in KEPT:
            stack.enter_context(mock.patch.object(where, name, filling(getattr(where, name), byte)))
        yield
