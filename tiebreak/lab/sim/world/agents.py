"""The parties of a simulated game: machines of `tiebreak.protocol.parties`, each with a driver and a computation.

The driver (`tiebreak.protocol.parties.driver`) is that of the node, over simulated time and in rough weather. Party and
driver are one object here, so that an adversary can override a single decision with the world at hand. In addition to
its machine a party may have scripts (`run`, `follow`): processes of its own that wait and send as they like. An
adversary uses them to do what no machine would; an honest party has none.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, ClassVar, Final

import simpy

from tiebreak.lab.sim.world.mail import Account, PublishedHead
from tiebreak.lab.sim.world.simulated import TRANSACTION_WEI
from tiebreak.lab.sim.world.work import Work
from tiebreak.lab.sim.world.world import Participant, Pending, World
from tiebreak.protocol.chain import Call, ChainError, Receipt, Reverted
from tiebreak.protocol.chain.calls import call_of
from tiebreak.protocol.commitments.job import Job, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.seats import SALT_BYTES, nonce_of
from tiebreak.protocol.errors import CannotCheck
from tiebreak.protocol.game.messages import Message, open_wire
from tiebreak.protocol.game.moves import Move
from tiebreak.protocol.game.sides import Challenger, Defender, Party, resume
from tiebreak.protocol.game.snapshot import SignedStanding
from tiebreak.protocol.parties import auditor, client, trainer
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import JobStatus, PublicGame, PublicJob
from tiebreak.protocol.parties.driver import PartyDriver, Turn
from tiebreak.protocol.parties.terms import Means
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest

Process = Generator[simpy.Event, Any, Any]
SEATS: Final = ("seats", "seat_fee", "seat_bond", "challenger_stake")
"""The terms that offers of one game may differ in, and be taken all the same."""


class Agent(Participant):
    """A party with a key: its machine, its driver, and its scripts if it has any."""

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        self.world = world
        self.name = name
        self.kept: list[e.AppendRecord | e.Alarm] = []
        """The party's journal entries and the alarms that it raised to its owner."""
        self._be_made(key, Means(floor=TRANSACTION_WEI, balance=lambda: world.balance(self)))
        self.account = Account()
        self.rng = Random(world.rng.getrandbits(64))  # noqa: S311  # choices of a game, which its line replays
        """The source of all choices of this party."""
        self._listening: simpy.Event | None = None
        self.lives = 1
        self._is_down = False
        self._since: dict[e.Work, int] = {}
        """The time when each work that is under way was started."""
        self._waiting: set[e.Place] = set()
        """Its transactions that were sent, and have no end yet: they outlive it."""
        self._ended: list[e.Event] = []
        """The fate of some of them while it was down."""
        self._heads_seen = 0
        self._known: set[bytes] = set()
        self._parties: dict[tuple[bytes, int | None], Party] = {}

    def _be_made(self, key: PrivateKey, means: Means) -> None:
        """Make machine and driver, as the journal has them."""
        world = self.world
        PartyDriver.__init__(self, self, self.kept.append)
        super(PartyDriver, self).__init__(
            board=world.board, domain=world.domain, pace=world.pace, key=key, journal=self.journal(), means=means
        )

    # ------------------------------------------------------------------ what adversaries and tests override

    def run(self) -> Process:
        """A script that runs from the start of the game."""
        yield from ()

    def follow(self, job: PublicJob) -> Process:  # noqa: ARG002
        """A script about one job that concerns the party. It starts when the job appears."""
        yield from ()

    def concerns(self, job: PublicJob) -> bool:
        """Whether the party takes part in the job or watches it."""
        return self.address in (job.job.client, job.job.trainer)

    def program_of(self, job: Job) -> Program | None:
        """The program of a job on the agreed terms, but for its seats; None for any other job.

        All parties of a game have the same program.
        """
        workshop = self.world.workshop
        terms = replace(self.world.terms, **{name: getattr(job, name) for name in SEATS})
        agreed = workshop.job(client=job.client, trainer=job.trainer, nonce=job.nonce, terms=terms)
        return workshop.program if job == agreed else None

    def party_in(self, game: PublicGame) -> Party:
        """A new player of the party's side of a game, on the chain or in its talk."""
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
        """Pass an event to the machine; it is lost while the party is down."""
        if not self._is_down:
            super().tell(event)

    def observe(self, event: e.Event) -> tuple[e.Action, ...]:
        """Process an event, on the board as the world has it now."""
        self.board.height = self.world.height
        return super().observe(event)

    def carry_out(self, actions: Sequence[e.Action]) -> None:
        """Carry out actions. If faults are injected, the party may crash after any number of them."""
        death = None
        if self.world.weather is not None and self.is_plain:
            lost = self.world.now - min(self._since.values(), default=self.world.now)
            death = self.world.weather.death(self.name, len(actions), lost)
        super().carry_out(actions if death is None else actions[: death[0]])
        if death is not None:  # it forgets everything but the journal, its transactions, and what lies on the disk
            self.lives += 1
            self._is_down = True
            for forgotten in (self._events, self._since, self._parties):
                forgotten.clear()
            self.spawn(self._later(death[1], self._wake_up))

    # ------------------------------------------------------------------ death, and what comes after

    @property
    def is_plain(self) -> bool:
        """Whether its decisions are those of `tiebreak.protocol.parties`, so that all it knows is in its journal."""
        return type(self) in (ClientAgent, TrainerAgent, AuditorAgent)

    def _wake_up(self) -> None:
        self._be_made(self.key, self.means)
        self._is_down, self._heads_seen = False, 0
        self.begin_again()
        ended, self._ended = self._ended, []
        for event in ended:
            self.tell(event)
        self._hear()

    def journal(self) -> list[e.AppendRecord]:
        """The journal that it wrote, oldest first."""
        return [entry for entry in self.kept if isinstance(entry, e.AppendRecord)]

    def begin_again(self) -> None:
        """Start the machine again after a crash."""
        self.tell(e.Started(at=self.world.now))

    def _mortal(self, work: e.Work) -> Process:
        """Work that ends with the party's life."""
        life, self._since[work] = self.lives, self.world.now
        for event in self.work_on(work):
            yield event
            if self.lives != life:
                return
        self._since.pop(work, None)

    # ------------------------------------------------------------------ what it hears

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
        if self._is_down:
            return
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
            self._read(partial(self._see, shown))
        self.tell(e.BoardChanged(at=now, block=world.blocks[-1].timestamp if world.blocks else now))

    def enter(self, game: PublicGame) -> None:
        """Called when a game of this party has begun."""

    # ------------------------------------------------------------------ actions

    def instant(self) -> int:
        return self.world.now

    def wake_at(self, at: int) -> None:
        self.spawn(self._tick(at - self.world.now))

    def _tick(self, delay: int) -> Process:
        """Wake up after `delay` seconds, behind the parties to which something happens at that same instant."""
        yield self.world.env.timeout(delay)
        yield self.world.env.timeout(0)
        self.look()

    def raise_alarm(self, alarm: e.Alarm) -> None:
        self.kept.append(alarm)

    def fetch_run(self, job_id: Digest, count: int) -> bool:
        """Published runs lie in the shared mailbox, so a fetched run has arrived already."""
        self._read(partial(self.fetched, job_id, count))
        return True

    def say(self, statement: e.Statement) -> None:
        """Publish or send a statement that the machine signed, or ask another party to sign it."""
        match statement:
            case e.ShowHead():
                self.publish_head(statement.head)
            case e.ShowLogReceipt(receipt=receipt):
                self.account.sent(len(receipt.encode()))
                trainer = self.world.party_at(self.world.board.jobs[receipt.head.job_id].job.trainer)
                self._post(trainer, partial(e.LogReceiptShown, receipt=receipt))
            case e.ShowConcession(concession=concession):
                self.account.sent(len(concession.encode()))
                self._post(self.world.party_at(concession.prover), partial(e.ConcessionShown, concession=concession))
            case e.ShowMove():
                self._deliver(self.world.board.games[statement.game_id], statement.wire)
            case e.ShowReceipt():
                self._send(self.world.board.games[statement.game_id], receipt=statement.receipt)
            case e.OfferJob(job=job):
                self.offer(job)
            case e.SignJob(job=job):
                client = self.world.party_at(job.client)
                self._post(client, partial(e.JobSigned, job=job, signature=statement.signature))

    def transact(self, wanted: e.Transact) -> None:
        if wanted.place in self._waiting:
            return
        self._waiting.add(wanted.place)
        call, weather = call_of(wanted.transaction, self.world.board), self.world.weather

        def submit() -> None:
            _on(self.world.submit(self, call, untried=wanted.untried), partial(self._resolve, wanted.place))

        if weather is not None and self.is_plain and (late := weather.transaction(self.name, self.pace.block_seconds)):
            self.spawn(self._later(late, submit))
        else:
            submit()

    def start_work(self, work: e.Work, turn: Turn | None) -> bool:
        if turn is None:
            self.spawn(self.work_on(work) if self.world.weather is None or not self.is_plain else self._mortal(work))
        else:
            assert isinstance(work, e.Gather)
            party = self.party_of(self.world.board.games[work.game_id], work.said)
            self.finish(work, move=party.move(turn.state, turn.answered))
        return True

    def party_of(self, game: PublicGame, said: Sequence[Move] | None = None) -> Party:
        """The player of a game's talk or of its line on the chain, for which it is kept: it remembers what it saw."""
        key = (game.id, game.entries if said is None else None)
        if key not in self._parties:
            party = self._parties[key] = self.party_in(game)
            resume(party, game.first_state, game.moves if said is None else said)
        return self._parties[key]

    def _resolve(self, place: e.Place, done: simpy.Event) -> None:
        now, error = self.world.now, done.value
        self._listen()
        self._waiting.discard(place)
        name = error.name if isinstance(error, Reverted) else ""
        event = e.Mined(at=now, place=place) if done.ok else e.Refused(at=now, place=place, error=name)
        if self._is_down:
            self._ended.append(event)
        self.tell(event)

    def _deliver(self, game: PublicGame, wire: bytes) -> None:
        is_new = wire not in self.world.mail.transcript(game).wires
        is_accepted, talks = self.world.mail.deliver(game, wire, self.account), bool(game.job.job.talk_time)
        if talks and is_new:
            self.world.mail.note(game, self.name, self.world.now, Message.decode(open_wire(wire)[0]).move)
        if talks or is_accepted:
            self._send(game, wire=wire)

    def _send(self, game: PublicGame, *, wire: bytes = b"", receipt: bytes = b"") -> None:
        """Post a message or a receipt of a talk; or, where the sides do not talk, a move that stands in a block."""
        mail, trainer = self.world.mail, game.job.job.trainer
        other = self.world.party_at(game.challenger if self.address == trainer else trainer)
        event: Callable[..., e.Event] = partial(e.MoveShown, game_id=game.id, wire=wire)
        if receipt:
            self.account.sent(len(receipt))
            mail.note(game, self.name, self.world.now, SignedStanding.decode(receipt))
            event = partial(e.ReceiptShown, game_id=game.id, receipt=receipt)
        is_late = self.world.weather is None and bool(game.job.job.talk_time)
        self._post(other, event, "game", mail.fate(game) if is_late else None)

    def _post(
        self, other: Participant, event: Callable[..., e.Event], kind: str = "job", delays: list[int] | None = None
    ) -> None:
        """Send another party an event, made on arrival: at once, or late, lost or twice by hub or faults."""
        late = delays if self.world.weather is None else self.world.weather.posts()

        def taken() -> None:
            if late is None:
                other.tell(event(at=self.world.now))
            for delay in late or ():
                self.spawn(self._later(delay, lambda: other.tell(event(at=self.world.now))))

        self._hand_in(kind, taken)

    def _hand_in(self, kind: str, taken: Callable[[], None]) -> None:
        """Give the hub a post of a "game" or a "job", or a "run". `taken` follows when it lets others see it."""
        late = self.world.hub(self, kind)
        if late == 0:
            taken()
        elif late is not None:
            self.spawn(self._later(late, taken))

    def _later(self, seconds: int, then: Callable[[], None]) -> Process:
        yield self.world.env.timeout(seconds)
        then()

    def _read(self, arrive: Callable[[], None]) -> None:
        """Posts as `_post` does what the party itself asks for until it comes."""
        for delay in [0] if self.world.weather is None else self.world.weather.readings():
            if delay:
                self.spawn(self._later(delay, arrive))
            else:
                arrive()

    def _see(self, shown: PublishedHead) -> None:
        self.tell(e.HeadShown(at=self.world.now, head=shown.head, leaves=shown.leaves))

    def work_on(self, work: e.Work) -> Process:
        """Do a piece of work in simulated time, and report its result to the machine."""
        raise NotImplementedError

    def publish_head(self, head: SignedHead) -> None:
        mail, leaves = self.world.mail, self.leaves_of(head)
        self._hand_in("job", lambda: mail.publish_head(head, leaves, self.name, self.account, self.world.now))

    def leaves_of(self, head: SignedHead) -> tuple[Digest, ...]:  # noqa: ARG002
        """The leaves of the run tree that this party publishes with a head."""
        return ()

    def offer(self, job: Job) -> None:
        self._post(self.world.party_at(job.trainer), partial(e.JobOffered, job=job))

    def forbidden(self, head: SignedHead) -> tx.ReportLoss | None:
        """The report for which the published records are enough, of a trainer that signed this head over them."""
        published = self.world.mail.runs.get(head.head.job_id)
        job = self.world.board.jobs[head.head.job_id].job
        return None if published is None else tx.ReportLoss.of(job, head, published.records)

    # ------------------------------------------------------------------ what scripts wait with, and send

    def spawn(self, process: Process) -> simpy.Process:
        return self.world.env.process(process)

    def sleep(self, seconds: int) -> Process:
        if seconds > 0:
            yield self.world.env.timeout(seconds)

    def until(self, holds: Callable[[], bool], deadline: int | None = None) -> Process:
        """Wait until `holds()`, checked after every block and post, or until `deadline`. Returns whether it holds."""
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


class BlockBuilder(Agent):
    """Makes the blocks. The honest builder includes every waiting transaction in the order of arrival."""

    ROLE: ClassVar = "builder"

    def own(self, call: Call) -> Pending:
        """A transaction that the builder puts into its own block without showing it in the mempool first."""
        return self.world.new_pending(self, call, untried=True)


class ClientAgent(Agent, client.ClientParty):
    secret = b""
    """The secret from which its job's seats are drawn."""
    wish: e.JobDrafted | None = None

    def run(self) -> Process:
        self.secret = self.rng.randbytes(SALT_BYTES) if self.world.terms.seats else b""
        self.wish = e.JobDrafted(at=self.world.now, job=self.draft(), secret=self.secret)
        self.tell(self.wish)
        yield from ()

    def begin_again(self) -> None:
        """Starts again after a crash, and repeats the owner's job draft, which is on the disk."""
        super().begin_again()
        if self.wish is not None:
            self.tell(replace(self.wish, at=self.world.now))

    def draft(self) -> Job:
        trainer = self.world.parties["trainer"]
        nonce = nonce_of(self.secret) if self.secret else self.rng.getrandbits(128)
        return self.world.workshop.job(
            client=self.address, trainer=trainer.address, nonce=nonce, terms=self.world.terms
        )

    def work_on(self, work: e.Work) -> Process:
        """Compares published logs with a head: hashing, which takes no time compared with a replay."""
        assert isinstance(work, e.CheckLogs), "a client does nothing else"
        published, head = self.world.mail.runs.get(work.job_id), work.head.head
        readable, problem = (0, "") if published is None else self.world.workshop.readable(published)
        if published is None or readable < head.count:
            problem = problem or "expected the logs of the run, got none"
        else:
            is_its_own = published.run_root(head.count) == head.run_root
            problem = "" if is_its_own else "expected logs of this head, got those of another"
        self.finish(work, problem=problem, found=self.forbidden(work.head))
        yield from ()


class TrainerAgent(Agent, trainer.TrainerParty):
    """Trains the job, or computes the world's deviation instead."""

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(world, name, key)
        self.work: Work | None = None
        """The trainer's run; None until training begins."""
        self.job: Job | None = None

    def compute(self, job: Job) -> Work:
        """The run that this trainer produces, in full."""
        deviation, workshop = self.world.deviation, self.world.workshop
        return workshop.trained(job, self.rng) if deviation is None else deviation(workshop, job, self.rng)

    def seconds(self, steps: int) -> int:
        """Simulated seconds that this many training steps take."""
        return steps * self.world.step_seconds

    def party_in(self, game: PublicGame) -> Party:  # noqa: ARG002
        return Defender(self.held()[1].oracle)

    def work_on(self, work: e.Work) -> Process:
        """Trains one segment.

        The whole run is computed when the first segment begins; each segment still takes its time.
        """
        assert isinstance(work, e.Train), "a trainer does nothing else that takes time"
        job = self.world.board.jobs[work.job_id]
        if self.job is None:
            self.job, self.work = job.job, self.compute(job.job)
        _, run = self.held()
        yield from self.sleep(self.seconds(job.job.segment_steps(work.count - 1)))
        if job.status is JobStatus.ACTIVE:
            self.account.steps = min(run.computed_steps, last := job.job.last_step(work.count - 1))
            forbidden = self.world.deviation is None and any(step <= last for step in run.oracle.run.forbidden)
            problem = "the loss is no longer finite" if forbidden else ""
            self.finish(work, root=b"" if forbidden else run.run_root(work.count), problem=problem)

    def publish_run(self, action: e.PublishRun) -> None:
        """Publishes the run, with its logs only if the action asks for them."""
        _, run = self.held()
        shown = run if action.logs else replace(run, logs=None)
        self._hand_in("run", partial(self.world.mail.publish_run, action.job_id, shown))

    def leaves_of(self, head: SignedHead) -> tuple[Digest, ...]:
        """The records of its run up to this head."""
        job, run = self.held()
        if head.head.count > job.checkpoints:
            return ()
        tree = run.oracle.run_tree(head.head.count)
        return tuple(tree.node(0, position) for position in range(head.head.count))

    def held(self) -> tuple[Job, Work]:
        assert self.job is not None, "a run is asked for after it was begun"
        assert self.work is not None
        return self.job, self.work


class AuditorAgent(Agent, auditor.AuditorParty):
    """An honest auditor: it replays every head of every job whose computation it has."""

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(world, name, key)
        self.means = replace(self.means, most_stake=world.chain.balance(key.address) // 2)
        self.secret = self.rng.randbytes(32)
        """The secret from which the auditor derives its seals."""
        self.works: list[Work] = []
        """One replay for each version of a run that was published."""
        self._replayed: list[tuple[Work | None, Work]] = []
        self.uncheckable: list[SignedHead] = []
        """The heads that could not be checked because their logs were withheld."""

    def concerns(self, job: PublicJob) -> bool:
        return self.program_of(job.job) is not None

    def is_valid(self, head: SignedHead, job: Job) -> bool:
        """Whether the head is valid. The result is the same for everyone, so the mailbox caches it."""
        return self.world.mail.is_valid(head, job)

    def replay(self, job: PublicJob) -> Work:
        """The auditor's own run of a job. Raises `CannotCheck` if the logs that it needs were not published."""
        published = self.world.mail.runs.get(job.id)
        if published is None and job.job.is_logged:
            raise CannotCheck("expected the logs of the run, got none")
        workshop = self.world.workshop
        return workshop.honest(job.job) if published is None else workshop.audited(job.job, published)

    def enter(self, game: PublicGame) -> None:
        """Fixes the replay that the auditor plays with: the latest one when the game begins."""
        if game.challenger == self.address and self.plays(game):
            self.party_of(game)

    def party_in(self, game: PublicGame) -> Party:  # noqa: ARG002
        return Challenger(self.works[-1].oracle, self.secret)

    def work_on(self, work: e.Work) -> Process:
        """Replays up to one head.

        Steps that were replayed before take no time again, even for a second look at a false head.
        """
        assert isinstance(work, e.Replay | e.Audit), "an auditor does nothing else that takes time"
        job, root, problem = self.world.board.jobs[work.job_id], b"", ""
        if isinstance(work, e.Audit):
            yield from self.sleep(max(0, job.job.steps - self.account.steps) * self.world.step_seconds)
            self.account.steps = job.job.steps
            root = self._replay_once(job).run_root(job.job.checkpoints)
            self.finish(work, root=root)
            return
        try:
            root = yield from self.look_at(job, work.head)
        except CannotCheck as error:
            problem = str(error)
            self.uncheckable.append(work.head)
        self.finish(work, root=root, problem=problem, found=self.forbidden(work.head))

    def look_at(self, job: PublicJob, head: SignedHead) -> Process:
        """Replays up to a head and returns the run root there. Raises `CannotCheck`."""
        last = job.job.last_step(head.head.count - 1)
        yield from self.sleep(max(0, last - self.account.steps) * self.world.step_seconds)
        self.account.steps = max(self.account.steps, last)
        return self._replay_once(job).run_root(head.head.count)

    def _replay_once(self, job: PublicJob) -> Work:
        """The replay of the run as it is published now. Each published version is replayed once."""
        published = self.world.mail.runs.get(job.id)
        for known, work in self._replayed:
            if known is published:
                return work
        work = self.replay(job)
        self._replayed.append((published, work))
        self.works.append(work)
        return work


class Scripted(AuditorAgent):
    """An auditor that only runs its script: it replays nothing, reports nothing, and plays no game by itself."""

    def replays(self, head: SignedHead) -> bool:  # noqa: ARG002
        return False

    def reports(self, first: SignedHead, second: SignedHead) -> bool:  # noqa: ARG002
        return False

    def plays(self, game: PublicGame) -> bool:  # noqa: ARG002
        return False
