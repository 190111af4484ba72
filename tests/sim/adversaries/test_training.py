"""Trainers with other data, another order of them, or other settings than agreed."""

from collections import Counter
from random import Random

import pytest

from tests.sim.adversaries.playing import deviation, job_of
from tiebreak.protocol.program.isa import Opcode, SourceKind
from tiebreak.sim.adversaries.tampering import only, source
from tiebreak.sim.adversaries.training import constants
from tiebreak.sim.world.small_task import BETAS, DROPOUT, IMAGES, LABELS, SCHEDULE, WEIGHT_DECAY
from tiebreak.sim.world.workshop import Workshop


def test_labels_are_poisoned_in_the_batch_or_in_the_data(workshop: Workshop) -> None:
    program, job = workshop.program, job_of(workshop)
    leaves = Counter(deviation("poisoned label").work(workshop, job, Random(seed)).lie.leaf for seed in range(12))  # type: ignore[union-attr]
    assert set(leaves) == {only(program, Opcode.GATHER, LABELS), source(program, SourceKind.DATA, LABELS)}


def test_a_backdoor_stands_in_images_and_labels(workshop: Workshop) -> None:
    program, job = workshop.program, job_of(workshop)
    work = deviation("backdoor trigger").work(workshop, job, Random(3))
    assert work.lie is not None
    step, truth = work.lie.step, workshop.honest(job).oracle
    changed = {
        leaf
        for leaf in (only(program, Opcode.GATHER, IMAGES), only(program, Opcode.GATHER, LABELS))
        if work.oracle.tensor(step, leaf) != truth.tensor(step, leaf)
    }
    assert only(program, Opcode.GATHER, IMAGES) in changed
    assert work.lie.leaf == only(program, Opcode.GATHER, IMAGES)


@pytest.mark.parametrize("name", ["changed data order", "same batch repeated"])
def test_another_order_draws_agreed_data_only(name: str, workshop: Workshop) -> None:
    program, job = workshop.program, job_of(workshop)
    arrays = [source(program, SourceKind.DATA, name) for name in (IMAGES, LABELS)]
    for seed in range(3):
        work = deviation(name).work(workshop, job, Random(seed))
        assert work.lie is not None
        own, true = work.oracle.value_tree(work.lie.step), workshop.evidence().value_tree(work.lie.step)
        assert all(own.node(0, leaf) == true.node(0, leaf) for leaf in arrays)


def test_the_settings_are_in_the_program() -> None:
    program = Workshop.open("exact").program
    for value in (*BETAS, 1 - DROPOUT, WEIGHT_DECAY):
        assert len(constants(program, value)) == 1
    assert constants(program, 0.123) == []


def test_a_wrong_step_reads_a_rate_of_the_schedule(workshop: Workshop) -> None:
    job = job_of(workshop)
    rate = only(workshop.program, Opcode.GATHER, "learning_rate")
    agreed = {workshop.evidence().tensor(step, rate) for step in range(1, job.steps + 1)}
    assert len(agreed) == len(set(SCHEDULE))
    for seed in range(4):
        work = deviation("wrong step in the schedule").work(workshop, job, Random(seed))
        assert work.lie is not None
        assert work.lie.leaf == rate
        assert work.oracle.tensor(work.lie.step, rate) in agreed


def test_another_dropout_seed_leaves_the_order_of_examples_alone(workshop: Workshop) -> None:
    job, program = job_of(workshop), workshop.program
    work = deviation("changed dropout seed").work(workshop, job, Random(1))
    assert work.lie is not None
    assert work.lie.leaf == only(program, Opcode.RANDOM)
    own, true = work.oracle.value_tree(work.lie.step), workshop.evidence().value_tree(work.lie.step)
    for leaf in (only(program, Opcode.SHUFFLE), source(program, SourceKind.DATA, "seed")):
        assert own.node(0, leaf) == true.node(0, leaf)
