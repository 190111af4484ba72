"""Progress of a run in words and as JSON lines: loss, speed, time left, and where the time goes.

JSON lines, one object each, on stdout; numbers of seconds; digests in hex:

    {"event": "start", "job", "step", "steps", "checkpoint_interval", "keep", "policy"}
        step: where it goes on; policy: in words
    {"event": "step", "step", "steps", "loss", "loss_bits", "seconds", "resolving", "waiting", "entries"}
        loss: null if it is not finite; loss_bits: its f32 in hex. seconds: computing the step, resolving: the part of
        it that undecided elements took; waiting: for a checkpoint, after it; entries: of its rounding log
    {"event": "checkpoint", "step", "count", "record", "state_root", "run_root", "signed", "hashing", "writing"}
        it is safely on disk, and with signed, so is the head of this count; steps after it may be told before
    {"event": "end", "step", "run_root", "seconds", "steps_per_second", "share", "entries", "log_bytes"}
        share of the wall clock, by what it went to: arithmetic, resolving, and beside them hashing and writing;
        entries: of the logs of these steps; log_bytes: of all logs on disk
"""

import json
import time
from collections.abc import Callable
from datetime import timedelta
from math import isfinite
from typing import Any

from tiebreak.engine.run.train import Commit, Progress


class Tally:
    """Adds up what a worker tells, from when this is made."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started = clock()
        self.steps = 0
        self.entries = 0
        self._left = 0
        self._computing = self._resolving = self._hashing = self._writing = 0.0

    def step(self, progress: Progress) -> None:
        """A step is done."""
        self.steps += 1
        self.entries += progress.entries
        self._left = progress.steps - progress.step
        self._computing += progress.seconds
        self._resolving += progress.resolving

    def commit(self, commit: Commit) -> None:
        """A checkpoint is safe."""
        self._hashing += commit.hashing
        self._writing += commit.writing

    @property
    def seconds(self) -> float:
        """Since the start."""
        return self._clock() - self._started

    @property
    def steps_per_second(self) -> float:
        """Since the start."""
        return self.steps / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """To the run's end, at this rate; None before the first step."""
        return self._left / self.steps_per_second if self.steps and self.seconds > 0 else None

    def share(self) -> dict[str, float]:
        """Of the wall clock. Hashing and writing run beside the rest, so all may come to more than 1."""
        spent = {
            "arithmetic": self._computing - self._resolving,
            "resolving": self._resolving,
            "hashing": self._hashing,
            "writing": self._writing,
        }
        return {name: value / self.seconds if self.seconds > 0 else 0.0 for name, value in spent.items()}

    def words(self) -> str:
        """One line of it."""
        left = self.seconds_left
        until = "" if left is None else f", {timedelta(seconds=round(left))} left"
        share = ", ".join(f"{name} {100 * value:.1f}%" for name, value in self.share().items() if name != "writing")
        logged = f", {self.entries / self.steps:.3g} entries a step" if self.entries else ""
        return f"{self.steps_per_second:.3g} steps/s{until}, {share}{logged}"


def start_event(job: str, step: int, steps: int, interval: int, keep: str, policy: str) -> dict[str, Any]:
    """A run is begun or goes on."""
    return {
        "event": "start",
        "job": job,
        "step": step,
        "steps": steps,
        "checkpoint_interval": interval,
        "keep": keep,
        "policy": policy,
    }


def step_event(progress: Progress) -> dict[str, Any]:
    """A step is done."""
    return {
        "event": "step",
        "step": progress.step,
        "steps": progress.steps,
        "loss": progress.loss if isfinite(progress.loss) else None,
        "loss_bits": f"{progress.loss_bits:08x}",
        "seconds": round(progress.seconds, 6),
        "resolving": round(progress.resolving, 6),
        "waiting": round(progress.waiting, 6),
        "entries": progress.entries,
    }


def checkpoint_event(commit: Commit) -> dict[str, Any]:
    """A checkpoint is safe."""
    return {
        "event": "checkpoint",
        "step": commit.record.step,
        "count": commit.count,
        "record": commit.record.digest.hex(),
        "state_root": commit.record.state_root.hex(),
        "run_root": commit.run_root.hex(),
        "signed": commit.head is not None,
        "hashing": round(commit.hashing, 6),
        "writing": round(commit.writing, 6),
    }


def end_event(step: int, run_root: str, tally: Tally, log_bytes: int) -> dict[str, Any]:
    """The run has come to where it was to come."""
    return {
        "event": "end",
        "step": step,
        "run_root": run_root,
        "seconds": round(tally.seconds, 6),
        "steps_per_second": round(tally.steps_per_second, 6),
        "share": {name: round(value, 6) for name, value in tally.share().items()},
        "entries": tally.entries,
        "log_bytes": log_bytes,
    }


def as_line(event: dict[str, Any]) -> str:
    """One line of JSON, strictly: no NaN."""
    return json.dumps(event, allow_nan=False)
