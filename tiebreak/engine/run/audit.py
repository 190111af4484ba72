"""Auditing: replay and compare (Algorithm 2 of the paper; under policy `exact` there is no log to follow).

A *whole* audit computes the run again from the initial state, in the auditor's own directory, and compares roots. An
audit of *segments* (one, a range, a random sample) starts each segment at one of the trainer's checkpoints and replays
it to the next record. The plan of a segment audit, in which each check relies on those before it:
(1) the records are the ones that a signed head commits to; records beyond that head are ignored;
(2) a state is used only if it hashes to its record; otherwise the audit goes back to an earlier state that does;
(3) the data and the program are the job's (the program is checked when the run is opened);
(4) under policy `logged`, the trainer's logs of a segment have the log root of its record and are followed
    (`tiebreak.engine.logged`). If logs are withheld, or are not the committed ones, the segment stays unchecked:
    without them nobody can say what the right result is;
(5) the state and the loss after a segment's last step give the record that the trainer committed.
A segment that passes leads from one committed state to the next. The audit says nothing about segments that were not
replayed.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tiebreak.engine.data import check_unchanged
from tiebreak.engine.run.commit import Identified, make_record
from tiebreak.engine.run.directory import RunDirectory, kept_steps
from tiebreak.engine.run.interpreter import Interpreter, State
from tiebreak.engine.run.logs import NO_LOGS, LogReport, Logs, check_logs
from tiebreak.engine.run.loop import steps
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, VerificationError


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReport:
    """The record that a trainer committed for a checkpoint, and the one that replaying its segment gave."""

    checkpoint: int
    first_step: int
    last_step: int
    committed: StepRecord
    replayed: StepRecord

    @property
    def agrees(self) -> bool:
        """Whether the segment leads from the previous checkpoint to this one."""
        return self.committed == self.replayed


@dataclass(kw_only=True, repr=False)
class SegmentAudit:
    """The outcome of an audit of segments, which ends at the first segment that disagrees.

    total: number of committed segments. wanted: the segments that were to be checked. checked: a report for every
    segment that was replayed in full, in order; there are more of these than wanted if the trainer dropped checkpoints.
    starts: the steps whose states the replays started from. refused: the steps whose states exist but do not match
    their records. steps: the number that was replayed. resumed: those of the `steps` that an earlier call replayed.
    seconds: the time that it took. log: the combined report of following the logs.
    """

    total: int
    wanted: tuple[int, ...]
    checked: list[SegmentReport] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    steps: int = 0
    resumed: int = 0
    seconds: float = 0.0
    log: LogReport = field(default_factory=LogReport)

    def __repr__(self) -> str:
        found = (
            "agrees" if self.fraud is None else f"differs in steps {self.fraud.first_step} to {self.fraud.last_step}"
        )
        return f"<audit: {len(self.checked)} of {self.total} segments, {self.steps} steps, {found}>"

    @property
    def agrees(self) -> bool:
        return all(report.agrees for report in self.checked)

    @property
    def fraud(self) -> SegmentReport | None:
        """The segment that disagrees, if there is one."""
        return next((report for report in self.checked if not report.agrees), None)


class SegmentAuditor:
    """Audits segments of one run. Data and the list of kept states are read once, however many audits follow."""

    def __init__(self, run: RunDirectory, interpreter: Interpreter, records: Sequence[StepRecord]) -> None:
        """records: the committed records, from `signed_records`.

        Raises `VerificationError` for data that are not the job's, and `ConfigurationError` for an interpreter that
        follows other rules than the job's.
        """
        interpreter.check_job(run.job)
        self._run, self._interpreter, self._records = run, interpreter, records
        self._data = interpreter.place_data(run.data())  # (3)
        self._ids = Identified(run.program)
        self._all_kept = kept_steps(run, len(records))

    def audit(
        self, checkpoints: Sequence[int], on_step: Callable[[int, float], None] = lambda _step, _loss: None,
        logs: Logs = NO_LOGS,
    ) -> SegmentAudit:  # fmt: skip
        """Replays the segments of these checkpoints (from 0), each from the nearest earlier state that was kept.

        on_step: called with the number of steps done and the loss. logs: for a job of policy `logged`, those that the
        records commit to (`tiebreak.engine.logged.committed.CommittedLogs`). Raises `CannotCheck` if no state before a
        segment is good or a log is not the committed one.
        """
        check_logs(self._run.job, logs)
        wanted, total = tuple(sorted(set(checkpoints))), len(self._records)
        if not wanted or not 0 <= wanted[0] <= wanted[-1] < total:
            raise ConfigurationError(f"expected a checkpoint below {total}, got {list(wanted[-1:])}")
        self._audit = SegmentAudit(total=total, wanted=wanted, log=logs.report)
        self._on_step, self._logs = on_step, logs
        # One state is kept, so that consecutive segments need not load it again.
        self._held: tuple[int, State] = (-1, {})
        self._kept = self._all_kept
        started = time.perf_counter()
        for checkpoint in wanted:
            if not self._one(checkpoint):
                break
        self._held = (-1, {})
        check_unchanged(self._data.values())  # otherwise an honest record might seem false
        self._audit.seconds = time.perf_counter() - started
        return self._audit

    def _one(self, checkpoint: int) -> bool:
        """Replays from a state before the segment to its end; returns whether all records on the way are true."""
        job = self._run.job
        self._held = self._start(job.first_step(checkpoint) - 1)
        numbers = range(self._held[0] + 1, job.last_step(checkpoint) + 1)
        computed = steps(
            self._interpreter, self._held[1], self._data, numbers, sums=self._logs.before, donate=lambda: True
        )  # (4)
        for step, result, _ in computed:
            self._held = step, result.state
            self._logs.after(step)
            self._audit.steps += 1
            self._on_step(self._audit.steps, result.loss)
            reached = job.checkpoint_of(step)
            if step == job.last_step(reached):
                report = SegmentReport(
                    checkpoint=reached, first_step=job.first_step(reached), last_step=step,
                    committed=self._records[reached],
                    replayed=make_record(
                        step, result.state, result.loss_bits, self._logs.log_root(reached), self._ids.of
                    ),
                )  # fmt: skip
                self._audit.checked.append(report)
                if not report.agrees:  # (5)
                    return False
        return True

    def _start(self, step: int) -> tuple[int, State]:
        """The nearest good state at or before a step, and its step: the state in memory, or a nearer one on disk."""
        held = self._held[0]
        for kept in reversed(self._kept[: bisect_right(self._kept, step)]):
            if kept <= held <= step:
                break
            state = self._good_state(kept)
            if state is not None:
                self._audit.starts.append(kept)
                return kept, state
        if not 0 <= held <= step:
            raise CannotCheck(f"expected a state at or before step {step} that is what was committed, got none")
        return self._held

    def _good_state(self, step: int) -> State | None:  # (2)
        """The trainer's state after a step, on the device, or None if it does not match its record."""
        job = self._run.job
        expected = self._records[job.checkpoint_of(step)].state_root if step else job.initial_state_root
        try:
            tensors = self._run.state(step, expected, narrow=True)
        except VerificationError:
            self._audit.refused.append(step)
            self._kept = [kept for kept in self._kept if kept != step]
            return None
        return self._interpreter.to_device(tensors)
