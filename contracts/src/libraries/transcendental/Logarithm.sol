// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Float32} from "../Float32.sol";
import {Estimate} from "./Decision.sol";

/// @title ln x in fixed point, with a bound on the error
/// @notice The sum is in units of 2^-120, the result in units of 2^-200, so that a logarithm next to zero has as many
/// significant bits as any other.
library Logarithm {
    uint256 private constant ONE = 1 << 120;
    /// ln 2 in 2^-200, rounded down.
    int256 internal constant LN2_200 = 0xb17217f7d1cf79abc9e3b39803f2f6af40f343267298b62d8a;
    /// √2 · 2^23, rounded up; any value near it would do.
    uint256 private constant ROOT2 = 11863283;

    /// @dev |ln x| for x = n · 2^e, 0 < n < 2^24, -149 <= e <= 104, x not 1.
    ///
    /// x = (1 + z) / (1 - z) · 2^k with mantissa (1 + z) / (1 - z) between √2/2 and √2, |z| < 0.1716: ln x = k ln 2 + 2
    /// atanh z. With d = z (m + one): atanh z = d / (m + one) · S, S = the sum of z^2j / (2j + 1) >= 1.
    function ln(uint256 n, int256 e) internal pure returns (Estimate memory) {
        unchecked {
            uint256 shift = 24 - Float32.bitLength(n);
            uint256 m = n << shift;
            int256 k = e - int256(shift) + 23; // -149 ... 127, before the next line
            uint256 one = 1 << 23;
            if (m >= ROOT2) (one, k) = (one << 1, k + 1);
            bool negative = m < one;
            uint256 d = negative ? one - m : m - one; // below 2^23
            // SAFETY: 2 d S < 2^145, so that the dividend is below 2^225. The sum errs by less than 2^-117 of itself.
            uint256 part = ((2 * d * _series(d * d, (m + one) * (m + one))) << 80) / (m + one);
            int256 value = negative ? -int256(part) : int256(part);
            if (k != 0) value += k * LN2_200; // |value| < 2^207
            // LN2_200 errs by less than 1, the division too.
            return Estimate(uint256(value < 0 ? -value : value), -200, (part >> 117) + 152);
        }
    }

    /// @dev Sum of (p/q)^j / (2j + 1) in 2^-120 for p/q < 0.02945, p < 2^48; error less than 2^-117 of itself.
    ///
    /// 24 terms leave out less than 0.02945^24 / 49 · 1.04 < 2^-126. Horner: a step makes its predecessor's error less
    /// than 0.03 times as large and adds 1 for the division, 1 for the shift and 1 for y: less than 4 in all.
    function _series(uint256 p, uint256 q) private pure returns (uint256 sum) {
        unchecked {
            uint256 y = (p << 120) / q;
            for (uint256 i = 47; i != 1; i -= 2) {
                sum = (((ONE / i + sum) * y) >> 120);
            }
            sum += ONE;
        }
    }
}
