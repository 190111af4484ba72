"""What a game came to, as JSON: numbers, names and places, nothing of which depends on the machine."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyResult:
    """One party's account."""

    name: str
    role: str
    adversary: str | None
    """Which deviation it was; None: it did as agreed."""
    gas: int
    fees_wei: int
    wei: int
    """Gained or lost, gas apart."""
    steps: int
    """Steps that it would have had to execute, for training, replays and disputes."""
    messages: int
    """Sent beside the chain: heads, and moves as signed messages."""
    bytes: int
    refused: int
    """Transactions that reverted in a block, and messages that the recipient did not take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DuelResult:
    """One game of the verification game."""

    challenger: str
    verdict: str
    """trainer or challenger: who won; void: the job ended otherwise; open: nobody ended it."""
    reason: str
    level: str
    step: int | None
    leaf: int | None
    instruction: str | None
    rounds: int
    """Moves of the challenger."""
    moves: int
    gas: int
    """Of both sides, the challenge and the claim of a timeout included."""
    bytes: int
    """Of the signed messages."""
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GameResult:
    """One game: a job from its offer to its end, with all disputes about it."""

    line: str
    """What replays it."""
    adversaries: tuple[str, ...]
    catches: dict[str, str]
    """Adversary -> where it ended."""
    job_status: str
    """Of the last job; none if none was created."""
    false_head: bool
    """Whether the trainer signed and showed a head that is not the true run's."""
    watched: bool
    """Whether an auditor that does as agreed, and can pay its stake, stood by."""
    seconds: int
    """Until the last block."""
    parties: tuple[PartyResult, ...]
    duels: tuple[DuelResult, ...]
    blocks: int
    violations: tuple[str, ...]
    """Promises that were broken: each is a counter-example."""

    def to_json(self) -> dict[str, Any]:
        """As `json` takes it."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "GameResult":
        """The inverse of `to_json`, also after a way through JSON."""
        lists = {name: tuple(data[name]) for name in ("adversaries", "violations")}
        parties = tuple(PartyResult(**party) for party in data["parties"])
        duels = tuple(DuelResult(**duel) for duel in data["duels"])
        return cls(**{**data, **lists, "parties": parties, "duels": duels})
