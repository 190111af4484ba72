// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Estimate} from "./Decision.sol";

/// @title sin x and cos x of any finite f32 in fixed point, with bounds on the error
/// @notice "ulp" is 2^-120. The argument is reduced as Payne and Hanek do: x · 2/π modulo 4 needs only those bits of
/// 2/π that meet x's.
library Sine {
    uint256 private constant ONE = 1 << 120;
    /// 2/π in 2^-256, rounded down.
    uint256 internal constant TWO_OVER_PI = 0xa2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561;
    /// π/2 in ulp, rounded down.
    uint256 internal constant HALF_PI = 0x1921fb54442d18469898cc51701b839;

    /// @dev |sin(x + quarter π/2)| and whether it is negative, for x = m · 2^e, 0 < m < 2^24, -36 <= e <= 104.
    function sin(uint256 m, int256 e, uint256 quarter) internal pure returns (Estimate memory value, bool negative) {
        (uint256 quadrant, int256 f) = _reduce(m, e);
        unchecked {
            quadrant += quarter;
            uint256 magnitude = uint256(f < 0 ? -f : f);
            // r = |f| π/2 < 0.7855 errs by less than 2 ulp (f, HALF_PI, the shift), so y = r² by less than 5.
            uint256 r = (magnitude * HALF_PI) >> 128;
            uint256 y = (r * r) >> 120;
            if (quadrant & 1 == 1) return (_cosine(y), quadrant & 2 != 0);
            return (_sine(magnitude, y), (quadrant & 2 != 0) != (f < 0));
        }
    }

    /// @dev x = (quadrant + 4j + f · 2^-128) π/2 for some j, |f| <= 2^127, with an error of f below 2.
    function _reduce(uint256 m, int256 e) private pure returns (uint256 quadrant, int256 f) {
        unchecked {
            // 2/π · 2^e in units of 2^-200, modulo what overflows, a multiple of 4. Too small by less than 1 unit or by
            // less than 2^(e - 56) <= 2^48: m times that is below 2^72 units, one of f.
            uint256 window = e <= 56 ? TWO_OVER_PI >> uint256(56 - e) : TWO_OVER_PI << uint256(e - 56);
            uint256 turns = (m * window) << 54; // modulo 4, in units of 2^-254
            uint256 rounded = turns + (1 << 253); // half of a quadrant more, modulo 4
            quadrant = rounded >> 254;
            // What is over the nearest quadrant, |·| <= 2^253; the shift errs by less than 1.
            f = int256(turns - (quadrant << 254)) >> 126;
        }
    }

    /// @dev cos r for y = r², in ulp and y's error below 5: as `_sine`, and y's error counts half. cos r > 0.7.
    function _cosine(uint256 y) private pure returns (Estimate memory) {
        unchecked {
            uint256 sum = ONE;
            for (uint256 k = 32; k != 0; k -= 2) {
                sum = ONE - ((sum * y) >> 120) / (k * (k - 1));
            }
            return Estimate(sum, -120, 8);
        }
    }

    /// @dev sin r = f · 2^-128 · π/2 · S for f of error 2, with S = sin r / r the sum of (-y)^k / (2k + 1)!.
    ///
    /// y < 0.617, S > 0.9. 15 terms leave out less than 0.617^16 / 33! < 2^-133. Horner: a step makes its predecessor's
    /// error less than 0.11 times as large and adds 2 for shift and division: less than 3 in all. y's error counts at
    /// most a sixth. π/2 · S errs by less than 4 · 1.6 + 1 + 1 for HALF_PI and the shift; f's error is 2^122 at most.
    /// SAFETY: f <= 2^127 and π/2 · S < 2^121; f · 16 < 2^132.
    function _sine(uint256 f, uint256 y) private pure returns (Estimate memory) {
        unchecked {
            uint256 sum = ONE;
            for (uint256 k = 31; k != 1; k -= 2) {
                sum = ONE - ((sum * y) >> 120) / (k * (k - 1));
            }
            return Estimate(f * ((sum * HALF_PI) >> 120), -248, (1 << 122) + f * 16);
        }
    }
}
