"""The one kind of tree (SPEC section 2): perfect, binary, padded with the empty leaf.

Numbered plan of `verify`: (1) the position lies in the tree, (2) the proof has as many siblings as the tree
is deep, each of 32 bytes, (3) folding leads to the root.
"""

from collections.abc import Sequence
from functools import cache

from tiebreak.protocol.errors import ProofError
from tiebreak.protocol.hashing import DIGEST_BYTES, PLAIN, Hasher
from tiebreak.protocol.tags import EMPTY, Digest, Tag, tagged_hash


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

    def __init__(self, leaves: Sequence[bytes], depth: int | None = None, *, hasher: Hasher = PLAIN) -> None:
        self._build(b"".join(leaves), len(leaves), depth, hasher)

    @classmethod
    def over(cls, leaves: bytes, *, hasher: Hasher = PLAIN) -> "Tree":
        """The tree over leaf digests that stand one after the other."""
        tree = cls.__new__(cls)
        tree._build(leaves, len(leaves) // DIGEST_BYTES, None, hasher)
        return tree

    def _build(self, leaves: bytes, count: int, depth: int | None, hasher: Hasher) -> None:
        if len(leaves) != count * DIGEST_BYTES:
            raise ValueError(f"expected leaves of {DIGEST_BYTES} bytes, got {len(leaves)} bytes for {count}")
        self.count = count
        self.depth = depth_of(max(1, count)) if depth is None else depth
        if count > 1 << self.depth:
            raise ValueError(f"expected at most {1 << self.depth} leaves, got {count}")
        self._levels = [leaves]
        """By height: the nodes that are above a leaf, one after the other."""
        for height in range(self.depth):
            self._levels.append(hasher.parent_level(self._levels[-1], empty_root(height)))

    @property
    def root(self) -> Digest:
        """The root digest."""
        return self.node(self.depth, 0)

    def node(self, height: int, position: int) -> Digest:
        """The node `height` levels above the leaves."""
        if not (0 <= height <= self.depth and 0 <= position < 1 << (self.depth - height)):
            raise ValueError(f"no node at height {height}, position {position} in a tree of depth {self.depth}")
        found = self._levels[height][position * DIGEST_BYTES : (position + 1) * DIGEST_BYTES]
        return Digest(found) if found else empty_root(height)

    def below(self, height: int, position: int, levels: int) -> list[Digest]:
        """The 2^levels nodes `levels` below node (height, position), left to right."""
        first = position << levels
        return [self.node(height - levels, first + i) for i in range(1 << levels)]

    def proof(self, position: int) -> list[Digest]:
        """Siblings of a leaf, from the leaf upwards."""
        return [self.node(height, (position >> height) ^ 1) for height in range(self.depth)]


class Frontier:
    """A growing tree, leaf by leaf: its roots at any time, from one node per level.

    Appending hashes once on average, a root as often as the tree is deep, whatever the number of leaves. `height`: what
    is appended are not leaves but roots of whole subtrees of this depth; "leaves" and depths below then count those.
    """

    def __init__(self, height: int = 0) -> None:
        self.count = 0
        self._height = height
        self._peaks: list[Digest] = []
        """Roots of the full subtrees that the leaves make up, one for each bit of `count`, from the largest."""

    def append(self, leaf: bytes) -> None:
        """Adds the next leaf."""
        node, full = Digest(bytes(leaf)), self.count
        while full & 1:
            node, full = parent(self._peaks.pop(), node), full >> 1
        self._peaks.append(node)
        self.count += 1

    def root(self, depth: int) -> Digest:
        """The root of the tree of this depth over the leaves so far, `EMPTY` at the other positions."""
        if self.count > 1 << depth:
            raise ValueError(f"expected at most {1 << depth} leaves, got {self.count}")
        if not self.count:
            return empty_root(self._height + depth)
        height = (self.count & -self.count).bit_length() - 1
        node = self._peaks[-1]
        left = len(self._peaks) - 1
        for level in range(height, depth):
            if self.count >> level & 1 and level > height:
                left -= 1
                node = parent(self._peaks[left], node)
            else:
                node = parent(node, empty_root(self._height + level))
        return node
