"""Auditors that do less than their task, or something else. Each joins the auditors that there are.

Unless a dishonest trainer is present already, a trainer with one false number joins too, so that there is something to
find. While a diligent auditor watches, that trainer is convicted whatever these auditors do, and the game shows what
they earn. Where they are alone, nothing is promised.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import ClassVar, Final

from tiebreak.engine.data.tensors import identities
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.run.audit import draw_segments
from tiebreak.engine.run.logs import NO_LOGS, Logs
from tiebreak.engine.run.loop import steps
from tiebreak.engine.run.train import make_record
from tiebreak.protocol.commitments.job import Job, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import StepRecord, run_tree, state_tree
from tiebreak.protocol.errors import CannotCheck
from tiebreak.protocol.game.moves import Phase, Side
from tiebreak.protocol.parties.board import PublicGame, PublicJob
from tiebreak.sim.adversaries.base import Adversary, Catch, Role
from tiebreak.sim.adversaries.false_runs import TRAINER, PlainFalseRun
from tiebreak.sim.world.agents import Auditor, GameView, Process
from tiebreak.sim.world.cast import AgentFactory, Cast, Seat
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.workshop import Published, Workshop
from tiebreak.sim.world.world import Pending, World

EARNED_NOTHING: Final = frozenset({Catch.UNPAID, Catch.HARMLESS})
"""Unpaid if another auditor was paid, else harmless, because there was nothing to earn."""


def with_a_cheat(cast: Cast, rng: Random) -> None:
    """Add a cheating trainer, unless the trainer is dishonest already."""
    if cast.deviation is None and TRAINER not in cast.dishonest:
        PlainFalseRun().join(cast, rng)


def seat_auditor(cast: Cast, name: str, make: AgentFactory, rng: Random, *, funds: int | None = None) -> str:
    """Seat an auditor at a random place in the list; earlier places act first. Returns the party's name."""
    party = f"auditor {len(cast.auditors)} ({name})"
    seat = Seat(name=party, make=make, adversary=name)
    if funds is not None:
        seat.funds = funds
    cast.auditors.insert(rng.randint(0, len(cast.auditors)), seat)
    return party


def moves_of(game: PublicGame, side: Side) -> int:
    """The number of moves that a side made, not counting concessions."""
    return sum(1 for move in game.moves if move.KIND is not Phase.OVER and move.KIND.mover is side)


class _Bystander(Adversary):
    """A dishonest party among the auditors."""

    role: ClassVar[Role] = Role.AUDITOR

    def join(self, cast: Cast, rng: Random) -> None:
        """Take a seat beside the other auditors."""
        with_a_cheat(cast, rng)
        seat_auditor(cast, self.name, self.make(rng), rng)

    @abstractmethod
    def make(self, rng: Random) -> AgentFactory:
        """Make the factory of the agent that takes the seat."""


# ---------------------------------------------------------------- who does not look, or not at all of it


class _Lazy(Auditor):
    """Replays nothing and reports nothing."""

    def replays(self, head: SignedHead) -> bool:  # noqa: ARG002
        return False

    def reports(self, first: SignedHead, second: SignedHead) -> bool:  # noqa: ARG002
        return False


class LazyAuditor(_Bystander):
    """Claims to agree with every head, and replays none."""

    name: ClassVar[str] = "lazy auditor"
    gain: ClassVar[str] = "an auditor's standing without an auditor's work"
    caught: ClassVar[frozenset[Catch]] = EARNED_NOTHING

    def make(self, rng: Random) -> AgentFactory:  # noqa: ARG002
        return _Lazy


def replay_segment(workshop: Workshop, job: Job, run: Work, checkpoint: int) -> StepRecord:
    """The record that a segment leads to when replayed from the kept state before it by the published logs.

    Raises `CannotCheck` if that state or a log is withheld or differs from the commitment: steps (2) and (4) of
    `tiebreak.engine.run.audit`.
    """
    first, last = job.first_step(checkpoint), job.last_step(checkpoint)
    before = run.records[checkpoint - 1].state_root if checkpoint else job.initial_state_root
    if run.kept is None:
        raise CannotCheck(f"expected the state after step {first - 1}, got none")
    state = run.kept(first - 1)
    if state_tree(identities(state)).root != before:
        raise CannotCheck(f"expected the state after step {first - 1} that was committed, got another")
    interpreter = workshop.auditor
    logs: Logs = NO_LOGS
    if job.is_logged:
        published = Published(job=job, program=workshop.program, logs=run.logs)
        logs = CommittedLogs(published, run.records.__getitem__)
    data, loss_bits = interpreter.place_data(workshop.run().data()), 0
    for done in steps(interpreter, state, data, range(first, last + 1), sums=logs.before):
        state, loss_bits = done.result.state, done.result.loss_bits
    return make_record(last, state, loss_bits, logs.log_root(checkpoint))


def first_fraud(workshop: Workshop, job: Job, run: Work, checkpoints: Sequence[int]) -> int | None:
    """The first of these segments that does not lead to its committed record."""
    return next((k for k in checkpoints if replay_segment(workshop, job, run, k) != run.records[k]), None)


class Sampler(Auditor):
    """Replays a random sample of segments once the last head is there, each from the kept state before it.

    If one of them is false it replays the whole run, and challenges.
    """

    def __init__(self, world: World, name: str, key: PrivateKey, *, sample: int) -> None:
        super().__init__(world, name, key)
        self.sample = sample
        self.drawn: tuple[int, ...] = ()
        """The segments that were sampled."""
        self.found: int | None = None
        """The first false segment of the sample."""

    def replays(self, head: SignedHead) -> bool:
        """Only the last head is replayed. An earlier head merely has to fit the records."""
        return head.head.count == self.world.board.jobs[head.head.job_id].job.checkpoints

    def look_at(self, job: PublicJob, head: SignedHead) -> Process:
        """Replays the sample, and the whole run if the sample gives, or has given, a reason."""
        if self.drawn:
            return (yield from super().look_at(job, head))
        terms, run = job.job, self.world.mail.runs[job.id]
        self.drawn = draw_segments(head.head.count, self.sample, self.secret, head.head.run_root)
        sampled = sum(terms.segment_steps(k) for k in self.drawn)
        yield from self.sleep(sampled * self.world.step_seconds)
        root = head.head.run_root
        if self._is_suspicious(terms, run, head):  # a full replay cannot reuse the sample
            root = yield from super().look_at(job, head)
        self.account.steps += sampled
        return root

    def _is_suspicious(self, job: Job, run: Work, head: SignedHead) -> bool:
        """Whether the records do not hash to the head, or a sampled segment is false."""
        signed = run_tree([record.digest for record in run.records], job.steps, job.checkpoint_interval).root
        if signed != head.head.run_root:
            return True
        try:
            self.found = first_fraud(self.world.workshop, job, run, self.drawn)
        except CannotCheck:
            return True
        return self.found is not None


class SamplingAuditor(_Bystander):
    """Replays one to three of the four segments, chosen at random after the run is signed."""

    name: ClassVar[str] = "sampling auditor"
    gain: ClassVar[str] = "an auditor's reward at part of its cost"
    caught: ClassVar[frozenset[Catch]] = EARNED_NOTHING

    def make(self, rng: Random) -> AgentFactory:
        """Draw the sample size."""
        return partial(Sampler, sample=rng.randint(1, 3))


# ---------------------------------------------------------------- who lets others look


class _Follower(_Lazy):
    """Replays a head only after another auditor has challenged it, and then challenges it too."""

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(world, name, key)
        self.suspect: SignedHead | None = None

    def on_pending(self, pending: Pending) -> None:
        """Notice another party's challenge in the mempool."""
        if self.suspect is None and pending.call.kind == "challenge" and not pending.untried:
            (self.suspect,) = pending.call.heads
            self.world.notify()

    def replays(self, head: SignedHead) -> bool:
        """Only the head that was challenged."""
        return head == self.suspect


class CopyingAuditor(_Bystander):
    """Lets others replay. When somebody challenges a head, it checks that head and challenges it too."""

    name: ClassVar[str] = "copying auditor"
    gain: ClassVar[str] = "no replay of anything that is true"
    caught: ClassVar[frozenset[Catch]] = EARNED_NOTHING

    def make(self, rng: Random) -> AgentFactory:  # noqa: ARG002
        return _Follower


# ---------------------------------------------------------------- who looks, and does not act


class _Silent(Auditor):
    """Replays everything and keeps the findings to itself."""

    def accuses(self, head: SignedHead, agrees: bool) -> bool:  # noqa: ARG002
        return False

    def reports(self, first: SignedHead, second: SignedHead) -> bool:  # noqa: ARG002
        return False


class SilentAuditor(_Bystander):
    """Sees the fraud and says nothing."""

    name: ClassVar[str] = "silent auditor"
    gain: ClassVar[str] = "no stake at risk, and whatever silence is worth to somebody"
    caught: ClassVar[frozenset[Catch]] = EARNED_NOTHING

    def make(self, rng: Random) -> AgentFactory:  # noqa: ARG002
        return _Silent


class Conceding(Auditor):
    """Challenges a false head, and gives up when it is about to win: at its own move number `at`, counted from 0."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, at: int) -> None:
        super().__init__(world, name, key)
        self.at = at

    def concedes(self, view: GameView) -> bool:
        """Concedes from its move number `at` on."""
        return moves_of(view.game, view.side) >= self.at


class BribedAuditor(_Bystander):
    """Takes the trainer's money to say nothing, or to give up a game that it is winning."""

    name: ClassVar[str] = "bribed auditor"
    gain: ClassVar[str] = "the bribe, which has to be worth more than half of the trainer's stake"
    caught: ClassVar[frozenset[Catch]] = EARNED_NOTHING | {Catch.CONCEDED}

    def make(self, rng: Random) -> AgentFactory:
        """Half of the time it starts a game for show."""
        return _Silent if rng.random() < 0.5 else partial(Conceding, at=rng.randint(0, 2))


# ---------------------------------------------------------------- who cannot


class PoorAuditor(_Bystander):
    """Finds the fraud, but cannot pay the challenger's stake."""

    name: ClassVar[str] = "auditor that cannot pay its stake"
    gain: ClassVar[str] = "nothing: it should not have started"
    caught: ClassVar[frozenset[Catch]] = EARNED_NOTHING

    def join(self, cast: Cast, rng: Random) -> None:
        """Take a seat with less money than a challenge costs."""
        with_a_cheat(cast, rng)
        seat_auditor(cast, self.name, Auditor, rng, funds=rng.randint(0, cast.terms.challenger_stake))

    def make(self, rng: Random) -> AgentFactory:  # noqa: ARG002
        """An honest auditor: only its funds are too small."""
        return Auditor


class Vanishing(Auditor):
    """Goes offline at its own move number `at`. It comes back when nothing can be saved any more."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, at: int) -> None:
        super().__init__(world, name, key)
        self.at = at

    def answers(self, view: GameView) -> bool:
        """Answers until its move number `at`."""
        return moves_of(view.game, view.side) < self.at

    def claims_timeout(self, view: GameView) -> bool:
        """Claims no timeout while it is offline."""
        return self.answers(view)


class OfflineAuditor(_Bystander):
    """Starts a justified game and does not play it to its end."""

    name: ClassVar[str] = "auditor that goes offline"
    gain: ClassVar[str] = "nothing: its machine, or its network, failed"
    caught: ClassVar[frozenset[Catch]] = EARNED_NOTHING | {Catch.TIMEOUT}

    def make(self, rng: Random) -> AgentFactory:
        """Draw the move at which it goes offline."""
        return partial(Vanishing, at=rng.randint(0, 3))


ADVERSARIES: tuple[type[Adversary], ...] = (
    LazyAuditor,
    SamplingAuditor,
    CopyingAuditor,
    SilentAuditor,
    BribedAuditor,
    PoorAuditor,
    OfflineAuditor,
)
