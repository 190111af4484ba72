"""A user's step as one module, and blocks in which it runs with other tensors and leaves the model as it was."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from tiebreak.engine.capture.draws import random_state
from tiebreak.engine.capture.reach import put_back, settings
from tiebreak.engine.capture.user_code import user_line
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
    attributes of those that they stand for, and pass for parameters where these are.
    """
    for name, own in (*module.named_parameters(), *module.named_buffers()):
        vars(tensors[name]).update(vars(own))
        if isinstance(own, nn.Parameter):
            tensors[name]._is_param = True
    with same_tensors(module), torch.nn.utils.stateless._reparametrize_module(module, tensors, tie_weights=True):
        yield


@contextmanager
def as_written(model: nn.Module) -> Iterator[None]:
    """Lets torch.utils.checkpoint save what it would compute again, so that a program computes it once.

    Refuses a part whose second run would not be like the first. The check against eager PyTorch does without this.
    """
    checkpoint: Any = torch.utils.checkpoint
    without = "_checkpoint_without_reentrant_generator"
    without += "_impl" * hasattr(checkpoint, f"{without}_impl")  # torch 2.14: with the settings by name
    before = {name: getattr(checkpoint, name) for name in (without, "CheckpointFunction")}

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

    vars(checkpoint).update({without: once, "CheckpointFunction": Saved})
    try:
        yield
    finally:
        vars(checkpoint).update(before)


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
