// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Estimate} from "./Decision.sol";

/// @title erf x in fixed point, with a bound on the error
/// @notice "ulp" is 2^-120. erf x = x · 2/√π · S, S = the sum of (-y)^k / (k! (2k + 1)), y = x²: a relative bound for
/// any x, however small.
library ErrorFunction {
    uint256 private constant ONE = 0x1000000000000000000000000000000; // 2^120
    /// 2/√π in ulp, rounded down.
    uint256 internal constant TWO_OVER_ROOT_PI = 0x120dd750429b6d11ae3a914fed7fd86;

    /// @dev erf x for x = m · 2^e, 0 < m < 2^24, -149 <= e and x < 4.
    ///
    /// Horner: T_k = 1 / (2k + 1) - y T_(k+1) / (k + 1), from T = 0; every true T_k is positive and below 1. A step
    /// makes its predecessor's error y / (k + 1) times as large and adds less than 4 ulp: a unit each for the two
    /// divisions, the shift and y. So S errs by less than 4 e^y, and by less than 1 for the terms left out, y^K / K!:
    /// 33! > 2^122; 4^54 / 54! < 2^-128; 16^100 / 100! < 2^-124. S > 0.22, and is at most 1.
    function erf(uint256 m, int256 e) internal pure returns (Estimate memory) {
        unchecked {
            int256 place = 2 * e + 120; // x < 4, so that y < 2^124
            uint256 y = place >= 0 ? (m * m) << uint256(place) : (m * m) >> uint256(-place);
            uint256 sum;
            uint256 growth; // above 4 e^y + 1, times 2/√π, and 3 for the constant's error and the last shift
            if (y < 1 << 120) (sum, growth) = (_series(y, 33), 1 << 5);
            else if (y < 1 << 122) (sum, growth) = (_series(y, 54), 1 << 9);
            else (sum, growth) = (_series(y, 100), 1 << 26);
            return Estimate(m * ((sum * TWO_OVER_ROOT_PI) >> 120), e - 120, m * growth);
        }
    }

    /// @dev S to `terms` terms. In assembly because Solidity asks of every divisor whether it is zero: a third of the gas.
    /// SAFETY: |T| < 2 even with its error, so the product is below 2^245; k and 2k - 1 are at least 1.
    function _series(uint256 y, uint256 terms) private pure returns (uint256 t) {
        assembly ("memory-safe") {
            for { let k := terms } k { k := sub(k, 1) } {
                t := sub(div(ONE, sub(shl(1, k), 1)), sdiv(sar(120, mul(y, t)), k))
            }
        }
    }
}
