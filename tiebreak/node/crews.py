"""The work of a party, in processes of its own, so that neither torch nor a crash of it touches the rest.

A `Crew` hands tasks to one process (`tiebreak.node.workbench`), one at a time. `Crews` keep moves of games, files, and
training and replays apart, so that no move waits for anything else. A process gets no key: of a sealed job the party
opens the envelope and gives it the job's secret, through the same channel. It ends when its party does, even if that is
killed: it sees the end of its channel. What it left on the disk is resumed. A task that fails through no fault of its
data (a full disk, a process that was killed, a hub that is away) is tried again, after longer and longer pauses. A
process that says what is no answer to its task (`tiebreak.node.work.fits`), or no record at all, has failed and ends.

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
from socket import socket, socketpair
from threading import Condition, Thread
from typing import Any, Final

from tiebreak.api.agreeing.readers import Unseal
from tiebreak.api.machine.channel import Channel
from tiebreak.node.work import (
    Answer,
    Bench,
    Compute,
    Drop,
    Failed,
    SecretRequest,
    Steps,
    Task,
    Try,
    Unsealed,
    fits,
    lead,
)
from tiebreak.protocol.errors import EncodingError, TiebreakError
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.tags import Digest

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
STOP_SECONDS: Final = 5
LEAST_PAUSE: Final = 0.01
"""The least time between two reports of progress that are taken, in seconds: no worker fills the party's memory."""
NICENESS: Final = 10
"""The niceness of processes that train, replay and try, so that a step under way takes few cores from a move."""
STRANGERS: Final = 2
"""Trials of strangers' programs take one part in this number of the time."""
SHORTER: Final = (64, 8, 1)
"""A stranger's program has one part in this number of the time for a trial, at its first, second and third try."""
WORKBENCH: Final = "tiebreak.node.workbench"
"""Imported by name, since it brings torch."""
_FORKS: Final = multiprocessing.get_context("forkserver")
"""Processes are copies of one that has torch and computes nothing: each begins in a tenth of a second."""
_FORKS.set_forkserver_preload([WORKBENCH])


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


class Crew:
    """Does tasks in a process of its own, and calls back in a thread of its own."""

    def __init__(self, bench: Bench, unseal: Unseal | None = None) -> None:
        """unseal: opens sealed jobs with the party's key, if it has one. It is called in the crew's thread."""
        self._bench, self._unseal = bench, unseal
        self._on_steps: Callable[[Steps], None] = lambda _: None
        self._on_trouble: Callable[[str, int], None] = lambda _text, _tries: None
        self._tasks: list[_Waiting] = []
        self._numbers = count()
        self._now: _Waiting | None = None
        """The task whose answer the process owes, or will when it has begun; None while it is idle."""
        self._changed = Condition()
        self._stopped = False
        self._free = 0.0
        """Monotonic time from which on strangers' programs may be tried again."""
        self._process: Any = None
        self._channel: Channel | None = None
        self._thread = Thread(target=self._work, name="crew", daemon=True)
        self._thread.start()

    @property
    def tasks(self) -> int:
        """The number of tasks that wait or are under way."""
        with self._changed:
            return len(self._owed())

    def _owed(self) -> list[_Waiting]:
        """The tasks that wait, and the one under way. The caller holds `_changed`."""
        return self._tasks + ([] if self._now is None else [self._now])

    def listen(self, on_steps: Callable[[Steps], None], on_trouble: Callable[[str, int], None]) -> None:
        """Have these called on progress, and when a task fails, with the reason and how often it was tried."""
        self._on_steps, self._on_trouble = on_steps, on_trouble

    def ask(self, task: Task, done: Callable[[Answer], None], *, is_strangers: bool = False) -> None:
        """Do a task, sooner or later, and call `done` with its answer.

        is_strangers: whether it is for a job of nobody whom the owner named, in which the party has no seat or stake.
        """
        with self._changed:
            if self._now is not None and self._now.is_strangers and not is_strangers:
                self._now.is_displaced = True
                if self._process is not None:
                    self._process.kill()
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
                if waiting is self._now and self._channel is not None:
                    with suppress(OSError):
                        self._channel.send(Drop(work=work))
            self._tasks = [waiting for waiting in self._tasks if not waiting.is_dropped]
        return gone

    def stop(self) -> None:
        """End the process at once. The next crew of this folder resumes the work that was under way."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.join(STOP_SECONDS)
            if process.is_alive():
                process.kill()
        self._thread.join(STOP_SECONDS)

    def _start(self) -> None:
        ours, theirs = socketpair()
        with theirs:
            process = _FORKS.Process(target=self._bench.serve or _serve, args=(theirs, self._bench), daemon=True)
            process.start()
        self._process, self._channel = process, lead(ours)

    def _work(self) -> None:
        while (waiting := self._next()) is not None:
            start, most = time.monotonic(), self._seconds(waiting)
            found = self._try(waiting)
            took = time.monotonic() - start
            if waiting.is_strangers and isinstance(waiting.task, Try):
                self._free = time.monotonic() + took * (STRANGERS - 1)
            if waiting.is_dropped:
                continue
            has_failed = isinstance(found, Failed) or bool(found.problem)
            is_short = isinstance(waiting.task, Try) and most <= took and most < self._bench.trial_seconds
            if has_failed and (waiting.is_displaced or is_short) and not self._stopped:
                waiting.tries += not waiting.is_displaced
                waiting.is_displaced = False
                with self._changed:
                    self._tasks.append(waiting)
                continue
            if isinstance(found, Answer):
                waiting.done(replace(found, took=took) if isinstance(waiting.task, Try) else found)
                continue
            waiting.tries += 1
            pause = min(FIRST_PAUSE * 2 ** (waiting.tries - 1), LONGEST_PAUSE)
            waiting.at = time.monotonic() + pause
            with self._changed:
                if self._stopped:
                    return
                self._tasks.append(waiting)
            self._on_trouble(f"{_name(waiting.task)} is tried again in {pause:.0f} s: {found.reason}", waiting.tries)

    def _next(self) -> _Waiting | None:
        """The first task that may be tried now, as soon as there is one; None once the crew is stopped."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                ready = [waiting for waiting in self._tasks if self._due(waiting) <= now]
                if ready:
                    chosen = min(ready, key=lambda waiting: waiting.order)
                    self._tasks.remove(chosen)
                    self._now = chosen
                    return chosen
                self._changed.wait(min((self._due(waiting) - now for waiting in self._tasks), default=None))
        return None

    def _due(self, waiting: _Waiting) -> float:
        """The monotonic time from which on a task may be tried."""
        is_shared = waiting.is_strangers and isinstance(waiting.task, Try)
        return max(waiting.at, self._free) if is_shared else waiting.at

    def _seconds(self, waiting: _Waiting) -> float:
        """The time that a program has to be tried."""
        most = self._bench.trial_seconds
        return most / SHORTER[min(waiting.tries, len(SHORTER) - 1)] if waiting.is_strangers else most

    def _try(self, waiting: _Waiting) -> Answer | Failed:
        is_trial = isinstance(waiting.task, Try)
        try:
            if self._process is None:
                self._start()  # others may ask and drop meanwhile
            with self._changed:
                if self._stopped or waiting.is_dropped or waiting.is_displaced:
                    return Failed(reason=self._bury(EOFError()))
                assert self._channel is not None
                self._channel.send(waiting.task)
            found = self._answer(waiting.task, time.monotonic() + self._seconds(waiting) if is_trial else None)
            if is_trial:
                self._bury(EOFError())  # and with it all that the program made it hold
            return found
        except Exception as error:
            reason = self._bury(error)
            if is_trial and not self._stopped:
                return Answer(problem=f"expected a step in {self._bench.trial_seconds} s, got none: {reason}")
            return Failed(reason=reason)
        finally:
            with self._changed:
                self._now = None

    def _answer(self, task: Task, end: float | None) -> Answer | Failed:
        """The last word of the process on a task. Raises what it says wrong, or too late."""
        assert self._channel is not None
        done, due = 0, 0.0
        while True:
            said: Answer | Failed | Steps | SecretRequest = self._channel.wait(end)
            if not fits(task, said, done):
                raise EncodingError(f"expected what fits {_name(task)}, got another {type(said).__name__}")
            match said:
                case Steps():
                    done = said.first_step + len(said.losses) - 1
                    time.sleep(max(0.0, due - time.monotonic()))
                    due = time.monotonic() + LEAST_PAUSE
                    self._on_steps(said)
                case SecretRequest():
                    self._channel.send(self._opened(said))
                case _:
                    return said

    def _opened(self, envelope: SecretRequest) -> Unsealed:
        if self._unseal is None:
            return Unsealed(problem="it is sealed; the key of a reader opens it")
        try:
            return Unsealed(secret=self._unseal(envelope.data, envelope.job_id))
        except TiebreakError as error:
            return Unsealed(problem=str(error))

    def _bury(self, error: Exception) -> str:
        """Forget a process that is gone. Returns what became of it."""
        process, self._process = self._process, None
        if process is None:
            return "it was stopped"
        with suppress(ValueError):
            process.kill()
            process.join(STOP_SECONDS)
        if self._channel is not None:
            self._channel.close()
        return f"the process that works ended with code {process.exitcode} ({error!r})"


class Crews:
    """The processes of a party: none of them waits for another's task.

    One finds the moves of all games about one job, and does nothing else. One fetches and publishes files. One tries
    programs, and ends after each. The others train and replay, each for other jobs, and stand still after a step as
    long as a move is sought.
    """

    def __init__(self, bench: Bench, unseal: Unseal | None = None) -> None:
        """unseal: as for `Crew`; several threads may call it at once."""
        self.bench, self._alone, self._unseal = bench, replace(bench, processes=1), unseal
        patient = replace(bench, niceness=NICENESS)
        self._mail, self._trying = Crew(self._alone, unseal), Crew(patient, unseal)
        self._crews = [Crew(patient, unseal) for _ in range(bench.processes)]
        self._of: dict[Digest, Crew] = {}
        """The crew that computes each job, by the job's id: it keeps what was expensive to make."""
        self._movers: dict[Digest, Crew] = {}
        """The crew that finds the moves of all games about a job, by the job's id."""
        self._listeners: tuple[Callable[[Steps], None], Callable[[str, int], None]] | None = None

    @property
    def _all(self) -> list[Crew]:
        return [self._mail, self._trying, *self._crews, *self._movers.values()]

    def listen(self, on_steps: Callable[[Steps], None], on_trouble: Callable[[str, int], None]) -> None:
        """Listen as by `Crew.listen`, in the threads of all crews."""
        self._listeners = on_steps, on_trouble
        for crew in self._all:
            crew.listen(on_steps, on_trouble)

    def ask(self, task: Task, done: Callable[[Answer], None], *, is_strangers: bool = False) -> None:
        """Let the crew for it do a task (`Crew.ask`). One thread at a time may call this."""
        job = task.job.id
        match task:
            case Compute(work=e.Gather()):
                if job not in self._movers:
                    self._movers[job] = Crew(self._alone, self._unseal)
                    if self._listeners is not None:
                        self._movers[job].listen(*self._listeners)
                self._movers[job].ask(task, done)
            case Compute():
                self._computing(job).ask(task, done)
            case Try():
                self._trying.ask(task, done, is_strangers=is_strangers)
            case _:
                self._mail.ask(task, done, is_strangers=is_strangers)

    def _computing(self, job: Digest) -> Crew:
        """The crew that trains and replays a job: for a new one, a crew that has least to do."""
        if job not in self._of:
            self._of[job] = min(self._crews, key=lambda crew: crew.tasks)
        return self._of[job]

    def drop(self, is_over: Callable[[e.Work], bool]) -> list[e.Work]:
        """Forget what nobody needs any more, as `Crew.drop` does."""
        return [work for crew in self._all for work in crew.drop(is_over)]

    def move_only(self, jobs: Set[Digest]) -> None:
        """End the processes that found moves about other jobs than these, and free their memory."""
        for job in self._movers.keys() - jobs:
            self._movers.pop(job).stop()

    def stop(self) -> None:
        """End all processes at once (`Crew.stop`)."""
        for crew in self._all:
            crew.stop()


def warm_up() -> None:
    """Start the process that the others are copies of, so that the first task waits less for torch."""
    forkserver.ensure_running()


def _serve(end: socket, bench: Bench) -> None:
    """The main function of a new process if the bench names no other. Returns when the party closes its end."""
    import_module(WORKBENCH).serve(end, bench)


def _name(task: Task) -> str:
    work = type(task.work if isinstance(task, Compute) else task).__name__.lower()
    return f"job {task.job.id.hex()[:8]}: {work}"
