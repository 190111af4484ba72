// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../src/interfaces/IReferee.sol";

/// @notice A referee whose answers the test sets, so that every rule of the game can be reached.
/// An instruction is an ABI-encoded `Description`; an accumulator is (canonical, bits).
contract GameStubReferee is IReferee {
    error ContextDiffers(Context actual);
    error NotAsked();

    bytes32 private _answer;
    /// What `finish` is to be told of the rounding: that of an exact job of `BoardBase`.
    uint32 private _rounding = 30;
    bytes32 private _expectedContext;
    /// What is right, by target, step, position, element and leaf; zero: the answer that was set.
    mapping(bytes32 => bytes32) private _truth;

    function answerWith(bytes32 answer) external {
        _answer = answer;
    }

    /// @notice From now on `finish` reverts unless it is told exactly this.
    function expectRounding(uint32 rounding) external {
        _rounding = rounding;
    }

    /// @notice From now on `judge` reverts unless it is told exactly this.
    function expectContext(Context calldata context) external {
        _expectedContext = keccak256(abi.encode(context));
    }

    function teach(Target target, uint64 step, uint64 position, uint64 element, uint64 leaf, bytes32 right) external {
        _truth[keccak256(abi.encode(target, step, position, element, leaf))] = right;
    }

    function judge(Context calldata context, Proof calldata proof) external view returns (bytes32 answer) {
        if (_expectedContext != bytes32(0) && keccak256(abi.encode(context)) != _expectedContext) {
            revert ContextDiffers(context);
        }
        if (proof.instruction.length == 1) revert MissingElement(0, 7);
        answer = _truth[
            keccak256(abi.encode(context.target, context.step, context.position, context.element, context.termsLeaf))
        ];
        if (answer == bytes32(0)) answer = _answer;
    }

    function describe(bytes calldata instruction, bytes32 chunkRoot)
        public
        pure
        returns (Description memory description)
    {
        description = abi.decode(instruction, (Description));
        description.id = keccak256(abi.encode(instruction, chunkRoot));
        // A scalar's is the real one: the game itself asks for that of the loss.
        if (description.elements == 1) description.id = sha256(abi.encodePacked("tb.tensr", uint16(0), chunkRoot));
    }

    function scalarId(uint8, uint64) external pure returns (bytes32) {
        revert NotAsked();
    }

    function finish(uint8 kind, uint32 rounding, bytes calldata accumulator)
        external
        view
        returns (bool canonical, bytes32 leaf, uint64 bits)
    {
        // What the game was told of the instruction and the job.
        if (kind != 7) revert UnknownAccumulator(kind);
        if (rounding != _rounding) revert RoundingOutOfRange(rounding);
        (canonical, bits) = abi.decode(accumulator, (bool, uint64));
        leaf = keccak256(accumulator);
    }
}
