// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Float32} from "../src/libraries/Float32.sol";
import {Isa} from "../src/libraries/Isa.sol";
import {MapFunctions, Scalars} from "../src/libraries/MapFunctions.sol";
import {TestBase} from "./support/TestBase.sol";

/// @notice The functions of integers and bools against Solidity's own 64-bit arithmetic and plain definitions.
contract MapFunctionsTest is TestBase {
    function _of(uint256 func, uint256 type_, uint256 result, uint256 x, uint256 y) private pure returns (uint256) {
        Scalars memory s;
        s.count = MapFunctions.makes(func, result, 1) ? 1 : 2;
        (s.dtypes, s.bits) = ([type_, s.count == 2 ? type_ : 0, 0], [x, y, 0]);
        return MapFunctions.apply_(func, result, s);
    }

    function _integers(uint256 func, int64 x, int64 y) private pure returns (uint256) {
        uint256 result = func >= Isa.LT && func <= Isa.NE ? Isa.BOOL : Isa.I64;
        return _of(func, Isa.I64, result, uint64(x), uint64(y));
    }

    /// @dev Edges and small numbers, beside any.
    function _edge(int64 x, uint256 style) private pure returns (int64) {
        if (style % 4 == 0) return x % 9;
        if (style % 4 == 1) return type(int64).min + (x % 3 == 0 ? int64(0) : int64(1));
        return style % 4 == 2 ? type(int64).max : x;
    }

    function testFuzz_wrapping(int64 x, int64 y, uint256 style) public pure {
        (x, y) = (_edge(x, style), _edge(y, style >> 8));
        unchecked {
            assertEq(_integers(Isa.ADD, x, y), uint64(x + y), "add");
            assertEq(_integers(Isa.SUB, x, y), uint64(x - y), "sub");
            assertEq(_integers(Isa.MUL, x, y), uint64(x * y), "mul");
            assertEq(_integers(Isa.NEG, x, 0), uint64(-x), "neg");
            assertEq(_integers(Isa.ABS, x, 0), uint64(x < 0 ? -x : x), "abs");
        }
    }

    function testFuzz_order(int64 x, int64 y, uint256 style) public pure {
        (x, y) = (_edge(x, style), _edge(y, style >> 8));
        if (style % 5 == 0) y = x;
        assertEq(_integers(Isa.MAX, x, y), uint64(x > y ? x : y), "max");
        assertEq(_integers(Isa.MIN, x, y), uint64(x < y ? x : y), "min");
        assertEq(_integers(Isa.LT, x, y), x < y ? 1 : 0, "lt");
        assertEq(_integers(Isa.LE, x, y), x <= y ? 1 : 0, "le");
        assertEq(_integers(Isa.EQ, x, y), x == y ? 1 : 0, "eq");
        assertEq(_integers(Isa.NE, x, y), x != y ? 1 : 0, "ne");
        assertEq(_integers(Isa.COPY, x, 0), uint64(x), "copy");
    }

    /// @dev q and r are right iff x = q y + r, and r lies between 0 and y, y apart.
    function testFuzz_floored(int64 x, int64 y, uint256 style) public pure {
        (x, y) = (_edge(x, style), _edge(y, style >> 8));
        int256 q = int64(uint64(_integers(Isa.FLOORDIV, x, y)));
        int256 r = int64(uint64(_integers(Isa.MOD, x, y)));
        if (y == 0) {
            assertTrue(q == 0 && r == 0, "by zero");
        } else if (x == type(int64).min && y == -1) {
            assertTrue(q == type(int64).min && r == 0, "wraps");
        } else {
            assertTrue(q * y + r == x, "division");
            assertTrue(y > 0 ? r >= 0 && r < y : r <= 0 && r > y, "remainder of the divisor's sign");
        }
    }

    function test_logic() public pure {
        for (uint256 x = 0; x < 2; ++x) {
            assertEq(_of(Isa.NOT, 2, 2, x, 0), 1 - x, "not");
            assertEq(_of(Isa.COPY, 2, 2, x, 0), x, "copy");
            for (uint256 y = 0; y < 2; ++y) {
                assertEq(_of(Isa.AND, 2, 2, x, y), x * y, "and");
                assertEq(_of(Isa.OR, 2, 2, x, y), (x + y + 1) / 2, "or");
                assertEq(_of(Isa.EQ, 2, 2, x, y), x == y ? 1 : 0, "eq");
                assertEq(_of(Isa.NE, 2, 2, x, y), x == y ? 0 : 1, "ne");
            }
        }
    }

    function testFuzz_where(uint64 x, uint64 y, uint256 dtype, bool first) public pure {
        dtype = bound(dtype, 0, 2);
        (x, y) = dtype == 0 ? (uint64(uint32(x)), uint64(uint32(y))) : dtype == 2 ? (x % 2, y % 2) : (x, y);
        Scalars memory s;
        (s.count, s.dtypes, s.bits) = (3, [Isa.BOOL, dtype, dtype], [first ? uint256(1) : 0, x, y]);
        uint256 expected = first ? x : y;
        if (dtype == 0 && expected & 0x7fffffff > 0x7f800000) expected = 0x7fc00000;
        assertEq(MapFunctions.apply_(Isa.WHERE, dtype, s), expected, "where");
    }

    function testFuzz_casts(int64 x, uint32 bits) public pure {
        assertEq(_of(Isa.CAST, 1, 0, uint64(x), 0), Float32.fromInt(x), "i64 to f32");
        assertEq(_of(Isa.CAST, 1, 2, uint64(x), 0), x == 0 ? 0 : 1, "i64 to bool");
        assertEq(_of(Isa.CAST, 0, 2, bits, 0), bits << 1 == 0 ? 0 : 1, "f32 to bool");
        assertEq(_of(Isa.CAST, 0, 1, bits, 0), uint64(int64(Float32.toInt64(bits))), "f32 to i64");
        assertEq(_of(Isa.CAST, 2, 0, uint64(x) & 1, 0), uint64(x) & 1 == 1 ? 0x3f800000 : 0, "bool to f32");
        assertEq(_of(Isa.CAST, 2, 1, uint64(x) & 1, 0), uint64(x) & 1, "bool to i64");
    }
}
