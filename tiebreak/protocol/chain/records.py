"""What the contracts keep and report: the generated structs by the names that the rest of the project uses."""

from dataclasses import dataclass
from typing import Any

from tiebreak.protocol.chain.abi import Log
from tiebreak.protocol.chain.generated import GameState as GameRecord
from tiebreak.protocol.chain.generated import JobState as JobRecord
from tiebreak.protocol.chain.generated import JobStatus
from tiebreak.protocol.chain.generated import Reason as EndReason
from tiebreak.protocol.chain.generated import Verdict as Outcome

__all__ = ["EndReason", "Event", "GameRecord", "JobRecord", "JobStatus", "Outcome", "Receipt"]


@dataclass(frozen=True, slots=True)
class Event:
    """A log entry of the board: what it says, and where it stands."""

    log: Log
    """One of the generated classes."""
    block: int
    transaction: bytes

    @property
    def name(self) -> str:
        """The event's name in the contract."""
        return self.log.NAME

    @property
    def values(self) -> dict[str, Any]:
        """By the contract's names."""
        return self.log.named()


@dataclass(frozen=True, slots=True)
class Receipt:
    """A transaction that was executed."""

    transaction: bytes
    block: int
    timestamp: int
    gas_used: int
    """All of it: base cost, calldata, execution."""
    calldata_bytes: int
    events: tuple[Event, ...]

    def event(self, name: str) -> Event:
        """The first event of this name. Raises `KeyError` if there is none."""
        for event in self.events:
            if event.name == name:
                return event
        raise KeyError(name)
