"""Auditors that do less than their task, or something else. Each joins the auditors that there are.

Unless a dishonest trainer is present already, a trainer with one false number joins too, so that there is something to
find. While a diligent auditor watches, that trainer is convicted whatever these auditors do, and the game shows what
they earn. Where they are alone, nothing is promised.
"""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any, Final

from tiebreak.engine.data.tensors import identities
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.run.commit import make_record
from tiebreak.engine.run.logs import NO_LOGS, Logs
from tiebreak.engine.run.loop import steps
from tiebreak.engine.run.segments import draw_segments
from tiebreak.lab.sim.adversaries.base import Catch, Role, between, row, with_a_cheat
from tiebreak.lab.sim.world.agents import AuditorAgent, Process
from tiebreak.lab.sim.world.game import FUNDS, Cast, CastMember, Factory
from tiebreak.lab.sim.world.work import Work
from tiebreak.lab.sim.world.workshop import PublishedLogs, Workshop
from tiebreak.lab.sim.world.world import Pending
from tiebreak.protocol.commitments.job import Job, SignedHead
from tiebreak.protocol.commitments.records import StepRecord, run_tree, state_tree
from tiebreak.protocol.errors import CannotCheck
from tiebreak.protocol.game.moves import Phase, Side
from tiebreak.protocol.parties.board import PublicGame, PublicJob
from tiebreak.protocol.parties.player import GameView

EARNED_NOTHING: Final = frozenset({Catch.UNPAID, Catch.HARMLESS, Catch.REFUSED})
"""Unpaid if another auditor was paid, else harmless, because there was nothing to earn.

Refused if another's challenge in the same block made its own dearer.
"""
_SENT_NOTHING: Final = EARNED_NOTHING - {Catch.REFUSED}


def moves_of(game: PublicGame, side: Side) -> int:
    """The number of moves that a side made, not counting concessions."""
    return sum(1 for move in game.moves if move.KIND is not Phase.OVER and move.KIND.mover is side)


class Lazy(AuditorAgent):
    """Claims to agree with every head, and replays none."""

    def replays(self, head: SignedHead) -> bool:  # noqa: ARG002
        return False

    def reports(self, first: SignedHead, second: SignedHead) -> bool:  # noqa: ARG002
        return False


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
        published = PublishedLogs(job=job, program=workshop.program, logs=run.logs)
        logs = CommittedLogs(published, run.records.__getitem__)
    data, loss_bits = interpreter.place_data(workshop.run.data()), 0
    for done in steps(interpreter, state, data, range(first, last + 1), sums=logs.before):
        state, loss_bits = done.result.state, done.result.loss_bits
    return make_record(last, state, loss_bits, logs.log_root(checkpoint))


def first_fraud(workshop: Workshop, job: Job, run: Work, checkpoints: Sequence[int]) -> int | None:
    """The first of these segments that does not lead to its committed record."""
    return next((k for k in checkpoints if replay_segment(workshop, job, run, k) != run.records[k]), None)


class SamplingAuditor(AuditorAgent):
    """Replays a random sample of segments once the last head is there, each from the kept state before it.

    If one of them is false it replays the whole run, and challenges.
    """

    sample: int
    drawn: tuple[int, ...] = ()
    """The segments that were sampled."""
    found: int | None = None
    """The first false segment of the sample."""

    def replays(self, head: SignedHead) -> bool:
        """Whether this head is replayed: only the last is. An earlier head merely has to fit the records."""
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


class CopyingAuditor(Lazy):
    """Replays a head only after another auditor has challenged it, and then challenges it too."""

    suspect: SignedHead | None = None

    def on_pending(self, pending: Pending) -> None:
        """Notice another party's challenge in the mempool."""
        if self.suspect is None and pending.call.kind == "challenge" and not pending.untried:
            (self.suspect,) = pending.call.heads
            self.world.notify()

    def replays(self, head: SignedHead) -> bool:
        return head == self.suspect


class Bribed(AuditorAgent):
    """Replays everything and does nothing; or challenges a false head, and gives up when it is about to win."""

    at: int | None = None
    """Its own move at which it gives up, counted from 0; None to challenge nothing."""

    def accuses(self, head: SignedHead, agrees: bool) -> bool:
        return self.at is not None and super().accuses(head, agrees)

    def reports(self, first: SignedHead, second: SignedHead) -> bool:
        return self.at is not None and super().reports(first, second)

    def concedes(self, view: GameView) -> bool:
        return self.at is not None and moves_of(view.game, view.side) >= self.at


def bribe(_cast: Cast, rng: Random) -> int | None:
    """The move at which a bribed auditor gives up; None, half of the time, for no challenge at all."""
    return None if rng.random() < 0.5 else rng.randint(0, 2)


class Vanishing(AuditorAgent):
    """Starts a justified game, and goes offline at its own move `at`, until nothing can be saved any more."""

    at: int

    def answers(self, view: GameView) -> bool:
        return moves_of(view.game, view.side) < self.at

    def claims_timeout(self, view: GameView) -> bool:
        return self.answers(view)


def seat_auditor(cast: Cast, rng: Random, name: str, make: Factory[Any], *, is_poor: bool = False) -> None:
    """Seat an auditor at a random place in the list; earlier places act first. A poor one cannot pay its stake."""
    others, funds = len(cast.auditors), rng.randint(0, cast.terms.challenger_stake) if is_poor else FUNDS
    seat = CastMember(name=f"auditor {others} ({name})", make=make, adversary=name, funds=funds)
    cast.auditors.insert(rng.randint(0, others), seat)


_auditor: Final = partial(row, Role.AUDITOR, seat_auditor, before=with_a_cheat, caught=EARNED_NOTHING)
_poor: Final = partial(row, Role.AUDITOR, partial(seat_auditor, is_poor=True), before=with_a_cheat)
# fmt: off
ADVERSARIES: Final = (
    _auditor("lazy auditor", Lazy, "an auditor's standing without an auditor's work", caught=_SENT_NOTHING),
    _auditor("sampling auditor", SamplingAuditor, "an auditor's reward at part of its cost", sample=between(1, 3)),
    _auditor("copying auditor", CopyingAuditor, "no replay of anything that is true"),
    _auditor("silent auditor", Bribed, "no stake at risk, and whatever silence is worth to somebody",
        caught=_SENT_NOTHING),
    _auditor("bribed auditor", Bribed, "the bribe, which has to be worth more than half of the trainer's stake",
        caught=EARNED_NOTHING | {Catch.CONCEDED}, at=bribe),
    _poor("auditor that cannot pay its stake", AuditorAgent, "nothing: it should not have started", EARNED_NOTHING),
    _auditor("auditor that goes offline", Vanishing, "nothing: its machine, or its network, failed",
        caught=EARNED_NOTHING | {Catch.TIMEOUT}, at=between(0, 3)),
)
# fmt: on
