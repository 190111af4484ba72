"""Deviations for tests of the world; the catalogue of adversaries is elsewhere."""

from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from protocol.job import Job
from sim.computing.work import Work
from sim.computing.workshop import Workshop
from sim.tampering.values import Cheat


def another(value: Tensor) -> Tensor:
    """Another value of the same dtype."""
    return ~value if value.dtype == torch.bool else value + 1


@dataclass(frozen=True, kw_only=True)
class Changed:
    """One element of one value is another."""

    step: int
    leaf: int
    element: int

    def work(self, workshop: Workshop, job: Job, rng: Random) -> Work:  # it is told where
        cheat = Cheat(name="-", gain="-", step=self.step, leaf=self.leaf, element=self.element, change=another)
        return workshop.tampered(job, cheat, first_step=self.step)
