// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Float32} from "../../src/libraries/Float32.sol";
import {SymbolicBase} from "./SymbolicBase.sol";

/// @title Proofs about rounding (`make -C contracts symbolic`)
/// @dev The result is the one pattern that is nearest, of even index at a tie: x lies between the midpoints to the
/// patterns beside it. Everything is in units of 2^lowest, so the comparison is one of integers.
contract RoundingSymbolic is SymbolicBase {
    uint256 private constant INFINITY = 0x7f800000;

    /// @dev The value of a pattern in units of 2^lowest; infinity counts as the next number after the greatest, 2^128.
    /// Without a branch, like all that follows: a proof is then one formula for each path of the library alone.
    function valueOf(uint256 bits, int256 lowest) private pure returns (uint256 value) {
        assembly ("memory-safe") {
            let biased := shr(23, bits)
            let isNormal := iszero(iszero(biased))
            let mantissa := or(and(bits, 0x7fffff), shl(23, isNormal))
            // A subnormal has the exponent of the least normal numbers.
            value := shl(sub(sub(or(biased, iszero(isNormal)), 150), lowest), mantissa)
        }
    }

    /// @dev Whether roundTo(m * 2^e, precision) is what it must be. lowest <= e - 32, so that midpoints are integers.
    function isNearest(uint256 m, int256 e, int256 lowest, uint256 precision) private pure returns (bool) {
        uint256 bits = Float32.roundTo(false, m, e, precision);
        unchecked {
            uint256 dropped = 32 - precision;
            uint256 step = 1 << dropped;
            uint256 twice = 2 * (m << uint256(e - lowest));
            uint256 here = valueOf(bits, lowest);
            uint256 even = ((bits >> dropped) & 1) ^ 1;
            // Not below the midpoint to the pattern under it, and on it only if even; nor above the one over it.
            bool above = boolOr(bits == 0, twice + even > here + valueOf(bits - step, lowest));
            bool under = boolOr(bits == INFINITY, twice < here + valueOf(bits + step, lowest) + even);
            return boolAnd(boolAnd(above, under), boolAnd(bits <= INFINITY, bits & (step - 1) == 0));
        }
    }

    /// @dev Far below the least subnormal, and around half of it.
    function check_roundIsNearestAroundZero(uint32 m) external pure {
        assert(isNearest(m, -181, -213, 32));
    }

    /// @dev Subnormal numbers.
    function check_roundIsNearestAmongSubnormals(uint32 m) external pure {
        assert(isNearest(m, -165, -197, 32));
    }

    /// @dev From subnormal to normal numbers.
    function check_roundIsNearestAtTheLeastNormal(uint32 m) external pure {
        assert(isNearest(m, -153, -185, 32));
    }

    /// @dev Normal numbers.
    function check_roundIsNearestAmongNormals(uint32 m) external pure {
        assert(isNearest(m, 0, -32, 32));
    }

    /// @dev From the greatest number to infinity.
    function check_roundIsNearestAtInfinity(uint32 m) external pure {
        assert(isNearest(m, 98, 66, 32));
    }

    /// @dev Fewer bits.
    function check_roundIsNearestAtPrecision24(uint32 m) external pure {
        assert(isNearest(m, -153, -185, 24));
    }

    /// @dev The least precision: from below the least number to the least normal ones.
    function check_roundIsNearestAtPrecision16(uint32 m) external pure {
        assert(isNearest(m, -153, -185, 16));
    }

    /// @dev Every number. Between two numbers of bfloat16, those of f32 are evenly spaced: patterns serve as values.
    function check_bf16IsNearest(uint32 x) external pure {
        uint256 sign = x & 0x80000000;
        uint256 magnitude = x ^ sign;
        vm.assume(magnitude <= INFINITY);
        uint256 found = Float32.toBf16(x) ^ sign;
        unchecked {
            bool above = magnitude + 0x8000 - ((found >> 16) & 1) >= found;
            bool under = found + 0x8000 - ((found >> 16) & 1) >= magnitude;
            assert(boolAnd(boolAnd(above, under), boolAnd(found <= INFINITY, found & 0xffff == 0)));
        }
    }

    /// @dev Whether roundTo with this tolerance and code is what it must be, given what is nearest: where x lies within
    /// 2^-n of the gap around the middle of d and u, codes 1 and 2 give d and u; else it is the nearest. lowest as above.
    function isLogged(uint256 m, int256 e, int256 lowest, uint256 precision, uint256 n, uint256 code)
        private
        pure
        returns (bool)
    {
        uint256 bits = Float32.roundTo(false, m, e, precision | n << 8 | code << 16);
        uint256 nearest = Float32.roundTo(false, m, e, precision);
        unchecked {
            uint256 step = 1 << (32 - precision);
            uint256 x = m << uint256(e - lowest);
            uint256 d = nearest - step * number(valueOf(nearest, lowest) > x);
            uint256 ends = valueOf(d, lowest) + valueOf(d + step, lowest);
            uint256 gaps = 2 * (valueOf(d + step, lowest) - valueOf(d, lowest));
            // All times 2^(n+1).
            bool near = boolAnd((2 * x << n) + gaps >= ends << n, 2 * x << n <= (ends << n) + gaps);
            bool down = boolAnd(near, code == 1);
            bool up = boolAnd(near, code == 2);
            uint256 otherwise = nearest * number(boolAnd(!down, !up));
            return bits == d * number(down) + (d + step) * number(up) + otherwise;
        }
    }

    function number(bool holds) private pure returns (uint256 n) {
        assembly ("memory-safe") {
            n := holds
        }
    }

    /// @dev Normal numbers, of 8 significant bits, within a sixteenth of the gap.
    function check_aLogChoosesNearAMiddle(uint32 m, uint8 code) external pure {
        vm.assume(m != 0 && code <= 3);
        assert(isLogged(m, 0, -32, 16, 4, code));
    }

    /// @dev Below the least normal number, within a quarter of the gap: few bits are kept, or none.
    function check_aLogChoosesAmongSubnormals(uint32 m, uint8 code) external pure {
        vm.assume(code <= 3);
        assert(isLogged(m, -161, -193, 16, 2, code));
    }

    /// @dev False: there are sums near a middle.
    function wrong_aLogNeverCounts(uint32 m) external pure {
        assert(Float32.roundTo(false, m, 0, 16 | 4 << 8 | 2 << 16) == Float32.roundTo(false, m, 0, 16));
    }

    /// @dev The sign is put on afterwards, and zero keeps it.
    function check_theSignIsApart(bool negative, uint128 m, int16 e, uint8 precision) external pure {
        vm.assume(precision >= 16 && precision <= 32);
        vm.assume(e >= -500 && e <= 500);
        uint256 sign = negative ? 0x80000000 : 0;
        assert(Float32.roundTo(negative, m, e, precision) == sign | Float32.roundTo(false, m, e, precision));
    }

    /// @dev `bitLength` is where the highest bit stands.
    function check_bitLength(uint256 x) external pure {
        uint256 n = Float32.bitLength(x);
        assert(n <= 256);
        assert(n == 0 ? x == 0 : x >> (n - 1) == 1);
    }

    /// @dev False: not every result is even, and there are subnormal ones.
    function wrong_everyResultIsEven(uint32 m) external pure {
        assert(Float32.round(false, m, -160) % 2 == 0);
    }
}
