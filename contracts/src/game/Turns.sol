// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IGame} from "../interfaces/IGame.sol";
import {IJobBoard, JobId} from "../interfaces/IJobBoard.sol";
import {Duration, Instant} from "./Time.sol";

/// @title Whose turn it is and how long it may take (SPEC section 10)
/// @notice Also what of a game is stored, and the slot of it that every move reads and writes: `load` reads it once,
/// `save` writes it once.
library Turns {
    /// @dev A game as the contract keeps it: seven slots, five of which its start writes, and one more of policy `logged`.
    /// What the fields mean, and their invariants, stand at `IGame.GameState`.
    struct Game {
        /// A `Turn`, packed by `save`.
        uint256 turn;
        /// First written by the first choice: before, the run root stands in `opened`.
        bytes32 node;
        bytes32 opened;
        JobId jobId;
        // -- slot 4, which no move writes
        address challenger;
        /// What `leaves` says until the walk leaves the run tree: see `leavesOf`.
        uint64 count;
        uint24 replayTime;
        uint8 rank;
        // -- slot 5
        uint64 step;
        uint40 element;
        uint32 instruction;
        uint32 termLeaves;
        uint16 lastChunkBytes;
        uint64 leaves;
        // -- slot 6, of the job
        address trainer;
        uint8 depth;
        uint8 precision;
        uint8 policy;
        uint24 bodyCount;
        uint24 stateCount;
        uint24 tolerances;
        // -- slot 7
        bytes32 log;
    }

    /// @dev What every move reads and writes.
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
        Duration talk;
        Duration defenderRest;
        Duration challengerRest;
        uint256 sequence;
        uint64 position;
    }

    /// @dev One read of storage, into memory that the caller has: a function that returned a turn would clear it first.
    function load(Game storage game, Turn memory turn) internal view {
        // SAFETY: `save` packed the word, so each field is in its range. The members stand in the order of the struct; the
        // compiler would check the four that are enums again for each move.
        assembly ("memory-safe") {
            let word := sload(game.slot)
            mstore(turn, and(word, 0x0f)) // phase
            mstore(add(turn, 0x20), and(shr(4, word), 0x07)) // level
            mstore(add(turn, 0x40), and(shr(7, word), 0x7f)) // height
            mstore(add(turn, 0x60), and(shr(14, word), 0x07)) // descentLevels
            mstore(add(turn, 0x80), and(shr(17, word), 0x03)) // verdict
            mstore(add(turn, 0xa0), and(shr(19, word), 0x0f)) // reason
            mstore(add(turn, 0xc0), and(shr(23, word), 0x01)) // fresh
            mstore(add(turn, 0xe0), and(shr(24, word), 0xff)) // dtype
            mstore(add(turn, 0x100), and(shr(32, word), 0xff)) // summation
            mstore(add(turn, 0x120), and(shr(40, word), 0xffffffffff)) // last
            mstore(add(turn, 0x140), and(shr(80, word), 0xffffffff)) // talk
            mstore(add(turn, 0x160), and(shr(112, word), 0xffffffff)) // defenderRest
            mstore(add(turn, 0x180), and(shr(144, word), 0xffffffff)) // challengerRest
            mstore(add(turn, 0x1a0), and(shr(176, word), 0xffff)) // sequence
            mstore(add(turn, 0x1c0), shr(192, word)) // position
        }
    }

    /// @dev One write. SAFETY: the durations are below 2^32, for the board bounds those of a job (section 8) and they only
    /// shrink; the sequence is below 2^16, for one that is entered is bounded and no walk has a thousand moves.
    function save(Game storage game, Turn memory turn) internal {
        uint256 word = uint256(turn.phase) | uint256(turn.level) << 4 | uint256(turn.height) << 7;
        word |= uint256(turn.descentLevels) << 14 | uint256(turn.verdict) << 17 | uint256(turn.reason) << 19;
        word |= uint256(turn.fresh ? 1 : 0) << 23 | uint256(turn.dtype) << 24 | uint256(turn.summation) << 32;
        word |= uint256(Instant.unwrap(turn.last)) << 40 | uint256(Duration.unwrap(turn.talk)) << 80;
        word |= uint256(Duration.unwrap(turn.defenderRest)) << 112;
        word |= uint256(Duration.unwrap(turn.challengerRest)) << 144;
        game.turn = word | turn.sequence << 176 | uint256(turn.position) << 192;
    }

    /// @return leaves of the current tree that are no padding
    function leavesOf(Game storage game, Turn memory turn) internal view returns (uint64) {
        bool inRun = turn.level == IGame.Level.RUN && turn.phase != IGame.Phase.OPEN_STEPS;
        return inRun ? game.count : game.leaves;
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

    /// @notice What the mover's clock is charged for a move now. An allowance is once the replay time for each game of the
    /// crowd: with one machine, a side that replays first come, first served has at most one replay of each before its own.
    /// That of a proof is the time for which it has to wait.
    function used(Game storage game, IJobBoard board, Turn memory turn, Instant current)
        internal
        view
        returns (Duration charge)
    {
        charge = current.since(turn.last).reducedBy(turn.talk);
        if (Duration.unwrap(charge) == 0) return charge;
        if (turn.phase == IGame.Phase.PROVE) return charge.reducedBy(board.clock(game.jobId));
        // The allowance is read only where there is one: it stands in another slot; the crowd, with the board, only if
        // that of a game alone is not enough.
        if (!_needsReplay(turn)) return charge;
        Duration alone = Duration.wrap(game.replayTime);
        if (!charge.exceeds(alone)) return Duration.wrap(0);
        // At most 16 times 2^24.
        // forge-lint: disable-next-line(unsafe-typecast)
        return charge.reducedBy(Duration.wrap(uint40(game.replayTime * board.crowd(game.jobId))));
    }

    /// @notice Takes the time since the last move, less talk and allowance, from the mover's clock; counts the move.
    function spend(Game storage game, IJobBoard board, Turn memory turn, Instant current) internal view {
        Duration charge = used(game, board, turn, current);
        bool defender = defenderMoves(turn.phase);
        Duration rest = defender ? turn.defenderRest : turn.challengerRest;
        // INVARIANT 5: exactly the rest may be used, one second more is `timeout`'s. A move and a timeout are never both legal.
        if (charge.exceeds(rest)) revert IGame.ClockExhausted(rest, charge);
        if (defender) turn.defenderRest = rest.minus(charge);
        else turn.challengerRest = rest.minus(charge);
        // The talk ends at the same instant, however many moves are made here meanwhile.
        if (Duration.unwrap(turn.talk) != 0) turn.talk = turn.talk.reducedBy(current.since(turn.last));
        turn.last = current;
        unchecked {
            ++turn.sequence;
        }
    }

    /// @notice Reverts unless the sides may still talk.
    function requireTalk(Turn memory turn, Instant current) internal pure {
        Instant until = turn.last.plus(turn.talk);
        if (!until.isAfter(current)) revert IGame.TalkIsOver(until, current);
    }

    /// @notice Reverts unless a clock has passed since the move before a proof, in which the answer was sealed or earlier.
    /// INVARIANT 10: nobody keeps a transaction out of the blocks for as long. So whoever seals what another's proof shows
    /// comes too late, though it may choose what is in a block.
    function requireRipe(Game storage game, IJobBoard board, Instant last, Instant current) internal view {
        Instant ripe = last.plus(board.clock(game.jobId));
        if (ripe.isAfter(current)) revert IGame.TooEarly(ripe, current);
    }

    /// @notice The side to move is out of time.
    function timeout(Game storage game, IJobBoard board, Turn memory turn, Instant current) internal view {
        Duration charge = used(game, board, turn, current);
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
