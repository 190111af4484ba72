// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Exact, ExactSum} from "../src/libraries/ExactSum.sol";
import {Float32} from "../src/libraries/Float32.sol";
import {TestBase} from "./support/TestBase.sol";

/// @notice Rounding against a naive twin, a search for the nearest number among exact integers; and sums in any order.
/// (What the functions give is compared with Python's in Vectors.t.sol and Differential.t.sol.)
contract Float32Test is TestBase {
    using ExactSum for Exact;

    /// @dev |x| in units of 2^-150, so that halves of the least subnormal are whole. Biased exponent <= 225.
    function _units(uint256 x) private pure returns (uint256) {
        uint256 biased = (x >> 23) & 0xff;
        uint256 fraction = x & 0x7fffff;
        return biased == 0 ? fraction << 1 : (fraction | 1 << 23) << biased;
    }

    /// @dev The naive twin of `roundTo`: the number nearest to units · 2^-150, by bisection over the bit patterns whose
    /// lowest 32 - b bits are zero, which grow with the numbers. units < 2^247.
    function _nearestTo(uint256 units, uint256 precision) private pure returns (uint256) {
        uint256 step = 32 - precision;
        uint256 low = 0;
        uint256 high = (225 << 23) >> step; // above any value
        while (high - low > 1) {
            uint256 middle = (low + high) / 2;
            if (_units(middle << step) <= units) low = middle;
            else high = middle;
        }
        uint256 down = units - _units(low << step);
        uint256 up = _units(high << step) - units;
        return (down < up || (down == up && low % 2 == 0) ? low : high) << step;
    }

    /// forge-config: ci.fuzz.runs = 5000
    function testFuzz_roundToAPrecision(uint256 magnitude, uint256 width, uint256 exponent, uint256 b) public pure {
        magnitude >>= 256 - bound(width, 1, 200);
        (exponent, b) = (bound(exponent, 0, 40), bound(b, 16, 32));
        uint256 found = Float32.roundTo(false, magnitude, int256(exponent) - 150, b);
        assertEq(found, _nearestTo(magnitude << exponent, b), "round to a precision");
        assertEq(Float32.roundTo(true, magnitude, int256(exponent) - 150, b), found | 1 << 31, "and its negative");
    }

    /// forge-config: ci.fuzz.runs = 5000
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

    /// forge-config: ci.fuzz.runs = 5000
    function testFuzz_roundShifted(uint256 magnitude, uint256 shift) public pure {
        // The same number with another exponent.
        magnitude >>= bound(shift, 0, 255);
        uint256 free = 256 - Float32.bitLength(magnitude);
        int256 exponent = int256(shift % 600) - 420;
        uint256 found = Float32.round(false, magnitude << free, exponent - int256(free));
        assertEq(found, Float32.round(false, magnitude, exponent), "round of a shifted magnitude");
    }

    function testFuzz_integerSqrt(uint128 n) public pure {
        uint256 r = Float32.integerSqrt(n);
        assertTrue(r * r <= n && n < (r + 1) * (r + 1), "integerSqrt");
    }

    function _finite(uint256 seed) private pure returns (uint256) {
        return uint32(seed) & 0x7f800000 == 0x7f800000 ? uint32(seed) & 0xff7fffff : uint32(seed);
    }

    function testFuzz_anyOrderAndCancellation(uint256[6] memory seeds) public pure {
        Exact memory forward;
        Exact memory backward;
        for (uint256 k = 0; k < 6; ++k) {
            forward.addProduct(_finite(seeds[k]), _finite(seeds[k] >> 32));
            forward.addValue(_finite(seeds[k] >> 64));
            backward.addValue(_finite(seeds[5 - k] >> 64));
            backward.addProduct(_finite(seeds[5 - k] >> 32), _finite(seeds[5 - k]));
        }
        assertEq(forward.encode(), backward.encode(), "order");
        for (uint256 k = 0; k < 6; ++k) {
            backward.addProduct(_finite(seeds[k]) ^ 1 << 31, _finite(seeds[k] >> 32));
            backward.addValue(_finite(seeds[k] >> 64) ^ 1 << 31);
        }
        Exact memory zero;
        assertEq(backward.encode(), zero.encode(), "cancelled");
        assertEq(backward.toFloat32(32), 0, "a zero sum is +0");
    }
}
