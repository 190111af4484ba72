"""The moves of the game: one type per kind, and the message bodies that carry them (SPEC sections 9 and 10).

Each move declares its fields once, in wire order. The body of its message, the checks of its values and the calldata of
the board's function with the same name all follow from that declaration (`tiebreak.protocol.packing`).

A move is well-formed if it can be constructed: digests have 32 bytes, numbers are unsigned. Whether it is legal, and
whether the values it opens tie to those above them, is decided by `tiebreak.protocol.game.rules`. The number of a kind
is that of the phase in which the move is made. Either side may concede in its turn, so conceding uses the number of the
phase it leads to.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, ClassVar, Final, get_args

from tiebreak.protocol import packing
from tiebreak.protocol.commitments.job import MAX_DESCENT_LEVELS
from tiebreak.protocol.commitments.log_tree import NO_WORD, WORD_BYTES
from tiebreak.protocol.commitments.records import ZERO_DIGEST
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.packing import U8, U32, U64, Bytes32, Data, ListOf, OneOf, Raw, Record, camel_case
from tiebreak.protocol.program.isa import MAX_INSTRUCTION_BYTES, MAX_RANK

MAX_SIBLINGS: Final = 64
"""No tree of the protocol is deeper, since a run has fewer than 2^64 steps."""
MAX_NODES: Final = 1 << MAX_DESCENT_LEVELS
MAX_ACCUMULATOR_BYTES: Final = 97
MAX_OPENINGS: Final = 32
"""Most tensors, or chunks, that one proof opens; 4 terms of 2 operands need 8."""
NO_SEAL: Final = bytes(32)
"""The seal field of a move that seals nothing."""


class Side(IntEnum):
    """The two parties of a game."""

    DEFENDER = 0
    CHALLENGER = 1

    @property
    def other(self) -> "Side":
        return Side(1 - self)


class Phase(IntEnum):
    """The kind of move expected next. The numbers are the message kinds."""

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
        """The side to move. Raises `ValueError` for OVER, also the kind of `Concede`, which either side may send."""
        if self is Phase.OVER:
            raise ValueError("nobody moves in a game that is over")
        return Side.CHALLENGER if self in (Phase.SELECT, Phase.SELECT_ELEMENT, Phase.PROVE) else Side.DEFENDER


Nodes = Annotated[tuple[bytes, ...], ListOf(Raw(32), MAX_NODES)]
Siblings = Annotated[tuple[bytes, ...], ListOf(Raw(32), MAX_SIBLINGS)]
InstructionBytes = Annotated[bytes, Data(MAX_INSTRUCTION_BYTES)]
ChunkBytes = Annotated[bytes, Data(CHUNK_BYTES)]
AccumulatorBytes = Annotated[bytes, Data(MAX_ACCUMULATOR_BYTES)]


class MoveRecord(Record):
    """Base class of moves: `kind` in the header of a class is the number that its messages carry."""

    KIND: ClassVar[Phase]
    """The phase in which it is legal; OVER: in all."""


class Descend(MoveRecord, kind=Phase.DESCEND):
    """Defender: shows the nodes some levels below the current one, from left to right."""

    nodes: Nodes


class Select(MoveRecord, kind=Phase.SELECT):
    """Challenger: picks the first shown node that it disputes, by index, with its siblings up to the node above.

    `seal` commits to the right answer (`tiebreak.protocol.game.seals`) if the node is a leaf that is judged, else zero.
    """

    node: Bytes32
    index: U32
    siblings: Siblings
    seal: Bytes32 = NO_SEAL


class OpenSteps(MoveRecord, kind=Phase.OPEN_STEPS):
    """Defender: shows nodes of the tree over the segment's records; the last record is the disputed checkpoint's.

    Under policy `logged` it adds the fields of that record, which fix the segment's logs; otherwise they are zero.
    """

    nodes: Nodes
    siblings: Siblings
    state_root: Bytes32 = ZERO_DIGEST
    loss_bits: U32 = 0
    log_root: Bytes32 = ZERO_DIGEST


class OpenValues(MoveRecord, kind=Phase.OPEN_VALUES):
    """Defender: shows the record's fields, nodes of the step's value tree, and the loss's siblings in its body half.

    Under policy `logged` it adds the step log and its siblings under the segment's log root; otherwise they are zero.
    """

    state_root: Bytes32
    loss_bits: U32
    log_root: Bytes32
    nodes: Nodes
    siblings: Siblings
    step_log: Bytes32 = ZERO_DIGEST
    log_siblings: Siblings = ()


class OpenTensor(MoveRecord, kind=Phase.OPEN_TENSOR):
    """Defender: shows the instruction under the program root, and nodes of its chunk tree (none for `source`)."""

    instruction: InstructionBytes
    siblings: Siblings
    nodes: Nodes


class OpenChunk(MoveRecord, kind=Phase.OPEN_CHUNK):
    """Defender: shows the chunk's bytes and, for a logged sum, the log word with its siblings under the step log."""

    chunk: ChunkBytes
    word: Annotated[bytes, Raw(WORD_BYTES)] = NO_WORD
    siblings: Siblings = ()


class SelectElement(MoveRecord, kind=Phase.SELECT_ELEMENT):
    """Challenger: names the wrong element of the chunk, and repeats the chunk.

    `seal` commits to the right element (`tiebreak.protocol.game.seals`); it is zero if the element's terms come next.
    """

    index: U32
    chunk: ChunkBytes
    seal: Bytes32 = NO_SEAL


class OpenTerms(MoveRecord, kind=Phase.OPEN_TERMS):
    """Defender: shows nodes of the accumulator tree of the element selected, which it names, and its last leaf."""

    step: U64
    value: U32
    element: U64
    nodes: Nodes
    accumulator: AccumulatorBytes
    siblings: Siblings


class TensorOpening(Record):
    """A tensor opened as the output of a body instruction. Its siblings lie in the body half of the value tree."""

    value: U32
    dtype: U8
    dims: Annotated[tuple[int, ...], ListOf(packing.Uint(64), MAX_RANK)]
    chunk_root: Bytes32
    siblings: Siblings


class ChunkOpening(Record):
    """A chunk opened under the chunk root of the opened tensor with index `tensor`.

    The first of a tensor has all siblings, any other only those below the first's path: see `referee.shared_from`.
    """

    tensor: U8
    chunk_index: U64
    data: ChunkBytes
    siblings: Siblings


class StateWitness(Record):
    """Witness for a `source` of state: record s-1 and a tensor id, each with its siblings."""

    step: U64
    state_root: Bytes32
    loss_bits: U32
    log_root: Bytes32
    record_siblings: Siblings
    tensor_id: Bytes32
    siblings: Siblings


class TensorWitness(Record):
    """Witness for a `source` of data, or for a `commit`: a tensor id with its siblings (data tree, or body half)."""

    tensor_id: Bytes32
    siblings: Siblings


Witness = StateWitness | TensorWitness | None


class Prove(MoveRecord, kind=Phase.PROVE):
    """Challenger: gives the referee all it needs to recompute the leaf, and the salt that opens the sealed answer."""

    instruction: InstructionBytes
    previous: AccumulatorBytes = b""
    siblings: Siblings = ()
    tensors: Annotated[tuple[TensorOpening, ...], ListOf(OneOf((TensorOpening,)), MAX_OPENINGS)] = ()
    chunks: Annotated[tuple[ChunkOpening, ...], ListOf(OneOf((ChunkOpening,)), MAX_OPENINGS)] = ()
    witness: Annotated[Witness, OneOf((StateWitness, TensorWitness), optional=True)] = None
    salt: Bytes32 = bytes(32)


class Concede(MoveRecord, kind=Phase.OVER):
    """The side to move gives up."""


Opening = Descend | OpenSteps | OpenValues | OpenTensor | OpenTerms
"""Moves that show nodes of a tree."""
Move = Opening | Select | OpenChunk | SelectElement | Prove | Concede
MOVES: Final[dict[int, type[Move]]] = {move.KIND: move for move in get_args(Move)}
"""The move type for each kind."""


def kind_name(move: Move | type[Move]) -> str:
    return "concede" if move.KIND is Phase.OVER else move.KIND.name.lower()


@dataclass(frozen=True, slots=True)
class AnyMove(packing.FieldType):
    """A move of any kind, packed as the number of its kind and its body."""

    def check(self, name: str, value: Any) -> None:
        if type(value) not in MOVES.values():
            raise EncodingError(f"{name}: expected a move, got {type(value).__name__}")

    def pack(self, value: Any) -> packing.Packed:
        return int(value.KIND), value.pack()

    def unpack(self, name: str, item: Any) -> Any:
        fields = packing.Fields(name, item, 2)
        return unpack_move(fields.take(packing.Uint(8)), fields.next()[1])

    def to_json(self, value: Any) -> Any:
        return {"kind": camel_case(kind_name(value)), **value.to_json()}


def unpack_move(kind: int, body: Any) -> Move:
    """Decode the move with this kind and message body. Raises `EncodingError`."""
    if kind not in MOVES:
        raise EncodingError(f"expected a kind of message between 1 and 10, got {kind}")
    move = MOVES[kind]
    return move.unpack(move.__name__, body)
