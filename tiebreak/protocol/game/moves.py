"""The moves of the game: one type per kind, and the bodies in which they travel (SPEC sections 9 and 10).

A move is well-formed when it can be made at all: digests have 32 bytes, numbers are unsigned. Whether it is legal,
and whether it ties, is for `tiebreak.protocol.game.rules`. Kinds are the numbers of the phases in which the moves are
made; conceding, which either side may do in its turn, has the number of the phase to which it leads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Final

from tiebreak.protocol.codec import check_bytes, check_uint
from tiebreak.protocol.commitments.job import MAX_DESCENT_LEVELS
from tiebreak.protocol.commitments.log_tree import NO_WORD, WORD_BYTES
from tiebreak.protocol.commitments.records import ZERO_DIGEST
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.packing import Fields, Packed
from tiebreak.protocol.program.isa import MAX_INSTRUCTION_BYTES, MAX_RANK

MAX_SIBLINGS: Final = 64
"""No tree of the protocol is deeper: a run has fewer than 2^64 steps."""
MAX_NODES: Final = 1 << MAX_DESCENT_LEVELS
MAX_ACCUMULATOR_BYTES: Final = 97
MAX_OPENINGS: Final = 32
"""Tensors, or chunks, that one proof opens: 4 terms of 2 operands need 8."""
NO_SEAL: Final = bytes(32)
"""What stands where a move seals nothing."""


class Side(IntEnum):
    """The two parties of a game."""

    DEFENDER = 0
    CHALLENGER = 1

    @property
    def other(self) -> "Side":
        """The opponent."""
        return Side(1 - self)


class Phase(IntEnum):
    """What the next move is; the numbers are the message kinds."""

    DESCEND = 1
    SELECT = 2
    OPEN_STEPS = 3
    OPEN_VALUES = 4
    OPEN_TENSOR = 5
    OPEN_CHUNK = 6
    SELECT_ELEMENT = 7
    OPEN_TERMS = 8
    PROVE = 9
    OVER = 10

    @property
    def mover(self) -> Side:
        """Whose move it is. Nobody moves once the game is over; who concedes, only the turn tells."""
        if self is Phase.OVER:
            raise ValueError("nobody moves in a game that is over")
        challenger = (Phase.SELECT, Phase.SELECT_ELEMENT, Phase.PROVE)
        return Side.CHALLENGER if self in challenger else Side.DEFENDER


def _digests(name: str, values: tuple[bytes, ...], limit: int) -> None:
    if len(values) > limit:
        raise EncodingError(f"{name}: expected at most {limit} digests, got {len(values)}")
    for value in values:
        check_bytes(name, value, 32)


def _data(name: str, value: bytes, limit: int) -> None:
    if type(value) is not bytes or len(value) > limit:
        raise EncodingError(f"{name}: expected at most {limit} bytes, got something else")


@dataclass(frozen=True, slots=True, kw_only=True)
class Descend:
    """Defender: the nodes some levels below the current one, left to right."""

    KIND: ClassVar = Phase.DESCEND
    nodes: tuple[bytes, ...]

    def __post_init__(self) -> None:
        _digests("nodes", self.nodes, MAX_NODES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Select:
    """Challenger: the first of the shown nodes that it disputes, by its index, with its siblings up to the node above.

    seal: of the right answer (`tiebreak.protocol.game.seals`) where the move reaches a leaf that is judged, else zero.
    """

    KIND: ClassVar = Phase.SELECT
    node: bytes
    index: int
    siblings: tuple[bytes, ...]
    seal: bytes = NO_SEAL

    def __post_init__(self) -> None:
        check_bytes("node", self.node, 32)
        check_uint("index", self.index, 32)
        _digests("siblings", self.siblings, MAX_SIBLINGS)
        check_bytes("seal", self.seal, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSteps:
    """Defender: nodes of the tree over the records of the segment, whose last is the disputed checkpoint.

    Policy `logged`: also the fields of that record, which fix the segment's logs; else these are zero.
    """

    KIND: ClassVar = Phase.OPEN_STEPS
    nodes: tuple[bytes, ...]
    siblings: tuple[bytes, ...]
    state_root: bytes = ZERO_DIGEST
    loss_bits: int = 0
    log_root: bytes = ZERO_DIGEST

    def __post_init__(self) -> None:
        _digests("nodes", self.nodes, MAX_NODES)
        _digests("siblings", self.siblings, MAX_SIBLINGS)
        check_bytes("state root", self.state_root, 32)
        check_uint("loss bits", self.loss_bits, 32)
        check_bytes("log root", self.log_root, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenValues:
    """Defender: the record's fields and nodes of the step's value tree; siblings of the loss in its body half.

    Policy `logged`: also the step log, with its siblings under the segment's log root; else zero, and none.
    """

    KIND: ClassVar = Phase.OPEN_VALUES
    state_root: bytes
    loss_bits: int
    log_root: bytes
    nodes: tuple[bytes, ...]
    siblings: tuple[bytes, ...]
    step_log: bytes = ZERO_DIGEST
    log_siblings: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        check_bytes("state root", self.state_root, 32)
        check_uint("loss bits", self.loss_bits, 32)
        check_bytes("log root", self.log_root, 32)
        _digests("nodes", self.nodes, MAX_NODES)
        _digests("siblings", self.siblings, MAX_SIBLINGS)
        check_bytes("step log", self.step_log, 32)
        _digests("log siblings", self.log_siblings, MAX_SIBLINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTensor:
    """Defender: the instruction under the program root, and nodes of its output's chunk tree (`source`: none)."""

    KIND: ClassVar = Phase.OPEN_TENSOR
    instruction: bytes
    siblings: tuple[bytes, ...]
    nodes: tuple[bytes, ...]

    def __post_init__(self) -> None:
        _data("instruction", self.instruction, MAX_INSTRUCTION_BYTES)
        _digests("siblings", self.siblings, MAX_SIBLINGS)
        _digests("nodes", self.nodes, MAX_NODES)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenChunk:
    """Defender: the chunk's bytes; of a logged sum also its log word, with the siblings under the step log."""

    KIND: ClassVar = Phase.OPEN_CHUNK
    chunk: bytes
    word: bytes = NO_WORD
    siblings: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        _data("chunk", self.chunk, CHUNK_BYTES)
        check_bytes("log word", self.word, WORD_BYTES)
        _digests("siblings", self.siblings, MAX_SIBLINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectElement:
    """Challenger: which element of the chunk is wrong, with the chunk again.

    seal: of the right element, if it is judged at once (`tiebreak.protocol.game.seals`); zero if its terms are opened.
    """

    KIND: ClassVar = Phase.SELECT_ELEMENT
    index: int
    chunk: bytes
    seal: bytes = NO_SEAL

    def __post_init__(self) -> None:
        check_uint("index", self.index, 32)
        _data("chunk", self.chunk, CHUNK_BYTES)
        check_bytes("seal", self.seal, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTerms:
    """Defender: nodes of the element's accumulator tree, and its last leaf."""

    KIND: ClassVar = Phase.OPEN_TERMS
    nodes: tuple[bytes, ...]
    accumulator: bytes
    siblings: tuple[bytes, ...]

    def __post_init__(self) -> None:
        _digests("nodes", self.nodes, MAX_NODES)
        _data("accumulator", self.accumulator, MAX_ACCUMULATOR_BYTES)
        _digests("siblings", self.siblings, MAX_SIBLINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorOpening:
    """A tensor opened as the output of a body instruction: its siblings stand in the body half of the value tree."""

    value: int
    dtype: int
    dims: tuple[int, ...]
    chunk_root: bytes
    siblings: tuple[bytes, ...]

    def __post_init__(self) -> None:
        check_uint("value", self.value, 32)
        check_uint("dtype", self.dtype, 8)
        if len(self.dims) > MAX_RANK:
            raise EncodingError(f"dims: expected at most {MAX_RANK}, got {len(self.dims)}")
        for dim in self.dims:
            check_uint("dim", dim, 64)
        check_bytes("chunk root", self.chunk_root, 32)
        _digests("siblings", self.siblings, MAX_SIBLINGS)

    def pack(self) -> Packed:
        """As an array."""
        return [self.value, self.dtype, list(self.dims), self.chunk_root, list(self.siblings)]

    @classmethod
    def unpack(cls, name: str, item: object) -> "TensorOpening":
        """From an array."""
        f = Fields(name, item, 5)
        value, dtype = f.uint(32), f.uint(8)
        dims = f.list_of(lambda where, dim: check_uint(where, dim, 64), MAX_RANK)
        return cls(value=value, dtype=dtype, dims=dims, chunk_root=f.raw(32), siblings=f.digests(MAX_SIBLINGS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkOpening:
    """A chunk opened under the chunk root of the opened tensor with index `tensor`."""

    tensor: int
    chunk: int
    data: bytes
    siblings: tuple[bytes, ...]

    def __post_init__(self) -> None:
        check_uint("tensor", self.tensor, 8)
        check_uint("chunk index", self.chunk, 64)
        _data("chunk", self.data, CHUNK_BYTES)
        _digests("siblings", self.siblings, MAX_SIBLINGS)

    def pack(self) -> Packed:
        """As an array."""
        return [self.tensor, self.chunk, self.data, list(self.siblings)]

    @classmethod
    def unpack(cls, name: str, item: object) -> "ChunkOpening":
        """From an array."""
        f = Fields(name, item, 4)
        return cls(tensor=f.uint(8), chunk=f.uint(), data=f.data(CHUNK_BYTES), siblings=f.digests(MAX_SIBLINGS))


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWitness:
    """For `source` of state: record s-1 with its siblings, and the tensor id with the siblings of the state leaf."""

    step: int
    state_root: bytes
    loss_bits: int
    log_root: bytes
    record_siblings: tuple[bytes, ...]
    tensor_id: bytes
    siblings: tuple[bytes, ...]

    def __post_init__(self) -> None:
        check_uint("step", self.step, 64)
        check_bytes("state root", self.state_root, 32)
        check_uint("loss bits", self.loss_bits, 32)
        check_bytes("log root", self.log_root, 32)
        _digests("record siblings", self.record_siblings, MAX_SIBLINGS)
        check_bytes("tensor id", self.tensor_id, 32)
        _digests("siblings", self.siblings, MAX_SIBLINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorWitness:
    """For `source` of data and `commit`: the tensor id, and the siblings of the data leaf or in the body half."""

    tensor_id: bytes
    siblings: tuple[bytes, ...]

    def __post_init__(self) -> None:
        check_bytes("tensor id", self.tensor_id, 32)
        _digests("siblings", self.siblings, MAX_SIBLINGS)


Witness = StateWitness | TensorWitness | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prove:
    """Challenger: what the referee needs to recompute the leaf, and the salt that opens the seal of the answer."""

    KIND: ClassVar = Phase.PROVE
    instruction: bytes
    previous: bytes = b""
    siblings: tuple[bytes, ...] = ()
    tensors: tuple[TensorOpening, ...] = ()
    chunks: tuple[ChunkOpening, ...] = ()
    witness: Witness = None
    salt: bytes = bytes(32)

    def __post_init__(self) -> None:
        _data("instruction", self.instruction, MAX_INSTRUCTION_BYTES)
        _data("previous accumulator", self.previous, MAX_ACCUMULATOR_BYTES)
        _digests("siblings", self.siblings, MAX_SIBLINGS)
        if max(len(self.tensors), len(self.chunks)) > MAX_OPENINGS:
            raise EncodingError(f"expected at most {MAX_OPENINGS} tensors and chunks")
        check_bytes("salt", self.salt, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Concede:
    """Whoever is to move gives up."""

    KIND: ClassVar = Phase.OVER


Opening = Descend | OpenSteps | OpenValues | OpenTensor | OpenTerms
"""Moves that show nodes of a tree."""
Move = Opening | Select | OpenChunk | SelectElement | Prove | Concede


def kind_name(move: Move) -> str:
    """The kind of a move, for people and for tables."""
    return "concede" if isinstance(move, Concede) else move.KIND.name.lower()


def pack_body(move: Move) -> Packed:
    """The body of the message that carries a move."""
    match move:
        case Descend():
            return [list(move.nodes)]
        case Select():
            return [move.node, move.index, list(move.siblings), move.seal]
        case OpenSteps():
            return [list(move.nodes), list(move.siblings), move.state_root, move.loss_bits, move.log_root]
        case OpenValues():
            record = (move.state_root, move.loss_bits, move.log_root)
            return [*record, list(move.nodes), list(move.siblings), move.step_log, list(move.log_siblings)]
        case OpenTensor():
            return [move.instruction, list(move.siblings), list(move.nodes)]
        case OpenChunk():
            return [move.chunk, move.word, list(move.siblings)]
        case SelectElement():
            return [move.index, move.chunk, move.seal]
        case OpenTerms():
            return [list(move.nodes), move.accumulator, list(move.siblings)]
        case Prove():
            openings = ([t.pack() for t in move.tensors], [c.pack() for c in move.chunks])
            witness = _pack_witness(move.witness)
            return [move.instruction, move.previous, list(move.siblings), *openings, witness, move.salt]
    return []  # conceding takes no words


def unpack_body(kind: int, body: Any) -> Move:
    """The inverse of `pack_body`. Raises `EncodingError`."""
    if kind not in _READERS:
        raise EncodingError(f"expected a kind of message between 1 and 10, got {kind}")
    name, length, read = _READERS[kind]
    return read(Fields(name, body, length))


def _unpack_select(f: Fields) -> Select:
    node, index, siblings = f.raw(32), f.uint(32), f.digests(MAX_SIBLINGS)
    return Select(node=node, index=index, siblings=siblings, seal=f.raw(32))


def _unpack_steps(f: Fields) -> OpenSteps:
    nodes, siblings = f.digests(MAX_NODES), f.digests(MAX_SIBLINGS)
    return OpenSteps(nodes=nodes, siblings=siblings, state_root=f.raw(32), loss_bits=f.uint(32), log_root=f.raw(32))


def _unpack_values(f: Fields) -> OpenValues:
    state_root, loss_bits, log_root, nodes = f.raw(32), f.uint(32), f.raw(32), f.digests(MAX_NODES)
    return OpenValues(
        state_root=state_root,
        loss_bits=loss_bits,
        log_root=log_root,
        nodes=nodes,
        siblings=f.digests(MAX_SIBLINGS),
        step_log=f.raw(32),
        log_siblings=f.digests(MAX_SIBLINGS),
    )


def _unpack_chunk(f: Fields) -> OpenChunk:
    chunk, word = f.data(CHUNK_BYTES), f.raw(WORD_BYTES)
    return OpenChunk(chunk=chunk, word=word, siblings=f.digests(MAX_SIBLINGS))


def _unpack_tensor(f: Fields) -> OpenTensor:
    instruction, siblings = f.data(MAX_INSTRUCTION_BYTES), f.digests(MAX_SIBLINGS)
    return OpenTensor(instruction=instruction, siblings=siblings, nodes=f.digests(MAX_NODES))


def _unpack_element(f: Fields) -> SelectElement:
    return SelectElement(index=f.uint(32), chunk=f.data(CHUNK_BYTES), seal=f.raw(32))


def _unpack_terms(f: Fields) -> OpenTerms:
    nodes, accumulator = f.digests(MAX_NODES), f.data(MAX_ACCUMULATOR_BYTES)
    return OpenTerms(nodes=nodes, accumulator=accumulator, siblings=f.digests(MAX_SIBLINGS))


def _unpack_proof(f: Fields) -> Prove:
    instruction, previous = f.data(MAX_INSTRUCTION_BYTES), f.data(MAX_ACCUMULATOR_BYTES)
    return Prove(
        instruction=instruction,
        previous=previous,
        siblings=f.digests(MAX_SIBLINGS),
        tensors=f.list_of(TensorOpening.unpack, MAX_OPENINGS),
        chunks=f.list_of(ChunkOpening.unpack, MAX_OPENINGS),
        witness=_unpack_witness(*f.array()),
        salt=f.raw(32),
    )


def _pack_witness(witness: Witness) -> Packed:
    match witness:
        case None:
            return []
        case TensorWitness():
            return [witness.tensor_id, list(witness.siblings)]
        case StateWitness():
            record = (witness.step, witness.state_root, witness.loss_bits, witness.log_root)
            return [*record, list(witness.record_siblings), witness.tensor_id, list(witness.siblings)]


def _unpack_witness(name: str, value: Any) -> Witness:
    length = len(value) if isinstance(value, list) else None
    if length == 2:
        f = Fields(name, value, 2)
        return TensorWitness(tensor_id=f.raw(32), siblings=f.digests(MAX_SIBLINGS))
    if length == 7:
        f = Fields(name, value, 7)
        step, state_root, loss_bits, log_root = f.uint(), f.raw(32), f.uint(32), f.raw(32)
        return StateWitness(
            step=step,
            state_root=state_root,
            loss_bits=loss_bits,
            log_root=log_root,
            record_siblings=f.digests(MAX_SIBLINGS),
            tensor_id=f.raw(32),
            siblings=f.digests(MAX_SIBLINGS),
        )
    Fields(name, value, 0)
    return None


_READERS: Final[dict[int, tuple[str, int, Callable[[Fields], Move]]]] = {
    Phase.DESCEND: ("descend", 1, lambda f: Descend(nodes=f.digests(MAX_NODES))),
    Phase.SELECT: ("select", 4, _unpack_select),
    Phase.OPEN_STEPS: ("open steps", 5, _unpack_steps),
    Phase.OPEN_VALUES: ("open values", 7, _unpack_values),
    Phase.OPEN_TENSOR: ("open tensor", 3, _unpack_tensor),
    Phase.OPEN_CHUNK: ("open chunk", 3, _unpack_chunk),
    Phase.SELECT_ELEMENT: ("select element", 3, _unpack_element),
    Phase.OPEN_TERMS: ("open terms", 3, _unpack_terms),
    Phase.PROVE: ("prove", 7, _unpack_proof),
    Phase.OVER: ("concede", 0, lambda _: Concede()),
}
"""Kind of message -> its name, the length of its body, and what reads it."""
