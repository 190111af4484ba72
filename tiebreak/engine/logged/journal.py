"""The rounding logs of a run in progress: each step's log, recorded or followed, is on disk before its record.

A step that nobody has logged yet is recorded (Algorithm 4). All others are followed (Algorithm 2): an auditor follows
the trainer's logs, and keeps a copy because a dispute needs them. Trainer and auditor alike follow the existing log of
a segment that already has a record; such a log is never rewritten.

The logs of a segment without a record are made again from its first step on, regardless of what a crash left behind.
"""

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.data.hashing import hasher
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.following import Follower, LogReport
from tiebreak.engine.logged.recording import Recorder
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.commitments.log_tree import LogTree, logs_tree
from tiebreak.protocol.commitments.records import ZERO_DIGEST
from tiebreak.protocol.errors import CannotCheck, StateError
from tiebreak.protocol.program.step_log import StepLog
from tiebreak.protocol.tags import Digest


class Journal:
    """The journal of one `Worker.work`, which starts at the first step of a segment.

    Holds 32 bytes per step of a segment.
    """

    def __init__(self, run: RunDirectory, arithmetic: Arithmetic, logs: CommittedLogs | None) -> None:
        """logs: those of the trainer, for its auditor; None for the trainer."""
        self._run = run
        self._arithmetic = arithmetic
        self._theirs = logs
        self._own = CommittedLogs(run, run.record_at)
        self._recorded = run.recorded()
        self._roots: list[Digest] = []
        self.report = LogReport()

    def before(self, step: int) -> Recorder | Follower | None:
        """The object that settles the logged sums of a step; None under policy `exact`."""
        if not self._run.job.is_logged:
            return None
        if self._is_recorded(step):
            return self._follow(step, self._own_log(step))
        return Recorder() if self._theirs is None else self._follow(step, self._theirs.step_log(step))

    def after(self, step: int, sums: Recorder | Follower | None) -> None:
        """Stores the log of a computed step. Raises `StorageError`."""
        if sums is None:
            return
        if isinstance(sums, Follower):
            self.report.add(sums.report)
        if self._is_recorded(step):
            return
        if step == self._run.job.first_step(self._run.job.checkpoint_of(step)):
            self._roots = []
        self._run.write_step_log(step, sums.log)
        self._roots.append(LogTree(self._run.program, sums.log, hasher=hasher()).root)

    def log_root(self, step: int) -> Digest:
        """The log root of the segment that ends with this step, whose logs are then on disk. Raises `StorageError`."""
        if not self._run.job.is_logged:
            return ZERO_DIGEST
        if self._is_recorded(step):
            return self._own.log_root(self._run.job.checkpoint_of(step))
        self._run.sync_logs(step)
        return logs_tree(self._roots).root

    def _is_recorded(self, step: int) -> bool:
        return self._run.job.checkpoint_of(step) < self._recorded

    def _follow(self, step: int, log: StepLog) -> Follower:
        return Follower(self._run.program, log, self._run.job, self._arithmetic, step)

    def _own_log(self, step: int) -> StepLog:
        try:
            return self._own.step_log(step)
        except CannotCheck as error:
            raise StateError(f"{error}; restore the logs of this run, it cannot be computed again without") from error
