"""What a captured step depends on, as one digest that costs a thirtieth of capturing it.

A cache of captured programs is only worth having if a stale hit is impossible: it would train something else than the
user wrote. So the key is not a guess at what the code might read, but what the code *does*. The loss and its gradients
are run once on fake tensors (shapes without data), and every call that reaches ATen is written down: operator, every
number, which earlier result or which parameter each tensor is, and the bytes of every constant. Capture is a function
of those calls. Whatever changes the step (a constant in forward, a default argument, a closure's value, a config entry,
the p of a dropout, an eps, the loss, a backward written by hand, a frozen parameter) changes them.

What that alone cannot see is code that asks whether it is being traced and then takes a path that the run on fake
tensors does not. For that the digest also covers the structure: the bytecode of every module's class, its bases and the
loss, the plain values in every module's attributes and configuration, and the versions of the packages they come from.

Anything that cannot be written down exactly raises `NoFingerprint`: then nothing is cached.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import FakeTensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tiebreak.engine.capture.tracing import LossModule, as_export

_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes)
_NAMED: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_OPAQUE: Final = (Tensor, nn.Module, type, ModuleType)
_FOREIGN: Final = ("torch", "builtins", "typing", "abc", "collections")
_NOT_BEHAVIOUR: Final = ("__doc__", "__firstlineno__", "__static_attributes__")
_MAX_DEPTH: Final = 8
"""Of objects inside a module's attributes; what lies deeper is left to the record of calls."""
_ROOT: Final = Path(__file__).resolve().parents[3]


class NoFingerprint(Exception):
    """The step does something that cannot be written down exactly; says what."""


class Digest:
    """SHA-256 over values, each with its type and length, so that no two sequences of values read alike."""

    def __init__(self) -> None:
        self._hasher = sha256()

    def add(self, *parts: object) -> None:
        """Adds plain values. Raises `NoFingerprint` for any other."""
        for part in parts:
            if not isinstance(part, _PLAIN):
                raise NoFingerprint(f"a value of type {type(part).__name__}")
            data = part if isinstance(part, bytes) else repr(part).encode()  # repr of a float is exact
            self._hasher.update(f"{type(part).__name__} {len(data)} ".encode() + data)

    def hex(self) -> str:
        """The digest of everything added so far."""
        return self._hasher.hexdigest()


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes every ATen call into a digest. A tensor is (number of its memory, offset, sizes, strides, dtype)."""

    def __init__(self, digest: Digest) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._digest = digest
        self._numbers: dict[int, int] = {}
        self._alive: list[Tensor] = []  # else another tensor could take over the memory's address

    def know(self, tensor: Tensor) -> None:
        """Gives the tensor's memory the next number, unless it has one."""
        self._alive.append(tensor)
        self._numbers.setdefault(tensor.untyped_storage()._cdata, len(self._numbers))

    def write(self, value: Any) -> None:
        """An argument or a result."""
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, list | tuple):
            self._digest.add(type(value).__name__, len(value))
            for item in value:
                self.write(item)
        elif isinstance(value, dict):
            self.write([part for item in sorted(value.items()) for part in item])
        elif isinstance(value, _NAMED):
            self._digest.add(type(value).__name__, str(value))
        else:
            self._digest.add(value)

    def _tensor(self, tensor: Tensor) -> None:
        if tensor.untyped_storage()._cdata not in self._numbers:
            if isinstance(tensor, FakeTensor):
                raise NoFingerprint("a tensor whose origin is not known")
            self._constant(tensor)
            self.know(tensor)
        number = self._numbers[tensor.untyped_storage()._cdata]
        layout = (*tensor.shape, "strides", *tensor.stride(), "offset", tensor.storage_offset(), str(tensor.dtype))
        self._digest.add("tensor", number, *layout)

    def _constant(self, tensor: Tensor) -> None:
        """A tensor with data: its whole memory is part of what the step is."""
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided or tensor.is_meta:
            raise NoFingerprint(f"a constant of type {type(tensor).__name__}")
        with _disable_current_modes():
            memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
            self._digest.add("constant", memory.cpu().numpy().tobytes())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._digest.add("call", str(func))
        self.write(args)
        self.write(kwargs or {})
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            self.know(tensor)
        self.write(result)
        return result


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def step_fingerprint(model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Tensor]) -> str:
    """The digest of the step `loss(model, *batch)` and its gradients; the values of weights and batch do not matter.

    model: in the mode it is to be captured in. batch: tensors of the step's shapes and dtypes. Raises `NoFingerprint`,
    and whatever the model or the loss raises.
    """
    digest = Digest()
    digest.add(environment_digest(), structure_digest(model, loss))
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    named = [*model.named_parameters(), *model.named_buffers()]
    with fake:
        tensors = {f"model.{name}": fake.from_tensor(tensor) for name, tensor in named}
        inputs = tuple(fake.from_tensor(tensor) for tensor in batch)
    calls = _Calls(digest)
    for name, tensor in [*tensors.items(), *((f"batch {i}", tensor) for i, tensor in enumerate(inputs))]:
        calls.know(tensor)
        digest.add(name, tensor.requires_grad)
        calls.write(tensor)
    trained = [tensor for tensor in tensors.values() if tensor.requires_grad]
    with fake, sdpa_kernel(SDPBackend.MATH), as_export(), calls:
        value = functional_call(LossModule(model, loss), dict(tensors), inputs)
        gradients = torch.autograd.grad(value, trained, allow_unused=True)
    calls.write(["results", value, *gradients])
    return digest.hex()


@cache
def environment_digest() -> str:
    """Python, torch, and every source file here that takes part in making a program."""
    digest = Digest()
    digest.add(sys.version, torch.__version__, str(torch.version.git_version))
    for folder in ("tiebreak/protocol", "tiebreak/engine"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            digest.add(path.relative_to(_ROOT).as_posix(), path.read_bytes())
    return digest.hex()


def structure_digest(model: nn.Module, loss: Callable[..., Tensor]) -> str:
    """Classes, bytecode, plain attributes and package versions of a model and its loss."""
    digest, values = Digest(), _Values()
    packages = {_package(getattr(loss, "__module__", None))}
    for name, module in model.named_modules():
        kind = type(module)
        packages |= {_package(base.__module__) for base in kind.__mro__}
        digest.add(name, values.of_class(kind), values.of(vars(module)))
    if isinstance(loss, nn.Module):
        digest.add(structure_digest(loss, type(loss).forward))
    digest.add("loss", values.of_class(type(loss)), values.of(loss))
    for package in sorted(packages - {""}):
        digest.add(package, _version(package))
    return digest.hex()


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed as a package"


class _Values:
    """Digests of what objects are made of. Of tensors and modules in them only the type: the calls show the rest."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, bytes]] = {}  # the object is kept, so that its id stays its own
        self._open: set[int] = set()

    def of_class(self, kind: type) -> bytes:
        """Everything in a class and its bases, apart from torch's own (its version stands for those)."""
        own = [base for base in kind.__mro__ if _package(base.__module__) not in _FOREIGN]
        names = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
        bodies = [{k: v for k, v in vars(base).items() if k not in _NOT_BEHAVIOUR} for base in own]
        return _join([*(name.encode() for name in names), *(self.of(body) for body in bodies)])

    def of(self, value: object, depth: int = 0) -> bytes:
        """Functions by their bytecode, defaults and closure; configurations by their attributes; circles are cut."""
        if isinstance(value, _PLAIN):
            return f"{type(value).__name__} {value!r}".encode()
        kind = f"{type(value).__module__}.{type(value).__qualname__}".encode()
        if depth >= _MAX_DEPTH or id(value) in self._open or isinstance(value, _OPAQUE):
            return kind
        if (known := self._known.get(id(value))) is None:
            self._open.add(id(value))
            parts = [self.of(part, depth + 1) for part in _parts(value)]
            self._open.discard(id(value))
            known = (value, _join([kind, *(sorted(parts) if isinstance(value, set | frozenset) else parts)]))
            self._known[id(value)] = known
        return known[1]


def _join(parts: Iterable[bytes]) -> bytes:
    return sha256(b"".join(sha256(part).digest() for part in parts)).digest()


def _parts(value: object) -> list[object]:
    """What an object is made of, in an order that does not change from process to process (sets: any)."""
    match value:
        case Mapping():
            return [part for pair in value.items() for part in pair]
        case list() | tuple() | set() | frozenset():
            return list(value)
        case FunctionType():
            return [value.__code__, value.__defaults__, value.__kwdefaults__, _closure(value)]
        case CodeType():  # line numbers and file names do not decide anything
            return [value.co_code, value.co_consts, value.co_names, value.co_varnames, value.co_freevars]
        case MethodType() | staticmethod() | classmethod():
            return [value.__func__]
        case property():
            return [value.fget]
        case partial():
            return [value.func, value.args, value.keywords]
        case torch.dtype() | torch.device() | torch.layout() | torch.memory_format():
            return [str(value)]
    attributes = getattr(value, "__dict__", {})
    return [part for pair in sorted(attributes.items()) if not pair[0].startswith("_") for part in pair]


def _closure(function: FunctionType) -> list[object]:
    """What the cells of a closure hold."""
    values: list[object] = []
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not filled yet
            values.append(None)
    return values
