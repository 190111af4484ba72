"""Launches of Triton kernels. Nothing here imports Triton before a kernel is asked for.

They run on CUDA devices where Triton is installed (the extra `gpu`), and on CPUs under TRITON_INTERPRET=1, for tests.
"""

from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from tiebreak.engine.native import compile_in_parallel, interprets

Found = dict[tuple[str, str], Callable[[], Any]]
"""Jobs that compile a kernel, by its name and by its source and what Triton specialises it for."""
_FOUND: Final[ContextVar[Found | None]] = ContextVar("found", default=None)
"""The jobs to which launches add what they need compiled, in place of launching anything."""


@cache
def kernels(name: str) -> ModuleType:
    """Imports `gpu/kernels/<name>.py`, and with it Triton, when a kernel is first needed."""
    return import_module(f"{__package__}.kernels.{name}")


def launch(kernel: Any, programs: int, first: Tensor, *others: Any, **options: Any) -> None:
    """Launches a number of programs of a kernel on the device of its first argument."""
    found = _FOUND.get()
    with torch.cuda.device_of(first):  # type: ignore[no-untyped-call]
        if found is None:
            kernel[(programs,)](first, *others, **options)
        else:
            _find(found, kernel, tuple(map(_form, (first, *others))), options)


def find(work: Callable[[], object]) -> Found:
    """Jobs for all that `work` would have compiled, as far as there is memory for it.

    Nothing is launched, so memory that kernels write to is undefined for it.
    """
    found: Found = {}
    token = _FOUND.set(found)
    try:
        with suppress(torch.OutOfMemoryError):
            work()
    finally:
        _FOUND.reset(token)
    return found


def compile_ahead(work: Callable[[], object]) -> None:
    """Compiles the kernels that `work` launches, in several processes, into Triton's cache."""
    if not interprets() and (found := find(work)):
        folder = Path(import_module("triton").knobs.cache.dir)
        compile_in_parallel([found[key] for key in sorted(found)], folder)  # sorted, processes have as many of a kind


@dataclass(frozen=True, slots=True)
class _Pointer:
    """A tensor as Triton's compiler sees it."""

    dtype: torch.dtype
    address: int

    def data_ptr(self) -> int:
        return self.address


def _form(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return _Pointer(argument.dtype, argument.data_ptr())
    return tuple(map(_form, argument)) if type(argument) is tuple else argument


@dataclass(frozen=True, slots=True)
class _Compiler:
    """A driver of Triton that knows the target of a device, and needs no device."""

    target: Any

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return -1

    def get_current_stream(self, _: int) -> int:
        return 0


def _find(found: Found, kernel: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Adds what Triton would compile now, as a job for another process; compiles nothing."""
    triton = import_module("triton")
    driver = triton.runtime.driver

    def compiled(target: Any, launcher: Any) -> None:
        driver.set_active(_Compiler(target))
        made = kernel.warmup(*arguments, grid=(1,), **options)
        launcher(made.src, made.metadata)  # the C function that launches it

    def keep(*, key: str, **_: Any) -> bool:
        if _FOUND.get() is not found:
            return False  # Triton's hook is the process's, and this is another thread, whose kernel must be launched
        job = partial(compiled, driver.active.get_current_target(), driver.active.launcher_cls)
        # The hash of the source is made here, since Triton's depends on which kernels a process has hashed before.
        found.setdefault((kernel.__name__, kernel.cache_key + key), job)
        return True  # skips the compilation

    with triton.knobs.runtime.scope():
        triton.knobs.runtime.jit_cache_hook = keep
        kernel.warmup(*arguments, grid=(1,), **options)


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
