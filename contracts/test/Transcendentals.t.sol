// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Transcendentals} from "../src/Transcendentals.sol";
import {ITranscendentals} from "../src/interfaces/ITranscendentals.sol";
import {Float32} from "../src/libraries/Float32.sol";
import {Isa} from "../src/libraries/Isa.sol";
import {Decision, Estimate} from "../src/libraries/transcendental/Decision.sol";
import {TestBase} from "./support/TestBase.sol";

/// @notice The same contract with a bound on the error that decides nothing.
contract Undecisive is Transcendentals {
    function _estimated(Estimate memory value, bool negative, uint256 precision)
        internal
        pure
        override
        returns (bool, uint256)
    {
        value.err = value.n >> 20;
        return super._estimated(value, negative, precision);
    }
}

/// @notice What can be said of the six functions without another implementation of them.
contract TranscendentalsTest is TestBase {
    Transcendentals private immutable CONTRACT = new Transcendentals();

    uint32 private constant ZERO = 0;
    uint32 private constant MINUS_ZERO = 0x80000000;
    uint32 private constant ONE = 0x3f800000;
    uint32 private constant MINUS_ONE = 0xbf800000;
    uint32 private constant INFINITY = 0x7f800000;
    uint32 private constant MINUS_INFINITY = 0xff800000;
    uint32 private constant NAN = 0x7fc00000;

    function _f(uint256 func, uint32 bits, uint256 precision) private view returns (uint32) {
        return CONTRACT.evaluate(uint8(func), bits, uint8(precision));
    }

    /// @dev Patterns of all sorts: uniform, around 1, and where the functions are not constant.
    function _argument(uint256 seed) private pure returns (uint32) {
        uint32 bits = uint32(seed);
        uint256 shape = (seed >> 32) % 3;
        if (shape == 0) return bits;
        uint32 exponent = uint32(shape == 1 ? 110 + (seed >> 40) % 26 : 90 + (seed >> 40) % 50);
        return bits & 0x807fffff | exponent << 23;
    }

    function test_specialValues() public view {
        for (uint256 b = 16; b <= 32; ++b) {
            uint32[8] memory x = [ZERO, MINUS_ZERO, ONE, MINUS_ONE, INFINITY, MINUS_INFINITY, NAN, 0xff800001];
            // e and its inverse, tanh 1, erf 1, sin 1, cos 1 are not special: 1 stands for "not compared".
            uint32[8][6] memory y = [
                [ONE, ONE, 1, 1, INFINITY, ZERO, NAN, NAN],
                [MINUS_INFINITY, MINUS_INFINITY, ZERO, NAN, INFINITY, NAN, NAN, NAN],
                [ZERO, MINUS_ZERO, 1, 1, ONE, MINUS_ONE, NAN, NAN],
                [ZERO, MINUS_ZERO, 1, 1, ONE, MINUS_ONE, NAN, NAN],
                [ZERO, MINUS_ZERO, 1, 1, NAN, NAN, NAN, NAN],
                [ONE, ONE, 1, 1, NAN, NAN, NAN, NAN]
            ];
            for (uint256 f = 0; f < 6; ++f) {
                for (uint256 k = 0; k < 8; ++k) {
                    if (y[f][k] != 1) assertEq(_f(Isa.EXP + f, x[k], b), y[f][k], "a special value");
                }
            }
        }
    }

    /// @dev The last argument of each constant stretch and the first beyond it, at 32 bits.
    function test_limits() public view {
        assertEq(_f(Isa.EXP, 0x42b17217, 32), 0x7f7fff84, "exp of the greatest with a finite result");
        assertEq(_f(Isa.EXP, 0x42b17218, 32), INFINITY, "exp of the next");
        assertEq(_f(Isa.EXP, 0xc2cff1b4, 32), 1, "exp of the least with a positive result");
        assertEq(_f(Isa.EXP, 0xc2cff1b5, 32), 0, "exp of the next");
        assertEq(_f(Isa.EXP, 0x33000000, 32), ONE, "exp 2^-25: 1 + 2^-25 is below the tie 1 + 2^-24");
        assertEq(_f(Isa.EXP, 0x33800000, 32), ONE + 1, "exp 2^-24: above that tie");
        assertEq(_f(Isa.EXP, 0xb3000000, 32), ONE, "exp -2^-25: above the tie 1 - 2^-25");
        assertEq(_f(Isa.EXP, 0xb3000001, 32), ONE - 1, "exp of the next: below it");
        assertEq(_f(Isa.TANH, 1, 32), 1, "tanh of the least subnormal");
        assertEq(_f(Isa.TANH, 0x39000000, 32), 0x39000000, "tanh 2^-13: a third of 2^-26 below, less than half a place");
        assertEq(_f(Isa.TANH, 0x41102cb3, 32), ONE - 1, "tanh of the greatest with a result below 1");
        assertEq(_f(Isa.TANH, 0x41102cb4, 32), ONE, "tanh of the next");
        assertEq(_f(Isa.ERF, 0xc07ad444, 32), MINUS_ONE - 1, "erf of the least with a result above -1");
        assertEq(_f(Isa.ERF, 0xc07ad445, 32), MINUS_ONE, "erf of the next");
        assertEq(_f(Isa.SIN, 0x807fffff, 32), 0x807fffff, "sin of a subnormal");
        assertEq(_f(Isa.ERF, 1, 32), 1, "erf of the least subnormal");
        assertEq(_f(Isa.LOG, 1, 32), 0xc2ce8ed0, "log 2^-149");
        assertEq(_f(Isa.LOG, ONE + 1, 32), 0x33ffffff, "log (1 + 2^-23)");
        assertEq(_f(Isa.LOG, ONE - 1, 32), 0xb3800000, "log (1 - 2^-24)");
    }

    /// @dev At less than 32 bits the argument itself may be a tie, and the result lies just below it.
    function testFuzz_nextToATieOfTheFormat(uint256 seed, uint256 b) public view {
        b = bound(b, 16, 31);
        uint32 place = uint32(1 << (32 - b));
        uint32 kept = uint32(bound(seed, 0, 0x38ffffff)) & ~(place - 1);
        uint32 tie = kept | place >> 1;
        uint32 sign = uint32(seed >> 64) & MINUS_ZERO;
        assertEq(_f(Isa.SIN, tie | sign, b), kept | sign, "sin of a tie rounds toward zero");
        assertEq(_f(Isa.TANH, tie | sign, b), kept | sign, "tanh of a tie rounds toward zero");
        assertEq(_f(Isa.SIN, (tie + 1) | sign, b), (kept + place) | sign, "sin of the next number");
        assertEq(_f(Isa.TANH, (tie + 1) | sign, b), (kept + place) | sign, "tanh of the next number");
    }

    /// forge-config: ci.fuzz.runs = 10000
    function testFuzz_alwaysDecided(uint256 seed, uint256 b) public view {
        b = bound(b, 16, 32);
        for (uint256 func = Isa.EXP; func <= Isa.COS; ++func) {
            uint32 y = _f(func, _argument(seed), b);
            assertTrue(y == NAN || (y & (1 << (32 - b)) - 1 == 0 && !Float32.isNan(y)), "a number of the format");
        }
    }

    /// forge-config: ci.fuzz.runs = 10000
    function testFuzz_symmetry(uint256 seed, uint256 b) public view {
        b = bound(b, 16, 32);
        uint32 x = _argument(seed);
        vm.assume(!Float32.isNan(x));
        uint256[3] memory odd = [Isa.TANH, Isa.ERF, Isa.SIN];
        for (uint256 k = 0; k < 3; ++k) {
            uint32 y = _f(odd[k], x, b);
            assertEq(_f(odd[k], x ^ MINUS_ZERO, b), y == NAN ? NAN : y ^ MINUS_ZERO, "f(-x) = -f(x)");
        }
        assertEq(_f(Isa.COS, x ^ MINUS_ZERO, b), _f(Isa.COS, x, b), "cos(-x) = cos x");
    }

    /// forge-config: ci.fuzz.runs = 10000
    function testFuzz_monotonic(uint256 seed, uint256 b) public view {
        b = bound(b, 16, 32);
        uint32 x = _argument(seed) & 0x7fffffff;
        if (x >= INFINITY) x = INFINITY - 1;
        for (uint256 func = Isa.EXP; func <= Isa.ERF; ++func) {
            assertTrue(Float32.le(_f(func, x, b), _f(func, x + 1, b)), "f(x) <= f(the next)");
            uint32 y = x | MINUS_ZERO;
            if (func != Isa.LOG) assertTrue(Float32.le(_f(func, y + 1, b), _f(func, y, b)), "also below zero");
        }
    }

    /// @dev RN to b bits is RN to b bits of RN to 32, except where that is a tie; then it is one of the neighbours.
    /// forge-config: ci.fuzz.runs = 10000
    function testFuzz_precisionsAgree(uint256 seed, uint256 b) public view {
        b = bound(b, 16, 31);
        uint32 place = uint32(1 << (32 - b));
        for (uint256 func = Isa.EXP; func <= Isa.COS; ++func) {
            uint32 x = _argument(seed);
            uint32 y = _f(func, x, 32);
            if (y == NAN) continue;
            uint32 down = y & ~(place - 1);
            uint32 rest = y - down;
            uint32 found = _f(func, x, b);
            if (rest == place >> 1) assertTrue(found == down || found == down + place, "a neighbour");
            else assertEq(found, rest < place >> 1 ? down : down + place, "the nearest");
        }
    }

    /// @dev The longest series, the largest reductions, the hardest arguments: gas of a call, the call itself included.
    function test_gas() public view {
        uint32[6] memory dearest = [0xc2cf0001, 0x00000001, 0x411fffff, 0x407fffff, 0x7f7fffff, 0x6f79be45];
        for (uint256 k = 0; k < 6; ++k) {
            uint8 func = uint8(Isa.EXP + k);
            CONTRACT.evaluate(func, 0, 16); // the address is warm from here
            uint256 before = gasleft();
            CONTRACT.evaluate(func, dearest[k], 16);
            uint256 gas = before - gasleft();
            assertTrue(gas > 1000 && gas < (func == Isa.ERF ? 15000 : 8000), "gas of an evaluation");
        }
    }

    function testFuzz_roundTo(uint256 magnitude, uint256 width, uint256 exponent) public pure {
        magnitude = magnitude >> 256 - bound(width, 1, 256) | 1;
        int256 e = int256(bound(exponent, 0, 700)) - 500;
        assertEq(Decision.roundTo(magnitude, e, 32), Float32.round(false, magnitude, e), "as the other rounding at 32");
    }

    /// @dev Exactly between two neighbours of the format, and one unit of 2^-8 places to either side.
    function testFuzz_roundToTies(uint256 x, uint256 b) public pure {
        uint256 place = 1 << (32 - bound(b, 16, 32));
        x = bound(x, 0, 0x7f7fffff) / place * place;
        (uint256 low, int256 e) = Float32.unpack(x);
        uint256 tie = (low << 9) + (place << 8); // in 2^(e - 9)
        uint256 even = x / place % 2 == 0 ? x : x + place;
        assertEq(Decision.roundTo(tie, e - 9, 32 - _log2(place)), even, "ties to even");
        assertEq(Decision.roundTo(tie - 1, e - 9, 32 - _log2(place)), x, "below the tie");
        assertEq(Decision.roundTo(tie + 1, e - 9, 32 - _log2(place)), x + place, "above the tie");
    }

    function _log2(uint256 powerOfTwo) private pure returns (uint256) {
        return Float32.bitLength(powerOfTwo) - 1;
    }

    function testFuzz_unknownFunction(uint8 func, uint32 bits) public {
        vm.assume(func < Isa.EXP || func > Isa.COS);
        vm.expectRevert(abi.encodeWithSelector(ITranscendentals.UnknownFunction.selector, func));
        CONTRACT.evaluate(func, bits, 32);
    }

    function testFuzz_precisionOutOfRange(uint8 precision, uint32 bits) public {
        vm.assume(precision < 16 || precision > 32);
        vm.expectRevert(abi.encodeWithSelector(ITranscendentals.PrecisionOutOfRange.selector, precision));
        CONTRACT.evaluate(uint8(Isa.EXP), bits, precision);
    }

    function test_undecided() public {
        Undecisive other = new Undecisive();
        for (uint256 func = Isa.EXP; func <= Isa.COS; ++func) {
            // 0.7: none of the six is constant around it.
            vm.expectRevert(
                abi.encodeWithSelector(ITranscendentals.Undecided.selector, uint8(func), uint32(0x3f333333), uint8(32))
            );
            other.evaluate(uint8(func), 0x3f333333, 32);
        }
    }
}
