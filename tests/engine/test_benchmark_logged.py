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
from benchmarks.logged.names import (
    AUDITOR,
    AUTOCAST,
    CALIBRATED,
    EAGER,
    EXACT,
    KINDS,
    LOSS,
    PERMUTED,
    PROVEN,
    REORDERED,
    TRAINER,
    WITH,
    WITHOUT,
)  # fmt: skip
from benchmarks.logged.store import Store, Unit
from benchmarks.logged.thresholds import by_the_paper
from benchmarks.logged.workloads import QUICK
from benchmarks.table import RESULTS, Row
from tiebreak.protocol.errors import StateError

pytestmark = pytest.mark.slow
Values = dict[tuple[str, str], float]


def run(*args: str) -> Result:
    return CliRunner().invoke(logged.main, [*args, "--threads", str(torch.get_num_threads())])


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "logged.json").read_text())
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of all parts."""
    path = tmp_path_factory.mktemp("results")
    before = sorted(p.name for p in RESULTS.rglob("*"))
    done = run("--quick", "--output", str(path))
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in RESULTS.rglob("*")) == before
    return path


@pytest.fixture(scope="module")
def values(folder: Path) -> Values:
    return {(row["case"], row["metric"]): row["value"] for row in read(folder)["rows"]}


def test_thresholds(values: Values) -> None:
    for kind in ("plain", "products"):
        case = f"thresholds, gpt2, {kind}"
        assert values[case, "threshold"] >= values[case, "divergence"]
        assert values[case, "elements compared"] > 0
        assert 0 <= values[case, "elements that the paper's rule logs"] <= 1
    assert values["thresholds, gpt2, products", "elements that the paper's rule logs"] > 0


def test_logs(values: Values) -> None:
    for model in QUICK.models:
        case = f"bytes, {model}"
        elements = sum(values[f"{case}, {kind}", "elements"] for kind in KINDS.values())
        assert values[case, "elements of logged sums"] == elements > 100
        assert values[case, "naive log: a byte an element"] >= elements
        dense = values[case, "dense log: base 3, five elements a byte"]
        for b in QUICK.precisions:
            for label in (CALIBRATED, PROVEN):
                there = f"{case}, b={b}, {label}"
                assert values[there, "sparse / dense"] == pytest.approx(values[there, "sparse log"] / dense)
                kinds = [values[f"{there}, {kind}", "entries"] for kind in KINDS.values()]
                assert values[there, "entries"] == sum(kinds)
                assert values[there, "entries needed"] <= values[there, "entries"]
                assert values[there, "entries without effect"] == 0  # the trainer is honest


def test_times(values: Values) -> None:
    for model in QUICK.models:
        parties = (EAGER, EXACT, TRAINER, AUDITOR, PERMUTED)
        times = {who: values[f"speed, {model}, {who}", "a step"] for who in parties}
        assert min(times.values()) > 0
        for base in (EAGER, EXACT):
            assert values[f"speed, {model}, {TRAINER}", f"/ {base}"] == pytest.approx(times[TRAINER] / times[base])
        assert 0 < values[f"speed, {model}, {TRAINER}", "handling the log"] < 1


def test_divergence(values: Values) -> None:
    for model in QUICK.models:
        for step in QUICK.marks:
            after = f"after {step} step{'s' if step > 1 else ''}"
            case = f"divergence, {model}"
            assert values[f"{case}, {WITH}, {after}", "weights that differ"] == 0
            assert values[f"{case}, {WITH}, {after}", "L2 distance"] == 0
            assert values[f"{case}, {REORDERED}, {after}", "weights that differ"] > 0
            assert (
                values[f"{case}, {REORDERED}, {after}", "L2 distance"]
                > values[f"{case}, {WITHOUT}, {after}", "L2 distance"]
            )
            assert values[f"{case}, {after}", "L2 distance from the start"] > 0


def test_accuracy(values: Values) -> None:
    for who in (EAGER, AUTOCAST, *(f"b={b}" for b in QUICK.precisions), "b=16"):
        for metric in ("test accuracy", LOSS):
            case = f"accuracy, digits, {who}"
            ends = [values[case, f"{metric}, least"], values[case, metric], values[case, f"{metric}, greatest"]]
            assert 0 <= ends[0] <= ends[1] <= ends[2]
        # The order by another seed gives another loss: the seeds reach the program.
        assert values[case, f"{LOSS}, least"] < values[case, f"{LOSS}, greatest"]


def test_what_is_there_is_not_measured_again(folder: Path) -> None:
    before = (folder / "logged.json").read_bytes()
    done = run("--quick", "--output", str(folder), "--missing")
    assert done.exit_code == 0
    assert "started" not in done.output
    assert (folder / "logged.json").read_bytes() == before


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


def test_results_are_for_real_models() -> None:
    assert "--commit is for real models" in run("--quick", "--commit").output


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    done = run("--quick", "--output", str(tmp_path), "--parts", "bytes,gas")
    assert done.exit_code == 2
    assert "expected some of thresholds, bytes" in done.output


def test_thresholds_come_first(tmp_path: Path) -> None:
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
