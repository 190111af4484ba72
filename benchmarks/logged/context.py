"""The context of each part of `benchmarks.logged`: one model, its policies, its parties, and the rows that it makes."""

import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import click
import torch
from torch import Tensor

from benchmarks.logged.names import CALIBRATED
from benchmarks.logged.steps import Auditor, Rules, Trainer
from benchmarks.logged.store import Store, Unit
from benchmarks.logged.workloads import Sizes
from benchmarks.table import Row
from tiebreak.engine.capture.captured import Captured, Terms, capture_task, draft_job
from tiebreak.engine.capture.task import Task
from tiebreak.engine.logged.calibration import proven_policy
from tiebreak.engine.logged.policy import LoggedPolicy
from tiebreak.engine.run.interpreter import State
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.program.rounding import Policy

ORDERS: Final = 7
"""The seed of an auditor's random orders of summation."""


@dataclass(kw_only=True)
class Context:
    """The unit that is being measured."""

    unit: Unit
    sizes: Sizes
    store: Store
    task: Task
    started: float = field(default_factory=time.perf_counter)

    @cached_property
    def captured(self) -> Captured:
        """The captured step."""
        return capture_task(self.task)

    def row(self, metric: str, value: float, unit: str, *case: str, target: str = "") -> Row:
        """A row of this unit; `case` extends the unit's own case."""
        return Row(metric=metric, case=", ".join((self.unit.case, *case)), value=value, unit=unit, target=target)

    def say(self, what: str) -> None:
        """Reports progress."""
        click.echo(f"{self.unit.case}: {time.perf_counter() - self.started:7.1f} s  {what}", err=True)

    def policy(self) -> LoggedPolicy:
        """The policy that part `thresholds` found."""
        path = self.store.policy(self.unit.model)
        if not path.is_file():
            raise click.ClickException(f"expected {path}, which --parts thresholds makes; found none")
        return LoggedPolicy.load(path)

    def rules(self, precision: int, thresholds: str = CALIBRATED) -> Rules:
        """The rules at a precision, with the policy's thresholds or, if asked for, the proven bounds."""
        policy = self.policy() if thresholds == CALIBRATED else proven_policy(precision)
        return Rules(precision=precision, logging=policy.logging())

    @cached_property
    def drafted(self) -> Job:
        """A job under policy `exact`. It is cached because drafting it hashes the state."""
        return draft_job(
            self.captured,
            steps=self.task.steps,
            checkpoint_interval=self.task.checkpoint_interval,
            client=Address(bytes([1] * 20)),
            trainer=Address(bytes([2] * 20)),
            terms=Terms(),
        )

    def job(self, rules: Rules) -> Job:
        """The job that an auditor follows under these rules."""
        policy = int(Policy.LOGGED)
        return replace(self.drafted, policy=policy, precision=rules.precision, tolerances=rules.tolerances)

    def trainer(self, rules: Rules) -> Trainer:
        """A trainer at the initial state."""
        return Trainer(self.captured, self.task.steps, rules)

    def auditor(self, trainer: Trainer, permute: int | None = ORDERS) -> Auditor:
        """An auditor at the initial state, which takes its sums in other orders."""
        return Auditor(self.captured, self.task.steps, trainer, self.job(trainer.rules), permute)


def check_equal(left: State, right: State, what: str) -> None:
    """Exits if the bits of two states differ, because the measurements would then mean nothing."""
    for name, tensor in left.items():
        if not torch.equal(bits(tensor), bits(right[name])):
            raise StateError(f"{what}: expected the same bits in {name}, got others")


def bits(tensor: Tensor) -> Tensor:
    """The bit patterns of an f32 tensor; other tensors as they are."""
    return tensor.view(torch.int32) if tensor.dtype == torch.float32 else tensor
