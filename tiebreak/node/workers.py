"""The workers of a party: processes of their own, so that neither torch nor a crash of it touches the rest.

A `TaskQueue` hands tasks to one process (`tiebreak.node.worker_tasks`), one at a time. The `WorkerPool` keeps moves of
games, files, and training and replays apart, so that no move waits for anything else. A process gets no key: of a
sealed job the party opens the envelope and gives it the job's secret, through the same channel. It ends when its party
does, even if that is killed: it sees the end of its channel. What it left on the disk is resumed. A task that fails
through no fault of its data (a full disk, a process that was killed, a hub that is away) is tried again, after longer
and longer pauses. A process that says what is no answer to its task (`tiebreak.node.tasks.fits`), or no record at all,
has failed and ends.

Keys are free, so turns by client are worth nothing among strangers. They share what others leave: a task for somebody
whom the owner named, or for a seat, comes before theirs and ends the one under way, their trials take at most a part of
the time (`STRANGERS`), and each has first a short while, and only later, if it was too short, the whole time.
"""

import multiprocessing
import time
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import count
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from socket import socket
from threading import Condition, Thread
from typing import Final

from tiebreak.api.agreement.sealing import Unseal
from tiebreak.api.machine.workers import STOP_SECONDS, WorkerProcess
from tiebreak.node import tasks
from tiebreak.node.tasks import Answer, Compute, Drop, Failed, SecretRequest, Steps, Task, Try, Unsealed, WorkerSettings
from tiebreak.protocol.errors import EncodingError, TiebreakError
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.tags import Digest

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
LEAST_PAUSE: Final = 0.01
"""The least time between two reports of progress that are taken, in seconds: no worker fills the party's memory."""
NICENESS: Final = 10
"""The niceness of processes that train, replay and try, so that a step under way takes few cores from a move."""
STRANGERS: Final = 2
"""Trials of strangers' programs take one part in this number of the time."""
SHORTER: Final = (64, 8, 1)
"""A stranger's program has one part in this number of the time for a trial, at its first, second and third try."""
WORKER_TASKS: Final = "tiebreak.node.worker_tasks"
"""Imported by name, since it brings torch."""
_FORKS: Final = multiprocessing.get_context("forkserver")
"""Processes are copies of one that has torch and computes nothing: each begins in a tenth of a second."""
_FORKS.set_forkserver_preload([WORKER_TASKS])


@dataclass(slots=True)
class Listeners:
    """The functions that are called about work, in the threads of the queues."""

    on_steps: Callable[[Steps], None] = lambda _: None
    """Called with the progress of a training."""
    on_trouble: Callable[[str, int], None] = lambda _text, _tries: None
    """Called when a task fails, with the reason and how often it was tried."""


@dataclass(slots=True)
class _Waiting:
    task: Task
    done: Callable[[Answer], None]
    number: int
    turn: int = 0
    """The number of the same client's programs that wait or are under way, if this is one to try."""
    at: float = 0.0
    """Monotonic time of the earliest next try, in seconds; 0 before the first."""
    tries: int = 0
    is_dropped: bool = False
    is_strangers: bool = False
    is_displaced: bool = False
    """Whether it was ended for a task that is no stranger's, to be tried again."""

    @property
    def order(self) -> tuple[bool, int, int, int]:
        """The sort key, lowest first: neither what fails for ever nor a client's many programs keep others back."""
        return self.is_strangers, self.tries, self.turn, self.number

    def __str__(self) -> str:
        work = type(self.task.work if isinstance(self.task, Compute) else self.task).__name__.lower()
        return f"job {self.task.job.id.hex()[:8]}: {work}"


class TaskQueue:
    """The tasks of one worker process. A thread of its own gives them to it, and calls back."""

    def __init__(
        self, settings: WorkerSettings, unseal: Unseal | None = None, listeners: Listeners | None = None
    ) -> None:  # fmt: skip
        """unseal: opens sealed jobs with the party's key, if it has one. It is called in the queue's thread."""
        self.settings, self._unseal, self._listeners = settings, unseal, listeners or Listeners()
        self._tasks: list[_Waiting] = []
        self._numbers = count()
        self._now: _Waiting | None = None
        """The task whose answer the process owes, or will when it has begun; None while it is idle."""
        self._changed = Condition()
        self._stopped = False
        self._free = 0.0
        """Monotonic time from which on strangers' programs may be tried again."""
        self._worker: WorkerProcess | None = None
        self._thread = Thread(target=self._work, name="tasks", daemon=True)
        self._thread.start()

    @property
    def tasks(self) -> int:
        """The number of tasks that wait or are under way."""
        with self._changed:
            return len(self._owed())

    def _owed(self) -> list[_Waiting]:
        """The tasks that wait, and the one under way. The caller holds `_changed`."""
        return self._tasks + ([] if self._now is None else [self._now])

    def ask(self, task: Task, done: Callable[[Answer], None], *, is_strangers: bool = False) -> None:
        """Do a task, sooner or later, and call `done` with its answer.

        is_strangers: whether it is for a job of nobody whom the owner named, in which the party has no seat or stake.
        """
        with self._changed:
            if self._now is not None and self._now.is_strangers and not is_strangers:
                self._now.is_displaced = True
                if self._worker is not None:
                    self._worker.kill()
            of_client = [one for one in self._owed() if one.task.job.client == task.job.client]
            turn = len(of_client) if isinstance(task, Try) else 0
            self._tasks.append(_Waiting(task, done, next(self._numbers), turn, is_strangers=is_strangers))
            self._changed.notify_all()

    def drop(self, is_over: Callable[[e.Work], bool]) -> list[e.Work]:
        """Forget work that nobody needs any more, also what is under way, without an answer. Returns it.

        One machine for many games is in time only if no replay of a game that is over goes before another's.
        """
        with self._changed:
            gone: list[e.Work] = []
            for waiting in self._owed():
                work = waiting.task.work if isinstance(waiting.task, Compute) else None
                if work is None or waiting.is_dropped or not is_over(work):
                    continue
                waiting.is_dropped = True
                gone.append(work)
                if waiting is self._now and self._worker is not None:
                    with suppress(OSError):
                        self._worker.channel.send(Drop(work=work))
            self._tasks = [waiting for waiting in self._tasks if not waiting.is_dropped]
        return gone

    def stop(self) -> None:
        """End the process at once. The next one of this folder resumes the work that was under way."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            if self._worker is not None:
                self._worker.kill()
        self._thread.join(STOP_SECONDS)

    def _work(self) -> None:
        while (waiting := self._next()) is not None:
            start, most = time.monotonic(), self._seconds(waiting)
            found = self._try(waiting)
            took, is_trial = time.monotonic() - start, isinstance(waiting.task, Try)
            if waiting.is_strangers and is_trial:
                self._free = time.monotonic() + took * (STRANGERS - 1)
            if waiting.is_dropped:
                continue
            has_failed = isinstance(found, Failed) or bool(found.problem)
            is_short = is_trial and most <= took and most < self.settings.trial_seconds
            if has_failed and (waiting.is_displaced or is_short) and not self._stopped:
                waiting.tries += not waiting.is_displaced
                waiting.is_displaced = False
                self._wait_again(waiting)
            elif isinstance(found, Answer):
                waiting.done(replace(found, took=took) if is_trial else found)
            else:
                waiting.tries += 1
                pause = min(FIRST_PAUSE * 2 ** (waiting.tries - 1), LONGEST_PAUSE)
                waiting.at = time.monotonic() + pause
                if not self._stopped:
                    self._wait_again(waiting)
                    reason = f"{waiting} is tried again in {pause:.0f} s: {found.reason}"
                    self._listeners.on_trouble(reason, waiting.tries)
        self._end_process()

    def _wait_again(self, waiting: _Waiting) -> None:
        with self._changed:
            self._tasks.append(waiting)

    def _next(self) -> _Waiting | None:
        """The first task that may be tried now, as soon as there is one; None once the queue is stopped."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                if ready := [waiting for waiting in self._tasks if self._due(waiting) <= now]:
                    self._now = min(ready, key=lambda waiting: waiting.order)
                    self._tasks.remove(self._now)
                    return self._now
                self._changed.wait(min((self._due(waiting) - now for waiting in self._tasks), default=None))
        return None

    def _due(self, waiting: _Waiting) -> float:
        """The monotonic time from which on a task may be tried."""
        is_shared = waiting.is_strangers and isinstance(waiting.task, Try)
        return max(waiting.at, self._free) if is_shared else waiting.at

    def _seconds(self, waiting: _Waiting) -> float:
        """The time that a program has to be tried."""
        most = self.settings.trial_seconds
        return most / SHORTER[min(waiting.tries, len(SHORTER) - 1)] if waiting.is_strangers else most

    def _try(self, waiting: _Waiting) -> Answer | Failed:
        is_trial = isinstance(waiting.task, Try)
        try:
            worker = self._worker or self._start()  # others may ask and drop meanwhile
            with self._changed:
                self._worker = worker
                if self._stopped or waiting.is_dropped or waiting.is_displaced:
                    raise EOFError("it is not needed now")
                worker.channel.send(waiting.task)
            found = self._answer(worker, waiting, time.monotonic() + self._seconds(waiting) if is_trial else None)
            if is_trial:
                self._end_process()  # and with it all that the program made it hold
            return found
        except Exception as error:
            reason = f"the process that works ended with code {self._end_process()} ({error!r})"
            if is_trial and not self._stopped and not waiting.is_displaced:
                return Answer(problem=f"expected a step in {self.settings.trial_seconds} s, got none: {reason}")
            return Failed(reason=reason)
        finally:
            with self._changed:
                self._now = None

    def _answer(self, worker: WorkerProcess, waiting: _Waiting, end: float | None) -> Answer | Failed:
        """The last word of the process on a task. Raises what it says wrong, or too late."""
        done, due = 0, 0.0
        while True:
            said: Answer | Failed | Steps | SecretRequest = worker.channel.wait(end)
            if not tasks.fits(waiting.task, said, done):
                raise EncodingError(f"expected what fits {waiting}, got another {type(said).__name__}")
            match said:
                case Steps():
                    done = said.first_step + len(said.losses) - 1
                    time.sleep(max(0.0, due - time.monotonic()))
                    due = time.monotonic() + LEAST_PAUSE
                    self._listeners.on_steps(said)
                case SecretRequest():
                    worker.channel.send(self._opened(said))
                case _:
                    return said

    def _opened(self, envelope: SecretRequest) -> Unsealed:
        if self._unseal is None:
            return Unsealed(problem="it is sealed; the key of a reader opens it")
        try:
            return Unsealed(secret=self._unseal(envelope.data, envelope.job_id))
        except TiebreakError as error:
            return Unsealed(problem=str(error))

    def _start(self) -> WorkerProcess:
        def start(end: socket) -> BaseProcess:
            process = _FORKS.Process(target=self.settings.serve or _serve, args=(end, self.settings), daemon=True)
            process.start()
            return process

        return WorkerProcess(start, tasks.ORDERS, tasks.ANSWERS, tasks.MAX_ANSWER_BYTES)

    def _end_process(self) -> int | None:
        with self._changed:
            worker, self._worker = self._worker, None
        return None if worker is None else worker.end()


class WorkerPool:
    """The processes of a party: none of them waits for another's task.

    One finds the moves of all games about one job, and does nothing else. One fetches and publishes files. One tries
    programs, and ends after each. The others train and replay, each for other jobs, and stand still after a step as
    long as a move is sought.
    """

    def __init__(self, settings: WorkerSettings, unseal: Unseal | None = None) -> None:
        """unseal: as for `TaskQueue`; several threads may call it at once."""
        self.settings, self.listeners, self._unseal = settings, Listeners(), unseal
        patient = replace(settings, niceness=NICENESS)
        self._files, self._trying = self._queue(replace(settings, processes=1)), self._queue(patient)
        self._computing = [self._queue(patient) for _ in range(settings.processes)]
        self._of: dict[Digest, TaskQueue] = {}
        """The queue that computes each job, by the job's id: its process keeps what was expensive to make."""
        self._movers: dict[Digest, TaskQueue] = {}
        """The queue that finds the moves of all games about a job, by the job's id."""

    def _queue(self, settings: WorkerSettings) -> TaskQueue:
        return TaskQueue(settings, self._unseal, self.listeners)

    @property
    def _all(self) -> list[TaskQueue]:
        return [self._files, self._trying, *self._computing, *self._movers.values()]

    def ask(self, task: Task, done: Callable[[Answer], None], *, is_strangers: bool = False) -> None:
        """Have the process for it do a task (`TaskQueue.ask`). One thread at a time may call this."""
        job = task.job.id
        match task:
            case Compute(work=e.Gather()):
                if job not in self._movers:
                    self._movers[job] = self._queue(replace(self.settings, processes=1))
                self._movers[job].ask(task, done)
            case Compute():
                if job not in self._of:  # a queue that has least to do
                    self._of[job] = min(self._computing, key=lambda queue: queue.tasks)
                self._of[job].ask(task, done)
            case Try():
                self._trying.ask(task, done, is_strangers=is_strangers)
            case _:
                self._files.ask(task, done, is_strangers=is_strangers)

    def drop(self, is_over: Callable[[e.Work], bool]) -> list[e.Work]:
        """Forget what nobody needs any more, as `TaskQueue.drop` does."""
        return [work for queue in self._all for work in queue.drop(is_over)]

    def move_only(self, jobs: Set[Digest]) -> None:
        """End the processes that found moves about other jobs than these, and free their memory."""
        for job in self._movers.keys() - jobs:
            self._movers.pop(job).stop()

    def stop(self) -> None:
        """End all processes at once (`TaskQueue.stop`)."""
        for queue in self._all:
            queue.stop()


def warm_up() -> None:
    """Start the process that the others are copies of, so that the first task waits less for torch."""
    forkserver.ensure_running()


def _serve(end: socket, settings: WorkerSettings) -> None:
    """The main function of a new process if the settings name no other. Returns when the party closes its end."""
    import_module(WORKER_TASKS).serve(end, settings)
