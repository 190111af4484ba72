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
/// Of a tensor's chunks the first brings all siblings. The path of a later one meets the first's at a node whose one child
/// is above this chunk and whose other is above the first: the child here is a sibling that the first has brought.
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
            _firstOf(o.values, t, value); // (4)
            (o.values[t], o.dtypes[t]) = (value, dtype);
        }
        o.keys = new uint256[](chunks.length);
        o.dataAt = new uint256[](chunks.length);
        for (uint256 c = 0; c < chunks.length; ++c) {
            _verifyChunk(o, c, tensors, chunks);
        }
    }

    /// @dev Bits of element `element` of the value that operand number `operand` reads. Reverts if it is not open.
    function read(Operands memory o, uint256 operand, uint256 value, uint256 dtype, int256 element)
        internal
        pure
        returns (uint256)
    {
        uint256 tensor = _find(o, operand, value, element);
        _requireDtype(o, operand, tensor, dtype);
        uint256 size = Isa.size(dtype);
        // INVARIANT: the element lies inside the tensor. (SAFETY: dataBytes <= 2^43; what is negative is above.)
        if (uint256(element) >= _at(o.dataBytes, tensor) / size) _missing(operand, element);
        unchecked {
            uint256 offset = uint256(element) * size;
            uint256 key = tensor << 64 | offset / Isa.CHUNK_BYTES;
            uint256 count = o.keys.length;
            for (uint256 c = 0; c < count; ++c) {
                if (_at(o.keys, c) != key) continue;
                return _canonical(dtype, load(dtype, _at(o.dataAt, c) + offset % Isa.CHUNK_BYTES));
            }
        }
        _missing(operand, element);
    }

    /// @dev An f32 NaN is read as the one NaN: a payload is no reason to refuse, and may not influence anything.
    function _canonical(uint256 dtype, uint256 bits) private pure returns (uint256) {
        return dtype == Isa.F32 ? Float32.canonical(bits) : bits;
    }

    /// @dev Reverts if the value that an operand reads is open with another dtype. (If it is not open, that is
    /// found where it is read; an element that is not needed need not be open.)
    function requireType(Operands memory o, uint256 operand, uint256 value, uint256 dtype) internal pure {
        uint256 count = o.values.length;
        for (uint256 t = 0; t < count; ++t) {
            if (_at(o.values, t) == value) _requireDtype(o, operand, t, dtype);
        }
    }

    /// @dev INVARIANT: the operand is of the dtype that the instruction needs.
    function _requireDtype(Operands memory o, uint256 operand, uint256 tensor, uint256 dtype) private pure {
        uint256 found = _at(o.dtypes, tensor);
        if (found != dtype) revert IReferee.WrongOperandType(operand, uint8(dtype), uint8(found));
    }

    /// @dev dtype of the value that operand number `operand` reads. Reverts if its tensor is not open.
    function dtypeOf(Operands memory o, uint256 operand, uint256 value, int256 element)
        internal
        pure
        returns (uint256)
    {
        return _at(o.dtypes, _find(o, operand, value, element));
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
        uint256 count = o.values.length;
        for (uint256 t = 0; t < count; ++t) {
            if (_at(o.values, t) == value) return t;
        }
        _missing(operand, element);
    }

    function _missing(uint256 operand, int256 element) private pure {
        revert IReferee.MissingElement(operand, element);
    }

    /// @dev SAFETY: k is below the list's length everywhere: an index found in a list of the same length, or a loop's.
    function _at(uint256[] memory list, uint256 k) private pure returns (uint256 item) {
        assembly ("memory-safe") {
            item := mload(add(add(list, 0x20), shl(5, k)))
        }
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
        IReferee.ChunkOpening[] calldata chunks
    ) private view {
        IReferee.ChunkOpening calldata chunk = chunks[c];
        uint256 t = chunk.tensor;
        // INVARIANT: the tensor it belongs to is open.
        if (t >= tensors.length) revert IReferee.UnknownTensor(t);
        uint256 dataBytes = _at(o.dataBytes, t);
        uint256 count = Commitments.chunkCount(dataBytes);
        // INVARIANT: a chunk of the tensor.
        if (chunk.chunkIndex >= count) revert IReferee.ChunkOutOfRange(chunk.chunkIndex, count);
        bytes calldata data = chunk.data;
        uint256 length = Commitments.chunkLength(dataBytes, chunk.chunkIndex);
        // INVARIANT: the length is what the shape says, so that no element is read behind the data.
        if (data.length != length) revert IReferee.WrongChunkLength(length, data.length);
        (bytes32 root, uint256 depth) = (tensors[t].chunkRoot, Trees.depthOf(count));
        uint256 key = t << 64 | chunk.chunkIndex;
        uint256 first = _firstOf(o.keys, c, key);
        if (first != c) {
            // SAFETY: another index below 2^depth, so that the lower levels are fewer than the siblings of the first.
            depth = Float32.bitLength(_at(o.keys, first) ^ key) - 1;
            root = chunks[first].siblings[depth];
        }
        uint256 position = chunk.chunkIndex & ((1 << depth) - 1);
        Trees.verify(root, depth, position, Commitments.chunkLeaf(data), chunk.siblings); // (2)
        uint256 pos;
        assembly ("memory-safe") {
            pos := data.offset
        }
        if (_at(o.dtypes, t) == Isa.BOOL) _requireBools(c, pos, length); // (3)
        (o.keys[c], o.dataAt[c]) = (key, pos);
    }

    /// @dev INVARIANT: (4) the key is not among the first `count`.
    /// @return first the number of the first of them with the same bits above the 64th, or `count`
    function _firstOf(uint256[] memory keys, uint256 count, uint256 key) private pure returns (uint256 first) {
        first = count;
        for (uint256 k = count; k != 0;) {
            unchecked {
                --k;
            }
            uint256 other = _at(keys, k);
            if (other == key) revert IReferee.OpenedTwice(count);
            if ((other ^ key) >> 64 == 0) first = k;
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
