"""Transactions: one type for each thing that a party can have the board do.

Each declares its fields once, in the order of its post (SPEC section 12), and in addition the contracts' function, its
gas, and the words by which others hear of it. The post's encoding, the call (`tiebreak.protocol.chain.calls`), the gas
limit, the stories and the pages follow from that. Two things are written elsewhere: the stake that it puts up
(`Board.stake_of`), and its effect where there is no chain (`tiebreak.protocol.parties.ledger`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

from tiebreak.protocol import packing
from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.job import Account, Concession, Head, Job, LogReceipt, SignedHead
from tiebreak.protocol.commitments.records import StepRecord, run_tree
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.game.moves import MAX_SIBLINGS, AnyMove, Move, Prove, kind_name
from tiebreak.protocol.game.snapshot import Fork, Snapshot, opened
from tiebreak.protocol.game.state import GameState
from tiebreak.protocol.numbers.float32 import is_finite
from tiebreak.protocol.packing import U32, U64, Data, ListOf, OneOf, Raw, Record, Root, Uint, camel_case
from tiebreak.protocol.tags import Digest

# ---------------------------------------------------------------- kinds of fields


@dataclass(frozen=True, slots=True)
class Signed(packing.FieldType):
    """A head with a signature, packed as job id, count, run root, signature."""

    type: type[SignedHead] | type[LogReceipt]

    def check(self, name: str, value: Any) -> None:
        if type(value) is not self.type:
            raise EncodingError(f"{name}: expected {self.type.__name__}, got {type(value).__name__}")
        Raw(keys.SIGNATURE_BYTES).check(name, value.signature)

    def pack(self, value: Any) -> packing.Packed:
        return (*value.head.pack(), value.signature)

    def unpack(self, name: str, item: Any) -> Any:
        found = packing.Fields(name, item, 4)
        head = Head.unpack(name, [found.next()[1] for _ in range(3)])
        return self.type(head=head, signature=found.take(Raw(keys.SIGNATURE_BYTES)))


@dataclass(frozen=True, slots=True)
class AnyProof(AnyMove):
    def check(self, name: str, value: Any) -> None:
        if type(value) is not Prove:
            raise EncodingError(f"{name}: expected a proof, got {type(value).__name__}")


Bytes = Annotated[bytes, Data(4096)]
Bond = Annotated[int, Uint(256)]
AnyJob = Annotated[Job, OneOf((Job,))]
AnyHead = Annotated[SignedHead, Signed(SignedHead)]
AnyReceipt = Annotated[LogReceipt, Signed(LogReceipt)]
AnyConcession = Annotated[Concession, OneOf((Concession,))]


class OpenedHead(Record):
    """A head with one leaf of its run tree: the digest of a record, and its siblings from the leaf upwards."""

    head: AnyHead
    leaf: Root
    siblings: Annotated[tuple[Digest, ...], ListOf(Raw(32), MAX_SIBLINGS)]


AnyOpenedHead = Annotated[OpenedHead, OneOf((OpenedHead,))]


def subject_of(record: Record) -> tuple[Digest | None, Digest | None]:
    """The job and the game that a record names, itself or by what it shows; None where it names none."""
    job, game = getattr(record, "job_id", None), getattr(record, "game_id", None)
    for value in record.values:
        match value:
            case Job():
                job = job or value.id
            case SignedHead(head=head) | LogReceipt(head=head) | Concession(head=head):
                job = job or head.job_id
            case OpenedHead(head=shown):
                job = job or shown.head.job_id
            case Fork() | Enter():
                game = value.game_id
    return job, game


# ---------------------------------------------------------------- jobs


class Transaction(Record):
    """A transaction of a party, whose fields give its ABI call, its gas limit and its words in a log."""

    FUNCTION: ClassVar[str]
    """The name of the Solidity function that it calls: the class's own, unless it says otherwise."""
    GAS: ClassVar[int]
    """The most gas that a transaction was measured to use, at least (`tiebreak.protocol.chain.gas`)."""
    WORDS: ClassVar[str]
    """The predicate of a sentence that tells of it, with the sender as its subject."""

    def __init_subclass__(cls, **constants: Any) -> None:
        cls.FUNCTION = vars(cls).get("FUNCTION", cls.__name__[0].lower() + cls.__name__[1:])
        super().__init_subclass__(**constants)

    @property
    def function(self) -> str:
        return self.FUNCTION

    @property
    def wei(self) -> int:
        """The wei to send with it, as far as its own fields say."""
        return 0

    @property
    def heads(self) -> tuple[SignedHead, ...]:
        """The signed heads that it shows."""
        shown = (value.head if isinstance(value, OpenedHead) else value for value in self.values)
        return tuple(head for head in shown if isinstance(head, SignedHead))


class CreateJob(Transaction, gas=276_457, words="puts the job on the board and pays the reward"):
    """Offer a job that its trainer has signed, and pay the reward."""

    job: AnyJob
    signature: Bytes

    @property
    def wei(self) -> int:
        return self.job.reward + self.job.seats * self.job.seat_fee


class CancelJob(Transaction, gas=46_000, words="takes the offer back"):
    """Withdraw a job that its trainer has not accepted; the client is credited the reward and the seats' fees."""

    job_id: Root


class AcceptJob(Transaction, gas=66_935, words="accepts the job and pays its stake"):
    """Accept an offer, and pay the trainer's stake."""

    job_id: Root


class PostHead(Transaction, gas=70_845, words="posts a head"):
    """Put a signed head, which commits to the steps so far, on the board."""

    head: AnyHead


class Report(Transaction, function="reportEquivocation", gas=135_000, words="reports two signed heads of one count"):
    """Report two heads with the same count and different roots."""

    first: AnyHead
    second: AnyHead


class ReportInconsistency(
    Transaction, gas=135_000, words="reports two signed heads with different records of one segment"
):
    """Report two heads with different leaves at one position."""

    position: U64
    first: AnyOpenedHead
    second: AnyOpenedHead


class ReportConcession(Transaction, gas=135_000, words="shows that the trainer has conceded a head"):
    """Show the board that the trainer has conceded a head, and to whom."""

    concession: AnyConcession


class ReportLoss(Transaction, gas=135_000, words="reports a signed record with a loss that is not finite"):
    """Open the record of a checkpoint whose loss is infinite or NaN, in a job that demands finite losses."""

    head: AnyHead
    position: U64
    state_root: Root
    loss_bits: U32
    log_root: Root
    siblings: Annotated[tuple[Digest, ...], ListOf(Raw(32), MAX_SIBLINGS)]

    @classmethod
    def of(cls, job: Job, head: SignedHead, records: Sequence[StepRecord]) -> "ReportLoss | None":
        """The report of the first record under a head that the job forbids; None if these are not it, or are right."""
        shown = records[: head.head.count]
        position = next((n for n, record in enumerate(shown) if not is_finite(record.loss_bits)), None)
        if position is None or not job.demands_finite_losses:
            return None
        tree, record = run_tree([one.digest for one in shown], job.steps, job.checkpoint_interval), shown[position]
        if len(shown) < head.head.count or tree.root != head.head.run_root:
            return None
        return cls(
            head=head, position=position, state_root=record.state_root, loss_bits=record.loss_bits,
            log_root=record.log_root, siblings=tuple(tree.proof(position)),
        )  # fmt: skip

    def record(self, job: Job) -> StepRecord:
        """The opened record: that of the last step of segment `position`, from 0."""
        return StepRecord(
            step=job.last_step(self.position), state_root=self.state_root, loss_bits=self.loss_bits,
            log_root=self.log_root,
        )  # fmt: skip


class Settle(Transaction, gas=70_000, words="settles the job"):
    """End a job whose final head stood through its challenge window."""

    job_id: Root


class Abandon(Transaction, gas=67_835, words="ends the job, for want of heads"):
    """End a job whose trainer missed its window or its deadline."""

    job_id: Root


class Acknowledge(Transaction, gas=64_000, words="shows a receipt for the logs of a head"):
    """Show the board the client's receipt for the logs of a head."""

    receipt: AnyReceipt


class Part(Transaction, gas=75_000, words="ends the job, for want of a receipt or a head"):
    """End a job of policy `logged` in which a receipt, or the next head, does not come."""

    job_id: Root


class Withdraw(Transaction, gas=31_000, words="withdraws"):
    """Withdraw the party's whole credit."""

    to: Account


# ---------------------------------------------------------------- seats


class OnSeats(Transaction):
    """Base class of transactions about seats, whose draw needs a chain.

    Their gas allows for an account's first credit or a first slot, and `SealRoot`'s for 31 empty slots drawn before.
    """


class JoinPool(OnSeats, gas=69_441, words="joins the pool of auditors"):
    """Take a slot of the pool for seats of one bond, and deposit as much."""

    bond: Bond


class LeavePool(OnSeats, gas=51_100, words="leaves the pool of auditors"):
    """Give a slot back, and get the deposit."""

    bond: Bond
    slot: U64


class SealHead(OnSeats, gas=89_728, words="seals a head"):
    """Post the seal of a head, in a job with seats."""

    job_id: Root
    count: U64
    seal: Root


class DrawSeats(OnSeats, gas=91_502, words="opens its secret, which draws the seats"):
    """Draw the seats of a job whose final head is sealed, by opening the client's secret."""

    job: AnyJob
    secret: Bytes


class SealRoot(OnSeats, gas=175_000, words="seals the root that it has for its seat, and pays the bond"):
    """Post the seal of the root that the auditor of a seat computed, and pay the bond."""

    job_id: Root
    seat: U64
    seal: Root


class OpenHead(OnSeats, gas=85_083, words="opens the final head that it sealed"):
    """Post the final head that was sealed, once the auditors' time is over."""

    head: AnyHead
    salt: Bytes


class ClaimSeat(OnSeats, gas=70_039, words="opens its seal, and claims what its seat earned"):
    """Open an auditor's seal when the job has ended, and get what its seat earned."""

    job_id: Root
    seat: U64
    auditor: Account
    run_root: Root
    salt: Bytes


class CloseSeats(OnSeats, gas=69_161, words="takes back the fees that nobody earned"):
    """Pay out what nobody claimed: fees to the client."""

    job_id: Root


# ---------------------------------------------------------------- games


class Challenge(Transaction, gas=175_000, words="stakes on a challenge"):
    """Start a game against a head, and pay the challenger's stake."""

    head: AnyHead
    nonce: U64
    more: U64 = 0
    """The number of games, beyond those open now, that the stake allows for; an excess comes back."""


MOVE_GAS: Final = {
    "descend": 75_000,
    "select": 76_000,
    "openSteps": 95_101,
    "openValues": 103_644,
    "openTensor": 123_000,
    "openChunk": 89_876,
    "selectElement": 62_000,
    "openTerms": 109_283,
    "prove": 790_000,
    "concede": 135_000,
}
"""The gas of the moves, by function."""


class MakeMove(Transaction, words="makes a move"):
    """Make move number `sequence` in a game. Each kind of move has a function with its name and its fields."""

    game_id: Root
    sequence: U64
    move: Annotated[Move, AnyMove()]

    @property
    def function(self) -> str:
        return camel_case(kind_name(self.move))


class Enter(Transaction, gas=150_000, words="enters a signed state of the game"):
    """Enter a state that the opponent signed, with its snapshot's 144 bytes."""

    game_id: Root
    sequence: U64
    snapshot: Bytes
    signature: Bytes

    @classmethod
    def of(cls, state: GameState, signature: bytes) -> "Enter":
        game_id, snapshot = Digest(state.game_id), Snapshot.of(state).encode()
        return cls(game_id=game_id, sequence=state.moves, snapshot=snapshot, signature=signature)


class EnterAndProve(Transaction, gas=790_000, words="enters a signed state of the game, and proves"):
    """Enter the sealed state that the defender acknowledged, and prove its answer."""

    entered: Annotated[Enter, OneOf((Enter,))]
    move: Annotated[Prove, AnyProof()]
    opened: Annotated[tuple[bytes, ...], ListOf(Data(4096), MAX_SIBLINGS)]
    """The values opened on the way (`snapshot.opened`)."""

    @classmethod
    def of(cls, state: GameState, signature: bytes, move: Prove) -> "EnterAndProve":
        return cls(entered=Enter.of(state, signature), move=move, opened=opened(state))


class ReportFork(Transaction, gas=135_000, words="reports that its opponent signed two states in one place"):
    """Report that one side signed two snapshots for one sequence number of a game."""

    fork: Annotated[Fork, OneOf((Fork,))]


class ClaimTimeout(Transaction, function="timeout", gas=135_000, words="claims that the mover's clock ran out"):
    """Claim that the side to move in a game has run out of time."""

    game_id: Root


class Reclaim(Transaction, gas=58_000, words="takes back the stake of a game that has no object any more"):
    """Take back the stake of a game whose job was slashed for another reason."""

    game_id: Root


# ---------------------------------------------------------------- all of them

TRANSACTIONS: Final[tuple[type[Transaction], ...]] = (
    CreateJob, CancelJob, AcceptJob, PostHead, Report, ReportInconsistency, Acknowledge, Settle, Abandon, Part,
    JoinPool, LeavePool, SealHead, DrawSeats, SealRoot, OpenHead, ClaimSeat, CloseSeats, Challenge, MakeMove, Enter,
    EnterAndProve, ReportFork, ClaimTimeout, Reclaim, Withdraw, ReportConcession, ReportLoss,
)  # fmt: skip
"""The transactions by their number in a post, which never changes."""
