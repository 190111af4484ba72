"""An audit by several processes at once: its segments are divided into tasks, and a ledger keeps what came of each.

The report is that of one process which replays the segments in order, whichever worker does what and whoever is killed
on the way: (1) tasks begin at states that the trainer kept, so they need nothing of each other; (2) only what a task
says once it is complete counts, and a task that was lost is done again; (3) a disagreement is computed a second time,
with other settings and, except by an executor that chooses for itself, by another process, before it counts; (4) after
a disagreement or a problem the tasks that come before it are still done, the others are not, and what comes first is
reported. The workers are the auditor's own: an error of theirs is found if it accuses the trainer, not if it acquits
it.
"""

import hmac
import json
import sqlite3
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tiebreak.api.auditing.replayers import AuditTask, ExecutorWorkers, Processes, TaskOutcome, outcome_of
from tiebreak.api.machine.environment import own_folder, own_mark
from tiebreak.engine.data.disk import storing
from tiebreak.engine.run.audit import SegmentAudit, SegmentReport
from tiebreak.engine.run.directory import RunDirectory, kept_steps
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, StateError, TiebreakError
from tiebreak.protocol.packing import AnyOf, pack, unpack
from tiebreak.protocol.tags import Digest

TASKS: Final = 32
"""The approximate number of tasks of each worker: many, so that little is lost with a worker."""
RETRIES: Final = 3
"""The number of times that a task is done again when it is lost."""
_SECOND: Final = 0x7469
"""The seed of the order in which second replays take the terms of sums."""
_ROW: Final = AnyOf((AuditTask, TaskOutcome))


Replayers = Processes | ExecutorWorkers


def divide(run: RunDirectory, segments: Sequence[int], workers: int) -> list[AuditTask]:
    """Divides segments, ascending, into tasks of about the same number of steps.

    Segments that are replayed from the same kept state are not separated.
    """
    job, kept = run.job, kept_steps(run, max(segments) + 1)
    parts: dict[int, list[int]] = {}
    for segment in segments:
        parts.setdefault(kept[max(0, bisect_right(kept, job.first_step(segment) - 1) - 1)], []).append(segment)
    sizes = {start: job.last_step(part[-1]) - start for start, part in parts.items()}
    least = sum(sizes.values()) / (TASKS * workers)
    tasks: list[AuditTask] = []
    held, steps = [], 0
    for start, part in parts.items():
        held += part
        steps += sizes[start]
        if steps >= least:
            tasks.append(AuditTask(number=len(tasks), segments=tuple(held), steps=steps))
            held, steps = [], 0
    return tasks if not held else [*tasks, AuditTask(number=len(tasks), segments=tuple(held), steps=steps)]


class AuditLedger:
    """The tasks of one audit and their outcomes, in a file of SQLite that only one process at a time writes."""

    def __init__(self, path: Path, key: Mapping[str, Any]) -> None:
        """Opens the ledger of the audit with this key, or makes an empty one.

        Raises `ConfigurationError` if it is another audit's or was not made here by this user (whose results its maker
        could choose), `StateError` if a process is at work on it.
        """
        self.path, self._began, self._key = path, time.monotonic(), json.dumps(key, sort_keys=True)
        with ExitStack() as stack:
            try:
                self._file = sqlite3.connect(path, isolation_level=None, timeout=0)
                stack.callback(self._file.close)
                self._open(f"{self._key} {own_mark(self._key, path)}")
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                    raise ConfigurationError(f"{path}: expected a ledger of `tiebreak audit`, got: {error}") from error
                raise StateError(f"{path}: expected a file that this process alone may write, got: {error}") from error
            stack.pop_all()

    def _open(self, key: str) -> None:
        self._file.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._file.execute("BEGIN EXCLUSIVE")
        # A file that holds anything at all is not begun by us: it could bring outcomes, or a trigger that makes some.
        if self._file.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
            self._file.execute("CREATE TABLE audit (key TEXT NOT NULL, seconds REAL NOT NULL)")
            self._file.execute(
                "CREATE TABLE task (number INTEGER PRIMARY KEY, content BLOB NOT NULL, mark TEXT NOT NULL)"
            )
            self._file.execute("INSERT INTO audit VALUES (?, 0)", [key])
        found = self._file.execute("SELECT key, CAST(seconds AS REAL) FROM audit").fetchone()
        if found is None or found[0] != key:
            raise self.foreign()
        self._file.execute("COMMIT")
        self._spent = float(found[1])

    def foreign(self) -> ConfigurationError:
        """The error for a ledger that must not be resumed."""
        return ConfigurationError(
            f"{self.path}: the ledger of another audit, or one that you did not begin in this place, or that is not as "
            "you left it; name a new file, or delete this one"
        )

    def _mark(self, content: bytes) -> str:
        """HMAC of a row under this user's secret. It detects others' rows, such as those of a planted journal file."""
        return own_mark(f"{self._key} {content.hex()}", self.path)

    def tasks(self) -> tuple[list[AuditTask], dict[int, TaskOutcome]]:
        """All tasks of the audit, in order, and the outcomes of those that are done, by number.

        Raises `ConfigurationError` if a row was not written here by this user's audit.
        """
        tasks, done = list[AuditTask](), dict[int, TaskOutcome]()
        try:
            rows = self._file.execute("SELECT content, mark FROM task ORDER BY number").fetchall()
        except sqlite3.DatabaseError:
            raise self.foreign() from None
        for content, mark in rows:
            if type(content) is not bytes or not hmac.compare_digest(str(mark).encode(), self._mark(content).encode()):
                raise self.foreign()
            row = _ROW.unpack("row", unpack(content, len(content)))
            tasks.append(row.task if isinstance(row, TaskOutcome) else row)
            if isinstance(row, TaskOutcome):
                done[row.task.number] = row
        return tasks, done

    def put(self, rows: Sequence[AuditTask | TaskOutcome]) -> None:
        """Stores tasks of a new audit, or outcomes of tasks in their place, durably, in one transaction."""
        with self._file:
            self._file.execute("BEGIN")
            for row in rows:
                number, content = (row.task if isinstance(row, TaskOutcome) else row).number, pack(_ROW.pack(row))
                values = [number, content, self._mark(content)]
                self._file.execute("INSERT OR REPLACE INTO task VALUES (?, ?, ?)", values)
            self._file.execute("UPDATE audit SET seconds = ?", [self.seconds])

    @property
    def seconds(self) -> float:
        """Seconds that the audit has taken so far, including those before it was resumed."""
        return self._spent + time.monotonic() - self._began

    def close(self) -> None:
        self._file.close()


def audit_in_parallel(
    run: RunDirectory, root: Digest, segments: Sequence[int], records: Sequence[StepRecord],
    begin: Callable[[], Replayers], ledger: Path | None,
    on_steps: Callable[[int], None] = lambda _done: None, on_trouble: Callable[[str], None] = lambda _: None,
) -> SegmentAudit:  # fmt: skip
    """Audits segments (from 0) by several processes, and goes on with what the ledger says is done.

    root: the root of the run tree over the records, which are the committed ones. begin: starts the processes; it is
    not called if the ledger knows the result. on_steps: called with the number of steps of the tasks that are done.
    on_trouble: called with a sentence on each task that was lost. Raises what `SegmentAuditor.audit` raises, and
    `StateError` if a task was lost too often; the ledger then keeps the rest.
    """
    wanted = tuple(sorted(set(segments)))
    if not wanted or not 0 <= wanted[0] <= wanted[-1] < len(records):
        raise ConfigurationError(f"expected a checkpoint below {len(records)}, got {list(wanted[-1:])}")
    key = {"job": run.job.id.hex(), "root": root.hex(), "count": len(records), "segments": wanted}
    with closing(AuditLedger(ledger or _place(key), key)) as opened, ExitStack() as stack:

        @cache
        def replayers() -> Replayers:
            return stack.enter_context(closing(begin()))

        tasks, _ = opened.tasks()
        if not tasks:
            opened.put(divide(run, wanted, replayers().most))
        elif [segment for task in tasks for segment in task.segments] != list(wanted):
            raise opened.foreign()
        audit = _Audit(run, records, opened, on_steps, on_trouble)
        if audit.is_left:
            audit.work(replayers())
        return audit.report(wanted, opened.seconds)


def _place(key: Mapping[str, Any]) -> Path:
    """The default path of an audit's ledger, in the user's own state folder, into which no archive is unpacked."""
    folder = own_folder() / "ledgers"
    with storing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / f"{sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()}.sqlite"


class _Audit:
    def __init__(
        self, run: RunDirectory, records: Sequence[StepRecord], ledger: AuditLedger,
        on_steps: Callable[[int], None], on_trouble: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._run, self._records, self._ledger = run, records, ledger
        self._on_steps, self._on_trouble = on_steps, on_trouble
        tasks, self._done = ledger.tasks()
        self._resumed = sum(outcome.steps for outcome in self._done.values())
        self._unsaved: list[TaskOutcome] = []
        self._suspects: dict[int, TaskOutcome] = {}
        """Tasks in which a segment disagrees, until it is computed again."""
        disagreeing = [number for number, outcome in self._done.items() if self._disagrees(outcome)]
        self._end = min(disagreeing, default=len(tasks))
        """The last task that counts, by number."""
        left = [task for task in tasks if task.number not in self._done]
        self._waiting = sorted(left, key=lambda task: -task.steps)
        self._under_way: dict[Future[Any], AuditTask] = {}
        self._lost: Counter[int] = Counter()
        self._avoid: dict[int, str] = {}
        """The worker that should not get a task again, by the task's number."""
        self._problems: dict[int, TiebreakError] = {}

    @property
    def is_left(self) -> bool:
        """Whether anything is still to be done."""
        self._waiting = [task for task in self._waiting if task.number <= self._end]
        return bool(self._waiting) or any(task.number <= self._end for task in self._under_way.values())

    def work(self, replayers: Replayers) -> None:
        """Runs tasks until none is left, and stores their outcomes. Raises `StateError` if one is lost too often."""
        try:
            while self.is_left:
                while self._waiting and len(self._under_way) < replayers.most:
                    task = self._waiting.pop(0)
                    self._under_way[replayers.submit(task, self._avoid.get(task.number, ""))] = task
                self._save()
                for future in wait(self._under_way, return_when=FIRST_COMPLETED).done:
                    self._heard(outcome_of(self._under_way.pop(future), future))
        finally:
            self._save()

    def _save(self) -> None:
        """Writes new outcomes to the ledger, once the workers have their next tasks: none waits for the disk."""
        if self._unsaved:
            self._ledger.put(self._unsaved)
            self._unsaved = []
        self._on_steps(sum(outcome.task.steps for outcome in self._done.values()))

    def _heard(self, outcome: TaskOutcome) -> None:
        task, number = outcome.task, outcome.task.number
        if outcome.is_lost:
            self._again(task, outcome.worker, outcome.reason)
        elif outcome.problem is not None:
            self._problems[number], self._end = outcome.problem, min(self._end, number)
        elif task.permute is not None:
            self._judge(self._suspects.pop(number), outcome)
        elif not self._is_sound(outcome):
            self._again(task, outcome.worker, "it left out or changed segments")
        elif self._disagrees(outcome):
            self._suspects[number], self._avoid[number] = outcome, outcome.worker
            self._waiting.insert(0, replace(task, segments=(outcome.checked[-1][0],), permute=_SECOND))
        else:
            self._keep(outcome)

    def _disagrees(self, outcome: TaskOutcome) -> bool:
        checkpoint, record = outcome.checked[-1]
        return record != self._records[checkpoint].encode()

    def _is_sound(self, outcome: TaskOutcome) -> bool:
        """Whether an outcome ends at its task's end or at the first record that is not the committed one."""
        *before, (last, _) = outcome.checked
        agree = all(record == self._records[checkpoint].encode() for checkpoint, record in before)
        return agree and (last == outcome.task.segments[-1] or self._disagrees(outcome))

    def _keep(self, outcome: TaskOutcome) -> None:
        self._done[outcome.task.number] = outcome
        self._unsaved.append(outcome)

    def _judge(self, first: TaskOutcome, second: TaskOutcome) -> None:
        """Decides on a disagreement, by the second computation of its segment."""
        number, (checkpoint, record) = first.task.number, first.checked[-1]
        if second.checked[-1] == (checkpoint, record):
            self._keep(first)
            self._end = min(self._end, number)
        elif self._disagrees(second):
            raise CannotCheck(
                f"{first.worker} and {second.worker} got two different records of checkpoint {checkpoint}, and neither "
                "is the committed one; check these machines with `tiebreak doctor`"
            )
        else:
            reason = f"its record of checkpoint {checkpoint} is not the trainer's, which {second.worker} got as well"
            self._again(first.task, first.worker, reason)

    def _again(self, task: AuditTask, worker: str, reason: str) -> None:
        self._lost[task.number] += 1
        last = self._run.job.last_step(task.segments[-1])
        what = f"{worker}: the segments up to step {last} were lost: {reason}"
        if self._lost[task.number] > RETRIES:
            raise StateError(f"{what}; tried {RETRIES + 1} times. {self._ledger.path} keeps what is done")
        self._on_trouble(f"{what}; they are replayed again")
        self._avoid[task.number] = worker
        self._waiting.insert(0, task)

    def report(self, wanted: tuple[int, ...], seconds: float) -> SegmentAudit:
        """The report of all tasks up to the first that disagrees. Raises the problem that comes before it."""
        if self._end in self._problems:
            raise self._problems[self._end]
        job = self._run.job
        audit = SegmentAudit(total=len(self._records), wanted=wanted, resumed=self._resumed, seconds=seconds)
        checked: dict[int, StepRecord] = {}
        for outcome in (self._done[number] for number in sorted(self._done) if number <= self._end):
            checked |= {checkpoint: StepRecord.decode(record) for checkpoint, record in outcome.checked}
            audit.starts += outcome.starts
            audit.refused += outcome.refused
            audit.steps += outcome.steps
            audit.log.add(outcome.log)
        audit.checked = [
            SegmentReport(
                checkpoint=checkpoint, first_step=job.first_step(checkpoint), last_step=job.last_step(checkpoint),
                committed=self._records[checkpoint], replayed=replayed,
            )
            for checkpoint, replayed in sorted(checked.items())
        ]  # fmt: skip
        audit.refused = sorted(set(audit.refused))
        return audit
