"""Optimizers and schedulers of torch as settings, and the schedules of settings: the same rates, or a refusal."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from tests.conftest import CaseCounter
from tests.engine.lowering_bench import squared_error
from tiebreak import SGD, Adafactor, Adagrad, Adam, AdamW, NAdam, RAdam, RMSprop, Task
from tiebreak.api.training.tasks import capture as checked
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.optimizers import settings as rates
from tiebreak.engine.optimizers.settings import settings_of, warmup_linear
from tiebreak.protocol.errors import ConfigurationError

STEPS = 40
O, S = torch.optim, lr_scheduler  # noqa: E741 (two namespaces that every line below names)


class Net(nn.Module):
    """Two layers, the first of them frozen, whose norm has parameters with brackets in no name."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.layer = nn.Linear(4, 3)
        self.odd = nn.ParameterDict({"a[0]*": nn.Parameter(torch.ones(3))})

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.frozen(x))) * self.odd["a[0]*"]


def task_of(model: nn.Module, optimizer: Any, schedule: Any = None, steps: int = STEPS) -> Task:
    generator = torch.Generator().manual_seed(1)
    data = {"x": torch.randn(9, 4, generator=generator), "y": torch.randn(9, 3, generator=generator)}
    return Task(model, squared_error, optimizer=optimizer, data=data, batch=3, steps=steps, schedule=schedule)


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


EQUAL: dict[str, tuple[Callable[[Any], O.Optimizer], Any]] = {
    "sgd": (lambda p: O.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.2, nesterov=True, foreach=True),
            SGD(lr=0.1, momentum=0.9, weight_decay=0.2, nesterov=True)),
    "sgd, dampening without momentum": (lambda p: O.SGD(p, lr=0.1, dampening=0.5), SGD(lr=0.1)),
    "adam": (lambda p: O.Adam(p, lr=torch.tensor(0.5), amsgrad=True, fused=True), Adam(lr=0.5, amsgrad=True)),
    "adam, betas of tensors": (lambda p: O.Adam(p, lr=torch.tensor(0.5), foreach=False, capturable=True,
                                                betas=(torch.tensor(0.5), torch.tensor(0.75))),
                               Adam(lr=0.5, betas=(0.5, 0.75))),
    "adam, decoupled": (lambda p: O.Adam(p, lr=0.5, weight_decay=0.1, decoupled_weight_decay=True),
                        AdamW(lr=0.5, weight_decay=0.1)),
    "adamw": (lambda p: O.AdamW(p, betas=(0.8, 0.95), eps=1e-6), AdamW(lr=1e-3, betas=(0.8, 0.95), eps=1e-6)),
    "adafactor": (lambda p: O.Adafactor(p, d=2.0), Adafactor(d=2.0)),
    "rmsprop": (lambda p: O.RMSprop(p, centered=True, momentum=0.5), RMSprop(centered=True, momentum=0.5)),
    "adagrad": (lambda p: O.Adagrad(p, lr_decay=0.1, initial_accumulator_value=0.5),
                Adagrad(lr_decay=0.1, initial_accumulator_value=0.5)),
    "nadam": (lambda p: O.NAdam(p, momentum_decay=0.1, decoupled_weight_decay=True, weight_decay=0.1),
              NAdam(momentum_decay=0.1, decoupled_weight_decay=True, weight_decay=0.1)),
    "radam": (lambda p: O.RAdam(p, weight_decay=0.1), RAdam(weight_decay=0.1)),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_torch_optimizers_translate_to_the_same_settings(name: str) -> None:
    make, settings = EQUAL[name]
    model = Net()
    for parameters in (trained(model), model.parameters()):
        assert task_of(model, make(parameters)).optimizer == settings


def test_parameter_groups_keep_their_rates_and_decays() -> None:
    model = Net()
    given = O.AdamW([
        {"params": [model.layer.weight], "name": "any further entry"},
        {"params": [model.odd["a[0]*"]], "lr": 4e-3, "weight_decay": 0.0},
        {"params": []},
    ], lr=1e-3, weight_decay=0.25)  # fmt: skip
    made = task_of(model, given).optimizer
    assert (made.lr, made.weight_decay) == (1e-3, 0.25)
    assert settings_of(made, "layer.weight") == (1.0, 0.25)
    assert settings_of(made, "odd.a[0]*") == (4.0, 0.0)
    assert settings_of(made, "layer.bias") == (0.0, 0.0), "what the optimizer does not hold stays as it is"
    first = O.SGD([{"params": [model.layer.bias], "lr": 0.0}, {"params": [model.layer.weight]}], lr=0.5)
    made = task_of(model, first).optimizer
    assert (made.lr, settings_of(made, "layer.bias")[0], settings_of(made, "layer.weight")[0]) == (0.5, 0.0, 1.0)


SCHEDULERS: dict[str, Callable[[O.Optimizer], S.LRScheduler]] = {
    "warm-up from zero": lambda o: S.LambdaLR(o, lambda s: min(1.0, s / 7)),
    "cosine, restarts": lambda o: S.CosineAnnealingWarmRestarts(o, 7, 2),
    "one cycle": lambda o: S.OneCycleLR(o, [0.3, 0.6], total_steps=STEPS, cycle_momentum=False),
    "cyclic": lambda o: S.CyclicLR(o, [0.1, 0.2], [0.5, 1.0], step_size_up=6, cycle_momentum=False),
    "sequential": lambda o: S.SequentialLR(
        o, [S.LinearLR(o, 0.1, 1.0, 8), S.CosineAnnealingLR(o, 32)], milestones=[8]
    ),
    "chained": lambda o: S.ChainedScheduler([S.ConstantLR(o, 0.1, 4), S.ExponentialLR(o, 0.9)]),
    "averaging": lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=[0.05, 0.1], anneal_epochs=10),
}  # fmt: skip


def two_groups(model: Net) -> O.Optimizer:
    return O.SGD([{"params": [model.layer.weight]}, {"params": [model.layer.bias], "lr": 1.0}], lr=0.5, momentum=0.9)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_becomes_the_table_of_its_rates(name: str, cases: CaseCounter) -> None:
    model = Net()
    optimizer = two_groups(model)
    scheduler = SCHEDULERS[name](optimizer)
    before = [dict(group) for group in optimizer.param_groups], str(scheduler.state_dict())
    task = task_of(model, optimizer, scheduler)
    assert ([dict(group) for group in optimizer.param_groups], str(scheduler.state_dict())) == before
    table, factor = task.learning_rates(), settings_of(task.optimizer, "layer.bias")[0]
    for step in range(STEPS):  # now the user's own
        first, second = (group["lr"] for group in optimizer.param_groups)
        assert table[step].item() == pytest.approx(first, rel=2**-24, abs=1e-45), step
        assert table[step].item() * factor == pytest.approx(second, rel=1e-6, abs=1e-45), step
        optimizer.step()
        if step + 1 < STEPS:
            scheduler.step()
        cases()
    assert len(set(table.tolist())) > 1


def test_a_task_of_torch_optimizer_and_scheduler_passes_the_check() -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = O.NAdam([{"params": model.layer.parameters()}, {"params": model.odd.parameters(), "lr": 0.2}], lr=0.1)
    task = task_of(model, optimizer, S.LambdaLR(optimizer, lambda s: 1 / (s + 1)), steps=3)
    captured = checked(task)
    assert captured.check == "full"
    assert captured.data["learning_rate"].tolist() == torch.tensor([0.1, 0.05, 0.1 / 3]).tolist()


def stepped(model: Net) -> O.Optimizer:
    given = O.AdamW(trained(model))
    model(torch.ones(1, 4)).sum().backward()
    given.step()
    return given


def hooked(model: Net) -> O.Optimizer:
    given = O.SGD(trained(model), lr=0.1)
    given.register_step_pre_hook(lambda *_: None)
    return given


REFUSED: dict[str, tuple[Callable[[Net], Any], Any, str]] = {
    "closure": (lambda m: O.LBFGS(trained(m)), None, "steps once for each gradient, without a closure, got 'LBFGS'"),
    "no optimizer": (lambda _: "AdamW", None, "settings of an optimizer, such as .* got 'str'"),
    "maximize": (lambda m: O.SGD(trained(m), lr=0.1, maximize=True), None, "without maximize: return the loss"),
    "differentiable": (lambda m: O.SGD(trained(m), lr=0.1, differentiable=True), None, "without differentiable"),
    "state": (stepped, None, "has not stepped yet .a job begins with moments of zero., got 'one with state'"),
    "hooks": (hooked, None, "an optimizer without hooks"),
    "foreign": (lambda _: O.SGD(Net().parameters(), lr=0.1), None, "of the model's own parameters"),
    "no rate": (lambda m: O.SGD(trained(m), lr=0.0), None, "a positive learning rate"),
    "plateau": (two_groups, S.ReduceLROnPlateau, "ReduceLROnPlateau, which reads its losses"),
    "another's scheduler": (two_groups, lambda _: S.StepLR(O.SGD([torch.zeros(1)], lr=1.0), 3),
                            "optimizer to be that of its lr_scheduler"),
    "too short": (two_groups, lambda o: S.OneCycleLR(o, 0.1, total_steps=5, cycle_momentum=False),
                  "OneCycleLR cannot be sampled for 40 steps: ValueError"),
    "negative": (two_groups, lambda o: S.LambdaLR(o, lambda s: 3.0 - s), "finite factors >= 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_untranslatable_optimizers_and_schedulers_are_refused(name: str) -> None:
    make, scheduler, message = REFUSED[name]
    model = Net()
    optimizer = make(model)
    with pytest.raises(ConfigurationError, match=message):
        task_of(model, optimizer, scheduler and scheduler(optimizer))


def test_gradient_scaling_is_refused_with_the_reason() -> None:
    for enabled in (True, False):
        scaler = torch.amp.GradScaler("cpu", enabled=enabled)
        task = task_of(Net(), AdamW(lr=0.1))
        scaled = replace(task, loss=lambda net, x, y, s=scaler: s.scale(squared_error(net, x, y)))
        if enabled:
            with pytest.raises(ConfigurationError, match=r"test_translate.py:\d+\) it scales the loss .*GradScaler"):
                capture_task(scaled)
        else:
            assert capture_task(scaled).program == capture_task(task).program


SIZES = [(1, 0), (2, 0), (2, 1), (7, 3), (40, 9), (41, 40)]


def rates_of(steps: int, make: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, found = make(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "inverse_sqrt"])
def test_every_schedule_warms_up_linearly(name: str, cases: CaseCounter) -> None:
    for steps, warmup in SIZES:
        factors = getattr(rates, name)(steps, warmup)
        assert len(factors) == steps
        assert factors[: warmup + 1] == (*((s + 1) / (warmup + 1) for s in range(warmup)), 1.0)
        assert list(factors[warmup:]) == sorted(factors[warmup:], reverse=True)
        assert all(isinstance(f, float) and 0 <= f <= 1 for f in factors)
        cases()


def test_cosine_schedule_matches_torch() -> None:
    expected = rates_of(30, lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 29, eta_min=0.1))
    assert rates.cosine(30, floor=0.1) == pytest.approx(expected, rel=1e-12)
    assert rates.cosine(30, floor=0.1)[-1] == 0.1
    assert rates.cosine(31)[15] == 0.5


def test_cosine_schedule_is_correctly_rounded(cases: CaseCounter) -> None:
    """No C library decides a bit: the factor is the float64 nearest to (1 + cos) / 2."""
    for count in (2, 3, 10, 101, 1000):
        factors = rates.cosine(count)
        with mpmath.workprec(300):
            for k, factor in enumerate(factors):
                exact = (1 + mpmath.cos(mpmath.pi * k / (count - 1))) / 2
                assert factor == float(mpmath.mpf(exact)) or abs(exact) < 1e-40
                cases()
        assert factors[-1] == 0.0


def test_one_cycle_schedule_matches_torch() -> None:
    steps, warmup = 50, 14
    expected = rates_of(
        steps, lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=1.0, total_steps=steps, pct_start=15 / 50)
    )
    assert rates.one_cycle(steps, warmup) == pytest.approx(expected, rel=1e-9)
    assert rates.one_cycle(3, 0)[0] == 1.0


def test_step_decay_schedule_matches_torch() -> None:
    expected = rates_of(20, lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [5, 11, 19], gamma=0.3))
    assert rates.step_decay(20, [5, 11, 19], gamma=0.3) == pytest.approx(expected, rel=1e-12)
    assert rates.step_decay(6, [4], warmup=2) == (1 / 3, 2 / 3, 1.0, 1.0, 0.1, 0.1)


def test_inverse_sqrt_falls_from_the_end_of_the_warm_up() -> None:
    assert rates.inverse_sqrt(16, 3) == (0.25, 0.5, 0.75, *((4 / (s + 1)) ** 0.5 for s in range(3, 16)))


def test_the_linear_schedule_keeps_its_older_name() -> None:
    assert warmup_linear(9, 2, 0.5) == rates.linear(9, warmup=2, floor=0.5)
    assert rates.linear(5, floor=0.5) == (1.0, 0.875, 0.75, 0.625, 0.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rates.constant(3, 3), "0 <= warmup < 3 steps, got 3"),
        (lambda: rates.cosine(3, -1), "expected warmup as an integer from 0 to .*, got -1"),
        (lambda: rates.linear(3, floor=1.5), "floor as a number from 0 to 1, got 1.5"),
        (lambda: rates.step_decay(5, [3, 2]), r"milestones in 1 \.\.\. 4, ascending, got \[3, 2\]"),
        (lambda: rates.step_decay(5, [5]), "milestones in 1"),
        (lambda: rates.step_decay(5, [2], gamma=-1.0), "gamma as a number from 0 to 1, got -1.0"),
        (lambda: rates.one_cycle(5, 2, start=2.0), "start as a number from 0 to 1, got 2.0"),
    ],
)
def test_invalid_schedules_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
