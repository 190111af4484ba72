"""Is the program the model? This page has the plan; its checks are tagged with their numbers wherever they are made.

A program is captured once and then computed without the user's Python code. The step is run as it is, in plain PyTorch
on copies (`step_run`), twice before it is traced, and is then compared with the program.

The first run fills whatever the model caches, and is watched operator by operator (`EffectWatch`):

 1. it succeeds on a batch of the examples with the greatest and the least numbers;
 2. it leaves the settings of torch as they were;
 3. it writes to buffers and parameters only, and in forward;
 4. it leaves each of them in memory of its own;
 5. it leaves no hooks and attributes on them.

The second run is one as all later ones, and its calls of functions in C are noted:

 6. it reads no clocks, files and random numbers but torch's (`outside_reads`);
 7. it changes no Python state that the next step reads (`reach`);
 8. the model's tensors are read from the model;
 9. gradients go to the model's parameters only;
10. it has the results and draws of the first run;
11. it trains what requires a gradient at capture.

A third run, if a schedule changes optimizers that the step can reach:

12. it has the same results with other rates.

The trace (`tracing`) refuses what is no graph of operators, and

13. numbers that the step reads out of tensors reach nothing but reports (`reports`);
14. draws that begin in one state of the random numbers are one draw (`draws`).

Of the finished program, `check` asks whether

15. two captures with other seeds, clocks and random numbers give the same program;
16. steps 1 and 2 of the engine are those of eager PyTorch;
17. the update is that of torch's own optimizer.
"""

import datetime
import gc
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import FrameType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch._library.utils import zip_schema
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tiebreak.engine.capture.draws import random_state
from tiebreak.engine.capture.reach import Parts, Reach, attribute, put_back, same, settings
from tiebreak.engine.capture.step_run import CPU, SEED, Losses, StepRun, storage_of
from tiebreak.engine.capture.user_code import described, first_line, is_users, module_of, user_line
from tiebreak.protocol.errors import ConfigurationError

_FIRST_RUN: Final = (
    "the step cannot be captured: in plain PyTorch its first run has other results or draws than its second one, on "
    "the same tensors. A program does the same in every step; call the model once on a batch before (and load its "
    "initial weights again), or make what is done once a part of __init__"
)
_OTHER_RATES: Final = (
    "expected a loss that reads nothing that a schedule changes, got one with other results if the optimizer's "
    "settings (`param_groups`, `get_last_lr()`) are others: they would stay as they were at capture; count steps in a "
    "buffer (`self.t += 1`), and compute the factor from it"
)


def rehearse(
    model: nn.Module, losses: Losses, batch: Sequence[Tensor], device: torch.device | None = CPU, *,
    scheduled: bool = False, holds: bool = False,
) -> frozenset[str]:  # fmt: skip
    """Makes checks 1 to 12, and returns the names of the buffers that a step assigns, and of a weight that it writes.

    losses, device, holds: as in `StepRun`. scheduled: whether the settings of optimizers change from step to step.
    Raises `ConfigurationError`, with the place, if the step fails or does what a program cannot.
    """
    run = StepRun(model, losses, batch, device, holds=holds)

    # The first run, watched.
    run.watch = watch = EffectWatch(run)
    torch.manual_seed(SEED)
    process = settings()
    run()  # (1)
    refuse_settings(run, process)  # (2)
    run.watch, first = nullcontext(), (random_state(), run.results())
    watch.refuse("written")  # (3)
    refuse_other_memory(run)  # (4)
    refuse_marks(run)  # (5)
    refuse_shared_memory(run)  # (4)

    # The second run, whose calls are noted.
    reach = Reach(model, losses)
    torch.manual_seed(SEED)
    with outside_reads(model) as refuse_reads:
        run()
    second = random_state(), run.results()
    refuse_reads()  # (6)
    refuse_python_state(run, reach.changed())  # (7)
    watch.refuse("read")  # (8)
    refuse_strangers(run, reach)  # (9)
    is_alike = first[0] == second[0] and _alike(first[1], second[1])
    _refuse_flags(run, is_alike=is_alike)  # (11)
    if not is_alike:  # (10)
        raise ConfigurationError(_FIRST_RUN)
    assigned = {*run.step.assigned, *watch.weight}

    if scheduled and reach.schedules:
        torch.manual_seed(SEED)
        with reach.other_rates():
            run()
        if not _alike(second[1], run.results()):  # (12)
            raise ConfigurationError(_OTHER_RATES)
    return frozenset(assigned)


def _alike(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return len(first) == len(second) and all(
        a.shape == b.shape
        and (torch.equal(a, b) or torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-6, equal_nan=True))
        for a, b in zip(first, second, strict=True)
    )


def _refuse_flags(run: StepRun, *, is_alike: bool) -> None:
    """Refuses a step whose gradients depend on `requires_grad` as it sets it. is_alike: whether both runs have them."""
    for name, now in (run.flags or {}).items():
        before = run.given[name].requires_grad
        if (now != before and not is_alike) or (run.copies[name].grad is not None and not before):
            advice = "set it back at the end of the loss" if before else "set it before capture"
            raise ConfigurationError(
                "expected a step that trains what requires a gradient at capture, got one that sets `requires_grad` of "
                f"{name} to {not before}; {advice}"
            )


class EffectWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes where a step first reads a tensor of the model itself, and not its copy, or writes to what must stay."""

    supports_higher_order_operators = True

    def __init__(self, run: StepRun) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._paths = {id(module): name for name, module in run.model.named_modules()}
        self._own = {storage_of(tensor): name for name, tensor in run.state.items() if tensor.numel()}
        self._run = run
        self._found: dict[str, tuple[str, str]] = {}
        """Name and place of the first tensor that was "read", that was "written", and "weight" that was written to."""

    @property
    def weight(self) -> tuple[str, ...]:
        """The trained parameter to which the step writes, if there is one."""
        return self._found["weight"][:1] if "weight" in self._found else ()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, OpOverload):
            raise ConfigurationError(
                f"the step cannot be captured: at {self._place(sys._getframe(1))} it uses `{func}`, which takes "
                "functions; use `where`, or a loop of fixed length in Python"
            )
        for argument, value in zip_schema(func._schema, args, kwargs or {}):
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            for tensor in tree_leaves(value):
                if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                    memory = storage_of(tensor)
                    deeds = [("read", self._own)]
                    deeds += [("written", self._run.fixed), ("weight", self._run.trained)] if is_written else []
                    for deed, names in deeds:
                        if memory in names and deed not in self._found:
                            self._found[deed] = names[memory], self._place(sys._getframe(1))
        return func(*args, **(kwargs or {}))

    def _place(self, frame: FrameType) -> str:
        return described(module_of(frame, self._paths), user_line(frame))

    def refuse(self, deed: str) -> None:
        """Raises `ConfigurationError` for the first forbidden write ("written", check 3) or read ("read", check 8)."""
        if deed in self._found:
            raise ConfigurationError(_DEEDS[deed].format(*self._found[deed]))


_DEEDS: Final = {
    "written": "expected a step that changes buffers and parameters only, and in forward, got one that writes to {} in "
    "place at {}; compute a new tensor instead (`x = x * 2`), and write to no tensor of the model in a hook of the "
    "backward pass",
    "read": "expected a step that reads the model's tensors from the model, got one that reads {} by another way (from "
    "a list, a closure, or as `.data`) at {}; take it from the model in forward, or from the loss's argument",
}


def stays(place: str, deed: str, advice: str) -> ConfigurationError:
    """The refusal of a side effect of Python code, which a program would not repeat in each step."""
    return ConfigurationError(
        f"the step cannot be captured: at {place} it {deed}. A program is captured once and then computed without your "
        f"Python code, so this would stay as it was at capture; {advice}"
    )


def refuse_settings(run: StepRun, before: Parts) -> None:
    """Check 2: settings of torch that the step leaves otherwise are put back, and refused."""
    if settings() != before:
        put_back(before)
        place = first_line(run, lambda: settings() != before, run.model)
        advice = "set it before the training, or in a `with` block, whose end puts it back"
        raise stays(place, "changes a setting of torch for the next step", advice)


# Two tensors in one memory are one in PyTorch, and two in a program.


def shared_memory(named: Sequence[tuple[str, Tensor]]) -> Iterator[tuple[str, str]]:
    """The names of two tensors in the same memory; of one, twice, whose own elements are."""
    end, last = 0, ""  # of the tensor that reaches furthest
    begun = ((storage_of(t) + int(t.storage_offset()) * t.element_size(), name, t) for name, t in named if t.numel())
    for start, name, tensor in sorted(begun):
        furthest = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        extent = (furthest + 1) * tensor.element_size()
        if start < end or extent < tensor.nbytes:
            yield (last if start < end else name), name
        end, last = max((end, last), (start + extent, name))


def refuse_other_memory(run: StepRun) -> None:
    """Check 4: tensors that get other memory in a step, by `.data =`, by `set_`, or by the assignment of a view."""

    def is_moved(name: str) -> bool:
        return (storage_of(t := run.copies[name]), t.storage_offset()) != run.addresses[name]

    held = [storage_of(copy) for copy in run.copies.values()]
    for name, address in run.addresses.items():
        now, own = storage_of(run.copies[name]), run.given[name]
        swapped = any(
            at[0] == now and storage_of(run.copies[other]) == address[0] for other, at in run.addresses.items()
        )
        if isinstance(own, nn.Parameter) and not own.requires_grad and held.count(now) == 1 and not swapped:
            continue  # `p.data = ` of a new tensor is a write to p
        if is_moved(name):
            place = first_line(run, partial(is_moved, name), run.model)
            raise ConfigurationError(
                f"expected tensors that keep their memory, got one, {name}, that is given other memory (`.data =` or "
                f"`set_`) at {place}; compute a new tensor from a parameter, and assign a buffer (`self.c = ...`) or "
                "write to it (`self.c.copy_(...)`)"
            )
    after = [(name, run.step.assigned.get(name, run.copies[name])) for name in run.state]
    numbers = [(name, tensor) for name, tensor in after if not isinstance(tensor, FakeTensor)]
    for names in shared_memory(numbers) if run.step.assigned else ():
        if any(map(run.is_written, names)):
            raise ConfigurationError(
                "expected tensors with memory of their own after a step, got {} and {} in the same memory, so changing "
                "one changes the other in the next step; assign a copy (`.detach().clone()`)".format(*names)
            )


def refuse_shared_memory(run: StepRun) -> None:
    """Check 4: tensors of the model that lie in the same memory, if a step changes one."""
    for other, name in shared_memory([*run.state.items()]):
        if any(each in run.step.assigned or run.is_written(each) for each in (name, other)):
            raise ConfigurationError(
                f"expected tensors with memory of their own, got {other} and {name} in the same memory, so changing "
                "one changes the other; assign one nn.Parameter to both modules to tie them, or clone one"
                if other != name
                else f"expected tensors with memory of their own, got {name}, whose elements share memory; clone it"
            )


def refuse_marks(run: StepRun) -> None:
    """Check 5: hooks and attributes that the step leaves on its parameters and buffers, the next step has too."""

    def mark(name: str) -> str:
        tensor, before = run.copies[name], run.attributes[name]
        if tensor.is_leaf and (tensor._backward_hooks or tensor._post_accumulate_grad_hooks):
            return "a hook on the gradient"
        changed = (key for key, value in vars(tensor).items() if before.get(key, tensor) is not value)
        return next((f"attribute {key}" for key in changed if key != "_is_param"), "")

    for name in run.given:
        if found := mark(name):
            place = first_line(run, lambda name=name: bool(mark(name)), run.model)  # type: ignore[misc]
            raise stays(
                place, f"sets {found} of {name}", "set a hook on what a layer gives, and keep what changes in a buffer"
            )


def refuse_strangers(run: StepRun, reach: Reach) -> None:
    """Check 9: no optimizer would change a tensor that is not the model's."""
    waiting, seen = [getattr(loss, "grad_fn", None) for loss in run.losses], set[Any]()
    own = set(map(id, run.copies.values()))
    while waiting:
        if (node := waiting.pop()) not in seen:
            seen.add(node)
            waiting += [before for before, _ in getattr(node, "next_functions", ())]
            leaf = getattr(node, "variable", None)
            if leaf is not None and id(leaf) not in own and (isinstance(leaf, nn.Parameter) or leaf in reach):
                raise ConfigurationError(
                    "expected a loss that trains parameters of the model only, got one that also has a gradient for a "
                    f"tensor of shape {tuple(leaf.shape)} that is not the model's; make it a parameter of the model (a "
                    "submodule of one nn.Module for both), or freeze it with requires_grad_(False)"
                )


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
    """The side effect of a call of a function in C, and advice; None if a step may make that call."""
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
    """Refuses what a step changes and the next one reads. changed: the result of `Reach.changed`."""
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
