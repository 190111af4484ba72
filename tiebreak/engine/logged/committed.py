"""The logs that a run published, each checked against its committed record before it is followed.

Numbered plan: (1) every step of the segment has a log in the run's files that is possible for the program; (2) the tree
over the step logs has the log root of the segment's record, which a signed head or the party's own record file commits
to; (3) a log that is read again is still the same. If one of these fails, nobody can say what the right run is: that
raises `CannotCheck` and is no proof of fraud.
"""

from collections.abc import Callable
from typing import Protocol

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.data.hashing import hasher
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.logged.log_replay import Follower
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import State
from tiebreak.engine.run.logs import NO_LOGS, LogReport, Logs, RunIdentity
from tiebreak.protocol.commitments.log_tree import LogTree, logs_tree
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.errors import CannotCheck, VerificationError
from tiebreak.protocol.program.rounding import StepLog
from tiebreak.protocol.tags import Digest


class LogSource(RunIdentity, Protocol):
    """The holder of a run's logs: the files in its directory, perhaps a stranger's."""

    def step_log(self, step: int) -> StepLog:
        """The log of a step. Raises `VerificationError` for one that is missing or impossible for the program."""


class CommittedLogs:
    """The `Logs` of a published run, in any order. Holds 32 bytes per step of the segment in use, and no logs."""

    def __init__(self, source: LogSource, record_of: Callable[[int], StepRecord]) -> None:
        """record_of: gives the committed record of a checkpoint (numbered from 0)."""
        self._run = source
        self._record_of = record_of
        self._checkpoint: int | None = None
        self._roots: list[Digest] = []
        self._sums: Follower | None = None
        self.report = LogReport()

    @classmethod
    def of(cls, run: RunDirectory, record_of: Callable[[int], StepRecord] | None = None) -> Logs:
        """The logs in a run's directory, committed to by these records [default: the run's own]."""
        return cls(LogFiles(run), record_of or run.record_at) if run.job.is_logged else NO_LOGS

    def step_log(self, step: int) -> StepLog:
        """The committed log of a step. Raises `CannotCheck`."""
        job = self._run.job
        checkpoint = job.checkpoint_of(step)
        self._check(checkpoint)
        log = self._read(step)
        expected = self._roots[step - job.first_step(checkpoint)]
        if (found := LogTree(self._run.program, log, hasher=hasher()).root) != expected:  # (3)
            raise CannotCheck(
                f"{self._run.path}: log of step {step}: expected {expected.hex()}, as it was before, got {found.hex()}"
            )
        return log

    def log_tree(self, step: int) -> LogTree:
        return LogTree(self._run.program, self.step_log(step), hasher=hasher())

    def before(self, step: int, arithmetic: Arithmetic, _state: State) -> Follower:
        self._sums = Follower(self._run.program, self.step_log(step), self._run.job, arithmetic, step)
        return self._sums

    def after(self, _step: int) -> int:
        assert self._sums is not None  # `before` was called
        self.report.add(self._sums.report)
        return self._sums.log.count

    def log_root(self, checkpoint: int) -> Digest:
        self._check(checkpoint)
        return logs_tree(self._roots).root

    def _check(self, checkpoint: int) -> None:
        if self._checkpoint == checkpoint:
            return
        job, self._checkpoint = self._run.job, None
        first, last = job.first_step(checkpoint), job.last_step(checkpoint)
        self._roots = [
            LogTree(self._run.program, self._read(step), hasher=hasher()).root for step in range(first, last + 1)
        ]
        expected, found = self._record_of(checkpoint).log_root, logs_tree(self._roots).root
        if found != expected:  # (2)
            raise CannotCheck(
                f"{self._run.path}: logs of steps {first} to {last}: expected log root {expected.hex()}, as committed, "
                f"got {found.hex()}; without the committed logs nobody can say whether these steps are right"
            )
        self._checkpoint = checkpoint

    def _read(self, step: int) -> StepLog:  # (1)
        try:
            return self._run.step_log(step)
        except (VerificationError, OSError) as error:
            raise CannotCheck(
                f"{self._run.path}: log of step {step}: expected what was committed, got none that can be read: {error}"
            ) from error
