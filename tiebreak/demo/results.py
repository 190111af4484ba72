"""What a demo found, as data: the one source of its table, JSON, Markdown and HTML report.

Digests are lower-case hex without prefix, times seconds, gas and bytes whole numbers. Nothing here is formatted for a
reader; `tiebreak.demo.report` does that.
"""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from tiebreak.protocol.errors import ConfigurationError

FORMAT: Final = 1
"""Version of the JSON form."""


class Loser(StrEnum):
    """Who lost a game: the one thing a verdict says."""

    TRAINER = "trainer"
    CHALLENGER = "challenger"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundingCount:
    """How the results of one kind of instruction were rounded in a whole run.

    elements: results computed. undecided: of these, not decided by FP64 and its error bound. integers: of these, only
    decided in exact integers. fp64_differs: results that FP64 rounded to FP32 would have given other bits.
    """

    kind: str
    elements: int
    undecided: int
    integers: int
    fp64_differs: int

    def __post_init__(self) -> None:
        ordered = 0 <= self.integers <= self.undecided <= self.elements and 0 <= self.fp64_differs <= self.undecided
        if not ordered:
            raise ConfigurationError(f"expected integers, fp64_differs <= undecided <= elements, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """One job as agreed and as trained honestly. bodies: instructions of a step; states: entries of the state."""

    name: str
    summary: str
    parameters: int
    bodies: int
    states: int
    steps: int
    checkpoint_interval: int
    program_root: str
    initial_state_root: str
    data_root: str
    job_id: str
    run_root: str
    losses: tuple[float, ...]
    metric: str
    metric_before: float
    metric_after: float
    seconds: float
    plain_seconds: float
    rounding: tuple[RoundingCount, ...]

    def __post_init__(self) -> None:
        if len(self.losses) != self.steps:
            raise ConfigurationError(f"expected {self.steps} losses of job {self.name}, got {len(self.losses)}")

    @property
    def slowdown(self) -> float:
        """Times plain FP32 PyTorch, whole run."""
        return self.seconds / self.plain_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One thing that two runs did alike or differently, for instance threads: 2 and 1."""

    name: str
    trainer: str
    auditor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """A replay in another process, under other settings."""

    job: str
    settings: tuple[Setting, ...]
    trainer_root: str
    auditor_root: str
    seconds: float

    @property
    def equal(self) -> bool:
        """Whether the replay gave the same bytes."""
        return self.trainer_root == self.auditor_root


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainResult:
    """One run of plain FP32 PyTorch: settings in words, and the digest of its final state."""

    job: str
    settings: str
    state_sha256: str
    final_loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkStep:
    """One selection on the way down: of 2^levels nodes the first that differs.

    tree: run, steps, values, chunks or terms. height: of the node above, in its tree. index: the chosen node of the
    row. position: of that node among all of its height. agreed: one line for people about what is now narrowed down.
    """

    tree: str
    height: int
    levels: int
    index: int
    position: int
    note: str = ""

    def __post_init__(self) -> None:
        if not (1 <= self.levels <= self.height and 0 <= self.index < 1 << self.levels):
            raise ConfigurationError(f"expected an index below 2^levels and levels <= height, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One move of a game: bytes of its signed message, gas of its transaction (None: not played on chain)."""

    kind: str
    by: str
    bytes: int
    gas: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DisputeResult:
    """One game. honest_trainer: the challenge was false, so the challenger has to lose.

    step, instruction, element: where it ended (None: it ended above that level). committed, correct: bits in hex, as
    claimed by the defender and as recomputed by the referee. python, contract: the loser, by each referee.
    trainer_delta, challenger_delta: wei gained or lost by settlement on the chain, gas not counted.
    """

    title: str
    tampered: str
    honest_trainer: bool
    job: str
    step: int | None
    instruction: int | None
    operation: str
    origin: str
    element: int | None
    committed: str
    correct: str
    python: Loser
    contract: Loser | None
    trainer_delta: int
    challenger_delta: int
    seconds: float
    moves: tuple[Move, ...]
    walk: tuple[WalkStep, ...]

    @property
    def just(self) -> bool:
        """Whether every referee decided against the party that lied."""
        liar = Loser.CHALLENGER if self.honest_trainer else Loser.TRAINER
        return self.python is liar and self.contract in (None, liar)

    @property
    def rounds(self) -> int:
        """Selections made."""
        return len(self.walk)

    @property
    def messages(self) -> int:
        """Moves made."""
        return len(self.moves)

    @property
    def bytes(self) -> int:
        """Bytes of all messages."""
        return sum(move.bytes for move in self.moves)

    @property
    def gas(self) -> int | None:
        """Gas of all moves, None if one was not played on chain."""
        gas = [move.gas for move in self.moves]
        return None if None in gas else sum(g for g in gas if g is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """Everything the demo found. environment: name -> value, for instance the CPU and the torch version."""

    environment: tuple[tuple[str, str], ...]
    jobs: tuple[JobResult, ...]
    audits: tuple[AuditResult, ...]
    plain: tuple[PlainResult, ...]
    disputes: tuple[DisputeResult, ...]
    seconds: float

    @property
    def plain_forked(self) -> tuple[str, ...]:
        """Jobs for which plain PyTorch gave more than one final state."""
        digests: dict[str, set[str]] = {}
        for run in self.plain:
            digests.setdefault(run.job, set()).add(run.state_sha256)
        return tuple(job for job, found in digests.items() if len(found) > 1)

    @property
    def succeeded(self) -> bool:
        """Whether every audit agreed and every game was decided against the liar, by every referee that decided."""
        return all(audit.equal for audit in self.audits) and all(dispute.just for dispute in self.disputes)

    def to_json(self) -> str:
        """The JSON form, with the derived numbers beside the data."""
        document: dict[str, Any] = {"format": FORMAT, "succeeded": self.succeeded, **asdict(self)}
        for row, audit in zip(document["audits"], self.audits, strict=True):
            row["equal"] = audit.equal
        for row, dispute in zip(document["disputes"], self.disputes, strict=True):
            row |= {name: getattr(dispute, name) for name in ("just", "rounds", "messages", "bytes", "gas")}
        document["environment"] = dict(self.environment)
        return json.dumps(document, indent=2, allow_nan=False) + "\n"
