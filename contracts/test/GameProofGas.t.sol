// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IGame} from "../src/interfaces/IGame.sol";
import {IReferee} from "../src/interfaces/IReferee.sol";
import {GameBase} from "./GameBase.sol";
import {GasCases} from "./support/GasCases.sol";

interface LastCall {
    struct Gas {
        uint64 gasLimit;
        uint64 gasTotalUsed;
        uint64 gasMemoryUsed;
        int64 gasRefunded;
        uint64 gasRemaining;
    }

    function lastCallGas() external view returns (Gas memory);
}

interface Etch {
    function etch(address target, bytes calldata code) external;
}

/// @notice The largest proof: a sum of products whose terms stand in eight chunks.
contract LargestProof is GasCases {
    uint256 public constant ofTheBoard = BOARD;
    uint256 public constant ofTheBoardForAValue = BOARD_FOR_A_VALUE;
    uint256 public constant ofEachWord = HAND_OVER;

    function make() external pure returns (IReferee.Proof memory proof) {
        bytes memory instruction = _reduction(0, 0, _operands(2, 0, 4, 0xbfc00001));
        (, proof) = _leafProof(instruction, _operands(2, 0, 4, 0xbfc00001), _sum());
    }
}

/// @notice What `prove` costs besides its calldata and the referee's work, which `RefereeGasTest` takes as an allowance:
/// with a referee that answers at once, from storage as a transaction finds it; and what handing over the largest proof
/// adds to a small one.
contract GameProofGasTest is GameBase {
    error OtherPart(uint256 used, uint256 stated);

    LargestProof private immutable MAKER = new LargestProof();

    function _small() private returns (bytes memory data) {
        _walkToTerms(2, 1, 1);
        _warp(current + CLOCK);
        referee.answerWith(right);
        return _proof(SALT, opened);
    }

    function _used(bytes memory data) private returns (uint256) {
        VM.prank(challenger);
        uint256 before = gasleft();
        (bool ok,) = address(games).call(data);
        uint256 used = before - gasleft();
        require(ok, "proved");
        return used;
    }

    function test_handingOverTheLargestProof() external {
        bytes memory small = _small();
        bytes memory large = abi.encodeCall(IGame.prove, (gameId, MAKER.make(), SALT, opened));
        uint256 id = VM.snapshotState();
        uint256 least = _used(small);
        VM.revertToState(id);
        uint256 most = _used(large);
        require(large.length > 10_000, "the largest proof");
        uint256 allowed = MAKER.ofEachWord() * (large.length - small.length) / 32;
        require(most > least && most - least <= allowed, "handing on");
    }

    /// forge-config: default.isolate = true
    function test_theBoardsPartOfAProof() external {
        uint256 used = _execution(_small());
        uint256 most = MAKER.ofTheBoard();
        if (used <= most - 2_000 || used > most) revert OtherPart(used, most);
    }

    /// A source's, of which the referee is told most.
    /// forge-config: default.isolate = true
    function test_theBoardsPartOfAValuesProof() external {
        _walkToValue(6, SOURCE);
        _openTensor(SOURCE);
        _warp(current + CLOCK);
        uint256 used = _execution(_proof(SALT, opened));
        uint256 most = MAKER.ofTheBoardForAValue();
        if (used <= most - 2_000 || used > most) revert OtherPart(used, most);
    }

    /// @dev Gas of a winning proof as a transaction, less what its data cost. In the referee's place stands code that
    /// does nothing but answer: the stub's own storage is not the board's part.
    function _execution(bytes memory data) private returns (uint256 used) {
        // PUSH32 right, PUSH0, MSTORE, PUSH1 32, PUSH0, RETURN
        Etch(address(VM)).etch(address(referee), abi.encodePacked(uint8(0x7f), right, hex"5f5260205ff3"));
        VM.prank(challenger);
        (bool ok,) = address(games).call(data);
        require(ok, "proved");
        used = LastCall(address(VM)).lastCallGas().gasTotalUsed - 21_000;
        for (uint256 k = 0; k < data.length; ++k) {
            used -= data[k] == 0 ? 4 : 16;
        }
        _defenderLost(IGame.Reason.RECOMPUTED);
    }
}
