"""A demo's findings as data: the one source of its table, JSON, Markdown and HTML report.

Digests are lower-case hex without prefix, times are in seconds, gas and bytes are whole numbers. Nothing here is
formatted for a reader; `tiebreak.lab.demo.report` does that.
"""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

FORMAT: Final = 1
"""The version of the JSON form."""


class Loser(StrEnum):
    TRAINER = "trainer"
    CHALLENGER = "challenger"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundingCount:
    """The roundings of one kind of instruction in a whole run.

    elements: results computed. undecided: those that FP64 and its error bound did not decide. integers: those of them
    that only exact integers decided. fp64_differs: results whose bits would differ if FP64 were rounded to FP32.
    """

    kind: str
    elements: int
    undecided: int
    integers: int
    fp64_differs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """A job as agreed, and the result of training it honestly.

    bodies: instructions of a step; states: entries of the state.
    """

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

    @property
    def slowdown(self) -> float:
        """The time of the whole run as a multiple of plain FP32 PyTorch's."""
        return self.seconds / self.plain_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting that was equal or different in two runs, for example threads: 2 and 1."""

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
        """Whether the replay produced the same bytes."""
        return self.trainer_root == self.auditor_root


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainResult:
    """One run of plain FP32 PyTorch: its settings in words, and the digest of its final state."""

    job: str
    settings: str
    state_sha256: str
    final_loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkStep:
    """One selection on the way down: the first of 2^levels nodes that differs.

    tree: run, steps, values, chunks or terms. height: the parent node's in its tree. index: the chosen node's within
    its row. position: that node's among all nodes of its height. agreed: one line for people on how far the dispute is
    narrowed down.
    """

    tree: str
    height: int
    levels: int
    index: int
    position: int
    note: str = ""


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

    step, instruction, element: where the game ended (None: it ended above that level). committed, correct: bits in hex,
    as claimed by the defender and as recomputed by the referee. python, contract: the loser according to each referee.
    trainer_delta, challenger_delta: wei gained or lost by settlement on the chain, without gas.
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
        """The number of selections."""
        return len(self.walk)

    @property
    def messages(self) -> int:
        """The number of moves."""
        return len(self.moves)

    @property
    def bytes(self) -> int:
        """The size of all messages."""
        return sum(move.bytes for move in self.moves)

    @property
    def gas(self) -> int | None:
        """The gas of all moves, or None if one of them was not played on chain."""
        gas = [move.gas for move in self.moves]
        return None if None in gas else sum(g for g in gas if g is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The results of the whole demo. environment: name -> value, for example the CPU and the torch version."""

    environment: tuple[tuple[str, str], ...]
    jobs: tuple[JobResult, ...]
    audits: tuple[AuditResult, ...]
    plain: tuple[PlainResult, ...]
    disputes: tuple[DisputeResult, ...]
    seconds: float

    @property
    def plain_forked(self) -> tuple[str, ...]:
        """Jobs for which plain PyTorch produced more than one final state."""
        digests: dict[str, set[str]] = {}
        for run in self.plain:
            digests.setdefault(run.job, set()).add(run.state_sha256)
        return tuple(job for job, found in digests.items() if len(found) > 1)

    @property
    def succeeded(self) -> bool:
        """Whether every audit agreed, and every referee that gave a verdict decided against the liar."""
        return all(audit.equal for audit in self.audits) and all(dispute.just for dispute in self.disputes)

    def to_json(self) -> str:
        """The JSON form, which includes the derived numbers."""
        document: dict[str, Any] = {"format": FORMAT, "succeeded": self.succeeded, **asdict(self)}
        for row, audit in zip(document["audits"], self.audits, strict=True):
            row["equal"] = audit.equal
        for row, dispute in zip(document["disputes"], self.disputes, strict=True):
            row |= {name: getattr(dispute, name) for name in ("just", "rounds", "messages", "bytes", "gas")}
        document["environment"] = dict(self.environment)
        return json.dumps(document, indent=2, allow_nan=False) + "\n"
