"""Drives a party's machine through simulated time: events in, actions out, both at the instants of the world.

Party and driver are one object here, so an adversary overrides a decision where it stands and has the world at hand.
Beside its machine a party may have scripts: processes of its own that wait and send as they like (`run`, `follow`),
which is how an adversary does what no machine would. An honest party has none.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from functools import partial
from random import Random
from typing import Any, Final

import simpy

from tiebreak.protocol.chain import ChainError, Receipt, Reverted
from tiebreak.protocol.commitments.job import Job, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.sides import Party
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.board import PublicGame, PublicJob
from tiebreak.protocol.parties.machine import Machine
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest
from tiebreak.sim.world import calls
from tiebreak.sim.world.calls import Call
from tiebreak.sim.world.mail import Account
from tiebreak.sim.world.world import Block, Pending, World

Process = Generator[simpy.Event, Any, Any]
_ON_JOB: Final[dict[type[e.Transaction], Callable[[Job], Call]]] = {
    e.CancelJob: calls.cancel_job,
    e.AcceptJob: calls.accept_job,
    e.Settle: calls.settle,
    e.Abandon: calls.abandon,
}
_ON_GAME: Final[dict[type[e.Transaction], Callable[[Digest], Call]]] = {
    e.ClaimTimeout: calls.timeout,
    e.Reclaim: calls.reclaim,
}


class Agent(Machine):
    """Someone with a key: a machine, its driver, and its scripts if it has any."""

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(board=world.board, domain=world.domain, pace=world.pace, key=key)
        self.world = world
        self.name = name
        self.account = Account()
        self.rng = Random(world.rng.getrandbits(64))  # noqa: S311  # choices of a game, which its line replays
        """For all choices of this party."""
        self.kept: list[e.Record | e.Alarm] = []
        """Its journal, and what it told its owner."""
        self._listening: simpy.Event | None = None
        self._inbox: deque[e.Event] = deque()
        self._is_busy = False
        self._ticks: set[int] = set()
        self._heads_seen = 0
        self._known: set[bytes] = set()
        self._parties: dict[bytes, Party] = {}

    # ------------------------------------------------------------------ what adversaries and tests override

    def run(self) -> Process:
        """A script of its own, from the start."""
        yield from ()

    def follow(self, job: PublicJob) -> Process:  # noqa: ARG002
        """A script about a job that concerns it, from when the job is there."""
        yield from ()

    def on_pending(self, pending: Pending) -> None:
        """Another's transaction came into the mempool."""

    def on_block(self, block: Block) -> None:
        """A block was made."""

    def concerns(self, job: PublicJob) -> bool:
        """Whether it takes part in a job, or watches it."""
        return self.address in (job.job.client, job.job.trainer)

    def program_of(self, job: Job) -> Program | None:
        """The one that all parties here have, in a job on the terms that were agreed."""
        workshop = self.world.workshop
        agreed = workshop.job(client=job.client, trainer=job.trainer, nonce=job.nonce, terms=self.world.terms)
        return workshop.program if job == agreed else None

    def party_in(self, game: PublicGame) -> Party:
        """Who is to find its moves in a game; asked once."""
        raise NotImplementedError

    # ------------------------------------------------------------------ events

    def start(self) -> None:
        """Set it going at the present instant, behind those that started before."""
        self.spawn(self._start())

    def _start(self) -> Process:
        self._listen()
        self.tell(e.Started(at=self.world.now))
        self.spawn(self.run())
        yield from ()

    def tell(self, event: e.Event) -> None:
        """Let the machine see an event, and do what it then wants. Events that this causes come behind."""
        self._inbox.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        while self._inbox:
            for action in self.observe(self._inbox.popleft()):
                self.perform(action)
        self._is_busy = False

    def look(self) -> None:
        """See what changed: also what a script knows and the world does not announce."""
        self.tell(e.Tick(at=self.world.now))

    def _listen(self) -> None:
        """Wait for news. Who listens first acts first: first those of whom a block held something, in its order."""
        if self._listening is not self.world.news:
            self._listening = self.world.news
            _on(self._listening, lambda _: self._hear())

    def _hear(self) -> None:
        """Something was mined or published."""
        self._listen()
        world, now = self.world, self.world.now
        for number, job in world.board.jobs.items():
            if number not in self._known and self.concerns(job):
                self.spawn(self.follow(job))
            self._known.add(number)
        for number, game in world.board.games.items():
            if number not in self._known and self.address in (game.challenger, game.job.job.trainer):
                self.enter(game)
            self._known.add(number)
        fresh, self._heads_seen = world.mail.heads[self._heads_seen :], len(world.mail.heads)
        for shown in fresh:
            self.tell(e.HeadShown(at=now, head=shown.head))
        self.tell(e.BoardChanged(at=now, block=world.blocks[-1].timestamp if world.blocks else now))

    def enter(self, game: PublicGame) -> None:
        """A game of its own has begun."""

    # ------------------------------------------------------------------ actions

    def perform(self, action: e.Action) -> None:
        """Do what the machine wants."""
        now = self.world.now
        match action:
            case e.Wake(at=at) if at not in self._ticks:
                self._ticks.add(at)
                self.spawn(self._tick(at - now))
            case e.Transact():
                self._transact(action)
            case e.Start(work=work):
                self._begin(work)
            case e.ShowHead() | e.ShowMove() | e.OfferJob() | e.SignJob():
                self.say(action)
            case e.FetchRun(job_id=job_id, count=count):
                self.tell(e.Arrived(at=now, job_id=job_id, count=count))  # mail here is a place, not a way
            case e.PublishRun():
                self.publish_run(action)
            case e.Record() | e.Alarm():
                self.kept.append(action)

    def say(self, statement: e.Statement) -> None:
        """Send what it signed, or asks to have signed."""
        now = self.world.now
        match statement:
            case e.ShowHead():
                self.publish_head(statement.head)
            case e.ShowMove():
                self._deliver(self.world.board.games[statement.game_id], statement.wire)
            case e.OfferJob(job=job):
                self.offer(job)
            case e.SignJob(job=job):
                self.world.party_at(job.client).tell(e.JobSigned(at=now, job=job, signature=statement.signature))

    def _transact(self, action: e.Transact) -> None:
        call = self.call_of(action.transaction)
        untried = action.untried or (action.past_pending and self.world.stands_alone(self, call))
        _on(self.world.submit(self, call, untried=untried), partial(self._resolve, action.place))

    def _begin(self, work: e.Work) -> None:
        if not isinstance(work, e.Gather):
            self.spawn(self.work_on(work))
            return
        game = self.world.board.games[work.game_id]
        move = self.party_of(game).move(game.state, game.answered)
        self.tell(e.Done(at=self.world.now, work=work, move=move))

    def party_of(self, game: PublicGame) -> Party:
        """The one that has found its moves in a game since it began: a challenger remembers what it was shown."""
        if game.id not in self._parties:
            self._parties[game.id] = self.party_in(game)
        return self._parties[game.id]

    def _tick(self, delay: int) -> Process:
        """Whoever waits for an instant comes behind those to whom something happens at it."""
        yield self.world.env.timeout(delay)
        yield self.world.env.timeout(0)
        self.look()

    def _resolve(self, place: e.Place, done: simpy.Event) -> None:
        now, error = self.world.now, done.value
        self._listen()
        if done.ok:
            self.tell(e.Mined(at=now, place=place))
        else:
            self.tell(e.Refused(at=now, place=place, error=error.name if isinstance(error, Reverted) else ""))

    def _deliver(self, game: PublicGame, wire: bytes) -> None:
        trainer, mail = game.job.job.trainer, self.world.mail
        side = Side.DEFENDER if self.address == trainer else Side.CHALLENGER
        if mail.deliver(game, wire, side, self.account):
            other = self.world.party_at(game.challenger if side is Side.DEFENDER else trainer)
            other.tell(e.MoveShown(at=self.world.now, game_id=game.id, wire=wire))

    def call_of(self, wanted: e.Transaction) -> Call:
        """A transaction as the board takes it."""
        board = self.world.board
        match wanted:
            case e.CreateJob():
                return calls.create_job(wanted.job, wanted.signature)
            case e.PostHead():
                return calls.post_head(wanted.head)
            case e.Report():
                return calls.report(wanted.first, wanted.second)
            case e.Challenge():
                return calls.challenge(board.jobs[wanted.head.head.job_id].job, wanted.head, wanted.nonce)
            case e.MakeMove():
                return calls.make_move(board.games[wanted.game_id].state, wanted.move)
            case e.ClaimTimeout() | e.Reclaim():
                return _ON_GAME[type(wanted)](wanted.game_id)
            case e.Withdraw():
                return calls.withdraw(wanted.to)
            case _:
                return _ON_JOB[type(wanted)](board.jobs[wanted.job_id].job)

    def work_on(self, work: e.Work) -> Process:
        """Do work, in the time that it takes."""
        raise NotImplementedError

    def publish_run(self, action: e.PublishRun) -> None:
        """Publish what goes with its run."""
        raise NotImplementedError

    def publish_head(self, head: SignedHead) -> None:
        """Show a head to everyone."""
        self.world.mail.publish_head(head, self.name, self.account, self.world.now)

    def offer(self, job: Job) -> None:
        """Ask a job's trainer for its signature."""
        self.world.party_at(job.trainer).tell(e.JobOffered(at=self.world.now, job=job))

    # ------------------------------------------------------------------ what scripts wait with, and send

    def spawn(self, process: Process) -> simpy.Process:
        """Start a process of its own."""
        return self.world.env.process(process)

    def sleep(self, seconds: int) -> Process:
        """Let time pass."""
        if seconds > 0:
            yield self.world.env.timeout(seconds)

    def until(self, holds: Callable[[], bool], deadline: int | None = None) -> Process:
        """Wait until something holds, or an instant has come; returns whether it holds. Looks when there is news."""
        while not holds():
            rest = None if deadline is None else deadline - self.world.now
            if rest is not None and rest <= 0:
                return False
            yield self.world.news if rest is None else self.world.news | self.world.env.timeout(rest)
        return True

    def send(self, call: Call, *, untried: bool = False) -> Process:
        """Send a transaction and wait for its receipt. Raises `ChainError` (`Reverted`) if it does not come to that."""
        receipt = yield self.world.submit(self, call, untried=untried)
        assert isinstance(receipt, Receipt)
        return receipt

    def spam(self, found: Iterable[Call]) -> None:
        """Send transactions, whatever comes of them."""
        for call in found:
            self.world.submit(self, call, untried=True)

    def attempt(self, call: Call) -> Process:
        """Send a transaction if it would not be refused; whether it stands in a block and was not."""
        try:
            yield from self.send(call)
        except ChainError:
            return False
        return True


def _on(event: simpy.Event, then: Callable[[simpy.Event], None]) -> None:
    assert event.callbacks is not None, "it has not come yet"
    event.callbacks.append(then)
