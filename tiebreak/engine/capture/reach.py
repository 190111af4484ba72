"""Finds what a step can reach through Python besides the model's tensors: attributes, closures, globals and so on.

A walk over objects, from the modules of the model, their hooks and classes, and the loss. It enters containers,
instances, iterators, functions (with the variables that they mention) and classes of the user's. Code of torch, of
Python and of this package is not entered, and of installed libraries only what belongs to the model's own classes; of
the variables of such modules, only numbers and texts that the user's code mentions are looked at.
"""

import io
import random
import sys
import weakref
import zlib
from collections import ChainMap, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar
from decimal import getcontext
from functools import partial
from inspect import getgeneratorlocals
from logging import Handler, Logger
from queue import SimpleQueue
from types import BuiltinMethodType, CodeType, FunctionType, GeneratorType, MethodType, MethodWrapperType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as _modules
from torch.optim.lr_scheduler import LRScheduler

from tiebreak.engine.capture.user_code import is_users
from tiebreak.protocol.errors import ConfigurationError

_HOOKS: Final = frozenset(name for name in vars(nn.Module()) if name.endswith("_hooks"))
_INTERNAL: Final = frozenset(vars(nn.Module())) - {"training"} - _HOOKS | {"_flat_weights", "_flat_weight_refs"}
"""Attributes of every module that hold its tensors and submodules; of recurrent ones, their weights again."""
_MOST: Final = 1_000_000
"""The most variables and objects that are visited."""
_PLAIN: Final = (int, float, complex, str, bytes, np.generic, type(None), torch.dtype, torch.device, torch.Size)

Parts = tuple[Any, ...]
"""The parts of an object now. It is the same later if each part is: the same object, or an equal number or text."""


class Reach:
    """Every variable and object that a step can reach, by a name for messages, with what is in it now."""

    def __init__(self, model: nn.Module, losses: Sequence[Callable[..., Tensor]]) -> None:
        own = dict(model.named_modules())
        self._seen = {id(found) for found in (*model.parameters(), *model.buffers(), *own.values())}
        self._found: list[tuple[str, Any, Callable[[], Parts], Parts]] = []
        self._waiting: deque[tuple[str, Any]] = deque()
        self._kept: list[Any] = []  # so that no other object gets the identity of one that was seen
        self.schedules: list[torch.optim.Optimizer | LRScheduler] = []
        """The optimizers and schedulers among them."""
        self._note("the random numbers of Python", lambda: (repr(random.getstate()),))
        self._note("the random numbers of NumPy", lambda: (repr(np.random.get_state()),))
        self._note("a setting of Python or torch", lambda: (*settings(), repr(getcontext())))
        for path, module in own.items():
            where, held = f"module {path}" if path else "the model", vars(module)
            for key in held.keys() - _INTERNAL:
                self._variable(f"a hook of {where}" if key in _HOOKS else attribute(key, path), held, key)
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            for key in vars(tensor):
                self._variable(f"attribute {key} of {name}", vars(tensor), key)
        for kind in {kind: None for module in own.values() for kind in type(module).__mro__}:
            if not kind.__module__.startswith(("torch.", "builtins")):
                self._class(kind)
        hooks = [held for key, held in vars(_modules).items() if key.startswith("_global") and isinstance(held, dict)]
        self._waiting.append(("a hook of all modules", hooks))
        # A task's losses are wrapped to name their arguments.
        self._waiting.extend(("the loss", getattr(loss, "loss", loss)) for loss in losses)
        while self._waiting and len(self._kept) < _MOST:
            self._visit(*self._waiting.popleft())

    def __contains__(self, value: object) -> bool:
        return id(value) in self._seen

    def changed(self) -> dict[str, tuple[Any, Callable[[], Parts]]]:
        """The names of what has changed, each with the object (None: a variable) and how to get its parts."""
        return {name: (value, get) for name, value, get, before in self._found if not same(get(), before)}

    @contextmanager
    def other_rates(self) -> Iterator[None]:
        """Gives optimizers and schedulers other rates and other numbers while the block runs."""
        held = [group for one in self.schedules for group in getattr(one, "param_groups", (vars(one),))]
        before = [group.copy() for group in held]
        for group, own in zip(held, before, strict=True):
            numbers = {key: value for key, value in own.items() if key == "lr" or type(value) in (float, int)}
            group |= {key: value * 2 + 1 for key, value in numbers.items()}
            group |= {key: [rate * 2 + 1 for rate in own[key]] for key in group.keys() & {"_last_lr"}}
        try:
            yield
        finally:
            for group, own in zip(held, before, strict=True):
                group.clear()
                group.update(own)

    def _note(self, name: str, get: Callable[[], Parts], value: Any = None) -> None:
        parts = get()
        self._found.append((name, value, get, parts))
        self._waiting.extend((name, part) for part in parts if not isinstance(part, _PLAIN))

    def _variable(self, name: str, held: Mapping[str, Any], key: str) -> None:
        self._note(name, lambda: (held.get(key),))

    def _visit(self, name: str, value: Any) -> None:
        if id(value) in self._seen or isinstance(value, (*_PLAIN, ModuleType, Logger, Handler)):
            return
        self._seen.add(id(value))
        self._kept.append(value)
        self.schedules += [value] if isinstance(value, torch.optim.Optimizer | LRScheduler) else []
        if type(value).__name__ == "AccumulateGrad":
            raise ConfigurationError(
                f"expected gradients that autograd alone adds up, got {name} with a node of its own (AccumulateGrad), "
                "whose hooks a program does not have; set hooks on what a layer gives"
            )
        if isinstance(value, type):
            if _is_own(sys.modules.get(value.__module__)):
                self._class(value)
        elif isinstance(value, FunctionType):
            self._function(value, libraries=False)
        else:
            self._note(name, partial(_parts, value), value)
            self._waiting.append((name, type(value)))

    def _class(self, kind: type) -> None:
        for key, value in vars(kind).items():
            inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if isinstance(inner, FunctionType):
                self._function(inner)
            elif not key.startswith("__"):
                self._variable(f"attribute {key} of class {kind.__name__}", vars(kind), key)
        self._waiting.append((f"the class of class {kind.__name__}", type(kind)))

    def _function(self, function: FunctionType, *, libraries: bool = True) -> None:
        code, of = function.__code__, f"of {function.__name__}"
        self._waiting.append((f"an attribute {of}", vars(function)))  # for one: the function that a decorator wraps
        if not is_users(code.co_filename, libraries=libraries):
            return
        held = ChainMap({}, function.__globals__)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._note(f"variable {name} {of}", partial(_contents, cell))
            held[name] = next(iter(_contents(cell)), None)
        given = lambda: (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())  # noqa: E731
        self._note(f"a default argument {of}", given)
        names, library = {*_names(code)}, not is_users(code.co_filename, libraries=False)
        for name in sorted({*names, *code.co_freevars}):
            value = held.get(name, sys.modules.get(name))
            if isinstance(value, ModuleType):
                for key in sorted(names & vars(value).keys()):
                    if _is_own(value) or isinstance(vars(value)[key], _PLAIN):
                        self._variable(f"variable {key} of module {name}", vars(value), key)
            elif name in function.__globals__ and not (library and isinstance(value, FunctionType | type)):
                self._variable(f"variable {name} {of}", function.__globals__, name)


Settings = Sequence[tuple[Callable[[], Any], Callable[[Any], Any]]]
"""Functions that read a setting of the process, and that set it."""


def _older(get: Callable[[], Any], put: Callable[[Any], Any]) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """A setting that torch no longer reports once a newer one, `fp32_precision`, has been set: it is None then."""

    def told() -> Any:
        try:
            return get()
        except RuntimeError:
            return None

    return told, lambda value: None if value is None else put(value)


_ON_CPU: Final[Any] = torch.backends.mkldnn
_CUDNN: Final[Any] = torch.backends.cudnn
_UNITS: Final[Any] = (torch.backends.cuda.matmul, _ON_CPU.matmul, _CUDNN.conv, _CUDNN.rnn)
ROUNDED: Final[Settings] = (
    _older(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    _older(partial(getattr, _CUDNN, "allow_tf32"), partial(setattr, _CUDNN, "allow_tf32")),
    *((partial(getattr, unit, "fp32_precision"), partial(setattr, unit, "fp32_precision")) for unit in _UNITS),
)
"""The settings by which factors of FP32 products may be rounded. Older ones change newer ones, and stand first."""
UNROUNDED: Final = ("highest", False, "ieee", "ieee", "ieee", "ieee")
"""The values of `ROUNDED` under which they are not."""
_SETTINGS: Final[Settings] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (partial(torch.is_autocast_enabled, "cpu"), partial(torch.set_autocast_enabled, "cpu")),
    (partial(torch.get_autocast_dtype, "cpu"), partial(torch.set_autocast_dtype, "cpu")),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    *ROUNDED,
)


def settings(which: Settings = _SETTINGS) -> Parts:
    """The settings of the process that a step's results may depend on."""
    return tuple(get() for get, _ in which)


def put_back(values: Parts, which: Settings = _SETTINGS) -> None:
    """Puts settings back that are not as they were."""
    for (get, put), value in zip(which, values, strict=True):
        if get() != value:
            put(value)


def attribute(key: str, path: str) -> str:
    """The name of an attribute of a module."""
    return f"attribute {key} of module {path}" if path else f"attribute {key} of the model"


def same(now: Parts, before: Parts) -> bool:
    """Whether what was in an object is in it still."""
    return len(now) == len(before) and all(
        a is b or (type(a) is type(b) and isinstance(a, _PLAIN) and repr(a) == repr(b))
        for a, b in zip(now, before, strict=True)
    )


def _is_own(module: ModuleType | None) -> bool:
    """Whether a module is the user's own; None: it was made by hand, or is not imported any more."""
    top, file = getattr(module, "__name__", "").partition(".")[0], getattr(module, "__file__", None) or ""
    return top not in sys.stdlib_module_names and is_users(file, libraries=False)


def _names(code: CodeType) -> Iterator[str]:
    """The global variables, attributes and texts that code mentions, and the code in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str):  # as in `globals()["count"]`
            yield constant


def _contents(cell: Any) -> Parts:
    try:
        return (cell.cell_contents,)
    except ValueError:  # it is empty
        return ()


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def _of_instance(value: Any) -> Parts:
    held = getattr(value, "__dict__", None)
    named = (*held.keys(), *held.values()) if isinstance(held, dict) else ()
    groups = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__]
    slots = [slot for group in groups for slot in ([group] if isinstance(group, str) else group)]
    drawn = _flat(value.__reduce__()) if isinstance(value, Iterator) and held is None else ()  # of an iterator in C
    return (*named, *(getattr(value, slot, None) for slot in slots), *drawn, _digest(lambda: value))


def _place(file: io.IOBase) -> Parts:
    """The place where the next read of a file begins."""
    try:
        return (file.tell(),) if not file.closed and file.readable() else ()
    except (OSError, ValueError):  # it does not tell between lines that an iteration reads
        return (object(),)


_CONTENTS: Final[Sequence[tuple[Any, Callable[[Any], Parts]]]] = (
    (dict, lambda value: (*value.keys(), *value.values())),
    (list | tuple | set | frozenset | deque, tuple),
    (MethodType, lambda value: (value.__self__, value.__func__)),
    (BuiltinMethodType | MethodWrapperType, lambda value: (value.__self__,)),
    (partial, lambda value: (value.func, *value.args, *value.keywords.values())),
    (Tensor, lambda value: (value._version, _digest(lambda: _bytes_of(value)))),
    (np.ndarray, lambda value: tuple(value.flat) if value.dtype == object else (_digest(value.tobytes),)),
    (torch.Generator, lambda value: (_digest(lambda: _bytes_of(value.get_state())),)),
    (np.random.Generator, lambda value: (repr(value.bit_generator.state),)),
    (np.random.RandomState, lambda value: (repr(value.get_state()),)),
    (random.SystemRandom, lambda _: ()),
    (random.Random, lambda value: (repr(value.getstate()),)),
    (GeneratorType, lambda value: (value.gi_frame and value.gi_frame.f_lasti, *getgeneratorlocals(value).values())),
    (io.IOBase, _place),
    (ContextVar, lambda value: (value.get(None),)),
    (Context, lambda value: tuple(value.values())),
    (SimpleQueue, lambda value: (value.qsize(),)),
    (weakref.ref, lambda value: (value(),)),
    (object, _of_instance),
)
"""Functions that give the parts of an object that may change, by its type."""


def _parts(value: Any) -> Parts:
    return next(get(value) for kind, get in _CONTENTS if isinstance(value, kind))


def _bytes_of(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()


def _digest(read: Callable[[], Any]) -> int | None:
    """A checksum of the bytes of an object that has the buffer protocol; None for others."""
    try:
        return zlib.crc32(read())
    except (TypeError, ValueError, BufferError, RuntimeError):
        return None
