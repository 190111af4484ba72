"""What a training job is made of, in words a PyTorch user knows: a model, a loss, an optimizer, data, a batch.

A `Task` is what capture reads and what the plain FP32 loop trains. It is made by code that only its author runs; what
travels to others is the program captured from it, its initial state and its data as bytes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Final

import torch
from torch import Tensor, nn

from protocol.errors import ConfigurationError

DATA_DTYPES: Final = (torch.float32, torch.int64)


def _require(condition: bool, expected: str, got: object) -> None:
    if not condition:
        raise ConfigurationError(f"expected {expected}, got {got!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SGD:
    """`torch.optim.SGD`: buf = momentum * buf + (grad + weight_decay * p); p -= lr * buf. No dampening.

    `lr` is the base rate that the task's schedule multiplies.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _require(isfinite(self.lr) and self.lr > 0, "a positive lr", self.lr)
        _require(0 <= self.momentum < 1, "0 <= momentum < 1", self.momentum)
        _require(isfinite(self.weight_decay) and self.weight_decay >= 0, "weight_decay >= 0", self.weight_decay)
        _require(not self.nesterov or self.momentum > 0, "momentum > 0 with nesterov", self.momentum)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """`torch.optim.AdamW` (decoupled weight decay, no amsgrad). `lr` is the base rate that the schedule multiplies."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _require(isfinite(self.lr) and self.lr > 0, "a positive lr", self.lr)
        _require(all(0 <= b < 1 for b in self.betas), "two betas in [0, 1)", self.betas)
        _require(isfinite(self.eps) and self.eps > 0, "a positive eps", self.eps)
        _require(isfinite(self.weight_decay) and self.weight_decay >= 0, "weight_decay >= 0", self.weight_decay)


Optimizer = SGD | AdamW


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Example i is row i of each named array, in this order; the batch gains a leading dimension."""

    names: tuple[str, ...]

    def arrays(self) -> tuple[str, ...]:
        """Names of the data it reads."""
        return self.names

    def count(self, data: Mapping[str, Tensor]) -> int:
        """How many examples the data hold."""
        rows = {name: data[name].shape[0] if data[name].ndim else 0 for name in self.names}
        _require(len(set(rows.values())) == 1, "arrays with equally many rows", rows)
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
        _require(self.length >= 1, "length >= 1", self.length)
        _require(self.stride >= 1, "stride >= 1", self.stride)

    def arrays(self) -> tuple[str, ...]:
        """Names of the data it reads."""
        return (self.name,)

    def count(self, data: Mapping[str, Tensor]) -> int:
        """How many whole windows the tokens hold."""
        tokens = data[self.name]
        _require(tokens.ndim == 1, f"one dimension in {self.name}", tuple(tokens.shape))
        return max(0, (tokens.shape[0] - self.length) // self.stride + 1)

    def take(self, data: Mapping[str, Tensor], index_B: Tensor) -> tuple[Tensor, ...]:
        """The batch of the examples `index_B` (int64 [B])."""
        offsets_BT = index_B[:, None] * self.stride + torch.arange(self.length)
        return (data[self.name][offsets_BT],)


Examples = Rows | Windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """How a step's batch is drawn: `size` examples, without replacement in each epoch, in an order drawn from the seed.

    Draw number g = (step - 1) * size + j (step from 1, j the place in the batch) is example order(g mod n) of epoch
    g // n, n the number of examples; a batch may span two epochs.
    """

    size: int
    examples: Examples

    def __post_init__(self) -> None:
        _require(self.size >= 1, "a batch size of at least 1", self.size)


Loss = Callable[..., Tensor]
"""loss(model, *batch) -> f32 of rank 0."""
Evaluation = Callable[[nn.Module], dict[str, float]]
"""evaluate(model) -> metrics by name. Draws nothing from training's random stream and trains on nothing it measures."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """One training job.

    model: initialised, float32, in training mode; its parameters and buffers are the initial state, as bytes.
    loss: see `Loss`. It may use only the model and the batch.
    schedule: factor of the optimizer's lr for each step, as with `LambdaLR`; None means 1 throughout.
    data: arrays by name, float32 or int64, on the CPU. Everything the batch reads must be here.
    seed: of the example order and of dropout.
    checkpoint_interval: steps between two checkpoints that are signed (k of the specification).
    evaluate: see `Evaluation`; runs outside the job, on data that the job need not hold.
    """

    name: str
    model: nn.Module
    loss: Loss
    optimizer: Optimizer
    data: Mapping[str, Tensor]
    batch: Batch
    steps: int
    checkpoint_interval: int
    seed: int = 0
    schedule: tuple[float, ...] | None = None
    evaluate: Evaluation | None = field(default=None)

    def __post_init__(self) -> None:
        _require(self.steps >= 1, "at least one step", self.steps)
        _require(
            1 <= self.checkpoint_interval <= self.steps, f"1 <= interval <= {self.steps}", self.checkpoint_interval
        )
        _require(0 <= self.seed < 1 << 63, "0 <= seed < 2^63", self.seed)
        self._check_schedule()
        self._check_data()
        self._check_model()

    def _check_schedule(self) -> None:
        if self.schedule is not None:
            _require(len(self.schedule) == self.steps, f"{self.steps} factors in the schedule", len(self.schedule))
            _require(all(isfinite(f) and f >= 0 for f in self.schedule), "finite factors >= 0", self.schedule)

    def _check_data(self) -> None:
        for name, array in self.data.items():
            _require(array.dtype in DATA_DTYPES, f"float32 or int64 in data {name!r}", array.dtype)
            _require(array.numel() > 0, f"elements in data {name!r}", tuple(array.shape))
            if array.dtype == torch.float32:
                bad = int((~torch.isfinite(array)).sum())
                _require(bad == 0, f"only finite numbers in data {name!r}", f"{bad} that are not")
        missing = [name for name in self.batch.examples.arrays() if name not in self.data]
        _require(not missing, f"data named {missing}", sorted(self.data))
        _require(self.examples >= 1, "at least one example", self.examples)

    def _check_model(self) -> None:
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            allowed = (torch.float32,) if isinstance(tensor, nn.Parameter) else (torch.float32, torch.int64, torch.bool)
            _require(tensor.dtype in allowed, f"{name} to be one of {allowed}", tensor.dtype)
            finite = not tensor.dtype.is_floating_point or bool(torch.isfinite(tensor).all())
            _require(finite, f"only finite numbers in {name}", "others")

    @property
    def examples(self) -> int:
        """How many examples one epoch has."""
        return self.batch.examples.count(self.data)

    def learning_rates(self) -> Tensor:
        """The learning rate of every step, float32 [steps]: the table that becomes data of the job."""
        factors = (1.0,) * self.steps if self.schedule is None else self.schedule
        return torch.tensor([self.optimizer.lr * f for f in factors], dtype=torch.float64).to(torch.float32)

    def initial_state(self) -> dict[str, Tensor]:
        """Copies of parameters and buffers by name, tied ones once (under their first name)."""
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        return {name: tensor.detach().clone() for name, tensor in named}


def warmup_linear(steps: int, warmup: int, floor: float = 0.0) -> tuple[float, ...]:
    """Factors that rise linearly over `warmup` steps to 1, then fall linearly to `floor` at the last step."""
    _require(0 <= warmup < steps, f"0 <= warmup < {steps}", warmup)
    rise = [(s + 1) / (warmup + 1) for s in range(warmup)]
    fall = [1.0 - (1.0 - floor) * s / max(1, steps - 1 - warmup) for s in range(steps - warmup)]
    return tuple(rise + fall)
