// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// @notice Trees in memory for the tests (SPEC section 2), written apart from the library under test: levels are
/// built from the leaves up, and nothing is folded.
library GameTrees {
    function empty() internal pure returns (bytes32) {
        return sha256("tb.empty");
    }

    /// @return the leaves, padded to the next power of two
    function padded(bytes32[] memory leaves) internal pure returns (bytes32[] memory) {
        uint256 size = 1;
        while (size < leaves.length) size *= 2;
        bytes32[] memory all = new bytes32[](size);
        for (uint256 i = 0; i < size; ++i) {
            all[i] = i < leaves.length ? leaves[i] : empty();
        }
        return all;
    }

    /// @return the level above
    function above(bytes32[] memory level) internal pure returns (bytes32[] memory) {
        bytes32[] memory next = new bytes32[](level.length / 2);
        for (uint256 i = 0; i < next.length; ++i) {
            next[i] = sha256(abi.encodePacked("tb.node.", level[2 * i], level[2 * i + 1]));
        }
        return next;
    }

    /// @return the level `height` above the leaves
    function levelAt(bytes32[] memory leaves, uint256 height) internal pure returns (bytes32[] memory) {
        bytes32[] memory level = padded(leaves);
        for (uint256 i = 0; i < height; ++i) {
            level = above(level);
        }
        return level;
    }

    function root(bytes32[] memory leaves) internal pure returns (bytes32) {
        return levelAt(leaves, depth(leaves))[0];
    }

    function depth(bytes32[] memory leaves) internal pure returns (uint256 levels) {
        for (uint256 size = padded(leaves).length; size > 1; size /= 2) {
            ++levels;
        }
    }

    function proof(bytes32[] memory leaves, uint256 position) internal pure returns (bytes32[] memory siblings) {
        siblings = new bytes32[](depth(leaves));
        for (uint256 height = 0; height < siblings.length; ++height) {
            siblings[height] = levelAt(leaves, height)[(position >> height) ^ 1];
        }
    }

    /// @return nodes the 2^levels nodes that stand `levels` below node (height, position)
    function below(bytes32[] memory leaves, uint256 height, uint256 position, uint256 levels)
        internal
        pure
        returns (bytes32[] memory nodes)
    {
        bytes32[] memory level = levelAt(leaves, height - levels);
        nodes = new bytes32[](1 << levels);
        for (uint256 i = 0; i < nodes.length; ++i) {
            nodes[i] = level[(position << levels) + i];
        }
    }

    /// @return the nodes that an opening shows: min(levels, depth) below the root
    function opening(bytes32[] memory leaves, uint256 levels) internal pure returns (bytes32[] memory) {
        uint256 height = depth(leaves);
        return below(leaves, height, 0, height < levels ? height : levels);
    }

    /// @return siblings of the node (height, position), as many as `levels`
    function siblingsUp(bytes32[] memory leaves, uint256 height, uint256 position, uint256 levels)
        internal
        pure
        returns (bytes32[] memory siblings)
    {
        siblings = new bytes32[](levels);
        for (uint256 k = 0; k < levels; ++k) {
            siblings[k] = levelAt(leaves, height + k)[(position >> k) ^ 1];
        }
    }
}
