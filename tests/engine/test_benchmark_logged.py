"""The benchmark of policy `logged`, tried out on tiny models: every part, and nothing among the checked-in results."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from benchmarks.logged import __main__ as logged
from benchmarks.logged.names import CALIBRATED, EAGER, LOSS, REORDERED, WITH
from benchmarks.logged.workloads import QUICK
from benchmarks.table import RESULTS

pytestmark = pytest.mark.slow


def run(*args: str) -> Result:
    return CliRunner().invoke(logged.main, [*args, "--threads", str(torch.get_num_threads())])


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "logged.json").read_text())
    return found


def test_every_part_on_tiny_models(tmp_path: Path) -> None:
    before = sorted(p.name for p in RESULTS.rglob("*"))
    done = run("--quick", "--output", str(tmp_path), "--models", "gpt2,digits")
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in RESULTS.rglob("*")) == before
    values = {(row["case"], row["metric"]): row["value"] for row in read(tmp_path)["rows"]}
    assert {case.split(", ")[0] for case, _ in values} == set(logged.PARTS)
    for kind in ("plain", "products"):
        case = f"thresholds, gpt2, {kind}"
        assert values[case, "threshold"] >= values[case, "divergence"]
    case = f"bytes, gpt2, b={QUICK.precisions[0]}, {CALIBRATED}"
    assert values[case, "entries needed"] <= values[case, "entries"]
    assert values[case, "entries without effect"] == 0  # the trainer is honest
    for step in QUICK.marks:
        after = f"after {step} step{'s' if step > 1 else ''}"
        assert values[f"divergence, gpt2, {WITH}, {after}", "weights that differ"] == 0
        assert values[f"divergence, gpt2, {REORDERED}, {after}", "weights that differ"] > 0
    case = f"accuracy, digits, {EAGER}"  # the order by another seed gives another loss: the seeds reach the program
    assert values[case, f"{LOSS}, least"] < values[case, f"{LOSS}, greatest"]
    again = run("--quick", "--output", str(tmp_path), "--models", "gpt2,digits", "--missing")
    assert again.exit_code == 0
    assert "started" not in again.output
