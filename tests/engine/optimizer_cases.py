"""Oracles: an optimizer's program alone and the same in numpy, one rounded operation at a time; jobs beside torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count, islice
from math import sqrt

import mpmath
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.engine.lowering_bench import stepped, torch_batch
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.capture.task import Task
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.optimizers.rules import clipped, tables, update
from tiebreak.engine.optimizers.settings import Adafactor, Adam, AdamW, Clip, Lion, NAdam, Optimizer, RAdam, settings_of
from tiebreak.engine.optimizers.translate import TorchOptimizers, torchs
from tiebreak.protocol.numbers.float32 import round_ratio
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.program.program import Program

F32 = NDArray[np.float32]
ONE = np.float32(1)


@dataclass
class OptimizerJob:
    """An optimizer's program over parameters whose gradients are data: f32 [steps, *shape] by name."""

    optimizer: Optimizer
    parameters: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    rates: Tensor
    clip: Clip | None = None
    program: Program = field(init=False)
    state: dict[str, Tensor] = field(init=False)
    data: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        b, steps = Builder(), len(self.rates)
        held = {name: b.state(f"model.{name}", DType.F32, tuple(p.shape)) for name, p in self.parameters.items()}
        given = {n: b.rows(b.data(f"g.{n}", DType.F32, tuple(g.shape)), b.step()) for n, g in self.gradients.items()}
        rate = b.rows(b.data("learning_rate", DType.F32, (steps,)), b.step())
        if self.clip is not None:
            given = clipped(b, self.clip, given)
        made = update(b, self.optimizer, rate, steps, held, given)
        new = {f"model.{name}": ref for name, ref in made.parameters.items()}
        self.program = b.finish(new | {f"optimizer.{name}": ref for name, ref in made.state.items()}, rate)
        self.state = {f"model.{name}": p for name, p in self.parameters.items()}
        self.state |= {f"optimizer.{name}": t for name, t in made.initial.items()}
        self.data = {f"g.{name}": g for name, g in self.gradients.items()} | {"learning_rate": self.rates}
        self.data |= tables(self.optimizer, steps)


def nearest(value: Fraction) -> np.float32:
    """The FP32 number nearest to an exact value that is not negative."""
    return np.array(round_ratio(value.numerator, value.denominator), dtype=np.uint32).view(np.float32)[()]


def constant(value: float) -> np.float32:
    return nearest(Fraction(value))


def squares(x: F32) -> np.float32:
    return nearest(sum((Fraction(float(v)) ** 2 for v in x.flatten()), Fraction(0)))


def rounded(value: mpmath.mpf) -> np.float32:
    mantissa, exponent = mpmath.mpf(value).man_exp
    return nearest(Fraction(mantissa) * Fraction(2) ** exponent)


def nadam_scalars(o: NAdam, t: int) -> tuple[np.float32, ...]:
    """Weights of gradient and moment, and the root of the second correction, from the formulas with 300 bits."""
    with mpmath.workprec(300):
        b1, b2 = (mpmath.mpf(float(constant(beta))) for beta in o.betas)
        fall = mpmath.mpf(24) / 25
        u = [b1 * (1 - mpmath.power(fall, s * mpmath.mpf(o.momentum_decay)) / 2) for s in range(1, t + 2)]
        product = mpmath.fprod(u[:-1])
        exact = (1 - u[-2]) / (1 - product), u[-1] / (1 - product * u[-1]), mpmath.sqrt(1 - b2**t)
        return tuple(rounded(value) for value in exact)


def radam_scalars(o: RAdam, t: int) -> tuple[np.float32, bool]:
    """The factor of the rate, from the formulas with 300 bits, and whether the second moment counts."""
    with mpmath.workprec(300):
        b1, b2 = (mpmath.mpf(float(constant(beta))) for beta in o.betas)
        end = 2 / (1 - b2) - 1
        rho = end - 2 * t * b2**t / (1 - b2**t)
        if rho <= 5:
            return rounded(1 / (1 - b1**t)), False
        rectification = mpmath.sqrt((rho - 4) * (rho - 2) * end / ((end - 4) * (end - 2) * rho))
        return rounded(rectification * mpmath.sqrt(1 - b2**t) / (1 - b1**t)), True


def total(x: F32) -> np.float32:
    return nearest(sum((Fraction(float(v)) for v in x.flatten()), Fraction(0)))


def along(function: object, x: F32, axis: int) -> F32:
    """A function of vectors along one axis, which is kept with size 1."""
    moved = np.moveaxis(x, axis, -1)
    found = np.array([function(row) for row in moved.reshape(-1, moved.shape[-1])], dtype=np.float32)  # type: ignore[operator]
    return np.moveaxis(found.reshape(*moved.shape[:-1], 1), -1, axis)


@dataclass
class Emulation:
    """One optimizer in numpy. Every line is one operation that IEEE rounds correctly, or an exact sum above."""

    optimizer: Optimizer
    state: dict[str, F32] = field(default_factory=dict)
    step: int = 0

    def clip(self, clip: Clip, gradients: dict[str, F32]) -> dict[str, F32]:
        if clip.value is not None:
            limit = constant(clip.value)
            gradients = {n: np.minimum(np.maximum(g, -limit), limit) + np.float32(0) for n, g in gradients.items()}
        if clip.norm is not None:
            norm = np.float32(0)
            for g in gradients.values():
                norm = norm + squares(g)
            norm = np.sqrt(norm)
            factor = np.minimum(constant(clip.norm) / (norm + constant(1e-6)), ONE)
            gradients = {n: g * factor for n, g in gradients.items()}
        return gradients

    def advance(
        self, parameters: dict[str, F32], gradients: dict[str, F32], rate: np.float32,
        settings: Mapping[str, tuple[float, float]],
    ) -> dict[str, F32]:  # fmt: skip
        """New parameters; settings: (factor of the rate, weight decay) by name."""
        self.step += 1
        o, new = self.optimizer, dict(parameters)
        decoupled = isinstance(o, AdamW | Adafactor | Lion) or getattr(o, "decoupled_weight_decay", False)
        if isinstance(o, Adam):
            for i, beta in enumerate(o.betas, start=1):
                key = f"beta{i}_power"
                self.state[key] = self.state.get(key, np.array(1, np.float32)) * constant(beta)
        move = self.adam if isinstance(o, Adam) else getattr(self, type(o).__name__.lower())
        for name, g in gradients.items():
            p, (factor, decay) = parameters[name], settings[name]
            own = rate if factor == 1 else rate * constant(factor)
            kept = p * (ONE - own * constant(decay)) if decay and decoupled else p
            new[name] = kept - move(name, p, g + p * constant(decay) if decay and not decoupled else g, own)
        return new

    # Each method returns what is subtracted from a parameter, of which only Adafactor reads the value.

    def held(self, key: str, like: F32) -> F32:
        return self.state.get(key, np.zeros_like(like))

    def sgd(self, name: str, _p: F32, g: F32, rate: np.float32) -> F32:
        o = self.optimizer
        if o.momentum:
            added = g
            if o.dampening and self.step > 1:
                added = g * constant(1 - o.dampening)
            buffer = self.held(f"momentum.{name}", g) * constant(o.momentum) + added
            self.state[f"momentum.{name}"] = buffer
            g = g + buffer * constant(o.momentum) if o.nesterov else buffer
        return g * rate

    def adam(self, name: str, _p: F32, g: F32, rate: np.float32) -> F32:
        o = self.optimizer
        m, v = self.moments(name, g)
        if o.amsgrad:
            v = self.state[f"max_exp_avg_sq.{name}"] = np.maximum(self.held(f"max_exp_avg_sq.{name}", g), v)
        c1, root = ONE - self.state["beta1_power"], np.sqrt(ONE - self.state["beta2_power"])
        return (m / (np.sqrt(v) + root * constant(o.eps))) * (rate * (root / c1))

    def adafactor(self, name: str, p: F32, g: F32, rate: np.float32) -> F32:
        o = self.optimizer
        floor = 2.0**-23 if o.eps[0] is None else o.eps[0]
        w = constant(float(self.step) ** o.beta2_decay)
        relative = np.minimum(rate, ONE / np.sqrt(np.float32(self.step)))
        size = np.maximum(np.sqrt(squares(p)) / constant(sqrt(p.size)), constant(o.eps[1]))
        if g.ndim > 1:
            row = along(squares, g, -1) / np.float32(g.shape[-1])
            col = along(squares, g, -2) / np.float32(g.shape[-2])
            row = self.towards(f"row_var.{name}", row, w)
            col = self.towards(f"col_var.{name}", col, w)
            v = row / np.maximum(along(total, row, -2) / np.float32(row.shape[-2]), constant(floor)) * col
        else:
            v = self.towards(f"variance.{name}", g * g, w)
        u = g / np.sqrt(np.maximum(v, constant(floor * floor)))
        scale = size * relative / np.maximum(np.sqrt(squares(u)) / constant(sqrt(g.size) * o.d), ONE)
        return u * scale

    def average(self, key: str, new: F32, share: float) -> F32:
        self.state[key] = self.held(key, new) * constant(share) + new * (ONE - constant(share))
        return self.state[key]

    def moments(self, name: str, g: F32) -> tuple[F32, F32]:
        b1, b2 = self.optimizer.betas  # type: ignore[union-attr]
        return self.average(f"exp_avg.{name}", g, b1), self.average(f"exp_avg_sq.{name}", g * g, b2)

    def rmsprop(self, name: str, _p: F32, g: F32, rate: np.float32) -> F32:
        o = self.optimizer
        v = self.average(f"square_avg.{name}", g * g, o.alpha)
        if o.centered:
            mean = self.average(f"grad_avg.{name}", g, o.alpha)
            v = np.maximum(v - mean * mean, np.float32(0))
        move = g / (np.sqrt(v) + constant(o.eps))
        if o.momentum:
            move = self.held(f"momentum.{name}", g) * constant(o.momentum) + move
            self.state[f"momentum.{name}"] = move
        return move * rate

    def adagrad(self, name: str, _p: F32, g: F32, rate: np.float32) -> F32:
        o = self.optimizer
        key = f"sum.{name}"
        total = self.state[key] = self.state.get(key, np.full_like(g, constant(o.initial_accumulator_value))) + g * g
        if o.lr_decay:
            rate = rate * nearest(1 / (1 + (self.step - 1) * Fraction(o.lr_decay)))
        return g / (np.sqrt(total) + constant(o.eps)) * rate

    def nadam(self, name: str, _p: F32, g: F32, rate: np.float32) -> F32:
        o = self.optimizer
        of_gradient, of_moment, root = nadam_scalars(o, self.step)
        m, v = self.moments(name, g)
        move = (g * of_gradient + m * of_moment) / (np.sqrt(v) + root * constant(o.eps))
        return move * (rate * root)

    def radam(self, name: str, _p: F32, g: F32, rate: np.float32) -> F32:
        o = self.optimizer
        scale, rectified = radam_scalars(o, self.step)
        m, v = self.moments(name, g)
        return (m / (np.sqrt(v) + constant(o.eps)) if rectified else m) * (rate * scale)

    def lion(self, name: str, _p: F32, g: F32, rate: np.float32) -> F32:
        o = self.optimizer
        b1 = constant(o.betas[0])
        mixed = self.held(f"exp_avg.{name}", g) * b1 + g * (ONE - b1)
        self.average(f"exp_avg.{name}", g, o.betas[1])
        return np.sign(mixed) * rate

    def towards(self, key: str, new: F32, w: np.float32) -> F32:
        held = self.held(key, new)
        self.state[key] = held + (new - held) * w
        return self.state[key]


def drawn(task: Task, captured: Captured) -> Iterator[tuple[Tensor, ...]]:
    return (tuple(torch_batch(task, captured.program, number)) for number in count(1))


def make_optimizer(task: Task, model: nn.Module) -> torch.optim.Optimizer:
    """Torch's own optimizer for the task, including its parameter groups (`take_step` reads `lr_factor`)."""
    o = task.optimizer
    assert not isinstance(o, TorchOptimizers)
    chosen: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        chosen.setdefault(settings_of(o, name), []).append(parameter)
    groups = [{"params": p, "lr_factor": factor, "weight_decay": decay} for (factor, decay), p in chosen.items()]
    return torchs(o, groups)


def take_step(
    task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, rate: float, drawn: Iterator[tuple[Tensor, ...]]
) -> float:
    """Takes one step with the next batches, `task.accumulation` of them, and returns the mean of their losses."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_factor"]
    optimizer.zero_grad()
    losses = []
    for batch in islice(drawn, task.accumulation):
        losses.append(task.loss(model, *batch) / task.accumulation)
        torch.autograd.backward(losses[-1])
    if task.clip is not None and task.clip.value is not None:
        nn.utils.clip_grad_value_(model.parameters(), task.clip.value)
    if task.clip is not None and task.clip.norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), task.clip.norm)
    optimizer.step()
    return sum(loss.item() for loss in losses)


def against_torch(task: Task, dtype: torch.dtype = torch.float64) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and buffers after the job: the program's, and torch's own in a dtype."""
    captured = capture_task(task)
    results = list(islice(stepped(captured), task.steps))
    model = task.model.to(dtype).train()
    optimizer = make_optimizer(task, model)
    rates = task.learning_rates().tolist()
    batches = (tuple(t.to(dtype) if t.is_floating_point() else t for t in batch) for batch in drawn(task, captured))
    expected = [take_step(task, model, optimizer, rate, batches) for rate in rates]
    assert [result.loss for result in results] == pytest.approx(expected, rel=1e-4)
    named = dict([*model.named_parameters(), *model.named_buffers()])
    ours = {name.removeprefix("model."): t for name, t in results[-1].state.items() if name.startswith("model.")}
    return ours, {name: t.detach() for name, t in named.items()}
