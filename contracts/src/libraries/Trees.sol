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

    /// @dev Roots of the empty trees of depth 0 ... 19, in this order: what pads the halves of a value tree (D <= 20).
    bytes internal constant EMPTY_ROOTS = hex"ab88e7478b2841d67e88ed028f506764e730e04235c3e9151aaa01769cecdc89"
        hex"8539fa2ba4066ae5a67b7a1d0b0a06cb57501e8f3f79db8d30984b6b4e542eb1"
        hex"0e69e3d58332b15ae35daa8652a38339156fb8db8203c82cd724a6330d40c280"
        hex"25168bced3a7df7d89b021956b8ffdd4c9a2eb27f42dcd3fd7a732c3cb324aac"
        hex"4d7b4955650d2f54412f450cd56b75f758273bcdd16790c296640613953eef16"
        hex"763da96fb430b32791aa1ce5dee05b50f080f25f3b78b0fd7883a8ac4fe8d105"
        hex"67f7cf91c542b261cbfaa95b9889018292196641e89206881eee15b9178a3062"
        hex"1c9903e8510c3dc181bb0cce98e459e5853ff1c52e636d1f841b4883b5d23889"
        hex"967cc835b1687f182d29e80f0babb25545447ba1354819502261747ff967dd85"
        hex"c6518cf29c3bc097413a5df20797845ace03632c445bceb49e3df612d3f6fa8f"
        hex"cd57d0ee9c15ece222f17daf9e9fd050db897ec7d708bef5f9636a8106424f02"
        hex"7cc893b661d8f7cfa9d5c86545c238dfdfb28233894b390fb3f0c883efd42913"
        hex"82edee6b22930cc2e076702f906bc067b49950a05c4b549822598b0a92677d91"
        hex"93d9927b83ad817325e21ce041e0733b27bdca6678ee771eba03ec93ace00004"
        hex"0f21e798764f51f5ff634a90d6662d0035cebd9f8f8f5afbd0c80b1798f14166"
        hex"a011ae882542cd4efc16c87a9a0857d54393d255b1a1a523f7b7d2b4d69b2c9a"
        hex"d1e3c8c82f30ff912e694875e609472a52324f1e30307507c42a833e5850624e"
        hex"046405018f476709db4cc0b3b8b8d0b7e8d88e3e4cb5881b560c1d6d65aac046"
        hex"b9c7b8c642887e87e5f8f45845371273bad32e7a94e1abf9d17d3c5f13a5516b"
        hex"b3ff366b4aa77de7545ba5859191302cc3f373e946a2fdeb9dc41eddd16bfb98";

    /// @dev Depth of the tree over `leaves` >= 1 leaves: ceil(log2(leaves)).
    function depthOf(uint256 leaves) internal pure returns (uint256 depth) {
        assert(leaves >= 1);
        assembly ("memory-safe") {
            // The bits of leaves - 1: its highest one by halves, and one more unless it is zero.
            let rest := sub(leaves, 1)
            depth := shl(7, lt(0xffffffffffffffffffffffffffffffff, rest))
            depth := or(depth, shl(6, lt(0xffffffffffffffff, shr(depth, rest))))
            depth := or(depth, shl(5, lt(0xffffffff, shr(depth, rest))))
            depth := or(depth, shl(4, lt(0xffff, shr(depth, rest))))
            depth := or(depth, shl(3, lt(0xff, shr(depth, rest))))
            depth := or(depth, shl(2, lt(0xf, shr(depth, rest))))
            depth := or(depth, shl(1, lt(0x3, shr(depth, rest))))
            depth := or(depth, lt(0x1, shr(depth, rest)))
            depth := add(depth, lt(0, rest))
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
    /// siblings are ignored: `verify` and the callers that fold without it bound the position first. They also hold
    /// the number of siblings against the tree's depth, at most 64; here it must be at most 251.
    function fold(bytes32 leaf, uint256 position, bytes32[] calldata siblings) internal view returns (bytes32 node) {
        bytes8 tag = Tags.NODE;
        assembly ("memory-safe") {
            // What is hashed: tag, left node, right node. The left one stands at an even multiple of 32, the right one behind
            // it, so that they differ in one bit of the place.
            let left := and(add(mload(0x40), 0x48), not(0x3f))
            let input := sub(left, 0x08)
            mstore(input, tag)
            // A node goes left or right of its sibling, as the position's bit says; each hash is written where the next
            // one reads it.
            position := shl(5, position)
            let place := or(left, and(position, 0x20))
            mstore(place, leaf)
            let end := add(siblings.offset, shl(5, siblings.length))
            for { let p := siblings.offset } lt(p, end) { p := add(p, 0x20) } {
                mstore(xor(place, 0x20), calldataload(p))
                position := shr(1, position)
                place := or(left, and(position, 0x20))
                if iszero(staticcall(gas(), 0x02, input, 0x48, place, 0x20)) { revert(0, 0) }
            }
            node := mload(place)
        }
    }

    /// @dev The root over a full level of 2^h nodes.
    function foldNodes(bytes32[] calldata nodes) internal view returns (bytes32 node) {
        // INVARIANT: a level of a perfect tree has a power of two nodes, and at least one.
        assert(isLevel(nodes.length));
        uint256 tag = uint64(Tags.NODE);
        assembly ("memory-safe") {
            let level := add(mload(0x40), 0x20)
            let to := shl(5, nodes.length)
            calldatacopy(level, nodes.offset, to)
            to := add(level, to)
            let good := 1
            // Each pair is hashed where it stands: the tag takes the place of the node before it, and the hash, in front of
            // that, the place of one that was read before.
            for {} gt(sub(to, level), 0x20) {} {
                let end := to
                to := level
                for { let from := level } lt(from, end) { from := add(from, 0x40) } {
                    mstore(sub(from, 0x20), tag)
                    good := and(good, staticcall(gas(), 0x02, sub(from, 0x08), 0x48, to, 0x20))
                    to := add(to, 0x20)
                }
            }
            if iszero(good) { revert(0, 0) }
            node := mload(level)
        }
    }

    /// @dev Whether this many nodes can be a level of a tree.
    function isLevel(uint256 count) internal pure returns (bool) {
        unchecked {
            return count != 0 && count & (count - 1) == 0;
        }
    }

    /// @dev Root of the tree of depth `toDepth` <= 20 whose leftmost subtree of depth `depth` is `root`, empty elsewhere.
    function pad(bytes32 root, uint256 depth, uint256 toDepth) internal view returns (bytes32 node) {
        bytes memory empty = EMPTY_ROOTS;
        // INVARIANT: the table reaches so far.
        assert(toDepth <= empty.length / 32);
        bytes8 tag = Tags.NODE;
        assembly ("memory-safe") {
            let pos := mload(0x40)
            mstore(pos, tag)
            mstore(add(pos, 0x08), root)
            for { let level := depth } lt(level, toDepth) { level := add(level, 1) } {
                mstore(add(pos, 0x28), mload(add(add(empty, 0x20), shl(5, level))))
                if iszero(staticcall(gas(), 0x02, pos, 0x48, add(pos, 0x08), 0x20)) { revert(0, 0) }
            }
            node := mload(add(pos, 0x08))
        }
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
