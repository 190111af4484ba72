"""Clients that want the work for nothing, or the trainer's stake; and logs or receipts that a side keeps back.

Nobody can prove that something was not sent, so nobody is slashed for it. The two part, and whoever kept something back
has moved the reward of one segment: a client that does not sign for the last segment has it for nothing, a trainer that
does not show its logs has computed it for nothing.
"""

from dataclasses import replace
from functools import cache, partial
from random import Random
from typing import Final

import torch

from tiebreak.lab.sim.adversaries import base
from tiebreak.lab.sim.adversaries.base import Catch, between, client, one_of, trainer, with_a_cheat
from tiebreak.lab.sim.adversaries.challengers import MISTAKEN
from tiebreak.lab.sim.adversaries.heads import CHECKPOINTS
from tiebreak.lab.sim.world.agents import ClientAgent, Process, TrainerAgent
from tiebreak.lab.sim.world.game import Cast
from tiebreak.lab.sim.world.small_task import INTERVAL
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.lab.sim.world.world import Pending
from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.commitments.job import Job, SignedHead
from tiebreak.protocol.commitments.terms import MAX_GAME_SECONDS
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import JobStatus, PublicJob
from tiebreak.protocol.parties.terms import PATIENCE


class Dealing(ClientAgent):
    """A client that talks to its trainer directly."""

    def signature_of(self, job: Job) -> bytes | None:
        """The trainer's signature of a job; None if it refuses."""
        return base.trainer_of(self.world).sign_job(job)


class Abandoning(ClientAgent):
    """Tries to abandon its job whenever something happens in a game about it.

    In league with a cheat, it would cost the challenger its reward.
    """

    def follow(self, job: PublicJob) -> Process:
        yield from self.until(lambda: job.is_over or bool(self.world.board.open_games(job.id)))
        while not job.is_over:
            moves = self._moves(job)
            self.world.submit(self, Call.of(tx.Abandon(job_id=job.id)), untried=True)
            yield from self.until(partial(self._has_changed, job, moves))

    def _moves(self, job: PublicJob) -> int:
        return sum(len(game.moves) for game in self.world.board.games_of(job.id))

    def _has_changed(self, job: PublicJob, moves: int) -> bool:
        return job.is_over or self._moves(job) > moves


def _with_a_game(cast: Cast, rng: Random) -> None:
    """Adds a game: against a cheat, or against an honest trainer."""
    (with_a_cheat if rng.random() < 0.5 else MISTAKEN.join)(cast, rng)


class Cancelling(ClientAgent):
    """Takes its offer back after some number of heads; after none, in the block in which the trainer accepts."""

    heads: int

    def on_pending(self, pending: Pending) -> None:
        """Notice the acceptance in the mempool."""
        call = pending.call
        job = None if call.job_id is None else self.world.board.jobs.get(call.job_id)
        if not self.heads and call.kind == "acceptJob" and job is not None:
            self.world.submit(self, Call.of(tx.CancelJob(job_id=job.id)), untried=True)

    def follow(self, job: PublicJob) -> Process:
        yield from self.until(lambda: job.status is not JobStatus.OFFERED and job.head_count >= self.heads)
        self.world.submit(self, Call.of(tx.CancelJob(job_id=job.id)), untried=True)


class NeverWithdrawing(ClientAgent):
    """Leaves its credit on the board. The credit stays its own and blocks nobody."""

    def collects(self) -> bool:
        return False


class Hurrying(Dealing):
    """Drafts a job whose window between heads is too short for any segment, to win the stake with `abandon`.

    It announces the window and hopes for a signature, or announces another one and posts its own.
    """

    window: int

    def draft(self) -> Job:
        return replace(super().draft(), challenge_window=self.window)

    def offer(self, job: Job) -> None:
        if self.signature_of(job) is None:
            self.account.refused += 1
        super().offer(job)


class Locking(Hurrying):
    """Drafts a job whose games may last as long as the contract allows, so that stakes are held for a year."""

    def draft(self) -> Job:
        return replace(Dealing.draft(self), clock=self.window)


def _honest_trainer_only(cast: Cast, _rng: Random) -> None:
    """Raises `ConfigurationError` for a cheating trainer."""
    if base.TRAINER in cast.dishonest:
        raise ConfigurationError("expected an honest trainer, whose stake this one is after, got another")


def _short_window(cast: Cast, rng: Random) -> int:
    """A window of at most one segment's time, which half of the casts announce in their terms."""
    window = rng.randint(1, INTERVAL * cast.step_seconds)
    if rng.random() < 0.5:
        cast.terms = replace(cast.terms, challenge_window=window)
    return window


@cache
def diverging_workshop() -> Workshop:
    """The small computation with weights so large that the first step overflows. Every later state contains NaN."""
    captured = Workshop.open("exact").captured
    huge = {
        name: torch.full_like(value, 3.0e38) if value.dtype == torch.float32 and value.dim() == 2 else value
        for name, value in captured.state.items()
    }
    return Workshop("exact", replace(captured, state=huge))


def _diverging(cast: Cast, _rng: Random) -> None:
    """Makes the job a program whose true run diverges, so that a trainer stops on numbers that are not finite.

    This trainer goes on, as `tiebreak train --diverging` does. The program's result is NaN, which has a single bit
    pattern here and is a value like any other. The trainer is paid for it. Raises `ConfigurationError` if the trainer
    deviates from the usual computation.
    """
    if cast.deviation is not None:
        raise ConfigurationError("expected a trainer that computes the job, got another: NaN would hide what it does")
    cast.workshop = diverging_workshop()


class RepeatingClient(Dealing):
    """Has one job signed and posts it twice, and then a different job with the same nonce and signature."""

    def run(self) -> Process:
        """Offer the job as agreed, and then both others."""
        job = self.draft()
        signature = self.signature_of(job)
        if signature is None:
            return
        yield from self.attempt(Call.of(tx.CreateJob(job=job, signature=signature)))
        self.world.submit(self, Call.of(tx.CreateJob(job=job, signature=signature)), untried=True)
        richer = replace(job, reward=job.reward // 2)
        if self.signature_of(richer) is None:
            self.account.refused += 1
        self.world.submit(self, Call.of(tx.CreateJob(job=richer, signature=signature)), untried=True)


class SilentClient(ClientAgent):
    """Signs for the logs of no head from `first` on."""

    first = 1

    def acknowledges(self, head: SignedHead) -> bool:
        return head.head.count < self.first


class Taking(SilentClient):
    """Signs for nothing, and tries to abandon the job of the trainer that waits for it."""

    def follow(self, job: PublicJob) -> Process:
        """Try it in the first block after the trainer was due, before that can part there."""
        yield from self.until(lambda: job.is_over or job.head_count > 0)
        yield from self.sleep(job.due - self.world.now)
        while not job.is_over:
            self.world.submit(self, Call.of(tx.Abandon(job_id=job.id)), untried=True)
            yield self.world.news

    def gives_up(self, job: PublicJob) -> bool:  # noqa: ARG002
        """Leave it to the trainer to part."""
        return False


class LateReceipts(ClientAgent):
    """Posts its first receipt in the last block of the window, so that the next head is late, and then abandons."""

    def say(self, statement: e.Statement) -> None:
        if not isinstance(statement, e.ShowLogReceipt):
            super().say(statement)

    def want(self, place: e.Place, transaction: tx.Transaction, **how: object) -> None:
        """Leave it to the script below when to acknowledge."""
        if not isinstance(transaction, tx.Acknowledge):
            super().want(place, transaction, **how)  # type: ignore[arg-type]

    def follow(self, job: PublicJob) -> Process:
        """Acknowledge in the last block, abandon in the next one."""
        yield from self.until(lambda: job.is_over or ("receipt", job.id, job.head_count) in self.records)
        yield from self.sleep(base.last_call(self.world, job.window_end))
        if not job.is_over:
            (head,) = (head for head in self._heads[job.id] if head.head.count == job.head_count)
            yield from self.attempt(Call.of(tx.Acknowledge(receipt=self.receipt(head))))
            yield from self.sleep(base.first_late(self.world, job.due))
            self.world.submit(self, Call.of(tx.Abandon(job_id=job.id)), untried=True)

    def gives_up(self, job: PublicJob) -> bool:  # noqa: ARG002
        """Never part, as that would win no stake."""
        return False


class Leaving(TrainerAgent):
    """Publishes its logs with every head but the last."""

    def publishes(self, job: Job, count: int) -> bool:
        return count < job.checkpoints


def _logged(cast: Cast, _rng: Random) -> None:
    if not cast.workshop.is_logged:
        cast.workshop = Workshop.open("logged")


_client: Final = partial(client, before=_logged)
_REFUSED: Final = {Catch.REFUSED}
_HARMLESS: Final = {Catch.HARMLESS}
_PARTED: Final = {Catch.PARTED}
# fmt: off
ADVERSARIES: Final = (
    client("abandons in a game", Abandoning, "the trainer's stake, before a challenger wins half of it", _REFUSED,
        before=_with_a_game),
    client("cancels after acceptance", Cancelling, "its reward back, and the work", _REFUSED, heads=between(0, 3)),
    # with a cheat, so that it gets its reward back as a credit
    client("never withdraws", NeverWithdrawing, "that the board cannot pay others", _HARMLESS, before=with_a_cheat),
    client("window too short for a segment", Hurrying, "the trainer's stake, by `abandon`", _REFUSED,
        before=_honest_trainer_only, window=_short_window),
    client("games of a year", Locking, "stakes of its trainer and its challengers, held for as long", _REFUSED,
        before=_honest_trainer_only, window=between(PATIENCE, (MAX_GAME_SECONDS - 96 * 600) // 3)),
    client("program that diverges", ClientAgent, "the trainer's stake, if it stops", _HARMLESS, before=_diverging),
    client("two jobs with one nonce", RepeatingClient, "a second run, or a cheaper one, for one signature", _REFUSED),
    trainer("logs of the last segment withheld", Leaving, "the whole reward, with a lie that nobody can check",
        _PARTED | {Catch.NONFINITE}, before=_logged, run=base.false_sum(in_last_segment=True)),
    _client("receipts withheld", SilentClient, "the first segment for nothing", _PARTED),
    _client("receipt of the last head withheld", SilentClient, "the last segment for nothing", _PARTED,
        first=one_of(CHECKPOINTS)),
    _client("abandons instead of signing", Taking, "the stake of a trainer that waits for a receipt", {Catch.REFUSED}),
    _client("receipt in the last block", LateReceipts, "the stake of a trainer whose next head is late",
        {Catch.REFUSED}),
)
# fmt: on
