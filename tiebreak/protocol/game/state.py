"""What the rules of a game remember, and what follows from it: depths, whose move it is, until when (SPEC 10)."""

from dataclasses import dataclass
from enum import IntEnum

from tiebreak.protocol.commitments.job import Head, Job
from tiebreak.protocol.commitments.log_tree import NO_WORD
from tiebreak.protocol.commitments.records import chunk_count
from tiebreak.protocol.game.moves import Phase, Side
from tiebreak.protocol.program.isa import TERMS_PER_LEAF, DType, Instruction
from tiebreak.protocol.program.rounding import Direction, Rounding, element_rounding, sum_kind
from tiebreak.protocol.trees import depth_of


class Level(IntEnum):
    """The tree in which the current node stands."""

    RUN = 0
    STEPS = 1
    VALUES = 2
    CHUNKS = 3
    TERMS = 4


class Reason(IntEnum):
    """Why a game ended; numbers as in the contract."""

    BROKEN_TIE = 1
    PADDING = 2
    RECOMPUTED = 3
    TIMEOUT = 4
    CONCEDED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Who won and why. `committed` and `correct` are what was compared: element data, or digests."""

    winner: Side
    reason: Reason
    detail: str
    committed: bytes = b""
    correct: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameState:
    """Everything the rules remember. Fields of a level that was not reached yet are empty or zero."""

    job: Job
    head: Head
    game_id: bytes
    """Names job, head, challenger and nonce (`job.game_id`); what the seals are bound to."""
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
    # -- what was chosen and opened on the way
    checkpoint: int = 0
    steps_root: bytes = b""
    step: int = 0
    state_root: bytes = b""
    body_root: bytes = b""
    log_root: bytes = b""
    """Root over the segment's step logs, from OPEN_STEPS (a segment of one step: OPEN_VALUES) on."""
    step_log: bytes = b""
    """Root of the log tree of the disputed step."""
    leaf: int = 0
    """Leaf of the value tree: body instruction i at i, commit k at 2^D + k."""
    value_seal: bytes = b""
    """Seal of the challenger at that leaf."""
    instruction: bytes = b""
    """Digest of the disputed instruction, from OPEN_TENSOR on."""
    operation: Instruction | None = None
    """That instruction."""
    chunk: int = 0
    word: bytes = NO_WORD
    """Log word of the disputed chunk."""
    element: int = 0
    direction: Direction = Direction.NONE
    """What the log says of that element."""
    claimed: bytes = b""
    """The defender's data of the element, little-endian."""
    accumulator_root: bytes = b""
    seal: bytes = b""
    """Seal of the challenger at the element, or at the leaf of terms, that is judged."""
    moves: int = 0

    @property
    def is_over(self) -> bool:
        """Whether there is a verdict."""
        return self.verdict is not None

    @property
    def mover(self) -> Side:
        """Whose move it is; `ValueError` once the game is over."""
        return self.phase.mover

    @property
    def levels(self) -> int:
        """Levels that one DESCEND reveals here, and one SELECT passes: min(r, height)."""
        return min(self.job.descent_levels, self.height)

    @property
    def dtype(self) -> DType:
        """Of the disputed tensor."""
        return self._operation.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the disputed tensor."""
        return self._operation.shape

    @property
    def terms(self) -> int:
        """Terms of the disputed element if it has an accumulator tree, else 0."""
        operation = self._operation
        has_tree = operation.is_reduction and operation.terms > TERMS_PER_LEAF
        return operation.terms if has_tree else 0

    @property
    def is_logged_sum(self) -> bool:
        """Whether the disputed value is one of which the step's log can say something."""
        return self.job.is_logged and sum_kind(self._operation) is not None

    @property
    def rounding(self) -> Rounding:
        """How the disputed element is rounded."""
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
        """Depth of the current tree."""
        match self.level:
            case Level.RUN:
                return self.job.run_depth
            case Level.VALUES:
                return self.job.half_depth + 1
            case _:
                return depth_of(self.leaves)

    @property
    def rest(self) -> int:
        """What is left of the mover's clock."""
        return self.defender_rest if self.mover is Side.DEFENDER else self.challenger_rest

    @property
    def allowance(self) -> int:
        """Seconds that the next move may take beside its maker's clock."""
        if self.phase in (Phase.OPEN_STEPS, Phase.OPEN_VALUES, Phase.OPEN_TERMS):
            return self.job.replay_time
        replayed = self.level in (Level.STEPS, Level.VALUES, Level.TERMS)
        is_first = self.phase is Phase.SELECT and replayed and self.height == self.depth
        return self.job.replay_time if is_first else 0

    @property
    def deadline(self) -> int:
        """The last instant at which the next move is in time."""
        return self.last + self.allowance + self.rest

    @property
    def leaves(self) -> int:
        """Leaves of the current tree that are not padding, for all trees but the value tree."""
        match self.level:
            case Level.RUN:
                return self.head.count
            case Level.STEPS:
                return self.job.segment_steps(self.checkpoint)
            case Level.CHUNKS:
                return chunk_count(self.dtype, self.shape)
            case _:
                return -(-self.terms // TERMS_PER_LEAF)
