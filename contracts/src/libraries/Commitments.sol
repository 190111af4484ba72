// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Isa} from "./Isa.sol";
import {Tags} from "./Tags.sol";
import {Trees} from "./Trees.sol";

/// @title What is hashed and how (SPEC section 3): the leaves of all trees
library Commitments {
    /// @dev H(tag ‖ data).
    function tagged(bytes8 tag, bytes calldata data) internal view returns (bytes32 digest) {
        assembly ("memory-safe") {
            let pos := mload(0x40)
            mstore(pos, tag)
            calldatacopy(add(pos, 0x08), data.offset, data.length)
            if iszero(staticcall(gas(), 0x02, pos, add(data.length, 0x08), 0x00, 0x20)) { revert(0, 0) }
            digest := mload(0x00)
        }
    }

    /// @dev Leaf of a chunk tree.
    function chunkLeaf(bytes calldata data) internal view returns (bytes32) {
        return tagged(Tags.CHUNK, data);
    }

    /// @dev Leaf of the program tree.
    function instructionLeaf(bytes calldata encoded) internal view returns (bytes32) {
        return tagged(Tags.INSTRUCTION, encoded);
    }

    /// @dev Leaf of an accumulator tree.
    function accumulatorLeaf(bytes memory encoded) internal view returns (bytes32 leaf) {
        bytes8 tag = Tags.ACCUMULATOR;
        assembly ("memory-safe") {
            let pos := mload(0x40)
            let length := mload(encoded)
            mstore(pos, tag)
            mcopy(add(pos, 0x08), add(encoded, 0x20), length)
            if iszero(staticcall(gas(), 0x02, pos, add(length, 0x08), 0x00, 0x20)) { revert(0, 0) }
            leaf := mload(0x00)
        }
    }

    /// @dev Id of a tensor. `dims` holds 8 bytes, big-endian, for each dimension.
    function tensorId(uint256 dtype, bytes memory dims, bytes32 chunkRoot) internal pure returns (bytes32) {
        return sha256(bytes.concat(Tags.TENSOR, bytes1(uint8(dtype)), bytes1(uint8(dims.length / 8)), dims, chunkRoot));
    }

    /// @dev `tensorId` with the dims taken from calldata, where `rank` of them stand as they are hashed.
    function tensorIdAt(uint256 dtype, uint256 rank, uint256 dimsAt, bytes32 chunkRoot)
        internal
        view
        returns (bytes32 id)
    {
        bytes8 tag = Tags.TENSOR;
        assembly ("memory-safe") {
            let pos := mload(0x40)
            let length := shl(3, rank)
            mstore(pos, tag)
            mstore8(add(pos, 0x08), dtype)
            mstore8(add(pos, 0x09), rank)
            calldatacopy(add(pos, 0x0a), dimsAt, length)
            mstore(add(add(pos, 0x0a), length), chunkRoot)
            if iszero(staticcall(gas(), 0x02, pos, add(length, 0x2a), 0x00, 0x20)) { revert(0, 0) }
            id := mload(0x00)
        }
    }

    /// @dev Id of the tensor of rank 0 that holds `bits`.
    function scalarId(uint256 dtype, uint256 bits) internal pure returns (bytes32) {
        bytes memory data = new bytes(Isa.size(dtype));
        for (uint256 i = 0; i < data.length; ++i) {
            data[i] = bytes1(uint8(bits >> (8 * i)));
        }
        return tensorId(dtype, "", sha256(bytes.concat(Tags.CHUNK, data)));
    }

    /// @dev `scalarId` of an f32, made for a move of the game.
    function lossId(uint32 bits) internal view returns (bytes32 id) {
        (bytes8 chunkTag, bytes8 tensorTag) = (Tags.CHUNK, Tags.TENSOR);
        uint256 swapped = (bits & 0xff) << 24 | (bits & 0xff00) << 8 | (bits >> 8) & 0xff00 | bits >> 24;
        assembly ("memory-safe") {
            let pos := mload(0x40)
            // Its one chunk is its chunk tree. Then the tensor's preimage: tag, dtype 0, rank 0, root.
            mstore(pos, or(chunkTag, shl(160, swapped)))
            if iszero(staticcall(gas(), 0x02, pos, 0x0c, 0x00, 0x20)) { revert(0, 0) }
            mstore(pos, tensorTag)
            mstore(add(pos, 0x0a), mload(0x00))
            if iszero(staticcall(gas(), 0x02, pos, 0x2a, 0x00, 0x20)) { revert(0, 0) }
            id := mload(0x00)
        }
    }

    /// @dev Leaf of the state tree (tag STATE_ENTRY) or data tree (DATA_ENTRY). `name` is its u16 length and bytes.
    function entry(bytes8 tag, bytes calldata name, bytes32 id) internal view returns (bytes32 leaf) {
        assembly ("memory-safe") {
            let pos := mload(0x40)
            mstore(pos, tag)
            calldatacopy(add(pos, 0x08), name.offset, name.length)
            mstore(add(add(pos, 0x08), name.length), id)
            if iszero(staticcall(gas(), 0x02, pos, add(name.length, 0x28), 0x00, 0x20)) { revert(0, 0) }
            leaf := mload(0x00)
        }
    }

    /// @dev Digest of a step record: leaf of the steps tree and of the run tree.
    function record(uint64 step, bytes32 stateRoot, uint32 lossBits, bytes32 logRoot)
        internal
        view
        returns (bytes32 digest)
    {
        (bytes32 start, bytes32 loss) = (Tags.STEP_RECORD | bytes32(uint256(step) << 128), bytes4(lossBits));
        assembly ("memory-safe") {
            // Each word is written over the rest of the one before.
            let pos := mload(0x40)
            mstore(pos, start)
            mstore(add(pos, 0x10), stateRoot)
            mstore(add(pos, 0x30), loss)
            mstore(add(pos, 0x34), logRoot)
            if iszero(staticcall(gas(), 0x02, pos, 0x54, 0x00, 0x20)) { revert(0, 0) }
            digest := mload(0x00)
        }
    }

    /// @dev Leaf of a log tree: the directions of one chunk's elements, or the empty leaf if it has none.
    function logLeaf(bytes32 word) internal view returns (bytes32 leaf) {
        if (word == bytes32(0)) return Trees.EMPTY;
        bytes8 tag = Tags.LOG_WORD;
        assembly ("memory-safe") {
            let pos := mload(0x40)
            mstore(pos, tag)
            mstore(add(pos, 0x08), word)
            if iszero(staticcall(gas(), 0x02, pos, 0x28, 0x00, 0x20)) { revert(0, 0) }
            leaf := mload(0x00)
        }
    }

    /// @dev What a challenger fixes before it may prove: its answer, hidden by a salt, for one game only.
    function seal(bytes32 gameId, bytes32 answer, bytes32 salt) internal view returns (bytes32 digest) {
        bytes8 tag = Tags.SEAL;
        assembly ("memory-safe") {
            let pos := mload(0x40)
            mstore(pos, tag)
            mstore(add(pos, 0x08), gameId)
            mstore(add(pos, 0x28), answer)
            mstore(add(pos, 0x48), salt)
            if iszero(staticcall(gas(), 0x02, pos, 0x68, 0x00, 0x20)) { revert(0, 0) }
            digest := mload(0x00)
        }
    }

    /// @dev Leaves of the chunk tree of `dataBytes` bytes.
    function chunkCount(uint256 dataBytes) internal pure returns (uint256) {
        return (dataBytes + Isa.CHUNK_BYTES - 1) / Isa.CHUNK_BYTES;
    }

    /// @dev Bytes of chunk `index` < chunkCount(dataBytes).
    function chunkLength(uint256 dataBytes, uint256 index) internal pure returns (uint256) {
        uint256 rest = dataBytes - index * Isa.CHUNK_BYTES;
        return rest < Isa.CHUNK_BYTES ? rest : Isa.CHUNK_BYTES;
    }
}
