"""What stands in the place of honest values."""

import pytest
import torch

from tests.sim.adversaries.playing import job_of
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import Opcode, SourceKind
from tiebreak.sim.adversaries import tampering
from tiebreak.sim.adversaries.forgery import deviating
from tiebreak.sim.world.workshop import Workshop


def test_a_deviation_has_its_steps() -> None:
    observer = tampering.putting({})
    tamper = tampering.during((2, 5), lambda _: observer)
    assert [step for step in range(8) if tamper(step)] == [2, 5]


def test_observers_follow_each_other() -> None:
    both = tampering.together(
        tampering.putting({1: lambda x: x + 1}), tampering.putting({1: lambda x: x * 10, 2: lambda x: -x})
    )
    one = torch.tensor(1.0)
    assert [both(leaf, one).item() for leaf in (0, 1, 2)] == [1, 20, -1]
    assert one.item() == 1


def test_every_entry_of_the_state_is_read_and_committed(workshop: Workshop) -> None:
    names = list(workshop.program.state_spec())
    assert sorted(tampering.state_sources(workshop.program).values()) == names
    assert list(tampering.commits_by_leaf(workshop.program).values()) == names


def test_what_is_redone_with_the_same_operands_is_the_same(workshop: Workshop) -> None:
    program, machine = workshop.program, workshop.interpreter.arithmetic
    clock, seed = tampering.source(program, SourceKind.STEP), tampering.source(program, SourceKind.DATA, "seed")
    shuffle, drawn = tampering.only(program, Opcode.SHUFFLE), tampering.only(program, Opcode.RANDOM)
    same = tampering.during(
        (3,),
        lambda step: tampering.redoing(
            program, machine, step, {shuffle: {seed: torch.tensor(11)}, drawn: {clock: torch.tensor(step - 1)}}
        ),
    )
    assert deviating(workshop, job_of(workshop), same, first_step=3).lie is None
    other = tampering.during(
        (3,), lambda step: tampering.redoing(program, machine, step, {drawn: {clock: torch.tensor(step)}})
    )
    lie = deviating(workshop, job_of(workshop), other, first_step=3).lie
    assert lie is not None
    assert (lie.step, lie.leaf) == (3, drawn)


def test_a_state_is_kept_or_not_by_name(workshop: Workshop) -> None:
    program = workshop.program
    new = tampering.during((4,), lambda _: tampering.committing(program, lambda _name, new, _old: new))
    assert deviating(workshop, job_of(workshop), new, first_step=4).lie is None
    old = tampering.during((4,), lambda _: tampering.committing(program, lambda _name, _new, old: old))
    work = deviating(workshop, job_of(workshop), old, first_step=4)
    assert work.oracle.record(4).state_root == work.oracle.record(3).state_root


def test_what_is_not_there_cannot_be_found(workshop: Workshop) -> None:
    with pytest.raises(ConfigurationError, match="expected one REDUCE of anything, got "):
        tampering.only(workshop.program, Opcode.REDUCE)
    with pytest.raises(ConfigurationError, match="expected one GATHER of prices, got 0"):
        tampering.only(workshop.program, Opcode.GATHER, "prices")
    with pytest.raises(ConfigurationError, match="expected one source DATA prices, got 0"):
        tampering.source(workshop.program, SourceKind.DATA, "prices")
