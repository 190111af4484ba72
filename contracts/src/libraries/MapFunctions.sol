// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {Float32} from "./Float32.sol";
import {Isa} from "./Isa.sol";

/// @dev Up to three operands of a scalar function: dtype and bits of each.
struct Scalars {
    uint256 count;
    uint256[3] dtypes;
    uint256[3] bits;
}

/// @title The scalar functions of `map` (SPEC 4.4), except the transcendentals
/// @notice Bits in, bits out: f32 in the low 32 bits, i64 as two's complement in the low 64, bool 0 or 1.
library MapFunctions {
    uint256 private constant MASK64 = 0xffffffffffffffff;

    /// @dev Whether the function is one of `ITranscendentals`.
    function isTranscendental(uint256 func) internal pure returns (bool) {
        return func >= Isa.EXP && func <= Isa.COS;
    }

    /// @dev Reverts unless the function has these operand dtypes and this result dtype.
    function requireTypes(uint256 func, uint256 dtype, Scalars memory s) internal pure {
        // INVARIANT: the dtypes are among those of SPEC 4.4.
        if (!_fits(func, dtype, s)) revert IReferee.UnsupportedInstruction(uint8(Isa.MAP), uint8(func));
    }

    /// @dev f(operands), of dtype `dtype`; not of a transcendental. Reverts if the function has no such types.
    function apply_(uint256 func, uint256 dtype, Scalars memory s) internal pure returns (uint256) {
        requireTypes(func, dtype, s);
        (uint256 x, uint256 y) = (s.bits[0], s.bits[1]);
        if (func == Isa.COPY) return normal(dtype, x);
        if (func == Isa.WHERE) return normal(dtype, x != 0 ? y : s.bits[2]);
        if (func == Isa.CAST) return _cast(s.dtypes[0], dtype, x);
        if (s.dtypes[0] == Isa.F32) return _float(func, x, y);
        if (s.dtypes[0] == Isa.I64) return _integer(func, signed(x), signed(y));
        return _logic(func, x, y);
    }

    /// @dev The i64 that these bits are.
    function signed(uint256 bits) internal pure returns (int256 value) {
        assembly ("memory-safe") {
            value := signextend(7, bits)
        }
    }

    /// @dev The one pattern of a value: f32 NaN made the one NaN.
    function normal(uint256 dtype, uint256 bits) internal pure returns (uint256) {
        return dtype == Isa.F32 ? Float32.canonical(bits) : bits;
    }

    /// @dev Whether the function has rows of the type table with this result dtype and number of operands.
    function makes(uint256 func, uint256 dtype, uint256 count) internal pure returns (bool) {
        if (func == Isa.WHERE) return count == 3;
        if (func == Isa.COPY || func == Isa.CAST) return count == 1;
        if (func == Isa.SQRT || func == Isa.BF16 || isTranscendental(func)) return count == 1 && dtype == Isa.F32;
        if (func == Isa.NEG || func == Isa.ABS) return count == 1 && dtype != Isa.BOOL;
        if (func == Isa.NOT) return count == 1 && dtype == Isa.BOOL;
        if (count != 2) return false;
        if (func == Isa.DIV) return dtype == Isa.F32;
        if (func == Isa.FLOORDIV || func == Isa.MOD) return dtype == Isa.I64;
        return (dtype == Isa.BOOL) == (func >= Isa.LT && func <= Isa.OR);
    }

    /// @dev The rows of the type table: operand count, operand dtypes, result dtype.
    function _fits(uint256 func, uint256 dtype, Scalars memory s) private pure returns (bool) {
        if (!makes(func, dtype, s.count)) return false;
        uint256 t = s.dtypes[0];
        if (func == Isa.WHERE) return t == Isa.BOOL && s.dtypes[1] == dtype && s.dtypes[2] == dtype;
        if (func == Isa.CAST) return t != dtype;
        if (s.count == 2 && s.dtypes[1] != t) return false;
        if (func == Isa.EQ || func == Isa.NE) return true;
        if (func == Isa.LT || func == Isa.LE) return t != Isa.BOOL;
        return t == dtype;
    }

    function _float(uint256 func, uint256 x, uint256 y) private pure returns (uint256) {
        if (func == Isa.ADD) return Float32.add(x, y);
        if (func == Isa.SUB) return Float32.sub(x, y);
        if (func == Isa.MUL) return Float32.mul(x, y);
        if (func == Isa.DIV) return Float32.div(x, y);
        if (func == Isa.SQRT) return Float32.sqrt(x);
        if (func == Isa.BF16) return Float32.toBf16(x);
        if (func == Isa.NEG) return Float32.neg(x);
        if (func == Isa.ABS) return Float32.abs(x);
        if (func == Isa.MAX) return Float32.max(x, y);
        if (func == Isa.MIN) return Float32.min(x, y);
        if (func == Isa.LT) return _bit(Float32.lt(x, y));
        if (func == Isa.LE) return _bit(Float32.le(x, y));
        if (func == Isa.EQ) return _bit(Float32.eq(x, y));
        assert(func == Isa.NE);
        return _bit(!Float32.eq(x, y));
    }

    function _integer(uint256 func, int256 x, int256 y) private pure returns (uint256) {
        unchecked {
            // SAFETY: |x|, |y| <= 2^63, so no operation leaves 256 bits; i64 wraps by the mask.
            if (func == Isa.ADD) return uint256(x + y) & MASK64;
            if (func == Isa.SUB) return uint256(x - y) & MASK64;
            if (func == Isa.MUL) return uint256(x * y) & MASK64;
            if (func == Isa.NEG) return uint256(-x) & MASK64;
            if (func == Isa.ABS) return uint256(x < 0 ? -x : x) & MASK64;
            if (func == Isa.MAX) return uint256(x < y ? y : x) & MASK64;
            if (func == Isa.MIN) return uint256(y < x ? y : x) & MASK64;
            if (func == Isa.LT) return _bit(x < y);
            if (func == Isa.LE) return _bit(x <= y);
            if (func == Isa.EQ) return _bit(x == y);
            if (func == Isa.NE) return _bit(x != y);
            if (func == Isa.FLOORDIV) return uint256(_floorDiv(x, y)) & MASK64;
            assert(func == Isa.MOD);
            return y == 0 ? 0 : uint256(x - _floorDiv(x, y) * y) & MASK64;
        }
    }

    /// @dev floor(x / y), 0 for y = 0. EVM division goes toward zero.
    function _floorDiv(int256 x, int256 y) private pure returns (int256 q) {
        if (y == 0) return 0;
        unchecked {
            q = x / y;
            if (q * y != x && (x < 0) != (y < 0)) --q;
        }
    }

    function _logic(uint256 func, uint256 x, uint256 y) private pure returns (uint256) {
        if (func == Isa.AND) return x & y;
        if (func == Isa.OR) return x | y;
        if (func == Isa.NOT) return x ^ 1;
        if (func == Isa.EQ) return _bit(x == y);
        assert(func == Isa.NE);
        return _bit(x != y);
    }

    function _cast(uint256 from, uint256 to, uint256 x) private pure returns (uint256) {
        if (to == Isa.BOOL) return _bit(from == Isa.F32 ? !Float32.isZero(x) : x != 0);
        if (to == Isa.F32) return Float32.fromInt(signed(x)); // from i64, or bool: 0 or 1
        return from == Isa.F32 ? uint256(Float32.toInt64(x)) & MASK64 : x;
    }

    function _bit(bool holds) private pure returns (uint256) {
        return holds ? 1 : 0;
    }
}
