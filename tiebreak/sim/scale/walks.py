"""The moves of a dispute before it is played: how many, and what each has to carry, from the place of the lie alone.

A `Place` says where the two parties differ. From it follow the depths of all trees on the way, so the kind, the nodes,
the siblings and the openings of every move (SPEC section 10). `moves_of` writes them down with stand-ins for all
digests and data, in the encodings of `protocol`, so that bytes of messages and of calldata are counted and not
estimated: they are those of a played game, move by move.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from tiebreak.protocol.chain.calls import move_call
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Head, Job
from tiebreak.protocol.commitments.keys import SIGNATURE_BYTES
from tiebreak.protocol.commitments.records import chunk_count, chunk_length
from tiebreak.protocol.game.messages import Message
from tiebreak.protocol.game.moves import (
    NO_SEAL,
    ChunkOpening,
    Descend,
    Move,
    OpenChunk,
    Opening,
    OpenSteps,
    OpenTensor,
    OpenTerms,
    OpenValues,
    Prove,
    Select,
    SelectElement,
    StateWitness,
    TensorOpening,
    TensorWitness,
    Witness,
)
from tiebreak.protocol.game.rules import GameState, Level
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.packing import pack
from tiebreak.protocol.program.accumulator import encode, initial
from tiebreak.protocol.program.accumulator import kind_of as accumulator_kind
from tiebreak.protocol.program.isa import TERMS_PER_LEAF, DType, Instruction, Opcode, Slot, SourceKind
from tiebreak.protocol.program.program import Program, encode_instruction
from tiebreak.protocol.program.reference import needed_elements
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import depth_of

FILLER = Digest(b"\xa5" * 32)
"""Stands for every digest and for data. Digests have next to no zero bytes, which are cheaper than others."""
ONE = 0x3F800000


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """What a value is that an instruction reads."""

    value: int
    dtype: DType
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a lie stands, and what the walk to it goes through.

    segment: steps of the disputed checkpoint's segment. target: the instruction at the leaf of the value tree, whose
    operands (by value) are `reads`. leaf: of the value tree, for a commit the one in its right half. term_leaf: the
    leaf of the accumulator tree, of an element that has one.
    """

    levels: int
    checkpoints: int
    segment: int
    half_depth: int
    state_depth: int
    data_depth: int
    target: Instruction
    reads: tuple[Operand, ...]
    step: int
    interval: int
    leaf: int
    element: int = 0
    term_leaf: int = 0
    loss_bits: int = 0x40000000

    @property
    def has_terms(self) -> bool:
        """Whether the element has an accumulator tree."""
        return self.target.is_reduction and self.target.terms > TERMS_PER_LEAF

    @property
    def chunk_depth(self) -> int:
        """Of the disputed value."""
        return depth_of(chunk_count(self.target.dtype, self.target.shape))

    @property
    def term_depth(self) -> int:
        """Of the accumulator tree; 0 if there is none."""
        return depth_of(-(-self.target.terms // TERMS_PER_LEAF)) if self.has_terms else 0


def place_of(state: GameState, program: Program, loss_bits: int) -> Place:
    """The place at which a game ended, or stands at its last move."""
    job, leaf = state.job, state.leaf
    target = program.instruction_at(leaf)
    body = program.body
    reads = tuple(Operand(value=o.value, dtype=body[o.value].dtype, shape=body[o.value].shape) for o in target.operands)
    return Place(
        levels=job.descent_levels,
        checkpoints=job.checkpoints,
        segment=job.segment_steps(state.checkpoint),
        half_depth=job.half_depth,
        state_depth=job.state_depth,
        data_depth=job.data_depth,
        target=target,
        reads=reads,
        step=state.step,
        interval=job.checkpoint_interval,
        leaf=leaf,
        element=state.element,
        term_leaf=state.position if state.level is Level.TERMS else 0,
        loss_bits=loss_bits,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One move and where in the walk it is made. `first`: at the root of its tree; `last`: it reaches a leaf."""

    move: Move
    level: Level
    first: bool = False
    last: bool = False

    target: Instruction | None = None
    """Of a proof."""

    @property
    def kind(self) -> str:
        """What its gas depends on beside its size: the kind of move, for a selection where it is made."""
        if self.target is not None:
            return proof_kind(self.target)
        return kind_of(self.move, self.level, first=self.first, last=self.last)


def kind_of(move: Move, level: Level, *, first: bool, last: bool) -> str:
    """The names of kinds of moves, as fits and measurements use them."""
    name = move.KIND.name.lower()
    if isinstance(move, Select):
        return " ".join([name, level.name.lower(), *(["first"] if first else []), *(["last"] if last else [])])
    if isinstance(move, SelectElement) and move.seal != NO_SEAL:
        return f"{name} sealed"
    if isinstance(move, Descend):
        return f"{name} first" if first and level is Level.RUN else name
    return name


def proof_kind(target: Instruction) -> str:
    """Kinds of proofs differ by what the referee computes: the opcode and its function."""
    return f"prove {target.opcode.name.lower()} {target.function}"


def moves_of(place: Place) -> tuple[Planned, ...]:
    """Every move from the challenge to the proof, if both parties play on and the defender's ties hold."""
    return tuple(_walk(place))


def _walk(place: Place) -> Iterator[Planned]:
    levels, half = place.levels, place.half_depth
    run, steps = depth_of(place.checkpoints), depth_of(place.segment)
    yield from _descent(levels, Level.RUN, run, opened=False)
    if place.segment > 1:
        nodes = _digests(1 << min(levels, steps))
        yield Planned(move=OpenSteps(nodes=nodes, siblings=_digests(steps)), level=Level.RUN)
        yield from _descent(levels, Level.STEPS, steps)
    yield Planned(
        move=OpenValues(
            state_root=FILLER,
            loss_bits=place.loss_bits,
            log_root=Digest(bytes(32)),
            nodes=_digests(1 << min(levels, half + 1)),
            siblings=_digests(half),
        ),
        level=Level.STEPS,
    )
    yield from _descent(levels, Level.VALUES, half + 1)
    if place.target.opcode != Opcode.COMMIT:
        yield from _value(place)
    yield Planned(move=_proof(place), level=Level.TERMS if place.has_terms else Level.CHUNKS, target=place.target)


def _value(place: Place) -> Iterator[Planned]:
    levels, target, depth = place.levels, place.target, place.chunk_depth
    is_source = target.opcode == Opcode.SOURCE
    nodes = () if is_source else _digests(1 << min(levels, depth))
    instruction = encode_instruction(target)
    siblings = _digests(place.half_depth + 1)
    yield Planned(move=OpenTensor(instruction=instruction, siblings=siblings, nodes=nodes), level=Level.VALUES)
    if is_source:
        return
    yield from _descent(levels, Level.CHUNKS, depth)
    per_chunk = CHUNK_BYTES // target.dtype.size
    chunk = _data(chunk_length(target.dtype, target.shape, place.element // per_chunk))
    yield Planned(move=OpenChunk(chunk=chunk), level=Level.CHUNKS)
    index, seal = place.element % per_chunk, NO_SEAL if place.has_terms else FILLER
    yield Planned(move=SelectElement(index=index, chunk=chunk, seal=seal), level=Level.CHUNKS)
    if place.has_terms:
        depth = place.term_depth
        nodes = _digests(1 << min(levels, depth))
        terms = OpenTerms(nodes=nodes, accumulator=_data(accumulator_bytes(place)), siblings=_digests(depth))
        yield Planned(move=terms, level=Level.CHUNKS)
        yield from _descent(levels, Level.TERMS, depth)


def _descent(levels: int, level: Level, depth: int, *, opened: bool = True) -> Iterator[Planned]:
    """Down one tree. Whoever opened it has shown its first nodes (`opened`)."""
    height = depth
    while height:
        shown, first = min(levels, height), height == depth
        if not (first and opened):
            yield Planned(move=Descend(nodes=_digests(1 << shown)), level=level, first=first)
        height -= shown
        sealed = not height and level in (Level.VALUES, Level.TERMS)
        seal = FILLER if sealed else NO_SEAL
        select = Select(node=FILLER, index=(1 << shown) - 1, siblings=_digests(shown), seal=seal)
        yield Planned(move=select, level=level, first=first, last=not height)


def _proof(place: Place) -> Prove:
    instruction, half = encode_instruction(place.target), place.half_depth
    match place.target.opcode:
        case Opcode.COMMIT:
            witness = TensorWitness(tensor_id=FILLER, siblings=_digests(half))
            return Prove(instruction=instruction, siblings=_digests(half + 1), witness=witness, salt=FILLER)
        case Opcode.SOURCE:
            return Prove(instruction=instruction, witness=_source_witness(place), salt=FILLER)
    tensors, chunks = _openings(place)
    proof = Prove(instruction=instruction, tensors=tensors, chunks=chunks, salt=FILLER)
    if not place.term_leaf:
        return proof
    return replace(proof, previous=_data(accumulator_bytes(place)), siblings=_digests(place.term_depth))


def accumulator_bytes(place: Place) -> int:
    """Of each accumulator of the element."""
    return len(encode(initial(accumulator_kind(place.target, place.reads[0].dtype))))


def _source_witness(place: Place) -> Witness:
    params = place.target.params
    if not isinstance(params, Slot):
        return None
    if place.target.function == SourceKind.DATA:
        return TensorWitness(tensor_id=FILLER, siblings=_digests(place.data_depth))
    in_run = (place.step - 1) % place.interval == 0
    depth = depth_of(place.checkpoints) if in_run else depth_of(place.segment)
    return StateWitness(
        step=place.step - 1,
        state_root=FILLER,
        loss_bits=0 if place.step == 1 else place.loss_bits,
        log_root=Digest(bytes(32)),
        record_siblings=_digests(0 if place.step == 1 else depth),
        tensor_id=FILLER,
        siblings=_digests(place.state_depth),
    )


def _openings(place: Place) -> tuple[tuple[TensorOpening, ...], tuple[ChunkOpening, ...]]:
    """As `referee.build_openings`, without data: what is read where the data say is taken to be at 1."""
    dtypes = [operand.dtype for operand in place.reads]

    def read(operand: int, _: int) -> int:
        return ONE if dtypes[operand] == DType.F32 else 1

    leaf = place.term_leaf if place.has_terms else None
    by_value = {operand.value: operand for operand in place.reads}
    places = set()
    for number, where in needed_elements(place.target, place.element, leaf, read, dtypes):
        operand = place.reads[number]
        places.add((operand.value, where * operand.dtype.size // CHUNK_BYTES))
    values = sorted({value for value, _ in places})
    tensors = tuple(
        TensorOpening(
            value=value,
            dtype=int(by_value[value].dtype),
            dims=by_value[value].shape,
            chunk_root=FILLER,
            siblings=_digests(place.half_depth),
        )
        for value in values
    )
    return tensors, tuple(_chunk_opening(values.index(v), by_value[v], chunk) for v, chunk in sorted(places))


def _chunk_opening(tensor: int, operand: Operand, chunk: int) -> ChunkOpening:
    depth = depth_of(chunk_count(operand.dtype, operand.shape))
    data = _data(chunk_length(operand.dtype, operand.shape, chunk))
    return ChunkOpening(tensor=tensor, chunk=chunk, data=data, siblings=_digests(depth))


def _digests(count: int) -> tuple[Digest, ...]:
    return (FILLER,) * count


def _data(length: int) -> bytes:
    return FILLER[:1] * length


# ---------------------------------------------------------------- what moves weigh


def shape_of(move: Move) -> tuple[int, int]:
    """Nodes that a move shows, and siblings of everything that it opens."""
    nodes = len(move.nodes) if isinstance(move, Opening) else 0
    siblings = len(getattr(move, "siblings", ()))
    if isinstance(move, Prove):
        siblings += sum(len(t.siblings) for t in move.tensors) + sum(len(c.siblings) for c in move.chunks)
        siblings += len(move.witness.siblings) if move.witness is not None else 0
        siblings += len(move.witness.record_siblings) if isinstance(move.witness, StateWitness) else 0
    return nodes, siblings


def wire_bytes(moves: Sequence[Planned]) -> list[int]:
    """Bytes of each move as a signed message (SPEC section 9)."""
    return [_wire(number, planned.move) for number, planned in enumerate(moves)]


def _wire(sequence: int, move: Move) -> int:
    message = Message(job_id=FILLER, game_id=FILLER, sequence=sequence, previous=FILLER, move=move)
    return len(pack([message.encode(), bytes(SIGNATURE_BYTES)]))


def calldata_of(planned: Planned, place: Place) -> bytes:
    """The transaction's calldata: a proof shows again what was fixed on the way (SPEC section 11)."""
    return move_call(_state_before(planned, place), planned.move).data


def _state_before(planned: Planned, place: Place) -> GameState:
    """As much of the game as the calldata shows."""
    state = GameState(job=JOB, head=HEAD, game_id=FILLER, defender_rest=0, challenger_rest=0, last=0)
    if not isinstance(planned.move, Prove):
        return state
    is_commit, is_source = (place.target.opcode == code for code in (Opcode.COMMIT, Opcode.SOURCE))
    return replace(
        state,
        steps_root=FILLER,
        body_root=FILLER,
        value_seal=FILLER,
        instruction=b"" if is_commit else FILLER,
        accumulator_root=FILLER if place.has_terms else b"",
        seal=b"" if is_commit or is_source else FILLER,
    )


_PARTY = Address(FILLER[:20])
JOB = Job(
    client=_PARTY,
    trainer=_PARTY,
    program_root=FILLER,
    body_count=1,
    state_count=1,
    data_count=0,
    initial_state_root=FILLER,
    data_root=FILLER,
    steps=1,
    checkpoint_interval=1,
    reward=0,
    trainer_stake=0,
    challenger_stake=0,
    challenge_window=1,
    clock=1,
    replay_time=0,
    descent_levels=1,
    nonce=0,
)
"""Stands for any job: none of its fields is in a move's calldata."""
HEAD = Head(job_id=JOB.id, count=1, run_root=FILLER)
