// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Exact} from "../../src/libraries/ExactSum.sol";

/// @title SPEC section 5.1 read aloud in schoolbook integers: a naive twin of `ExactSum.toFloat32`
/// @notice A natural number is 32 limbs of 32 bits, the lowest first, in units of 2^-298. Nothing is shifted, cut off or
/// made sticky: d and u are found by bisection over patterns, and every comparison is one of whole numbers.
library SlowSum {
    uint256 private constant LIMBS = 32;
    uint256 private constant MASK = 0xffffffff;
    uint256 internal constant INFINITY = 0x7f800000;

    /// @dev |value| of a finite pattern; infinity stands for 2^128.
    function ofPattern(uint256 bits) internal pure returns (uint256[32] memory x) {
        uint256 biased = (bits >> 23) & 0xff;
        uint256 mantissa = bits & 0x7fffff;
        // 2^(biased - 150) is 2^(biased + 148) units; subnormals have the exponent of biased 1.
        return biased == 0 ? ofPower(mantissa, 149) : ofPower(mantissa | 1 << 23, biased + 148);
    }

    /// @dev m · 2^k for m < 2^32.
    function ofPower(uint256 m, uint256 k) internal pure returns (uint256[32] memory x) {
        uint256 shifted = m << (k % 32);
        x[k / 32] = shifted & MASK;
        x[k / 32 + 1] = shifted >> 32;
    }

    function add(uint256[32] memory x, uint256[32] memory y) internal pure returns (uint256[32] memory z) {
        uint256 carry = 0;
        for (uint256 k = 0; k < LIMBS; ++k) {
            uint256 limb = x[k] + y[k] + carry;
            (z[k], carry) = (limb & MASK, limb >> 32);
        }
        require(carry == 0, "an overflow");
    }

    /// @dev x - y for x >= y.
    function sub(uint256[32] memory x, uint256[32] memory y) internal pure returns (uint256[32] memory z) {
        uint256 borrow = 0;
        for (uint256 k = 0; k < LIMBS; ++k) {
            uint256 limb = (1 << 32) + x[k] - y[k] - borrow;
            (z[k], borrow) = (limb & MASK, 1 - (limb >> 32));
        }
        require(borrow == 0, "a negative number");
    }

    function less(uint256[32] memory x, uint256[32] memory y) internal pure returns (bool) {
        for (uint256 k = LIMBS; k != 0;) {
            --k;
            if (x[k] != y[k]) return x[k] < y[k];
        }
        return false;
    }

    function distance(uint256[32] memory x, uint256[32] memory y) internal pure returns (uint256[32] memory) {
        return less(x, y) ? sub(y, x) : sub(x, y);
    }

    /// @dev Sign and magnitude of a sum.
    function magnitude(Exact memory sum) internal pure returns (bool negative, uint256[32] memory x) {
        uint256[3] memory words = [sum.w0, sum.w1, sum.w2];
        negative = sum.w2 >> 255 == 1;
        uint256 carry = 1;
        for (uint256 k = 0; k < 24; ++k) {
            uint256 limb = (words[k / 8] >> 32 * (k % 8)) & MASK;
            if (negative) {
                limb = (MASK - limb) + carry;
                carry = limb >> 32;
            }
            x[k] = limb & MASK;
        }
    }

    /// @dev The sum with this sign and magnitude below 2^767.
    function toExact(bool negative, uint256[32] memory x) internal pure returns (Exact memory sum) {
        uint256[3] memory words;
        uint256 carry = 1;
        for (uint256 k = 0; k < 24; ++k) {
            uint256 limb = x[k];
            if (negative) {
                limb = (MASK - limb) + carry;
                carry = limb >> 32;
            }
            words[k / 8] |= (limb & MASK) << 32 * (k % 8);
        }
        (sum.w0, sum.w1, sum.w2) = (words[0], words[1], words[2]);
    }

    /// @dev The pattern d of the greatest number of b bits that is not above x.
    function below(uint256[32] memory x, uint256 b) internal pure returns (uint256) {
        uint256 step = 1 << (32 - b);
        if (!less(x, ofPattern(INFINITY))) return INFINITY;
        (uint256 low, uint256 high) = (0, INFINITY / step);
        while (high - low > 1) {
            uint256 middle = (low + high) / 2;
            if (less(x, ofPattern(middle * step))) high = middle;
            else low = middle;
        }
        return low * step;
    }

    /// @dev Whether | x - (d + u)/2 | <= 2^-n · (u - d): both sides are multiplied by 2^(n+1).
    function isNear(uint256[32] memory x, uint256[32] memory d, uint256[32] memory u, uint256 n)
        internal
        pure
        returns (bool)
    {
        uint256[32] memory left = distance(add(x, x), add(d, u));
        for (uint256 k = 0; k < n; ++k) {
            left = add(left, left);
        }
        uint256[32] memory gap = sub(u, d);
        return !less(add(gap, gap), left);
    }

    /// @dev Bits of the sum, rounded to b bits with tolerance n (0: none) and a log's code.
    function round(Exact memory sum, uint256 b, uint256 n, uint256 code) internal pure returns (uint256) {
        if (sum.notFinite) return 0x7fc00000;
        (bool negative, uint256[32] memory x) = magnitude(sum);
        uint256 d = below(x, b);
        uint256 bits = d;
        if (d != INFINITY) {
            uint256 u = d + (1 << (32 - b));
            uint256[32] memory numberD = ofPattern(d);
            uint256[32] memory numberU = ofPattern(u);
            if ((code == 1 || code == 2) && n != 0 && isNear(x, numberD, numberU, n)) {
                bits = code == 1 ? d : u;
            } else {
                uint256[32] memory twice = add(x, x);
                uint256[32] memory ends = add(numberD, numberU);
                bool isOdd = (d >> (32 - b)) % 2 == 1;
                if (less(ends, twice) || (!less(twice, ends) && isOdd)) bits = u;
            }
        }
        return bits == 0 ? 0 : negative ? bits | 1 << 31 : bits;
    }
}
