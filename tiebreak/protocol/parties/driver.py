"""The one driver of parties: hands events to a machine and carries out its actions, without any IO of its own.

Its hosts supply time, the board, post and work: the node over real time (`tiebreak.node.driver`), the simulator over
virtual time (the simulator), and the tests. The rules of crashes are the driver's:

    1. A record is in the journal before the next action is carried out. If it cannot be kept, nothing follows.
    2. An event that an action causes waits until all actions of the present event are carried out.
    3. A transaction goes to the board under its place, which gets it to count once, however often it is asked for.
    4. Work about a game that is over is held back, and done should a block with the end of the game vanish.
    5. A fetch that found nothing is tried again, until it finds something. Nothing is fetched twice at a time.
    6. A post is in the journal with its exact bytes before it leaves, and leaves with these bytes until it arrives.
    7. What was posted about a job or a game before the board shows it is kept, and heard once the board does.

Everything else is forgotten in a crash: the machine asks for it again when it starts.
"""

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Annotated, Final, Protocol

from tiebreak.protocol.commitments.job import game_id
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.moves import AnyMove, Move, Side
from tiebreak.protocol.game.snapshot import Snapshot
from tiebreak.protocol.game.state import GameState, Ongoing
from tiebreak.protocol.packing import U32, ListOf, Record, Uint
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import posts
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.auditor import AuditorParty
from tiebreak.protocol.parties.machine import PartyMachine
from tiebreak.protocol.parties.player import Player
from tiebreak.protocol.tags import Digest

RETRY_SECONDS: Final = 30
"""A fetch that found nothing is tried again after this time even without a new listing."""
MAX_EARLY: Final = 4096
"""Posts kept about jobs and games that the board does not show yet; anybody can make them up."""


class Turn(Record):
    """A game as the turn for which a move is gathered finds it."""

    state: Annotated[GameState, Ongoing()]
    line: Annotated[tuple[Move, ...], ListOf(AnyMove(), e.MAX_MOVES)]
    """The moves that led to the state."""
    defends: Annotated[int, Uint(8, 0, 1)]
    attempt: U32 = 0
    """The number of the replay that a challenger trusts."""

    @property
    def start(self) -> GameState:
        """The state in which the game began, but for the instant."""
        return rules.start(self.state.job, self.state.head, self.state.game_id, 0)

    @property
    def answered(self) -> Move | None:
        """The last move, or None before the first."""
        return self.line[-1] if self.line else None


class PartyDriver(ABC):
    """Drives one machine, from its start to its death. A host supplies the abstract methods."""

    def __init__(self, machine: PartyMachine, keep: Callable[[e.AppendRecord], object]) -> None:
        """`machine` has the records that the journal holds. `keep` writes one more, and returns once it is safe."""
        self.machine, self._keep_record = machine, keep
        self._events: deque[e.Event] = deque()
        self._is_busy = self._is_broken = False
        self._ticks: list[int] = []
        self._early: deque[e.Message] = deque(maxlen=MAX_EARLY)
        self._held: list[e.Work] = []
        """Work that waits until it can be done, or belongs to games that are over."""
        self._wanted: dict[tuple[Digest, int], int] = {}
        """Fetches by job and count, and the instant of the earliest next try."""
        self._fetching: set[tuple[Digest, int]] = set()

    # ------------------------------------------------------------------ what a host supplies

    @abstractmethod
    def instant(self) -> int:
        """Return the present instant, in seconds of the chain's time."""

    @abstractmethod
    def transact(self, wanted: e.Transact) -> None:
        """Get a transaction accepted by the board once, however often it is requested under its place."""

    @abstractmethod
    def say(self, statement: e.Statement) -> object:
        """Send a signed statement to the other parties, byte for byte as it was signed."""

    @abstractmethod
    def fetch_run(self, job_id: Digest, count: int) -> bool:
        """Begin to fetch a run, and call `fetched` at the end. Returns whether it could begin."""

    @abstractmethod
    def start_work(self, work: e.Work, turn: Turn | None) -> bool:
        """Begin some work, with its turn if it is about a game, and call `finish` at the end.

        Returns False if it has to wait; then it is asked for again.
        """

    # Not abstract: a host may have no readers and no owner, or look at every instant.

    def publish_run(self, action: e.PublishRun) -> None:  # noqa: B027
        """Publish the data that belongs to a run."""

    def raise_alarm(self, alarm: e.Alarm) -> None:  # noqa: B027
        """Tell the owner of the party that it saw something wrong."""

    def wake_at(self, at: int) -> None:  # noqa: B027
        """Have `look` called at this instant, or soon after."""

    def break_off(self) -> None:  # noqa: B027
        """Stop for good: a record cannot be kept, and what is not kept must not be said."""

    def fail(self, what: str, error: Exception) -> None:  # noqa: ARG002
        """Handle what carrying out an action raised, by the action's name. If this returns, the next action follows."""
        raise error

    # ------------------------------------------------------------------ events and actions

    def tell(self, event: e.Event) -> None:
        """Pass an event to the machine, and carry out its actions. Events that these cause are queued behind them."""
        if self._is_broken:
            raise StateError("expected a journal that keeps records, got one that did not; start the party again")
        self._events.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._events:
                self.carry_out(self.machine.observe(self._events.popleft()))
        finally:
            self._is_busy = False

    def carry_out(self, actions: Sequence[e.Action]) -> None:
        """Carry out the actions that answer one event, in their order. Raises what keeping a record raises."""
        for action in actions:
            try:
                self._perform(action)
            except Exception as error:
                if isinstance(action, e.AppendRecord):
                    self._is_broken = True
                    self.break_off()
                    raise
                self.fail(type(action).__name__, error)

    def _perform(self, action: e.Action) -> None:
        match action:
            case e.AppendRecord():
                self._keep_record(action)
            case e.Wake(at=at):
                if at not in self._ticks:
                    heapq.heappush(self._ticks, at)
                    self.wake_at(at)
            case e.Transact():
                self.transact(action)
            case e.Start(work=work):
                self.begin_work(work)
            case e.FetchRun(job_id=job_id, count=count):
                self.want_run(job_id, count)
            case e.PublishRun():
                self.publish_run(action)
            case e.Alarm():
                self.raise_alarm(action)
            case _:
                self.say(action)

    def tick(self) -> None:
        """Send the machine a `Tick` if the earliest wake-up time that it requested has come."""
        if self._ticks and self._ticks[0] <= self.instant():
            self.look()

    def look(self) -> None:
        """Send the machine a `Tick` now, which counts for every wake-up time that it requested until now."""
        now = self.instant()
        while self._ticks and self._ticks[0] <= now:
            heapq.heappop(self._ticks)
        self.tell(e.Tick(at=now))

    def look_again(self) -> None:
        """Deliver the posts that came early, and begin the work and the fetches that had to wait."""
        early, self._early = self._early, deque(maxlen=MAX_EARLY)
        for event in early:
            self.hear(event)
        held, self._held = self._held, []
        for work in held:
            self.begin_work(work)
        self.fetch_wanted()

    def hear(self, event: e.Message) -> None:
        """Pass a post to the machine, or keep it until the board shows the job or the game that it is about."""
        board = self.machine.board
        match event:
            case e.MoveShown(game_id=game) | e.ReceiptShown(game_id=game):
                is_early = game not in board.games
            case e.HeadShown(head=shown) | e.LogReceiptShown(receipt=shown) | e.ConcessionShown(concession=shown):
                is_early = shown.head.job_id not in board.jobs
            case _:
                is_early = False
        (self._early.append if is_early else self.tell)(event)

    # ------------------------------------------------------------------ work

    def begin_work(self, work: e.Work) -> None:
        """Begin some work, unless the game has moved on; what may be needed later is held back."""
        waits = self.is_for_nobody(work)
        turn = self._turn(work) if isinstance(work, e.Gather) and not waits else None
        is_past = isinstance(work, e.Gather) and turn is None
        if waits or not (is_past or self.start_work(work, turn)):
            self._held.append(work)

    def finish(
        self, work: e.Work, *, root: bytes = b"", move: Move | None = None, problem: str = "",
        found: tx.ReportLoss | None = None,
    ) -> None:  # fmt: skip
        """Tell the machine how its work ended."""
        self.tell(e.Done(at=self.instant(), work=work, root=root, move=move, problem=problem, found=found))

    def is_for_nobody(self, work: e.Work) -> bool:
        """Whether a move is gathered for a game that is over, or a segment trained for a job that is."""
        games, jobs = self.machine.board.games, self.machine.board.jobs
        if isinstance(work, e.Train):
            return work.job_id in jobs and jobs[work.job_id].is_over
        return isinstance(work, e.Gather) and work.game_id in games and games[work.game_id].is_stopped

    def _turn(self, work: e.Gather) -> Turn | None:
        """The game at the turn for which a move is wanted; None if it is not there any more."""
        machine = self.machine
        assert isinstance(machine, Player)
        game = machine.board.games[work.game_id]
        state, line = game.state, tuple(game.moves)
        if work.said is not None:
            if (found := machine.transcript(game).stood(work.sequence, work.snapshot)) is None:
                return None
            state, line = found, work.said
        elif Snapshot.of(state).id != work.snapshot:
            return None
        if machine.side_in(game) is Side.DEFENDER:
            return Turn(state=state, line=line, defends=1)
        # A challenger plays with the first replay that another one confirmed.
        assert isinstance(machine, AuditorParty)
        results = machine.results(game.head)
        trusted = next((n for n, root in enumerate(results) if root and results.count(root) > 1), 0)
        return Turn(state=state, line=line, defends=0, attempt=trusted)

    # ------------------------------------------------------------------ fetches

    def want_run(self, job_id: Digest, count: int) -> None:
        """Fetch what is published of a run up to a checkpoint (0: what is needed to begin), as soon as it is there."""
        self._wanted.setdefault((job_id, count), 0)
        self.fetch_wanted()

    def fetch_wanted(self) -> None:
        """Begin every fetch whose time has come."""
        now = self.instant()
        for key, at in list(self._wanted.items()):
            if key not in self._fetching and at <= now:
                self._fetching.add(key)
                if not self.fetch_run(*key):
                    self._fetching.discard(key)

    def retry_fetches(self, job_id: Digest) -> None:
        """Drop the delay before a job's fetches are retried, because more of it was published."""
        self._wanted |= {key: 0 for key in self._wanted if key[0] == job_id}

    def fetched(self, job_id: Digest, count: int, problem: str = "") -> None:
        """A fetch has ended. Without a problem, the files lie where work will find them."""
        self._fetching.discard((job_id, count))
        if problem:
            self._wanted[job_id, count] = self.instant() + RETRY_SECONDS
            return
        self._wanted.pop((job_id, count), None)
        if count:
            self.tell(e.Arrived(at=self.instant(), job_id=job_id, count=count))
        else:
            self.look()


class PostJournal(Protocol):
    """A journal that keeps records, and what is said through a hub."""

    def append(self, record: e.AppendRecord, /) -> object:
        """Write a record, and return once it is safe. If two have one place, the first counts."""

    def post(self, job: Digest, content: bytes, seal: Callable[[int], bytes]) -> bool:
        """Keep a statement about a job, unless the same was made before. Returns whether it is new.

        `content` identifies it. `seal` makes the signed bytes, given the number in the job that is its place for good.
        """


class BoardSource(Protocol):
    """The place where transactions count: a chain, or a ledger that a hub keeps."""

    def now(self) -> int:
        """Seconds by the clock of the chain or of the hub, never by this machine's."""

    def send(self, wanted: e.Transact) -> None:
        """Get a transaction accepted by the board once, however often it is requested under its place."""


class PostingDriver(PartyDriver):
    """Drives a machine that speaks through a hub. A post is in the journal with its exact bytes before it leaves."""

    def __init__(self, machine: PartyMachine, journal: PostJournal, board_source: BoardSource) -> None:
        super().__init__(machine, journal.append)
        self._posts, self.board_source = journal, board_source

    @abstractmethod
    def posted(self) -> None:
        """Send the journal's new posts to the hub, now or later, and repeat that until the hub has them."""

    def instant(self) -> int:
        return self.board_source.now()

    def transact(self, wanted: e.Transact) -> None:
        """Send a transaction. A challenge is posted first: until then a hub takes no message of its game."""
        if isinstance(wanted.transaction, tx.Challenge):
            head, nonce = wanted.transaction.head, wanted.transaction.nonce
            found = game_id(head.head, self.machine.domain, self.machine.address, nonce)
            self.post(head.head.job_id, posts.GameBody(head=head, nonce=nonce), found)
        self.board_source.send(wanted)

    def say(self, statement: e.Statement) -> bool:
        """Post a statement, unless it was posted before. Returns whether it is new."""
        return self.post(self.job_of(statement), posts.body_of(statement), getattr(statement, "game_id", None))

    def job_of(self, statement: e.Statement) -> Digest:
        """The job that a statement is about."""
        if isinstance(statement, e.ShowMove | e.ShowReceipt):
            return self.machine.board.games[statement.game_id].job.id
        job_id, _ = tx.subject_of(posts.body_of(statement))
        assert job_id is not None
        return job_id

    def post(self, job_id: Digest, body: posts.Body, game: Digest | None = None, *, tag: bytes = b"") -> bool:
        """Say something through the hub, once, or once for each tag. Returns whether it is new."""
        key, domain = self.machine.key, self.machine.domain

        def seal(number: int) -> bytes:
            post = posts.Post.of(body, job_id=job_id, number=number, sender=key.address, game_id=game)
            return posts.SignedPost.sign(post, domain, key).encode()

        is_new = self._posts.post(job_id, tag or bytes([body.KIND]) + (game or job_id) + body.encode(), seal)
        if is_new:
            self.posted()
        return is_new

    def read(self, post: posts.Post, body: posts.Body) -> None:
        """Process a post of somebody else, whose signatures are checked. The machine checks its claims."""
        is_own = self.machine.has_key and post.sender == self.machine.address
        if not is_own and (event := posts.event_of(post, body, self.instant())) is not None:
            self.hear(event)
