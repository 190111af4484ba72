// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ITranscendentals} from "./interfaces/ITranscendentals.sol";
import {Float32} from "./libraries/Float32.sol";
import {Isa} from "./libraries/Isa.sol";
import {Decision, Estimate} from "./libraries/transcendental/Decision.sol";
import {ErrorFunction} from "./libraries/transcendental/ErrorFunction.sol";
import {Exponential} from "./libraries/transcendental/Exponential.sol";
import {Logarithm} from "./libraries/transcendental/Logarithm.sol";
import {Sine} from "./libraries/transcendental/Sine.sol";

/// @title exp, log, tanh, erf, sin and cos of an f32, correctly rounded
/// @notice One evaluation in fixed point with a bound on its error, as in `tiebreak/protocol/numbers/transcendental.py`. Whatever is
/// evaluated has more than 91 right bits, and no f32 that is evaluated has a result nearer than 2^-71 of itself to a
/// boundary of rounding at any precision (an exhaustive search over all numbers of at most 25 significant bits, which
/// the ties of 16 ... 32 bits are among: tests/hardest), so one evaluation always decides.
contract Transcendentals is ITranscendentals {
    uint256 private constant ONE = 0x3f800000;
    /// Patterns of positive numbers, which grow with them.
    uint256 private constant TWO_TO_MINUS_26 = 0x32800000;
    uint256 private constant TWO_TO_MINUS_13 = 0x39000000;
    uint256 private constant TWO_TO_MINUS_12 = 0x39800000;
    uint256 private constant FOUR = 0x40800000;
    uint256 private constant TEN = 0x41200000;
    uint256 private constant EIGHTY_NINE = 0x42b20000;
    uint256 private constant HUNDRED_AND_FOUR = 0x42d00000;

    /// @inheritdoc ITranscendentals
    function evaluate(uint8 func, uint32 bits, uint8 precision) external pure returns (uint32 result) {
        if (func < Isa.EXP || func > Isa.COS) revert UnknownFunction(func);
        if (precision < Float32.LEAST_PRECISION || precision > Float32.FULL_PRECISION) {
            revert PrecisionOutOfRange(precision);
        }
        if (Float32.isNan(bits)) return uint32(Float32.NAN);
        uint256 x = uint256(bits) & ~Float32.SIGN;
        bool negative = bits & Float32.SIGN != 0;
        bool decided;
        uint256 found;
        if (func == Isa.EXP) (decided, found) = _exp(x, negative, precision);
        else if (func == Isa.LOG) (decided, found) = _log(x, negative, precision);
        else if (func == Isa.TANH) (decided, found) = _tanh(x, negative, precision);
        else if (func == Isa.ERF) (decided, found) = _erf(x, negative, precision);
        else if (func == Isa.SIN) (decided, found) = _sin(x, negative, precision);
        else (decided, found) = _cos(x, precision);
        // INVARIANT: no f32 comes here undecided.
        if (!decided) revert Undecided(func, bits, precision);
        // SAFETY: every pattern has 32 bits.
        return uint32(found);
    }

    function _exp(uint256 x, bool negative, uint256 precision) private pure returns (bool, uint256) {
        // |e^x - 1| < 2^-25 below 2^-26 (e^-x > 1 - 2^-26; e^x < 1 + 2^-25): 1 is nearer than any tie.
        if (x < TWO_TO_MINUS_26) return (true, ONE);
        // e^89 > 2^128; e^-104 < 2^-150, half of the least subnormal.
        if (negative ? x >= HUNDRED_AND_FOUR : x >= EIGHTY_NINE) return (true, negative ? 0 : Float32.INFINITY);
        (uint256 m, int256 e) = Float32.unpack(x);
        return _estimated(Exponential.exp(negative, m, e), false, precision);
    }

    function _log(uint256 x, bool negative, uint256 precision) private pure returns (bool, uint256) {
        if (x == 0) return (true, Float32.SIGN | Float32.INFINITY);
        if (negative) return (true, Float32.NAN);
        if (x == Float32.INFINITY) return (true, x);
        if (x == ONE) return (true, 0);
        (uint256 m, int256 e) = Float32.unpack(x);
        return _estimated(Logarithm.ln(m, e), x < ONE, precision);
    }

    function _tanh(uint256 x, bool negative, uint256 precision) private pure returns (bool, uint256) {
        // 1 - tanh 10 < 2^-27, and the tie next below 1 is 1 - 2^-25.
        if (x >= TEN) return (true, _signed(ONE, negative));
        if (x < TWO_TO_MINUS_13) return _next(x, negative, precision);
        (uint256 m, int256 e) = Float32.unpack(x);
        return _estimated(Exponential.tanh(m, e), negative, precision);
    }

    function _erf(uint256 x, bool negative, uint256 precision) private pure returns (bool, uint256) {
        if (x == 0) return (true, _signed(x, negative));
        // 1 - erf 4 < 2^-25.9, and the tie next below 1 is 1 - 2^-25.
        if (x >= FOUR) return (true, _signed(ONE, negative));
        (uint256 m, int256 e) = Float32.unpack(x);
        return _estimated(ErrorFunction.erf(m, e), negative, precision);
    }

    function _sin(uint256 x, bool negative, uint256 precision) private pure returns (bool, uint256) {
        if (x == Float32.INFINITY) return (true, Float32.NAN);
        if (x < TWO_TO_MINUS_13) return _next(x, negative, precision);
        (uint256 m, int256 e) = Float32.unpack(x);
        (Estimate memory value, bool below) = Sine.sin(m, e, 0);
        return _estimated(value, below != negative, precision);
    }

    function _cos(uint256 x, uint256 precision) private pure returns (bool, uint256) {
        if (x == Float32.INFINITY) return (true, Float32.NAN);
        // 1 - cos x < x²/2 < 2^-25, and the tie next below 1 is 1 - 2^-25.
        if (x < TWO_TO_MINUS_12) return (true, ONE);
        (uint256 m, int256 e) = Float32.unpack(x);
        (Estimate memory value, bool negative) = Sine.sin(m, e, 1);
        return _estimated(value, negative, precision);
    }

    /// @dev tanh x or sin x for x < 2^-13: x - x³/3 < f(x) < x, and x³/3 is less than an eighth of x's last place
    /// (m · 2^-26 / 3 < 2^-3), or far less where x is subnormal.
    function _next(uint256 x, bool negative, uint256 precision) private pure returns (bool, uint256) {
        if (x == 0) return (true, _signed(x, negative));
        (uint256 m, int256 e) = Float32.unpack(x);
        return (true, Decision.justBelow(m, e, negative, precision));
    }

    /// @dev The decision, in a function of its own so that a test can spoil the estimate.
    function _estimated(Estimate memory value, bool negative, uint256 precision)
        internal
        pure
        virtual
        returns (bool, uint256)
    {
        return Decision.round(value, negative, precision);
    }

    function _signed(uint256 x, bool negative) private pure returns (uint256) {
        return negative ? x | Float32.SIGN : x;
    }
}
