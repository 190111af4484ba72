// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IGame} from "../interfaces/IGame.sol";
import {Commitments} from "../libraries/Commitments.sol";
import {Tags} from "../libraries/Tags.sol";
import {GameLogic} from "./GameLogic.sol";
import {Turns} from "./Turns.sol";

/// @title Where a game stands, in memory: as 144 bytes say (SPEC section 10.1), or as it is stored
library Snapshots {
    uint256 internal constant BYTES = 144;
    uint256 internal constant MAX_HEIGHT = 64;
    uint256 internal constant MAX_ELEMENT = (1 << 40) - 1;

    /// @return what is signed of a snapshot
    function id(bytes calldata snapshot) internal view returns (bytes32) {
        return Commitments.tagged(Tags.SNAPSHOT, snapshot);
    }

    /// @notice Reverts unless every field is in its range. That lawful play leads there is not checked: see `IGame.enter`.
    function decode(bytes calldata snapshot) internal pure returns (IGame.GameState memory game) {
        if (snapshot.length != BYTES) revert IGame.SnapshotLength(BYTES, snapshot.length);
        uint256 word = uint256(bytes32(snapshot[:32]));
        _require(0, word >> 248, uint256(IGame.Phase.DESCEND), uint256(IGame.Phase.PROVE));
        _require(1, word >> 240 & 0xff, 0, uint256(IGame.Level.TERMS));
        _require(2, word >> 232 & 0xff, 0, MAX_HEIGHT);
        _require(3, word >> 224 & 0xff, 0, 1);
        _require(16, uint64(word >> 64), 0, MAX_ELEMENT);
        game.phase = IGame.Phase(word >> 248);
        game.level = IGame.Level(word >> 240 & 0xff);
        // The casts take the field and drop what is above it.
        // forge-lint: disable-start(unsafe-typecast)
        game.height = uint8(word >> 232);
        game.fresh = uint8(word >> 224) != 0;
        game.dtype = uint8(word >> 216);
        game.summation = uint8(word >> 208);
        game.lastChunkBytes = uint16(word >> 192);
        game.position = uint64(word >> 128);
        game.element = uint64(word >> 64);
        game.leaves = uint64(word);
        word = uint128(bytes16(snapshot[32:48]));
        game.step = uint64(word >> 64);
        game.instruction = uint32(word >> 32);
        game.termLeaves = uint32(word);
        // forge-lint: disable-end(unsafe-typecast)
        game.node = bytes32(snapshot[48:80]);
        game.opened = bytes32(snapshot[80:112]);
        game.log = bytes32(snapshot[112:]);
    }

    /// @notice Adds what of the job a proof takes.
    function complete(IGame.GameState memory game, Turns.Game storage stored) internal view {
        game.jobId = stored.jobId;
        game.trainer = stored.trainer;
        game.depth = stored.depth;
        game.precision = stored.precision;
        game.policy = stored.policy;
        game.bodyCount = stored.bodyCount;
        game.stateCount = stored.stateCount;
        game.tolerances = stored.tolerances;
    }

    /// @return game what a snapshot of it would say, without the log, which no proof takes; and `complete`
    function shown(Turns.Game storage stored, Turns.Turn memory turn)
        internal
        view
        returns (IGame.GameState memory game)
    {
        game.phase = turn.phase;
        game.level = turn.level;
        game.height = turn.height;
        game.fresh = turn.fresh;
        game.dtype = turn.dtype;
        game.summation = turn.summation;
        game.position = turn.position;
        game.node = GameLogic.nodeOf(stored, turn.level, turn.fresh);
        game.opened = stored.opened;
        game.leaves = Turns.leavesOf(stored, turn);
        game.step = stored.step;
        game.element = stored.element;
        game.instruction = stored.instruction;
        game.termLeaves = stored.termLeaves;
        game.lastChunkBytes = stored.lastChunkBytes;
        complete(game, stored);
    }

    /// @notice The game goes on from what was signed. Clocks and talk stay as they are.
    function enter(Turns.Game storage stored, Turns.Turn memory turn, IGame.GameState memory game) internal {
        turn.phase = game.phase;
        turn.level = game.level;
        turn.height = game.height;
        turn.fresh = game.fresh;
        turn.dtype = game.dtype;
        turn.summation = game.summation;
        turn.position = game.position;
        stored.node = game.node;
        stored.opened = game.opened;
        stored.leaves = game.leaves;
        // As `leavesOf` reads it.
        if (game.level == IGame.Level.RUN) stored.count = game.leaves;
        // In its range, as decoded.
        // forge-lint: disable-next-line(unsafe-typecast)
        (stored.step, stored.element) = (game.step, uint40(game.element));
        (stored.instruction, stored.termLeaves) = (game.instruction, game.termLeaves);
        stored.lastChunkBytes = game.lastChunkBytes;
        // Of policy `exact` there is none, and its slot stays untouched.
        if (stored.policy != 0) stored.log = game.log;
    }

    function _require(uint256 offset, uint256 value, uint256 low, uint256 high) private pure {
        if (value < low || value > high) revert IGame.InvalidSnapshot(offset, value);
    }
}
