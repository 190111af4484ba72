"""The base class of trainers that compute something other than the job."""

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
"""The trainer's name in a cast."""
TRIES: Final = 64


class DeviatingTrainer(Adversary):
    """Computes wrong numbers, but signs and publishes its heads honestly and plays its games as well as possible."""

    role: ClassVar[Role] = Role.TRAINER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.RECOMPUTED})

    needs: ClassVar[str | None] = None
    """The only workshop in which this is a deviation; None for all."""

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

    @abstractmethod
    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """The run of one random choice."""

    def has_deviated(self, workshop: Workshop, work: Work) -> bool:  # noqa: ARG002  # a lie shows in the work alone
        """Whether the run differs from the true one."""
        return work.lie is not None


def step_of(job: Job, rng: Random, first: int = 1) -> int:
    """A random step of the job, from `first` on."""
    return rng.randint(first, job.steps)


def onward(job: Job, first: int) -> range:
    """All steps from `first` to the last."""
    return range(first, job.steps + 1)
