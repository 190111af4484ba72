// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Trees} from "../../src/libraries/Trees.sol";
import {SymbolicBase} from "./SymbolicBase.sol";

/// @title Proofs about the tree library, for all leaves and nodes (`make -C contracts symbolic`)
/// @dev Digests are free 256-bit words and SHA-256 is a function of which nothing is known but what a proof assumes.
/// Positions and depths are gone through one by one, up to DEPTH: memory has no symbolic addresses.
contract TreesSymbolic is SymbolicBase {
    /// The deepest tree that one move opens (descentLevels <= 5).
    uint256 private constant DEPTH = 5;

    function fold(bytes32 leaf, uint256 position, bytes32[] calldata siblings) external view returns (bytes32) {
        return Trees.fold(leaf, position, siblings);
    }

    function foldNodes(bytes32[] calldata nodes) external view returns (bytes32) {
        return Trees.foldNodes(nodes);
    }

    /// @dev What SPEC section 2 says, in plain Solidity.
    function naiveParent(bytes32 left, bytes32 right) private pure returns (bytes32) {
        return sha256(abi.encodePacked("tb.node.", left, right));
    }

    function naiveFold(bytes32 node, uint256 position, bytes32[] memory siblings) private pure returns (bytes32) {
        for (uint256 i = 0; i < siblings.length; ++i) {
            bool isRight = position / 2 ** i % 2 == 1;
            node = isRight ? naiveParent(siblings[i], node) : naiveParent(node, siblings[i]);
        }
        return node;
    }

    function naiveRoot(bytes32[] memory nodes, uint256 from, uint256 count) private pure returns (bytes32) {
        if (count == 1) return nodes[from];
        return naiveParent(naiveRoot(nodes, from, count / 2), naiveRoot(nodes, from + count / 2, count / 2));
    }

    function first(bytes32[DEPTH] memory all, uint256 count) private pure returns (bytes32[] memory some) {
        some = new bytes32[](count);
        for (uint256 i = 0; i < count; ++i) {
            some[i] = all[i];
        }
    }

    /// @dev `fold` is the naive fold, at every position of every depth up to DEPTH; higher bits are ignored.
    function check_foldIsTheNaiveFold(bytes32 leaf, bytes32[DEPTH] calldata all) external view {
        for (uint256 depth = 0; depth <= DEPTH; ++depth) {
            bytes32[] memory siblings = first(all, depth);
            for (uint256 position = 0; position < 2 ** depth; ++position) {
                bytes32 expected = naiveFold(leaf, position, siblings);
                // Bits above the depth are ignored: every second time there is one.
                uint256 above = position % 2 * 2 ** depth;
                assert(this.fold(leaf, position + above, siblings) == expected);
            }
        }
    }

    /// @dev `foldNodes` is the naive root of a level of 1, 2, 4, 8, 16 and 32 nodes.
    function check_foldNodesIsTheNaiveRoot(bytes32[32] calldata all) external view {
        for (uint256 count = 1; count <= 32; count *= 2) {
            bytes32[] memory nodes = new bytes32[](count);
            for (uint256 i = 0; i < count; ++i) {
                nodes[i] = all[i];
            }
            assert(this.foldNodes(nodes) == naiveRoot(nodes, 0, count));
        }
    }

    /// @dev `pad` puts the empty trees of the table to the right, for every depth of the subtree and of the tree up to
    /// 10. (That the table holds the roots of empty trees is no matter of all arguments: Trees.t.sol tests it.)
    function check_padIsEmptyElsewhere(bytes32 root) external view {
        bytes memory table = Trees.EMPTY_ROOTS;
        for (uint256 depth = 0; depth <= 10; ++depth) {
            bytes32 expected = root;
            for (uint256 toDepth = depth; toDepth <= 10; ++toDepth) {
                assert(Trees.pad(root, depth, toDepth) == expected);
                bytes32 empty;
                for (uint256 i = 0; i < 32; ++i) {
                    empty |= bytes32(table[32 * toDepth + i]) >> (8 * i);
                }
                expected = naiveParent(expected, empty);
            }
        }
    }

    /// @dev Two leaves that lead to one root from one position are one leaf, if no two pairs of the nodes on the way have
    /// the same parent (depth <= 3). So whoever opens a position twice opens it alike, or shows a collision of SHA-256.
    function check_aPositionHasOneLeaf(
        bytes32 one,
        bytes32 other,
        bytes32[DEPTH] calldata ones,
        bytes32[DEPTH] calldata others
    ) external view {
        for (uint256 depth = 0; depth <= 3; ++depth) {
            for (uint256 position = 0; position < 2 ** depth; ++position) {
                bytes32 root = this.fold(one, position, first(ones, depth));
                bytes32 root_ = this.fold(other, position, first(others, depth));
                bool broken = collides(one, other, position, first(ones, depth), first(others, depth));
                assert(boolOr(broken, boolOr(root != root_, one == other)));
            }
        }
    }

    /// @dev Whether two ways up have two different pairs of nodes with one parent.
    function collides(bytes32 x, bytes32 y, uint256 position, bytes32[] memory xs, bytes32[] memory ys)
        private
        pure
        returns (bool found)
    {
        for (uint256 i = 0; i < xs.length; ++i) {
            bool isRight = position >> i & 1 == 1;
            bool differ = boolOr(x != y, xs[i] != ys[i]);
            x = isRight ? naiveParent(xs[i], x) : naiveParent(x, xs[i]);
            y = isRight ? naiveParent(ys[i], y) : naiveParent(y, ys[i]);
            found = boolOr(found, boolAnd(differ, x == y));
        }
    }

    /// @dev False of a function of which nothing is known: it may have collisions.
    function wrong_aPositionHasOneLeafWhateverTheHash(bytes32 one, bytes32 other, bytes32[DEPTH] calldata all)
        external
        view
    {
        assert(this.fold(one, 0, first(all, 1)) != this.fold(other, 0, first(all, 1)) || one == other);
    }
}
