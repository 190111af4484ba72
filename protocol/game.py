"""The game: one walk down run, steps, values, chunks, terms, as a pure state machine (SPEC section 10).

`apply(state, move, now)` returns the next state or raises `IllegalMove`, and then nothing has changed. It touches no
clock, no key and no file: `now` is given (seconds), and that a move comes from the side whose turn it is, is what the
signature of its message (`protocol.messages`) or the sender of its transaction says.

Invariants, each with a test of its number:

 1. `node` is the defender's: revealed by it, and tied to the signed head by every move on the way.
 2. position < 2^(depth - height), 0 <= height <= depth, in every tree.
 3. Exactly one side is to move, a function of the phase; a move of another kind is illegal.
 4. An illegal move changes nothing.
 5. Clocks never rise, `last` never falls, and defender's rest + challenger's rest + time used = 2 * clock.
 6. At every instant exactly one of "a move is in time" and "`timeout` is legal" holds, until the game is over.
 7. Every move uses up the walk: a game ends within `max_moves(job)` moves.
 8. There is a verdict exactly when the phase is OVER, and then every move and `timeout` is illegal.
 9. An honest defender (its head true, in time) never loses, whatever legal moves the challenger makes.
10. An honest challenger (the head false, in time) never loses, whatever legal moves the defender makes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from protocol import proof
from protocol.commitments import StepRecord, chunk_count, chunk_digest, chunk_length, loss_id, tensor_id
from protocol.errors import EncodingError, IllegalMove, VerificationError
from protocol.isa import CHUNK_BYTES, MAX_NUMEL, MAX_TERMS, TERMS_PER_LEAF, DType, Instruction, Opcode
from protocol.job import Head, Job
from protocol.merkle import depth_of, fold, fold_nodes, pad, parent
from protocol.moves import (
    Descend,
    Move,
    OpenChunk,
    OpenSteps,
    OpenTensor,
    OpenTerms,
    OpenValues,
    Phase,
    Prove,
    Select,
    SelectElement,
    Side,
)
from protocol.program import decode_alone, instruction_digest
from protocol.tags import EMPTY, Digest


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
    leaf: int = 0
    """Leaf of the value tree: body instruction i at i, commit k at 2^D + k."""
    instruction: bytes = b""
    """Digest of the disputed instruction, from OPEN_TENSOR on."""
    dtype: DType = DType.F32
    shape: tuple[int, ...] = ()
    chunk: int = 0
    element: int = 0
    claimed: bytes = b""
    """The defender's data of the element, little-endian."""
    terms: int = 0
    accumulator_root: bytes = b""
    moves: int = field(default=0)

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
        """Levels that one DESCEND reveals here: min(r, height)."""
        return min(self.job.descent_levels, self.height)

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


class _BrokenTieError(Exception):
    """A link that the defender posted does not hold."""


def start(job: Job, head: Head, now: int) -> GameState:
    """The game against a signed head at its first instant. Raises `VerificationError` for a head of another job."""
    head.check_job(job)
    state = GameState(job=job, head=head, defender_rest=job.clock, challenger_rest=job.clock, last=now)
    return _enter(state, Level.RUN, head.run_root, job.run_depth)


def apply(state: GameState, move: Move, now: int) -> GameState:
    """The state after a move at instant `now`. Raises `IllegalMove`; a lost tie is no error but the end of the game."""
    if state.is_over:
        raise IllegalMove("the game is over")
    if state.phase != move.KIND:
        raise IllegalMove(f"expected a move of kind {state.phase.name}, got {move.KIND.name}")
    timed = _spend(state, now)
    try:
        return _RULES[move.KIND](timed, move)
    except _BrokenTieError as broken:
        return _end(timed, Side.CHALLENGER, Reason.BROKEN_TIE, str(broken))
    except IllegalMove:
        raise
    except VerificationError as error:
        raise IllegalMove(str(error)) from error


def timeout(state: GameState, now: int) -> GameState:
    """The end of a game whose mover has used more than its clock. Raises `IllegalMove` before that."""
    if state.is_over:
        raise IllegalMove("the game is over")
    used, rest = _used(state, now), _rest(state)
    if used <= rest:
        raise IllegalMove(f"expected more than {rest} seconds to have passed, got {used}")
    return _end(state, state.mover.other, Reason.TIMEOUT, f"{state.phase.name} did not come within {rest} seconds")


def max_moves(job: Job) -> int:
    """No game of the job has more moves (invariant 7)."""
    depths = (
        job.run_depth,
        depth_of(job.checkpoint_interval),
        job.half_depth + 1,
        depth_of(MAX_NUMEL * max(dtype.size for dtype in DType) // CHUNK_BYTES),
        depth_of(MAX_TERMS // TERMS_PER_LEAF),
    )
    walks = sum(2 * -(-depth // job.descent_levels) for depth in depths)
    return walks + len((Phase.OPEN_STEPS, Phase.OPEN_VALUES, Phase.OPEN_TENSOR, Phase.OPEN_CHUNK)) + 3


# ---------------------------------------------------------------- clocks


def _rest(state: GameState) -> int:
    return state.defender_rest if state.mover is Side.DEFENDER else state.challenger_rest


def _used(state: GameState, now: int) -> int:
    if now < state.last:
        raise IllegalMove(f"expected an instant not before {state.last}, got {now}")
    return now - state.last


def _spend(state: GameState, now: int) -> GameState:
    """Charge the mover's clock. Exactly the rest may be used; a second more is `timeout`'s."""
    used, rest = _used(state, now), _rest(state)
    if used > rest:
        raise IllegalMove(f"expected a move within {rest} seconds, got one after {used}")
    if state.mover is Side.DEFENDER:
        return replace(state, defender_rest=rest - used, last=now, moves=state.moves + 1)
    return replace(state, challenger_rest=rest - used, last=now, moves=state.moves + 1)


# ---------------------------------------------------------------- the walk


def _end(
    state: GameState, winner: Side, reason: Reason, detail: str, committed: bytes = b"", correct: bytes = b""
) -> GameState:
    verdict = Verdict(winner=winner, reason=reason, detail=detail, committed=committed, correct=correct)
    return replace(state, phase=Phase.OVER, verdict=verdict)


def _enter(state: GameState, level: Level, root: bytes, depth: int) -> GameState:
    state = replace(state, level=level, node=root, height=depth, position=0, phase=Phase.DESCEND)
    return state if depth else _leaf(state)


def _leaf(state: GameState) -> GameState:
    """The walk reached a leaf of the current tree."""
    position = state.position
    if _is_padding(state):
        # The right leaf is known here without any opening.
        winner = Side.DEFENDER if state.node == EMPTY else Side.CHALLENGER
        detail = f"position {position} of the {state.level.name} tree must be empty"
        return _end(state, winner, Reason.PADDING, detail, state.node, EMPTY)
    match state.level:
        case Level.RUN:
            state = replace(state, checkpoint=position)
            if state.job.segment_steps(position) == 1:
                return _enter_steps(state, state.node, 0)
            return replace(state, phase=Phase.OPEN_STEPS)
        case Level.STEPS:
            step = state.job.first_step(state.checkpoint) + position
            return replace(state, step=step, phase=Phase.OPEN_VALUES)
        case Level.VALUES:
            is_commit = position >> state.job.half_depth
            return replace(state, leaf=position, phase=Phase.PROVE if is_commit else Phase.OPEN_TENSOR)
        case Level.CHUNKS:
            return replace(state, chunk=position, phase=Phase.OPEN_CHUNK)
        case Level.TERMS:
            return replace(state, phase=Phase.PROVE)


def _is_padding(state: GameState) -> bool:
    if state.level is not Level.VALUES:
        return state.position >= state.leaves
    half = 1 << state.job.half_depth
    if state.position < half:
        return state.position >= state.job.body_count
    return state.position - half >= state.job.state_count


def _enter_steps(state: GameState, root: bytes, depth: int) -> GameState:
    return _enter(replace(state, steps_root=root), Level.STEPS, root, depth)


# ---------------------------------------------------------------- the moves


def _tie(holds: bool, what: str) -> None:
    if not holds:
        raise _BrokenTieError(what)


def _require_count(what: str, expected: int, found: int) -> None:
    if found != expected:
        raise IllegalMove(f"expected {expected} {what}, got {found}")


def _disputed(state: GameState, encoded: bytes) -> Instruction:
    """The instruction of phase OPEN_TENSOR, sent again."""
    if instruction_digest(encoded) != state.instruction:
        raise IllegalMove("expected the disputed instruction, got another")
    return decode_alone(encoded)


def _descend(state: GameState, move: Descend) -> GameState:
    _require_count("nodes", 1 << state.levels, len(move.nodes))
    _tie(fold_nodes(move.nodes) == state.node, "the revealed nodes do not fold to the node above them")
    return replace(state, phase=Phase.SELECT)


def _select(state: GameState, move: Select) -> GameState:
    _require_count("nodes", 1 << state.levels, len(move.nodes))
    if move.index >= len(move.nodes):
        raise IllegalMove(f"expected an index below {len(move.nodes)}, got {move.index}")
    if fold_nodes(move.nodes) != state.node:
        raise IllegalMove("expected the nodes that the defender revealed, got others")
    height = state.height - state.levels
    position = state.position << state.levels | move.index
    state = replace(state, node=move.nodes[move.index], height=height, position=position, phase=Phase.DESCEND)
    return state if height else _leaf(state)


def _open_steps(state: GameState, move: OpenSteps) -> GameState:
    steps = state.job.segment_steps(state.checkpoint)
    _require_count("siblings", depth_of(steps), len(move.siblings))
    found = fold(state.node, steps - 1, move.siblings)
    _tie(found == move.steps_root, "the checkpoint is not the last record under the steps root")
    return _enter_steps(state, move.steps_root, depth_of(steps))


def _open_values(state: GameState, move: OpenValues) -> GameState:
    job, depth = state.job, state.job.half_depth
    _require_count("siblings", depth, len(move.siblings))
    record = StepRecord(
        step=state.step,
        state_root=Digest(move.state_root),
        loss_bits=move.loss_bits,
        log_root=Digest(move.log_root),
    )
    _tie(record.digest == state.node, "the step record is not the disputed one")
    _tie(move.log_root == bytes(32), "the policy is exact, but there is a rounding log")
    loss_root = fold(loss_id(move.loss_bits), job.body_count - 1, move.siblings)
    _tie(loss_root == move.body_root, "the loss is not the last value under the body root")
    state = replace(state, state_root=move.state_root, body_root=move.body_root)
    value_root = parent(move.body_root, pad(move.state_root, job.state_depth, depth))
    return _enter(state, Level.VALUES, value_root, depth + 1)


def _open_tensor(state: GameState, move: OpenTensor) -> GameState:
    _require_count("siblings", state.job.half_depth + 1, len(move.siblings))
    digest = instruction_digest(move.instruction)
    found = fold(digest, state.leaf, move.siblings)
    _tie(found == state.job.program_root, "the instruction is not the program's")
    instruction = decode_alone(move.instruction)
    state = replace(state, instruction=digest, dtype=instruction.dtype, shape=instruction.shape)
    if instruction.opcode == Opcode.SOURCE:
        return replace(state, phase=Phase.PROVE)
    identity = tensor_id(instruction.dtype, instruction.shape, move.chunk_root)
    _tie(identity == state.node, "the chunk root is not that of the committed tensor")
    count = chunk_count(instruction.dtype, instruction.shape)
    return _enter(state, Level.CHUNKS, move.chunk_root, depth_of(count))


def _open_chunk(state: GameState, move: OpenChunk) -> GameState:
    length = chunk_length(state.dtype, state.shape, state.chunk)
    _tie(len(move.chunk) == length, f"the chunk has {len(move.chunk)} bytes and must have {length}")
    _tie(chunk_digest(move.chunk) == state.node, "the chunk is not the committed one")
    return replace(state, phase=Phase.SELECT_ELEMENT)


def _select_element(state: GameState, move: SelectElement) -> GameState:
    if chunk_digest(move.chunk) != state.node:
        raise IllegalMove("expected the chunk that the defender opened, got another")
    instruction = _disputed(state, move.instruction)
    size = instruction.dtype.size
    if move.index >= len(move.chunk) // size:
        raise IllegalMove(f"expected an index below {len(move.chunk) // size}, got {move.index}")
    has_tree = instruction.is_reduction and instruction.terms > TERMS_PER_LEAF
    return replace(
        state,
        element=state.chunk * (CHUNK_BYTES // size) + move.index,
        claimed=move.chunk[move.index * size : (move.index + 1) * size],
        terms=instruction.terms if has_tree else 0,
        phase=Phase.OPEN_TERMS if has_tree else Phase.PROVE,
    )


def _open_terms(state: GameState, move: OpenTerms) -> GameState:
    instruction = _disputed(state, move.instruction)
    leaves = -(-state.terms // TERMS_PER_LEAF)
    _require_count("siblings", depth_of(leaves), len(move.siblings))
    try:
        leaf, value = proof.finish(instruction, move.accumulator, state.job.precision)
    except EncodingError as error:
        raise _BrokenTieError(f"the last accumulator is not canonical: {error}") from error
    _tie(value == state.claimed, "the last accumulator is not the claimed element")
    found = fold(leaf, leaves - 1, move.siblings)
    _tie(found == move.accumulator_root, "the last accumulator is not the last leaf under its root")
    state = replace(state, accumulator_root=move.accumulator_root)
    return _enter(state, Level.TERMS, move.accumulator_root, depth_of(leaves))


def _prove(state: GameState, move: Prove) -> GameState:
    job = state.job
    committed: bytes
    correct: bytes
    if state.leaf >> job.half_depth:
        committed, correct = state.node, proof.judge_commit(job, state.leaf, state.body_root, move)
    else:
        instruction = _disputed(state, move.instruction)
        if state.level is Level.VALUES:
            place = proof.record_place(job, state.step, state.head.run_root, state.steps_root)
            committed, correct = state.node, proof.judge_source(job, instruction, state.step, place, move)
        elif state.level is Level.CHUNKS:
            committed = state.claimed
            correct = proof.judge_element(job, instruction, state.step, state.element, state.body_root, move)
        else:
            committed = state.node
            terms = proof.TermsPlace(
                element=state.element, leaf=state.position, leaves=state.leaves, root=state.accumulator_root
            )
            correct = proof.judge_terms(job, instruction, terms, state.body_root, move)
    winner = Side.DEFENDER if committed == correct else Side.CHALLENGER
    found = "agrees with" if committed == correct else "contradicts"
    return _end(state, winner, Reason.RECOMPUTED, f"recomputing {found} the defender", committed, correct)


_RULES: Final[dict[Phase, Callable[[GameState, Move], GameState]]] = {
    Phase.DESCEND: _descend,  # type: ignore[dict-item]  # the kind of a move fixes its type
    Phase.SELECT: _select,  # type: ignore[dict-item]
    Phase.OPEN_STEPS: _open_steps,  # type: ignore[dict-item]
    Phase.OPEN_VALUES: _open_values,  # type: ignore[dict-item]
    Phase.OPEN_TENSOR: _open_tensor,  # type: ignore[dict-item]
    Phase.OPEN_CHUNK: _open_chunk,  # type: ignore[dict-item]
    Phase.SELECT_ELEMENT: _select_element,  # type: ignore[dict-item]
    Phase.OPEN_TERMS: _open_terms,  # type: ignore[dict-item]
    Phase.PROVE: _prove,  # type: ignore[dict-item]
}
