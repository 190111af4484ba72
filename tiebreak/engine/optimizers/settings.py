"""The user's settings of the update: optimizer, parameter groups, gradient clipping, and schedules of the rate.

Fields have the names and defaults of torch's optimizers, which `tiebreak.engine.optimizers.translate` relies on.
Every number here becomes an FP32 constant of the program: Python's float64, rounded once to nearest. A number that FP32
would turn into a different setting (an eps of zero, a beta of one) is refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from glob import escape
from itertools import pairwise
from math import isfinite, sqrt
from typing import Final, dataclass_transform

from torch import nn

from tiebreak.engine.lowering.builder import scalar_bits
from tiebreak.protocol import arguments
from tiebreak.protocol.arguments import FLAG, NONE, Expectation, require_fields, share, taking, tuple_of, whole
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers import float32, transcendental
from tiebreak.protocol.program.isa import DType

STEPS: Final = whole(1, (1 << 32) - 1)
"""The number of steps of a job, whose table of rates has a number for each."""
MIN_EPS: Final = 2.0**-126
"""The smallest normal FP32 number."""


def require(condition: bool, expected: str, got: object) -> None:
    """Raises a `ConfigurationError` that says what was expected and what came, unless the condition holds."""
    if not condition:
        raise ConfigurationError(f"expected {expected}, got {got!r}")


def f32(value: float) -> float:
    """The FP32 number nearest to a float64; infinite beyond the range of FP32."""
    return float32.to_float(scalar_bits(value, DType.F32))


def fp32(words: str, holds: Callable[[float], bool]) -> Expectation:
    """A number that is finite, in FP32 too, and fulfils the condition."""
    return arguments.number(words, lambda x: isfinite(f32(x)) and holds(x))


AT_LEAST_0: Final = fp32("a number of at least 0", lambda x: x >= 0)
EPS: Final = fp32("a positive number, at least 2^-126", lambda x: x >= MIN_EPS)
_MOMENTUM: Final = fp32("a number in [0, 1)", lambda x: 0 <= x < 1)
_BETA: Final = fp32("a number in [0, 1), also as an FP32 number", lambda x: x >= 0 and f32(x) < 1)
_SQUARED_EPS: Final = fp32("", lambda x: x >= 2.0**-63)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Parameters with settings of their own: their names match one of the patterns, as in `fnmatch` (`*.bias`).

    A parameter belongs to the first group of the optimizer that matches it; if none does, it has the optimizer's own
    settings.

    match: the patterns. lr_factor: multiplies the learning rate (0: the parameter stays as it is). weight_decay:
    replaces the optimizer's; None keeps it.
    """

    match: tuple[str, ...]
    lr_factor: float = 1.0
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        patterns = tuple_of('name patterns in a tuple, such as ("*.bias",)', arguments.is_text)
        require_fields(self, match=patterns, lr_factor=AT_LEAST_0, weight_decay=AT_LEAST_0 | NONE)
        require(len(self.match) > 0, "at least one name pattern in a group", self.match)

    def matches(self, name: str) -> bool:
        """Whether one of the patterns matches the name."""
        return any(fnmatchcase(name, pattern) for pattern in self.match)


@taking(model=arguments.instance("a torch.nn.Module", nn.Module))
def no_decay(model: nn.Module) -> Group:
    """The usual exception from weight decay: parameters of fewer than two dims, such as biases and gains of norms.

    model: the module whose parameters are named in the group. Raises `ConfigurationError` if it has none of them.
    """
    names = [name for name, parameter in model.named_parameters() if parameter.ndim < 2]
    require(bool(names), "parameters of fewer than two dims (biases, norms)", "none")
    return Group(match=tuple(escape(name) for name in names), weight_decay=0.0)


_FIELDS: Final[dict[str, Expectation]] = {
    "lr": fp32("a positive number", lambda x: x > 0),
    "weight_decay": AT_LEAST_0,
    "groups": tuple_of("a tuple of tiebreak.Group", lambda x: isinstance(x, Group)),
    "betas": tuple_of("a pair of numbers in [0, 1), also as FP32 numbers", _BETA.holds, 2),
    "eps": EPS,
    "momentum": _MOMENTUM,
    "dampening": fp32("a number from 0 to 1", lambda x: 0 <= x <= 1),
    "alpha": _BETA,
    "beta2_decay": fp32("a number from -1 to 0", lambda x: -1 <= x <= 0),
    "d": fp32("a number of at least 1", lambda x: x >= 1),
    "lr_decay": AT_LEAST_0,
    "initial_accumulator_value": AT_LEAST_0,
    "momentum_decay": AT_LEAST_0,
    **dict.fromkeys(["nesterov", "amsgrad", "centered", "decoupled_weight_decay"], FLAG),
}
"""The values that settings of optimizers may have; Adafactor's eps is another."""


@dataclass(frozen=True, kw_only=True)
@dataclass_transform(frozen_default=True, kw_only_default=True)
class OptimizerSettings:
    """The settings that all optimizers have; those of each one are a frozen dataclass, too.

    lr: the base rate, which the task's schedule multiplies. weight_decay: added to the gradient, or of the parameter
    itself, as the optimizer says. groups: parameters with settings of their own, see `Group`.

    Raises `ConfigurationError` for a number that torch refuses, or that FP32 would turn into another setting.
    """

    lr: float
    weight_decay: float = 0.0
    groups: tuple[Group, ...] = ()

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        require_fields(self, **{field.name: _FIELDS[field.name] for field in fields(self)})


class SGD(OptimizerSettings):
    """`torch.optim.SGD`: buf = momentum * buf + (1 - dampening) * (grad + weight_decay * p); p -= lr * buf.

    As in torch, dampening does not affect the first step.
    """

    momentum: float = 0.0
    nesterov: bool = False
    dampening: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.nesterov or self.momentum > 0, "momentum > 0 with nesterov", self.momentum)
        require(not self.nesterov or self.dampening == 0, "no dampening with nesterov", self.dampening)
        require(self.momentum > 0 or self.dampening == 0, "momentum > 0 with dampening", self.momentum)


class Adam(OptimizerSettings):
    """`torch.optim.Adam`: weight decay is added to the gradient (L2).

    amsgrad: divides by the root of the greatest second moment so far.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    amsgrad: bool = False


class AdamW(Adam):
    """`torch.optim.AdamW`: Adam with decoupled weight decay."""

    weight_decay: float = 0.01


class Adafactor(OptimizerSettings):
    """`torch.optim.Adafactor`: second moments kept as a row and a column, steps relative to the parameter's own size.

    lr: the largest relative step; the step is min(lr, 1 / sqrt(t)) * max(eps[1], RMS(p)). The schedule multiplies lr.
    beta2_decay: the newest squared gradient has weight t ** beta2_decay. eps: (floor of the second moment's root, None
    for FP32's 2^-23; floor of RMS(p)). d: an update whose root mean square exceeds d is scaled down to it.

    `transformers.Adafactor` is another algorithm: it adds eps[0] (1e-30) to squared gradients instead of bounding the
    second moment, may keep a first moment, and with `relative_step` has lr = min(1e-2, 1 / sqrt(t)) by default.
    """

    lr: float = 1e-2
    beta2_decay: float = -0.8
    eps: tuple[float | None, float] = (None, 1e-3)
    d: float = 1.0

    def __post_init__(self) -> None:
        words = "None or a number of at least 2^-63 (its square must be normal), and a number of at least 2^-126"
        eps = tuple_of(f"a pair: {words}", lambda _: True, 2)
        require_fields(self, **{field.name: _FIELDS[field.name] for field in fields(self)} | {"eps": eps})
        fits = (self.eps[0] is None or _SQUARED_EPS.holds(self.eps[0])) and EPS.holds(self.eps[1])
        require(fits, f"eps as a pair: {words}", self.eps)


class RMSprop(OptimizerSettings):
    """`torch.optim.RMSprop`: s = alpha * s + (1 - alpha) * g^2; p -= lr * g / (sqrt(s) + eps), with weight decay in g.

    momentum: p moves by lr times buf = momentum * buf + g / (...). centered: s is less the square of the mean gradient.
    """

    lr: float = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False


class Adagrad(OptimizerSettings):
    """`torch.optim.Adagrad`: s += g^2; p -= lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps), with decay in g."""

    lr: float = 1e-2
    lr_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10


class NAdam(OptimizerSettings):
    """`torch.optim.NAdam`: Adam with Nesterov momentum (Dozat 2016), whose share grows with t.

    decoupled_weight_decay: decay of the parameter itself, as in AdamW.
    """

    lr: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum_decay: float = 4e-3
    decoupled_weight_decay: bool = False


class RAdam(OptimizerSettings):
    """`torch.optim.RAdam`: Adam whose second moment counts only once its variance is tractable (Liu et al. 2020).

    decoupled_weight_decay: decay of the parameter itself, as in AdamW.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decoupled_weight_decay: bool = False


class Lion(OptimizerSettings):
    """Lion (Chen et al. 2023), which torch does not have: p -= lr * sign(b1 * m + (1 - b1) * g); m follows g with b2.

    betas: (b1, b2). Weight decay is of the parameter itself, as in AdamW.
    """

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)


Optimizer = SGD | Adam | Adafactor | RMSprop | Adagrad | NAdam | RAdam | Lion


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Gradient clipping before the optimizer: by value, then by global norm; either may be left out.

    value: `torch.nn.utils.clip_grad_value_`. norm: `torch.nn.utils.clip_grad_norm_` (the 2-norm over all gradients).
    """

    norm: float | None = None
    value: float | None = None

    def __post_init__(self) -> None:
        require(self.norm is not None or self.value is not None, "a norm or a value to clip to", None)
        require_fields(self, norm=EPS | NONE, value=EPS | NONE)


def settings_of(optimizer: Optimizer, name: str) -> tuple[float, float]:
    """(factor of the learning rate, weight decay) of a parameter."""
    group = next((group for group in optimizer.groups if group.matches(name)), None)
    if group is None:
        return 1.0, optimizer.weight_decay
    return group.lr_factor, optimizer.weight_decay if group.weight_decay is None else group.weight_decay


def check_groups(groups: Sequence[Group], names: Sequence[str]) -> None:
    """Raises `ConfigurationError` for a pattern that matches no parameter."""
    for group in groups:
        for pattern in group.match:
            found = any(fnmatchcase(name, pattern) for name in names)
            require(found, f"a group's pattern to match one of the parameters {sorted(names)}", pattern)


Factors = tuple[float, ...]
_BITS: Final = 160
"""The fraction bits of the fixed point for cosines. The errors of all steps stay far below a float's last place."""


_SHARE: Final = share(0, 1)
_MILESTONES: Final = Expectation(
    "a list of steps", lambda x: isinstance(x, list | tuple) and all(isinstance(m, int) for m in x)
)
_TAKING: Final = taking(
    steps=STEPS, warmup=whole(0, (1 << 32) - 1), floor=_SHARE, gamma=_SHARE, start=_SHARE, final=_SHARE,
    milestones=_MILESTONES,
)  # fmt: skip


@_TAKING
def constant(steps: int, warmup: int = 0) -> Factors:
    """Stays at 1 after the warm-up.

    steps: of the job. warmup: the number of first steps in which the factor rises in equal parts, to 1 in step
    `warmup` (from 0). Raises `ConfigurationError`, as all schedules do, for numbers that give no factor to each step.
    """
    return _warmed(steps, warmup, [1.0] * (steps - warmup))


@_TAKING
def linear(steps: int, warmup: int = 0, floor: float = 0.0) -> Factors:
    """Falls linearly from 1 to `floor` at the last step.

    steps, warmup: see `constant`.
    """
    _check(steps, warmup)
    fall = [1.0 - (1.0 - floor) * s / max(1, steps - 1 - warmup) for s in range(steps - warmup)]
    return _warmed(steps, warmup, fall)


warmup_linear = linear


@_TAKING
def cosine(steps: int, warmup: int = 0, floor: float = 0.0) -> Factors:
    """Falls from 1 along half a cosine to `floor` at the last step (`CosineAnnealingLR`).

    steps, warmup: see `constant`.
    """
    _check(steps, warmup)
    return _warmed(steps, warmup, _half_cosine(1.0, floor, steps - warmup))


@_TAKING
def inverse_sqrt(steps: int, warmup: int = 0) -> Factors:
    """sqrt((warmup + 1) / (s + 1)) in step s (from 0): 1 at the end of the warm-up, as in the first Transformer.

    steps, warmup: see `constant`.
    """
    return _warmed(steps, warmup, [sqrt((warmup + 1) / (s + 1)) for s in range(warmup, steps)])


@_TAKING
def step_decay(steps: int, milestones: Sequence[int], gamma: float = 0.1, warmup: int = 0) -> Factors:
    """Multiplied by `gamma` at each milestone, as `MultiStepLR`.

    steps, warmup: see `constant`. milestones: steps from 0, ascending.
    """
    rising = all(a < b for a, b in pairwise(milestones))
    require(rising and all(warmup < m < steps for m in milestones), f"milestones in {warmup + 1} ... {steps - 1}, "
            "ascending", list(milestones))  # fmt: skip
    factors, factor = [], 1.0
    for s in range(warmup, steps):
        if s in milestones:
            factor *= gamma
        factors.append(factor)
    return _warmed(steps, warmup, factors)


@_TAKING
def one_cycle(steps: int, warmup: int, start: float = 1 / 25, final: float = 1 / 25e4) -> Factors:
    """Rises along half a cosine from `start` to 1 in step `warmup`, then falls along one to `final` (`OneCycleLR`).

    steps, warmup: see `constant`.
    """
    _check(steps, warmup)
    rise = _half_cosine(start, 1.0, warmup + 1)[:-1] if warmup else []
    return (*rise, *_half_cosine(1.0, final, steps - warmup))


def _check(steps: int, warmup: int) -> None:
    require(0 <= warmup < steps, f"0 <= warmup < {steps} steps", warmup)


def _warmed(steps: int, warmup: int, after: Sequence[float]) -> Factors:
    _check(steps, warmup)
    return (*((s + 1) / (warmup + 1) for s in range(warmup)), *after)


def _half_cosine(first: float, last: float, count: int) -> list[float]:
    """`count` values from `first` to `last`: last + (first - last) * (1 + cos) / 2, with each operation rounded."""
    shares = [((1 << _BITS) + c) / (2 << _BITS) for c in _cosines(count - 1)] if count > 1 else [1.0]
    return [last + (first - last) * share for share in shares]


def _cosines(n: int) -> list[int]:
    """cos(pi k / n) in units of 2^-160 for k = 0 ... n, from the first angle by the addition theorem."""
    angle = transcendental.pi(_BITS) // n
    turn_c, turn_s = (transcendental.odd_series(angle * angle >> _BITS, _BITS, -1, first)[0] for first in (0, 1))
    turn_s = angle * turn_s >> _BITS
    c, s, found = 1 << _BITS, 0, []
    for _ in range(n):
        found.append(c)
        c, s = (c * turn_c - s * turn_s) >> _BITS, (s * turn_c + c * turn_s) >> _BITS
    return [*found, -(1 << _BITS)]
