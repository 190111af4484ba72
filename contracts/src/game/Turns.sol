// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IGame} from "../interfaces/IGame.sol";
import {Duration, Instant} from "./Time.sol";

/// @title Whose turn it is and how long it may take (SPEC section 10)
/// @notice Also the slot of a game that every move reads and writes: `load` reads it once, `save` writes it once.
library Turns {
    /// @dev The first slot of `IGame.GameState`; fields and invariants are those there.
    struct Turn {
        IGame.Phase phase;
        IGame.Level level;
        uint8 height;
        uint8 descentLevels;
        IGame.Verdict verdict;
        IGame.Reason reason;
        bool fresh;
        uint8 dtype;
        uint8 summation;
        Instant last;
        Duration defenderRest;
        Duration challengerRest;
        uint64 position;
    }

    /// @dev One read of storage. The word is taken apart here because the compiler reads it once for each field; that
    /// the places are those of the struct, every test that reads a game through `IGame.game` says.
    function load(IGame.GameState storage game) internal view returns (Turn memory turn) {
        uint256 word;
        assembly ("memory-safe") {
            word := sload(game.slot)
        }
        // The casts take the field and drop what is above it.
        // forge-lint: disable-start(unsafe-typecast)
        turn.phase = IGame.Phase(uint8(word));
        turn.level = IGame.Level(uint8(word >> 8));
        turn.height = uint8(word >> 16);
        turn.descentLevels = uint8(word >> 24);
        turn.verdict = IGame.Verdict(uint8(word >> 32));
        turn.reason = IGame.Reason(uint8(word >> 40));
        turn.fresh = uint8(word >> 48) != 0;
        turn.dtype = uint8(word >> 56);
        turn.summation = uint8(word >> 64);
        turn.last = Instant.wrap(uint40(word >> 72));
        turn.defenderRest = Duration.wrap(uint40(word >> 112));
        turn.challengerRest = Duration.wrap(uint40(word >> 152));
        turn.position = uint64(word >> 192);
        // forge-lint: disable-end(unsafe-typecast)
    }

    /// @dev One write.
    function save(IGame.GameState storage game, Turn memory turn) internal {
        uint256 word = uint256(turn.phase) | uint256(turn.level) << 8 | uint256(turn.height) << 16;
        word |= uint256(turn.descentLevels) << 24 | uint256(turn.verdict) << 32 | uint256(turn.reason) << 40;
        word |= uint256(turn.fresh ? 1 : 0) << 48 | uint256(turn.dtype) << 56 | uint256(turn.summation) << 64;
        word |= uint256(Instant.unwrap(turn.last)) << 72 | uint256(Duration.unwrap(turn.defenderRest)) << 112;
        word |= uint256(Duration.unwrap(turn.challengerRest)) << 152 | uint256(turn.position) << 192;
        assembly ("memory-safe") {
            sstore(game.slot, word)
        }
    }

    /// @dev How elements of the tensor are summed, kept in one byte: what they accumulate, and their kind as a logged sum.
    /// SAFETY: the referee knows fewer than 16 accumulators, and three kinds.
    function sums(Turn memory turn, uint8 accumulator_, uint8 kind) internal pure {
        turn.summation = accumulator_ | kind << 4;
    }

    /// @return as `IReferee.finish` takes it; 0 if elements are judged at once
    function accumulator(Turn memory turn) internal pure returns (uint8) {
        return turn.summation & 15;
    }

    /// @return 1 plain, 2 products, 3 scatter, and 0 for what is not logged
    function sumKind(Turn memory turn) internal pure returns (uint256) {
        return turn.summation >> 4 & 3;
    }

    /// @notice Keeps what the log word of the chunk says of the element at `index`.
    function follow(Turn memory turn, bytes32 word, uint256 index) internal pure {
        // SAFETY: a chunk of f32 has 128 elements: their codes stand four to a byte, the first lowest.
        uint256 code_ = uint8(word[index / 4]) >> 2 * (index % 4) & 3;
        if (code_ != 3) turn.summation |= uint8(code_ << 6); // 3 means nothing
    }

    /// @return what the log says of the element: 0 nothing, 1 down, 2 up
    function code(Turn memory turn) internal pure returns (uint256) {
        return turn.summation >> 6;
    }

    /// @dev INVARIANT 4: the mover is a function of the phase.
    function defenderMoves(IGame.Phase phase) internal pure returns (bool) {
        return phase != IGame.Phase.SELECT && phase != IGame.Phase.SELECT_ELEMENT && phase != IGame.Phase.PROVE;
    }

    /// @notice What the mover's clock is charged for a move now.
    function used(IGame.GameState storage game, Turn memory turn, Instant current) internal view returns (Duration) {
        Duration elapsed = current.since(turn.last);
        // The allowance is read only where there is one: it stands in another slot.
        return _needsReplay(turn) ? elapsed.reducedBy(game.replayTime) : elapsed;
    }

    /// @notice Takes the time since the last move, less the allowance, from the mover's clock.
    function spend(IGame.GameState storage game, Turn memory turn, Instant current) internal view {
        Duration charge = used(game, turn, current);
        bool defender = defenderMoves(turn.phase);
        Duration rest = defender ? turn.defenderRest : turn.challengerRest;
        // INVARIANT 5: exactly the rest may be used, one second more is `timeout`'s. A move and a timeout are never both legal.
        if (charge.exceeds(rest)) revert IGame.ClockExhausted(rest, charge);
        if (defender) turn.defenderRest = rest.minus(charge);
        else turn.challengerRest = rest.minus(charge);
        turn.last = current;
    }

    /// @notice The side to move is out of time.
    function timeout(IGame.GameState storage game, Turn memory turn, Instant current) internal view {
        Duration charge = used(game, turn, current);
        bool defender = defenderMoves(turn.phase);
        Duration rest = defender ? turn.defenderRest : turn.challengerRest;
        if (!charge.exceeds(rest)) revert IGame.ClockRunning(rest, charge);
        end(turn, defender, IGame.Reason.TIMEOUT);
    }

    /// @notice INVARIANT 8: a verdict, a reason and the phase OVER come together.
    function end(Turn memory turn, bool defenderLost, IGame.Reason reason) internal pure {
        turn.phase = IGame.Phase.OVER;
        turn.verdict = defenderLost ? IGame.Verdict.DEFENDER_LOST : IGame.Verdict.CHALLENGER_LOST;
        turn.reason = reason;
    }

    /// @dev Whether making this move takes re-execution: the step, its values, or one element's partial sums.
    function _needsReplay(Turn memory turn) private pure returns (bool) {
        IGame.Phase phase = turn.phase;
        if (phase == IGame.Phase.SELECT) {
            return turn.fresh && turn.level != IGame.Level.RUN && turn.level != IGame.Level.CHUNKS;
        }
        return phase == IGame.Phase.OPEN_STEPS || phase == IGame.Phase.OPEN_VALUES || phase == IGame.Phase.OPEN_TERMS;
    }
}
