"""The events that a party sees and the actions that it wants: the only way in and out of a machine.

Every event carries the instant at which its driver saw it (`at`, in seconds of the chain's time), so a machine needs no
clock. Every action identifies its subject, so a driver can safely carry it out twice: statements are identified by the
bytes that were signed, transactions and work by their names. All fields are bytes, integers, strings, tuples, or values
with a canonical encoding (jobs, heads, moves), so events and actions can be sent over a socket or stored in a file.
"""

from dataclasses import dataclass
from typing import Annotated, Final, dataclass_transform

from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Concession, Job, LogReceipt, SignedHead
from tiebreak.protocol.game.moves import AnyMove, Move
from tiebreak.protocol.packing import U32, U64, ListOf, Maybe, Record, Root
from tiebreak.protocol.parties.transactions import AnyHead, ReportLoss, Transaction
from tiebreak.protocol.tags import Digest

Place = tuple[str | bytes | int, ...]
"""A unique name for a statement, a result or a transaction, such as ("head", job id, count)."""


MAX_MOVES: Final = 1 << 16
"""More moves than any game can have."""

# ---------------------------------------------------------------- work, which a driver does


class Train(Record):
    """Compute the segment that ends at checkpoint number `count`. The result is the run root for that count."""

    job_id: Root
    count: U64


class Replay(Record):
    """Recompute the run up to a head. The result is the run root for its count, or a problem."""

    job_id: Root
    head: AnyHead
    attempt: U32
    """Counts from 0. A later attempt should use other settings and, if there is one, another machine."""


class Audit(Record):
    """Recompute the whole run of a job whose heads are sealed. The result is the run root of its final head."""

    job_id: Root


class CheckLogs(Record):
    """Policy `logged`: find out whether the fetched logs hash to a head. The result is a problem, or nothing."""

    job_id: Root
    head: AnyHead
    attempt: U32
    """Counts from 0: logs that are missing may come later."""


class Gather(Record):
    """Find the move that follows from the party's own run, for turn `sequence` of a game. The result is that move."""

    game_id: Root
    sequence: U32
    snapshot: Root
    """The id of the state to move from: another line of moves may reach the same sequence number."""
    said: Annotated[tuple[Move, ...] | None, Maybe(ListOf(AnyMove(), MAX_MOVES))] = None
    """The moves that led there, if the turn is one in the talk; None if it is on the chain."""


Work = Train | Replay | Audit | CheckLogs | Gather


# ---------------------------------------------------------------- events


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Notice:
    """Base class of what passes between a machine and its driver: each subclass is a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class EventBase(Notice):
    """Base class of events. at: the instant at which the driver saw it, in seconds of the chain's time."""

    at: int


class Started(EventBase):
    """The machine was created, either for the first time or again from its journal."""


class Tick(EventBase):
    """A point in time was reached, for example one that `Wake` asked for."""


class BoardChanged(EventBase):
    """The board that the machine reads now follows the chain up to a block with the timestamp `block`."""

    block: int


class JobDrafted(EventBase):
    """The client's owner wants this job done. If it has seats, its nonce is that of the secret."""

    job: Job
    secret: bytes = b""


class JobOffered(EventBase):
    """A client asks for the trainer's signature under a job. Nothing about it has been checked."""

    job: Job


class JobSigned(EventBase):
    """A trainer's answer to a client; the signature is empty if it declines. Nothing has been checked."""

    job: Job
    signature: bytes


class HeadShown(EventBase):
    """Somebody showed a head, and perhaps the leaves of its run tree. Nothing about them has been checked."""

    head: SignedHead
    leaves: tuple[Digest, ...] = ()


class LogReceiptShown(EventBase):
    """Somebody showed a receipt for the logs of a head. Nothing about it has been checked."""

    receipt: LogReceipt


class Contested(EventBase):
    """Somebody says that its replay up to a checkpoint gave another root. Nothing about it has been checked."""

    job_id: Digest
    count: int
    by: Address


class ConcessionShown(EventBase):
    """Somebody showed a trainer's concession. Nothing about it has been checked."""

    concession: Concession


class MoveShown(EventBase):
    """Somebody sent a message of a game. Nothing about it has been checked."""

    game_id: Digest
    wire: bytes


class ReceiptShown(EventBase):
    """Somebody acknowledged a state of a game. Nothing about it has been checked."""

    game_id: Digest
    receipt: bytes


class Arrived(EventBase):
    """The available data of a run up to a checkpoint was fetched, to where `Replay` will find it."""

    job_id: Digest
    count: int


class Done(EventBase):
    """Work is done. If there is no result, `problem` says why it could not be computed."""

    work: Work
    root: bytes = b""
    move: Move | None = None
    problem: str = ""
    found: ReportLoss | None = None
    """The report for which the records of the head, on which it worked, are enough."""


class Mined(EventBase):
    """A transaction is in a block that the board follows, and did not revert."""

    place: Place


class Refused(EventBase):
    """A transaction would revert and was not sent, or it reverted in a block. `error` names the contract's error.

    It is empty if no contract was asked because the account cannot pay.
    """

    place: Place
    error: str


OnHead = HeadShown | LogReceiptShown | Contested | ConcessionShown
Message = JobDrafted | JobOffered | JobSigned | OnHead | MoveShown | ReceiptShown
Event = Started | Tick | BoardChanged | Message | Arrived | Done | Mined | Refused


# ---------------------------------------------------------------- actions


class AppendRecord(Notice):
    """Append an entry to the journal and sync it before any later action is carried out."""

    place: Place
    data: bytes


class OfferJob(Notice):
    """Ask a job's trainer for its signature."""

    job: Job


class SignJob(Notice):
    """Send a client the trainer's signature under its job. An empty signature declines."""

    job: Job
    signature: bytes


class ShowHead(Notice):
    """Show a head to everyone."""

    head: SignedHead


class ShowLogReceipt(Notice):
    """Send a trainer the receipt for the logs of one of its heads."""

    receipt: LogReceipt


class ShowConcession(Notice):
    """Send an auditor the trainer's concession of a head to it."""

    concession: Concession


class ShowMove(Notice):
    """Send a signed message of a game to the other side."""

    game_id: Digest
    wire: bytes


class ShowReceipt(Notice):
    """Acknowledge a state of a game to the other side."""

    game_id: Digest
    receipt: bytes


class PublishRun(Notice):
    """Publish what an auditor needs of a run up to a checkpoint, including its rounding logs if `logs` is set."""

    job_id: Digest
    count: int
    logs: bool


class FetchRun(Notice):
    """Fetch what has been published of a run up to a checkpoint."""

    job_id: Digest
    count: int


class Start(Notice):
    """Start some work, unless it is already under way."""

    work: Work


class Transact(Notice):
    """Send a transaction if it would not revert now, unless one with this name is already waiting.

    The driver tries it on the newest block alone, at the time of the next one. Waiting transactions have no say, since
    they may never be mined. With `untried`, it is sent whatever the outcome; no honest party asks for that.
    """

    place: Place
    transaction: Transaction
    deadline: int | None = None
    """The last instant at which it is useful, if there is one."""
    untried: bool = False


class Alarm(Notice):
    """Tell the machine's owner something. If `is_error`, a person has to act; otherwise the machine handles it."""

    is_error: bool
    text: str


class Wake(Notice):
    """Send a `Tick` at this instant. A later `Wake` need not cancel it: extra ticks do no harm."""

    at: int


Statement = OfferJob | SignJob | ShowHead | ShowLogReceipt | ShowConcession | ShowMove | ShowReceipt
Action = AppendRecord | Statement | PublishRun | FetchRun | Start | Transact | Alarm | Wake
