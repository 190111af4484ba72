// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../src/interfaces/IReferee.sol";
import {GasCases} from "./support/GasCases.sol";

/// @notice Gas of proving a leaf, for every kind of instruction and every function of `map`, as `make snapshot` records
/// it: the whole transaction, see `GasBase`. Where a kind's price depends on its operands, they are dear ones.
contract RefereeGasTest is GasCases {
    /// Of it 66,300 are three credits to accounts that had none.
    uint256 private constant MEDIAN_BAR = 270_000;
    uint256 private constant WORST_BAR = 520_000;
    /// Of the longest of 14 million walks, which is no kind's price but its far tail: see `Philox`.
    uint256 private constant LONG_WALK_BAR = 790_000;
    uint256 private constant DESCRIBE_BAR = 11_500;

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

    function test_gas_reduce_sumOfProductsSideBySide() public view returns (uint256) {
        return _sideBySide();
    }

    function test_gas_reduce_sumOf4Products() public view returns (uint256) {
        return _few();
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

    function test_gas_scatterSum() public view returns (uint256) {
        return _scatter();
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
        return _iota();
    }

    function test_gas_random() public view returns (uint256) {
        return _drawn(8, abi.encodePacked(uint16(4), uint32(7)), 2, 3);
    }

    function test_gas_shuffle() public view returns (uint256) {
        return _drawn(9, abi.encodePacked(uint16(12), uint64(50_000), uint32(7)), 3, 3);
    }

    function test_gas_shuffleWithALongWalk() public view returns (uint256) {
        return _longWalk();
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

    function test_gas_commit() public view returns (uint256) {
        return _commit();
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

    /// @dev Every price above, in their order.
    function _prices() private view returns (uint256[] memory prices) {
        function() view returns (uint256)[76] memory all = [
            test_gas_map_copy_f32,
            test_gas_map_sqrt_f32,
            test_gas_map_neg_f32,
            test_gas_map_abs_f32,
            test_gas_map_add_f32,
            test_gas_map_sub_f32,
            test_gas_map_mul_f32,
            test_gas_map_div_f32,
            test_gas_map_max_f32,
            test_gas_map_min_f32,
            test_gas_map_lt_f32,
            test_gas_map_le_f32,
            test_gas_map_eq_f32,
            test_gas_map_ne_f32,
            test_gas_map_exp_f32,
            test_gas_map_log_f32,
            test_gas_map_tanh_f32,
            test_gas_map_erf_f32,
            test_gas_map_sin_f32,
            test_gas_map_cos_f32,
            test_gas_map_copy_i64,
            test_gas_map_neg_i64,
            test_gas_map_abs_i64,
            test_gas_map_add_i64,
            test_gas_map_sub_i64,
            test_gas_map_mul_i64,
            test_gas_map_max_i64,
            test_gas_map_min_i64,
            test_gas_map_lt_i64,
            test_gas_map_le_i64,
            test_gas_map_eq_i64,
            test_gas_map_ne_i64,
            test_gas_map_floordiv_i64,
            test_gas_map_mod_i64,
            test_gas_map_copy_bool,
            test_gas_map_not_bool,
            test_gas_map_and_bool,
            test_gas_map_or_bool,
            test_gas_map_eq_bool,
            test_gas_map_ne_bool,
            test_gas_map_cast_f32_to_i64,
            test_gas_map_cast_f32_to_bool,
            test_gas_map_cast_i64_to_f32,
            test_gas_map_cast_i64_to_bool,
            test_gas_map_cast_bool_to_f32,
            test_gas_map_cast_bool_to_i64,
            test_gas_map_where_f32,
            test_gas_map_where_i64,
            test_gas_map_where_bool,
            test_gas_reduce_sumOfValues,
            test_gas_reduce_sumOfProducts,
            test_gas_reduce_sumOfProductsSideBySide,
            test_gas_reduce_sumOf4Products,
            test_gas_reduce_sum_i64,
            test_gas_reduce_max_f32,
            test_gas_reduce_max_i64,
            test_gas_reduce_argmax_f32,
            test_gas_reduce_argmax_i64,
            test_gas_gather_f32,
            test_gas_gather_i64,
            test_gas_gather_bool,
            test_gas_scatterSum,
            test_gas_window_fill_f32,
            test_gas_window_else_f32,
            test_gas_window_fill_i64,
            test_gas_window_else_i64,
            test_gas_window_fill_bool,
            test_gas_window_else_bool,
            test_gas_iota,
            test_gas_random,
            test_gas_shuffle,
            test_gas_source_const,
            test_gas_source_step,
            test_gas_source_state,
            test_gas_source_data,
            test_gas_commit
        ];
        prices = new uint256[](all.length);
        for (uint256 k = 0; k < all.length; ++k) {
            prices[k] = all[k]();
        }
    }

    function test_bars() public view {
        uint256[] memory prices = _prices();
        vm.pauseGasMetering();
        for (uint256 k = 1; k < prices.length; ++k) {
            for (uint256 j = k; j != 0 && prices[j - 1] > prices[j]; --j) {
                (prices[j - 1], prices[j]) = (prices[j], prices[j - 1]);
            }
        }
        assertTrue(prices[0] > 21000 + BOARD, "prices are transactions'");
        assertTrue(prices[prices.length / 2] <= MEDIAN_BAR, "the median");
        assertTrue(prices[prices.length - 1] <= WORST_BAR, "the worst");
        assertTrue(test_gas_shuffleWithALongWalk() <= LONG_WALK_BAR, "a long walk");
    }
}
