"""A training job in terms that a PyTorch user knows: a model, a loss, an optimizer, data and a batch.

Capture reads a `Task`, and the plain FP32 loop trains one. Only its author runs the code that makes it; other parties
receive the program captured from it, and its initial state and data as bytes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature
from math import isfinite
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from tiebreak.engine.data import not_finite
from tiebreak.engine.data.narrow import NARROW
from tiebreak.engine.optimizers.rates import warmup_linear
from tiebreak.engine.optimizers.settings import (
    SGD,
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
    no_decay,
    require,
    require_count,
    require_number,
)
from tiebreak.engine.optimizers.translate import TorchOptimizers, translated
from tiebreak.protocol.errors import ConfigurationError

__all__ = [
    "SGD", "Adafactor", "Adagrad", "Adam", "AdamW", "Batch", "Clip", "Evaluation", "Examples", "Group", "Lion", "Loss",
    "NAdam", "Optimizer", "RAdam", "RMSprop", "Rows", "Task", "Windows", "no_decay", "warmup_linear",
]  # fmt: skip

DATA_DTYPES: Final = (torch.float32, torch.int64, torch.bool, *NARROW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Example i is row i of each named array; the batch gains a leading dimension.

    The loss gets each array as the argument of its name; the order counts only for `*batch`.
    """

    names: tuple[str, ...]

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
        require(self.length >= 1, "length >= 1", self.length)
        require(self.stride >= 1, "stride >= 1", self.stride)

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
    """

    size: int
    examples: Examples

    def __post_init__(self) -> None:
        require(self.size >= 1, "a batch size of at least 1", self.size)


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

    def __call__(self, model: nn.Module, *batch: Tensor) -> Tensor:
        given = dict(zip(self.names, batch, strict=True))
        positional = [given.pop(name) for name in self.order]
        return self.loss(model, *positional, **given)

    @classmethod
    def of(cls, loss: Loss, names: tuple[str, ...]) -> "NamedLoss":
        """Binds a loss. Raises `ConfigurationError` if its arguments are not those of the batch."""
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
        if missing or (left and not kinds & {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}):
            raise ConfigurationError(
                f"expected a loss whose arguments after the model are the arrays of the batch, {', '.join(names)}, got "
                f"{', '.join(str(p) for p in arguments) or 'none'}; arrays are bound by name, so rename the arguments "
                "or the data, leave out what the loss does not take, or take them by position with `*batch`"
            )
        first = [p.name for p in named if p.kind == Parameter.POSITIONAL_ONLY and p.name in names]
        if Parameter.VAR_POSITIONAL in kinds:
            before = [p.name for p in named if p.kind != Parameter.KEYWORD_ONLY and p.name in names]
            first = [*before, *left]
        return cls(loss, names, tuple(first))


Evaluation = Callable[[nn.Module], dict[str, float]]
"""evaluate(model) -> metrics by name. It must not draw from training's random stream, nor train on what it measures."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """One training job.

    model: initialised, float32 or bfloat16; each module is captured in the mode (train or eval) that it is in. The
    bytes of its parameters and buffers are the initial state.
    loss: see `Loss`. It may use only the model and the batch.
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
    clip: see `Clip`; applies to the gradients after this division.
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

    def __post_init__(self) -> None:
        require(self.steps >= 1, "at least one step", self.steps)
        optimizer, schedule = translated(self.optimizer, self.schedule, self.model, self.steps)
        object.__setattr__(self, "optimizer", optimizer)
        object.__setattr__(self, "schedule", schedule)
        require(1 <= self.checkpoint_interval <= self.steps, f"1 <= interval <= {self.steps}", self.checkpoint_interval)
        require_count(self.accumulation, "accumulation of at least one batch")
        if self.evaluate_every is not None:
            require_count(self.evaluate_every, "evaluate_every of at least one step")
            require(self.evaluate is not None, "a function evaluate(model) with evaluate_every", "none")
        if self.average is not None:
            require_number(self.average, "0 <= average < 1, a decay", lambda x: 0 <= x < 1)
        require(0 <= self.seed < 1 << 63, "0 <= seed < 2^63", self.seed)
        if self.schedule is not None:
            require(len(self.schedule) == self.steps, f"{self.steps} factors in the schedule", len(self.schedule))
            require(all(isfinite(f) and f >= 0 for f in self.schedule), "finite factors >= 0", self.schedule)
        self._check_data()
        if isinstance(self.batch.examples, Rows):
            object.__setattr__(self, "loss", NamedLoss.of(self.loss, self.batch.examples.names))
        self._check_model()

    def _check_data(self) -> None:
        for name, array in self.data.items():
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
            hooks = getattr(tensor, "_backward_hooks", None) or getattr(tensor, "_post_accumulate_grad_hooks", None)
            advice = "scale or clip gradients with `clip=`, or in forward with `register_hook` on a result"
            require(not hooks, f"{name} without hooks on its gradient, which a program cannot call ({advice})", "some")
            floats = torch.float32, torch.bfloat16
            allowed = floats if isinstance(tensor, nn.Parameter) else (*floats, torch.int64, torch.bool, *NARROW)
            require(tensor.dtype in allowed, f"{name} to be one of {allowed} (convert it)", tensor.dtype)
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

    def initial_state(self) -> dict[str, Tensor]:
        """Copies of the parameters and buffers by name; tied ones appear once, under their first name.

        Those of bfloat16 are float32 here, and narrow integers int64, as in the program.
        """
        wide = {torch.bfloat16: torch.float32, **dict.fromkeys(NARROW, torch.int64)}
        return {name: t.detach().to(wide.get(t.dtype, t.dtype), copy=True) for name, t in self._tensors()}

    def bf16(self) -> frozenset[str]:
        """The names of the parameters and buffers that the model holds in bfloat16."""
        return frozenset(name for name, dtype in self.narrow().items() if dtype == torch.bfloat16)

    def narrow(self) -> dict[str, torch.dtype]:
        """The dtypes of the parameters and buffers that a program holds in a wider one."""
        return {name: t.dtype for name, t in self._tensors() if t.dtype in (torch.bfloat16, *NARROW)}

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()
