"""Trainers with other data, another order of them, or other settings than agreed; and with less work."""

import pytest

from tests.lab.sim.adversaries.playing import deviate, job_of, lied
from tiebreak.lab.sim.adversaries.tampering import drawn, stored
from tiebreak.lab.sim.world.small_task import IMAGES, LABELS, SCHEDULE
from tiebreak.lab.sim.world.workshop import Workshop


def test_labels_are_poisoned_in_the_batch_or_in_the_data(workshop: Workshop) -> None:
    leaves = {lied("poisoned label", seed, workshop)[1].leaf for seed in range(12)}
    assert leaves == {drawn(workshop.program, LABELS), stored(workshop.program, LABELS)}


def test_a_backdoor_changes_the_images_of_a_batch(workshop: Workshop) -> None:
    _, lie = lied("backdoor trigger", 3, workshop)
    assert lie.leaf == drawn(workshop.program, IMAGES)


@pytest.mark.parametrize("name", ["changed data order", "same batch repeated"])
def test_another_order_draws_agreed_data_only(name: str, workshop: Workshop) -> None:
    arrays = [stored(workshop.program, name) for name in (IMAGES, LABELS)]
    for seed in range(3):
        work, lie = lied(name, seed, workshop)
        own, true = work.oracle.value_tree(lie.step), workshop.evidence.value_tree(lie.step)
        assert all(own.node(0, leaf) == true.node(0, leaf) for leaf in arrays)


def test_a_wrong_step_reads_a_rate_of_the_schedule(workshop: Workshop) -> None:
    rate = drawn(workshop.program, "learning_rate")
    agreed = {workshop.evidence.tensor(step, rate) for step in range(1, len(SCHEDULE) + 1)}
    assert len(agreed) == len(set(SCHEDULE))
    for seed in range(4):
        work, lie = lied("wrong step in the schedule", seed, workshop)
        assert lie.leaf == rate
        assert work.oracle.tensor(lie.step, rate) in agreed


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["skipped steps", "fewer epochs", "stale checkpoint", "copied checkpoint", "another's run resubmitted"]
)
def test_cheats_that_skip_work_compute_fewer_steps(name: str, workshop: Workshop) -> None:
    for seed in range(4):
        work = deviate(name, seed, workshop)
        assert 0 <= work.computed_steps < len(SCHEDULE)
        assert (work.computed_steps == 0) == (name == "another's run resubmitted")


def test_a_run_that_stops_early_does_not_learn_any_more(workshop: Workshop) -> None:
    work, steps = deviate("fewer epochs", 0, workshop), job_of(workshop).steps
    for name in work.oracle.program.state_spec():
        if name.startswith("model.") and "num_batches" not in name:
            assert len({work.oracle.state_id(step, name) for step in range(work.computed_steps, steps + 1)}) == 1
    assert len({work.oracle.record(step).digest for step in range(1, steps + 1)}) == steps


def test_a_stale_checkpoint_holds_a_state_that_was_there_before(workshop: Workshop) -> None:
    older = {record.state_root for record in workshop.run.step_records} | {job_of(workshop).initial_record.state_root}
    for seed in range(4):
        work, lie = lied("stale checkpoint", seed, workshop)
        assert work.oracle.record(lie.step).state_root in older
