"""Clients that want the work for nothing, or the trainer's stake."""

from dataclasses import replace
from functools import cache, partial
from random import Random
from typing import Final

import torch

from tiebreak.lab.sim.adversaries.base import TRAINER, Catch, between, client, trainer_of, with_a_cheat
from tiebreak.lab.sim.adversaries.challengers import MISTAKEN
from tiebreak.lab.sim.world.agents import ClientAgent, Process
from tiebreak.lab.sim.world.cast import Cast
from tiebreak.lab.sim.world.small_task import INTERVAL
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.lab.sim.world.world import Pending
from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.terms import MAX_GAME_SECONDS
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import JobStatus, PublicJob
from tiebreak.protocol.parties.terms import PATIENCE


class Dealing(ClientAgent):
    """A client that talks to its trainer directly."""

    def signature_of(self, job: Job) -> bytes | None:
        """The trainer's signature of a job; None if it refuses."""
        return trainer_of(self.world).sign_job(job)


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
    """Adds a game: one against a cheat, or one without ground."""
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

    It tells the trainer beforehand and hopes for a signature, or it names another window and slips its own in.
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
    if TRAINER in cast.dishonest:
        raise ConfigurationError("expected an honest trainer, whose stake this one is after, got another")


def _short_window(cast: Cast, rng: Random) -> int:
    """A window of up to one segment's time. Half of the time the terms of the cast say so beforehand."""
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


_REFUSED: Final = {Catch.REFUSED}
_HARMLESS: Final = {Catch.HARMLESS}
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
)
# fmt: on
