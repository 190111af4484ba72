"""Where two runs first differ, and what a party would have had to execute."""

from dataclasses import replace

import pytest
import torch

from tests.lab.sim.adversaries.playing import job_of
from tiebreak.lab.sim.adversaries.tampering import deviating, during, only, putting
from tiebreak.lab.sim.world.work import Lie, Work, first_lie
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import Opcode


def changed(workshop: Workshop, leaf: int, *steps: int) -> Work:
    """One more in the last element of a leaf, in these steps."""

    def more(value: torch.Tensor) -> torch.Tensor:
        other = value.clone()
        other.view(-1)[-1] += 1
        return other

    return deviating(workshop, job_of(workshop), during(steps, lambda _: putting({leaf: more})), first_step=min(steps))


@pytest.mark.parametrize(
    ("leaf", "element"),
    [(23, 127), (22, 7), (19, None), (3, None), (256, None), (256 + 5, None), (230, 0)],
    ids=["sum", "labels", "data", "state", "commit", "counter", "loss"],
)
def test_the_lie_is_where_the_values_first_differ(workshop: Workshop, leaf: int, element: int | None) -> None:
    assert changed(workshop, leaf, 4, 6).lie == Lie(step=4, leaf=leaf, element=element)
    assert changed(workshop, leaf, 10).lie == Lie(step=10, leaf=leaf, element=element)


def test_what_reaches_no_checkpoint_is_no_lie(workshop: Workshop) -> None:
    """Another random number on the same side of the dropout rate: the value is false, and no state knows it."""
    leaf = only(workshop.program, Opcode.RANDOM)

    def a_little_less(drawn: torch.Tensor) -> torch.Tensor:
        return torch.where(drawn < 0.5, drawn + 2.0**-24, drawn)

    tamper = during((2,), lambda _: putting({leaf: a_little_less}))
    work = deviating(workshop, job_of(workshop), tamper, first_step=2)
    assert work.oracle.tensor(2, leaf) != workshop.evidence.tensor(2, leaf)
    assert work.lie is None
    assert work.records == workshop.honest(job_of(workshop)).records


class Misreported:
    """The honest run, one of whose records names another loss."""

    def __init__(self, workshop: Workshop) -> None:
        self.honest = workshop.evidence

    def record(self, step: int) -> StepRecord:
        record = self.honest.record(step)
        return replace(record, loss_bits=record.loss_bits ^ 1) if step == 3 else record

    def __getattr__(self, name: str) -> object:
        return getattr(self.honest, name)


def test_a_step_record_that_contradicts_its_values_is_an_error(workshop: Workshop) -> None:
    with pytest.raises(ConfigurationError, match="expected values that differ in step 3, as its records do"):
        first_lie(Misreported(workshop), workshop.evidence)  # type: ignore[arg-type]
