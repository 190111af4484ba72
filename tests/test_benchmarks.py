"""Benchmarks write where the user says, and into the repository's results only with --commit."""

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import board, engine, table
from benchmarks.table import RESULTS, Row, publish, read
from tests.source_tree import ROOT


def tree() -> dict[str, bytes]:
    return {str(path.relative_to(RESULTS)): path.read_bytes() for path in RESULTS.rglob("*.json")}


def row(case: str, value: float, metric: str = "a step") -> Row:
    return Row(metric=metric, case=case, value=value, unit="s")


def test_a_run_leaves_the_repository_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A real benchmark with one workload, which used to replace the committed file by its own rows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine, "REPEATS", {"digits": 1})
    before = tree()
    done = CliRunner().invoke(engine.main, ["digits", "--threads", "1"])
    assert done.exit_code == 0, done.output
    assert tree() == before
    made = json.loads((tmp_path / "benchmark-results" / "engine.json").read_text())
    assert {r["case"].split(",")[0].split(":")[0] for r in made["rows"]} == {"digits"}


def test_the_default_folder_is_ignored_by_git() -> None:
    done = subprocess.run(["git", "check-ignore", "-q", str(table.OUTPUT / "engine.json")], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_commit_merges_rows_and_keeps_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    publish("board", [row("one", 1.0), row("two", 2.0), row("two", 7.0, "bytes")], folder=tmp_path)
    monkeypatch.setattr(board, "measure", lambda: {"settle": 5})
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    publish("board", [row("three", 3.0), row("two", 20.0)], folder=tmp_path)
    expected = [row("one", 1.0), row("two", 20.0), row("two", 7.0, "bytes"), row("three", 3.0)]
    assert read(tmp_path / "board.json") == expected
    done = CliRunner().invoke(board.main, ["--commit"])
    assert done.exit_code == 0, done.output
    assert [r.case for r in read(tmp_path / "board.json")] == ["one", "two", "two", "three", "board"]


@pytest.mark.parametrize(
    "name", [path.stem for path in sorted(RESULTS.glob("*.json")) if path.stem not in ("simulate", "rough")]
)
def test_committed_results_are_rows_with_one_value_for_each_metric_and_case(name: str) -> None:
    rows = read(RESULTS / f"{name}.json")
    assert len({(r.metric, r.case) for r in rows}) == len(rows) > 0
