"""A town for machines alone: the board's rules by the hub's ledger, blocks every 12 seconds, mail, and crashes.

No simulator, no chain, no tensors: runs of `tests.protocol.runs`. What may differ from one town to another is told by a
`Fate`: at which event a party's machine dies and is made anew from its journal, which messages are lost or come twice.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from types import MappingProxyType
from typing import Any

from tests.protocol.runs import CHALLENGER, CLIENT, DOMAIN, SECRET, TRAINER, Liar, Run, make_job, program
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game.messages import Message, open_wire
from tiebreak.protocol.game.moves import Move, Side
from tiebreak.protocol.game.sides import Challenger, Defender, resume
from tiebreak.protocol.game.snapshot import SignedStanding, Snapshot
from tiebreak.protocol.game.state import Reason
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import posts
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.auditor import AuditorParty, WatcherParty
from tiebreak.protocol.parties.board import BURNED, Board, PublicGame, PublicJob
from tiebreak.protocol.parties.client import ClientParty
from tiebreak.protocol.parties.driver import PartyDriver, Turn
from tiebreak.protocol.parties.ledger import Ledger, Refusal
from tiebreak.protocol.parties.machine import PartyMachine
from tiebreak.protocol.parties.terms import Pace
from tiebreak.protocol.parties.trainer import TrainerParty
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.tags import Digest

BLOCK, STEP, START = 12, 1, 1200
PACE = Pace(block_seconds=BLOCK, step_seconds=STEP)
JOB = replace(make_job(), clock=600)
LIE = (3, next(n for n, value in enumerate(program().body) if value.is_reduction and value.dtype is DType.I64))
"""Step and leaf of a sum."""
TRUTH, FALSE = Run(JOB), Liar(JOB, *LIE)
MORE = JOB.games_that_burn_its_worth - 1
"""Games of others for which a challenge pays, too."""
TALKED = replace(JOB, talk_time=900)
TALKED_TRUTH, TALKED_FALSE = Run(TALKED), Liar(TALKED, *LIE)
MOVES: dict[tuple[int, bytes, int, bytes], Move] = {}
"""What each side of a game answers, whenever it is asked: computed once for all towns."""


@cache
def root(run: Run, count: int) -> Digest:
    """The root of a run's first checkpoints."""
    return run.run_tree(count).root


class _Knowing:
    """A party that has the program of the tests."""

    def program_of(self, job: Any) -> Any:
        return program() if job.program_root == program().root else None


class KnowingTrainer(_Knowing, TrainerParty):
    pass


class KnowingAuditor(_Knowing, AuditorParty):
    pass


class KnowingWatcher(_Knowing, WatcherParty):
    pass


class KnowingClient(_Knowing, ClientParty):
    pass


KINDS: dict[str, tuple[type[PartyMachine], PrivateKey | None]] = {
    "client": (KnowingClient, CLIENT),
    "trainer": (KnowingTrainer, TRAINER),
    "auditor": (KnowingAuditor, CHALLENGER),
    "watcher": (KnowingWatcher, None),
}


@dataclass(kw_only=True)
class Fate:
    """What goes wrong in a town."""

    dies: tuple[str, int] | None = None
    """A party, and after how many of its events its machine dies."""
    copies: Callable[[], int] = lambda: 1
    """How often a message or a notice of a block arrives: 0 if it is lost."""
    delay: Callable[[], int] = lambda: 0
    """The seconds by which it is late."""


@dataclass
class Seen:
    """What left a party: everything that it signed, in its place, and all it asked for."""

    statements: dict[e.Place, set[bytes]] = field(default_factory=dict)
    actions: list[e.Action] = field(default_factory=list)
    events: int = 0

    def say(self, place: e.Place, data: bytes) -> None:
        self.statements.setdefault(place, set()).add(data)


class Kept(list[e.AppendRecord]):
    """A journal in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.posts: dict[bytes, bytes] = {}
        """What was said, by its content."""
        self.rows: list[bytes] = []

    def post(self, _: Digest, content: bytes, seal: Callable[[int], bytes]) -> bool:
        is_new = content not in self.posts
        if is_new:
            self.posts[content] = seal(len(self.posts))
        return is_new

    def notes(self) -> list[bytes]:
        return list(self.rows)

    def note(self, note: bytes) -> None:
        self.rows.append(note)

    def append(self, record: e.AppendRecord) -> None:
        assert record.place not in {kept.place for kept in self}, "a place is written once"
        super().append(record)


def result_of(work: e.Work, turn: Turn | None, run: Run, truth: Run) -> dict[str, Any]:
    """What a party computes, as `PartyDriver.finish` takes it: the trainer from its run, others from the true one."""
    match work:
        case e.Train():
            return {"root": root(run, work.count)}
        case e.Replay():
            return {"root": root(truth, work.head.head.count)}
        case e.Audit():
            return {"root": root(truth, truth.job.checkpoints)}
    assert isinstance(work, e.Gather)
    assert turn is not None
    key = (id(run), work.game_id, work.sequence, work.snapshot)
    if key not in MOVES:
        # All that a challenger needs is the secret and the moves so far: it is made anew each time.
        challenger = Challenger(truth, SECRET)
        state = resume(challenger, turn.start, turn.line)
        assert Snapshot.of(state).id == work.snapshot
        assert turn.defends == (state.mover is Side.DEFENDER)
        MOVES[key] = (Defender(run) if turn.defends else challenger).move(state, turn.answered)
    return {"move": MOVES[key]}


class Resident(PartyDriver):
    """A party of a town: what leaves it is seen, and it may die after one of its events."""

    def __init__(self, town: "Town", name: str) -> None:
        self.town, self.name, self.seen = town, name, town.seen[name]
        kind, self.key = KINDS[name]
        kind, journal = town.kinds.get(name, kind), town.journals[name]
        known: dict[str, Any] = {"board": town.board, "domain": DOMAIN, "pace": PACE, "key": self.key}
        super().__init__(kind(journal=list(journal), **known), journal.append)

    def carry_out(self, actions: Sequence[e.Action]) -> None:
        self.seen.actions += actions
        super().carry_out(actions)
        self.seen.events += 1
        if self.town.fate.dies == (self.name, self.seen.events):
            self.town.drivers[self.name] = Resident(self.town, self.name)
            self.town.tell(self.name, e.Started(at=self.town.now))

    def instant(self) -> int:
        return self.town.now

    def later(self, then: Callable[["Resident"], None], delay: int = 0) -> None:
        """Something that happens to the party, whether or not it has died meanwhile."""
        self.town.at(self.town.now + delay, lambda: then(self.town.drivers[self.name]))

    def wake_at(self, at: int) -> None:
        assert at > self.town.now
        self.later(Resident.look, at - self.town.now)

    def start_work(self, work: e.Work, turn: Turn | None) -> bool:
        """Work takes some seconds, a move none."""
        found = self.town.result(work, turn)
        self.later(lambda driver: driver.finish(work, **found), 0 if isinstance(work, e.Gather) else 3)
        return True

    def fetch_run(self, job_id: Digest, count: int) -> bool:
        self.later(lambda driver: driver.fetched(job_id, count))
        return True

    def transact(self, wanted: e.Transact) -> None:
        self.seen.say(("call", *wanted.place), repr(wanted.transaction).encode())
        self.town.pool.setdefault((self.name, wanted.place), wanted)

    def say(self, statement: e.Statement) -> None:
        """Everybody else hears it, as well as the post works here."""
        assert self.key is not None
        body, game = posts.body_of(statement), getattr(statement, "game_id", None)
        post = posts.Post.of(body, job_id=self.town.run.job.id, number=0, sender=self.key.address, game_id=game)
        self.seen.say(_place_of(statement), body.encode())
        self.town.ledger.read(post, body, self.town.now)
        for name in self.town.drivers:
            if name != self.name:
                self.town.mail(name, lambda: posts.event_of(post, body, self.town.now))


def _place_of(statement: e.Statement) -> e.Place:
    """The place in which there may be one statement."""
    match statement:
        case e.ShowHead(head=head):
            return ("head", head.head.count)
        case e.ShowMove(game_id=game, wire=wire):
            return ("said", game, Message.decode(open_wire(wire)[0]).sequence)
        case e.ShowReceipt(game_id=game, receipt=receipt):
            return ("receipt", game, SignedStanding.decode(receipt).sequence)
    return (type(statement).__name__,)


class Paying(Ledger):
    """A ledger into which money was paid, so that accounts can withdraw what they gain."""

    def __init__(self, domain: Domain) -> None:
        super().__init__(domain)
        self.board = Board()  # type: ignore[assignment]

    def _pay(self, account: Address, wei: int) -> None:
        if wei > 0 and account != BURNED:
            self.board.credits[account] = self.board.credit(account) + wei


class Town:
    """Runs until nothing is left to happen, or for a time."""

    def __init__(
        self,
        run: Run = FALSE,
        *,
        fate: Fate | None = None,
        parties: tuple[str, ...] = tuple(KINDS),
        kinds: Mapping[str, type[PartyMachine]] = MappingProxyType({}),
    ) -> None:
        self.run, self.fate, self.kinds = run, fate or Fate(), kinds
        self.truth = TRUTH if run.job == JOB else TALKED_TRUTH
        self.ledger = Paying(DOMAIN)
        self.board, self.now, self.block = self.ledger.board, START, START
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self.posted: list[Any] = []
        self.pool: dict[tuple[str, e.Place], e.Transact] = {}
        self.journals = {name: Kept() for name in parties}
        self.seen = {name: Seen() for name in parties}
        self.drivers = {name: Resident(self, name) for name in parties}
        for name in parties:
            self.at(START, lambda name=name: self.tell(name, e.Started(at=self.now)))
        self.at(START, lambda: self.tell("client", e.JobDrafted(at=self.now, job=self.run.job)))
        self.at(START + BLOCK, self.mine)

    def at(self, instant: int, then: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (instant, next(self._order), then))

    def play(self, seconds: int = 6000) -> "Town":
        while self.queue and self.queue[0][0] <= START + seconds:
            self.now, _, then = heapq.heappop(self.queue)
            then()
        return self

    def tell(self, name: str, event: e.Event) -> None:
        self.drivers[name].tell(event)

    def later(self, name: str, make: Callable[[], e.Event], delay: int = 0) -> None:
        self.at(self.now + delay, lambda: self.tell(name, make()))

    def result(self, work: e.Work, turn: Turn | None) -> dict[str, Any]:
        """The result of some work."""
        return result_of(work, turn, self.run, self.truth)

    def mail(self, name: str, make: Callable[[], e.Event]) -> None:
        """A message, as well as the post works here."""
        for _ in range(self.fate.copies()):
            if name in self.drivers:
                self.later(name, make, self.fate.delay())

    # -- the board

    def mine(self) -> None:
        """A block: what waits, in its order; a refusal is told as a node tells it."""
        self.block, told = self.now, list(self.pool.items())
        self.pool.clear()
        for (name, place), wanted in told:
            error = self.execute(KINDS[name][1].address, wanted.transaction)  # type: ignore[union-attr]
            if error:
                self.later(name, lambda p=place, x=error: e.Refused(at=self.now, place=p, error=x))
            else:
                self.later(name, lambda p=place: e.Mined(at=self.now, place=p))
        for name in self.drivers:
            self.mail(name, lambda: e.BoardChanged(at=self.now, block=self.block))
            for posted in self.posted:
                if name in ("auditor", "watcher"):
                    self.later(name, lambda h=posted: e.HeadShown(at=self.now, head=h))
        self.posted.clear()
        if (
            any(not job.is_over for job in self.board.jobs.values())
            or self.pool
            or self.now < START + 600
            or any(self.board.credits.values())
            or any(slot.owner for pool in self.board.pools.values() for slot in pool)
        ):
            self.at(self.now + BLOCK, self.mine)

    def execute(self, sender: Address, wanted: tx.Transaction) -> str:
        """The contract's name for why not, or nothing."""
        if isinstance(wanted, tx.Withdraw):
            return "" if self.board.credits.pop(wanted.to, 0) else "NothingToWithdraw"
        try:
            self.ledger.take(sender, wanted, self.now)
        except Refusal as refusal:
            return refusal.name
        if isinstance(wanted, tx.PostHead):
            self.posted.append(wanted.head)
        return ""

    @property
    def job(self) -> PublicJob:
        """The only one."""
        (found,) = self.board.jobs.values()
        return found

    @property
    def game(self) -> PublicGame:
        """The only one."""
        (found,) = self.board.games.values()
        return found

    @property
    def verdict(self) -> tuple[Side, Reason]:
        return self.game.state.verdict.winner, self.game.state.verdict.reason

    def statements(self) -> dict[str, dict[e.Place, set[bytes]]]:
        """What everyone said, in its place."""
        return {name: seen.statements for name, seen in self.seen.items()}

    def alarms(self, name: str) -> list[e.Alarm]:
        return [action for action in self.seen[name].actions if isinstance(action, e.Alarm)]
