"""Processes that each replay parts of one run for an audit: `Processes` are local, `cluster` has Ray's.

A part is a task. The answer holds records and what the replay met on its way; states stay where they are. A
task that ends without a result, because its process was killed or its machine is short of something, is `Lost`: that
says nothing about the run.
"""

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from socket import socketpair
from threading import Thread, active_count
from typing import Final

import torch

from tiebreak.api.machine import Machine
from tiebreak.api.machine.running import make_interpreter
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.run.audit import SegmentAuditor
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.logs import LogReport
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, TiebreakError, VerificationError
from tiebreak.protocol.tags import Digest

ADVANCE_SECONDS: Final = 0.5
"""The least time between two messages about the progress of one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The common orders of an audit's replayers: the run, the committed records that count, and their own settings."""

    path: Path
    job_id: Digest
    count: int
    """The number of committed records."""
    root: Digest
    """The root of the run tree over the committed records."""
    machine: Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTask:
    """Segments that one process replays. number: the place among the audit's tasks, which are in order of steps."""

    number: int
    segments: tuple[int, ...]
    steps: int
    """The number of steps to replay, provided that every state on disk is good."""
    permute: int | None = None
    """The seed of the order of all sums in a second replay, which should share as little as possible with the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """The result of a task. `problem`: why it could not be checked; then there is no other result."""

    task: AuditTask
    worker: str
    checked: tuple[tuple[int, bytes], ...] = ()
    """Each checkpoint that was reached, and the encoded record that replaying gave."""
    starts: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    steps: int = 0
    log: LogReport = field(default_factory=LogReport)
    problem: CannotCheck | VerificationError | ConfigurationError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The number of steps that a task has done so far."""

    task: AuditTask
    worker: str
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A task ended without a result, through no fault of the run."""

    task: AuditTask
    worker: str
    reason: str


Event = TaskOutcome | Advance | Lost


class Replayer:
    """Replays tasks in this process. Program, data and interpreter are kept from one task to the next."""

    def __init__(self, assignment: Assignment, worker: str, run: RunDirectory | None = None) -> None:
        """run: the assigned run, if it is not to be opened at the assignment's path.

        Raises `VerificationError` if the run is not the assigned one.
        """
        self.assignment, self.worker = assignment, worker
        self._run = RunDirectory.open(assignment.path) if run is None else run
        if self._run.job.id != assignment.job_id:
            raise ConfigurationError(
                f"{assignment.path}: expected the run of job {assignment.job_id.hex()}, got another"
            )
        self._records = self._run.records()[: assignment.count]
        if self._run.root(len(self._records)) != assignment.root:
            raise CannotCheck(f"{assignment.path}: expected the records of root {assignment.root.hex()}, got others")
        self._auditors: dict[int | None, SegmentAuditor] = {}

    def replay(self, task: AuditTask, on_advance: Callable[[Advance], None]) -> TaskOutcome:
        """Audits the segments of a task."""
        said = time.monotonic()

        def on_step(steps: int, _loss: float) -> None:
            nonlocal said
            now = time.monotonic()
            if now - said >= ADVANCE_SECONDS:
                said = now
                on_advance(Advance(task=task, worker=self.worker, steps=steps))

        logs = CommittedLogs.of(self._run, self._records.__getitem__)
        done = self._auditor(task.permute).audit(task.segments, on_step, logs)
        checked = tuple((report.checkpoint, report.replayed.encode()) for report in done.checked)
        return TaskOutcome(
            task=task, worker=self.worker, checked=checked, starts=tuple(done.starts), refused=tuple(done.refused),
            steps=done.steps, log=done.log,
        )  # fmt: skip

    def _auditor(self, permute: int | None) -> SegmentAuditor:
        if permute not in self._auditors:
            machine = self.assignment.machine
            if permute is not None:  # another order of sums, other threads
                machine = replace(machine, permute=permute, threads=2 if machine.threads == 1 else 1)
            interpreter = make_interpreter(self._run.program, machine, self._run.job)
            self._auditors = {permute: SegmentAuditor(self._run, interpreter, self._records)}
        return self._auditors[permute]


def outcome_of(
    task: AuditTask, worker: str, replayer: Callable[[], Replayer], on_advance: Callable[[Advance], None]
) -> TaskOutcome | Lost:
    """The result of a task, also if it fails. replayer: makes the replayer, or has it.

    An error of the run or of the request is a problem of the task. Any other error in a process, such as a full disk,
    is the machine's, and the task is lost.
    """
    try:
        return replayer().replay(task, on_advance)
    except TiebreakError as error:
        kind = next((kind for kind in (CannotCheck, VerificationError) if isinstance(error, kind)), ConfigurationError)
        return TaskOutcome(task=task, worker=worker, problem=kind(str(error)))
    except Exception as error:
        return Lost(task=task, worker=worker, reason=f"{type(error).__name__}: {error}")


# ---------------------------------------------------------------- local processes


class Processes:
    """A fixed number of processes on this machine. One that ends, however it does, is replaced.

    They begin as copies of this process where that is safe. A second replay is done by a process that begins with
    nothing, so that it shares no memory with the first.
    """

    def __init__(self, assignment: Assignment, number: int) -> None:
        self._assignment = assignment
        self.most = self.at_once = number
        """The number of tasks that can be under way when all processes are there, and now."""
        self._processes: list[_Process] = []
        self._started = 0

    def submit(self, task: AuditTask, avoid: str = "") -> None:
        """Begin a task; at most `at_once` may be under way. avoid: a worker that should not get it."""
        must_be_new = task.permute is not None
        idle = [process for process in self._processes if process.task is None]
        fit = next((p for p in idle if p.name != avoid and not (must_be_new and p.is_copy)), None)
        if fit is None and idle and len(self._processes) == self.at_once:
            idle[0].end()
            self._processes.remove(idle[0])
        if fit is None:
            self._started += 1
            fit = _Process(self._assignment, f"worker {self._started}", not must_be_new and may_copy(self._assignment))
            self._processes.append(fit)
        fit.begin(task)

    def events(self, seconds: float) -> Sequence[Event]:
        """The events since the last call; waits at most `seconds` for one."""
        found: list[Event] = []
        ready = wait([process.connection for process in self._processes], seconds)
        for process in [process for process in self._processes if process.connection in ready]:
            try:
                said = process.connection.recv()
            except (EOFError, OSError):
                self._processes.remove(process)
                code = process.end()
                if process.task is not None:
                    reason = f"its process ended with code {code}"
                    found.append(Lost(task=process.task, worker=process.name, reason=reason))
                continue
            if not isinstance(said, Advance):
                process.task = None
            found.append(said)
        return found

    def close(self) -> None:
        """End all processes, also those at work."""
        for process in self._processes:
            process.end()
        self._processes.clear()


def may_copy(assignment: Assignment) -> bool:
    """Whether a copy of this process can do the assignment (docs/decisions/audits-and-monitoring.md).

    Of all threads a copy has only the one that made it, so a lock that another thread held is never released. torch's
    own threads are not missed if it is to use one. CUDA does not work in copies.
    """
    return (
        sys.platform == "linux" and assignment.machine.device == "cpu" and assignment.machine.threads == 1
        and active_count() == 1 and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    )  # fmt: skip


class _Process:
    """One process, and this end of the pair of sockets that leads to it.

    Its session is its own: on Ctrl-C it ends when its connection does.
    """

    def __init__(self, assignment: Assignment, name: str, is_copy: bool) -> None:
        self.name, self.is_copy = name, is_copy
        ours, theirs = socketpair()
        with theirs:
            self.pid = (_copy if is_copy else _begin)(theirs.fileno(), name)
        self.task: AuditTask | None = None
        self.connection = Connection(ours.detach())
        self.say(assignment)

    def begin(self, task: AuditTask) -> None:
        self.task = task
        self.say(task)

    def say(self, what: Assignment | AuditTask) -> None:
        with suppress(OSError):  # `events` finds that it is gone
            self.connection.send(what)

    def end(self) -> int:
        """Ends it, if it has not ended, and returns its exit code."""
        self.connection.close()
        try:
            os.kill(self.pid, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except (ProcessLookupError, ChildProcessError):  # where SIGCHLD is ignored, the system forgets it by itself
            return 0


def _begin(socket: int, worker: str) -> int:
    """Starts a process that imports everything anew; returns its id."""
    os.set_inheritable(socket, True)
    program = f"from tiebreak.api.auditing.replayers import serve; serve({socket}, {worker!r})"
    # -P: a module of the user's in the current folder must not stand in for another.
    command, nothing = [sys.executable, "-P", "-c", program], (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    return os.posix_spawn(sys.executable, command, os.environ, file_actions=[nothing], setsid=True)


def _copy(socket: int, worker: str) -> int:
    """Starts a copy of this process, which keeps none of its files; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        gc.freeze()  # garbage of this process must not close files of the copy that have the same numbers
        os.setsid()
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        # Another worker is to see the end of its connection when the leading process ends, not when all copies do.
        for number in [int(file.name) for file in Path("/proc/self/fd").iterdir()]:
            if number > 2 and number != socket:
                with suppress(OSError):  # the list's own
                    os.close(number)
        serve(socket, worker)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def serve(socket: int, worker: str) -> None:
    """Does the tasks that come, in order, until the other end is closed, even amid a task."""
    connection, tasks = Connection(socket), SimpleQueue[AuditTask]()
    assignment: Assignment = connection.recv()

    def receive() -> None:
        with suppress(EOFError, OSError):
            while True:
                tasks.put(connection.recv())
        os._exit(0)

    Thread(target=receive, daemon=True).start()
    made: list[Replayer] = []

    def replayer() -> Replayer:
        if not made:
            made.append(Replayer(assignment, worker))
        return made[0]

    while True:
        connection.send(outcome_of(tasks.get(), worker, replayer, connection.send))
