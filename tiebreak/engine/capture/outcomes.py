"""Outcomes of a step, by the engine or by eager PyTorch, how far apart they are, and part (c) of the check: the update.

Part (c) compares the update of a program with that of torch's own optimizers over the same gradients. Few elements are
updated at a time, since the memory for all of them bounds the size of a model.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from math import hypot, isfinite, sqrt
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.capture.task import Task
from tiebreak.engine.optimizers.rules import AVERAGE
from tiebreak.engine.optimizers.settings import SGD, Adagrad, Adam, AdamW, Lion, NAdam, RAdam, RMSprop, settings_of
from tiebreak.engine.optimizers.translate import TorchOptimizers, torchs

NOISE: Final = 16.0
"""A result may be this many times as far from FP64 as eager FP32 is."""
RELATIVE: Final = 2.0**-18
"""The distance that is allowed in addition, as a share of the result's norm: 32 units of FP32's rounding."""
LARGEST: Final = 2.0**-20
"""The same, as a share of the largest gradient of the model, since some gradients are zero but for rounding."""
BLOCK: Final = 1 << 18
"""The elements that are compared at a time: large models leave no room for a second copy of a tensor in FP64."""

Tensors = Mapping[str, Tensor]


@dataclass
class StepOutcome:
    """The outcome of a phase of a step, in names of the task's own model."""

    loss: Tensor
    gradients: Tensors
    buffers: Tensors
    step: int = 1
    phase: int = 0
    before: Tensors = field(default_factory=dict)
    state: Tensors = field(default_factory=dict)
    """The state before and after the phase, where the engine has run."""
    drawn: Sequence[Tensor | None] = ()
    """The numbers from which each draw is made (None if the program leaves it out), where the engine has run."""

    def results(self) -> dict[str, Tensor]:
        """The tensors that are compared, by what a message calls them."""
        return {
            "the loss": self.loss,
            **{f"buffer {name}": tensor for name, tensor in self.buffers.items()},
            **{f"the gradient of {name}": tensor for name, tensor in self.gradients.items()},
        }


def allowance(count: int, size: float, largest: float = 0.0, *, noise: float = 0.0, least: float = 1.0) -> float:
    return NOISE * noise + least * sqrt(count) * (RELATIVE * size + LARGEST * largest) + 1e-30


def size_of(tensor: Tensor) -> float:
    """The root mean square of the finite elements."""
    total, count = 0.0, 0
    for (block,) in blocks_of(tensor):
        finite = block
        if not isfinite(square := torch.dot(block, block).item()):
            finite = block[torch.isfinite(block)]
            square = torch.dot(finite, finite).item()
        total, count = total + square, count + finite.numel()
    return sqrt(total / count) if count else 0.0


def distance_of(a: Tensor, b: Tensor) -> float:
    """The norm of the difference; infinite if not the same elements are finite, or integers differ."""
    if a.shape != b.shape:
        return float("inf")
    total = 0.0
    for x, y in blocks_of(a, b):
        apart = x - y
        if not isfinite(square := torch.dot(apart, apart).item()):
            finite = torch.isfinite(y)
            if not torch.equal(torch.isfinite(x), finite):
                return float("inf")
            square = torch.dot(apart[finite], apart[finite]).item()
        total += square
    return sqrt(total)


def blocks_of(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yields equally many elements of each tensor, few enough for a cache, in FP64 on the device of the last one."""
    flat = [tensor.detach().reshape(-1) for tensor in tensors]
    for start in range(0, flat[-1].numel(), BLOCK):
        yield tuple(part[start : start + BLOCK].to(flat[-1].device, torch.float64) for part in flat)


def dtypes_of(task: Task, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """The dtypes of the tensors that do not take `dtype`: FP32 runs leave bfloat16 as it is."""
    return {name: own for name, own in task.narrow().items() if dtype != torch.float64 or not own.is_floating_point}


ELEMENTWISE: Final = (SGD, Adam, AdamW, RMSprop, Adagrad, NAdam, RAdam, Lion)
"""The optimizers that move each element by its own gradients alone, but for the norm by which all are clipped."""


def wrong_update(task: Task, found: Sequence[StepOutcome], device: torch.device) -> str | None:
    """Describes the first parameter that torch's optimizer, given the engine's gradients, moves elsewhere.

    task: the phase that the optimizer updates, or one of them. found: the outcomes of these phases, in order.
    """
    prefixes = (MODEL,) if getattr(task.optimizer, "prefix", "") else (MODEL, AVERAGE)  # it moves on after all phases
    trained = [name for name, p in task.model.named_parameters() if p.requires_grad]
    starts = [{**ours.before, **{MODEL + n: ours.buffers[n] for n in trained if n in ours.buffers}} for ours in found]
    far: dict[tuple[int, str], tuple[float, ...]] = {}
    rates, runs = task.learning_rates()[: len(found)].double().tolist(), []
    for dtype in (torch.float64, torch.float32):
        dtypes = {name: dtype for name, _ in task.model.named_parameters()} | dtypes_of(task, dtype)
        norms = [_norm(task, ours.gradients, dtypes, device) for ours in found]
        runs.append(partial(_updates, task, dtypes, list(zip_longest(rates, norms))))
    for names, part in _parts(task, found):
        entries = [prefix + name for prefix in prefixes for name in names]
        given = [_of_part(ours.gradients, names, part) for ours in found]
        begun = [{n: t.to(device) for n, t in _of_part(start, entries, part).items()} for start in starts]
        narrow = runs[1](begun, given)
        try:
            wide = runs[0](begun, given)
        except Exception:  # a user's optimizer may mix dtypes
            wide = narrow
        for step, ours in enumerate(found):
            before, now = (_of_part(tensors, entries, part) for tensors in (ours.before, ours.state))
            for name, wanted in wide[step].items():
                if name.removeprefix(MODEL) in ours.buffers.keys() - trained:
                    continue  # a frozen parameter that the step writes
                sizes = (sqrt(tensor.numel()) * size_of(tensor) for tensor in (wanted, before[name]))
                measured = distance_of(now[name], wanted), distance_of(narrow[step][name], wanted), *sizes
                far[step, name] = tuple(map(hypot, measured, far.get((step, name), (0.0,) * 4)))
    named = getattr(task.optimizer, "name", f"torch.optim.{type(task.optimizer).__name__}")
    for (step, name), (distance, noise, size, least) in sorted(far.items(), key=lambda item: item[0][0]):
        # What nearly cancels keeps the error of the numbers that it is made of.
        allowed = allowance(1, size, noise=noise) + allowance(1, least)
        if not distance <= allowed and bool(torch.isfinite(found[step].state[name]).all()):  # others stop the run
            return (
                f"the optimizer's update is not torch's: after step {step + 1}, {name} is {distance:.3g} from what "
                f"{named} makes of the same gradients, where {allowed:.3g} is "
                'allowed. Please report this with the settings; check="none" skips the check'
            )
    return None


def _parts(task: Task, found: Sequence[StepOutcome]) -> Iterator[tuple[list[str], slice | None]]:
    """Yields what torch's optimizer may be given alone: the names of parameters, and which of their elements."""
    moved = {
        name: parameter for name, parameter in task.model.named_parameters()
        if any(name in ours.gradients or ours.state[MODEL + name] is not ours.before[MODEL + name] for ours in found)
    }  # fmt: skip
    if type(task.optimizer) not in ELEMENTWISE:
        yield [*moved], None
        return
    for name, parameter in moved.items():
        for start in range(0, parameter.numel(), BLOCK):
            yield [name], slice(start, start + BLOCK)


def _of_part(tensors: Tensors, names: Sequence[str], part: slice | None) -> dict[str, Tensor]:
    held = {name: tensors[name] for name in names if name in tensors}
    return held if part is None else {name: tensor.reshape(-1)[part] for name, tensor in held.items()}


def _norm(task: Task, gradients: Tensors, dtypes: Mapping[str, torch.dtype], device: torch.device) -> Tensor | None:
    """The norm of all gradients, if they are clipped by it."""
    if (clip := task.clip) is None or clip.norm is None:
        return None
    norms = []
    for name, gradient in gradients.items():
        own = gradient.to(device, dtypes[name])
        norms.append(torch.linalg.vector_norm(own if clip.value is None else own.clamp(-clip.value, clip.value)))
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def _updates(
    task: Task, dtypes: Mapping[str, torch.dtype], steps: Sequence[tuple[float, Tensor | None]],
    begun: Sequence[Tensors], gradients: Sequence[Tensors],
) -> list[dict[str, Tensor]]:  # fmt: skip
    """The parameters, and their moving averages, after each step of torch's optimizer over the given gradients.

    begun: the state before each step; of averages the first counts. steps: the learning rate of each step, and the norm
    of all gradients, if they are clipped by it.
    """
    own = {n: nn.Parameter(begun[0][MODEL + n].to(dtypes[n], copy=True)) for n in dtypes if MODEL + n in begun[0]}
    moving = {n: own[n].detach().clone() for n in own if AVERAGE + n in begun[0]}
    after, wide = [], torch.float64 in dtypes.values()
    turns = zip(_torchs(task, own, steps), steps, begun, gradients, strict=False)
    for optimizers, (_, norm), state, given in turns:
        for name, parameter in own.items():
            parameter.detach().copy_(state[MODEL + name])
        for name, gradient in given.items():
            own[name].grad = gradient.to(own[name].dtype, copy=True)
        if task.clip is not None and task.clip.value is not None:
            nn.utils.clip_grad_value_(own.values(), task.clip.value)
        if task.clip is not None and norm is not None and task.clip.norm is not None:
            nn.utils.clip_grads_with_norm_(own.values(), task.clip.norm, norm)
        with _Unrounded() if wide else nullcontext():  # type: ignore[no-untyped-call]
            for optimizer in optimizers:
                type(optimizer).step(optimizer)
        moving = {name: torch.lerp(own[name].detach(), old, task.average or 0.0) for name, old in moving.items()}
        after.append({MODEL + name: p.detach().clone() for name, p in own.items()})
        after[-1] |= {AVERAGE + name: average for name, average in moving.items()}
    return after


def _torchs(
    task: Task, own: Mapping[str, nn.Parameter], steps: Sequence[tuple[float, Tensor | None]]
) -> Iterator[Sequence[torch.optim.Optimizer]]:
    """Yields, before each step, torch's optimizers of the task over other parameters."""
    o, parameters = task.optimizer, dict(task.model.named_parameters())
    if isinstance(o, TorchOptimizers):
        yield from o.copies({parameters[name]: p for name, p in own.items()}, task.schedule)
        return
    assert o is not None  # who learns nothing is not compared
    settings = {name: settings_of(o, name) for name in own}
    optimizer = torchs(o, [{"params": [p], "weight_decay": settings[n][1]} for n, p in own.items()])
    for rate, _ in steps:
        for group, (factor, _) in zip(optimizer.param_groups, settings.values(), strict=True):
            group["lr"] = rate * factor
        yield [optimizer]


class _Unrounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps what an optimizer casts to narrower floats in FP64, so that this rounding counts as noise."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") in (torch.float32, torch.bfloat16, torch.float16):
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)
