"""Frozen weights that eager PyTorch reads from the model itself, a panel at a time, in the check of a capture."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.engine.test_slices import plain, task
from tests.parts import slow_except
from tiebreak.api.training import tasks
from tiebreak.engine.capture import check, held
from tiebreak.engine.capture.held import LARGE, HeldWeight, InPlace
from tiebreak.engine.lowering import RULES
from tiebreak.protocol.errors import ConfigurationError

IDS = torch.arange(6).reshape(2, 3)
READS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rows": lambda w, x: F.embedding(IDS, w).sum(-1) * x.sum(),
    "head": lambda w, x: F.linear(x, w),
    "batched": lambda w, x: F.linear(x.expand(2, 3, 5), w, torch.ones(7, dtype=x.dtype)),
    "to the left": lambda w, x: w @ x.T,
    "transposed": lambda w, x: x @ w.mT + (x[:1] @ w.permute(1, 0)[:, 2:4]).sum(),
    "elementwise": lambda w, x: (x[:, None] * w + w.norm()).tanh(),
    "other dtype": lambda w, x: x.float() @ w.float().t(),
    "as a vector": lambda w, x: x @ w.reshape(-1)[:5],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", READS)
def test_a_held_weight_computes_what_a_converted_copy_does(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "PANEL", 10)
    torch.manual_seed(0)
    own = torch.randn(7, 5).bfloat16()
    found = []
    for weight in (own.to(dtype), HeldWeight(own, dtype)):
        x = torch.linspace(-1, 1, 15, dtype=dtype).reshape(3, 5).requires_grad_()
        y = READS[name](nn.Parameter(weight, requires_grad=False), x)
        y.float().square().sum().backward()
        found.append((y, x.grad))
    for plain_one, other in zip(*found, strict=True):
        assert other.dtype == plain_one.dtype
        close = 2.0**-4 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(other, plain_one, rtol=close, atol=close)


@pytest.mark.parametrize(
    "write",
    [
        lambda w: w.mul_(2),
        lambda w: w.data.zero_(),
        lambda w: w.t()[0].fill_(1),
        lambda w: torch.neg(w, out=w),
        lambda w: w.unbind(0)[0].neg_(),
    ],
)
def test_a_write_to_a_held_weight_fails(write: Callable[[Tensor], Any]) -> None:
    own = torch.ones(3, 2)
    with torch.no_grad(), pytest.raises(RuntimeError):
        write(nn.Parameter(HeldWeight(own, torch.float32), requires_grad=False))
    assert torch.equal(own, torch.ones(3, 2)), "it is the user's"


def frozen(dtype: torch.dtype = torch.bfloat16, **more: Any) -> Any:
    """Frozen layers in bfloat16 or FP32, with trained ones around them in FP32."""
    model = plain(**more)
    model.layers.requires_grad_(False).to(dtype)
    model.run = lambda m, x: [x := layer(x.to(layer.inner.weight.dtype)).float() for layer in m.layers][-1]
    return task(model)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.dtype, int]]:
    """Holds the smallest weights so; returns dtype and number of those of each run of eager PyTorch."""
    monkeypatch.setattr(held, "LARGE", 1)
    found, real = list[tuple[torch.dtype, int]](), check.EagerComparison._eager_step

    def watched(self: Any, ours: Any, dtype: torch.dtype, *given: Any) -> Any:
        def made(own: Tensor, kind: torch.dtype) -> HeldWeight:
            found.append((kind, own.data_ptr()))
            return HeldWeight(own, kind)

        with monkeypatch.context() as patch:
            patch.setattr(check, "HeldWeight", made)
            return real(self, ours, dtype, *given)

    monkeypatch.setattr(check.EagerComparison, "_eager_step", watched)
    return found


CASES = {
    "bf16": (torch.bfloat16, {torch.bfloat16, torch.float32}),
    "f32": (torch.float32, {torch.float32, torch.float64}),
}


@pytest.mark.parametrize("name", slow_except(CASES))
def test_a_slices_frozen_weights_are_the_models_own(name: str, small: list[tuple[torch.dtype, int]]) -> None:
    """In bfloat16 the reference is FP32: its logits take half the memory, and its roundings are nothing to those."""
    torch.manual_seed(0)
    dtype, computed = CASES[name]
    made = frozen(dtype)
    assert tasks.capture(made, check="slice").check == "slice"
    assert {kind for kind, _ in small} == computed
    assert {place for _, place in small} <= {p.data_ptr() for p in made.model.parameters()}


@pytest.mark.parametrize("name", slow_except(["tanh.default", "mm.default", "mul.Tensor"], nightly=["mul.Tensor"]))
def test_a_wrong_rule_is_found_in_a_slice_in_bfloat16(name: str, monkeypatch: pytest.MonkeyPatch, small: Any) -> None:
    real = RULES[name]
    monkeypatch.setitem(RULES, name, lambda c, *given, **more: c.b.scale(real(c, *given, **more), 1.25))
    torch.manual_seed(0)
    with pytest.raises(ConfigurationError, match="the program is not the model"):
        tasks.capture(frozen(), check="slice")
    assert small


def by_its_memory(model: Any, x: Tensor, y: Tensor) -> Tensor:
    weight = model.layers[0].inner.weight
    return F.mse_loss(model(x), y) * (1.0 if torch.compiler.is_compiling() else float(weight.numpy().shape == (4, 4)))


def test_code_that_cannot_bear_held_weights_gets_copies(small: Any) -> None:
    torch.manual_seed(0)
    model = plain()
    model.layers.requires_grad_(False)
    assert tasks.capture(task(model, loss=by_its_memory)).check == "full"
    assert small


class Changing(nn.Linear):
    """A layer that does something else when it runs again, in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x) * (1.0 if torch._C._current_graph_task_id() == -1 else 2.0)).tanh()


def test_layers_that_do_something_else_when_they_run_again_run_once() -> None:
    torch.manual_seed(0)
    assert tasks.capture(task(nn.Sequential(*(Changing(4, 4) for _ in range(6)))), check="slice").check == "slice"


def test_autocast_counts_in_fp32_runs_alone() -> None:
    with check.without_autocast(), torch.autocast("cpu", torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


@pytest.mark.parametrize("twice", [False, True])
def test_gradients_of_many_logits_are_those_of_pytorch_in_less_memory(*, twice: bool) -> None:
    """Also where a gradient is differentiated once more, which reads what would be overwritten."""
    logits, labels = torch.randn(32, 2 * LARGE // 32), torch.arange(32)

    def gradient() -> tuple[Tensor, bool]:
        given = logits.clone().requires_grad_()
        places = list[int]()
        logarithms = F.log_softmax(given, -1)
        logarithms.register_hook(lambda found: places.append(found.data_ptr()))
        (found,) = torch.autograd.grad(F.nll_loss(logarithms, labels), given, create_graph=twice)
        is_reused = found.data_ptr() == places[0]
        if twice:
            (found,) = torch.autograd.grad(found.square().sum(), given)
        return found, is_reused

    wanted, _ = gradient()
    with InPlace():
        found, is_reused = gradient()
    assert is_reused is not twice
    assert torch.equal(found, wanted)
