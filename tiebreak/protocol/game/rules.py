"""The game: one descent through run, steps, values, chunks and terms, as a pure state machine (SPEC section 10).

`apply(state, move, now)` returns the next state, or raises `IllegalMove` and changes nothing. It uses no clock, key or
file: the caller passes `now` in seconds, and has already checked that the move comes from the side to move, by the
signature of its message (`tiebreak.protocol.game.messages`) or the sender of its transaction.

    >>> state = start(job, head, game_id, now=1000)
    >>> state.phase.name, state.mover.name, state.height
    ('DESCEND', 'DEFENDER', 2)
    >>> shown = tree.below(state.height, state.position, job.descent_levels)    # of the run tree under the signed head
    >>> state = apply(state, Descend(nodes=tuple(shown)), now=1010)
    >>> state = apply(state, choose(shown, 1), now=1015)                        # "your second checkpoint is wrong"
    >>> state.phase.name, state.mover.name, state.checkpoint
    ('OPEN_STEPS', 'DEFENDER', 1)
    >>> apply(state, choose(shown, 0), now=1020)                                # not this phase's move
    Traceback (most recent call last):
    tiebreak.protocol.errors.IllegalMove: ...
    >>> timeout(state, now=state.deadline + 1).verdict.winner.name              # the defender never answered
    'CHALLENGER'

Order of calls: `start` once, with the instant at which the game counts as begun. Then one `apply` for each move that
counts, in the order in which they count, none at an earlier instant than the one before; `follow` in its place for a
move that only a log shows. `enter` while the sides may talk. `timeout` after `deadline`, `concede` at any time,
`prove_signed` and `forked` until there is a verdict; whatever gives one is the last call.

A game starts with a talking phase (the job's `talk_time`), in which its sides exchange moves off the chain, and each
signs the state that its move leads to (`tiebreak.protocol.game.snapshot`). `enter` puts such a state on the chain.
Moves can be made there at any time; those made while the sides may talk cost nothing.

Invariants, each with a test named by its number:

 1. `node` is the defender's: the defender revealed it, and each move on the way tied it to the signed head.
 2. position < 2^(depth - height), 0 <= height <= depth, in every tree.
 3. Exactly one side is to move, which the phase determines. Only a move of the phase's kind is legal. Either side may
    concede at any time.
 4. An illegal move changes nothing.
 5. Clocks never rise, and `last` and `moved` never fall. The two remaining clocks and the time charged add up to
    2 * clock. A move is charged only for the part of its time after `last` that exceeds its allowance, so nothing is
    charged in the talking phase.
 6. Until the game is over, at every instant exactly one of "a move is in time" and "`timeout` is legal" holds.
 7. Every move makes progress: a game ends within `walk_moves` of the largest trees that a job may have.
 8. There is a verdict exactly when the phase is OVER, and then every move and `timeout` is illegal.
 9. An honest defender (its head is true, its moves are in time) never loses to any legal moves of the challenger.
10. An honest challenger (the head is false, its moves are in time) never loses to any legal moves of the defender.
11. Nobody can prove what it had not sealed: a PROVE that is legal at t opens a seal that this game's challenger posted
    a clock before t or earlier, or that stands in a state which the defender has signed or entered. So another party,
    whom the defender does not help, can prove what becomes visible at t at t + clock and no sooner, even if it chooses
    what stands in a block: nobody is kept out of the blocks for as long.
12. Only moves that need re-execution have an allowance, at most three per side: the job's `replay_time` for each game
    of the crowd, the most games of the job that were open at once since none was. So a side that replays within
    `replay_time`, first come, first served, is in time in all of them with one machine. A PROVE has the clock that it
    has to wait. A game that started at s can be ended, by `timeout` if need be, at s + talk_time + 3 * clock +
    6 * MAX_GAMES * replay_time + 1, whatever anybody does.
13. Entering changes where the game stands, never a clock, and only to a higher number of moves. An honest side signs
    only what its own legal play led to, so by 9 and 10 it also wins from each state that its opponent can enter,
    however old: that costs time, never money.
14. From a state in PROVE that the defender has signed, the challenger may prove at any time before the verdict,
    wherever the game stands. A defender that signed this for a dishonest challenger could as well concede to it.
15. What an honest defender shows is right wherever it is legal: it ties to the node, and by record, instruction or
    element to its place. So an answer to a choice that a reorganisation took back is right there too, or illegal.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tiebreak.protocol.codec import check_bytes
from tiebreak.protocol.commitments import log_tree, records
from tiebreak.protocol.commitments.job import Head, Job
from tiebreak.protocol.errors import IllegalMove, VerificationError
from tiebreak.protocol.game import moves, proof, seals
from tiebreak.protocol.game.moves import NO_SEAL, Concede, Move, Phase, Prove, Select, SelectElement, Side
from tiebreak.protocol.game.state import GameState, Level, Reason, Verdict
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.program.isa import TERMS_PER_LEAF, Opcode
from tiebreak.protocol.program.program import decode_alone, instruction_digest
from tiebreak.protocol.program.rounding import Direction
from tiebreak.protocol.tags import EMPTY, Digest
from tiebreak.protocol.trees import depth_of, fold, fold_nodes, pad


def start(job: Job, head: Head, game_id: bytes, now: int) -> GameState:
    """Start a game against a signed head. Raises `VerificationError` for a head of another job.

    `game_id` is `tiebreak.protocol.commitments.job.game_id` of the head and the challenger.
    """
    head.check_job(job)
    check_bytes("game id", game_id, 32)
    state = GameState(
        job=job,
        head=head,
        game_id=game_id,
        defender_rest=job.clock,
        challenger_rest=job.clock,
        last=now + job.talk_time,
        moved=now,
    )
    return _enter(state, Level.RUN, head.run_root, job.run_depth)


def apply(state: GameState, move: Move, now: int) -> GameState:
    """The state after a move at instant `now`. Raises `IllegalMove`."""
    _require_kind(state, move)
    if isinstance(move, Concede):
        return concede(replace(state, moves=state.moves + 1), state.mover, now)
    timed = _spend(state, now)
    if now < state.earliest:
        # INVARIANT 11: otherwise, a party that keeps a proof out of a block could seal and prove its answer meanwhile.
        raise IllegalMove(
            f"expected a proof not before {state.earliest}, a clock after the move before, got one at {now}"
        )
    return _made(timed, move)


def _require_kind(state: GameState, move: Move) -> None:
    _require(not state.is_over, "the game is over")
    if move.KIND not in (state.phase, Phase.OVER):
        raise IllegalMove(f"expected a move of kind {state.phase.name}, got {move.KIND.name}")


def _made(state: GameState, move: Move) -> GameState:
    try:
        return _RULES[move.KIND](state, move)
    except IllegalMove:
        raise
    except VerificationError as error:
        raise IllegalMove(str(error)) from error


def follow(state: GameState, move: Move, now: int) -> GameState:
    """The state after a move that the chain took without ending the game, as its log shows the move.

    A log lacks the siblings that tie what a defender opens to what stood before, and the contract has checked them. All
    other moves are complete, and judged as by `apply`. Raises `IllegalMove`.
    """
    _require_kind(state, move)
    timed, job = _spend(state, now), state.job
    match move:
        case moves.OpenSteps():
            depth = depth_of(job.segment_steps(state.checkpoint))
            opened = replace(timed, log_root=move.log_root) if job.is_logged else timed
            return _enter_steps(opened, _root_over(job, move.nodes, depth), depth)
        case moves.OpenValues():
            half = len(move.nodes) // 2
            opened = replace(
                timed, state_root=move.state_root, body_root=fold_nodes(move.nodes[:half]), log_root=move.log_root,
                step_log=move.step_log,
            )  # fmt: skip
            return _enter(opened, Level.VALUES, _root_over(job, move.nodes, job.half_depth + 1), job.half_depth + 1)
        case moves.OpenChunk():
            return replace(timed, word=move.word, phase=Phase.SELECT_ELEMENT)
        case moves.OpenTerms():
            depth = depth_of(-(-state.terms // TERMS_PER_LEAF))
            root = _root_over(job, move.nodes, depth)
            return _enter(replace(timed, accumulator_root=root), Level.TERMS, root, depth)
    return apply(state, move, now)


def enter(state: GameState, later: GameState, now: int) -> GameState:
    """The game after a state that was reached off the chain entered it. Raises `IllegalMove`.

    The caller has checked that one side sent `later` and that the other signed it. The clocks, and the instants that
    they and seals count from, stay those of the game.
    """
    _require(not state.is_over, "the game is over")
    if not state.moved <= now < state.last:
        raise IllegalMove(
            f"expected an instant from {state.moved} to {state.last - 1}, while the sides talk, got {now}"
        )
    if later.moves <= state.moves:
        raise IllegalMove(f"expected a state after more than {state.moves} moves, got one after {later.moves}")
    return _at(state, later)


def _at(state: GameState, later: GameState) -> GameState:
    return replace(
        later,
        defender_rest=state.defender_rest,
        challenger_rest=state.challenger_rest,
        last=state.last,
        moved=state.moved,
        crowd=state.crowd,
    )


def prove_signed(state: GameState, later: GameState, move: Move) -> GameState:
    """The game after a proof from a state in PROVE that the defender has signed. Raises `IllegalMove`.

    No clock is charged, and nothing of the state but its verdict counts: the contract stores no more.
    """
    _require(not state.is_over, "the game is over")
    if later.phase is not Phase.PROVE or move.KIND is not Phase.PROVE:
        raise IllegalMove(f"expected a proof from phase PROVE, got {move.KIND.name} from {later.phase.name}")
    return _made(replace(_at(state, later), moves=later.moves + 1), move)


def concede(state: GameState, side: Side, now: int) -> GameState:
    """The game after a side gave up, in or out of its turn, in time or not. Raises `IllegalMove` once it is over."""
    _require(not state.is_over, "the game is over")
    _require(now >= state.moved, f"expected an instant not before {state.moved}, got {now}")
    detail = f"the {side.name.lower()} conceded in phase {state.phase.name}"
    return _end(replace(state, moved=now), side.other, Reason.CONCEDED, detail)


def forked(state: GameState, side: Side) -> GameState:
    """The game after it was shown that a side signed two states in one place. Raises `IllegalMove` once it is over."""
    _require(not state.is_over, "the game is over")
    return _end(state, side.other, Reason.FORKED, f"the {side.name.lower()} signed two states in one place")


def timeout(state: GameState, now: int) -> GameState:
    """End a game whose mover has used more than its clock. Raises `IllegalMove` before that."""
    _require(not state.is_over, "the game is over")
    _require(_used(state, now) > state.rest, f"expected an instant after {state.deadline}, got {now}")
    within = f"{state.rest} seconds" + (f" and {state.allowance} that are not charged" if state.allowance else "")
    return _end(state, state.mover.other, Reason.TIMEOUT, f"{state.phase.name} did not come within {within}")


def ended(state: GameState, verdict: Verdict, now: int) -> GameState:
    """The game after a move on the chain whose log shows only that it ended the game, and how.

    Raises `IllegalMove` for an instant at which no move was legal.
    """
    return replace(_spend(state, now), phase=Phase.OVER, verdict=verdict)


def walk_moves(levels: int, *, run: int, steps: int, values: int, chunks: int, terms: int) -> int:
    """Most moves of a descent through trees of these depths to one partial sum, at `levels` levels a move."""

    def pairs(depth: int) -> int:
        """Two moves for every `levels` levels: one shows nodes, the other selects one."""
        return 2 * -(-depth // levels)

    # Opening a tree also shows its first nodes. A tensor of one chunk is opened, but leaves nothing to select.
    walks = pairs(run) + pairs(steps) + pairs(values) + max(pairs(chunks), 1) + pairs(terms)
    return walks + len((Phase.OPEN_CHUNK, Phase.SELECT_ELEMENT, Phase.PROVE))


# ---------------------------------------------------------------- clocks


def _used(state: GameState, now: int) -> int:
    """Seconds of the mover's clock that a move at `now` costs."""
    _require(now >= state.moved, f"expected an instant not before {state.moved}, got {now}")
    return max(0, now - state.last - state.allowance)


def _spend(state: GameState, now: int) -> GameState:
    """Charge the mover's clock. The mover may use exactly what is left; one second more allows `timeout`."""
    used, rest = _used(state, now), state.rest
    _require(used <= rest, f"expected a move not after {state.deadline}, got one at {now}")
    timed = replace(state, last=max(state.last, now), moved=now, moves=state.moves + 1)
    if state.mover is Side.DEFENDER:
        return replace(timed, defender_rest=rest - used)
    return replace(timed, challenger_rest=rest - used)


# ---------------------------------------------------------------- the walk


def _end(
    state: GameState, winner: Side, reason: Reason, detail: str, committed: bytes = b"", correct: bytes = b""
) -> GameState:
    verdict = Verdict(winner=winner, reason=reason, detail=detail, committed=committed, correct=correct)
    return replace(state, phase=Phase.OVER, verdict=verdict)


def _enter(state: GameState, level: Level, root: bytes, depth: int) -> GameState:
    # The run tree's nodes are still to be shown; opening any other tree has already shown its first nodes.
    phase = Phase.DESCEND if level is Level.RUN else Phase.SELECT
    state = replace(state, level=level, node=root, height=depth, position=0, phase=phase)
    return state if depth else _leaf(state)


def _leaf(state: GameState) -> GameState:
    """The next state after the descent reached a leaf of the current tree."""
    position = state.position
    if _is_padding(state):
        # The correct leaf is known to be empty, so nothing needs to be opened.
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
            return replace(state, step=state.job.first_step(state.checkpoint) + position, phase=Phase.OPEN_VALUES)
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


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise IllegalMove(what)


def _require_count(what: str, expected: int, found: int) -> None:
    _require(found == expected, f"expected {expected} {what}, got {found}")


def _require_no_seal(seal: bytes, what: str) -> None:
    _require(seal == NO_SEAL, f"expected no seal at {what}, where nothing is judged yet, got {seal.hex()}")


def _require_no_log(what: str, holds: bool) -> None:
    _require(holds, f"expected nothing of a rounding log with {what}, got some")


def _root_over(job: Job, nodes: tuple[bytes, ...], depth: int) -> Digest:
    """The root of a tree of this depth, folded from the nodes that the defender shows when it opens the tree."""
    _require_count("nodes", 1 << min(job.descent_levels, depth), len(nodes))
    return fold_nodes(nodes)


def _descend(state: GameState, move: moves.Descend) -> GameState:
    root = _root_over(state.job, move.nodes, state.height)
    _require(root == state.node, "the revealed nodes do not fold to the node above them")
    return replace(state, phase=Phase.SELECT)


def _select(state: GameState, move: Select) -> GameState:
    _require_count("siblings", state.levels, len(move.siblings))
    _require(move.index < 1 << state.levels, f"expected an index below {1 << state.levels}, got {move.index}")
    if fold(move.node, move.index, move.siblings) != state.node:
        raise IllegalMove("expected a node that the defender revealed, got another")
    height = state.height - state.levels
    position = state.below(move.index)
    state = replace(state, node=move.node, height=height, position=position, phase=Phase.DESCEND)
    # Only a leaf that may be judged takes a seal; padding is decided without a proof.
    if not height and state.level is Level.VALUES and not _is_padding(state):
        state = replace(state, value_seal=move.seal)
    elif not height and state.level is Level.TERMS and not _is_padding(state):
        state = replace(state, seal=move.seal)
    else:
        _require_no_seal(move.seal, f"height {height}, position {position} of the {state.level.name} tree")
    return state if height else _leaf(state)


def _open_steps(state: GameState, move: moves.OpenSteps) -> GameState:
    steps = state.job.segment_steps(state.checkpoint)
    _require_count("siblings", depth_of(steps), len(move.siblings))
    root = _root_over(state.job, move.nodes, depth_of(steps))
    if not state.job.is_logged:
        named = (move.state_root, move.loss_bits, move.log_root)
        _require_no_log("the steps under policy exact", named == (records.ZERO_DIGEST, 0, records.ZERO_DIGEST))
    found = fold(state.node, steps - 1, move.siblings)
    _require(found == root, "the checkpoint is not the last record under the steps root")
    if state.job.is_logged:
        record = _record(state.job.last_step(state.checkpoint), move)
        _require(record.digest == state.node, "the last record is not the checkpoint")
        state = replace(state, log_root=move.log_root)
    return _enter_steps(state, root, depth_of(steps))


def _record(step: int, move: moves.OpenSteps | moves.OpenValues) -> records.StepRecord:
    return records.StepRecord(
        step=step, state_root=Digest(move.state_root), loss_bits=move.loss_bits, log_root=Digest(move.log_root)
    )


def _open_values(state: GameState, move: moves.OpenValues) -> GameState:
    job, depth = state.job, state.job.half_depth
    _require_count("siblings", depth, len(move.siblings))
    value_root = _root_over(job, move.nodes, depth + 1)
    half = len(move.nodes) // 2
    body_root, commit_root = fold_nodes(move.nodes[:half]), fold_nodes(move.nodes[half:])
    if state.job.is_logged:
        _require_count("log siblings", depth_of(state.job.segment_steps(state.checkpoint)), len(move.log_siblings))
    else:
        _require_no_log("the values under policy exact", move.step_log == records.ZERO_DIGEST and not move.log_siblings)
    _require(_record(state.step, move).digest == state.node, "the step record is not the disputed one")
    _tie_step_log(state, move)
    loss_root = fold(records.loss_id(move.loss_bits), job.body_count - 1, move.siblings)
    _require(loss_root == body_root, "the loss is not the last value under the body root")
    padded = pad(move.state_root, job.state_depth, depth)
    _require(commit_root == padded, "the state is not the right half of the values")
    state = replace(
        state, state_root=move.state_root, body_root=body_root, log_root=move.log_root, step_log=move.step_log
    )
    return _enter(state, Level.VALUES, value_root, depth + 1)


def _tie_step_log(state: GameState, move: moves.OpenValues) -> None:
    """Tie the step log to the record's log root, which all records of a segment share with the checkpoint."""
    job = state.job
    if not job.is_logged:
        _require(move.log_root == records.ZERO_DIGEST, "the policy is exact, but there is a rounding log")
        return
    if job.segment_steps(state.checkpoint) > 1:  # else the record is the checkpoint
        _require(move.log_root == state.log_root, "the log root of the record is not the checkpoint's")
    found = fold(move.step_log, state.step - job.first_step(state.checkpoint), move.log_siblings)
    _require(found == move.log_root, "the step log is not the step's under the log root")


def _open_tensor(state: GameState, move: moves.OpenTensor) -> GameState:
    _require_count("siblings", state.job.half_depth + 1, len(move.siblings))
    digest = instruction_digest(move.instruction)
    _require(fold(digest, state.leaf, move.siblings) == state.job.program_root, "the instruction is not the program's")
    instruction = decode_alone(move.instruction)
    state = replace(state, instruction=digest, operation=instruction)
    if instruction.opcode == Opcode.SOURCE:
        _require_count("nodes of a source", 0, len(move.nodes))
        return replace(state, phase=Phase.PROVE)
    depth = depth_of(records.chunk_count(instruction.dtype, instruction.shape))
    root = _root_over(state.job, move.nodes, depth)
    identity = records.tensor_id(instruction.dtype, instruction.shape, root)
    _require(identity == state.node, "the chunk root is not that of the committed tensor")
    return _enter(state, Level.CHUNKS, root, depth)


def _open_chunk(state: GameState, move: moves.OpenChunk) -> GameState:
    if state.is_logged_sum:
        _require_count("log siblings", state.depth + state.job.half_depth, len(move.siblings))
    else:
        _require_no_log("a chunk of what is not logged", move.word == log_tree.NO_WORD and not move.siblings)
    length = records.chunk_length(state.dtype, state.shape, state.chunk)
    _require(len(move.chunk) == length, f"the chunk has {len(move.chunk)} bytes and must have {length}")
    _require(records.chunk_digest(move.chunk) == state.node, "the chunk is not the committed one")
    if state.is_logged_sum:
        # Every value's words form a tree of the same shape as its chunks, so one position names both value and chunk.
        found = fold(log_tree.word_leaf(move.word), state.leaf << state.depth | state.chunk, move.siblings)
        _require(found == state.step_log, "the log word is not the chunk's under the step log")
    return replace(state, word=move.word, phase=Phase.SELECT_ELEMENT)


def _select_element(state: GameState, move: SelectElement) -> GameState:
    if records.chunk_digest(move.chunk) != state.node:
        raise IllegalMove("expected the chunk that the defender opened, got another")
    size, count = state.dtype.size, len(move.chunk) // state.dtype.size
    _require(move.index < count, f"expected an index below {count}, got {move.index}")
    state = replace(
        state,
        element=state.chunk * (CHUNK_BYTES // size) + move.index,
        claimed=move.chunk[move.index * size : (move.index + 1) * size],
        direction=log_tree.code_in(state.word, move.index) if state.is_logged_sum else Direction.NONE,
    )
    if state.terms:
        _require_no_seal(move.seal, f"an element of {state.terms} terms")
        return replace(state, phase=Phase.OPEN_TERMS)
    return replace(state, seal=move.seal, phase=Phase.PROVE)


def _open_terms(state: GameState, move: moves.OpenTerms) -> GameState:
    assert state.operation is not None  # opened in OPEN_TENSOR
    leaves = -(-state.terms // TERMS_PER_LEAF)
    _require_count("siblings", depth_of(leaves), len(move.siblings))
    # INVARIANT 15: partial sums tie to the element's bits alone, and another element may have the same.
    selected, named = (state.step, state.leaf, state.element), (move.step, move.value, move.element)
    _require(named == selected, f"expected the terms of (step, value, element) {selected}, got those of {named}")
    root = _root_over(state.job, move.nodes, depth_of(leaves))
    leaf, value = proof.finish(state.operation, move.accumulator, state.rounding)
    _require(value == state.claimed, "the last accumulator is not the claimed element")
    _require(fold(leaf, leaves - 1, move.siblings) == root, "the last accumulator is not the last leaf under its root")
    return _enter(replace(state, accumulator_root=root), Level.TERMS, root, depth_of(leaves))


def _prove(state: GameState, move: Prove) -> GameState:
    committed, correct = state.claimed if state.level is Level.CHUNKS else state.node, judge(state, move)
    winner = Side.DEFENDER if committed == correct else Side.CHALLENGER
    found = "agrees with" if committed == correct else "contradicts"
    return _end(state, winner, Reason.RECOMPUTED, f"recomputing {found} the defender", committed, correct)


def judge(state: GameState, move: Prove) -> bytes:
    """The correct content of the judged leaf: a digest or, if the descent ended at CHUNKS, the element's data.

    Recomputed from a proof in phase PROVE. Raises `VerificationError` unless every opening verifies and the seal holds.
    """
    correct = _recompute(state, move)
    is_element = state.level is Level.CHUNKS
    answer = seals.element_answer(correct) if is_element else correct
    sealed = state.value_seal if state.level is Level.VALUES else state.seal
    if seals.seal(state.game_id, answer, move.salt) != sealed:
        # The message may name the answer: the proof already shows everything needed to compute it.
        raise IllegalMove(f"expected the seal of the right answer {answer.hex()}, got {sealed.hex()}")
    return correct


def _recompute(state: GameState, move: Prove) -> bytes:
    job = state.job
    if state.leaf >> job.half_depth:
        return proof.judge_commit(job, state.leaf, state.body_root, move)
    if instruction_digest(move.instruction) != state.instruction or state.operation is None:
        raise IllegalMove("expected the disputed instruction, got another")
    instruction = state.operation
    if state.level is Level.VALUES:
        place = proof.record_place(job, state.step, state.head.run_root, state.steps_root)
        return proof.judge_source(job, instruction, state.step, place, move, leaf=state.leaf, step_log=state.step_log)
    if state.level is Level.CHUNKS:
        return proof.judge_element(
            job, instruction, state.element, state.body_root, move, step=state.step, rounding=state.rounding
        )
    return proof.judge_terms(
        job, instruction, state.element, state.body_root, move, leaf=state.position, root=state.accumulator_root
    )


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
