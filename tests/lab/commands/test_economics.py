"""`tiebreak economics`: figures in, terms out, for people and programs."""

from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from pathlib import Path

import pytest

from tests.tiebreak.parties import Commands, Parties
from tests.tiebreak.test_cli import HEAVY, running
from tiebreak.cli.agree import agree
from tiebreak.lab.incentives.figures import PRESETS
from tiebreak.lab.incentives.measured import measured
from tiebreak.lab.incentives.recommend import recommend
from tiebreak.protocol.commitments.terms import Terms


@pytest.mark.slow
def test_economics_prints_agree_options_from_preset_file_and_options(
    parties: Parties, tmp_path: Path, command: Commands
) -> None:
    figures = tmp_path / "figures.toml"
    figures.write_text("ether = 1000\nauditors = 3\n")
    given = ["--preset", "fine-tune", "--figures", figures, "--ether", "1500.5"]
    words, found = command("economics", *given), command.tell("economics", *given)
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
def test_economics_reports_wrong_figures_in_one_line(arguments: list[str], line: str, command: Commands) -> None:
    assert line in " ".join(command("economics", *arguments, code=1).split())


def test_every_figure_has_an_option_with_help(command: Commands) -> None:
    text = " ".join(command("economics", "--help").split())
    for name, (_, limits) in import_module("tiebreak.lab.commands.economics").FIGURES.items():
        assert f"--{name.replace('_', '-')}" in text
        assert limits.what[1:15] in text


@pytest.mark.slow
def test_economics_does_not_import_torch() -> None:
    found = running(["economics", "--preset", "gpt2"])
    assert not (HEAVY - {"numpy"}) & found
    assert len(found) < 470
