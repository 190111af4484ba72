// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Board} from "../src/board/Board.sol";
import {IGame} from "../src/interfaces/IGame.sol";
import {IJobBoard, JobId} from "../src/interfaces/IJobBoard.sol";
import {IReferee} from "../src/interfaces/IReferee.sol";
import {ISeats} from "../src/interfaces/ISeats.sol";
import {GameBase} from "./GameBase.sol";
import {GameTrees} from "./GameTrees.sol";

/// @dev A client and challenger that, while it is being paid, makes one more call of the board.
contract Reenterer {
    Board private immutable BOARD;
    address private toward;
    bytes private again;
    uint256 private amount;
    uint256 public entered;
    bool public succeeded;

    constructor(Board board) {
        BOARD = board;
    }

    function act(bytes calldata call, uint256 wei_) external payable {
        (bool success, bytes memory reason) = address(BOARD).call{value: wei_}(call);
        if (!success) {
            assembly ("memory-safe") {
                revert(add(reason, 32), mload(reason))
            }
        }
    }

    function pull(address toward_, bytes calldata again_, uint256 amount_) external {
        (toward, again, amount) = (toward_, again_, amount_);
        BOARD.withdraw(payable(address(this)));
    }

    receive() external payable {
        // Once: the call made again may pay as well.
        if (++entered == 1) (succeeded,) = toward.call{value: amount}(again);
    }
}

/// @notice What a party might try with the money, and what becomes of every wei.
contract BoardAttacksTest is GameBase {
    JobId[] private jobs;

    // ---------------------------------------------------------------- re-entry

    /// A withdrawal that re-enters through any function of the board gets what it is owed and nothing else.
    function test_reentering_through_every_entry_point() external {
        uint256 allowed = 0;
        for (uint256 which = 0; which < 30; ++which) {
            uint256 snapshot = VM.snapshotState();
            if (_reenter(which)) ++allowed;
            require(VM.revertToState(snapshot), "back");
            // Counted here: the snapshot takes back what the attempt did.
        }
        require(allowed == 0, "solvent in every case");
    }

    /// @return broken whether the board no longer owns what it owes
    function _reenter(uint256 which) private returns (bool broken) {
        Reenterer attacker = new Reenterer(board);
        VM.deal(address(attacker), 100 ether);
        JobId cancelled = _offerOf(address(attacker), 1);
        JobId offered = _offerOf(address(attacker), 2);
        JobId active = _offerOf(address(attacker), 3);
        _accept(active);
        attacker.act(abi.encodeCall(IJobBoard.cancelJob, (cancelled)), 0);
        IJobBoard.Head memory head = _head(active, 3, GameTrees.root(runLeaves));
        bytes memory signature = _headSignature(head);
        attacker.act(abi.encodeCall(IJobBoard.challenge, (head, signature, 0)), CHALLENGER_STAKE);
        gameId = board.gameIdOf(head, address(attacker), 0);
        (bytes memory call, uint256 wei_) = _entry(which, offered, active, head, signature);
        // Entries 7 ... 18 are the games', 20 ... 27 those of seats.
        attacker.pull(which > 6 && which < 19 ? address(games) : address(board), call, wei_);
        _equal(attacker.entered() > 0 ? 1 : 0, 1, "it was paid, and re-entered");
        // Withdrawing again finds nothing; what it may do, it may do at any other time.
        if (which == 0) require(!attacker.succeeded(), "withdrawn twice");
        uint256 deposits = which == 20 ? BOND : 0;
        return address(board).balance != _held() + deposits + _credits(address(attacker));
    }

    function _entry(uint256 which, JobId offered, JobId active, IJobBoard.Head memory head, bytes memory signature)
        private
        view
        returns (bytes memory call, uint256 wei_)
    {
        (bytes32[] memory two, bytes32[] memory none) = (new bytes32[](2), new bytes32[](0));
        IReferee.Proof memory proof;
        if (which == 0) return (abi.encodeCall(IJobBoard.withdraw, (payable(address(this)))), 0);
        if (which == 1) return (abi.encodeCall(IJobBoard.cancelJob, (offered)), 0);
        if (which == 2) return (abi.encodeCall(IJobBoard.acceptJob, (offered)), TRAINER_STAKE);
        if (which == 3) return (abi.encodeCall(IJobBoard.postHead, (head, signature)), 0);
        if (which == 4) return (abi.encodeCall(IJobBoard.settle, (active)), 0);
        if (which == 5) return (abi.encodeCall(IJobBoard.abandon, (active)), 0);
        if (which == 6) return (abi.encodeCall(IJobBoard.challenge, (head, signature, 1)), 2 * CHALLENGER_STAKE);
        if (which == 7) return (abi.encodeCall(IGame.descend, (gameId, two)), 0);
        if (which == 8) return (abi.encodeCall(IGame.select, (gameId, WRONG, 0, two, 0)), 0);
        if (which == 9) return (abi.encodeCall(IGame.openSteps, (gameId, two, two, 0, 0, 0)), 0);
        if (which == 10) return (abi.encodeCall(IGame.openValues, (gameId, 0, 0, 0, two, two, 0, none)), 0);
        if (which == 11) return (abi.encodeCall(IGame.openTensor, (gameId, "", two, two)), 0);
        if (which == 12) return (abi.encodeCall(IGame.openChunk, (gameId, "", 0, none)), 0);
        if (which == 13) return (abi.encodeCall(IGame.selectElement, (gameId, 0, "", 0)), 0);
        if (which == 14) return (abi.encodeCall(IGame.openTerms, (gameId, 0, 0, 0, two, "", two)), 0);
        if (which == 15) return (abi.encodeCall(IGame.prove, (gameId, proof, 0, two)), 0);
        if (which == 16) return (abi.encodeCall(IGame.concede, (gameId)), 0);
        if (which == 17) return (abi.encodeCall(IGame.timeout, (gameId)), 0);
        if (which == 18) return (abi.encodeCall(IGame.reclaim, (gameId)), 0);
        if (which == 20) return (abi.encodeCall(ISeats.joinPool, (0)), BOND);
        if (which == 21) return (abi.encodeCall(ISeats.leavePool, (BOND, 0)), 0);
        if (which == 22) return (abi.encodeCall(ISeats.sealHead, (active, 3, WRONG)), 0);
        if (which == 23) return (abi.encodeCall(ISeats.sealRoot, (active, 0, WRONG)), BOND);
        if (which == 24) return (abi.encodeCall(ISeats.openHead, (head, signature, SALT)), 0);
        if (which == 25) return (abi.encodeCall(ISeats.claimSeat, (active, 0, address(this), WRONG, SALT)), 0);
        if (which == 26) return (abi.encodeCall(ISeats.closeSeats, (active)), 0);
        if (which == 28) return (abi.encodeCall(IJobBoard.part, (active)), 0);
        if (which == 29) return (abi.encodeCall(IJobBoard.acknowledge, (head, signature)), 0);
        IJobBoard.Job memory job = _job(99);
        if (which == 27) return (abi.encodeCall(ISeats.drawSeats, (job, SALT)), 0);
        return (abi.encodeCall(IJobBoard.createJob, (job, "")), REWARD);
    }

    function _offerOf(address owner, uint256 nonce) private returns (JobId jobId_) {
        IJobBoard.Job memory job = _job(nonce);
        job.client = owner;
        bytes memory signature = _jobSignature(job);
        Reenterer(payable(owner)).act(abi.encodeCall(IJobBoard.createJob, (job, signature)), REWARD);
        jobId_ = board.hashJob(job);
        jobs.push(jobId_);
    }

    function test_wei_forced_upon_the_board_change_nothing() external {
        jobId = _offer(_job(1));
        VM.deal(address(board), REWARD + 5 ether);
        VM.prank(client);
        board.cancelJob(jobId);
        VM.prank(client);
        _equal(REWARD, board.withdraw(payable(client)), "what is owed, no more");
    }

    // ---------------------------------------------------------------- the ends of the ranges

    /// A third of 2^25 seconds: a game takes both clocks, and a proof waits for one.
    uint64 private constant LONGEST_CLOCK = 11_184_810;

    function _extreme() private view returns (IJobBoard.Job memory job) {
        job = _job(1);
        (job.reward, job.trainerStake, job.challengerStake) = (MAX, MAX, MAX);
        (job.challengeWindow, job.clock, job.replayTime) = (1 << 28, LONGEST_CLOCK, 0);
        job.deadline = 1 << 28;
        (job.steps, job.checkpointInterval) = (type(uint64).max, 1);
        (job.bodyCount, job.stateCount, job.dataCount) = (1 << 20, 1 << 20, 1 << 20);
        job.descentLevels = 5;
    }

    uint256 private constant MAX = type(uint128).max;

    function _fund() private {
        address[3] memory all = [client, trainer, challenger];
        for (uint256 i = 0; i < 3; ++i) {
            VM.deal(all[i], MAX);
        }
    }

    function test_the_largest_amounts_are_shared_out_exactly() external {
        _fund();
        jobId = _offer(_extreme());
        _accept(jobId);
        gameId = _challenge(jobId, type(uint64).max, WRONG, 0);
        _equal(64, games.game(gameId).height, "the deepest run");
        _equal(20, board.job(jobId).depth, "D");
        _play(trainer, abi.encodeCall(IGame.concede, (gameId)));
        _equal(MAX, board.credit(client), "client");
        _equal(MAX + MAX / 2, board.credit(challenger), "challenger");
        _equal(MAX - MAX / 2, board.credit(board.BURN_ADDRESS()), "burned");
        _equal(3 * MAX, address(board).balance, "nothing is left over");
    }

    function test_the_longest_times_do_not_overflow() external {
        _fund();
        jobId = _offer(_extreme());
        _accept(jobId);
        uint256 longest = LONGEST_CLOCK;
        _warp(START + (1 << 28)); // the last second of the window
        gameId = _challenge(jobId, type(uint64).max, WRONG, 0);
        _warp(current + longest);
        _expect(abi.encodeWithSelector(IGame.ClockRunning.selector, longest, longest));
        _play(stranger, abi.encodeCall(IGame.timeout, (gameId)));
        _warp(current + 1);
        _play(stranger, abi.encodeCall(IGame.timeout, (gameId)));
        require(games.game(gameId).verdict == IGame.Verdict.DEFENDER_LOST, "convicted");
    }

    /// The last step of the longest run: position 2^64 - 2, step 2^64 - 1.
    function test_the_last_step_of_the_longest_run() external {
        _fund();
        jobId = _offer(_extreme());
        _accept(jobId);
        uint256 last = type(uint64).max - 1;
        (bytes32[] memory path, bytes32[] memory siblings) = _deepPath(last);
        gameId = _challenge(jobId, type(uint64).max, path[64], 0);
        uint256 height = 64;
        while (height > 0) {
            uint256 step = height < 5 ? height : 5;
            bytes32[] memory up = new bytes32[](step);
            for (uint256 k = 0; k < step; ++k) {
                up[k] = siblings[height - step + k];
            }
            _play(trainer, abi.encodeCall(IGame.descend, (gameId, _spread(path[height - step], last, height, up))));
            height -= step;
            uint256 index = (last >> height) & ((1 << step) - 1);
            _play(challenger, abi.encodeCall(IGame.select, (gameId, path[height], index, up, 0)));
        }
        IGame.GameState memory state = games.game(gameId);
        require(state.phase == IGame.Phase.OPEN_VALUES, "a segment of one step");
        _equal(type(uint64).max, state.step, "step");
    }

    /// @dev Nodes of a path by height, where every node off the path is the root of equal children down to `up`.
    function _deepPath(uint256 position) private pure returns (bytes32[] memory path, bytes32[] memory siblings) {
        (path, siblings) = (new bytes32[](65), new bytes32[](64));
        path[0] = keccak256("record");
        bytes32 filler = keccak256("filler");
        for (uint256 k = 0; k < 64; ++k) {
            siblings[k] = filler;
            bool isRight = (position >> k) & 1 == 1;
            path[k + 1] = isRight
                ? sha256(abi.encodePacked("tb.node.", filler, path[k]))
                : sha256(abi.encodePacked("tb.node.", path[k], filler));
            filler = sha256(abi.encodePacked("tb.node.", filler, filler));
        }
    }

    /// @dev The level under a node of the path: its fillers and one node of the path.
    function _spread(bytes32 node, uint256 position, uint256 height, bytes32[] memory up)
        private
        pure
        returns (bytes32[] memory nodes)
    {
        nodes = new bytes32[](1 << up.length);
        uint256 own = (position >> (height - up.length)) & (nodes.length - 1);
        for (uint256 i = 0; i < nodes.length; ++i) {
            nodes[i] = i == own ? node : up[0];
        }
    }

    // ---------------------------------------------------------------- what the board owes

    function _held() private view returns (uint256 sum) {
        for (uint256 i = 0; i < jobs.length; ++i) {
            IJobBoard.JobState memory job = board.job(jobs[i]);
            if (job.status == IJobBoard.JobStatus.OFFERED) sum += job.reward;
            if (job.status == IJobBoard.JobStatus.ACTIVE) sum += uint256(job.reward) + job.trainerStake;
            // At most two games, and the one that starts over another is not the first to end.
            sum += ((uint256(1) << job.openGames) - 1) * job.challengerStake;
        }
    }

    function _credits(address attacker) private view returns (uint256 sum) {
        address[6] memory all = [client, trainer, challenger, stranger, attacker, board.BURN_ADDRESS()];
        for (uint256 i = 0; i < 6; ++i) {
            sum += board.credit(all[i]);
        }
    }
}
