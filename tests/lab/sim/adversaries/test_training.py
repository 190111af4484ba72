"""Trainers with other data, another order of them, or other settings than agreed; and with less work."""

from collections import Counter
from random import Random

import pytest

from tests.lab.sim.adversaries.playing import deviation, job_of
from tiebreak.lab.sim.adversaries.tampering import only, source
from tiebreak.lab.sim.adversaries.training import constants
from tiebreak.lab.sim.world.small_task import BETAS, DROPOUT, IMAGES, LABELS, SCHEDULE, WEIGHT_DECAY
from tiebreak.lab.sim.world.work import Work
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.program.isa import Opcode, SourceKind


def test_labels_are_poisoned_in_the_batch_or_in_the_data(workshop: Workshop) -> None:
    program, job = workshop.program, job_of(workshop)
    leaves = Counter(deviation("poisoned label").work(workshop, job, Random(seed)).lie.leaf for seed in range(12))  # type: ignore[union-attr]
    assert set(leaves) == {only(program, Opcode.GATHER, LABELS), source(program, SourceKind.DATA, LABELS)}


def test_a_backdoor_changes_the_images_of_a_batch(workshop: Workshop) -> None:
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


def test_each_training_setting_is_one_constant_of_the_program() -> None:
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


def works(name: str, seeds: int = 4) -> list[tuple[Job, Work]]:
    workshop = Workshop.open("exact")
    job = job_of(workshop)
    return [(job, deviation(name).work(workshop, job, Random(seed))) for seed in range(seeds)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["skipped steps", "fewer epochs", "stale checkpoint", "copied checkpoint", "another's run resubmitted"]
)
def test_cheats_that_skip_work_compute_fewer_steps(name: str) -> None:
    for job, work in works(name):
        assert 0 <= work.computed_steps < job.steps
        assert (work.computed_steps == 0) == (name == "another's run resubmitted")


@pytest.mark.parametrize("name", ["frozen layer", "smaller model"])
def test_smaller_model_cheats_still_compute_every_step(name: str) -> None:
    assert all(work.computed_steps == job.steps for job, work in works(name, 2))


def test_a_run_that_stops_early_does_not_learn_any_more() -> None:
    for job, work in works("fewer epochs"):
        done = work.computed_steps
        parameters = [
            {work.oracle.state_id(step, name) for step in range(done, job.steps + 1)}
            for name in work.oracle.program.state_spec()
            if name.startswith("model.") and "num_batches" not in name
        ]
        assert all(len(ids) == 1 for ids in parameters)
        assert len({work.oracle.record(step).digest for step in range(1, job.steps + 1)}) == job.steps


def test_a_stale_checkpoint_holds_a_state_that_was_there_before(workshop: Workshop) -> None:
    older = {record.state_root for record in workshop.run().step_records} | {job_of(workshop).initial_record.state_root}
    for _, work in works("stale checkpoint"):
        assert work.lie is not None
        assert work.oracle.record(work.lie.step).state_root in older


@pytest.mark.slow
def test_copied_checkpoints_come_from_other_real_runs(workshop: Workshop) -> None:
    roots = [{r.state_root for r in workshop.another(stream).step_records} for stream in (3, 4, 5)]
    honest = {record.state_root for record in workshop.run().step_records}
    assert all(len(own) == 10 and not own & honest for own in roots)
    assert not roots[0] & roots[1]
    copied = [work for _, work in works("copied checkpoint", 8)]
    assert any({record.state_root for record in work.records} & (roots[0] | roots[1] | roots[2]) for work in copied)
    whole = [work for _, work in works("another's run resubmitted", 8)]
    assert any({record.state_root for record in work.records} <= roots[k] for work in whole for k in range(3))
