"""The moves of the game: one type per kind, and the bodies in which they travel (SPEC sections 9 and 10).

Each move declares its fields once, in the order in which they travel: the body of its message, the checks of its values
and the calldata of the board's function of the same name follow from the declaration (`tiebreak.protocol.packing`).

A move is well-formed when it can be made at all: digests have 32 bytes, numbers are unsigned. Whether it is legal,
and whether it ties, is for `tiebreak.protocol.game.rules`. Kinds are the numbers of the phases in which the moves are
made; conceding, which either side may do in its turn, has the number of the phase to which it leads.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, ClassVar, Final, get_args

from tiebreak.protocol.commitments.job import MAX_DESCENT_LEVELS
from tiebreak.protocol.commitments.log_tree import NO_WORD, WORD_BYTES
from tiebreak.protocol.commitments.records import ZERO_DIGEST
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.packing import U8, U32, U64, Bytes32, Data, ListOf, OneOf, Raw, Record, Uint
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


Nodes = Annotated[tuple[bytes, ...], ListOf(Raw(32), MAX_NODES)]
Siblings = Annotated[tuple[bytes, ...], ListOf(Raw(32), MAX_SIBLINGS)]
InstructionBytes = Annotated[bytes, Data(MAX_INSTRUCTION_BYTES)]
ChunkBytes = Annotated[bytes, Data(CHUNK_BYTES)]
AccumulatorBytes = Annotated[bytes, Data(MAX_ACCUMULATOR_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Descend(Record):
    """Defender: the nodes some levels below the current one, left to right."""

    KIND: ClassVar = Phase.DESCEND
    nodes: Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(Record):
    """Challenger: the first of the shown nodes that it disputes, by its index, with its siblings up to the node above.

    seal: of the right answer (`tiebreak.protocol.game.seals`) where the move reaches a leaf that is judged, else zero.
    """

    KIND: ClassVar = Phase.SELECT
    node: Bytes32
    index: U32
    siblings: Siblings
    seal: Bytes32 = NO_SEAL


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSteps(Record):
    """Defender: nodes of the tree over the records of the segment, whose last is the disputed checkpoint.

    Policy `logged`: also the fields of that record, which fix the segment's logs; else these are zero.
    """

    KIND: ClassVar = Phase.OPEN_STEPS
    nodes: Nodes
    siblings: Siblings
    state_root: Bytes32 = ZERO_DIGEST
    loss_bits: U32 = 0
    log_root: Bytes32 = ZERO_DIGEST


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenValues(Record):
    """Defender: the record's fields and nodes of the step's value tree; siblings of the loss in its body half.

    Policy `logged`: also the step log, with its siblings under the segment's log root; else zero, and none.
    """

    KIND: ClassVar = Phase.OPEN_VALUES
    state_root: Bytes32
    loss_bits: U32
    log_root: Bytes32
    nodes: Nodes
    siblings: Siblings
    step_log: Bytes32 = ZERO_DIGEST
    log_siblings: Siblings = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTensor(Record):
    """Defender: the instruction under the program root, and nodes of its output's chunk tree (`source`: none)."""

    KIND: ClassVar = Phase.OPEN_TENSOR
    instruction: InstructionBytes
    siblings: Siblings
    nodes: Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenChunk(Record):
    """Defender: the chunk's bytes; of a logged sum also its log word, with the siblings under the step log."""

    KIND: ClassVar = Phase.OPEN_CHUNK
    chunk: ChunkBytes
    word: Annotated[bytes, Raw(WORD_BYTES)] = NO_WORD
    siblings: Siblings = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectElement(Record):
    """Challenger: which element of the chunk is wrong, with the chunk again.

    seal: of the right element, if it is judged at once (`tiebreak.protocol.game.seals`); zero if its terms are opened.
    """

    KIND: ClassVar = Phase.SELECT_ELEMENT
    index: U32
    chunk: ChunkBytes
    seal: Bytes32 = NO_SEAL


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTerms(Record):
    """Defender: nodes of the element's accumulator tree, and its last leaf."""

    KIND: ClassVar = Phase.OPEN_TERMS
    nodes: Nodes
    accumulator: AccumulatorBytes
    siblings: Siblings


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorOpening(Record):
    """A tensor opened as the output of a body instruction: its siblings stand in the body half of the value tree."""

    value: U32
    dtype: U8
    dims: Annotated[tuple[int, ...], ListOf(Uint(64), MAX_RANK)]
    chunk_root: Bytes32
    siblings: Siblings


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkOpening(Record):
    """A chunk opened under the chunk root of the opened tensor with index `tensor`."""

    tensor: U8
    chunk_index: U64
    data: ChunkBytes
    siblings: Siblings


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWitness(Record):
    """For `source` of state: record s-1 with its siblings, and the tensor id with the siblings of the state leaf."""

    step: U64
    state_root: Bytes32
    loss_bits: U32
    log_root: Bytes32
    record_siblings: Siblings
    tensor_id: Bytes32
    siblings: Siblings


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorWitness(Record):
    """For `source` of data and `commit`: the tensor id, and the siblings of the data leaf or in the body half."""

    tensor_id: Bytes32
    siblings: Siblings


Witness = StateWitness | TensorWitness | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prove(Record):
    """Challenger: what the referee needs to recompute the leaf, and the salt that opens the seal of the answer."""

    KIND: ClassVar = Phase.PROVE
    instruction: InstructionBytes
    previous: AccumulatorBytes = b""
    siblings: Siblings = ()
    tensors: Annotated[tuple[TensorOpening, ...], ListOf(OneOf((TensorOpening,)), MAX_OPENINGS)] = ()
    chunks: Annotated[tuple[ChunkOpening, ...], ListOf(OneOf((ChunkOpening,)), MAX_OPENINGS)] = ()
    witness: Annotated[Witness, OneOf((StateWitness, TensorWitness), optional=True)] = None
    salt: Bytes32 = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Concede(Record):
    """The side to move gives up."""

    KIND: ClassVar = Phase.OVER


Opening = Descend | OpenSteps | OpenValues | OpenTensor | OpenTerms
"""Moves that show nodes of a tree."""
Move = Opening | Select | OpenChunk | SelectElement | Prove | Concede
MOVES: Final[dict[int, type[Move]]] = {move.KIND: move for move in get_args(Move)}
"""By kind."""


def kind_name(move: Move | type[Move]) -> str:
    """The kind of a move, for people and for tables."""
    return "concede" if move.KIND is Phase.OVER else move.KIND.name.lower()


def unpack_move(kind: int, body: Any) -> Move:
    """The move whose message has this kind and body. Raises `EncodingError`."""
    if kind not in MOVES:
        raise EncodingError(f"expected a kind of message between 1 and 10, got {kind}")
    move = MOVES[kind]
    return move.unpack(move.__name__, body)
