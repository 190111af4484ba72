"""The check of a capture against eager PyTorch: it passes what is right, and finds what is wrong by itself."""

import itertools
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import DataLoader, TensorDataset

from tests.engine import elsewhere
from tests.engine.lowering_bench import make_task
from tests.engine.test_capture_pure import Layer, centred, counting, with_buffers
from tests.parts import slow_except
from tests.source_tree import ROOT
from tiebreak import SGD, Adafactor, Adagrad, Adam, AdamW, Batch, Clip, Group, Lion, NAdam, RAdam, RMSprop, Task
from tiebreak.api.training import tasks
from tiebreak.api.training.tasks import capture as checked
from tiebreak.engine.capture import captured as compiling
from tiebreak.engine.capture import check, outcomes, state
from tiebreak.engine.capture.examples import NamedLoss, Windows
from tiebreak.engine.capture.reach import ROUNDED, UNROUNDED, put_back, settings
from tiebreak.engine.lowering import RULES
from tiebreak.engine.run.loop import exact_step
from tiebreak.protocol.errors import ConfigurationError

DATA = {"x": torch.sin(torch.arange(32.0)).reshape(8, 4), "y": torch.cos(torch.arange(32.0) * 3).reshape(8, 4)}


def task(model: nn.Module, loss: Callable[..., Tensor] | None = None, **changes: Any) -> Task:
    settings = {"data": DATA, "batch": 4, "rate": 0.1, "loss": loss or (lambda model, x, y: F.mse_loss(model(x), y))}
    return make_task(model, **(settings | changes))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Sequential(nn.Tanh(), nn.Linear(6, 4)))


def partly_frozen() -> nn.Module:
    model = network()
    model[0].requires_grad_(False)
    model[1].eval()
    return model


def saving() -> nn.Module:
    return Layer(lambda _, x: checkpoint(lambda y: F.dropout(torch.tanh(y)), x, use_reentrant=False))


def as_on_cuda(_: Any, x: Tensor) -> Tensor:
    """Eager PyTorch calls `native_dropout` there, where a trace has the draws of a CPU."""
    one = F.dropout if torch.compiler.is_compiling() else lambda y, p=0.5: torch.native_dropout(y, p, True)[0]
    kept = [torch.native_dropout(x, p, train)[0] for p, train in ((0.0, True), (1.0, True), (0.5, False))]
    return checkpoint(lambda y: one(torch.tanh(y)), x, use_reentrant=False) + one(sum(kept), 0.2)


def reentrant() -> nn.Module:
    """The first part trains nothing, since no input of it has a gradient."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    again = partial(checkpoint, use_reentrant=True)
    layer = Layer(lambda self, x: again(second, again(first, x.detach()) + x))
    layer.first, layer.second = first, second
    return layer


def of_kinds() -> nn.Module:
    """Asks what a parameter is, and for an attribute of a buffer."""

    def run(self: Any, x: Tensor) -> Tensor:
        gain = 3.0 if isinstance(self.linear.weight, nn.Parameter) else 1.0
        return x * gain * self.centre.gain

    layer = with_buffers(run, centre=torch.ones(4))
    layer.centre.gain = 2.0
    return layer


def otherwise_when_wide(_: Any, x: Tensor) -> Tensor:
    """In FP64 something far away, between which and FP32 the program lies."""
    return x * 3.0 if x.dtype == torch.float64 else x * (1.3 if torch.compiler.is_compiling() else 1.0)


def placed(_: Any, x: Tensor) -> Tensor:
    """Samples data, which have no gradient, at places that have one."""
    return F.grid_sample(IMAGE, x.tanh().reshape(1, -1, 2, 2), padding_mode="border", align_corners=False).sum() * x


def two_names() -> nn.Module:
    norm = nn.BatchNorm1d(4)
    return nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 4), norm)


def twice(model: nn.Module, *batch: Tensor) -> Tensor:
    model(batch[0])  # draws, and what it gives is not read
    return model(batch[0] - batch[1]).mean()


RIGHT: dict[str, Callable[[], Task]] = {
    "everything": lambda: task(network(), accumulation=2, clip=Clip(norm=0.01), average=0.9, optimizer=AdamW(lr=0.1)),
    "frozen": lambda: task(partly_frozen()),
    "checkpointed": lambda: task(saving()),
    "dropout as on CUDA": lambda: task(Layer(as_on_cuda)),
    "reentrant": lambda: task(reentrant()),
    "kinds": lambda: task(of_kinds()),
    "data in places": lambda: task(Layer(placed)),
    "compiled": lambda: task(Layer(torch.compile(lambda _, x: 2 * torch.tanh(x), backend="eager"))),
    "in parts": lambda: task(
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Tanh()),
        lambda m, x, y: F.mse_loss(checkpoint_sequential(m, 2, x, use_reentrant=False), y),
    ),
    "assigned": lambda: task(with_buffers(centred, centre=torch.full((4,), 0.5))),
    "two names": lambda: task(two_names()),
    "unread draws": lambda: task(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)), twice),
    "recurrent": lambda: task(
        nn.Sequential(nn.Embedding(9, 6), nn.GRU(6, 4, 2, dropout=0.2, batch_first=True)),
        lambda model, window: model(window)[0].square().mean(),
        data={"text": torch.arange(60) % 9},
        batch=Batch(size=2, examples=Windows(name="text", length=5, stride=5)),
    ),
}


@pytest.mark.parametrize("name", slow_except(RIGHT, "everything"))
def test_correct_captures_pass_the_check_against_eager(name: str) -> None:
    torch.manual_seed(0)
    made = RIGHT[name]()
    before = [*made.model.parameters(), *made.model.buffers()]
    captured = checked(made)
    assert captured.check == "full"
    frozen, state = captured.program.frozen, captured.state
    changing = {tensor.data_ptr() for name, tensor in state.items() if name not in frozen}
    assert {p.data_ptr() for p in before}.isdisjoint(changing), "copies"
    own = dict(made.model.named_parameters())
    shared = [name for name, p in own.items() if state[f"model.{name}"].data_ptr() == p.data_ptr()]
    assert shared == [name for name in own if f"model.{name}" in frozen], "no copies of what no step changes"
    assert all(a is b for a, b in zip(before, [*made.model.parameters(), *made.model.buffers()], strict=True))
    assert captured.program.root == compiling.capture_task(made).program.root


def test_the_check_can_run_on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for one: the steps, both precisions and torch's optimizer run there, and nothing is mixed."""
    monkeypatch.setattr(elsewhere, "DEVICE", torch.device("meta"))  # on which autograd needs no hardware
    monkeypatch.setattr(elsewhere, "_DIVISIONS", ())  # eager PyTorch may
    made, real, kept = task(two_names(), optimizer=AdamW(lr=0.1)), check.wrong_update, list[str]()
    made.model[2].requires_grad_(False)

    def watched(phase: Task, found: Sequence[outcomes.StepOutcome], device: torch.device) -> str | None:
        kept.extend(name for ours in found for name in ours.state if ours.state[name] is ours.before.get(name))
        return real(phase, found, device)

    monkeypatch.setattr(check, "wrong_update", watched)
    with elsewhere._Literals(), elsewhere.Mode(worse=True) as mode, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check.checked(made, exact_step, elsewhere.DEVICE).check == "full"
    names = ("addmm", "native_batch_norm_backward", "addcdiv_")
    assert all(mode.calls[f"aten::{name}"] for name in names), mode.calls
    assert set(kept) == {"model.2.weight", "model.2.bias"}, "what no step changes does not come back as new tensors"


ROUNDING: dict[str, Callable[[], None]] = {
    "high": partial(torch.set_float32_matmul_precision, "high"),
    "medium": partial(torch.set_float32_matmul_precision, "medium"),
    "older": partial(setattr, torch.backends.cuda.matmul, "allow_tf32", True),
    "newer": partial(setattr, torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "newest": partial(setattr, torch.backends, "fp32_precision", "tf32"),
}


@pytest.mark.parametrize("name", slow_except(ROUNDING, "medium", "newest"))
def test_the_check_disables_tf32_and_restores_the_settings(name: str) -> None:
    """Torch's older switches refuse to answer once a newer one is set; whatever was set is so again after the check."""
    generic, before = torch.backends.fp32_precision, settings(ROUNDED)
    try:
        ROUNDING[name]()
        changed = settings(ROUNDED)
        assert changed != before
        with check.without_tf32():
            assert settings(ROUNDED) == UNROUNDED
        assert settings(ROUNDED) == changed
        assert checked(task(two_names())).check == "full"
        assert settings(ROUNDED) == changed
    finally:
        torch.backends.fp32_precision = generic
        put_back(before, ROUNDED)
    assert settings(ROUNDED) == before


def test_a_check_that_fails_on_a_device_runs_on_the_cpu() -> None:
    """For one: `meta` has no results."""
    with pytest.warns(UserWarning, match="on the CPU, because") as said:
        assert check.checked(task(network()), exact_step, torch.device("meta")).check == "full"
    whole = [
        rf"the {what} on the CPU, because that failed on meta: \S"
        for what in ("step is rehearsed", "capture is checked")
    ]
    for one, expected in zip(said, whole, strict=True):
        assert re.match(expected, str(one.message))
        assert one.filename == __file__, "where the capture is asked for"


def undo_examining(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tiebreak.engine.capture.captured.rehearse", lambda *_, **__: frozenset())


def undo_assigning(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tiebreak.engine.capture.tracing._written", lambda *_: None)


def undo_modes(patch: pytest.MonkeyPatch) -> None:
    real = compiling.capture
    patch.setattr(compiling, "capture", lambda b, model, *rest: real(b, model.train(), *rest))


def undo_binding(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NamedLoss, "__call__", lambda self, model, *batch: self.loss(model, *batch))


def undo_operators(patch: pytest.MonkeyPatch) -> None:
    from tiebreak.engine.capture import undecomposed  # noqa: PLC0415

    names = [name for name in undecomposed._names() if not name.startswith("multilabel_margin_loss")]
    patch.setattr(undecomposed, "_names", lambda: names)


def loaded(again: bool) -> Callable[..., Tensor]:
    batches = iter(DataLoader(TensorDataset(torch.rand(80, 4)), batch_size=4))
    return lambda model, x, y: F.mse_loss(model(next(batches)[0] if again else x), y)


def batch_norm() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[1].eval()
    return model


CYCLE = itertools.cycle([0.5, 1.0, 1.5, 2.0, 2.5])


def counting_eagerly(self: Any, x: Tensor) -> Tensor:
    """The same in both captures and in step 1, but not in step 2."""
    self.calls += not torch.compiler.is_compiling()
    return x * max(self.calls, 1)


IMAGE = torch.sin(torch.arange(36.0)).reshape(1, 1, 6, 6)
LABELS = torch.tensor([[3, 0, -1, 1], [1, 2, -1, 0]] * 2)
UNDONE: dict[str, tuple[Callable[..., None], Callable[[], Task], str]] = {
    "assigned": (undo_assigning, lambda: task(with_buffers(centred, centre=torch.ones(4))), "buffer centre"),
    "random": (undo_examining, lambda: task(Layer(lambda _, x: x * random.random())), "first difference is at mul"),
    "counter": (undo_examining, lambda: task(nn.Sequential(Layer(counting, calls=0))), r"is at 0:mul.*\.py:\d+"),
    "loader": (undo_examining, lambda: task(nn.Linear(4, 4), loaded(True)), "two captures"),
    "second step": (undo_examining, lambda: task(Layer(counting_eagerly, calls=0)), "in step 2, .* step 1 agrees"),
    "mode": (undo_modes, lambda: task(batch_norm()), "the first module whose output departs is 1"),
    "names": (undo_binding, lambda: task(nn.Linear(4, 4), lambda model, y, x: F.mse_loss(model(x), y)), "step 1, the"),
    "padding": (
        undo_operators,
        lambda: task(nn.Linear(4, 4), lambda m, x, y: F.multilabel_margin_loss(m(x), LABELS + (y > 9).long())),
        "the program is not the model",
    ),
}


@pytest.mark.parametrize("name", slow_except(UNDONE, "assigned", "second step"))
def test_the_check_finds_errors_without_the_other_safeguards(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    undo, make, words = UNDONE[name]
    torch.manual_seed(0)
    undo(monkeypatch)
    with pytest.raises(ConfigurationError, match=words):
        checked(make())


def test_a_model_that_differs_only_in_float64_fails_the_check() -> None:
    with pytest.raises(ConfigurationError, match="the program is not the model: in step 1, the loss"):
        checked(task(Layer(otherwise_when_wide)))


def test_the_check_locates_a_wrong_lowering_rule_in_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "tanh.default", RULES["sin.default"])
    with pytest.raises(ConfigurationError, match=r"the loss is .* allowed .* departs is 3\.0\."):
        checked(task(network()))


OPTIMIZERS: dict[str, tuple[Any, Any, int]] = {
    "weight decay": (AdamW(lr=0.1, weight_decay=0.5), AdamW(lr=0.1, weight_decay=0.0), 1),
    "coupled decay": (AdamW(lr=0.1, weight_decay=0.5), Adam(lr=0.1, weight_decay=0.5), 1),
    "momentum": (SGD(lr=0.1, momentum=0.9), SGD(lr=0.1), 2),
    "nesterov": (SGD(lr=0.1, momentum=0.9, nesterov=True), SGD(lr=0.1, momentum=0.9), 1),
    "second moment": (Adam(lr=0.1, betas=(0.9, 0.9)), Adam(lr=0.1), 2),
    "scale": (Adafactor(lr=0.1), Adafactor(lr=0.1, eps=(None, 0.5)), 1),
    "amsgrad": (Adam(lr=0.1, amsgrad=True, betas=(0.9, 0.1)), Adam(lr=0.1, betas=(0.9, 0.1)), 2),
    "centered": (RMSprop(lr=0.1, centered=True), RMSprop(lr=0.1), 1),
    "rate decay": (Adagrad(lr=0.1, lr_decay=0.5), Adagrad(lr=0.1), 2),
    "nesterov's share": (NAdam(lr=0.1), Adam(lr=0.1), 1),
    "rectification": (RAdam(lr=0.1), Adam(lr=0.1), 1),
    "sign": (Lion(lr=0.1), SGD(lr=0.1), 1),
    "groups": (SGD(lr=0.1, groups=(Group(match=("*bias",), lr_factor=0.5),)), SGD(lr=0.1), 1),
}


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares five elements at a time; a weight has 16."""
    monkeypatch.setattr(outcomes, "BLOCK", 5)


@pytest.mark.parametrize("name", slow_except(OPTIMIZERS, "groups"))
def test_the_check_finds_an_update_unlike_torchs_optimizer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    declared, used, step = OPTIMIZERS[name]
    made = task(nn.Linear(4, 4), optimizer=declared, schedule=(1.0, 0.7, 0.3))
    small_blocks(monkeypatch)
    checked(made)
    real = compiling.update
    monkeypatch.setattr(compiling, "update", lambda b, _, *rest: real(b, used, *rest))
    with pytest.raises(ConfigurationError, match=f"after step {step}, model.* from what torch.optim"):
        checked(made)


@pytest.mark.parametrize("seed", [242, 286])
def test_an_update_that_nearly_zeroes_a_parameter_passes_the_check(seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Linear(2, 1)
    data = {"x": torch.randn(16, 2), "y": torch.randn(16, 1)}
    with torch.no_grad():
        model.bias.copy_(0.02 * torch.rand(1))
    checked(task(model, optimizer=AdamW(lr=1e-2), data=data, batch=8))


@pytest.mark.parametrize("undone", slow_except(["clipped", "averaged"], "clipped"))
def test_the_check_compares_clipping_and_moving_averages(undone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    made = task(nn.Linear(4, 4), clip=Clip(norm=0.01, value=0.05), average=0.9)
    small_blocks(monkeypatch)
    checked(made)
    if undone == "clipped":
        monkeypatch.setattr(compiling, "clipped", lambda _b, _clip, gradients: gradients)
    else:
        real = state.moving_averages
        monkeypatch.setattr(state, "moving_averages", lambda b, _, *rest: real(b, 0.5, *rest))
    with pytest.raises(ConfigurationError, match="the optimizer's update is not torch's: after step 1"):
        checked(made)


def test_the_check_requires_the_same_random_draws_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    real = check.EagerComparison.engine

    def fewer(*given: Any, **more: Any) -> Any:
        (ours,) = real(*given, **more)
        return [replace(ours, drawn=[tensor[:1] for tensor in ours.drawn if tensor is not None])]

    monkeypatch.setattr(check.EagerComparison, "engine", fewer)
    with pytest.raises(ConfigurationError, match=r"it draws random numbers of shape \(1, 6\) where eager PyTorch"):
        checked(task(network()))


def test_a_model_that_cannot_run_in_float64_is_checked_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.eye(4)
    checked(task(Layer(lambda _, x: x.float() @ weight), lambda model, x, y: F.mse_loss(model(x), y.float())))
    undo_examining(monkeypatch)
    with pytest.raises(ConfigurationError, match="two captures"):
        checked(task(Layer(lambda _, x: x.float() @ weight * next(CYCLE)), lambda model, x, y: (model(x) - y).sum()))


def normed() -> Task:
    """Batch norms over two examples: the gradient of the bias before one is 0, and in FP32 what rounding leaves."""
    torch.manual_seed(8)
    data = {name: torch.randn(8, 4) for name in "xy"}
    return task(two_norms(), data=data, batch=2)


def two_norms() -> nn.Module:
    first = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()]
    return nn.Sequential(*first, nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))


def test_the_check_tolerates_rare_float32_rounding_errors() -> None:
    checked(normed())


def advantages(model: nn.Module, x: Tensor, reward: Tensor) -> Tensor:
    """A policy gradient whose loss is zero but for rounding, whatever the weights are."""
    chosen, groups = model(x).log_softmax(1)[:, 0], reward.view(-1, 4)
    gain = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    return -((chosen - chosen.detach()).exp() * gain.flatten()).mean()


@pytest.mark.parametrize("seed", slow_except([0, 5, 8], 0))
def test_a_loss_of_zero_up_to_rounding_passes_the_check(seed: int) -> None:
    torch.manual_seed(seed)
    rewards = torch.randn(16) if seed % 2 else torch.randint(0, 4, (16,)).float()
    checked(make_task(network(), {"x": torch.randn(16, 4), "reward": rewards}, 8, rate=0.1, loss=advantages))


@pytest.mark.parametrize("name", slow_except(["relu.default", "mm.default"], "mm.default"))
def test_a_wrong_lowering_rule_is_found_among_rounding_errors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def leaking(*given: Any, **more: Any) -> Any:
        return given[0].b.scale(real(*given, **more), 1.0001)

    real = RULES[name]
    monkeypatch.setitem(RULES, name, leaking)
    with pytest.raises(ConfigurationError, match="the program is not the model"):
        checked(normed())


class Padded(nn.Module):
    """A frozen encoder, in whose results PyTorch's fast path, which no hook may watch, puts zeros for padding."""

    def __init__(self, *, nested: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval().requires_grad_(False)
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.arange(3)[None] > (x[:, :1] > 0)
        return self.head(self.encoder(x[:, None] * torch.ones(3, 1), src_key_padding_mask=padding).mean(1))


@pytest.mark.slow
def test_the_check_finds_fast_paths_that_hooks_disable() -> None:
    torch.manual_seed(0)
    checked(task(Padded(nested=False)))
    with pytest.raises(ConfigurationError, match=r"in step 1, the loss is .* no module .* enable_nested_tensor=False"):
        checked(task(Padded(nested=True)))


def unable(*_: Any) -> Any:
    raise AssertionError("expected nothing to be computed")


def test_a_check_too_large_for_memory_is_refused_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = task(nn.Linear(4, 4), optimizer=AdamW(lr=0.1))
    wide = 20 * 16 + 3 * 16 * 8  # weights and gradients of eager PyTorch, with parts of the largest
    least = tasks.PROCESS + 20 * 4 + 3 * 20 * 4 + wide  # the weights, those after a step, and gradients of two
    monkeypatch.setattr(tasks, "memory_bytes", lambda: least - 1)
    monkeypatch.setattr(tasks, "exact_step", unable)
    with pytest.raises(ConfigurationError, match=r"fit into the .* they take about"):
        checked(made)
    monkeypatch.setattr(tasks, "memory_bytes", lambda: least)
    with pytest.raises(ConfigurationError, match=r"fit into the .* they take about"):  # with the moments
        checked(made)


MEASURED = """
import sys, torch
import torch.nn.functional as F
from torch import nn
from benchmarks.memory import Path, _status
from tests.engine.test_eager import checked, task
from tiebreak import AdamW
from tiebreak.api.training import tasks

check = sys.argv[1]
dtype, is_frozen = {"full": (torch.float32, False), "slice": (torch.bfloat16, True)}[check]

def made(width):
    parts = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(6)))
    parts.requires_grad_(not is_frozen).to(dtype)
    data = {"x": torch.randn(4, width), "y": torch.arange(4) % 3}
    loss = lambda model, x, y: F.cross_entropy(model(x.to(model[1].weight.dtype)).float(), y)
    model = nn.Sequential(parts, nn.Linear(width, 3, dtype=dtype))
    return task(model, loss, data=data, batch=2, optimizer=AdamW(lr=1e-3))

checked(made(8), check=check)
large, counted, count = made(2048), [], tasks.memory_of_capture
tasks.memory_of_capture = lambda *given: (counted.append(count(*given)), counted[-1])[1]
before = _status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
checked(large, check=check)
peak = _status("VmHWM")
print((peak - before) / sum(p.numel() for p in large.model.parameters()), max(counted) / peak)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts kilobytes, which other systems do not")
@pytest.mark.parametrize(("kind", "most"), [("full", 45), ("slice", 6)])
def test_memory_of_the_check_per_parameter_is_bounded_and_counted_before(kind: str, most: int) -> None:
    """25 million of them; what else a process holds, and its heap keeps, is counted, too. Of the slice, none learn."""
    command = [sys.executable, "-c", MEASURED, kind]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    taken, counted = map(float, done.stdout.split())
    assert taken < most
    assert 0.8 < counted < 1.3


LONG = """
import sys, torch
import torch.nn.functional as F
from torch import nn
from benchmarks.memory import Path, _status
from tests.engine.test_eager import checked, task
from tiebreak import AdamW
from tiebreak.engine.native import release

def made(width, words, layers, tokens):
    parts = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)))
    frozen = nn.ModuleList([nn.Embedding(words, width), parts, nn.Linear(width, words, bias=False)])
    frozen.requires_grad_(False).bfloat16()

    def loss(model, x):
        (embedding, parts, head), adapter = model
        h = embedding(x).float()
        return F.cross_entropy(head(parts((h + adapter(h)).to(head.weight.dtype))).float()[0], x[0])

    data = {"x": torch.arange(2 * tokens).reshape(2, tokens) % words}
    return task(nn.ModuleList([frozen, nn.Linear(width, width)]), loss, data=data, batch=1, optimizer=AdamW(lr=1e-3))

checked(made(8, 64, 6, 4), check="slice")
large = made(512, 65_536, 20, 512)
release()
before = _status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
checked(large, check="slice")
print((_status("VmHWM") - before) / (512 * 65_536 * 4))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts kilobytes, which other systems do not")
def test_capture_takes_less_than_three_times_the_logits_beside_a_frozen_model() -> None:
    """The frozen embedding and head are together as large as the logits in FP32, so copies of both would exceed it."""
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, check=True, cwd=ROOT)
    assert float(done.stdout) < 3
