// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Float32} from "../src/libraries/Float32.sol";
import {TestBase} from "./support/TestBase.sol";

/// @notice binary32 against a naive twin: a search for the nearest number among exact integers.
contract Float32Test is TestBase {
    uint256 private constant MOST = 0x7f7fffff;

    /// @dev |x| in units of 2^-150, so that halves of the least subnormal are whole. Biased exponent <= 225.
    function _units(uint256 x) private pure returns (uint256) {
        uint256 biased = (x >> 23) & 0xff;
        uint256 fraction = x & 0x7fffff;
        return biased == 0 ? fraction << 1 : (fraction | 1 << 23) << biased;
    }

    /// @dev The naive twin of `round`: the number nearest to ± units · 2^-150, by bisection over bit patterns, which
    /// grow with the numbers. units < 2^247.
    function _nearest(bool negative, uint256 units) private pure returns (uint256) {
        uint256 low = 0;
        uint256 high = 225 << 23; // above any value
        while (high - low > 1) {
            uint256 middle = (low + high) / 2;
            if (_units(middle) <= units) low = middle;
            else high = middle;
        }
        uint256 down = units - _units(low);
        uint256 up = _units(high) - units;
        uint256 bits = down < up || (down == up && low % 2 == 0) ? low : high;
        return negative ? bits | 1 << 31 : bits;
    }

    /// @dev A finite number with biased exponent from `least` to `most`, edges of the fraction made likely.
    function _number(uint256 seed, uint256 least, uint256 most) private pure returns (uint256) {
        uint256 fraction = (seed >> 64) & 0x7fffff;
        uint256 shape = (seed >> 128) % 4;
        if (shape == 0) fraction = 0;
        if (shape == 1) fraction = 0x7fffff - fraction % 4;
        if (shape == 2) fraction = fraction % 4;
        return (seed >> 200) % 2 << 31 | bound(uint64(seed), least, most) << 23 | fraction;
    }

    function testFuzz_roundIsNearest(uint256 magnitude, uint256 width, uint256 exponent, bool negative) public pure {
        magnitude >>= 256 - bound(width, 1, 200);
        exponent = bound(exponent, 0, 40);
        uint256 found = Float32.round(negative, magnitude, int256(exponent) - 150);
        assertEq(found, _nearest(negative, magnitude << exponent), "round");
    }

    /// @dev At a precision the numbers are the patterns whose lowest 32 - b bits are zero: as `_nearest`, over them.
    function _nearestTo(uint256 units, uint256 precision) private pure returns (uint256) {
        uint256 step = 32 - precision;
        uint256 low = 0;
        uint256 high = (225 << 23) >> step;
        while (high - low > 1) {
            uint256 middle = (low + high) / 2;
            if (_units(middle << step) <= units) low = middle;
            else high = middle;
        }
        uint256 down = units - _units(low << step);
        uint256 up = _units(high << step) - units;
        return (down < up || (down == up && low % 2 == 0) ? low : high) << step;
    }

    function testFuzz_roundToAPrecision(uint256 magnitude, uint256 width, uint256 exponent, uint256 b) public pure {
        magnitude >>= 256 - bound(width, 1, 200);
        (exponent, b) = (bound(exponent, 0, 40), bound(b, 16, 32));
        uint256 found = Float32.roundTo(false, magnitude, int256(exponent) - 150, b);
        assertEq(found, _nearestTo(magnitude << exponent, b), "round to a precision");
        assertEq(Float32.roundTo(true, magnitude, int256(exponent) - 150, b), found | 1 << 31, "and its negative");
    }

    function testFuzz_tiesOfAPrecision(uint256 x, uint256 offset, uint256 b) public pure {
        b = bound(b, 16, 32);
        // Exactly between two neighbours, and one unit to either side.
        x = bound(x, 0, 200 << 23) >> (32 - b) << (32 - b);
        uint256 magnitude = (_units(x) + _units(x + (1 << (32 - b)))) / 2 + bound(offset, 0, 2);
        if (magnitude != 0) --magnitude;
        assertEq(Float32.roundTo(false, magnitude, -150, b), _nearestTo(magnitude, b), "near a tie");
    }

    /// @dev The greatest number of b bits, and the tie above it, which is infinite.
    function test_overflowAtEveryPrecision() public pure {
        for (uint256 b = 16; b <= 32; ++b) {
            uint256 digits = b - 8;
            int256 exponent = int256(128 - digits);
            uint256 most = (1 << digits) - 1;
            uint256 pattern = 0x7f7fffff >> (32 - b) << (32 - b);
            assertEq(Float32.roundTo(false, most, exponent, b), pattern, "the greatest");
            assertEq(Float32.roundTo(false, 4 * most + 1, exponent - 2, b), pattern, "and a little");
            assertEq(Float32.roundTo(false, 4 * most + 2, exponent - 2, b), 0x7f800000, "the tie above");
            uint256 least = 1 << (32 - b);
            assertEq(Float32.roundTo(false, least, -149, b), least, "the least subnormal");
            assertEq(Float32.roundTo(false, least, -150, b), 0, "half of it ties to zero");
            assertEq(Float32.roundTo(false, 2 * least + 1, -151, b), least, "more than half");
        }
    }

    function testFuzz_roundTies(uint256 x, uint256 offset) public pure {
        // Exactly between two neighbours, and one unit to either side.
        x = bound(x, 0, 200 << 23);
        uint256 magnitude = (_units(x) + _units(x + 1)) / 2 + bound(offset, 0, 2);
        if (magnitude != 0) --magnitude;
        assertEq(Float32.round(false, magnitude, -150), _nearest(false, magnitude), "round near a tie");
    }

    function testFuzz_roundShifted(uint256 magnitude, uint256 shift) public pure {
        // The same number with another exponent.
        magnitude >>= bound(shift, 0, 255);
        uint256 free = 256 - Float32.bitLength(magnitude);
        int256 exponent = int256(shift % 600) - 420;
        uint256 found = Float32.round(false, magnitude << free, exponent - int256(free));
        assertEq(found, Float32.round(false, magnitude, exponent), "round of a shifted magnitude");
    }

    function test_roundLimits() public pure {
        assertEq(Float32.round(false, (1 << 25) - 1, 103), 0x7f800000, "the tie above the greatest is infinite");
        assertEq(Float32.round(false, (1 << 25) - 2, 103), MOST, "the greatest number");
        assertEq(Float32.round(true, ((1 << 125) - (1 << 100)) - 1, 3), 0xff7fffff, "just below that tie");
        assertEq(Float32.round(true, 1, 128), 0xff800000, "-2^128 is -inf");
        assertEq(Float32.round(false, 1, 127), 0x7f000000, "2^127");
        assertEq(Float32.round(false, 1, -149), 1, "the least subnormal");
        assertEq(Float32.round(false, 1, -150), 0, "half of it ties to zero");
        assertEq(Float32.round(true, 1, -150), 0x80000000, "and keeps its sign");
        assertEq(Float32.round(false, 3, -151), 1, "more than half of it");
        assertEq(Float32.round(false, type(uint256).max, -500), 0, "far below");
        assertEq(Float32.round(false, type(uint256).max, -405), 1, "2^-149 from a full word");
        assertEq(Float32.round(true, 0, 5), 0x80000000, "zero keeps the sign");
    }

    function testFuzz_add(uint256 a, uint256 b) public pure {
        uint256 x = _number(a, 0, 220);
        uint256 y = _number(b, 0, 220);
        if (a % 3 == 0) y = _number(b, (x >> 23) & 0xff, (x >> 23) & 0xff); // cancellation
        int256 sum = (x >> 31 == 0 ? int256(_units(x)) : -int256(_units(x)))
            + (y >> 31 == 0 ? int256(_units(y)) : -int256(_units(y)));
        uint256 expected = _nearest(sum < 0, uint256(sum < 0 ? -sum : sum));
        if (sum == 0) expected = x >> 31 == 1 && y >> 31 == 1 ? 1 << 31 : 0;
        assertEq(Float32.add(x, y), expected, "add");
        assertEq(Float32.add(y, x), expected, "add commutes");
        assertEq(Float32.sub(x, y ^ 1 << 31), expected, "sub of the negated");
    }

    function testFuzz_mul(uint256 a, uint256 b) public pure {
        uint256 x = _number(a, 76, 146);
        uint256 y = _number(b, 76, 146);
        if (a % 4 == 0) (x, y) = (_number(a, 0, 12), _number(b, 150, 200)); // from a subnormal
        (uint256 mx, int256 ex) = Float32.unpack(x);
        (uint256 my, int256 ey) = Float32.unpack(y);
        // SAFETY: ex + ey >= -149 in both cases, so the product is a whole number of units.
        uint256 expected = _nearest((x ^ y) >> 31 == 1, (mx * my) << uint256(ex + ey + 150));
        assertEq(Float32.mul(x, y), expected, "mul");
        assertEq(Float32.mul(y, x), expected, "mul commutes");
    }

    function testFuzz_divIsNearest(uint256 a, uint256 b) public pure {
        uint256 x = _number(a, 1, 254) & 0x7fffffff;
        uint256 y = _number(b, 1, 254) & 0x7fffffff;
        uint256 r = Float32.div(x, y);
        vm.assume(r >= 1 << 23 && r <= MOST); // subnormal quotients: in the vectors
        // r is nearest to x/y iff (r - half of the gap below) y <= x <= (r + half of the gap above) y.
        (uint256 mx, int256 ex) = Float32.unpack(x);
        (uint256 my, int256 ey) = Float32.unpack(y);
        (uint256 mr, int256 er) = Float32.unpack(r);
        int256 shift = er + ey - ex; // compare (4 mr ± 2) my 2^shift with 4 mx
        assertTrue(shift >= -60 && shift <= 60, "quotients of 24 bits");
        uint256 exact = (4 * mx) << uint256(60);
        // The gap below a power of two is half of that above, except below the smallest normal number.
        uint256 below = 4 * mr - (mr == 1 << 23 && r != 1 << 23 ? 1 : 2);
        uint256 least = (below * my) << uint256(60 + shift);
        uint256 most = ((4 * mr + 2) * my) << uint256(60 + shift);
        assertTrue(least <= exact && exact <= most, "div is nearest");
        assertTrue((least != exact && exact != most) || mr % 2 == 0, "div ties to even");
        assertEq(Float32.div(x | 1 << 31, y), r | 1 << 31, "div sign");
    }

    function testFuzz_sqrtIsNearest(uint256 a) public pure {
        uint256 x = _number(a, 0, 254) & 0x7fffffff;
        vm.assume(x != 0);
        uint256 r = Float32.sqrt(x);
        (uint256 mx, int256 ex) = Float32.unpack(x);
        (uint256 mr, int256 er) = Float32.unpack(r);
        int256 shift = 2 * er - ex; // compare (4 mr ± 2)^2 2^shift with 16 mx; no tie is possible
        assertTrue(shift >= -60 && shift <= 60, "roots of 24 bits");
        uint256 exact = (16 * mx) << uint256(60);
        uint256 below = 4 * mr - (mr == 1 << 23 ? 1 : 2);
        assertTrue((below * below) << uint256(60 + shift) < exact, "sqrt is not too great");
        assertTrue(exact < ((4 * mr + 2) * (4 * mr + 2)) << uint256(60 + shift), "sqrt is not too small");
    }

    function testFuzz_integerSqrt(uint128 n) public pure {
        uint256 r = Float32.integerSqrt(n);
        assertTrue(r * r <= n && n < (r + 1) * (r + 1), "integerSqrt");
    }

    function testFuzz_bitLength(uint256 x, uint8 shift) public pure {
        x >>= shift;
        uint256 n = 0;
        for (uint256 rest = x; rest != 0; rest >>= 1) {
            ++n;
        }
        assertEq(Float32.bitLength(x), n, "bitLength");
    }

    function test_bitLengthEdges() public pure {
        assertEq(Float32.bitLength(0), 0, "0");
        for (uint256 n = 0; n < 256; ++n) {
            assertEq(Float32.bitLength(1 << n), n + 1, "a power of two");
            assertEq(Float32.bitLength((1 << n) - 1), n, "one below");
        }
    }

    function testFuzz_order(uint256 a, uint256 b) public pure {
        uint256 x = _number(a, 0, 220);
        uint256 y = _number(b, a % 2 == 0 ? 0 : (x >> 23) & 0xff, a % 2 == 0 ? 220 : (x >> 23) & 0xff);
        int256 vx = x >> 31 == 0 ? int256(_units(x)) : -int256(_units(x));
        int256 vy = y >> 31 == 0 ? int256(_units(y)) : -int256(_units(y));
        assertTrue(Float32.lt(x, y) == (vx < vy), "lt");
        assertTrue(Float32.le(x, y) == (vx <= vy), "le");
        assertTrue(Float32.eq(x, y) == (vx == vy), "eq");
        uint256 greatest = vx < vy ? y : x;
        uint256 least = vx < vy ? x : y;
        assertEq(Float32.max(x, y), greatest << 1 == 0 || greatest == 1 << 31 ? 0 : greatest, "max");
        assertEq(Float32.min(x, y), least << 1 == 0 || least == 1 << 31 ? 0 : least, "min");
    }

    function testFuzz_nanAbsorbs(uint256 x, uint256 payload) public pure {
        x = uint32(x);
        uint256 nan = 0x7f800000 | bound(payload, 1, 0x7fffff) | (payload >> 200) % 2 << 31;
        assertEq(Float32.add(x, nan) | Float32.add(nan, x), 0x7fc00000, "add");
        assertEq(Float32.sub(x, nan) | Float32.sub(nan, x), 0x7fc00000, "sub");
        assertEq(Float32.mul(x, nan) | Float32.mul(nan, x), 0x7fc00000, "mul");
        assertEq(Float32.div(x, nan) | Float32.div(nan, x), 0x7fc00000, "div");
        assertEq(Float32.max(x, nan) | Float32.max(nan, x), 0x7fc00000, "max");
        assertEq(Float32.min(x, nan) | Float32.min(nan, x), 0x7fc00000, "min");
        assertEq(Float32.sqrt(nan) | Float32.neg(nan) | Float32.abs(nan), 0x7fc00000, "unary");
        assertTrue(!Float32.lt(x, nan) && !Float32.le(nan, x) && !Float32.eq(nan, nan), "unordered");
        assertEq(uint256(Float32.toInt64(nan)), 0, "cast");
    }

    function testFuzz_fromInt(int64 x) public pure {
        uint256 magnitude = uint256(x < 0 ? -int256(x) : int256(x));
        assertEq(Float32.fromInt(x), _nearest(x < 0, magnitude << 150), "fromInt");
    }

    function testFuzz_toInt(uint256 a) public pure {
        uint256 x = _number(a, 100, 255);
        if (!Float32.isFinite(x)) x &= 0xff800000;
        int256 expected = type(int64).max;
        if (Float32.isFinite(x) && (x >> 23) & 0xff <= 220) expected = int256(_units(x) >> 150);
        if (x >> 31 == 1) {
            expected = expected >= type(int64).max && (x >> 23) & 0xff >= 190 ? int256(type(int64).min) : -expected;
        } else if (expected > type(int64).max) {
            expected = type(int64).max;
        }
        if (expected < type(int64).min) expected = type(int64).min;
        assertEq(uint256(Float32.toInt64(x)), uint256(expected), "toInt64");
    }
}
