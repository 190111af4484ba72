"""Audits of a signed run: either the whole run, kept as the auditor's own replay, or a selection of its segments."""

import hmac
from collections.abc import Mapping
from contextlib import ExitStack, closing
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rich.console import Console

from tiebreak.api.auditing.parallel import Replayers, audit_in_parallel
from tiebreak.api.auditing.progress import Tally, on_stderr
from tiebreak.api.auditing.replayers import Assignment, ExecutorWorkers, Processes, RayExecutor, TaskExecutor
from tiebreak.api.machine import Machine, environment, interpreters
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.logged.journal import LogsInProgress
from tiebreak.engine.run import segments as run_segments
from tiebreak.engine.run.audit import SegmentAudit, SegmentAuditor, SegmentReport
from tiebreak.engine.run.directory import MAX_NAMES_BYTES, NAMES, RunDirectory
from tiebreak.engine.run.logs import NO_LOGS, LogReport, Logs
from tiebreak.engine.run.train import Progress, Worker
from tiebreak.engine.system import usable_cores
from tiebreak.protocol.commitments.job import Job, SignedHead
from tiebreak.protocol.commitments.records import StepRecord, run_tree
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, EncodingError, VerificationError
from tiebreak.protocol.trees import Frontier

MARK: Final = "replayed.here"
"""File in a replay that proves who made its records: two marks (`own_mark`, an HMAC) in hex digits.

One is of all records, the other of one more, which may be missing after a crash.
"""
MARK_DIGITS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WholeAudit:
    """The result of comparing a signed head with the auditor's own replay.

    fraud: the first checkpoint that differs; None if the audit agrees, and None if the trainer's records are not the
    ones it signed. last_step: the last step that the head covers. resumed: the steps that were replayed before.
    """

    head: SignedHead
    comparison: run_segments.RootComparison
    fraud: SegmentReport | None
    last_step: int
    resumed: int
    log: LogReport

    @property
    def agrees(self) -> bool:
        """Whether the trainer's root equals the root of the replay."""
        return self.comparison.agrees

    def __repr__(self) -> str:
        if self.agrees:
            return f"<audit: {self.comparison.count} checkpoints, {self.last_step} steps, agrees>"
        return f"<audit: {difference(self.fraud, self.comparison.count)}>"


def check_last_state(trainer: RunDirectory, head: SignedHead) -> None:
    """Raises `CannotCheck` if the final state on disk is not the one that the signed head commits to."""
    last = trainer.job.last_step(head.head.count - 1)
    try:
        if last in trainer.kept():
            trainer.state(last, narrow=True)
    except VerificationError as error:
        raise CannotCheck(
            f"expected the state after step {last} that the trainer committed to, which is right, got another file; "
            f"fetch it again or take the replay's: {error}"
        ) from error


def difference(fraud: SegmentReport | None, count: int, finder: str = "a dispute") -> str:
    """One sentence that says where a run of `count` checkpoints first departs from its program.

    finder: words for the means that names the module and the instruction, which only the trainer's own evidence shows.
    """
    if fraud is None:
        return f"the signed root is not that of the program's {count} checkpoints; {finder} shows what it opens to"
    place, unknown = f"step {fraud.last_step}", "module and instruction"
    if fraud.first_step < fraud.last_step:
        place, unknown = f"steps {fraud.first_step} to {fraud.last_step}", "step, module and instruction"
    theirs, own = fraud.committed, fraud.replayed
    what = "record" if theirs.loss_bits == own.loss_bits else "loss"
    what = what if theirs.state_root == own.state_root else "state"
    checkpoint = f"checkpoint {fraud.checkpoint + 1} of {count}"
    return (
        f"the run leaves the program first in {checkpoint}, {place}, where the {what} differs; "
        f"{finder} names the {unknown}"
    )


def audit_whole(trainer: RunDirectory, folder: Path, machine: Machine, *, quiet: bool = False) -> WholeAudit:
    """Recomputes the signed part of the run into `folder` and compares the result with the last head.

    Uses only the job's own inputs, each checked against the job's roots, and under policy `logged` the committed logs.
    Continues a replay of which this user's audits made every record, in `folder`. Raises `ConfigurationError` if
    nothing is signed yet, or if the folder holds anything else; a refused audit makes no folder.
    """
    if (head := trainer.last_head()) is None:
        raise ConfigurationError(
            f"{trainer.path}: expected at least one signed head, got none; train with the key that signs them"
        )
    interpreter = interpreters.make_interpreter(trainer.program, machine, trainer.job)
    last = trainer.job.last_step(head.head.count - 1)
    records = run_segments.signed_records(trainer)[0] if trainer.job.is_logged else []
    replay = OwnReplay.begin(trainer, folder)
    resumed = min(last, replay.last_complete())
    logs: Logs = NO_LOGS
    if trainer.job.is_logged:
        logs = LogsInProgress(replay, CommittedLogs(LogFiles(trainer), records.__getitem__).step_log)
    tally = Tally()
    with on_stderr("replaying", last, resumed, quiet=quiet) as on_step:

        def told(progress: Progress) -> None:
            tally.step(progress)
            on_step(progress.step, progress.loss, tally.words())

        Worker(replay, interpreter, on_progress=told, on_commit=tally.commit, logs=logs).work(last)
    replay.check()  # the folder could have been overlaid meanwhile
    comparison = run_segments.compare(replay, head)
    fraud = None if comparison.agrees else _first_difference(trainer, replay)
    return WholeAudit(head=head, comparison=comparison, fraud=fraud, last_step=last, resumed=resumed, log=logs.report)


class OwnReplay(RunDirectory):
    """A replay whose records this user's audits made, each authenticated by a MAC before it is appended.

    Other files are checked against a record or the job when they are read, so planted files have no effect. Restoring
    an older replay of one's own only loses progress.
    """

    @classmethod
    def begin(cls, trainer: RunDirectory, folder: Path) -> "OwnReplay":
        """Opens a replay of the trainer's job, or begins one. Raises `ConfigurationError` for others' records."""
        mark = _mark(trainer.job, folder, Frontier())
        found = open_replay(trainer, folder, {MARK: mark + mark})
        replay = cls(folder, found.agreement, found.program)
        replay.check()
        return replay

    def check(self) -> None:
        """Raises `ConfigurationError` unless this user's audits made all records that are here."""
        self._marked = Frontier()
        for digest in self.record_digests(self.recorded()):
            self._marked.append(digest)
        with self.folder() as files:
            marks = files.read(MARK, 2 * MARK_DIGITS) if files.holds(MARK) else b""
        own = _mark(self.job, self.path, self._marked)
        if not any(hmac.compare_digest(own, mark) for mark in (marks[:MARK_DIGITS], marks[MARK_DIGITS:])):
            raise ConfigurationError(
                f"{self.path}: expected a replay that you began in this place, with the records that it came to, got "
                "one that anybody may have made or changed; it is not resumed: name a new folder with --output, or "
                "delete this one"
            )

    def append_record(self, record: StepRecord) -> None:
        grown = deepcopy(self._marked)
        grown.append(record.digest)
        marks = b"".join(_mark(self.job, self.path, records) for records in (self._marked, grown))
        with self.folder(to_write=True) as files:
            files.write(MARK, marks)
        super().append_record(record)
        self._marked = grown


def _mark(job: Job, folder: Path, records: Frontier) -> bytes:
    return environment.own_mark(f"{job.id.hex()} {records.count} {records.root(job.run_depth).hex()}", folder).encode()


def _first_difference(trainer: RunDirectory, replay: RunDirectory) -> SegmentReport | None:
    """The first segment that differs; None if the trainer's records are not the ones it signed and so prove nothing."""
    try:
        committed, _ = run_segments.signed_records(trainer)
    except (CannotCheck, EncodingError):
        return None
    job = replay.job
    for checkpoint, (their, own) in enumerate(zip(committed, replay.records(), strict=False)):
        if their != own:
            first, last = job.first_step(checkpoint), job.last_step(checkpoint)
            return SegmentReport(checkpoint=checkpoint, first_step=first, last_step=last, committed=their, replayed=own)
    return None


def open_replay(trainer: RunDirectory, folder: Path, more: Mapping[str, bytes] = MappingProxyType({})) -> RunDirectory:
    """Opens the auditor's replay of the same job, or creates it from the job's inputs.

    more: further files of a new one. Raises `ConfigurationError` if the folder holds a replay of another job.
    """
    if (folder / "job.bin").exists():
        replay = RunDirectory.open(folder)
        if replay.job != trainer.job:
            raise ConfigurationError(f"{folder}: expected a replay of job {trainer.job.id.hex()}, got another job's")
        return replay
    with trainer.folder() as files:
        names = {NAMES: files.read(NAMES, MAX_NAMES_BYTES)} if files.holds(NAMES) else {}
    inputs = (trainer.agreement, trainer.program, trainer.state(0), trainer.data())
    return RunDirectory.create(folder, *inputs, {**more, **names})


def choose_segments(
    trainer: RunDirectory, *, segment: int | None, first: int | None, last: int | None, sample: int | None, seed: str
) -> tuple[tuple[int, ...], list[StepRecord], SignedHead]:
    """Selects one segment, the segments with steps `first` to `last`, or a sample drawn from the seed and signed root.

    Segments are numbered from 0. Returns them, the signed records to check them against, and the head that they are of.
    Raises `ConfigurationError` for a segment or step that is not signed.
    """
    records, head = run_segments.signed_records(trainer)
    count = len(records)
    if sample is not None:
        return run_segments.draw_segments(count, sample, seed.encode(), head.head.run_root), records, head
    chosen = segments_of(trainer, count, first, last) if segment is None else (segment,)
    if chosen[-1] >= count:
        raise ConfigurationError(f"expected a checkpoint below {count}, got {chosen[-1]}")
    return chosen, records, head


def segments_of(trainer: RunDirectory, count: int, first: int | None, last: int | None) -> tuple[int, ...]:
    """The signed segments that hold steps `first` (default: the first) to `last` (default: the last signed step)."""
    job = trainer.job
    signed = job.last_step(count - 1)
    first, last = 1 if first is None else first, signed if last is None else last
    if not 1 <= first <= last <= signed:
        raise ConfigurationError(f"expected steps within 1 to {signed}, which are signed, got {first} to {last}")
    return tuple(range(job.checkpoint_of(first), job.checkpoint_of(last) + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Processes that replay the segments of an audit, and the ledger that keeps their results.

    jobs: the number of processes on this machine or, elsewhere, the most tasks at once [default with Ray: as many as
    its cores allow]. ray: the cluster's address, `""` for the one that Ray finds or else starts here. executor: another
    executor, such as Dask's, in place of Ray. Each process has the threads of the `Machine` [default: its share of this
    machine's cores; 1 elsewhere]. ledger: its file [default: one for each audit in `own_folder`].
    """

    jobs: int | None = None
    ray: str | None = None
    executor: TaskExecutor | None = None
    ledger: Path | None = None

    def __post_init__(self) -> None:
        if self.jobs is None and self.ray is None:
            raise ConfigurationError("expected a number of jobs, or a cluster of Ray, got neither")


def audit_chosen(
    trainer: RunDirectory, segments: tuple[int, ...], records: list[StepRecord], machine: Machine,
    *, workers: Workers | None = None, quiet: bool = False,
) -> SegmentAudit:  # fmt: skip
    """Replays each segment from the nearest earlier checkpoint that the trainer kept and that matches its record.

    workers: the processes that replay [default: this process, segment after segment].
    """
    if workers is not None:
        return _audit_by(workers, trainer, segments, records, machine, quiet=quiet)
    interpreter = interpreters.make_interpreter(trainer.program, machine, trainer.job)
    with on_stderr("replaying", run_segments.steps_to_replay(trainer, segments), quiet=quiet) as on_step:
        logs = CommittedLogs.of(trainer, records.__getitem__)
        return SegmentAuditor(trainer, interpreter, records).audit(segments, on_step, logs)


def _audit_by(
    workers: Workers, trainer: RunDirectory, segments: tuple[int, ...], records: list[StepRecord], machine: Machine,
    *, quiet: bool,
) -> SegmentAudit:  # fmt: skip
    jobs, job, threads = workers.jobs, trainer.job, machine.threads
    if threads is None:
        is_here = workers.ray is None and workers.executor is None and jobs is not None
        threads = max(1, usable_cores() // jobs) if is_here and jobs is not None else 1
    assignment = Assignment.of(
        trainer.path.absolute(), job.id, len(records),
        run_tree([record.digest for record in records], job.steps, job.checkpoint_interval).root,
        replace(machine, threads=threads, policy=interpreters.as_policy(machine.policy)),  # its file may not be there
    )  # fmt: skip
    with ExitStack() as stack:

        def begin() -> Replayers:
            if workers.ray is not None:
                ray = stack.enter_context(closing(RayExecutor(workers.ray, threads)))
                return ExecutorWorkers(assignment, ray, ray.most if jobs is None else min(jobs, ray.most))
            assert jobs is not None
            if workers.executor is not None:
                return ExecutorWorkers(assignment, workers.executor, jobs)
            return Processes(assignment, jobs)

        console = Console(stderr=True, quiet=quiet)
        on_step = stack.enter_context(
            on_stderr("replaying", run_segments.steps_to_replay(trainer, segments), quiet=quiet)
        )
        return audit_in_parallel(
            trainer, assignment.root, segments, records, begin, workers.ledger, lambda done: on_step(done, None),
            lambda words: console.print(f"warning: {words}", highlight=False, markup=False, soft_wrap=True),
        )  # fmt: skip
