"""A town for machines alone: the board's rules in a few lines of Python, blocks every 12 seconds, mail, and crashes.

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
from tiebreak.protocol.commitments.job import game_id
from tiebreak.protocol.commitments.keys import PrivateKey, verify
from tiebreak.protocol.errors import IllegalMove
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.moves import Concede, Move, Phase, Side
from tiebreak.protocol.game.sides import Challenger, Defender, resume
from tiebreak.protocol.game.snapshot import SignedStanding, Snapshot, Standing, opened
from tiebreak.protocol.game.state import GameState, Reason, Verdict
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.auditor import AuditorParty, WatcherParty
from tiebreak.protocol.parties.board import Board, JobStatus, PublicGame, PublicJob
from tiebreak.protocol.parties.client import ClientParty
from tiebreak.protocol.parties.machine import PartyMachine
from tiebreak.protocol.parties.player import Player
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


OnBoard = tx.MakeMove | tx.Enter | tx.EnterAndProve | tx.ReportFork | tx.ClaimTimeout | tx.Reclaim


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
        self.board, self.now, self.block = Board(), START, START
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
                other = "auditor" if name == "trainer" else "trainer"
                self.mail(other, lambda: e.MoveShown(at=self.now, game_id=number, wire=wire))
            case e.ShowReceipt(game_id=number, receipt=receipt):
                seen.say(("receipt", number, SignedStanding.decode(receipt).sequence), receipt)
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

    def execute(self, sender: bytes, wanted: tx.Transaction) -> str:  # noqa: C901  # one case a transaction
        """The contract's name for why not, or nothing."""
        board, now = self.board, self.now
        if isinstance(wanted, tx.CreateJob):
            if wanted.job.id in board.jobs:
                return "JobExists"
            board.jobs[wanted.job.id] = PublicJob(job=wanted.job, last_progress=now)
            return ""
        if isinstance(wanted, tx.Withdraw):
            return "" if board.credits.pop(wanted.to, 0) else "NothingToWithdraw"
        if isinstance(wanted, OnBoard):
            return self.play_on(sender, wanted)
        job = board.jobs.get(job_of(wanted))
        if job is None:
            return "WrongJobStatus"
        end = job.due if isinstance(wanted, tx.Abandon) else job.window_end
        late, busy = now > end, bool(board.open_games(job.id))
        needed = JobStatus.OFFERED if isinstance(wanted, tx.AcceptJob | tx.CancelJob) else JobStatus.ACTIVE
        if job.status is not needed:
            return "WrongJobStatus"
        match wanted:
            case tx.AcceptJob():
                job.accept(now)
            case tx.CancelJob():
                self.end(job, JobStatus.CANCELLED, {job.job.client: job.job.reward})
            case tx.PostHead(head=head):
                if head.head.count <= job.head_count:
                    return "StaleHead"
                job.post(head.head.count, now)
                self.posted.append(head)
            case tx.Settle() | tx.Abandon():
                if not late:
                    return "WindowOpen"
                if busy:
                    return "OpenGames"
                paid = job.job.reward + job.job.trainer_stake
                if job.has_final_head is isinstance(wanted, tx.Abandon):
                    return "FinalHeadPosted" if job.has_final_head else "FinalHeadMissing"
                settled = isinstance(wanted, tx.Settle)
                owner = job.job.trainer if settled else job.job.client
                self.end(job, JobStatus.SETTLED if settled else JobStatus.ABANDONED, {owner: paid})
            case tx.Report() | tx.ReportInconsistency() | tx.ReportConcession():
                relief = job.relief * len(board.open_games(job.id))
                self.end(job, JobStatus.SLASHED, {sender: job.share - relief, job.job.client: job.job.reward})
            case tx.Challenge(head=head, nonce=nonce):
                number = game_id(head.head, DOMAIN, sender, nonce)
                if late or number in board.games:
                    return "WindowClosed"
                state = game.start(job.job, head.head, number, now)
                board.begin(
                    PublicGame(id=number, job=job, challenger=CHALLENGER.address, head=head, state=state, started=now)
                )
        return ""

    def play_on(self, sender: bytes, wanted: OnBoard) -> str:
        entered = wanted.entered if isinstance(wanted, tx.EnterAndProve) else wanted
        played = self.board.games[entered.fork.game_id if isinstance(entered, tx.ReportFork) else entered.game_id]
        if played.is_stopped or isinstance(wanted, tx.Reclaim):
            return "GameIsOver"
        try:
            error = self.apply(played, sender, wanted)
        except IllegalMove:
            return "ClockRunning" if isinstance(wanted, tx.ClaimTimeout) else "IllegalMove"
        if error:
            return error
        if played.state.verdict is not None:
            job = played.job.job
            if played.state.verdict.winner is Side.DEFENDER:
                self.board.credits[job.trainer] = self.board.credit(job.trainer) + played.stake // 2
            else:
                won = {played.challenger: played.stake + job.trainer_stake // 2, job.client: job.reward}
                self.end(played.job, JobStatus.SLASHED, won)
        return ""

    def apply(self, played: PublicGame, sender: bytes, wanted: OnBoard) -> str:
        """What a transaction does to its game, or the contract's name for why not."""
        is_trainer = sender == played.job.job.trainer
        match wanted:
            case tx.ClaimTimeout():
                played.state = game.timeout(played.state, self.now)
            case tx.MakeMove(move=Concede()):
                side = Side.DEFENDER if is_trainer else Side.CHALLENGER
                played.state = game.concede(played.state, side, self.now)
            case tx.MakeMove():
                if played.mover() != sender or played.state.moves != wanted.sequence:
                    return "NotYourTurn"
                played.state = game.apply(played.state, wanted.move, self.now)
                played.moves.append(wanted.move)
            case tx.ReportFork(fork=fork):
                signer = played.challenger if is_trainer else played.job.job.trainer
                fork.verify(DOMAIN, signer)
                verdict = Verdict(
                    winner=Side.DEFENDER if is_trainer else Side.CHALLENGER, reason=Reason.FORKED, detail=""
                )
                played.state = replace(played.state, verdict=verdict, phase=Phase.OVER)
            case tx.Enter() | tx.EnterAndProve():
                return self.enter(played, sender, wanted)
        return ""

    def enter(self, played: PublicGame, sender: bytes, wanted: tx.Enter | tx.EnterAndProve) -> str:
        entered = wanted.entered if isinstance(wanted, tx.EnterAndProve) else wanted
        number, signer = entered.sequence, played.challenger if sender == played.job.job.trainer else TRAINER.address
        if isinstance(wanted, tx.Enter) and number <= played.state.moves:
            return "StaleState"
        if isinstance(wanted, tx.Enter) and not played.state.talks(self.now):
            return "TalkIsOver"
        snapshot = Snapshot.decode(entered.snapshot)
        standing = Standing(game_id=played.id, sequence=number, snapshot=snapshot.id)
        verify(standing.digest(DOMAIN), entered.signature, signer)
        talks = [machine.transcript(played) for machine in self.machines.values() if isinstance(machine, Player)]
        lines = [talk.line[:number] for talk in talks]
        start = self.start(played)
        line = next(line for line in lines if Snapshot.of(resume(Defender(self.run), start, line)) == snapshot)
        later = resume(Defender(self.run), start, line)
        assert later.moves == number
        played.moves, played.entries = list(line), played.entries + 1
        if isinstance(wanted, tx.EnterAndProve):
            assert wanted.opened == opened(later)
            played.state = game.prove_signed(played.state, later, wanted.move)
            played.moves.append(wanted.move)
        else:
            played.state = game.enter(played.state, later, self.now)
        return ""

    def end(self, job: PublicJob, status: JobStatus, owed: dict[Any, int]) -> None:
        job.status, job.ended = status, self.now
        for account, wei in owed.items():
            self.board.credits[account] = self.board.credit(account) + wei

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


def job_of(wanted: Any) -> Any:
    """The job that a transaction is about."""
    if isinstance(wanted, tx.PostHead | tx.Challenge):
        return wanted.head.head.job_id
    if isinstance(wanted, tx.ReportConcession):
        return wanted.concession.head.job_id
    return wanted.first.head.job_id if isinstance(wanted, tx.Report) else wanted.job_id
