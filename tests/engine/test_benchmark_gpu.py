"""The GPU benchmark, tried out on a CPU: every row that it promises, and nothing among the checked-in results."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import gpu
from benchmarks.table import RESULTS
from tests.golden.models import SMALL


@pytest.mark.slow
def test_a_trial_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "REPEATS", 2)
    before = sorted(path.name for path in RESULTS.iterdir())
    done = CliRunner().invoke(gpu.main, ["--device", "cpu", "--output", str(tmp_path), "--steps", "2"])
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in RESULTS.iterdir()) == before
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert document["environment"]["device"] == "cpu"
    assert document["environment"]["torch"]
    rows = document["rows"]
    for name in SMALL:
        mine = {row["metric"]: row["value"] for row in rows if row["case"].startswith(name)}
        assert mine["state equal to the CPU's"] == 2
        times = {who: mine[f"{who}: a step"] for who in ("eager FP32", "eager FP64", "bf16 autocast", "exact")}
        assert min(times.values()) > 0
        for base in ("eager FP32", "eager FP64", "bf16 autocast"):
            assert mine[f"exact / {base}"] == pytest.approx(times["exact"] / times[base])
        shares = [row["value"] for row in rows if ": " in row["case"] and row["case"].startswith(name)]
        assert len(shares) == gpu.KERNELS + 1
        assert sum(shares) == pytest.approx(1)


def test_results_are_for_gpus() -> None:
    done = CliRunner().invoke(gpu.main, ["--device", "cpu", "--commit"])
    assert done.exit_code == 2
    assert "--commit is for a GPU's results" in done.output


def test_a_device_that_computes_otherwise_is_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    roots = iter([bytes(32), bytes([1] * 32)])

    class Tree:
        def __init__(self, _: object) -> None:
            self.root = next(roots)

    monkeypatch.setattr(gpu, "state_tree", Tree)
    done = CliRunner().invoke(gpu.main, ["--device", "cpu", "--output", str(tmp_path), "--steps", "1"])
    assert done.exit_code == 1
    assert "expected the CPU's state root 0000" in done.output
    assert not (tmp_path / "gpu.json").exists()
