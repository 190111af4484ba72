"""Processes that each replay parts of one run for an audit: `Processes` are local, `cluster` has Ray's.

A part is a task. The answer holds records and what the replay met on its way; states stay where they are. A
task that ends without a result, because its process was killed, says what is no answer or is short of something, is
`Lost`: that says nothing about the run.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from socket import socket, socketpair
from typing import Annotated, Any, Final

from tiebreak.api.machine import Machine
from tiebreak.api.machine.channel import Channel, ready
from tiebreak.api.machine.running import make_interpreter
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.policy import LoggedPolicy
from tiebreak.engine.run.audit import SegmentAuditor
from tiebreak.engine.run.directory import RECORD_BYTES, RunDirectory
from tiebreak.engine.run.logs import LogReport
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, EncodingError, TiebreakError, VerificationError
from tiebreak.protocol.packing import U64, Data, Fields, FieldType, ListOf, Maybe, OneOf, Raw, Record, Root, Text, Uint
from tiebreak.protocol.tags import Digest

ADVANCE_SECONDS: Final = 0.5
"""The least time between two messages about the progress of one task."""


MAX_ANSWER_BYTES: Final = 1 << 20
"""The limit for an answer without its records."""
MAX_SEGMENTS: Final = 1 << 24
PROBLEMS: Final = (CannotCheck, VerificationError, ConfigurationError)


@dataclass(frozen=True, slots=True)
class CheckedSegment(FieldType):
    """A checkpoint that was reached, and the encoded record that replaying gave."""

    def check(self, name: str, value: Any) -> None:
        Uint(64).check(name, value[0])
        Raw(RECORD_BYTES).check(name, value[1])

    def unpack(self, name: str, item: Any) -> Any:
        fields = Fields(name, item, 2)
        return fields.take(Uint(64)), fields.take(Raw(RECORD_BYTES))


Numbers = Annotated[tuple[int, ...], ListOf(Uint(64), MAX_SEGMENTS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment(Record):
    """The common orders of an audit's replayers: the run, the committed records that count, and their own settings."""

    place: Annotated[bytes, Data(1 << 16)]
    """The path of the run, as the system has it."""
    job_id: Root
    count: U64
    """The number of committed records."""
    root: Root
    """The root of the run tree over the committed records."""
    settings: Annotated[bytes, Data(MAX_ANSWER_BYTES)]
    """The fields of the machine in JSON, and the file of its policy."""

    @classmethod
    def of(cls, path: Path, job_id: Digest, count: int, root: Digest, machine: Machine) -> "Assignment":
        """machine: one that computes alone, with its policy read."""
        found = {name: getattr(machine, name) for name in ("device", "threads", "permute", "memory", "graphs")}
        policy = machine.policy.encode().decode() if isinstance(machine.policy, LoggedPolicy) else None
        settings = json.dumps(found | {"policy": policy}).encode()
        return cls(place=os.fsencode(path), job_id=job_id, count=count, root=root, settings=settings)

    @property
    def path(self) -> Path:
        return Path(os.fsdecode(self.place))

    @property
    def machine(self) -> Machine:
        found = json.loads(self.settings)
        policy = found["policy"] and LoggedPolicy.decode(found["policy"].encode())
        return Machine(**found | {"policy": policy})


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTask(Record):
    """Segments that one process replays. number: the place among the audit's tasks, which are in order of steps."""

    number: U64
    segments: Numbers
    steps: U64
    """The number of steps to replay, provided that every state on disk is good."""
    permute: Annotated[int | None, Maybe(Uint(64))] = None
    """The seed of the order of all sums in a second replay, which should share as little as possible with the first."""

    @property
    def answer_bytes(self) -> int:
        """The most bytes of an honest answer, which may have a record of each segment up to the last."""
        return MAX_ANSWER_BYTES + 2 * RECORD_BYTES * (self.segments[-1] + 1)


AnyTask = Annotated[AuditTask, OneOf((AuditTask,))]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome(Record):
    """The result of a task. `problem`: why it could not be checked; then there is no other result."""

    task: AnyTask
    worker: Annotated[str, Text()]
    checked: Annotated[tuple[tuple[int, bytes], ...], ListOf(CheckedSegment(), MAX_SEGMENTS)] = ()
    """Each checkpoint that was reached, and the encoded record that replaying gave."""
    starts: Numbers = ()
    refused: Numbers = ()
    steps: U64 = 0
    log: Annotated[LogReport, OneOf((LogReport,))] = field(default_factory=LogReport)
    fault: Annotated[int, Uint(8, 0, len(PROBLEMS))] = 0
    """1 and the place in `PROBLEMS` of the reason why it could not be checked; 0 if it was."""
    reason: Annotated[str, Text()] = ""

    @property
    def problem(self) -> CannotCheck | VerificationError | ConfigurationError | None:
        return PROBLEMS[self.fault - 1](self.reason) if self.fault else None

    def __post_init__(self) -> None:
        """Refuses a result that leaves out, up to where it ends, a segment of its task."""
        Record.__post_init__(self)
        reached, last = [checkpoint for checkpoint, _ in self.checked], self.task.segments[-1]
        wanted = {segment for segment in self.task.segments if reached and segment <= reached[-1]}
        in_order = bool(reached) and reached == sorted(set(reached)) and reached[-1] <= last
        if not self.fault and not (in_order and wanted <= set(reached)):
            raise EncodingError(f"checked: expected segments of {self.task.segments!r:.80}, got {reached!r:.80}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance(Record):
    """The number of steps that a task has done so far."""

    task: AnyTask
    worker: Annotated[str, Text()]
    steps: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(Record):
    """A task ended without a result, through no fault of the run."""

    task: AnyTask
    worker: Annotated[str, Text()]
    reason: Annotated[str, Text()]


ORDERS: Final = (Assignment, AuditTask)
Event = TaskOutcome | Advance | Lost
EVENTS: Final = (TaskOutcome, Advance, Lost)


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
        fault = 1 if isinstance(error, CannotCheck) else 2 if isinstance(error, VerificationError) else 3
        return TaskOutcome(task=task, worker=worker, fault=fault, reason=str(error))
    except Exception as error:
        return Lost(task=task, worker=worker, reason=f"{type(error).__name__}: {error}")


# ---------------------------------------------------------------- local processes


class Processes:
    """A fixed number of processes on this machine. One that ends, however it does, is replaced.

    None is a copy of this process, since it would hold its memory too: a key, and a fault that all copies share.
    """

    def __init__(self, assignment: Assignment, number: int) -> None:
        self._assignment = assignment
        self.most = self.at_once = number
        """The number of tasks that can be under way when all processes are there, and now."""
        self._processes: list[_Process] = []
        self._started = 0

    def submit(self, task: AuditTask, avoid: str = "") -> None:
        """Begin a task; at most `at_once` may be under way. avoid: a worker that should not get it."""
        idle = [process for process in self._processes if process.task is None]
        fit = next((process for process in idle if process.name != avoid), None)
        if fit is None and idle and len(self._processes) == self.at_once:
            idle[0].end()
            self._processes.remove(idle[0])
        if fit is None:
            self._started += 1
            fit = _Process(self._assignment, f"worker {self._started}")
            self._processes.append(fit)
        fit.begin(task)

    def events(self, seconds: float) -> Sequence[Event]:
        """The events since the last call; waits at most `seconds` for one."""
        found: list[Event] = []
        heard = ready([process.channel for process in self._processes], seconds)
        for process in [process for process in self._processes if process.channel in heard]:
            try:
                for said in process.hear():
                    process.task = process.task if isinstance(said, Advance) else None
                    found.append(said)
            except (EOFError, OSError, VerificationError) as error:
                self._processes.remove(process)
                reason = f"its process ended with code {process.end()} ({error})"
                if process.task is not None:
                    found.append(Lost(task=process.task, worker=process.name, reason=reason))
        return found

    def close(self) -> None:
        """End all processes, also those at work."""
        for process in self._processes:
            process.end()
        self._processes.clear()


class _Process:
    """One process, and this end of the pair of sockets that leads to it.

    Its session is its own: on Ctrl-C it ends when its connection does.
    """

    def __init__(self, assignment: Assignment, name: str) -> None:
        self.name = name
        ours, theirs = socketpair()
        with theirs:
            self.pid = _begin(theirs.fileno(), name)
        ours.setblocking(False)
        self.task: AuditTask | None = None
        self.channel = Channel(ours, sends=ORDERS, takes=EVENTS, limit=MAX_ANSWER_BYTES)
        self.say(assignment)

    def begin(self, task: AuditTask) -> None:
        self.task, self.channel.limit = task, task.answer_bytes
        self.say(task)

    def say(self, what: Assignment | AuditTask) -> None:
        with suppress(OSError):  # `events` finds that it is gone
            self.channel.send(what)

    def hear(self) -> Iterator[Event]:
        """Yields what it says now. Raises `EncodingError` for what is not about its task."""
        for said in self.channel.receive():
            if (said.task, said.worker) != (self.task, self.name):
                raise EncodingError(f"expected {self.name} and its task, got {said!r:.80}")
            yield said

    def end(self) -> int:
        """Ends it, if it has not ended, and returns its exit code."""
        self.channel.close()
        try:
            os.kill(self.pid, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except (ProcessLookupError, ChildProcessError):  # where SIGCHLD is ignored, the system forgets it by itself
            return 0


def _begin(number: int, worker: str) -> int:
    """Starts a process that imports everything anew; returns its id."""
    os.set_inheritable(number, True)
    program = f"from tiebreak.api.auditing.replayers import serve; serve({number}, {worker!r})"
    # -P: a module of the user's in the current folder must not stand in for another.
    command, nothing = [sys.executable, "-P", "-c", program], (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    return os.posix_spawn(sys.executable, command, os.environ, file_actions=[nothing], setsid=True)


def serve(number: int, worker: str) -> None:
    """Does the tasks that come through the socket of a number, in order, until it is closed, even amid a task."""
    channel, orders = Channel(socket(fileno=number), sends=EVENTS, takes=ORDERS), SimpleQueue[Any]()
    channel.listen(orders.put)
    assignment: Assignment = orders.get()
    made: list[Replayer] = []

    def replayer() -> Replayer:
        if not made:
            made.append(Replayer(assignment, worker))
        return made[0]

    while True:
        channel.send(outcome_of(orders.get(), worker, replayer, channel.send))
