"""What a program cannot hold, found before anything is traced: the step is rehearsed in plain PyTorch, on copies.

A program is captured once and then computed without the user's Python code. So a step may not read Python state that
changes from step to step (counters, random numbers of Python and NumPy, clocks, iterators), nor write to its parameters
or its batch. The first of two rehearsals fills whatever the model caches; what the second one changes, and the next
step would read, is such state.
"""

import datetime
import gc
import operator
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from tiebreak.engine.capture.places import described, first_line, module_of, refusal, user_line
from tiebreak.protocol.errors import ConfigurationError

_INTERNAL: Final = frozenset(vars(nn.Module())) - {"training"} | {"_flat_weights", "_flat_weight_refs"}
"""Attributes of every module that hold its tensors, submodules and hooks; of recurrent ones, their weights again."""
_CLOCKS: Final = frozenset(
    f for name in dir(time) if name.endswith(("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter",
                                              "perf_counter_ns")) and callable(f := getattr(time, name))
)  # fmt: skip
_ENTRIES: Final = 1000
"""The most entries of a container that are compared."""
_RANDOM: Final = "draw with torch.rand, torch.bernoulli or dropout, which follow the job's seed, or give it as data"
_STATE: Final = "a tensor in a buffer (`register_buffer`) is state; a schedule and data can change from step to step"
_LOADER: Final = "give the data to the task itself (`data=`, `batch=`), and take each batch as arguments of the loss"


class LossModule(nn.Module):
    """A loss over a model as one module, so that `functional_call` can replace the model's tensors."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self._loss = loss
        self.assigned: dict[str, Tensor] = {}
        """The buffers that the last call put other tensors in the place of (`self.c = ...`), and these."""

    def forward(self, *batch: Tensor) -> Any:
        given = dict(self.model.named_buffers(remove_duplicate=False))
        weights = dict(self.model.named_parameters())
        loss = self._loss(self.model, *batch)
        now = dict(self.model.named_buffers(remove_duplicate=False))
        moved = given.keys() ^ now.keys() | {n for n, t in self.model.named_parameters() if t is not weights.get(n)}
        if moved:
            raise ConfigurationError(
                f"expected forward to leave parameters and buffers where they are, got new or other ones, "
                f"{sorted(moved)}; make them in __init__"
            )
        self.assigned = {name: now[name] for name, tensor in given.items() if now[name] is not tensor}
        return loss


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Puts back what running the model may change: its attributes, gradients and modes, and global random streams."""
    held = [_keeper(module.__dict__) for module in model.modules()]
    parameters = [(p, p.grad, p.requires_grad) for p in model.parameters()]
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for put_back in held:
            put_back()
        for parameter, gradient, wanted in parameters:
            parameter.requires_grad_(wanted).grad = gradient


@contextmanager
def same_tensors(model: nn.Module) -> Iterator[None]:
    """Puts back what `functional_call` replaced: of a module with two names it leaves the replacements."""
    modules = [m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule)]  # they are refused
    held = [(tensors, tensors.copy()) for m in modules for tensors in (m._parameters, m._buffers)]
    try:
        yield
    finally:
        for tensors, before in held:
            tensors.clear()
            tensors.update(before)  # type: ignore[arg-type]


def _keeper(value: Any, depth: int = 4) -> Callable[[], None]:
    """A function that puts the present contents back into a container, and into those in it."""
    items = value.copy()
    parts = list(items.values()) if isinstance(items, dict) else items
    inner = [_keeper(part, depth - 1) for part in parts if depth and isinstance(part, dict | list | set)]

    def put_back() -> None:
        value.clear()
        value.extend(items) if isinstance(value, list) else value.update(items)
        for deeper in inner:
            deeper()

    return put_back


def examine(model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Tensor]) -> frozenset[str]:
    """Rehearses a step and returns the names of the buffers that it assigns.

    Raises `ConfigurationError`, with the place, if the step fails or does what a program cannot.
    """
    step, given = LossModule(model, loss), {f"model.{name}": t for name, t in _tensors(model).items()}
    copies: dict[str, Tensor] = {}

    def rehearse() -> None:
        copies.update({name: t.detach().clone().requires_grad_(t.requires_grad) for name, t in given.items()})
        copies.update({f"batch tensor {i}": t.clone() for i, t in enumerate(batch)})
        tensors = list(copies.values())
        with same_tensors(model):
            functional_call(step, dict(zip(given, tensors, strict=False)), tuple(tensors[len(given) :]))

    try:
        rehearse()
    except ConfigurationError:
        raise
    except Exception as error:  # whatever the user's code raises
        raise refusal(error, model, "the step fails in plain PyTorch already", "mend it first") from error
    _refuse_writes(model, rehearse, copies, {**given, **{f"batch tensor {i}": t for i, t in enumerate(batch)}})
    variables = _variables(model, loss)
    before = {name: _frozen(get()) for name, get in variables.items()}
    with _outside_reads(model) as outside:
        rehearse()
    if outside:
        raise ConfigurationError(_words(outside[0][0], outside[0][1], outside[0][2]))
    changed = [name for name, get in variables.items() if _frozen(get()) != before[name]]
    for name in _carried(model, rehearse, changed):
        start, get = _frozen(variables[name]()), variables[name]
        place = first_line(rehearse, lambda get=get, start=start: _frozen(get()) != start, model)  # type: ignore[misc]
        raise ConfigurationError(_words(place, f"changes {name}", _advice(name, get())))
    return frozenset(step.assigned)


def _words(place: str, deed: str, advice: str) -> str:
    return (
        f"the step cannot be captured: at {place} it {deed}. A program is captured once and then computed without your "
        f"Python code, so this would stay as it was at capture; {advice}"
    )


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _refuse_writes(
    model: nn.Module, rehearse: Callable[[], None], copies: Mapping[str, Tensor], given: Mapping[str, Tensor]
) -> None:
    """Refuses a step that writes to its parameters or to its batch in place."""
    for name, tensor in given.items():
        if name.startswith("batch") or isinstance(tensor, nn.Parameter):
            if torch.equal(copies[name], tensor):
                continue
            written = lambda n=name, t=tensor: not torch.equal(copies[n], t)  # noqa: E731
            place = first_line(rehearse, written, model)
            raise ConfigurationError(
                f"expected a step that changes buffers only, got one that writes to {name.removeprefix('model.')} in "
                f"place at {place}; compute a new tensor instead (`w = self.weight.clamp(0, 1)`, `x = x * 2`) and use "
                "that, and leave out max_norm"
            )


@contextmanager
def _outside_reads(model: nn.Module) -> Iterator[list[tuple[str, str, str]]]:
    """Notes the first read of a clock or of Python's random numbers, or seed of torch's: place, deed and advice."""
    names = {id(module): name for name, module in model.named_modules()}
    found: list[tuple[str, str, str]] = []

    def profile(frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call" or found:
            return
        owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        what = None
        if isinstance(owner, random.Random):
            what = (f"reads random numbers of Python (`{name}`)", _RANDOM)
        elif isinstance(owner, torch.Generator) and name in ("manual_seed", "seed"):
            what = (f"seeds torch's random numbers (`{name}`)", "leave that out: each step draws by the job's seed")
        elif "site-packages" in frame.f_code.co_filename:
            return  # libraries read clocks for their logs, and in callbacks of the garbage collector
        elif (isinstance(owner, ModuleType) and called in _CLOCKS) or (
            isinstance(owner, type) and issubclass(owner, datetime.date) and name in ("now", "today", "utcnow")
        ):
            what = (f"reads the time (`{name}`)", "keep it out of the step")
        if what is not None and (line := user_line(frame)):
            found.append((described(module_of(frame, names), line), *what))

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # a library's callback for garbage collection may read a clock in the middle of the step
    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()


def _carried(model: nn.Module, rehearse: Callable[[], None], changed: Sequence[str]) -> list[str]:
    """Those of the changed variables that a step reads before it assigns them; others do not reach the next step."""
    owners = {f"attribute {key} of {_module(path)}": (id(module), key)
              for path, module in model.named_modules() for key in vars(module)}  # fmt: skip
    watched = {owners[name] for name in changed if name in owners}
    if not watched:
        return list(changed)
    read, assigned = set[tuple[int, str]](), set[tuple[int, str]]()
    put = nn.Module.__setattr__

    def get(module: nn.Module, name: str) -> Any:
        if (id(module), name) in watched - assigned:
            read.add((id(module), name))
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


def _module(path: str) -> str:
    return f"module {path}" if path else "the model"


def _variables(model: nn.Module, loss: Callable[..., Tensor]) -> dict[str, Callable[[], Any]]:
    """How to read each variable that a step may depend on besides tensors of the model, by a name for messages."""
    found: dict[str, Callable[[], Any]] = {
        "the random numbers of Python": random.getstate,
        "the random numbers of NumPy": np.random.get_state,
    }
    for path, module in model.named_modules():
        for key in vars(module).keys() - _INTERNAL:
            found[f"attribute {key} of {_module(path)}"] = partial(vars(module).get, key)
    own = {type(module).forward for module in model.modules() if not type(module).__module__.startswith("torch.")}
    for function in (getattr(loss, "loss", loss), *own):  # a task's loss is wrapped so that its arguments have names
        found |= {f"variable {name}": get for name, get in _reached(function)}
    return found


def _reached(function: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """How to read the variables that a function closes over, and the global ones that it mentions, by name."""
    inner = getattr(function, "__func__", getattr(function, "func", function))  # of a method, or of a partial
    if isinstance(inner, FunctionType):
        for name, cell in zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True):
            yield f"{name} of {inner.__name__}", partial(_contents, cell)
        for name in inner.__code__.co_names:
            if name in inner.__globals__ and not isinstance(inner.__globals__[name], ModuleType | type):
                yield f"{name} of {inner.__name__}", partial(inner.__globals__.get, name)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


class _Same:
    """Equal to itself only, and while no tensor in it was written to."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.version = getattr(value, "_version", 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.version == other.version and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


def _frozen(value: Any, depth: int = 4) -> Any:
    """Something that compares equal as long as a variable holds what it holds now."""
    if isinstance(value, int | float | complex | str | bytes | None):
        return repr(value)
    if isinstance(value, dict):
        return [len(value), [(repr(k), _frozen(v, depth - 1)) for k, v in list(value.items())[:_ENTRIES]]]
    if isinstance(value, list | tuple):
        return [len(value), [_frozen(v, depth - 1) for v in value[:_ENTRIES]]]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return [_Same(value), *(_frozen(part, depth - 1) for part in _inside(value) if depth > 0)]


def _inside(value: Any) -> list[Any]:
    """What an object holds that may change."""
    match value:
        case Tensor() | nn.Module() | type() | ModuleType():
            return []
        case FunctionType() | MethodType():
            return [get() for _, get in _reached(value)]
        case torch.Generator():
            return [value.get_state().tolist()]
        case np.random.Generator():
            return [repr(value.bit_generator.state)]
        case random.Random() | np.random.RandomState():
            return [repr(value.getstate() if isinstance(value, random.Random) else value.get_state())]
        case GeneratorType():
            return [dict(value.gi_frame.f_locals) if value.gi_frame else None]
        case Iterator():
            return [operator.length_hint(value), getattr(value, "__dict__", None)]
    return [getattr(value, "__dict__", None)]


def _advice(name: str, value: Any) -> str:
    if "random numbers" in name or isinstance(value, random.Random | np.random.Generator | np.random.RandomState):
        return _RANDOM
    if isinstance(value, torch.Generator):
        return "leave `generator=` out, so that the numbers follow the job's seed"
    return _LOADER if isinstance(value, Iterator) else _STATE
