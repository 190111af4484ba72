"""A false run for adversaries that deviate only in how they behave with it: one number of one step is changed."""

from dataclasses import dataclass
from random import Random
from typing import ClassVar, Final

import torch
from torch import Tensor

from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import TERMS_PER_LEAF
from tiebreak.sim.adversaries.base import Adversary, Catch, Role
from tiebreak.sim.adversaries.cheats import Cheat, long_sums
from tiebreak.sim.adversaries.forged_runs import tampered
from tiebreak.sim.world.agents import Trainer
from tiebreak.sim.world.cast import Cast, TrainerFactory
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.workshop import Workshop

TRAINER: Final = "trainer"
"""The trainer's name in a cast."""
TRIES: Final = 64


def _twice(value: Tensor) -> Tensor:
    """Twice the number, which has the same precision. Zero and non-finite numbers, which doubling keeps, become 1."""
    return torch.where((value == 0) | ~torch.isfinite(value), 1.0, value * 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseSum:
    """Doubles one element of a sum of products. The walk to it passes every kind of tree, down to partial sums."""

    in_last_segment: bool = False
    """Whether all heads but the last are true."""
    stepwise: bool = False
    """Whether the step is in a segment of several steps, so that the walk passes all phases."""

    def work(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """The false run. A change that reaches no commitment is drawn again."""
        program = workshop.program
        for _ in range(TRIES):
            leaf = rng.choice(long_sums(program, TERMS_PER_LEAF + 1))
            step = rng.randint(self._first(job), self._last(job))
            element = rng.randrange(program.body[leaf].numel)
            cheat = Cheat(name="false sum", gain="-", step=step, leaf=leaf, element=element, change=_twice)
            work = tampered(workshop, job, cheat, first_step=step)
            if work.lie is not None:
                return work
        raise ConfigurationError(f"expected a false sum to reach a record in {TRIES} tries, got none")

    def _first(self, job: Job) -> int:
        return job.first_step(job.checkpoints - 1) if self.in_last_segment else 1

    def _last(self, job: Job) -> int:
        if not self.stepwise:
            return job.steps
        return max(job.last_step(k) for k in range(job.checkpoints) if job.segment_steps(k) > 1)


def seat_trainer(cast: Cast, name: str, trainer: TrainerFactory, *, false_run: FalseSum | None = None) -> None:
    """Seat a trainer in a cast. `false_run` is what it computes instead of the job."""
    cast.trainer = trainer
    if false_run is not None:
        cast.deviation = false_run
    cast.dishonest[TRAINER] = name


class PlainFalseRun(Adversary):
    """One false number, and everything else as agreed. Other adversaries use it as a cheat to be found."""

    name: ClassVar[str] = "one false sum"
    gain: ClassVar[str] = "a number of its own choice in the run"
    role: ClassVar[Role] = Role.TRAINER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.RECOMPUTED})

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # the false number is drawn when it computes
        seat_trainer(cast, self.name, Trainer, false_run=FalseSum())


ADVERSARIES: tuple[type[Adversary], ...] = (PlainFalseRun,)
