"""What is printed is what is in the result, and text of others is no markup."""

import dataclasses
import io
import re
import time

import pytest
from rich.console import Console

from tests.tiebreak.synthetic import result
from tiebreak.api import environment
from tiebreak.api.progress import training_progress
from tiebreak.demo.results import Loser
from tiebreak.demo.run import heading, show_result


def recorded(*, terminal: bool = False, width: int = 240) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, width=width, force_terminal=terminal, color_system=None), stream


def test_the_table_has_every_dispute() -> None:
    console, stream = recorded()
    show_result(console, result())
    text = stream.getvalue()
    for expected in ("0x3f800001", "0x3f800000", "1,890,000", "14,700", "instruction 103", "the same run root"):
        assert expected in text
    assert text.count("trainer loses / trainer loses") == 3
    assert text.count("challenger loses / –") == 1
    assert text.count("Plain FP32 PyTorch") == 2


def test_a_failure_is_loud() -> None:
    base = result()
    audit = dataclasses.replace(base.audits[0], auditor_root="11" * 32)
    bad = dataclasses.replace(base.disputes[0], contract=Loser.CHALLENGER)
    console, stream = recorded()
    show_result(console, dataclasses.replace(base, audits=(audit,), disputes=(bad,)))
    assert "ANOTHER RUN ROOT" in stream.getvalue()
    assert "trainer loses / challenger loses" in stream.getvalue()


def test_text_is_no_markup() -> None:
    base = result()
    console, stream = recorded()
    bad = dataclasses.replace(base.disputes[0], tampered="[link=x]y[/link]", origin="[red]")
    show_result(console, dataclasses.replace(base, disputes=(bad,)))
    heading(console, 1, "[bold]x")
    assert "[link=x]y[/link]" in stream.getvalue()
    assert "1. [bold]x" in stream.getvalue()


@pytest.mark.parametrize(("steps", "lines"), [(72, 11), (40, 10), (3, 3), (1, 1)])
def test_progress_off_a_terminal_is_a_few_lines(steps: int, lines: int) -> None:
    console, stream = recorded()
    with training_progress(console, "digits", steps) as on_step:
        for step in range(1, steps + 1):
            on_step(step, 1 / step)
    printed = stream.getvalue().splitlines()
    assert len(printed) == lines
    speed = r", \S+ steps/s" if steps > 1 else ""  # which is counted from the end of the first step
    assert re.fullmatch(rf"digits: step {steps} of {steps}, loss {1 / steps:.4f}{speed}", printed[-1])
    later = [line for line in printed[:-1] if "step 1 of" not in line]
    assert all(re.search(r" steps/s, \d:\d\d:\d\d left$", line) for line in later)


def test_progress_on_a_terminal_ends_complete() -> None:
    console, stream = recorded(terminal=True)
    with training_progress(console, "digits", 5, done=2) as on_step:
        for step in (3, 4, 5):
            on_step(step, 0.25)
    assert "5/5" in stream.getvalue()
    assert "loss 0.25" in stream.getvalue()


@pytest.mark.parametrize(("title", "steps"), [("training", 72), ("training digits", 1_000_000)])
def test_progress_fits_80_columns_and_no_word_is_cut_off(title: str, steps: int) -> None:
    console, stream = recorded(terminal=True, width=80)
    with training_progress(console, title, steps, done=steps // 2) as on_step:
        for step in (steps // 2 + 1, steps - 1):
            on_step(step, -1.2345e-5, "arithmetic 70.0%, resolving 10.0%")
            time.sleep(0.15)
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()).replace("\r", "\n").splitlines()
    assert "…" not in stream.getvalue()
    assert max(map(len, drawn)) <= 80
    bars = [line for line in drawn if f"{steps - 1}/{steps}" in line]
    assert re.search(rf"^{title} .+ {steps - 1}/{steps} loss -1.234e-05 \S+ steps/s +(\d:\d\d:\d\d|-:--:--)", bars[-1])
    assert drawn[-1] == f"{title}: arithmetic 70.0%, resolving 10.0%"


def test_the_environment_names_what_matters() -> None:
    described = dict(environment.describe())
    assert described["torch"].startswith("2.13.0")
    assert int(described["cores"]) >= 1
    assert described["cpu"]
    assert all(value for value in described.values())
