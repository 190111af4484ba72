"""The tasks that a party gives to the processes that work for it (`tiebreak.node.crews`), and their answers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tiebreak.api.machine import Machine
from tiebreak.api.watching.alarms import Sample
from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.game.moves import Move
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.driver import Turn
from tiebreak.protocol.tags import Digest

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from tiebreak.protocol.parties.posts import LibraryBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The settings of the process that works."""

    folder: Path
    """The party's folder: jobs lie in `jobs`, an auditor's replays in `replays`."""
    domain: Domain
    hub: str
    most_bytes: int = 0
    """The most bytes to fetch for one job; 0: no limit but the disk."""
    processes: int = 1
    """The number of processes that train and replay at once, each for other jobs."""
    machine: Machine = Machine()
    """The settings of each process. Without threads it has an equal share of the cores, or torch's own choice if it
    works alone."""
    niceness: int = 0
    """The increment of the niceness of the process; one that finds moves has 0, and gets most of the cores."""
    trial_seconds: int = 600
    """The time after which a process that tries a program is ended, and the program counts as too slow."""
    secret: bytes = b""
    """The secret from which an auditor derives its seals."""
    serve: "Callable[[Connection, Bench], None] | None" = None
    """A function that the process runs instead, for demonstrations; no setting and no variable leads here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Fetch a job's published files up to a checkpoint; 0: those that are needed to begin."""

    job: Job
    count: int
    listings: tuple["LibraryBody", ...]
    """The publishers' lists of their files; the one to ask first comes first."""
    signature: bytes = b""
    """The trainer's signature under the job, if it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Upload the files that others need of a run up to a checkpoint. The answer is their list, for a post."""

    job: Job
    count: int
    logs: bool
    head: bytes = b""
    """The signed head of this checkpoint; empty for none."""
    is_listing: bool = False
    """Only list the files: the hub takes none that no list names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    work: e.Work
    job: Job
    agreed: int = 0
    """The checkpoint up to which an earlier attempt of the replay agreed with the trainer."""
    turn: Turn | None = None
    signature: bytes = b""
    """The trainer's signature under the job; empty while it has not signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """Find out what a step of a job costs here: count it, and if it can fit, compute it. The answer has its seconds."""

    job: Job


Task = Fetch | Publish | Compute | Try


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Nobody needs this work any more; if it is under way, it ends after a step."""

    work: e.Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a task. `problem`: why its data do not allow one."""

    root: bytes = b""
    seconds: float = 0.0
    move: Move | None = None
    body: "LibraryBody | None" = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A task failed through no fault of its data, and is to be tried again."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Telemetry of a training or a replay in progress."""

    job_id: Digest
    first_step: int
    losses: tuple[int, ...]
    """The loss of each step, as the 32 bits of an FP32 number."""
    seconds: float
    processor: float
    """The share of the machine's cores that was used."""
    memory: int
    """The most bytes that the process has held."""
    sample: Sample | None = None
    """The newest measurements of the process that trains; None if it measures nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRequest:
    """A question amid a task for the secret of a sealed job, whose `seal.bin` only the party's key opens."""

    job_id: Digest
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsealed:
    """The answer to an envelope: a secret of 32 bytes, or why there is none."""

    secret: bytes = b""
    problem: str = ""

    def __repr__(self) -> str:
        return f"Unsealed(problem={self.problem!r})"
