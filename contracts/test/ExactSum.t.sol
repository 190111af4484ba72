// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Exact, ExactSum} from "../src/libraries/ExactSum.sol";
import {Float32} from "../src/libraries/Float32.sol";
import {TestBase} from "./support/TestBase.sol";

/// @notice The 768-bit sum against plain signed integers, and against itself in another order.
contract ExactSumTest is TestBase {
    using ExactSum for Exact;

    function _finite(uint256 seed) private pure returns (uint256) {
        return uint32(seed) & 0x7f800000 == 0x7f800000 ? uint32(seed) & 0xff7fffff : uint32(seed);
    }

    /// @dev Biased exponent 60 ... 120: products between 2^-180 and 2^-11.
    function _small(uint256 seed) private pure returns (uint256) {
        return uint32(seed) & 0x807fffff | bound(seed >> 40, 60, 120) << 23;
    }

    function testFuzz_againstPlainIntegers(uint256[8] memory seeds) public pure {
        Exact memory sum;
        int256 plain = 0; // in units of 2^-180
        for (uint256 k = 0; k < 8; ++k) {
            (uint256 x, uint256 y) = (_small(seeds[k]), _small(seeds[k] >> 100));
            sum.addProduct(x, y);
            (uint256 mx, int256 ex) = Float32.unpack(x);
            (uint256 my, int256 ey) = Float32.unpack(y);
            int256 product = int256((mx * my) << uint256(ex + ey + 180));
            plain += (x ^ y) >> 31 == 1 ? -product : product;
        }
        // The sum is plain · 2^118 units: put together from words, sign extended.
        assertEq(sum.w0, uint256(plain) << 118, "w0");
        assertEq(sum.w1, uint256(plain >> 138), "w1");
        assertEq(sum.w2, plain < 0 ? type(uint256).max : 0, "w2");
        uint256 expected = Float32.round(plain < 0, uint256(plain < 0 ? -plain : plain), -180);
        assertEq(sum.toFloat32(32), expected == 0x80000000 ? 0 : expected, "rounded");
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

    /// @dev The same sum as one plain integer, rounded to every precision; subnormal results among them.
    function testFuzz_atEveryPrecision(uint256[4] memory seeds, uint256 binade) public pure {
        binade = bound(binade, 0, 40);
        Exact memory sum;
        int256 plain = 0; // in units of 2^-180
        for (uint256 k = 0; k < 4; ++k) {
            uint256 x = uint32(seeds[k]) & 0x807fffff | bound(seeds[k] >> 40, 0, 20 + binade) << 23;
            sum.addValue(x);
            (uint256 m, int256 e) = Float32.unpack(x);
            int256 value = int256(m << uint256(e + 180));
            plain += x >> 31 == 1 ? -value : value;
        }
        for (uint256 b = 16; b <= 32; ++b) {
            uint256 expected = Float32.roundTo(plain < 0, uint256(plain < 0 ? -plain : plain), -180, b);
            assertEq(sum.toFloat32(b), expected == 0x80000000 ? 0 : expected, "rounded");
        }
    }

    function testFuzz_oneTermIsItself(uint256 x) public pure {
        x = _finite(x);
        Exact memory value;
        value.addValue(x);
        assertEq(value.toFloat32(32), x << 1 == 1 << 32 || x == 0 ? 0 : x, "the value, zero as +0");
        Exact memory product;
        product.addProduct(x, 0x3f800000);
        assertEq(product.encode(), value.encode(), "times one");
    }

    function testFuzz_oneProductRoundsAsMul(uint256 x, uint256 y) public pure {
        (x, y) = (_finite(x), _finite(y));
        Exact memory sum;
        sum.addProduct(x, y);
        uint256 expected = Float32.mul(x, y);
        assertEq(sum.toFloat32(32), expected == 0x80000000 ? 0 : expected, "mul");
    }

    function testFuzz_twoTermsRoundAsAdd(uint256 x, uint256 y) public pure {
        (x, y) = (_finite(x), _finite(y));
        Exact memory sum;
        sum.addValue(x);
        sum.addValue(y);
        uint256 expected = Float32.add(x, y);
        assertEq(sum.toFloat32(32), expected == 0x80000000 ? 0 : expected, "add");
    }

    function testFuzz_notFiniteIsForGood(uint256 x, uint256 y, uint256 payload) public pure {
        uint256 bad = 0x7f800000 | uint32(payload);
        Exact memory sum;
        sum.addProduct(_finite(x), _finite(y));
        if (payload % 3 == 0) sum.addValue(bad);
        else if (payload % 3 == 1) sum.addProduct(bad, _finite(x));
        else sum.addProduct(0, bad);
        sum.addValue(_finite(y));
        assertTrue(sum.notFinite && sum.w0 | sum.w1 | sum.w2 == 0, "flag 1 and integer 0");
        assertEq(sum.toFloat32(32), 0x7fc00000, "NaN");
    }
}
