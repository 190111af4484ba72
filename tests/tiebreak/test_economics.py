"""`tiebreak economics`: figures in, terms out, for people and programs."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tiebreak.cli.agree import agree
from tiebreak.cli.main import run, tiebreak
from tiebreak.engine.run.agreement import Terms
from tiebreak.sim.incentives.figures import PRESETS
from tiebreak.sim.incentives.measured import measured
from tiebreak.sim.incentives.recommend import recommend

command = import_module("tiebreak.cli.economics")  # the package has the command under this name


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(tiebreak, ["economics", *arguments])


def test_a_preset_gives_terms_that_agree_takes(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    result = invoke("--preset", "fine-tune", "--json", str(path))
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text())
    assert f"tiebreak agree {' '.join(found['agree'])}" in result.output
    f = PRESETS["fine-tune"].figures
    terms = recommend(f, measured(f.descent_levels)).terms
    context = agree.make_context("agree", [*_needed(tmp_path), *found["agree"]])
    assert Terms(**{name: context.params[name] for name in found["terms"]}) == terms


def _needed(folder: Path) -> list[str]:
    (folder / "captured").mkdir()
    (folder / "key").write_text("")
    return [str(folder / "captured"), "--client-key", str(folder / "key"), "--trainer-key", str(folder / "key")]


def test_options_change_a_file_and_a_file_changes_a_preset(tmp_path: Path) -> None:
    figures, path = tmp_path / "figures.toml", tmp_path / "found.json"
    figures.write_text("ether = 1000\nauditors = 3\n")
    result = invoke("--preset", "gpt2", "--figures", str(figures), "--ether", "1500.5", "--json", str(path))
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text())["figures"]
    assert (found["ether"], found["auditors"], found["steps"]) == ("3001/2", "3", "100000")


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
def test_wrong_figures_are_one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiebreak, ["economics", *arguments]) == 1
    assert line in " ".join(capsys.readouterr().err.split())


def test_every_figure_has_an_option_with_help() -> None:
    text = " ".join(invoke("--help").output.split())
    for name, (_, limits) in command.FIGURES.items():
        assert f"--{name.replace('_', '-')}" in text
        assert limits.what[1:15] in text
