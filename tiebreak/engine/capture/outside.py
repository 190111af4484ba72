"""The effects of a step besides tensors: reads of clocks, files, random numbers (check 6), Python state (check 7)."""

import datetime
import gc
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from tiebreak.engine.capture.reach import Parts, attribute, same
from tiebreak.engine.capture.side_effects import stays
from tiebreak.engine.capture.step_run import StepRun
from tiebreak.engine.capture.user_code import described, first_line, is_users, module_of, user_line

_TIMES: Final = (f for n, f in vars(time).items() if n.endswith(("time", "_ns", "monotonic", "_counter")))
_CLOCKS: Final = frozenset({*_TIMES, os.times})
_FILES: Final = frozenset({"open", "read", "pread", "stat", "fstat", "listdir", "scandir"})
_RANDOM: Final = "draw with torch.rand, torch.bernoulli or dropout, which follow the job's seed, or give it as data"
_STATE: Final = "a tensor in a buffer (`register_buffer`) is state; a schedule and data can change from step to step"
_LOADER: Final = "give the data to the task itself (`data=`, `batch=`), and take each batch as arguments of the loss"


@contextmanager
def outside_reads(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Watches calls of functions in C while the block runs. Gives what then refuses the first that no step may make."""
    names = {id(module): name for name, module in model.named_modules()}
    found: list[tuple[str, str, str]] = []

    def profile(frame: FrameType, event: str, called: Any) -> None:
        deed = _deed(called, frame) if event == "c_call" and not found else None
        if deed is not None and (line := user_line(frame)):
            found.append((described(module_of(frame, names), line), *deed))

    def refuse() -> None:
        for deed in found:
            raise stays(*deed)

    before, collect = sys.getprofile(), gc.enable if gc.isenabled() else gc.disable
    gc.disable()  # a library's callback for garbage collection may read a clock in the middle of the step
    sys.setprofile(profile)
    try:
        yield refuse
    finally:
        sys.setprofile(before)
        collect()


def _deed(called: Any, frame: FrameType) -> tuple[str, str] | None:
    """The forbidden deed of a call of a function in C, and advice; None if a step may make that call."""
    owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
    if isinstance(owner, random.Random) or name in ("urandom", "getrandom"):
        return f"reads random numbers of Python (`{name}`)", _RANDOM
    if (deed := _deed_of_torch(owner, name, frame)) is not None:
        return deed
    module, is_function = str(frame.f_globals.get("__name__", "")), isinstance(owner, ModuleType)
    if "site-packages" in frame.f_code.co_filename or module == "logging":
        return None  # libraries read clocks for their logs, and in callbacks of the garbage collector
    is_date = isinstance(owner, type) and issubclass(owner, datetime.date) and name in ("now", "today", "utcnow")
    if is_date or (is_function and called in _CLOCKS):
        return f"reads the time (`{name}`)", "keep it out of the step"
    if name == "putenv":
        return "writes to the environment", _STATE
    if name == "cache_info":
        return "reads how often a cache was used (`cache_info`)", "keep it out of the step"
    if name in _FILES and is_function and (module.startswith("pathlib") or is_users(frame.f_code.co_filename)):
        # Some code looks up an installed package, as accelerate does to know whether PEFT is there. The last of these
        # modules installs itself over Python's.
        at, finders = frame, ("pathlib", "importlib.metadata", "importlib_metadata")
        while (finder := str(at.f_globals.get("__name__", ""))).startswith(finders):
            if finder != "pathlib" or at.f_back is None:
                return None
            at = at.f_back
        return f"reads files (`{name}`)", "read them before and give what is in them as data, or keep it in a buffer"
    return None


def _deed_of_torch(owner: Any, name: str, frame: FrameType) -> tuple[str, str] | None:
    """The same for functions of torch. owner: the object whose method is called."""
    if isinstance(owner, torch.Generator) and name in ("manual_seed", "seed"):
        return f"seeds torch's random numbers (`{name}`)", (
            "leave that out, or the layer that does it: each step draws by the job's seed; keep numbers that are to "
            "stay the same in a buffer"
        )
    is_inner = name == "run_backward" and torch._C._current_graph_task_id() != -1
    if is_inner and frame.f_locals.get("kwargs", {}).get("accumulate_grad", False):
        return "calls `backward` in a backward pass, which adds to gradients behind the step", (
            "call torch.autograd.grad there, or use torch.utils.checkpoint for a part that is computed again"
        )
    if name.endswith("_sdp_enabled") and is_users(frame.f_back.f_code.co_filename if frame.f_back else ""):
        return f"asks which kernels attention may use (`{name}`)", "leave that out: a program has one form of it"
    saves = name == "_push_saved_tensors_default_hooks"
    if saves and not isinstance(frame.f_locals.get("self"), torch.autograd.graph.save_on_cpu):
        return "changes what autograd saves (`saved_tensors_hooks`)", (
            "keep it out of the step, and compute in forward what the backward pass is to read"
        )
    return None


def refuse_python_state(run: StepRun, changed: Mapping[str, tuple[Any, Callable[[], Parts]]]) -> None:
    """Refuses what a step changes and the next one reads. changed: what `Reach` has found."""
    for name in _carried(run, [*changed]):
        value, get = changed[name]
        start = get()
        place = first_line(run, lambda get=get, start=start: not same(get(), start), run.model)  # type: ignore[misc]
        advice = _LOADER if isinstance(value, Iterator) else _STATE
        if "random numbers" in name or isinstance(value, random.Random | np.random.Generator | np.random.RandomState):
            advice = _RANDOM
        elif isinstance(value, torch.Generator):
            advice = "leave `generator=` out, so that the numbers follow the job's seed"
        raise stays(place, f"changes {name}", advice)


def _carried(run: StepRun, changed: list[str]) -> list[str]:
    """The changed variables that a step reads before it assigns them; others do not reach the next step."""
    modules = dict(run.model.named_modules())
    owners = {attribute(key, path): (id(module), key) for path, module in modules.items() for key in vars(module)}
    watched = {owners[name] for name in changed if name in owners}
    if not watched:
        return changed
    read, assigned = set[tuple[int, str]](), set[tuple[int, str]]()
    put = nn.Module.__setattr__

    def get(module: nn.Module, name: str) -> Any:
        if (id(module), name) in watched - assigned:
            read.add((id(module), name))
        elif name == "__dict__" and is_users(sys._getframe(1).f_code.co_filename):
            read.update(key for key in watched - assigned if key[0] == id(module))
        return object.__getattribute__(module, name)

    def note(module: nn.Module, name: str, value: Any) -> None:
        assigned.add((id(module), name))
        put(module, name, value)

    nn.Module.__getattribute__, nn.Module.__setattr__ = get, note  # type: ignore[assignment,method-assign]
    try:
        run()
    finally:
        nn.Module.__setattr__ = put  # type: ignore[method-assign]
        del nn.Module.__getattribute__
    return [name for name in changed if name not in owners or owners[name] in read]
