"""`tiebreak train`: computes a run and signs its heads.

With --json, `train` prints events while it runs: JSON lines on stdout, one object each. Times are in seconds, digests
in hex:

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
import os
from contextlib import ExitStack
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiebreak import api
from tiebreak.api.machine import Machine
from tiebreak.cli.key import load_key
from tiebreak.cli.options import FOLDER, keep_option, key_option, machine_options
from tiebreak.engine.run.directory import Keep
from tiebreak.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from tiebreak.api.auditing.progress import OnStep, Tally
    from tiebreak.api.watching.sampling import Sampler
    from tiebreak.engine.run.commit import Commit
    from tiebreak.engine.run.directory import RunDirectory
    from tiebreak.engine.run.train import Progress


def step_event(progress: "Progress") -> dict[str, Any]:
    """The line of `train --json` after each step."""
    return {
        "event": "step", "step": progress.step, "steps": progress.steps,
        "loss": progress.loss if isfinite(progress.loss) else None, "loss_bits": f"{progress.loss_bits:08x}",
        **_times(progress, "seconds", "resolving", "waiting"), "entries": progress.entries,
    }  # fmt: skip


def checkpoint_event(commit: "Commit") -> dict[str, Any]:
    """A checkpoint is safely on disk."""
    record = commit.record
    return {
        "event": "checkpoint", "step": record.step, "count": commit.count, "record": record.digest.hex(),
        "state_root": record.state_root.hex(), "run_root": commit.run_root.hex(), "signed": commit.head is not None,
        **_times(commit, "hashing", "writing"),
    }  # fmt: skip


def end_event(step: int, run_root: str, tally: "Tally", log_bytes: int) -> dict[str, Any]:
    """The run has reached its last step, or the step that was asked for."""
    share = {name: round(value, 6) for name, value in tally.share().items()}
    return {
        "event": "end", "step": step, "run_root": run_root, **_times(tally, "seconds", "steps_per_second"),
        "share": share, "entries": tally.entries, "log_bytes": log_bytes,
    }  # fmt: skip


def _times(of: object, *names: str) -> dict[str, float]:
    return {name: round(getattr(of, name), 6) for name in names}


def as_line(event: dict[str, Any]) -> str:
    """Encodes the event as one line of strict JSON, which has no NaN."""
    return json.dumps(event, allow_nan=False)


@click.command()
@click.argument("run", type=FOLDER)
@key_option("The trainer's key file; it signs a head at each checkpoint. Read by the first worker.")
@click.option("--timeout", type=click.FloatRange(1), default=600, show_default=True,
              help="Under torchrun: seconds that a worker waits for another.")  # fmt: skip
@click.option("--until", type=click.IntRange(1), help="Stop after this step; a later call goes on.")
@click.option("--diverging", is_flag=True, help="Continue when weights become infinite or NaN.")
@keep_option("all")
@click.option("--quiet", is_flag=True, help="Print nothing unless something goes wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: start, step, checkpoint, end.")
@click.option("--monitor", is_flag=True, help="Measure this process now and then into RUN/monitor.jsonl, for `tiebreak "
              "monitor RUN`.")  # fmt: skip
@machine_options("threads", "permute", "device", "graphs")
def train(
    run: Path, key: Path, timeout: float, until: int | None, diverging: bool, keep: str, quiet: bool, as_json: bool,
    monitor: bool, machine: Machine,
) -> None:  # fmt: skip
    """Train the signed job in the folder RUN (see `tiebreak agree`).

    Checkpoints, records and signed heads go into RUN. Interrupt it at any time, even with kill -9: the same command
    goes on from the last checkpoint and ends with the same root.

    Under policy `logged` the logs in RUN/logs belong to the run: nobody can audit it without them. The thresholds are
    those of RUN/policy.json.

    Several workers compute each step together if torchrun starts this command, on machines that all see RUN:

        torchrun --nproc-per-node 4 -m tiebreak train RUN --key trainer.pem

    The run is the same, bit for bit, for any number of workers, also if that changes where the run goes on. Workers
    trust each other.
    """
    if quiet and as_json:
        raise ConfigurationError("expected one of --quiet and --json, got both")
    Keep.parse(keep)
    opened, shared = api.reading.open_directory(run), "TORCHELASTIC_RUN_ID" in os.environ
    signer = None if shared else load_key(key)  # before torch
    with ExitStack() as stack:
        exchange = stack.enter_context(api.distributed.joined(machine.device, timeout)) if shared else None
        first = exchange is None or not exchange.worker
        report = TrainingReport(opened, keep, "nothing" if quiet or not first else "lines" if as_json else "bar", stack)
        if monitor and first:
            report.sampler = api.sampling.Sampler(opened, device=machine.device)
        root = api.runs.continue_run(
            opened, replace(machine, exchange=exchange),
            key=load_key(key) if shared and first else signer, until=until, keep=keep, diverging=diverging,
            on_progress=report.step, on_commit=report.commit,
        )  # fmt: skip
    report.end(root.hex())


class TrainingReport:
    """Reports the progress of a run: a bar on stderr and the root on stdout, JSON lines on stdout, or nothing."""

    def __init__(self, run: "RunDirectory", keep: str, how: str, stack: ExitStack) -> None:
        """Begins the report. Its display ends when the stack closes."""
        self.sampler: Sampler | None = None
        self._run, self._how, self._at = run, how, run.last_complete()
        self._tally = api.progress.Tally()
        self._policy = api.reading.policy_words(run.job)
        self._line({
            "event": "start", "job": run.job.id.hex(), "step": self._at, "steps": run.job.steps,
            "checkpoint_interval": run.job.checkpoint_interval, "keep": keep, "policy": self._policy,
        })  # fmt: skip
        self._bar: OnStep | None = None
        if how == "bar":
            self._bar = stack.enter_context(api.progress.on_stderr("training", run.job.steps, self._at))

    def step(self, progress: "Progress") -> None:
        """Reports a computed step."""
        self._at = progress.step
        self._tally.step(progress)
        self._line(step_event(progress))
        if self._bar is not None:
            self._bar(progress.step, progress.loss, self._tally.words())
        if self.sampler is not None:
            self.sampler(progress)

    def commit(self, commit: "Commit") -> None:
        """Reports a checkpoint that is safely on disk."""
        self._tally.commit(commit)
        self._line(checkpoint_event(commit))

    def end(self, root: str) -> None:
        """Reports that the run has reached its last step, or the step that was asked for."""
        size, tally = self._run.log_bytes(), self._tally
        self._line(end_event(self._at, root, tally, size))
        if self._how == "bar":
            if self._run.job.is_logged:
                click.echo(f"policy   {self._policy}")
                click.echo(f"logs     {tally.entries} entries in {tally.steps} steps; {size} bytes in all")
            click.echo(f"run root {root}")

    def _line(self, event: dict[str, Any]) -> None:
        if self._how == "lines":
            click.echo(as_line(event))
