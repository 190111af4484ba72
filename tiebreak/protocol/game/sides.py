"""The two parties of a game: the values that each must be able to compute, and its choice of moves.

A party answers from its own run (`Oracle`). The defender reveals its own trees. The challenger descends into the first
node that differs from its own, so both sides agree on everything left of its path. Its proofs need the defender's
siblings, and it cannot compute those right of the path, so it keeps what the defender revealed (`Path`). It seals what
it will prove beforehand (`tiebreak.protocol.game.seals`). The salts follow from its secret and the state of the game,
so that after a crash a game can be resumed with nothing but the secret and the defender's moves (`Challenger.learn`).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol

from tiebreak.protocol.commitments.accumulator_tree import AccumulatorTree
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.log_tree import LogTree, logs_tree
from tiebreak.protocol.commitments.records import StepRecord, data_leaf
from tiebreak.protocol.errors import IllegalMove, StateError, VerificationError
from tiebreak.protocol.game import moves, referee, rules, seals
from tiebreak.protocol.game.moves import NO_SEAL, Concede, Move, Opening, Phase, Prove, Select, SelectElement, kind_name
from tiebreak.protocol.game.proof import record_place
from tiebreak.protocol.game.state import GameState, Level, Reason
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.program.isa import Instruction, Opcode, Slot, SourceKind
from tiebreak.protocol.program.program import Program, decode_instruction
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Nodes, Tree, parent


class Oracle(Protocol):
    """A party's access to its run. Steps count from 1; state 0 and record 0 are the initial ones."""

    @property
    def job(self) -> Job:
        """The job that the run is for."""

    @property
    def program(self) -> Program:
        """The job's program."""

    def run_tree(self, count: int) -> Tree:
        """The run tree with the first `count` checkpoints filled in, at the job's depth."""

    def steps_tree(self, checkpoint: int) -> Tree:
        """The tree over the records of a checkpoint's segment."""

    def record(self, step: int) -> StepRecord:
        """The record of a step."""

    def value_tree(self, step: int) -> Tree:
        """The value tree of a step, of depth D + 1 (D is `Job.half_depth`)."""

    def tensor(self, step: int, value: int) -> bytes:
        """The data of a body value."""

    def tensor_tree(self, step: int, value: int) -> Tree:
        """The chunk tree of a body value. Requested at every move of the descent through it."""

    def accumulators(self, step: int, value: int, element: int) -> AccumulatorTree:
        """The accumulator tree of one output element of a reduction. Requested at each move of a descent through it."""

    def log_tree(self, step: int) -> LogTree:
        """The tree of a step's rounding log. Requested only for jobs with policy `logged`."""

    def state_leaves(self, step: int) -> Tree:
        """The state tree after a step."""

    def state_id(self, step: int, name: str) -> Digest:
        """The id of a state entry after a step."""

    def data_id(self, name: str) -> Digest:
        """The id of a data entry."""


class Party(Protocol):
    """Chooses the moves of one side of a game."""

    def move(self, state: GameState, answered: Move | None) -> Move:
        """The next move in `state`, where this side is to move. `answered` is the opponent's last move, if any."""


def level_tree(oracle: Oracle, state: GameState) -> Nodes:
    """A party's own version of the tree that contains the current node."""
    match state.level:
        case Level.RUN:
            return oracle.run_tree(state.head.count)
        case Level.STEPS:
            return oracle.steps_tree(state.checkpoint)
        case Level.VALUES:
            return oracle.value_tree(state.step)
        case Level.CHUNKS:
            return oracle.tensor_tree(state.step, state.leaf)
        case Level.TERMS:
            return oracle.accumulators(state.step, state.leaf, state.element)


def first_nodes(tree: Nodes, job: Job) -> tuple[Digest, ...]:
    """The nodes shown when a tree is opened: those min(r, depth) levels below the root, r being `descent_levels`."""
    return tuple(tree.below(tree.depth, 0, min(job.descent_levels, tree.depth)))


def choose(nodes: Sequence[bytes], index: int, seal: bytes = NO_SEAL) -> Select:
    """Select one of the nodes that were shown."""
    return Select(node=nodes[index], index=index, siblings=tuple(Tree(nodes).proof(index)), seal=seal)


class Defender:
    """Reveals the trees of its own run, and concedes where these do not tie to what it has signed.

    Honest if its oracle is; a cheat plays with the oracle of a tampered run.
    """

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle

    def move(self, state: GameState, answered: Move | None) -> Move:  # noqa: ARG002  # the state says it all
        move = self.opening(state)
        with suppress(IllegalMove):
            rules.apply(state, move, state.last)
            return move
        return Concede()

    def opening(self, state: GameState) -> Move:
        """The move that its run gives here, whether or not that ties to what it has signed."""
        match state.phase:
            case Phase.DESCEND:
                tree = level_tree(self.oracle, state)
                return moves.Descend(nodes=tuple(tree.below(state.height, state.position, state.levels)))
            case Phase.OPEN_STEPS:
                return self._open_steps(state)
            case Phase.OPEN_VALUES:
                return self._open_values(state)
            case Phase.OPEN_TENSOR:
                return self._open_tensor(state)
            case Phase.OPEN_CHUNK:
                return self._open_chunk(state)
            case Phase.OPEN_TERMS:
                return self._open_terms(state)
        raise StateError(f"expected a phase in which the defender moves, got {state.phase.name}")

    def _open_steps(self, state: GameState) -> moves.OpenSteps:
        tree, last = self.oracle.steps_tree(state.checkpoint), state.job.segment_steps(state.checkpoint) - 1
        plain = moves.OpenSteps(nodes=first_nodes(tree, state.job), siblings=tuple(tree.proof(last)))
        if not state.job.is_logged:
            return plain
        record = self.oracle.record(state.job.last_step(state.checkpoint))
        return replace(plain, state_root=record.state_root, loss_bits=record.loss_bits, log_root=record.log_root)

    def _open_values(self, state: GameState) -> moves.OpenValues:
        record, tree = self.oracle.record(state.step), self.oracle.value_tree(state.step)
        plain = moves.OpenValues(
            state_root=record.state_root,
            loss_bits=record.loss_bits,
            log_root=record.log_root,
            nodes=first_nodes(tree, state.job),
            siblings=tuple(tree.proof(state.job.body_count - 1)[: state.job.half_depth]),
        )
        if not state.job.is_logged:
            return plain
        first, last = state.job.first_step(state.checkpoint), state.job.last_step(state.checkpoint)
        logs = [self.oracle.log_tree(step).root for step in range(first, last + 1)]
        place = state.step - first
        return replace(plain, step_log=logs[place], log_siblings=tuple(logs_tree(logs).proof(place)))

    def _open_chunk(self, state: GameState) -> moves.OpenChunk:
        chunk = _chunk(self.oracle, state)
        if not state.is_logged_sum:
            return moves.OpenChunk(chunk=chunk)
        tree = self.oracle.log_tree(state.step)
        siblings = tuple(tree.proof(state.leaf, state.chunk))
        return moves.OpenChunk(chunk=chunk, word=tree.word(state.leaf, state.chunk), siblings=siblings)

    def _open_tensor(self, state: GameState) -> moves.OpenTensor:
        program = self.oracle.program
        encoded, siblings = program.encoded_at(state.leaf), tuple(program.tree.proof(state.leaf))
        if program.instruction_at(state.leaf).opcode == Opcode.SOURCE:
            return moves.OpenTensor(instruction=encoded, siblings=siblings, nodes=())
        tree = self.oracle.tensor_tree(state.step, state.leaf)
        return moves.OpenTensor(instruction=encoded, siblings=siblings, nodes=first_nodes(tree, state.job))

    def _open_terms(self, state: GameState) -> moves.OpenTerms:
        tree = self.oracle.accumulators(state.step, state.leaf, state.element)
        return moves.OpenTerms(
            step=state.step,
            value=state.leaf,
            element=state.element,
            nodes=first_nodes(tree, state.job),
            accumulator=tree.last,
            siblings=tuple(tree.proof(tree.count - 1)),
        )


class Path:
    """The part of one of the defender's trees that it has revealed."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], bytes] = {}

    def add(self, height: int, position: int, nodes: tuple[bytes, ...]) -> None:
        """Store the nodes some levels below (height, position), given from left to right, and all nodes in between."""
        height -= (len(nodes) - 1).bit_length()
        first, level = position * len(nodes), list(nodes)
        while True:
            self._nodes.update({(height, first + k): node for k, node in enumerate(level)})
            if len(level) == 1:
                return
            level = [parent(level[k], level[k + 1]) for k in range(0, len(level), 2)]
            height, first = height + 1, first // 2

    def proof(self, own: Nodes, leaf: int, depth: int) -> tuple[bytes, ...]:
        """Siblings of a leaf left of the path: revealed nodes if known, otherwise own nodes, which are agreed."""
        places = [(height, (leaf >> height) ^ 1) for height in range(depth)]
        return tuple(self._nodes.get(place) or own.node(*place) for place in places)


class Challenger:
    """Descends into the first node that differs from its own. It remembers what it was shown, so it serves one game.

    It even serves one line of moves only. A defender may show one thing in the talk and another one on the chain, and a
    proof needs what was shown there: on another line, use a fresh object that has learnt the moves of that line.

    If nothing differs (the challenge is unfounded) it goes left, plays on and loses. If its own answer turns out to be
    wrong (its run was wrong), it has nothing to prove and concedes.
    """

    def __init__(self, oracle: Oracle, secret: bytes) -> None:
        """`secret` is 32 bytes that nobody else can guess. Keep it until the game is over."""
        self.oracle = oracle
        self._secret = secret
        self._paths = {level: Path() for level in Level}

    def learn(self, state: GameState, answered: Move | None) -> None:
        """Remember what the defender showed in a move; `state` is the state after it.

        `move` calls this itself. To resume a game that another object played, call it for all moves so far, in order.
        """
        if isinstance(answered, Opening) and state.phase is Phase.SELECT:
            self._paths[state.level].add(state.height, state.position, answered.nodes)

    def move(self, state: GameState, answered: Move | None) -> Move:
        self.learn(state, answered)
        match state.phase, answered:
            case Phase.SELECT, _ if isinstance(answered, Opening):
                plain = choose(answered.nodes, self.pick(state, answered.nodes))
                return replace(plain, seal=self._seal(rules.apply(state, plain, state.last)))
            case Phase.SELECT_ELEMENT, moves.OpenChunk(chunk=chunk):
                element = SelectElement(index=self.pick_element(state, chunk), chunk=chunk)
                return replace(element, seal=self._seal(rules.apply(state, element, state.last)))
            case Phase.PROVE, _:
                return self._prove(state)
        kind = "nothing" if answered is None else kind_name(answered)
        raise StateError(f"expected a phase in which the challenger moves, got {state.phase.name} after {kind}")

    def pick(self, state: GameState, nodes: Sequence[bytes]) -> int:
        """Index of the shown node to dispute."""
        return _first_difference(
            nodes, level_tree(self.oracle, state).below(state.height, state.position, state.levels)
        )

    def pick_element(self, state: GameState, chunk: bytes) -> int:
        """Index of the element of the shown chunk to dispute."""
        own, size = _chunk(self.oracle, state), state.dtype.size
        starts = range(0, len(chunk), size)
        return _first_difference([chunk[k : k + size] for k in starts], [own[k : k + size] for k in starts])

    # -- sealing

    def _seal(self, reached: GameState) -> bytes:
        """The seal that goes with a selection leading to this state, or `NO_SEAL`."""
        answer = self._answer(reached)
        return NO_SEAL if answer is None else seals.seal(reached.game_id, answer, self._salt(reached))

    def _answer(self, state: GameState) -> bytes | None:
        """The content of its own run at the current place, if that is what it will prove; otherwise None."""
        match state.phase, state.level:
            case Phase.PROVE, Level.CHUNKS:
                return seals.element_answer(_element(self.oracle, state))
            case (Phase.PROVE, Level.TERMS) | (Phase.PROVE, Level.VALUES):
                return level_tree(self.oracle, state).node(0, state.position)
            case Phase.OPEN_TENSOR, _ if self.oracle.program.instruction_at(state.leaf).opcode == Opcode.SOURCE:
                return level_tree(self.oracle, state).node(0, state.position)
        return None

    def _salt(self, state: GameState) -> bytes:
        """The salt for this place: the same when the answer is sealed and when it is proved."""
        place = (state.level, state.checkpoint, state.step, state.leaf, state.element, state.position)
        return seals.derive_salt(self._secret, state.game_id, place)

    # -- proving

    def _prove(self, state: GameState) -> Prove | Concede:
        move = replace(self._proof(state), salt=self._salt(state))
        try:
            rules.judge(state, move)
        except VerificationError:
            return Concede()  # the rules would refuse it until the clock runs out
        return move

    def _proof(self, state: GameState) -> Prove:
        program = self.oracle.program
        instruction, encoded = program.instruction_at(state.leaf), program.encoded_at(state.leaf)
        if instruction.opcode == Opcode.COMMIT:
            value = instruction.operands[0].value
            tree = self.oracle.value_tree(state.step)
            witness = moves.TensorWitness(tensor_id=tree.node(0, value), siblings=self._body_proof(state, tree, value))
            return Prove(instruction=encoded, siblings=tuple(program.tree.proof(state.leaf)), witness=witness)
        if instruction.opcode == Opcode.SOURCE:
            return Prove(instruction=encoded, witness=self._source_witness(state, instruction))
        return self._prove_computed(state, instruction, encoded)

    def _prove_computed(self, state: GameState, instruction: Instruction, encoded: bytes) -> Prove:
        oracle, tree = self.oracle, self.oracle.value_tree(state.step)
        terms_leaf = state.position if state.level is Level.TERMS else None
        tensors, chunks = referee.build_openings(
            oracle.program,
            instruction,
            state.element,
            terms_leaf,
            body_tree=tree,
            tensor_bytes=lambda value: oracle.tensor(state.step, value),
            tree_of=lambda value: oracle.tensor_tree(state.step, value),
        )
        tensors = tuple(replace(t, siblings=self._body_proof(state, tree, t.value)) for t in tensors)
        if not terms_leaf:
            return Prove(instruction=encoded, tensors=tensors, chunks=chunks)
        terms = oracle.accumulators(state.step, state.leaf, state.element)
        siblings = self._paths[Level.TERMS].proof(terms, terms_leaf - 1, terms.depth)
        previous = terms.at(terms_leaf - 1)
        return Prove(instruction=encoded, previous=previous, siblings=siblings, tensors=tensors, chunks=chunks)

    def _body_proof(self, state: GameState, own: Tree, value: int) -> tuple[bytes, ...]:
        return self._paths[Level.VALUES].proof(own, value, state.job.half_depth)

    def _source_witness(self, state: GameState, instruction: Instruction) -> moves.Witness:
        if not isinstance(instruction.params, Slot):
            return None
        slot, name = instruction.params.slot, instruction.params.name
        if instruction.function == SourceKind.DATA:
            entries = [entry.params.name for entry in self.oracle.program.data_slots if isinstance(entry.params, Slot)]
            tree = Tree([data_leaf(entry, self.oracle.data_id(entry)) for entry in entries])
            return moves.TensorWitness(tensor_id=self.oracle.data_id(name), siblings=tuple(tree.proof(slot)))
        if instruction.function == SourceKind.LATE:
            log = self.oracle.log_tree(state.step)
            return moves.TensorWitness(tensor_id=log.late[state.leaf], siblings=tuple(log.above(state.leaf)))
        record = self.oracle.record(state.step - 1)
        return moves.StateWitness(
            step=record.step,
            state_root=record.state_root,
            loss_bits=record.loss_bits,
            log_root=record.log_root,
            record_siblings=self._record_proof(state),
            tensor_id=self.oracle.state_id(record.step, name),
            siblings=tuple(self.oracle.state_leaves(record.step).proof(slot)),
        )

    def _record_proof(self, state: GameState) -> tuple[bytes, ...]:
        """Siblings of record s-1 in the defender's run tree or steps tree; empty for record 0."""
        place = record_place(state.job, state.step, state.head.run_root, state.steps_root)
        if state.step == 1:
            return ()
        if (state.step - 1) % state.job.checkpoint_interval == 0:
            run = self.oracle.run_tree(state.head.count)
            return self._paths[Level.RUN].proof(run, place.position, place.depth)
        steps = self.oracle.steps_tree(state.checkpoint)
        return self._paths[Level.STEPS].proof(steps, place.position, place.depth)


def _chunk(oracle: Oracle, state: GameState) -> bytes:
    start = state.chunk * CHUNK_BYTES
    return bytes(oracle.tensor(state.step, state.leaf)[start : start + CHUNK_BYTES])


def _element(oracle: Oracle, state: GameState) -> bytes:
    size = state.dtype.size
    return bytes(oracle.tensor(state.step, state.leaf)[state.element * size : (state.element + 1) * size])


def _first_difference(theirs: Sequence[bytes], own: Sequence[bytes]) -> int:
    return next((k for k, (a, b) in enumerate(zip(theirs, own, strict=False)) if a != b), 0)


def resume(party: Party, start: GameState, line: Sequence[Move]) -> GameState:
    """The state that a line of moves leads to, at instants that cost nothing. A challenger learns the line.

    The moves may be as a chain's log shows them, and have been judged before.
    """
    state = start
    for move in line:
        state = rules.follow(state, move, max(state.moved, state.last))
        if isinstance(party, Challenger):
            party.learn(state, move)
    return state


# ---------------------------------------------------------------- results of games


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The end of a game and the values compared there, for display. Fields that the game did not reach are None."""

    checkpoint: int | None = None
    step: int | None = None
    leaf: int | None = None
    """Leaf of the value tree."""
    instruction: str | None = None
    origin: str | None = None
    """The place in the captured model that the instruction comes from."""
    element: int | None = None
    committed: str = ""
    """The element's bits as a number, or else the value that was compared; in hex."""
    correct: str = ""


def describe(state: GameState, program: Program, truth: Oracle | None = None) -> Summary:
    """Describe a finished game. With the winner's oracle, `correct` is known even if only a partial sum was judged."""
    if state.verdict is None:
        raise StateError("expected a game with a verdict")
    verdict = state.verdict
    summary = Summary(
        checkpoint=state.checkpoint if state.level > Level.RUN else None,
        step=state.step or None,
        committed=verdict.committed.hex(),
        correct=verdict.correct.hex(),
    )
    at_padding = state.level is Level.VALUES and verdict.reason is Reason.PADDING
    if not state.body_root or at_padding or (state.level is Level.VALUES and state.height):
        return summary
    # Decode the instruction again: a program built by hand may hold its functions as plain numbers.
    instruction = decode_instruction(program.encoded_at(state.leaf))
    function = f" {instruction.function.name.lower()}" if isinstance(instruction.function, IntEnum) else ""
    name, origin = instruction.opcode.name.lower() + function, program.instruction_at(state.leaf).origin or None
    summary = replace(summary, leaf=state.leaf, instruction=name, origin=origin)
    if not state.claimed:
        return summary
    # For a leaf of terms, the verdict compares digests, not elements.
    correct = verdict.correct if state.level is Level.CHUNKS else b""
    if truth is not None:
        correct = _element(truth, state)
    return replace(summary, element=state.element, committed=state.claimed[::-1].hex(), correct=correct[::-1].hex())
