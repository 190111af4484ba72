"""The interface by which a computation of a run reads and stores its rounding logs, and reports on following them.

`tiebreak.engine.logged` holds the two kinds: `LogsInProgress` records those of a run that is computed, `CommittedLogs`
reads those of a published run. A run of policy `exact` has no logs (`NO_LOGS`).
"""

from dataclasses import field
from enum import StrEnum
from typing import Annotated, Final, Protocol

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.run.interpreter import State, Sums
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.log_tree import LogTree
from tiebreak.protocol.commitments.records import ZERO_DIGEST
from tiebreak.protocol.errors import ConfigurationError, StateError
from tiebreak.protocol.packing import U64, EnumMember, ListOf, OneOf, Record, Text
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest

MAX_FINDINGS: Final = 100
"""The number of findings kept of a step or an audit. The rest are only counted: a hostile log may be all findings."""


class FindingKind(StrEnum):
    """An auditor's observation about an entry."""

    ELSEWHERE = "elsewhere"
    """An entry for an element that is not near a middle, which has no effect."""
    MISSING = "missing"
    """No entry for an element so near a middle that its rounding differs between machines."""


class LogFinding(Record):
    """An observation about a step's log. element: row-major, in the result of the instruction."""

    kind: Annotated[FindingKind, EnumMember(FindingKind)]
    step: U64
    value: U64
    element: U64
    detail: Annotated[str, Text()]

    def __str__(self) -> str:
        return f"step {self.step}, instruction {self.value}, element {self.element}: {self.kind}: {self.detail}"


class LogReport(Record, frozen=False):
    """The outcome of following the logs of one step or several.

    entries: those in the logs. needed: the entries whose direction differs from the auditor's own rounding. elsewhere,
    missing: the number of findings of each kind; `findings` holds the first.
    """

    steps: U64 = 0
    entries: U64 = 0
    needed: U64 = 0
    elsewhere: U64 = 0
    missing: U64 = 0
    findings: Annotated[list[LogFinding], ListOf(OneOf((LogFinding,)), MAX_FINDINGS)] = field(default_factory=list)

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        self.findings = list(self.findings)

    def add(self, other: "LogReport") -> None:
        """Adds the counts and findings of another report."""
        self.steps += other.steps
        self.entries += other.entries
        self.needed += other.needed
        self.elsewhere += other.elsewhere
        self.missing += other.missing
        self.findings += other.findings[: MAX_FINDINGS - len(self.findings)]

    def found(self, finding: LogFinding) -> None:
        """Counts a finding, and keeps it while there are fewer than `MAX_FINDINGS`."""
        if finding.kind == FindingKind.ELSEWHERE:
            self.elsewhere += 1
        else:
            self.missing += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)


class RunIdentity(Protocol):
    """The identity of a run: a run directory, or a stand-in for one."""

    @property
    def path(self) -> object:
        """The place where it is stored; only named in errors."""

    @property
    def job(self) -> Job:
        """The job that client and trainer signed."""

    @property
    def program(self) -> Program:
        """The program that the job's root names."""


class Logs(Protocol):
    """The rounding logs of one run. Raises `CannotCheck` where a log is not the one that was committed."""

    @property
    def report(self) -> LogReport:
        """The combined report of the logs that were followed."""

    def before(self, step: int, arithmetic: Arithmetic, state: State) -> Sums | None:
        """The object that settles the logged sums of a step that is about to be computed from this state."""

    def after(self, step: int) -> int:
        """Called when that step has been computed. Keeps its log and returns the number of entries."""

    def log_root(self, checkpoint: int) -> Digest:
        """The root over the logs of a segment whose steps have been computed; they are then safely on disk."""

    def log_tree(self, step: int) -> LogTree:
        """The tree over the committed log of a step."""


class _NoLogs:
    """The `Logs` of a run of policy `exact`."""

    @property
    def report(self) -> LogReport:
        return LogReport()

    def before(self, _step: int, _arithmetic: Arithmetic, _state: State) -> None:
        return None

    def after(self, _step: int) -> int:
        return 0

    def log_root(self, _checkpoint: int) -> Digest:
        return ZERO_DIGEST

    def log_tree(self, step: int) -> LogTree:
        raise StateError(f"step {step}: a run of policy exact has no logs")


NO_LOGS: Final[Logs] = _NoLogs()


def check_logs(job: Job, logs: Logs) -> None:
    """Raises `ConfigurationError` for a job of policy `logged` without logs, or one of policy `exact` with them."""
    if job.is_logged == (logs is NO_LOGS):
        found = "none for one" if job.is_logged else "some for another"
        raise ConfigurationError(f"expected rounding logs for a job of policy logged, got {found}")
