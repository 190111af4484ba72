// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../src/interfaces/IReferee.sol";
import {AccumulatorKind} from "../src/libraries/Accumulators.sol";
import {Isa} from "../src/libraries/Isa.sol";
import {MapFunctions, Scalars} from "../src/libraries/MapFunctions.sol";
import {AccumulatorHarness} from "./support/Harness.sol";
import {TestBase} from "./support/TestBase.sol";

/// @notice A scalar function made callable from outside.
contract MapHarness {
    function apply_(uint256 func, uint256 dtype, Scalars calldata scalars) external pure returns (uint256) {
        Scalars memory copy = scalars;
        return MapFunctions.apply_(func, dtype, copy);
    }
}

/// @notice Scalar functions and accumulators against the vectors of the integer reference.
contract VectorsTest is TestBase {
    string private constant KINDS = "accumulators.json";

    function test_scalars() public view {
        string memory json = vectors("scalars.json");
        string[] memory names = vm.parseJsonStringArray(json, ".names");
        uint256 groups = 0;
        uint256 cases = 0;
        for (uint256 k = 0; k < names.length; ++k) {
            string memory group = string.concat(".", names[k], ".");
            uint256 func = vm.parseJsonUint(json, string.concat(group, "function"));
            if (func >= Isa.EXP && func <= Isa.COS) continue; // not on chain yet: see test_transcendentals
            uint256 dtype = vm.parseJsonUint(json, string.concat(group, "resultType"));
            bytes memory types = vm.parseJsonBytes(json, string.concat(group, "operandTypes"));
            uint256 found = _cases(names[k], func, dtype, types, vm.parseJsonBytes(json, string.concat(group, "cases")));
            assertEq(found, vm.parseJsonUint(json, string.concat(group, "count")), "all cases of a group");
            cases += found;
            ++groups;
        }
        assertTrue(groups == 43 && cases > 10000, "groups and cases");
    }

    function _cases(string memory name, uint256 func, uint256 dtype, bytes memory types, bytes memory data)
        private
        pure
        returns (uint256 count)
    {
        Scalars memory s;
        s.count = types.length;
        uint256 record = 8 * (types.length + 1);
        for (uint256 pos = 0; pos < data.length; pos += record) {
            for (uint256 k = 0; k < types.length; ++k) {
                s.dtypes[k] = uint8(types[k]);
                s.bits[k] = word(data, pos + 8 * k, 8);
            }
            assertEq(MapFunctions.apply_(func, dtype, s), word(data, pos + record - 8, 8), name);
            ++count;
        }
    }

    function test_transcendentals() public {
        MapHarness harness = new MapHarness();
        Scalars memory s;
        s.count = 1;
        for (uint256 func = Isa.EXP; func <= Isa.COS; ++func) {
            vm.expectRevert(abi.encodeWithSelector(IReferee.InstructionNotYetOnChain.selector, Isa.MAP, func));
            harness.apply_(func, Isa.F32, s);
        }
    }

    /// @dev Every function with every operand count and every combination of dtypes: accepted iff a row of SPEC 4.4.
    function test_signatures() public {
        MapHarness harness = new MapHarness();
        uint256 accepted = 0;
        for (uint256 func = 0; func <= Isa.MOD; ++func) {
            if (!Isa.isKnown(Isa.MAP, func) || (func >= Isa.EXP && func <= Isa.COS)) continue;
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
                harness.apply_(func, dtype, s);
            }
        }
        assertEq(accepted, 43, "rows of the table"); // as many as there are groups in scalars.json
    }

    /// @dev The table of SPEC 4.4, written out: function, then operand dtypes and result for each row.
    function _isSignature(uint256 func, uint256 dtype, Scalars memory s) private pure returns (bool) {
        (uint256 f, uint256 i, uint256 b) = (Isa.F32, Isa.I64, Isa.BOOL);
        (uint256 x, uint256 y, uint256 z) = (s.dtypes[0], s.dtypes[1], s.dtypes[2]);
        if (func == 0) return s.count == 1 && x == dtype;
        if (func == 6 || func == 7) return s.count == 1 && x == dtype && (x == f || x == i);
        if (func == 5) return s.count == 1 && x == f && dtype == f;
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
        assertEq(kinds.length, 6, "kinds");
        return string.concat(".", kinds[k], ".");
    }

    function test_accumulators() public {
        AccumulatorHarness harness = new AccumulatorHarness();
        string memory json = vectors(KINDS);
        uint256 cases = 0;
        for (uint256 k = 0; k < 6; ++k) {
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
        assertEq(harness.countRounded(vm.parseJsonBytes(json, ".finish.cases")), count, "sums rounded");
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
        AccumulatorKind kind = AccumulatorKind(bound(k, 0, 5));
        uint256[6] memory lengths = [uint256(97), 8, 4, 8, 12, 16];
        bytes memory exact = slice(bytes.concat(data, new bytes(97)), 0, lengths[uint256(kind)]);
        if (kind == AccumulatorKind.F32_SUM) exact[0] = bytes1(uint8(k >> 8) % 3);
        bool ok = harness.isCanonical(kind, exact);
        if (ok) assertEq(harness.encodeAgain(kind, exact), exact, "one encoding");
        else assertTrue(kind == AccumulatorKind.F32_SUM || exact[0] & 0x7f == 0x7f, "refused for a flag or a NaN");
    }
}
