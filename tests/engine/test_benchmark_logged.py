"""The benchmark of policy `logged`, tried out on tiny models: every part, and nothing among the checked-in results."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from benchmarks.logged import __main__ as logged
from benchmarks.logged import store
from benchmarks.logged.context import check_equal
from benchmarks.logged.names import CALIBRATED, EAGER, LOSS, REORDERED, WITH
from benchmarks.logged.store import Store, Unit
from benchmarks.logged.thresholds import by_the_paper
from benchmarks.logged.workloads import QUICK
from benchmarks.table import RESULTS, Row
from tiebreak.protocol.errors import StateError

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


def test_a_unit_replaces_its_own_rows_only(tmp_path: Path) -> None:
    store, unit, other = Store(tmp_path), Unit(part="speed", model="gpt2"), Unit(part="bytes", model="gpt2")

    def row(case: str, value: float) -> Row:
        return Row(metric="m", case=case, value=value, unit="")

    store.merge(unit, [row("speed, gpt2, a", 1), row("speed, gpt2", 2)], 60)
    store.merge(other, [row("bytes, gpt2", 3)], 120)
    store.merge(unit, [row("speed, gpt2, b", 4)], 30)
    assert [(r.case, r.value) for r in store.rows()] == [("bytes, gpt2", 3), ("speed, gpt2, b", 4)]
    assert read(tmp_path)["environment"]["bytes, gpt2"] == "2.0 minutes"
    assert store.has(unit)
    assert not store.has(Unit(part="speed", model="gpt"))
    with pytest.raises(ValueError, match="expected cases that begin with 'speed, gpt2', got 'bytes, gpt2'"):
        store.merge(unit, [row("bytes, gpt2", 5)], 1)


def test_results_of_two_machines_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(tmp_path).merge(Unit(part="bytes", model="gpt2"), [Row(metric="m", case="bytes, gpt2", value=1, unit="")], 1)
    told = dict(store.describe()) | {"cpu": "another"}
    monkeypatch.setattr(store, "describe", lambda: tuple(told.items()))
    done = run("--quick", "--output", str(tmp_path))
    assert done.exit_code == 1
    assert "got another" in done.output


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    assert "--commit is for real models" in run("--quick", "--commit").output
    done = run("--quick", "--output", str(tmp_path), "--parts", "bytes,gas")
    assert done.exit_code == 2
    assert "expected some of thresholds, bytes" in done.output
    done = run("--quick", "--output", str(tmp_path), "--parts", "bytes", "--models", "gpt2")
    assert done.exit_code == 1
    assert "which --parts thresholds makes" in done.output


def test_unequal_states_end_the_benchmark() -> None:
    zero = {"w": torch.zeros(2)}
    check_equal(zero, {"w": torch.zeros(2)}, "test")
    with pytest.raises(StateError, match="test: expected the same bits in w"):
        check_equal(zero, {"w": torch.tensor([0.0, -0.0])}, "test")


def test_the_papers_rule() -> None:
    # b = 32: gaps of 2^-23 of 2^exponent, so a middle is at most 2^-24 away.
    assert by_the_paper(2.0**-24, 32) == 1
    assert by_the_paper(2.0**-34, 32) == 2.0**-10
    assert by_the_paper(1.0, 16) == 1
