// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../src/interfaces/IReferee.sol";
import {Isa} from "../src/libraries/Isa.sol";
import {Tags} from "../src/libraries/Tags.sol";
import {GasBase, Operand} from "./support/GasBase.sol";

/// @notice Gas of proving a leaf, for every kind of instruction and every function of `map`, as `make snapshot` records
/// it: the whole transaction, see `GasBase`. Where a kind's price depends on its operands, they are dear ones.
contract RefereeGasTest is GasBase {
    /// Of it 66,300 are three credits to accounts that had none.
    uint256 private constant MEDIAN_BAR = 270_000;
    uint256 private constant WORST_BAR = 520_000;
    /// Of the longest of 14 million walks, which is no kind's price but its far tail: see `Philox`.
    uint256 private constant LONG_WALK_BAR = 790_000;
    uint256 private constant DESCRIBE_BAR = 11_500;
    string private constant SNAPSHOT = ".gas-snapshot";

    function _map(uint8 func, uint8 dtype, Operand[] memory operands) private view returns (uint256) {
        bytes memory data = _head(2, func, dtype, false, operands.length);
        for (uint256 k = 0; k < operands.length; ++k) {
            data = _access(data, k, 0);
        }
        return _element(abi.encodePacked(data, uint16(0)), operands);
    }

    /// @dev A function of floats, at 1.5 or another number.
    function _float(uint8 func, uint256 count, uint64 x) private view returns (uint256) {
        return _map(func, func >= Isa.LT ? 2 : 0, _operands(count, 0, 1, x));
    }

    function _integer(uint8 func, uint256 count) private view returns (uint256) {
        return _map(func, func >= Isa.LT && func <= Isa.NE ? 2 : 1, _operands(count, 1, 1, 0x8000000000000001));
    }

    function _logic(uint8 func, uint256 count) private view returns (uint256) {
        return _map(func, 2, _operands(count, 2, 1, 1));
    }

    /// @dev A reduction of 2^24 terms at its second leaf; each term stands in a chunk of its own.
    function _reduce(uint8 func, uint8 dtype, Operand[] memory operands, bytes memory previous)
        private
        view
        returns (uint256)
    {
        return _leaf(_reduction(func, dtype, operands), operands, previous);
    }

    function _where(uint8 dtype) private view returns (uint256) {
        Operand[] memory operands = _operands(3, dtype, 1, 1);
        operands[0].dtype = 2;
        return _map(27, dtype, operands);
    }

    /// @dev An index of 1, which is in the table's second opened chunk.
    function _gather(uint8 dtype) private view returns (uint256) {
        Operand[] memory operands = _operands(2, dtype, 1, 1);
        (operands[0].chunks, operands[1].dtype) = (2, 1);
        int64 stride = int64(CHUNK_DISTANCE) * int64(uint64(Isa.CHUNK_BYTES / Isa.size(dtype)));
        bytes memory data = _access(_access(_head(4, 0, dtype, false, 2), 0, 0), 1, 0);
        return _element(abi.encodePacked(data, uint16(16), stride, uint64(50_257)), operands);
    }

    /// @dev Inside the box of function 0 and outside that of function 1: each reads an operand.
    function _window(uint8 func, uint8 dtype) private view returns (uint256) {
        bytes memory data = _access(_head(6, func, dtype, false, func + 1), 0, 0);
        if (func == 1) data = _access(data, 1, 0);
        uint64 lo = func == 1 ? 1 : 0;
        bytes memory box = abi.encodePacked(lo, uint64(4096), uint64(1), lo, uint64(16384), uint64(1));
        data = abi.encodePacked(data, uint16(func == 1 ? 48 : 56), box);
        if (func == 0) data = abi.encodePacked(data, uint64(0));
        return _element(data, _operands(func + 1, dtype, 1, 1));
    }

    /// @dev `random` or `shuffle`: operands of rank 0 but for the index that a shuffle moves.
    function _drawn(uint8 opcode, bytes memory params, uint256 count, uint64 seed) private view returns (uint256) {
        Operand[] memory operands = _operands(count, 1, 255, seed);
        bytes memory data = _head(opcode, 0, opcode == 8 ? 0 : 1, false, count);
        for (uint32 k = 0; k < count; ++k) {
            if (opcode == 9 && k == 0) operands[0].chunks = 1;
            data = abi.encodePacked(data, k << uint32(BODY_DEPTH - 2), int64(0), int64(0), int64(0));
        }
        return _element(abi.encodePacked(data, params), operands);
    }

    function _value(bytes memory source) private pure returns (IReferee.Context memory c, IReferee.Proof memory p) {
        (c, p) = _proof(source, new Operand[](0));
        c.target = IReferee.Target.VALUE;
    }

    function _scalar(bytes memory head, bytes memory bits) private view returns (uint256) {
        vm.pauseGasMetering();
        (IReferee.Context memory c, IReferee.Proof memory p) = _value(abi.encodePacked(head, bits));
        return _price(c, p, 5);
    }

    /// @dev `source` of state (2), data (3) or late data (4), slot 700 of 1024; the record before stands in a run of 2^13 checkpoints.
    function _slotted(uint8 func) private view returns (uint256) {
        vm.pauseGasMetering();
        bytes memory name = "transformer.h.11.attn.c_proj.weight";
        bytes memory data = abi.encodePacked(uint8(1), func, uint8(0), uint8(2), uint16(0), uint64(768), uint64(768));
        data = abi.encodePacked(data, uint16(6 + name.length), uint32(700), uint16(name.length), name);
        (IReferee.Context memory c, IReferee.Proof memory p) = _value(data);
        (c.stateCount, c.dataCount) = (1024, 1024);
        IReferee.Witness memory w = p.witness;
        (w.tensorId, w.siblings) = (keccak256("id"), _path(func == 4 ? BODY_DEPTH : 10, 1));
        if (func == 4) {
            c.stepLog = _fold(w.tensorId, c.position, w.siblings);
            return _price(c, p, 5);
        }
        bytes8 tag = func == 2 ? Tags.STATE_ENTRY : Tags.DATA_ENTRY;
        bytes32 root = _fold(sha256(abi.encodePacked(tag, uint16(name.length), name, w.tensorId)), 700, w.siblings);
        if (func == 3) {
            c.dataRoot = root;
            return _price(c, p, 5);
        }
        (w.step, w.stateRoot, w.lossBits, w.recordSiblings) = (999, root, 0x3f800000, _path(13, 2));
        (c.recordDepth, c.recordPosition) = (13, 998);
        bytes32 record = sha256(abi.encodePacked("tb.recrd", w.step, w.stateRoot, w.lossBits, w.logRoot));
        c.recordRoot = _fold(record, 998, w.recordSiblings);
        return _price(c, p, 5);
    }

    function test_gas_map_copy_f32() public view returns (uint256) {
        return _float(0, 1, 0x3fc00000);
    }

    function test_gas_map_sqrt_f32() public view returns (uint256) {
        return _float(5, 1, 0x3fc00000);
    }

    function test_gas_map_neg_f32() public view returns (uint256) {
        return _float(6, 1, 0x3fc00000);
    }

    function test_gas_map_abs_f32() public view returns (uint256) {
        return _float(7, 1, 0x3fc00000);
    }

    function test_gas_map_add_f32() public view returns (uint256) {
        return _float(1, 2, 0x3fc00001);
    }

    function test_gas_map_sub_f32() public view returns (uint256) {
        return _float(2, 2, 0x3fc00001);
    }

    function test_gas_map_mul_f32() public view returns (uint256) {
        return _float(3, 2, 0x3fc00001);
    }

    function test_gas_map_div_f32() public view returns (uint256) {
        return _float(4, 2, 0x3fc00001);
    }

    function test_gas_map_max_f32() public view returns (uint256) {
        return _float(8, 2, 0x3fc00001);
    }

    function test_gas_map_min_f32() public view returns (uint256) {
        return _float(9, 2, 0x3fc00001);
    }

    function test_gas_map_lt_f32() public view returns (uint256) {
        return _float(20, 2, 0x3fc00001);
    }

    function test_gas_map_le_f32() public view returns (uint256) {
        return _float(21, 2, 0x3fc00001);
    }

    function test_gas_map_eq_f32() public view returns (uint256) {
        return _float(22, 2, 0x3fc00001);
    }

    function test_gas_map_ne_f32() public view returns (uint256) {
        return _float(23, 2, 0x3fc00001);
    }

    function test_gas_map_exp_f32() public view returns (uint256) {
        return _float(10, 1, 0x41178feb);
    }

    function test_gas_map_log_f32() public view returns (uint256) {
        return _float(11, 1, 0x00400000);
    }

    function test_gas_map_tanh_f32() public view returns (uint256) {
        return _float(12, 1, 0x3eee0566);
    }

    function test_gas_map_erf_f32() public view returns (uint256) {
        return _float(13, 1, 0x3f9d70a4);
    }

    function test_gas_map_sin_f32() public view returns (uint256) {
        return _float(14, 1, 0x7e967699);
    }

    function test_gas_map_cos_f32() public view returns (uint256) {
        return _float(15, 1, 0x7e967699);
    }

    function test_gas_map_copy_i64() public view returns (uint256) {
        return _integer(0, 1);
    }

    function test_gas_map_neg_i64() public view returns (uint256) {
        return _integer(6, 1);
    }

    function test_gas_map_abs_i64() public view returns (uint256) {
        return _integer(7, 1);
    }

    function test_gas_map_add_i64() public view returns (uint256) {
        return _integer(1, 2);
    }

    function test_gas_map_sub_i64() public view returns (uint256) {
        return _integer(2, 2);
    }

    function test_gas_map_mul_i64() public view returns (uint256) {
        return _integer(3, 2);
    }

    function test_gas_map_max_i64() public view returns (uint256) {
        return _integer(8, 2);
    }

    function test_gas_map_min_i64() public view returns (uint256) {
        return _integer(9, 2);
    }

    function test_gas_map_lt_i64() public view returns (uint256) {
        return _integer(20, 2);
    }

    function test_gas_map_le_i64() public view returns (uint256) {
        return _integer(21, 2);
    }

    function test_gas_map_eq_i64() public view returns (uint256) {
        return _integer(22, 2);
    }

    function test_gas_map_ne_i64() public view returns (uint256) {
        return _integer(23, 2);
    }

    function test_gas_map_floordiv_i64() public view returns (uint256) {
        return _integer(30, 2);
    }

    function test_gas_map_mod_i64() public view returns (uint256) {
        return _integer(31, 2);
    }

    function test_gas_map_copy_bool() public view returns (uint256) {
        return _logic(0, 1);
    }

    function test_gas_map_not_bool() public view returns (uint256) {
        return _logic(26, 1);
    }

    function test_gas_map_and_bool() public view returns (uint256) {
        return _logic(24, 2);
    }

    function test_gas_map_or_bool() public view returns (uint256) {
        return _logic(25, 2);
    }

    function test_gas_map_eq_bool() public view returns (uint256) {
        return _logic(22, 2);
    }

    function test_gas_map_ne_bool() public view returns (uint256) {
        return _logic(23, 2);
    }

    function test_gas_map_cast_f32_to_i64() public view returns (uint256) {
        return _map(28, 1, _operands(1, 0, 1, 1));
    }

    function test_gas_map_cast_f32_to_bool() public view returns (uint256) {
        return _map(28, 2, _operands(1, 0, 1, 1));
    }

    function test_gas_map_cast_i64_to_f32() public view returns (uint256) {
        return _map(28, 0, _operands(1, 1, 1, 1));
    }

    function test_gas_map_cast_i64_to_bool() public view returns (uint256) {
        return _map(28, 2, _operands(1, 1, 1, 1));
    }

    function test_gas_map_cast_bool_to_f32() public view returns (uint256) {
        return _map(28, 0, _operands(1, 2, 1, 1));
    }

    function test_gas_map_cast_bool_to_i64() public view returns (uint256) {
        return _map(28, 1, _operands(1, 2, 1, 1));
    }

    function test_gas_map_where_f32() public view returns (uint256) {
        return _where(0);
    }

    function test_gas_map_where_i64() public view returns (uint256) {
        return _where(1);
    }

    function test_gas_map_where_bool() public view returns (uint256) {
        return _where(2);
    }

    function test_gas_reduce_sumOfValues() public view returns (uint256) {
        return _reduce(0, 0, _operands(1, 0, 4, 0x3fc00001), _sum());
    }

    function test_gas_reduce_sumOfProducts() public view returns (uint256) {
        return _reduce(0, 0, _operands(2, 0, 4, 0xbfc00001), _sum());
    }

    /// @dev A sum of products whose terms stand side by side: one chunk an operand, as in a matmul of weights' rows.
    function test_gas_reduce_sumOfProductsSideBySide() public view returns (uint256) {
        Operand[] memory operands = _operands(2, 0, 1, 0x3fc00001);
        bytes memory data = abi.encodePacked(_access(_head(3, 0, 0, true, 2), 0, -4), int64(1));
        data = abi.encodePacked(_access(data, 1, -4), int64(1), uint16(0));
        return _leaf(data, operands, _sum());
    }

    /// @dev A reduction of 4 terms, which is judged as an element, rounding included.
    function test_gas_reduce_sumOf4Products() public view returns (uint256) {
        bytes memory data = abi.encodePacked(uint8(3), uint16(0), uint8(2), uint8(1), uint8(2));
        data = abi.encodePacked(data, uint64(4096), uint64(16384), uint64(4));
        data = abi.encodePacked(_access(data, 0, 0), F32_STRIDE);
        data = abi.encodePacked(_access(data, 1, 0), F32_STRIDE, uint16(0));
        return _element(data, _operands(2, 0, 4, 0xbfc00001));
    }

    function test_gas_reduce_sum_i64() public view returns (uint256) {
        return _reduce(0, 1, _operands(1, 1, 4, 5), abi.encodePacked(type(int64).min));
    }

    function test_gas_reduce_max_f32() public view returns (uint256) {
        return _reduce(1, 0, _operands(1, 0, 4, 0x3fc00001), hex"3f800000");
    }

    function test_gas_reduce_max_i64() public view returns (uint256) {
        return _reduce(1, 1, _operands(1, 1, 4, 5), abi.encodePacked(int64(3)));
    }

    function test_gas_reduce_argmax_f32() public view returns (uint256) {
        return _reduce(2, 1, _operands(1, 0, 4, 0x3fc00001), abi.encodePacked(uint32(0x3f800000), int64(2)));
    }

    function test_gas_reduce_argmax_i64() public view returns (uint256) {
        return _reduce(2, 1, _operands(1, 1, 4, 5), abi.encodePacked(int64(3), int64(2)));
    }

    function test_gas_gather_f32() public view returns (uint256) {
        return _gather(0);
    }

    function test_gas_gather_i64() public view returns (uint256) {
        return _gather(1);
    }

    function test_gas_gather_bool() public view returns (uint256) {
        return _gather(2);
    }

    /// @dev Four indices in four chunks, which all match, and their sources.
    function test_gas_scatterSum() public view returns (uint256) {
        Operand[] memory operands = _operands(2, 0, 4, 0xbfc00001);
        (operands[1].dtype, operands[1].first) = (1, 0);
        bytes memory data = _head(5, 0, 0, true, 2);
        data = abi.encodePacked(data, uint32(0), -4 * F32_STRIDE, int64(0), int64(1), F32_STRIDE);
        data = abi.encodePacked(data, uint32(1 << (BODY_DEPTH - 2)), -4 * I64_STRIDE, int64(0), int64(0), I64_STRIDE);
        return _leaf(abi.encodePacked(data, uint16(16), int64(1), int64(0)), operands, _sum());
    }

    function test_gas_window_fill_f32() public view returns (uint256) {
        return _window(0, 0);
    }

    function test_gas_window_else_f32() public view returns (uint256) {
        return _window(1, 0);
    }

    function test_gas_window_fill_i64() public view returns (uint256) {
        return _window(0, 1);
    }

    function test_gas_window_else_i64() public view returns (uint256) {
        return _window(1, 1);
    }

    function test_gas_window_fill_bool() public view returns (uint256) {
        return _window(0, 2);
    }

    function test_gas_window_else_bool() public view returns (uint256) {
        return _window(1, 2);
    }

    function test_gas_iota() public view returns (uint256) {
        bytes memory data = abi.encodePacked(_head(7, 0, 1, false, 0), uint16(24), int64(5), int64(1 << 62), int64(-9));
        return _element(data, new Operand[](0));
    }

    function test_gas_random() public view returns (uint256) {
        return _drawn(8, abi.encodePacked(uint16(4), uint32(7)), 2, 3);
    }

    function test_gas_shuffle() public view returns (uint256) {
        return _drawn(9, abi.encodePacked(uint16(12), uint64(50_000), uint32(7)), 3, 3);
    }

    /// @dev The longest walk that a search over 14 million seeds found: see LONG_WALKS in tests/vectors/inputs.py.
    function test_gas_shuffleWithALongWalk() public view returns (uint256) {
        Operand[] memory operands = _operands(3, 1, 255, 3);
        (operands[0].chunks, operands[0].first, operands[1].first) = (1, 1 << 19, 4603285);
        bytes memory data = _head(9, 0, 1, false, 3);
        for (uint32 k = 0; k < 3; ++k) {
            data = abi.encodePacked(data, k << uint32(BODY_DEPTH - 2), int64(0), int64(0), int64(0));
        }
        return _element(abi.encodePacked(data, uint16(12), uint64((1 << 20) + 1), uint32(1)), operands);
    }

    function test_gas_source_const() public view returns (uint256) {
        return _scalar(hex"010000000000000800000000", hex"3f800000");
    }

    function test_gas_source_step() public view returns (uint256) {
        return _scalar(hex"0101010000000000", "");
    }

    function test_gas_source_state() public view returns (uint256) {
        return _slotted(2);
    }

    function test_gas_source_data() public view returns (uint256) {
        return _slotted(3);
    }

    function test_gas_source_late() public view returns (uint256) {
        return _slotted(4);
    }

    function test_gas_commit() public view returns (uint256) {
        vm.pauseGasMetering();
        bytes memory name = "transformer.h.11.attn.c_proj.weight";
        bytes memory data = abi.encodePacked(uint8(10), uint8(0), uint8(0), uint8(2), uint8(0), uint8(1));
        data = abi.encodePacked(data, uint64(768), uint64(768), uint32(5), int64(0), int64(768), int64(1));
        data = abi.encodePacked(data, uint16(6 + name.length), uint32(700), uint16(name.length), name);
        (IReferee.Context memory c, IReferee.Proof memory p) = _value(data);
        c.position = uint64(1 << BODY_DEPTH) + 700;
        p.siblings = _path(BODY_DEPTH + 1, 1);
        c.programRoot = _fold(c.instructionLeaf, c.position, p.siblings);
        (p.witness.tensorId, p.witness.siblings) = (keccak256("id"), _path(BODY_DEPTH, 2));
        c.bodyRoot = _fold(p.witness.tensorId, 5, p.witness.siblings);
        return _price(c, p, 4);
    }

    /// @dev What the move that opens a tensor pays the referee for: 198 bytes, a convolution's.
    function test_gas_describe() public view returns (uint256 used) {
        vm.pauseGasMetering();
        bytes memory data = abi.encodePacked(uint8(3), uint16(0), uint8(4), uint8(3), uint8(2));
        for (uint256 d = 0; d < 7; ++d) {
            data = abi.encodePacked(data, uint64(7 + d));
        }
        for (uint32 k = 0; k < 2; ++k) {
            data = abi.encodePacked(data, k, new bytes(64));
        }
        bytes memory asked = abi.encodeCall(IReferee.describe, (abi.encodePacked(data, uint16(0)), "root"));
        address target = address(referee);
        vm.resumeGasMetering();
        bool ok;
        assembly ("memory-safe") {
            let before := gas()
            ok := staticcall(before, target, add(asked, 0x20), mload(asked), 0, 0)
            used := sub(before, gas())
        }
        vm.pauseGasMetering();
        assertTrue(ok && used <= DESCRIBE_BAR, "described");
    }

    /// @dev The price of each kind: of every test that .gas-snapshot names, but for the two above that are no kind's.
    function _prices() private returns (uint256[] memory prices) {
        prices = new uint256[](77);
        uint256 count = 0;
        for (string memory line = vm.readLine(SNAPSHOT); bytes(line).length != 0; line = vm.readLine(SNAPSHOT)) {
            // RefereeGasTest:test_gas_commit() (gas: 219572)
            bytes4 selector = bytes4(keccak256(bytes(vm.split(vm.split(line, ":")[1], " ")[0])));
            if (selector == this.test_gas_describe.selector) continue;
            if (selector == this.test_gas_shuffleWithALongWalk.selector) continue;
            (bool ok, bytes memory price) = address(this).staticcall(abi.encodePacked(selector));
            assertTrue(ok && price.length == 32, line);
            prices[count++] = uint256(bytes32(price));
        }
        assertEq(count, prices.length, "kinds");
    }

    function test_bars() public {
        uint256[] memory prices = _prices();
        for (uint256 k = 1; k < prices.length; ++k) {
            for (uint256 j = k; j != 0 && prices[j - 1] > prices[j]; --j) {
                (prices[j - 1], prices[j]) = (prices[j], prices[j - 1]);
            }
        }
        assertTrue(prices[0] > 21000 + BOARD, "prices are transactions'");
        assertTrue(prices[prices.length / 2] <= MEDIAN_BAR, "the median");
        assertTrue(prices[prices.length - 1] <= WORST_BAR, "the worst");
        assertTrue(this.test_gas_shuffleWithALongWalk() <= LONG_WALK_BAR, "a long walk");
    }
}
