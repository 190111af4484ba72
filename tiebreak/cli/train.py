"""`tiebreak train`: computes a run and signs its heads."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiebreak import api
from tiebreak.cli.events import as_line, checkpoint_event, end_event, start_event, step_event
from tiebreak.cli.keyfiles import load_key
from tiebreak.cli.options import FILE, FOLDER, device_option, permute_option, threads_option
from tiebreak.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from tiebreak.api.progress import OnStep
    from tiebreak.engine.run.directory import RunDirectory
    from tiebreak.engine.run.train import Commit, Progress


@click.command()
@click.argument("run", type=FOLDER)
@click.option("--key", type=FILE, required=True, help="The trainer's key file; it signs a head at every checkpoint.")
@click.option("--until", type=click.IntRange(1), help="Stop after this step; a later call goes on.")
@click.option("--diverging", is_flag=True, help="Go on when the state is no longer finite (the job is still owed).")
@click.option("--keep", default="all", show_default=True, metavar="all|every:M|last",
              help="Checkpoints that stay on disk; what is dropped is computed again where it is needed.")  # fmt: skip
@click.option("--quiet", is_flag=True, help="Print nothing unless something goes wrong.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout: start, step, checkpoint, end.")
@threads_option
@permute_option
@device_option
def train(
    run: Path, key: Path, until: int | None, diverging: bool, keep: str, quiet: bool, as_json: bool,
    threads: int | None, permute: int | None, device: str,
) -> None:  # fmt: skip
    """Train the signed job in the folder RUN (see `tiebreak agree`).

    Checkpoints, records and signed heads go into RUN. Interrupt it at any time, even with kill -9: the same command
    goes on from the last checkpoint and ends with the same root.

    Under policy `logged` the logs in RUN/logs belong to the run: nobody can audit it without them. The thresholds are
    those of RUN/policy.json.
    """
    if quiet and as_json:
        raise ConfigurationError("expected one of --quiet and --json, got both")
    opened = api.runs.open_directory(run)
    machine = api.runs.machine_of(opened, threads=threads, permute=permute, device=device)
    told = Told(opened, keep, "nothing" if quiet else "lines" if as_json else "bar")
    with ExitStack() as stack:
        told.open(stack)
        root = api.runs.continue_run(
            opened, machine, key=load_key(key), until=until, keep=keep, diverging=diverging, on_progress=told.step,
            on_commit=told.commit,
        )  # fmt: skip
    told.end(root.hex())


class Told:
    """Reports on a run: a bar on stderr and the root on stdout, JSON lines on stdout, or nothing."""

    def __init__(self, run: "RunDirectory", keep: str, how: str) -> None:
        self._run = run
        self._job = run.job
        self._how = how
        self._keep = keep
        self._at = run.last_complete()
        self._tally = api.progress.Tally()
        self._bar: OnStep | None = None

    def open(self, stack: ExitStack) -> None:
        """Begins the report. Its display ends when the stack closes."""
        self._line(start_event(self._job.id.hex(), self._at, self._job.steps, self._job.checkpoint_interval,
                               self._keep, api.running.policy_words(self._job)))  # fmt: skip
        if self._how == "bar":
            self._bar = stack.enter_context(api.progress.on_stderr("training", self._job.steps, self._at))

    def step(self, progress: "Progress") -> None:
        """Reports a computed step."""
        self._at = progress.step
        self._tally.step(progress)
        self._line(step_event(progress))
        if self._bar is not None:
            self._bar(progress.step, progress.loss, self._tally.words())

    def commit(self, commit: "Commit") -> None:
        """Reports a checkpoint that is safely on disk."""
        self._tally.commit(commit)
        self._line(checkpoint_event(commit))

    def end(self, root: str) -> None:
        """Reports that the run has reached its last step, or the step that was asked for."""
        size = self._run.log_bytes()
        self._line(end_event(self._at, root, self._tally, size))
        if self._how == "bar":
            if self._job.is_logged:
                click.echo(f"policy   {api.running.policy_words(self._job)}")
                click.echo(f"logs     {self._tally.entries} entries in {self._tally.steps} steps; {size} bytes in all")
            click.echo(f"run root {root}")

    def _line(self, event: dict[str, Any]) -> None:
        if self._how == "lines":
            click.echo(as_line(event))
