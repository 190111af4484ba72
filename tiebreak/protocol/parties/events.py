"""What a party sees and what it wants done: the only way in and out of a machine.

Every event carries the instant at which its driver saw it (`at`, in seconds of the chain), so a machine needs no clock.
Every action names what it is about, so a driver can carry it out twice without harm: a statement by the bytes that were
signed, a transaction and a piece of work by their names. All fields are bytes, integers, texts, tuples, or values that
have one encoding of their own (jobs, heads, moves), so events and actions can cross a socket or lie in a file.
"""

from dataclasses import dataclass

from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Job, SignedHead
from tiebreak.protocol.game.moves import Move
from tiebreak.protocol.tags import Digest

Place = tuple[str | bytes | int, ...]
"""The name of a statement, a result or a transaction, such as ("head", job id, count). There is one of each name."""


# ---------------------------------------------------------------- work, which a driver does


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Compute the segment that ends at the checkpoint with this count. Done with the run root of that count."""

    job_id: Digest
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Compute the run up to a head again. Done with the run root of its count, or with a problem."""

    job_id: Digest
    head: SignedHead
    attempt: int
    """From 0. A later attempt should use other settings and, where there is one, another machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """Find the move that follows from the own run in a game, whose turn number this is. Done with that move."""

    game_id: Digest
    sequence: int


Work = Train | Replay | Gather


# ---------------------------------------------------------------- transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateJob:
    """Offer a job that its trainer signed, and pay the reward."""

    job: Job
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob:
    """Take an offer back."""

    job_id: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptJob:
    """Accept an offer, and pay the trainer's stake."""

    job_id: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class PostHead:
    """Post a head on the board."""

    head: SignedHead


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report two heads of one count and different roots."""

    first: SignedHead
    second: SignedHead


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """End a job whose final head stood through its window."""

    job_id: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """End a job whose trainer missed its window."""

    job_id: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """Start a game against a head, and pay the challenger's stake."""

    head: SignedHead
    nonce: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeMove:
    """Make the move with this number in a game."""

    game_id: Digest
    sequence: int
    move: Move


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTimeout:
    """Claim that the mover of a game has run out of time."""

    game_id: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """Take back the stake of a game whose job ended without it."""

    game_id: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw:
    """Pull one's credit."""

    to: Address


OnJob = CreateJob | CancelJob | AcceptJob | PostHead | Report | Settle | Abandon
OnGame = Challenge | MakeMove | ClaimTimeout | Reclaim
Transaction = OnJob | OnGame | Withdraw


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The machine was made: for the first time, or anew from its journal."""

    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """An instant has come, for instance one that `Wake` asked for."""

    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardChanged:
    """The board that the machine reads follows the chain up to a block. `block`: the block's timestamp."""

    at: int
    block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDrafted:
    """The client's owner wants this job done."""

    at: int
    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOffered:
    """A client asks for the trainer's signature under a job."""

    at: int
    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSigned:
    """A trainer's answer to a client, an empty signature if it declines. Nothing about it is checked yet."""

    at: int
    job: Job
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShown:
    """Somebody showed a head. Nothing about it is checked yet."""

    at: int
    head: SignedHead


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveShown:
    """Somebody sent a message of a game. Nothing about it is checked yet."""

    at: int
    game_id: Digest
    wire: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """What there is of a run up to a checkpoint was fetched, and lies where `Replay` finds it."""

    at: int
    job_id: Digest
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Work is done. A result that is empty has a `problem`: why nobody could have done it."""

    at: int
    work: Work
    root: bytes = b""
    move: Move | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mined:
    """A transaction stands in a block that the board follows, and was not reverted."""

    at: int
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A transaction would revert and was not sent, or it reverted in a block. `error`: the contract's name for why.

    The error is empty where no contract was asked: the account cannot pay.
    """

    at: int
    place: Place
    error: str


Message = JobDrafted | JobOffered | JobSigned | HeadShown | MoveShown
Event = Started | Tick | BoardChanged | Message | Arrived | Done | Mined | Refused


# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Append to the journal, and sync, before any later action is carried out."""

    place: Place
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferJob:
    """Ask a job's trainer for its signature."""

    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class SignJob:
    """Send a client the trainer's signature under its job; an empty one declines."""

    job: Job
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowHead:
    """Show a head to everyone."""

    head: SignedHead


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowMove:
    """Send a signed message of a game to the other side."""

    game_id: Digest
    wire: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRun:
    """Publish what an auditor needs of a run up to a checkpoint. `logs`: whether its rounding logs go with it."""

    job_id: Digest
    count: int
    logs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRun:
    """Fetch what is published of a run up to a checkpoint."""

    job_id: Digest
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start work, unless it is under way."""

    work: Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Transact:
    """Send a transaction if it would not revert now, unless one of this name waits already.

    The driver tries it on top of what else waits to be mined. `past_pending`: it was refused there before, so now it is
    sent also if only the newest block would take it, for what is in its way need never come. `untried`: it is sent
    whatever comes of it; no honest party asks for that.
    """

    place: Place
    transaction: Transaction
    deadline: int | None = None
    """The last instant at which it is of use. None: there is no such instant."""
    past_pending: bool = False
    untried: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Tell the machine's owner. `is_error`: a person has to do something; otherwise the machine handles it."""

    is_error: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """Send a `Tick` at this instant. A later `Wake` need not cancel it: a tick too many does no harm."""

    at: int


Statement = OfferJob | SignJob | ShowHead | ShowMove
Action = Record | Statement | PublishRun | FetchRun | Start | Transact | Alarm | Wake
