"""Optimizers as instructions. Nothing here calls `pow`: powers of the betas are state, multiplied once a step."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.builder import Builder, Ref
from engine.task import SGD, AdamW, Optimizer
from protocol.isa import DType, MapFunction


@dataclass
class Update:
    """New values by state name (without the group prefix), and the initial bytes of the optimizer's own entries."""

    parameters: dict[str, Ref] = field(default_factory=dict)
    state: dict[str, Ref] = field(default_factory=dict)
    initial: dict[str, Tensor] = field(default_factory=dict)


def update(
    builder: Builder, optimizer: Optimizer, rate: Ref, parameters: dict[str, Ref], gradients: dict[str, Ref]
) -> Update:
    """Emits the optimizer's step for every parameter that has a gradient; the others stay as they are."""
    result = Update(parameters=dict(parameters))
    trained = {name: ref for name, ref in parameters.items() if name in gradients}
    match optimizer:
        case SGD():
            _sgd(builder, optimizer, rate, trained, gradients, result)
        case AdamW():
            _adamw(builder, optimizer, rate, trained, gradients, result)
    return result


def _entry(builder: Builder, result: Update, name: str, initial: Tensor) -> Ref:
    result.initial[name] = initial
    return builder.state(f"optimizer.{name}", DType.F32, tuple(initial.shape))


def _sgd(b: Builder, o: SGD, rate: Ref, trained: dict[str, Ref], gradients: dict[str, Ref], result: Update) -> None:
    """buf = momentum * buf + g; p -= rate * buf (or g + momentum * buf with Nesterov), g with weight decay added."""
    for name, p in trained.items():
        b.origin = f"optimizer:{name}"
        g = gradients[name]
        if o.weight_decay:
            g = b.add(g, b.scale(p, o.weight_decay))
        if o.momentum:
            key = f"momentum.{name}"
            buffer = b.add(b.scale(_entry(b, result, key, torch.zeros(p.shape)), o.momentum), g)
            result.state[key] = buffer
            g = b.add(g, b.scale(buffer, o.momentum)) if o.nesterov else buffer
        result.parameters[name] = b.sub(p, b.mul(g, rate))


def _adamw(b: Builder, o: AdamW, rate: Ref, trained: dict[str, Ref], gradients: dict[str, Ref], result: Update) -> None:
    """p -= rate * wd * p; m, v: moving averages; p -= rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)."""
    one = b.const(1.0)
    corrections = []
    for i, beta in enumerate(o.betas, start=1):
        b.origin = f"optimizer:beta{i}_power"
        key = f"beta{i}_power"
        power = b.scale(_entry(b, result, key, torch.ones(())), beta)
        result.state[key] = power
        corrections.append(b.sub(one, power))
    for name, p in trained.items():
        b.origin = f"optimizer:{name}"
        g = gradients[name]
        first, second = f"exp_avg.{name}", f"exp_avg_sq.{name}"
        m = b.add(b.scale(_entry(b, result, first, torch.zeros(p.shape)), o.betas[0]), b.scale(g, 1 - o.betas[0]))
        v = b.add(
            b.scale(_entry(b, result, second, torch.zeros(p.shape)), o.betas[1]), b.scale(b.mul(g, g), 1 - o.betas[1])
        )
        result.state |= {first: m, second: v}
        if o.weight_decay:
            p = b.sub(p, b.mul(p, b.scale(rate, o.weight_decay)))
        deviation = b.add(b.map(MapFunction.SQRT, b.div(v, corrections[1])), b.const(o.eps))
        result.parameters[name] = b.sub(p, b.mul(rate, b.div(b.div(m, corrections[0]), deviation)))
