// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IGame} from "../interfaces/IGame.sol";
import {IJobBoard} from "../interfaces/IJobBoard.sol";
import {IReferee} from "../interfaces/IReferee.sol";
import {Commitments} from "../libraries/Commitments.sol";
import {Isa} from "../libraries/Isa.sol";
import {Trees} from "../libraries/Trees.sol";
import {Segments} from "./Segments.sol";

/// @title What the referee is told (SPEC section 10, PROVE), from a game, its job and what earlier moves fixed
library ProofContext {
    /// The loss of record 0: the one NaN.
    uint32 private constant NAN_BITS = uint32(Isa.NAN_BITS);

    // Places in the list of what was opened (SPEC section 11).
    uint256 private constant RUN_ROOT = 0;
    uint256 private constant STEPS_ROOT = 1;
    uint256 private constant BODY_ROOT = 2;
    uint256 private constant VALUE_SEAL = 3;
    uint256 private constant INSTRUCTION = 4;
    uint256 private constant ELEMENT_SEAL = 5;
    uint256 private constant ACCUMULATOR_ROOT = 5;
    uint256 private constant TERMS_SEAL = 6;

    /// @notice Reverts unless `opened` is what the game's earlier moves fixed, all of it and in order.
    function check(IGame.GameState memory game, bytes32[] calldata opened) internal pure {
        IGame.Level level = game.level;
        uint256 expected = level == IGame.Level.TERMS ? 7 : level == IGame.Level.CHUNKS ? 6 : 5;
        if (level == IGame.Level.VALUES && game.instruction >> game.depth != 0) expected = 4; // a commit
        // SAFETY: the trainer chose the run root, and might know a digest pair below it: a longer list is refused.
        if (opened.length != expected) revert IGame.WrongOpenedCount(expected, opened.length);
        bytes32 found = opened[RUN_ROOT];
        for (uint256 i = 1; i < expected; ++i) {
            found = extended(found, opened[i]);
        }
        // INVARIANT 9: of this length, the digest names one list.
        if (found != game.opened) revert IGame.WrongOpened(game.opened, found);
    }

    /// @return next t_{n+1} of t_n and x
    function extended(bytes32 digest, bytes32 x) internal pure returns (bytes32 next) {
        assembly ("memory-safe") {
            mstore(0x00, digest)
            mstore(0x20, x)
            next := keccak256(0x00, 0x40)
        }
    }

    /// @param opened as checked
    /// @return the seal that the challenger gave when it chose the leaf that it proves
    function sealOf(IGame.Level level, bytes32[] calldata opened) internal pure returns (bytes32) {
        if (level == IGame.Level.VALUES) return opened[VALUE_SEAL];
        return level == IGame.Level.CHUNKS ? opened[ELEMENT_SEAL] : opened[TERMS_SEAL];
    }

    /// @return packed how the element is rounded, as the referee takes it: b, tolerance and direction (SPEC section 5.1)
    function rounding(uint8 precision, uint24 tolerances, uint8 summation) internal pure returns (uint32 packed) {
        packed = precision;
        uint256 code = summation >> 6;
        uint256 kind = summation >> 4 & 3;
        // SAFETY: a code is at most 2, a tolerance a byte; in lawful play only a logged sum, of kind 1 ... 3, has a code.
        // forge-lint: disable-next-line(unsafe-typecast)
        if (code != 0 && kind != 0) packed |= uint32(uint256(uint8(tolerances >> 8 * (kind - 1))) << 8 | code << 16);
    }

    /// @param opened as checked
    function make(IGame.GameState memory game, IJobBoard board, bytes32[] calldata opened)
        internal
        view
        returns (IReferee.Context memory context)
    {
        IGame.Level level = game.level;
        context.target = level == IGame.Level.VALUES
            ? IReferee.Target.VALUE
            : level == IGame.Level.CHUNKS ? IReferee.Target.ELEMENT : IReferee.Target.TERMS;
        context.depth = game.depth;
        context.rounding = rounding(game.precision, game.tolerances, game.summation);
        context.position = game.instruction;
        context.element = game.element;
        context.termsLeaf = level == IGame.Level.TERMS ? game.position : 0;
        context.step = game.step;
        context.bodyRoot = opened[BODY_ROOT];
        // Of a commit there is none: the proof opens it.
        if (opened.length > INSTRUCTION) context.instructionLeaf = opened[INSTRUCTION];
        if (level == IGame.Level.TERMS) context.accumulatorRoot = opened[ACCUMULATOR_ROOT];
        // An element is computed of operands alone: what only a value needs is zero then, and the board is not asked.
        if (level != IGame.Level.VALUES) return context;
        IJobBoard.Origin memory job = board.origin(game.jobId);
        context.stateCount = game.stateCount;
        context.dataCount = job.dataCount;
        context.programRoot = job.programRoot;
        context.dataRoot = job.dataRoot;
        // What was opened last of the log, before any chunk.
        context.stepLog = game.log;
        _previousRecord(context, job, opened);
    }

    /// @dev Where record s-1 stands: record 0, a checkpoint of the run tree, or a step of the same segment. All of
    /// these lie left of the disputed record, so both sides agree on them (INVARIANT 2).
    function _previousRecord(IReferee.Context memory context, IJobBoard.Origin memory job, bytes32[] calldata opened)
        private
        view
    {
        uint64 previous = context.step - 1;
        uint64 interval = job.checkpointInterval;
        if (previous == 0) {
            context.recordRoot = Commitments.record(0, job.initialStateRoot, NAN_BITS, bytes32(0));
        } else if (previous % interval == 0) {
            context.recordRoot = opened[RUN_ROOT];
            context.recordDepth = uint8(Trees.depthOf(Segments.checkpoints(job.steps, interval)));
            context.recordPosition = previous / interval - 1;
        } else {
            uint64 segment = previous / interval;
            context.recordRoot = opened[STEPS_ROOT];
            context.recordDepth = uint8(Trees.depthOf(Segments.length(job.steps, interval, segment)));
            context.recordPosition = previous - segment * interval - 1;
        }
    }
}
