"""Sums of what a worker tells, by a clock of the test's own."""

import json
import math

import pytest

from tiebreak.api.progress import Tally
from tiebreak.cli.train import as_line, checkpoint_event, end_event, step_event
from tiebreak.engine.run.train import Commit, Progress
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.tags import Digest


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


def test_shares_speed_and_time_left_are_of_the_wall_clock() -> None:
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


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_null_and_its_bits_are_there(loss: float) -> None:
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
