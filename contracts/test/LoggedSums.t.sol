// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Exact, ExactSum} from "../src/libraries/ExactSum.sol";
import {Float32} from "../src/libraries/Float32.sol";
import {SlowSum} from "./support/SlowSum.sol";
import {TestBase} from "./support/TestBase.sol";

/// @notice The naive twin in a frame of its own: its many numbers leave no memory behind.
contract SlowSumHarness {
    function round(Exact memory sum, uint256 b, uint256 n, uint256 code) external pure returns (uint256) {
        return SlowSum.round(sum, b, n, code);
    }
}

/// @notice Rounding of sums along a log (SPEC section 5.1): by hand at every edge, and against a naive twin.
contract LoggedSumsTest is TestBase {
    using ExactSum for Exact;

    SlowSumHarness private immutable TWIN = new SlowSumHarness();

    uint256 private constant ONE = 0x3f800000;
    uint256 private constant SIGN = 0x80000000;
    uint256 private constant INFINITY = 0x7f800000;
    uint256 private constant NONE = 0;
    uint256 private constant DOWN = 1;
    uint256 private constant UP = 2;
    /// 2^-149. Its square is one unit of a sum.
    uint256 private constant LEAST = 1;

    function _packed(uint256 b, uint256 n, uint256 code) private pure returns (uint256) {
        return b | n << 8 | code << 16;
    }

    /// @dev The pattern of 2^k, -149 <= k <= 127.
    function _power(int256 k) private pure returns (uint256) {
        return k < -126 ? uint256(1) << uint256(k + 149) : uint256(k + 127) << 23;
    }

    function _negative(uint256 x) private pure returns (uint256) {
        return x | SIGN;
    }

    /// @dev The sum of up to three numbers and `units` · 2^-298.
    function _sum(uint256 x, uint256 y, uint256 z, int256 units) private pure returns (Exact memory sum) {
        sum.addValue(x);
        sum.addValue(y);
        sum.addValue(z);
        for (int256 k = 0; k < units; ++k) {
            sum.addProduct(LEAST, LEAST);
        }
        for (int256 k = 0; k > units; --k) {
            sum.addProduct(LEAST, _negative(LEAST));
        }
    }

    function _isRoundedTo(Exact memory sum, uint256 b, uint256 n, uint256 code, uint256 expected, string memory what)
        private
        view
    {
        assertEq(sum.toFloat32(_packed(b, n, code)), expected, what);
        assertEq(TWIN.round(sum, b, n, code), expected, string.concat("the naive twin: ", what));
    }

    /// @dev By the log: down or up by what it says; to nearest without a code, without a tolerance, and at code 3.
    function _isOpen(Exact memory sum, uint256 b, uint256 n, uint256[3] memory downUpNearest, string memory what)
        private
        view
    {
        _isRoundedTo(sum, b, n, DOWN, downUpNearest[0], what);
        _isRoundedTo(sum, b, n, UP, downUpNearest[1], what);
        uint256 nearest = downUpNearest[2];
        _isRoundedTo(sum, b, n, NONE, nearest, what);
        _isRoundedTo(sum, b, n, 3, nearest, what);
        _isRoundedTo(sum, b, 0, DOWN, nearest, what);
        _isRoundedTo(sum, b, 0, UP, nearest, what);
    }

    /// @dev To nearest, whatever the log says.
    function _isClosed(Exact memory sum, uint256 b, uint256 n, uint256 nearest, string memory what) private view {
        _isOpen(sum, b, n, [nearest, nearest, nearest], what);
    }

    /// @dev Around the middle of 1 and the next number, at every precision and tolerance: at both ends of what the log
    /// decides, and one unit of 2^-298 further, 275 bits below the number's first.
    function test_bothEndsOfEachTolerance() public view {
        for (uint256 b = 16; b <= 32; ++b) {
            uint256 next = ONE + (1 << (32 - b));
            int256 gap = 9 - int256(b); // of the exponent: the gap is 2^gap
            uint256 middle = _power(gap - 1);
            for (uint256 n = 2; n <= 64; n += n < 3 ? 1 : 61) {
                uint256 width = _power(gap - int256(n));
                uint256[3] memory low = [ONE, next, ONE];
                uint256[3] memory high = [ONE, next, next];
                _isOpen(_sum(ONE, middle, _negative(width), 0), b, n, low, "at the lower end");
                _isOpen(_sum(ONE, middle, _negative(width), 1), b, n, low, "inside of it");
                _isClosed(_sum(ONE, middle, _negative(width), -1), b, n, ONE, "outside of it");
                _isOpen(_sum(ONE, middle, width, 0), b, n, high, "at the upper end");
                _isOpen(_sum(ONE, middle, width, -1), b, n, high, "inside of that");
                _isClosed(_sum(ONE, middle, width, 1), b, n, next, "outside of that");
            }
        }
    }

    /// @dev By magnitude: up is away from zero.
    function test_negativeSums() public view {
        Exact memory sum = _sum(_negative(ONE), _negative(_power(-24)), _power(-28), 0);
        _isOpen(sum, 32, 5, [ONE | SIGN, (ONE + 1) | SIGN, ONE | SIGN], "-1 and less than half a place");
        _isOpen(sum, 32, 4, [ONE | SIGN, (ONE + 1) | SIGN, ONE | SIGN], "inside a wider tolerance");
        _isClosed(sum, 32, 6, ONE | SIGN, "outside a narrower one");
    }

    /// @dev At the middle itself RN takes the even neighbour, and the log either.
    function test_ties() public view {
        _isOpen(_sum(ONE, _power(-24), 0, 0), 32, 64, [ONE, ONE + 1, ONE], "above an even number");
        _isOpen(_sum(ONE + 1, _power(-24), 0, 0), 32, 64, [ONE + 1, ONE + 2, ONE + 2], "above an odd one");
        uint256 odd = ONE | 1 << 16;
        _isOpen(_sum(odd, _power(-8), 0, 0), 16, 64, [odd, odd + 0x10000, odd + 0x10000], "at 16 bits");
    }

    /// @dev A number of the precision is near no middle, even at the widest tolerance, nor is what lies next to it.
    function test_exactSums() public view {
        for (uint256 b = 16; b <= 32; ++b) {
            uint256 step = 1 << (32 - b);
            uint256[5] memory exact = [ONE, ONE + step, step, 0x00800000, 0x7f800000 - step];
            for (uint256 k = 0; k < exact.length; ++k) {
                for (int256 units = -1; units <= 1; ++units) {
                    _isClosed(_sum(exact[k], 0, 0, units), b, 2, exact[k], "a number of the format");
                    uint256 negative = _negative(exact[k]);
                    _isClosed(_sum(negative, 0, 0, units), b, 2, negative, "and its negative");
                }
            }
            _isClosed(_sum(0, 0, 0, 0), b, 2, 0, "zero");
            _isClosed(_sum(SIGN, SIGN, 0, 0), b, 2, 0, "of -0");
        }
    }

    /// @dev Between zero and the least number a result keeps no bit at all; a sum that rounds to zero is +0.
    function test_belowTheLeastNumber() public view {
        for (uint256 b = 16; b <= 31; ++b) {
            uint256 least = 1 << (32 - b);
            int256 gap = -117 - int256(b);
            for (uint256 n = 2; gap - int256(n) >= -149; n += 5) {
                uint256 middle = _power(gap - 1);
                uint256 width = _power(gap - int256(n));
                uint256[3] memory low = [0, least, 0];
                _isOpen(_sum(middle, _negative(width), 0, 0), b, n, low, "the lower end");
                _isClosed(_sum(middle, _negative(width), 0, -1), b, n, 0, "below it");
                _isOpen(_sum(middle, width, 0, 0), b, n, [0, least, least], "the upper end");
                _isClosed(_sum(middle, width, 0, 1), b, n, least, "above it");
                uint256[3] memory signed = [0, _negative(least), 0];
                _isOpen(_sum(_negative(middle), width, 0, 0), b, n, signed, "the negative one");
            }
        }
        // At 32 bits the middle is 2^-150, which only a product is.
        for (uint256 n = 2; n <= 64; n += n < 4 ? 1 : 20) {
            Exact memory sum;
            sum.addProduct(LEAST, _power(-1));
            _isOpen(sum, 32, n, [uint256(0), LEAST, 0], "2^-150");
            sum.addProduct(_negative(LEAST), _power(-int256(n)));
            _isOpen(sum, 32, n, [uint256(0), LEAST, 0], "the lower end");
            sum.addProduct(_negative(LEAST), LEAST);
            _isClosed(sum, 32, n, 0, "below it");
        }
        _isClosed(_sum(0, 0, 0, 1), 32, 2, 0, "a single unit");
        _isClosed(_sum(0, 0, 0, -1), 16, 2, 0, "of either sign");
    }

    /// @dev The gaps of subnormal numbers are all alike, and that below the least normal number is one of them.
    function test_subnormalNumbers() public view {
        uint256 d = 0x007f0000;
        uint256 u = 0x00800000;
        _isOpen(_sum(d, _power(-134), _power(-138), 0), 16, 5, [d, u, u], "to the least normal number");
        _isClosed(_sum(d, _power(-134), _power(-138), 1), 16, 5, u, "outside");
        _isOpen(_sum(u, _power(-134), _power(-138), 0), 16, 5, [u, u + 0x10000, u + 0x10000], "above it the gap stays");
        d = 0x00030000;
        _isOpen(_sum(d, _power(-134), _negative(_power(-138)), 0), 16, 5, [d, d + 0x10000, d], "few bits are kept");
        _isClosed(_sum(d, _power(-134), _negative(_power(-138)), -1), 16, 5, d, "outside");
    }

    /// @dev Below a power of two the gap is half of that above it.
    function test_powersOfTwo() public view {
        uint256 below = ONE - 1;
        _isOpen(_sum(below, _power(-25), _power(-28), 0), 32, 4, [below, ONE, ONE], "below 1 within 2^-4 of 2^-24");
        _isClosed(_sum(below, _power(-25), _power(-28), 1), 32, 4, ONE, "outside");
        _isOpen(_sum(ONE, _power(-24), _power(-27), 0), 32, 4, [ONE, ONE + 1, ONE + 1], "above 1 within 2^-4 of 2^-23");
        _isClosed(_sum(ONE, _power(-24), _power(-27), 1), 32, 4, ONE + 1, "outside");
        uint256 four = 0x40800000;
        _isOpen(_sum(four - 0x10000, _power(-7), 0, -1), 16, 64, [four - 0x10000, four, four - 0x10000], "below 4");
    }

    /// @dev After the greatest number comes 2^128, which is infinity; at and above it nothing is open.
    function test_overflow() public view {
        for (uint256 b = 16; b <= 32; ++b) {
            uint256 most = INFINITY - (1 << (32 - b));
            uint256 half = _power(135 - int256(b));
            uint256 width = _power(136 - int256(b) - 20);
            _isOpen(_sum(most, half, 0, 0), b, 20, [most, INFINITY, INFINITY], "the middle to 2^128");
            _isOpen(_sum(most, half, _negative(width), 0), b, 20, [most, INFINITY, most], "the lower end");
            _isClosed(_sum(most, half, _negative(width), -1), b, 20, most, "below it");
            _isOpen(_sum(most, half, width, 0), b, 20, [most, INFINITY, INFINITY], "the upper end");
            _isClosed(_sum(most, half, width, 1), b, 20, INFINITY, "above it");
            _isClosed(_sum(most, half, half, 0), b, 2, INFINITY, "2^128");
            _isClosed(_sum(most, half, half, -1), b, 2, INFINITY, "next to it");
            uint256 negative = _negative(INFINITY);
            _isOpen(_sum(_negative(most), _negative(half), 0, 0), b, 2, [_negative(most), negative, negative], "-2^128");
        }
        Exact memory huge;
        huge.addProduct(_power(127), _power(127));
        huge.addProduct(_power(103), _power(127)); // a middle, if exponents went that far
        _isClosed(huge, 32, 2, INFINITY, "2^254");
    }

    function test_notFinite() public view {
        Exact memory sum = _sum(ONE, INFINITY, 0, 0);
        _isClosed(sum, 32, 2, 0x7fc00000, "NaN");
        _isClosed(sum, 16, 64, 0x7fc00000, "NaN");
    }

    /// @dev A sum around the middle of two numbers of the format, at an end of the tolerance or the middle itself, or next
    /// to it, wherever in the range. What it must be is known by how it was made; both implementations say so.
    function testFuzz_edges(uint256 seed, uint256 x, uint256 off) public view {
        (uint256 b, uint256 n, uint256 code) = (bound(seed, 16, 32), bound(seed >> 8, 2, 64), (seed >> 16) % 4);
        uint256 step = 1 << (32 - b);
        uint256 d = _pattern(x) / step * step;
        uint256 biased = d >> 23 == 0 ? 1 : d >> 23;
        uint256 gap = biased + 180 - b; // the gap is 2^gap units
        uint256[32] memory sum = SlowSum.add(SlowSum.ofPattern(d), SlowSum.ofPower(1, gap - 1));
        uint256 side = (seed >> 24) % 3; // lower end, middle, upper end
        uint256[32] memory width = SlowSum.ofPower(1, gap - n);
        if (side == 0) sum = SlowSum.sub(sum, width);
        if (side == 2) sum = SlowSum.add(sum, width);
        // 0, one unit, or a power of two below the width; up or down.
        uint256 shape = (seed >> 32) % 3;
        uint256[32] memory little = SlowSum.ofPower(shape == 0 ? 0 : 1, shape == 1 ? 0 : off % (gap - n));
        bool down = (seed >> 40) % 2 == 0;
        sum = down ? SlowSum.sub(sum, little) : SlowSum.add(sum, little);
        bool open = shape == 0 || side == 1 || (side == 0) != down;
        bool up = side == 2;
        if (side == 1) up = shape == 0 ? (d / step) % 2 == 1 : !down;
        if (open && (code == DOWN || code == UP)) up = code == UP;
        bool negative = (seed >> 48) % 2 == 1;
        uint256 expected = up ? d + step : d;
        if (negative && expected != 0) expected |= SIGN;
        _isRoundedTo(SlowSum.toExact(negative, sum), b, n, code, expected, "an edge");
    }

    /// @dev A finite positive number; subnormal ones, the least and the greatest are likely.
    function _pattern(uint256 seed) private pure returns (uint256) {
        uint256 shape = (seed >> 64) % 6;
        uint256 fraction = seed & 0x7fffff;
        if (shape == 0) return fraction >> (seed >> 32) % 24;
        if (shape == 1) return INFINITY - 1 - (fraction >> (seed >> 32) % 24);
        uint256 biased = bound(seed >> 32, 0, 254);
        if (shape == 2) fraction = 0;
        if (shape == 3) fraction = 0x7fffff;
        return biased << 23 | fraction;
    }

    /// @dev Any 768 bits, shifted anywhere, at any rounding.
    /// forge-config: ci.fuzz.runs = 1000
    function testFuzz_anySum(uint256[3] memory words, uint256 shift, uint256 rounding) public view {
        Exact memory sum;
        shift = bound(shift, 0, 767);
        if (shift >= 512) sum.w0 = words[2] >> (shift - 512);
        else if (shift >= 256) (sum.w1, sum.w0) = (words[2] >> (shift - 256), words[1]);
        else (sum.w2, sum.w1, sum.w0) = (words[2] >> shift, words[1], words[0]);
        (bool negative, uint256[32] memory magnitude) = SlowSum.magnitude(sum);
        if ((rounding >> 100) % 2 == 1) sum = SlowSum.toExact(!negative, magnitude);
        _anyRounding(sum, rounding);
    }

    /// @dev Few terms of like size: what an element of a program may be.
    /// forge-config: ci.fuzz.runs = 1000
    function testFuzz_fewTerms(uint256[6] memory seeds, uint256 rounding) public view {
        Exact memory sum;
        for (uint256 k = 0; k < 6; ++k) {
            uint256 x = seeds[k] % 2 << 31 | bound(seeds[k] >> 8, 120, 130) << 23 | (seeds[k] >> 64) & 0x7fffff;
            if (k % 2 == 0) sum.addValue(x & 0xfffff000); // few bits: middles are likely
            else sum.addProduct(x & 0xffff0000, ONE | (seeds[k] >> 128) & 0x780000);
        }
        _anyRounding(sum, rounding);
    }

    /// @dev The rounding itself, and that a log can do no more than choose between two neighbours.
    function _anyRounding(Exact memory sum, uint256 seed) private view {
        (uint256 b, uint256 n) = (bound(seed, 16, 32), bound(seed >> 8, 1, 64));
        if (n == 1) n = 0;
        for (uint256 code = 0; code < 4; ++code) {
            uint256 found = sum.toFloat32(_packed(b, n, code));
            assertEq(found, TWIN.round(sum, b, n, code), "as the naive twin");
            uint256 nearest = sum.toFloat32(b);
            (uint256 low, uint256 high) = (found & ~SIGN, nearest & ~SIGN);
            if (low > high) (low, high) = (high, low);
            assertTrue(high - low <= 1 << (32 - b), "the nearest or its neighbour");
        }
    }

    /// @dev What is a rounding, for every value of each field.
    function test_roundings() public pure {
        for (uint256 x = 0; x < 256; ++x) {
            assertTrue(Float32.isRounding(x) == (x >= 16 && x <= 32), "precision");
            assertTrue(Float32.isRounding(32 | x << 8) == (x == 0 || (x >= 2 && x <= 64)), "tolerance");
            assertTrue(Float32.isRounding(32 | 64 << 8 | x << 16) == (x <= 3), "code");
            assertTrue(
                Float32.isRounding(32 | (uint256(1) << x)) == (x == 5 || x > 8 && x < 15 || x == 16 || x == 17), "a bit"
            );
        }
    }
}
