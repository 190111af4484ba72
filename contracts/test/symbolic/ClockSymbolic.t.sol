// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Duration, Instant} from "../../src/game/Time.sol";
import {Turns} from "../../src/game/Turns.sol";
import {IGame} from "../../src/interfaces/IGame.sol";
import {IJobBoard, JobId} from "../../src/interfaces/IJobBoard.sol";
import {SymbolicBase} from "./SymbolicBase.sol";

/// @title Proofs about the chess clocks, for every phase, instant, rest and allowance (`make -C contracts symbolic`)
contract ClockSymbolic is SymbolicBase {
    using Turns for Turns.Turn;

    Turns.Game private _game;
    uint8 private _crowd;
    uint32 private _clock;

    /// @dev What the board says of the job.
    function crowd(JobId) external view returns (uint256) {
        return _crowd;
    }

    function clock(JobId) external view returns (Duration) {
        return Duration.wrap(_clock);
    }

    /// One instant of a game in play. Durations are free in their 32 bits and instants in their 40, as the contract keeps them.
    struct Case {
        uint8 phase;
        uint8 level;
        bool fresh;
        uint40 last;
        uint32 talk;
        uint32 defenderRest;
        uint32 challengerRest;
        uint24 replayTime;
        uint32 clock;
        /// Chooses one of two crowds: a product of two free numbers is beyond the solver.
        uint8 choice;
        uint40 current;
    }

    function crowdOf(Case calldata c) private pure returns (uint8) {
        return c.choice == 0 ? 1 : 16;
    }

    function spend(Turns.Turn memory turn, Instant current) external view returns (Turns.Turn memory) {
        Turns.spend(_game, IJobBoard(address(this)), turn, current);
        return turn;
    }

    function timeout(Turns.Turn memory turn, Instant current) external view returns (Turns.Turn memory) {
        Turns.timeout(_game, IJobBoard(address(this)), turn, current);
        return turn;
    }

    function turnOf(Case calldata c) private returns (Turns.Turn memory turn) {
        vm.assume(c.phase >= uint8(IGame.Phase.DESCEND));
        vm.assume(c.phase <= uint8(IGame.Phase.PROVE));
        vm.assume(c.level <= uint8(IGame.Level.TERMS));
        turn.phase = IGame.Phase(c.phase);
        turn.level = IGame.Level(c.level);
        turn.fresh = c.fresh;
        turn.last = Instant.wrap(c.last);
        turn.defenderRest = Duration.wrap(c.defenderRest);
        turn.challengerRest = Duration.wrap(c.challengerRest);
        turn.talk = Duration.wrap(c.talk);
        (_game.replayTime, _crowd, _clock) = (c.replayTime, crowdOf(c), c.clock);
    }

    /// @dev SPEC section 10, "Clocks", in plain words.
    function allowance(Case calldata c) private pure returns (uint256) {
        IGame.Phase phase = IGame.Phase(c.phase);
        IGame.Level level = IGame.Level(c.level);
        uint256 replays = uint256(c.replayTime) * crowdOf(c);
        if (phase == IGame.Phase.OPEN_STEPS) return replays;
        if (phase == IGame.Phase.OPEN_VALUES) return replays;
        if (phase == IGame.Phase.OPEN_TERMS) return replays;
        if (phase == IGame.Phase.PROVE) return c.clock;
        if (phase == IGame.Phase.SELECT && c.fresh) {
            if (level == IGame.Level.STEPS) return replays;
            if (level == IGame.Level.VALUES) return replays;
            if (level == IGame.Level.TERMS) return replays;
        }
        return 0;
    }

    function charge(Case calldata c) private pure returns (uint256) {
        uint256 elapsed = uint256(c.current) - c.last;
        uint256 free = allowance(c) + c.talk;
        return elapsed > free ? elapsed - free : 0;
    }

    function isChallengers(Case calldata c) private pure returns (bool) {
        IGame.Phase phase = IGame.Phase(c.phase);
        return phase == IGame.Phase.SELECT || phase == IGame.Phase.SELECT_ELEMENT || phase == IGame.Phase.PROVE;
    }

    /// @dev Invariant 6: at every instant not before the last move, exactly one of a move and `timeout` is legal.
    function check_aMoveOrATimeout(Case calldata c) external {
        vm.assume(c.current >= c.last);
        Turns.Turn memory turn = turnOf(c);
        (bool moves,) = address(this).staticcall(abi.encodeCall(this.spend, (turn, Instant.wrap(c.current))));
        (bool ends,) = address(this).staticcall(abi.encodeCall(this.timeout, (turn, Instant.wrap(c.current))));
        assert(moves != ends);
        assert(moves == (charge(c) <= (isChallengers(c) ? c.challengerRest : c.defenderRest)));
    }

    /// @dev Time never runs backward: before the last move nothing is legal.
    function check_nothingBeforeTheLastMove(Case calldata c) external {
        vm.assume(c.current < c.last);
        Turns.Turn memory turn = turnOf(c);
        (bool moves,) = address(this).staticcall(abi.encodeCall(this.spend, (turn, Instant.wrap(c.current))));
        (bool ends,) = address(this).staticcall(abi.encodeCall(this.timeout, (turn, Instant.wrap(c.current))));
        assert(!moves && !ends);
    }

    /// @dev Invariant 5: a move takes its charge from its maker's rest, and nothing from the other's.
    function check_aMoveIsCharged(Case calldata c) external {
        vm.assume(c.current >= c.last);
        Turns.Turn memory turn = turnOf(c);
        vm.assume(charge(c) <= (isChallengers(c) ? c.challengerRest : c.defenderRest));
        Turns.Turn memory then = this.spend(turn, Instant.wrap(c.current));
        uint256 defender = Duration.unwrap(then.defenderRest);
        uint256 challenger = Duration.unwrap(then.challengerRest);
        assert(Instant.unwrap(then.last) == c.current);
        assert(defender <= c.defenderRest && challenger <= c.challengerRest);
        assert(defender + challenger + charge(c) == uint256(c.defenderRest) + c.challengerRest);
        assert(isChallengers(c) ? defender == c.defenderRest : challenger == c.challengerRest);
    }

    /// @dev Invariant 8 at the clock: a timeout is a verdict against the side whose turn it is.
    function check_aTimeoutIsAVerdict(Case calldata c) external {
        vm.assume(c.current >= c.last);
        Turns.Turn memory turn = turnOf(c);
        vm.assume(charge(c) > (isChallengers(c) ? c.challengerRest : c.defenderRest));
        Turns.Turn memory then = this.timeout(turn, Instant.wrap(c.current));
        assert(then.phase == IGame.Phase.OVER && then.reason == IGame.Reason.TIMEOUT);
        IGame.Verdict expected = isChallengers(c) ? IGame.Verdict.CHALLENGER_LOST : IGame.Verdict.DEFENDER_LOST;
        assert(then.verdict == expected);
    }

    function ripe(Instant last, Instant current) external view {
        Turns.requireRipe(_game, IJobBoard(address(this)), last, current);
    }

    /// @dev Invariant 10: a proof is legal from a clock after the move before it on, and never timed out sooner.
    function check_aProofWaits(Case calldata c) external {
        vm.assume(c.current >= c.last && c.phase == uint8(IGame.Phase.PROVE));
        vm.assume(uint256(c.last) + c.clock < 1 << 40);
        Turns.Turn memory turn = turnOf(c);
        (bool isRipe,) =
            address(this).staticcall(abi.encodeCall(this.ripe, (Instant.wrap(c.last), Instant.wrap(c.current))));
        assert(isRipe == (uint256(c.current) >= uint256(c.last) + c.clock));
        (bool ends,) = address(this).staticcall(abi.encodeCall(this.timeout, (turn, Instant.wrap(c.current))));
        assert(isRipe || !ends);
    }

    /// @dev False: with exactly the rest used, a move is still legal.
    function wrong_noMoveAtTheRest(Case calldata c) external {
        vm.assume(c.current >= c.last);
        Turns.Turn memory turn = turnOf(c);
        vm.assume(charge(c) == (isChallengers(c) ? c.challengerRest : c.defenderRest));
        (bool moves,) = address(this).staticcall(abi.encodeCall(this.spend, (turn, Instant.wrap(c.current))));
        assert(!moves);
    }
}
