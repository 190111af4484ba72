// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Duration, Instant} from "../src/game/Time.sol";
import {GameId, IGame} from "../src/interfaces/IGame.sol";
import {IJobBoard} from "../src/interfaces/IJobBoard.sol";
import {IReferee} from "../src/interfaces/IReferee.sol";
import {GameBase} from "./GameBase.sol";
import {GameTrees} from "./GameTrees.sol";

/// @notice Who may move, when, and how a game ends without a leaf; what many games of one job cost, and their time.
contract GameTurnsTest is GameBase {
    // ---------------------------------------------------------------- turns

    function test_only_the_mover_moves_and_only_the_phases_move() external {
        _start();
        bytes32[] memory nodes = GameTrees.below(runLeaves, 2, 0, 1);
        _expect(abi.encodeWithSelector(IGame.NotYourTurn.selector, trainer, challenger));
        _play(challenger, abi.encodeCall(IGame.descend, (gameId, nodes)));
        _expect(abi.encodeWithSelector(IGame.WrongPhase.selector, IGame.Phase.SELECT, IGame.Phase.DESCEND));
        _select(runLeaves, 1, 0, 0);
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, nodes)));
        require(games.mover(gameId) == challenger, "mover");
        _expect(abi.encodeWithSelector(IGame.NotYourTurn.selector, challenger, client));
        _play(client, _selection(runLeaves, 1, 0, 0));
    }

    function test_every_move_has_its_phase() external {
        _start();
        IReferee.Proof memory proof;
        bytes32[] memory none = new bytes32[](0);
        _wrongPhase(IGame.Phase.SELECT, abi.encodeCall(IGame.select, (gameId, WRONG, 0, none, 0)));
        _wrongPhase(IGame.Phase.OPEN_STEPS, abi.encodeCall(IGame.openSteps, (gameId, none, none, 0, 0, 0)));
        bytes memory values = abi.encodeCall(IGame.openValues, (gameId, WRONG, 0, WRONG, none, none, 0, none));
        _wrongPhase(IGame.Phase.OPEN_VALUES, values);
        _wrongPhase(IGame.Phase.OPEN_TENSOR, abi.encodeCall(IGame.openTensor, (gameId, "", none, none)));
        _wrongPhase(IGame.Phase.OPEN_CHUNK, abi.encodeCall(IGame.openChunk, (gameId, "", 0, none)));
        _wrongPhase(IGame.Phase.SELECT_ELEMENT, abi.encodeCall(IGame.selectElement, (gameId, 0, "", 0)));
        _wrongPhase(IGame.Phase.OPEN_TERMS, abi.encodeCall(IGame.openTerms, (gameId, 0, 0, 0, none, "", none)));
        _wrongPhase(IGame.Phase.PROVE, abi.encodeCall(IGame.prove, (gameId, proof, SALT, none)));
    }

    function _wrongPhase(IGame.Phase expected, bytes memory call) private {
        _expect(abi.encodeWithSelector(IGame.WrongPhase.selector, expected, IGame.Phase.DESCEND));
        _play(trainer, call);
    }

    function test_no_game_and_a_game_that_is_over_take_no_moves() external {
        GameId none = GameId.wrap(WRONG);
        bytes memory noGame = abi.encodeWithSelector(IGame.NoSuchGame.selector, none);
        _expect(noGame);
        _play(address(this), abi.encodeCall(IGame.descend, (none, new bytes32[](2))));
        _expect(noGame);
        _play(address(this), abi.encodeCall(IGame.concede, (none)));
        _expect(noGame);
        _play(address(this), abi.encodeCall(IGame.reclaim, (none)));
        require(games.mover(none) == address(0), "no mover");
        _start();
        _play(trainer, abi.encodeCall(IGame.concede, (gameId)));
        bytes memory over = abi.encodeWithSelector(IGame.GameIsOver.selector, gameId);
        _expect(over);
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, new bytes32[](2))));
        _expect(over);
        _play(address(this), abi.encodeCall(IGame.timeout, (gameId)));
        _expect(over);
        _play(trainer, abi.encodeCall(IGame.concede, (gameId)));
        _expect(over);
        _play(challenger, abi.encodeCall(IGame.reclaim, (gameId)));
        require(games.mover(gameId) == address(0), "over");
    }

    // ---------------------------------------------------------------- slashed jobs

    /// The first of several challengers to win has the reward; the others take their stakes back.
    function test_the_first_of_several_challengers_is_rewarded() external {
        levels = 5;
        _start();
        GameId first = gameId;
        GameId second = _challengeAs(stranger, jobId, 3, GameTrees.root(runLeaves), 0);
        GameId third = _challengeAs(client, jobId, 3, GameTrees.root(runLeaves), 0);
        _play(trainer, abi.encodeCall(IGame.descend, (third, GameTrees.below(runLeaves, 2, 0, 2))));
        _play(trainer, abi.encodeCall(IGame.concede, (second)));
        bytes memory slashed = abi.encodeWithSelector(
            IJobBoard.WrongJobStatus.selector, jobId, IJobBoard.JobStatus.ACTIVE, IJobBoard.JobStatus.SLASHED
        );
        // Nothing that would end a game is legal any more.
        _expect(slashed);
        _play(trainer, abi.encodeCall(IGame.concede, (first)));
        _expect(slashed);
        _play(client, abi.encodeCall(IGame.concede, (third)));
        gameId = third;
        _expect(slashed);
        _play(client, _selection(runLeaves, 0, 3, 0)); // padding would be a verdict
        _warp(current + CLOCK + 1);
        _expect(slashed);
        _play(address(this), abi.encodeCall(IGame.timeout, (first)));
        _play(address(this), abi.encodeCall(IGame.reclaim, (first)));
        _play(address(this), abi.encodeCall(IGame.reclaim, (third)));
        _equal(CHALLENGER_STAKE + RELIEF, board.credit(challenger), "stake back, and relief");
        _equal(2 * CHALLENGER_STAKE + TRAINER_STAKE / 2 - 2 * RELIEF, board.credit(stranger), "reward and stake");
        _equal(4 * CHALLENGER_STAKE + RELIEF + REWARD, board.credit(client), "the same, and the client's refund");
        _equal(0, board.job(jobId).openGames, "no game left");
    }

    function test_other_games_go_on_after_a_lost_challenge() external {
        _start();
        GameId lost = gameId;
        gameId = _challengeAs(challenger, jobId, 3, GameTrees.root(runLeaves), 1);
        _warp(current + 1);
        _play(trainer, abi.encodeCall(IGame.descend, (lost, GameTrees.below(runLeaves, 2, 0, 1))));
        _warp(current + CLOCK + 1);
        _play(address(this), abi.encodeCall(IGame.timeout, (lost)));
        _equal(CHALLENGER_STAKE / 2, board.credit(trainer), "half of the first stake");
        _equal(1, board.job(jobId).openGames, "one left");
    }

    /// Whoever is to move, in time or not.
    function test_either_side_may_concede_at_any_time() external {
        for (uint256 side = 0; side < 2; ++side) {
            for (uint256 late = 0; late < 2; ++late) {
                uint256 id = VM.snapshotState();
                _walkToTerms(2, 1, 1);
                _expect(abi.encodeWithSelector(IGame.NotASide.selector, stranger));
                _play(stranger, abi.encodeCall(IGame.concede, (gameId)));
                if (late == 1) _warp(current + CLOCK + 1);
                _play(side == 0 ? trainer : challenger, abi.encodeCall(IGame.concede, (gameId)));
                if (side == 0) _defenderLost(IGame.Reason.CONCEDED);
                else _challengerLost(IGame.Reason.CONCEDED);
                require(VM.revertToState(id), "back");
            }
        }
    }

    // ---------------------------------------------------------------- clocks

    function test_the_defender_may_use_exactly_its_clock() external {
        _start();
        _edge(0);
        _warp(START + CLOCK + 1);
        _expect(abi.encodeWithSelector(IGame.ClockExhausted.selector, CLOCK, CLOCK + 1));
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, GameTrees.below(runLeaves, 2, 0, 1))));
        _warp(START + CLOCK - 1);
        _expect(abi.encodeWithSelector(IGame.ClockRunning.selector, CLOCK, CLOCK - 1));
        _play(address(this), abi.encodeCall(IGame.timeout, (gameId)));
        _warp(START + CLOCK);
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, GameTrees.below(runLeaves, 2, 0, 1))));
        IGame.GameState memory state = games.game(gameId);
        _equal(0, Duration.unwrap(state.defenderRest), "defender's rest");
        _equal(CLOCK, Duration.unwrap(state.challengerRest), "challenger's rest");
    }

    function test_clocks_add_up_over_moves_and_the_challengers_runs_out_too() external {
        _start();
        _warp(START + 100);
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, GameTrees.below(runLeaves, 2, 0, 1))));
        _warp(current + 250);
        _select(runLeaves, 1, 0, 0);
        _warp(current + 200); // 300 in all: exactly the defender's clock
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, GameTrees.below(runLeaves, 1, 0, 1))));
        _warp(current + 50); // exactly the challenger's
        _expect(abi.encodeWithSelector(IGame.ClockRunning.selector, 50, 50));
        _play(address(this), abi.encodeCall(IGame.timeout, (gameId)));
        _warp(current + 1);
        _expect(abi.encodeWithSelector(IGame.ClockExhausted.selector, 50, 51));
        _play(challenger, _selection(runLeaves, 0, 0, 0));
        _play(address(this), abi.encodeCall(IGame.timeout, (gameId)));
        _challengerLost(IGame.Reason.TIMEOUT);
    }

    /// Each move's allowance, to the second, along a whole game. The defender moves where phase and level say so.
    function test_moves_that_need_replay_have_an_allowance() external {
        _start();
        _edge(0); // DESCEND of the run
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, GameTrees.below(runLeaves, 2, 0, 1))));
        _edge(0); // first SELECT of the run: the challenger has replayed it all before
        _select(runLeaves, 1, 0, 0);
        _walkRest(runLeaves, 0);
        _edge(REPLAY); // OPEN_STEPS
        _openSteps(0);
        _edge(REPLAY); // first SELECT of the steps
        _select(_stepLeaves(0), 1, 0, 0);
        _edge(0); // DESCEND
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, GameTrees.below(_stepLeaves(0), 1, 0, 1))));
        _edge(0); // later SELECT
        _select(_stepLeaves(0), 0, 1, 0);
        _edge(REPLAY); // OPEN_VALUES
        _openValues(2);
        _edge(REPLAY); // first SELECT of the values
        _walk(_valueLeaves(2), LONG, _seal(right));
        _edge(0); // OPEN_TENSOR
        _openTensor(LONG);
        _edge(0); // first SELECT of the chunks
        _walk(chunkLeaves, 1);
        _edge(0); // OPEN_CHUNK
        _openChunk(1);
        _edge(0); // SELECT_ELEMENT
        _selectElement(5, 1);
        _edge(REPLAY); // OPEN_TERMS
        _openTerms();
        _edge(REPLAY); // first SELECT of the terms
        _walk(termLeaves, 1, _seal(right));
        _edge(CLOCK); // PROVE: what it has to wait
    }

    function _walkRest(bytes32[] memory leaves, uint256 position) private {
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, GameTrees.below(leaves, 1, position >> 1, 1))));
        _select(leaves, 0, position, 0);
    }

    /// @dev The mover may use its rest and the allowance, to the second; then only the timeout is legal.
    function _edge(uint256 allowance) private {
        uint256 snapshot = VM.snapshotState();
        address side = games.mover(gameId);
        IGame.GameState memory state = games.game(gameId);
        uint256 rest = Duration.unwrap(side == trainer ? state.defenderRest : state.challengerRest);
        _warp(Instant.unwrap(state.last) + rest + allowance);
        _expect(abi.encodeWithSelector(IGame.ClockRunning.selector, rest, rest));
        _play(stranger, abi.encodeCall(IGame.timeout, (gameId)));
        _warp(current + 1);
        _play(stranger, abi.encodeCall(IGame.timeout, (gameId)));
        require(games.game(gameId).reason == IGame.Reason.TIMEOUT, "timed out");
        bool lost = games.game(gameId).verdict == IGame.Verdict.DEFENDER_LOST;
        require(lost == (side == trainer), "the mover lost");
        require(VM.revertToState(snapshot), "back");
        // Within the allowance nothing is charged.
        if (allowance == 0) return;
        _warp(Instant.unwrap(state.last) + allowance);
    }

    /// What is charged: the time since the last move less the allowance, at every length of wait.
    function testFuzz_the_allowance_is_not_charged(uint256 wait) external {
        _start();
        _walk(runLeaves, 0);
        wait %= REPLAY + CLOCK + 1;
        _warp(current + wait);
        _openSteps(0);
        uint256 charged = wait > REPLAY ? wait - REPLAY : 0;
        _equal(CLOCK - charged, Duration.unwrap(games.game(gameId).defenderRest), "rest");
        _equal(current, Instant.unwrap(games.game(gameId).last), "last");
    }

    uint256 private constant MOST = 16;
    bytes private refusal;

    /// @dev Starts another game of the job, over those that are open.
    function _another(uint64 nonce) private returns (GameId) {
        VM.deal(stranger, CHALLENGER_STAKE << MOST);
        return _challengeAs(stranger, jobId, 3, GameTrees.root(runLeaves), nonce);
    }

    function _pay(uint256 value, uint64 nonce) private {
        IJobBoard.Head memory head = _head(jobId, 3, GameTrees.root(runLeaves));
        bytes memory signature = _headSignature(head);
        VM.deal(stranger, value);
        if (refusal.length != 0) VM.expectRevert(refusal);
        VM.prank(stranger);
        board.challenge{value: value}(head, signature, nonce);
    }

    function _refusedPay(uint256 value, bytes memory reason) private {
        refusal = reason;
        _pay(value, 99);
        delete refusal;
    }

    // ---------------------------------------------------------------- what a challenge costs

    function test_each_game_that_is_open_doubles_the_price_up_to_sixteen() external {
        _start();
        for (uint64 rank = 1; rank < MOST; ++rank) {
            uint256 price = CHALLENGER_STAKE << rank;
            _refusedPay(price - 1, abi.encodeWithSelector(IJobBoard.WrongPayment.selector, price, price - 1));
            gameId = _another(rank);
            _equal(rank, games.game(gameId).rank, "rank");
            _equal(uint256(rank) + 1, board.crowd(jobId), "crowd");
        }
        _refusedPay(CHALLENGER_STAKE << MOST, abi.encodeWithSelector(IJobBoard.TooManyGames.selector, MOST));
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
        _equal(3 * CHALLENGER_STAKE, _burned(REWARD + TRAINER_STAKE + CHALLENGER_STAKE), "the other half");
        _equal(1, board.job(jobId).openGames, "one left");
    }

    function test_a_stake_of_one_wei_burns() external {
        IJobBoard.Job memory job = _job(1);
        (job.reward, job.trainerStake, job.challengerStake) = (1, 1, 1);
        jobId = _offer(job);
        _accept(jobId);
        gameId = _challenge(jobId, 3, GameTrees.root(runLeaves), 0);
        _play(challenger, abi.encodeCall(IGame.concede, (gameId)));
        _equal(0, board.credit(trainer), "half is rounded down");
        _equal(1, _burned(2), "burned");
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
