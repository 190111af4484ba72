// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Transcendentals} from "../../src/Transcendentals.sol";
import {ITranscendentals} from "../../src/interfaces/ITranscendentals.sol";
import {Accumulator, AccumulatorKind, Accumulators} from "../../src/libraries/Accumulators.sol";
import {Commitments} from "../../src/libraries/Commitments.sol";
import {Exact, ExactSum} from "../../src/libraries/ExactSum.sol";
import {Instruction, InstructionCodec} from "../../src/libraries/InstructionCodec.sol";
import {MapFunctions, Scalars} from "../../src/libraries/MapFunctions.sol";
import {Trees} from "../../src/libraries/Trees.sol";

/// @notice What the libraries take from calldata, made callable from tests.
contract TreesHarness {
    function fold(bytes32 leaf, uint256 position, bytes32[] calldata siblings) external view returns (bytes32) {
        return Trees.fold(leaf, position, siblings);
    }

    function foldNodes(bytes32[] calldata nodes) external view returns (bytes32) {
        return Trees.foldNodes(nodes);
    }

    function pad(bytes32 root, uint256 depth, uint256 toDepth) external view returns (bytes32) {
        return Trees.pad(root, depth, toDepth);
    }

    function verify(bytes32 root, uint256 depth, uint256 position, bytes32 leaf, bytes32[] calldata siblings)
        external
        view
    {
        Trees.verify(root, depth, position, leaf, siblings);
    }

    function depthOf(uint256 leaves) external pure returns (uint256) {
        return Trees.depthOf(leaves);
    }

    function chunkLeaf(bytes calldata data) external view returns (bytes32) {
        return Commitments.chunkLeaf(data);
    }

    function instructionLeaf(bytes calldata data) external view returns (bytes32) {
        return Commitments.instructionLeaf(data);
    }

    function entry(bytes8 tag, bytes calldata name, bytes32 id) external view returns (bytes32) {
        return Commitments.entry(tag, name, id);
    }

    /// @dev Of dims that stand in calldata as they are hashed.
    function tensorIdAt(uint256 dtype, bytes calldata dims, bytes32 root) external view returns (bytes32) {
        uint256 pos;
        assembly ("memory-safe") {
            pos := dims.offset
        }
        return Commitments.tensorIdAt(dtype, dims.length / 8, pos, root);
    }
}

/// @notice See `TreesHarness`.
contract CodecHarness {
    using InstructionCodec for Instruction;

    function decode(bytes calldata data) external pure returns (Instruction memory) {
        return InstructionCodec.decode(data);
    }
}

/// @notice See `TreesHarness`.
contract AccumulatorHarness {
    using Accumulators for Accumulator;

    function isCanonical(AccumulatorKind kind, bytes calldata data) external pure returns (bool ok) {
        (ok,) = Accumulators.decode(kind, data);
    }

    function encodeAgain(AccumulatorKind kind, bytes calldata data) external pure returns (bytes memory) {
        (, Accumulator memory a) = Accumulators.decode(kind, data);
        return a.encode();
    }

    /// @dev Records of before ‖ factors ‖ position ‖ after, as in tests/vectors/accumulators.json; each must hold.
    function countTrue(AccumulatorKind kind, bytes calldata cases, uint256 length, uint256 factors)
        external
        pure
        returns (uint256 count)
    {
        uint256 record = 2 * length + 8 * factors + 8;
        for (uint256 pos = 0; pos < cases.length; pos += record) {
            bytes calldata c = cases[pos:pos + record];
            (bool ok, Accumulator memory a) = Accumulators.decode(kind, c[:length]);
            uint256 x = uint64(bytes8(c[length:]));
            uint256 term = uint64(bytes8(c[length + 8 * factors:]));
            if (factors == 2) ExactSum.addProduct(a.sum, x, uint64(bytes8(c[length + 8:])));
            else a.take(x, term);
            if (ok && keccak256(a.encode()) == keccak256(c[record - length:])) ++count;
        }
    }

    /// @dev Records of 97-byte sum ‖ u32 at precision 32 ‖ 31 ‖ ... ‖ 16; each number that is right counts.
    function countRounded(bytes calldata cases) external pure returns (uint256 count) {
        for (uint256 pos = 0; pos < cases.length; pos += 165) {
            (bool ok, Exact memory sum) = ExactSum.decode(cases[pos:pos + 97]);
            for (uint256 k = 0; ok && k < 17; ++k) {
                if (ExactSum.toFloat32(sum, 32 - k) == uint32(bytes4(cases[pos + 97 + 4 * k:]))) ++count;
            }
        }
    }

    /// @dev Records of 97-byte sum ‖ u32 rounding ‖ u32 bits; each number that is right counts.
    function countAlongALog(bytes calldata cases) external pure returns (uint256 count) {
        for (uint256 pos = 0; pos < cases.length; pos += 105) {
            (bool ok, Exact memory sum) = ExactSum.decode(cases[pos:pos + 97]);
            uint256 rounding = uint32(bytes4(cases[pos + 97:]));
            if (ok && ExactSum.toFloat32(sum, rounding) == uint32(bytes4(cases[pos + 101:]))) ++count;
        }
    }
}

/// @notice A scalar function made callable from outside.
contract MapHarness {
    ITranscendentals private immutable TRANSCENDENTALS = new Transcendentals();

    function apply_(uint256 func, uint256 dtype, Scalars calldata scalars, uint256 precision)
        external
        view
        returns (uint256)
    {
        Scalars memory copy = scalars;
        // As when they are read from a tensor: a NaN of any payload is the one NaN.
        for (uint256 k = 0; k < 3; ++k) {
            copy.bits[k] = MapFunctions.normal(copy.dtypes[k], copy.bits[k]);
        }
        if (!MapFunctions.isTranscendental(func)) return MapFunctions.apply_(func, dtype, copy);
        MapFunctions.requireTypes(func, dtype, copy);
        return TRANSCENDENTALS.evaluate(uint8(func), uint32(copy.bits[0]), uint8(precision));
    }
}
