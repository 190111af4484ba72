"""Finds what a program cannot hold before anything is traced: the step is rehearsed in plain PyTorch, on copies.

A program is captured once and then computed without the user's Python code. So a step may not read Python state that
changes from step to step (counters, random numbers of Python and NumPy, clocks, iterators), nor write to its parameters
or its batch. The first of two rehearsals fills whatever the model caches; what the second one changes, and the next
step would read, is such state.
"""

import datetime
import gc
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, nullcontext
from functools import partial
from types import FrameType, ModuleType
from typing import Any, Final

import numpy as np
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch._library.utils import zip_schema
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tiebreak.engine.capture.draws import random_state
from tiebreak.engine.capture.hollow import Errors, Hollow
from tiebreak.engine.capture.reach import Reach, attribute, put_back, same, settings
from tiebreak.engine.capture.user_code import described, first_line, is_users, module_of, refusal, user_line
from tiebreak.engine.capture.user_step import LossModule, as_written, exchanged
from tiebreak.protocol.errors import ConfigurationError

_TIMES: Final = (f for n, f in vars(time).items() if n.endswith(("time", "_ns", "monotonic", "_counter")))
_CLOCKS: Final = frozenset({*_TIMES, os.times})
_FILES: Final = frozenset({"open", "read", "pread", "stat", "fstat", "listdir", "scandir"})
_RANDOM: Final = "draw with torch.rand, torch.bernoulli or dropout, which follow the job's seed, or give it as data"
_STATE: Final = "a tensor in a buffer (`register_buffer`) is state; a schedule and data can change from step to step"
SEED: Final = 0x7EB_4EAC
"""The seed of both runs; no user's own, whose state would pass for that of a step's start."""
CPU: Final = torch.device("cpu")
_Device = torch.device | None
_Losses = Sequence[Callable[..., Tensor]]
_LOADER: Final = "give the data to the task itself (`data=`, `batch=`), and take each batch as arguments of the loss"


class Rehearsal:
    """Runs a step, forward and backward, in plain PyTorch on copies of what it reads. device: as in `examine`."""

    def __init__(self, model: nn.Module, losses: _Losses, batch: Sequence[Tensor], device: _Device = CPU) -> None:
        self.step, named = LossModule(model, losses[0]), (*model.named_parameters(), *model.named_buffers())
        self._losses = losses
        self._state = {f"model.{name}": tensor for name, tensor in named}
        self.given = {**self._state, **{f"batch tensor {i}": t for i, t in enumerate(batch)}}
        self.copies: dict[str, Tensor] = {}
        self.fixed: dict[int, str] = {}  # what the step may not write to: names by memory
        self.trained: dict[int, str] = {}
        self.flags: dict[str, bool] | None = None  # the gradients that are on at first; as in the model in each phase
        self.losses: list[Any] = []
        self.beginning: Callable[[str, Tensor], Tensor] = lambda _, tensor: tensor
        """The tensor that a run begins with in the place of one of the state's."""
        self.watch: Any = nullcontext()
        self._device = device
        self._copied = partial(Tensor.to, device=device, copy=True)
        self._copy = Hollow(allow_non_fake_inputs=True).copy if device is None else self._copied
        self._around = Errors if device is None else lambda: nullcontext() if device == CPU else device

    def __call__(self) -> None:
        self.losses = []
        self.copies.clear()  # those of the last run: large models leave no room for both
        for name, tensor in self.given.items():
            copy = self._copy if name in self._state else self._copied
            self.copies[name] = copy(self.beginning(name, tensor.detach())).requires_grad_(tensor.requires_grad)
        self.attributes = {name: vars(tensor) | vars(self.given[name]) for name, tensor in self.copies.items()}
        self.addresses = {name: (_storage(t), t.storage_offset()) for name, t in self.copies.items()}
        memory = {_storage(t): name for name, t in self.copies.items() if t.numel()}
        self.fixed = {at: name for at, name in memory.items() if name.startswith("batch")}
        self.trained = {at: name for at, name in memory.items() if self.given[name].requires_grad}
        tensors = list(self.copies.values())
        replaced = dict(zip(self._state, tensors, strict=False))
        try:
            with (
                torch.compiler.set_stance("force_eager"),
                as_written(self.step.model),
                self._around(),
                self.watch,
                exchanged(self.step, replaced),
            ):
                self._run_phases(tensors[len(self._state) :])
        except ConfigurationError:
            raise
        except Exception as error:  # whatever the user's code raises
            batch = "mend it first (its batch holds the examples with the greatest and the least numbers)"
            words = ["the step fails in plain PyTorch already", batch]
            if isinstance(self.watch, _Watch):
                self.watch = nullcontext()
                self()  # raises that, unless it is the watch that some kernels cannot bear
                words = ["the step cannot be captured"]
            raise refusal(error, self.step.model, *words) from error
        now = {name: self.step.assigned.get(name.removeprefix("model."), self.copies[name]) for name in self._state}
        if late := [name.removeprefix("model.") for name in self._state if replaced[name] is not now[name]]:
            raise ConfigurationError(
                "expected a step that assigns buffers in forward, got one that also assigns some in its backward pass, "
                f"{late}; leave that out of hooks"
            )

    def _run_phases(self, batch: Sequence[Tensor]) -> None:
        weights = {name: tensor for name, tensor in self._state.items() if isinstance(tensor, nn.Parameter)}
        state = [n for n, t in self._state.items() if t.requires_grad or n not in weights]
        assigned, kept, self.losses, begun = dict[str, Tensor](), self.fixed, [], self.flags
        for one in self._losses:
            for name, own in weights.items() if begun is None or not self.losses else ():
                self.copies[name].requires_grad_(own.requires_grad if begun is None else begun[name])
            self.fixed, self.step.loss = kept, one
            self.losses.append(loss := self.step(*batch))
            assigned |= self.step.assigned
            self.fixed = kept | {_storage(self.copies[n]): f"{n} in its backward pass" for n in state}
            if isinstance(loss, Tensor) and loss.requires_grad and loss.shape == () and not loss.is_complex():
                loss.backward()  # type: ignore[no-untyped-call]
        self.step.assigned = assigned
        self.flags = {name: self.copies[name].requires_grad for name in weights}

    def written(self) -> set[str]:
        """The names of the trained parameters, and of the buffers that the step writes to."""
        return self.step.assigned.keys() | {n.removeprefix("model.") for n in self.given if self.is_written(n)}

    def is_written(self, name: str) -> bool:
        """Tells if the step, or the optimizer after it, writes to a tensor in place."""
        return self.given[name].requires_grad or bool(self.copies[name]._version) or not self._is_same(name)

    def _is_same(self, name: str) -> bool:
        own, copy = self.beginning(name, self.given[name].detach()), self.copies[name]
        return isinstance(copy, FakeTensor) or torch.equal(own, copy.to(own.device))

    def results(self) -> list[Tensor]:
        """The loss, the new buffers and the gradients of the last run, if they have numbers."""
        gradients = [tensor.grad.to_dense() for tensor in self.copies.values() if tensor.grad is not None]
        copies = [self.given[n] if self._is_same(n) else t for n, t in self.copies.items()]  # few outlive the next run
        found = (*self.losses, *self.step.assigned.values(), *copies, *gradients)
        if self._device is not None and any(isinstance(tensor, FakeTensor) for tensor in found):
            what = "a tensor without any, which an earlier rehearsal left in a global or a cache of the process"
            raise ConfigurationError(f'expected numbers, got {what}; start a new one, and capture with device="cpu"')
        return [t.detach() for t in found if isinstance(t, Tensor) and not isinstance(t, FakeTensor)]


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes where a step first reads a tensor of the model itself, and not its copy, or writes to what must stay."""

    supports_higher_order_operators = True

    def __init__(self, rehearsal: Rehearsal) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._paths = {id(module): name for name, module in rehearsal.step.model.named_modules()}
        self._own = {_storage(t): name for name, t in rehearsal.given.items() if t.numel() and name[:5] != "batch"}
        self._rehearsal = rehearsal
        self.found: dict[str, tuple[str, str]] = {}
        """Name and place of the first tensor that was "read", that was "written", and "weight" that was written to."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, OpOverload):
            raise ConfigurationError(
                f"the step cannot be captured: at {self._place(sys._getframe(1))} it uses `{func}`, which takes "
                "functions; use `where`, or a loop of fixed length in Python"
            )
        for argument, value in zip_schema(func._schema, args, kwargs or {}):
            written = argument.alias_info is not None and argument.alias_info.is_write
            for tensor in tree_leaves(value):
                if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                    self._note("read", self._own.get(_storage(tensor)))
                    self._note("written", self._rehearsal.fixed.get(_storage(tensor)) if written else None)
                    self._note("weight", self._rehearsal.trained.get(_storage(tensor)) if written else None)
        return func(*args, **(kwargs or {}))

    def _note(self, deed: str, name: str | None) -> None:
        if name is not None and deed not in self.found:
            self.found[deed] = name.removeprefix("model."), self._place(sys._getframe(2))

    def _place(self, frame: FrameType) -> str:
        return described(module_of(frame, self._paths), user_line(frame))


def _storage(tensor: Tensor) -> int:
    try:
        storage = tensor.untyped_storage()
        return storage._cdata if isinstance(tensor, FakeTensor) else storage.data_ptr() or storage._cdata
    except RuntimeError:  # it has no memory, as the zeros that autograd makes
        return 0


def examine(
    model: nn.Module, losses: _Losses, batch: Sequence[Tensor], device: _Device = CPU, *, scheduled: bool = False
) -> frozenset[str]:
    """Rehearses a step and returns the names of the buffers that it assigns, and of a weight that it writes to.

    losses: of the step's phases, which run one after the other, here without the updates between them.
    device: where it runs; None for the CPU, without the numbers of floats (`tiebreak.engine.capture.hollow`).
    scheduled: whether the settings of optimizers change from step to step.
    Raises `ConfigurationError`, with the place, if the step fails or does what a program cannot.
    """
    rehearse = Rehearsal(model, losses, batch, device)
    rehearse.watch = watch = _Watch(rehearse)
    torch.manual_seed(SEED)
    process = settings()
    rehearse()
    _refuse_settings(model, rehearse, process)
    rehearse.watch, first, drawn = nullcontext(), rehearse.results(), random_state()
    if "written" in watch.found:
        raise ConfigurationError(
            "expected a step that changes buffers and parameters only, and in forward, got one that writes to {} in "
            "place at {}; compute a new tensor instead (`x = x * 2`), and write to no tensor of the model in a hook of "
            "the backward pass".format(*watch.found["written"])
        )  # fmt: skip
    _refuse_other_memory(model, rehearse)
    _refuse_assigned_memory(rehearse)
    _refuse_marks(model, rehearse)
    _refuse_shared_memory(model, rehearse.written())
    reach = Reach(model, losses)
    torch.manual_seed(SEED)
    with _outside_reads(model) as outside:
        rehearse()
    second, drawn_again = rehearse.results(), random_state()
    if outside:
        raise ConfigurationError(_words(outside[0][0], outside[0][1], outside[0][2]))
    changed = reach.changed()
    for name in _carried(model, rehearse, list(changed)):
        value, get = changed[name]
        start = get()
        place = first_line(rehearse, lambda get=get, start=start: not same(get(), start), model)  # type: ignore[misc]
        raise ConfigurationError(_words(place, f"changes {name}", _advice(name, value)))
    if "read" in watch.found:
        raise ConfigurationError(
            "expected a step that reads the model's tensors from the model, got one that reads {} by another way (from "
            "a list, a closure, or as `.data`) at {}; take it from the model in forward, or from the loss's argument"
            .format(*watch.found["read"])
        )  # fmt: skip
    _refuse_strangers(rehearse, reach)
    if drawn != drawn_again or not _alike(first, second):
        _refuse_flags(rehearse, alike=False)
        raise ConfigurationError(
            "the step cannot be captured: in plain PyTorch its first run has other results or draws than its second "
            "one, on the same tensors. A program does the same in every step; call the model once on a batch before "
            "(and load its initial weights again), or make what is done once a part of __init__"
        )
    _refuse_flags(rehearse, alike=True)
    assigned = frozenset(rehearse.step.assigned) | {name for name, _ in [watch.found.get("weight", ("", ""))] if name}
    if scheduled and reach.schedules:
        torch.manual_seed(SEED)
        with reach.other_rates():
            rehearse()
        if not _alike(second, rehearse.results()):
            raise ConfigurationError(
                "expected a loss that reads nothing that a schedule changes, got one with other results if the "
                "optimizer's settings (`param_groups`, `get_last_lr()`) are others: they would stay as they were at "
                "capture; count steps in a buffer (`self.t += 1`), and compute the factor from it"
            )
    return assigned


def _refuse_flags(rehearse: Rehearsal, *, alike: bool) -> None:
    """Refuses a step whose gradients depend on `requires_grad` as it sets it. alike: both runs have the same."""
    for name, now in (rehearse.flags or {}).items():
        before = rehearse.given[name].requires_grad
        if (now != before and not alike) or (rehearse.copies[name].grad is not None and not before):
            advice = "set it back at the end of the loss" if before else "set it before capture"
            raise ConfigurationError(
                "expected a step that trains what requires a gradient at capture, got one that sets `requires_grad` of "
                f"{name.removeprefix('model.')} to {not before}; {advice}"
            )


def _alike(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return len(first) == len(second) and all(
        a.shape == b.shape
        and (torch.equal(a, b) or torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-6, equal_nan=True))
        for a, b in zip(first, second, strict=True)
    )


def _refuse_strangers(rehearse: Rehearsal, reach: Reach) -> None:
    """Refuses a step whose gradient also goes to tensors that are not the model's: no optimizer would change them."""
    waiting, seen = [getattr(loss, "grad_fn", None) for loss in rehearse.losses], set[Any]()
    own = set(map(id, rehearse.copies.values()))
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


def _words(place: str, deed: str, advice: str) -> str:
    return (
        f"the step cannot be captured: at {place} it {deed}. A program is captured once and then computed without your "
        f"Python code, so this would stay as it was at capture; {advice}"
    )


def _refuse_other_memory(model: nn.Module, rehearse: Rehearsal) -> None:
    for name, address in rehearse.addresses.items():
        moved = lambda n=name: (_storage(t := rehearse.copies[n]), t.storage_offset()) != rehearse.addresses[n]  # noqa: E731
        frozen = isinstance(rehearse.given[name], nn.Parameter) and not rehearse.given[name].requires_grad
        held = [_storage(tensor) for tensor in rehearse.copies.values()]
        now = _storage(rehearse.copies[name])
        swapped = any(
            at[0] == now and _storage(rehearse.copies[n]) == address[0] for n, at in rehearse.addresses.items()
        )
        if frozen and held.count(now) == 1 and not swapped:
            continue  # `p.data = ` of a new tensor is a write to p
        if (_storage(rehearse.copies[name]), rehearse.copies[name].storage_offset()) != address:
            raise ConfigurationError(
                f"expected tensors that keep their memory, got one, {name.removeprefix('model.')}, that is given other "
                f"memory (`.data =` or `set_`) at {first_line(rehearse, moved, model)}; compute a new tensor from a "
                "parameter, and assign a buffer (`self.c = ...`) or write to it (`self.c.copy_(...)`)"
            )


def _refuse_assigned_memory(rehearse: Rehearsal) -> None:
    """Refuses a buffer that is assigned another tensor's memory, if one is written in place: PyTorch changes both."""
    now = {name: rehearse.step.assigned.get(name.removeprefix("model."), t) for name, t in rehearse.copies.items()}
    named = [(name, t) for name, t in now.items() if name[:5] != "batch" and not isinstance(t, FakeTensor)]
    for names in shared_memory(named) if rehearse.step.assigned else ():
        if any(map(rehearse.is_written, names)):
            raise ConfigurationError(
                "expected tensors with memory of their own after a step, got {} and {} in the same memory, so changing "
                "one changes the other in the next step; assign a copy (`.detach().clone()`)"
                .format(*(name.removeprefix("model.") for name in names))
            )  # fmt: skip


def _refuse_settings(model: nn.Module, rehearse: Rehearsal, before: tuple[Any, ...]) -> None:
    if settings() != before:
        put_back(before)
        place = first_line(rehearse, lambda: settings() != before, model)
        advice = "set it before the training, or in a `with` block, whose end puts it back"
        raise ConfigurationError(_words(place, "changes a setting of torch for the next step", advice))


def _refuse_marks(model: nn.Module, rehearse: Rehearsal) -> None:
    """Refuses hooks and attributes that the step leaves on its parameters and buffers: the next step has them too."""
    for name in rehearse.given:
        if mark := _mark(rehearse, name):
            place = first_line(rehearse, lambda name=name: bool(_mark(rehearse, name)), model)  # type: ignore[misc]
            advice = "set a hook on what a layer gives, and keep what changes in a buffer"
            raise ConfigurationError(_words(place, f"sets {mark} of {name.removeprefix('model.')}", advice))


def _mark(rehearse: Rehearsal, name: str) -> str:
    """A hook or attribute that the step has put on a tensor; empty if there is none."""
    tensor, before = rehearse.copies[name], rehearse.attributes[name]
    if tensor.is_leaf and (tensor._backward_hooks or tensor._post_accumulate_grad_hooks):
        return "a hook on the gradient"
    changed = (key for key, value in vars(tensor).items() if before.get(key, tensor) is not value)
    return next((f"attribute {key}" for key in changed if key != "_is_param"), "")


def _refuse_shared_memory(model: nn.Module, changed: Set[str]) -> None:
    """Refuses tensors of the model that lie in the same memory if a step changes one: eager PyTorch changes both."""
    for other, name in shared_memory([*model.named_parameters(), *model.named_buffers()]):
        if not changed.isdisjoint((name, other)):
            raise ConfigurationError(
                f"expected tensors with memory of their own, got {other} and {name} in the same memory, so changing "
                "one changes the other; assign one nn.Parameter to both modules to tie them, or clone one"
                if other != name
                else f"expected tensors with memory of their own, got {name}, whose elements share memory; clone it"
            )


def shared_memory(named: Sequence[tuple[str, Tensor]]) -> Iterator[tuple[str, str]]:
    """The names of two tensors in the same memory; of one, twice, whose own elements are."""
    end, last = 0, ""  # of the tensor that reaches furthest
    begun = ((_storage(t) + int(t.storage_offset()) * t.element_size(), name, t) for name, t in named if t.numel())
    for start, name, tensor in sorted(begun):
        if start < end or _extent(tensor) < tensor.nbytes:
            yield (last if start < end else name), name
        end, last = max((end, last), (start + _extent(tensor), name))


def _extent(tensor: Tensor) -> int:
    """The number of bytes from a tensor's first element to the end of its last, which must not be none."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _deed_of_torch(owner: Any, name: str, frame: FrameType) -> tuple[str, str] | None:
    """The same for functions of torch. owner: the object whose method is called."""
    if isinstance(owner, torch.Generator) and name in ("manual_seed", "seed"):
        return (
            f"seeds torch's random numbers (`{name}`)",
            "leave that out, or the layer that does it: each step draws by the job's seed; keep numbers that are to "
            "stay the same in a buffer",
        )
    within = name == "run_backward" and torch._C._current_graph_task_id() != -1
    if within and frame.f_locals.get("kwargs", {}).get("accumulate_grad", False):
        return (
            "calls `backward` in a backward pass, which adds to gradients behind the step",
            "call torch.autograd.grad there, or use torch.utils.checkpoint for a part that is computed again",
        )
    if name.endswith("_sdp_enabled") and is_users(frame.f_back.f_code.co_filename if frame.f_back else ""):
        return f"asks which kernels attention may use (`{name}`)", "leave that out: a program has one form of it"
    saves = name == "_push_saved_tensors_default_hooks"
    if saves and not isinstance(frame.f_locals.get("self"), torch.autograd.graph.save_on_cpu):
        return (
            "changes what autograd saves (`saved_tensors_hooks`)",
            "keep it out of the step, and compute in forward what the backward pass is to read",
        )
    return None


def _asks_for_version(frame: FrameType | None) -> bool:
    """Whether code looks up an installed package, as accelerate does to know whether PEFT is there."""
    finders = ("pathlib", "importlib.metadata", "importlib_metadata")  # the last one installs itself over Python's
    while frame is not None and frame.f_globals.get("__name__", "").startswith(finders):
        if frame.f_globals["__name__"] != "pathlib":
            return True
        frame = frame.f_back
    return False


def _deed(called: Any, frame: FrameType) -> tuple[str, str] | None:
    """The forbidden deed of a call of a function in C, and advice; None if a step may make that call."""
    owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
    if isinstance(owner, random.Random) or name in ("urandom", "getrandom"):
        return f"reads random numbers of Python (`{name}`)", _RANDOM
    if (deed := _deed_of_torch(owner, name, frame)) is not None:
        return deed
    if "site-packages" in frame.f_code.co_filename or frame.f_globals.get("__name__") == "logging":
        return None  # libraries read clocks for their logs, and in callbacks of the garbage collector
    if (isinstance(owner, ModuleType) and called in _CLOCKS) or (
        isinstance(owner, type) and issubclass(owner, datetime.date) and name in ("now", "today", "utcnow")
    ):
        return f"reads the time (`{name}`)", "keep it out of the step"
    if name == "putenv":
        return "writes to the environment", _STATE
    opener = frame.f_globals.get("__name__", "").startswith("pathlib") or is_users(frame.f_code.co_filename)
    if name in _FILES and isinstance(owner, ModuleType) and opener and not _asks_for_version(frame):
        return f"reads files (`{name}`)", "read them before and give what is in them as data, or keep it in a buffer"
    if name == "cache_info":
        return "reads how often a cache was used (`cache_info`)", "keep it out of the step"
    return None


@contextmanager
def _outside_reads(model: nn.Module) -> Iterator[list[tuple[str, str, str]]]:
    """Notes the first read of a clock or of Python's random numbers, or seed of torch's: place, deed and advice."""
    names = {id(module): name for name, module in model.named_modules()}
    found: list[tuple[str, str, str]] = []

    def profile(frame: FrameType, event: str, called: Any) -> None:
        what = _deed(called, frame) if event == "c_call" and not found else None
        if what is not None and (line := user_line(frame)):
            found.append((described(module_of(frame, names), line), *what))

    before, collect = sys.getprofile(), gc.enable if gc.isenabled() else gc.disable
    gc.disable()  # a library's callback for garbage collection may read a clock in the middle of the step
    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(before)
        collect()


def _carried(model: nn.Module, rehearse: Callable[[], None], changed: Sequence[str]) -> list[str]:
    """The changed variables that a step reads before it assigns them; others do not reach the next step."""
    owners = {attribute(key, path): (id(module), key) for path, module in model.named_modules() for key in vars(module)}
    watched = {owners[name] for name in changed if name in owners}
    if not watched:
        return list(changed)
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
        rehearse()
    finally:
        nn.Module.__setattr__ = put  # type: ignore[method-assign]
        del nn.Module.__getattribute__
    return [name for name in changed if name not in owners or owners[name] in read]


def _advice(name: str, value: Any) -> str:
    if "random numbers" in name or isinstance(value, random.Random | np.random.Generator | np.random.RandomState):
        return _RANDOM
    if isinstance(value, torch.Generator):
        return "leave `generator=` out, so that the numbers follow the job's seed"
    return _LOADER if isinstance(value, Iterator) else _STATE
