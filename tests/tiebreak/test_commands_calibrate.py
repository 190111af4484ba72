"""`tiebreak calibrate`: what it measures on, what it writes, and that it writes nothing else."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.tiebreak.parties import Commands, Parties
from tiebreak.api.training.bundle import load_bundle
from tiebreak.engine.logged.calibration import Calibration, proven_policy
from tiebreak.engine.logged.policy import LoggedPolicy
from tiebreak.protocol.program.rounding import SumKind

QUICK = ["--steps", "1", "--orders", "1", "--threads", "2"]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "policy.json"


def test_calibrating_a_task_its_job_or_its_run_gives_the_same_policy(
    parties: Parties, tmp_path: Path, command: Commands, cases: Callable[[], None]
) -> None:
    found = []
    for source in ("task.py", "captured", "agreed"):
        output = tmp_path / f"{source}.json"
        out, err = command.printed("calibrate", parties.path(source), *QUICK, "--output", output)
        found.append(LoggedPolicy.load(output))
        assert f"policy {found[-1].digest} in {output}" in out
        assert len(re.findall(r"sum \d+ of \d+", err)) >= 10
        cases()
    policy = found[0]
    assert policy == found[1] == found[2]
    measured = policy.measurements
    assert measured is not None
    assert measured.programs == (load_bundle(parties.path("captured")).program.root.hex(),)
    assert (measured.steps, measured.orders, measured.margin) == (1, 1, 8.0)
    assert {"cpu, compiled, 1 thread", "cpu, pure, 2 threads"} <= set(measured.settings)
    assert f"torch {torch.__version__}" in measured.environment
    products = measured.sums[SumKind.PRODUCTS]
    assert products.elements > products.exact > 0
    kappa = policy.thresholds[SumKind.PRODUCTS]
    assert kappa is not None
    assert kappa >= 8 * max(1, products.divergence, products.error)

    assert out.startswith("32 bits, computed in FP64"), "the table says what the file says"
    rows = {line[:28].strip(): line[28:].split() for line in out.splitlines()}
    kinds = [SumKind[name.upper()] for name in rows[""]]
    assert rows["tolerance"] == [f"2^-{policy.tolerances[kind]}" for kind in kinds]
    thresholds = [policy.thresholds[kind] for kind in kinds]
    assert rows["threshold"] == ["proven" if t is None else f"{t:.3g}" for t in thresholds]


def test_one_policy_is_calibrated_on_several_programs(parties: Parties, output: Path, command: Commands) -> None:
    source = parties.path("captured")
    more = [*QUICK, "--precision", 16, "--margin", 16]
    told = command.tell("calibrate", "--proven", "--output", output.with_name("proven.json"))
    assert (told["precision"], told["digest"]) == (32, LoggedPolicy.load(output.with_name("proven.json")).digest)
    assert command("calibrate", source, source, *more, "--output", output).startswith("16 bits")
    policy = LoggedPolicy.load(output)
    assert policy.precision == 16
    assert policy.measurements is not None
    assert (len(policy.measurements.programs), policy.measurements.steps, policy.measurements.margin) == (2, 2, 16)


def test_proven_bounds_need_no_measurement(output: Path, command: Commands) -> None:
    proven = ["calibrate", "--proven", "--precision", 24, "--output", output]
    assert "proven" in command(*proven)
    assert LoggedPolicy.load(output) == proven_policy(24)
    output.write_text("mine")
    assert "exists; choose another" in command(*proven, code=1)
    assert output.read_text() == "mine"


def test_an_interrupted_calibration_writes_nothing(
    parties: Parties, output: Path, monkeypatch: pytest.MonkeyPatch, command: Commands
) -> None:
    examine, seen = Calibration.examine, []

    def interrupted(self: Calibration, *arguments: object, **options: object) -> None:
        examine(self, *arguments, **options)  # type: ignore[arg-type]
        seen.append(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Calibration, "examine", interrupted)
    captured = parties.path("captured")
    assert "interrupted" in command("calibrate", captured, *QUICK, "--output", output, code=130)
    assert len(seen) == 1
    assert list(output.parent.iterdir()) == []
