"""What `tiebreak train --json` prints, as it goes.

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
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiebreak.api.progress import Tally
    from tiebreak.engine.run.train import Commit, Progress


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


def step_event(progress: "Progress") -> dict[str, Any]:
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


def checkpoint_event(commit: "Commit") -> dict[str, Any]:
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


def end_event(step: int, run_root: str, tally: "Tally", log_bytes: int) -> dict[str, Any]:
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
