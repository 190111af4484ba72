// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {Float32} from "./Float32.sol";

/// @dev A 768-bit two's complement integer in units of 2^-298, or "not finite". Invariant: notFinite implies all zero.
struct Exact {
    bool notFinite;
    /// Words from the lowest.
    uint256 w0;
    uint256 w1;
    uint256 w2;
}

/// @title Exact sums of f32 products (SPEC section 6)
/// @notice The least nonzero product is 2^-298, the greatest below 2^256: 554 bits. With 2^32 terms at most 586 bits
/// and a sign are used, so that 768 never overflow.
library ExactSum {
    uint256 internal constant ENCODED_BYTES = 97;
    int256 private constant UNIT = -298;

    /// @dev Adds x · y.
    function addProduct(Exact memory sum, uint256 x, uint256 y) internal pure {
        if (!Float32.isFinite(x) || !Float32.isFinite(y)) return _poison(sum);
        (uint256 mx, int256 ex) = Float32.unpack(x);
        (uint256 my, int256 ey) = Float32.unpack(y);
        unchecked {
            // SAFETY: exponents are at least -149 each.
            _add(sum, (x ^ y) & Float32.SIGN != 0, mx * my, uint256(ex + ey - UNIT));
        }
    }

    /// @dev Adds x.
    function addValue(Exact memory sum, uint256 x) internal pure {
        if (!Float32.isFinite(x)) return _poison(sum);
        (uint256 m, int256 e) = Float32.unpack(x);
        unchecked {
            _add(sum, x & Float32.SIGN != 0, m, uint256(e - UNIT));
        }
    }

    function _poison(Exact memory sum) private pure {
        (sum.notFinite, sum.w0, sum.w1, sum.w2) = (true, 0, 0, 0);
    }

    /// @dev Adds ± m · 2^shift units. m < 2^48, shift < 512.
    function _add(Exact memory sum, bool negative, uint256 m, uint256 shift) private pure {
        if (sum.notFinite || m == 0) return;
        unchecked {
            uint256 bit = shift & 255;
            (uint256 a0, uint256 a1, uint256 a2) = (m << bit, m >> (256 - bit), uint256(0));
            if (shift > 255) (a0, a1, a2) = (0, a0, a1);
            // -a = ~a + 1 in 768 bits; the 1 enters as the first carry.
            uint256 carry = 0;
            if (negative) (a0, a1, a2, carry) = (~a0, ~a1, ~a2, 1);
            (sum.w0, carry) = _addWithCarry(sum.w0, a0, carry);
            (sum.w1, carry) = _addWithCarry(sum.w1, a1, carry);
            sum.w2 = sum.w2 + a2 + carry;
        }
    }

    function _addWithCarry(uint256 x, uint256 y, uint256 carry) private pure returns (uint256 z, uint256 out) {
        assembly ("memory-safe") {
            let t := add(x, y)
            z := add(t, carry)
            out := or(lt(t, x), lt(z, t)) // not both: t = 2^256 - 1 is impossible once x + y has wrapped
        }
    }

    /// @dev The sum rounded as `IReferee.Context.rounding` says, to nearest or along a log (SPEC section 5.1); NaN if a
    /// factor was not finite; a sum that is or rounds to zero is +0.
    function toFloat32(Exact memory sum, uint256 rounding) internal pure returns (uint256) {
        // INVARIANT: a precision of SPEC section 5, a tolerance and a code of section 5.1, and nothing else.
        if (!Float32.isRounding(rounding)) revert IReferee.RoundingOutOfRange(uint32(rounding));
        if (sum.notFinite) return Float32.NAN;
        (uint256 w0, uint256 w1, uint256 w2) = (sum.w0, sum.w1, sum.w2);
        bool negative = w2 >> 255 != 0;
        unchecked {
            if (negative) {
                uint256 carry;
                (w0, carry) = _addWithCarry(~w0, 0, 1);
                (w1, carry) = _addWithCarry(~w1, 0, carry);
                w2 = ~w2 + carry;
            }
            // The highest word that is not zero, the two below it, and the exponent of its lowest bit.
            int256 exponent = UNIT + 512;
            if (w2 == 0) (w2, w1, w0, exponent) = (w1, w0, 0, UNIT + 256);
            if (w2 == 0) (w2, w1, exponent) = (w1, 0, UNIT);
            uint256 left = 256 - Float32.bitLength(w2);
            if (left == 256) return 0;
            // 256 significant bits, the rest as one sticky bit.
            uint256 magnitude = w2 << left | w1 >> (256 - left);
            if (w1 << left != 0 || w0 != 0) magnitude |= 1;
            uint256 bits = Float32.roundTo(negative, magnitude, exponent - int256(left), rounding);
            return bits == Float32.SIGN ? 0 : bits;
        }
    }

    /// @dev u8 flag ‖ 96 bytes, big-endian.
    function encode(Exact memory sum) internal pure returns (bytes memory) {
        return abi.encodePacked(sum.notFinite, sum.w2, sum.w1, sum.w0);
    }

    /// @dev The sum that these bytes are the one encoding of; ok = false if they are none.
    function decode(bytes calldata data) internal pure returns (bool ok, Exact memory sum) {
        if (data.length != ENCODED_BYTES) return (false, sum);
        uint256 flag = uint8(data[0]);
        sum.notFinite = flag == 1;
        sum.w2 = uint256(bytes32(data[1:33]));
        sum.w1 = uint256(bytes32(data[33:65]));
        sum.w0 = uint256(bytes32(data[65:97]));
        // INVARIANT: the flag is 0 or 1, and a sum that is not finite holds no integer.
        ok = flag == 0 || (flag == 1 && sum.w0 | sum.w1 | sum.w2 == 0);
    }
}
