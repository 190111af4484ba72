"""The tasks that a party gives to the processes that work for it (`tiebreak.node.workers`), and their answers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Annotated, Final

from tiebreak.api.agreement.sealing import MAX_SEAL_BYTES
from tiebreak.api.machine import Machine
from tiebreak.api.watching.alarms import MAX_LINE, ProcessStart, Sample, read_line
from tiebreak.engine.run.directory import MAX_SIGNED_BYTES
from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.game.moves import AnyMove, Move
from tiebreak.protocol.packing import U64, AnyOf, Data, ListOf, Maybe, OneOf, Real, Record, Root, Text, Uint
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.driver import Turn
from tiebreak.protocol.parties.posts import MAX_LOSSES, LibraryBody
from tiebreak.protocol.parties.transactions import AnyJob, ReportLoss

MAX_LISTINGS: Final = 1 << 16
MAX_ANSWER_BYTES: Final = 1 << 20
"""The limit for what a worker says, above all a list of files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings of the processes that work for a party."""

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
    serve: "Callable[[socket, WorkerSettings], None] | None" = None
    """A function that the process runs instead, for demonstrations; no setting and no variable leads here."""


Bytes = Annotated[bytes, Data(MAX_SIGNED_BYTES)]
AnyWork = Annotated[e.Work, AnyOf((e.Train, e.Replay, e.Audit, e.CheckLogs, e.Gather))]


class Fetch(Record):
    """Fetch a job's published files up to a checkpoint; 0: those that are needed to begin."""

    job: AnyJob
    count: U64
    listings: Annotated[tuple[LibraryBody, ...], ListOf(OneOf((LibraryBody,)), MAX_LISTINGS)]
    """The publishers' lists of their files; the one to ask first comes first."""
    signature: Bytes = b""
    """The trainer's signature under the job, if it is known."""


class Publish(Record):
    """Upload the files that others need of a run up to a checkpoint. The answer is their list, for a post."""

    job: AnyJob
    count: U64
    logs: Annotated[int, Uint(8, 0, 1)]
    head: Bytes = b""
    """The signed head of this checkpoint; empty for none."""
    is_listing: Annotated[int, Uint(8, 0, 1)] = 0
    """Only list the files: the hub takes none that no list names."""


class Compute(Record):
    work: AnyWork
    job: AnyJob
    agreed: U64 = 0
    """The checkpoint up to which an earlier attempt of the replay agreed with the trainer."""
    turn: Annotated[Turn | None, OneOf((Turn,), optional=True)] = None
    signature: Bytes = b""
    """The trainer's signature under the job; empty while it has not signed."""


class Try(Record):
    """Find out what a step of a job costs here: count it, and if it can fit, compute it. The answer has its seconds."""

    job: AnyJob


Task = Fetch | Publish | Compute | Try


class Drop(Record):
    """Nobody needs this work any more; if it is under way, it ends after a step."""

    work: AnyWork


class Answer(Record):
    """The result of a task. `problem`: why its data do not allow one."""

    root: Annotated[bytes, Data(32)] = b""
    seconds: Annotated[float, Real()] = 0.0
    took: Annotated[float, Real()] = 0.0
    """The seconds of the whole task, with the start of its process; a party measures them itself."""
    move: Annotated[Move | None, Maybe(AnyMove())] = None
    body: Annotated[LibraryBody | None, OneOf((LibraryBody,), optional=True)] = None
    problem: Annotated[str, Text()] = ""
    found: Annotated[ReportLoss | None, OneOf((ReportLoss,), optional=True)] = None
    """The report for which the records of a head are enough; then `problem` says so too."""


class Failed(Record):
    """A task failed through no fault of its data, and is to be tried again."""

    reason: Annotated[str, Text()]


class Steps(Record):
    """Telemetry of a training or a replay in progress."""

    job_id: Root
    first_step: U64
    losses: Annotated[tuple[int, ...], ListOf(Uint(32), MAX_LOSSES)]
    """The loss of each step, as the 32 bits of an FP32 number."""
    seconds: Annotated[float, Real()]
    processor: Annotated[float, Real()]
    """The share of the machine's cores that was used."""
    memory: U64
    """The most bytes that the process has held."""
    sample: Annotated[bytes, Data(MAX_LINE)] = b""
    """The newest line of `monitor.jsonl` by the process that trains; none if it measures nothing."""

    @property
    def measured(self) -> ProcessStart | Sample | None:
        """The sample, read. Raises `EncodingError`."""
        return read_line(self.sample) if self.sample else None


class SecretRequest(Record):
    """A question amid a task for the secret of a sealed job, whose `seal.bin` only the party's key opens."""

    job_id: Root
    data: Annotated[bytes, Data(MAX_SEAL_BYTES)]


class Unsealed(Record):
    """The answer to an envelope: a secret of 32 bytes, or why there is none."""

    secret: Bytes = b""
    problem: Annotated[str, Text()] = ""

    def __repr__(self) -> str:
        return f"Unsealed(problem={self.problem!r})"


ORDERS: Final = (Fetch, Publish, Compute, Try, Drop, Unsealed)
ANSWERS: Final = (Answer, Failed, Steps, SecretRequest)
"""The records that a party sends to a worker, and those that the worker may say."""


def fits(task: Task, said: Answer | Failed | Steps | SecretRequest, done: int) -> bool:
    """Whether a record is a legal message of a worker during a task. done: the last step that it has reported.

    Raises `EncodingError` for a sample that is none.
    """
    match said:
        case SecretRequest(job_id=job_id):
            return job_id == task.job.id
        case Steps(job_id=job_id, first_step=first, losses=losses):
            is_next = done < first <= first + len(losses) - 1 <= task.job.steps and job_id == task.job.id
            is_due = isinstance(task, Compute) and isinstance(task.work, e.Train)
            return is_next and is_due and isinstance(said.measured, Sample | None)
        case Answer(problem=""):
            match task:
                case Publish(count=count):
                    return said.body is not None and said.body.count == count
                case Compute(work=e.Gather()):
                    return said.move is not None
                case Compute(work=e.Train() | e.Replay() | e.Audit()):
                    return len(said.root) == len(task.job.id)
    return True
