"""Steps of several phases, each with a loss and an optimizer of its own: eager PyTorch's losses and weights."""

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler

from tests.engine.lowering_bench import stepped, torch_batch
from tests.golden.more import Images, judges, makes
from tests.parts import slow_except
from tiebreak import SGD, Clip, Task
from tiebreak.api.training.tasks import capture as checked
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture import captured as captured_module
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.capture.draws import GivenDraws
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.protocol.errors import ConfigurationError

STEPS = 25
O = torch.optim  # noqa: E741 (torch's own name is long)
Loss = Callable[..., Tensor]
Optimizers = Callable[[nn.Module], list[torch.optim.Optimizer]]


class Clipped(O.RMSprop):
    """Keeps its parameters small after each step, as the first Wasserstein GANs did."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.clamp_(-0.1, 0.1)


class Points(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        self.judge = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))


def critic(number: int) -> Loss:
    def loss(model: Any, x: Tensor) -> Tensor:
        own = x[4 * number : 4 * number + 4]  # each turn of the critic has examples of its own
        made = model.maker(torch.randn(4, 3)).detach()
        return (model.judge(made) - model.judge(own)).mean()

    return loss


def fools(model: Any) -> Tensor:
    return -model.judge(model.maker(torch.randn(4, 3))).mean()  # type: ignore[no-any-return]


class Actor(nn.Module):
    """An actor and a critic over one trunk, which both optimizers train."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.policy, self.value = nn.Linear(3, 6), nn.Linear(6, 2), nn.Linear(6, 1)
        self.register_buffer("seen", torch.zeros(()))


def values(model: Any, x: Tensor, reward: Tensor) -> Tensor:
    model.seen += 1
    return F.mse_loss(model.value(torch.tanh(model.trunk(x))).squeeze(1), reward)


def acts(model: Any, x: Tensor, reward: Tensor, action: Tensor) -> Tensor:
    hidden = torch.tanh(model.trunk(x))
    gain = (reward - model.value(hidden).squeeze(1)).detach() / model.seen
    return F.cross_entropy(model.policy(hidden), action, reduction="none").mul(gain).mean()


def sides(model: Any) -> list[torch.optim.Optimizer]:
    betas = (0.5, 0.999)
    return [O.Adam(model.judge.parameters(), 1e-3, betas), O.Adam(model.maker.parameters(), 2e-3, betas)]


def in_turns(model: Any) -> list[torch.optim.Optimizer]:
    return [Clipped(model.judge.parameters(), 5e-3)] * 3 + [O.RMSprop(model.maker.parameters(), 5e-3)]


def shared(model: Any) -> list[torch.optim.Optimizer]:
    trunk = list(model.trunk.parameters())
    return [
        O.SGD([*trunk, *model.value.parameters()], 0.05, momentum=0.9),
        O.AdamW([*trunk, *model.policy.parameters()], 1e-2),
    ]


def data() -> dict[str, dict[str, Tensor]]:
    torch.manual_seed(1)
    rewards = {"x": torch.randn(12, 3), "reward": torch.randn(12), "action": torch.arange(12) % 2}
    return {"images": {"x": torch.randn(16, 1, 8, 8).tanh()}, "points": {"x": torch.randn(24, 2)}, "acts": rewards}


CASES: dict[str, tuple[str, Callable[[], nn.Module], list[Loss], Optimizers, int]] = {
    "two sides with batch norm and dropout": ("images", Images, [judges, makes], sides, 8),
    "a critic in three turns": ("points", Points, [*map(critic, range(3)), fools], in_turns, 12),
    "an actor and a critic over one trunk": ("acts", Actor, [values, acts], shared, 6),
}


def task_of(case: str, steps: int = STEPS, **changes: Any) -> Task:
    name, make, losses, optimizers, batch = CASES[case]
    given = data()[name]
    model = make()
    settings = {"optimizer": optimizers(model), "data": given, "batch": batch, "steps": steps, "seed": 3} | changes
    return Task(model, losses, **settings)


def run_eager(
    task: Task, optimizers: Sequence[torch.optim.Optimizer], model: nn.Module, program: Any, step: int,
    draws: Sequence[Sequence[Tensor | None]],
) -> list[float]:  # fmt: skip
    """A step of eager PyTorch in FP64, as one would write it, with the engine's draws."""
    a, losses = task.accumulation, list[float]()
    batches = [torch_batch(task, program, (step - 1) * a + number) for number in range(1, a + 1)]
    for phase, optimizer, numbers in zip(task.phases, optimizers, draws, strict=True):
        optimizer.zero_grad()
        with GivenDraws(numbers):
            for batch in batches:
                loss = phase.loss(model, *batch) / a
                loss.backward()
                losses.append(loss.item())
        if task.clip is not None and task.clip.norm is not None:
            nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], task.clip.norm)
        optimizer.step()
    return losses


@pytest.fixture
def kept_dtype() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


def along_torch(
    task: Task, optimizers: Optimizers, schedules: Callable[[Any], list[Any]] = lambda _: [],
    averages: dict[str, Tensor] | None = None,
) -> tuple[dict[str, Tensor], nn.Module]:  # fmt: skip
    """The engine's state and eager PyTorch's model after all steps; losses are compared on the way.

    averages: follow eager PyTorch's parameters.
    """
    captured = checked(task)
    torch.set_default_dtype(torch.float64)
    machine, model = Interpreter(captured.program, Arithmetic()), copy.deepcopy(task.model).double()
    state, placed = machine.to_device(captured.state), machine.place_data(captured.data)
    eager = optimizers(model)
    schedulers = schedules(eager)
    for step in range(1, task.steps + 1):
        seen = dict[int, Tensor]()

        def observe(leaf: int, tensor: Tensor, seen: dict[int, Tensor] = seen) -> Tensor:
            seen[leaf] = tensor.clone()
            return tensor

        result = machine.step(step, state, placed, observe)
        draws = [[None if v is None else seen[v] for v in phase.draws] for phase in captured.phases]
        losses = run_eager(task, eager, model, captured.program, step, draws)
        for scheduler in schedulers:
            scheduler.step()
        for name, average in (averages or {}).items():
            average.lerp_(model.get_parameter(name).detach(), 0.1)
        assert result.loss == pytest.approx(sum(losses), rel=1e-4, abs=1e-5)
        state = result.state
    return dict(state), model


def assert_near(state: dict[str, Tensor], model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        torch.testing.assert_close(state[f"model.{name}"].to(tensor.dtype), tensor.detach(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("case", slow_except(CASES))
@pytest.mark.usefixtures("kept_dtype")
def test_steps_of_several_phases_match_eager_pytorch(case: str) -> None:
    assert_near(*along_torch(task_of(case), CASES[case][3]))


@pytest.mark.slow
@pytest.mark.usefixtures("kept_dtype")
def test_each_phase_accumulates_over_the_batches_of_the_step() -> None:
    case = "an actor and a critic over one trunk"
    assert_near(*along_torch(task_of(case, 20, batch=2, accumulation=3), CASES[case][3]))


@pytest.mark.slow
@pytest.mark.usefixtures("kept_dtype")
def test_phases_with_item_counts_accumulate_gradients() -> None:
    """The number of items divides each phase's loss; batch norm and dropout go from batch to batch."""
    counted = data()["images"] | {"count": torch.ones(16, dtype=torch.int64)}
    losses = [lambda m, x: judges(m, x) * 4, lambda m, x: makes(m, x) * 4]
    model = Images()
    more = {"data": counted, "batch": 4, "steps": 2, "accumulation": 2, "items": "count"}
    assert checked(Task(model, losses, optimizer=sides(model), **more)).check == "full"


@pytest.mark.slow
@pytest.mark.usefixtures("kept_dtype")
def test_phases_with_schedules_clipping_and_averages_match_eager() -> None:
    def schedules(optimizers: Sequence[Any]) -> list[Any]:
        first, *_, last = optimizers
        return [lr_scheduler.StepLR(first, 7, 0.5), lr_scheduler.OneCycleLR(last, 0.01, total_steps=STEPS)]

    case = "a critic in three turns"
    model = CASES[case][1]()
    optimizers = in_turns(model)
    task = Task(
        model, CASES[case][2], optimizer=optimizers, schedule=schedules(optimizers), clip=Clip(norm=0.05), average=0.9,
        data=data()["points"], batch=12, steps=STEPS,
    )  # fmt: skip
    initial = {name: p.detach().double() for name, p in model.named_parameters()}
    state, eager = along_torch(task, in_turns, schedules, initial)
    assert_near(state, eager)
    for name, average in initial.items():
        torch.testing.assert_close(state[f"average.{name}"].double(), average, rtol=1e-3, atol=1e-5)


def test_a_phase_that_reads_outdated_weights_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides from the same weights, which is another training than in turns."""
    capture, first = captured_module.capture, list[Any]()

    def from_the_start(*given: Any) -> Any:
        first.append(given[5])
        return capture(*given[:5], first[0], *given[6:])

    monkeypatch.setattr(captured_module, "capture", from_the_start)
    with pytest.raises(ConfigurationError, match=r"in step 1, the loss of phase 2 is .* the phases before agree"):
        checked(task_of("an actor and a critic over one trunk", steps=2))


def points(losses: list[Loss], optimizers: Optimizers = sides, batch: int = 12) -> Task:
    model = Points()
    model.calls = 0
    return Task(model, losses, optimizer=optimizers(model), data=data()["points"], batch=batch, steps=2)


def keeps(model: Any, x: Tensor) -> Tensor:
    model.kept = model.maker(torch.randn(x.shape[0], 3))
    return model.judge(model.kept.detach()).mean() - model.judge(x).mean()  # type: ignore[no-any-return]


def reads(model: Any) -> Tensor:
    return -model.judge(model.kept.detach()).mean() * model.maker[0].bias.sum()  # type: ignore[no-any-return]


def test_a_tensor_kept_in_python_between_phases_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot follow a tensor that is kept aside"):
        capture_task(points([keeps, reads]))


def counts(model: Any) -> Tensor:
    model.calls = model.calls + 1
    return fools(model)


def test_a_python_counter_shared_by_phases_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="changes attribute calls of the model"):
        capture_task(points([lambda m, x: m.judge(x).mean() * m.calls, counts]))


REFUSED: dict[str, tuple[Callable[[Any], dict[str, Any]], str]] = {
    "settings": (lambda _: {"optimizer": SGD(lr=0.1)}, "as many optimizers of torch as losses, 2,"),
    "one optimizer": (lambda m: {"optimizer": sides(m)[:1]}, "as many optimizers of torch as losses, 2,"),
    "norm": (lambda _: {"norm": True}, "several losses without `norm`"),
    "an optimizer of another model": (lambda _: {"optimizer": sides(Images())}, "of the model's own parameters"),
    "another scheduler": (
        lambda _: {"schedule": lr_scheduler.StepLR(sides(Images())[0], 1)},
        "that of its lr_scheduler",
    ),
    "data for nobody": (lambda _: {"data": data()["images"] | {"y": torch.zeros(16)}}, "the arrays of the batch, x, y"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_phase_definitions_are_refused(case: str) -> None:
    model = Images()
    change, words = REFUSED[case]
    given = {"optimizer": sides(model), "data": data()["images"]} | change(model)
    with pytest.raises(ConfigurationError, match=words):
        Task(model, [judges, makes], batch=8, steps=2, **given)


def test_phases_of_one_optimizer_must_train_the_same_parameters() -> None:
    task = points([fools, lambda m, x: m.judge(x).mean()], lambda m: [O.SGD(m.parameters(), 0.1)] * 2, batch=4)
    with pytest.raises(ConfigurationError, match=r"phases with one optimizer \(SGD\) to have gradients for the same"):
        capture_task(task)


# Weights that the step writes to, and gradients that it switches off and on


class Sides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 5))
        self.judge = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))


def penalized(model: Any, x: Tensor) -> Tensor:
    """The critic's loss with its gradient penalty (Gulrajani et al. 2017)."""
    model.judge.requires_grad_(True)
    model.maker.requires_grad_(False)
    made = model.maker(x)
    between = (0.3 * x + 0.7 * made).detach().requires_grad_(True)
    (slope,) = torch.autograd.grad(model.judge(between).sum(), between, create_graph=True)
    return (model.judge(made) - model.judge(x)).mean() + (slope.norm(dim=1) - 1).square().mean()


def follows(model: Any, x: Tensor) -> Tensor:
    for p in model.judge.parameters():
        p.requires_grad = False
    for p in model.maker.parameters():
        p.requires_grad = True
    return -model.judge(model.maker(x)).mean()  # type: ignore[no-any-return]


def at_once(model: Any, x: Tensor) -> Tensor:
    """The judge is trained by its own share of the loss only."""
    made = model.maker(x)
    model.judge.requires_grad_(False)
    assert not model.judge[0].weight.requires_grad
    assert model.maker[0].weight.new(x.shape).shape == x.shape, "a torch.Size stays one"
    fooled = -model.judge(made).mean()
    model.judge.requires_grad_(True)
    return fooled + F.softplus(model.judge(made.detach())).mean() + F.softplus(-model.judge(x)).mean()


def clamped(model: Any, x: Tensor) -> Tensor:
    for p in model.judge.parameters():
        p.data.clamp_(-0.2, 0.2)
    return (model.judge(x) ** 2 - model.judge(model.maker(x))).mean()  # type: ignore[no-any-return]


def prototypes(model: Any, x: Tensor) -> Tensor:
    """Rows of unit length before each step (SwAV)."""
    with torch.no_grad():
        weight = model.maker[2].weight
        weight.copy_(F.normalize(weight, dim=1))
    return F.cross_entropy(model.maker(x), x.argmax(1))


def perturbed(model: Any, x: Tensor) -> Tensor:
    """A loss at weights that a gradient has moved, which stay so (between the two losses of AWP)."""
    near = model.maker(x).square().mean()
    slopes = torch.autograd.grad(near, list(model.maker.parameters()))
    with torch.no_grad():
        for p, slope in zip(model.maker.parameters(), slopes, strict=True):
            p.add_(slope, alpha=0.05)
    return (model.maker(x) - x).square().mean()  # type: ignore[no-any-return]


class Rows(Sides):
    """Tables whose rows are shortened when they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.bag = nn.Embedding(7, 5, max_norm=0.5), nn.EmbeddingBag(7, 5, max_norm=0.7, norm_type=1.0)


def shortened(model: Any, x: Tensor) -> Tensor:
    read = model.table(x.argmax(1)) + model.bag(x.argsort(1)[:, :2])
    return F.cross_entropy(read + model.maker(x), x.argmin(1))


def adam(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [O.Adam(model.parameters(), 0.02)]


OWN_WRITES: dict[str, tuple[type[nn.Module], list[Loss], Optimizers]] = {
    "toggled sides": (Sides, [penalized, follows], sides),
    "toggled at once": (Sides, [at_once], adam),
    "clamped": (Sides, [clamped, lambda m, x: -m.judge(m.maker(x)).mean()], sides),
    "prototypes": (Sides, [prototypes], adam),
    "perturbed": (Sides, [perturbed], adam),
    "shortened rows": (Rows, [shortened], adam),
}


@pytest.mark.parametrize("case", slow_except(OWN_WRITES, "toggled at once"))
def test_weight_writes_and_gradient_switches_match_eager_pytorch(case: str) -> None:
    make, losses, optimizers = OWN_WRITES[case]
    torch.manual_seed(2)
    model, given = make(), {"x": torch.randn(12, 5, generator=torch.Generator().manual_seed(3))}
    eager, several = copy.deepcopy(model), len(losses) > 1
    settings: dict[str, Any] = {"loss": losses if several else losses[0], "batch": 12, "steps": 22}
    given_optimizers = optimizers(model)
    task = Task(model, optimizer=given_optimizers if several else given_optimizers[0], data=given, **settings)
    captured, each = checked(task), optimizers(eager)
    for result in islice(stepped(captured), 22):
        total = 0.0
        for loss, optimizer in zip(losses, each, strict=True):
            eager.zero_grad()
            value = loss(eager, **given)
            value.backward()
            optimizer.step()
            total += value.item()
        assert result.loss == pytest.approx(total, rel=1e-5, abs=1e-6)


def test_permanently_disabling_a_gradient_in_a_step_is_refused() -> None:
    """In eager PyTorch the judge is not trained from the second step on."""
    model = Sides()
    task = Task(model, [clamped, follows], optimizer=sides(model), data={"x": torch.randn(6, 5)}, batch=6, steps=2)
    with pytest.raises(ConfigurationError, match=r"sets `requires_grad` of judge\.0\.weight to False; set it back"):
        capture_task(task)


@pytest.mark.slow
def test_a_program_without_a_weight_write_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = captured_module.capture

    def without(*given: Any) -> Any:
        found = capture(*given)
        found.buffers.clear()
        return found

    monkeypatch.setattr(captured_module, "capture", without)
    model = Sides()
    task = Task(model, prototypes, optimizer=adam(model)[0], data={"x": torch.randn(6, 5)}, batch=6, steps=2)
    with pytest.raises(ConfigurationError, match=r"buffer maker\.2\.weight is .* from that of eager PyTorch"):
        checked(task)
