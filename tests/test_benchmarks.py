"""What is measured is published where the user says, and the tables in docs/ are what was measured."""

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import board, table
from benchmarks.pages import BLOCK, DOCS, PAGES, filled
from benchmarks.table import RESULTS, Row, publish, read
from scripts import lines
from tests.parts import slow_except


def row(case: str, value: float, metric: str = "a step") -> Row:
    return Row(metric=metric, case=case, value=value, unit="s")


def test_only_commit_writes_the_results_and_keeps_other_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    results = tmp_path / "results"
    publish("board", [row("one", 1.0), row("two", 2.0), row("two", 7.0, "bytes")], folder=results)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(board, "measure", lambda: {"settle": 5})
    monkeypatch.setattr(table, "RESULTS", results)
    publish("board", [row("three", 3.0), row("two", 20.0)], folder=results)
    expected = [row("one", 1.0), row("two", 20.0), row("two", 7.0, "bytes"), row("three", 3.0)]
    assert read(results / "board.json") == expected
    for arguments, cases in (([], []), (["--commit"], ["board"])):
        done = CliRunner().invoke(board.main, arguments)
        assert done.exit_code == 0, done.output
        assert [r.case for r in read(results / "board.json")] == [*(r.case for r in expected), *cases]
    assert [r.case for r in read(tmp_path / table.OUTPUT.name / "board.json")] == ["board"]


@pytest.mark.parametrize(
    "name", [path.stem for path in sorted(RESULTS.glob("*.json")) if path.stem not in ("simulate", "rough")]
)
def test_committed_results_are_rows_with_one_value_for_each_metric_and_case(name: str) -> None:
    rows = read(RESULTS / f"{name}.json")
    assert len({(r.metric, r.case) for r in rows}) == len(rows) > 0


@pytest.mark.parametrize("name", slow_except(PAGES, *(name for name in PAGES if name != "economics.md")))
def test_the_tables_of_a_page_are_up_to_date(name: str) -> None:
    text = (DOCS / name).read_text("utf-8")
    assert BLOCK.search(text)
    assert filled(text) == text, "run python -m benchmarks.pages"


@pytest.mark.parametrize(("budget", "said"), [(8, "8 of      8 lines\n"), (7, "8 of      7 lines  over the budget\n")])
def test_more_lines_than_the_budget_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], budget: int, said: str
) -> None:
    """Lines of code are counted once, by folder; only those of files that git tracks."""
    names = {
        "tiebreak/sim/a.py": 3,
        "tiebreak/sim/b.c": 4,
        "tiebreak/sim/d.json": 100,
        "benchmarks/e.py": 1,
        "tests/f.py": 50,
    }
    for name, count in names.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n" * count)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "tiebreak" / "untracked.py").write_text("x\n" * 1000)
    monkeypatch.setattr(lines, "BUDGET", budget)
    assert lines.main(tmp_path) == (budget < 8)
    out = capsys.readouterr().out
    assert said in out
    assert "tiebreak/sim/             7 lines\n" in out
