"""Translates `torch.optim` into settings: optimizers with their parameter groups, and schedulers as factors by step.

A job begins with moments of zero and has a table of rates, so what has stepped already, what reads the losses of the
run, and what changes more than the rate is refused with the reason. Nothing of the user's is changed: a scheduler is
copied, with an optimizer that shares the parameters, and stepped once after each step of the job. The rates are then
what Python and its C library made of them: the bytes of the table count, as those of the initial weights do.
"""

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from glob import escape
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from tiebreak.engine.optimizers import settings
from tiebreak.engine.optimizers.settings import SGD, Adafactor, Adam, AdamW, Group, Lion, Optimizer, require
from tiebreak.protocol.errors import ConfigurationError

_KINDS: Final = ("SGD", "Adam", "AdamW", "Adafactor", "RMSprop", "Adagrad", "NAdam", "RAdam")
_OWN: Final = ("lr", "weight_decay", "groups")
"""Fields that a group may have to itself."""
_REFUSED: Final = {
    "maximize": "return the loss with the other sign instead",
    "differentiable": "no gradient flows through a job's steps, so leave it out",
}
"""Flags that change what is computed. `foreach`, `fused` and `capturable` only choose a kernel."""
_CLOSE: Final = 1e-9
"""The distance of a group's rates from a multiple of another's that is allowed, relative to its greatest rate."""

Rates = list[list[float]]
"""The learning rate of each step, by group."""


def translated(given: Any, schedule: Any, model: nn.Module, steps: int) -> tuple[Optimizer, Any]:
    """Settings and schedule of a task whose optimizer, and whose schedule, may be torch's own objects.

    Raises `ConfigurationError`. A parameter that the optimizer does not hold stays as it is.
    """
    if isinstance(schedule, LRScheduler):
        require(getattr(schedule, "optimizer", None) is given, "the task's optimizer to be that of its lr_scheduler",
                type(given).__name__)  # fmt: skip
    if not isinstance(given, torch.optim.Optimizer):
        require(isinstance(given, Optimizer), "settings of an optimizer, such as tiebreak.AdamW(lr=1e-3), or one of "
                f"torch.optim's {', '.join(_KINDS)}", type(given).__name__)  # fmt: skip
        return given, schedule
    stepped = any(float(state.get("step", 1)) != 0 for state in given.state.values())
    require(not stepped, "an optimizer that has not stepped yet (a job begins with moments of zero)", "one with state")
    hooks = given._optimizer_step_pre_hooks or given._optimizer_step_post_hooks
    require(not hooks, "an optimizer without hooks, which a program cannot call", "some")
    groups = [group for group in given.param_groups if group["params"]]
    named = _names(groups, model)
    kind, shared = _kind(given, groups)
    sampled = isinstance(schedule, LRScheduler)
    rates = _sampled(schedule, steps) if sampled else [[float(group["lr"])] for group in groups]
    first = next((i for i, own in enumerate(rates) if max(own) > 0), None)
    if first is None:
        raise ConfigurationError("expected a positive learning rate in a group of the optimizer, got 0 in all")
    factors = [_factor(own, rates[first], number) for number, own in enumerate(rates)]
    decays = [float(group["weight_decay"]) for group in groups]
    own_groups = [
        Group(match=tuple(map(escape, names)), lr_factor=factor, weight_decay=decay)
        for names, factor, decay in zip(named, factors, decays, strict=True)
        if (factor, decay) != (1.0, decays[first])
    ]
    held = {name for names in named for name in names}
    if left := [n for n, p in model.named_parameters() if p.requires_grad and n not in held]:
        own_groups.append(Group(match=tuple(map(escape, left)), lr_factor=0.0, weight_decay=0.0))
    lr = max(rates[first])
    made = kind(lr=lr, weight_decay=decays[first], groups=tuple(own_groups), **shared)
    return made, tuple(rate / lr for rate in rates[first]) if sampled else schedule


def torchs(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> torch.optim.Optimizer:
    """The optimizer of eager PyTorch that settings stand for, over parameter groups of torch's form."""
    names = [f.name for f in fields(optimizer) if f.name not in ("groups", "weight_decay")]
    kept = {name: getattr(optimizer, name) for name in names}
    if isinstance(optimizer, Adafactor) and optimizer.eps[0] is None:
        kept["eps"] = (2.0**-23, optimizer.eps[1])  # torch's default is that of the dtype
    make: Any = EagerLion if isinstance(optimizer, Lion) else getattr(torch.optim, type(optimizer).__name__)
    made: torch.optim.Optimizer = make(list(groups), **kept)
    return made


class EagerLion(torch.optim.Optimizer):
    """Lion as its authors published it, in plain PyTorch, to compare programs with."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float], weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 (torch's signature)
        """One step of every parameter that has a gradient."""
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                held = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(held * b1 + p.grad * (1 - b1)), alpha=-group["lr"])
                held.mul_(b2).add_(p.grad, alpha=1 - b2)


def _names(groups: Sequence[Mapping[str, Any]], model: nn.Module) -> list[list[str]]:
    own = {id(p): name for name, p in model.named_parameters()}
    foreign = [tuple(p.shape) for group in groups for p in group["params"] if id(p) not in own]
    require(not foreign, "an optimizer of the model's own parameters (make it after moving or copying the model)",
            f"parameters of shapes {foreign[:3]} that the model does not have")  # fmt: skip
    return [[own[id(p)] for p in group["params"]] for group in groups]


def _kind(given: torch.optim.Optimizer, groups: Sequence[Mapping[str, Any]]) -> tuple[Any, dict[str, Any]]:
    """The class of the settings, and the hyperparameters that all groups share."""
    kind = next((n for n in _KINDS if type(given) is getattr(torch.optim, n)), None)
    if kind is None:
        raise ConfigurationError(
            f"expected one of torch.optim's {', '.join(_KINDS)}, or settings such as tiebreak.Lion(lr=1e-4), got "
            f"{type(given).__name__}, whose update has no form as a program"
        )
    for flag, advice in _REFUSED.items():
        require(not any(group.get(flag) for group in groups), f"an optimizer without {flag}: {advice}", f"{flag}=True")
    decoupled = [kind == "Adam" and bool(group.get("decoupled_weight_decay")) for group in groups]
    chosen = AdamW if kind == "AdamW" or all(decoupled) else getattr(settings, kind)
    varying = [f.name for f in fields(chosen) if f.name not in _OWN] + ["decoupled_weight_decay"] * (chosen is Adam)
    for name in varying:
        values = [group[name] for group in groups]
        require(all(_same(value, values[0]) for value in values),
                f"groups that differ only in lr and weight_decay, which is what settings by name can express, not in "
                f"{name}", values)  # fmt: skip
    shared = {n: _plain(groups[0][n]) for n in varying if n != "decoupled_weight_decay" or chosen is not Adam}
    if chosen is SGD and not shared["momentum"]:
        shared["dampening"] = 0.0  # torch ignores it
    return chosen, shared


def _plain(value: Any) -> Any:
    """A hyperparameter as Python numbers; torch also takes tensors."""
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, Tensor) else value


def _same(a: Any, b: Any) -> bool:
    return bool(_plain(a) == _plain(b))


def _sampled(scheduler: LRScheduler, steps: int) -> Rates:
    """The rates of the job's steps, by group, from a copy of the scheduler."""
    kind = type(scheduler).__name__
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ConfigurationError(
            "expected rates that are known before the run, got ReduceLROnPlateau, which reads its losses; give a "
            "schedule that depends on the step alone"
        )
    try:
        found = list(_stepped(scheduler, steps))
    except Exception as error:
        raise ConfigurationError(
            f"the {kind} cannot be sampled for {steps} steps: {type(error).__name__}: {error}; give the factors of the "
            "learning rate as a tuple instead"
        ) from error
    for number, groups in enumerate(found):
        for group, first in zip(groups, found[0], strict=True):
            changed = [name for name in group if name != "lr" and not _same(group[name], first[name])]
            require(not changed, f"a {kind} that changes only the learning rate (OneCycleLR and CyclicLR also change "
                    "momentum unless cycle_momentum=False)",
                    f"a change of {', '.join(changed)} after step {number}")  # fmt: skip
    return [[float(groups[i]["lr"]) for groups in found] for i in range(len(found[0]))]


def _stepped(scheduler: LRScheduler, steps: int) -> Iterator[list[dict[str, Any]]]:
    """The groups' settings in each step."""
    parameters = [p for group in scheduler.optimizer.param_groups for p in group["params"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the copy's optimizer has not stepped
        twin = copy.deepcopy(scheduler, {id(p): p for p in parameters})
        watched = {f.name for kind in _KINDS for f in fields(getattr(settings, kind))} | {"decoupled_weight_decay"}
        for step in range(steps):
            if step:
                twin.step()
            groups = [group for group in twin.optimizer.param_groups if group["params"]]
            yield [{n: copy.deepcopy(v) for n, v in group.items() if n in watched} for group in groups]


def _factor(rates: Sequence[float], base: Sequence[float], number: int) -> float:
    """The factor between two groups' rates, which must be the same in every step."""
    factor, near = max(rates) / max(base), _CLOSE * max(*rates, *base)
    for step, (own, other) in enumerate(zip(rates, base, strict=True), 1):
        require(abs(own - other * factor) <= near, "one schedule for all groups, up to a factor",
                f"another multiple for group {number} in step {step} than in others")  # fmt: skip
    return factor
