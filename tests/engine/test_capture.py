"""What a captured step holds besides its operators: schedules, masks and losses. Run in integers.

Each layer against autograd is in test_lowering_layers, optimizers are in test_optimizers.
"""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.engine.lowering_bench import make_task, run_engine, run_integers
from tiebreak.engine.capture import tracing
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.capture.task import SGD
from tiebreak.engine.lowering.builder import Builder
from tiebreak.protocol.program.isa import DType, MapFunction, Opcode


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return (torch.sigmoid(self.layer(x)) ** 2).mean()


def test_a_schedule_is_captured_as_a_table_of_learning_rates() -> None:
    captured = capture_task(make_task(Linear(), {"x": torch.randn(5, 3)}, rate=0.1, schedule=(0.0, 0.5, 1.0)))
    assert captured.data["learning_rate"].tolist() == pytest.approx([0.0, 0.05, 0.1])
    frozen, moved = run_integers(captured), run_integers(captured, 2)
    assert all(torch.equal(frozen[n], t) for n, t in captured.state.items() if n.startswith("model."))
    assert not torch.equal(moved["model.layer.weight"], captured.state["model.layer.weight"])


def test_frozen_weights_cost_no_gradient_and_have_no_moments() -> None:
    """A product of 2 examples forward, and one for each gradient of a weight or of what goes into a layer."""
    for frozen, products in ((False, [16, 16, 16, 24, 24]), (True, [16, 16, 24])):
        model = nn.Sequential(nn.Linear(3, 4).requires_grad_(not frozen), nn.Tanh(), nn.Linear(4, 2))
        task = make_task(
            model, {"x": torch.randn(5, 3)}, loss=lambda m, x: m(x).sin().mean(), optimizer=SGD(lr=0.1, momentum=0.9)
        )
        captured = capture_task(task)
        body = captured.program.body
        assert sorted(i.numel * i.terms for i in body if i.opcode == Opcode.REDUCE and len(i.operands) == 2) == products
        moments = {name for name in captured.state if name.startswith("optimizer.")}
        trained = [name for name, p in model.named_parameters() if p.requires_grad]
        assert moments == {f"optimizer.momentum.{name}" for name in trained}


class Dropout(nn.Module):
    def __init__(self, size: int = 64, p: float = 0.25) -> None:
        super().__init__()
        self.scale, self.p = nn.Parameter(torch.zeros(size)), p

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x * self.scale, self.p).sum()


def test_dropout_masks_are_fresh_in_each_step_and_fixed_by_the_seed() -> None:
    captured = capture_task(make_task(Dropout(), {"x": torch.ones(2, 64)}))
    first, again, both = (-run_integers(captured, steps)["model.scale"] for steps in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, both - first)
    kept = (first * 0.75).round()  # 0, 1 or 2 of the two examples kept this element
    torch.testing.assert_close(first, kept / 0.75, rtol=0, atol=1e-6)
    assert {0.0, 1.0, 2.0} >= set(kept.tolist())
    assert 0.6 < kept.mean() / 2 < 0.9


def test_builder_emits_equal_instructions_once_and_drops_dead_ones() -> None:
    b = Builder()
    x = b.state("x", DType.F32, (3,))
    first, second = b.add(x, b.const(1.0)), b.add(x, b.const(1.0))
    assert first.value == second.value
    b.map(MapFunction.EXP, x)  # dead
    program = b.finish({"x": first}, b.sum(first))
    assert [i.opcode for i in program.body] == [Opcode.SOURCE, Opcode.SOURCE, Opcode.MAP, Opcode.REDUCE, Opcode.MAP]


def test_every_loss_since_the_last_checkpoint_is_in_the_state() -> None:
    captured = capture_task(make_task(Linear(), {"x": torch.randn(5, 3)}, steps=5, checkpoint_interval=2))
    losses = [run_engine(captured, steps)["loss"].item() for steps in (4, 5)]
    assert run_engine(captured, 5)["telemetry.loss"].tolist() == losses[::-1]


def test_an_untested_torch_version_warns_once_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, told in (("2.13.1", 0), ("2.14.0+cpu", 0), ("2.12.9", 1), ("3.0.0a0", 1)):
        tracing._check_version.cache_clear()
        monkeypatch.setattr(torch, "__version__", version)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for _ in range(2):
                capture_task(make_task(Linear(), {"x": torch.randn(5, 3)}))
        texts = [str(one.message) for one in found if "tested with torch" in str(one.message)]
        assert texts == [f"capture is tested with torch 2.13 and 2.14, this is {version}; check the program"] * told
    assert warnings.formatwarning(found[-1].message, UserWarning, found[-1].filename, 1).count("\n") == 1
    tracing._check_version.cache_clear()
