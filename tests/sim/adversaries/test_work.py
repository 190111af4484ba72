"""Trainers that do less than the agreed work, or hand in other work."""

from random import Random

import pytest

from tests.sim.adversaries.playing import convict, job_of
from tiebreak.protocol.commitments.job import Job
from tiebreak.sim.adversaries.deviations import DeviatingTrainer
from tiebreak.sim.adversaries.work import (
    ADVERSARIES,
    AnothersRun,
    CopiedCheckpoint,
    FewerEpochs,
    FrozenLayer,
    SkippedSteps,
    SmallerModel,
    StaleCheckpoint,
)
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.workshop import Workshop


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", ADVERSARIES, ids=lambda kind: kind.name)
def test_it_is_convicted_at_its_first_lie(kind: type[DeviatingTrainer], seed: int) -> None:
    convict(kind, seed)


def works(kind: type[DeviatingTrainer], seeds: int = 4) -> list[tuple[Job, Work]]:
    workshop = Workshop.open("exact")
    job = job_of(workshop)
    return [(job, kind().work(workshop, job, Random(seed))) for seed in range(seeds)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SkippedSteps, FewerEpochs, StaleCheckpoint, CopiedCheckpoint, AnothersRun])
def test_less_work_costs_less(kind: type[DeviatingTrainer]) -> None:
    for job, work in works(kind):
        assert 0 <= work.computed_steps < job.steps
        assert (work.computed_steps == 0) == (kind is AnothersRun)


@pytest.mark.parametrize("kind", [FrozenLayer, SmallerModel])
def test_a_smaller_model_costs_every_step(kind: type[DeviatingTrainer]) -> None:
    assert all(work.computed_steps == job.steps for job, work in works(kind, 2))


def test_a_run_that_stops_early_does_not_learn_any_more() -> None:
    for job, work in works(FewerEpochs):
        done = work.computed_steps
        parameters = [
            {work.oracle.state_id(step, name) for step in range(done, job.steps + 1)}
            for name in work.oracle.program.state_spec()
            if name.startswith("model.") and "num_batches" not in name
        ]
        assert all(len(ids) == 1 for ids in parameters)
        assert len({work.oracle.record(step).digest for step in range(1, job.steps + 1)}) == job.steps


def test_a_stale_checkpoint_holds_a_state_that_was_there_before() -> None:
    workshop = Workshop.open("exact")
    older = {record.state_root for record in workshop.run().step_records} | {job_of(workshop).initial_record.state_root}
    for _, work in works(StaleCheckpoint):
        assert work.lie is not None
        assert work.oracle.record(work.lie.step).state_root in older


@pytest.mark.slow
def test_somebody_elses_run_is_as_real_as_this_one() -> None:
    workshop = Workshop.open("exact")
    roots = [{r.state_root for r in workshop.another(stream).step_records} for stream in (3, 4, 5)]
    honest = {record.state_root for record in workshop.run().step_records}
    assert all(len(own) == 10 and not own & honest for own in roots)
    assert not roots[0] & roots[1]
    copied = [work for _, work in works(CopiedCheckpoint, 8)]
    assert any({record.state_root for record in work.records} & (roots[0] | roots[1] | roots[2]) for work in copied)
    whole = [work for _, work in works(AnothersRun, 8)]
    assert any({record.state_root for record in work.records} <= roots[k] for work in whole for k in range(3))
