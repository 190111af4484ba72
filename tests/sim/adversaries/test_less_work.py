"""Trainers that do less than the agreed work, or hand in other work."""

from random import Random

import pytest

from tests.sim.adversaries.playing import deviation, job_of
from tiebreak.protocol.commitments.job import Job
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.workshop import Workshop


def works(name: str, seeds: int = 4) -> list[tuple[Job, Work]]:
    workshop = Workshop.open("exact")
    job = job_of(workshop)
    return [(job, deviation(name).work(workshop, job, Random(seed))) for seed in range(seeds)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["skipped steps", "fewer epochs", "stale checkpoint", "copied checkpoint", "another's run resubmitted"]
)
def test_less_work_costs_less(name: str) -> None:
    for job, work in works(name):
        assert 0 <= work.computed_steps < job.steps
        assert (work.computed_steps == 0) == (name == "another's run resubmitted")


@pytest.mark.parametrize("name", ["frozen layer", "smaller model"])
def test_a_smaller_model_costs_every_step(name: str) -> None:
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
def test_somebody_elses_run_is_as_real_as_this_one(workshop: Workshop) -> None:
    roots = [{r.state_root for r in workshop.another(stream).step_records} for stream in (3, 4, 5)]
    honest = {record.state_root for record in workshop.run().step_records}
    assert all(len(own) == 10 and not own & honest for own in roots)
    assert not roots[0] & roots[1]
    copied = [work for _, work in works("copied checkpoint", 8)]
    assert any({record.state_root for record in work.records} & (roots[0] | roots[1] | roots[2]) for work in copied)
    whole = [work for _, work in works("another's run resubmitted", 8)]
    assert any({record.state_root for record in work.records} <= roots[k] for work in whole for k in range(3))
