// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {Float32} from "./Float32.sol";
import {Isa} from "./Isa.sol";
import {MapFunctions} from "./MapFunctions.sol";

/// @dev One instruction, read from calldata: its header, and where in calldata its tables stand. Only valid inside
/// the call in whose calldata it was found. Made by `InstructionCodec.decode` alone, so that every table it points at
/// is known to be complete.
struct Instruction {
    uint256 opcode;
    uint256 func;
    /// dtype of the result.
    uint256 dtype;
    /// Output rank, 0 ... 8.
    uint256 rank;
    /// Reduction rank, 0 ... 8, not 0 only for `reduce` and `scatter_sum`.
    uint256 reductionRank;
    uint256 operandCount;
    /// Calldata offset of the first dim; output dims, then reduction dims, 8 bytes each.
    uint256 dimsAt;
    /// Calldata offset of the first operand.
    uint256 operandsAt;
    /// Calldata offset of the parameters, behind their length.
    uint256 paramsAt;
    uint256 paramsLength;
    /// Product of the output dims, 1 ... 2^40.
    uint256 elements;
    /// Product of the reduction dims, 1 ... 2^32.
    uint256 terms;
}

/// @title Reads the encoding of an instruction (SPEC 4.1) and its access maps (SPEC 4.2)
/// @notice Accepts exactly the encodings of instructions that have the form the SPEC demands of one instruction on
/// its own: known opcode, function and dtype, ranks, dims, sizes, operand count, parameters and names, and a result
/// that the opcode can have. What needs the rest of the program (operands' numbers and dtypes, bounds) was checked by
/// both parties before they signed the program's root, and is not checked again: an instruction that is opened under
/// that root obeys it.
/// @dev Offsets are unchecked: a calldata offset plus what ranks <= 8 and operands <= 3 can add.
library InstructionCodec {
    uint256 private constant HEADER = 6;
    uint256 private constant MAX_STEP = 1 << 32;

    /// @dev The instruction that these bytes are. Reverts with `MalformedInstruction` if they are none.
    function decode(bytes calldata data) internal pure returns (Instruction memory i) {
        // INVARIANT: an instruction is at most 4096 bytes, and has its six header bytes.
        if (data.length > Isa.MAX_INSTRUCTION_BYTES || data.length < HEADER) {
            _malformed(data.length);
        }
        uint256 start;
        assembly ("memory-safe") {
            start := data.offset
        }
        uint256 header = _word(start);
        i.opcode = header >> 248;
        i.func = uint8(header >> 240);
        i.dtype = uint8(header >> 232);
        i.rank = uint8(header >> 224);
        i.reductionRank = uint8(header >> 216);
        i.operandCount = uint8(header >> 208);
        _checkHeader(i);
        unchecked {
            // SAFETY: ranks <= 8 and operands <= 3, so that the sums stay below 700.
            uint256 coordinates = i.rank + i.reductionRank;
            i.dimsAt = start + HEADER;
            i.operandsAt = i.dimsAt + 8 * coordinates;
            i.paramsAt = i.operandsAt + i.operandCount * (12 + 8 * coordinates) + 2;
            uint256 fixedLength = i.paramsAt - start;
            // INVARIANT: the tables are complete; nothing behind the end is ever read.
            if (fixedLength > data.length) _malformed(data.length);
            i.paramsLength = _word(i.paramsAt - 2) >> 240;
            // INVARIANT: the length matches exactly: one instruction has one encoding.
            if (fixedLength + i.paramsLength != data.length) _malformed(fixedLength);
        }
        i.elements = _product(i.dimsAt, i.rank, Isa.MAX_NUMEL, start);
        i.terms = _product(i.dimsAt + 8 * i.rank, i.reductionRank, Isa.MAX_TERMS, start);
        _checkParams(i, start);
        _checkForm(i);
    }

    /// @dev Whether an element has an accumulator tree or terms at all.
    function isReduction(Instruction memory i) internal pure returns (bool) {
        return i.opcode == Isa.REDUCE || i.opcode == Isa.SCATTER_SUM;
    }

    /// @dev Refuses an instruction whose opcode, function or dtypes do not fit what is asked of it.
    function unsupported(Instruction memory i) internal pure {
        revert IReferee.UnsupportedInstruction(uint8(i.opcode), uint8(i.func));
    }

    /// @dev Leaves of an element's accumulator tree; 0 where elements are judged at once.
    function termLeaves(Instruction memory i) internal pure returns (uint256) {
        if (i.terms <= Isa.TERMS_PER_LEAF) return 0; // also every instruction without reduction: one term
        return (i.terms + Isa.TERMS_PER_LEAF - 1) / Isa.TERMS_PER_LEAF;
    }

    /// @dev Dimension d of the index space (output dims, then reduction dims). d < rank + reductionRank.
    function dim(Instruction memory i, uint256 d) internal pure returns (uint256) {
        unchecked {
            return _word(i.dimsAt + 8 * d) >> 192;
        }
    }

    /// @dev The body instruction whose value operand k reads. k < operandCount.
    function operandValue(Instruction memory i, uint256 k) internal pure returns (uint256) {
        return _word(_operandAt(i, k)) >> 224;
    }

    /// @dev The element that operand k reads at the output coordinate with row-major index `element`, all reduction
    /// coordinates 0. May be negative or outside the tensor if the program is not a valid one.
    function baseElement(Instruction memory i, uint256 k, uint256 element) internal pure returns (int256) {
        unchecked {
            // SAFETY: |offset| <= 2^63 and |dot| < 2^107.
            uint256 pos = _operandAt(i, k) + 4;
            return _signed(pos) + dotOutput(i, element, pos + 8);
        }
    }

    /// @dev What the reduction coordinates of term number `term` add to that element.
    function termOffset(Instruction memory i, uint256 k, uint256 term) internal pure returns (int256) {
        unchecked {
            uint256 strides = _operandAt(i, k) + 12 + 8 * i.rank;
            return _dot(i.dimsAt + 8 * i.rank, i.reductionRank, term, strides);
        }
    }

    /// @dev Σ c_d · stride_d for the output coordinate c with row-major index `element`, and strides (i64) at this
    /// calldata offset.
    function dotOutput(Instruction memory i, uint256 element, uint256 stridesAt) internal pure returns (int256) {
        return _dot(i.dimsAt, i.rank, element, stridesAt);
    }

    /// @dev The i64 at byte `offset` of the parameters.
    function paramSigned(Instruction memory i, uint256 offset) internal pure returns (int256) {
        return _signed(i.paramsAt + offset);
    }

    /// @dev The u64 at byte `offset` of the parameters.
    function paramUnsigned(Instruction memory i, uint256 offset) internal pure returns (uint256) {
        return _word(i.paramsAt + offset) >> 192;
    }

    /// @dev The slot of a `source` of state, data or late data, or of a `commit`.
    function slot(Instruction memory i) internal pure returns (uint256) {
        return _word(i.paramsAt) >> 224;
    }

    /// @dev The name of a `source` of state, data or late data, or of a `commit`: u16 length and bytes.
    function encodedName(Instruction memory i) internal pure returns (bytes calldata name) {
        uint256 pos = i.paramsAt + 4;
        uint256 length = i.paramsLength - 4;
        assembly ("memory-safe") {
            name.offset := pos
            name.length := length
        }
    }

    /// @dev Stride of operand k along output dim d.
    function outputStride(Instruction memory i, uint256 k, uint256 d) internal pure returns (int256) {
        return _signed(_operandAt(i, k) + 12 + 8 * d);
    }

    /// @dev The constant part of operand k's access map.
    function operandOffset(Instruction memory i, uint256 k) internal pure returns (int256) {
        return _signed(_operandAt(i, k) + 4);
    }

    function _checkHeader(Instruction memory i) private pure {
        // INVARIANT: a known opcode with a known function and dtype.
        if (!Isa.isKnown(i.opcode, i.func)) _malformed(0);
        if (i.dtype > Isa.BOOL) _malformed(2);
        // INVARIANT: ranks are at most 8, and only reductions have reduction dims.
        if (i.rank > Isa.MAX_RANK) _malformed(3);
        if (i.reductionRank > (isReduction(i) ? Isa.MAX_RANK : 0)) _malformed(4);
        // INVARIANT: as many operands as the opcode takes.
        (uint256 least, uint256 most) = _operandCounts(i.opcode);
        if (i.operandCount < least || i.operandCount > most) _malformed(5);
    }

    function _operandCounts(uint256 opcode) private pure returns (uint256 least, uint256 most) {
        if (opcode == Isa.MAP) return (1, 3);
        if (opcode == Isa.REDUCE || opcode == Isa.WINDOW) return (1, 2);
        if (opcode == Isa.GATHER || opcode == Isa.SCATTER_SUM || opcode == Isa.RANDOM) return (2, 2);
        if (opcode == Isa.SHUFFLE) return (3, 3);
        if (opcode == Isa.COMMIT) return (1, 1);
        return (0, 0); // source, iota
    }

    function _checkParams(Instruction memory i, uint256 start) private pure {
        uint256 expected;
        if (i.opcode == Isa.SOURCE && i.func == Isa.SOURCE_CONST) {
            expected = 8;
        } else if (i.opcode == Isa.COMMIT || (i.opcode == Isa.SOURCE && i.func != Isa.SOURCE_STEP)) {
            return _checkName(i, start);
        } else if (i.opcode == Isa.GATHER) {
            expected = 16;
        } else if (i.opcode == Isa.SCATTER_SUM) {
            expected = 8 * i.rank;
        } else if (i.opcode == Isa.WINDOW) {
            expected = 24 * i.rank + (i.func == Isa.WINDOW_FILL ? 8 : 0);
        } else if (i.opcode == Isa.IOTA) {
            expected = 8 + 8 * i.rank;
        } else if (i.opcode == Isa.RANDOM) {
            expected = 4;
        } else if (i.opcode == Isa.SHUFFLE) {
            expected = 12;
        }
        // INVARIANT: exactly the parameters of the opcode (SPEC 4.3); none for the others.
        if (i.paramsLength != expected) _malformed(i.paramsAt - start);
    }

    function _checkName(Instruction memory i, uint256 start) private pure {
        uint256 pos = i.paramsAt;
        // INVARIANT: u32 slot, u16 length, and a name of that length, 1 to 255 bytes.
        if (i.paramsLength < 6) _malformed(pos - start);
        uint256 length = (_word(pos + 4) >> 240);
        if (length == 0 || length > Isa.MAX_NAME_BYTES || i.paramsLength != 6 + length) {
            _malformed(pos + 4 - start);
        }
        for (uint256 k = 0; k < length; ++k) {
            uint256 char = _word(pos + 6 + k) >> 248;
            // INVARIANT: printable ASCII without blanks.
            if (char < 0x21 || char > 0x7e) _malformed(pos + 6 + k - start);
        }
    }

    /// @dev Reverts unless the instruction obeys every rule of SPEC 4.3 and 4.4 that it can break on its own, without
    /// its program: a result of its opcode from as many operands, and parameters in their ranges.
    function _checkForm(Instruction memory i) private pure {
        uint256 pos = i.paramsAt;
        // INVARIANT: the opcode, function, result's dtype and number of operands go together.
        if (!_hasSignature(i)) _malformed(2);
        if (i.opcode == Isa.SOURCE && i.func < Isa.SOURCE_STATE) {
            // INVARIANT: a constant and the step number have rank 0.
            if (i.rank != 0) _malformed(3);
            if (i.func == Isa.SOURCE_CONST) _requireConstant(i, pos);
        } else if (i.opcode == Isa.GATHER) {
            _requireRange(i, pos + 8); // bound
        } else if (i.opcode == Isa.SHUFFLE) {
            _requireRange(i, pos); // n
        } else if (i.opcode == Isa.SCATTER_SUM) {
            _requireMatch(i);
        } else if (i.opcode == Isa.WINDOW) {
            _requireBox(i);
        }
    }

    function _hasSignature(Instruction memory i) private pure returns (bool) {
        (uint256 opcode, uint256 dtype) = (i.opcode, i.dtype);
        if (opcode == Isa.MAP) return MapFunctions.makes(i.func, dtype, i.operandCount);
        if (opcode == Isa.REDUCE) {
            if (i.func == Isa.REDUCE_SUM) return dtype == Isa.F32 || (dtype == Isa.I64 && i.operandCount == 1);
            if (i.func == Isa.REDUCE_SUM_BF16) return dtype == Isa.F32;
            return i.operandCount == 1 && (dtype == Isa.I64 || (dtype == Isa.F32 && i.func == Isa.REDUCE_MAX));
        }
        if (opcode == Isa.SCATTER_SUM || opcode == Isa.RANDOM) return dtype == Isa.F32;
        if (opcode == Isa.WINDOW) return i.operandCount == 1 + i.func; // fill takes one, else takes two
        bool integer =
            opcode == Isa.IOTA || opcode == Isa.SHUFFLE || (opcode == Isa.SOURCE && i.func == Isa.SOURCE_STEP);
        return !integer || dtype == Isa.I64;
    }

    /// @dev INVARIANT: the u64 at this calldata offset, a number of elements, is 1 ... 2^40.
    function _requireRange(Instruction memory i, uint256 pos) private pure {
        uint256 x = _word(pos) >> 192;
        if (x == 0 || x > Isa.MAX_NUMEL) _refuse(i, pos);
    }

    /// @dev INVARIANT: the u64 at this calldata offset is the bits of an element, a NaN being the one NaN.
    function _requireConstant(Instruction memory i, uint256 pos) private pure {
        uint256 bits = _word(pos) >> 192;
        if (i.dtype == Isa.BOOL && bits > 1) _refuse(i, pos);
        if (i.dtype == Isa.F32 && (bits >> 32 != 0 || Float32.canonical(bits) != bits)) _refuse(i, pos);
    }

    /// @dev INVARIANT: the match strides of the matched dims, at least one, are the row-major strides of the box that
    /// they span, and no operand moves along a matched dim.
    function _requireMatch(Instruction memory i) private pure {
        uint256 stride = 1;
        bool matches = false;
        for (uint256 d = i.rank; d != 0;) {
            --d;
            uint256 pos = i.paramsAt + 8 * d;
            int256 found = _signed(pos);
            if (found == 0) continue;
            if (found != int256(stride) || outputStride(i, 0, d) != 0 || outputStride(i, 1, d) != 0) _refuse(i, pos);
            matches = true;
            stride *= dim(i, d); // SAFETY: at most the number of elements
        }
        if (!matches) _refuse(i, i.paramsAt);
    }

    /// @dev INVARIANT: the box lies inside the output, with steps of 1 ... 2^32; the fill is an element.
    function _requireBox(Instruction memory i) private pure {
        uint256 pos = i.paramsAt;
        for (uint256 d = 0; d < i.rank; ++d) {
            (int256 lo, int256 hi, uint256 step) = (_signed(pos), _signed(pos + 8), _word(pos + 16) >> 192);
            // SAFETY: a dim is at most 2^40.
            if (lo < 0 || lo >= hi || hi > int256(dim(i, d)) || step == 0 || step > MAX_STEP) _refuse(i, pos);
            pos += 24;
        }
        if (i.func == Isa.WINDOW_FILL) _requireConstant(i, pos);
    }

    /// @dev One place for all refusals: the code of a `revert` stands once.
    function _malformed(uint256 offset) private pure {
        revert IReferee.MalformedInstruction(offset);
    }

    function _refuse(Instruction memory i, uint256 pos) private pure {
        _malformed(pos + HEADER - i.dimsAt);
    }

    function _product(uint256 pos, uint256 count, uint256 limit, uint256 start) private pure returns (uint256 product) {
        product = 1;
        unchecked {
            for (uint256 end = pos + 8 * count; pos < end; pos += 8) {
                // SAFETY: product <= 2^40 before, and a dim is below 2^64.
                product *= _word(pos) >> 192;
                // INVARIANT: dims are at least 1, and their product keeps its limit.
                if (product == 0 || product > limit) _malformed(pos - start);
            }
        }
    }

    /// @dev Unravels a row-major index over `count` dims and adds up coordinate times stride.
    function _dot(uint256 dimsAt, uint256 count, uint256 index, uint256 stridesAt) private pure returns (int256 sum) {
        unchecked {
            // SAFETY: at most 8 terms, each a coordinate below 2^40 times a stride of magnitude <= 2^63.
            for (uint256 d = count; d != 0 && index != 0;) {
                --d;
                uint256 size = _word(dimsAt + 8 * d) >> 192;
                sum += int256(index % size) * _signed(stridesAt + 8 * d);
                index /= size;
            }
        }
    }

    function _operandAt(Instruction memory i, uint256 k) private pure returns (uint256) {
        unchecked {
            return i.operandsAt + k * (12 + 8 * (i.rank + i.reductionRank));
        }
    }

    function _word(uint256 pos) private pure returns (uint256 word) {
        assembly ("memory-safe") {
            word := calldataload(pos)
        }
    }

    function _signed(uint256 pos) private pure returns (int256 value) {
        assembly ("memory-safe") {
            value := sar(192, calldataload(pos))
        }
    }
}
