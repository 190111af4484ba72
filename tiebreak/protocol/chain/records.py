"""The contracts' records and reports. Fields are those of the contracts' structs, in the same order."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.parties.board import JobStatus
from tiebreak.protocol.tags import Digest

__all__ = ["EndReason", "Event", "GameRecord", "JobRecord", "JobStatus", "Outcome", "Receipt"]


class Outcome(IntEnum):
    """Mirrors `IGame.Verdict`."""

    NONE = 0
    DEFENDER_LOST = 1
    CHALLENGER_LOST = 2
    VOID = 3


class EndReason(IntEnum):
    """Mirrors `IGame.Reason`."""

    NONE = 0
    BROKEN_TIE = 1
    PADDING = 2
    RECOMPUTED = 3
    TIMEOUT = 4
    CONCEDED = 5
    JOB_SLASHED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """Mirrors `IJobBoard.JobState`. Amounts are in wei, times in seconds."""

    trainer: Address
    status: JobStatus
    depth: int
    descent_levels: int
    precision: int
    policy: int
    body_count: int
    state_count: int
    client: Address
    data_count: int
    tolerances: int
    last_progress: int
    program_root: Digest
    initial_state_root: Digest
    data_root: Digest
    steps: int
    checkpoint_interval: int
    head_count: int
    replay_time: int
    reward: int
    trainer_stake: int
    challenger_stake: int
    challenge_window: int
    clock: int
    open_games: int
    head_root: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class GameRecord:
    """Mirrors `IGame.GameState`. `phase` and `level` are the game's numbers; phase 0 means no such game."""

    phase: int
    level: int
    height: int
    descent_levels: int
    verdict: Outcome
    reason: EndReason
    fresh: bool
    dtype: int
    summation: int
    last: int
    defender_rest: int
    challenger_rest: int
    position: int
    node: Digest
    opened: Digest
    job_id: Digest
    challenger: Address
    element: int
    leaves: int
    step: int
    instruction: int
    term_leaves: int
    last_chunk_bytes: int
    replay_time: int
    log: Digest


@dataclass(frozen=True, slots=True)
class Event:
    """A log entry of the board: the event's name and values, and where it was logged."""

    name: str
    values: dict[str, Any]
    """By the contract's names, in its order."""
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

    def event(self, name: str) -> Event:
        """The first event of this name. Raises `KeyError` if there is none."""
        for event in self.events:
            if event.name == name:
                return event
        raise KeyError(name)
