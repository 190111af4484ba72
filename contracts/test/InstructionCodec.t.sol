// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../src/interfaces/IReferee.sol";
import {Instruction} from "../src/libraries/InstructionCodec.sol";
import {Isa} from "../src/libraries/Isa.sol";
import {CodecHarness} from "./support/Harness.sol";
import {TestBase} from "./support/TestBase.sol";

/// @notice The instruction codec: fields, strictness, access maps against loops over coordinates.
contract InstructionCodecTest is TestBase {
    CodecHarness private harness;
    string private json;
    bytes[] private all;

    function setUp() public {
        harness = new CodecHarness();
        json = vectors("instructions.json");
        for (uint256 k = 0; k < vm.parseJsonUint(json, ".count"); ++k) {
            all.push(_vector(k));
        }
    }

    function _vector(uint256 k) private view returns (bytes memory) {
        return vm.parseJsonBytes(json, string.concat(".cases[", vm.toString(k), "].instruction"));
    }

    function _refused(bytes memory data, uint256 offset) private {
        vm.expectRevert(abi.encodeWithSelector(IReferee.MalformedInstruction.selector, offset));
        harness.decode(data);
    }

    function testFuzz_truncatedOrExtended(uint256 k, uint256 cut, bytes calldata tail) public {
        bytes memory data = all[bound(k, 0, all.length - 1)];
        bytes memory short = slice(data, 0, bound(cut, 0, data.length - 1));
        vm.expectPartialRevert(IReferee.MalformedInstruction.selector);
        harness.decode(short);
        vm.assume(tail.length != 0);
        vm.expectPartialRevert(IReferee.MalformedInstruction.selector);
        harness.decode(bytes.concat(data, tail));
    }

    function test_unknownOpcodeFunctionDtype() public {
        uint256 refused = 0;
        for (uint256 opcode = 0; opcode < 256; ++opcode) {
            if (opcode >= 1 && opcode <= 10) continue;
            _refused(abi.encodePacked(uint8(opcode), bytes7(0)), 0);
            ++refused;
        }
        for (uint256 func = 0; func < 256; ++func) {
            if (func <= 16 || (func >= 20 && func <= 28) || func == 30 || func == 31) continue;
            _refused(abi.encodePacked(uint8(2), uint8(func), bytes6(0)), 0);
            ++refused;
        }
        _refused(hex"0105000000000000", 0); // source 5
        _refused(hex"0304000000000000", 0); // reduce 4
        _refused(hex"0401000000000000", 0); // gather 1
        _refused(hex"0502000000000000", 0); // scatter_sum 2
        _refused(hex"0602000000000000", 0); // window 2
        _refused(hex"0101030000000000", 2); // dtype 3
        assertTrue(refused > 400, "all were tried");
    }

    function test_ranksAndOperandCounts() public {
        _refused(hex"0101010900000000", 3); // rank 9
        _refused(hex"0300000009010000", 4); // reduction rank 9
        _refused(hex"0200000001010000", 4); // a map with a reduction rank
        _refused(hex"0101010000010000", 5); // source with an operand
        _refused(hex"0200000000000000", 5); // map without
        _refused(hex"0200000000040000", 5); // map of four
        _refused(hex"0300000000030000", 5); // reduce of three
        _refused(hex"0400000000010000", 5); // gather of one
        _refused(hex"0500000000010000", 5); // scatter_sum of one
        _refused(hex"0600000000030000", 5); // window of three
        _refused(hex"0700010000010000", 5); // iota with an operand
        _refused(hex"0800000000030000", 5); // random of three
        _refused(hex"0900010000020000", 5); // shuffle of two
        _refused(hex"0a00000000020000", 5); // commit of two
    }

    /// @dev iota of these dims, strides 0.
    function _iota(uint64[] memory dims) private pure returns (bytes memory data) {
        data = abi.encodePacked(uint8(7), uint8(0), uint8(1), uint8(dims.length), uint8(0), uint8(0));
        for (uint256 d = 0; d < dims.length; ++d) {
            data = abi.encodePacked(data, dims[d]);
        }
        data = abi.encodePacked(data, uint16(8 + 8 * dims.length), new bytes(8 + 8 * dims.length));
    }

    function test_dims() public {
        uint64[] memory dims = new uint64[](2);
        (dims[0], dims[1]) = (1 << 20, 1 << 20);
        assertEq(harness.decode(_iota(dims)).elements, 1 << 40, "2^40 elements");
        dims[1] += 1;
        _refused(_iota(dims), 14);
        (dims[0], dims[1]) = (0, 5);
        _refused(_iota(dims), 6);
        (dims[0], dims[1]) = (type(uint64).max, type(uint64).max);
        _refused(_iota(dims), 6);
    }

    function test_terms() public {
        // reduce sum of one operand, rank 0, with one reduction dim
        bytes memory head = hex"030000000101";
        bytes memory tail = abi.encodePacked(uint32(0), int64(0), int64(0), uint16(0));
        assertEq(harness.decode(abi.encodePacked(head, uint64(1 << 32), tail)).terms, 1 << 32, "2^32 terms");
        _refused(abi.encodePacked(head, uint64(1 << 32) + 1, tail), 6);
        _refused(abi.encodePacked(head, uint64(0), tail), 6);
    }

    function test_parameters() public {
        _refused(new bytes(4097), 4097); // too long
        harness.decode(hex"01000100000000080000000000000007");
        _refused(hex"010001000000000700000000000007", 8); // const of 7 bytes
        _refused(hex"010101000000000100", 8); // step takes none
        _refused(hex"0700010000000000", 8); // iota takes its offset
        _refused(hex"010001000000000800000000000000", 8); // length beyond the end
    }

    function _state(bytes memory name, uint256 length) private pure returns (bytes memory) {
        return abi.encodePacked(
            uint8(1), uint8(2), uint24(0), uint8(0), uint16(6 + name.length), uint32(3), uint16(length), name
        );
    }

    function test_names() public {
        harness.decode(_state("w", 1));
        bytes memory long = new bytes(255);
        for (uint256 k = 0; k < 255; ++k) {
            long[k] = 0x7e;
        }
        harness.decode(_state(long, 255));
        _refused(_state(bytes.concat(long, "w"), 256), 12);
        _refused(_state("", 0), 12);
        _refused(_state("w", 2), 12);
        _refused(_state("ww", 1), 12);
        _refused(_state("w w", 3), 15);
        _refused(_state(hex"7f", 1), 14);
        _refused(_state(hex"77e9", 2), 15);
        _refused(hex"01020000000000050000000300", 8);
    }
}
