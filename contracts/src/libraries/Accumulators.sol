// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {Exact, ExactSum} from "./ExactSum.sol";
import {Float32} from "./Float32.sol";
import {Instruction, InstructionCodec} from "./InstructionCodec.sol";
import {Isa} from "./Isa.sol";
import {MapFunctions} from "./MapFunctions.sol";

/// @dev What is being accumulated.
enum AccumulatorKind {
    F32_SUM,
    I64_SUM,
    F32_MAX,
    I64_MAX,
    F32_ARGMAX,
    I64_ARGMAX,
    BF16_SUM
}

/// @dev The state after some terms (SPEC section 6). Only the fields of its kind are used.
struct Accumulator {
    AccumulatorKind kind;
    /// F32_SUM and BF16_SUM.
    Exact sum;
    /// The others: f32 bits, or an i64.
    int256 value;
    /// ARGMAX: the index of `value`, or -1 before the first term.
    int256 index;
}

/// @title Accumulators of `reduce` and `scatter_sum` (SPEC section 6)
library Accumulators {
    using ExactSum for Exact;
    using InstructionCodec for Instruction;

    int256 private constant LEAST_I64 = -(1 << 63);
    int256 private constant NEGATIVE_INFINITY = 0xff800000;

    /// @dev The kind for a first operand (the source, of `scatter_sum`) of this dtype. Reverts if there is none.
    function kindOf(Instruction memory i, uint256 operandDtype) internal pure returns (AccumulatorKind) {
        bool f32 = operandDtype == Isa.F32;
        bool typed = i.dtype == operandDtype && operandDtype != Isa.BOOL;
        if (isBf16(i)) {
            if (typed && f32) return AccumulatorKind.BF16_SUM;
        } else if (i.opcode == Isa.SCATTER_SUM) {
            if (typed && f32) return AccumulatorKind.F32_SUM;
        } else if (i.func == Isa.REDUCE_SUM) {
            if (typed && f32) return AccumulatorKind.F32_SUM;
            if (typed && i.operandCount == 1) return AccumulatorKind.I64_SUM;
        } else if (i.operandCount == 1) {
            if (i.func == Isa.REDUCE_MAX && typed) return f32 ? AccumulatorKind.F32_MAX : AccumulatorKind.I64_MAX;
            if (i.func == Isa.REDUCE_ARGMAX && i.dtype == Isa.I64 && operandDtype != Isa.BOOL) {
                return f32 ? AccumulatorKind.F32_ARGMAX : AccumulatorKind.I64_ARGMAX;
            }
        }
        i.unsupported();
    }

    /// @dev The accumulator before the first term.
    function start(AccumulatorKind kind) internal pure returns (Accumulator memory a) {
        a.kind = kind;
        a.index = -1;
        if (kind == AccumulatorKind.F32_MAX || kind == AccumulatorKind.F32_ARGMAX) a.value = NEGATIVE_INFINITY;
        if (kind == AccumulatorKind.I64_MAX || kind == AccumulatorKind.I64_ARGMAX) a.value = LEAST_I64;
    }

    /// @dev Takes the element with these bits (not a product) as term number `term`.
    function take(Accumulator memory a, uint256 bits, uint256 term) internal pure {
        AccumulatorKind kind = a.kind;
        if (isExact(kind)) return a.sum.addValue(bits);
        if (kind == AccumulatorKind.F32_MAX) {
            a.value = int256(Float32.max(uint256(a.value), bits));
            return;
        }
        if (kind == AccumulatorKind.F32_ARGMAX) {
            if (_replacesFloat(a, bits)) (a.value, a.index) = (int256(Float32.canonical(bits)), int256(term));
            return;
        }
        int256 x = MapFunctions.signed(bits);
        if (kind == AccumulatorKind.I64_SUM) {
            unchecked {
                a.value = MapFunctions.signed(uint256(a.value + x)); // wraps
            }
        } else if (kind == AccumulatorKind.I64_MAX) {
            if (x > a.value) a.value = x;
        } else if (a.index == -1 || x > a.value) {
            (a.value, a.index) = (x, int256(term));
        }
    }

    function _replacesFloat(Accumulator memory a, uint256 bits) private pure returns (bool) {
        uint256 held = uint256(a.value);
        if (a.index == -1) return true;
        if (Float32.isNan(bits)) return !Float32.isNan(held);
        return Float32.lt(held, bits);
    }

    /// @dev The bits of the element whose last accumulator this is, a sum rounded as `Context.rounding` says.
    function result(Accumulator memory a, uint256 rounding) internal pure returns (uint64) {
        if (a.kind == AccumulatorKind.F32_SUM) return uint64(a.sum.toFloat32(rounding));
        if (a.kind == AccumulatorKind.BF16_SUM) return uint64(a.sum.toFloat32(Float32.LEAST_PRECISION));
        if (a.kind == AccumulatorKind.F32_MAX) return uint64(Float32.max(uint256(a.value), uint256(a.value)));
        bool hasIndex = a.kind == AccumulatorKind.F32_ARGMAX || a.kind == AccumulatorKind.I64_ARGMAX;
        return uint64(uint256(hasIndex ? a.index : a.value));
    }

    function encode(Accumulator memory a) internal pure returns (bytes memory) {
        if (isExact(a.kind)) return a.sum.encode();
        if (a.kind == AccumulatorKind.F32_MAX) return abi.encodePacked(uint32(uint256(a.value)));
        if (a.kind == AccumulatorKind.F32_ARGMAX) return abi.encodePacked(uint32(uint256(a.value)), int64(a.index));
        if (a.kind == AccumulatorKind.I64_ARGMAX) return abi.encodePacked(int64(a.value), int64(a.index));
        return abi.encodePacked(int64(a.value));
    }

    /// @dev The accumulator that these bytes are the one encoding of; ok = false if they are none.
    function decode(AccumulatorKind kind, bytes calldata data) internal pure returns (bool ok, Accumulator memory a) {
        a.kind = kind;
        if (isExact(kind)) {
            (ok, a.sum) = ExactSum.decode(data);
            return (ok, a);
        }
        bool f32 = kind == AccumulatorKind.F32_MAX || kind == AccumulatorKind.F32_ARGMAX;
        bool hasIndex = kind == AccumulatorKind.F32_ARGMAX || kind == AccumulatorKind.I64_ARGMAX;
        uint256 width = f32 ? 4 : 8;
        // INVARIANT: exactly the bytes of the kind.
        if (data.length != width + (hasIndex ? 8 : 0)) return (false, a);
        if (f32) a.value = int256(uint256(uint32(bytes4(data[:4]))));
        else a.value = int64(uint64(bytes8(data[:8])));
        if (hasIndex) a.index = int64(uint64(bytes8(data[width:])));
        // INVARIANT: a NaN is the one NaN.
        ok = !f32 || Float32.canonical(uint256(a.value)) == uint256(a.value);
    }

    /// @dev What the game keeps of an instruction whose elements have accumulators, for `kindOfLast`: the kind plus
    /// one, so that 0 is free. An argmax does not say what it is of: it has the number of `F32_ARGMAX`.
    function code(Instruction memory i) internal pure returns (uint8) {
        bool hasIndex = i.opcode == Isa.REDUCE && i.func == Isa.REDUCE_ARGMAX;
        return uint8(kindOf(i, hasIndex ? Isa.F32 : i.dtype)) + 1;
    }

    /// @dev Whether what is accumulated is an exact sum.
    function isExact(AccumulatorKind kind) internal pure returns (bool) {
        return kind == AccumulatorKind.F32_SUM || kind == AccumulatorKind.BF16_SUM;
    }

    /// @dev Whether the instruction rounds its sums to bfloat16, whatever the job's precision.
    function isBf16(Instruction memory i) internal pure returns (bool) {
        return i.opcode == Isa.SCATTER_SUM ? i.func == Isa.SCATTER_SUM_BF16 : i.func == Isa.REDUCE_SUM_BF16;
    }

    /// @dev 1 + the kind of a logged sum, or 0 (SPEC section 5.1).
    function sumKind(Instruction memory i) internal pure returns (uint8) {
        if (i.dtype != Isa.F32) return 0;
        if (i.opcode == Isa.SCATTER_SUM) return i.func == Isa.SCATTER_SUM_BF16 ? 0 : 3;
        if (i.opcode != Isa.REDUCE || i.func != Isa.REDUCE_SUM) return 0;
        return i.operandCount == 2 ? 2 : 1;
    }

    /// @dev The kind of a last accumulator of `length` bytes. Of an argmax the length tells the dtype, f32 has 12 bytes
    /// and i64 has 16. (One that lies about it fails at its leaf, where the operand's tensor is opened.)
    function kindOfLast(uint256 code_, uint256 length) internal pure returns (AccumulatorKind) {
        // INVARIANT: a number that `code` can return.
        bool known = code_ != 0 && code_ <= uint256(AccumulatorKind.BF16_SUM) + 1;
        if (!known || code_ == uint256(AccumulatorKind.I64_ARGMAX) + 1) {
            revert IReferee.UnknownAccumulator(uint8(code_));
        }
        AccumulatorKind kind = AccumulatorKind(code_ - 1);
        return kind == AccumulatorKind.F32_ARGMAX && length != 12 ? AccumulatorKind.I64_ARGMAX : kind;
    }
}
