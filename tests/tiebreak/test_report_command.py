"""`tiebreak report`: which files it reads and writes, and what it refuses."""

import json
from pathlib import Path

import pytest

from tests.sim.report import synthetic
from tiebreak.cli.main import run, tiebreak

FOUND = ("Promises", "Disputes")


@pytest.fixture
def simulated(tmp_path: Path) -> Path:
    path = tmp_path / "simulate.json"
    found = synthetic.simulate(names={"trainer": ("two heads",)})
    path.write_text(json.dumps({**found, "levels": {}, "families": {}}))
    return path


def render(*arguments: object) -> int:
    return run(tiebreak, ["report", *map(str, arguments)])


def test_both_forms_are_written_and_named(
    simulated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert render("--simulate", simulated, "--output", "a/b", "--name", "seen") == 0
    folder = tmp_path / "a" / "b"
    assert sorted(path.name for path in folder.iterdir()) == ["seen", "seen.html", "seen.md"]
    assert {path.suffix for path in (folder / "seen").iterdir()} == {".svg", ".csv"}
    assert capsys.readouterr().out.split() == ["a/b/seen.html", "a/b/seen.md", "a/b/seen/numbers.csv"]
    for page in ((folder / "seen.html").read_text(), (folder / "seen.md").read_text()):
        assert all(title in page for title in FOUND)


@pytest.mark.parametrize(("how", "names"), [("html", ["report.html"]), ("markdown", ["report", "report.md"])])
def test_one_form(how: str, names: list[str], simulated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert render("--simulate", simulated, "--format", how, "--output", "out") == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names


def test_results_in_their_usual_place_are_found(
    simulated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = tmp_path / "benchmarks" / "results"
    usual.mkdir(parents=True)
    simulated.rename(usual / "simulate.json")
    monkeypatch.chdir(tmp_path)
    assert render("--format", "markdown", "--output", "out") == 0
    assert "Who was caught where" in (tmp_path / "out" / "report.md").read_text()


def test_without_results_the_report_says_what_makes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert render() == 0
    assert "no results of `tiebreak simulate`, which makes them" in (tmp_path / "report" / "report.html").read_text()


def test_a_file_that_was_asked_for_must_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert render("--simulate", tmp_path / "none.json", "--output", tmp_path / "out") == 1
    assert "expected a results file at" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_another_version_is_one_line(simulated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated.write_text(json.dumps({**synthetic.simulate(), "version": 2}))
    assert render("--simulate", simulated, "--output", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert error.startswith("EncodingError: expected another content of simulate.json at #/version: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["", "..", "a/b", "/x", ".hidden"])
def test_a_name_is_no_path(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert render("--name", name, "--output", tmp_path) == 1
    assert "expected a name for the files, without folders" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
