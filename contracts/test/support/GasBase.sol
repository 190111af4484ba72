// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Referee} from "../../src/Referee.sol";
import {Transcendentals} from "../../src/Transcendentals.sol";
import {IGame} from "../../src/interfaces/IGame.sol";
import {IReferee} from "../../src/interfaces/IReferee.sol";
import {GameId} from "../../src/interfaces/IGame.sol";
import {Commitments} from "../../src/libraries/Commitments.sol";
import {Isa} from "../../src/libraries/Isa.sol";
import {RefereeBase} from "./RefereeBase.sol";

/// @dev A tensor of a real model's size of which some chunks are open.
struct Operand {
    uint8 dtype;
    /// Chunks opened, 0 ... 4, each 2^17 chunks from the next; or 255 for a tensor of one element.
    uint8 chunks;
    /// Bits of the first element of each opened chunk, the rest being random.
    uint64 first;
}

/// @notice Prices the proof of a leaf as a transaction: 21000, calldata and execution, by EIP-7623 not less than the
/// calldata's floor. The metered part of a test is exactly that price, so that the snapshot shows it.
///
/// Sizes: a program of 2^13 body instructions; operands of 2^19 chunks of 512 random bytes (2^26 f32), which is 256 MiB.
/// Siblings are random digests, no real tree's.
abstract contract GasBase is RefereeBase {
    uint256 internal constant BODY_DEPTH = 13;
    uint256 internal constant CHUNK_DEPTH = 19;
    uint256 internal constant TERMS_DEPTH = 22;
    uint64 internal constant CHUNK_DISTANCE = 1 << 17;
    /// What the board does of its own in a `prove` that the challenger wins: it checks what was opened and the seal,
    /// reads and writes the game and the job, and credits two accounts that had nothing (22,100 each); and what it
    /// takes to hand on each word of calldata. `GameProofGasTest` measures both.
    uint256 internal constant BOARD = 107_200;
    /// Of a leaf of the value tree, whose context takes more slots of the job.
    uint256 internal constant BOARD_FOR_A_VALUE = 120_900;
    uint256 internal constant HAND_OVER = 9;
    /// Of an f32 and of an i64 operand: elements from the first of a chunk to the first of the next opened one.
    int64 internal constant F32_STRIDE = int64(CHUNK_DISTANCE) * 128;
    int64 internal constant I64_STRIDE = int64(CHUNK_DISTANCE) * 64;

    function setUp() public virtual override {
        referee = new Referee(new Transcendentals());
    }

    function _path(uint256 depth, uint256 salt) internal pure returns (bytes32[] memory siblings) {
        siblings = new bytes32[](depth);
        for (uint256 k = 0; k < depth; ++k) {
            siblings[k] = keccak256(abi.encode(depth, k, salt));
        }
    }

    function _fold(bytes32 node, uint256 position, bytes32[] memory siblings) internal pure returns (bytes32) {
        for (uint256 k = 0; k < siblings.length; ++k) {
            bytes32 s = siblings[k];
            bool right = (position >> k) & 1 == 1;
            node = sha256(right ? abi.encodePacked("tb.node.", s, node) : abi.encodePacked("tb.node.", node, s));
        }
        return node;
    }

    /// @dev Root of a tree of `depth` in which `leaves` (four of them) begin the quarters, and the siblings of each.
    function _quarters(bytes32[] memory leaves, uint256 depth, uint256 salt)
        internal
        pure
        returns (bytes32 root, bytes32[][] memory siblings)
    {
        siblings = new bytes32[][](4);
        bytes32[] memory tops = new bytes32[](4);
        for (uint256 k = 0; k < 4; ++k) {
            siblings[k] = _path(depth, salt + k);
            tops[k] = leaves[k];
            for (uint256 d = 0; d + 2 < depth; ++d) {
                tops[k] = sha256(abi.encodePacked("tb.node.", tops[k], siblings[k][d]));
            }
        }
        bytes32[2] memory halves;
        for (uint256 h = 0; h < 2; ++h) {
            halves[h] = sha256(abi.encodePacked("tb.node.", tops[2 * h], tops[2 * h + 1]));
        }
        for (uint256 k = 0; k < 4; ++k) {
            (siblings[k][depth - 2], siblings[k][depth - 1]) = (tops[k ^ 1], halves[1 - k / 2]);
        }
        root = sha256(abi.encodePacked("tb.node.", halves[0], halves[1]));
    }

    /// @dev Random bytes behind the first element; bools are random bits.
    function _random(uint8 dtype, uint64 first, uint256 salt) private pure returns (bytes memory data) {
        data = new bytes(Isa.CHUNK_BYTES);
        for (uint256 k = 0; k < data.length; ++k) {
            uint8 r = uint8(uint256(keccak256(abi.encode(k, salt))));
            data[k] = bytes1(dtype == Isa.BOOL ? r % 2 : r);
        }
        for (uint256 k = 0; k < Isa.size(dtype); ++k) {
            data[k] = bytes1(uint8(first >> (8 * k)));
        }
    }

    /// @dev Opens value t, and adds its chunks to `chunks` from `count` on.
    function _tensor(Operand memory operand, uint8 t, IReferee.ChunkOpening[] memory chunks, uint256 count)
        private
        pure
        returns (IReferee.TensorOpening memory tensor)
    {
        (tensor.value, tensor.dtype) = (uint32(t) << uint32(BODY_DEPTH - 2), operand.dtype);
        if (operand.chunks == 255) {
            bytes memory data = slice(_random(operand.dtype, operand.first, t), 0, Isa.size(operand.dtype));
            tensor.chunkRoot = sha256(abi.encodePacked("tb.chunk", data));
            (chunks[count].tensor, chunks[count].data) = (t, data);
            return tensor;
        }
        tensor.dims = new uint64[](2);
        (tensor.dims[0], tensor.dims[1]) =
        (4096, uint64((Isa.CHUNK_BYTES << CHUNK_DEPTH) / 4096 / Isa.size(tensor.dtype)));
        bytes32[] memory leaves = new bytes32[](4);
        for (uint256 c = 0; c < 4; ++c) {
            leaves[c] = sha256(abi.encodePacked("tb.chunk", _random(operand.dtype, operand.first, 9 * t + c)));
        }
        bytes32[][] memory siblings;
        (tensor.chunkRoot, siblings) = _quarters(leaves, CHUNK_DEPTH, 100 * t);
        for (uint256 c = 0; c < operand.chunks; ++c) {
            IReferee.ChunkOpening memory chunk = chunks[count + c];
            (chunk.tensor, chunk.chunkIndex) = (t, uint64(c) * CHUNK_DISTANCE);
            chunk.siblings = _belowFirst(siblings[c], 0, chunk.chunkIndex);
            chunk.data = _random(operand.dtype, operand.first, 9 * t + c);
        }
    }

    function _proof(bytes memory instruction, Operand[] memory operands)
        internal
        pure
        returns (IReferee.Context memory c, IReferee.Proof memory p)
    {
        _replace(c, p, instruction);
        (c.target, c.depth, c.rounding, c.position, c.step) =
        (IReferee.Target.ELEMENT, uint8(BODY_DEPTH), 32, uint64((1 << BODY_DEPTH) - 9), 1000);
        uint256 count = 0;
        for (uint256 t = 0; t < operands.length; ++t) {
            count += operands[t].chunks == 255 ? 1 : operands[t].chunks;
        }
        (p.tensors, p.chunks) = (new IReferee.TensorOpening[](operands.length), new IReferee.ChunkOpening[](count));
        bytes32[] memory ids = new bytes32[](4);
        count = 0;
        for (uint256 t = 0; t < operands.length; ++t) {
            p.tensors[t] = _tensor(operands[t], uint8(t), p.chunks, count);
            count += operands[t].chunks == 255 ? 1 : operands[t].chunks;
            bytes memory dims;
            for (uint256 d = 0; d < p.tensors[t].dims.length; ++d) {
                dims = abi.encodePacked(dims, p.tensors[t].dims[d]);
            }
            ids[t] = Commitments.tensorId(operands[t].dtype, dims, p.tensors[t].chunkRoot);
        }
        bytes32[][] memory siblings;
        (c.bodyRoot, siblings) = _quarters(ids, BODY_DEPTH, 7777);
        for (uint256 t = 0; t < operands.length; ++t) {
            p.tensors[t].siblings = siblings[t];
        }
    }

    /// @dev The price of proving an element.
    function _element(bytes memory instruction, Operand[] memory operands) internal view returns (uint256) {
        vm.pauseGasMetering();
        (IReferee.Context memory c, IReferee.Proof memory p) = _proof(instruction, operands);
        return _price(c, p, 6);
    }

    function _leafProof(bytes memory instruction, Operand[] memory operands, bytes memory previous)
        internal
        pure
        returns (IReferee.Context memory c, IReferee.Proof memory p)
    {
        (c, p) = _proof(instruction, operands);
        (c.target, c.termsLeaf, p.previous) = (IReferee.Target.TERMS, 1, previous);
        p.siblings = _path(TERMS_DEPTH, 5);
        c.accumulatorRoot = _fold(sha256(abi.encodePacked("tb.accum", previous)), 0, p.siblings);
    }

    /// @dev The price of proving leaf 1 of 2^22 of an accumulator tree.
    function _leaf(bytes memory instruction, Operand[] memory operands, bytes memory previous)
        internal
        view
        returns (uint256)
    {
        vm.pauseGasMetering();
        (IReferee.Context memory c, IReferee.Proof memory p) = _leafProof(instruction, operands, previous);
        return _price(c, p, 7);
    }

    /// @dev Meters the call of the referee, and as much gas besides as makes it a transaction of the board.
    /// `shown`: how many 32-byte words `prove` is given again of what was opened before.
    function _price(IReferee.Context memory c, IReferee.Proof memory p, uint256 shown) internal view returns (uint256) {
        bytes memory asked = abi.encodeCall(IReferee.judge, (c, p));
        bytes32 word_ = keccak256("any");
        bytes memory transaction = abi.encodeCall(IGame.prove, (GameId.wrap(word_), p, word_, _path(shown, 3)));
        uint256 tokens = 0;
        for (uint256 k = 0; k < transaction.length; ++k) {
            tokens += transaction[k] == 0 ? 1 : 4;
        }
        address target = address(referee);
        uint256 board = c.target == IReferee.Target.VALUE ? BOARD_FOR_A_VALUE : BOARD;
        board += HAND_OVER * transaction.length / 32;
        vm.resumeGasMetering();
        uint256 before = gasleft();
        bool ok;
        uint256 size;
        assembly ("memory-safe") {
            ok := staticcall(gas(), target, add(asked, 0x20), mload(asked), 0, 0x20)
            size := returndatasize()
        }
        uint256 used = before - gasleft();
        uint256 standard = 21000 + 4 * tokens + used + board;
        uint256 floor = 21000 + 10 * tokens;
        uint256 price = standard > floor ? standard : floor;
        uint256 end = before - price;
        while (gasleft() > end) {}
        vm.pauseGasMetering();
        assertTrue(ok && size == 32, "judged");
        return price;
    }

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
}
