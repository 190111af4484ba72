"""Runs a user's step in plain PyTorch, as one module, with other tensors, and leaves the model as it was.

`StepRun` runs it on copies of what it reads, with all numbers or without those of the model's floats. Tensors without
numbers are torch's fake ones, so such a run costs no more than the Python code. What is computed from one has no
numbers either; all others keep theirs, and none gets wrong ones: it is an error to ask for numbers that are not there,
to write them into another tensor, and to go on after such an error.
"""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Final, cast

import numpy as np
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch._library.utils import zip_schema
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tiebreak.engine.capture.draws import random_state
from tiebreak.engine.capture.held import HeldWeight, InPlace, is_held
from tiebreak.engine.capture.reach import put_back, settings
from tiebreak.engine.capture.user_code import refusal, user_line
from tiebreak.protocol.errors import ConfigurationError


class LossModule(nn.Module):
    """A loss over a model as one module, so that `functional_call` can replace the model's tensors."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.assigned: dict[str, Tensor] = {}
        """The buffers that the last call put other tensors in the place of (`self.c = ...`), and these."""

    def forward(self, *batch: Tensor) -> Any:
        given = dict(self.model.named_buffers(remove_duplicate=False))
        weights = dict(self.model.named_parameters())
        loss = self.loss(self.model, *batch)
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
    """Puts back what running the model may change: its attributes, gradients and modes, and the process's settings."""
    restore = remembered(model)
    parameters = [(p, p.grad, p.requires_grad) for p in model.parameters()]
    try:
        yield
    finally:
        restore()
        for parameter, gradient, wanted in parameters:
            parameter.requires_grad_(wanted).grad = gradient


def random_streams() -> tuple[Any, ...]:
    """The states of the random numbers of torch, Python and NumPy on the CPU; each compares by value."""
    kind, keys, *rest = cast("Any", np.random.get_state())
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), (kind, keys.tobytes(), *rest)


def set_random_streams(states: tuple[Any, ...]) -> None:
    """Sets the random numbers of torch, Python and NumPy to states of `random_streams`."""
    torchs, python, (kind, keys, *rest) = states
    torch.set_rng_state(torch.frombuffer(bytearray(torchs), dtype=torch.uint8))
    random.setstate(python)
    np.random.set_state((kind, np.frombuffer(keys, dtype=np.uint32), *rest))


@contextmanager
def same_draws() -> Iterator[None]:
    """Leaves the random numbers of torch, Python and NumPy as they were."""
    before = random_streams()
    try:
        yield
    finally:
        set_random_streams(before)


@contextmanager
def replaced(target: Any, **values: Any) -> Iterator[None]:
    """Sets attributes of one object, and restores them afterwards."""
    missing = object()
    before = {name: vars(target).get(name, missing) for name in values}
    vars(target).update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            vars(target).pop(name, None)
            if value is not missing:
                vars(target)[name] = value


def remembered(model: nn.Module) -> Callable[[], None]:
    """A function that puts back the model's attributes, the random streams and the process's settings of now."""
    held = [_keeper(module.__dict__) for module in model.modules()]
    drawn, process = random_streams(), settings()
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]

    def restore() -> None:
        put_back(process)
        set_random_streams(drawn)
        for number, state in enumerate(on_gpus):
            torch.cuda.set_rng_state(state, number)
        for each in held:
            each()

    return restore


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


@contextmanager
def exchanged(module: nn.Module, tensors: dict[str, Tensor]) -> Iterator[None]:
    """Gives a module other tensors by name, as `functional_call` does, but for a backward pass too.

    A hand-written checkpoint runs modules there. The dict gets the buffers that the block assigns. The tensors get the
    attributes of those that they stand for, and pass for parameters where these are. Buffers may have dots in their own
    names (`four_bit`), which torch takes for those of modules.
    """
    for name, own in (*module.named_parameters(), *module.named_buffers()):
        vars(tensors[name]).update(vars(own))
        if isinstance(own, nn.Parameter):
            tensors[name]._is_param = True
    others = tensors.copy()
    with same_tensors(module):
        for path, part in module.named_modules():
            if not isinstance(part, torch.jit.ScriptModule):  # they are refused
                part._buffers |= {name: others.pop(f"{path}.{name}") for name in part._buffers if "." in name}
        with torch.nn.utils.stateless._reparametrize_module(module, others, tie_weights=True):
            yield
        tensors |= others


@contextmanager
def as_written(model: nn.Module) -> Iterator[None]:
    """Lets torch.utils.checkpoint save what it would compute again, so that a program computes it once.

    Refuses a part whose second run would not be like the first. The check against eager PyTorch does without this.
    """
    checkpoint: Any = torch.utils.checkpoint
    without = "_checkpoint_without_reentrant_generator"
    without += "_impl" * hasattr(checkpoint, f"{without}_impl")  # torch 2.14: with the settings by name

    def once(_: Any, *given: Any, **named: Any) -> Iterator[None]:
        preserve = named["preserve_rng_state"] if "preserve_rng_state" in named else given[0]
        buffers = {name: (id(tensor), tensor._version) for name, tensor in model.named_buffers()}
        drawn = random_state()
        yield
        if changed := [n for n, tensor in model.named_buffers() if (id(tensor), tensor._version) != buffers.get(n)]:
            raise ConfigurationError(
                f"expected torch.utils.checkpoint around what changes no buffers, got a change of {', '.join(changed)} "
                f"at {user_line(sys._getframe(1))}, which eager PyTorch makes twice in each step; leave batch norm and "
                "the like outside of it"
            )
        if not preserve and random_state() != drawn:
            raise ConfigurationError(
                "expected torch.utils.checkpoint with preserve_rng_state=True around what draws random numbers, got "
                f"preserve_rng_state=False at {user_line(sys._getframe(1))}: PyTorch draws other numbers in backward, "
                "so the gradient is that of another loss; leave the argument out"
            )

    class Saved:
        """Stands in for `CheckpointFunction` (use_reentrant=True), which has no gradient unless an argument has."""

        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            follows = any(isinstance(value, Tensor) and value.requires_grad for value in args)
            with torch.set_grad_enabled(follows and torch.is_grad_enabled()), contextmanager(once)(function, preserve):
                return function(*args)

    with replaced(checkpoint, **{without: once, "CheckpointFunction": Saved}):
        yield


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


SEED: Final = 0x7EB_4EAC
"""The seed of all runs; no user's own, whose state would pass for that of a step's start."""
CPU: Final = torch.device("cpu")
Losses = Sequence[Callable[..., Tensor]]


class StepRun:
    """A step, forward and backward. Each call runs it once, on new copies.

    losses: of the step's phases, which run one after the other, here without the updates between them.
    device: where it runs; None for the CPU, without the numbers of the model's floats. holds: whether large frozen
    weights are `HeldWeight`s, not copies, and gradients `InPlace`.
    """

    def __init__(
        self, model: nn.Module, losses: Losses, batch: Sequence[Tensor], device: torch.device | None = CPU, *,
        holds: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.step, self._losses = model, LossModule(model, losses[0]), losses
        self.state = dict([*model.named_parameters(), *model.named_buffers()])
        self.given = {**self.state, **{f"batch tensor {i}": tensor for i, tensor in enumerate(batch)}}
        self.copies: dict[str, Tensor] = {}
        self.fixed: dict[int, str] = {}
        """The tensors that the step may not write to at present: names by memory."""
        self.trained: dict[int, str] = {}
        self.flags: dict[str, bool] | None = None
        """The `requires_grad` of parameters at the end of the last run, and so at the beginning of the next."""
        self.losses: list[Any] = []
        self.beginning: Callable[[str, Tensor], Tensor] = lambda _, tensor: tensor
        """The tensor that a run begins with in the place of one of the state's."""
        self.watch: Any = nullcontext()
        self._device, self._holds = device, holds

    def __call__(self) -> None:
        """Raises `ConfigurationError`, with the place, if the step fails."""
        self.losses, self.copies = [], {}  # of the last run: large models leave no room for both
        copied = partial(Tensor.to, device=self._device, copy=True)
        hollow = Hollow(allow_non_fake_inputs=True).copy if self._device is None else copied
        for name, tensor in self.given.items():
            make = partial(HeldWeight, dtype=tensor.dtype) if self._holds and is_held(tensor) else hollow
            copy = make(self.beginning(name, tensor.detach())) if name in self.state else copied(tensor.detach())
            self.copies[name] = copy.requires_grad_(tensor.requires_grad)
        # For the checks: what the copies have now, and where they are.
        self.attributes = {name: vars(tensor) | vars(self.given[name]) for name, tensor in self.copies.items()}
        self.addresses = {name: (storage_of(t), t.storage_offset()) for name, t in self.copies.items()}
        memory = {storage_of(t): name for name, t in self.copies.items() if t.numel()}
        self.fixed = {at: name for at, name in memory.items() if name not in self.state}
        self.trained = {at: name for at, name in memory.items() if self.given[name].requires_grad}
        around = Errors() if self._device is None else nullcontext() if self._device == CPU else self._device
        replaced = {f"model.{name}": self.copies[name] for name in self.state}
        try:
            stance, saving = torch.compiler.set_stance("force_eager"), InPlace() if self._holds else nullcontext()
            with stance, as_written(self.model), around, saving, self.watch, exchanged(self.step, replaced):
                self._run_phases()
        except ConfigurationError:
            raise
        except Exception as error:  # whatever the user's code raises
            batch = "mend it first (its batch holds the examples with the greatest and the least numbers)"
            words = ["the step fails in plain PyTorch already", batch]
            if isinstance(self.watch, TorchDispatchMode):
                self.watch = nullcontext()
                self()  # raises that, unless it is the watch that some kernels cannot bear
                words = ["the step cannot be captured"]
            raise refusal(error, self.model, *words) from error
        assigned = self.step.assigned
        late = [n for n in self.state if replaced[f"model.{n}"] is not assigned.get(n, self.copies[n])]
        if late:
            raise ConfigurationError(
                "expected a step that assigns buffers in forward, got one that also assigns some in its backward pass, "
                f"{late}; leave that out of hooks"
            )

    def _run_phases(self) -> None:
        batch = [copy for name, copy in self.copies.items() if name not in self.state]
        weights = [name for name, tensor in self.state.items() if isinstance(tensor, nn.Parameter)]
        written = [n for n, t in self.state.items() if t.requires_grad or n not in weights]
        assigned, fixed, begun = dict[str, Tensor](), self.fixed, self.flags
        for one in self._losses:
            # A later phase goes on with the gradients that are on now, but in the first run each begins anew.
            for name in weights if begun is None or not self.losses else ():
                self.copies[name].requires_grad_(self.state[name].requires_grad if begun is None else begun[name])
            self.fixed, self.step.loss = fixed, one
            self.losses.append(loss := self.step(*batch))
            assigned |= self.step.assigned
            self.fixed = fixed | {storage_of(self.copies[n]): f"{n} in its backward pass" for n in written}
            if isinstance(loss, Tensor) and loss.requires_grad and loss.shape == () and not loss.is_complex():
                loss.backward()  # type: ignore[no-untyped-call]
        self.step.assigned = assigned
        self.flags = {name: self.copies[name].requires_grad for name in weights}

    def is_written(self, name: str) -> bool:
        """Whether a tensor is written to in place, by the step or by the optimizer after it."""
        return self.given[name].requires_grad or bool(self.copies[name]._version) or not self._is_same(name)

    def _is_same(self, name: str) -> bool:
        own, copy = self.given[name].detach(), self.copies[name]
        own = self.beginning(name, own) if name in self.state else own
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


def storage_of(tensor: Tensor) -> int:
    """The address of a tensor's memory, or a number in its place; 0 if it has none."""
    try:
        storage = tensor.untyped_storage()
        return storage._cdata if isinstance(tensor, FakeTensor) else storage.data_ptr() or storage._cdata
    except RuntimeError:  # as the zeros that autograd makes
        return 0


class Hollow(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Makes tensors without numbers, and computes with them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = zip_schema(func._schema, args, kwargs := kwargs or {})
        written = tree_leaves([value for a, value in named if a.alias_info is not None and a.alias_info.is_write])
        if any(isinstance(value, Tensor) and not isinstance(value, FakeTensor) for value in written):
            raise ConfigurationError(f"expected writes of numbers, got {func} of a tensor without any")
        known = (t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and not isinstance(t, FakeTensor))
        if any(t.dtype in (torch.int64, torch.int32) for t in known) and torch._C._current_graph_task_id() == -1:
            # In forward, PyTorch itself refuses indices out of range: no process survives what a GPU does then.
            zeros = partial(tree_map_only, FakeTensor, lambda t: torch.zeros(t.shape, dtype=t.dtype))
            func(*zeros(args), **zeros(kwargs))
        return self.dispatch(func, types, args, kwargs)

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor of floats without its numbers, or of another one with them."""
        with self if tensor.is_floating_point() else nullcontext():
            return tensor.clone()


class Errors(TorchFunctionMode):
    """Refuses code that goes on after an error of torch, which may be one for want of numbers."""

    caught: Exception | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            self.caught = error
            raise

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        super().__exit__(kind, value, traceback)  # type: ignore[no-untyped-call]
        if kind is None and self.caught is not None:
            raise ConfigurationError(f"expected a step without errors, got one that catches {self.caught!r}")
