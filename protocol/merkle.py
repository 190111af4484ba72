"""The one kind of tree (SPEC section 2): perfect, binary, padded with the empty leaf.

Numbered plan of `verify`: (1) the position lies in the tree, (2) the proof has as many siblings as the tree
is deep, each of 32 bytes, (3) folding leads to the root.
"""

from collections.abc import Sequence
from functools import cache

from protocol.errors import ProofError
from protocol.tags import EMPTY, Digest, Tag, tagged_hash


def depth_of(leaves: int) -> int:
    """Depth of the tree over `leaves` >= 1 leaves: ceil(log2(leaves))."""
    if leaves < 1:
        raise ValueError(f"expected at least one leaf, got {leaves}")
    return (leaves - 1).bit_length()


def parent(left: bytes, right: bytes) -> Digest:
    """The node above two digests."""
    return tagged_hash(Tag.NODE, left, right)


@cache
def empty_root(depth: int) -> Digest:
    """Root of the tree of this depth whose leaves are all empty."""
    return EMPTY if depth == 0 else parent(empty_root(depth - 1), empty_root(depth - 1))


def pad(root: bytes, depth: int, to_depth: int) -> Digest:
    """Root of the tree of `to_depth` whose leftmost subtree of `depth` is `root`, empty elsewhere."""
    for level in range(depth, to_depth):
        root = parent(root, empty_root(level))
    return Digest(bytes(root))


def fold(leaf: bytes, position: int, siblings: Sequence[bytes]) -> Digest:
    """The root that a proof leads to; `siblings` from the leaf upwards."""
    node = Digest(bytes(leaf))
    for level, sibling in enumerate(siblings):
        node = parent(sibling, node) if position >> level & 1 else parent(node, sibling)
    return node


def fold_nodes(nodes: Sequence[bytes]) -> Digest:
    """The root over a full level of 2^h nodes."""
    level = list(nodes)
    if not level or len(level) & (len(level) - 1):
        raise ValueError(f"expected a power of two nodes, got {len(level)}")
    while len(level) > 1:
        level = [parent(level[i], level[i + 1]) for i in range(0, len(level), 2)]
    return Digest(bytes(level[0]))


def verify(root: bytes, depth: int, position: int, leaf: bytes, siblings: Sequence[bytes]) -> None:
    """Raise `ProofError` unless `leaf` stands at `position` under `root`."""
    if not 0 <= position < 1 << depth:  # (1)
        raise ProofError(f"expected a position below {1 << depth}, got {position}")
    if len(siblings) != depth or any(len(s) != 32 for s in siblings):  # (2)
        raise ProofError(f"expected {depth} siblings of 32 bytes, got {len(siblings)}")
    found = fold(leaf, position, siblings)
    if found != root:  # (3)
        raise ProofError(f"expected root {bytes(root).hex()}, got {found.hex()} from position {position}")


class Tree:
    """A tree in memory, all levels kept. `depth` may be larger than the leaves need (padded with `EMPTY`)."""

    def __init__(self, leaves: Sequence[bytes], depth: int | None = None) -> None:
        self.count = len(leaves)
        self.depth = depth_of(max(1, self.count)) if depth is None else depth
        if self.count > 1 << self.depth:
            raise ValueError(f"expected at most {1 << self.depth} leaves, got {self.count}")
        self._levels: list[list[Digest]] = [[Digest(bytes(leaf)) for leaf in leaves]]
        for height in range(self.depth):
            below = self._levels[-1]
            if len(below) % 2:
                below = [*below, empty_root(height)]
            self._levels.append([parent(below[i], below[i + 1]) for i in range(0, len(below), 2)])

    @property
    def root(self) -> Digest:
        """The root digest."""
        return self.node(self.depth, 0)

    def node(self, height: int, position: int) -> Digest:
        """The node `height` levels above the leaves."""
        if not (0 <= height <= self.depth and 0 <= position < 1 << (self.depth - height)):
            raise ValueError(f"no node at height {height}, position {position} in a tree of depth {self.depth}")
        level = self._levels[height]
        return level[position] if position < len(level) else empty_root(height)

    def below(self, height: int, position: int, levels: int) -> list[Digest]:
        """The 2^levels nodes `levels` below node (height, position), left to right."""
        first = position << levels
        return [self.node(height - levels, first + i) for i in range(1 << levels)]

    def proof(self, position: int) -> list[Digest]:
        """Siblings of a leaf, from the leaf upwards."""
        return [self.node(height, (position >> height) ^ 1) for height in range(self.depth)]
