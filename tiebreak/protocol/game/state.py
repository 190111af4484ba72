"""The state of a game, and what follows from it: depths, the side to move, deadlines (SPEC 10)."""

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final

from tiebreak.protocol.commitments import log_tree, records
from tiebreak.protocol.commitments.job import Head, Job
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.game.moves import Phase, Side
from tiebreak.protocol.packing import EnumMember, Fields, FieldType, OneOf, Packed
from tiebreak.protocol.program.isa import TERMS_PER_LEAF, DType, Instruction
from tiebreak.protocol.program.program import decode_alone, encode_instruction
from tiebreak.protocol.program.rounding import Direction, Rounding, element_rounding, sum_kind
from tiebreak.protocol.trees import depth_of


class Level(IntEnum):
    """The tree that contains the current node."""

    RUN = 0
    STEPS = 1
    VALUES = 2
    CHUNKS = 3
    TERMS = 4


class Reason(IntEnum):
    """The reason why a game ended, by the contract's number; NONE while it goes on, JOB_SLASHED if it was made void."""

    NONE = 0
    PADDING = 1
    RECOMPUTED = 2
    TIMEOUT = 3
    CONCEDED = 4
    JOB_SLASHED = 5
    FORKED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The winner and the reason. `committed` and `correct` are the values compared: element data, or digests."""

    winner: Side
    reason: Reason
    detail: str
    committed: bytes = b""
    correct: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameState:
    """Everything the rules remember. Fields for levels that have not been reached are empty or zero."""

    job: Job
    head: Head
    game_id: bytes
    """Identifies job, head, challenger and nonce (`job.game_id`). The seals are bound to it."""
    phase: Phase = Phase.DESCEND
    verdict: Verdict | None = None
    # -- the current node
    level: Level = Level.RUN
    node: bytes = b""
    height: int = 0
    position: int = 0
    # -- clocks, in seconds
    defender_rest: int
    challenger_rest: int
    last: int
    """When the mover's clock starts: at the end of the talking phase or, after it, at the last move."""
    moved: int
    """When the game started, or the last move was made."""
    # -- the choices and openings on the way
    checkpoint: int = 0
    steps_root: bytes = b""
    step: int = 0
    state_root: bytes = b""
    body_root: bytes = b""
    log_root: bytes = b""
    """Root of the tree over the segment's step logs. Set by OPEN_STEPS, or by OPEN_VALUES in a segment of one step."""
    step_log: bytes = b""
    """Root of the log tree of the disputed step."""
    leaf: int = 0
    """Leaf of the value tree: body instruction i at i, commit k at 2^D + k."""
    value_seal: bytes = b""
    """The challenger's seal at that leaf."""
    instruction: bytes = b""
    """Digest of the disputed instruction. Set by OPEN_TENSOR."""
    operation: Instruction | None = None
    """The disputed instruction itself."""
    chunk: int = 0
    word: bytes = log_tree.NO_WORD
    """Log word of the disputed chunk."""
    element: int = 0
    direction: Direction = Direction.NONE
    """The direction that the log gives for that element."""
    claimed: bytes = b""
    """The defender's data for the element, little-endian."""
    accumulator_root: bytes = b""
    seal: bytes = b""
    """The challenger's seal at the judged element or leaf of terms."""
    moves: int = 0
    crowd: int = 1
    """The largest number of the job's games open at once since there was last none. Snapshots omit it: only the chain
    knows it, and whoever follows the chain keeps it up to date (`tiebreak.protocol.parties.board.Board.begin`)."""

    @property
    def is_over(self) -> bool:
        return self.verdict is not None

    @property
    def mover(self) -> Side:
        """The side to move. Raises `ValueError` once the game is over."""
        return self.phase.mover

    @property
    def levels(self) -> int:
        """Levels that one DESCEND reveals here and one SELECT passes: min(`descent_levels`, height)."""
        return min(self.job.descent_levels, self.height)

    def below(self, index: int) -> int:
        """Position, in its level of the tree, of the node with this index among those that a DESCEND reveals here."""
        return self.position << self.levels | index

    @property
    def dtype(self) -> DType:
        """Dtype of the disputed tensor. Raises `ValueError` before OPEN_TENSOR."""
        return self._operation.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the disputed tensor. Raises `ValueError` before OPEN_TENSOR."""
        return self._operation.shape

    @property
    def terms(self) -> int:
        """Number of terms of the disputed element if it has an accumulator tree, else 0."""
        operation = self._operation
        has_tree = operation.is_reduction and operation.terms > TERMS_PER_LEAF
        return operation.terms if has_tree else 0

    @property
    def is_logged_sum(self) -> bool:
        """Whether the step's log can contain entries for the disputed value."""
        return self.job.is_logged and sum_kind(self._operation) is not None

    @property
    def rounding(self) -> Rounding:
        job = self.job
        return element_rounding(
            self._operation, precision=job.precision, tolerances=job.tolerances, direction=self.direction
        )

    @property
    def _operation(self) -> Instruction:
        if self.operation is None:
            raise ValueError(f"expected an instruction to be disputed, got a game in phase {self.phase.name}")
        return self.operation

    @property
    def depth(self) -> int:
        match self.level:
            case Level.RUN:
                return self.job.run_depth
            case Level.VALUES:
                return self.job.half_depth + 1
            case _:
                return depth_of(self.leaves)

    @property
    def rest(self) -> int:
        """Seconds left on the mover's clock."""
        return self.defender_rest if self.mover is Side.DEFENDER else self.challenger_rest

    def talks(self, now: int) -> bool:
        """Whether the talking phase goes on at `now`: a later state may enter, and no clock runs."""
        return now < self.last

    @property
    def allowance(self) -> int:
        """Seconds that the next move may take before its maker's clock is charged: a replay for each game of the crowd.

        With one machine, a side that replays first come, first served has at most one replay of each before its own.
        That of a proof is what it has to wait.
        """
        if self.phase is Phase.PROVE:
            return self.job.clock
        replayed = self.level in (Level.STEPS, Level.VALUES, Level.TERMS)
        is_first = self.phase is Phase.SELECT and replayed and self.height == self.depth
        needs_replay = is_first or self.phase in (Phase.OPEN_STEPS, Phase.OPEN_VALUES, Phase.OPEN_TERMS)
        return self.job.replay_time * self.crowd if needs_replay else 0

    @property
    def earliest(self) -> int:
        """The first instant at which the next move is legal: a proof waits for a clock after the move before it."""
        return self.moved + (self.job.clock if self.phase is Phase.PROVE else 0)

    @property
    def deadline(self) -> int:
        """The last instant at which the next move is in time."""
        return self.last + self.allowance + self.rest

    @property
    def leaves(self) -> int:
        """Number of leaves of the current tree that are not padding. Not defined for the value tree."""
        match self.level:
            case Level.RUN:
                return self.head.count
            case Level.STEPS:
                return self.job.segment_steps(self.checkpoint)
            case Level.CHUNKS:
                return records.chunk_count(self.dtype, self.shape)
            case _:
                return -(-self.terms // TERMS_PER_LEAF)


@dataclass(frozen=True, slots=True)
class Ongoing(FieldType):
    """The state of a game that goes on, packed as its fields in their order, without a verdict."""

    def check(self, name: str, value: Any) -> None:
        if type(value) is not GameState or value.is_over:
            raise EncodingError(f"{name}: expected the state of a game that goes on, got {type(value).__name__}")

    def pack(self, value: Any) -> Packed:
        found = [(name, getattr(value, name)) for name in _FIELDS]
        return tuple(_KINDS[name].pack(item) if name in _KINDS else item for name, item in found)

    def unpack(self, name: str, item: Any) -> Any:
        fields = Fields(name, item, len(_FIELDS))
        found = {field: fields.next() for field in _FIELDS}
        return GameState(**{f: _KINDS[f].unpack(*each) if f in _KINDS else each[1] for f, each in found.items()})


@dataclass(frozen=True, slots=True)
class _Operation(FieldType):
    """An instruction, packed as its encoding, or None, as no bytes."""

    def pack(self, value: Any) -> Packed:
        return b"" if value is None else encode_instruction(value)

    def unpack(self, name: str, item: Any) -> Any:  # noqa: ARG002
        return decode_alone(item) if item else None


_FIELDS: Final = [field.name for field in fields(GameState) if field.name != "verdict"]
_KINDS: Final[dict[str, FieldType]] = {
    "job": OneOf((Job,)), "head": OneOf((Head,)), "phase": EnumMember(Phase), "level": EnumMember(Level),
    "direction": EnumMember(Direction), "operation": _Operation(),
}  # fmt: skip
