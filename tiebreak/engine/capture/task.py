"""A training job in terms that a PyTorch user knows: a model, a loss, an optimizer, data and a batch.

Capture reads a `Task`, and the plain FP32 loop trains one. Only its author runs the code that makes it; other parties
receive the program captured from it, and its initial state and data as bytes.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, signature
from math import isfinite
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.optim.lr_scheduler import LRScheduler

from tiebreak.engine.data import not_finite
from tiebreak.engine.data.narrow import NARROW
from tiebreak.engine.optimizers.rates import warmup_linear
from tiebreak.engine.optimizers.settings import (
    MIN_EPS,
    SGD,
    STEPS,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Clip,
    Group,
    Lion,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    check_groups,
    fp32,
    no_decay,
    require,
)
from tiebreak.engine.optimizers.translate import TorchOptimizers, by_phase, translated
from tiebreak.protocol.arguments import (
    FLAG,
    FUNCTION,
    NONE,
    TEXT,
    Expectation,
    instance,
    is_text,
    require_fields,
    tuple_of,
    whole,
)
from tiebreak.protocol.errors import ConfigurationError

__all__ = [
    "SGD", "Adafactor", "Adagrad", "Adam", "AdamW", "Batch", "Clip", "Evaluation", "Examples", "Group", "Lion", "Loss",
    "NAdam", "Optimizer", "RAdam", "RMSprop", "Rows", "Task", "Windows", "no_decay", "warmup_linear",
]  # fmt: skip

MAX_INDEX: Final = (1 << 63) - 1
"""The largest int64: steps, places and seeds are int64 in a program."""
DATA_DTYPES: Final = (torch.float32, torch.int64, torch.bool, *NARROW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Example i is row i of each named array; the batch gains a leading dimension.

    The loss gets each array as the argument of its name; the order counts only for `*batch`.
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        require_fields(self, names=tuple_of('names of arrays in a tuple, such as ("x", "y")', is_text))
        require(len(self.names) > 0, "at least one name of an array", self.names)

    def arrays(self) -> tuple[str, ...]:
        """The names of the data that it reads."""
        return self.names

    def count(self, data: Mapping[str, Tensor]) -> int:
        """The number of examples in the data."""
        rows = {name: data[name].shape[0] if data[name].ndim else 0 for name in self.names}
        require(len(set(rows.values())) == 1, "arrays with equally many rows", rows)
        return min(rows.values())

    def take(self, data: Mapping[str, Tensor], index_B: Tensor) -> tuple[Tensor, ...]:
        """The batch of the examples `index_B` (int64 [B])."""
        return tuple(data[name][index_B] for name in self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Example i is `length` tokens of a 1-d int64 array from i * stride on; the batch is int64 [B, length]."""

    name: str
    length: int
    stride: int

    def __post_init__(self) -> None:
        require_fields(self, name=TEXT, length=whole(1, MAX_INDEX), stride=whole(1, MAX_INDEX))

    def arrays(self) -> tuple[str, ...]:
        """The names of the data that it reads."""
        return (self.name,)

    def count(self, data: Mapping[str, Tensor]) -> int:
        """The number of whole windows in the tokens."""
        tokens = data[self.name]
        require(tokens.ndim == 1, f"one dimension in {self.name}", tuple(tokens.shape))
        return max(0, (tokens.shape[0] - self.length) // self.stride + 1)

    def take(self, data: Mapping[str, Tensor], index_B: Tensor) -> tuple[Tensor, ...]:
        """The batch of the examples `index_B` (int64 [B])."""
        offsets_BT = index_B[:, None] * self.stride + torch.arange(self.length)
        return (data[self.name][offsets_BT],)


Examples = Rows | Windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A step's batch: `size` examples, without replacement within an epoch, in an order drawn from the seed.

    Draw number g = (step - 1) * size + j (step from 1, j the place in the batch) is example order(g mod n) of epoch g
    // n, where n is the number of examples; a batch may span two epochs. With gradient accumulation over A batches,
    `size` in this formula stands for A * size, and the step's batches are consecutive parts of the draws.

    shuffled: else the order of each epoch is that of the data.
    drop_last: whether n is the largest multiple of `size` instead, so that each epoch leaves out the last examples of
    its order.
    """

    size: int
    examples: Examples
    shuffled: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        examples = instance("tiebreak.Rows or tiebreak.Windows", Rows, Windows)
        require_fields(self, size=whole(1, MAX_INDEX), examples=examples, shuffled=FLAG, drop_last=FLAG)

    def drawn(self, examples: int) -> int:
        """The number of draws in an epoch over this number of examples."""
        return examples - examples % self.size if self.drop_last else examples


Loss = Callable[..., Tensor]
"""loss(model, ...) -> f32 of rank 0. Its further arguments are those of the batch, by name if the data are `Rows`."""


@dataclass(frozen=True, slots=True)
class NamedLoss:
    """A loss over a batch in the order of `names`: each array goes to the argument of its name.

    `*batch` takes the arrays that no argument names, in their order; `**batch` takes them by name.
    """

    loss: Loss
    names: tuple[str, ...]
    order: tuple[str, ...]
    """The arrays that are given by position."""
    unread: tuple[str, ...] = ()
    """The arrays that are given to losses of other phases only."""

    def __call__(self, model: nn.Module, *batch: Tensor) -> Tensor:
        given = {n: tensor for n, tensor in zip(self.names, batch, strict=True) if n not in self.unread}
        positional = [given.pop(name) for name in self.order]
        return self.loss(model, *positional, **given)

    @classmethod
    def of(cls, loss: Loss, names: tuple[str, ...], *, phases: Sequence[Loss] = ()) -> "NamedLoss":
        """Binds a loss. Raises `ConfigurationError` if its arguments are not those of the batch.

        phases: the losses of all phases of a step, if there are several; each array must be an argument of one.
        """
        loss = loss.loss if isinstance(loss, cls) else loss
        try:
            found = list(signature(loss).parameters.values())
        except (TypeError, ValueError):  # some callables in C do not tell their arguments
            return cls(loss, names, names)
        if not found or found[0].kind == Parameter.VAR_POSITIONAL:
            return cls(loss, names, names)
        arguments, kinds = found[1:], {p.kind for p in found[1:]}
        named = [p for p in arguments if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]
        missing = [p.name for p in named if p.name not in names and p.default is Parameter.empty]
        left = [name for name in names if name not in [p.name for p in named]]
        takes_all = kinds & {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
        unread = tuple(left) if not takes_all and all(_is_named(name, phases) for name in left) else ()
        if missing or (left and not takes_all and not unread):
            raise ConfigurationError(
                f"expected a loss whose arguments after the model are the arrays of the batch, {', '.join(names)}, got "
                f"{', '.join(str(p) for p in arguments) or 'none'}; arrays are bound by name, so rename the arguments "
                "or the data, leave out what the loss does not take, or take them by position with `*batch`"
            )
        first = [p.name for p in named if p.kind == Parameter.POSITIONAL_ONLY and p.name in names]
        if Parameter.VAR_POSITIONAL in kinds:
            before = [p.name for p in named if p.kind != Parameter.KEYWORD_ONLY and p.name in names]
            first = [*before, *left]
        return cls(loss, names, tuple(first), unread)


def _is_named(name: str, losses: Sequence[Loss]) -> bool:
    """Whether a loss has an argument of this name."""
    return any(name in signature(getattr(loss, "loss", loss)).parameters for loss in losses)


def _is_schedule(given: object) -> bool:
    several = given if isinstance(given, list | tuple) else ()
    factors = all(isinstance(f, int | float) and not isinstance(f, bool) for f in several)
    schedulers = all(isinstance(one, LRScheduler) for one in several or [given])
    return schedulers or (bool(several) and factors)


Evaluation = Callable[[nn.Module], dict[str, float]]
"""evaluate(model) -> metrics by name. It must not draw from training's random stream, nor train on what it measures."""


_FACTORS: Final = (
    "a factor of at least 0 for each step (of the learning rate) in a list, or as a function of the step, counted from "
    "0, in tiebreak.make_task; or as a scheduler of torch.optim.lr_scheduler"
)
LOSSES: Final = Expectation(
    "a function of the model and the arrays of the batch, or a list of such functions, one for each phase of a step",
    lambda x: callable(x) or (isinstance(x, list | tuple) and bool(x) and all(map(callable, x))),
)
_FIELDS: Final = {
    "name": TEXT,
    "model": instance("a torch.nn.Module", nn.Module),
    "loss": LOSSES,
    "data": instance("arrays by name in a dict", Mapping),
    "batch": instance("a tiebreak.Batch", Batch),
    "steps": STEPS,
    "checkpoint_interval": STEPS,
    "seed": whole(0, MAX_INDEX),
    "schedule": Expectation(_FACTORS, _is_schedule) | NONE,
    "accumulation": whole(1, MAX_INDEX),
    "items": TEXT | NONE,
    "clip": fp32("a positive number, at least 2^-126, to clip the norm to", lambda x: x >= MIN_EPS)
    | instance("a tiebreak.Clip", Clip)
    | NONE,
    "norm": FLAG,
    "average": fp32("a decay in [0, 1)", lambda x: 0 <= x < 1) | NONE,
    "evaluate": FUNCTION | NONE,
    "evaluate_every": whole(1, MAX_INDEX) | NONE,
}
"""The values that the fields of a task may have; `translated` judges the optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """One training job.

    model: initialised, float32 or bfloat16; each module is captured in the mode (train or eval) that it is in. The
    bytes of its parameters and buffers are the initial state.
    loss: see `Loss`. It may use only the model and the batch. Several losses, with as many optimizers of torch, are
    phases of a step (the two sides of a GAN): each is computed over the step's batches from the weights and buffers
    that the phase before it leaves, and trains the parameters of its optimizer only. The step's loss is their sum. An
    optimizer may stand there more than once. `clip` is by phase; schedulers and `average` move on after the last.
    optimizer: settings, or one of `torch.optim`'s optimizers of the model's parameters that has not stepped; the task
    then holds the settings that it stands for.
    schedule: the factor of the optimizer's lr for each step, as with `LambdaLR` (`tiebreak.engine.optimizers.rates` has
    the usual schedules), or a scheduler of `torch.optim.lr_scheduler` of the given optimizer, which becomes these
    factors as if it were stepped after each step; None means 1 throughout.
    accumulation: the number of batches per step. Each goes through the model separately (with its own batch norm
    statistics and dropout masks), and the optimizer runs once: a step takes accumulation * batch.size examples.
    Gradients are added in the order of the batches and divided by their number; so is the loss.
    items: the name of an array in data that the loss does not get: int64, the number of items (labels that count) of
    each example. A batch's loss is then a sum over its items, and the step divides by all of its items.
    clip: see `Clip`; applies to the gradients after this division. A number is the norm to clip to.
    norm: whether the state also holds the 2-norm of all gradients, before clipping, as `telemetry.norm`.
    average: the decay of a moving average of the trained parameters, which the state holds as `average.NAME`.
    data: arrays by name, float32, int64, bool or narrower integers (`tiebreak.engine.data.narrow`), on the CPU.
    Everything the batch reads must be here.
    seed: of the example order and of dropout.
    checkpoint_interval: steps between two signed checkpoints (k of the specification).
    evaluate: see `Evaluation`; runs outside the job, on data that need not be part of it, every `evaluate_every` steps
    and after the last [default: a tenth of all steps, or each checkpoint of a run on disk].
    """

    name: str
    model: nn.Module
    loss: Loss
    optimizer: Optimizer | TorchOptimizers
    data: Mapping[str, Tensor]
    batch: Batch
    steps: int
    checkpoint_interval: int
    seed: int = 0
    schedule: tuple[float, ...] | None = None
    accumulation: int = 1
    items: str | None = None
    clip: Clip | None = None
    norm: bool = False
    average: float | None = None
    evaluate: Evaluation | None = field(default=None)
    evaluate_every: int | None = None
    phases: tuple["Task", ...] = field(init=False, repr=False, default=())
    """The phases of a step as tasks of their own; most tasks have one, the task itself."""

    def __post_init__(self) -> None:
        require_fields(self, **_FIELDS)
        clip: object = self.clip
        if isinstance(clip, int | float):
            object.__setattr__(self, "clip", Clip(norm=clip))
        each = self._translate()
        require(1 <= self.checkpoint_interval <= self.steps, f"1 <= interval <= {self.steps}", self.checkpoint_interval)
        if self.evaluate_every is not None:
            require(self.evaluate is not None, "a function evaluate(model) with evaluate_every", "none")
        if self.schedule is not None:
            require(len(self.schedule) == self.steps, f"{self.steps} factors in the schedule", len(self.schedule))
            require(all(isfinite(f) and f >= 0 for f in self.schedule), "finite factors >= 0", self.schedule)
        self._check_data()
        self._check_model()
        self._set_phases(each)

    def _translate(self) -> tuple[TorchOptimizers, ...]:
        """Puts settings in the place of torch's objects, and returns the optimizers of several phases."""
        losses: Any = self.loss
        if isinstance(losses, list | tuple):
            require(len(losses) > 0, "at least one loss", losses)
            require(not self.norm, "several losses without `norm` (each phase has a norm of its own)", self.norm)
            each, schedule = by_phase(self.optimizer, self.schedule, self.model, len(losses))
            optimizers = tuple(one for phase in each for one in phase.optimizers)
            schedulers = tuple(dict.fromkeys(one for phase in each for one in phase.schedulers))
            optimizer: Any = TorchOptimizers(optimizers=optimizers, schedulers=schedulers, lr=each[0].lr)
        else:
            each, (optimizer, schedule) = (), translated(self.optimizer, self.schedule, self.model, self.steps)
        object.__setattr__(self, "optimizer", optimizer)
        object.__setattr__(self, "schedule", schedule)
        return each

    def _set_phases(self, each: Sequence[TorchOptimizers]) -> None:
        given: Any = self.loss
        losses: tuple[Loss, ...] = tuple(given) if each else (given,)
        if isinstance(self.batch.examples, Rows):
            names, several = self.batch.examples.names, losses if each else ()
            losses = tuple(NamedLoss.of(loss, names, phases=several) for loss in losses)
        object.__setattr__(self, "loss", losses if each else losses[0])
        phases = [copy.copy(self) for _ in each]
        for phase, loss, optimizer in zip(phases, losses, each, strict=False):
            object.__setattr__(phase, "loss", loss)
            object.__setattr__(phase, "optimizer", optimizer)
        object.__setattr__(self, "phases", tuple(phases) or (self,))

    def trains(self, parameter: nn.Parameter) -> bool:
        """Whether the optimizer of the step, or of this phase of one, gets a parameter's gradient."""
        o = self.optimizer
        others = isinstance(o, TorchOptimizers) and o.prefix and not o.holds(parameter)
        return parameter.requires_grad and not others

    def _check_data(self) -> None:
        for name, array in self.data.items():
            require(
                is_text(name) and isinstance(array, Tensor), "tensors by name in data", (name, type(array).__name__)
            )
            require(array.device.type == "cpu", f"data {name!r} on the CPU (`.cpu()`)", str(array.device))
            known = f"float32, int64 or bool in data {name!r}, or uint8, int8, int16 or int32 (convert it)"
            require(array.dtype in DATA_DTYPES, known, array.dtype)
            require(not array.requires_grad, f"data {name!r} without a gradient (`.detach()`)", "requires_grad")
            require(array.numel() > 0, f"elements in data {name!r}", tuple(array.shape))
            if array.dtype == torch.float32:
                bad = not_finite(array)
                require(bad == 0, f"only finite numbers in data {name!r}", f"{bad} that are not")
        missing = [name for name in (*self.batch.examples.arrays(), self.items) if name not in (*self.data, None)]
        require(not missing, f"data named {missing}", sorted(self.data))
        require(self.examples >= 1, "at least one example", self.examples)
        if self.items is not None:
            counts = self.data[self.items]
            whole = counts.dtype == torch.int64 and counts.shape == (self.examples,) and bool((counts >= 0).all())
            require(whole, f"an int64 >= 0 for each of {self.examples} examples in {self.items}", tuple(counts.shape))
        require(self.batch.size <= self.examples, f"a batch of at most all {self.examples} examples", self.batch.size)

    def _check_model(self) -> None:
        for name, tensor in self._tensors():
            lazy = isinstance(tensor, UninitializedParameter | UninitializedBuffer)
            require(not lazy, f"{name} to have a shape (call the model once on a batch)", "a lazy module's tensor")
            place = f"{name} on the CPU (`model.cpu()`; the machine's `device` computes)"
            require(lazy or tensor.device.type == "cpu", place, str(tensor.device))
            hooks = getattr(tensor, "_backward_hooks", None) or getattr(tensor, "_post_accumulate_grad_hooks", None)
            advice = "scale or clip gradients with `clip=`, or in forward with `register_hook` on a result"
            require(not hooks, f"{name} without hooks on its gradient, which a program cannot call ({advice})", "some")
            floats = torch.float32, torch.bfloat16
            allowed = floats if isinstance(tensor, nn.Parameter) else (*floats, torch.int64, torch.bool, *NARROW)
            held = "keep it as a plain attribute, or as its `torch.view_as_real`"
            advice = held if tensor.is_complex() else "convert it"
            require(tensor.dtype in allowed, f"{name} to be one of {allowed} ({advice})", tensor.dtype)
            finite = not tensor.dtype.is_floating_point or bool(torch.isfinite(tensor).all())
            advice = "call the model once on a batch if an observer or a cache is still empty"
            require(finite, f"only finite numbers in {name} ({advice})", "others")
        names = [name for name, _ in self.model.named_parameters()]
        require(any(p.requires_grad for p in self.model.parameters()), "a parameter that requires a gradient", names)
        check_groups(self.optimizer.groups, names)

    @property
    def examples(self) -> int:
        """The number of examples in one epoch."""
        return self.batch.examples.count(self.data)

    def learning_rates(self) -> Tensor:
        """The learning rate of every step, float32 [steps]; this table becomes data of the job."""
        factors = (1.0,) * self.steps if self.schedule is None else self.schedule
        return torch.tensor([self.optimizer.lr * f for f in factors], dtype=torch.float64).to(torch.float32)

    def initial_state(self, device: str | None = None, *, copy: bool = True) -> dict[str, Tensor]:
        """Copies of the parameters and buffers by name; tied ones appear once, under their first name.

        Those of bfloat16 are float32 here, and narrow integers int64, as in the program.
        """
        wide = {torch.bfloat16: torch.float32, **dict.fromkeys(NARROW, torch.int64)}
        tensors = ((name, t.detach().to(device=device)) for name, t in self._tensors())
        return {name: t.to(wide.get(t.dtype, t.dtype), copy=copy) for name, t in tensors}

    def bf16(self) -> frozenset[str]:
        """The names of the parameters and buffers that the model holds in bfloat16."""
        return frozenset(name for name, dtype in self.narrow().items() if dtype == torch.bfloat16)

    def narrow(self) -> dict[str, torch.dtype]:
        """The dtypes of the parameters and buffers that a program holds in a wider one."""
        return {name: t.dtype for name, t in self._tensors() if t.dtype in (torch.bfloat16, *NARROW)}

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()
