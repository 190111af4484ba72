"""The base of all parties: a memory backed by a journal, and one round of observing, planning and acting.

A machine does not react to individual events. At each event it looks at everything it knows (the board and its own
records), works out what should be under way, and asks for all that is not. So it does not matter if an event comes
twice, late or never: the next one leads to the same plan. After a crash the records are read back from the journal.
Work that was under way is requested again, and statements are repeated byte for byte.

    >>> client = ClientParty(board=Board(), domain=domain, pace=Pace(block_seconds=12, step_seconds=1), key=key)
    >>> actions = client.observe(events.JobDrafted(at=1000, job=job))
    >>> [type(action).__name__ for action in actions]
    ['AppendRecord', 'OfferJob', 'Wake']
    >>> journal = [action for action in actions if isinstance(action, events.AppendRecord)]
    >>> again = ClientParty(                                                # after a crash
    ...     board=Board(), domain=domain, pace=client.pace, key=key, journal=journal
    ... )
    >>> [type(action).__name__ for action in again.observe(events.Started(at=1060))]
    ['OfferJob', 'Wake']

Order of calls: a driver carries the actions of one `observe` out in their order, and begins none before the records
(`AppendRecord`) that come before it are safe. It calls `observe` for one event at a time, and first, for a machine made
from a journal, for `Started`. It brings `board` up to date before the event that tells of it. Otherwise events may come
in any order.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final

from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Job, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import StateError, VerificationError
from tiebreak.protocol.packing import unpack
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import Board, JobStatus, PublicJob
from tiebreak.protocol.parties.events import Place
from tiebreak.protocol.parties.terms import Means, Pace
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest

PASSING: Final = frozenset({
    "ClockRunning", "FinalHeadMissing", "FinalHeadPosted", "FinalHeadSealed", "GameIsOver", "Halted", "HeadNotPosted",
    "JobNotEnded", "NoSuchGame", "NothingToWithdraw", "NotSealed", "NotYourTurn", "OpenGames", "ReceiptMissing",
    "SlotNotFree", "StaleState", "TooEarly", "TooManyGames", "WindowClosed", "WindowOpen", "WrongCaller",
    "WrongJobStatus", "WrongPayment", "WrongPhase",
})  # fmt: skip
"""Refusals that time will resolve, or that come of others' transactions in one block, or of a block that vanished."""


_HEADS_PER_COUNT: Final = 2
"""Two heads with the same count are enough to report the trainer; a third tells nothing new."""
UNLIMITED: Final = Means()
UNEXPECTED: Final = "unexpected"
"""The first word of the alarm about an error that a part of a round raised."""


@dataclass(slots=True)
class _Sending:
    """A transaction that the machine wants: whether it is on its way, and how often it was refused."""

    is_pending: bool = False
    refusals: int = 0
    is_given_up: bool = False
    retry_at: int = 0
    wei: int = 0
    """The wei that the transaction puts up as a stake, a bond or a deposit."""


class PartyMachine:
    """A party. Drivers call only `observe`; the small public methods are decisions that subclasses override."""

    ROLE: ClassVar[str]

    def __init__(
        self,
        *,
        board: Board,
        domain: Domain,
        pace: Pace,
        key: PrivateKey | None = None,
        journal: Iterable[e.AppendRecord] = (),
        means: Means = UNLIMITED,
    ) -> None:
        """`board` is kept current by the driver. A party that only watches has no `key`. `journal` is oldest first."""
        self.board = board
        self.domain = domain
        self.pace = pace
        self.means = means
        self._key = key
        self.records: dict[Place, bytes] = {}
        for entry in journal:
            self.records.setdefault(entry.place, entry.data)
        self._heads: dict[Digest, list[SignedHead]] = {}
        for place, data in self.records.items():
            if place[0] == "heard":
                head = SignedHead.decode(data)
                self._heads.setdefault(head.head.job_id, []).append(head)
        self.now = 0
        self._slot = 0
        self._wake = 0
        """The instant to look again; 0 means not before the next event."""
        self._is_short = False
        """Whether the account could not pay for something that this round asked for."""
        self._actions: list[e.Action] = []
        self._sending: dict[Place, _Sending] = {}
        self._working: set[e.Work] = set()
        self._said: set[object] = set()

    @property
    def has_key(self) -> bool:
        """Whether the party can sign and pay; one that only watches cannot."""
        return self._key is not None

    @property
    def key(self) -> PrivateKey:
        """The party's key. Raises `StateError` for a party that only watches."""
        if self._key is None:
            raise StateError("expected a party with a key, got one that only watches")
        return self._key

    @property
    def address(self) -> Address:
        """The address of its key. Raises `StateError` for a party that only watches."""
        return self.key.address

    def observe(self, event: e.Event) -> tuple[e.Action, ...]:
        """Process an event. Returns the actions to carry out now, in this order."""
        self.now, self._wake, self._is_short = max(self.now, event.at), 0, False
        if not self._slot:
            self._slot = self.now  # blocks are counted from here until one comes
        match event:
            case e.BoardChanged():
                self._slot = max(self._slot, event.block)
            case e.Done():
                self._working.discard(event.work)
            case e.Mined():
                self._sending.pop(event.place, None)
            case e.Refused():
                self._refused(event)
        with self.apart(type(event).__name__):
            self.learn(event)
        with self.apart("the plan"):
            self.plan()
        if self._wake:
            self._actions.append(e.Wake(at=self._wake))
        actions, self._actions = tuple(self._actions), []
        return actions

    # ------------------------------------------------------------------ decisions

    def program_of(self, job: Job) -> Program | None:  # noqa: ARG002  # a party without programs takes part in nothing
        """The program of a job; None if this party does not have it or cannot run it, and so stays out of the job."""
        return None

    def pace_of(self, job: Job) -> Pace:  # noqa: ARG002
        """The pace in a job: by default the same as in any other."""
        return self.pace

    def collects(self) -> bool:
        """Decide whether to withdraw what the board owes it."""
        return True

    def affords(self, place: Place, job: Job, wei: int, *, spare: int = 0, urgent: bool = True) -> bool:
        """Decide whether to put up `wei` for a job by a transaction. Alerts the owner if it does not.

        Everything under way counts as put up. spare: more that has to be left, in the account and below the limit.
        urgent: an ERROR if it does not, and another look with the next block, when somebody may have sent money.
        """
        if place in self._sending and self._sending[place].is_pending:
            return True
        reason, promised = self._objection(job, wei, spare)
        if not reason and (reason := self.means.shortage(promised)):
            self._is_short = True
            if urgent:
                self.wake(self.next_slot())
            if self.collects() and not self.means.shortage(promised - self.board.credit(self.address)):
                return False  # it withdraws that first, and nobody needs to send money
        if reason:
            self.alarm(f"job {job.id.hex()[:8]}: {place[0]!s}: {reason}", is_error=urgent)
        return not reason

    def could_pay(self, job: Job, wei: int) -> bool:
        """Whether the account could put up this many wei for a job, within its limits."""
        reason, promised = self._objection(job, wei)
        return not reason and not self.means.shortage(promised)

    def _objection(self, job: Job, wei: int, spare: int = 0) -> tuple[str, int]:
        """The reason of its limits not to put up `wei` for a job, if there is one; and the wei put up then in all."""
        sent = [(other, sending.wei) for other, sending in self._sending.items() if sending.is_pending]
        promised = wei + spare + sum(more for _, more in sent)
        of_job = self.board.exposure(self.address, job.id) + sum(more for other, more in sent if job.id in other)
        in_all = self.board.exposure(self.address) + promised
        return self.means.objection(of_job=of_job + wei, in_all=in_all), promised

    # ------------------------------------------------------------------ a round

    def learn(self, event: e.Event) -> None:
        """Update the records from an event."""
        match event:
            case e.Done(work=e.Replay(head=head) | e.CheckLogs(head=head), found=tx.ReportLoss() as found) if (
                found.head == head
            ):
                self.record(("loss", head.head.job_id), found.encode())
                self.alarm(f"job {head.head.job_id.hex()[:8]}, head {head.head.count}: {event.problem}", is_error=True)

    def plan(self) -> None:
        """Ask for everything that should be under way now."""
        if self._key is None or not self.collects() or not self.board.credit(self.address):
            return
        # Withdraw once nothing more can come, to need one transaction instead of many, or once money is short.
        if self._is_short or self.means.shortage(0) or not self.has_business():
            self.want(("withdraw",), tx.Withdraw(to=self.address))

    def has_business(self) -> bool:
        """Whether its own money may still move, because a job or game that it takes part in goes on."""
        own = self.address
        jobs = any(own in (job.job.client, job.job.trainer) and not job.is_over for job in self.board.jobs.values())
        games = self.board.games.values()
        return jobs or any(not game.is_over and own in (game.challenger, game.job.job.trainer) for game in games)

    # ------------------------------------------------------------------ parts of a plan

    def do(self, action: e.Action) -> None:
        """Add an action to those that `observe` returns."""
        self._actions.append(action)

    def once(self, action: e.Action) -> None:
        """Ask for an action that need not be repeated during the lifetime of this object."""
        if action not in self._said:
            self._said.add(action)
            self.do(action)

    def alarm(self, text: str, *, is_error: bool = False) -> None:
        """Alert the owner. Each text is sent only once."""
        self.once(e.Alarm(is_error=is_error, text=text))

    @contextmanager
    def apart(self, what: str) -> Iterator[None]:
        """Keep a part of a round, about one game or job, from ending the rest: an exception becomes an ERROR."""
        try:
            yield
        except Exception as error:
            self.alarm(f"{UNEXPECTED} in {what}: {type(error).__name__}: {error}", is_error=True)

    def wake(self, at: int) -> None:
        """Schedule another look at this instant. If several are requested, the earliest wins."""
        self._wake = min(self._wake, at) if self._wake else at

    def has_come(self, at: int) -> bool:
        """Whether an instant has come. If not, the machine will look again at that instant."""
        if self.now < at:
            self.wake(at)
        return self.now >= at

    def record(self, place: Place, data: bytes) -> bytes:
        """Write to this place of the journal unless something is there already. Returns what is there now."""
        if place not in self.records:
            self.records[place] = data
            self.do(e.AppendRecord(place=place, data=data))
        return self.records[place]

    def is_valid(self, head: SignedHead, job: Job) -> bool:
        """Whether this is a head of the job, signed by its trainer."""
        try:
            head.verify(job, self.domain)
        except VerificationError:
            return False
        return True

    def keep_head(self, head: SignedHead, job: Job) -> None:
        """Record a valid head of a job, unless two others of its count, or one with its root, are known."""
        known = self._heads.setdefault(job.id, [])
        same = [other.head.run_root for other in known if other.head.count == head.head.count]
        if head.head.run_root not in same and len(same) < _HEADS_PER_COUNT and self.is_valid(head, job):
            known.append(head)
            self.record(("heard", job.id, head.head.count, len(same)), head.encode())

    def heads_of(self, job_id: Digest) -> list[SignedHead]:
        """The valid heads of a job that it has kept, in order of arrival; at most two per count."""
        return self._heads.get(job_id, [])

    def begin(self, work: e.Work) -> None:
        """Start some work, unless it is already under way."""
        if work not in self._working:
            self._working.add(work)
            self.do(e.Start(work=work))

    def want(
        self, place: Place, transaction: tx.Transaction, *, deadline: int | None = None, untried: bool = False
    ) -> None:
        """Get a transaction into a block. If it is refused for a reason that may pass, it is sent again each block."""
        assert self._key is not None, "a party without a key sends no transaction"
        sending = self._sending.setdefault(place, _Sending())
        if sending.is_pending or sending.is_given_up or not self.has_come(sending.retry_at):
            return
        sending.is_pending, sending.wei = True, self.board.stake_of(transaction)
        self.do(e.Transact(place=place, transaction=transaction, deadline=deadline, untried=untried))

    def refusals(self, place: Place) -> int:
        """The number of times that a transaction was refused so far."""
        return self._sending[place].refusals if place in self._sending else 0

    def is_given_up(self, place: Place) -> bool:
        """Whether a transaction was refused for good."""
        return place in self._sending and self._sending[place].is_given_up

    def _refused(self, event: e.Refused) -> None:
        sending = self._sending.setdefault(event.place, _Sending())
        sending.is_pending = False
        if not event.error:  # once the account has money, it is tried with the next block
            self._is_short = True
            sending.retry_at = self.next_slot()
            self.do(e.Alarm(is_error=True, text=f"{event.place[0]!s}: the account's balance does not cover it"))
            return
        if event.error == "TooManyGames":
            room = "others have all games that the job allows; without a chain, its client can name this account"
            self.alarm(f"{event.place[0]!s}: {room}", is_error=True)
        sending.refusals += 1
        # A move may have stood behind other moves than its own, in a block that took the place of one that vanished.
        if event.error in PASSING or event.place[0] == "move":
            sending.retry_at = self.next_slot()
            return
        sending.is_given_up = True
        self.alarm(f"{event.place[0]!s}: the board refused it with {event.error}")

    def reports_loss(self, job: PublicJob) -> bool:
        """Report a record that the job forbids, if one was seen. Returns whether that is under way."""
        place = ("loss", job.id)
        if not is_active(job) or place not in self.records or self.is_given_up(place):
            return False
        self.want(place, tx.ReportLoss.unpack("loss", unpack(self.records[place], 1 << 16)))
        return True

    def next_slot(self) -> int:
        """When the next block is due, if blocks come on schedule."""
        return self.now + self.pace.block_seconds - (self.now - self._slot) % self.pace.block_seconds

    def jobs(self) -> list[PublicJob]:
        return list(self.board.jobs.values())


def is_active(job: PublicJob) -> bool:
    """Whether a job was accepted and has not ended."""
    return job.status is JobStatus.ACTIVE
