// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Duration} from "../src/game/Time.sol";
import {GameId, IGame} from "../src/interfaces/IGame.sol";
import {IJobBoard} from "../src/interfaces/IJobBoard.sol";
import {GameBase} from "./GameBase.sol";
import {GameTrees} from "./GameTrees.sol";

/// @notice Many games of one job at once: what they cost, and the time that each leaves for the others.
contract GameCrowdTest is GameBase {
    uint256 private constant MOST = 16;

    /// @dev Starts another game of the job, over those that are open.
    function _another(uint64 nonce) private returns (GameId) {
        VM.deal(stranger, CHALLENGER_STAKE << MOST);
        return _challengeAs(stranger, jobId, 3, GameTrees.root(runLeaves), nonce);
    }

    function _pay(uint256 value, uint64 nonce) private {
        IJobBoard.Head memory head = _head(jobId, 3, GameTrees.root(runLeaves));
        bytes memory signature = _headSignature(head);
        VM.deal(stranger, value);
        VM.prank(stranger);
        board.challenge{value: value}(head, signature, nonce);
    }

    // ---------------------------------------------------------------- what a challenge costs

    function test_each_game_that_is_open_doubles_the_price_up_to_sixteen() external {
        _start();
        for (uint64 rank = 1; rank < MOST; ++rank) {
            uint256 price = CHALLENGER_STAKE << rank;
            bytes memory less = abi.encodeWithSelector(IJobBoard.WrongPayment.selector, price, price - 1);
            IJobBoard.Head memory head = _head(jobId, 3, GameTrees.root(runLeaves));
            bytes memory signature = _headSignature(head);
            VM.deal(stranger, price);
            VM.expectRevert(less);
            VM.prank(stranger);
            board.challenge{value: price - 1}(head, signature, rank);
            gameId = _another(rank);
            _equal(rank, games.game(gameId).rank, "rank");
            _equal(uint256(rank) + 1, board.crowd(jobId), "crowd");
        }
        IJobBoard.Head memory last = _head(jobId, 3, GameTrees.root(runLeaves));
        bytes memory signed = _headSignature(last);
        VM.deal(stranger, CHALLENGER_STAKE << MOST);
        VM.expectRevert(abi.encodeWithSelector(IJobBoard.TooManyGames.selector, MOST));
        VM.prank(stranger);
        board.challenge{value: CHALLENGER_STAKE << MOST}(last, signed, 99);
        // Once one is over there is room, at the price of fifteen others.
        _play(stranger, abi.encodeCall(IGame.concede, (gameId)));
        _pay(CHALLENGER_STAKE << (MOST - 1), 99);
        _equal(0, board.credit(stranger), "no more than the price");
    }

    /// Who pays for more games than are open cannot be kept out by one that is started just before.
    function test_what_a_challenge_pays_too_much_comes_back() external {
        _start();
        _another(1);
        _pay(16 * CHALLENGER_STAKE + 7, 2);
        _equal(12 * CHALLENGER_STAKE + 7, board.credit(stranger), "the price was that of the third game");
    }

    /// A trainer that challenges itself so that others find it dear loses half of what it puts up.
    function test_half_of_a_lost_stake_burns_whatever_its_rank() external {
        _start();
        GameId second = _another(1);
        GameId third = _another(2);
        _play(stranger, abi.encodeCall(IGame.concede, (third)));
        _play(stranger, abi.encodeCall(IGame.concede, (second)));
        _equal(3 * CHALLENGER_STAKE, board.credit(trainer), "half of two and of four");
        _equal(3 * CHALLENGER_STAKE, board.credit(board.BURN_ADDRESS()), "the other half");
        _equal(1, board.job(jobId).openGames, "one left");
    }

    function test_a_stake_of_one_wei_burns() external {
        IJobBoard.Job memory job = _job(1);
        job.challengerStake = 1;
        jobId = _offer(job);
        _accept(jobId);
        gameId = _challenge(jobId, 3, GameTrees.root(runLeaves), 0);
        _play(challenger, abi.encodeCall(IGame.concede, (gameId)));
        _equal(0, board.credit(trainer), "half is rounded down");
        _equal(1, board.credit(board.BURN_ADDRESS()), "burned");
    }

    // ---------------------------------------------------------------- what time it has

    /// To the second, with `crowd` games open at once and all but one of them over.
    function test_an_allowance_is_that_of_the_largest_crowd() external {
        for (uint64 crowd = 1; crowd <= MOST; crowd += 5) {
            uint256 before = VM.snapshotState();
            _start();
            GameId own = gameId;
            for (uint64 nonce = 1; nonce < crowd; ++nonce) {
                _play(stranger, abi.encodeCall(IGame.concede, (_toBeConceded(nonce, crowd))));
            }
            gameId = own;
            _walk(runLeaves, 0); // OPEN_STEPS is next
            uint256 last = uint256(REPLAY) * crowd + CLOCK;
            uint256 from = current;
            _warp(from + last);
            _expect(abi.encodeWithSelector(IGame.ClockRunning.selector, CLOCK, CLOCK));
            _play(stranger, abi.encodeCall(IGame.timeout, (gameId)));
            uint256 edge = VM.snapshotState();
            _openSteps(0);
            _equal(0, Duration.unwrap(games.game(gameId).defenderRest), "all of the clock");
            require(VM.revertToState(edge), "back");
            _warp(from + last + 1);
            _play(stranger, abi.encodeCall(IGame.timeout, (gameId)));
            _equal(crowd, board.crowd(jobId), "crowd");
            require(games.game(gameId).reason == IGame.Reason.TIMEOUT, "one second later it is over");
            require(VM.revertToState(before), "back");
        }
    }

    /// @dev Opens all games of the crowd with the first call; then one after the other is given up.
    function _toBeConceded(uint64 nonce, uint64 crowd) private returns (GameId) {
        if (nonce == 1) {
            for (uint64 k = 1; k < crowd; ++k) {
                _another(k);
            }
        }
        return board.gameIdOf(_head(jobId, 3, GameTrees.root(runLeaves)), stranger, nonce);
    }

    function test_a_crowd_is_forgotten_once_no_game_is_open() external {
        _start();
        GameId other = _another(1);
        _play(stranger, abi.encodeCall(IGame.concede, (other)));
        _another(2);
        _equal(2, board.crowd(jobId), "two at once, twice");
        GameId second = board.gameIdOf(_head(jobId, 3, GameTrees.root(runLeaves)), stranger, 2);
        _play(stranger, abi.encodeCall(IGame.concede, (second)));
        _play(challenger, abi.encodeCall(IGame.concede, (gameId)));
        _another(3);
        _equal(1, board.crowd(jobId), "a crowd of its own");
    }
}
