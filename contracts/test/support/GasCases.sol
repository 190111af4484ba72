// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../../src/interfaces/IReferee.sol";
import {Isa} from "../../src/libraries/Isa.sol";
import {Tags} from "../../src/libraries/Tags.sol";
import {GasBase, Operand} from "./GasBase.sol";

/// @notice Prices of proofs about instructions of every kind, of a real model's size.
abstract contract GasCases is GasBase {
    /// Of an f32 and of an i64 operand: elements from the first of a chunk to the first of the next opened one.
    int64 internal constant F32_STRIDE = int64(CHUNK_DISTANCE) * 128;
    int64 internal constant I64_STRIDE = int64(CHUNK_DISTANCE) * 64;

    /// @dev A body instruction's header and its dims: (4096, 16384) of output, 2^24 terms of a reduction.
    function _head(uint8 opcode, uint8 func, uint8 dtype, bool reduces, uint256 operands)
        internal
        pure
        returns (bytes memory head)
    {
        head = abi.encodePacked(opcode, func, dtype, uint8(2), uint8(reduces ? 1 : 0), uint8(operands));
        head = abi.encodePacked(head, uint64(4096), uint64(16384));
        if (reduces) head = abi.encodePacked(head, uint64(1 << 24));
    }

    /// @dev An operand's access; value k stands at the k-th quarter of the body.
    function _access(bytes memory data, uint256 k, int64 offset) internal pure returns (bytes memory) {
        return abi.encodePacked(data, uint32(k << (BODY_DEPTH - 2)), offset, int64(16384), int64(1));
    }

    function _operands(uint256 count, uint8 dtype, uint8 chunks, uint64 first)
        internal
        pure
        returns (Operand[] memory o)
    {
        o = new Operand[](count);
        for (uint256 k = 0; k < count; ++k) {
            o[k] = Operand({dtype: dtype, chunks: chunks, first: first});
        }
    }

    function _map(uint8 func, uint8 dtype, Operand[] memory operands) internal view returns (uint256) {
        bytes memory data = _head(2, func, dtype, false, operands.length);
        for (uint256 k = 0; k < operands.length; ++k) {
            data = _access(data, k, 0);
        }
        return _element(abi.encodePacked(data, uint16(0)), operands);
    }

    /// @dev A function of floats, at 1.5 or another number.
    function _float(uint8 func, uint256 count, uint64 x) internal view returns (uint256) {
        return _map(func, func >= Isa.LT ? 2 : 0, _operands(count, 0, 1, x));
    }

    function _integer(uint8 func, uint256 count) internal view returns (uint256) {
        return _map(func, func >= Isa.LT && func <= Isa.NE ? 2 : 1, _operands(count, 1, 1, 0x8000000000000001));
    }

    function _logic(uint8 func, uint256 count) internal view returns (uint256) {
        return _map(func, 2, _operands(count, 2, 1, 1));
    }

    /// @dev A reduction of 2^24 terms at its second leaf; each term stands in a chunk of its own.
    function _reduce(uint8 func, uint8 dtype, Operand[] memory operands, bytes memory previous)
        internal
        view
        returns (uint256)
    {
        return _leaf(_reduction(func, dtype, operands), operands, previous);
    }

    function _reduction(uint8 func, uint8 dtype, Operand[] memory operands) internal pure returns (bytes memory data) {
        data = _head(3, func, dtype, true, operands.length);
        int64 stride = operands[0].dtype == 0 ? F32_STRIDE : I64_STRIDE;
        for (uint256 k = 0; k < operands.length; ++k) {
            data = abi.encodePacked(_access(data, k, -4 * stride), stride);
        }
        return abi.encodePacked(data, uint16(0));
    }

    /// @dev A sum that is negative, so that all of its words are to be carried through.
    function _sum() internal pure returns (bytes memory) {
        return abi.encodePacked(uint8(0), type(uint256).max, keccak256("1"), keccak256("2"));
    }

    function _where(uint8 dtype) internal view returns (uint256) {
        Operand[] memory operands = _operands(3, dtype, 1, 1);
        operands[0].dtype = 2;
        return _map(27, dtype, operands);
    }

    /// @dev A sum of products whose terms stand side by side: one chunk an operand, as in a matmul of weights' rows.
    function _sideBySide() internal view returns (uint256) {
        Operand[] memory operands = _operands(2, 0, 1, 0x3fc00001);
        bytes memory data = abi.encodePacked(_access(_head(3, 0, 0, true, 2), 0, -4), int64(1));
        data = abi.encodePacked(_access(data, 1, -4), int64(1), uint16(0));
        return _leaf(data, operands, _sum());
    }

    /// @dev A reduction of 4 terms, which is judged as an element, rounding included.
    function _few() internal view returns (uint256) {
        bytes memory data = abi.encodePacked(uint8(3), uint16(0), uint8(2), uint8(1), uint8(2));
        data = abi.encodePacked(data, uint64(4096), uint64(16384), uint64(4));
        data = abi.encodePacked(_access(data, 0, 0), F32_STRIDE);
        data = abi.encodePacked(_access(data, 1, 0), F32_STRIDE, uint16(0));
        return _element(data, _operands(2, 0, 4, 0xbfc00001));
    }

    /// @dev An index of 1, which is in the table's second opened chunk.
    function _gather(uint8 dtype) internal view returns (uint256) {
        Operand[] memory operands = _operands(2, dtype, 1, 1);
        (operands[0].chunks, operands[1].dtype) = (2, 1);
        int64 stride = int64(CHUNK_DISTANCE) * int64(uint64(Isa.CHUNK_BYTES / Isa.size(dtype)));
        bytes memory data = _access(_access(_head(4, 0, dtype, false, 2), 0, 0), 1, 0);
        return _element(abi.encodePacked(data, uint16(16), stride, uint64(50_257)), operands);
    }

    /// @dev Four indices in four chunks, which all match, and their sources.
    function _scatter() internal view returns (uint256) {
        Operand[] memory operands = _operands(2, 0, 4, 0xbfc00001);
        (operands[1].dtype, operands[1].first) = (1, 0);
        bytes memory data = _head(5, 0, 0, true, 2);
        data = abi.encodePacked(data, uint32(0), -4 * F32_STRIDE, int64(0), int64(1), F32_STRIDE);
        data = abi.encodePacked(data, uint32(1 << (BODY_DEPTH - 2)), -4 * I64_STRIDE, int64(0), int64(0), I64_STRIDE);
        return _leaf(abi.encodePacked(data, uint16(16), int64(1), int64(0)), operands, _sum());
    }

    /// @dev Inside the box of function 0 and outside that of function 1: each reads an operand.
    function _window(uint8 func, uint8 dtype) internal view returns (uint256) {
        bytes memory data = _access(_head(6, func, dtype, false, func + 1), 0, 0);
        if (func == 1) data = _access(data, 1, 0);
        uint64 lo = func == 1 ? 1 : 0;
        bytes memory box = abi.encodePacked(lo, uint64(4096), uint64(1), lo, uint64(16384), uint64(1));
        data = abi.encodePacked(data, uint16(func == 1 ? 48 : 56), box);
        if (func == 0) data = abi.encodePacked(data, uint64(0));
        return _element(data, _operands(func + 1, dtype, 1, 1));
    }

    function _iota() internal view returns (uint256) {
        bytes memory data = abi.encodePacked(_head(7, 0, 1, false, 0), uint16(24), int64(5), int64(1 << 62), int64(-9));
        return _element(data, new Operand[](0));
    }

    /// @dev `random` or `shuffle`: operands of rank 0 but for the index that a shuffle moves.
    function _drawn(uint8 opcode, bytes memory params, uint256 count, uint64 seed) internal view returns (uint256) {
        Operand[] memory operands = _operands(count, 1, 255, seed);
        bytes memory data = _head(opcode, 0, opcode == 8 ? 0 : 1, false, count);
        for (uint32 k = 0; k < count; ++k) {
            if (opcode == 9 && k == 0) operands[0].chunks = 1;
            data = abi.encodePacked(data, k << uint32(BODY_DEPTH - 2), int64(0), int64(0), int64(0));
        }
        return _element(abi.encodePacked(data, params), operands);
    }

    /// @dev The longest walk that a search over 14 million seeds found: see LONG_WALKS in tests/vectors/inputs.py.
    function _longWalk() internal view returns (uint256) {
        Operand[] memory operands = _operands(3, 1, 255, 3);
        (operands[0].chunks, operands[0].first, operands[1].first) = (1, 1 << 19, 4603285);
        bytes memory data = _head(9, 0, 1, false, 3);
        for (uint32 k = 0; k < 3; ++k) {
            data = abi.encodePacked(data, k << uint32(BODY_DEPTH - 2), int64(0), int64(0), int64(0));
        }
        return _element(abi.encodePacked(data, uint16(12), uint64((1 << 20) + 1), uint32(1)), operands);
    }

    function _value(bytes memory instruction)
        internal
        pure
        returns (IReferee.Context memory c, IReferee.Proof memory p)
    {
        (c, p) = _proof(instruction, new Operand[](0));
        c.target = IReferee.Target.VALUE;
    }

    function _scalar(bytes memory head, bytes memory bits) internal view returns (uint256) {
        vm.pauseGasMetering();
        (IReferee.Context memory c, IReferee.Proof memory p) = _value(abi.encodePacked(head, bits));
        return _price(c, p, 5);
    }

    /// @dev `source` of state (2) or data (3), slot 700 of 1024; the record before stands in a run of 2^13 checkpoints.
    function _slotted(uint8 func) internal view returns (uint256) {
        vm.pauseGasMetering();
        bytes memory name = "transformer.h.11.attn.c_proj.weight";
        bytes memory data = abi.encodePacked(uint8(1), func, uint8(0), uint8(2), uint16(0), uint64(768), uint64(768));
        data = abi.encodePacked(data, uint16(6 + name.length), uint32(700), uint16(name.length), name);
        (IReferee.Context memory c, IReferee.Proof memory p) = _value(data);
        (c.stateCount, c.dataCount) = (1024, 1024);
        IReferee.Witness memory w = p.witness;
        (w.tensorId, w.siblings) = (keccak256("id"), _path(10, 1));
        bytes8 tag = func == 2 ? Tags.STATE_ENTRY : Tags.DATA_ENTRY;
        bytes32 root = _fold(sha256(abi.encodePacked(tag, uint16(name.length), name, w.tensorId)), 700, w.siblings);
        if (func == 3) {
            c.dataRoot = root;
            return _price(c, p, 5);
        }
        (w.step, w.stateRoot, w.lossBits, w.recordSiblings) = (999, root, 0x3f800000, _path(13, 2));
        (c.recordDepth, c.recordPosition) = (13, 998);
        bytes32 record = sha256(abi.encodePacked("tb.recrd", w.step, w.stateRoot, w.lossBits, w.logRoot));
        c.recordRoot = _fold(record, 998, w.recordSiblings);
        return _price(c, p, 5);
    }

    function _commit() internal view returns (uint256) {
        vm.pauseGasMetering();
        bytes memory name = "transformer.h.11.attn.c_proj.weight";
        bytes memory data = abi.encodePacked(uint8(10), uint8(0), uint8(0), uint8(2), uint8(0), uint8(1));
        data = abi.encodePacked(data, uint64(768), uint64(768), uint32(5), int64(0), int64(768), int64(1));
        data = abi.encodePacked(data, uint16(6 + name.length), uint32(700), uint16(name.length), name);
        (IReferee.Context memory c, IReferee.Proof memory p) = _value(data);
        c.position = uint64(1 << BODY_DEPTH) + 700;
        p.siblings = _path(BODY_DEPTH + 1, 1);
        c.programRoot = _fold(c.instructionLeaf, c.position, p.siblings);
        (p.witness.tensorId, p.witness.siblings) = (keccak256("id"), _path(BODY_DEPTH, 2));
        c.bodyRoot = _fold(p.witness.tensorId, 5, p.witness.siblings);
        return _price(c, p, 4);
    }
}
