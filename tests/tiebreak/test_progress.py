"""Sums of what a worker tells, by a clock of the test's own, and the lines that show them."""

import io
import json
import math
import re

import pytest
from rich.console import Console

from tiebreak.api.auditing import progress as progress_module
from tiebreak.api.auditing.progress import Tally, training_progress
from tiebreak.cli.train import as_line, checkpoint_event, end_event, step_event
from tiebreak.engine.run.commit import Commit
from tiebreak.engine.run.train import Progress
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.tags import Digest


def recorded(*, terminal: bool = False, width: int = 240) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, width=width, force_terminal=terminal, color_system=None), stream


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def progress(step: int, loss: float = 0.5) -> Progress:
    return Progress(step=step, steps=20, loss=loss, loss_bits=0x3F000000, seconds=2.0, resolving=0.25, waiting=0.125)


def commit() -> Commit:
    record = StepRecord(step=4, state_root=Digest(bytes(32)), loss_bits=0x3F000000)
    return Commit(record=record, count=1, run_root=Digest(b"\1" * 32), head=None, hashing=0.5, writing=1.5)


def test_time_shares_and_speed_are_of_the_wall_clock() -> None:
    clock = Clock()
    tally = Tally(clock)
    assert tally.steps_per_second == 0.0
    assert tally.share() == {"arithmetic": 0, "resolving": 0, "hashing": 0, "writing": 0}
    for step in (1, 2, 3, 4):
        clock.now += 2.5
        tally.step(progress(step))
    tally.commit(commit())
    assert tally.share() == {"arithmetic": 0.7, "resolving": 0.1, "hashing": 0.05, "writing": 0.15}
    assert (tally.seconds, tally.steps_per_second) == (10, 0.4)
    assert tally.words() == "arithmetic 70.0%, resolving 10.0%, hashing 5.0%"
    assert end_event(4, "ab", tally, 7) == {
        "event": "end", "step": 4, "run_root": "ab", "seconds": 10, "steps_per_second": 0.4, "share": tally.share(),
        "entries": 0, "log_bytes": 7,
    }  # fmt: skip


def test_notebook_progress_rewrites_one_line_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(progress_module.time, "perf_counter", clock)
    for quiet in (False, True):
        file = io.StringIO()
        with training_progress(Console(file=file, force_jupyter=True, quiet=quiet), "training", 20) as on_step:
            for step in range(1, 21):
                clock.now += 0.1
                on_step(step, 0.5)
        shown = file.getvalue().split("\r")
        assert file.getvalue().count("\n") == (not quiet)
        assert [re.findall(r"step (\d+) of 20", text) for text in shown[1:]] == (
            [] if quiet else [[str(step)] for step in (1, 4, 7, 10, 13, 16, 19, 20)]
        )


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_non_finite_loss_is_null_in_json_beside_its_bits(loss: float) -> None:
    told = json.loads(as_line(step_event(progress(3, loss))))
    assert (told["loss"], told["loss_bits"]) == (None, "3f000000")


def test_an_unsigned_checkpoint_says_so() -> None:
    told = json.loads(as_line(checkpoint_event(commit())))
    assert told == {
        "event": "checkpoint", "step": 4, "count": 1, "record": commit().record.digest.hex(), "state_root": "00" * 32,
        "run_root": "01" * 32, "signed": False, "hashing": 0.5, "writing": 1.5,
    }  # fmt: skip
    with pytest.raises(ValueError, match="JSON"):
        as_line({"loss": math.nan})


@pytest.mark.parametrize(("steps", "lines"), [(72, 11), (3, 3), (1, 1)])
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


@pytest.mark.parametrize(("title", "steps"), [("training", 72), ("training digits", 1_000_000)])
def test_progress_fits_80_columns_and_no_word_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, title: str, steps: int
) -> None:
    update = progress_module.Bar.update
    monkeypatch.setattr(progress_module.Bar, "update", lambda bar, *a, **b: (update(bar, *a, **b), bar.refresh()))
    console, stream = recorded(terminal=True, width=80)
    with training_progress(console, title, steps, done=steps // 2) as on_step:
        for step in (steps // 2 + 1, steps - 1, steps):
            on_step(step, -1.2345e-5, "arithmetic 70.0%, resolving 10.0%")
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()).replace("\r", "\n").splitlines()
    assert "…" not in stream.getvalue()
    assert max(map(len, drawn)) <= 80
    bars = [line for line in drawn if f"{steps - 1}/{steps}" in line]
    assert re.search(rf"^{title} .+ {steps - 1}/{steps} loss -1.234e-05 \S+ steps/s +(\d:\d\d:\d\d|-:--:--)", bars[-1])
    assert f"{steps}/{steps} loss -1.234e-05" in stream.getvalue(), "it ends complete"
    assert drawn[-1] == f"{title}: arithmetic 70.0%, resolving 10.0%"
