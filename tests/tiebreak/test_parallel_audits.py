"""`tiebreak audit --jobs`: several processes, and the report of one, whichever worker fails, lies or is killed."""

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.tiny import TRAINER
from tests.parts import slow_except
from tests.source_tree import ROOT
from tests.tampered import Tampered, one_element
from tests.tiebreak.parties import Once, flip, tiny_run
from tiebreak.api.auditing import replayers
from tiebreak.api.auditing.audits import Workers, audit_chosen
from tiebreak.api.auditing.parallel import RETRIES, AuditLedger, audit_in_parallel, divide
from tiebreak.api.auditing.replayers import RayExecutor
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.machine.workers import WorkerProcess
from tiebreak.engine.run.audit import SegmentAudit, SegmentAuditor
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Observer
from tiebreak.engine.run.segments import signed_records
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.records import run_tree
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, EncodingError, StateError, VerificationError
from tiebreak.protocol.packing import AnyOf, pack, unpack
from tiebreak.protocol.program.isa import Opcode

STEPS, INTERVAL, SEGMENTS = 60, 3, 20
Fault = Callable[[replayers.TaskOutcome], replayers.TaskOutcome]
MakeRun = Callable[..., RunDirectory]


@pytest.fixture(scope="session")
def make_run(once: Once) -> MakeRun:
    """A signed run of the tiny task whose trainer doubles a number in each of some steps."""

    def make(*false: int) -> RunDirectory:
        def begin(folder: Path) -> None:
            made = tiny_run(folder, STEPS, INTERVAL)
            leaf = next(n for n, i in enumerate(made.program.body) if i.opcode == Opcode.REDUCE and i.terms == 5)

            def tamper(step: int) -> Observer | None:
                return one_element(step, leaf, 5, lambda x: 2 * x)(step) if step in false else None

            Worker(made, Tampered(make_interpreter(made.program, Machine(threads=1)), tamper), key=TRAINER).work()

        return RunDirectory.open(once(f"audited-{'-'.join(map(str, false))}", begin))

    return make


@pytest.fixture(scope="session")
def honest(make_run: MakeRun) -> RunDirectory:
    return make_run()


@pytest.fixture(scope="session")
def liar(make_run: MakeRun) -> RunDirectory:
    """It lies in its eighth and in its seventeenth segment."""
    return make_run(24, 50)


class Here:
    """Workers that are all this process. What they finish comes in any order. fault: what comes of a result instead."""

    def __init__(self, run: RunDirectory, seed: int = 0, workers: int = 3, fault: Fault = lambda outcome: outcome):
        self.most, self._workers = workers, [f"worker {number}" for number in range(1, workers + 1)]
        self.begun: list[tuple[str, replayers.AuditTask]] = []
        self._replayer, self._random, self._fault = replayers.Replayer(assignment_of(run)), random.Random(seed), fault

    def submit(self, task: replayers.AuditTask, avoid: str = "") -> "Future[Any]":
        if self._workers == [avoid]:
            self._workers = ["worker 2"]
        name, future = self._random.choice([one for one in self._workers if one != avoid]), Future[Any]()
        self.begun.append((name, task))
        try:
            future.set_result(self._fault(replace(self._replayer.replay(task), worker=name)))
        except CannotCheck as error:
            future.set_result(replayers.TaskOutcome(task=task, worker=name, fault=1, reason=str(error)))
        return future

    def close(self) -> None:
        pass


def assignment_of(run: RunDirectory) -> replayers.Assignment:
    records = signed_records(run)[0]
    root = run_tree([record.digest for record in records], run.job.steps, run.job.checkpoint_interval).root
    return replayers.Assignment.of(run.path, run.job.id, len(records), root, Machine(threads=1))


def alone(run: RunDirectory, segments: Sequence[int] = range(SEGMENTS)) -> SegmentAudit:
    interpreter = make_interpreter(run.program, Machine(threads=1))
    return SegmentAuditor(run, interpreter, signed_records(run)[0]).audit(segments)


def together(run: RunDirectory, workers: Here, ledger: Path, segments: Sequence[int] = range(SEGMENTS)) -> SegmentAudit:
    records, head = signed_records(run)
    return audit_in_parallel(run, head.head.run_root, segments, records, lambda: workers, ledger)


def found(audit: SegmentAudit) -> tuple[object, ...]:
    """All of a report that does not depend on how the work was divided."""
    return audit.total, audit.wanted, audit.checked, audit.fraud


@pytest.mark.parametrize("workers", slow_except([1, 5], 5))
@pytest.mark.parametrize("name", ["honest", "liar"])
def test_parallel_audits_report_the_same_as_one_process(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, workers: int
) -> None:
    run = request.getfixturevalue(name)
    pool = Here(run, workers, workers)
    audit = together(run, pool, tmp_path / "ledger")
    assert found(audit) == found(alone(run))
    assert {s for _, task in pool.begun for s in task.segments} >= set(range(SEGMENTS if audit.agrees else 8))
    assert audit.agrees == (name == "honest")


def test_no_segment_after_a_known_fraud_is_begun(liar: RunDirectory, tmp_path: Path) -> None:
    pool = Here(liar, workers=1)
    audit = together(liar, pool, tmp_path / "ledger")
    assert audit.fraud is not None
    assert (audit.fraud.checkpoint, len(audit.checked)) == (7, 8)
    again = [task for _, task in pool.begun if task.permute is not None]
    assert [task.segments for task in again] == [(7,)], "computed a second time, in another order"
    # Tasks of one length begin in order, so the second lie was not looked at.
    assert max(task.segments[-1] for _, task in pool.begun) == 7


def test_parallel_audits_work_around_dropped_and_damaged_states(honest: RunDirectory, tmp_path: Path) -> None:
    """Tasks begin at states that were kept; where one is not what was committed, the audit goes on from an earlier."""
    folder = tmp_path / "run"
    shutil.copytree(honest.path, folder)
    run = RunDirectory.open(folder)
    for checkpoint in range(SEGMENTS):
        if checkpoint % 4:
            run.state_path(run.job.last_step(checkpoint)).unlink()
    flip(run.state_path(run.job.last_step(8)))
    pool = Here(run)
    audit = together(run, pool, tmp_path / "ledger")
    assert found(audit) == found(alone(run))
    assert audit.refused == [run.job.last_step(8)]
    starts = [run.job.first_step(task.segments[0]) - 1 for _, task in pool.begun]
    assert all(run.state_path(step).exists() for step in starts)
    some = [3, 4, 12, 17]
    sample = together(run, Here(run), tmp_path / "sample", some)
    assert found(sample) == found(alone(run, some))


def test_uncheckable_segments_are_reported_only_without_earlier_fraud(liar: RunDirectory, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(liar.path, folder)
    run = RunDirectory.open(folder)
    run.state_path(0).write_bytes(b"")
    with pytest.raises(CannotCheck) as expected:
        alone(run)
    with pytest.raises(CannotCheck) as got:
        together(run, Here(run), tmp_path / "ledger")
    assert str(got.value) == str(expected.value)
    with pytest.raises(CannotCheck):  # it is not kept: the file may be back tomorrow
        together(run, Here(run), tmp_path / "ledger")
    shutil.copy(liar.state_path(0), run.state_path(0))
    assert found(together(run, Here(run), tmp_path / "ledger")) == found(alone(liar))


def wrong(outcome: replayers.TaskOutcome) -> replayers.TaskOutcome:
    """The result of a machine that computes something else, and in another order something else again."""
    (checkpoint, record), *_ = outcome.checked
    changed = record[-1] ^ (1 if outcome.task.permute is None else 2)
    return replace(outcome, checked=((checkpoint, record[:-1] + bytes([changed])),))


def test_a_worker_that_accuses_an_honest_trainer_is_outvoted(honest: RunDirectory, tmp_path: Path) -> None:
    pool = Here(honest, fault=lambda outcome: wrong(outcome) if outcome.worker == "worker 1" else outcome)
    records, head = signed_records(honest)
    said: list[str] = []
    steps: list[int] = []
    audit = audit_in_parallel(
        honest, head.head.run_root, range(SEGMENTS), records, lambda: pool, tmp_path / "ledger", steps.append,
        said.append,
    )  # fmt: skip
    assert found(audit) == found(alone(honest))
    assert said
    assert all(words.startswith("worker 1: the segments up to step ") for words in said)
    assert "its record of checkpoint" in said[0]
    assert steps[-1] == STEPS


def test_two_workers_that_disagree_with_all_accuse_nobody(honest: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(CannotCheck, match="neither is the committed one"):
        together(honest, Here(honest, fault=wrong), tmp_path / "ledger")


def test_an_always_failing_task_ends_the_audit_and_keeps_finished_work(honest: RunDirectory, tmp_path: Path) -> None:
    def fault(outcome: replayers.TaskOutcome) -> replayers.TaskOutcome:
        if 10 in outcome.task.segments:
            return replayers.lost(outcome.task, outcome.worker, "OSError: no space left")
        return outcome

    pool = Here(honest, fault=fault)
    with pytest.raises(StateError, match=rf"OSError: no space left; tried {RETRIES + 1} times. .*ledger keeps"):
        together(honest, pool, tmp_path / "ledger")
    assert sum(10 in task.segments for _, task in pool.begun) == RETRIES + 1
    done = {task.number for _, task in pool.begun if 10 not in task.segments}
    rest = Here(honest)
    assert found(together(honest, rest, tmp_path / "ledger")) == found(alone(honest))
    assert len(done & {task.number for _, task in rest.begun}) <= 2, "only those that were under way"
    records, head = signed_records(honest)
    known = audit_in_parallel(honest, head.head.run_root, range(SEGMENTS), records, unneeded, tmp_path / "ledger")
    assert found(known) == found(alone(honest))


def unneeded() -> Here:
    raise AssertionError("everything is known, and a process is started")


@given(st.data())
def test_tasks_are_all_segments_in_order_and_share_no_state(honest: RunDirectory, data: st.DataObject) -> None:
    job = honest.job
    kept = [0, *sorted(data.draw(st.sets(st.sampled_from(honest.kept()[1:]))))]
    segments = sorted(data.draw(st.sets(st.integers(0, SEGMENTS - 1), min_size=1)))
    run: Any = SimpleNamespace(kept=lambda: kept, job=job)
    tasks = divide(run, segments, data.draw(st.integers(1, 4)))
    assert [s for task in tasks for s in task.segments] == segments
    assert [task.number for task in tasks] == list(range(len(tasks)))
    starts = [{max(k for k in kept if k < job.first_step(s)) for s in task.segments} for task in tasks]
    assert sum(map(len, starts)) == len(set().union(*starts))


def test_a_ledger_is_of_one_audit_and_one_process(honest: RunDirectory, tmp_path: Path) -> None:
    together(honest, Here(honest), tmp_path / "ledger", [1, 2])
    with pytest.raises(ConfigurationError, match="the ledger of another audit, or one that you did not begin in this"):
        together(honest, Here(honest), tmp_path / "ledger", [1, 3])
    opened = AuditLedger(tmp_path / "mine", {"job": "x"})
    with pytest.raises(StateError, match="expected a file that this process alone may write, got: database is locked"):
        AuditLedger(tmp_path / "mine", {"job": "x"})
    opened.close()
    AuditLedger(tmp_path / "mine", {"job": "x"}).close()
    (tmp_path / "text").write_text("not a database, and long enough to be seen as none" * 100)
    with pytest.raises(ConfigurationError, match="expected a ledger of `tiebreak audit`, got: file is not a database"):
        AuditLedger(tmp_path / "text", {})
    with pytest.raises(StateError, match="unable to open database file"):
        AuditLedger(tmp_path / "none" / "ledger", {})
    with closing(sqlite3.connect(tmp_path / "other")) as other:
        other.execute("CREATE TABLE audit (x)")
    with pytest.raises(ConfigurationError, match="expected a ledger of `tiebreak audit`, got: "):
        AuditLedger(tmp_path / "other", {})


def test_a_planted_ledger_acquits_nobody(honest: RunDirectory, liar: RunDirectory, tmp_path: Path) -> None:
    """What the honest job's own ledger says of it, planted for a lie: as it is, moved, and without its key."""
    together(honest, Here(honest), tmp_path / "ledger")
    planted = tmp_path / "planted"
    for change in ("", "DELETE FROM audit", "DROP TABLE audit", "DROP TABLE task"):
        shutil.copy(tmp_path / "ledger", planted)
        with closing(sqlite3.connect(planted)) as file, file:
            file.execute(change)
        with pytest.raises((ConfigurationError, EncodingError), match=f"{planted}: (the|expected a) ledger"):
            together(honest, Here(honest), planted)
    resumed = [together(run, Here(run), tmp_path / name).resumed for run, name in ((honest, "ledger"), (liar, "new"))]
    assert resumed == [STEPS, 0]


def test_a_ledger_that_was_changed_in_its_place_acquits_nobody(
    honest: RunDirectory, liar: RunDirectory, tmp_path: Path, cases: Callable[[], None]
) -> None:
    """Whoever can write into it, as by a journal file that SQLite rolls back, changes no row: each has its own mark."""
    ledger, row = tmp_path / "ledger", AnyOf((replayers.AuditTask, replayers.TaskOutcome))
    assert found(together(liar, Here(liar), ledger)) == found(alone(liar))
    kept = ledger.read_bytes()
    with closing(sqlite3.connect(ledger)) as file:
        rows = file.execute("SELECT number, content FROM task ORDER BY number").fetchall()
    outcomes = [(n, row.unpack("row", unpack(content, 1 << 20))) for n, content in rows]
    number, lie = next((n, each) for n, each in outcomes if isinstance(each, replayers.TaskOutcome)
                       and any(checkpoint == 7 for checkpoint, _ in each.checked))  # fmt: skip
    records = signed_records(liar)[0]
    checked = tuple((checkpoint, records[checkpoint].encode()) for checkpoint in lie.task.segments)
    forged = pack(row.pack(replace(lie, checked=checked)))
    changes: list[tuple[str, list[object]]] = [
        ("UPDATE task SET content = ? WHERE number = ?", [forged, number]),
        ("UPDATE task SET content = 'x', mark = 1", []),
        ("DELETE FROM task WHERE number = ?", [number]),
        ("INSERT INTO task SELECT number + 1000, content, mark FROM task", []),
        ("UPDATE task SET (content, mark) = (SELECT content, mark FROM task LIMIT 1)", []),
        ("DROP TABLE task", []),
    ]
    for change, values in changes:
        ledger.write_bytes(kept)
        with closing(sqlite3.connect(ledger)) as file, file:
            file.execute(change, values)
        with pytest.raises(ConfigurationError, match="or that is not as you left it; name a new file, or delete this"):
            together(liar, Here(liar), ledger)
        cases()
    ledger.write_bytes(kept)
    assert together(liar, Here(liar), ledger).fraud is not None


def test_a_worker_that_changes_a_record_within_its_task_accuses_nobody(honest: RunDirectory, tmp_path: Path) -> None:
    """Only the last record of a task may differ, and it is computed again; what lies before would not be."""
    lied = list[str]()

    def fault(outcome: replayers.TaskOutcome) -> replayers.TaskOutcome:
        if lied or len(outcome.checked) < 2:
            return outcome
        lied.append(outcome.worker)
        (checkpoint, record), *rest = outcome.checked
        return replace(outcome, checked=((checkpoint, bytes(8) + record[8:]), *rest))

    dropped = tmp_path / "run"
    shutil.copytree(honest.path, dropped)
    run = RunDirectory.open(dropped)
    for checkpoint in range(SEGMENTS):
        if checkpoint % 4:
            run.state_path(run.job.last_step(checkpoint)).unlink()
    audit = together(run, Here(run, fault=fault), tmp_path / "ledger")
    assert len(lied) == 1
    assert audit.agrees
    assert found(audit) == found(alone(run))


# ---------------------------------------------------------------- real processes


SCRIPT = "from tiebreak.cli.main import main; main()"


def command(run: RunDirectory, ledger: Path, *more: str) -> list[str]:
    """A process of its own; its workers are two more."""
    options = ["audit", str(run.path), "--jobs", "2", "--ledger", str(ledger), "--json", *more]
    return [sys.executable, "-P", "-c", SCRIPT, *options]


def answer(run: RunDirectory, ledger: Path, *more: str) -> tuple[int, dict[str, object], str]:
    done = subprocess.run(command(run, ledger, *more), cwd=ROOT, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    del report["seconds"]
    return done.returncode, report, done.stderr


class Killing(replayers.Processes):
    """One worker is killed amid each sixth task."""

    killed, number = 0, 0

    def _take(self, avoid: str) -> WorkerProcess:
        process = super()._take(avoid)
        Killing.number += 1
        if Killing.number % 6 == 3:
            process.kill()
            Killing.killed += 1
        return process


@pytest.mark.slow
@pytest.mark.parametrize("name", ["honest", "liar"])
def test_a_worker_killed_in_each_sixth_task_changes_nothing(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    run = request.getfixturevalue(name)
    Killing.killed = Killing.number = 0
    monkeypatch.setattr("tiebreak.api.auditing.audits.Processes", Killing)
    records = signed_records(run)[0]
    workers = Workers(jobs=2, ledger=tmp_path / "ledger")
    audit = audit_chosen(run, tuple(range(SEGMENTS)), records, Machine(), workers=workers, quiet=True)
    assert found(audit) == found(alone(run))
    assert Killing.killed >= (2 if name == "honest" else 1)


STOPPING = """
from tiebreak.api.auditing import parallel
from tiebreak.cli.main import main

put = parallel.AuditLedger.put
def stop(ledger, rows):
    put(ledger, rows)
    if isinstance(rows[0], parallel.TaskOutcome):
        print("halted", flush=True)
        input()
parallel.AuditLedger.put = stop
main()
"""


@pytest.mark.slow
def test_an_audit_goes_on_after_its_leader_is_killed_and_finds_the_lie(liar: RunDirectory, tmp_path: Path) -> None:
    """What is done is not done again, and the workers of a leader that is killed end by themselves."""
    ledger = tmp_path / "ledger"
    stopping = [STOPPING if part == SCRIPT else part for part in command(liar, ledger)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(stopping, cwd=ROOT, text=True, **pipes) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == "halted\n"
        workers = psutil.Process(leader.pid).children()
        leader.kill()
    assert len(workers) == 2
    done = steps_in(ledger)
    assert 0 < done < STEPS
    assert not psutil.wait_procs(workers, timeout=60)[1]
    code, report, printed = answer(liar, ledger)
    assert (code, report["verdict"], report["first_difference"]) == (2, "fraud", {"checkpoint": 7, "steps": [22, 24]})
    assert [row[0] for row in report["checked"]] == list(range(8))  # type: ignore[attr-defined]
    assert report["steps_resumed"] == done
    assert f"AuditFailure: the run leaves the program first in checkpoint 8 of {SEGMENTS}, steps 22 to 24, " in printed


def steps_in(ledger: Path) -> int:
    """How many steps belong to tasks that are done."""
    row = AnyOf((replayers.AuditTask, replayers.TaskOutcome))
    with closing(sqlite3.connect(ledger)) as file:
        found = [row.unpack("row", unpack(content, 1 << 20)) for (content,) in file.execute("SELECT content FROM task")]
    return sum(outcome.task.steps for outcome in found if isinstance(outcome, replayers.TaskOutcome))


# ---------------------------------------------------------------- executors


class Failing(ThreadPoolExecutor):
    """An executor that loses some calls, and gets another answer than it should for some."""

    number = 0

    def submit(self, fn: Callable[..., Any], /, *given: Any, **named: Any) -> "Future[Any]":
        self.number += 1
        match self.number % 5:
            case 2:
                return super().submit(bytes, 9)
            case 3:
                return super().submit(int, "lost")
            case 4:
                return super().submit(lambda: self.last)
        self.last = fn(*given)
        return super().submit(lambda: self.last)


@pytest.mark.parametrize("name", ["honest", "liar"])
def test_any_executor_gives_the_same_report(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that fail, no records, and answers to other tasks are lost, and done again."""
    run = request.getfixturevalue(name)
    monkeypatch.setattr("tiebreak.api.auditing.parallel.RETRIES", 9)
    with Failing(1) as executor:
        workers = Workers(executor=executor, jobs=1, ledger=tmp_path / "ledger")
        audit = audit_chosen(
            run, tuple(range(SEGMENTS)), signed_records(run)[0], Machine(), workers=workers, quiet=True
        )
    assert found(audit) == found(alone(run))
    assert executor.number > 8


def test_a_remote_executor_that_cannot_see_the_run_says_so(honest: RunDirectory) -> None:
    assignment = replace(assignment_of(honest), place=b"/nowhere")
    order = replayers.AuditOrder(assignment=assignment, task=replayers.AuditTask(number=0, segments=(1,), steps=3))
    outcome = replayers.TaskOutcome.unpack("answer", unpack(replayers.replay_packed(pack(order.pack())), 1 << 20))
    assert isinstance(outcome.problem, VerificationError)
    assert "/nowhere" in outcome.reason


class Struck(RayExecutor):
    """The process of the fifth task is killed before it answers."""

    number = 0

    def submit(self, fn: Callable[..., bytes], /, *given: bytes) -> "Future[bytes]":
        type(self).number += 1
        return super().submit(exit_at_once if self.number == 5 else fn, *given)


def exit_at_once(_order: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


@pytest.mark.slow
def test_a_ray_cluster_gives_the_same_report_when_a_worker_is_killed(
    liar: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiebreak.api.auditing.audits.RayExecutor", Struck)
    workers, records = Workers(ray="local", jobs=2, ledger=tmp_path / "ledger"), signed_records(liar)[0]
    audit = audit_chosen(liar, tuple(range(SEGMENTS)), records, Machine(), workers=workers, quiet=True)
    assert found(audit) == found(alone(liar))
    assert Struck.number > 5
