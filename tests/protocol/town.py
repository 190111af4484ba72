"""A town for machines alone: the board's rules by the hub's ledger, blocks every 12 seconds, mail, and crashes.

No simulator, no chain, no tensors: runs of `tests.protocol.runs`. What may differ from one town to another is told by a
`Fate`: at which event a party's machine dies and is made anew from its journal, which messages are lost or come twice.
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from types import MappingProxyType
from typing import Any

from tests.protocol.runs import CHALLENGER, CLIENT, DOMAIN, SECRET, TRAINER, Liar, Run, make_job, program
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.moves import Move, Side
from tiebreak.protocol.game.sides import Challenger, Defender, resume
from tiebreak.protocol.game.snapshot import SignedStanding, Snapshot
from tiebreak.protocol.game.state import GameState, Reason
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.auditor import AuditorParty, WatcherParty
from tiebreak.protocol.parties.board import BURNED, Board, PublicGame, PublicJob
from tiebreak.protocol.parties.client import ClientParty
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
TALKED = replace(JOB, talk_time=900)
TALKED_TRUTH, TALKED_FALSE = Run(TALKED), Liar(TALKED, *LIE)
MOVES: dict[tuple[int, bytes, int, bytes], Move] = {}
"""What each side of a game answers, whenever it is asked: computed once for all towns."""


@cache
def root(run: Run, count: int) -> Digest:
    """Of a run's first checkpoints."""
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
    """By how many seconds it is late."""


@dataclass
class Seen:
    """What left a party: everything that it signed, in its place, and all it asked for."""

    statements: dict[e.Place, set[bytes]] = field(default_factory=dict)
    actions: list[e.Action] = field(default_factory=list)
    events: int = 0

    def say(self, place: e.Place, data: bytes) -> None:
        self.statements.setdefault(place, set()).add(data)


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
        self.journals: dict[str, list[e.AppendRecord]] = {name: [] for name in parties}
        self.seen = {name: Seen() for name in parties}
        self.machines = {name: self.make(name) for name in parties}
        for name in parties:
            self.at(START, lambda name=name: self.tell(name, e.Started(at=self.now)))
        self.at(START, lambda: self.tell("client", e.JobDrafted(at=self.now, job=self.run.job)))
        self.at(START + BLOCK, self.mine)

    def make(self, name: str) -> PartyMachine:
        kind, key = KINDS[name]
        kind = self.kinds.get(name, kind)
        return kind(board=self.board, domain=DOMAIN, pace=PACE, key=key, journal=list(self.journals[name]))

    def at(self, instant: int, then: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (instant, next(self._order), then))

    def play(self, seconds: int = 6000) -> "Town":
        while self.queue and self.queue[0][0] <= START + seconds:
            self.now, _, then = heapq.heappop(self.queue)
            then()
        return self

    # -- events

    def tell(self, name: str, event: e.Event) -> None:
        seen = self.seen[name]
        for action in self.machines[name].observe(event):
            self.act(name, action)
        seen.events += 1
        if self.fate.dies == (name, seen.events):
            self.machines[name] = self.make(name)
            self.tell(name, e.Started(at=self.now))

    def later(self, name: str, make: Callable[[], e.Event], delay: int = 0) -> None:
        self.at(self.now + delay, lambda: self.tell(name, make()))

    def mail(self, name: str, make: Callable[[], e.Event]) -> None:
        """A message, as well as the post works here."""
        for _ in range(self.fate.copies()):
            if name in self.machines:
                self.later(name, make, self.fate.delay())

    # -- actions

    def act(self, name: str, action: e.Action) -> None:  # noqa: C901  # one case an action
        seen = self.seen[name]
        seen.actions.append(action)
        match action:
            case e.AppendRecord():
                assert action.place not in {entry.place for entry in self.journals[name]}, "a place is written once"
                self.journals[name].append(action)
            case e.Wake(at=at):
                assert at > self.now
                self.at(at, lambda: self.tell(name, e.Tick(at=self.now)))
            case e.Start(work=work):
                self.at(self.now + self.seconds(work), lambda: self.tell(name, self.done(work)))
            case e.Transact():
                seen.say(("call", *action.place), repr(action.transaction).encode())
                self.pool.setdefault((name, action.place), action)
            case e.FetchRun():
                self.later(name, lambda: e.Arrived(at=self.now, job_id=action.job_id, count=action.count))
            case e.OfferJob(job=job):
                self.mail("trainer", lambda: e.JobOffered(at=self.now, job=job))
            case e.SignJob(job=job, signature=signature):
                seen.say(("signature",), signature)
                self.mail("client", lambda: e.JobSigned(at=self.now, job=job, signature=signature))
            case e.ShowHead(head=head):
                seen.say(("head", head.head.count), head.encode())
                for other in ("auditor", "watcher"):
                    self.mail(other, lambda: e.HeadShown(at=self.now, head=head))
            case e.ShowMove(game_id=number, wire=wire):
                place = next(p for p, data in self.machines[name].records.items() if p[0] == "said" and data == wire)
                seen.say(place, wire)
                self.ledger.hear(number, wire)
                other = "auditor" if name == "trainer" else "trainer"
                self.mail(other, lambda: e.MoveShown(at=self.now, game_id=number, wire=wire))
            case e.ShowReceipt(game_id=number, receipt=receipt):
                seen.say(("receipt", number, SignedStanding.decode(receipt).sequence), receipt)
                self.ledger.hear(number, receipt, is_receipt=True)
                other = "auditor" if name == "trainer" else "trainer"
                self.mail(other, lambda: e.ReceiptShown(at=self.now, game_id=number, receipt=receipt))

    def seconds(self, work: e.Work) -> int:
        """A transaction takes until the next block; work some seconds."""
        return 0 if isinstance(work, e.Gather) else 3

    def done(self, work: e.Work) -> e.Event:
        match work:
            case e.Train():
                return e.Done(at=self.now, work=work, root=root(self.run, work.count))
            case e.Replay():
                return e.Done(at=self.now, work=work, root=root(self.truth, work.head.head.count))
            case e.Gather():
                played = self.board.games[work.game_id]
                if work.said is None and (played.state.is_over or played.state.moves != work.sequence):
                    return e.Tick(at=self.now)  # answered by a machine that died meanwhile
                key = (id(self.run), work.game_id, work.sequence, work.snapshot)
                if key not in MOVES:
                    line = played.moves if work.said is None else work.said
                    MOVES[key] = self.answer(self.start(played), tuple(line), work.snapshot)
                return e.Done(at=self.now, work=work, move=MOVES[key])

    def start(self, played: PublicGame) -> GameState:
        return game.start(self.run.job, played.head.head, played.id, played.started)

    def answer(self, start: GameState, line: tuple[Move, ...], snapshot: bytes) -> Move:
        """By a challenger that is made anew each time: all that it needs is the secret and the moves so far."""
        challenger = Challenger(self.truth, SECRET)
        state = resume(challenger, start, line)
        assert Snapshot.of(state).id == snapshot
        return (Defender(self.run) if state.mover is Side.DEFENDER else challenger).move(
            state, line[-1] if line else None
        )

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
        for name in self.machines:
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

    def execute(self, sender: Address, wanted: e.Transaction) -> str:
        """The contract's name for why not, or nothing."""
        if isinstance(wanted, e.Withdraw):
            return "" if self.board.credits.pop(wanted.to, 0) else "NothingToWithdraw"
        try:
            self.ledger.take(sender, wanted, self.now)
        except Refusal as refusal:
            return refusal.name
        if isinstance(wanted, e.PostHead):
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
