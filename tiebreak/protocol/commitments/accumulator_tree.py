"""The accumulator tree of one element (SPEC section 6), in memory that hardly grows with the number of terms.

It keeps the tree's levels above blocks of 4096 leaves, and the accumulator before each block. The inside of a block is
recomputed on request; the most recently used blocks are cached, since a descent stays within one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tiebreak.protocol.hashing import DIGEST_BYTES, PLAIN, Hasher
from tiebreak.protocol.program.accumulator import BLOCK_HEIGHT, BLOCK_LEAVES, ElementTerms, PartialSums
from tiebreak.protocol.program.isa import DType, Instruction
from tiebreak.protocol.tags import Digest, Tag
from tiebreak.protocol.trees import Nodes, depth_of, empty_root

BLOCKS_HELD: Final = 4


@dataclass(frozen=True, slots=True)
class _Block:
    """The encodings of a block's leaves, concatenated, and the levels of its subtree by height."""

    encodings: bytes
    width: int
    """Bytes of each encoding."""
    levels: list[bytes]


class AccumulatorTree(Nodes):
    """Like `trees.Tree`, over accumulators that are supplied block by block. `at` returns a leaf's content."""

    def __init__(self, count: int, block: Callable[[int], bytes], *, hasher: Hasher = PLAIN) -> None:
        """`count`: number of leaves. `block(n)` returns the encodings of leaves n * 4096 and up, all of one length."""
        if count < 1:
            raise ValueError(f"expected at least one leaf, got {count}")
        self.count = count
        self.depth = depth_of(count)
        self._encodings = block
        self._hasher = hasher
        self._height = min(self.depth, BLOCK_HEIGHT)
        """Height of the subtree above a block."""
        self._block = lru_cache(maxsize=BLOCKS_HELD)(self._make_block)
        self._levels = [b"".join(self._make_block(n).levels[-1] for n in range(-(-count // BLOCK_LEAVES)))]
        """The concatenated nodes that have at least one leaf below them, by height above the blocks."""
        for height in range(self._height, self.depth):
            self._levels.append(hasher.parent_level(self._levels[-1], empty_root(height)))

    @classmethod
    def of(
        cls,
        instruction: Instruction,
        index: int,
        tensors: Sequence[bytes | memoryview],
        dtypes: Sequence[DType],
        *,
        hasher: Hasher = PLAIN,
    ) -> "AccumulatorTree":
        """Build the tree for element `index` of a reduction from the data and dtype of each operand's value."""
        sums = PartialSums(ElementTerms(instruction, index, tensors, dtypes))
        return cls(sums.count, sums.block, hasher=hasher)

    @property
    def root(self) -> Digest:
        return Digest(self._levels[-1])

    @property
    def last(self) -> bytes:
        """The encoded accumulator after all terms."""
        return self.at(self.count - 1)

    def at(self, leaf: int) -> bytes:
        """The encoded accumulator at a leaf."""
        if not 0 <= leaf < self.count:
            raise ValueError(f"expected a leaf below {self.count}, got {leaf}")
        number, place = divmod(leaf, BLOCK_LEAVES)
        found = self._block(number)
        return found.encodings[place * found.width : (place + 1) * found.width]

    def block(self, number: int) -> list[bytes]:
        """The encoded accumulators of the leaves from number * 4096: 4096 of them, or fewer in the last block."""
        found = self._block(number)
        return [found.encodings[at : at + found.width] for at in range(0, len(found.encodings), found.width)]

    def node(self, height: int, position: int) -> Digest:
        if not (0 <= height <= self.depth and 0 <= position < 1 << (self.depth - height)):
            raise ValueError(f"no node at height {height}, position {position} in a tree of depth {self.depth}")
        if position << height >= self.count:
            return empty_root(height)
        if height >= self._height:
            level = self._levels[height - self._height]
        else:
            above = self._height - height
            level = self._block(position >> above).levels[height]
            position &= (1 << above) - 1
        return Digest(level[position * DIGEST_BYTES : (position + 1) * DIGEST_BYTES])

    def _make_block(self, number: int) -> _Block:
        encodings = self._encodings(number)
        leaves = min(BLOCK_LEAVES, self.count - number * BLOCK_LEAVES)
        if not encodings or len(encodings) % leaves:
            raise ValueError(f"expected {leaves} encodings of one length, got {len(encodings)} bytes")
        width = len(encodings) // leaves
        levels = [self._hasher.record_level(Tag.ACCUMULATOR, encodings, width)]
        for height in range(self._height):
            levels.append(self._hasher.parent_level(levels[-1], empty_root(height)))
        return _Block(encodings, width, levels)
