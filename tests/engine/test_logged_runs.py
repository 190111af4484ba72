"""Training and auditing under policy `logged`: one root for everyone who follows the same logs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conformance.whole_steps import execute, new_state
from tests.engine.processes import printed
from tests.parts import slow_except
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.c.threads import limited
from tiebreak.engine.capture.captured import sign_job
from tiebreak.engine.logged import journal
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.logged.journal import LogsInProgress
from tiebreak.engine.run.audit import SegmentAuditor
from tiebreak.engine.run.directory import Keep, RunDirectory
from tiebreak.engine.run.evidence import Evidence
from tiebreak.engine.run.interpreter import Interpreter, Observer
from tiebreak.engine.run.logs import NO_LOGS
from tiebreak.engine.run.segments import compare, signed_records
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.log_tree import LogTree, logs_tree
from tiebreak.protocol.errors import ConfigurationError, StateError
from tiebreak.protocol.program.rounding import Policy, StepLog

from . import logged_cases
from .logged_cases import INTERVAL, STEPS, Flipping, log_of, logged_job, machine, new_run, published, replay, train
from .tiny import CLIENT, DOMAIN, TRAINER

ALL = [(32, logged_cases.WIDE), (16, 2.0**40)]
PRECISIONS = pytest.mark.parametrize(("precision", "threshold"), slow_except(ALL, ALL[0], several=True))


@pytest.fixture
def flipping(monkeypatch: pytest.MonkeyPatch) -> type[Flipping]:
    """Every trainer takes the other neighbour wherever its log may say so."""
    monkeypatch.setattr(journal, "Recorder", Flipping)
    return Flipping


def records_of(run: RunDirectory) -> list[bytes]:
    return [record.digest for record in run.records()]


@PRECISIONS
def test_an_auditor_who_follows_the_log_reaches_the_trainers_root(
    precision: int, threshold: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flipping: type[Flipping]
) -> None:
    monkeypatch.setattr(flipping, "precision", precision)
    run = new_run(tmp_path / "trainer", logged_job(precision))
    train(run, threshold)
    done = replay(run, tmp_path / "audit", threshold, permute=5)
    assert compare(done.run, run.heads()[-1]).agrees
    report = done.report
    assert report.steps == STEPS
    assert report.entries > STEPS
    assert report.needed == report.entries  # each was flipped, and none is elsewhere
    assert report.elsewhere == 0
    assert all(log_of(done.run, step).entries == log_of(run, step).entries for step in range(1, STEPS + 1))


def test_a_replay_that_ignores_the_log_diverges(flipped: RunDirectory, tmp_path: Path) -> None:
    alone = new_run(tmp_path / "alone", flipped.agreement)
    Worker(alone, machine(flipped.job), logs=LogsInProgress.of(alone)).work()
    assert [ours == theirs for ours, theirs in zip(records_of(alone), records_of(flipped), strict=True)] == [False] * 6


@pytest.mark.slow
def test_auditors_with_other_thresholds_reach_the_same_root(flipped: RunDirectory, tmp_path: Path) -> None:
    """Proven bounds leave no element open, so exact sums say whether an entry is near; wider ones leave more open."""
    for name, threshold in (("proven", None), ("narrow", 2.0**20), ("wide", 2.0**26)):
        done = replay(flipped, tmp_path / name, threshold, permute=3)
        assert compare(done.run, flipped.heads()[-1]).agrees, name
        assert done.report.needed == done.report.entries
        assert name != "wide" or done.report.missing > 0
        assert name != "proven" or done.report.missing == 0


@pytest.mark.usefixtures("pure")
def test_pure_torch_kernels_follow_logs_to_the_same_root(flipped: RunDirectory, tmp_path: Path) -> None:
    with limited(2):
        done = replay(flipped, tmp_path / "audit", permute=11)
    assert compare(done.run, flipped.heads()[-1]).agrees
    assert done.report.needed > 0


@pytest.mark.slow
def test_a_logged_run_without_entries_equals_an_exact_run(tmp_path: Path) -> None:
    """Proven bounds leave no FP64 sum of the tiny task open: the states are those of policy `exact`."""
    for precision in (32, 16):
        run = new_run(tmp_path / f"logged{precision}", logged_job(precision))
        train(run, threshold=None)
        assert all(log_of(run, step).count == 0 for step in range(1, STEPS + 1))
        program = run.program
        exact = Interpreter(program, Arithmetic(precision=precision))
        state, data = exact.to_device(logged_cases.captured().state), exact.place_data(logged_cases.captured().data)
        for step in range(1, STEPS + 1):
            state = exact.step(step, state, data).state
        assert all(torch.equal(state[name], tensor) for name, tensor in run.state(STEPS).items())
        empty = LogTree(program, StepLog()).root
        assert {record.log_root for record in run.records()} == {logs_tree([empty] * INTERVAL).root}


@PRECISIONS
def test_logged_steps_equal_the_integer_reference(
    precision: int, threshold: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flipping: type[Flipping]
) -> None:
    monkeypatch.setattr(flipping, "precision", precision)
    run = new_run(tmp_path / "run", logged_job(precision))
    train(run, threshold)
    raw_state = {name: tensor.numpy().tobytes() for name, tensor in logged_cases.captured().state.items()}
    raw_data = {name: tensor.numpy().tobytes() for name, tensor in logged_cases.captured().data.items()}
    entries = 0
    for step in range(1, 2 * INTERVAL + 1):
        log = log_of(run, step)
        entries += log.count
        values = execute(run.program, raw_state, raw_data, step, precision, tolerances=run.job.tolerances, log=log)
        raw_state = new_state(run.program, values)
    assert entries > 0
    kept = {name: tensor.numpy().tobytes() for name, tensor in run.state(2 * INTERVAL).items()}
    assert kept == raw_state


def test_stopping_and_resuming_changes_nothing(flipped: RunDirectory, tmp_path: Path, flipping: type[Flipping]) -> None:
    parts = new_run(tmp_path / "parts", flipped.agreement)
    for until in (2, 5, 8, 9, STEPS):
        Worker(parts, machine(parts.job), key=TRAINER, logs=LogsInProgress.of(parts)).work(until)
        parts = RunDirectory.open(parts.path)
    assert records_of(parts) == records_of(flipped)
    assert [h.encode() for h in parts.heads()] == [h.encode() for h in flipped.heads()]


def test_torn_logs_of_an_uncommitted_segment_are_recomputed(
    flipped: RunDirectory, tmp_path: Path, flipping: type[Flipping]
) -> None:
    run = new_run(tmp_path / "run", flipped.agreement)
    Worker(run, machine(run.job), key=TRAINER, logs=LogsInProgress.of(run)).work(INTERVAL + 2)
    path = run.path / "logs" / f"{2 * INTERVAL:012d}.log"
    path.write_bytes(path.read_bytes()[:-3] + b"torn")
    run = RunDirectory.open(run.path)
    train(run)
    assert records_of(run) == records_of(flipped)


def test_committed_logs_are_never_rewritten(flipped: RunDirectory) -> None:
    before = {path.name: path.read_bytes() for path in (flipped.path / "logs").iterdir()}
    with pytest.raises(StateError, match="its log is committed"):
        LogFiles(flipped).write(INTERVAL + 1, StepLog())
    flipped.state_path(STEPS).unlink()
    train(flipped)
    assert {path.name: path.read_bytes() for path in (flipped.path / "logs").iterdir()} == before


def test_a_trainer_that_lost_states_recomputes_them_from_its_own_log(flipped: RunDirectory) -> None:
    for step in range(2 * INTERVAL, STEPS + 1, INTERVAL):
        flipped.state_path(step).unlink()
    expected = records_of(flipped)
    train(flipped, threshold=2.0**25, permute=9)
    assert records_of(flipped) == expected
    assert flipped.last_complete() == STEPS


def test_a_trainer_that_lost_its_logs_is_told_to_restore_them(flipped: RunDirectory) -> None:
    flipped.state_path(STEPS).unlink()
    (flipped.path / "logs" / f"{STEPS:012d}.log").unlink()
    with pytest.raises(StateError, match=f"log of step {STEPS - INTERVAL + 1}: .* restore the logs"):
        train(RunDirectory.open(flipped.path))


def test_segments_of_logged_runs_are_audited_despite_dropped_checkpoints(
    tmp_path: Path, flipping: type[Flipping]
) -> None:
    for keep in (Keep(0), Keep(2)):
        run = new_run(tmp_path / str(keep).replace(":", ""), logged_job())
        train(run, keep=keep)
        assert len(run.kept()) < 1 + STEPS // INTERVAL
        records, _ = signed_records(run)
        done = SegmentAuditor(run, machine(run.job, permute=2), records).audit([1, 4], logs=published(run))
        assert done.agrees
        assert [report.checkpoint for report in done.checked][-1] == 4
        assert done.log.steps == done.steps
        assert done.log.needed == done.log.entries > 0


def test_whole_and_segment_audits_both_find_a_false_step(tmp_path: Path, flipping: type[Flipping]) -> None:
    run = new_run(tmp_path / "run", logged_job())
    leaf = run.program.leaf_of_commit(0)

    def lie(step: int) -> Observer | None:
        def nudge(at: int, tensor: Tensor) -> Tensor:
            return tensor + torch.finfo(torch.float32).eps if at == leaf else tensor

        return nudge if step == 2 * INTERVAL + 1 else None

    train(run, tamper=lie)
    done = replay(run, tmp_path / "audit", permute=1)
    assert not compare(done.run, run.heads()[-1]).agrees
    agree = [a == b for a, b in zip(records_of(done.run), records_of(run), strict=True)]
    assert agree == [True, True, False, False, False, False]
    records, _ = signed_records(run)
    audit = SegmentAuditor(run, machine(run.job), records).audit(range(6), logs=published(run))
    assert audit.fraud is not None
    assert audit.fraud.checkpoint == 2
    assert audit.fraud.replayed.log_root == audit.fraud.committed.log_root


def test_an_interpreter_with_other_precision_or_tolerances_is_refused(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", logged_job(26))
    other = Interpreter(run.program, Arithmetic(precision=32, logging=logged_cases.logging_of(run.job)))
    with pytest.raises(ConfigurationError, match=r"expected an arithmetic of the job's precision 26, got .* 32"):
        Worker(run, other)
    other = Interpreter(run.program, Arithmetic(precision=26, logging=logged_cases.logging_of(logged_job(26, 7).job)))
    with pytest.raises(ConfigurationError, match="expected an arithmetic with the job's tolerances 0x020202, got 0x0"):
        Worker(run, other)
    with pytest.raises(ConfigurationError, match="tolerances"):
        SegmentAuditor(run, other, []).audit([0])
    with pytest.raises(ConfigurationError, match="tolerances"):
        Evidence(run, other)


def test_logs_are_required_exactly_when_the_policy_is_logged(tmp_path: Path) -> None:
    job = replace(logged_job().job, policy=int(Policy.EXACT), tolerances=0)
    plain = new_run(tmp_path / "plain", sign_job(job, DOMAIN, client=CLIENT, trainer=TRAINER))
    run = new_run(tmp_path / "run", logged_job())
    for wrong, logs, got in ((run, NO_LOGS, "none for one"), (plain, LogsInProgress(plain), "some for another")):
        computer, words = machine(wrong.job), f"expected rounding logs for a job of policy logged, got {got}"
        with pytest.raises(ConfigurationError, match=words):
            Worker(wrong, computer, logs=logs)
        with pytest.raises(ConfigurationError, match=words):
            Evidence(wrong, computer, logs)
        with pytest.raises(ConfigurationError, match=words):
            SegmentAuditor(wrong, computer, []).audit([0], logs=logs)
    assert LogsInProgress.of(plain) is CommittedLogs.of(plain) is NO_LOGS
    with pytest.raises(StateError, match="step 1: a run of policy exact has no logs"):
        Evidence(plain, machine(plain.job)).log_tree(1)


def test_a_replay_resumes_with_its_own_copy_of_the_logs(flipped: RunDirectory, tmp_path: Path) -> None:
    own = new_run(tmp_path / "audit", flipped.agreement)
    Worker(own, machine(own.job), logs=LogsInProgress(own, published(flipped).step_log)).work(3 * INTERVAL)
    own.state_path(3 * INTERVAL).unlink()
    gone = RunDirectory.open(Path(shutil.copytree(flipped.path, tmp_path / "withheld")))
    for checkpoint in range(3):
        (gone.path / "logs" / f"{(checkpoint + 1) * INTERVAL:012d}.log").unlink()
    Worker(own, machine(own.job), logs=LogsInProgress(own, published(gone).step_log)).work()
    assert compare(own, flipped.heads()[-1]).agrees


@pytest.mark.slow
def test_another_device_follows_the_logs_to_the_same_root(flipped: RunDirectory, tmp_path: Path) -> None:
    """One that is no CPU, whose FP64 sums take their terms backwards."""
    module, places = "tests.engine.on_another_device", [str(flipped.path), str(tmp_path / "own")]
    found = json.loads(printed("-m", module, "follow", *places, str(logged_cases.WIDE), str(2.0**4)))
    assert found["agrees"] == [True, True]
    entries, needed, elsewhere, _, in_parts = found["counts"]
    assert entries == needed > STEPS
    assert elsewhere == 0
    assert in_parts > 0
    assert found["calls"] > 1000
