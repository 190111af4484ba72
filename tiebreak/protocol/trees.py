"""The only kind of Merkle tree in the protocol (SPEC section 2): perfect, binary, padded with the empty leaf.

Numbered plan of `verify`: (1) the position lies in the tree, (2) the proof has one 32-byte sibling per level, (3)
folding the leaf with its siblings gives the root.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from tiebreak.protocol.errors import ProofError
from tiebreak.protocol.hashing import DIGEST_BYTES, PLAIN, Hasher
from tiebreak.protocol.tags import EMPTY, Digest, Tag, tagged_hash


def depth_of(leaves: int) -> int:
    """Depth of the smallest tree with this many leaves: ceil(log2(leaves)). Raises `ValueError` below one leaf."""
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
    """Root of a tree of depth `to_depth` that is empty except for its leftmost subtree, given by root and depth."""
    for level in range(depth, to_depth):
        root = parent(root, empty_root(level))
    return Digest(bytes(root))


def fold(leaf: bytes, position: int, siblings: Sequence[bytes]) -> Digest:
    """The root that a leaf and its siblings lead to. Siblings are ordered from the leaf upwards."""
    node = Digest(bytes(leaf))
    for level, sibling in enumerate(siblings):
        node = parent(sibling, node) if position >> level & 1 else parent(node, sibling)
    return node


def fold_nodes(nodes: Sequence[bytes]) -> Digest:
    """The root above a complete level of 2^h nodes. Raises `ValueError` if their number is not a power of two."""
    if not (level := list(nodes)) or len(level) & (len(level) - 1):
        raise ValueError(f"expected a power of two nodes, got {len(level)}")
    while len(level) > 1:
        level = [parent(level[i], level[i + 1]) for i in range(0, len(level), 2)]
    return Digest(bytes(level[0]))


def verify(root: bytes, depth: int, position: int, leaf: bytes, siblings: Sequence[bytes]) -> None:
    """Raise `ProofError` unless `leaf` is at `position` in the tree of this depth with this root."""
    if not 0 <= position < 1 << depth:  # (1)
        raise ProofError(f"expected a position below {1 << depth}, got {position}")
    if len(siblings) != depth or any(len(s) != 32 for s in siblings):  # (2)
        raise ProofError(f"expected {depth} siblings of 32 bytes, got {len(siblings)}")
    if (found := fold(leaf, position, siblings)) != root:  # (3)
        raise ProofError(f"expected root {bytes(root).hex()}, got {found.hex()} from position {position}")


class Nodes:
    """Proofs and openings from the nodes of a tree, however it keeps them."""

    depth: int

    def node(self, height: int, position: int) -> Digest:
        """The node `height` levels above the leaves."""
        raise NotImplementedError

    def below(self, height: int, position: int, levels: int) -> list[Digest]:
        """The 2^levels nodes that lie `levels` below node (height, position), from left to right."""
        return [self.node(height - levels, (position << levels) + i) for i in range(1 << levels)]

    def proof(self, position: int) -> list[Digest]:
        """The siblings of a leaf, from the leaf upwards."""
        return [self.node(height, (position >> height) ^ 1) for height in range(self.depth)]


class Tree(Nodes):
    """A tree in memory that keeps all levels. `depth` may exceed what the leaves need; `EMPTY` fills the rest."""

    def __init__(self, leaves: Sequence[bytes] | bytes, depth: int | None = None, *, hasher: Hasher = PLAIN) -> None:
        """leaves: digests, or all of them concatenated."""
        level, count = leaves, len(leaves) // DIGEST_BYTES
        if not isinstance(level, bytes):
            level, count = b"".join(level), len(leaves)
        if len(level) != count * DIGEST_BYTES:
            raise ValueError(f"expected leaves of {DIGEST_BYTES} bytes, got {len(level)} bytes for {count}")
        self.count = count
        self.depth = depth_of(max(1, count)) if depth is None else depth
        if count > 1 << self.depth:
            raise ValueError(f"expected at most {1 << self.depth} leaves, got {count}")
        self._levels = [level]
        """The concatenated nodes that have at least one leaf below them, by height."""
        for height in range(self.depth):
            self._levels.append(hasher.parent_level(self._levels[-1], empty_root(height)))

    @property
    def root(self) -> Digest:
        return self.node(self.depth, 0)

    def node(self, height: int, position: int) -> Digest:
        if not (0 <= height <= self.depth and 0 <= position < 1 << (self.depth - height)):
            raise ValueError(f"no node at height {height}, position {position} in a tree of depth {self.depth}")
        found = self._levels[height][position * DIGEST_BYTES : (position + 1) * DIGEST_BYTES]
        return Digest(found) if found else empty_root(height)


def _fold_shown(
    height: int, position: int, leaves: int, shown: Sequence[int], leaf: Callable[[int], bytes],
    hidden: Callable[[int, int], bytes],
) -> bytes:  # fmt: skip
    """The node at (height, position) of a tree with this many leaves.

    Leaves at the places in `shown` come from `leaf`, roots of subtrees without any of them from `hidden`, in order.
    """
    first, end = position << height, (position + 1) << height
    if first >= leaves:
        return empty_root(height)
    if (at := bisect_left(shown, first)) == len(shown) or shown[at] >= end:
        return hidden(height, position)
    if not height:
        return leaf(position)
    return parent(*(_fold_shown(height - 1, 2 * position + side, leaves, shown, leaf, hidden) for side in (0, 1)))


def hidden_nodes(tree: Nodes, leaves: int, shown: Sequence[int]) -> list[Digest]:
    """The roots of the largest subtrees without any of the `shown` leaves (ascending places), from left to right."""
    found: list[Digest] = []

    def hidden(height: int, position: int) -> Digest:
        found.append(tree.node(height, position))
        return found[-1]

    _fold_shown(tree.depth, 0, leaves, shown, lambda place: tree.node(0, place), hidden)
    return found


def root_of_shown(leaves: int, shown: Mapping[int, bytes], nodes: Sequence[bytes]) -> Digest:
    """The root of a tree with this many leaves, from some of them by place and what `hidden_nodes` gives for these.

    Raises `ProofError` for too few or too many nodes, and for a place outside, which would be proven by nothing.
    """
    left = list(reversed(nodes))
    if shown and not 0 <= min(shown) <= max(shown) < leaves:
        raise ProofError(f"expected places below {leaves}, got {min(shown)} to {max(shown)}")

    def hidden(height: int, position: int) -> bytes:
        if not left:
            raise ProofError(f"expected a node at height {height}, position {position}, got none")
        return left.pop()

    root = _fold_shown(depth_of(leaves), 0, leaves, sorted(shown), shown.__getitem__, hidden)
    if left:
        raise ProofError(f"expected {len(nodes) - len(left)} nodes, got {len(nodes)}")
    return Digest(bytes(root))


class Frontier:
    """A tree that grows leaf by leaf and keeps only one node per level, yet can give its root at any time.

    Appending a leaf costs one hash on average, and a root costs one hash per level, however many leaves there are. With
    `height` > 0, roots of complete subtrees of that depth are appended in place of leaves, and counted as such.
    """

    def __init__(self, height: int = 0) -> None:
        self.count = 0
        self._height = height
        self._peaks: list[Digest] = []
        """Roots of the full subtrees that cover the leaves: one for each 1 bit of `count`, the largest first."""

    def append(self, leaf: bytes) -> None:
        node, full = Digest(bytes(leaf)), self.count
        while full & 1:
            node, full = parent(self._peaks.pop(), node), full >> 1
        self._peaks.append(node)
        self.count += 1

    def root(self, depth: int) -> Digest:
        """The root of a tree of this depth with the leaves appended so far and `EMPTY` at the other positions."""
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
