"""Trainers with other settings than the agreed ones."""

from random import Random

import pytest

from tests.sim.adversaries.playing import convict, job_of
from tiebreak.protocol.program.isa import Opcode, SourceKind
from tiebreak.sim.adversaries.deviations import DeviatingTrainer
from tiebreak.sim.adversaries.observers import only, source
from tiebreak.sim.adversaries.settings import (
    ADVERSARIES,
    ChangedBeta,
    ChangedDropoutSeed,
    ChangedInitialisation,
    WrongScheduleStep,
    constants,
)
from tiebreak.sim.world.small_task import BETAS, DROPOUT, SCHEDULE, WEIGHT_DECAY
from tiebreak.sim.world.workshop import Workshop


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", ADVERSARIES, ids=lambda kind: kind.name)
def test_it_is_convicted_at_its_first_lie(kind: type[DeviatingTrainer], seed: int) -> None:
    duel = convict(kind, seed)
    assert duel.work.computed_steps == 10
    if kind is ChangedInitialisation:
        assert (duel.lie.step, duel.lie.element) == (1, None)
    if kind is ChangedBeta:
        assert duel.origin().startswith("optimizer.")


def test_the_settings_are_in_the_program() -> None:
    program = Workshop.open("exact").program
    for value in (*BETAS, 1 - DROPOUT, WEIGHT_DECAY):
        assert len(constants(program, value)) == 1
    assert constants(program, 0.123) == []


def test_a_wrong_step_reads_a_rate_of_the_schedule() -> None:
    workshop = Workshop.open("exact")
    job = job_of(workshop)
    rate = only(workshop.program, Opcode.GATHER, "learning_rate")
    agreed = {workshop.evidence().tensor(step, rate) for step in range(1, job.steps + 1)}
    assert len(agreed) == len(set(SCHEDULE))
    for seed in range(4):
        work = WrongScheduleStep().work(workshop, job, Random(seed))
        assert work.lie is not None
        assert work.lie.leaf == rate
        assert work.oracle.tensor(work.lie.step, rate) in agreed


def test_another_dropout_seed_leaves_the_order_of_examples_alone() -> None:
    workshop = Workshop.open("exact")
    job, program = job_of(workshop), workshop.program
    work = ChangedDropoutSeed().work(workshop, job, Random(1))
    assert work.lie is not None
    assert work.lie.leaf == only(program, Opcode.RANDOM)
    own, true = work.oracle.value_tree(work.lie.step), workshop.evidence().value_tree(work.lie.step)
    for leaf in (only(program, Opcode.SHUFFLE), source(program, SourceKind.DATA, "seed")):
        assert own.node(0, leaf) == true.node(0, leaf)
