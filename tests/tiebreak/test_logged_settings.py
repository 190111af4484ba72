"""What calibration promises: thresholds measured on some settings, and a hundred honest steps that others can follow.

At 32 bits with calibrated thresholds there are a few entries in all; at 16 bits with wide ones each step logs dozens.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.logged_cases import log_of
from tests.source_tree import ROOT
from tests.tiebreak.parties import Commands, Parties
from tiebreak.cli.main import run, tiebreak
from tiebreak.engine.logged.policy import POLICY, LoggedPolicy, policy_of
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.program.rounding import SumKind

pytestmark = pytest.mark.slow

STEPS = 100
TASK = """
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from tiebreak.engine.capture.task import SGD, Batch, Rows, Task

def task(steps=100):
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.LayerNorm(96), nn.Linear(96, 10))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[1] ** -0.5)
    pixels, labels = load_digits(return_X_y=True)
    data = {"x": torch.tensor(pixels, dtype=torch.float32) / 16, "y": torch.tensor(labels)}
    return Task(
        name="digits", model=model, loss=lambda m, x, y: F.cross_entropy(m(x), y), optimizer=SGD(lr=0.1, momentum=0.9),
        data=data, batch=Batch(size=48, examples=Rows(names=("x", "y"))), steps=steps, checkpoint_interval=20)
"""


Audit = Callable[..., dict[str, Any]]


@pytest.fixture
def audit(command: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Audit:
    """What `tiebreak audit --json` says elsewhere: on other threads, without kernels, or on another instruction set."""

    def report(trained: Path, *more: object, capability: str = "", compiled: bool = True) -> dict[str, Any]:
        monkeypatch.setenv("TIEBREAK_NATIVE", str(int(compiled)))
        options = ["audit", trained, "--output", tmp_path / "replay", "--threads", 1, *more, "--json"]
        if not capability:
            printed = command(*options)
            torch.set_num_threads(1)
        else:
            environment = dict(os.environ) | {"ATEN_CPU_CAPABILITY": capability}
            words = [sys.executable, "-m", "tiebreak", *map(str, options)]
            printed = subprocess.run(
                words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
            ).stdout
        found: dict[str, Any] = json.loads(printed)
        return found

    return report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("settings")
    (made / "digits.py").write_text(TASK)
    assert run(tiebreak, ["capture", str(made / "digits.py"), "--output", str(made / "captured")]) == 0
    return made


def trained(folder: Path, parties: Parties, precision: int) -> Path:
    """A run of a policy that is calibrated on its first two steps; at 16 bits widened, so that there are entries."""
    torch.set_num_threads(1)
    output, policy, captured = folder / f"run-{precision}", folder / f"{precision}.json", str(folder / "captured")
    measure = ["--precision", str(precision), "--steps", "2", "--orders", "2", "--threads", "1"]
    if not output.exists():
        assert run(tiebreak, ["calibrate", captured, *measure, "--seed", "100", "--output", str(policy)]) == 0
        if precision == 16:
            found = LoggedPolicy.load(policy)
            policy.unlink()
            wide = replace(found, thresholds=dict.fromkeys(SumKind, WIDE), tolerances=dict.fromkeys(SumKind, 2))
            wide.save(policy)
        command = ["agree", captured, *parties.keys, "--policy", str(policy), "--output", str(output)]
        assert run(tiebreak, command) == 0
        assert parties.train(output) == 0
    return output


WIDE = 2.0**33
"""A threshold about as wide as FP32 sums are inexact."""
OWN = ("--policy", "the trainer's")
"""The same thresholds as the trainer's; without them an auditor takes the proven bounds."""
FOLLOWED: dict[str, tuple[tuple[object, ...], dict[str, Any]]] = {
    "order and threads": (("--threads", 2, "--permute", 6, *OWN), {}),
    "another instruction set": (("--permute", 9, *OWN), {"capability": "default", "compiled": False}),
    "proven": (("--permute", 8), {}),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_sixteen_bits(name: str, folder: Path, parties: Parties, tmp_path: Path, audit: Audit) -> None:
    made = trained(folder, parties, 16)
    opened = RunDirectory.open(made)
    entries = sum(log_of(opened, step).count for step in range(1, STEPS + 1))
    assert entries > STEPS
    options, elsewhere = FOLLOWED[name]
    options = tuple(made / POLICY if option == OWN[1] else option for option in options)
    found = audit(made, *options, **elsewhere)
    assert (found["verdict"], found["steps"]) == ("agrees", [1, STEPS])
    assert found["replayed_root"] == opened.heads()[-1].head.run_root.hex()
    log = found["log"]
    assert (log["entries"], log["missing"], log["elsewhere"], log["findings"]) == (entries, 0, 0, [])
    own = RunDirectory.open(tmp_path / "replay")
    assert [log_of(own, step) for step in (1, STEPS)] == [log_of(opened, step) for step in (1, STEPS)]


def test_thirty_two_bits(folder: Path, parties: Parties, audit: Audit) -> None:
    made = trained(folder, parties, 32)
    found = audit(made, "--threads", 2, "--permute", 7, "--policy", made / POLICY, compiled=False)
    assert found["verdict"] == "agrees"
    assert (found["log"]["steps"], found["log"]["missing"], found["log"]["elsewhere"]) == (STEPS, 0, 0)


def test_training_says_what_it_logged(folder: Path, parties: Parties, tmp_path: Path, command: Commands) -> None:
    made, again = RunDirectory.open(trained(folder, parties, 16)), tmp_path / "again"
    agree = ["agree", folder / "captured", *parties.keys, "--policy", made.path / POLICY, "--output", again]
    assert "policy  logged, 16 bits, within plain 2^-" in command(*agree)
    train = ["train", again, "--key", parties.path("trainer.pem"), "--threads", 1]
    events = [json.loads(line) for line in command(*train, "--json", "--until", 20).splitlines()]
    steps = [event["entries"] for event in events if event["event"] == "step"]
    assert steps == [log_of(made, step).count for step in range(1, 21)]
    assert events[0]["policy"].startswith("logged, 16 bits")
    assert (events[-1]["entries"], events[-1]["log_bytes"]) == (sum(steps), RunDirectory.open(again).log_bytes())
    later = sum(log_of(made, step).count for step in range(21, 41))
    assert f"logs     {later} entries in 20 steps; " in command(*train, "--until", 40)
    assert LoggedPolicy.load(again / "policy.json") == policy_of(made)
