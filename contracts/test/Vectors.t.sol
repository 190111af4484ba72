// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../src/interfaces/IReferee.sol";
import {AccumulatorKind} from "../src/libraries/Accumulators.sol";
import {Commitments} from "../src/libraries/Commitments.sol";
import {Isa} from "../src/libraries/Isa.sol";
import {Scalars} from "../src/libraries/MapFunctions.sol";
import {Philox} from "../src/libraries/Philox.sol";
import {Trees} from "../src/libraries/Trees.sol";
import {AccumulatorHarness, MapHarness} from "./support/Harness.sol";
import {TestBase} from "./support/TestBase.sol";

/// @notice Scalar functions and accumulators against the vectors of the integer reference.
contract VectorsTest is TestBase {
    string private constant KINDS = "accumulators.json";

    function test_scalars() public {
        MapHarness harness = new MapHarness();
        string memory json = vectors("scalars.json");
        string[] memory names = vm.parseJsonStringArray(json, ".names");
        uint256 cases = 0;
        for (uint256 k = 0; k < names.length; ++k) {
            string memory group = string.concat(".", names[k], ".");
            uint256 func = vm.parseJsonUint(json, string.concat(group, "function"));
            uint256 dtype = vm.parseJsonUint(json, string.concat(group, "resultType"));
            uint256 precision = vm.parseJsonUint(json, string.concat(group, "precision"));
            bytes memory types = vm.parseJsonBytes(json, string.concat(group, "operandTypes"));
            bytes memory data = vm.parseJsonBytes(json, string.concat(group, "cases"));
            uint256 found = 0;
            uint256 record = 8 * (types.length + 1);
            for (uint256 pos = 0; pos < data.length; pos += record) {
                uint256 actual = harness.apply_(func, dtype, _scalars(types, data, pos), precision);
                assertEq(actual, word(data, pos + record - 8, 8), names[k]);
                ++found;
            }
            assertEq(found, vm.parseJsonUint(json, string.concat(group, "count")), "all cases of a group");
            cases += found;
        }
        assertTrue(names.length >= 61 && cases > 14000, "groups and cases");
    }

    function _scalars(bytes memory types, bytes memory data, uint256 pos) private pure returns (Scalars memory s) {
        s.count = types.length;
        for (uint256 k = 0; k < types.length; ++k) {
            s.dtypes[k] = uint8(types[k]);
            s.bits[k] = word(data, pos + 8 * k, 8);
        }
    }

    /// @dev Every function with every operand count and every combination of dtypes: accepted iff a row of SPEC 4.4.
    function test_signatures() public {
        MapHarness harness = new MapHarness();
        uint256 accepted = 0;
        for (uint256 func = 0; func <= Isa.MOD; ++func) {
            if (!Isa.isKnown(Isa.MAP, func)) continue;
            for (uint256 code = 0; code < 243; ++code) {
                Scalars memory s;
                s.count = 1 + code / 81;
                s.dtypes = [code % 3, (code / 3) % 3, (code / 9) % 3];
                if (s.count == 1 && (s.dtypes[1] | s.dtypes[2]) != 0) continue;
                if (s.count == 2 && s.dtypes[2] != 0) continue;
                uint256 dtype = (code / 27) % 3;
                bool fits = _isSignature(func, dtype, s);
                if (fits) ++accepted;
                else vm.expectRevert(abi.encodeWithSelector(IReferee.UnsupportedInstruction.selector, Isa.MAP, func));
                harness.apply_(func, dtype, s, 32);
            }
        }
        assertEq(accepted, 50, "rows of the table"); // as many as there are groups in scalars.json
    }

    /// @dev The table of SPEC 4.4, written out: function, then operand dtypes and result for each row.
    function _isSignature(uint256 func, uint256 dtype, Scalars memory s) private pure returns (bool) {
        (uint256 f, uint256 i, uint256 b) = (Isa.F32, Isa.I64, Isa.BOOL);
        (uint256 x, uint256 y, uint256 z) = (s.dtypes[0], s.dtypes[1], s.dtypes[2]);
        if (func == 0) return s.count == 1 && x == dtype;
        if (func == 6 || func == 7) return s.count == 1 && x == dtype && (x == f || x == i);
        if (func == 5 || (func >= 10 && func <= 16)) return s.count == 1 && x == f && dtype == f;
        if (func == 26) return s.count == 1 && x == b && dtype == b;
        if (func == 28) return s.count == 1 && x != dtype;
        if (func == 27) return s.count == 3 && x == b && y == dtype && z == dtype;
        if (s.count != 2 || x != y) return false;
        if (func == 1 || func == 2 || func == 3 || func == 8 || func == 9) return x == dtype && (x == f || x == i);
        if (func == 4) return x == f && dtype == f;
        if (func == 20 || func == 21) return dtype == b && (x == f || x == i);
        if (func == 22 || func == 23) return dtype == b;
        if (func == 24 || func == 25) return x == b && dtype == b;
        return x == i && dtype == i; // floordiv, mod
    }

    function _kind(string memory json, uint256 k) private pure returns (string memory) {
        string[] memory kinds = vm.parseJsonStringArray(json, ".kinds");
        assertEq(kinds.length, 7, "kinds");
        return string.concat(".", kinds[k], ".");
    }

    function test_accumulators() public {
        AccumulatorHarness harness = new AccumulatorHarness();
        string memory json = vectors(KINDS);
        uint256 cases = 0;
        for (uint256 k = 0; k < 7; ++k) {
            string memory group = _kind(json, k);
            uint256 count = vm.parseJsonUint(json, string.concat(group, "count"));
            uint256 held = harness.countTrue(
                AccumulatorKind(k),
                vm.parseJsonBytes(json, string.concat(group, "cases")),
                vm.parseJsonUint(json, string.concat(group, "length")),
                vm.parseJsonUint(json, string.concat(group, "factors"))
            );
            assertEq(held, count, group);
            cases += count;
        }
        assertTrue(cases > 300, "cases");
    }

    function test_rounding() public {
        AccumulatorHarness harness = new AccumulatorHarness();
        string memory json = vectors(KINDS);
        uint256 count = vm.parseJsonUint(json, ".finish.count");
        assertTrue(count > 50, "cases");
        bytes memory cases = vm.parseJsonBytes(json, ".finish.cases");
        assertEq(cases.length, 165 * count, "whole records");
        assertEq(harness.countRounded(cases), 17 * count, "sums rounded at every precision");
    }

    /// @dev Records of 97-byte sum ‖ u32 rounding ‖ u32 bits: both ends of every tolerance, codes that count or do not.
    function test_roundingAlongALog() public {
        AccumulatorHarness harness = new AccumulatorHarness();
        string memory json = vectors("rounding.json");
        uint256 count = vm.parseJsonUint(json, ".count");
        bytes memory cases = vm.parseJsonBytes(json, ".cases");
        assertTrue(count > 1000, "cases");
        assertEq(cases.length, 105 * count, "whole records");
        assertEq(harness.countAlongALog(cases), count, "sums rounded as their logs say");
    }

    /// @dev Every word of the logs of five steps stands under its step log, and each step log under the log root.
    function test_logs() public view {
        string memory json = vectors("logs.json");
        bytes32 logRoot = vm.parseJsonBytes32(json, ".logRoot");
        uint256 steps = vm.parseJsonUint(json, ".count");
        uint256 words = 0;
        for (uint256 k = 0; k < steps; ++k) {
            string memory step = string.concat(".steps[", vm.toString(k), "].");
            bytes32 stepLog = vm.parseJsonBytes32(json, string.concat(step, "stepLog"));
            bytes memory proof = vm.parseJsonBytes(json, string.concat(".logProofs[", vm.toString(k), "]"));
            assertEq(_fold(stepLog, k, proof), logRoot, "log root");
            uint256 openings = vm.parseJsonUint(json, string.concat(step, "count"));
            for (uint256 j = 0; j < openings; ++j) {
                string memory opening = string.concat(step, "openings[", vm.toString(j), "].");
                bytes32 leaf = Commitments.logLeaf(vm.parseJsonBytes32(json, string.concat(opening, "word")));
                assertEq(leaf, vm.parseJsonBytes32(json, string.concat(opening, "leaf")), "leaf");
                uint256 position = vm.parseJsonUint(json, string.concat(opening, "position"));
                bytes memory siblings = vm.parseJsonBytes(json, string.concat(opening, "siblings"));
                assertEq(_fold(leaf, position, siblings), stepLog, "step log");
                ++words;
            }
        }
        assertEq(words, 70, "words");
    }

    function _fold(bytes32 node, uint256 position, bytes memory siblings) private view returns (bytes32) {
        for (uint256 k = 0; 32 * k < siblings.length; ++k) {
            bytes32 sibling = bytes32(word(siblings, 32 * k, 32));
            node = position >> k & 1 == 1 ? Trees.parent(sibling, node) : Trees.parent(node, sibling);
        }
        return node;
    }

    function test_philox() public view {
        string memory json = vectors("philox.json");
        bytes memory data = vm.parseJsonBytes(json, ".blocks");
        uint256 count = vm.parseJsonUint(json, ".blockCount");
        assertTrue(count >= 20 && data.length == 40 * count, "blocks");
        for (uint256 pos = 0; pos < data.length; pos += 40) {
            uint256 key = word(data, pos + 20, 4) << 32 | word(data, pos + 16, 4);
            (uint256 a, uint256 b, uint256 c, uint256 d) = Philox.block_(
                word(data, pos, 4), word(data, pos + 4, 4), word(data, pos + 8, 4), word(data, pos + 12, 4), key
            );
            assertEq(a << 96 | b << 64 | c << 32 | d, word(data, pos + 24, 16), "block");
        }
    }

    function test_randomAndShuffle() public view {
        string memory json = vectors("philox.json");
        bytes memory data = vm.parseJsonBytes(json, ".random");
        uint256 count = vm.parseJsonUint(json, ".randomCount");
        assertTrue(count >= 40 && data.length == 40 * count, "draws");
        for (uint256 pos = 0; pos < data.length; pos += 40) {
            uint256 bits = Philox.random(
                word(data, pos, 8), word(data, pos + 8, 8), word(data, pos + 16, 8), word(data, pos + 24, 8)
            );
            assertEq(bits, word(data, pos + 32, 8), "random");
        }
        data = vm.parseJsonBytes(json, ".shuffle");
        count = vm.parseJsonUint(json, ".shuffleCount");
        assertTrue(count >= 90 && data.length == 48 * count, "places");
        for (uint256 pos = 0; pos < data.length; pos += 48) {
            uint256 place = Philox.shuffle(
                word(data, pos, 8),
                word(data, pos + 8, 8),
                word(data, pos + 16, 8),
                word(data, pos + 24, 8),
                word(data, pos + 32, 8)
            );
            assertEq(place, word(data, pos + 40, 8), "shuffle");
        }
    }

    function test_refusedEncodings() public {
        AccumulatorHarness harness = new AccumulatorHarness();
        string memory json = vectors(KINDS);
        string[] memory kinds = vm.parseJsonStringArray(json, ".kinds");
        string[] memory named = vm.parseJsonStringArray(json, ".refusedKinds");
        bytes[] memory refused = vm.parseJsonBytesArray(json, ".refused");
        assertTrue(refused.length >= 20 && refused.length == named.length, "cases");
        for (uint256 r = 0; r < refused.length; ++r) {
            uint256 k = 0;
            while (keccak256(bytes(kinds[k])) != keccak256(bytes(named[r]))) {
                ++k;
            }
            assertTrue(!harness.isCanonical(AccumulatorKind(k), refused[r]), "refused");
        }
    }

    function testFuzz_encodingsAreUnique(bytes calldata data, uint256 k) public {
        AccumulatorHarness harness = new AccumulatorHarness();
        AccumulatorKind kind = AccumulatorKind(bound(k, 0, 6));
        uint256[7] memory lengths = [uint256(97), 8, 4, 8, 12, 16, 97];
        bytes memory exact = slice(bytes.concat(data, new bytes(97)), 0, lengths[uint256(kind)]);
        bool sums = kind == AccumulatorKind.F32_SUM || kind == AccumulatorKind.BF16_SUM;
        if (sums) exact[0] = bytes1(uint8(k >> 8) % 3);
        bool ok = harness.isCanonical(kind, exact);
        if (ok) assertEq(harness.encodeAgain(kind, exact), exact, "one encoding");
        else assertTrue(sums || exact[0] & 0x7f == 0x7f, "refused for a flag or a NaN");
    }
}
