// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// @title binary32 in integers (SPEC section 5): round to nearest, ties to even, subnormals kept, one NaN
/// @notice Numbers are bit patterns in the low 32 bits of a word; the high bits of every argument must be zero.
/// A finite number is ±mantissa · 2^exponent with mantissa < 2^24 and exponent >= -149.
library Float32 {
    uint256 internal constant NAN = 0x7fc00000;
    uint256 internal constant INFINITY = 0x7f800000;
    uint256 internal constant SIGN = 0x80000000;
    uint256 internal constant FULL_PRECISION = 32;
    uint256 internal constant LEAST_PRECISION = 16;
    /// Codes of a rounding log: toward zero, away from it.
    uint256 internal constant DOWN = 1;
    uint256 internal constant UP = 2;
    uint256 internal constant LEAST_TOLERANCE = 2;
    uint256 internal constant GREATEST_TOLERANCE = 64;
    uint256 private constant MAGNITUDE = 0x7fffffff;
    /// Exponent of the last place of subnormals and of the smallest normal binade.
    int256 private constant LEAST_EXPONENT = -149;

    function isNan(uint256 x) internal pure returns (bool) {
        return x & MAGNITUDE > INFINITY;
    }

    /// @dev Whether x is neither infinite nor NaN.
    function isFinite(uint256 x) internal pure returns (bool) {
        return x & MAGNITUDE < INFINITY;
    }

    function isZero(uint256 x) internal pure returns (bool) {
        return x & MAGNITUDE == 0;
    }

    /// @dev x, any NaN replaced by the one NaN.
    function canonical(uint256 x) internal pure returns (uint256) {
        return isNan(x) ? NAN : x;
    }

    /// @dev |x| = mantissa · 2^exponent for a finite x.
    function unpack(uint256 x) internal pure returns (uint256 mantissa, int256 exponent) {
        unchecked {
            uint256 biased = (x >> 23) & 0xff;
            mantissa = x & 0x7fffff;
            if (biased == 0) return (mantissa, LEAST_EXPONENT);
            return (mantissa | 0x800000, int256(biased) - 150);
        }
    }

    /// @dev RN(± magnitude · 2^exponent) for any magnitude below 2^256; zero and underflow keep the sign.
    /// A caller whose exact value is not an integer times a power of two passes at least 27 bits and sets the lowest
    /// ("sticky") if anything nonzero was cut off below it. SAFETY: |exponent| < 2^32.
    function round(bool negative, uint256 magnitude, int256 exponent) internal pure returns (uint256) {
        return roundTo(negative, magnitude, exponent, FULL_PRECISION);
    }

    /// @dev The same to a precision b of 16 ... 32: to the nearest of the patterns whose lowest 32 - b bits are zero,
    /// subnormals and infinity among them. `rounding` is b | n << 8 | code << 16: where code is DOWN or UP, n is not 0
    /// and the number lies within 2^-n of the gap around the middle between two of them, the code chooses (SPEC section
    /// 5.1). A caller who sets a sticky bit then passes at least 90 bits: ends of tolerances are even in their last.
    function roundTo(bool negative, uint256 magnitude, int256 exponent, uint256 rounding)
        internal
        pure
        returns (uint256)
    {
        uint256 sign = negative ? SIGN : 0;
        if (magnitude == 0) return sign;
        unchecked {
            uint256 precision = rounding & 0xff;
            // Exponent of the result's last place: 24 significant bits less those dropped, but never below the
            // subnormals'.
            uint256 dropped = FULL_PRECISION - precision;
            int256 least = LEAST_EXPONENT + int256(dropped);
            int256 last = exponent + int256(bitLength(magnitude) + dropped) - 24;
            if (last < least) last = least;
            int256 cut = last - exponent;
            uint256 mantissa;
            if (cut <= 0) mantissa = magnitude << uint256(-cut); // exact: at most 24 bits
            else mantissa = _roundShift(magnitude, uint256(cut), rounding);
            // A mantissa of 2^24 after rounding carries into the exponent by itself; so does 2^23 from the subnormals.
            uint256 bits = (uint256(last - least) << 23) + (mantissa << dropped);
            return sign | (bits >= INFINITY ? INFINITY : bits);
        }
    }

    /// @dev m / 2^cut to nearest, ties to even, or as the log says if that counts; 1 <= cut.
    function _roundShift(uint256 m, uint256 cut, uint256 rounding) private pure returns (uint256 q) {
        unchecked {
            q = m >> cut;
            // The bits cut off, as a fraction of 2^256. Beyond 256 the fraction is below one half, where all questions
            // are whether it reaches a whole number: what is lost of it does not matter.
            uint256 rest = cut > 256 ? m >> (cut - 256) : m << (256 - cut);
            if (rounding >> 8 != 0 && _follows(rest, rounding)) return rounding >> 16 == UP ? q + 1 : q;
            uint256 half = 1 << 255;
            if (rest > half || (rest == half && q & 1 == 1)) ++q;
        }
    }

    /// @dev Whether the code of `rounding` decides: it is one, and `rest`, a fraction of 2^256, lies within its
    /// tolerance of one half, ends included.
    function _follows(uint256 rest, uint256 rounding) private pure returns (bool) {
        uint256 code = rounding >> 16;
        uint256 tolerance = (rounding >> 8) & 0xff;
        if (tolerance == 0 || (code != DOWN && code != UP)) return false;
        unchecked {
            uint256 width = 1 << (256 - tolerance);
            return rest - ((1 << 255) - width) <= 2 * width; // below the lower end it wraps
        }
    }

    /// @dev RN(x) to bfloat16, which has the upper 16 bits of an f32; zeros keep their sign.
    function toBf16(uint256 x) internal pure returns (uint256) {
        if (isNan(x)) return NAN;
        unchecked {
            // SAFETY: what carries out of the fraction goes to the exponent, and out of the greatest to infinity.
            return (x + 0x7fff + ((x >> 16) & 1)) & 0xffff0000;
        }
    }

    /// @dev Whether this is b | n << 8 | code << 16 with a precision, a tolerance and a code that SPEC section 5.1 knows.
    function isRounding(uint256 rounding) internal pure returns (bool) {
        uint256 precision = rounding & 0xff;
        uint256 tolerance = (rounding >> 8) & 0xff;
        return precision >= LEAST_PRECISION && precision <= FULL_PRECISION && rounding >> 18 == 0
            && (tolerance == 0 || (tolerance >= LEAST_TOLERANCE && tolerance <= GREATEST_TOLERANCE));
    }

    /// @dev Position of the highest set bit plus one; 0 for 0.
    function bitLength(uint256 x) internal pure returns (uint256 n) {
        assembly ("memory-safe") {
            let s := shl(7, gt(x, 0xffffffffffffffffffffffffffffffff))
            n := s
            x := shr(s, x)
            s := shl(6, gt(x, 0xffffffffffffffff))
            n := or(n, s)
            x := shr(s, x)
            s := shl(5, gt(x, 0xffffffff))
            n := or(n, s)
            x := shr(s, x)
            s := shl(4, gt(x, 0xffff))
            n := or(n, s)
            x := shr(s, x)
            s := shl(3, gt(x, 0xff))
            n := or(n, s)
            x := shr(s, x)
            s := shl(2, gt(x, 0xf))
            n := or(n, s)
            x := shr(s, x)
            s := shl(1, gt(x, 0x3))
            n := or(n, s)
            x := shr(s, x)
            // 0, 1, 2 or 3 is left: 0, 1, 2 or 2 bits.
            n := add(n, sub(x, eq(x, 3)))
        }
    }

    function add(uint256 x, uint256 y) internal pure returns (uint256) {
        if (isNan(x) || isNan(y)) return NAN;
        if (!isFinite(x)) return isFinite(y) || x == y ? x : NAN; // inf - inf
        if (!isFinite(y)) return y;
        if (isZero(x) && isZero(y)) return x & y; // -0 only from two -0
        return _addFinite(x, y);
    }

    function sub(uint256 x, uint256 y) internal pure returns (uint256) {
        return add(x, y ^ SIGN);
    }

    /// @dev Not both zero.
    function _addFinite(uint256 x, uint256 y) private pure returns (uint256) {
        unchecked {
            (uint256 mx, int256 ex) = unpack(x);
            (uint256 my, int256 ey) = unpack(y);
            if (ex < ey) (x, mx, ex, y, my, ey) = (y, my, ey, x, mx, ex);
            // x has the greater exponent. Where it is greater by more than 60, x is normal and y is less than 2^-7
            // of x's 31st bit below the last: all of y that matters is its sign, one sticky unit.
            uint256 distance = uint256(ex - ey);
            if (distance > 60) {
                distance = 30;
                ey = ex - 30;
                if (my != 0) my = 1;
            }
            mx <<= distance;
            if ((x ^ y) & SIGN == 0) return round(x & SIGN != 0, mx + my, ey);
            if (mx == my) return 0; // x - x = +0
            return mx > my ? round(x & SIGN != 0, mx - my, ey) : round(y & SIGN != 0, my - mx, ey);
        }
    }

    function mul(uint256 x, uint256 y) internal pure returns (uint256) {
        if (isNan(x) || isNan(y)) return NAN;
        uint256 sign = (x ^ y) & SIGN;
        if (!isFinite(x) || !isFinite(y)) return isZero(x) || isZero(y) ? NAN : sign | INFINITY;
        (uint256 mx, int256 ex) = unpack(x);
        (uint256 my, int256 ey) = unpack(y);
        unchecked {
            return round(sign != 0, mx * my, ex + ey);
        }
    }

    function div(uint256 x, uint256 y) internal pure returns (uint256) {
        if (isNan(x) || isNan(y)) return NAN;
        uint256 sign = (x ^ y) & SIGN;
        if (!isFinite(x)) return isFinite(y) ? sign | INFINITY : NAN;
        if (!isFinite(y)) return sign;
        if (isZero(y)) return isZero(x) ? NAN : sign | INFINITY;
        (uint256 mx, int256 ex) = unpack(x);
        (uint256 my, int256 ey) = unpack(y);
        unchecked {
            // At least 80 - 24 bits of quotient, then one sticky bit for the remainder.
            uint256 scaled = mx << 80;
            uint256 quotient = scaled / my;
            uint256 sticky = quotient * my == scaled ? 0 : 1;
            return round(sign != 0, quotient << 1 | sticky, ex - ey - 81);
        }
    }

    function sqrt(uint256 x) internal pure returns (uint256) {
        if (isNan(x)) return NAN;
        if (isZero(x)) return x;
        if (x & SIGN != 0) return NAN;
        if (!isFinite(x)) return x;
        (uint256 m, int256 e) = unpack(x);
        unchecked {
            // An even exponent, and at least 80 bits under the root, for 40 of result and one sticky bit.
            m <<= 80;
            e -= 80;
            if (e & 1 != 0) {
                m <<= 1;
                e -= 1;
            }
            uint256 root = integerSqrt(m);
            uint256 sticky = root * root == m ? 0 : 1;
            return round(false, root << 1 | sticky, e / 2 - 1);
        }
    }

    /// @dev floor(√n) for n < 2^128, by Newton's method from above.
    function integerSqrt(uint256 n) internal pure returns (uint256 root) {
        if (n == 0) return 0;
        unchecked {
            root = 1 << ((bitLength(n) + 1) / 2); // >= √n
            while (true) {
                uint256 next = (root + n / root) >> 1;
                if (next >= root) return root;
                root = next;
            }
        }
    }

    function neg(uint256 x) internal pure returns (uint256) {
        return isNan(x) ? NAN : x ^ SIGN;
    }

    function abs(uint256 x) internal pure returns (uint256) {
        return isNan(x) ? NAN : x & MAGNITUDE;
    }

    /// @dev NaN if either is; a result that is zero is +0.
    function max(uint256 x, uint256 y) internal pure returns (uint256) {
        if (isNan(x) || isNan(y)) return NAN;
        return _plusZero(lt(x, y) ? y : x);
    }

    /// @dev NaN if either is; a result that is zero is +0.
    function min(uint256 x, uint256 y) internal pure returns (uint256) {
        if (isNan(x) || isNan(y)) return NAN;
        return _plusZero(lt(y, x) ? y : x);
    }

    function _plusZero(uint256 x) private pure returns (uint256) {
        return isZero(x) ? 0 : x;
    }

    function lt(uint256 x, uint256 y) internal pure returns (bool) {
        return !isNan(x) && !isNan(y) && _ordered(x) < _ordered(y);
    }

    function le(uint256 x, uint256 y) internal pure returns (bool) {
        return !isNan(x) && !isNan(y) && _ordered(x) <= _ordered(y);
    }

    function eq(uint256 x, uint256 y) internal pure returns (bool) {
        return !isNan(x) && !isNan(y) && _ordered(x) == _ordered(y);
    }

    /// @dev An integer that grows with the number x; both zeros are 0.
    function _ordered(uint256 x) private pure returns (int256) {
        int256 magnitude = int256(x & MAGNITUDE);
        return x & SIGN != 0 ? -magnitude : magnitude;
    }

    /// @dev RN of an integer of magnitude below 2^255.
    function fromInt(int256 x) internal pure returns (uint256) {
        return x < 0 ? round(true, uint256(-x), 0) : round(false, uint256(x), 0);
    }

    /// @dev Toward zero, NaN to 0, saturating at the ends of i64.
    function toInt64(uint256 x) internal pure returns (int256) {
        if (isNan(x)) return 0;
        bool negative = x & SIGN != 0;
        int256 most = negative ? int256(1) << 63 : (int256(1) << 63) - 1;
        int256 value = most;
        if (isFinite(x)) {
            (uint256 m, int256 e) = unpack(x);
            // SAFETY: m < 2^24 and e <= 104, so the shifts keep all bits.
            value = e >= 0 ? int256(m << uint256(e)) : int256(m >> uint256(-e));
            if (value > most) value = most;
        }
        return negative ? -value : value;
    }
}
