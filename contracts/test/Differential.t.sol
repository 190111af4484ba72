// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Referee} from "../src/Referee.sol";
import {Transcendentals} from "../src/Transcendentals.sol";
import {IReferee} from "../src/interfaces/IReferee.sol";
import {Scalars} from "../src/libraries/MapFunctions.sol";
import {MapHarness} from "./support/Harness.sol";
import {TestBase} from "./support/TestBase.sol";

/// @notice The referee against Python's, on the same random questions: the same answer, or both refuse. Run by
/// `make differential`, which has Python write the questions (`tests/contracts/differential.py` has their format);
/// plain `make test` leaves it out.
contract DifferentialTest is TestBase {
    /// Cases that every kind has at least.
    uint256 private constant LEAST = 5000;
    /// Of them, how many must be answered, and refused.
    uint256 private constant LEAST_ANSWERED = 1500;
    uint256 private constant LEAST_REFUSED = 300;
    uint256 private constant SCALAR_BYTES = 40;
    /// What a function of the contract returns at most.
    uint256 private constant MOST_RETURNED = 0x200;

    error OtherAnswer(string kind, uint256 number, bytes call, bytes returned);

    address private referee;
    MapHarness private harness;

    function setUp() public {
        referee = address(new Referee(new Transcendentals()));
        harness = new MapHarness();
    }

    function _read(string memory kind) private view returns (bytes memory data, uint256 count) {
        data = vm.readFileBinary(string.concat("out/differential/", kind, ".bin"));
        count = word(data, 0, 4);
        assertTrue(count >= LEAST, "cases of a kind");
    }

    function _calls(string memory kind) private view {
        (bytes memory data, uint256 count) = _read(kind);
        uint256 refused = 0;
        uint256 pos = 4;
        for (uint256 k = 0; k < count; ++k) {
            bool isRefused = data[pos] != 0;
            uint256 length = word(data, pos + 2, 4);
            (bool ok, bytes memory returned) = _ask(data, pos + 6, length, uint8(data[pos + 1]));
            pos += 6 + length;
            bytes32 expected = bytes32(word(data, pos, 32));
            pos += 32;
            bool same = ok ? !isRefused && sha256(returned) == expected : isRefused && _isOwnError(returned);
            if (!same) revert OtherAnswer(kind, k, slice(data, pos - 32 - length, length), returned);
            if (isRefused) ++refused;
        }
        assertEq(pos, data.length, "all bytes read");
        assertTrue(count - refused >= LEAST_ANSWERED && refused >= LEAST_REFUSED, kind);
    }

    /// @dev Calls the referee with the bytes at `pos`, of which the first four become the selector.
    function _ask(bytes memory data, uint256 pos, uint256 length, uint256 func)
        private
        view
        returns (bool ok, bytes memory returned)
    {
        bytes4 selector =
            func == 0 ? IReferee.judge.selector : func == 1 ? IReferee.describe.selector : IReferee.finish.selector;
        for (uint256 k = 0; k < 4; ++k) {
            data[pos + k] = selector[k];
        }
        returned = new bytes(MOST_RETURNED);
        address target = referee;
        assembly ("memory-safe") {
            ok := staticcall(gas(), target, add(add(data, 0x20), pos), length, add(returned, 0x20), 0x200)
            let size := returndatasize()
            if lt(size, 0x200) { mstore(returned, size) }
        }
    }

    /// @dev Whether a revert carries an error of the interface: a panic, or nothing at all, is no refusal but a bug.
    function _isOwnError(bytes memory returned) private pure returns (bool) {
        if (returned.length < 4) return false;
        bytes4 found = bytes4(bytes32(word(returned, 0, 4) << 224));
        bytes4[22] memory own = [
            IReferee.MalformedInstruction.selector,
            IReferee.UnsupportedInstruction.selector,
            IReferee.WrongInstruction.selector,
            IReferee.UnusedPart.selector,
            IReferee.WrongRecord.selector,
            IReferee.WrongSiblingCount.selector,
            IReferee.PositionOutOfRange.selector,
            IReferee.WrongRoot.selector,
            IReferee.MalformedTensor.selector,
            IReferee.UnknownTensor.selector,
            IReferee.OpenedTwice.selector,
            IReferee.MalformedBools.selector,
            IReferee.ChunkOutOfRange.selector,
            IReferee.WrongChunkLength.selector,
            IReferee.MissingElement.selector,
            IReferee.WrongOperandType.selector,
            IReferee.ElementOutOfRange.selector,
            IReferee.LeafOutOfRange.selector,
            IReferee.MalformedAccumulator.selector,
            IReferee.SlotOutOfRange.selector,
            IReferee.UnknownAccumulator.selector,
            IReferee.RoundingOutOfRange.selector
        ];
        for (uint256 k = 0; k < own.length; ++k) {
            if (own[k] == found) return true;
        }
        return false;
    }

    function _scalars(string memory kind) private view {
        (bytes memory data, uint256 count) = _read(kind);
        assertEq(data.length, 4 + SCALAR_BYTES * count, "whole cases");
        Scalars memory s;
        for (uint256 pos = 4; pos < data.length; pos += SCALAR_BYTES) {
            s.count = uint8(data[pos + 2]);
            for (uint256 k = 0; k < 3; ++k) {
                s.dtypes[k] = uint8(data[pos + 3 + k]);
                s.bits[k] = word(data, pos + 8 + 8 * k, 8);
            }
            uint256 found = harness.apply_(uint8(data[pos]), uint8(data[pos + 1]), s, uint8(data[pos + 6]));
            if (found != word(data, pos + 32, 8)) {
                revert OtherAnswer(kind, pos / SCALAR_BYTES, slice(data, pos, SCALAR_BYTES), abi.encode(found));
            }
        }
    }

    function test_calls() public view {
        _calls("map");
        _calls("reduce_sum_f32");
        _calls("reduce_sum_i64");
        _calls("reduce_sum_bf16");
        _calls("scatter_sum_bf16");
        _calls("reduce_max");
        _calls("reduce_argmax");
        _calls("gather");
        _calls("scatter_sum");
        _calls("window_fill");
        _calls("window_else");
        _calls("iota");
        _calls("random");
        _calls("shuffle");
        _calls("source");
        _calls("commit");
        _calls("describe");
        _calls("finish");
        _calls("logged_sum");
        _calls("logged_finish");
    }

    function test_scalars() public view {
        _scalars("map_copy");
        _scalars("map_add");
        _scalars("map_sub");
        _scalars("map_mul");
        _scalars("map_div");
        _scalars("map_sqrt");
        _scalars("map_neg");
        _scalars("map_abs");
        _scalars("map_max");
        _scalars("map_min");
        _scalars("map_exp");
        _scalars("map_log");
        _scalars("map_tanh");
        _scalars("map_erf");
        _scalars("map_sin");
        _scalars("map_cos");
        _scalars("map_bf16");
        _scalars("map_lt");
        _scalars("map_le");
        _scalars("map_eq");
        _scalars("map_ne");
        _scalars("map_and");
        _scalars("map_or");
        _scalars("map_not");
        _scalars("map_where");
        _scalars("map_cast");
        _scalars("map_floordiv");
        _scalars("map_mod");
    }
}
