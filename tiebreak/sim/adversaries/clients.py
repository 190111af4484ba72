"""Clients that want the work for nothing, or the trainer's stake."""

from dataclasses import replace
from functools import cache, partial
from random import Random
from typing import ClassVar, Final

import torch

from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.parties.board import JobStatus, PublicJob
from tiebreak.sim.adversaries.auditors import with_a_cheat
from tiebreak.sim.adversaries.base import Adversary, Catch, Role
from tiebreak.sim.adversaries.challengers import MistakenChallenge
from tiebreak.sim.adversaries.false_runs import TRAINER
from tiebreak.sim.world import calls
from tiebreak.sim.world.agents import Client, Process, Trainer
from tiebreak.sim.world.cast import Cast, ClientFactory
from tiebreak.sim.world.small_task import INTERVAL
from tiebreak.sim.world.workshop import Workshop
from tiebreak.sim.world.world import Pending, World

CLIENT: Final = "client"
"""The client's name in a cast."""


class _Paying(Adversary):
    """A dishonest party in the client's place."""

    role: ClassVar[Role] = Role.CLIENT
    make: ClassVar[ClientFactory]

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # most have no choices
        cast.client = type(self).make
        cast.dishonest[CLIENT] = self.name


# ---------------------------------------------------------------- money back


class _Abandoning(Client):
    """Tries to abandon its job whenever something happens in a game about it."""

    def follow(self, job: PublicJob) -> Process:
        """Runs beside the client's agreed behaviour."""
        yield from self.until(lambda: job.is_over or bool(self.world.board.open_games(job.id)))
        while not job.is_over:
            moves = self._moves(job)
            self.world.submit(self, calls.abandon(job.job), untried=True)
            yield from self.until(partial(self._has_changed, job, moves))

    def _moves(self, job: PublicJob) -> int:
        return sum(len(game.moves) for game in self.world.board.games_of(job.id))

    def _has_changed(self, job: PublicJob, moves: int) -> bool:
        return job.is_over or self._moves(job) > moves


class AbandonsInAGame(_Paying):
    """Abandons its job while a game about it is open.

    In league with a cheat, it would cost the challenger its reward.
    """

    name: ClassVar[str] = "abandons in a game"
    gain: ClassVar[str] = "the trainer's stake, before a challenger wins half of it"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.REFUSED})
    make: ClassVar[ClientFactory] = _Abandoning

    def join(self, cast: Cast, rng: Random) -> None:
        """Add a game: one against a cheat, or one without ground."""
        super().join(cast, rng)
        if rng.random() < 0.5:
            with_a_cheat(cast, rng)
        else:
            MistakenChallenge().join(cast, rng)


class _Cancelling(Client):
    """Takes its offer back after the acceptance, either at once or when the trainer has worked."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, heads: int) -> None:
        super().__init__(world, name, key)
        self.heads = heads

    def on_pending(self, pending: Pending) -> None:
        """Notice the acceptance in the mempool."""
        call = pending.call
        job = None if call.job_id is None else self.world.board.jobs.get(call.job_id)
        if not self.heads and call.kind == "acceptJob" and job is not None:
            self.world.submit(self, calls.cancel_job(job.job), untried=True)

    def follow(self, job: PublicJob) -> Process:
        """Runs beside the client's agreed behaviour."""
        yield from self.until(lambda: job.status is not JobStatus.OFFERED and job.head_count >= self.heads)
        self.world.submit(self, calls.cancel_job(job.job), untried=True)


class CancelsAfterAcceptance(_Paying):
    """Takes its reward back when the trainer has accepted."""

    name: ClassVar[str] = "cancels after acceptance"
    gain: ClassVar[str] = "its reward back, and the work"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.REFUSED})

    def join(self, cast: Cast, rng: Random) -> None:
        """Draw the number of heads after which it cancels; 0 means directly after the acceptance, in the same block."""
        cast.client = partial(_Cancelling, heads=rng.randint(0, 3))
        cast.dishonest[CLIENT] = self.name


class _NeverWithdrawing(Client):
    """Never withdraws its credit."""

    def collects(self) -> bool:
        return False


class NeverWithdraws(_Paying):
    """Leaves its credit on the board. The credit stays its own and blocks nobody."""

    name: ClassVar[str] = "never withdraws"
    gain: ClassVar[str] = "that the board cannot pay others"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.HARMLESS})
    make: ClassVar[ClientFactory] = _NeverWithdrawing

    def join(self, cast: Cast, rng: Random) -> None:
        """Adds a cheat, so that the client gets its reward back as a credit."""
        super().join(cast, rng)
        with_a_cheat(cast, rng)


# ---------------------------------------------------------------- the trainer's stake


class _Hurrying(Client):
    """Drafts a job with a window too short for any segment. Half of the time it says so beforehand."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, window: int) -> None:
        super().__init__(world, name, key)
        self.window = window

    def draft(self) -> Job:
        """The draft with the short window."""
        return replace(super().draft(), challenge_window=self.window)

    def offer(self, job: Job) -> None:
        """Counts it as a refusal if the trainer does not sign."""
        trainer = self.world.parties["trainer"]
        assert isinstance(trainer, Trainer), "the cast has one"
        if trainer.sign_job(job) is None:
            self.account.refused += 1
        super().offer(job)


class ShortWindow(_Paying):
    """Wants a window between heads that is shorter than a segment takes, to win the trainer's stake with `abandon`.

    It tells the trainer beforehand and hopes for a signature, or it names another window and slips its own into the
    job.
    """

    name: ClassVar[str] = "window too short for a segment"
    gain: ClassVar[str] = "the trainer's stake, by `abandon`"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.REFUSED})

    def join(self, cast: Cast, rng: Random) -> None:
        """Draw a window of up to one segment's time. Raises `ConfigurationError` for a cheating trainer."""
        if TRAINER in cast.dishonest:
            raise ConfigurationError("expected an honest trainer, whose stake this one is after, got another")
        window = rng.randint(1, INTERVAL * cast.step_seconds)
        if rng.random() < 0.5:
            cast.terms = replace(cast.terms, challenge_window=window)
        cast.client = partial(_Hurrying, window=window)
        cast.dishonest[CLIENT] = self.name


# ---------------------------------------------------------------- strange jobs


@cache
def diverging_workshop() -> Workshop:
    """The small computation with weights so large that the first step overflows. Every later state contains NaN."""
    compiled = Workshop.open("exact").compiled
    huge = {
        name: torch.full_like(value, 3.0e38) if value.dtype == torch.float32 and value.dim() == 2 else value
        for name, value in compiled.state.items()
    }
    return Workshop("exact", replace(compiled, state=huge))


class DivergingProgram(_Paying):
    """Agrees on a program whose true run diverges, so that a trainer stops on numbers that are not finite.

    This trainer goes on, as `tiebreak train --diverging` does. The program's result is NaN, which has a single bit
    pattern here and is a value like any other. The trainer is paid for it.
    """

    name: ClassVar[str] = "program that diverges"
    gain: ClassVar[str] = "the trainer's stake, if it stops"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.HARMLESS})
    make: ClassVar[ClientFactory] = Client

    def join(self, cast: Cast, rng: Random) -> None:
        """Replace the computation. Raises `ConfigurationError` if the trainer deviates from the usual one."""
        if cast.deviation is not None:
            raise ConfigurationError(
                "expected a trainer that computes the job, got another: NaN would hide what it does"
            )
        super().join(cast, rng)
        cast.workshop = diverging_workshop()


class _Repeating(Client):
    """Offers the same job twice, and a different job with the same nonce."""

    def run(self) -> Process:
        """Offer the job as agreed, and then both others."""
        job = self.draft()
        trainer = self.world.parties["trainer"]
        assert isinstance(trainer, Trainer), "the cast has one"
        signature = trainer.sign_job(job)
        if signature is None:
            return
        yield from self.attempt(calls.create_job(job, signature))
        self.world.submit(self, calls.create_job(job, signature), untried=True)
        richer = replace(job, reward=job.reward // 2)
        if trainer.sign_job(richer) is None:
            self.account.refused += 1
        self.world.submit(self, calls.create_job(richer, signature), untried=True)


class TwoJobsOneNonce(_Paying):
    """Has one job signed and posts it twice, and then a different job with the same nonce and signature."""

    name: ClassVar[str] = "two jobs with one nonce"
    gain: ClassVar[str] = "a second run, or a cheaper one, for one signature"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.REFUSED})
    make: ClassVar[ClientFactory] = _Repeating


ADVERSARIES: tuple[type[Adversary], ...] = (
    AbandonsInAGame,
    CancelsAfterAcceptance,
    NeverWithdraws,
    ShortWindow,
    DivergingProgram,
    TwoJobsOneNonce,
)
