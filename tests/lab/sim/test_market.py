"""The market: jobs alike, and what a fork takes over."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine import logged_cases
from tests.lab.sim.yard import INTERVAL, STEPS, Yard
from tiebreak.engine.logged import journal
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.evidence import Evidence
from tiebreak.engine.run.train import Worker
from tiebreak.lab.sim.games.disputes import another, fork
from tiebreak.protocol.errors import ConfigurationError, VerificationError


@pytest.mark.parametrize("upto", [INTERVAL - 1, INTERVAL, STEPS])
def test_a_fork_takes_over_the_checkpoints(yard: Yard, upto: int) -> None:
    source = yard.arena().run
    agreement = yard.market.sign(another(source.job))
    path = yard.fresh("fork")
    made = fork(source, path, agreement, upto=upto)
    records = [record for record in source.records() if record.step <= upto]
    assert made.records() == records == RunDirectory.open(path).records()
    assert made.last_complete() == max([0, *(record.step for record in records)])
    assert made.heads() == [], "what was signed for another job says nothing about this one"
    assert made.metrics() == [metric for metric in source.metrics() if metric["step"] <= upto]
    root = Worker(made, yard.interpreter, key=yard.market.parties.trainer).work()
    assert root == source.heads()[-1].head.run_root, "an honest run is a constant"
    assert made.heads()[-1].head.job_id == agreement.job.id


def test_a_fork_leaves_its_source_alone(yard: Yard) -> None:
    source = yard.arena().run
    before = {path: path.read_bytes() for path in source.path.rglob("*") if path.is_file()}
    made = fork(source, yard.fresh("fork"), yard.market.sign(another(source.job)), upto=STEPS)
    made.state_path(STEPS).write_bytes(b"")
    assert {path: path.read_bytes() for path in source.path.rglob("*") if path.is_file()} == before


def test_a_fork_refuses_a_job_of_another_computation(yard: Yard) -> None:
    source, job = yard.arena().run, yard.job()
    with pytest.raises(ConfigurationError, match="expected a job of checkpoint_interval 3, got 2"):
        fork(source, yard.fresh("f"), yard.market.sign(replace(job, checkpoint_interval=2)), upto=3)
    with pytest.raises(ConfigurationError, match="expected a job of steps 8, got 7"):
        fork(source, yard.fresh("f"), yard.market.sign(replace(job, steps=7)), upto=3)
    for change in ("program_root", "initial_state_root", "data_root"):
        path = yard.fresh("f")
        with pytest.raises(VerificationError):
            fork(source, path, yard.market.sign(replace(job, **{change: bytes(32)})), upto=3)
        assert not path.exists()


def test_a_fork_takes_the_logs_along(tmp_path: Path, yard: Yard) -> None:
    source = logged_cases.new_run(tmp_path / "run", logged_cases.logged_job())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "Recorder", logged_cases.Flipping)
        logged_cases.train(source)
    keys = yard.market.parties
    job = replace(source.job, client=keys.client.address, trainer=keys.trainer.address)
    agreement = yard.market.sign(another(job))
    made = fork(source, tmp_path / "fork", agreement, upto=2 * logged_cases.INTERVAL)
    assert made.records() == source.records()[:2]
    steps = range(1, 2 * logged_cases.INTERVAL + 1)
    assert all(logged_cases.log_of(made, step) == logged_cases.log_of(source, step) for step in steps)
    assert sum(logged_cases.log_of(made, step).count for step in steps) > 0
    evidence = Evidence(made, logged_cases.machine(made.job), CommittedLogs.of(made))
    assert evidence.record(steps[-1]) == source.records()[1]
    for change in ({"precision": 26}, {"tolerances": 0}, {"policy": 0, "tolerances": 0}):
        with pytest.raises(ConfigurationError, match=f"expected a job of {next(iter(change))} "):
            fork(source, tmp_path / "other", yard.market.sign(replace(made.job, **change)), upto=0)
