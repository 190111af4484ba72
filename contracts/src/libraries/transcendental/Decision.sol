// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Float32} from "../Float32.sol";

/// @dev What an evaluation knows: the exact magnitude lies strictly between (n - err) · 2^e and (n + err) · 2^e.
struct Estimate {
    uint256 n;
    int256 e;
    uint256 err;
}

/// @title Rounding to `precision` bits, and the decision whether an estimate is good enough to round (SPEC section 5)
/// @notice A format of b = 16 ... 32 bits has 1 sign, 8 exponent and b - 9 fraction bits: its numbers are the f32
/// patterns whose lowest 32 - b bits are zero, so one rule serves normal and subnormal numbers.
library Decision {
    /// Fraction bits of an f32, exponent of the least normal binade, and of the last place below it.
    int256 private constant FRACTION_BITS = 23;
    int256 private constant LEAST_BINADE = -126;

    /// @dev The number that both ends of the estimate round to; `decided` is false where they differ.
    function round(Estimate memory value, bool negative, uint256 precision)
        internal
        pure
        returns (bool decided, uint256 bits)
    {
        (uint256 n, uint256 err) = (value.n, value.err);
        if (n <= err) return (false, 0);
        // SAFETY: n and err are below 2^255: every evaluation argues that.
        unchecked {
            bits = roundTo(n - err, value.e, precision);
            decided = bits == roundTo(n + err, value.e, precision);
        }
        if (negative) bits |= Float32.SIGN;
    }

    /// @dev RN of a number strictly between (n - 1/8) · 2^e and n · 2^e, for 0 < n < 2^24 and e >= -149, where
    /// n · 2^e is an f32: f(x) just below x.
    function justBelow(uint256 n, int256 e, bool negative, uint256 precision) internal pure returns (uint256 bits) {
        unchecked {
            // Ties included, what lies next below n · 2^e in the format is a quarter of its last place away (n = 2^23),
            // or half of it: no boundary lies in the open interval, so any number of it stands for all.
            bits = roundTo((n << 3) - 1, e - 3, precision);
        }
        if (negative) bits |= Float32.SIGN;
    }

    /// @dev RN(magnitude · 2^e) to `precision` bits: the pattern without a sign, overflow to infinity.
    /// SAFETY: 0 < magnitude, |e| < 2^32 and 16 <= precision <= 32.
    function roundTo(uint256 magnitude, int256 e, uint256 precision) internal pure returns (uint256 bits) {
        unchecked {
            int256 fractionBits = int256(precision) - 9;
            int256 top = int256(Float32.bitLength(magnitude)) + e - 1;
            if (top < LEAST_BINADE) top = LEAST_BINADE;
            int256 cut = top - fractionBits - e; // this many bits are rounded away
            uint256 units;
            if (cut <= 0) {
                units = magnitude << uint256(-cut); // exact: at most 24 bits
            } else if (cut <= 256) {
                units = magnitude >> uint256(cut);
                uint256 rest = magnitude << uint256(256 - cut); // as a fraction of 2^256
                uint256 half = 1 << 255;
                if (rest > half || (rest == half && units & 1 == 1)) ++units;
            } // else below half of the least place
            // A carry into the next binade, or from the subnormals, falls into the exponent by itself.
            bits = (units << uint256(FRACTION_BITS - fractionBits)) + (uint256(top - LEAST_BINADE) << 23);
            if (bits > Float32.INFINITY) bits = Float32.INFINITY;
        }
    }
}
