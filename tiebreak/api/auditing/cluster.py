"""Replayers on a Ray cluster, each an actor, so in a process of its own.

Ray itself unpickles what the machines of a cluster send: they must all be the auditor's own. They need not see the
folder of the run. A worker that does not fetches the files that it needs from the machine that leads the audit into its
own cache, and checks them against the job and the committed records as any others.
"""

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from filelock import FileLock

from tiebreak.api.auditing.replayers import (
    Advance,
    Assignment,
    AuditTask,
    Event,
    Lost,
    Replayer,
    TaskOutcome,
    outcome_of,
)
from tiebreak.engine.data.disk import Folder, make_folder, write_whole
from tiebreak.engine.data.formats import Empty
from tiebreak.engine.native import cache_directory
from tiebreak.engine.run.directory import DATA, JOB, PROGRAM, RECORD_BYTES, RECORDS, STATES, RunDirectory, state_name
from tiebreak.protocol.errors import ConfigurationError, VerificationError
from tiebreak.protocol.tags import Digest

PIECE_BYTES: Final = 1 << 24
CALLS_AT_ONCE: Final = 8


class Desk:
    """An actor on the leading machine: gives out pieces of the run's files, and takes in how far workers are."""

    def __init__(self, path: Path, kept: list[int]) -> None:
        self._path, self._kept = path, kept
        self._heard: list[Advance] = []

    def kept(self) -> list[int]:
        """The steps whose states the trainer kept."""
        return self._kept

    def piece(self, name: str, offset: int) -> bytes:
        """The next bytes of a file of the run, at most `PIECE_BYTES`; none at its end."""
        *inside, file_name = name.split("/")
        with Folder(self._path, *inside) as folder, folder.reading(file_name) as (file, _):
            file.seek(offset)
            return file.read(PIECE_BYTES) or b""

    def say(self, advance: Advance) -> None:
        """A worker has got on."""
        self._heard.append(advance)

    def heard(self) -> list[Advance]:
        """The messages of workers since the last call."""
        found, self._heard = self._heard, []
        return found


class FetchedRun(RunDirectory):
    """A run whose states are fetched when they are first needed. A state that is not the committed one is not kept."""

    @classmethod
    def begin(cls, folder: Path, assignment: Assignment, desk: Any) -> "FetchedRun":
        """Fetches all but states into a folder, which other processes may use at the same time."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(folder / ".fetching"):
            make_folder(folder / STATES)
            for name in (JOB, PROGRAM, DATA):
                _fetch(folder, name, desk)
            with Folder(folder) as opened:
                recorded = opened.size(RECORDS) if opened.holds(RECORDS) else 0
            if recorded < RECORD_BYTES * assignment.count:
                _fetch(folder, RECORDS, desk, again=True)
        run = RunDirectory.open(folder)
        if run.job.is_logged:
            raise ConfigurationError(f"{assignment.path}: for a job of policy logged, all workers must see this folder")
        found = cls(folder, run.agreement, run.program)
        found._desk, found._kept = desk, _get(desk.kept.remote())
        return found

    _desk: Any
    _kept: list[int]

    def kept(self) -> list[int]:
        return self._kept

    def state(self, step: int, root: Digest | None = None, empty: Empty | None = None, *, narrow: bool = False) -> Any:
        names = {state_name(step), *([state_name(0)] if self.program.frozen else [])}  # which has what no step changes
        with FileLock(self.path / ".fetching"):
            for name in names:
                _fetch(self.path, f"{STATES}/{name}", self._desk)
        try:
            return super().state(step, root, empty, narrow=narrow)
        except VerificationError:
            with self.folder(STATES, to_write=True) as states:
                for name in names:
                    states.remove(name)
            raise


def _fetch(folder: Path, name: str, desk: Any, *, again: bool = False) -> None:
    """Fetches a file, unless it is there."""
    *inside, file_name = name.split("/")
    with Folder(folder, *inside, to_write=True) as opened:
        if opened.holds(file_name) and not again:
            return
        with opened.replacing(file_name) as file:
            while piece := _get(desk.piece.remote(name, file.tell())):
                write_whole(file, memoryview(piece))


def _ray() -> Any:
    """The library, which is not imported before it is needed."""
    return import_module("ray")


def _get(reference: Any) -> Any:
    return _ray().get(reference)


class ReplayWorker:
    """An actor that replays tasks."""

    def __init__(self, assignment: Assignment, desk: Any, name: str) -> None:
        self._assignment, self._desk, self._name = assignment, desk, name
        self._replayer: Replayer | None = None

    def ready(self) -> str:
        """The node that it runs on."""
        node: str = _ray().get_runtime_context().get_node_id()
        return node

    def replay(self, task: AuditTask) -> TaskOutcome | Lost:
        """Audits the segments of a task."""
        return outcome_of(task, self._name, self._made, self._desk.say.remote)

    def _made(self) -> Replayer:
        if self._replayer is None:
            assignment = self._assignment
            run = None
            if not (assignment.path / JOB).is_file():
                run = FetchedRun.begin(cache_directory() / "runs" / assignment.job_id.hex(), assignment, self._desk)
            self._replayer = Replayer(assignment, self._name, run)
        return self._replayer


class _Slot:
    """An actor as the leading process knows it."""

    def __init__(self, actor: Any, name: str) -> None:
        self.actor, self.name = actor, name
        self.reference = actor.ready.remote()
        """Ray's reference to its next answer: that it is ready, then the outcome of `task`; None while it is idle."""
        self.node: str | None = None
        self.task: AuditTask | None = None


class Cluster:
    """Actors of a cluster, all that it has room for. One that is lost is replaced as soon as there is room again."""

    def __init__(self, assignment: Assignment, address: str, jobs: int | None) -> None:
        """address: empty for the cluster that RAY_ADDRESS names, or else one that is started on this machine.

        jobs: the most actors. Raises `ConfigurationError` if there is no such cluster.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # an auditor tells nobody else what it does
        self._ray = _ray()
        try:
            self._ray.init(address=address or None, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigurationError(
                f"expected a Ray cluster at {address or 'its default address'}: {error}"
            ) from error
        threads = assignment.machine.threads or 1
        room = int(self._ray.cluster_resources().get("CPU", 0)) // threads
        self._assignment = self._ray.put(assignment)
        kept = RunDirectory.open(assignment.path).kept()
        here = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy(
            self._ray.get_runtime_context().get_node_id(), soft=False
        )
        desk = self._ray.remote(Desk).options(num_cpus=0, max_concurrency=CALLS_AT_ONCE, scheduling_strategy=here)
        self._desk = desk.remote(assignment.path, kept)
        self._worker = self._ray.remote(ReplayWorker).options(num_cpus=threads, scheduling_strategy="SPREAD")
        self._slots: list[_Slot] = []
        self._queue: list[tuple[AuditTask, str]] = []
        self._started = 0
        self.most = max(1, room if jobs is None else min(jobs, room))
        for _ in range(self.most):
            self._start()

    def _start(self) -> None:
        self._started += 1
        name = f"worker {self._started}"
        self._slots.append(_Slot(self._worker.remote(self._assignment, self._desk, name), name))

    @property
    def at_once(self) -> int:
        return sum(slot.node is not None for slot in self._slots)

    def submit(self, task: AuditTask, avoid: str = "") -> None:
        self._queue.append((task, avoid))
        self._assign()

    def _assign(self) -> None:
        for task, avoid in list(self._queue):
            idle = [slot for slot in self._slots if slot.reference is None]
            node = next((slot.node for slot in self._slots if slot.name == avoid), None)
            fit = min((s for s in idle if s.name != avoid), key=lambda slot: slot.node == node, default=None)
            if fit is not None:
                fit.task, fit.reference = task, fit.actor.replay.remote(task)
                self._queue.remove((task, avoid))
            elif idle and len(self._slots) == 1:
                self._ray.kill(self._slots.pop().actor)  # the only one is the one to avoid
                self._start()

    def events(self, seconds: float) -> Sequence[Event]:
        owed = {slot.reference: slot for slot in self._slots if slot.reference is not None}
        ready, _ = self._ray.wait(list(owed), num_returns=1, timeout=seconds)
        found: list[Event] = list(_get(self._desk.heard.remote()))
        for reference in ready:
            slot = owed[reference]
            try:
                said = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                self._slots.remove(slot)
                self._start()
                if slot.task is not None:
                    reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                    found.append(Lost(task=slot.task, worker=slot.name, reason=reason))
                continue
            slot.reference = None
            if slot.task is None:
                slot.node = said
            else:
                slot.task = None
                found.append(said)
        self._assign()
        return found

    def close(self) -> None:
        self._ray.shutdown()
