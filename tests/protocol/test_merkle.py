"""The tree against a naive recursion, and its proofs against every kind of damage."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebreak.protocol.errors import ProofError
from tiebreak.protocol.tags import EMPTY
from tiebreak.protocol.trees import Frontier, Tree, depth_of, empty_root, fold, fold_nodes, pad, parent, verify

digests = st.binary(min_size=32, max_size=32)
leaf_lists = st.lists(digests, min_size=1, max_size=40)


def naive_root(leaves: list[bytes]) -> bytes:
    """The root by halves, over a power of two leaves."""
    if len(leaves) == 1:
        return leaves[0]
    half = len(leaves) // 2
    return sha256(b"tb.node." + naive_root(leaves[:half]) + naive_root(leaves[half:])).digest()


def padded(leaves: list[bytes], depth: int) -> list[bytes]:
    return leaves + [sha256(b"tb.empty").digest()] * ((1 << depth) - len(leaves))


def test_depth_is_the_least_that_holds_the_leaves() -> None:
    for count in range(1, 300):
        depth = depth_of(count)
        assert 1 << depth >= count
        assert depth == 0 or 1 << depth - 1 < count
    with pytest.raises(ValueError, match="at least one leaf, got 0"):
        depth_of(0)


@given(leaf_lists, st.integers(0, 2))
def test_merkle_root_matches_a_naive_recursion(leaves: list[bytes], extra: int) -> None:
    depth = depth_of(len(leaves)) + extra
    tree = Tree(leaves, depth)
    assert tree.root == naive_root(padded(leaves, depth))
    assert pad(Tree(leaves).root, depth - extra, depth) == tree.root


@given(leaf_lists)
def test_every_leaf_has_a_proof(leaves: list[bytes]) -> None:
    tree = Tree(leaves)
    for position, leaf in enumerate(padded(leaves, tree.depth)):
        verify(tree.root, tree.depth, position, leaf, tree.proof(position))
        assert fold(leaf, position, tree.proof(position)) == tree.root


@given(st.lists(digests, min_size=2, max_size=40, unique=True), st.data())
def test_damaged_or_misplaced_merkle_proofs_are_refused(leaves: list[bytes], data: st.DataObject) -> None:
    tree = Tree(leaves)
    position = data.draw(st.integers(0, len(leaves) - 1))
    other = data.draw(st.integers(0, len(leaves) - 1).filter(lambda k: k != position))
    proof, leaf = tree.proof(position), leaves[position]
    with pytest.raises(ProofError, match="expected root"):
        verify(tree.root, tree.depth, other, leaf, proof)
    with pytest.raises(ProofError, match="expected root"):
        verify(tree.root, tree.depth, position, leaves[other], proof)
    level = data.draw(st.integers(0, tree.depth - 1))
    damaged = [*proof[:level], bytes([proof[level][0] ^ 1]) + proof[level][1:], *proof[level + 1 :]]
    with pytest.raises(ProofError, match="expected root"):
        verify(tree.root, tree.depth, position, leaf, damaged)
    for siblings in (proof[1:], [*proof, bytes(32)], [*proof[1:], b""]):
        with pytest.raises(ProofError, match="siblings of 32 bytes"):
            verify(tree.root, tree.depth, position, leaf, siblings)
    for outside in (-1, 1 << tree.depth):
        with pytest.raises(ProofError, match="expected a position below"):
            verify(tree.root, tree.depth, outside, leaf, proof)


@given(leaf_lists, st.data())
def test_descendants_of_a_node_hash_to_that_node(leaves: list[bytes], data: st.DataObject) -> None:
    tree = Tree(leaves)
    height = data.draw(st.integers(0, tree.depth))
    position = data.draw(st.integers(0, (1 << tree.depth - height) - 1))
    levels = data.draw(st.integers(0, height))
    nodes = tree.below(height, position, levels)
    assert len(nodes) == 1 << levels
    assert fold_nodes(nodes) == tree.node(height, position)


def test_empty_trees_have_fixed_roots_and_bad_arguments_are_refused() -> None:
    assert empty_root(0) == EMPTY == Tree([]).root
    assert empty_root(3) == naive_root([EMPTY] * 8) == Tree([], 3).root
    assert parent(EMPTY, EMPTY) == empty_root(1)
    for nodes in ([], [EMPTY] * 3):
        with pytest.raises(ValueError, match="a power of two nodes"):
            fold_nodes(nodes)
    with pytest.raises(ValueError, match="at most 2 leaves, got 3"):
        Tree([EMPTY] * 3, 1)
    for height, position in ((2, 0), (-1, 0), (0, 2), (0, -1)):
        with pytest.raises(ValueError, match="no node at"):
            Tree([EMPTY, EMPTY]).node(height, position)


@given(leaf_lists, st.integers(0, 3))
def test_incremental_frontier_root_equals_the_tree_root(leaves: list[bytes], extra: int) -> None:
    frontier, depth = Frontier(), depth_of(len(leaves)) + extra
    assert frontier.root(depth) == Tree([], depth).root
    for count, leaf in enumerate(leaves, 1):
        frontier.append(leaf)
        assert frontier.count == count
        assert len(frontier._peaks) == count.bit_count(), "at most a node a level"
        assert frontier.root(depth) == Tree(leaves[:count], depth).root == frontier.root(depth)


def test_leaves_must_be_32_bytes_and_fit_the_depth() -> None:
    with pytest.raises(ValueError, match="leaves of 32 bytes"):
        Tree([bytes(31)])
    frontier = Frontier()
    for _ in range(3):
        frontier.append(EMPTY)
    with pytest.raises(ValueError, match="at most 2 leaves, got 3"):
        frontier.root(1)
