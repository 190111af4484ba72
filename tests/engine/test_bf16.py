"""bfloat16 in a step: autocast, and tensors held in it. Numbers of 16 bits, as f32 in the program.

(1) Each operator rounds once, from the exact value, forward and backward: against rationals and integers.
(2) Whole steps are those of eager PyTorch: the distance to it is a small share of what bfloat16 does to the model.
(3) What cannot be meant is refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.engine.lowering_bench import make_task, nth
from tests.parts import slow_except
from tiebreak import AdamW, Task
from tiebreak.api.training.tasks import capture as checked
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plan.ziv import Logging, NearTies
from tiebreak.engine.capture import check
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.capture.outcomes import StepOutcome, distance_of
from tiebreak.engine.capture.step_run import untouched
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.loop import exact_step
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.float32 import round_ratio
from tiebreak.protocol.program.isa import Instruction, MapFunction, Opcode
from tiebreak.protocol.program.rounding import SumKind

from .logged_cases import TOLERANCE, WIDE

BF16 = torch.bfloat16


def task(model: nn.Module, loss: Callable[..., Tensor], data: dict[str, Tensor], **more: Any) -> Task:
    return make_task(model, data, 4, rate=0.1, loss=loss, **more)


def outputs(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """What the engine makes of a function of bfloat16 tensors, as f32, by way of a buffer of a captured model."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))
            with torch.no_grad():
                self.register_buffer("kept", function(*inputs).float())
            for n, tensor in enumerate(inputs):
                self.register_buffer(f"input{n}", tensor)

        def forward(self, x: Tensor) -> Tensor:
            found = function(*(getattr(self, f"input{n}") for n in range(len(inputs))))
            assert found.dtype == BF16
            self.kept = found.float()
            return (self.weight * x).sum()

    captured = capture_task(task(Model(), lambda model, x: model(x), {"x": torch.ones(4)}))
    return nth(1, captured, check_finite=False).state["model.kept"]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def rounded(x: Fraction) -> float:
    bits = round_ratio(x.numerator, x.denominator, precision=16)
    return torch.tensor(bits - (bits >> 31 << 32), dtype=torch.int32).view(torch.float32).item()


def fractions(x: Tensor) -> list[Fraction]:
    return [Fraction(value) for value in x.flatten().tolist()]


# (1)

BINARY: dict[str, tuple[Callable[[Any, Any], Tensor], Callable[[Fraction, Fraction], Fraction]]] = {
    "add": (torch.add, Fraction.__add__),
    "sub": (torch.sub, Fraction.__sub__),
    "mul": (torch.mul, Fraction.__mul__),
    "div": (torch.div, Fraction.__truediv__),
}


@pytest.mark.parametrize("name", BINARY)
def test_bfloat16_arithmetic_is_correctly_rounded(name: str, cases: Callable[[int], None]) -> None:
    """Through f32, which rounds first: with 24 bits >= 2 * 8 + 2 the second rounding does no harm."""
    function, exact = BINARY[name]
    x, y = drawn(4000), drawn(4000, seed=1)
    y = torch.where(torch.arange(4000) % 2 == 0, y, (x * 2.0 ** -(torch.arange(4000) % 23).float()).to(BF16) + y * 0)
    y[y == 0] = 1
    wanted = [rounded(exact(a, b)) for a, b in zip(fractions(x), fractions(y), strict=True)]
    assert outputs(function, x, y).tolist() == wanted
    cases(len(wanted))


def test_bfloat16_matrix_products_are_correctly_rounded(cases: Callable[[int], None]) -> None:
    """Rows with ties between two numbers of bfloat16, and next to them."""
    a, b = drawn(12, 40), drawn(40, 9, seed=1)
    a[:4] = 0
    a[:4, 0], a[:4, 1] = 1.0, torch.tensor([2.0**-8, 2.0**-8, 2.0**-8, 3 * 2.0**-8])
    a[1, 2], a[2, 2] = 2.0**-60, -(2.0**-60)
    b[:3, 0] = 1.0
    wanted = [
        rounded(sum((x * y for x, y in zip(fractions(row), fractions(column), strict=True)), Fraction(0)))
        for row in a
        for column in b.T
    ]
    found = outputs(torch.matmul, a, b)
    assert found.flatten().tolist() == wanted
    assert found[:4, 0].tolist() == [1.0, 1.0 + 2.0**-7, 1.0, 1.0 + 2.0**-6]  # even, up, down, even
    assert outputs(lambda x: x.sum(1), a).tolist() == [rounded(sum(fractions(row), Fraction(0))) for row in a]
    cases(len(wanted))


COMPOSED: dict[str, Callable[..., Tensor]] = {
    "gelu": F.gelu,
    "silu": F.silu,
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (40,)),
    "group_norm": lambda x: F.group_norm(x[None], 4),
    "mean": lambda x: x.mean(1),
    "var": lambda x: x.var(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "mish": F.mish,
}


@pytest.mark.parametrize("name", COMPOSED)
def test_composed_bfloat16_functions_are_rounded_once_from_float32(name: str) -> None:
    """PyTorch's kernels do so: next to the FP64 value, rounded, and not further away where steps in between round."""
    x = drawn(12, 40)
    found, wide = outputs(COMPOSED[name], x).double(), COMPOSED[name](x.double())
    gap = torch.exp2(torch.floor(torch.log2(wide.abs().clamp_min(2.0**-100))) - 7)
    assert bool(((found - wide).abs() <= gap * (0.5 + 2.0**-10) + 2.0**-24).all())
    assert torch.equal(found.float(), found.float().to(BF16).float())


SLACK = {"gelu": 2.0**-20, "silu": 2.0**-20, "mish": 2.0**-20, "layer_norm": 2.0**-8, "group_norm": 2.0**-8}
"""A share of the largest gradient: those of norms cancel, and what comes into them is rounded before."""


@pytest.mark.parametrize("name", SLACK)
def test_bfloat16_gradients_are_rounded_once_from_float32(name: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(drawn(12, 40))

        def forward(self, y: Tensor) -> Tensor:
            return (COMPOSED[name](self.x).float() * y[0]).sum()

    weights = drawn(4, 12, 40, seed=3).float()
    ours, _, wide = steps(task(Model(), lambda model, y: model(y), {"y": weights}))
    (gradient,), (wanted,) = ours.gradients.values(), wide.gradients.values()
    assert bool(((gradient - wanted).abs() <= wanted.abs() * 2.0**-8 + wanted.abs().max() * SLACK[name]).all())


# (2)


def steps(of: Task) -> tuple[StepOutcome, StepOutcome, StepOutcome]:
    """The first step by the engine, by eager PyTorch as written, and by eager PyTorch in FP64."""
    captured = capture_task(of)
    with untouched(of.model), torch.enable_grad():
        both = check.EagerComparison(of, captured, exact_step)
        (ours,) = both.engine(1, captured.state)
        narrow, wide = (both.eager(ours, dtype) for dtype in (torch.float32, torch.float64))
    assert narrow is not None
    assert wide is not None
    return ours, narrow, wide


def share(of: Task) -> float:
    """The distance of the engine's gradients to eager PyTorch's, as a share of eager's own distance to FP64."""
    ours, narrow, wide = steps(of)
    apart = [distance_of(ours.gradients[name], gradient) for name, gradient in narrow.gradients.items()]
    noise = [distance_of(gradient, wide.gradients[name]) for name, gradient in narrow.gradients.items()]
    return max(a / b for a, b in zip(apart, noise, strict=True))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.filters = nn.Conv1d(8, 8, 3, padding=1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.classes = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.filters(self.table(x).mT).mT)
        return self.classes(self.attention(h, h, h, need_weights=False)[0].mean(1))


def small(how: str, **more: Any) -> Task:
    torch.manual_seed(3)
    model = Small()
    data = {"x": torch.randint(0, 11, (20, 6)), "y": torch.randint(0, 5, (20,))}

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", BF16, enabled=how == "autocast"):
            return F.cross_entropy(model(x).float(), y)  # eager's log_softmax of bfloat16 is 6 units off

    return task(model.bfloat16() if how == "held" else model, loss, data, **more)


@pytest.mark.parametrize("how", slow_except(["autocast", "held"], "held"))
def test_a_bfloat16_step_matches_eager_pytorch(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert share(small(how)) < 0.5
    monkeypatch.setattr(Builder, "bf16", lambda _, x: x)
    assert share(small(how)) > 0.7  # without the roundings it is FP32's


@pytest.mark.slow
@pytest.mark.parametrize("how", slow_except(["autocast", "held"], "held"))
def test_weights_held_in_bfloat16_stay_bfloat16_in_the_state(how: str) -> None:
    captured = checked(small(how, optimizer=AdamW(lr=1e-2), average=0.9))
    functions = {(i.opcode, i.function) for i in captured.program.body if i.is_bf16_sum or i.opcode == Opcode.MAP}
    assert (Opcode.MAP, MapFunction.BF16) in functions
    assert any(i.is_bf16_sum for i in captured.program.body)
    state = nth(3, captured).state
    narrow = {
        name for name, t in state.items() if t.is_floating_point() and t.ndim and torch.equal(t, t.to(BF16).float())
    }
    trained = {name for name in state if name.endswith("classes.weight")}
    assert trained
    assert (trained <= narrow) == (how == "held")


def roots(captured: Captured, arithmetic: Arithmetic) -> list[bytes]:
    state = nth(20, captured, arithmetic).state
    return [
        t.contiguous().view(torch.uint8).numpy().tobytes() for t in (state[name].reshape(-1) for name in sorted(state))
    ]


@pytest.mark.parametrize("how", slow_except(["autocast", "held"], "held"))
def test_bfloat16_training_does_not_depend_on_summation_order(how: str) -> None:
    captured = capture_task(replace(small(how, optimizer=AdamW(lr=1e-2)), steps=20))
    wanted = roots(captured, Arithmetic())
    assert roots(captured, Arithmetic(permute=5)) == wanted
    assert roots(captured, Arithmetic(fp64_elements=64)) == wanted


def test_rounding_logs_contain_no_bfloat16_sums() -> None:
    settled: list[Instruction] = []

    class Seen:
        def settle(
            self, index: int, i: Instruction, operands: Sequence[Tensor], result: Tensor, near: NearTies
        ) -> None:
            settled.append(i)

    captured = capture_task(small("autocast"))
    logging = Logging(thresholds=dict.fromkeys(SumKind, WIDE), tolerances=dict.fromkeys(SumKind, TOLERANCE))
    machine = Interpreter(captured.program, Arithmetic(logging=logging))
    state, data = machine.to_device(captured.state), machine.place_data(captured.data)
    exact = nth(1, captured)
    assert machine.step(1, state, data, sums=Seen()).loss == exact.loss
    assert any(i.is_f32_sum for i in settled)
    assert not any(i.is_bf16_sum for i in settled)


# (3)


def test_autocast_of_another_device_is_refused() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cuda", BF16):
            return model(x).sum()

    with pytest.raises(ConfigurationError, match=r'torch.autocast\("cuda"\); a step is captured on the CPU'):
        capture_task(task(nn.Linear(2, 2), loss, {"x": torch.ones(4, 2)}))


@pytest.mark.parametrize("within", [False, True])
def test_disabling_cuda_autocast_outside_cpu_autocast_is_allowed(within: bool) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", BF16, enabled=within), torch.autocast("cuda", enabled=False):
            return model(x).float().sum()

    given = task(nn.Linear(2, 2), loss, {"x": torch.ones(4, 2)})
    if within:
        with pytest.raises(ConfigurationError, match="a step is captured on the CPU"):
            capture_task(given)
    else:
        assert not any(i.is_bf16_sum for i in capture_task(given).program.body)


def test_float16_is_refused() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            return model(x).float().sum()

    with pytest.raises(ConfigurationError, match="of narrow floats only bfloat16 has a form"):
        capture_task(task(nn.Linear(2, 2), loss, {"x": torch.ones(4, 2)}))
    with pytest.raises(ConfigurationError, match="weight to be one of"):
        task(nn.Linear(2, 2).half(), loss, {"x": torch.ones(4, 2)})
