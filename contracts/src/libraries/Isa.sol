// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// @title The instruction set's numbers (SPEC section 4)
/// @notice A test compares every constant with `tiebreak/protocol/program/isa.py`, the registry.
library Isa {
    uint256 internal constant CHUNK_BYTES = 512;
    uint256 internal constant TERMS_PER_LEAF = 4;
    uint256 internal constant NAN_BITS = 0x7fc00000;

    uint256 internal constant MAX_RANK = 8;
    uint256 internal constant MAX_NUMEL = 1 << 40;
    uint256 internal constant MAX_TERMS = 1 << 32;
    uint256 internal constant MAX_OPERANDS = 3;
    uint256 internal constant MAX_INSTRUCTION_BYTES = 4096;
    uint256 internal constant MAX_NAME_BYTES = 255;

    uint256 internal constant F32 = 0;
    uint256 internal constant I64 = 1;
    uint256 internal constant BOOL = 2;

    uint256 internal constant SOURCE = 1;
    uint256 internal constant MAP = 2;
    uint256 internal constant REDUCE = 3;
    uint256 internal constant GATHER = 4;
    uint256 internal constant SCATTER_SUM = 5;
    uint256 internal constant WINDOW = 6;
    uint256 internal constant IOTA = 7;
    uint256 internal constant RANDOM = 8;
    uint256 internal constant SHUFFLE = 9;
    uint256 internal constant COMMIT = 10;

    uint256 internal constant SOURCE_CONST = 0;
    uint256 internal constant SOURCE_STEP = 1;
    uint256 internal constant SOURCE_STATE = 2;
    uint256 internal constant SOURCE_DATA = 3;
    uint256 internal constant SOURCE_LATE = 4;

    uint256 internal constant REDUCE_SUM = 0;
    uint256 internal constant REDUCE_MAX = 1;
    uint256 internal constant REDUCE_ARGMAX = 2;
    uint256 internal constant REDUCE_SUM_BF16 = 3;

    uint256 internal constant SCATTER_SUM_BF16 = 1;

    uint256 internal constant WINDOW_FILL = 0;
    uint256 internal constant WINDOW_ELSE = 1;

    uint256 internal constant COPY = 0;
    uint256 internal constant ADD = 1;
    uint256 internal constant SUB = 2;
    uint256 internal constant MUL = 3;
    uint256 internal constant DIV = 4;
    uint256 internal constant SQRT = 5;
    uint256 internal constant NEG = 6;
    uint256 internal constant ABS = 7;
    uint256 internal constant MAX = 8;
    uint256 internal constant MIN = 9;
    uint256 internal constant EXP = 10;
    uint256 internal constant LOG = 11;
    uint256 internal constant TANH = 12;
    uint256 internal constant ERF = 13;
    uint256 internal constant SIN = 14;
    uint256 internal constant COS = 15;
    uint256 internal constant BF16 = 16;
    uint256 internal constant LT = 20;
    uint256 internal constant LE = 21;
    uint256 internal constant EQ = 22;
    uint256 internal constant NE = 23;
    uint256 internal constant AND = 24;
    uint256 internal constant OR = 25;
    uint256 internal constant NOT = 26;
    uint256 internal constant WHERE = 27;
    uint256 internal constant CAST = 28;
    uint256 internal constant FLOORDIV = 30;
    uint256 internal constant MOD = 31;

    /// @dev Bytes of one element of a known dtype.
    function size(uint256 dtype) internal pure returns (uint256) {
        return dtype == F32 ? 4 : dtype == I64 ? 8 : 1;
    }

    /// @dev Whether the opcode and function exist (SPEC 4.3, 4.4).
    function isKnown(uint256 opcode, uint256 func) internal pure returns (bool) {
        if (opcode == SOURCE) return func <= SOURCE_LATE;
        if (opcode == MAP) return func <= BF16 || (func >= LT && func <= CAST) || func == FLOORDIV || func == MOD;
        if (opcode == REDUCE) return func <= REDUCE_SUM_BF16;
        if (opcode == SCATTER_SUM) return func <= SCATTER_SUM_BF16;
        if (opcode == WINDOW) return func <= WINDOW_ELSE;
        return opcode >= GATHER && opcode <= COMMIT && func == 0;
    }
}
