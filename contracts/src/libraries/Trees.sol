// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {Tags} from "./Tags.sol";

/// @title The one kind of tree (SPEC section 2): perfect, binary, padded with the empty leaf
/// @dev SHA-256 is the precompile at address 2. It cannot fail but for want of gas, and then the whole call must
/// fail: the success of each call is checked.
library Trees {
    /// @dev H("tb.empty"): the leaf of every unused position.
    bytes32 internal constant EMPTY = 0xab88e7478b2841d67e88ed028f506764e730e04235c3e9151aaa01769cecdc89;

    /// @dev Depth of the tree over `leaves` >= 1 leaves: ceil(log2(leaves)).
    function depthOf(uint256 leaves) internal pure returns (uint256 depth) {
        unchecked {
            assert(leaves >= 1);
            uint256 rest = leaves - 1;
            while (rest != 0) {
                rest >>= 1;
                ++depth;
            }
        }
    }

    /// @dev The node above two digests.
    function parent(bytes32 left, bytes32 right) internal view returns (bytes32 node) {
        bytes8 tag = Tags.NODE;
        assembly ("memory-safe") {
            let pos := mload(0x40)
            mstore(pos, tag)
            mstore(add(pos, 0x08), left)
            mstore(add(pos, 0x28), right)
            if iszero(staticcall(gas(), 0x02, pos, 0x48, 0x00, 0x20)) { revert(0, 0) }
            node := mload(0x00)
        }
    }

    /// @dev The root that a proof leads to; `siblings` from the leaf upwards. Bits of `position` above the number of
    /// siblings are ignored: `verify` and the callers that fold without it bound the position first.
    function fold(bytes32 leaf, uint256 position, bytes32[] calldata siblings) internal view returns (bytes32 node) {
        bytes8 tag = Tags.NODE;
        assembly ("memory-safe") {
            node := leaf
            let pos := mload(0x40)
            mstore(pos, tag)
            let end := add(siblings.offset, shl(5, siblings.length))
            for { let p := siblings.offset } lt(p, end) { p := add(p, 0x20) } {
                // The node goes left (offset 0x08) or right (0x28) of its sibling, as the position's bit says.
                let side := shl(5, and(position, 1))
                mstore(add(pos, add(0x08, side)), node)
                mstore(add(pos, sub(0x28, side)), calldataload(p))
                if iszero(staticcall(gas(), 0x02, pos, 0x48, 0x00, 0x20)) { revert(0, 0) }
                node := mload(0x00)
                position := shr(1, position)
            }
        }
    }

    /// @dev The root over a full level of 2^h nodes.
    function foldNodes(bytes32[] calldata nodes) internal view returns (bytes32) {
        uint256 count = nodes.length;
        // INVARIANT: a level of a perfect tree has a power of two nodes, and at least one.
        assert(count != 0 && count & (count - 1) == 0);
        bytes32[] memory level = nodes;
        unchecked {
            for (count >>= 1; count != 0; count >>= 1) {
                for (uint256 i = 0; i < count; ++i) {
                    level[i] = parent(level[2 * i], level[2 * i + 1]);
                }
            }
        }
        return level[0];
    }

    /// @dev Root of the tree of depth `toDepth` whose leftmost subtree of depth `depth` is `root`, empty elsewhere.
    function pad(bytes32 root, uint256 depth, uint256 toDepth) internal view returns (bytes32) {
        bytes32 empty = EMPTY;
        for (uint256 level = 0; level < toDepth; ++level) {
            if (level >= depth) root = parent(root, empty);
            empty = parent(empty, empty);
        }
        return root;
    }

    /// @dev Reverts unless `leaf` stands at `position` under `root`, in a tree of this depth.
    function verify(bytes32 root, uint256 depth, uint256 position, bytes32 leaf, bytes32[] calldata siblings)
        internal
        view
    {
        // INVARIANT: the position lies in the tree. (depth <= 40 everywhere, so the shift cannot overflow.)
        if (position >> depth != 0) revert IReferee.PositionOutOfRange(position, depth);
        // INVARIANT: one sibling for each level; else another tree's node could pass for a leaf.
        if (siblings.length != depth) revert IReferee.WrongSiblingCount(depth, siblings.length);
        bytes32 found = fold(leaf, position, siblings);
        // INVARIANT: the opening leads to the root.
        if (found != root) revert IReferee.WrongRoot(root, found);
    }
}
