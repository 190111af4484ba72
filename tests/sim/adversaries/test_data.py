"""Trainers with other data, or the same in another order."""

from collections import Counter
from random import Random

import pytest

from tests.sim.adversaries.playing import convict, job_of
from tiebreak.protocol.program.isa import Opcode, SourceKind
from tiebreak.sim.adversaries.data import ADVERSARIES, Backdoor, ChangedOrder, PoisonedLabel, RepeatedBatch
from tiebreak.sim.adversaries.deviations import DeviatingTrainer
from tiebreak.sim.adversaries.observers import only, source
from tiebreak.sim.world.small_task import IMAGES, LABELS
from tiebreak.sim.world.workshop import Workshop


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", ADVERSARIES, ids=lambda kind: kind.name)
def test_it_is_convicted_at_its_first_lie(kind: type[DeviatingTrainer], seed: int) -> None:
    duel = convict(kind, seed)
    program = duel.workshop.program
    reads_data = {only(program, Opcode.GATHER, name) for name in (IMAGES, LABELS)}
    reads_data |= {source(program, SourceKind.DATA, name) for name in (IMAGES, LABELS)}
    before_data = range(only(program, Opcode.SHUFFLE) + 1)
    assert duel.lie.leaf in reads_data | set(before_data)
    assert duel.work.computed_steps == 10


def test_labels_are_poisoned_in_the_batch_or_in_the_data() -> None:
    workshop = Workshop.open("exact")
    program, job = workshop.program, job_of(workshop)
    leaves = Counter(PoisonedLabel().work(workshop, job, Random(seed)).lie.leaf for seed in range(12))  # type: ignore[union-attr]
    assert set(leaves) == {only(program, Opcode.GATHER, LABELS), source(program, SourceKind.DATA, LABELS)}


def test_a_backdoor_stands_in_images_and_labels() -> None:
    workshop = Workshop.open("exact")
    program, job = workshop.program, job_of(workshop)
    work = Backdoor().work(workshop, job, Random(3))
    assert work.lie is not None
    step, truth = work.lie.step, workshop.honest(job).oracle
    changed = {
        leaf
        for leaf in (only(program, Opcode.GATHER, IMAGES), only(program, Opcode.GATHER, LABELS))
        if work.oracle.tensor(step, leaf) != truth.tensor(step, leaf)
    }
    assert only(program, Opcode.GATHER, IMAGES) in changed
    assert work.lie.leaf == only(program, Opcode.GATHER, IMAGES)


@pytest.mark.parametrize("kind", [ChangedOrder, RepeatedBatch])
def test_another_order_draws_agreed_data_only(kind: type[DeviatingTrainer]) -> None:
    workshop = Workshop.open("exact")
    program, job = workshop.program, job_of(workshop)
    arrays = [source(program, SourceKind.DATA, name) for name in (IMAGES, LABELS)]
    for seed in range(3):
        work = kind().work(workshop, job, Random(seed))
        assert work.lie is not None
        own, true = work.oracle.value_tree(work.lie.step), workshop.evidence().value_tree(work.lie.step)
        assert all(own.node(0, leaf) == true.node(0, leaf) for leaf in arrays)
