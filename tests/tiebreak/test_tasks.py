"""The demo tasks learn, say what they are, and are loaded from names and files only."""

import dataclasses
import math
import py_compile
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from importlib.util import cache_from_source
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler

from tiebreak import SGD, AdamW, Batch, Rows, Task, Windows
from tiebreak.api.builtin import text
from tiebreak.api.builtin.loader import load_task
from tiebreak.protocol.errors import ConfigurationError


def linear_task(**changes: object) -> Task:
    base: dict[str, object] = {
        "name": "line", "model": nn.Linear(1, 1), "loss": lambda model, x, y: ((model(x) - y) ** 2).mean(),
        "optimizer": SGD(lr=0.1), "data": {"x": torch.arange(6.0).reshape(6, 1), "y": torch.arange(6.0).reshape(6, 1)},
        "batch": Batch(size=2, examples=Rows(names=("x", "y"))), "steps": 4, "checkpoint_interval": 2,
    }  # fmt: skip
    return Task(**(base | changes))  # type: ignore[arg-type]


def test_text_windows_are_consecutive_bytes() -> None:
    made = text.task()
    tokens = made.data["text"]
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < 256
    last = made.examples - 1
    (windows,) = made.batch.examples.take(made.data, torch.tensor([0, 3, last]))
    for row, example in zip(windows, (0, 3, last), strict=True):
        start = example * text.CONTEXT
        assert row.tolist() == tokens[start : start + text.CONTEXT + 1].tolist()
    assert (last + 1) * text.CONTEXT + text.CONTEXT + 1 > len(tokens)


@pytest.mark.parametrize("name", ["digits", "text"])
def test_building_a_task_leaves_the_global_random_stream_alone(name: str) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first = load_task(name)
    assert torch.equal(torch.rand(3), expected)
    second = load_task(name)
    assert all(
        torch.equal(a, b) for a, b in zip(first.initial_state().values(), second.initial_state().values(), strict=True)
    )


@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 7))
@settings(max_examples=100, deadline=None)
def test_window_count_is_that_of_a_naive_enumeration(tokens: int, length: int, stride: int) -> None:
    examples = Windows(name="t", length=length, stride=stride)
    naive = [i for i in range(0, tokens, stride) if i + length <= tokens]
    assert examples.count({"t": torch.zeros(tokens, dtype=torch.int64)}) == len(naive)


def test_learning_rates_are_rounded_once() -> None:
    made = linear_task(optimizer=AdamW(lr=0.1), schedule=(1.0, 0.5, 1 / 3, 0.0))
    table = made.learning_rates()
    assert table.dtype == torch.float32
    for value, factor in zip(table.tolist(), (1.0, 0.5, 1 / 3, 0.0), strict=True):
        exact = Fraction(0.1 * factor)
        below = torch.nextafter(torch.tensor(value), torch.tensor(-math.inf)).item()
        above = torch.nextafter(torch.tensor(value), torch.tensor(math.inf)).item()
        assert abs(Fraction(value) - exact) <= min(abs(Fraction(below) - exact), abs(Fraction(above) - exact))


X = {"x": torch.ones(2, 1)}
INFINITE = nn.Linear(1, 1)
nn.init.constant_(INFINITE.weight, math.inf)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint_interval": 5}, "1 <= interval <= 4"),
        ({"schedule": (1.0,)}, "4 factors"),
        ({"schedule": (1.0, math.nan, 1.0, 1.0)}, "finite factors"),
        ({"data": X}, r"data named \['y'\]"),
        ({"data": X | {"y": torch.ones(3, 1)}}, "equally many rows"),
        ({"data": X | {"y": torch.tensor([[1.0], [math.nan]])}}, "finite numbers in data 'y', got '1"),
        ({"data": X | {"y": torch.ones(2, 1).double()}}, "float32, int64 or bool"),
        ({"model": nn.Linear(1, 1).double()}, "weight to be one of"),
        ({"model": INFINITE}, "finite numbers in weight"),
    ],
)
def test_a_broken_task_is_a_configuration_error(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        linear_task(**changes)


def test_task_files_are_run_from_source_not_from_cached_bytecode(tmp_path: Path) -> None:
    path, other = tmp_path / "mine.py", tmp_path / "other.py"
    path.write_text("from tiebreak.api.builtin import digits\n\ndef task(steps=3):\n    return digits.task(steps)\n")
    other.write_text("def task():\n    return None\n")
    # Such a file is not compared with the source by Python itself.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(other), cache_from_source(str(path)), doraise=True, invalidation_mode=mode)
    assert load_task(str(path)).steps == 3
    assert load_task(str(path), steps=2).steps == 2


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "digits, text or the path"),
        ("x = 1\n", r"a function task\(\)"),
        ("def task():\n    return 3\n", "a tiebreak.Task, got int"),
    ],
)
def test_a_file_that_is_no_task_is_a_configuration_error(tmp_path: Path, source: str | None, message: str) -> None:
    path = tmp_path / "mine.py"
    if source is not None:
        path.write_text(source)
    with pytest.raises(ConfigurationError, match=message):
        load_task(str(path))


def test_errors_of_the_users_own_code_pass_through(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def task():\n    return 1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        load_task(str(path))


LOSSES = {
    "named": (lambda model, x, y: x - y, "xy"),
    "in order": (lambda model, *batch: batch[0] - batch[1], "xy"),
    "by name": (lambda model, **batch: batch["x"] - batch["y"], "xy"),
    "one of both": (lambda model, y, *rest: rest[0] - y, "xy"),
    "keywords": (lambda model, *, y, x: x - y, "xy"),
    "partial": (partial(lambda scale, model, x, y: scale * (x - y), 1), "xy"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_arrays_are_passed_to_loss_arguments_by_name(name: str) -> None:
    loss, names = LOSSES[name]
    made = linear_task(loss=loss, batch=Batch(size=2, examples=Rows(names=tuple(names))))
    assert made.loss(made.model, torch.tensor(5), torch.tensor(2)) == 3
    again = dataclasses.replace(made, batch=Batch(size=2, examples=Rows(names=("y", "x"))))
    assert again.loss(made.model, torch.tensor(2), torch.tensor(5)) == (-3 if name == "in order" else 3)


@pytest.mark.parametrize(
    "loss",
    [lambda model: 0, lambda model, x: 0, lambda model, x, z: 0, lambda model, x, y, z: 0, lambda model, a, b: 0],
)
def test_loss_arguments_that_do_not_match_the_batch_are_refused(loss: Callable[..., object]) -> None:
    with pytest.raises(ConfigurationError, match="arguments after the model are the arrays of the batch, x, y, got"):
        linear_task(loss=loss)


def configured(make: Callable[[nn.Module], object]) -> Task:
    model = nn.Linear(1, 1)
    data = {"x": torch.ones(4, 1), "y": torch.ones(4, 1)}
    return Task(model, nn.MSELoss(), optimizer=make(model), data=data, batch=2, steps=4)  # type: ignore[arg-type]


def halving(optimizer: torch.optim.Optimizer) -> lr_scheduler.ExponentialLR:
    return lr_scheduler.ExponentialLR(optimizer, 0.5)


def stepwise(optimizer: torch.optim.Optimizer, **changes: object) -> dict[str, object]:
    return {"scheduler": halving(optimizer), "interval": "step", **changes}


CONFIGURED: dict[str, Callable[[nn.Module], object]] = {
    "a dict": lambda m: {"optimizer": (o := torch.optim.SGD(m.parameters(), 0.5)), "lr_scheduler": stepwise(o)},
    "a list of dicts": lambda m: [
        {"optimizer": (o := torch.optim.SGD(m.parameters(), 0.5)), "lr_scheduler": stepwise(o, monitor="x")}
    ],
    "two lists": lambda m: ([o := torch.optim.SGD(m.parameters(), 0.5)], [stepwise(o, frequency=1)]),
}


@pytest.mark.parametrize("name", CONFIGURED)
def test_lightning_optimizer_configurations_are_accepted(name: str) -> None:
    assert configured(CONFIGURED[name]).learning_rates().tolist() == [0.5, 0.25, 0.125, 0.0625]


def test_several_lightning_optimizers_are_combined() -> None:
    both = configured(
        lambda m: [{"optimizer": torch.optim.Adamax([m.weight])}, {"optimizer": torch.optim.SGD([m.bias], 0.1)}]
    )
    assert both.optimizer.name == "Adamax and SGD"  # type: ignore[union-attr]
    assert configured(lambda m: {"optimizer": torch.optim.SGD(m.parameters(), 0.1)}).schedule is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda o: {"lr_scheduler": halving(o)}, "goes by steps, got interval 'epoch', frequency 1"),
        (lambda o: {"lr_scheduler": stepwise(o, interval="epoch")}, "Lightning's default is epochs"),
        (lambda o: {"lr_scheduler": stepwise(o, frequency=2)}, "frequency 2"),
        (lambda o: {"lr_scheduler": {"interval": "step"}}, "and give {'scheduler': ..., 'interval': 'step'}"),
        (lambda _: {"scheduler": None}, "expected dicts of 'optimizer' and 'lr_scheduler'"),
    ],
)
def test_epoch_schedulers_and_unknown_lightning_options_are_refused(
    change: Callable[..., dict[str, object]], words: str
) -> None:
    def make(model: nn.Module) -> object:
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        return {"optimizer": optimizer, **change(optimizer)}

    with pytest.raises(ConfigurationError, match=words):
        configured(make)
