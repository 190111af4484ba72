"""The events that `tiebreak train --json` prints while it runs.

They are JSON lines on stdout, one object each. Times are in seconds and digests in hex:

    {"event": "start", "job", "step", "steps", "checkpoint_interval", "keep", "policy"}
        step: where the run continues; policy: in words
    {"event": "step", "step", "steps", "loss", "loss_bits", "seconds", "resolving", "waiting", "entries"}
        loss: null if it is not finite; loss_bits: its f32 bits in hex. seconds: time to compute the step; resolving:
        the part of it spent on undecided elements; waiting: for a checkpoint, after the step; entries: in its
        rounding log
    {"event": "checkpoint", "step", "count", "record", "state_root", "run_root", "signed", "hashing", "writing"}
        the checkpoint is safely on disk and, if signed, so is the head of this count; events of later steps may
        come before this one
    {"event": "end", "step", "run_root", "seconds", "steps_per_second", "share", "entries", "log_bytes"}
        share: of the wall clock, for arithmetic and resolving, and for hashing and writing, which run beside them;
        entries: in the logs of these steps; log_bytes: of all logs on disk
"""

import json
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiebreak.api.progress import Tally
    from tiebreak.engine.run.train import Commit, Progress


def start_event(job: str, step: int, steps: int, interval: int, keep: str, policy: str) -> dict[str, Any]:
    """A run starts or continues."""
    place = {"job": job, "step": step, "steps": steps, "checkpoint_interval": interval}
    return {"event": "start", **place, "keep": keep, "policy": policy}


def step_event(progress: "Progress") -> dict[str, Any]:
    """A step is done."""
    place = {"event": "step", "step": progress.step, "steps": progress.steps}
    loss = {"loss": progress.loss if isfinite(progress.loss) else None, "loss_bits": f"{progress.loss_bits:08x}"}
    return {**place, **loss, **_times(progress, "seconds", "resolving", "waiting"), "entries": progress.entries}


def checkpoint_event(commit: "Commit") -> dict[str, Any]:
    """A checkpoint is safely on disk."""
    record = commit.record
    roots = {"record": record.digest.hex(), "state_root": record.state_root.hex(), "run_root": commit.run_root.hex()}
    place = {"event": "checkpoint", "step": record.step, "count": commit.count}
    return {**place, **roots, "signed": commit.head is not None, **_times(commit, "hashing", "writing")}


def end_event(step: int, run_root: str, tally: "Tally", log_bytes: int) -> dict[str, Any]:
    """The run has reached its last step, or the step that was asked for."""
    times = _times(tally, "seconds", "steps_per_second")
    share = {name: round(value, 6) for name, value in tally.share().items()}
    sizes = {"entries": tally.entries, "log_bytes": log_bytes}
    return {"event": "end", "step": step, "run_root": run_root, **times, "share": share, **sizes}


def _times(of: object, *names: str) -> dict[str, float]:
    return {name: round(getattr(of, name), 6) for name in names}


def as_line(event: dict[str, Any]) -> str:
    """Encodes the event as one line of strict JSON, which has no NaN."""
    return json.dumps(event, allow_nan=False)
