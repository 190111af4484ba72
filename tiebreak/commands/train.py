"""`tiebreak train`: compute a run, sign its heads."""

from pathlib import Path

import click
from rich.console import Console

from engine.storage import RunDirectory
from engine.training import Progress, Worker
from protocol.errors import ConfigurationError
from protocol.keys import PrivateKey
from tiebreak.commands.options import device_option, permute_option, threads_option
from tiebreak.console import training_progress
from tiebreak.keyfiles import load_key
from tiebreak.running import make_interpreter


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
@threads_option
@permute_option
@device_option
def train(
    run: Path, key: Path, until: int | None, diverging: bool, threads: int | None, permute: int | None, device: str
) -> None:
    """Train the signed job in the folder RUN (see `tiebreak agree`) under policy `exact`.

    Checkpoints, records and signed heads go into RUN. Interrupt it at any time, even with kill -9: the same command
    goes on from the last checkpoint and ends with the same root.
    """
    opened = RunDirectory.open(run)
    signing = load_key(key)
    if signing.address != opened.job.trainer:
        raise ConfigurationError(
            f"expected the key of trainer 0x{opened.job.trainer.hex()}, got 0x{signing.address.hex()}"
        )
    if until is not None and until > opened.job.steps:
        raise ConfigurationError(f"expected --until of at most {opened.job.steps} steps, got {until}")
    options = {"until": until, "threads": threads, "permute": permute}
    compute(opened, title="training", key=signing, device=device, diverging=diverging, **options)


def compute(
    run: RunDirectory,
    *,
    title: str,
    key: PrivateKey | None,
    until: int | None = None,
    threads: int | None = None,
    permute: int | None = None,
    device: str = "cpu",
    diverging: bool = False,
) -> str:
    """Runs a worker with a progress bar; prints and returns the root of the run tree in hex."""
    interpreter = make_interpreter(run.program, threads=threads, permute=permute, device=device)
    console = Console(stderr=True)
    done = run.last_complete()
    with training_progress(console, title, run.job.steps, done) as on_step:

        def told(progress: Progress) -> None:
            on_step(progress.step, progress.loss)

        root = Worker(run, interpreter, key=key, on_progress=told, stop_if_not_finite=not diverging).work(until)
    click.echo(f"run root {root.hex()}")
    return root.hex()
