// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {Commitments} from "./Commitments.sol";
import {Float32} from "./Float32.sol";
import {Isa} from "./Isa.sol";
import {Tags} from "./Tags.sol";
import {Trees} from "./Trees.sol";

/// @dev Verified openings: what the operands may be read from. Made by `Openings.verify` alone.
struct Operands {
    /// Per opened tensor: number of its body instruction, dtype, bytes of data.
    uint256[] values;
    uint256[] dtypes;
    uint256[] dataBytes;
    /// Per opened chunk: tensor index << 64 | chunk index, and the calldata offset of its bytes.
    uint256[] keys;
    uint256[] dataAt;
}

/// @title Openings of operands under the body half of the value tree
/// @notice Every opening is verified, whether or not it is read: (1) each tensor is the output of the body instruction
/// it names, (2) each chunk has the length its tensor's shape says and stands at its index under the tensor's root,
/// (3) its bools are 0 or 1, (4) nothing is opened twice.
library Openings {
    /// @dev Reverts unless everything in `tensors` and `chunks` stands under `bodyRoot`.
    function verify(
        bytes32 bodyRoot,
        uint256 depth,
        IReferee.TensorOpening[] calldata tensors,
        IReferee.ChunkOpening[] calldata chunks
    ) internal view returns (Operands memory o) {
        o.values = new uint256[](tensors.length);
        o.dtypes = new uint256[](tensors.length);
        o.dataBytes = new uint256[](tensors.length);
        for (uint256 t = 0; t < tensors.length; ++t) {
            IReferee.TensorOpening calldata tensor = tensors[t];
            (uint256 value, uint256 dtype) = (tensor.value, tensor.dtype);
            bytes32 id;
            (id, o.dataBytes[t]) = _identify(t, dtype, tensor.dims, tensor.chunkRoot);
            Trees.verify(bodyRoot, depth, value, id, tensor.siblings); // (1)
            _requireNew(o.values, t, value); // (4)
            (o.values[t], o.dtypes[t]) = (value, dtype);
        }
        o.keys = new uint256[](chunks.length);
        o.dataAt = new uint256[](chunks.length);
        for (uint256 c = 0; c < chunks.length; ++c) {
            _verifyChunk(o, c, tensors, chunks[c]);
        }
    }

    /// @dev Bits of element `element` of the value that operand number `operand` reads. Reverts if it is not open.
    function read(Operands memory o, uint256 operand, uint256 value, uint256 dtype, int256 element)
        internal
        pure
        returns (uint256)
    {
        uint256 tensor = _find(o, operand, value, element);
        // INVARIANT: the operand is of the dtype that the instruction needs.
        if (o.dtypes[tensor] != dtype) {
            revert IReferee.WrongOperandType(operand, uint8(dtype), uint8(o.dtypes[tensor]));
        }
        uint256 size = Isa.size(dtype);
        // INVARIANT: the element lies inside the tensor. (SAFETY: dataBytes <= 2^43.)
        if (element < 0 || uint256(element) >= o.dataBytes[tensor] / size) {
            revert IReferee.MissingElement(operand, element);
        }
        unchecked {
            uint256 offset = uint256(element) * size;
            uint256 key = tensor << 64 | offset / Isa.CHUNK_BYTES;
            for (uint256 c = 0; c < o.keys.length; ++c) {
                if (o.keys[c] == key) return _canonical(dtype, load(dtype, o.dataAt[c] + offset % Isa.CHUNK_BYTES));
            }
        }
        revert IReferee.MissingElement(operand, element);
    }

    /// @dev An f32 NaN is read as the one NaN: a payload is no reason to refuse, and may not influence anything.
    function _canonical(uint256 dtype, uint256 bits) private pure returns (uint256) {
        return dtype == Isa.F32 ? Float32.canonical(bits) : bits;
    }

    /// @dev Reverts if the value that an operand reads is open with another dtype. (If it is not open, that is
    /// found where it is read; an element that is not needed need not be open.)
    function requireType(Operands memory o, uint256 operand, uint256 value, uint256 dtype) internal pure {
        for (uint256 t = 0; t < o.values.length; ++t) {
            // INVARIANT: the operand is of the dtype that the instruction needs.
            if (o.values[t] == value && o.dtypes[t] != dtype) {
                revert IReferee.WrongOperandType(operand, uint8(dtype), uint8(o.dtypes[t]));
            }
        }
    }

    /// @dev dtype of the value that operand number `operand` reads. Reverts if its tensor is not open.
    function dtypeOf(Operands memory o, uint256 operand, uint256 value, int256 element)
        internal
        pure
        returns (uint256)
    {
        return o.dtypes[_find(o, operand, value, element)];
    }

    /// @dev The little-endian element at a calldata offset.
    function load(uint256 dtype, uint256 pos) internal pure returns (uint256 bits) {
        assembly ("memory-safe") {
            bits := calldataload(pos)
        }
        if (dtype == Isa.BOOL) return bits >> 248;
        if (dtype == Isa.F32) {
            bits >>= 224;
            bits = (bits & 0x00ff00ff) << 8 | (bits >> 8) & 0x00ff00ff;
            return (bits & 0xffff) << 16 | bits >> 16;
        }
        bits >>= 192;
        bits = (bits & 0x00ff00ff00ff00ff) << 8 | (bits >> 8) & 0x00ff00ff00ff00ff;
        bits = (bits & 0x0000ffff0000ffff) << 16 | (bits >> 16) & 0x0000ffff0000ffff;
        return (bits & 0xffffffff) << 32 | bits >> 32;
    }

    function _find(Operands memory o, uint256 operand, uint256 value, int256 element) private pure returns (uint256) {
        for (uint256 t = 0; t < o.values.length; ++t) {
            if (o.values[t] == value) return t;
        }
        revert IReferee.MissingElement(operand, element);
    }

    /// @dev The tensor's id (`Commitments.tensorId`, its preimage written as the dims are read), and its bytes of data.
    function _identify(uint256 t, uint256 dtype, uint64[] calldata dims, bytes32 chunkRoot)
        private
        view
        returns (bytes32 id, uint256 dataBytes)
    {
        // INVARIANT: a known dtype and a rank of at most 8.
        if (dtype > Isa.BOOL || dims.length > Isa.MAX_RANK) revert IReferee.MalformedTensor(t);
        bytes8 tag = Tags.TENSOR;
        uint256 limit = Isa.MAX_NUMEL;
        uint256 elements = 1;
        bool isBad;
        assembly ("memory-safe") {
            let pos := mload(0x40)
            mstore(pos, tag)
            mstore8(add(pos, 0x08), dtype)
            mstore8(add(pos, 0x09), dims.length)
            let place := add(pos, 0x0a)
            let end := add(dims.offset, shl(5, dims.length))
            for { let p := dims.offset } lt(p, end) { p := add(p, 0x20) } {
                let dim := calldataload(p)
                elements := mul(elements, dim)
                // SAFETY: a product of up to eight numbers wraps only behind one that is over the limit: that is kept.
                isBad := or(isBad, or(iszero(dim), or(gt(dim, limit), gt(elements, limit))))
                mstore(place, shl(192, dim))
                place := add(place, 0x08)
            }
            mstore(place, chunkRoot)
            if iszero(staticcall(gas(), 0x02, pos, sub(add(place, 0x20), pos), 0x00, 0x20)) { revert(0, 0) }
            id := mload(0x00)
        }
        // INVARIANT: dims of at least 1, and at most 2^40 elements.
        if (isBad) revert IReferee.MalformedTensor(t);
        return (id, elements * Isa.size(dtype));
    }

    function _verifyChunk(
        Operands memory o,
        uint256 c,
        IReferee.TensorOpening[] calldata tensors,
        IReferee.ChunkOpening calldata chunk
    ) private view {
        uint256 t = chunk.tensor;
        // INVARIANT: the tensor it belongs to is open.
        if (t >= tensors.length) revert IReferee.UnknownTensor(t);
        uint256 count = Commitments.chunkCount(o.dataBytes[t]);
        // INVARIANT: a chunk of the tensor.
        if (chunk.chunkIndex >= count) revert IReferee.ChunkOutOfRange(chunk.chunkIndex, count);
        bytes calldata data = chunk.data;
        uint256 length = Commitments.chunkLength(o.dataBytes[t], chunk.chunkIndex);
        // INVARIANT: the length is what the shape says, so that no element is read behind the data.
        if (data.length != length) revert IReferee.WrongChunkLength(length, data.length);
        bytes32 leaf = Commitments.chunkLeaf(data);
        Trees.verify(tensors[t].chunkRoot, Trees.depthOf(count), chunk.chunkIndex, leaf, chunk.siblings); // (2)
        uint256 pos;
        assembly ("memory-safe") {
            pos := data.offset
        }
        if (o.dtypes[t] == Isa.BOOL) _requireBools(c, pos, length); // (3)
        _requireNew(o.keys, c, t << 64 | chunk.chunkIndex); // (4)
        (o.keys[c], o.dataAt[c]) = (t << 64 | chunk.chunkIndex, pos);
    }

    /// @dev INVARIANT: the key is not among the first `count`.
    function _requireNew(uint256[] memory keys, uint256 count, uint256 key) private pure {
        for (uint256 k = 0; k < count; ++k) {
            if (keys[k] == key) revert IReferee.OpenedTwice(count);
        }
    }

    /// @dev INVARIANT: each of `length` <= 512 bytes of calldata is 0 or 1.
    function _requireBools(uint256 c, uint256 pos, uint256 length) private pure {
        uint256 seen = 0;
        assembly ("memory-safe") {
            let end := add(pos, length)
            let whole := and(length, not(31))
            for { let p := pos } lt(p, add(pos, whole)) { p := add(p, 0x20) } { seen := or(seen, calldataload(p)) }
            // The rest of the last word stands behind the chunk and is cut off.
            let rest := and(length, 31)
            if rest { seen := or(seen, shr(shl(3, sub(32, rest)), calldataload(sub(end, rest)))) }
        }
        uint256 ones = 0x0101010101010101010101010101010101010101010101010101010101010101;
        if (seen & ~ones != 0) revert IReferee.MalformedBools(c);
    }
}
