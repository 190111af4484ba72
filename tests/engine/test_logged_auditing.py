"""Logs that are withheld, damaged, other than committed, or that say what they must not: what auditors make of them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tiebreak.engine.arithmetic.plain.exact import exact_sums
from tiebreak.engine.logged import journal
from tiebreak.engine.logged.files import LogFile, log_path
from tiebreak.engine.logged.journal import LogsInProgress
from tiebreak.engine.run.audit import SegmentAuditor
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.logs import MAX_FINDINGS, FindingKind, LogFinding, LogReport
from tiebreak.engine.run.segments import compare, signed_records
from tiebreak.engine.run.train import Worker
from tiebreak.node.parts import parts
from tiebreak.protocol.errors import CannotCheck
from tiebreak.protocol.program.rounding import Entries, StepLog, SumKind, element_rounding, neighbours, sum_kind

from .logged_cases import INTERVAL, STEPS, Flipping, log_of, logged_job, machine, new_run, published, replay, train
from .tiny import TRAINER

Change = Callable[[StepLog], StepLog]


def log_of_segment(run: RunDirectory, checkpoint: int) -> Path:
    return log_path(run.path, run.job.last_step(checkpoint))


def rewrite(run: RunDirectory, step: int, change: Change) -> None:
    checkpoint, job = run.job.checkpoint_of(step), run.job
    first, last = job.first_step(checkpoint), job.last_step(checkpoint)
    logs = {number: log_of(run, number) for number in range(first, last + 1)}
    logs[step] = change(logs[step])
    file = LogFile(log_path(run.path, last), run.program, job.id, range(first, last + 1))
    file.create()
    for number, log in logs.items():
        file.append(number, log)


def without_first(log: StepLog) -> StepLog:
    return StepLog(dict(list(log.entries.items())[1:]))


def both_audits(run: RunDirectory, path: Path) -> list[str]:
    """What keeps a whole audit, and one of all segments, from coming to an end."""
    found = []
    run = RunDirectory.open(run.path)
    own = new_run(path, run.agreement)
    with pytest.raises(CannotCheck) as caught:
        Worker(own, machine(run.job), logs=LogsInProgress(own, published(run).step_log)).work()
    found.append(str(caught.value))
    with pytest.raises(CannotCheck) as caught:
        SegmentAuditor(run, machine(run.job), signed_records(run)[0]).audit(
            range(STEPS // INTERVAL), logs=published(run)
        )
    found.append(str(caught.value))
    assert len(own.records()) == 1  # the segment before was checked, and stays so
    return found


@pytest.mark.parametrize(
    ("damage", "step", "words"),
    [
        (lambda _: None, INTERVAL + 1, "expected what was committed, got none that can be read"),
        (lambda raw: raw[:-1], 2 * INTERVAL, "expected what was committed"),
        (lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), 2 * INTERVAL, "checksum"),
    ],
    ids=["withheld", "truncated", "damaged"],
)
def test_auditors_cannot_check_missing_or_damaged_logs(
    damage: Callable[[bytes], bytes | None], step: int, words: str, flipped: RunDirectory, tmp_path: Path
) -> None:
    path = log_of_segment(flipped, 1)
    left = damage(path.read_bytes())
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    for text in both_audits(flipped, tmp_path / "audit"):
        assert f"log of step {step}:" in text
        assert words in text


@pytest.mark.parametrize("what", ["fewer", "other", "none"])
def test_auditors_cannot_check_logs_unlike_the_committed_root(what: str, flipped: RunDirectory, tmp_path: Path) -> None:
    def turned(log: StepLog) -> StepLog:
        return StepLog({value: Entries(found.elements, ~found.up) for value, found in log.entries.items()})

    step = next(step for step in range(INTERVAL + 1, 2 * INTERVAL + 1) if log_of(flipped, step).count)
    rewrite(flipped, step, {"fewer": without_first, "other": turned, "none": lambda _: StepLog()}[what])
    for text in both_audits(flipped, tmp_path / "audit"):
        assert f"logs of steps {INTERVAL + 1} to {2 * INTERVAL}: expected log root" in text
        assert "nobody can say whether these steps are right" in text


def test_auditors_refuse_logs_that_change_during_reading(flipped: RunDirectory) -> None:
    logs = published(flipped)
    steps = [step for step in range(1, INTERVAL + 1) if log_of(flipped, step).count]
    logs.step_log(1)
    rewrite(flipped, steps[-1], without_first)
    with pytest.raises(CannotCheck, match=rf"log of step {steps[-1]}: expected \w+, as it was before, got"):
        logs.step_log(steps[-1])


class Hostile(Flipping):
    """Claims that the first elements of every value went up, and leaves out the last entry of each."""

    def settle(self, index, instruction, operands, result, near) -> None:  # type: ignore[no-untyped-def]
        super().settle(index, instruction, operands, result, near)
        honest = self._entries.get(index)
        count = min(3, instruction.numel)
        said = dict.fromkeys(range(count), True)
        if honest is not None:
            said |= dict(zip(honest.elements[:-1].tolist(), honest.up[:-1].tolist(), strict=True))
        elements = sorted(said)
        self._entries[index] = Entries(np.array(elements, np.int64), np.array([said[k] for k in elements]))


def test_log_findings_name_the_entry_but_convict_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run is not what its logs say, so its roots convict it; the log alone would not."""
    monkeypatch.setattr(journal, "Recorder", Hostile)
    run = new_run(tmp_path / "run", logged_job())
    train(run)
    done = replay(run, tmp_path / "audit")
    report = done.report
    assert not compare(done.run, run.heads()[-1]).agrees
    assert report.elsewhere > STEPS
    assert report.missing > 0
    assert len(report.findings) == MAX_FINDINGS < report.elsewhere + report.missing
    for kind in FindingKind:
        finding = next(finding for finding in report.findings if finding.kind == kind)
        instruction = run.program.body[finding.value]
        assert sum_kind(instruction) in set(SumKind)
        assert 0 <= finding.element < instruction.numel
        assert str(finding).startswith(f"step {finding.step}, instruction {finding.value}, element {finding.element}: ")
    elsewhere = next(finding for finding in report.findings if finding.kind == FindingKind.ELSEWHERE)
    assert f"expected a sum within 2^-{2} of the gap around a middle, got one that rounds to 0x" in elsewhere.detail
    missing = next(finding for finding in report.findings if finding.kind == FindingKind.MISSING)
    assert missing.detail.startswith("expected an entry, for this machine cannot tell; to nearest it is 0x")


def test_log_entries_away_from_near_ties_are_no_fraud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries without effect are no fraud: this trainer's values are those that the log allows."""
    run = new_run(tmp_path / "run", logged_job())

    class Chatty(Flipping):
        def settle(self, index, instruction, operands, result, near) -> None:  # type: ignore[no-untyped-def]
            super().settle(index, instruction, operands, result, near)
            (total,) = exact_sums(instruction, operands, [0])
            rounding = element_rounding(instruction, precision=32, tolerances=run.job.tolerances)
            if index not in self._entries and total is not None and not neighbours(*total, rounding)[1]:
                self._entries[index] = Entries(np.zeros(1, np.int64), np.ones(1, np.bool_))

    monkeypatch.setattr(journal, "Recorder", Chatty)
    train(run)
    done = replay(run, tmp_path / "audit")
    assert compare(done.run, run.heads()[-1]).agrees
    assert done.report.elsewhere > 0
    assert done.report.missing == 0


def test_a_report_counts_all_findings_but_keeps_a_limited_number() -> None:
    """A hostile log may be all findings."""
    report = LogReport(steps=1, entries=5, needed=2, elsewhere=1)
    for element in range(MAX_FINDINGS + 3):
        report.found(LogFinding(kind=FindingKind.MISSING, step=1, value=2, element=element, detail="of a test"))
    assert (report.missing, len(report.findings)) == (MAX_FINDINGS + 3, MAX_FINDINGS)
    both = LogReport(steps=2)
    both.add(report)
    both.add(report)
    assert (both.steps, both.entries, both.needed, both.elsewhere) == (4, 10, 4, 2)
    assert (both.missing, len(both.findings)) == (2 * (MAX_FINDINGS + 3), MAX_FINDINGS)


def test_the_logs_of_all_segments_up_to_a_checkpoint_are_published(flipped: RunDirectory) -> None:
    for count in (0, 1, 3):
        names = {part.name for part in parts(flipped, count) if part.name.startswith("logs/")}
        assert names == {f"logs/{log_of_segment(flipped, checkpoint).name}" for checkpoint in range(count)}


def test_logs_cannot_be_checked_without_the_trainers_records(flipped: RunDirectory, tmp_path: Path) -> None:
    """A whole audit needs the log roots: a trainer who shows its head and no records has not published its logs."""
    (flipped.path / "records.bin").write_bytes(b"")
    with pytest.raises(CannotCheck, match="records"):
        published(flipped)


def test_logs_of_another_job_are_not_taken(flipped: RunDirectory, tmp_path: Path) -> None:
    other = new_run(tmp_path / "other", logged_job(interval=INTERVAL * 2))
    Worker(other, machine(other.job), key=TRAINER, logs=LogsInProgress.of(other)).work(2 * INTERVAL)
    shutil.copy(log_of_segment(other, 0), log_of_segment(flipped, 1))
    with pytest.raises(CannotCheck, match="expected logs of job"):
        published(RunDirectory.open(flipped.path)).step_log(INTERVAL + 1)
