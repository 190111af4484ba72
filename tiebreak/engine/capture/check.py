"""Checks a capture: the program must be the user's model, and not what a tracer made of it.

(a) The task is captured twice, with other seeds, clocks and Python state, and the two programs are compared.
(b) Steps 1 and 2 are run on the user's data by the engine and, each from the engine's state, by plain eager PyTorch, in
    FP64 and, to know the model's own noise, in FP32. (In both, `.to(dtype)` counts as written; in FP32 the tensors that
    the model holds in bfloat16 stay so, and autocast counts, which leaves FP64 alone.) Loss, gradients and buffers must
    agree. Eager draws the program's random numbers, in the same order, and keeps its Python state between the steps.
(c) torch's own optimizer, in FP64 and FP32, takes the engine's gradients of steps 1 and 2; parameters must agree.

What departs is named with the first module whose output departs, or with the first instruction.

All of (b) and (c) runs on one device, since noise and reference are compared with each other. What fails on another
device than the CPU, for want of memory or because the model's code makes tensors on the CPU, is checked on the CPU.
"""

import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from itertools import zip_longest
from math import sqrt
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from tiebreak.engine.capture.captured import MODEL, Captured, capture_in_place
from tiebreak.engine.capture.draws import Draws, is_draw
from tiebreak.engine.capture.purity import LossModule, exchanged, untouched
from tiebreak.engine.capture.task import SGD, NamedLoss, Rows, Task
from tiebreak.engine.capture.user_code import refusal
from tiebreak.engine.lowering.builder import Ref
from tiebreak.engine.optimizers.averaging import AVERAGE
from tiebreak.engine.optimizers.settings import settings_of
from tiebreak.engine.optimizers.translate import TorchOptimizers, torchs
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.philox import shuffle
from tiebreak.protocol.program.isa import MapFunction, Opcode, ShuffleParams
from tiebreak.protocol.program.program import Program

NOISE: Final = 16.0
"""A result may be this many times as far from FP64 as eager FP32 is."""
RELATIVE: Final = 2.0**-18
"""The distance that is allowed in addition, as a share of the result's norm: 32 units of FP32's rounding."""
LARGEST: Final = 2.0**-20
"""The same, as a share of the largest gradient of the model, since some gradients are zero but for rounding."""
SUSPECT: Final = 2.0**-14
"""What differs by this share in FP64 and FP32 is compared with both."""
COARSE: Final = 2.0**12
"""What the distances that are allowed in addition are multiplied by then if the program rounds to bfloat16."""
MOST: Final = 8
"""The most runs in FP32, from weights moved by one rounding, that are compared with it."""
PERTURBED: Final = 3
"""The number of further runs, from weights moved by one rounding, that tell noise from a difference."""
CLOCKS: Final = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
SHIFT: Final = 86_413
"""Seconds (or nanoseconds) by which clocks are shifted."""

Outputs = list[tuple[str, Tensor]]
"""The output of each call of a module, with the module's path."""
Tensors = Mapping[str, Tensor]
RunStep = Callable[
    [Program, Tensors, int, Tensors, Callable[[int, Tensor], Tensor], torch.device], tuple[Tensors, float]
]
"""Computes a step exactly, from the program, its data, the step's number (from 1) and the state before it, on a device.

It gives each value of the body to the function, and returns the state after the step and its loss, finite or not.
"""
CPU: Final = torch.device("cpu")


def checked(task: Task, run_step: RunStep, device: torch.device = CPU) -> Captured:
    """Captures a task and checks the program, on a device if that succeeds there, else on the CPU.

    Raises `ConfigurationError` if the program is not the task's own step.
    """
    with untouched(task.model):
        captured = capture_in_place(task)
        with disturbed():
            _same_programs(captured, capture_in_place(task))
    for place in dict.fromkeys((device, CPU)):
        try:
            with untouched(task.model), torch.enable_grad(), _computing_on(place):
                _same_steps(task, captured, run_step, place)
            break
        except Exception as error:
            if place == CPU:
                raise
            reason = str(error).partition("\n")[0]
        warnings.warn(f"the capture is checked on the CPU, because the check failed on {place}: {reason}", stacklevel=2)
    return replace(captured, checked=True)


@contextmanager
def _computing_on(device: torch.device) -> Iterator[None]:
    """Lets eager PyTorch draw and compute on a device as on the CPU: FP32 without TF32, which would pass for noise."""
    if device == CPU:
        yield
        return
    backends: tuple[Any, ...] = torch.backends.cuda.matmul, torch.backends.cudnn
    allowed = [backend.allow_tf32 for backend in backends]
    try:
        for backend in backends:
            backend.allow_tf32 = False
        with torch.random.fork_rng([device], device_type=device.type) if device.type == "cuda" else nullcontext():
            yield
    finally:
        for backend, value in zip(backends, allowed, strict=True):
            backend.allow_tf32 = value


@contextmanager
def disturbed() -> Iterator[None]:
    """Runs the block with other random streams of Python, NumPy and torch, and other times."""
    random.seed(SHIFT)
    np.random.seed(SHIFT)
    torch.manual_seed(SHIFT)
    clocks = {name: getattr(time, name) for name in CLOCKS}
    for name, clock in clocks.items():
        setattr(time, name, lambda clock=clock: clock() + SHIFT)
    try:
        yield
    finally:
        for name, clock in clocks.items():
            setattr(time, name, clock)


def _same_programs(first: Captured, second: Captured) -> None:
    for a, b in zip_longest(first.program.body, second.program.body):
        if a != b:
            place = (a or b).origin
            break
    else:
        differing = [n for n, t in first.data.items() if not torch.equal(t, second.data[n])]
        if not differing and first.program == second.program:
            return
        named = (i.origin for i in first.program.body if getattr(i.params, "name", "") in differing)
        place = next(named, "the optimizer")
    raise ConfigurationError(
        f"two captures with different seeds and clocks gave different programs; the first difference is at "
        f"{place}. It reads Python state that changes from step to step, which a program cannot; make that a buffer, a "
        "schedule or data, and draw random numbers with torch"
    )


@dataclass
class _Outcome:
    """The outcome of a step, in names of the task's own model."""

    loss: Tensor
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]
    outputs: Outputs = field(default_factory=list)
    before: Tensors = field(default_factory=dict)
    state: Tensors = field(default_factory=dict)
    """The whole state before and after, where the engine has run."""
    drawn: Sequence[Tensor | None] = ()
    """The numbers from which each draw is made (None if the program leaves it out), where the engine has run."""

    def results(self) -> Iterator[tuple[str, Tensor]]:
        yield "the loss", self.loss
        yield from ((f"buffer {name}", tensor) for name, tensor in self.buffers.items())
        yield from ((f"the gradient of {name}", tensor) for name, tensor in self.gradients.items())


def _same_steps(task: Task, captured: Captured, run_step: RunStep, device: torch.device) -> None:
    found = [_engine(task, captured, 1, captured.state, run_step, device)]
    if task.steps > 1 and all(bool(torch.isfinite(t).all()) for t in found[0].state.values()):  # others stop the run
        found.append(_engine(task, captured, 2, found[0].state, run_step, device))
    runs = [_eager(task, captured, found, dtype, device) for dtype in (torch.float64, torch.float32)]
    reference, *others = [run for run in runs if run]
    for step, ours in enumerate(found):
        near = others
        departing = _departing(ours, reference[step], [run[step] for run in near])
        if departing or not others:
            # A second look: how far do the model's own results move if its weights move by one rounding?
            dtype = reference[step].loss.dtype
            moved = [_eager(task, captured, found, dtype, device, seed) for seed in range(PERTURBED)]
            near = [run for run in (*others, *moved) if run]
            departing = _departing(ours, reference[step], [run[step] for run in near])
        if not departing and others and _differ(reference[step], others[0][step]):
            # A model may do another thing in FP64, which would pass for noise: it must agree with FP32 as well.
            least, near = COARSE if _is_coarse(captured.program) else 1.0, []
            while departing := _departing(ours, others[0][step], [run[step] for run in near], least):
                if len(near) == MOST:
                    break
                near.append(_eager(task, captured, found, torch.float32, device, len(near)))
        if departing:
            name, distance, allowed = departing[0]
            first = "step 1 agrees, so it reads state"
            if step == 0:
                first = _first_module(task, reference[0], [run[0] for run in near], run_step, device)
            raise ConfigurationError(
                f"the program is not the model: in step {step + 1}, {name} is {distance:.3g} from that of eager PyTorch"
                f", where {allowed:.3g} is allowed by the model's own rounding ({len(departing)} results depart); "
                f"{first}. Please report this with the model; `unchecked` skips the check"
            )
    _same_updates(task, captured, found, device)


def _differ(wide: _Outcome, narrow: _Outcome) -> bool:
    """Whether results in FP32 are further from those in FP64 than small models' rounding is."""
    largest = max((_size(g) for g in wide.gradients.values()), default=0.0)
    other = dict(narrow.results())
    return any(
        _distance(other[name], t) > SUSPECT * sqrt(t.numel()) * max(_size(t), largest * name.startswith("the gradient"))
        for name, t in wide.results()
    )


def _same_updates(task: Task, captured: Captured, found: Sequence[_Outcome], device: torch.device) -> None:
    gradients = [outcome.gradients for outcome in found]
    state = {name: tensor.to(device) for name, tensor in captured.state.items()}
    narrow = _updates(task, state, gradients, torch.float32)
    named = getattr(task.optimizer, "name", f"torch.optim.{type(task.optimizer).__name__}")
    try:
        wide = _updates(task, state, gradients, torch.float64)
    except Exception:  # a user's optimizer may mix dtypes
        wide = narrow
    for step, (ours, wanted, noisy) in enumerate(zip(found, wide, narrow, strict=True), 1):
        for name, tensor in wanted.items():
            if name.removeprefix(MODEL) in ours.buffers:
                continue  # a frozen parameter that the step writes
            distance = _distance(ours.state[name], tensor)
            # What nearly cancels keeps the error of the numbers that it is made of.
            allowed = _allowed(tensor, [noisy[name]]) + _allowed(ours.before[name], [])
            if bool(torch.isfinite(ours.state[name]).all()) and not distance <= allowed:  # others stop the run
                raise ConfigurationError(
                    f"the optimizer's update is not torch's: after step {step}, {name} is {distance:.3g} from what "
                    f"{named} makes of the same gradients, where {allowed:.3g} is "
                    "allowed. Please report this with the settings; `unchecked` skips the check"
                )


def _updates(task: Task, state: Tensors, gradients: Sequence[Tensors], dtype: torch.dtype) -> list[dict[str, Tensor]]:
    """The parameters, and their moving averages, after each step of torch's optimizer over the given gradients."""
    kept = _dtypes(task, dtype)
    own = {
        n: nn.Parameter(state[MODEL + n].to(kept.get(n, dtype), copy=True)) for n, _ in task.model.named_parameters()
    }
    moving = {n: own[n].detach().clone() for n in own if AVERAGE + n in state}
    after = []
    for optimizers, given in zip(_torchs(task, own), gradients, strict=False):
        for name, gradient in given.items():
            own[name].grad = gradient.to(own[name].dtype, copy=True)
        if task.clip is not None and task.clip.value is not None:
            nn.utils.clip_grad_value_(own.values(), task.clip.value)
        if task.clip is not None and task.clip.norm is not None:
            nn.utils.clip_grad_norm_(own.values(), task.clip.norm)
        with _Unrounded() if dtype == torch.float64 else nullcontext():
            for optimizer in optimizers:
                type(optimizer).step(optimizer)
        moving = {name: torch.lerp(own[name].detach(), old, task.average or 0.0) for name, old in moving.items()}
        after.append({MODEL + name: p.detach().clone() for name, p in own.items()})
        after[-1] |= {AVERAGE + name: average for name, average in moving.items()}
    return after


def _torchs(task: Task, own: Mapping[str, nn.Parameter]) -> Iterator[Sequence[torch.optim.Optimizer]]:
    """Yields, before each step, torch's optimizers of the task over other parameters."""
    o = task.optimizer
    if isinstance(o, TorchOptimizers):
        yield from o.copies({p: own[name] for name, p in task.model.named_parameters()}, task.schedule)
        return
    settings = {name: settings_of(o, name) for name in own}
    optimizer = torchs(o, [{"params": [p], "weight_decay": settings[n][1]} for n, p in own.items()])
    for rate in task.learning_rates().double().tolist():
        for group, (factor, _) in zip(optimizer.param_groups, settings.values(), strict=True):
            group["lr"] = rate * factor
        yield [optimizer]


def _is_held(task: Task, parameter: nn.Parameter) -> bool:
    """Whether an optimizer changes a parameter, and so reads its gradient."""
    if not isinstance(task.optimizer, TorchOptimizers):
        return True
    return any(p is parameter for o in task.optimizer.optimizers for g in o.param_groups for p in g["params"])


def _is_coarse(program: Program) -> bool:
    return any(i.is_bf16_sum or (i.opcode, i.function) == (Opcode.MAP, MapFunction.BF16) for i in program.body)


def _departing(
    ours: _Outcome, reference: _Outcome, others: Sequence[_Outcome], least: float = 1.0
) -> list[tuple[str, float, float]]:
    """Name, distance and allowance of each result that is too far from the reference."""
    near = [dict(other.results()) for other in others]
    scale = max((_size(g) for g in reference.gradients.values()), default=0.0)
    mine = dict(ours.results())
    found = []
    for name, wanted in reference.results():
        largest = scale if name.startswith("the gradient") else 0.0
        allowed = _allowed(wanted, [other[name] for other in near if name in other], largest, least)
        # What the step writes without changing it is not among the engine's results.
        own = mine.get(name, ours.before.get(MODEL + name.removeprefix("buffer ")))
        distance = float("inf") if own is None else _distance(own, wanted)
        if not distance <= allowed:
            found.append((name, distance, allowed))
    extra = (
        (name, _distance(t, torch.zeros_like(t))) for name, t in mine.items() if name not in dict(reference.results())
    )
    return found + [(name, distance, 0.0) for name, distance in extra if distance > 0]


def _allowed(wanted: Tensor, others: Sequence[Tensor], largest: float = 0.0, least: float = 1.0) -> float:
    noise = max((_distance(other, wanted) for other in others), default=0.0)
    size = _size(wanted)
    return NOISE * noise + least * sqrt(wanted.numel()) * (RELATIVE * size + LARGEST * largest) + 1e-30


def _size(tensor: Tensor) -> float:
    """The root mean square of the finite elements."""
    finite = tensor.double()[torch.isfinite(tensor.double())]
    return finite.square().mean().sqrt().item() if finite.numel() else 0.0


def _distance(a: Tensor, b: Tensor) -> float:
    """The norm of the difference; infinite if not the same elements are finite, or integers differ."""
    a, b = a.to(b.device).double(), b.double()
    if a.shape != b.shape or not torch.equal(torch.isfinite(a), torch.isfinite(b)):
        return float("inf")
    apart: Tensor = (a - b)[torch.isfinite(b)].norm()
    return apart.item()


# The engine's side


def _engine(
    task: Task, captured: Captured, step: int, state: Tensors, run_step: RunStep, device: torch.device
) -> _Outcome:
    values = dict[int, Tensor]()
    drawn = {value for value in captured.draws if value is not None}
    wanted = {ref.value for ref in captured.gradients.values()} | drawn

    def observe(leaf: int, tensor: Tensor) -> Tensor:
        if leaf in wanted:
            values[leaf] = tensor.clone() if leaf in drawn else tensor
        return tensor

    after, loss = run_step(captured.program, captured.data, step, state, observe, device)
    gradients = {name: _read(values[ref.value], ref) for name, ref in captured.gradients.items()}
    frozen = {n: (state[MODEL + n], after[MODEL + n]) for n, p in task.model.named_parameters() if not p.requires_grad}
    buffers = {name: after[MODEL + name] for name, _ in task.model.named_buffers()}
    buffers |= {name: new for name, (old, new) in frozen.items() if not torch.equal(old, new)}
    numbers = [None if value is None else values[value] for value in captured.draws]
    return _Outcome(torch.tensor(loss), gradients, buffers, [], state, after, numbers)


def _read(value: Tensor, ref: Ref) -> Tensor:
    index = torch.tensor(ref.offset, device=value.device)
    for size, stride in zip(ref.shape, ref.strides, strict=True):
        index = index[..., None] + torch.arange(size, device=value.device) * stride
    return value.flatten()[index]


def _batches(task: Task, captured: Captured, step: int) -> tuple[list[tuple[Tensor, ...]], int]:
    """The batches of a step (from 0), by section 7 of the specification in integers, and their losses' divisor."""
    stream = next(i.params.stream for i in captured.program.body if isinstance(i.params, ShuffleParams))
    n, size = task.examples, task.batch.size
    draws = range(step * size * task.accumulation, (step + 1) * size * task.accumulation)
    chosen = [shuffle(g % n, task.seed, g // n, n, stream) for g in draws]
    parts = [torch.tensor(chosen[start : start + size]) for start in range(0, len(chosen), size)]
    divisor = task.accumulation if task.items is None else int(task.data[task.items][chosen].sum())
    return [task.batch.examples.take(task.data, part) for part in parts], divisor


# Eager PyTorch's side


class _Unrounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps what an optimizer casts to narrower floats in FP64, so that this rounding counts as noise."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") in (torch.float32, torch.bfloat16, torch.float16):
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


class _Drawn(Draws):  # type: ignore[no-untyped-call]
    """Puts the engine's random numbers, in the order of the step, where eager PyTorch would draw its own.

    What eager PyTorch draws again, as in the second run of a checkpointed part, gets the same numbers again.
    """

    def __init__(self, numbers: Sequence[Tensor | None]) -> None:
        super().__init__(traced=False)
        self._numbers = list(numbers)
        self._given: list[Tensor | None] = []

    def _next(self, shape: torch.Size) -> Tensor | None:
        found = self._numbers[0] if self._numbers else None
        if found is not None and found.shape != shape:
            return None  # nothing reads it, and the trace left it out
        del self._numbers[:1]
        return found

    def check_all_drawn(self) -> None:
        """Raises `ConfigurationError` if the program draws what eager PyTorch did not."""
        if left := [tuple(tensor.shape) for tensor in self._numbers if tensor is not None]:
            raise ConfigurationError(
                f"the program is not the model: it draws random numbers of shape {left[0]} where eager PyTorch draws "
                "others, or none"
            )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if not is_draw(func):
            return result
        form, first = _FORMS.get(func._schema.name.removeprefix("aten::").rstrip("_")), self.earlier[-1]
        again = None if first is None else self._given[first]
        self._given.append(again if first is not None or form is None else self._next(result.shape))
        if form is not None and (number := self._given[-1]) is not None:
            given = {a.name: a.default_value for a in func._schema.arguments} | (kwargs or {})
            given |= {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)}
            wide = number.is_floating_point() and result.dtype == torch.float64
            number = number.to(result.device, result.dtype if wide else number.dtype)
            result.copy_(form(number, given))
        return result


def _below(u: Tensor, given: Mapping[str, Any]) -> Tensor:
    p = given.get("p", given["self"])
    return u < (p if isinstance(p, Tensor) else torch.full((), p, dtype=torch.float32, device=u.device))


def _integers(drawn: Tensor, given: Mapping[str, Any]) -> Tensor:
    low, high = given.get("low", 0), given.get("high", given.get("to"))
    found: Tensor = low + torch.remainder(drawn, high - low)
    return found


_FORMS: Final[dict[str, Callable[[Tensor, Mapping[str, Any]], Tensor]]] = {
    "bernoulli": _below,
    "uniform": lambda u, given: given["from"] + (given["to"] - given["from"]) * u,
    "normal": lambda z, given: given["mean"] + given["std"] * z,
    "exponential": lambda e, given: e / given["lambd"],
    **dict.fromkeys(("randint", "randint_like", "random"), _integers),
    **dict.fromkeys(("rand", "rand_like", "randn", "randn_like", "randperm"), lambda drawn, _: drawn),
}
"""Functions from the engine's numbers to those of eager PyTorch, by operator (`tiebreak.engine.lowering.random`)."""


def _by_name(task: Task, model: nn.Module, *batch: Tensor) -> Tensor:
    """Calls the user's own loss, with each array of `Rows` by its name where that is possible."""
    examples, loss = task.batch.examples, task.loss.loss if isinstance(task.loss, NamedLoss) else task.loss
    given = dict(zip(examples.names, batch, strict=True)) if isinstance(examples, Rows) else {}
    try:
        signature(loss).bind(model, **given)
    except (TypeError, ValueError):  # it takes them by position
        return task.loss(model, *batch)
    return loss(model, **given) if given else loss(model, *batch)


@contextmanager
def _outputs(model: nn.Module) -> Iterator[Outputs]:
    """Collects the first tensor of what each module returns."""
    found: Outputs = []

    def keep(path: str, output: Any) -> None:
        while isinstance(output, tuple | list | dict) and output:
            output = next(iter(output.values() if isinstance(output, dict) else output))
        if isinstance(output, Tensor) and output.is_floating_point():
            found.append((path, output.detach()))

    hooks = [
        module.register_forward_hook(lambda _m, _i, output, path=path: keep(path, output))
        for path, module in model.named_modules()
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _eager(
    task: Task,
    captured: Captured,
    given: Sequence[_Outcome],
    dtype: torch.dtype,
    device: torch.device,
    seed: int | None = None,
) -> list[_Outcome]:
    """Steps of plain PyTorch, each from the state that the engine's step was given.

    The list is empty if FP64 does not run on the CPU. seed: moves every weight by one rounding.
    """
    default, found = torch.get_default_dtype(), []
    torch.set_default_dtype(dtype)
    try:
        whole = device != CPU or _is_coarse(captured.program)  # fused, it would round elsewhere, or draw unseen
        attention = sdpa_kernel(SDPBackend.MATH) if whole else nullcontext()
        with untouched(task.model), attention, torch.compiler.set_stance("force_eager"):
            for number, ours in enumerate(given):
                found.append(_eager_step(task, _batches(task, captured, number), ours, dtype, device, seed))
    except ConfigurationError:
        raise
    except Exception as error:
        if dtype == torch.float64 and device == CPU:
            return []
        raise refusal(error, task.model, "step 1 or 2 fails in plain PyTorch", "mend it first") from error
    finally:
        torch.set_default_dtype(default)
    return found


def _eager_step(
    task: Task,
    given: tuple[Sequence[Sequence[Tensor]], int],
    ours: _Outcome,
    dtype: torch.dtype,
    device: torch.device,
    seed: int | None,
) -> _Outcome:
    parameters, losses, (batches, divisor) = dict(task.model.named_parameters()), list[Any](), given
    kept = _dtypes(task, dtype)

    def start(name: str) -> Tensor:
        return _moved(ours.before[MODEL + name].to(device), kept.get(name, dtype), seed)

    own = {MODEL + name: start(name) for name in (*parameters, *dict(task.model.named_buffers()))}
    for name, parameter in parameters.items():
        own[MODEL + name] = nn.Parameter(own[MODEL + name], parameter.requires_grad)
    step = LossModule(task.model, partial(_by_name, task))
    default = nullcontext() if device == CPU else device
    with default, _Drawn(ours.drawn) as draws, _outputs(task.model) as outputs:
        for batch in batches:
            cast = tuple(
                t.to(device, dtype if t.is_floating_point() else t.dtype, copy=not t.is_floating_point()) for t in batch
            )
            outputs.clear()
            with exchanged(step, own):
                losses.append(step(*cast) / divisor)
                count = len(outputs)
                losses[-1].backward()
                del outputs[count:]  # a checkpointed part has called its modules again
            own |= {MODEL + name: t.detach() for name, t in step.assigned.items()}
    draws.check_all_drawn()
    read = {n for n, p in parameters.items() if p.requires_grad and (n in ours.gradients or _is_held(task, p))}
    gradients = {n: g for n in parameters if n in read and (g := own[MODEL + n].grad) is not None}
    frozen = [name for name, p in parameters.items() if not p.requires_grad]
    written = [n for n in frozen if n in ours.buffers or not torch.equal(own[MODEL + n], start(n))]
    buffers = {name: own[MODEL + name] for name in (*dict(task.model.named_buffers()), *written)}
    return _Outcome(torch.stack(losses).sum().detach(), gradients, buffers, outputs)


def _dtypes(task: Task, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """The dtypes of the tensors that do not take `dtype`: FP32 runs leave bfloat16 as it is."""
    return {} if dtype == torch.float64 else dict.fromkeys(task.bf16(), torch.bfloat16)


def _moved(tensor: Tensor, dtype: torch.dtype, seed: int | None) -> Tensor:
    if not tensor.is_floating_point():
        return tensor.clone()
    if seed is None:
        return tensor.to(dtype, copy=True)
    signs = torch.randint(0, 2, tensor.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return tensor.to(dtype) * (1 + signs.to(tensor.device) * max(2.0**-23, torch.finfo(dtype).eps)).to(dtype)


# The first module that departs


def _first_module(
    task: Task, reference: _Outcome, others: Sequence[_Outcome], run_step: RunStep, device: torch.device
) -> str:
    """Captures the task again with every module's output as state, and says which is the first that departs."""

    def loss(probed: Any, *batch: Tensor) -> Tensor:
        with _outputs(probed.inner) as found:
            value = task.loss(probed.inner, *batch)
        for number, (_, tensor) in enumerate(found):
            setattr(probed, f"probe{number}", tensor.float())
        return value

    model = nn.Module()
    model.inner = task.model
    for number, (_, tensor) in enumerate(reference.outputs):
        model.register_buffer(f"probe{number}", torch.zeros(tensor.shape))
    probed = replace(task, model=model, loss=loss, optimizer=SGD(lr=1.0), clip=None, average=None)
    try:
        captured = capture_in_place(probed)
        ours = _engine(probed, captured, 1, captured.state, run_step, device)
    except ConfigurationError as error:
        return f"the module cannot be told ({error})"
    for number, (path, wanted) in enumerate(reference.outputs):
        near = [other.outputs[number][1] for other in others]
        if not _distance(ours.buffers[f"probe{number}"], wanted) <= _allowed(wanted, near):
            return f"the first module whose output departs is {path or 'the model itself'}"
    return "every module's output agrees, so it is in the loss, in a buffer or in the backward pass"
