// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Isa} from "./Isa.sol";
import {Tags} from "./Tags.sol";

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
    function accumulatorLeaf(bytes memory encoded) internal pure returns (bytes32) {
        return sha256(bytes.concat(Tags.ACCUMULATOR, encoded));
    }

    /// @dev Id of a tensor. `dims` holds 8 bytes, big-endian, for each dimension.
    function tensorId(uint256 dtype, bytes memory dims, bytes32 chunkRoot) internal pure returns (bytes32) {
        return sha256(bytes.concat(Tags.TENSOR, bytes1(uint8(dtype)), bytes1(uint8(dims.length / 8)), dims, chunkRoot));
    }

    /// @dev Id of the tensor of rank 0 that holds `bits`.
    function scalarId(uint256 dtype, uint256 bits) internal view returns (bytes32 id) {
        uint256 size = Isa.size(dtype);
        (bytes8 chunkTag, bytes8 tensorTag) = (Tags.CHUNK, Tags.TENSOR);
        assembly ("memory-safe") {
            let pos := mload(0x40)
            mstore(pos, chunkTag)
            for { let i := 0 } lt(i, size) { i := add(i, 1) } {
                mstore8(add(pos, add(i, 0x08)), shr(shl(3, i), bits))
            }
            // Its one chunk is its chunk tree. The tensor's preimage: tag, dtype, rank 0, root.
            if iszero(staticcall(gas(), 0x02, pos, add(size, 0x08), 0x00, 0x20)) { revert(0, 0) }
            mstore(pos, or(tensorTag, shl(184, dtype)))
            mstore(add(pos, 0x0a), mload(0x00))
            if iszero(staticcall(gas(), 0x02, pos, 0x2a, 0x00, 0x20)) { revert(0, 0) }
            id := mload(0x00)
        }
    }

    /// @dev Leaf of the state tree (tag STATE_ENTRY) or data tree (DATA_ENTRY). `name` is its u16 length and bytes.
    function entry(bytes8 tag, bytes calldata name, bytes32 id) internal pure returns (bytes32) {
        return sha256(bytes.concat(tag, name, id));
    }

    /// @dev Digest of a step record: leaf of the steps tree and of the run tree.
    function record(uint64 step, bytes32 stateRoot, uint32 lossBits, bytes32 logRoot) internal pure returns (bytes32) {
        return sha256(bytes.concat(Tags.STEP_RECORD, bytes8(step), stateRoot, bytes4(lossBits), logRoot));
    }

    /// @dev What a challenger fixes before it may prove: its answer, hidden by a salt, for one game only.
    function seal(bytes32 gameId, bytes32 answer, bytes32 salt) internal pure returns (bytes32) {
        return sha256(bytes.concat(Tags.SEAL, gameId, answer, salt));
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
