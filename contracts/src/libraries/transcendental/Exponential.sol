// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Estimate} from "./Decision.sol";

/// @title e^x and tanh x in fixed point, with bounds on the error
/// @notice "ulp" is 2^-120, the unit of the fixed point. Every `>>` and `/` errs by less than one ulp.
library Exponential {
    uint256 internal constant ONE = 1 << 120;
    /// ln 2 in ulp, rounded down.
    int256 internal constant LN2 = 0xb17217f7d1cf79abc9e3b39803f2f6;
    /// Bound on the error of `series`' value, in ulp.
    uint256 private constant ERROR = 256;

    /// @dev e^x for x = ± m · 2^e with m < 2^24, e >= -120 and |x| <= 104.
    function exp(bool negative, uint256 m, int256 e) internal pure returns (Estimate memory) {
        unchecked {
            int256 x = int256(m << uint256(e + 120)); // exact, below 2^127
            (uint256 value, int256 k) = series(negative ? -x : x);
            return Estimate(value, k - 120, ERROR);
        }
    }

    /// @dev tanh x for x = m · 2^e, e >= -119 and 2^-13 <= x < 16: (1 - t) / (1 + t), t = e^-2x.
    function tanh(uint256 m, int256 e) internal pure returns (Estimate memory) {
        unchecked {
            (uint256 value, int256 k) = series(-int256(m << uint256(e + 121))); // -2x, above -2^125
            // k <= 0. t errs by less than ERROR + 1, and t <= 1 - 2^-13, so that 1 - t does not become negative.
            uint256 t = value >> uint256(-k);
            // The derivative of (1 - t) / (1 + t) is between -2 and 0; one ulp for the division.
            return Estimate(((ONE - t) << 120) / (ONE + t), -120, 2 * (ERROR + 1) + 1);
        }
    }

    /// @dev e^x = value · 2^k, value in ulp with an error below ERROR, between 0.7 and 1.42; x in ulp, |x| <= 104.
    ///
    /// x = k ln 2 + r with |r| < 0.347 and |k| <= 150: LN2's error makes r's less than 150 ulp, which moves e^r by less
    /// than 150 · 1.42 = 213. 25 terms leave out less than 2 |r|^26 / 26! < 2^-127. Horner: a step makes its
    /// predecessor's error less than 0.35 times as large and adds 2 for its shift and its division, so less than 4 in
    /// all. Together below 220.
    /// SAFETY: |2x| < 2^128; |t| < 2^121 and |r| < 2^119.
    function series(int256 x) internal pure returns (uint256 value, int256 k) {
        unchecked {
            k = (2 * x + (x < 0 ? -LN2 : LN2)) / (2 * LN2); // to the nearest
            int256 r = x - k * LN2;
            int256 one = int256(ONE);
            int256 t = one;
            for (int256 j = 25; j != 0; --j) {
                t = one + (t * r >> 120) / j;
            }
            value = uint256(t);
        }
    }
}
