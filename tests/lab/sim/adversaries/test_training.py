"""Trainers with other data, another order of them, or other settings than agreed; and with less work."""

import pytest

from tests.lab.sim.adversaries.playing import deviate, job_of, lied
from tiebreak.lab.sim.adversaries.tampering import drawn, stored
from tiebreak.lab.sim.world.small_task import IMAGES, LABELS, SCHEDULE
from tiebreak.lab.sim.world.workshop import Workshop


def test_labels_are_poisoned_in_the_batch_or_in_the_data(workshop: Workshop) -> None:
    leaves = {lied("poisoned label", seed, workshop)[1].leaf for seed in range(12)}
    assert leaves == {drawn(workshop.program, LABELS), stored(workshop.program, LABELS)}


@pytest.mark.parametrize("name", ["changed data order", "same batch repeated"])
def test_another_order_draws_agreed_data_only(name: str, workshop: Workshop) -> None:
    arrays = [stored(workshop.program, name) for name in (IMAGES, LABELS)]
    for seed in range(3):
        work, lie = lied(name, seed, workshop)
        own, true = work.oracle.value_tree(lie.step), workshop.evidence.value_tree(lie.step)
        assert all(own.node(0, leaf) == true.node(0, leaf) for leaf in arrays)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["skipped steps", "fewer epochs", "stale checkpoint", "copied checkpoint", "another's run resubmitted"]
)
def test_cheats_that_skip_work_compute_fewer_steps(name: str, workshop: Workshop) -> None:
    for seed in range(4):
        work = deviate(name, seed, workshop)
        assert 0 <= work.computed_steps < len(SCHEDULE)
        assert (work.computed_steps == 0) == (name == "another's run resubmitted")


def test_a_stale_checkpoint_holds_a_state_that_was_there_before(workshop: Workshop) -> None:
    older = {record.state_root for record in workshop.run.step_records} | {job_of(workshop).initial_record.state_root}
    for seed in range(4):
        work, lie = lied("stale checkpoint", seed, workshop)
        assert work.oracle.record(lie.step).state_root in older
