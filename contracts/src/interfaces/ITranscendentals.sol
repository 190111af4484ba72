// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// @title exp, log, tanh, erf, sin and cos of an f32, correctly rounded (SPEC 4.4 and 5)
/// @notice Stateless. Decided in fixed point with so many bits that no argument is ever undecided; `Undecided` can
/// therefore not occur, and says so loudly instead of guessing if it ever did.
interface ITranscendentals {
    /// `func` is none of the six (10 ... 15).
    error UnknownFunction(uint8 func);
    /// `precision` is not 16 ... 32.
    error PrecisionOutOfRange(uint8 precision);
    /// The bound on the error does not decide the result.
    error Undecided(uint8 func, uint32 bits, uint8 precision);

    /// @notice RN of f(x) to `precision` bits.
    /// @param func number of the function in SPEC 4.4
    /// @param bits x, any f32; a NaN of any payload is read as the one NaN
    /// @return result bits of the result; NaN is 0x7fc00000
    function evaluate(uint8 func, uint32 bits, uint8 precision) external pure returns (uint32 result);
}
