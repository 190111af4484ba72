"""What is stored survives a power cut at any operation: the old or the new, whole, and all that was acknowledged."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import CaseCounter
from tests.durability import Check, Store, fails, power_cuts, survived
from tests.engine import logged_cases
from tiebreak.engine.capture.captured import Captured
from tiebreak.engine.data.disk import Folder, read_file, write_file
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.run.directory import JOB, RunDirectory
from tiebreak.protocol.commitments.job import Head, SignedHead, SignedJob
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.program.rounding import StepLog
from tiebreak.protocol.tags import Digest

from .test_committing import LAST, worker
from .test_storage import record
from .tiny import DOMAIN, TRAINER

NewRun = Callable[[str], RunDirectory]
STEPS = (3, 6, 9, 12)


# ---------------------------------------------------------------- single files

CONTENTS = (b"", b"of the first time", b"and of another time, which is longer", b"short")


def store_by_writing(folder: Path, done: Callable[[], None]) -> None:
    for content in CONTENTS[1:]:
        write_file(folder / "file", content)
        done()


def store_by_renaming(folder: Path, done: Callable[[], None]) -> None:
    for content in CONTENTS[1:]:
        (folder / "part").write_bytes(content)
        with Folder(folder) as opened:
            opened.rename("part", "file")
        done()


def holds_old_or_new(folder: Path, acknowledged: int) -> None:
    found = read_file(folder / "file", 100) if (folder / "file").exists() else b""
    assert found in CONTENTS[acknowledged : acknowledged + 2]


def needs_every_sync(store: Store, check: Check, new: Callable[[str], Path], place: Path, syncs: range) -> int:
    """The number of power cuts that a store survives, none of whose syncs (by number) can be left out.

    new: makes a folder, of another name each time.
    """
    power = power_cuts(new("whole"), store)
    count = survived(power, place / "after", check)
    assert power.syncs == syncs.stop
    for number in syncs:
        assert fails(power_cuts(new(f"{number}"), store, number), place / "after", check), f"sync {number}"
    return count


@pytest.mark.parametrize("store", [store_by_writing, store_by_renaming])
def test_power_cuts_leave_a_whole_file_and_every_fsync_is_needed(
    store: Store, tmp_path: Path, cases: CaseCounter
) -> None:
    def new(name: str) -> Path:
        (tmp_path / name).mkdir()
        return tmp_path / name

    cases(needs_every_sync(store, holds_old_or_new, new, tmp_path, range(6)))  # of the file and of its folder, thrice


def test_renaming_before_fsync_fails_the_power_cut_check(tmp_path: Path) -> None:
    def store(folder: Path, done: Callable[[], None]) -> None:
        for content in CONTENTS[1:]:
            (folder / "part").write_bytes(content)
            (folder / "part").rename(folder / "file")
            with Folder(folder) as opened, opened.changing("file") as file:
                os.fsync(file.fileno())
                os.fsync(opened._handle)
            done()

    assert fails(power_cuts(tmp_path, store), tmp_path.with_name("after"), holds_old_or_new)


# ---------------------------------------------------------------- runs


def test_a_power_cut_leaves_a_new_run_complete_or_absent(
    tiny: Captured, agreement: SignedJob, tmp_path: Path, cases: CaseCounter
) -> None:
    """Not yet: without a job, which comes last, nobody takes the folder for a run."""

    def create(folder: Path, done: Callable[[], None]) -> None:
        (folder / "made").mkdir()  # by a process that was killed before it could sync
        for path in (folder / "made", folder / "a" / "run"):
            RunDirectory.create(path, agreement, tiny.program, tiny.state, tiny.data, {"more": b"another"})
            done()

    def whole(folder: Path, acknowledged: int) -> None:
        for number, path in enumerate((folder / "made", folder / "a" / "run")):
            if acknowledged > number or (path / JOB).exists():
                run = RunDirectory.open(path)
                assert (run.last_complete(), run.recorded(), run.heads()) == (0, 0, [])
                assert run.data().keys() == tiny.data.keys()
                assert read_file(run.path / "more", 100) == b"another"

    (tmp_path / "disk").mkdir()
    cases(survived(power_cuts(tmp_path / "disk", create), tmp_path / "after", whole))


def test_a_power_cut_leaves_an_appended_record_whole_or_absent(
    new_run: NewRun, tmp_path: Path, cases: CaseCounter
) -> None:
    def append(folder: Path, done: Callable[[], None]) -> None:
        for step in STEPS:
            RunDirectory.open(folder).append_record(record(step))
            done()

    def are_a_beginning(folder: Path, acknowledged: int) -> None:
        run = RunDirectory.open(folder)
        records = run.records()
        assert acknowledged <= len(records) <= acknowledged + 1
        if len(records) < len(STEPS):
            run.append_record(record(STEPS[len(records)]))  # over what is left of the one that was cut off
        assert run.records() == [record(step) for step in STEPS[: len(records) + 1]]

    cases(needs_every_sync(append, are_a_beginning, lambda name: new_run(name).path, tmp_path, range(len(STEPS))))


def test_a_power_cut_never_loses_a_signed_head(new_run: NewRun, tmp_path: Path, cases: CaseCounter) -> None:
    """A trainer that forgot one could sign another of the same count."""

    def sign(folder: Path, done: Callable[[], None]) -> None:
        run = RunDirectory.open(folder)
        for number in (1, 2):
            head = Head(job_id=run.job.id, count=number, run_root=Digest(bytes([number]) * 32))
            run.write_head(SignedHead.sign(head, DOMAIN, TRAINER))
            done()

    def are_there(folder: Path, acknowledged: int) -> None:
        counts = [signed.head.count for signed in RunDirectory.open(folder).heads()]
        assert counts in ([1, 2][:acknowledged], [1, 2][: acknowledged + 1])

    cases(needs_every_sync(sign, are_there, lambda name: new_run(name).path, tmp_path, range(4)))


@pytest.fixture
def committed(new_run: NewRun) -> list[StepRecord]:
    """The records of a run without a power cut."""
    run = new_run("undisturbed")
    worker(run).work()
    return run.records()


def train(folder: Path, done: Callable[[], None]) -> None:
    """Two checkpoints; the first is dropped at the second."""
    worker(RunDirectory.open(folder), keep=LAST, on_commit=lambda _: done()).work(6)


def is_resumable(committed: list[StepRecord]) -> Check:
    """What was dropped before the cut may be there again, and must not matter."""

    def check(folder: Path, acknowledged: int) -> None:
        run = RunDirectory.open(folder)
        records, heads = run.records(), run.heads()
        assert records == committed[: len(records)]
        assert acknowledged <= len(records) <= acknowledged + 1
        assert run.last_complete() == (0, *STEPS)[len(records)], "the state is safe before its record"
        assert [signed.head.count for signed in heads] == list(range(1, len(heads) + 1))
        assert acknowledged <= len(heads) <= len(records), "a record is safe before its head"
        assert all(run.root(signed.head.count) == signed.head.run_root for signed in heads)

    return check


@pytest.mark.slow
def test_a_power_cut_loses_no_acknowledged_checkpoint(
    new_run: NewRun, committed: list[StepRecord], tmp_path: Path, cases: CaseCounter
) -> None:
    power = power_cuts(new_run("run").path, train)
    cases(survived(power, tmp_path / "after", is_resumable(committed)))
    assert power.syncs == 10, "of state and head with their folders, and of the record, twice"


@pytest.mark.slow
def test_every_fsync_of_a_run_is_needed(
    new_run: NewRun, committed: list[StepRecord], tmp_path: Path, cases: CaseCounter
) -> None:
    for number in range(5, 10):  # of the second checkpoint, at which the state of the first is dropped
        power = power_cuts(new_run(f"{number}").path, train, number)
        assert fails(power, tmp_path / "after", is_resumable(committed)), f"sync {number}"
        cases()


@pytest.mark.slow
def test_a_run_resumes_after_any_power_cut_to_the_same_root(
    new_run: NewRun, committed: list[StepRecord], tmp_path: Path, cases: CaseCounter
) -> None:
    def ends_alike(folder: Path, acknowledged: int) -> None:
        run = RunDirectory.open(folder)
        worker(run, keep=LAST).work(9)
        assert run.records() == committed[:3]
        assert [signed.head.count for signed in run.heads()] == [1, 2, 3]
        assert run.kept() == [0, 9]

    cases(survived(power_cuts(new_run("run").path, train), tmp_path / "after", ends_alike))


# ---------------------------------------------------------------- rounding logs


def test_no_record_commits_to_logs_lost_in_a_power_cut(tmp_path: Path, cases: CaseCounter) -> None:
    """The logs' own order: appended, synced, committed to."""

    def new(name: str) -> Path:
        return logged_cases.new_run(tmp_path / name, logged_cases.logged_job()).path

    def log(folder: Path, done: Callable[[], None]) -> None:
        logs = LogFiles(RunDirectory.open(folder))
        for step in (1, 2, 3, 4):
            logs.write(step, StepLog())
        logs.sync(0)
        done()

    def are_there(folder: Path, acknowledged: int) -> None:
        logs = LogFiles(RunDirectory.open(folder))
        for step in (1, 2, 3, 4) if acknowledged else ():
            assert logs.step_log(step) == StepLog()

    # Of the folder and of the logs; that of the empty file alone, which comes first, is not needed.
    cases(needs_every_sync(log, are_there, new, tmp_path, range(1, 3)))
