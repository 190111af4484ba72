"""The result of a game, for JSON. It holds numbers, names and endings, none of which depends on the machine."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyResult:
    name: str
    role: str
    adversary: str | None
    """The deviation's name; None for an honest party."""
    gas: int
    fees_wei: int
    wei: int
    """Gain (positive) or loss (negative), gas apart."""
    steps: int
    """Steps that the party would have had to execute without the simulator's caches: training, replays and disputes."""
    messages: int
    """Messages sent outside the chain: heads, and moves as signed messages."""
    bytes: int
    refused: int
    """Transactions that reverted in a block, plus messages that the recipient refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DuelResult:
    challenger: str
    verdict: str
    """The winner, `trainer` or `challenger`; `void` if the job ended otherwise; `open` if nobody ended the game."""
    reason: str
    level: str
    step: int | None
    leaf: int | None
    instruction: str | None
    rounds: int
    """Number of moves by the challenger."""
    moves: int
    gas: int
    """Gas of both sides, including the challenge and the claim of a timeout."""
    bytes: int
    """Bytes of the signed messages."""
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GameResult:
    """The result of one game: a job from its offer to its end, with all disputes about it."""

    line: str
    """The line that replays the game."""
    adversaries: tuple[str, ...]
    catches: dict[str, str]
    """Maps each adversary to the ending that it had."""
    job_status: str
    """Status of the last job; `none` if no job was created."""
    false_head: bool
    """Whether the trainer signed and showed a head that is not the true run's."""
    watched: bool
    """Whether an honest auditor that can pay its stake was watching."""
    seconds: int
    """Simulated seconds until the last block."""
    parties: tuple[PartyResult, ...]
    duels: tuple[DuelResult, ...]
    blocks: int
    violations: tuple[str, ...]
    """The promises that were broken. Each is a counter-example."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
