"""`tiebreak train`: compute a run, sign its heads."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from tiebreak.api.running import make_interpreter, policy_words
from tiebreak.cli.console import OnStep, training_progress
from tiebreak.cli.keyfiles import load_key
from tiebreak.cli.options import device_option, permute_option, threads_option
from tiebreak.cli.progress import Tally, as_line, checkpoint_event, end_event, start_event, step_event
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.retention import Keep
from tiebreak.engine.run.train import Commit, Progress, Worker
from tiebreak.protocol.errors import ConfigurationError


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The trainer's key file; it signs a head at every checkpoint.",
)
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
    kept = Keep.parse(keep)
    if quiet and as_json:
        raise ConfigurationError("expected one of --quiet and --json, got both")
    opened = RunDirectory.open(run)
    signing = load_key(key)
    if signing.address != opened.job.trainer:
        raise ConfigurationError(
            f"expected the key of trainer 0x{opened.job.trainer.hex()}, got 0x{signing.address.hex()}"
        )
    if until is not None and until > opened.job.steps:
        raise ConfigurationError(f"expected --until of at most {opened.job.steps} steps, got {until}")
    interpreter = make_interpreter(
        opened.program, job=opened.job, policy=opened.policy(), threads=threads, permute=permute, device=device
    )
    told = Told(opened, kept, "nothing" if quiet else "lines" if as_json else "bar")
    worker = Worker(
        opened,
        interpreter,
        key=signing,
        keep=kept,
        on_progress=told.step,
        on_commit=told.commit,
        stop_if_not_finite=not diverging,
    )
    with told.open():
        root = worker.work(until)
    told.end(root.hex())


class Told:
    """What a run tells of itself: a bar on stderr and its root on stdout, JSON lines on stdout, or nothing."""

    def __init__(self, run: RunDirectory, keep: Keep, how: str) -> None:
        self._run = run
        self._job = run.job
        self._how = how
        self._keep = keep
        self._at = run.last_complete()
        self._tally = Tally()
        self._bar: OnStep | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Around the run."""
        self._line(start_event(self._job.id.hex(), self._at, self._job.steps, self._job.checkpoint_interval,
                               str(self._keep), policy_words(self._job)))  # fmt: skip
        with ExitStack() as stack:
            if self._how == "bar":
                bar = training_progress(Console(stderr=True), "training", self._job.steps, self._at)
                self._bar = stack.enter_context(bar)
            yield

    def step(self, progress: Progress) -> None:
        """A step is done."""
        self._at = progress.step
        self._tally.step(progress)
        self._line(step_event(progress))
        if self._bar is not None:
            self._bar(progress.step, progress.loss, self._tally.words())

    def commit(self, commit: Commit) -> None:
        """A checkpoint is safe."""
        self._tally.commit(commit)
        self._line(checkpoint_event(commit))

    def end(self, root: str) -> None:
        """It has come as far as it was to come."""
        size = self._run.log_bytes()
        self._line(end_event(self._at, root, self._tally, size))
        if self._how == "bar":
            if self._job.is_logged:
                click.echo(f"policy   {policy_words(self._job)}")
                click.echo(f"logs     {self._tally.entries} entries in {self._tally.steps} steps; {size} bytes in all")
            click.echo(f"run root {root}")

    def _line(self, event: dict[str, Any]) -> None:
        if self._how == "lines":
            click.echo(as_line(event))
