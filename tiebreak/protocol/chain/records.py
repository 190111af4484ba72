"""The data that the contracts return and log: enums, structs, events and receipts."""

from dataclasses import dataclass
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

from tiebreak.protocol.chain.errors import Reverted


class Outcome(IntEnum):
    """Mirrors `IGame.Verdict`."""

    NONE = 0
    DEFENDER_LOST = 1
    CHALLENGER_LOST = 2
    VOID = 3


JobRecord = SimpleNamespace
"""`IJobBoard.JobState` as the ABI declares it, under Python's names. Amounts are in wei, times in seconds."""
GameRecord = SimpleNamespace
"""`IGame.GameState`, likewise. `phase` and `level` are the game's numbers; phase 0 means no such game."""


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
        for event in self.events:
            if event.name == name:
                return event
        raise KeyError(name)
