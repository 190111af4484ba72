"""Optimizers that are captured by recording their steps: torch's losses and parameters, or a refusal with its place."""

import copy
import math
import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler

from tests.engine.lowering_bench import stepped
from tests.parts import slow_except
from tiebreak import SGD, Task
from tiebreak.api.training.tasks import capture as checked
from tiebreak.engine.capture import captured as captured_module
from tiebreak.engine.capture import torch_updates
from tiebreak.engine.capture.captured import capture_task
from tiebreak.protocol.errors import ConfigurationError

STEPS = 24
O, S = torch.optim, lr_scheduler  # noqa: E741 (two namespaces that every line below names)
Parameters = Iterable[nn.Parameter]


class Net(nn.Module):
    """A frozen layer, matrices, a norm and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.LayerNorm(6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.last = nn.Linear(6, 3, bias=False)
        self.gain = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.frozen(torch.tanh(self.norm(self.first(x)))) * self.gain)
        return out


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).float(), y)


def data() -> dict[str, Tensor]:
    return {"x": torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), "y": torch.arange(6) % 3}


def task_of(model: nn.Module, optimizer: Any, schedule: Any = None, steps: int = STEPS) -> Task:
    return Task(model, cross_entropy, optimizer=optimizer, data=data(), batch=6, steps=steps, schedule=schedule)


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def matrices(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in trained(model) if p.ndim == 2]


def others(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in trained(model) if p.ndim != 2]


class Lookahead(O.Optimizer):
    """Zhang et al. 2019: every fifth step has calls of its own; the slow weights begin as the parameters."""

    def __init__(self, fast: O.Optimizer) -> None:
        super().__init__(fast.param_groups, {})
        self.fast, self.count, self.slow = fast, 0, dict[Tensor, Tensor]()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if not self.count:
            self.slow = {p: p.detach().clone() for group in self.param_groups for p in group["params"]}
        self.fast.step()
        self.count += 1
        if self.count % 5 == 0:
            for p, slow in self.slow.items():
                slow.add_(p - slow, alpha=0.5)
                p.copy_(slow)


class Centered(O.AdamW):
    """A subclass: gradients of matrices less the means of their rows."""

    def step(self, closure: Any = None) -> Any:
        for p in (p for group in self.param_groups for p in group["params"]):
            if p.grad is not None and p.grad.ndim > 1:
                p.grad.sub_(p.grad.mean(1, keepdim=True))
        return super().step(closure)


class Listed(O.Optimizer):
    """Lists of parameters, gradients and state, which is made in the first step."""

    def __init__(self, parameters: Parameters, lr: float = 0.02) -> None:
        super().__init__(parameters, {"lr": lr})
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count += 1
        given = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.move(given, [p.grad for p in given], self.param_groups[0]["lr"])

    def held(self, given: list[nn.Parameter], *keys: str) -> list[list[Tensor]]:
        return [[self.state[p].setdefault(key, torch.zeros_like(p)) for p in given] for key in keys]

    def move(self, given: list[nn.Parameter], gradients: list[Any], lr: float) -> None:
        raise NotImplementedError


class Adan(Listed):
    """Xie et al. 2022: it keeps the gradient before."""

    def move(self, given: list[nn.Parameter], gradients: list[Any], lr: float) -> None:
        m, v, n, before = self.held(given, "m", "v", "n", "before")
        if self.count == 1:
            torch._foreach_copy_(before, gradients)
        change = torch._foreach_sub(gradients, before)
        torch._foreach_lerp_(m, gradients, 0.02)
        torch._foreach_lerp_(v, change, 0.08)
        torch._foreach_mul_(change, 0.92)
        torch._foreach_add_(change, gradients)
        torch._foreach_mul_(n, 0.99)
        torch._foreach_addcmul_(n, change, change, 0.01)
        size = torch._foreach_sqrt(n)
        torch._foreach_div_(size, math.sqrt(1 - 0.99**self.count))
        torch._foreach_add_(size, 1e-8)
        torch._foreach_addcdiv_(given, m, size, value=-lr / (1 - 0.98**self.count))
        torch._foreach_addcdiv_(given, v, size, value=-lr * 0.92 / (1 - 0.92**self.count))
        torch._foreach_copy_(before, gradients)


class Adopt(Listed):
    """Taniguchi et al. 2024: the first step only measures; bounds that are numbers, one of which changes."""

    def move(self, given: list[nn.Parameter], gradients: list[Any], lr: float) -> None:
        m, v = self.held(given, "m", "v")
        if self.count > 1:
            size = torch._foreach_sqrt(v)
            torch._foreach_maximum_(size, 1e-6)
            move, most = torch._foreach_div(gradients, size), (self.count - 1) ** 0.25
            torch._foreach_maximum_(move, [-most] * len(move))
            torch._foreach_minimum_(move, most)
            torch._foreach_lerp_(m, move, 0.1)
            torch._foreach_add_(given, m, alpha=-lr)
        torch._foreach_mul_(v, 0.99)
        torch._foreach_addcmul_(v, gradients, gradients, value=0.01)


class Prodigy(Listed):
    """Mishchenko and Defazio 2023, with the distance as a tensor; its state is made by `torch.zeros`."""

    def move(self, given: list[nn.Parameter], gradients: list[Any], lr: float) -> None:
        if self.count == 1:
            self.distance, self.gain = torch.zeros(()) + 1e-2, torch.zeros(1)
            self.begun = [p.clone() for p in given]
            self.sums = [torch.zeros(p.shape) for p in given]
        self.gain.mul_(0.99)
        for p, g, begun, held in zip(given, gradients, self.begun, self.sums, strict=True):
            self.gain.add_(self.distance * (g * (begun - p)).sum())
            held.mul_(0.99).add_(self.distance * g)
        size = torch.stack([held.abs().sum() for held in self.sums]).sum()
        self.distance = torch.maximum(self.distance, (self.gain / size).squeeze())
        for p, g in zip(given, gradients, strict=True):
            p.sub_(self.distance * g)


class Counting(Listed):
    """Decides by a count that is a tensor; differences from numbers; a correction of a deviation."""

    def move(self, given: list[nn.Parameter], gradients: list[Any], lr: float) -> None:
        if self.count == 1:
            self.steps = torch.tensor(0)
        self.steps += 1
        for p, g in zip(given, gradients, strict=True):
            g = torch.where(self.steps > 12, g.sign(), g) / (1 + g.std(correction=0))
            p.copy_(torch.rsub(g, p, alpha=lr / self.count) + 1e-3 * torch.rsub(g, 1.0, alpha=0.1 / self.count))


@dataclass(frozen=True, kw_only=True)
class Case:
    """near: the greatest difference of losses and parameters from eager PyTorch. schedules: of the optimizers."""

    make: Callable[[nn.Module], Any]
    schedules: Callable[[Any], Any] = field(default=lambda _: None)
    near: float = 3e-6


def of_groups(kind: type, **second: Any) -> Callable[[nn.Module], O.Optimizer]:
    return lambda m: kind([{"params": matrices(m)}, {"params": others(m), **second}], lr=0.02)


CASES: dict[str, Case] = {
    "muon": Case(make=lambda m: O.Muon(matrices(m), lr=0.02), near=2e-2),
    "muon and adamw": Case(
        make=lambda m: [O.Muon(matrices(m), lr=0.02), O.AdamW(others(m), lr=0.01)],
        schedules=lambda o: [S.CosineAnnealingLR(o[0], STEPS), S.OneCycleLR(o[1], 0.1, total_steps=STEPS)],
        near=2e-2,
    ),
    "adamax": Case(make=lambda m: O.Adamax(trained(m), lr=torch.tensor(0.01))),
    "adadelta": Case(make=lambda m: O.Adadelta(trained(m), lr=1.0, weight_decay=0.1)),
    "asgd": Case(make=lambda m: O.ASGD(trained(m), lr=0.1, t0=5, lambd=0.1)),
    "rprop": Case(make=lambda m: O.Rprop([p for p in trained(m) if p.ndim])),
    "adamw, groups": Case(make=of_groups(O.AdamW, betas=(0.5, 0.9), eps=1e-4, fused=True)),
    "radam, groups": Case(make=of_groups(O.RAdam, betas=(0.5, 0.9))),
    "rmsprop, groups": Case(make=of_groups(O.RMSprop, alpha=0.5, momentum=0.9), near=1e-5),
    "adagrad, groups": Case(make=of_groups(O.Adagrad, lr_decay=0.1, initial_accumulator_value=0.5)),
    "sgd, groups": Case(make=of_groups(O.SGD, momentum=0.9, dampening=0.1)),
    "one cycle of momentum": Case(
        make=lambda m: O.SGD(trained(m), lr=0.1, momentum=0.9),
        schedules=lambda o: S.OneCycleLR(o, 0.3, total_steps=STEPS),
    ),
    "one cycle of betas": Case(
        make=lambda m: O.AdamW(trained(m), lr=0.1), schedules=lambda o: S.OneCycleLR(o, 0.05, total_steps=STEPS)
    ),
    "own factors": Case(
        make=of_groups(O.AdamW),
        schedules=lambda o: S.LambdaLR(o, [lambda step: 1 / (step + 1), lambda step: 0.9**step]),
    ),
    "lookahead": Case(make=lambda m: Lookahead(O.AdamW(trained(m), lr=0.01))),
    "a subclass": Case(make=lambda m: Centered(trained(m), lr=0.01, amsgrad=True)),
    "rprop, foreach": Case(make=lambda m: O.Rprop([p for p in trained(m) if p.ndim], foreach=True)),
    "adan": Case(make=lambda m: Adan(trained(m)), schedules=lambda o: S.StepLR(o, 5)),
    "adopt": Case(make=lambda m: Adopt(trained(m)), near=1e-5),
    "prodigy": Case(make=lambda m: Prodigy([p for p in trained(m) if p.ndim])),
    "a tensor counts": Case(make=lambda m: Counting(trained(m))),
}


def eager(case: Case) -> tuple[list[float], dict[str, Tensor]]:
    model = seeded()
    made = case.make(model)
    schedules = case.schedules(made)
    optimizers = made if isinstance(made, list) else [made]
    schedulers = schedules if isinstance(schedules, list) else [] if schedules is None else [schedules]
    losses = []
    for _ in range(STEPS):
        loss = cross_entropy(model, **data())
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch.autograd.backward(loss)
        for one in (*optimizers, *schedulers):
            one.step()
        losses.append(loss.item())
    return losses, {name: p.detach() for name, p in model.named_parameters()}


def seeded() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.mark.slow
def test_a_long_optimizer_recording_reports_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = seeded()
    made = task_of(model, O.Adamax(trained(model)))
    capture_task(made)
    assert not capsys.readouterr().err
    monkeypatch.setattr(torch_updates, "PATIENCE_S", -1.0)
    capture_task(made)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        f"recording Adamax: step {step} of {STEPS}" for step in range(1, STEPS)
    ]


@pytest.mark.slow
def test_bfloat16_optimizer_steps_are_rounded_as_in_torch() -> None:
    model = seeded().bfloat16()
    optimizer = O.Adamax(trained(model), lr=0.01)
    given = {"x": data()["x"].bfloat16().float(), "y": data()["y"]}

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x.bfloat16()).float(), y)

    task = Task(model, loss, optimizer=optimizer, data=given, batch=6, steps=STEPS)
    captured = checked(task)
    result = next(islice(stepped(captured), STEPS - 1, None))
    for entry, tensor in result.state.items():
        if entry.startswith(("model.", "optimizer.")):
            assert torch.equal(tensor.bfloat16().float(), tensor), entry


@pytest.mark.slow
def test_optimizer_state_starts_as_the_first_step_creates_it() -> None:
    model = seeded()
    captured = capture_task(task_of(model, Lookahead(O.AdamW(trained(model), lr=0.01))))
    assert torch.equal(captured.state["optimizer.slow.last.weight"], model.last.weight)
    assert not captured.state["optimizer.exp_avg.gain"].any()
    numbers = captured.data[torch_updates.NUMBERS]
    assert numbers[:, 0].tolist() == [float(step % 5 == 0) + 1 for step in range(1, STEPS + 1)]
    groups = [{"params": matrices(model)}, {"params": others(model), "lr_decay": 0.1}]
    adagrad = O.Adagrad(groups, initial_accumulator_value=0.5)
    assert capture_task(task_of(model, adagrad)).state["optimizer.sum.gain"].item() == 0.5
    alike = capture_task(task_of(model, O.Adamax(trained(model)), steps=2))
    assert alike.data[torch_updates.NUMBERS].shape == (2, 1), "both steps have one form, in which only a rate changes"
    assert capture_task(task_of(model, O.Adamax(trained(model)), steps=1)).program.body


class Own(O.Optimizer):
    """Does something to each parameter with a gradient; `count` is the number of the step."""

    def __init__(self, model: nn.Module, update: Callable[["Own", nn.Parameter, Tensor], Any]) -> None:
        super().__init__(trained(model), {"lr": 0.1})
        self.update, self.count, self.given = update, 0, model.norm.weight

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count += 1
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                self.update(self, p, p.grad)


LIVE = seeded()
KEPT: list[Tensor] = []


def stale(_: Own, p: nn.Parameter, g: Tensor) -> None:
    KEPT.append(g)
    p.add_(KEPT[0].sum())


def shared(own: Own, p: nn.Parameter, _: Tensor) -> None:
    own.state[p]["view"] = p.view(-1)


def repeated(own: Own, p: nn.Parameter, g: Tensor) -> None:
    for _ in range(own.count // 4):
        p.add_(g, alpha=-0.1)


def written(own: Own, p: nn.Parameter, g: Tensor) -> None:
    own.state[p].setdefault("size", torch.tensor(0.0)).add_(g.sum())


def wide(own: Own, p: nn.Parameter, g: Tensor) -> None:
    own.state[p].setdefault("m", torch.zeros_like(p, dtype=torch.float64)).add_(g)


def corrected(own: Own, p: nn.Parameter, g: Tensor) -> None:
    if p.numel() > 9:
        p.sub_(g / (1 + g.std(correction=own.count)))


def moving(own: Own, p: nn.Parameter, _: Tensor) -> None:
    p.copy_(F.softplus(p, beta=1 + 1 / own.count))


REFUSED: dict[str, tuple[Callable[[Own, nn.Parameter, Tensor], Any], str]] = {
    "values": (lambda _, p, g: p.add_(g, alpha=-g.norm().item()), r"at .*test_updates.py:\d+ it needs the values"),
    "branches": (lambda _, p, g: p.add_(g) if g.sum() > 0 else None, "it needs the values of tensors"),
    "selection": (lambda _, p, g: p.add_(g[g > 0].sum()), "it needs the values of tensors"),
    "noise": (lambda _, p, g: p.add_(torch.randn_like(g)), r"at .*:\d+ it draws random numbers"),
    "Python's noise": (lambda _, p, g: p.add_(g, alpha=random.random()), "two captures .* at optimizer.numbers"),
    "another way": (lambda _, p, g: p.add_(LIVE.gain * g), "reads a tensor of the model by another way"),
    "an earlier step": (stale, "reads a tensor of an earlier step that is neither in its `state`"),
    "one memory": (shared, "holds one tensor's memory twice"),
    "too many forms": (repeated, "its steps 1 to 16 call other operators in 5 ways, and a program has at most 4"),
    "a number as state": (written, "writes to a tensor that it did not make from a parameter"),
    "a constant": (lambda _, p, g: p.add_(g.sum() * torch.tensor([0.1, 0.2]).sum(0)) * torch.tensor([1.0, 2.0]),
                   "computes with a tensor of 2 elements that is neither made in the step"),
    "float64": (wide, "state of float32, bfloat16, int64 or bool, got m.*, torch.float64"),
    "a changing number": (moving, r"at .*:\d+ it gives softplus a number that changes from step to step"),
    "a changing correction": (corrected, r"at .*:\d+ it gives std a number that changes from step to step"),
    "a decomposition": (lambda _, p, g: p.add_(torch.linalg.svdvals(g.view(1, -1)).sum()), "no exact form here"),
    "NumPy": (lambda _, p, g: p.add_(torch.from_numpy(g.numpy())), "fails on tensors without values"),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_except(REFUSED, *list(REFUSED)[::3]))
def test_unsupported_optimizer_updates_are_refused_with_their_location(name: str) -> None:
    update, message = REFUSED[name]
    KEPT.clear()
    task = task_of(LIVE, Own(LIVE, update))
    with pytest.raises(ConfigurationError, match=message):
        checked(task)


def test_an_optimizer_that_cannot_be_copied_is_refused() -> None:
    optimizer = Own(LIVE, lambda *_: None)
    optimizer.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match="an optimizer that can be copied, got Own: cannot pickle"):
        capture_task(task_of(LIVE, optimizer))
    replaced = O.Adamax(trained(LIVE))
    replaced.step = lambda *_: None  # type: ignore[assignment,method-assign]
    with pytest.raises(ConfigurationError, match="with the `step` of its class, got 'another'"):
        task_of(LIVE, replaced)


def test_a_recorded_update_unlike_torchs_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    model, changing = seeded(), torch_updates._changing

    def wrong(*given: Any) -> Any:
        table, places = changing(*given)
        return table * 1.001, places

    optimizer = O.Adamax(trained(model), lr=0.01)
    monkeypatch.setattr(torch_updates, "_changing", wrong)
    with pytest.raises(ConfigurationError, match=r"after step 1, model\.first\.weight is .* what Adamax makes"):
        checked(task_of(model, optimizer))


def test_an_update_that_fails_in_float64_is_checked_in_float32() -> None:
    def update(_: Own, p: nn.Parameter, g: Tensor) -> None:
        mixed = g @ torch.ones(g.shape[1:] * 2).to(torch.float32) if g.ndim == 2 else g
        p.add_(mixed.to(p.dtype), alpha=-0.01)

    assert checked(task_of(LIVE, Own(LIVE, update))).check == "full"


class Teacher(nn.Module):
    """A student, and a frozen teacher that follows it in forward, in one of the ways in which this is written."""

    def __init__(self, follow: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.follow = follow

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for own, given in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                self.follow(own, given)
            target = self.teacher(-x)
        return 2 - 2 * F.cosine_similarity(self.student(x), target, dim=1).mean()


def assigned(own: Tensor, given: Tensor) -> None:
    own.data = own.data * 0.9 + given.data * 0.1


FOLLOWING: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "in place": lambda own, given: own.lerp_(given, 0.1),
    "copied": lambda own, given: own.copy_(0.9 * own + 0.1 * given),
    "as data": lambda own, given: own.data.mul_(0.9).add_(given.data, alpha=0.1),
    "assigned": assigned,
}


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", slow_except(["settings", "recorded"], "settings"))
@pytest.mark.parametrize("how", slow_except(FOLLOWING, "assigned"))
def test_a_teacher_model_that_follows_its_student_is_captured_as_state(how: str, optimizer: str) -> None:
    def make() -> tuple[nn.Module, O.Optimizer]:
        torch.manual_seed(0)
        model = Teacher(FOLLOWING[how])
        kind = O.SGD if optimizer == "settings" else O.Adamax
        return model, kind(model.parameters(), lr=0.1)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        found: Tensor = model(x)
        return found

    model, made = make()
    given = {"x": data()["x"]}
    captured = checked(Task(model, loss, optimizer=made, data=given, batch=6, steps=STEPS))
    results = list(islice(stepped(captured), STEPS))
    model, made = make()
    for result in results:
        made.zero_grad()
        value = loss(model, **given)
        torch.autograd.backward(value)
        made.step()
        assert result.loss == pytest.approx(value.item(), abs=1e-5)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(results[-1].state[f"model.{name}"], tensor, rtol=1e-4, atol=1e-5)


def alias(own: Tensor, given: Tensor) -> None:
    own.data = given.data


def test_a_teacher_model_sharing_its_students_memory_is_refused() -> None:
    model = Teacher(alias)
    task = Task(
        model, lambda m, x: m(x), optimizer=O.SGD(model.parameters(), lr=0.1), data={"x": data()["x"]}, batch=6, steps=2
    )
    with pytest.raises(ConfigurationError, match=r"one, teacher\.0\.weight, that is given other memory"):
        capture_task(task)


def test_a_missing_update_of_a_teacher_model_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    model, capture = Teacher(FOLLOWING["in place"]), captured_module.capture

    def without(*given: Any) -> Any:
        step = capture(*given)
        return replace(step, buffers={n: ref for n, ref in step.buffers.items() if "teacher.0.weight" not in n})

    monkeypatch.setattr(captured_module, "capture", without)
    task = Task(model, lambda m, x: m(x), optimizer=SGD(lr=0.1), data={"x": data()["x"]}, batch=6, steps=2)
    with pytest.raises(ConfigurationError, match=r"in step 2, buffer teacher\.0\.weight"):
        checked(task)


def started(own: Own, p: nn.Parameter, name: str = "slow") -> Tensor:
    """An entry of the state, which begins as a copy of the parameter."""
    found: Tensor = own.state[p].setdefault(name, p.detach().clone() * 0.9)
    return found


def ends_a_cycle(own: Own, p: nn.Parameter, g: Tensor, copied: Callable[[Tensor], Tensor]) -> None:
    """Lookahead, whose fifth step gives the parameter the slow weights."""
    slow = started(own, p)
    p.add_(g, alpha=-0.1)
    if own.count % 5 == 0:
        slow.lerp_(p, 0.5)
        p.data = copied(slow)


def follows(own: Own, p: nn.Parameter, g: Tensor, kept: Callable[[nn.Parameter], Tensor]) -> None:
    """A step further along the way from the parameter before."""
    if "prev" in own.state[p]:
        p.add_(p - own.state[p]["prev"].view_as(p), alpha=0.2)
    own.state[p]["prev"] = kept(p)
    p.add_(g, alpha=-0.1)


def becomes_one(own: Own, p: nn.Parameter, g: Tensor, kept: Callable[[Tensor], Tensor]) -> None:
    first, second = started(own, p, "first"), started(own, p, "second")
    first.mul_(0.9).add_(g)
    second.lerp_(g, 0.1)
    p.add_(first + second, alpha=-0.01)
    if own.count == 7:
        own.state[p]["second"] = kept(first)


def swaps(own: Own, p: nn.Parameter, g: Tensor, every: int) -> None:
    """Exchanges the memory of two tensors: each still has one of its own."""
    slow = started(own, p)
    p.add_(g, alpha=-0.1)
    if own.count % every == 0:
        p.data, slow.data = slow.data, p.data


def last_gradient(own: Own, p: nn.Parameter, g: Tensor) -> None:
    """Holds the gradient itself: `zero_grad()` gives the next step another tensor."""
    if "prev" in own.state[p]:
        p.add_(own.state[p]["prev"], alpha=-0.03)
    own.state[p]["prev"] = p.grad
    p.add_(g, alpha=-0.1)


def for_a_moment(own: Own, p: nn.Parameter, g: Tensor) -> None:
    slow, held = started(own, p), p.data
    p.data = slow
    p.add_(g, alpha=-0.1)
    p.data = held
    p.lerp_(slow, 0.3)


def sets(own: Own, p: nn.Parameter, g: Tensor) -> None:
    slow = started(own, p)
    p.add_(g, alpha=-0.1)
    if own.count == 5:
        p.set_(slow)


ALIASES: dict[str, tuple[Callable[[Own, nn.Parameter, Tensor], Any], str]] = {
    "at step 5": (partial(ends_a_cycle, copied=lambda slow: slow), "slow"),
    "a view at step 5": (partial(ends_a_cycle, copied=lambda slow: slow.view(-1).view_as(slow)), "slow"),
    "data": (partial(follows, kept=lambda p: p.data), "prev"),
    "detached": (partial(follows, kept=lambda p: p.detach()), "prev"),
    "view": (partial(follows, kept=lambda p: p.view(-1)), "prev"),
    "state at step 7": (partial(becomes_one, kept=lambda t: t.detach()), "second"),
}
LAWFUL: dict[str, Callable[[Own, nn.Parameter, Tensor], Any]] = {
    "at step 5": partial(ends_a_cycle, copied=Tensor.clone),
    "data": partial(follows, kept=lambda p: p.data.clone()),
    "the parameter itself": partial(follows, kept=lambda p: p),
    "state at step 7": partial(becomes_one, kept=Tensor.clone),
    "the same tensor at step 7": partial(becomes_one, kept=lambda t: t),
    "swap": partial(swaps, every=1),
    "swap at step 5": partial(swaps, every=5),
    "gradient": last_gradient,
    "for a moment": for_a_moment,
    "new data": lambda _, p, g: setattr(p, "data", p.data - 0.1 * g),
}


@pytest.mark.parametrize("name", slow_except(ALIASES, "at step 5"))
def test_optimizer_tensors_sharing_memory_are_refused_naming_both(name: str) -> None:
    update, entry = ALIASES[name]
    message = rf"holds one tensor's memory twice, as .*\b(first|parameter )\S* and {entry}\S*, so .*clone"
    with pytest.raises(ConfigurationError, match=message):
        capture_task(task_of(LIVE, Own(LIVE, update)))


CASES |= {
    f"own, {name}": Case(make=lambda m, update=update: Own(m, update), near=1e-5) for name, update in LAWFUL.items()
}


@pytest.mark.parametrize("name", slow_except(CASES, "one cycle of betas"))
def test_a_recorded_optimizer_steps_as_in_eager_pytorch(name: str) -> None:
    case, model = CASES[name], seeded()
    made = case.make(model)
    captured = checked(task_of(model, made, case.schedules(made)))
    assert captured.check == "full"
    losses, parameters = eager(case)
    results = list(islice(stepped(captured), STEPS))
    assert [r.loss for r in results] == pytest.approx(losses, abs=case.near)
    for parameter, wanted in parameters.items():
        torch.testing.assert_close(results[-1].state[f"model.{parameter}"], wanted, rtol=0, atol=5 * case.near)


def test_an_optimizer_that_begins_with_shared_memory_is_refused() -> None:
    for name, given, message in (
        ("slow", [p.detach() for p in trained(LIVE)], r"as parameter \S+ and slow\S*, so"),
        ("both", [torch.zeros(4, 6)[:3], torch.zeros(2)], ""),
    ):
        optimizer = Own(LIVE, lambda own, p, g: p.add_(g, alpha=-0.1))
        setattr(optimizer, name, given)
        if message:
            with pytest.raises(ConfigurationError, match=message):
                capture_task(task_of(LIVE, optimizer))
        else:
            assert capture_task(task_of(LIVE, optimizer)).program.body
    with pytest.raises(ConfigurationError, match=r"at .*test_updates.py:\d+ it gives a tensor other memory .`set_`"):
        capture_task(task_of(LIVE, Own(LIVE, sets)))
