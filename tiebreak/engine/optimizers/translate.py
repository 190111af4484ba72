"""Translates `torch.optim` into settings: optimizers with their parameter groups, and schedulers as factors by step.

What settings cannot express (another optimizer than ours, several of them, groups with betas or schedules of their own,
cycles of momentum) stays torch's own (`TorchOptimizers`), and capture records its steps.

A job begins with moments of zero and has a table of rates, so what has stepped already and what reads the losses of the
run is refused with the reason. Nothing of the user's is changed: a scheduler is copied, with an optimizer that shares
the parameters, and stepped once after each step of the job. The rates are then what Python and its C library made of
them: the bytes of the table count, as those of the initial weights do.
"""

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from glob import escape
from inspect import Parameter, signature
from itertools import repeat
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TorchOptimizers:
    """Optimizers of torch, or of the user, that step one after the other, and then their schedulers.

    lr: the first group's, before any schedule. times: how often each steps in a step of the job. prefix: that of the
    names of what they hold.
    """

    optimizers: tuple[torch.optim.Optimizer, ...]
    schedulers: tuple[LRScheduler, ...]
    lr: float
    groups: tuple[Group, ...] = ()
    times: int = 1
    prefix: str = ""

    @property
    def name(self) -> str:
        """The names of the optimizers' classes, joined by "and"."""
        return " and ".join(type(optimizer).__name__ for optimizer in dict.fromkeys(self.optimizers))

    def holds(self, parameter: nn.Parameter) -> bool:
        """Whether one of the optimizers changes a parameter, and so reads its gradient."""
        return any(p is parameter for o in self.optimizers for g in o.param_groups for p in g["params"])

    def copies(
        self, tensors: Mapping[Tensor, Tensor], schedule: Sequence[float] | None
    ) -> Iterator[tuple[torch.optim.Optimizer, ...]]:
        """Yields, before each of their steps, copies of the optimizers, with other tensors in the place of some.

        The caller lets them step, by `type(copy).step(copy)`, since a scheduler binds `step` to its own optimizer.
        schedule: the factors of all groups' rates, if there are any.
        """
        optimizers, schedulers = self._copied({id(own): other for own, other in tensors.items()})
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        for group in groups:  # these only choose a kernel
            group.update(dict.fromkeys(group.keys() & {"fused", "capturable"}, False))
        rates = [(group, group["lr"]) for group in groups if "lr" in group]
        for factor in schedule or repeat(None):
            for group, rate in rates if factor is not None else ():
                group["lr"] = rate * factor
            yield from repeat(optimizers, self.times)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the copies' `step` is not the scheduler's
                for scheduler in schedulers:
                    scheduler.step()

    def over(self, kept: Sequence[Tensor]) -> "TorchOptimizers":
        """Copies of the optimizers that hold only these parameters of theirs, which are not copied."""
        given = [part for one in self.optimizers for part in parts(one)]
        memo = {id(p): p for part in given for group in part.param_groups for p in group["params"]}
        optimizers, schedulers = self._copied({**memo})
        left = memo.keys() - set(map(id, kept))
        for part in (part for one in optimizers for part in parts(one)):
            for group in part.param_groups:
                group["params"] = [p for p in group["params"] if id(p) not in left]
            for p in [p for p in part.state if id(p) in left]:
                del part.state[p]
        return replace(self, optimizers=optimizers, schedulers=tuple(schedulers))

    def _copied(self, memo: dict[int, Any]) -> tuple[tuple[torch.optim.Optimizer, ...], list[LRScheduler]]:
        """Copies of optimizers and schedulers. memo: as in `copy.deepcopy`."""
        originals = [part for given in self.optimizers for part in parts(given)]
        memo |= {id(one): object.__new__(type(one)) for one in originals}
        try:
            for one in originals:  # by hand, because an optimizer's own copy leaves out what its subclass adds
                memo[id(one)].__dict__.update(
                    {n: copy.deepcopy(v, memo) for n, v in vars(one).items() if not hasattr(v, "_wrapped_by_lr_sched")}
                )
            schedulers = [copy.deepcopy(scheduler, memo) for scheduler in self.schedulers]
        except Exception as error:  # whatever the user's attributes raise
            raise ConfigurationError(f"expected an optimizer that can be copied, got {self.name}: {error}") from error
        return tuple(memo[id(one)] for one in self.optimizers), schedulers


def parts(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """An optimizer, and those that it wraps."""
    held = [value for value in getattr(optimizer, "__dict__", {}).values() if isinstance(value, torch.optim.Optimizer)]
    return [optimizer, *(one for inner in held for one in parts(inner))]


def translated(given: Any, schedule: Any, model: nn.Module, steps: int) -> tuple[Any, Any]:
    """Settings and schedule of a task whose optimizer, and whose schedule, may be torch's own objects.

    given: one optimizer, or several. schedule: factors, or a scheduler for each of the optimizers that has one. Raises
    `ConfigurationError`. A parameter that no optimizer holds stays as it is.
    """
    if isinstance(given, TorchOptimizers):
        return given, schedule
    optimizers = tuple(given) if isinstance(given, list | tuple) else (given,)
    schedulers = _schedulers(optimizers, schedule)
    if isinstance(given, Optimizer):
        return given, schedule
    _check_all(optimizers or (given,), model)
    sampled = [_sampled(one, steps) for one in schedulers]
    rates = [one for one in sampled if one is not None]
    if len(optimizers) == 1 and len(rates) == len(sampled) < 2:
        found = _as_settings(optimizers[0], schedule, model, rates)
        if found is not None:
            return found
    return _as_they_are(optimizers, schedulers), None if schedulers else schedule


def by_phase(given: Any, schedule: Any, model: nn.Module, count: int) -> tuple[tuple[TorchOptimizers, ...], Any]:
    """The optimizer of each phase of a step, with its schedulers, and the factors of all rates.

    given: `count` of torch's optimizers, or what came of them; one may stand there more than once. Raises
    `ConfigurationError`.
    """
    if isinstance(given, TorchOptimizers):
        given, schedule = given.optimizers, given.schedulers or schedule
    require(isinstance(given, list | tuple) and len(given) == count, "a list of as many optimizers of torch as "
            f"losses, {count}, each over the parameters that its phase trains", given)  # fmt: skip
    schedulers = _schedulers(given, schedule)
    _check_all(given, model)
    order = list(dict.fromkeys(given))
    each = [
        _as_they_are((one,), tuple(s for s in schedulers if any(s.optimizer is part for part in parts(one))),
                     times=given.count(one), prefix=f"{order.index(one)}.")
        for one in given
    ]  # fmt: skip
    return tuple(each), None if schedulers else schedule


def _as_they_are(
    optimizers: Sequence[torch.optim.Optimizer], schedulers: Sequence[LRScheduler], **options: Any
) -> TorchOptimizers:
    lr = optimizers[0].param_groups[0].get("lr")
    lr = float(lr) if isinstance(lr, float | int | Tensor) else 1.0
    return TorchOptimizers(optimizers=tuple(optimizers), schedulers=tuple(schedulers), lr=lr, **options)


def _schedulers(optimizers: Sequence[Any], schedule: Any) -> tuple[LRScheduler, ...]:
    listed = isinstance(schedule, list | tuple) and any(isinstance(one, LRScheduler) for one in schedule)
    schedulers = tuple(schedule) if listed else (schedule,) if isinstance(schedule, LRScheduler) else ()
    for one in schedulers:
        require(any(getattr(one, "optimizer", None) is part for o in optimizers for part in parts(o)),
                "the task's optimizer to be that of its lr_scheduler", type(optimizers[0]).__name__)  # fmt: skip
    return schedulers


def _check_all(optimizers: Sequence[Any], model: nn.Module) -> None:
    for one in optimizers:
        require(isinstance(one, torch.optim.Optimizer), "settings of an optimizer, such as tiebreak.AdamW(lr=1e-3), or "
                "optimizers of torch, one or several", type(one).__name__)  # fmt: skip
        _check(one)
        parameter_names(one.param_groups, model)


def _check(given: torch.optim.Optimizer) -> None:
    stepped = type(given).__module__.startswith("torch.optim") and any(
        float(state.get("step", 1)) != 0 for state in given.state.values()
    )
    require(not stepped, "an optimizer that has not stepped yet (a job begins with moments of zero)", "one with state")
    hooks = any(getattr(given, f"_optimizer_step_{when}_hooks", None) for when in ("pre", "post"))
    require(not hooks, "an optimizer without hooks, which a program cannot call", "some")
    for flag, advice in _REFUSED.items():
        used = any(group.get(flag) for group in given.param_groups)
        require(not used, f"an optimizer without {flag}: {advice}", f"{flag}=True")
    closure = [p for p in signature(type(given).step).parameters.values() if p.default is Parameter.empty][1:]
    require(not closure, "an optimizer that steps once for each gradient, without a closure", type(given).__name__)
    own = vars(given).get("step")
    require(own is None or hasattr(own, "_wrapped_by_lr_sched"), "an optimizer with the `step` of its class", "another")


def _as_settings(
    given: torch.optim.Optimizer, schedule: Any, model: nn.Module, sampled: Sequence[Rates]
) -> tuple[Optimizer, Any] | None:
    """Settings and factors; None if they cannot express the optimizer, or the rates by group that were sampled."""
    groups = [group for group in given.param_groups if group["params"]]
    named = parameter_names(groups, model)
    if (found := _kind(given, groups)) is None:
        return None
    kind, shared = found
    rates = sampled[0] if sampled else [[float(group["lr"])] for group in groups]
    if (first := next((i for i, own in enumerate(rates) if max(own) > 0), None)) is None:
        raise ConfigurationError("expected a positive learning rate in a group of the optimizer, got 0 in all")
    # The factor between each group's rates and the first one's must be the same in every step.
    most, factors = max(rates[first]), [max(own) / max(rates[first]) for own in rates]
    for own, factor in zip(rates, factors, strict=True):
        near = _CLOSE * max(most, *own)
        if not all(abs(rate - base * factor) <= near for rate, base in zip(own, rates[first], strict=True)):
            return None
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


def parameter_names(groups: Sequence[Mapping[str, Any]], model: nn.Module) -> list[list[str]]:
    """The names of the parameters of each group. Raises `ConfigurationError` if one is not the model's."""
    own = {id(p): name for name, p in model.named_parameters()}
    foreign = [tuple(p.shape) for group in groups for p in group["params"] if id(p) not in own]
    require(not foreign, "an optimizer of the model's own parameters (make it after moving or copying the model)",
            f"parameters of shapes {foreign[:3]} that the model does not have")  # fmt: skip
    return [[own[id(p)] for p in group["params"]] for group in groups]


def _kind(given: torch.optim.Optimizer, groups: Sequence[Mapping[str, Any]]) -> tuple[Any, dict[str, Any]] | None:
    """The class of the settings, and the hyperparameters that all groups share; None if there are none such."""
    if (kind := next((n for n in _KINDS if type(given) is getattr(torch.optim, n)), None)) is None:
        return None
    decoupled = [kind == "Adam" and bool(group.get("decoupled_weight_decay")) for group in groups]
    chosen = AdamW if kind == "AdamW" or all(decoupled) else getattr(settings, kind)
    varying = [f.name for f in fields(chosen) if f.name not in _OWN] + ["decoupled_weight_decay"] * (chosen is Adam)
    if not all(_same(group[name], groups[0][name]) for name in varying for group in groups):
        return None
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


def _sampled(scheduler: LRScheduler, steps: int) -> Rates | None:
    """The rates of the job's steps, by group, from a copy of the scheduler; None if it changes more than the rates."""
    kind = type(scheduler).__name__
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ConfigurationError(
            "expected rates that are known before the run, got ReduceLROnPlateau, which reads its losses; give a "
            "schedule that depends on the step alone"
        )
    parameters = [p for group in scheduler.optimizer.param_groups for p in group["params"]]
    watched = {f.name for one in _KINDS for f in fields(getattr(settings, one))} | {"decoupled_weight_decay"}
    found: list[list[dict[str, Any]]] = []
    """The groups' settings in each step."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the copy's optimizer has not stepped
            twin = copy.deepcopy(scheduler, {id(p): p for p in parameters})
            for step in range(steps):
                if step:
                    twin.step()
                groups = [group for group in twin.optimizer.param_groups if group["params"]]
                found.append([{n: copy.deepcopy(v) for n, v in group.items() if n in watched} for group in groups])
    except Exception as error:
        raise ConfigurationError(
            f"the {kind} cannot be sampled for {steps} steps: {type(error).__name__}: {error}; give the factors of the "
            "learning rate as a tuple instead"
        ) from error
    pairs = [pair for groups in found for pair in zip(groups, found[0], strict=True)]
    if not all(_same(group[name], first[name]) for group, first in pairs for name in group if name != "lr"):
        return None
    return [[float(groups[i]["lr"]) for groups in found] for i in range(len(found[0]))]


def of_lightning(given: Any, schedule: Any) -> tuple[Any, Any]:
    """Optimizers and schedulers of what `configure_optimizers` of Lightning returns; others stay as they are."""
    listed = isinstance(given, list | tuple)
    if listed and len(given) == 2 and all(isinstance(part, list | tuple) for part in given):
        parts = [*({"optimizer": one} for one in given[0]), *({"lr_scheduler": one} for one in given[1])]
    elif isinstance(given, Mapping) or (listed and any(isinstance(part, Mapping) for part in given)):
        parts = [dict(part) for part in ([given] if isinstance(given, Mapping) else given) if isinstance(part, Mapping)]
    else:
        return given, schedule
    known = {"optimizer", "lr_scheduler", "monitor", "frequency"}
    if schedule is not None or not all(part.keys() <= known for part in parts):
        raise ConfigurationError(f"expected dicts of 'optimizer' and 'lr_scheduler', without `schedule`, got {given!r}")
    optimizers = [part["optimizer"] for part in parts if "optimizer" in part]
    schedulers = [_of_steps(part["lr_scheduler"]) for part in parts if part.get("lr_scheduler") is not None]
    return optimizers[0] if len(optimizers) == 1 else optimizers, schedulers or None


def _of_steps(given: Any) -> Any:
    config = given if isinstance(given, Mapping) else {"scheduler": given}
    interval, every = config.get("interval", "epoch"), config.get("frequency", 1)
    if "scheduler" not in config or interval != "step" or every != 1:
        raise ConfigurationError(
            f"expected a scheduler that goes by steps, got interval {interval!r}, frequency {every} (Lightning's "
            "default is epochs); count its settings in steps, and give {'scheduler': ..., 'interval': 'step'}"
        )
    return config["scheduler"]


def factors(schedule: Any, steps: int) -> Any:
    """The factor of the rate for each step, of a function or a sequence; schedulers and what is neither stay."""
    if schedule is None or isinstance(schedule, LRScheduler):
        return schedule
    if not callable(schedule) and (isinstance(schedule, str | bytes) or not isinstance(schedule, Iterable)):
        return schedule  # the task refuses it
    try:
        found: Any = [schedule(step) for step in range(steps)] if callable(schedule) else schedule
        return tuple(one if isinstance(one, LRScheduler) else float(one) for one in found)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"expected a number for each step in the schedule: {error}") from error
