"""`tiebreak scale` and `tiebreak economics`: figures in, costs or terms out, for people and programs."""

import json
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from pathlib import Path

import pytest

from tests.lab.sim.yard import make_task
from tests.tiebreak.parties import Commands, Parties
from tiebreak.cli.offer import agree
from tiebreak.engine.capture.captured import capture_task
from tiebreak.lab.commands.scale import human
from tiebreak.lab.incentives.figures import PRESETS
from tiebreak.lab.incentives.measured import measured
from tiebreak.lab.incentives.recommend import recommend
from tiebreak.protocol.commitments.terms import Terms


def test_costs_and_limits_are_printed_and_written(tmp_path: Path, command: Commands) -> None:
    output = tmp_path / "scale.json"
    options = ["--parameters", "1000000", "--steps", "1000", "--checkpoint-interval", "50", "--jobs", "3"]
    options += ["--step-seconds", "0.01", "--levels", "3", "--json", str(output)]
    printed = command("scale", *options)
    for word in ("GPT-2 with", "3 jobs of 1,000 steps", "gas of a dispute", "Nearest to its limit", "parameters: up to",
                 "wrote"):  # fmt: skip
        assert word in printed
    found = json.loads(output.read_text())
    assert list(found["limits"]) == ["parameters", "steps", "jobs"]
    assert found["limits"]["jobs"]["up to"] >= 3
    assert found["costs"]["training"]["value"] > 1000 * 0.01


def test_workers_are_printed_and_written(tmp_path: Path, command: Commands) -> None:
    output = tmp_path / "scale.json"
    printed = command("scale", "--parameters", 1000000, "--workers", 4, "--json", output)
    assert "each of 4 workers: sends in a step" in printed
    found = json.loads(output.read_text())["workers"]
    assert found["number"] == 4
    assert 0 < found["sends in a step"] < 3 * found["would send under FP32 DDP"]


def test_a_job_over_a_limit_says_how_to_lift_it(command: Commands) -> None:
    printed = command("scale", "--parameters", 1000000, "--memory", 1)
    assert "Nearest to its limit: memory of a machine" in printed
    assert "That is over the limit already." in printed


@pytest.mark.slow
def test_a_program_file_and_a_step_of_ones_own(tmp_path: Path, command: Commands) -> None:
    program = capture_task(make_task()).program
    path, output = tmp_path / "program.tbp", tmp_path / "scale.json"
    path.write_bytes(program.encode())
    options = ["--program", str(path), "--steps", "8", "--checkpoint-interval", "3", "--step-seconds", "0.25"]
    printed = command("scale", *options, "--keep", "every:2", "--json", output)
    found = json.loads(output.read_text())
    assert found["counts"]["instructions"] == len(program.body)
    assert found["costs"]["plain_step"]["value"] == 0.25
    assert list(found["limits"]) == ["steps", "jobs"]
    assert "program.tbp" in printed


WRONG = [
    (["--parameters", "0"], "Error:"),
    (["--program", "no-such-file"], "Error:"),
    (["--steps", "10", "--checkpoint-interval", "11"], "ConfigurationError: expected a checkpoint every 1 to 10"),
    (["--keep", "some"], "ConfigurationError: expected all, every:M or last"),
    (["--memory", "inf"], "ConfigurationError: expected memory_bytes above zero"),
    (["--step-seconds", "nan"], "ConfigurationError: expected seconds of a step"),
]


@pytest.mark.parametrize(("options", "words"), WRONG, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_wrong_figures_are_one_clear_line(options: list[str], words: str, command: Commands) -> None:
    error = command("scale", *options, code=1)
    assert error.strip().splitlines()[-1].startswith(words)
    assert "Traceback" not in error


def test_bytes_that_are_no_program_are_refused(tmp_path: Path, command: Commands) -> None:
    path = tmp_path / "program.tbp"
    path.write_bytes(b"not a program")
    assert "program.tbp" in command.error("scale", "--program", path)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.5, "s", "0.5 s"), (7200, "s", "2 h"), (1e9, "s", "31.7 years"), (1500, "bytes", "1.5 kB"),
     (3e21, "bytes", "3e+03 EB"),
     (1234567.8, "gas", "1,234,568 gas"), (3, "", "3")],
)  # fmt: skip
def test_numbers_for_people(value: float, unit: str, text: str) -> None:
    assert human(value, unit) == text


# ---------------------------------------------------------------- economics


@pytest.mark.slow
def test_a_preset_a_file_and_options_give_terms_that_agree_takes(
    parties: Parties, tmp_path: Path, command: Commands
) -> None:
    figures, path = tmp_path / "figures.toml", tmp_path / "found.json"
    figures.write_text("ether = 1000\nauditors = 3\n")
    given = ["--preset", "fine-tune", "--figures", figures, "--ether", "1500.5"]
    words = command("economics", *given, "--json", path)
    found = json.loads(path.read_text())
    assert (found["figures"]["ether"], found["figures"]["auditors"]) == ("3001/2", "3")
    assert f"tiebreak agree {' '.join(found['agree'])}" in words
    f = replace(PRESETS["fine-tune"].figures, ether=Fraction(3001, 2), auditors=3)
    assert found["figures"]["steps"] == str(f.steps)
    terms = recommend(f, measured(f.descent_levels)).terms
    context = agree.make_context("agree", [str(parties.path("captured")), *parties.keys, *found["agree"]])
    assert Terms(**{name: context.params[name] for name in found["terms"]}) == terms


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "expected --preset (fine-tune, gpt2, 7b), --figures or figures as options, got none"),
        (["--steps", "5"], "expected figures for seconds_per_step, machine_hour, lie_value, harm, got none"),
        (["--preset", "gpt2", "--margin", "0"], "margin: expected 1 to 1000000000000000, got 0"),
        (["--preset", "gpt2", "--ether", "much"], "expected a number such as 0.25, got 'much'"),
        (["--preset", "gpt2", "--ether", "inf"], "ether: expected a finite number, got Infinity"),
    ],
)
def test_wrong_figures_of_economics_are_one_line(arguments: list[str], line: str, command: Commands) -> None:
    assert line in " ".join(command("economics", *arguments, code=1).split())


def test_every_figure_has_an_option_with_help(command: Commands) -> None:
    text = " ".join(command("economics", "--help").split())
    for name, (_, limits) in import_module("tiebreak.lab.commands.economics").FIGURES.items():
        assert f"--{name.replace('_', '-')}" in text
        assert limits.what[1:15] in text
