"""Optimizers as programs: bit for bit an emulation in numpy and the integer reference, and close to torch in FP64."""

from collections.abc import Iterator, Mapping
from importlib import import_module

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conformance.whole_steps import execute, new_state
from tests.conftest import CaseCounter
from tests.engine.lowering_bench import make_task, nth, same_bits, squared_error, stepped
from tests.parts import slow_except
from tiebreak import SGD, Adafactor, Adagrad, Adam, AdamW, Clip, Group, Lion, NAdam, RAdam, RMSprop, Task, no_decay
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.data.tensors import tensor_bytes
from tiebreak.engine.optimizers.rules import radam_begins, second_moment_weights, tables
from tiebreak.engine.optimizers.settings import Optimizer, f32, settings_of
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import Opcode

from .optimizer_cases import Emulation, OptimizerJob, against_torch, nadam_scalars, radam_scalars

STEPS = 24
SHAPES = {"layer.weight": (5, 3), "layer.bias": (5,), "stack": (2, 4, 3), "gain": ()}
GROUPS = (Group(match=("*.bias",), weight_decay=0.0, lr_factor=0.3), Group(match=("gain", "*.bias"), lr_factor=2.0))
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(lr=0.1),
    "momentum": SGD(lr=0.1, momentum=0.9, weight_decay=0.01, groups=GROUPS),
    "dampened": SGD(lr=0.1, momentum=0.8, dampening=0.3),
    "nesterov": SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": Adam(lr=0.05, weight_decay=0.1),
    "adamw": AdamW(lr=0.05, weight_decay=0.1, groups=GROUPS),
    "adamw small betas": AdamW(lr=0.05, betas=(0.3, 0.4), eps=1e-3, weight_decay=0.0),
    "amsgrad": Adam(lr=0.05, weight_decay=0.1, amsgrad=True),
    "adamw amsgrad": AdamW(lr=0.05, amsgrad=True, betas=(0.9, 0.3)),
    "rmsprop": RMSprop(),
    "rmsprop all": RMSprop(lr=0.03, alpha=0.6, momentum=0.7, centered=True, weight_decay=0.1, groups=GROUPS),
    "adagrad": Adagrad(),
    "adagrad all": Adagrad(lr=0.1, lr_decay=0.3, initial_accumulator_value=0.01, weight_decay=0.1, groups=GROUPS),
    "nadam": NAdam(),
    "nadam all": NAdam(lr=0.1, betas=(0.8, 0.9), momentum_decay=0.3, weight_decay=0.1, groups=GROUPS),
    "nadam decoupled": NAdam(lr=0.1, weight_decay=0.1, decoupled_weight_decay=True),
    "radam": RAdam(),
    "radam all": RAdam(lr=0.1, betas=(0.8, 0.98), weight_decay=0.1, groups=GROUPS),
    "radam decoupled": RAdam(lr=0.1, betas=(0.9, 0.5), weight_decay=0.1, decoupled_weight_decay=True),
    "lion": Lion(weight_decay=0.1, groups=GROUPS),
    "adafactor": Adafactor(),
    "adafactor all": Adafactor(lr=0.4, beta2_decay=-0.5, eps=(1e-3, 1e-2), d=1.5, weight_decay=0.1, groups=GROUPS),
}


def job_of(optimizer: Optimizer, clip: Clip | None = None, steps: int = STEPS) -> OptimizerJob:
    """Gradients of many sizes: whole tensors that are zero, tiny, huge; single zeros of both signs; subnormals."""
    generator = torch.Generator().manual_seed(3)
    parameters = {n: torch.randn(shape, generator=generator) for n, shape in SHAPES.items()}
    gradients = {}
    for name, shape in SHAPES.items():
        scale = 10.0 ** torch.randint(-12, 7, (steps, *(1 for _ in shape)), generator=generator).float()
        g = torch.randn((steps, *shape), generator=generator) * scale
        g[1::7] = 0.0
        g[2::7] *= 1e-37
        g.view(-1)[::5] = -0.0
        gradients[name] = g
    rates = torch.rand(steps, generator=generator) * optimizer.lr
    return OptimizerJob(optimizer, parameters, gradients, rates, clip)


def expected_settings(optimizer: Optimizer) -> dict[str, tuple[float, float]]:
    plain_settings = (1.0, optimizer.weight_decay)
    if not optimizer.groups:
        return dict.fromkeys(SHAPES, plain_settings)
    grouped = {"layer.bias": (0.3, 0.0), "gain": (2.0, optimizer.weight_decay)}
    return {name: grouped.get(name, plain_settings) for name in SHAPES}


def emulate(job: OptimizerJob) -> Iterator[dict[str, np.ndarray]]:
    emulation = Emulation(job.optimizer)
    parameters = {name: p.numpy() for name, p in job.parameters.items()}
    with np.errstate(under="ignore"):
        for step, rate in enumerate(job.rates.numpy()):
            gradients = {name: g[step].numpy() for name, g in job.gradients.items()}
            if job.clip is not None:
                gradients = emulation.clip(job.clip, gradients)
            parameters = emulation.advance(parameters, gradients, rate, expected_settings(job.optimizer))
            state = {f"model.{name}": p for name, p in parameters.items()}
            yield state | {f"optimizer.{name}": t for name, t in emulation.state.items()}


CLIPS = Clip(norm=0.7), Clip(value=0.2), Clip(norm=2.0, value=0.5)


@pytest.mark.parametrize(
    ("name", "clip"), [*((name, None) for name in OPTIMIZERS), *(("momentum", clip) for clip in CLIPS)], ids=str
)
def test_optimizer_steps_equal_a_numpy_emulation(name: str, clip: Clip | None, cases: CaseCounter) -> None:
    job = job_of(OPTIMIZERS[name], clip)
    for step, (expected, result) in enumerate(zip(emulate(job), stepped(job), strict=False), start=1):
        state = result.state
        assert state.keys() == expected.keys()
        for entry, tensor in state.items():
            assert tensor.numpy().tobytes() == expected[entry].astype(np.float32).tobytes(), f"step {step}: {entry}"
        cases(len(state))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_steps_equal_the_integer_reference_in_any_order(name: str) -> None:
    job = job_of(OPTIMIZERS[name], Clip(norm=0.5), steps=2)
    machine, auditor = (Interpreter(job.program, Arithmetic(permute=p)) for p in (None, 7))
    state, data = machine.to_device(job.state), machine.to_device(job.data)
    for step in (1, 2):
        before, given = ({n: bytes(tensor_bytes(t)) for n, t in part.items()} for part in (state, data))
        found = new_state(job.program, execute(job.program, before, given, step))
        for each in (auditor, machine):
            after = each.step(step, state, data).state
            assert {n: bytes(tensor_bytes(t)) for n, t in after.items()} == found
        state = after


def elementwise(optimizer: Optimizer, clip: Clip | None = None) -> int:
    g = {"w": torch.ones(1, 6, 5)}
    program = OptimizerJob(optimizer, {"w": torch.ones(6, 5)}, g, torch.ones(1), clip).program
    return sum(i.opcode == Opcode.MAP and i.shape == (6, 5) for i in program.body)


def test_optimizers_take_the_expected_operations_per_parameter() -> None:
    assert elementwise(SGD(lr=0.1)) == 2
    assert elementwise(SGD(lr=0.1, momentum=0.9, weight_decay=0.1)) == 6
    assert elementwise(SGD(lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True)) == 8
    assert elementwise(Adam(lr=0.1)) == 12
    assert elementwise(Adam(lr=0.1, weight_decay=0.1)) == 14
    assert elementwise(AdamW(lr=0.1)) == 13
    assert elementwise(Adam(lr=0.1, amsgrad=True)) == 13
    assert elementwise(RMSprop()) == 9
    assert elementwise(RMSprop(momentum=0.9)) == 11
    assert elementwise(RMSprop(centered=True)) == 15
    assert elementwise(Adagrad(weight_decay=0.1)) == 9
    assert elementwise(NAdam()) == 15
    assert elementwise(RAdam()) == 13
    assert elementwise(Lion()) == 11
    assert elementwise(Adafactor()) == 6
    assert elementwise(SGD(lr=0.1), Clip(norm=1.0)) == 3
    assert elementwise(SGD(lr=0.1), Clip(value=1.0)) == 4


def test_adafactor_weights_are_correctly_rounded(cases: CaseCounter) -> None:
    for decay in (-0.8, -0.5, -1.0, 0.0):
        table = second_moment_weights(300, decay)
        with mpmath.workprec(200):
            for t in range(1, 301):
                exact = mpmath.power(t, mpmath.mpf(decay))
                value = table[t - 1].item()
                ends = [torch.nextafter(table[t - 1], torch.tensor(end)).item() for end in (0.0, 9.0)]
                assert all(abs(value - exact) <= abs(mpmath.mpf(end) - exact) for end in ends), (t, decay)
                cases()
    assert second_moment_weights(2, -1.0).tolist() == [1.0, 0.5]


def test_optimizer_tables_are_rounded_from_their_formulas(cases: CaseCounter) -> None:
    steps = 150
    for nadam in (
        NAdam(),
        NAdam(betas=(0.0, 0.5), momentum_decay=0.0),
        NAdam(betas=(0.99, 0.9999), momentum_decay=2.0),
    ):
        columns = tables(nadam, steps).values()
        for t in range(1, steps + 1, 3):
            assert tuple(column[t - 1].item() for column in columns) == nadam_scalars(nadam, t), t
            cases()
    for radam in (RAdam(), RAdam(betas=(0.0, 0.9)), RAdam(betas=(0.5, 0.3)), RAdam(betas=(0.99, 0.99999))):
        (column,) = tables(radam, steps).values()
        begins = radam_begins(radam, steps)
        for t in range(1, steps + 1):
            assert (column[t - 1].item(), t - 1 >= begins) == radam_scalars(radam, t), t
            cases()
    assert radam_begins(RAdam(), steps) == 5
    assert radam_begins(RAdam(betas=(0.5, 0.3)), steps) == steps
    assert tables(Adagrad(), 9) == {}
    (decay,) = tables(Adagrad(lr_decay=0.5), 4).values()
    assert decay.tolist() == [1.0, f32(1 / 1.5), 0.5, f32(0.4)]


# against torch


class Net(nn.Module):
    """A matrix, vectors, a stack of matrices, a scalar; one layer is frozen and one parameter never used."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.norm = nn.LayerNorm(6)
        self.stack = nn.Parameter(torch.randn(2, 6, 3) * 0.5)
        self.gain = nn.Parameter(torch.tensor(0.7))
        self.idle = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(torch.tanh(self.frozen(self.layer(x))))
        return torch.einsum("bi,kij->bkj", hidden, self.stack).sum(1) * self.gain


def net_task(optimizer: Optimizer, **changes: object) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = changes.pop("model", None) or Net()
        data = {"x": torch.randn(15, 4), "y": torch.randn(15, 3)}
    return make_task(model, data, 6, loss=squared_error, optimizer=optimizer, **({"steps": STEPS} | changes))


NET_GROUPS = (
    Group(match=("*.bias", "norm.*"), weight_decay=0.0, lr_factor=0.5),
    Group(match=("stack",), lr_factor=2.0),
)
AGAINST_TORCH: dict[str, tuple[Optimizer, dict[str, object]]] = {
    **{name: (optimizer, {}) for name, optimizer in OPTIMIZERS.items() if name != "adafactor all"},
    "adamw, groups, norm": (AdamW(lr=0.02, weight_decay=0.3, groups=NET_GROUPS), {"clip": Clip(norm=0.5)}),
    "adafactor, all": (Adafactor(lr=0.3, weight_decay=0.1, d=1.2, eps=(1e-3, 1e-2), groups=NET_GROUPS), {}),
    "sgd, value, accumulated": (SGD(lr=0.1, momentum=0.9), {"clip": Clip(value=0.05), "accumulation": 3}),
}
"""Every optimizer, and what tasks add to one. That Adafactor by its larger rate goes apart from FP64 by itself."""
FAST = "adamw, groups, norm", "adafactor, all", "rmsprop all"


@pytest.mark.parametrize("name", slow_except(AGAINST_TORCH, *FAST))
def test_optimizers_stay_close_to_torch_in_fp64_over_24_steps(name: str) -> None:
    """Within 5e-6: the rounding of FP32 (6e-8 an operation) through 24 steps, and constants that are FP32 here."""
    optimizer, changes = AGAINST_TORCH[name]
    task = net_task(optimizer, **changes)
    start = task.initial_state()
    ours, theirs = against_torch(task)
    assert ours.keys() == theirs.keys()
    for entry, tensor in theirs.items():
        torch.testing.assert_close(
            ours[entry].double(), tensor, rtol=5e-6, atol=5e-6, msg=lambda m, e=entry: f"{e}: {m}"
        )  # type: ignore[misc]
    assert all(torch.equal(ours[n], start[n]) for n in ("frozen.weight", "frozen.bias", "idle"))
    assert all(not torch.equal(ours[n], start[n]) for n in ("layer.weight", "norm.bias", "stack", "gain"))


def test_weight_averaging_equals_the_emulation_and_changes_nothing_else() -> None:
    captured = capture_task(net_task(AdamW(lr=0.02), average=0.9))
    held = {n: t.numpy() for n, t in captured.state.items() if n.startswith("average.")}
    assert sorted(held) == [f"average.{n}" for n in sorted(["layer.weight", "layer.bias", "norm.weight", "norm.bias",
                                                            "stack", "gain", "idle"])]  # fmt: skip
    for step, result in zip(range(1, STEPS + 1), stepped(captured), strict=False):
        state = result.state
        for name, average in held.items():
            p = state[f"model.{name.removeprefix('average.')}"].numpy()
            held[name] = average + (p - average) * np.float32(1 - 0.9)
            assert state[name].numpy().tobytes() == held[name].tobytes(), (step, name)
    plain = nth(STEPS, capture_task(net_task(AdamW(lr=0.02)))).state
    assert all(torch.equal(t, state[name]) for name, t in plain.items())


# clipping


def clip_once(clip: Clip, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is left of each gradient: SGD with rate 1 from zero."""
    zeros = {name: torch.zeros(g.shape) for name, g in gradients.items()}
    job = OptimizerJob(SGD(lr=1.0), zeros, {n: g[None] for n, g in gradients.items()}, torch.ones(1), clip)
    return {name.removeprefix("model."): -t for name, t in nth(1, job, check_finite=False).state.items()}


def test_lazily_allocated_zero_moments_train_as_ordinary_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    data = {"x": torch.randn(8, 3), "y": torch.randn(8, 2)}
    made = make_task(nn.Linear(3, 2), data, loss=squared_error, optimizer=AdamW(lr=0.1), steps=20)
    expected = nth(20, capture_task(made), donate=True).state
    monkeypatch.setattr(import_module("tiebreak.engine.optimizers.rules"), "MAPPED", 1)
    found = capture_task(made)
    assert all(not t.any() for name, t in found.state.items() if name.startswith("optimizer.exp"))
    assert same_bits(nth(20, found, donate=True).state, expected) == []


def test_clipping_zero_gradients_by_norm_keeps_them_zero() -> None:
    found = clip_once(Clip(norm=1.0), {"a": torch.zeros(3), "b": torch.zeros(2, 2)})
    assert all(bool((t == 0).all()) for t in found.values())


def test_clipping_below_the_norm_limit_changes_no_bit() -> None:
    g = {"a": torch.tensor([0.3, -0.4]), "b": torch.tensor(0.1)}
    assert all(torch.equal(t, g[name]) for name, t in clip_once(Clip(norm=0.6), g).items())


@pytest.mark.parametrize("bad", [-float("inf"), float("nan")])
def test_a_non_finite_gradient_makes_all_norm_clipped_gradients_nan(bad: float) -> None:
    g = {"a": torch.tensor([1.0, bad]), "b": torch.tensor([2.0])}
    by_norm = clip_once(Clip(norm=1.0), g)
    assert all(bool(t.isnan().all()) for t in by_norm.values())
    by_value = clip_once(Clip(value=0.5), g)
    expected = torch.tensor([0.5, bad]).clamp(-0.5, 0.5)
    assert torch.equal(by_value["b"], torch.tensor([0.5]))
    torch.testing.assert_close(by_value["a"], expected, rtol=0, atol=0, equal_nan=True)


# what is refused


def test_a_parameter_belongs_to_the_first_matching_group() -> None:
    o = AdamW(
        lr=0.1, weight_decay=0.2, groups=(Group(match=("a.*",), lr_factor=3.0), Group(match=("*.b",), weight_decay=0.0))
    )
    assert settings_of(o, "a.b") == (3.0, 0.2)
    assert settings_of(o, "c.b") == (1.0, 0.0)
    assert settings_of(o, "c.w") == (1.0, 0.2)


def test_no_decay_spares_biases_and_norm_weights() -> None:
    o = AdamW(lr=0.1, groups=(no_decay(Net()),))
    spared = {name for name, _ in Net().named_parameters() if settings_of(o, name)[1] == 0}
    assert spared == {"layer.bias", "frozen.bias", "norm.weight", "norm.bias", "gain", "idle"}
    with pytest.raises(ConfigurationError, match="fewer than two dims"):
        no_decay(nn.Linear(2, 2, bias=False))


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (SGD, {"lr": 0.0}, "expected lr as a positive number, got 0.0"),
        (SGD, {"lr": "0.1"}, "expected lr as a positive number, got '0.1'"),
        (SGD, {"lr": 1e39}, "lr as a positive number"),
        (SGD, {"lr": 0.1, "momentum": 1.0}, r"momentum as a number in \[0, 1\)"),
        (SGD, {"lr": 0.1, "nesterov": True}, "momentum > 0 with nesterov"),
        (SGD, {"lr": 0.1, "momentum": 0.5, "nesterov": True, "dampening": 0.1}, "no dampening with nesterov"),
        (SGD, {"lr": 0.1, "dampening": 0.1}, "momentum > 0 with dampening"),
        (SGD, {"lr": 0.1, "weight_decay": -1.0}, "weight_decay as a number of at least 0, got -1.0"),
        (SGD, {"lr": 0.1, "groups": [Group(match=("a",))]}, "groups as a tuple of tiebreak.Group, got a list"),
        (Adam, {"lr": 0.1, "betas": (0.9, 1 - 1e-9)}, "also as FP32 numbers, got .0.9, 0.999999999"),
        (Adam, {"lr": 0.1, "betas": (0.9,)}, "betas as a pair"),
        (AdamW, {"lr": 0.1, "eps": 1e-50}, "eps as a positive number, at least 2"),
        (AdamW, {"lr": 0.1, "weight_decay": float("nan")}, "weight_decay as a number of at least 0, got nan"),
        (RMSprop, {"alpha": 1.0}, "alpha as a number in .0, 1., also as an FP32 number, got 1.0"),
        (RMSprop, {"momentum": 1.0}, r"momentum as a number in \[0, 1\)"),
        (RMSprop, {"eps": 0.0}, "eps as a positive number"),
        (Adagrad, {"lr_decay": -0.1}, "lr_decay as a number of at least 0, got -0.1"),
        (Adagrad, {"initial_accumulator_value": -0.1}, "initial_accumulator_value as a number of at least 0"),
        (NAdam, {"momentum_decay": -1.0}, "momentum_decay as a number of at least 0"),
        (RAdam, {"betas": (0.9, 1.0)}, "betas as a pair of numbers in .0, 1."),
        (Lion, {"betas": (1.0, 0.9)}, "betas as a pair of numbers in .0, 1."),
        (Adafactor, {"beta2_decay": 0.8}, "beta2_decay as a number from -1 to 0, got 0.8"),
        (Adafactor, {"d": 0.5}, "d as a number of at least 1, got 0.5"),
        (Adafactor, {"eps": 1e-3}, "eps as a pair"),
        (Adafactor, {"eps": (1e-30, 1e-3)}, "of at least 2.-63"),
        (Adafactor, {"eps": (None, 0.0)}, "of at least 2.-126"),
        (Group, {"match": "*.bias"}, "match as name patterns in a tuple, .* got '..bias'"),
        (Group, {"match": ()}, "at least one name pattern"),
        (Group, {"match": ("a",), "lr_factor": -1.0}, "lr_factor as a number of at least 0, got -1.0"),
        (Group, {"match": ("a",), "weight_decay": -1.0}, "weight_decay as a number of at least 0, or None, got -1.0"),
        (Clip, {}, "a norm or a value"),
        (Clip, {"norm": 0.0}, "norm as a positive number"),
        (Clip, {"value": float("inf")}, "value as a positive number"),
    ],
)  # fmt: skip
def test_invalid_optimizer_settings_are_refused(make: type, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(**settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accumulation": 0}, "accumulation as an integer from 1 to .*, got 0"),
        ({"average": 1.0}, r"average as a decay in \[0, 1\), or None, got 1.0"),
        ({"accumulation": 1.5}, "accumulation as an integer from 1 to .*, got 1.5"),
        ({"optimizer": SGD(lr=0.1, groups=(Group(match=("layr.*",)),))}, r"pattern to match .*layer.bias.*, got 'layr"),
        ({"model": nn.Linear(4, 3).requires_grad_(False)}, "a parameter that requires a gradient"),
        ({"optimizer": None}, "a parameter that requires a gradient, or none and optimizer=None, got .*stack"),
        *(({"optimizer": None, "model": nn.Linear(4, 3).requires_grad_(False), **more}, rf"optimizer, got \['{name}'\]")
          for more in ({"clip": 1.0}, {"schedule": (1.0,) * STEPS}, {"average": 0.9}, {"norm": True}) for name in more),
    ],
)  # fmt: skip
def test_tasks_with_invalid_optimizer_options_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        net_task(changes.pop("optimizer", SGD(lr=0.1)), **changes)  # type: ignore[arg-type]


def test_constants_are_rounded_from_float64() -> None:
    assert f32(0.1) == torch.tensor(0.1).item()
    assert f32(-1e39) == -float("inf")
