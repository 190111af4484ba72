// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../src/interfaces/IReferee.sol";
import {ITranscendentals} from "../src/interfaces/ITranscendentals.sol";
import {Exact, ExactSum} from "../src/libraries/ExactSum.sol";
import {Isa} from "../src/libraries/Isa.sol";
import {RefereeBase} from "./support/RefereeBase.sol";

/// @notice Policy `logged` at the referee: which sums are logged, that their elements follow the log wherever they are
/// judged, and that nothing else reads it. The rule itself is in LoggedSums.t.sol.
contract RefereeLoggedTest is RefereeBase {
    using ExactSum for Exact;

    uint32 private constant ONE = 0x3f800000;
    /// 1 + 2^-24 - 2^-28: below the middle between 1 and its neighbour by 2^-5 of their gap.
    uint32 private constant HALF_PLACE = 0x33800000;
    uint32 private constant MINUS_LITTLE = 0xb1800000;
    /// Gas that the rule may add to a leaf.
    uint256 private constant RULE_BAR = 400;

    function _rounding(uint256 b, uint256 n, uint256 code) private pure returns (uint32) {
        return uint32(b | n << 8 | code << 16);
    }

    /// @dev Little-endian data of the four terms.
    function _terms() private pure returns (bytes memory data) {
        uint32[4] memory terms = [MINUS_LITTLE, HALF_PLACE, ONE, uint32(0)];
        for (uint256 k = 0; k < 4; ++k) {
            for (uint256 byte_ = 0; byte_ < 4; ++byte_) {
                data = abi.encodePacked(data, uint8(terms[k] >> 8 * byte_));
            }
        }
    }

    /// @dev A sum of four terms, of one element: 1 plain, 2 products with 1, 3 scatter (every index matches).
    function _sum(uint8 kind) private view returns (IReferee.Context memory c, IReferee.Proof memory p) {
        uint8 operands = kind == 1 ? 1 : 2;
        bytes memory data = abi.encodePacked(kind == 3 ? uint8(5) : uint8(3), uint16(0), uint8(1), uint8(1), operands);
        data = abi.encodePacked(data, uint64(1), uint64(4));
        for (uint32 k = 0; k < operands; ++k) {
            data = abi.encodePacked(data, k, int64(0), int64(0), int64(k == 0 ? int64(1) : int64(0)));
        }
        data = kind == 3 ? abi.encodePacked(data, uint16(8), int64(1)) : abi.encodePacked(data, uint16(0));
        (c, p) = _honest(_find("sum of 4"));
        _replace(c, p, data);
        bytes[] memory tensors = new bytes[](operands);
        tensors[0] = _terms();
        if (kind == 2) tensors[1] = hex"0000803f";
        if (kind == 3) tensors[1] = new bytes(8);
        _openAll(c, p, kind == 3 ? bytes(hex"0001") : bytes(hex"0000"), tensors);
    }

    function _judged(IReferee.Context memory c, IReferee.Proof memory p, uint32 rounding)
        private
        view
        returns (uint256)
    {
        c.rounding = rounding;
        return uint256(referee.judge(c, p));
    }

    function test_elementsFollowTheLog() public view {
        for (uint8 kind = 1; kind <= 3; ++kind) {
            (IReferee.Context memory c, IReferee.Proof memory p) = _sum(kind);
            assertEq(referee.describe(p.instruction, 0).sumKind, kind, "the kind");
            assertEq(referee.describe(p.instruction, 0).accumulator, 0, "of few terms");
            assertEq(_judged(c, p, _rounding(32, 0, 0)), ONE, "to nearest");
            assertEq(_judged(c, p, _rounding(32, 5, 1)), ONE, "down");
            assertEq(_judged(c, p, _rounding(32, 5, 2)), ONE + 1, "up");
            assertEq(_judged(c, p, _rounding(32, 6, 2)), ONE, "not within 2^-6");
            assertEq(_judged(c, p, _rounding(32, 5, 3)), ONE, "3 says nothing");
            assertEq(_judged(c, p, _rounding(32, 0, 2)), ONE, "a kind that is not logged");
            assertEq(_judged(c, p, _rounding(31, 2, 2)), ONE, "at 31 bits the middle is 2^-24 + 2^-28 away");
        }
    }

    function test_lastAccumulatorsFollowTheLog() public view {
        Exact memory sum;
        sum.addValue(ONE);
        sum.addValue(HALF_PLACE);
        sum.addValue(MINUS_LITTLE);
        bytes memory last = sum.encode();
        uint32[3] memory codes = [ONE, ONE, ONE + 1];
        for (uint256 code = 0; code < 3; ++code) {
            (bool canonical, bytes32 leaf, uint64 bits) = referee.finish(1, _rounding(32, 5, code), last);
            assertTrue(canonical && leaf == sha256(abi.encodePacked("tb.accum", last)), "the leaf");
            assertEq(bits, codes[code], "as the log says");
            (,, bits) = referee.finish(1, _rounding(32, 6, code), last);
            assertEq(bits, ONE, "not within 2^-6");
        }
    }

    function test_anElementOfNoRounding() public {
        uint32[5] memory wrong = [uint32(15), 33, 32 | 1 << 8, 32 | 65 << 8, 32 | 1 << 18];
        for (uint256 k = 0; k < wrong.length; ++k) {
            for (uint8 kind = 1; kind <= 3; ++kind) {
                (IReferee.Context memory c, IReferee.Proof memory p) = _sum(kind);
                c.rounding = wrong[k];
                vm.expectRevert(abi.encodeWithSelector(IReferee.RoundingOutOfRange.selector, wrong[k]));
                referee.judge(c, p);
            }
        }
    }

    /// @dev Of a function only the precision counts, of a max or a leaf of an accumulator tree nothing.
    function test_onlySumsReadTheLog() public {
        string[6] memory names =
            ["tanh", "max of 4 f32", "argmax of 4 i64", "gather rows of f32", "random with seed 0", "window of i64"];
        for (uint256 k = 0; k < names.length; ++k) {
            (IReferee.Context memory c, IReferee.Proof memory p) = _honest(_find(names[k]));
            uint256 found = _judged(c, p, 32);
            assertEq(_judged(c, p, 32 | 64 << 8 | 2 << 16), found, names[k]);
            assertEq(_judged(c, p, 0xffffff00 | 32), found, names[k]);
            if (k != 0) assertEq(_judged(c, p, 0), found, names[k]);
            assertEq(referee.describe(p.instruction, 0).sumKind, 0, names[k]);
        }
        (IReferee.Context memory function_, IReferee.Proof memory proof) = _honest(_find("tanh"));
        function_.rounding = 0xffffff00 | 15;
        vm.expectRevert(abi.encodeWithSelector(ITranscendentals.PrecisionOutOfRange.selector, 15));
        referee.judge(function_, proof);
        uint256 sum = _find("sum of 16");
        (function_, proof) = _honest(sum);
        _atLeaf(function_, proof, vm.parseJsonBytesArray(json, _case(sum, "accumulators")), 1);
        assertEq(_judged(function_, proof, 0), _judged(function_, proof, 32), "an exact sum is not rounded");
    }

    /// @dev Of every vector: the kind that its opcode, function, dtype and operands make it.
    function test_kindsOfSums() public view {
        uint256[4] memory found;
        for (uint256 k = 0; k < vm.parseJsonUint(json, ".count"); ++k) {
            bytes memory i = vm.parseJsonBytes(json, _case(k, "instruction"));
            uint8 kind = referee.describe(i, 0).sumKind;
            bool f32 = uint8(i[2]) == Isa.F32;
            if (uint8(i[0]) == Isa.SCATTER_SUM) assertEq(kind, f32 && i[1] == 0 ? 3 : 0, "scatter");
            else if (uint8(i[0]) != Isa.REDUCE || uint8(i[1]) != Isa.REDUCE_SUM || !f32) assertEq(kind, 0, "none");
            else assertEq(kind, uint8(i[5]), "as many as operands");
            ++found[kind];
        }
        assertTrue(found[0] > 30 && found[1] >= 5 && found[2] >= 5 && found[3] >= 2, "all kinds");
        assertEq(referee.describe(vm.parseJsonBytes(json, _case(_find("i64 sum"), "instruction")), 0).sumKind, 0, "i64");
    }

    function _gas(bytes memory asked) private view returns (uint256 used) {
        address target = address(referee);
        bool ok;
        assembly ("memory-safe") {
            let before := gas()
            ok := staticcall(before, target, add(asked, 0x20), mload(asked), 0, 0)
            used := sub(before, gas())
        }
        assertTrue(ok, "answered");
    }

    /// @dev What following a log costs, of an element and of a last accumulator.
    function test_gasOfTheRule() public view {
        (IReferee.Context memory c, IReferee.Proof memory p) = _sum(2);
        bytes memory plain = abi.encodeCall(IReferee.judge, (c, p));
        c.rounding = _rounding(32, 5, 2);
        bytes memory logged = abi.encodeCall(IReferee.judge, (c, p));
        _gas(plain); // the addresses are warm from here
        uint256 without = _gas(plain);
        uint256 with = _gas(logged);
        assertTrue(with > without && with <= without + RULE_BAR, "an element");
        Exact memory sum;
        sum.addValue(ONE);
        sum.addValue(HALF_PLACE);
        without = _gas(abi.encodeCall(IReferee.finish, (1, 32, sum.encode())));
        with = _gas(abi.encodeCall(IReferee.finish, (1, _rounding(32, 5, 2), sum.encode())));
        assertTrue(with > without && with <= without + RULE_BAR, "a last accumulator");
    }
}
