"""Drives a party's machine through simulated time: events go in and actions come out, both at simulated instants.

Party and driver are one object here, so that an adversary can override a single decision with the world at hand. Beside
its machine a party may have scripts (`run`, `follow`): processes of its own that wait and send as they like. An
adversary uses them to do what no machine would; an honest party has none.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from functools import partial
from random import Random
from typing import Any, Final

import simpy

from tiebreak.protocol.chain import ChainError, Receipt, Reverted, calls
from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.commitments.job import Job, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.sides import Party
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.board import PublicGame, PublicJob
from tiebreak.protocol.parties.machine import Machine
from tiebreak.protocol.program.program import Program
from tiebreak.sim.world.mail import Account
from tiebreak.sim.world.world import Block, Pending, World

Process = Generator[simpy.Event, Any, Any]
_CALLS: Final[dict[type[e.Transaction], Callable[[Any], Call]]] = {
    e.CreateJob: lambda wanted: calls.create_job(wanted.job, wanted.signature),
    e.CancelJob: lambda wanted: calls.cancel_job(wanted.job_id),
    e.PostHead: lambda wanted: calls.post_head(wanted.head),
    e.Report: lambda wanted: calls.report_equivocation(wanted.first, wanted.second),
    e.Settle: lambda wanted: calls.settle(wanted.job_id),
    e.Abandon: lambda wanted: calls.abandon(wanted.job_id),
    e.ClaimTimeout: lambda wanted: calls.timeout(wanted.game_id),
    e.Reclaim: lambda wanted: calls.reclaim(wanted.game_id),
    e.Withdraw: lambda wanted: calls.withdraw(wanted.to),
}


class Agent(Machine):
    """A party with a key: its machine, its driver, and its scripts if it has any."""

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(board=world.board, domain=world.domain, pace=world.pace, key=key)
        self.world = world
        self.name = name
        self.account = Account()
        self.rng = Random(world.rng.getrandbits(64))  # noqa: S311  # choices of a game, which its line replays
        """The source of all choices of this party."""
        self.kept: list[e.Record | e.Alarm] = []
        """The party's journal entries and the alarms that it raised to its owner."""
        self._listening: simpy.Event | None = None
        self._inbox: deque[e.Event] = deque()
        self._is_busy = False
        self._ticks: set[int] = set()
        self._heads_seen = 0
        self._known: set[bytes] = set()
        self._parties: dict[bytes, Party] = {}

    # ------------------------------------------------------------------ what adversaries and tests override

    def run(self) -> Process:
        """A script that runs from the start of the game."""
        yield from ()

    def follow(self, job: PublicJob) -> Process:  # noqa: ARG002
        """A script about one job that concerns the party. It starts when the job appears."""
        yield from ()

    def on_pending(self, pending: Pending) -> None:
        """Called when another party's transaction enters the mempool."""

    def on_block(self, block: Block) -> None:
        """Called after a block was made."""

    def concerns(self, job: PublicJob) -> bool:
        """Whether the party takes part in the job or watches it."""
        return self.address in (job.job.client, job.job.trainer)

    def program_of(self, job: Job) -> Program | None:
        """The program of a job on the agreed terms; None for any other job.

        All parties of a game have the same program.
        """
        workshop = self.world.workshop
        agreed = workshop.job(client=job.client, trainer=job.trainer, nonce=job.nonce, terms=self.world.terms)
        return workshop.program if job == agreed else None

    def party_in(self, game: PublicGame) -> Party:
        """The player that finds the party's moves in a game. Called once for each game."""
        raise NotImplementedError

    # ------------------------------------------------------------------ events

    def start(self) -> None:
        """Start at the present instant, after the parties that were started before."""
        self.spawn(self._start())

    def _start(self) -> Process:
        self._listen()
        self.tell(e.Started(at=self.world.now))
        self.spawn(self.run())
        yield from ()

    def tell(self, event: e.Event) -> None:
        """Feed an event to the machine and perform the actions that follow.

        Events caused by these actions are queued.
        """
        self._inbox.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        while self._inbox:
            for action in self.observe(self._inbox.popleft()):
                self.perform(action)
        self._is_busy = False

    def look(self) -> None:
        """Let the machine look again, when a script knows something that the world does not announce."""
        self.tell(e.Tick(at=self.world.now))

    def _listen(self) -> None:
        """Wait for news.

        Parties act in the order in which they listen; senders of a block's transactions listen first.
        """
        if self._listening is not self.world.news:
            self._listening = self.world.news
            _on(self._listening, lambda _: self._hear())

    def _hear(self) -> None:
        """React to something that was mined or published."""
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
        """Called when a game of this party has begun."""

    # ------------------------------------------------------------------ actions

    def perform(self, action: e.Action) -> None:
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
                # Published runs lie in the shared mailbox, so a fetched run has arrived already.
                self.tell(e.Arrived(at=now, job_id=job_id, count=count))
            case e.PublishRun():
                self.publish_run(action)
            case e.Record() | e.Alarm():
                self.kept.append(action)

    def say(self, statement: e.Statement) -> None:
        """Publish or send a statement that the machine signed, or ask another party to sign it."""
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
        """The player of a game. It is kept for the whole game, because a challenger remembers what it was shown."""
        if game.id not in self._parties:
            self._parties[game.id] = self.party_in(game)
        return self._parties[game.id]

    def _tick(self, delay: int) -> Process:
        """Wake up after `delay` seconds, behind the parties to which something happens at that same instant."""
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
        board = self.world.board
        match wanted:
            case e.AcceptJob(job_id=job_id):
                return calls.accept_job(job_id, board.jobs[job_id].job.trainer_stake)
            case e.Challenge(head=head, nonce=nonce):
                return calls.challenge(head, nonce, board.jobs[head.head.job_id].job.challenger_stake)
            case e.MakeMove():
                return calls.move_call(board.games[wanted.game_id].state, wanted.move)
        return _CALLS[type(wanted)](wanted)

    def work_on(self, work: e.Work) -> Process:
        """Do a piece of work, in the time that it takes, and tell the machine when it is done."""
        raise NotImplementedError

    def publish_run(self, action: e.PublishRun) -> None:
        """Publish the data that belongs to a run."""
        raise NotImplementedError

    def publish_head(self, head: SignedHead) -> None:
        self.world.mail.publish_head(head, self.name, self.account, self.world.now)

    def offer(self, job: Job) -> None:
        self.world.party_at(job.trainer).tell(e.JobOffered(at=self.world.now, job=job))

    # ------------------------------------------------------------------ what scripts wait with, and send

    def spawn(self, process: Process) -> simpy.Process:
        return self.world.env.process(process)

    def sleep(self, seconds: int) -> Process:
        if seconds > 0:
            yield self.world.env.timeout(seconds)

    def until(self, holds: Callable[[], bool], deadline: int | None = None) -> Process:
        """Wait until `holds()` is true or `deadline` has come, looking at every news. Returns whether it holds."""
        while not holds():
            rest = None if deadline is None else deadline - self.world.now
            if rest is not None and rest <= 0:
                return False
            yield self.world.news if rest is None else self.world.news | self.world.env.timeout(rest)
        return True

    def send(self, call: Call, *, untried: bool = False) -> Process:
        """Send a transaction and wait for its receipt. Raises `ChainError` (`Reverted`) if it fails."""
        receipt = yield self.world.submit(self, call, untried=untried)
        assert isinstance(receipt, Receipt)
        return receipt

    def spam(self, found: Iterable[Call]) -> None:
        """Send transactions untried, and ignore whether they succeed."""
        for call in found:
            self.world.submit(self, call, untried=True)

    def attempt(self, call: Call) -> Process:
        """Send a transaction unless it would be refused. Returns whether it was executed successfully."""
        try:
            yield from self.send(call)
        except ChainError:
            return False
        return True


def _on(event: simpy.Event, then: Callable[[simpy.Event], None]) -> None:
    assert event.callbacks is not None, "it has not come yet"
    event.callbacks.append(then)
