"""Replays of parts of one run for an audit, by processes of this machine or by somebody else's executor.

A part is a task. Its outcome holds records, steps and findings of logs; states stay on the worker. A task is lost if
its process is killed, sends something else than an outcome, or lacks memory or disk: that says nothing about the run.
"""

import json
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Any, Final, Protocol

from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.machine.workers import Channel, WorkerProcess, spawn, worker_name
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.policy import LoggedPolicy
from tiebreak.engine.run.audit import SegmentAuditor
from tiebreak.engine.run.directory import RECORD_BYTES, RunDirectory
from tiebreak.engine.run.logs import LogReport
from tiebreak.protocol import packing
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, EncodingError, TiebreakError, VerificationError
from tiebreak.protocol.packing import U64, Data, Fields, FieldType, ListOf, Maybe, OneOf, Raw, Record, Root, Text, Uint
from tiebreak.protocol.tags import Digest

MAX_ANSWER_BYTES: Final = 1 << 20
"""The limit for an answer without its records."""
MAX_SEGMENTS: Final = 1 << 24
PROBLEMS: Final = (CannotCheck, VerificationError, ConfigurationError)
LOST: Final = len(PROBLEMS) + 1


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
        found = {name: getattr(machine, name) for name in ("device", "threads", "permute", "graphs")}
        policy = machine.policy.encode().decode() if isinstance(machine.policy, LoggedPolicy) else None
        settings = json.dumps(found | {"policy": policy}).encode()
        return cls(place=os.fsencode(path), job_id=job_id, count=count, root=root, settings=settings)

    @property
    def path(self) -> Path:
        return Path(os.fsdecode(self.place))

    @property
    def machine(self) -> Machine:
        found = json.loads(self.settings)
        return Machine(**found | {"policy": found["policy"] and LoggedPolicy.decode(found["policy"].encode())})


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


class TaskOutcome(Record):
    """The result of a task. `problem`: why it could not be checked, or `is_lost`; then there is no other result."""

    task: AnyTask
    worker: Annotated[str, Text()]
    checked: Annotated[tuple[tuple[int, bytes], ...], ListOf(CheckedSegment(), MAX_SEGMENTS)] = ()
    """Each checkpoint that was reached, and the encoded record that replaying gave."""
    starts: Numbers = ()
    refused: Numbers = ()
    steps: U64 = 0
    log: Annotated[LogReport, OneOf((LogReport,))] = field(default_factory=LogReport)
    fault: Annotated[int, Uint(8, 0, LOST)] = 0
    """1 and the place in `PROBLEMS` of the reason why it could not be checked; 0 if it was; `LOST` if it was lost."""
    reason: Annotated[str, Text()] = ""

    @property
    def is_lost(self) -> bool:
        """Whether it ended without a result, through no fault of the run."""
        return self.fault == LOST

    @property
    def problem(self) -> CannotCheck | VerificationError | ConfigurationError | None:
        return PROBLEMS[self.fault - 1](self.reason) if 0 < self.fault < LOST else None

    def __post_init__(self) -> None:
        """Refuses a result that leaves out, up to where it ends, a segment of its task."""
        Record.__post_init__(self)
        reached, last = [checkpoint for checkpoint, _ in self.checked], self.task.segments[-1]
        wanted = {segment for segment in self.task.segments if reached and segment <= reached[-1]}
        in_order = bool(reached) and reached == sorted(set(reached)) and reached[-1] <= last
        if not self.fault and not (in_order and wanted <= set(reached)):
            raise EncodingError(f"checked: expected segments of {self.task.segments!r:.80}, got {reached!r:.80}")


class AuditOrder(Record):
    """A task for a worker, with the orders that all workers have in common."""

    assignment: Annotated[Assignment, OneOf((Assignment,))]
    task: AnyTask


ORDERS: Final = (AuditOrder,)
ANSWERS: Final = (TaskOutcome,)


class Replayer:
    """Replays tasks in this process. Program, data and interpreter are kept from one task to the next."""

    def __init__(self, assignment: Assignment) -> None:
        """Raises `VerificationError` if the run is not the assigned one."""
        self.assignment, self._run = assignment, RunDirectory.open(assignment.path)
        if self._run.job.id != assignment.job_id:
            raise ConfigurationError(
                f"{assignment.path}: expected the run of job {assignment.job_id.hex()}, got another"
            )
        self._records = self._run.records()[: assignment.count]
        if self._run.root(len(self._records)) != assignment.root:
            raise CannotCheck(f"{assignment.path}: expected the records of root {assignment.root.hex()}, got others")
        self._auditors: dict[int | None, SegmentAuditor] = {}

    def replay(self, task: AuditTask) -> TaskOutcome:
        """Audits the segments of a task."""
        if task.permute not in self._auditors:
            machine = self.assignment.machine
            if task.permute is not None:  # another order of sums, other threads
                machine = replace(machine, permute=task.permute, threads=2 if machine.threads == 1 else 1)
            interpreter = make_interpreter(self._run.program, machine, self._run.job)
            self._auditors = {task.permute: SegmentAuditor(self._run, interpreter, self._records)}
        logs = CommittedLogs.of(self._run, self._records.__getitem__)
        done = self._auditors[task.permute].audit(task.segments, logs=logs)
        checked = tuple((report.checkpoint, report.replayed.encode()) for report in done.checked)
        return TaskOutcome(
            task=task, worker=worker_name(), checked=checked, starts=tuple(done.starts),
            refused=tuple(done.refused), steps=done.steps, log=done.log,
        )  # fmt: skip


_kept = threading.local()
"""The replayer of each thread: an executor may have several, and some call from threads."""


def replay(order: AuditOrder) -> TaskOutcome:
    """The result of a task, also if it fails.

    An error of the run or of the request is a problem of the task. Any other error, such as a full disk, is the
    machine's, and the task is lost.
    """
    try:
        if getattr(_kept, "replayer", None) is None or _kept.replayer.assignment != order.assignment:
            _kept.replayer = Replayer(order.assignment)
        outcome: TaskOutcome = _kept.replayer.replay(order.task)
        return outcome
    except TiebreakError as error:
        fault, reason = 1 if isinstance(error, CannotCheck) else 2 if isinstance(error, VerificationError) else 3, error
        return TaskOutcome(task=order.task, worker=worker_name(), fault=fault, reason=str(reason))
    except Exception as error:
        return lost(order.task, worker_name(), f"{type(error).__name__}: {error}")


def lost(task: AuditTask, worker: str, reason: str) -> TaskOutcome:
    """The outcome of a task that ended without a result, through no fault of the run."""
    return TaskOutcome(task=task, worker=worker, fault=LOST, reason=reason)


# ---------------------------------------------------------------- local processes


class Processes:
    """A fixed number of processes on this machine. One that ends, however it does, is replaced.

    They are started anew instead of forked: a copy would hold the keys of this process, and any fault in its memory.
    """

    def __init__(self, assignment: Assignment, number: int) -> None:
        self._assignment, self.most = assignment, number
        self._threads, self._lock, self._is_closed = ThreadPoolExecutor(number), threading.Lock(), False
        self._idle: list[WorkerProcess] = []
        self._processes: set[WorkerProcess] = set()

    def submit(self, task: AuditTask, avoid: str = "") -> "Future[TaskOutcome]":
        """Begin a task. avoid: the name of a worker that should not get it."""
        return self._threads.submit(self._replay, task, avoid)

    def _replay(self, task: AuditTask, avoid: str) -> TaskOutcome:
        process = self._take(avoid)
        name, order = process.name, AuditOrder(assignment=self._assignment, task=task)
        try:
            process.channel.limit = task.answer_bytes
            process.channel.send(order)
            outcome: TaskOutcome = process.channel.wait()
            if (outcome.task, outcome.worker) != (task, name):
                raise EncodingError(f"expected {name} and its task, got {outcome!r:.80}")
        except (EOFError, OSError, VerificationError) as error:
            with self._lock:
                self._processes.discard(process)
            return lost(task, name, f"its process ended with code {process.end()} ({error})")
        with self._lock:
            self._idle.append(process)
        return outcome

    def _take(self, avoid: str) -> WorkerProcess:
        """An idle process, or a new one. One that is to be avoided gives way to a new one if no other is idle."""
        with self._lock:
            if self._is_closed:
                raise InterruptedError("the audit has ended")
            if (fit := next((process for process in self._idle if process.name != avoid), None)) is not None:
                self._idle.remove(fit)
                return fit
            while self._idle:
                self._processes.discard(gone := self._idle.pop())
                gone.end()
            made = WorkerProcess(partial(spawn, module=__name__), ORDERS, ANSWERS, MAX_ANSWER_BYTES)
            self._processes.add(made)
            return made

    def close(self) -> None:
        """End all processes, also those at work."""
        with self._lock:
            self._is_closed = True
            for process in self._processes:
                process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._idle:
            process.end()


def serve(number: int) -> None:
    """Does the tasks that come through the socket of a number, in order, until it is closed, even amid a task."""
    channel, orders = Channel(socket.socket(fileno=number), sends=ANSWERS, takes=ORDERS), SimpleQueue[Any]()
    channel.listen(orders.put)
    while True:
        channel.send(replay(orders.get()))


# ---------------------------------------------------------------- executors


class TaskExecutor(Protocol):
    """Anything that runs functions elsewhere as `concurrent.futures.Executor` does: Dask's and loky's, or Ray's.

    It sends and gets nothing but bytes of ours, but most executors unpickle what their workers send: all must be the
    auditor's own. They must see the run's folder, under the same path.
    """

    def submit(self, fn: Callable[..., bytes], /, *given: bytes) -> "Future[bytes]":
        """Begin a call of a function that can be imported there."""


def replay_packed(order: bytes) -> bytes:
    """The packed result of a packed order: the function that executors call."""
    return packing.pack(replay(AuditOrder.unpack("order", packing.unpack(order, len(order)))).pack())


class ExecutorWorkers:
    """Workers of an executor, in place of `Processes`."""

    def __init__(self, assignment: Assignment, executor: TaskExecutor, most: int) -> None:
        """most: how many tasks are with the executor at once."""
        self._assignment, self._executor, self.most = assignment, executor, most

    def submit(self, task: AuditTask, _avoid: str = "") -> "Future[bytes]":
        order = AuditOrder(assignment=self._assignment, task=task)
        return self._executor.submit(replay_packed, packing.pack(order.pack()))

    def close(self) -> None:
        """The executor is its owner's: nothing is left to end."""


def outcome_of(task: AuditTask, future: "Future[TaskOutcome] | Future[bytes]") -> TaskOutcome:
    """The outcome of a task whose future is done. If it failed, or its result is no valid outcome, the task is lost."""
    try:
        found = future.result()
        if isinstance(found, bytes):
            found = TaskOutcome.unpack("answer", packing.unpack(found, task.answer_bytes))
            if found.task != task:
                raise EncodingError(f"expected an answer to {task!r:.80}, got one to {found.task!r:.80}")
        return found
    except Exception as error:
        return lost(task, "a worker", f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}")


class RayExecutor:
    """Runs functions as tasks of a Ray cluster, each with some of its cores.

    Ray itself unpickles what the machines of a cluster send: they must all be the auditor's own.
    """

    def __init__(self, address: str, threads: int) -> None:
        """address: empty for the cluster that RAY_ADDRESS names, or else one that is started on this machine.

        threads: the cores of a task. Raises `ConfigurationError` if there is no such cluster.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # an auditor tells nobody else what it does
        self._ray: Any = import_module("ray")  # which is not imported before it is needed
        try:
            self._ray.init(address=address or None, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigurationError(
                f"expected a Ray cluster at {address or 'its default address'}: {error}"
            ) from error
        self._options = {"num_cpus": threads, "max_retries": 0, "scheduling_strategy": "SPREAD"}
        self.most = max(1, int(self._ray.cluster_resources().get("CPU", 0)) // threads)
        """The number of tasks that it can run at once."""

    def submit(self, fn: Callable[..., bytes], /, *given: bytes) -> "Future[bytes]":
        found: Future[bytes] = self._ray.remote(fn).options(**self._options).remote(*given).future()
        return found

    def close(self) -> None:
        self._ray.shutdown()
