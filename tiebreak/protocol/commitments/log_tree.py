"""The tree that commits to the rounding log and the late data of one step (SPEC sections 5.1 and 5.2)."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tiebreak.protocol.commitments.records import TensorData, chunk_count, identify_all
from tiebreak.protocol.hashing import CHUNK_BYTES, DIGEST_BYTES, PLAIN, Hasher
from tiebreak.protocol.program.isa import DType, Instruction, Slot, SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Direction, Entries, Integers, StepLog, sum_kind
from tiebreak.protocol.tags import EMPTY, Digest, Tag, tagged_hash
from tiebreak.protocol.trees import Nodes, Tree, depth_of, empty_root

WORD_BYTES: Final = 32
WORD_ELEMENTS: Final = CHUNK_BYTES // DType.F32.size
NO_WORD: Final = bytes(WORD_BYTES)
assert WORD_ELEMENTS * 2 == WORD_BYTES * 8, "a word has two bits for each element of a chunk"

_Bytes = NDArray[np.uint8]


class LogTree:
    """The tree of a step's rounding log, with its words and their proofs. Memory grows with the number of entries.

    `log` must have been checked. A value's subtree is as deep as its chunk tree; only nodes above entries are stored.
    """

    def __init__(self, program: Program, log: StepLog, *, hasher: Hasher = PLAIN) -> None:
        self._program = program
        self._values = {
            value: _Subtree(depth_of_value(program, value), entries, hasher) for value, entries in log.entries.items()
        }
        late = {
            value: _tensor(program.body[value], log.late[slot.name])
            for value in program.sources(SourceKind.LATE) if isinstance(slot := program.body[value].params, Slot)
        }  # fmt: skip
        self.late = dict(zip(late, identify_all([*late.values()], hasher=hasher), strict=True))
        """The id of each late tensor, by its source."""
        leaves = [
            self._values[value].root if value in self._values
            else self.late[value] if value in self.late
            else EMPTY if sum_kind(instruction) is None
            else empty_root(depth_of_value(program, value))
            for value, instruction in enumerate(program.body)
        ]  # fmt: skip
        self._top = Tree(leaves, program.half_depth)

    @property
    def root(self) -> Digest:
        """The step log: the digest that commits to the whole log of the step."""
        return self._top.root

    def word(self, value: int, chunk: int) -> bytes:
        """The log word of one chunk of a value: a 2-bit code for each element."""
        found = self._values.get(value)
        return NO_WORD if found is None else found.word(chunk)

    def proof(self, value: int, chunk: int) -> list[Digest]:
        """Siblings of a log word's leaf: first in its value's subtree, then up to the step log."""
        depth = depth_of_value(self._program, value)
        found = self._values.get(value)
        below = [empty_root(height) for height in range(depth)] if found is None else found.proof(chunk)
        return below + self.above(value)

    def above(self, value: int) -> list[Digest]:
        """Siblings of a value's leaf, up to the step log."""
        return self._top.proof(value)


def _tensor(source: Instruction, data: bytes) -> TensorData:
    return TensorData(dtype=source.dtype, shape=source.shape, data=memoryview(data))


class _Subtree(Nodes):
    """The subtree of one value: for each height, the ascending positions and digests of the nodes above entries."""

    def __init__(self, depth: int, entries: Entries, hasher: Hasher) -> None:
        self.depth = depth
        chunks, self._words = _words(entries)
        self._positions = [chunks]
        self._nodes = [_digests(Tag.LOG_WORD, self._words, hasher)]
        for height in range(depth):
            positions, nodes = _above(self._positions[-1], self._nodes[-1], height, hasher)
            self._positions.append(positions)
            self._nodes.append(nodes)

    @property
    def root(self) -> Digest:
        return Digest(self._nodes[-1].tobytes())

    def word(self, chunk: int) -> bytes:
        place = self._stored(0, chunk)
        return NO_WORD if place is None else bytes(self._words[place])

    def node(self, height: int, position: int) -> Digest:
        place = self._stored(height, position)
        return empty_root(height) if place is None else Digest(self._nodes[height][place].tobytes())

    def _stored(self, height: int, position: int) -> int | None:
        """The place at which a node is stored; None if there is no entry below it."""
        place = int(np.searchsorted(self._positions[height], position))
        held = place < len(self._positions[height]) and self._positions[height][place] == position
        return place if held else None


def depth_of_value(program: Program, value: int) -> int:
    """Depth of a value's chunk tree, and of its subtree in the log tree."""
    instruction = program.body[value]
    return depth_of(chunk_count(instruction.dtype, instruction.shape))


def _words(entries: Entries) -> tuple[Integers, _Bytes]:
    """Ascending numbers of the chunks that have an entry, and their words with shape (chunks, 32)."""
    chunks, first = np.unique(entries.elements // WORD_ELEMENTS, return_index=True)
    rows = np.repeat(np.arange(len(chunks)), np.diff(np.append(first, len(entries))))
    inside = entries.elements % WORD_ELEMENTS
    codes = np.where(entries.up, Direction.UP, Direction.DOWN).astype(np.uint8) << (2 * (inside % 4)).astype(np.uint8)
    words = np.zeros((len(chunks), WORD_BYTES), dtype=np.uint8)
    np.bitwise_or.at(words, (rows, inside // 4), codes)
    return chunks, words


def _above(positions: Integers, nodes: _Bytes, height: int, hasher: Hasher) -> tuple[Integers, _Bytes]:
    """The next level up. A sibling that is not stored is the root of an empty subtree."""
    parents, rows = np.unique(positions >> 1, return_inverse=True)
    pairs = np.tile(np.frombuffer(empty_root(height), dtype=np.uint8), (len(parents), 2))
    pairs.reshape(len(parents), 2, DIGEST_BYTES)[rows, positions & 1] = nodes
    return parents, _digests(Tag.NODE, pairs, hasher)


def _digests(tag: Tag, records: _Bytes, hasher: Hasher) -> _Bytes:
    """Tagged digests of the rows of `records`, with shape (rows, 32)."""
    found = hasher.record_level(tag, records.tobytes(), records.shape[1])
    return np.frombuffer(found, dtype=np.uint8).reshape(-1, DIGEST_BYTES)


def logs_tree(step_logs: Sequence[bytes]) -> Tree:
    """The tree over the step logs of a segment. Its root is the log root of the segment's records."""
    return Tree(step_logs)


def word_leaf(word: bytes) -> Digest:
    """The leaf of a log word; a word without entries has the empty leaf."""
    return EMPTY if word == NO_WORD else tagged_hash(Tag.LOG_WORD, word)


def code_in(word: bytes, place: int) -> Direction:
    """The direction that a log word gives for element `place` of its chunk. The unused code 3 counts as NONE."""
    code = word[place // 4] >> 2 * (place % 4) & 3
    return Direction(code) if code <= Direction.UP else Direction.NONE
