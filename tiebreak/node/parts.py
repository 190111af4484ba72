"""The files of a run that others need, listed from the disk. It needs no torch, so `tiebreak show` starts at once."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tiebreak.api.agreement.sealing import SEAL
from tiebreak.engine.logged.files import log_path
from tiebreak.engine.run import directory
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import StateError


@dataclass(frozen=True, slots=True)
class FilePart:
    """One file of a publication: its path in the folder of the job, and the number of its bytes that belong to it."""

    name: str
    size: int

    @property
    def inside(self) -> tuple[str, ...]:
        """The folders, within that of the job, in which it lies."""
        return tuple(self.name.split("/")[:-1])

    @property
    def file(self) -> str:
        """Its name within the folder that `inside` leads to."""
        return self.name.rsplit("/", 1)[-1]


def parts(run: RunDirectory, count: int, *, states: bool = False) -> list[FilePart]:
    """The files that others need of a run up to checkpoint `count`; 0: those that a trainer needs of an offer.

    It is the signed job or the offer, program, data and first state; then records, the head of `count` and, under
    policy `logged`, the logs; with the last checkpoint the final state, which is what the client pays for. states: all
    kept states, from which an auditor can check a few segments alone. Raises `StateError` if there is no such head.
    """
    job, found = run.job, list[FilePart]()

    def add(inside: str, names: Iterable[str]) -> None:
        with run.folder(inside) as folder:
            found.extend(FilePart(f"{inside}/{name}", folder.size(name)) for name in names)

    with run.folder() as folder:
        names = (
            directory.JOB, directory.OFFER, SEAL, directory.PROGRAM, directory.DATA, directory.NAMES, directory.ORIGINS,
            directory.UNCHECKED, directory.TITLE,
        )  # fmt: skip
        found += [FilePart(name, folder.size(name)) for name in names if folder.holds(name)]
    kept = directory.kept_steps(run, count) if states else [0]
    if count == job.checkpoints and job.steps not in kept:
        kept.append(job.steps)
    add(directory.STATES, map(directory.state_name, kept))
    if count:
        with run.folder(directory.HEADS) as folder:
            if not folder.holds(directory.head_name(count)):
                raise StateError(f"{run.path}: expected a signed head of count {count}, got none")
        add(directory.HEADS, [directory.head_name(count)])
        found.append(FilePart(directory.RECORDS, directory.RECORD_BYTES * count))
        if job.is_logged:
            add(directory.LOGS, (log_name(job, checkpoint) for checkpoint in range(count)))
    return found


def log_name(job: Job, checkpoint: int) -> str:
    """The name of the file with the logs of the steps up to a checkpoint."""
    return log_path(Path(), job.last_step(checkpoint)).name
