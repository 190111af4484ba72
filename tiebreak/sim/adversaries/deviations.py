"""Trainers that compute something other than the job, and otherwise do as agreed."""

from collections.abc import Callable, Set
from dataclasses import dataclass
from random import Random
from typing import Final

from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.sim.adversaries.base import Adversary, Catch, Role
from tiebreak.sim.world.cast import Cast
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.workshop import Workshop

TRAINER: Final = "trainer"
"""The trainer's name in a cast."""
TRIES: Final = 64
RECOMPUTED: Final = frozenset({Catch.RECOMPUTED})
Attempt = Callable[[Workshop, Job, Random], Work]
"""The false run of one random choice."""


def has_lie(_workshop: Workshop, work: Work) -> bool:
    """Whether something false was committed."""
    return work.lie is not None


@dataclass(frozen=True, kw_only=True)
class Deviating(Adversary):
    """Computes wrong numbers, but signs and publishes its heads honestly and plays its games as well as possible."""

    attempt: Attempt
    needs: str | None
    """The only workshop in which this is a deviation; None for all."""
    has_deviated: Callable[[Workshop, Work], bool]
    """Whether a run differs from the honest one."""

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # its choices are made when it computes
        """Replace the trainer's computation in the cast."""
        if self.needs is not None:
            cast.workshop = Workshop.open(self.needs)
        cast.deviation = self
        cast.dishonest[TRAINER] = self.name

    def work(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """The deviating run. A random choice that changes nothing committed is drawn again."""
        for _ in range(TRIES):
            work = self.attempt(workshop, job, rng)
            if self.has_deviated(workshop, work):
                return work
        raise ConfigurationError(f"{self.name}: expected something committed to change in {TRIES} tries, got nothing")


def computes(
    name: str,
    attempt: Attempt,
    gain: str,
    caught: Set[Catch] = RECOMPUTED,
    *,
    needs: str | None = None,
    has_deviated: Callable[[Workshop, Work], bool] = has_lie,
) -> Deviating:
    """A row of a table: a trainer that computes this."""
    return Deviating(
        name=name,
        role=Role.TRAINER,
        gain=gain,
        caught=frozenset(caught),
        attempt=attempt,
        needs=needs,
        has_deviated=has_deviated,
    )


def step_of(job: Job, rng: Random, first: int = 1) -> int:
    """A random step of the job, from `first` on."""
    return rng.randint(first, job.steps)


def onward(job: Job, first: int) -> range:
    """All steps from `first` to the last."""
    return range(first, job.steps + 1)


def once_or_onward(job: Job, first: int, rng: Random) -> range:
    """Step `first` alone, or all from it on."""
    return rng.choice((range(first, first + 1), onward(job, first)))
