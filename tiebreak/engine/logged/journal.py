"""The rounding logs of a run in progress: each step's log, recorded or followed, is on disk before its record.

A step that nobody has logged yet is recorded (Algorithm 4). All others are followed (Algorithm 2): an auditor follows
the trainer's logs, and keeps a copy because a dispute needs them. Trainer and auditor alike follow the existing log of
a segment that already has a record; such a log is never rewritten.

The logs of a segment without a record are made again from its first step on, regardless of what a crash left behind.
"""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plan.ziv import NearTies
from tiebreak.engine.data.hashing import hasher
from tiebreak.engine.data.tensors import check_spec, tensor_bytes
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.elements import bits_of, went_up
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.logged.log_replay import Follower, late_tensors
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import State
from tiebreak.engine.run.logs import NO_LOGS, LogReport, Logs
from tiebreak.protocol.commitments.log_tree import LogTree, logs_tree
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, EncodingError, StateError
from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Entries, StepLog
from tiebreak.protocol.tags import Digest

Supply = Callable[[int, State], Mapping[str, Tensor]]
"""supply(step, state) -> the late data of a step (from 1) by name, from the state before it. Called once a step."""


def no_late_data(_step: int, _state: State) -> Mapping[str, Tensor]:
    """The supply of a program that reads none."""
    return {}


def as_late(program: Program, step: int, given: Mapping[str, Tensor]) -> dict[str, bytes]:
    """Late data as their log holds them. Raises `ConfigurationError` unless they are those that the program reads."""
    try:
        check_spec(f"late data of step {step}", given, program.late_spec())
    except EncodingError as error:
        raise ConfigurationError(str(error)) from error
    return {name: bytes(tensor_bytes(given[name])) for name in program.late_spec()}


class Recorder:
    """Algorithm 4 of the paper (`log`): what a trainer records of the roundings of one step. Changes no result.

    In the paper the threshold tau is a share of the exponent's unit, one per type of layer. Here the arithmetic derives
    the threshold from the element's own error bound and hands over exactly the elements within it
    (`tiebreak.engine.arithmetic.plan.ziv`). The log holds the direction in which each of them was rounded, down or up
    (the paper's 0 and 2); all other elements (the paper's 1) take no place in it. This is the
    `tiebreak.engine.run.interpreter.Sums` of a trainer.
    """

    def __init__(
        self, late: Mapping[str, bytes] = {}, tensors: Mapping[str, Tensor] = {}, *, settles: bool = True
    ) -> None:
        """late: the step's late data, which go into its log, as bytes and as tensors."""
        self.settles = settles
        self._entries: dict[int, Entries] = {}
        self._late, self.late = late, tensors

    def settle(
        self, index: int, _instruction: Instruction, _operands: Sequence[Tensor], result: Tensor, near: NearTies
    ) -> None:
        """Records the directions in which the elements near a middle were rounded."""
        if len(near):
            went = went_up(bits_of(result, near.elements), near.values)
            self._entries[index] = Entries(near.elements, went)

    @property
    def log(self) -> StepLog:
        """The step's log, by instruction, regardless of the order of execution."""
        return StepLog(dict(sorted(self._entries.items())), self._late)


def recorder(program: Program, step: int, arithmetic: Arithmetic, given: Mapping[str, Tensor]) -> Recorder:
    """A recorder of a step with these late data. Raises `ConfigurationError` as `as_late` does."""
    late = as_late(program, step, given)
    tensors = late_tensors(program, StepLog(late=late), arithmetic)
    return Recorder(late, tensors, settles=arithmetic.options.logging is not None)


class LogsInProgress:
    """The `Logs` of a run in progress, which is computed from the first step of a segment on.

    Holds 32 bytes per step of a segment.
    """

    def __init__(
        self, run: RunDirectory, theirs: Callable[[int], StepLog] | None = None, supply: Supply = no_late_data
    ) -> None:  # fmt: skip
        """theirs: for an auditor, the trainer's log of a step; None for the trainer, who supplies late data."""
        self._run = run
        self._theirs = theirs
        self._supply = supply
        self._files = LogFiles(run)
        self._own = CommittedLogs(self._files, run.record_at)
        self._is_recorded = False
        """Whether the segment in use has a record."""
        self._roots: list[Digest] = []
        self._sums: Recorder | Follower | None = None
        self.report = LogReport()

    @classmethod
    def of(
        cls, run: RunDirectory, theirs: Callable[[int], StepLog] | None = None, supply: Supply = no_late_data
    ) -> Logs:  # fmt: skip
        """The journal of a run of either policy."""
        return cls(run, theirs, supply) if run.job.is_logged else NO_LOGS

    def before(self, step: int, arithmetic: Arithmetic, state: State) -> Recorder | Follower:
        job = self._run.job
        checkpoint = job.checkpoint_of(step)
        if step == job.first_step(checkpoint):
            self._is_recorded, self._roots = checkpoint < self._run.recorded(), []
        source = self._own_log if self._is_recorded else self._theirs
        if source is None:
            self._sums = recorder(self._run.program, step, arithmetic, self._supply(step, state))
        else:
            self._sums = Follower(self._run.program, source(step), job, arithmetic, step)
        return self._sums

    def after(self, step: int) -> int:
        """Stores the log of a computed step. Raises `StorageError`."""
        assert self._sums is not None  # `before` was called
        if isinstance(self._sums, Follower):
            self.report.add(self._sums.report)
        log = self._sums.log
        if not self._is_recorded:
            self._files.write(step, log)
            self._roots.append(LogTree(self._run.program, log, hasher=hasher()).root)
        return log.count

    def log_root(self, checkpoint: int) -> Digest:
        """The log root of the segment just computed, whose logs are then on disk. Raises `StorageError`."""
        if self._is_recorded:
            return self._own.log_root(checkpoint)
        self._files.sync(checkpoint)
        return logs_tree(self._roots).root

    def log_tree(self, step: int) -> LogTree:
        return self._own.log_tree(step)

    def _own_log(self, step: int) -> StepLog:
        try:
            return self._own.step_log(step)
        except CannotCheck as error:
            raise StateError(f"{error}; restore the logs of this run, it cannot be computed again without") from error
