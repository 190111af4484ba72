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
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor

from tiebreak.engine.native import compile_in_parallel, interprets

Found = dict[tuple[str, str], Callable[[], Any]]
"""Jobs that compile a kernel, by its name and by its source and what Triton specialises it for."""
_FOUND: Final[ContextVar[Found | None]] = ContextVar("found", default=None)
"""The jobs to which launches add what they need compiled, in place of launching anything."""
_CHOSEN: Final[dict[Any, tuple[Any, tuple[Any, ...], list[Any]]]] = {}
"""Triton's choices, by kernel, device, and kinds of arguments and options.

Each is a compiled kernel, the constants that come after the arguments, and the objects whose identities are in the key.
"""
MOST_CHOSEN: Final = 1 << 14


@cache
def kernels(name: str) -> ModuleType:
    """Imports `gpu/kernels/<name>.py`, and with it Triton, when a kernel is first needed."""
    if torch.version.hip:  # a chain may begin at the end of an operand, and AMD's buffers read 0 at negative offsets
        import_module("triton").knobs.amd.use_buffer_ops = False
    return import_module(f"{__package__}.kernels.{name}")


def launch(kernel: Any, programs: int, first: Tensor | tuple[Tensor, ...], *others: Any, **options: Any) -> None:
    """Launches a number of programs of a kernel on the device of its first argument, or of the first in that.

    What Triton chose for arguments of some kind is kept, since its own choice takes most of a launch's time.
    """
    found, tensor = _FOUND.get(), first[0] if isinstance(first, tuple) else first
    with torch.cuda.device_of(tensor):  # type: ignore[no-untyped-call]
        if found is not None:
            _find(found, kernel, tuple(map(_form, (first, *others))), options)
            return
        arguments = first, *others
        key = id(kernel), tensor.device, tuple(map(_kind, arguments)), tuple(map(_kind, options.values()))
        if (known := _CHOSEN.get(key)) is None:
            chosen = kernel[(programs,)](*arguments, **options)
            if _keeps():
                if len(_CHOSEN) >= MOST_CHOSEN:
                    _CHOSEN.clear()
                constants = tuple(options[name] for name in kernel.arg_names[len(arguments) :])
                _CHOSEN[key] = chosen, constants, [kernel, *filter(_is_fixed, (*arguments, *options.values()))]
            return
        chosen, constants, _ = known
        driver = _drivers().active
        stream = driver.get_current_stream(driver.get_current_device())
        chosen.run(
            programs, 1, 1, stream, chosen.function, chosen.packed_metadata, None, None, None, *arguments, *constants
        )


def _kind(argument: Any) -> Any:
    """All that Triton's choice depends on: a tensor's dtype and alignment, and numbers as they are.

    A tuple of numbers is one that its owner passes in each launch, so it stands for itself.
    """
    kind = type(argument)
    if kind is int or argument is None:
        return argument
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16
    if kind is tuple:
        return id(argument) if _is_fixed(argument) else tuple(map(_kind, argument))
    return argument


def _is_fixed(argument: Any) -> bool:
    return type(argument) is tuple and not (argument and isinstance(argument[0], Tensor))


@cache
def _drivers() -> Any:
    return import_module("triton.runtime.driver").driver


@cache
def _keeps() -> bool:
    """Whether this is the release of Triton whose launches are known here."""
    return not interprets() and bool(import_module("triton").__version__.startswith("3.6."))


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


def _find(found: Found, kernel: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Adds what Triton would compile now, as a job for another process; compiles nothing."""
    triton = import_module("triton")
    driver = triton.runtime.driver

    def compiled(target: Any, launcher: Any) -> None:
        # A driver of Triton that knows the target of a device, and needs no device.
        own = {"get_current_target": lambda: target, "get_current_device": lambda: -1}
        driver.set_active(SimpleNamespace(**own, get_current_stream=lambda _: 0))
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
