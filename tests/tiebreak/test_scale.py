"""`tiebreak scale`, and its page."""

import json
from pathlib import Path

import pytest

from benchmarks.gas_page import ROOT
from benchmarks.scale_page import page
from tests.sim.yard import make_task
from tiebreak.cli.main import run, tiebreak
from tiebreak.cli.scale import human
from tiebreak.engine.capture.compile import compile_task
from tiebreak.sim.scale.bottleneck import Budgets
from tiebreak.sim.scale.curves import document
from tiebreak.sim.scale.measurements import RESULTS, Measurements


@pytest.mark.slow
def test_the_page_is_made_from_what_was_measured() -> None:
    text = page(document(Measurements.read(), Budgets()))
    assert (ROOT / "docs" / "scale.md").read_text("utf-8") == text, "run python -m benchmarks.scale_page docs/scale.md"


def test_costs_and_bottlenecks_are_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "scale.json"
    options = ["--parameters", "1000000", "--steps", "1000", "--checkpoint-interval", "50", "--jobs", "3"]
    assert run(tiebreak, ["scale", *options, "--levels", "3", "--json", str(output)]) == 0
    printed = capsys.readouterr().out
    for word in ("GPT-2 of", "3 jobs of 1,000 steps", "its gas", "most used", "parameters", "wrote"):
        assert word in printed
    found = json.loads(output.read_text())
    assert found["setting"]["jobs"] == 3
    assert [b["direction"] for b in found["bottlenecks"]] == ["parameters", "steps", "jobs"]
    costs = found["costs"]
    assert costs["moves"]["exact"]
    assert not costs["trainer_step"]["exact"]
    assert costs["training"]["low"] < costs["training"]["value"] < costs["training"]["high"]


def test_a_program_file_and_a_step_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = compile_task(make_task()).program
    path, output = tmp_path / "program.tbp", tmp_path / "scale.json"
    path.write_bytes(program.encode())
    options = ["--program", str(path), "--steps", "8", "--checkpoint-interval", "3", "--step-seconds", "0.25"]
    assert run(tiebreak, ["scale", *options, "--keep", "every:2", "--logged", "--json", str(output)]) == 0
    found = json.loads(output.read_text())
    assert found["subject"]["counts"]["instructions"] == len(program.body)
    assert found["costs"]["plain_step"]["value"] == 0.25
    assert found["costs"]["log_bytes"]["value"] > 0
    assert "program.tbp" in capsys.readouterr().out


@pytest.mark.slow
def test_the_curves_of_the_report(tmp_path: Path) -> None:
    path = tmp_path / "curves.json"
    assert run(tiebreak, ["scale", "--curves", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found["curves"]["parameters"][-1]["size"] == 10**12
    assert all(point["holds"] for point in found["held_out"])


WRONG = [
    (["--parameters", "10"], "Error:"),
    (["--steps", "0"], "Error:"),
    (["--levels", "6"], "Error:"),
    (["--disputed", "2"], "Error:"),
    (["--memory", "0"], "Error:"),
    (["--program", "no-such-file"], "Error:"),
    (["--steps", "10", "--checkpoint-interval", "11"], "ConfigurationError: expected a checkpoint every 1 to 10"),
    (["--keep", "some"], "ConfigurationError: expected all, every:M or last"),
    (["--memory", "inf"], "ConfigurationError: expected memory_bytes above zero"),
    (["--step-seconds", "nan"], "ConfigurationError: expected seconds of a step"),
]


@pytest.mark.parametrize(("options", "words"), WRONG, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_wrong_figures_are_one_clear_line(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiebreak, ["scale", *options]) == 1
    printed = capsys.readouterr()
    assert printed.err.strip().splitlines()[-1].startswith(words)
    assert "Traceback" not in printed.err


def test_bytes_that_are_no_program_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.tbp"
    path.write_bytes(b"not a program")
    assert run(tiebreak, ["scale", "--program", str(path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_measurements_from_elsewhere_are_read_strictly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiebreak, ["scale", "--results", str(tmp_path)]) == 1
    assert "make bench-scale" in capsys.readouterr().err
    (tmp_path / "scale.json").write_text((RESULTS / "scale.json").read_text()[:-10])
    assert run(tiebreak, ["scale", "--results", str(tmp_path)]) == 2
    assert "EncodingError: scale" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.5, "s", "0.5 s"), (7200, "s", "2 h"), (1e9, "s", "31.7 years"), (1500, "bytes", "1.5 kB"),
     (3e21, "bytes", "3e+03 EB"),
     (1234567.8, "gas", "1,234,568 gas"), (3, "", "3")],
)  # fmt: skip
def test_numbers_for_people(value: float, unit: str, text: str) -> None:
    assert human(value, unit) == text
