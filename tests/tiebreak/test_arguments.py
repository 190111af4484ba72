"""Every public argument says what it takes: wrong values are refused in a line, before any work, with no traceback."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tiebreak
from tiebreak.protocol.arguments import Expectation, shown
from tiebreak.protocol.errors import ConfigurationError

WRONG: tuple[Any, ...] = (
    None, True, -1, 0.5, 10**5000, float("nan"), float("inf"), "", "a", b"bytes", [], [None], ["a"], (), ("a", 1), {},
    {"a": 1}, object(), object, torch.ones(2), np.ones(2), Path("nowhere/at/all"), lambda: None,
)  # fmt: skip
"""Values of every kind. Most are wrong for an argument; the rest may pass."""


class Fine(Exception):
    """The value was accepted."""


def x_y() -> dict[str, Any]:
    return {"x": torch.arange(8.0).reshape(8, 1), "y": torch.arange(8.0).reshape(8, 1)}


def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (model(x) - y).square().mean()


def given(**changes: Any) -> dict[str, Any]:
    base = {"model": nn.Linear(1, 1), "loss": loss, "optimizer": tiebreak.SGD(lr=0.1), "data": x_y(), "batch": 2}
    return {**base, "steps": 4, **changes}


def batch(**changes: Any) -> dict[str, Any]:
    return {"size": 2, "examples": tiebreak.Rows(names=("x", "y"))} | changes


OPTIMIZERS = ["SGD", "Adafactor", "Adagrad", "Adam", "AdamW", "Lion", "NAdam", "RAdam", "RMSprop"]
SCHEDULES = ["constant", "cosine", "inverse_sqrt", "linear", "one_cycle", "step_decay"]
VALUES: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
    "Task": (tiebreak.Task, given()),
    "Batch": (tiebreak.Batch, batch()),
    "Rows": (tiebreak.Rows, {"names": ("x",)}),
    "Windows": (tiebreak.Windows, {"name": "x", "length": 2, "stride": 1}),
    "Group": (tiebreak.Group, {"match": ("x",)}),
    "Clip": (tiebreak.Clip, {"norm": 1.0}),
    "Machine": (tiebreak.Machine, {}),
    "Terms": (tiebreak.Terms, {}),
    "no_decay": (tiebreak.no_decay, {"model": nn.Linear(1, 1)}),
    **{name: (getattr(tiebreak, name), {"lr": 0.1}) for name in OPTIMIZERS},
    **{name: (getattr(tiebreak, name), {"steps": 9, "warmup": 2}) for name in SCHEDULES},
    "step_decay": (tiebreak.step_decay, {"steps": 9, "milestones": [4]}),
}
"""What makes values, with arguments that are right."""
WORKING = {
    "reproducible": (tiebreak.reproducible, {"task": tiebreak.Task(**given())}),
    "train": (tiebreak.train, {"task": tiebreak.Task(**given()), "directory": "run"}),
    "agree": (tiebreak.agree, {"task": tiebreak.Task(**given()), "directory": "run"}),
    "capture": (tiebreak.capture, {"task": tiebreak.Task(**given())}),
    "open_run": (tiebreak.open_run, {"directory": "run"}),
    "save_key": (tiebreak.save_key, {"key": tiebreak.new_key(), "path": "key.pem", "passphrase": "correct horse"}),
    "load_key": (tiebreak.load_key, {"path": "key.pem", "passphrase": "correct horse"}),
    "calibrate": (tiebreak.calibrate, {}),
}  # fmt: skip
"""What does work, which the test prevents."""


@pytest.fixture(autouse=True)
def _nothing_is_computed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def accepted(*_: object, **__: object) -> None:
        raise Fine

    monkeypatch.chdir(tmp_path)
    for work in ("api.training.tasks.capture_task", "api.training.tasks.usable_device", "api.signing.keys.os.open"):
        monkeypatch.setattr(f"tiebreak.{work}", accepted)
    monkeypatch.setattr("tiebreak.api.training.distributed.launched", lambda: False)


def parameters(function: Callable[..., object]) -> list[str]:
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind not in variable]


def refusals(name: str, function: Callable[..., object], right: dict[str, Any], argument: str) -> int:
    """The number of wrong values that an argument refuses, each in one clear line."""
    refused = list[str]()
    for value in WRONG:
        try:
            function(**right | {argument: value})
        except Fine:
            continue
        except ConfigurationError as error:
            refused.append(str(error))
        except Exception as error:
            raise AssertionError(f"{name}({argument}={shown(value)}) raised {error!r}") from error
    assert all(len(line) < 700 and re.search("expected|cannot", line) for line in refused)
    return len(refused)


@pytest.mark.parametrize("name", VALUES)
def test_wrong_values_of_settings_are_refused(name: str) -> None:
    function, right = VALUES[name]
    function(**right)
    for argument in parameters(function):
        assert refusals(name, function, right, argument) >= 8, argument


@pytest.mark.parametrize("name", WORKING)
def test_functions_refuse_wrong_arguments_before_any_work(name: str) -> None:
    function, right = WORKING[name]
    for argument in parameters(function):
        assert refusals(name, function, right, argument) >= 8, argument


def test_every_public_function_checks_its_arguments() -> None:
    errors = {"CannotCheck", "ConfigurationError", "StateError", "TiebreakError", "VerificationError"}
    elsewhere = {"Captured", "LoggedPolicy", "PrivateKey", "Run", "SegmentAudit", "Step",
                 "Trainer", "hf", "new_key"}  # fmt: skip
    assert set(tiebreak.__all__) - errors - elsewhere == VALUES.keys() | WORKING.keys()
    for function in (tiebreak.Run.audit, tiebreak.Run.resume, tiebreak.Run.dispute, tiebreak.Run.state_dict,
                     tiebreak.Trainer.run, tiebreak.PrivateKey.to_pem):  # fmt: skip
        named = set(parameters(function)) - {"self", "exchange"}
        assert named == set(function.__dict__["expected"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": "a"}, "expected seed as an integer from 0 to 2.63 - 1, got 'a'"),
        ({"schedule": 0.5}, "expected schedule as a factor of at least 0 for each step"),
        ({"clip": "1"}, "expected clip as a positive number.*or a tiebreak.Clip, or None, got '1'"),
        ({"steps": 1000.0}, "expected steps as an integer from 1 to 2.32 - 1, got 1000.0"),
        ({"schedule": lambda step: "x"}, "expected a number for each step in the schedule"),
        ({"data": {"x": ["a"]}}, r"expected an array or a file in data 'x', got \['a'\]"),
        ({"data": {"x": np.array(["a"])}}, "expected numbers that torch can read in data 'x'"),
        ({"data": {"x": torch.ones(2, device="meta"), "y": torch.ones(2)}}, "data 'x' on the CPU .*got 'meta'"),
        ({"model": nn.Linear(1, 1, device="meta")}, "weight on the CPU .*got 'meta'"),
        ({"callbacks": 3}, "expected callbacks as a function, or a list of .*, that take a tiebreak.Step, got 3"),
        ({"machine": "cuda"}, "expected machine as a tiebreak.Machine, got 'cuda'"),
    ],
)
def test_the_message_says_what_an_argument_takes(changes: dict[str, Any], words: str) -> None:
    run = {name: value for name, value in changes.items() if name in ("callbacks", "machine")}
    with pytest.raises(ConfigurationError, match=words):
        tiebreak.reproducible(tiebreak.Task(**given(**{n: v for n, v in changes.items() if n not in run})), **run)


def test_clip_as_a_number_clips_by_norm() -> None:
    assert tiebreak.Task(**given(clip=1.5)).clip == tiebreak.Clip(norm=1.5)
    assert tiebreak.Task(**given(clip=1)).clip == tiebreak.Clip(norm=1)


def test_a_passphrase_is_text_and_never_shown() -> None:
    for wrong in (b"correct horse", 123456789):
        with pytest.raises(ConfigurationError, match=r"expected passphrase as a text, got (bytes|int)$"):
            tiebreak.save_key(tiebreak.new_key(), "key.pem", wrong)  # type: ignore[arg-type]


def test_values_in_error_messages_are_abbreviated() -> None:
    assert shown([1, "a", None]) == "[1, 'a', None]"
    assert shown(object()) == "an object"
    assert shown(torch.ones(2)) == "a Tensor"
    assert len(shown("x" * 1000)) < 70
    assert shown(10**5000) == "a very large integer"
    with pytest.raises(ConfigurationError, match="expected it as nothing, got 3"):
        Expectation("nothing", lambda _: False).require("it", 3)


def test_each_worker_of_torchrun_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert tiebreak.Machine(device="cuda").device == "cuda"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    names = ["cuda", "cuda:1", "cpu"]
    assert [tiebreak.Machine(device=name).device for name in names] == ["cuda:3", "cuda:1", "cpu"]
