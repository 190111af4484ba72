// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../src/interfaces/IReferee.sol";

/// @notice A referee whose answers the test sets, so that every rule of the game can be reached.
/// An instruction is an ABI-encoded `Description`; an accumulator is (canonical, bits).
contract GameStubReferee is IReferee {
    error ContextDiffers(Context actual);

    bytes32 private _answer;
    bytes32 private _expectedContext;

    function answerWith(bytes32 answer) external {
        _answer = answer;
    }

    /// @notice From now on `judge` reverts unless it is told exactly this.
    function expectContext(Context calldata context) external {
        _expectedContext = keccak256(abi.encode(context));
    }

    function judge(Context calldata context, Proof calldata proof) external view returns (bytes32) {
        if (_expectedContext != bytes32(0) && keccak256(abi.encode(context)) != _expectedContext) {
            revert ContextDiffers(context);
        }
        if (proof.instruction.length == 1) revert MissingElement(0, 7);
        return _answer;
    }

    function describe(bytes calldata instruction) public pure returns (Description memory description) {
        return abi.decode(instruction, (Description));
    }

    function outputId(bytes calldata instruction, bytes32 chunkRoot) external pure returns (bytes32) {
        return keccak256(abi.encode(instruction, chunkRoot));
    }

    function scalarId(uint8, uint64) external pure returns (bytes32) {
        revert("not asked by the game");
    }

    function elementBits(uint8, bytes calldata chunk, uint256 index) external pure returns (uint64) {
        return uint8(chunk[4 * index]);
    }

    function finish(bytes calldata, bytes calldata accumulator)
        external
        pure
        returns (bool canonical, bytes32 leaf, uint64 bits)
    {
        (canonical, bits) = abi.decode(accumulator, (bool, uint64));
        leaf = keccak256(accumulator);
    }
}
