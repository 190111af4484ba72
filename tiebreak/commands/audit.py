"""`tiebreak audit`: replay a run, or a part of it, and compare."""

import shutil
from pathlib import Path

import click

from engine.auditing import audit_segment, compare
from engine.storage import RunDirectory
from protocol.errors import ConfigurationError, VerificationError
from tiebreak.commands.options import device_option, permute_option, threads_option
from tiebreak.commands.train import compute
from tiebreak.running import make_interpreter


class AuditFailure(VerificationError):
    """The replay contradicts what the trainer signed."""


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--output", "-o", type=click.Path(file_okay=False, path_type=Path), default=Path("replay"),
              show_default=True, help="The auditor's own run directory; one that exists is resumed.")  # fmt: skip
@click.option("--segment", type=click.IntRange(0), help="Check only this checkpoint (from 0), from the one before it.")
@threads_option
@permute_option
@device_option
def audit(run: Path, output: Path, segment: int | None, threads: int | None, permute: int | None, device: str) -> None:
    """Replay the trainer's RUN and compare its signed heads with what the program really produces.

    A whole audit needs only the job, the program, the data and the initial state of RUN, each checked against the job's
    roots; nothing else of it is believed. Its replay is kept, for a dispute needs it. Exit code 2 says that the trainer
    is wrong.
    """
    trainer = RunDirectory.open(run)
    if segment is not None:
        _audit_one(trainer, segment, threads, permute, device)
        return
    heads = trainer.heads()
    if not heads:
        raise ConfigurationError(f"{run}: expected at least one signed head, got none; nothing to audit yet")
    replay = open_replay(trainer, output)
    last = replay.job.last_step(heads[-1].head.count - 1)
    compute(replay, title="replaying", key=None, until=last, threads=threads, permute=permute, device=device)
    comparison = compare(replay, heads[-1])
    if not comparison.agrees:
        raise AuditFailure(
            f"expected run root {comparison.replayed.hex()} after {comparison.count} checkpoints, got "
            f"{comparison.committed.hex()}, signed by 0x{replay.job.trainer.hex()}; see `tiebreak dispute`"
        )
    click.echo(f"agrees: {comparison.count} checkpoints, {last} steps")


def open_replay(trainer: RunDirectory, folder: Path) -> RunDirectory:
    """The auditor's run of the same job, made from the job's own inputs if it is not there yet."""
    if (folder / "job.bin").exists():
        replay = RunDirectory.open(folder)
        if replay.job != trainer.job:
            raise ConfigurationError(f"{folder}: expected a replay of job {trainer.job.id.hex()}, got another job's")
        return replay
    if folder.exists() and not any(folder.iterdir()):
        shutil.rmtree(folder)
    return RunDirectory.create(folder, trainer.agreement, trainer.program, trainer.state(0), trainer.data())


def _audit_one(trainer: RunDirectory, segment: int, threads: int | None, permute: int | None, device: str) -> None:
    interpreter = make_interpreter(trainer.program, threads=threads, permute=permute, device=device)
    report = audit_segment(trainer, interpreter, segment)
    steps = f"steps {report.first_step} to {report.last_step}"
    if not report.agrees:
        raise AuditFailure(
            f"{steps}: expected record {report.replayed.digest.hex()}, got {report.committed.digest.hex()}"
        )
    click.echo(f"agrees: {steps}")
