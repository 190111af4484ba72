// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";

/// @title The two dear questions to the referee, asked without taking their arguments apart
/// @notice What the compiler writes for `referee.judge(...)` and `referee.describe(...)` decodes every array of a proof
/// from calldata and encodes it again. The referee decodes and checks it all once more, so here the bytes are handed on.
/// @dev SAFETY: the referee is fixed when the board is made, and answers with clean words: they are not checked again.
/// A refusal is passed on as it is.
library RefereeCalls {
    /// @dev `referee.judge(context, proof)`. In memory the words of a context stand as the ABI has them: 18 fields, each a
    /// word. A proof's offsets count from the proof itself, so that it is the same proof at another place: it is copied as
    /// it stands, with what follows it to the end of calldata, for where a proof ends only its parts say. (SAFETY: an
    /// offset that points outside the proof reads other bytes than it did here; every byte of a proof is hostile anyway.)
    function judge(IReferee referee, IReferee.Context memory context, IReferee.Proof calldata proof)
        internal
        view
        returns (bytes32 right)
    {
        bytes4 selector = IReferee.judge.selector;
        assembly ("memory-safe") {
            let pos := mload(0x40)
            let size := sub(calldatasize(), proof)
            mstore(pos, selector)
            mcopy(add(pos, 0x04), context, 0x240)
            // The head's second argument: where the proof is, counted from behind the selector.
            mstore(add(pos, 0x244), 0x260)
            calldatacopy(add(pos, 0x264), proof, size)
            if iszero(staticcall(gas(), referee, pos, add(size, 0x264), 0x00, 0x20)) {
                returndatacopy(pos, 0x00, returndatasize())
                revert(pos, returndatasize())
            }
            if lt(returndatasize(), 0x20) { revert(0, 0) }
            right := mload(0x00)
        }
    }

    /// @dev `referee.describe(instruction, chunkRoot)`: 10 fields, each a word.
    function describe(IReferee referee, bytes calldata instruction, bytes32 chunkRoot)
        internal
        view
        returns (IReferee.Description memory description)
    {
        bytes4 selector = IReferee.describe.selector;
        assembly ("memory-safe") {
            let pos := mload(0x40)
            let end := add(add(pos, 0x64), instruction.length)
            mstore(pos, selector)
            mstore(add(pos, 0x04), 0x40)
            mstore(add(pos, 0x24), chunkRoot)
            mstore(add(pos, 0x44), instruction.length)
            calldatacopy(add(pos, 0x64), instruction.offset, instruction.length)
            // The bytes are padded with zeros to a whole word.
            mstore(end, 0)
            let size := add(0x64, and(add(instruction.length, 0x1f), not(0x1f)))
            if iszero(staticcall(gas(), referee, pos, size, description, 0x140)) {
                returndatacopy(pos, 0x00, returndatasize())
                revert(pos, returndatasize())
            }
            if lt(returndatasize(), 0x140) { revert(0, 0) }
        }
    }
}
