"""`tiebreak calibrate`: what it measures on, what it writes, and that it writes nothing else."""

import re
from pathlib import Path

import pytest
import torch

from tests.tiebreak.parties import Parties
from tiebreak.api.bundle import load_bundle
from tiebreak.cli.main import run, tiebreak
from tiebreak.engine.logged.calibration import Calibration, proven_policy
from tiebreak.engine.logged.policy import LoggedPolicy
from tiebreak.protocol.program.rounding import SumKind

QUICK = ["--steps", "1", "--orders", "1", "--threads", "2"]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def calibrate(output: Path, *arguments: str) -> int:
    return run(tiebreak, ["calibrate", *arguments, "--output", str(output)])


def test_a_task_a_captured_job_and_a_run_give_one_policy(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = (parties.path("task.py"), parties.path("captured"), parties.path("agreed"))
    found = []
    for number, source in enumerate(sources):
        output = tmp_path / f"{number}.json"
        assert calibrate(output, str(source), *QUICK) == 0
        found.append(LoggedPolicy.load(output))
        assert f"policy {found[-1].digest} in {output}" in capsys.readouterr().out
    assert found[0] == found[1] == found[2]
    measured = found[0].measurements
    assert measured is not None
    assert measured.programs == (load_bundle(parties.path("captured")).program.root.hex(),)
    assert (measured.steps, measured.orders, measured.margin) == (1, 1, 8.0)
    assert {"cpu, compiled, 1 thread", "cpu, pure, 2 threads"} <= set(measured.settings)
    assert f"torch {torch.__version__}" in measured.environment
    products = measured.sums[SumKind.PRODUCTS]
    assert products.elements > products.exact > 0
    kappa = found[0].thresholds[SumKind.PRODUCTS]
    assert kappa is not None
    assert kappa >= 8 * max(1, products.divergence, products.error)


def test_the_table_says_what_the_file_says(
    parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "policy.json"
    assert calibrate(output, str(parties.path("captured")), *QUICK, "--precision", "28", "--margin", "16") == 0
    printed = capsys.readouterr()
    policy = LoggedPolicy.load(output)
    assert policy.precision == 28
    assert printed.out.startswith("28 bits, computed in FP64")
    rows = {line[:28].strip(): line[28:].split() for line in printed.out.splitlines()}
    kinds = [SumKind[name.upper()] for name in rows[""]]
    assert rows["tolerance"] == [f"2^-{policy.tolerances[kind]}" for kind in kinds]
    thresholds = [policy.thresholds[kind] for kind in kinds]
    assert rows["threshold"] == ["proven" if t is None else f"{t:.3g}" for t in thresholds]
    assert len(re.findall(r"sum \d+ of \d+", printed.err)) >= 10


def test_several_programs(parties: Parties, tmp_path: Path) -> None:
    output, source = tmp_path / "policy.json", str(parties.path("captured"))
    assert calibrate(output, source, source, *QUICK, "--precision", "16") == 0
    policy = LoggedPolicy.load(output)
    assert policy.precision == 16
    assert policy.measurements is not None
    assert (len(policy.measurements.programs), policy.measurements.steps) == (2, 2)


def test_proven_bounds_need_no_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "policy.json"
    assert calibrate(output, "--proven", "--precision", "24") == 0
    assert LoggedPolicy.load(output) == proven_policy(24)
    assert "proven" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "or --proven, got neither"),
        (["digits", "--proven"], "or --proven, got both"),
        (["nowhere.py"], "Python file with task()"),
        (["digits", "--compute", "float32"], "No such option"),
        (["digits", "--device", "cpu"], "beside the CPU"),
        (["digits", "--device", "warp:9"], "expected a device"),
        (["digits", "--precision", "15"], "precision"),
        (["digits", "--margin", "0.5"], "margin"),
        (["digits", "--steps", "0"], "steps"),
    ],
)
def test_what_cannot_be_is_said_and_nothing_is_written(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(tmp_path / "policy.json", *arguments) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_no_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert calibrate(tmp_path / "policy.json", str(tmp_path / "empty")) == 1
    assert "expected a run or a captured job" in capsys.readouterr().err


def test_a_file_that_exists_is_not_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "policy.json"
    output.write_text("mine")
    assert calibrate(output, "--proven") == 1
    assert "exists; choose another" in capsys.readouterr().err
    assert output.read_text() == "mine"


def test_an_interrupt_leaves_nothing_behind(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examine, seen = Calibration.examine, []

    def interrupted(self: Calibration, *arguments: object, **options: object) -> None:
        examine(self, *arguments, **options)  # type: ignore[arg-type]
        seen.append(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Calibration, "examine", interrupted)
    assert calibrate(tmp_path / "policy.json", str(parties.path("captured")), *QUICK) == 130
    assert "interrupted" in capsys.readouterr().err
    assert len(seen) == 1
    assert list(tmp_path.iterdir()) == []
