"""A trainer that computes something else than the job: what all its kinds have in common."""

from abc import abstractmethod
from random import Random
from typing import ClassVar, Final

from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.sim.adversaries.base import Adversary, Catch, Role
from tiebreak.sim.world.cast import Cast
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.workshop import Workshop

TRAINER: Final = "trainer"
"""The party's name in a cast."""
TRIES: Final = 64


class DeviatingTrainer(Adversary):
    """Its heads are honestly signed and published, its games played as well as they can be; its numbers are wrong."""

    role: ClassVar[Role] = Role.TRAINER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.RECOMPUTED})

    needs: ClassVar[str | None] = None
    """The workshop in which alone this is a deviation; None: any."""

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # its choices are made when it computes
        """Puts itself in the place of the job's computation."""
        if self.needs is not None:
            cast.workshop = Workshop.open(self.needs)
        cast.deviation = self
        cast.dishonest[TRAINER] = self.name

    def work(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """What it has to show. Where a choice by chance changes nothing that is committed, it chooses again."""
        for _ in range(TRIES):
            work = self.attempt(workshop, job, rng)
            if self.has_deviated(workshop, work):
                return work
        raise ConfigurationError(f"{self.name}: expected something committed to change in {TRIES} tries, got nothing")

    @abstractmethod
    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """One choice of what to do otherwise, and what comes of it."""

    def has_deviated(self, workshop: Workshop, work: Work) -> bool:  # noqa: ARG002  # a lie shows in the work alone
        """Whether that is another run than the true one."""
        return work.lie is not None


def step_of(job: Job, rng: Random, first: int = 1) -> int:
    """A step of the job, from `first` on."""
    return rng.randint(first, job.steps)


def onward(job: Job, first: int) -> range:
    """From a step to the last one."""
    return range(first, job.steps + 1)
