// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Referee} from "../../src/Referee.sol";
import {Transcendentals} from "../../src/Transcendentals.sol";
import {IReferee} from "../../src/interfaces/IReferee.sol";
import {Commitments} from "../../src/libraries/Commitments.sol";
import {Isa} from "../../src/libraries/Isa.sol";
import {Trees} from "../../src/libraries/Trees.sol";
import {GameTrees} from "../GameTrees.sol";
import {TestBase} from "./TestBase.sol";

/// @notice Builds honest contexts and proofs: trees in memory, operands as tensors of rank 1.
abstract contract RefereeBase is TestBase {
    uint8 internal constant DEPTH = 3;

    Referee internal referee;
    string internal json;

    function setUp() public virtual {
        referee = new Referee(new Transcendentals());
        json = vectors("instructions.json");
    }

    function _case(uint256 k, string memory key) internal pure returns (string memory) {
        return string.concat(".cases[", vm.toString(k), "].", key);
    }

    /// @dev The number of the vector with this name.
    function _find(string memory name) internal view returns (uint256 k) {
        uint256 count = vm.parseJsonUint(json, ".count");
        while (keccak256(bytes(vm.parseJsonString(json, _case(k, "name")))) != keccak256(bytes(name))) {
            ++k;
            assertTrue(k < count, name);
        }
    }

    /// @dev Leaves padded with `EMPTY` to 2^depth.
    function _padded(bytes32[] memory leaves, uint256 depth) internal pure returns (bytes32[] memory level) {
        level = new bytes32[](1 << depth);
        for (uint256 k = 0; k < level.length; ++k) {
            level[k] = k < leaves.length ? leaves[k] : Trees.EMPTY;
        }
    }

    /// @dev Root, and the siblings of position p. The level must be a full one.
    function _open(bytes32[] memory level, uint256 p) internal pure returns (bytes32 root, bytes32[] memory siblings) {
        return (GameTrees.root(level), GameTrees.proof(level, p));
    }

    /// @dev Bits of element e of little-endian data.
    function _bits(uint256 dtype, bytes memory data, uint256 e) internal pure returns (uint64 bits) {
        uint256 size = Isa.size(dtype);
        for (uint256 k = 0; k < size; ++k) {
            bits |= uint64(uint8(data[e * size + k])) << uint64(8 * k);
        }
    }

    function _chunk(bytes memory data, uint256 c) internal pure returns (bytes memory) {
        return slice(data, 512 * c, Commitments.chunkLength(data.length, c));
    }

    function _chunkLevel(bytes memory data) internal pure returns (bytes32[] memory) {
        uint256 count = Commitments.chunkCount(data.length);
        bytes32[] memory leaves = new bytes32[](count);
        for (uint256 c = 0; c < count; ++c) {
            leaves[c] = sha256(abi.encodePacked("tb.chunk", _chunk(data, c)));
        }
        return _padded(leaves, Trees.depthOf(count));
    }

    /// @dev What of a chunk's siblings is sent if chunk `first` of its tensor was opened before it.
    function _belowFirst(bytes32[] memory siblings, uint256 first, uint256 index)
        internal
        pure
        returns (bytes32[] memory)
    {
        if (index == first) return siblings;
        uint256 height = 0;
        while ((first ^ index) >> (height + 1) != 0) ++height;
        assembly ("memory-safe") {
            mstore(siblings, height)
        }
        return siblings;
    }

    /// @dev Every chunk of every operand, opened; operand k is value k.
    function _openAll(
        IReferee.Context memory context,
        IReferee.Proof memory proof,
        bytes memory types,
        bytes[] memory data
    ) internal pure {
        proof.tensors = new IReferee.TensorOpening[](data.length);
        bytes32[] memory ids = new bytes32[](data.length);
        uint256 chunks = 0;
        for (uint256 t = 0; t < data.length; ++t) {
            IReferee.TensorOpening memory tensor = proof.tensors[t];
            (tensor.value, tensor.dtype) = (uint32(t), uint8(types[t]));
            tensor.dims = new uint64[](1);
            tensor.dims[0] = uint64(data[t].length / Isa.size(tensor.dtype));
            tensor.chunkRoot = GameTrees.root(_chunkLevel(data[t]));
            ids[t] = Commitments.tensorId(tensor.dtype, abi.encodePacked(tensor.dims[0]), tensor.chunkRoot);
            chunks += Commitments.chunkCount(data[t].length);
        }
        bytes32[] memory body = _padded(ids, DEPTH);
        for (uint256 t = 0; t < data.length; ++t) {
            (context.bodyRoot, proof.tensors[t].siblings) = _open(body, t);
        }
        proof.chunks = new IReferee.ChunkOpening[](chunks);
        chunks = 0;
        for (uint256 t = 0; t < data.length; ++t) {
            bytes32[] memory level = _chunkLevel(data[t]);
            for (uint256 c = 0; c < Commitments.chunkCount(data[t].length); ++c) {
                IReferee.ChunkOpening memory chunk = proof.chunks[chunks++];
                (chunk.tensor, chunk.chunkIndex, chunk.data) = (uint8(t), uint64(c), _chunk(data[t], c));
                (, chunk.siblings) = _open(level, c);
                chunk.siblings = _belowFirst(chunk.siblings, 0, c);
            }
        }
    }

    /// @dev Context and proof of a vector's instruction, all operands opened, for its element 0.
    function _honest(uint256 k) internal view returns (IReferee.Context memory context, IReferee.Proof memory proof) {
        proof.instruction = vm.parseJsonBytes(json, _case(k, "instruction"));
        context.target = IReferee.Target.ELEMENT;
        (context.depth, context.rounding) = (DEPTH, 32);
        context.position = 6;
        context.step = 3;
        context.instructionLeaf = sha256(abi.encodePacked("tb.instr", proof.instruction));
        bytes memory types = vm.parseJsonBytes(json, _case(k, "operandTypes"));
        if (types.length != 0) {
            _openAll(context, proof, types, vm.parseJsonBytesArray(json, _case(k, "operands")));
        }
    }

    /// @dev Puts an instruction of our own in place of the vector's.
    function _replace(IReferee.Context memory context, IReferee.Proof memory proof, bytes memory instruction)
        internal
        pure
    {
        proof.instruction = instruction;
        context.instructionLeaf = sha256(abi.encodePacked("tb.instr", instruction));
    }

    /// @dev Points context and proof at leaf `leaf` of the accumulator tree over these encodings.
    function _atLeaf(
        IReferee.Context memory context,
        IReferee.Proof memory proof,
        bytes[] memory accumulators,
        uint256 leaf
    ) internal pure {
        bytes32[] memory leaves = new bytes32[](accumulators.length);
        for (uint256 l = 0; l < leaves.length; ++l) {
            leaves[l] = sha256(abi.encodePacked("tb.accum", accumulators[l]));
        }
        bytes32[] memory level = _padded(leaves, Trees.depthOf(leaves.length));
        context.target = IReferee.Target.TERMS;
        context.termsLeaf = uint64(leaf);
        context.accumulatorRoot = GameTrees.root(level);
        proof.previous = leaf == 0 ? bytes("") : accumulators[leaf - 1];
        proof.siblings = new bytes32[](0);
        if (leaf != 0) (, proof.siblings) = _open(level, leaf - 1);
    }
}
