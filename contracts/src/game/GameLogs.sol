// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IGame} from "../interfaces/IGame.sol";
import {Commitments} from "../libraries/Commitments.sol";
import {Trees} from "../libraries/Trees.sol";
import {GameLogic} from "./GameLogic.sol";
import {Turns} from "./Turns.sol";

/// @title What three of the defender's openings say of the rounding log (SPEC section 10)
/// @notice Each part is tied to the one before, down to the word of one chunk: the records of a segment hold the root over
/// the logs of its steps, a step log the root over its words (INVARIANT 11). Under policy `exact` there is none of it.
/// A function reverts (illegal move), or keeps what was opened.
library GameLogs {
    using Turns for Turns.Turn;

    /// @notice OPEN_STEPS: the record of the segment's last step, which the game has come to, and its log root.
    function openSteps(
        Turns.Game storage game,
        Turns.Turn memory turn,
        bool logged,
        bytes32 stateRoot,
        uint32 lossBits,
        bytes32 logRoot
    ) internal {
        if (!logged) {
            _requireNone(stateRoot);
            _requireNone(bytes32(uint256(lossBits)));
            _requireNone(logRoot);
            return;
        }
        bytes32 record = Commitments.record(game.step + game.leaves - 1, stateRoot, lossBits, logRoot);
        GameLogic.requireTie(record == GameLogic.nodeOf(game, turn.level, turn.fresh));
        game.log = logRoot;
    }

    /// @notice OPEN_VALUES: the log root of the step's record, and its step log.
    function openValues(
        Turns.Game storage game,
        Turns.Turn memory turn,
        bool logged,
        bytes32 logRoot,
        bytes32 stepLog,
        bytes32[] calldata siblings
    ) internal {
        if (!logged) {
            GameLogic.requireProofLength(0, siblings.length);
            _requireNone(stepLog);
            return GameLogic.requireTie(logRoot == bytes32(0));
        }
        uint64 steps = game.leaves;
        GameLogic.requireProofLength(Trees.depthOf(steps), siblings.length);
        // The record of a segment of one step is all that holds its log root.
        GameLogic.requireTie(steps == 1 || logRoot == game.log);
        GameLogic.requireTie(Trees.fold(stepLog, turn.position, siblings) == logRoot);
        game.log = stepLog;
    }

    /// @notice OPEN_CHUNK: the log word of the chunk, if it is one of a logged sum.
    function openChunk(Turns.Game storage game, Turns.Turn memory turn, bytes32 word, bytes32[] calldata siblings)
        internal
    {
        if (turn.sumKind() == 0) {
            GameLogic.requireProofLength(0, siblings.length);
            return _requireNone(word);
        }
        uint256 depth = Trees.depthOf(game.leaves);
        GameLogic.requireProofLength(depth + game.depth, siblings.length);
        // The instruction is one of the body: it stands in the log tree where it stands in the left half of the values.
        uint256 position = uint256(game.instruction) << depth | turn.position;
        GameLogic.requireTie(Trees.fold(Commitments.logLeaf(word), position, siblings) == game.log);
        game.log = word;
    }

    function _requireNone(bytes32 part) private pure {
        if (part != bytes32(0)) revert IGame.UnexpectedLog(part);
    }
}
