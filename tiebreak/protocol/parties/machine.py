"""What all parties have in common: a memory that a journal holds, and one round of seeing, planning and acting.

A machine does not react to events. At each one it looks at all it knows (the board, and its own records), works out
what ought to be under way, and asks for what is not. So it does not matter whether an event came twice, late, or never:
the next one leads to the same plan. After a crash the records come back from the journal; what was under way is asked
for again, and every statement with the bytes that it had.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.parties.board import Board, JobStatus, PublicJob
from tiebreak.protocol.parties.events import (
    Action,
    Alarm,
    BoardChanged,
    Done,
    Event,
    Mined,
    Place,
    Record,
    Refused,
    Start,
    Transact,
    Transaction,
    Wake,
    Withdraw,
    Work,
)
from tiebreak.protocol.parties.terms import Pace
from tiebreak.protocol.program.program import Program

PASSING: Final = frozenset(
    {
        "ClockRunning",
        "FinalHeadMissing",
        "FinalHeadPosted",
        "GameIsOver",
        "Halted",
        "NothingToWithdraw",
        "NotYourTurn",
        "OpenGames",
        "TooEarly",
        "WindowOpen",
        "WrongJobStatus",
        "WrongPhase",
    }
)
"""The contract's refusals that time heals, or that another's pending transaction caused, which may never be mined."""


@dataclass(slots=True)
class _Sending:
    """What became of a transaction so far."""

    is_pending: bool = False
    was_refused: bool = False
    is_given_up: bool = False
    retry_at: int = 0


class Machine:
    """A party. `observe` is all that a driver calls; the small public methods are decisions, to be overridden."""

    ROLE: ClassVar[str]

    def __init__(
        self,
        *,
        board: Board,
        domain: Domain,
        pace: Pace,
        key: PrivateKey | None = None,
        journal: Iterable[Record] = (),
    ) -> None:
        """`board`: followed by the driver. `key`: None for a party that only watches. `journal`: oldest first."""
        self.board = board
        self.domain = domain
        self.pace = pace
        self._key = key
        self.records: dict[Place, bytes] = {}
        for entry in journal:
            self.records.setdefault(entry.place, entry.data)
        self.now = 0
        self._slot = 0
        self._wake = 0
        """When to look again; 0: not before the next event."""
        self._actions: list[Action] = []
        self._sending: dict[Place, _Sending] = {}
        self._working: set[Work] = set()
        self._said: set[object] = set()

    @property
    def key(self) -> PrivateKey:
        """Its key. Raises `StateError` for a party that only watches."""
        if self._key is None:
            raise StateError("expected a party with a key, got one that only watches")
        return self._key

    @property
    def address(self) -> Address:
        """Of its key."""
        return self.key.address

    def observe(self, event: Event) -> tuple[Action, ...]:
        """Take in an event, and what is to be done now, in this order."""
        self.now, self._wake = max(self.now, event.at), 0
        if not self._slot:
            self._slot = self.now  # blocks are counted from here until one comes
        match event:
            case BoardChanged():
                self._slot = max(self._slot, event.block)
            case Done():
                self._working.discard(event.work)
            case Mined():
                self._sending.pop(event.place, None)
            case Refused():
                self._refused(event)
        self.learn(event)
        self.plan()
        if self._wake:
            self._actions.append(Wake(at=self._wake))
        actions, self._actions = tuple(self._actions), []
        return actions

    # ------------------------------------------------------------------ decisions

    def program_of(self, job: Job) -> Program | None:  # noqa: ARG002  # a party without programs takes part in nothing
        """The program of a job that this party has and can compute; None: it keeps out of the job."""
        return None

    def collects(self) -> bool:
        """Whether it withdraws what it is owed."""
        return True

    # ------------------------------------------------------------------ a round

    def learn(self, event: Event) -> None:
        """Take what an event says into the records."""

    def plan(self) -> None:
        """Ask for all that ought to be under way now."""
        if self._key is not None and self.collects():
            self._collect()

    def _collect(self) -> None:
        """Withdraw, once nothing more can come: one transaction instead of many."""
        if self.board.credit(self.address) > 0 and not self.has_business():
            self.want(("withdraw",), Withdraw(to=self.address))

    def has_business(self) -> bool:
        """Whether money of its own may still move: a job or a game that it is in goes on."""
        own = self.address
        jobs = any(own in (job.job.client, job.job.trainer) and not job.is_over for job in self.board.jobs.values())
        games = self.board.games.values()
        return jobs or any(not game.is_over and own in (game.challenger, game.job.job.trainer) for game in games)

    # ------------------------------------------------------------------ what a plan is made of

    def do(self, action: Action) -> None:
        """Ask for an action."""
        self._actions.append(action)

    def once(self, action: Action) -> None:
        """Ask for an action that need not be repeated before the machine is made anew."""
        if action not in self._said:
            self._said.add(action)
            self.do(action)

    def alarm(self, text: str, *, is_error: bool = False) -> None:
        """Tell the owner, once."""
        self.once(Alarm(is_error=is_error, text=text))

    def wake(self, at: int) -> None:
        """Look again at this instant."""
        self._wake = min(self._wake, at) if self._wake else at

    def has_come(self, at: int) -> bool:
        """Whether an instant has come; if not, the machine looks again when it has."""
        if self.now < at:
            self.wake(at)
        return self.now >= at

    def record(self, place: Place, data: bytes) -> bytes:
        """What stands in this place of the journal: what stood there already, or else this, from now on."""
        if place not in self.records:
            self.records[place] = data
            self.do(Record(place=place, data=data))
        return self.records[place]

    def begin(self, work: Work) -> None:
        """Have work done, unless it is under way."""
        if work not in self._working:
            self._working.add(work)
            self.do(Start(work=work))

    def want(
        self, place: Place, transaction: Transaction, *, deadline: int | None = None, untried: bool = False
    ) -> None:
        """Have a transaction stand in a block. What is refused for now is sent again with each block.

        Another's pending transaction may be in its way: a decoy that its sender never lets into a block. After one
        block it has had its chance, and the transaction is sent if the newest block alone would take it.
        """
        assert self._key is not None, "a party without a key sends no transaction"
        sending = self._sending.setdefault(place, _Sending())
        if sending.is_pending or sending.is_given_up or not self.has_come(sending.retry_at):
            return
        sending.is_pending = True
        past = sending.was_refused
        self.do(Transact(place=place, transaction=transaction, deadline=deadline, past_pending=past, untried=untried))

    def is_given_up(self, place: Place) -> bool:
        """Whether a transaction was refused for good."""
        return place in self._sending and self._sending[place].is_given_up

    def _refused(self, event: Refused) -> None:
        sending = self._sending.setdefault(event.place, _Sending())
        sending.is_pending, sending.was_refused = False, True
        if event.error in PASSING:
            sending.retry_at = self.next_slot()
            return
        sending.is_given_up = True
        what = str(event.place[0])
        if event.error:
            self.alarm(f"{what}: the board refused it with {event.error}")
        else:
            self.alarm(f"{what}: the account's balance does not cover it", is_error=True)

    def next_slot(self) -> int:
        """The instant of the next block, if blocks come as they should."""
        return self.now + self.pace.block_seconds - (self.now - self._slot) % self.pace.block_seconds

    def jobs(self) -> list[PublicJob]:
        """The board's jobs, oldest first."""
        return list(self.board.jobs.values())


def is_active(job: PublicJob) -> bool:
    """Whether a job was accepted and goes on."""
    return job.status is JobStatus.ACTIVE
