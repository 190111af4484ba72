"""What a captured step holds besides its operators: schedules, masks, losses, several batches. Run in integers.

Each layer against autograd is in test_lowering_layers, optimizers are in test_optimizers.
"""

import warnings
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tiebreak.engine.capture.step
from tests.engine.lowering_bench import make_task, nth, run_engine, run_integers, same_bits, squared_error, stepped
from tiebreak import SGD, Batch, Rows, Task
from tiebreak.api.training.tasks import capture as checked
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture import tracing
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.capture.step import Constants, capture
from tiebreak.engine.data.tensors import tensor_bytes
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import DType, MapFunction, Opcode
from tiebreak.protocol.program.program import Program

from .optimizer_cases import against_torch, drawn


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


class Normed(nn.Module):
    def __init__(self, norm: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.norm = nn.BatchNorm1d(5) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.dropout(torch.tanh(self.norm(self.first(x))))
        return torch.as_tensor(self.second(hidden))


def normed_task(accumulation: int, size: int = 4, steps: int = 20, **model: object) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        made = Normed(**model)  # type: ignore[arg-type]
        data = {"x": torch.randn(26, 3), "y": torch.randn(26, 2)}
    optimizer = SGD(lr=0.1, momentum=0.9)
    return make_task(made, data, size, loss=squared_error, optimizer=optimizer, steps=steps, accumulation=accumulation)


def one_batch(task: Task) -> Program:
    """A program whose new state is the gradients of a batch (given as data) and the buffers after it."""
    b, initial = Builder(), task.initial_state()
    refs = {name: b.state(name, PROTOCOL_DTYPES[t.dtype], tuple(t.shape)) for name, t in initial.items()}
    example = task.batch.examples.take(task.data, torch.zeros(task.batch.size, dtype=torch.int64))
    batch = [b.data(f"batch{i}", PROTOCOL_DTYPES[t.dtype], tuple(t.shape)) for i, t in enumerate(example)]
    made = capture(Constants(b), task.model.train(), task.loss, batch, example, refs.__getitem__)
    gradients = {f"gradient.{name}": ref for name, ref in made.gradients.items()}
    return b.finish(refs | made.buffers | gradients, made.loss)


def test_accumulation_matches_the_eager_loop_and_batch_norm_statistics() -> None:
    task = normed_task(accumulation=3)
    ours, theirs = against_torch(task)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name].to(tensor.dtype), tensor, rtol=2e-5, atol=2e-5)
    assert ours["norm.num_batches_tracked"].item() == 3 * 20


def test_accumulated_gradients_are_added_in_batch_order() -> None:
    task = normed_task(accumulation=3)
    captured = capture_task(task)
    machine = Interpreter(one_batch(task), Arithmetic())
    batches = drawn(task, captured)
    held = task.initial_state()
    momentum = {name: np.zeros(p.shape, np.float32) for name, p in task.model.named_parameters()}
    rate = task.learning_rates().numpy()
    for step, accumulated in enumerate(islice(stepped(captured), 20), 1):
        total: dict[str, np.ndarray] = {}
        for _ in range(3):
            batch = {f"batch{i}": t.float() for i, t in enumerate(next(batches))}
            given = held | {f"gradient.{name}": torch.zeros(p.shape) for name, p in task.model.named_parameters()}
            found = machine.step(1, given, batch).state
            for name in momentum:
                g = found[f"gradient.{name}"].numpy()
                total[name] = total[name] + g if name in total else g
            held = {name: found[name] for name in held}
        for name, g in total.items():
            momentum[name] = momentum[name] * np.float32(0.9) + g / np.float32(3)
            held[name] = torch.from_numpy(held[name].numpy() - momentum[name] * rate[step - 1])
        for name, tensor in held.items():
            assert bytes(tensor_bytes(accumulated.state[f"model.{name}"])) == bytes(tensor_bytes(tensor)), (step, name)


def test_an_accumulated_step_equals_the_integer_reference() -> None:
    captured = capture_task(normed_task(accumulation=2, size=2, steps=2, dropout=0.3))
    assert same_bits(run_engine(captured), run_integers(captured)) == []


def test_every_batch_has_its_own_dropout_mask() -> None:
    captured = capture_task(make_task(Dropout(256, 0.5), {"x": torch.ones(2, 256)}, 1, accumulation=4))
    drawn_here = [i.params.stream for i in captured.program.body if i.opcode == Opcode.RANDOM]  # type: ignore[union-attr]
    assert len(set(drawn_here)) == 4
    kept = -2 * run_engine(captured)["model.scale"]  # of 4 masks, those that kept the element: the mean of 4 of 1 / 0.5
    assert set(kept.tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0}


def test_accumulation_over_one_batch_adds_no_instructions() -> None:
    program = capture_task(normed_task(accumulation=1)).program
    assert not [i for i in program.body if i.origin == "accumulation"]


def test_accumulation_traces_the_step_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, trace = [], tiebreak.engine.capture.step.trace
    monkeypatch.setattr(tiebreak.engine.capture.step, "trace", lambda *given: (calls.append(given), trace(*given))[1])
    roots = {a: capture_task(normed_task(accumulation=a)).program.root for a in (1, 4)}
    assert len(calls) == 2
    assert roots[1] != roots[4]


def test_losses_are_divided_by_the_items_of_the_whole_step() -> None:
    """Four batches of 4 with sums over their items are a batch of 16 with the mean over all of its items."""
    generator = torch.Generator().manual_seed(3)
    mask = (torch.rand(16, 5, generator=generator) < 0.6).float()
    mask[3] = 0
    data = {"x": torch.randn(16, 3, generator=generator), "mask": mask, "items": mask.sum(1).long()}

    def total(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
        return (model(x).square() * mask).sum()

    def mean(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
        return total(model, x, mask) / mask.sum()

    def task(loss: Any, batch: int, accumulation: int, **options: Any) -> Task:
        torch.manual_seed(5)
        model, given = nn.Linear(3, 5), data if options else {n: data[n] for n in ("x", "mask")}
        return Task(model, loss, optimizer=SGD(lr=0.1), data=given, batch=batch, steps=20,
                        accumulation=accumulation, **options)  # fmt: skip

    counted = checked(task(total, 4, 4, items="items"))
    whole = capture_task(task(mean, 16, 1))
    assert counted.check == "full"
    for ours, other in islice(zip(stepped(counted), stepped(whole), strict=True), 20):
        assert ours.loss == pytest.approx(other.loss, rel=1e-6)
        for name in ("model.weight", "model.bias"):
            torch.testing.assert_close(ours.state[name], other.state[name], rtol=1e-5, atol=1e-6)
    one = nth(1, checked(task(total, 16, 1, items="items")))
    assert one.loss == pytest.approx(nth(1, whole).loss, rel=1e-6)
    for wrong in (data["items"].float(), data["items"][:5], -data["items"]):
        with pytest.raises(ConfigurationError, match="an int64 >= 0 for each of 16 examples in items"):
            replace(task(total, 4, 4, items="items"), data=data | {"items": wrong})
    with pytest.raises(ConfigurationError, match=r"data named .'other'"):
        task(total, 4, 4, items="other")


def test_a_task_that_learns_nothing_writes_to_buffers_alone() -> None:
    torch.manual_seed(5)
    model = nn.Linear(3, 5).requires_grad_(False)
    model.register_buffer("seen", torch.zeros(16))
    x, weight = torch.randn(16, 3), model.weight.clone()

    def score(model: Any, place: Tensor, x: Tensor) -> Tensor:
        model.seen.index_copy_(0, place, found := model(x).square().sum(1))
        return found.mean()

    rows = Batch(size=4, examples=Rows(names=("place", "x")), shuffled=False)
    made = checked(Task(model, score, data={"place": torch.arange(16), "x": x}, optimizer=None, batch=rows, steps=4))
    assert made.check == "full"
    state = nth(4, made).state
    assert state.keys() == {"model.weight", "model.bias", "model.seen", "telemetry.loss"}
    assert torch.equal(state["model.weight"], weight)
    torch.testing.assert_close(state["model.seen"], model(x).square().sum(1))
