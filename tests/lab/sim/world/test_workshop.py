"""The honest run is the one that the engine trains into a directory; what is shared is never changed."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from tests.lab.sim.adversaries.playing import CLIENT, DOMAIN, TRAINER, deviate, fight, job_of
from tiebreak.engine.capture.captured import sign_job
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.logged.journal import LogsInProgress
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.evidence import Evidence
from tiebreak.engine.run.logs import Logs
from tiebreak.engine.run.train import Worker
from tiebreak.lab.sim.adversaries.tampering import Cheat, ForgedEvidence, Tampered, flip_bit, tampered
from tiebreak.lab.sim.world.workshop import RULES, Workshop
from tiebreak.protocol.commitments.records import state_tree
from tiebreak.protocol.errors import CannotCheck, ConfigurationError
from tiebreak.protocol.program.rounding import StepLog


@pytest.fixture(params=[*RULES])
def workshop(request: pytest.FixtureRequest) -> Workshop:
    return Workshop.open(request.param)


def directory(workshop: Workshop, path: Path) -> RunDirectory:
    """An empty run directory of a job over the same computation."""
    agreement = sign_job(job_of(workshop), DOMAIN, client=CLIENT, trainer=TRAINER)
    captured = workshop.captured
    return RunDirectory.create(path, agreement, captured.program, captured.state, captured.data)


def following(own: RunDirectory, run: RunDirectory) -> Logs:
    """The logs of an auditor's replay, which follows those of a run."""
    return LogsInProgress.of(own, CommittedLogs(LogFiles(run), run.record_at).step_log)


def test_the_honest_run_is_the_one_that_a_worker_trains(workshop: Workshop, tmp_path: Path) -> None:
    run, job = directory(workshop, tmp_path / "run"), job_of(workshop)
    Worker(run, workshop.interpreter, key=TRAINER, logs=LogsInProgress.of(run, supply=workshop.supply)).work()
    work = workshop.honest(job)
    assert tuple(run.records()) == work.records
    assert [work.run_root(count) for count in range(1, 5)] == [head.head.run_root for head in run.heads()]
    assert (work.computed_steps, work.lie) == (job.steps, None)
    evidence = Evidence(run, workshop.interpreter, CommittedLogs.of(run))
    for step in range(1, job.steps + 1):
        assert work.oracle.record(step) == evidence.record(step)
        assert work.oracle.value_tree(step).root == evidence.value_tree(step).root
    if job.is_logged:
        assert work.logs == {step: LogFiles(run).step_log(step) for step in range(1, job.steps + 1)}
        replay = directory(workshop, tmp_path / "replay")
        Worker(replay, workshop.auditor, logs=following(replay, run)).work()
        assert replay.records() == run.records()
        copied = Evidence(replay, workshop.auditor, CommittedLogs.of(replay))
        for step in range(1, job.steps + 1):
            assert {shown.log_tree(step).root for shown in (evidence, copied)} == {work.oracle.log_tree(step).root}
            assert copied.record(step) == evidence.record(step)


GOLDEN = {
    "exact": ("4d957dc93d328ade", "7e1f59c0338dcc2a"),
    "logged": ("4d957dc93d328ade", "78c6516b0cce6b2d"),
    "rollouts": ("630b3464e5907c41", "43911f0edc516cce"),
}
"""Initial state and last record, as every machine, thread count and instruction set has computed them so far."""


def test_the_honest_runs_hashes_equal_pinned_values(workshop: Workshop) -> None:
    """A change here changes every simulated game, and what its line stands for."""
    digests = state_tree(identities(workshop.captured.state)).root, workshop.run.step_records[-1].digest
    assert tuple(found.hex()[:16] for found in digests) == GOLDEN[workshop.name]


def test_near_ties_happen_under_policy_logged() -> None:
    logs = Workshop.open("logged").run.logs()
    assert logs is not None
    assert all(log.count for log in logs.values())
    assert Workshop.open("exact").run.logs() is None


@pytest.mark.slow
@pytest.mark.parametrize(("leaf", "step"), [(23, 5), (113, 10)])
def test_a_tampered_run_is_the_one_that_a_worker_trains(
    workshop: Workshop, tmp_path: Path, leaf: int, step: int
) -> None:
    """The same records, and the same game move by move."""
    job, leaf = job_of(workshop), 92 if workshop.samples else leaf  # no other tokens are sampled by an advantage
    cheat = Cheat(step=step, leaf=leaf, element=3, change=lambda value: flip_bit(value, 20))
    cheating = directory(workshop, tmp_path / "cheat")
    machine = Tampered(workshop.interpreter, cheat.tamper)
    logs = LogsInProgress.of(cheating, supply=workshop.supply)
    Worker(cheating, machine, key=TRAINER, logs=logs, stop_if_not_finite=False).work()
    own = directory(workshop, tmp_path / "own")
    Worker(own, workshop.auditor, logs=following(own, cheating)).work()
    work = tampered(workshop, job, cheat)
    truth = workshop.audited(job, work)
    assert tuple(cheating.records()) == work.records
    assert tuple(own.records()) == truth.records
    assert work.lie is not None
    assert (work.lie.step, work.lie.leaf, work.lie.element) == (step, leaf, 3)
    defender = ForgedEvidence(cheating, machine, CommittedLogs.of(cheating))
    challenger = Evidence(own, workshop.auditor, CommittedLogs.of(own))
    there, here = fight(job, 4, defender, challenger), fight(job, 4, work.oracle, truth.oracle)
    assert [played.move for played in there.moves] == [played.move for played in here.moves]
    assert there.final == here.final


def fingerprint(workshop: Workshop) -> str:
    """Hashes all that games share."""
    run, evidence, digest = workshop.run, workshop.evidence, sha256()
    for step in range(run.job.steps + 1):
        digest.update(state_tree(identities(dict(run.state(step)))).root)
        digest.update(evidence.record(step).digest)
        if step:
            digest.update(evidence.value_tree(step).root)
            for value in range(len(workshop.program.body)):
                digest.update(evidence.tensor(step, value))
        if step and run.job.is_logged:
            digest.update(evidence.log_tree(step).root)
    for name in sorted(run.data()):
        digest.update(evidence.data_id(name))
    return digest.hexdigest()


@pytest.mark.slow
def test_no_cheat_leaves_a_trace_in_what_is_shared(workshop: Workshop) -> None:
    before, job = fingerprint(workshop), job_of(workshop)
    exact = ["poisoned image", "copied checkpoint", "rounded toward zero", "payload in a NaN", "skipped steps"]
    logged = ["frozen layer", "drift by log entries", "code 3 in a log"]
    names = {"exact": exact, "logged": logged, "rollouts": ["forged token", "re-rolled seed", "late data too long"]}
    for name in names[workshop.name]:
        work = deviate(name, 1, workshop)
        fight(job, job.checkpoints, work.oracle, workshop.told(job, work).oracle)
    assert fingerprint(workshop) == before
    assert fingerprint(Workshop(workshop.name)) == before, "a workshop that nobody has used"


@pytest.mark.parametrize("other", [{"steps": 9}, {"checkpoint_interval": 2}, {"precision": 24}, {"state_count": 1}])
def test_a_job_over_another_computation_is_refused(workshop: Workshop, other: dict[str, int]) -> None:
    job = replace(job_of(workshop), **other)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="expected a job over "):
        workshop.honest(job)


def test_unknown_workshop_names_and_reserved_streams_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected a workshop named exact or logged or rollouts, got 'other'"):
        Workshop.open("other")
    with pytest.raises(ConfigurationError, match="expected a stream other than 2"):
        Workshop.open("exact").another(2)


def test_logs_that_are_not_the_records_cannot_be_checked() -> None:
    workshop = Workshop.open("logged")
    job = job_of(workshop)
    work = workshop.honest(job)
    assert work.logs is not None
    with pytest.raises(CannotCheck, match="expected the log of step 1, got none"):
        workshop.audited(job, replace(work, logs=None))
    with pytest.raises(CannotCheck, match="logs of steps 4 to 6: expected log root"):
        workshop.audited(job, replace(work, logs=dict(work.logs) | {5: StepLog()}))
