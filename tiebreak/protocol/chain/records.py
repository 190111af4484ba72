"""The data that the contracts return and log: enums, structs, events and receipts."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from tiebreak.protocol.chain.errors import Reverted
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.game.state import Reason
from tiebreak.protocol.parties.board import JobStatus
from tiebreak.protocol.tags import Digest


class Outcome(IntEnum):
    """Mirrors `IGame.Verdict`."""

    NONE = 0
    DEFENDER_LOST = 1
    CHALLENGER_LOST = 2
    VOID = 3


class JobRecord(Protocol):
    """`IJobBoard.JobState` under Python's names, as far as it is read here. Amounts are in wei, times in seconds."""

    status: JobStatus
    last_progress: int
    audit_end: int
    steps: int
    checkpoint_interval: int
    head_count: int
    head_root: Digest
    challenger_stake: int
    challenge_window: int
    deadline: int
    accepted: int
    open_games: int


class GameRecord(Protocol):
    """`IGame.GameState`, likewise. `phase` and `level` are the game's numbers; phase 0 means no such game."""

    phase: int
    level: int
    height: int
    position: int
    node: bytes
    step: int
    instruction: int
    element: int
    sequence: int
    last: int
    talk: int
    defender_rest: int
    challenger_rest: int
    verdict: Outcome
    reason: Reason
    challenger: Address
    rank: int


@dataclass(frozen=True, slots=True)
class Event:
    """A log entry of the board: the event's name and values, and where it was logged."""

    name: str
    values: dict[str, Any]
    """The event's values by the contract's names, in its order."""
    block: int
    transaction: bytes


@dataclass(frozen=True, slots=True)
class Receipt:
    """A transaction that was executed."""

    transaction: bytes
    block: int
    timestamp: int
    gas_used: int
    """Total gas: base cost, calldata and execution."""
    calldata_bytes: int
    events: tuple[Event, ...]
    reverted: Reverted | None = None
    """The error of a transaction that was sent untried: it changed nothing and only cost its gas."""

    def event(self, name: str) -> Event:
        """The first event of this name. Raises `KeyError` if there is none."""
        return {event.name: event for event in reversed(self.events)}[name]
