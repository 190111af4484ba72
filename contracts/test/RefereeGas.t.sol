// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Referee} from "../src/Referee.sol";
import {IReferee} from "../src/interfaces/IReferee.sol";
import {Commitments} from "../src/libraries/Commitments.sol";
import {RefereeBase} from "./support/RefereeBase.sol";

/// @notice Gas of judging one leaf, by kind, as `make snapshot` records it: a body of 2^11 instructions and operands of
/// 2^20 elements, as in a real model, with one whole chunk opened for each operand. Only the call is metered. (A
/// transaction adds 21000 and its calldata.)
contract RefereeGasTest is RefereeBase {
    uint8 private constant BODY_DEPTH = 11;
    uint256 private constant CHUNK_DEPTH = 12;

    function setUp() public override {
        referee = new Referee();
    }

    function _access(uint32 value, int64 stride) private pure returns (bytes memory) {
        return abi.encodePacked(value, int64(0), stride);
    }

    /// @dev Operands of value 0 and 1 over 2^20 elements.
    function _binary(uint8 opcode, uint8 func, uint8 dtype) private pure returns (bytes memory) {
        bytes memory head = abi.encodePacked(opcode, func, dtype, uint8(1), uint8(0), uint8(2), uint64(1 << 20));
        return abi.encodePacked(head, _access(0, 1), _access(1, 1), uint16(0));
    }

    function _unary(uint8 opcode, uint8 func, uint8 dtype) private pure returns (bytes memory) {
        bytes memory head = abi.encodePacked(opcode, func, dtype, uint8(1), uint8(0), uint8(1), uint64(1 << 20));
        return abi.encodePacked(head, _access(0, 1), uint16(0));
    }

    /// @dev One element, `terms` terms that lie side by side.
    function _reduction(uint8 func, uint8 operands, uint64 terms) private pure returns (bytes memory data) {
        data = abi.encodePacked(uint8(3), func, uint8(func == 2 ? 1 : 0), uint8(0), uint8(1), operands, terms);
        for (uint32 k = 0; k < operands; ++k) {
            data = abi.encodePacked(data, _access(k, 1));
        }
        return abi.encodePacked(data, uint16(0));
    }

    /// @dev Siblings that are no real tree's, and the root that they lead to: gas is the same.
    function _path(uint256 depth) private pure returns (bytes32[] memory siblings) {
        siblings = new bytes32[](depth);
        for (uint256 k = 0; k < depth; ++k) {
            siblings[k] = keccak256(abi.encode(depth, k));
        }
    }

    function _fold(bytes32 node, uint256 position, bytes32[] memory siblings) private pure returns (bytes32) {
        for (uint256 k = 0; k < siblings.length; ++k) {
            bytes32 s = siblings[k];
            bool right = (position >> k) & 1 == 1;
            node = sha256(right ? abi.encodePacked("tb.node.", s, node) : abi.encodePacked("tb.node.", node, s));
        }
        return node;
    }

    /// @dev f32 values between 1 and 2, of both signs.
    function _data() private pure returns (bytes memory data) {
        data = new bytes(512);
        for (uint256 k = 0; k < 256; ++k) {
            uint256 r = uint256(keccak256(abi.encode(k)));
            data[4 * k] = bytes1(uint8(r));
            data[4 * k + 1] = bytes1(uint8(r >> 8));
            data[4 * k + 2] = bytes1(uint8(r >> 16) | 0x80);
            data[4 * k + 3] = bytes1(uint8(r >> 24) & 0x80 | 0x3f);
        }
    }

    function _judge(bytes memory instruction, uint256 operands, uint64 leaf, bytes memory previous) private view {
        vm.pauseGasMetering();
        IReferee.Context memory c;
        IReferee.Proof memory p;
        _replace(c, p, instruction);
        (c.depth, c.position, c.step) = (BODY_DEPTH, 9, 3);
        p.tensors = new IReferee.TensorOpening[](operands);
        p.chunks = new IReferee.ChunkOpening[](operands);
        bytes32[] memory chunkPath = _path(CHUNK_DEPTH);
        bytes32 chunkRoot = _fold(sha256(abi.encodePacked("tb.chunk", _data())), 0, chunkPath);
        bytes32 id = Commitments.tensorId(0, abi.encodePacked(uint64(1 << 20)), chunkRoot);
        bytes32[] memory path = _path(BODY_DEPTH);
        path[0] = id; // both operands are the same tensor: each is the other's sibling
        c.bodyRoot = _fold(id, 0, path);
        for (uint32 k = 0; k < operands; ++k) {
            p.tensors[k].value = k;
            p.tensors[k].dims = new uint64[](1);
            p.tensors[k].dims[0] = 1 << 20;
            (p.tensors[k].chunkRoot, p.tensors[k].siblings) = (chunkRoot, path);
            (p.chunks[k].tensor, p.chunks[k].data, p.chunks[k].siblings) = (uint8(k), _data(), chunkPath);
        }
        c.target = IReferee.Target.ELEMENT;
        if (leaf != 0) _terms(c, p, leaf, previous);
        bytes memory data = abi.encodeCall(IReferee.judge, (c, p));
        vm.resumeGasMetering();
        (bool ok, bytes memory answer) = address(referee).staticcall(data);
        vm.pauseGasMetering();
        assertTrue(ok && answer.length == 32, "judged");
    }

    function _terms(IReferee.Context memory c, IReferee.Proof memory p, uint64 leaf, bytes memory previous)
        private
        pure
    {
        (c.target, c.termsLeaf) = (IReferee.Target.TERMS, leaf);
        p.previous = previous;
        p.siblings = _path(8); // 192 leaves
        c.accumulatorRoot = _fold(sha256(abi.encodePacked("tb.accum", previous)), leaf - 1, p.siblings);
    }

    function test_gasElementOfAdd() public view {
        _judge(_binary(2, 1, 0), 2, 0, "");
    }

    function test_gasElementOfDiv() public view {
        _judge(_binary(2, 4, 0), 2, 0, "");
    }

    function test_gasElementOfSqrt() public view {
        _judge(_unary(2, 5, 0), 1, 0, "");
    }

    function test_gasElementOfSumOf4() public view {
        _judge(_reduction(0, 1, 4), 1, 0, "");
    }

    function test_gasLeafOfProducts() public view {
        _judge(_reduction(0, 2, 768), 2, 5, new bytes(97));
    }

    function test_gasLeafOfSum() public view {
        _judge(_reduction(0, 1, 768), 1, 5, new bytes(97));
    }

    function test_gasLeafOfMax() public view {
        _judge(_reduction(1, 1, 768), 1, 5, hex"3f800000");
    }

    function test_gasLeafOfArgmax() public view {
        _judge(_reduction(2, 1, 768), 1, 5, hex"3f8000000000000000000002");
    }

    function test_gasReadAnInstruction() public view {
        vm.pauseGasMetering();
        bytes memory data = abi.encodeCall(IReferee.describe, (_reduction(0, 2, 768)));
        vm.resumeGasMetering();
        (bool ok,) = address(referee).staticcall(data);
        vm.pauseGasMetering();
        assertTrue(ok, "described");
    }
}
