"""What the contracts keep and report, as Python values.

The enums and the order of the fields are those of `contracts/src/interfaces/IJobBoard.sol` and `IGame.sol`, which say
what each field means; a test compares them with the ABI.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, TypeVar

from protocol.eip712 import Address
from protocol.game import Level
from protocol.tags import Digest


class JobStatus(IntEnum):
    """Where a job is in its life."""

    NONE = 0
    OFFERED = 1
    ACTIVE = 2
    CANCELLED = 3
    SETTLED = 4
    SLASHED = 5
    ABANDONED = 6


class Outcome(IntEnum):
    """How a game ended."""

    NONE = 0
    DEFENDER_LOST = 1
    CHALLENGER_LOST = 2
    VOID = 3


class EndReason(IntEnum):
    """Why a game ended."""

    NONE = 0
    BROKEN_TIE = 1
    PADDING = 2
    RECOMPUTED = 3
    TIMEOUT = 4
    JOB_SLASHED = 5


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job on the board. Amounts in wei, times in seconds."""

    client: Address
    body_count: int
    state_count: int
    data_count: int
    trainer: Address
    status: JobStatus
    descent_levels: int
    depth: int
    open_games: int
    program_root: Digest
    initial_state_root: Digest
    data_root: Digest
    steps: int
    checkpoint_interval: int
    challenge_window: int
    clock: int
    reward: int
    trainer_stake: int
    challenger_stake: int
    head_count: int
    last_progress: int
    head_root: Digest


@dataclass(frozen=True, slots=True)
class GameRecord:
    """A game on the board. `phase`: 0 no such game, 1-9 as in `protocol.moves.Phase`, 10 over."""

    phase: int
    level: Level
    height: int
    descent_levels: int
    verdict: Outcome
    reason: EndReason
    last: int
    defender_rest: int
    challenger_rest: int
    position: int
    node: Digest
    job_id: Digest
    challenger: Address
    head_count: int
    instruction: int
    run_root: Digest
    steps_root: Digest
    body_root: Digest
    instruction_leaf: Digest
    accumulator_root: Digest
    segment: int
    step: int
    leaves: int
    data_bytes: int
    element: int
    claimed: int


@dataclass(frozen=True, slots=True)
class Event:
    """A log entry of the board."""

    name: str
    values: dict[str, Any]
    block: int
    transaction: bytes


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


State = TypeVar("State", JobRecord, GameRecord)

_ENUMS: dict[str, type[IntEnum]] = {"status": JobStatus, "level": Level, "verdict": Outcome, "reason": EndReason}
_ADDRESSES = ("client", "trainer", "challenger")


def read_state(kind: type[State], values: Sequence[Any]) -> State:
    """A state from the contract's tuple: enums, addresses of 20 bytes and digests of 32."""
    named = dict(zip((field.name for field in fields(kind)), values, strict=True))
    return kind(**{name: _read(name, value) for name, value in named.items()})


def _read(name: str, value: Any) -> Any:
    if name in _ENUMS:
        return _ENUMS[name](value)
    if name in _ADDRESSES:
        return Address(bytes.fromhex(value.removeprefix("0x")))
    return value if isinstance(value, int) else Digest(bytes(value))
