"""What calibration promises: thresholds measured on some settings, and a hundred honest steps that others can follow.

At 32 bits with calibrated thresholds there are a few entries in all; at 16 bits with wide ones each step logs dozens.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.logged_cases import log_of
from tests.source_tree import ROOT
from tests.tiebreak.parties import Parties
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


@dataclass(frozen=True)
class Elsewhere:
    """How another machine might compute."""

    threads: int = 1
    order: int | None = None
    compiled: bool = True
    capability: str | None = None
    proven: bool = False

    def options(self, trained: Path, output: Path) -> list[str]:
        """Of `tiebreak audit`."""
        given = [str(trained), "--output", str(output), "--json", "--threads", str(self.threads)]
        given += [] if self.order is None else ["--permute", str(self.order)]
        return given if self.proven else [*given, "--policy", str(trained / "policy.json")]


Audit = Callable[[Elsewhere, Path, Path], dict[str, Any]]


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Audit:
    """What `tiebreak audit --json` says there."""

    def report(where: Elsewhere, trained: Path, output: Path) -> dict[str, Any]:
        monkeypatch.setenv("TIEBREAK_NATIVE", str(int(where.compiled)))
        options = ["audit", *where.options(trained, output)]
        if where.capability is None:
            capsys.readouterr()
            assert run(tiebreak, options) == 0
            printed = capsys.readouterr().out
            torch.set_num_threads(1)
        else:
            command = [sys.executable, "-m", "tiebreak", *options]
            environment = dict(os.environ) | {"ATEN_CPU_CAPABILITY": where.capability}
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
            printed = done.stdout
        found: dict[str, Any] = json.loads(printed)
        return found

    return report


FOLLOWED = {
    "itself": Elsewhere(),
    "order": Elsewhere(order=5),
    "threads": Elsewhere(threads=2, order=6),
    "pure": Elsewhere(compiled=False, order=7),
    "another instruction set": Elsewhere(compiled=False, capability="default", order=9),
    "proven": Elsewhere(order=8, proven=True),
}


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
        keys = ["--client-key", str(parties.path("client.pem")), "--trainer-key", str(parties.path("trainer.pem"))]
        command = ["agree", captured, *keys, "--policy", str(policy), "--output", str(output)]
        assert run(tiebreak, command) == 0
        assert parties.train(output) == 0
    return output


WIDE = 2.0**33
"""A threshold about as wide as FP32 sums are inexact."""


@pytest.mark.parametrize("name", FOLLOWED)
def test_sixteen_bits(name: str, folder: Path, parties: Parties, tmp_path: Path, audit: Audit) -> None:
    made = trained(folder, parties, 16)
    opened = RunDirectory.open(made)
    entries = sum(log_of(opened, step).count for step in range(1, STEPS + 1))
    assert entries > STEPS
    found = audit(FOLLOWED[name], made, tmp_path / "replay")
    assert (found["verdict"], found["steps"]) == ("agrees", [1, STEPS])
    assert found["replayed_root"] == opened.heads()[-1].head.run_root.hex()
    log = found["log"]
    assert (log["entries"], log["missing"], log["elsewhere"], log["findings"]) == (entries, 0, 0, [])
    own = RunDirectory.open(tmp_path / "replay")
    assert [log_of(own, step) for step in (1, STEPS)] == [log_of(opened, step) for step in (1, STEPS)]


@pytest.mark.parametrize("name", ["pure", "threads"])
def test_thirty_two_bits(name: str, folder: Path, parties: Parties, tmp_path: Path, audit: Audit) -> None:
    made = trained(folder, parties, 32)
    found = audit(FOLLOWED[name], made, tmp_path / "replay")
    assert found["verdict"] == "agrees"
    assert (found["log"]["steps"], found["log"]["missing"], found["log"]["elsewhere"]) == (STEPS, 0, 0)


def test_training_says_what_it_logged(
    folder: Path, parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = RunDirectory.open(trained(folder, parties, 16))
    capsys.readouterr()
    again = tmp_path / "again"
    keys = ["--client-key", str(parties.path("client.pem")), "--trainer-key", str(parties.path("trainer.pem"))]
    command = ["agree", str(folder / "captured"), *keys, "--policy", str(made.path / POLICY), "--output", str(again)]
    assert run(tiebreak, command) == 0
    assert "policy  logged, 16 bits, within plain 2^-" in capsys.readouterr().out
    assert parties.train(again, "--json", "--until", "20") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    steps = [event["entries"] for event in events if event["event"] == "step"]
    assert steps == [log_of(made, step).count for step in range(1, 21)]
    assert events[0]["policy"].startswith("logged, 16 bits")
    assert (events[-1]["entries"], events[-1]["log_bytes"]) == (sum(steps), RunDirectory.open(again).log_bytes())
    assert parties.train(again, "--until", "40") == 0
    printed = capsys.readouterr().out
    assert f"logs     {sum(log_of(made, step).count for step in range(21, 41))} entries in 20 steps; " in printed
    assert LoggedPolicy.load(again / "policy.json") == policy_of(made)
