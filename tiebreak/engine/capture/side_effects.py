"""The effects of a step on tensors: writes, reads by other ways, memory, hooks, gradients (checks 2 to 5, 8, 9)."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch._library.utils import zip_schema
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tiebreak.engine.capture.reach import Parts, Reach, put_back, settings
from tiebreak.engine.capture.step_run import StepRun, storage_of
from tiebreak.engine.capture.user_code import described, first_line, module_of, user_line
from tiebreak.protocol.errors import ConfigurationError


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

    def refuse_writes(self) -> None:
        """Check 3: refuses writes to what is no buffer or parameter, and writes in the backward pass."""
        if "written" in self._found:
            raise ConfigurationError(
                "expected a step that changes buffers and parameters only, and in forward, got one that writes to {} "
                "in place at {}; compute a new tensor instead (`x = x * 2`), and write to no tensor of the model in a "
                "hook of the backward pass".format(*self._found["written"])
            )

    def refuse_reads(self) -> None:
        """Check 8: refuses tensors of the model that the step reads from elsewhere."""
        if "read" in self._found:
            raise ConfigurationError(
                "expected a step that reads the model's tensors from the model, got one that reads {} by another way "
                "(from a list, a closure, or as `.data`) at {}; take it from the model in forward, or from the loss's "
                "argument".format(*self._found["read"])
            )


def stays(place: str, deed: str, advice: str) -> ConfigurationError:
    """The refusal of a deed of Python code, which a program would not do again."""
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
