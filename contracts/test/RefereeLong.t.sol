// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../src/interfaces/IReferee.sol";
import {Commitments} from "../src/libraries/Commitments.sol";
import {Exact, ExactSum} from "../src/libraries/ExactSum.sol";
import {Trees} from "../src/libraries/Trees.sol";
import {GasBase} from "./support/GasBase.sol";

/// @notice Reductions of millions and billions of terms, at their first, a middle and the last, shorter leaf: trees of
/// which one path is real, and a tensor of which one chunk is.
contract RefereeLongTest is GasBase {
    using ExactSum for Exact;

    function _data() private pure returns (bytes memory data) {
        for (uint256 k = 0; k < 16; ++k) {
            data = abi.encodePacked(data, keccak256(abi.encode(k)) & ~bytes32(uint256(1 << 30 | 1 << 6) << 7 * 32));
        }
    }

    function _leBits(bytes memory data, uint256 e) private pure returns (uint256) {
        return _bits(0, data, e);
    }

    /// @dev sum of one f32 operand over these reduction dims, row-major, of a tensor of that many elements.
    function _sumOver(uint64[] memory dims) private pure returns (bytes memory data) {
        data = abi.encodePacked(uint8(3), uint16(0), uint8(0), uint8(dims.length), uint8(1));
        for (uint256 d = 0; d < dims.length; ++d) {
            data = abi.encodePacked(data, dims[d]);
        }
        data = abi.encodePacked(data, uint32(0), int64(0));
        for (uint256 d = 0; d < dims.length; ++d) {
            int64 stride = 1;
            for (uint256 e = d + 1; e < dims.length; ++e) {
                stride *= int64(dims[e]);
            }
            data = abi.encodePacked(data, stride);
        }
        return abi.encodePacked(data, uint16(0));
    }

    /// @dev Judges leaf `leaf` of a sum of `terms` terms against the sum of the same terms, and the root's side of it.
    function _judgeLeaf(uint64[] memory dims, uint256 terms, uint256 leaf) private view {
        IReferee.Context memory c;
        IReferee.Proof memory p;
        _replace(c, p, _sumOver(dims));
        (c.target, c.depth, c.rounding, c.position, c.step) = (IReferee.Target.TERMS, uint8(BODY_DEPTH), 32, 9, 3);
        c.termsLeaf = uint64(leaf);
        IReferee.Description memory d = referee.describe(p.instruction, 0);
        assertEq(d.termLeaves, (terms + 3) / 4, "leaves");

        // The chunk that holds the leaf's terms, and the tensor.
        bytes memory data = _data();
        uint256 chunkIndex = leaf / 32; // 128 elements of f32 a chunk, 4 a leaf
        uint256 length = Commitments.chunkLength(4 * terms, chunkIndex);
        data = slice(data, 0, length);
        p.chunks = new IReferee.ChunkOpening[](1);
        (p.chunks[0].chunkIndex, p.chunks[0].data) = (uint64(chunkIndex), data);
        p.chunks[0].siblings = _path(Trees.depthOf(Commitments.chunkCount(4 * terms)), 1);
        p.tensors = new IReferee.TensorOpening[](1);
        p.tensors[0].dims = dims;
        p.tensors[0].chunkRoot = _fold(sha256(abi.encodePacked("tb.chunk", data)), chunkIndex, p.chunks[0].siblings);
        bytes memory encodedDims;
        for (uint256 k = 0; k < dims.length; ++k) {
            encodedDims = abi.encodePacked(encodedDims, dims[k]);
        }
        p.tensors[0].siblings = _path(BODY_DEPTH, 2);
        c.bodyRoot = _fold(Commitments.tensorId(0, encodedDims, p.tensors[0].chunkRoot), 0, p.tensors[0].siblings);

        // The accumulator before, and what must come after it.
        Exact memory sum;
        if (leaf != 0) {
            sum.addValue(0xc2280001);
            p.previous = sum.encode();
            p.siblings = _path(Trees.depthOf(d.termLeaves), 3);
            c.accumulatorRoot = _fold(sha256(abi.encodePacked("tb.accum", p.previous)), leaf - 1, p.siblings);
        }
        for (uint256 term = 4 * leaf; term < 4 * leaf + 4 && term < terms; ++term) {
            sum.addValue(_leBits(data, term % 128));
        }
        assertTrue(!sum.notFinite, "finite terms");
        bytes32 expected = sha256(abi.encodePacked("tb.accum", sum.encode()));
        assertEq(referee.judge(c, p), expected, "leaf");
    }

    function _dims(uint64 a, uint64 b) private pure returns (uint64[] memory dims) {
        dims = new uint64[](b == 0 ? 1 : 2);
        dims[0] = a;
        if (b != 0) dims[1] = b;
    }

    /// @dev 2^24 - 1 terms: 2^22 leaves, the last of three terms.
    function test_millionsOfTerms() public view {
        uint256 terms = (1 << 24) - 1;
        uint256[5] memory leaves = [uint256(0), 1, 1 << 21, (1 << 22) - 2, (1 << 22) - 1];
        for (uint256 k = 0; k < leaves.length; ++k) {
            _judgeLeaf(_dims(uint64(terms), 0), terms, leaves[k]);
        }
        _judgeLeaf(_dims(4096, 4096), 1 << 24, (1 << 22) - 1);
    }

    /// @dev 2^32 terms, the most there are, in two dims and in eight.
    function test_billionsOfTerms() public view {
        uint64[] memory eight = new uint64[](8);
        for (uint256 d = 0; d < 8; ++d) {
            eight[d] = 16;
        }
        uint256[4] memory leaves = [uint256(0), 1 << 29, (1 << 30) - 2, (1 << 30) - 1];
        for (uint256 k = 0; k < leaves.length; ++k) {
            _judgeLeaf(_dims(1 << 16, 1 << 16), 1 << 32, leaves[k]);
            _judgeLeaf(eight, 1 << 32, leaves[k]);
        }
    }

    function test_behindTheLastLeaf() public {
        IReferee.Context memory c;
        IReferee.Proof memory p;
        _replace(c, p, _sumOver(_dims(1 << 16, 1 << 16)));
        (c.target, c.rounding, c.termsLeaf) = (IReferee.Target.TERMS, 32, 1 << 30);
        vm.expectRevert(abi.encodeWithSelector(IReferee.LeafOutOfRange.selector, 1 << 30, 1 << 30));
        referee.judge(c, p);
    }

    function test_moreThanTheMostTerms() public {
        bytes memory instruction = _sumOver(_dims(1 << 16, (1 << 16) + 1));
        vm.expectRevert(abi.encodeWithSelector(IReferee.MalformedInstruction.selector, 14));
        referee.describe(instruction, 0);
        instruction = _sumOver(_dims(1 << 33, 1 << 31)); // wraps to 0 in 64 bits
        vm.expectRevert(abi.encodeWithSelector(IReferee.MalformedInstruction.selector, 6));
        referee.describe(instruction, 0);
    }
}
