// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Duration, Instant} from "../src/game/Time.sol";
import {GameId, IGame} from "../src/interfaces/IGame.sol";
import {IJobBoard, JobId} from "../src/interfaces/IJobBoard.sol";
import {GameBase} from "./GameBase.sol";
import {GameTrees} from "./GameTrees.sol";

/// @notice Makes calls that are legal by construction: each action looks for a job or game to which it applies, from
/// a random place on, and offers a new job if there is none. A call that reverts fails the run.
contract BoardHandler is GameBase {
    JobId[] public jobs;
    GameId[] public played;
    uint256 public done;
    uint256 public calls;
    uint256 public slashed;
    uint256 public verdicts;

    function jobCount() external view returns (uint256) {
        return jobs.length;
    }

    function gameCount() external view returns (uint256) {
        return played.length;
    }

    function gameOf(uint256 k) external view returns (IGame.GameState memory) {
        return games.game(played[k]);
    }

    function boardAddress() external view returns (address) {
        return address(board);
    }

    function owners() external view returns (address[5] memory) {
        return [client, trainer, challenger, stranger, board.BURN_ADDRESS()];
    }

    // ---------------------------------------------------------------- jobs

    function offer(uint256 seed) external {
        ++calls;
        _offerAndAccept(seed);
    }

    function _offerAndAccept(uint256 seed) private {
        jobs.push(_offer(_job(jobs.length)));
        ++done;
        if (seed % 4 != 0) _accept(jobs[jobs.length - 1]);
    }

    function accept(uint256 seed) external {
        ++calls;
        (bool found, JobId id) = _find(seed, IJobBoard.JobStatus.OFFERED);
        if (found) _accept(id);
    }

    function cancel(uint256 seed) external {
        ++calls;
        (bool found, JobId id) = _find(seed, IJobBoard.JobStatus.OFFERED);
        if (!found) return;
        VM.prank(client);
        board.cancelJob(id);
    }

    function post(uint256 seed) external {
        ++calls;
        (bool found, JobId id) = _find(seed, IJobBoard.JobStatus.ACTIVE);
        if (!found) return;
        uint64 count = board.job(id).headCount;
        if (count < 3) _postNext(id, count + 1 + uint64(seed % (3 - count)));
        else if (_windowOver(id) && board.job(id).openGames == 0) board.settle(id);
    }

    /// @dev INVARIANT: each new segment brings its audit time, after those before it.
    function _postNext(JobId id, uint64 count) private {
        IJobBoard.JobState memory state = board.job(id);
        uint256 from = Instant.unwrap(state.auditEnd);
        if (from < current) from = current;
        _post(id, count, GameTrees.root(runLeaves));
        uint256 audits = (count - state.headCount) * uint256(Duration.unwrap(state.auditTime));
        _equal(from + audits, Instant.unwrap(board.job(id).auditEnd), "audit end");
    }

    function equivocate(uint256 seed) external {
        ++calls;
        // Rarely: it ends a job.
        if (seed % 4 != 0) return _elapse(seed);
        (bool found, JobId id) = _find(seed, IJobBoard.JobStatus.ACTIVE);
        if (!found) return;
        if (seed % 8 != 0) return _contradict(id);
        bytes memory first = _headSignature(_head(id, 1, keccak256("first")));
        bytes memory second = _headSignature(_head(id, 1, keccak256("second")));
        VM.prank(stranger);
        board.reportEquivocation(id, 1, keccak256("first"), first, keccak256("second"), second);
        ++slashed;
    }

    /// @dev The final head, and one of the first record alone, which is another there.
    function _contradict(JobId id) private {
        bytes32[] memory others = new bytes32[](3);
        (others[0], others[1], others[2]) = (keccak256("other"), GameTrees.empty(), GameTrees.empty());
        IJobBoard.OpenedHead[2] memory opened = [_opened(id, 3, runLeaves), _opened(id, 1, others)];
        VM.prank(stranger);
        board.reportInconsistency(id, 0, opened[0], opened[1]);
        ++slashed;
    }

    function _opened(JobId id, uint64 count, bytes32[] memory leaves)
        private
        view
        returns (IJobBoard.OpenedHead memory opened)
    {
        opened.count = count;
        opened.runRoot = GameTrees.root(leaves);
        opened.signature = _headSignature(_head(id, count, opened.runRoot));
        opened.leaf = leaves[0];
        opened.siblings = GameTrees.proof(leaves, 0);
    }

    function finish(uint256 seed) external {
        ++calls;
        (bool found, JobId id) = _find(seed, IJobBoard.JobStatus.ACTIVE);
        if (!found) return;
        IJobBoard.JobState memory state = board.job(id);
        if (state.openGames != 0) return _elapse(seed);
        if (state.headCount == 3) return _windowOver(id) ? board.settle(id) : _elapse(seed);
        if (current <= _due(id)) return _elapse(seed);
        VM.prank(client);
        board.abandon(id);
    }

    function withdraw(uint256 seed) external {
        ++calls;
        address[4] memory all = [client, trainer, challenger, stranger];
        for (uint256 i = 0; i < 4; ++i) {
            address owner = all[addmod(seed, i, 4)];
            if (board.credit(owner) == 0) continue;
            VM.prank(owner);
            board.withdraw(payable(owner));
            ++done;
            return;
        }
        _offerAndAccept(seed);
    }

    // ---------------------------------------------------------------- games

    function challenge(uint256 seed) external {
        ++calls;
        _startGame(seed);
    }

    function _startGame(uint256 seed) private {
        (bool found, JobId id) = _find(seed, IJobBoard.JobStatus.ACTIVE);
        if (!found || _windowOver(id)) return;
        address who = seed % 2 == 0 ? challenger : stranger;
        played.push(_challengeAs(who, id, uint64(1 + seed % 3), GameTrees.root(runLeaves), uint64(played.length)));
    }

    /// @dev A legal move, a timeout or a reclaim, whichever the game allows.
    function move(uint256 seed) public {
        ++calls;
        for (uint256 i = 0; i < played.length; ++i) {
            gameId = played[addmod(seed, i, played.length)];
            IGame.GameState memory state = games.game(gameId);
            if (state.phase == IGame.Phase.OVER) continue;
            IJobBoard.JobStatus status = board.job(state.jobId).status;
            if (status == IJobBoard.JobStatus.SLASHED) games.reclaim(gameId);
            else _moveOn(seed >> 8, state);
            ++done;
            return;
        }
        _startGame(seed);
    }

    function moveAgain(uint256 seed) external {
        move(seed);
    }

    function _moveOn(uint256 seed, IGame.GameState memory state) private {
        address side = games.mover(gameId);
        uint256 rest = Duration.unwrap(side == trainer ? state.defenderRest : state.challengerRest);
        if (state.phase == IGame.Phase.OPEN_STEPS || state.phase == IGame.Phase.OPEN_VALUES) rest += REPLAY;
        if (current - Instant.unwrap(state.last) > rest) {
            games.timeout(gameId);
        } else if (seed % 16 == 0) {
            _play(side, abi.encodeCall(IGame.concede, (gameId)));
        } else if (state.phase == IGame.Phase.DESCEND && seed % 8 != 0) {
            bytes32[] memory nodes = GameTrees.below(runLeaves, state.height, state.position, 1);
            _play(side, abi.encodeCall(IGame.descend, (gameId, nodes)));
        } else if (state.phase == IGame.Phase.SELECT) {
            uint256 position = 2 * uint256(state.position) + (seed >> 4) % 2;
            _play(side, _selection(runLeaves, state.height - 1, position, 0));
        } else {
            _breakTie(side, state.phase);
        }
        if (games.game(gameId).phase == IGame.Phase.OVER) ++verdicts;
        if (board.job(state.jobId).status == IJobBoard.JobStatus.SLASHED) ++slashed;
    }

    /// @dev A defender's move with a link that does not hold: legal, and the end of the game.
    function _breakTie(address side, IGame.Phase phase) private {
        bytes32[] memory two = new bytes32[](2);
        if (phase == IGame.Phase.DESCEND) {
            _play(side, abi.encodeCall(IGame.descend, (gameId, two)));
        } else if (phase == IGame.Phase.OPEN_STEPS) {
            _play(side, abi.encodeCall(IGame.openSteps, (gameId, two, two, 0, 0, 0)));
        } else {
            _play(side, abi.encodeCall(IGame.openValues, (gameId, 0, 0, 0, two, two, 0, new bytes32[](0))));
        }
    }

    // ---------------------------------------------------------------- helpers

    function _find(uint256 seed, IJobBoard.JobStatus status) private returns (bool, JobId) {
        for (uint256 i = 0; i < jobs.length; ++i) {
            JobId id = jobs[addmod(seed, i, jobs.length)];
            if (board.job(id).status != status) continue;
            ++done;
            return (true, id);
        }
        _offerAndAccept(seed);
        return (false, JobId.wrap(0));
    }

    function _windowOver(JobId id) private view returns (bool) {
        IJobBoard.JobState memory state = board.job(id);
        uint256 audited = Instant.unwrap(state.auditEnd);
        uint256 end = Instant.unwrap(state.lastProgress) + WINDOW;
        return current > (end > audited ? end : audited);
    }

    /// @dev By when the next head must be there, or the final one.
    function _due(JobId id) private view returns (uint256) {
        IJobBoard.JobState memory state = board.job(id);
        uint256 due = uint256(Instant.unwrap(state.accepted)) + Duration.unwrap(state.deadline);
        uint256 end = Instant.unwrap(state.lastProgress) + WINDOW;
        return end < due ? end : due;
    }

    /// @dev Of two jobs one has long audits, of three one a short deadline.
    function _job(uint256 nonce) internal view override returns (IJobBoard.Job memory job) {
        job = super._job(nonce);
        if (nonce % 2 == 0) job.auditTime = WINDOW;
        if (nonce % 3 == 0) job.deadline = WINDOW + WINDOW / 2;
    }

    function _elapse(uint256 seed) private {
        _warp(current + 1 + (seed >> 16) % WINDOW);
    }
}

/// @notice The board owns exactly what it owes, whatever happens in whatever order.
contract BoardInvariantTest {
    struct FuzzSelector {
        address addr;
        bytes4[] selectors;
    }

    BoardHandler private handler;

    function setUp() external {
        handler = new BoardHandler();
        handler.setUp();
        handler.offer(1);
    }

    function targetContracts() external view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    function targetSelectors() external view returns (FuzzSelector[] memory targets) {
        bytes4[] memory selectors = new bytes4[](10);
        selectors[0] = handler.offer.selector;
        selectors[1] = handler.accept.selector;
        selectors[2] = handler.cancel.selector;
        selectors[3] = handler.post.selector;
        selectors[4] = handler.equivocate.selector;
        selectors[5] = handler.finish.selector;
        selectors[6] = handler.withdraw.selector;
        selectors[7] = handler.challenge.selector;
        selectors[8] = handler.move.selector;
        selectors[9] = handler.moveAgain.selector;
        targets = new FuzzSelector[](1);
        targets[0] = FuzzSelector(address(handler), selectors);
    }

    /// forge-config: default.invariant.runs = 24
    /// forge-config: default.invariant.depth = 48
    function invariant_the_board_owns_what_it_owes() external view {
        require(address(_board()).balance == _held() + _credits(), "solvent, and nothing is stuck");
    }

    function invariant_open_games_are_counted() external view {
        for (uint256 i = 0; i < handler.jobCount(); ++i) {
            IJobBoard.JobState memory job = _board().job(handler.jobs(i));
            uint256 open = 0;
            for (uint256 k = 0; k < handler.gameCount(); ++k) {
                IGame.GameState memory state = handler.gameOf(k);
                if (state.jobId == handler.jobs(i) && state.phase != IGame.Phase.OVER) ++open;
            }
            require(job.openGames == open, "open games");
            bool mayHaveGames = job.status == IJobBoard.JobStatus.ACTIVE || job.status == IJobBoard.JobStatus.SLASHED;
            require(open == 0 || mayHaveGames, "no game of a job that ended in peace");
        }
    }

    /// @dev Not vacuous: of all calls of a run, most found something to do.
    function afterInvariant() external view {
        uint256 calls = handler.calls();
        if (calls < 24) return; // a run that was cut short, to be shown
        require(3 * handler.done() > 2 * calls, "two of three calls act");
    }

    function _board() private view returns (IJobBoard) {
        return IJobBoard(handler.boardAddress());
    }

    /// @dev Rewards, stakes of trainers and of challengers that are still held.
    function _held() private view returns (uint256 sum) {
        for (uint256 i = 0; i < handler.jobCount(); ++i) {
            IJobBoard.JobState memory job = _board().job(handler.jobs(i));
            if (job.status == IJobBoard.JobStatus.OFFERED) sum += job.reward;
            if (job.status == IJobBoard.JobStatus.ACTIVE) sum += uint256(job.reward) + job.trainerStake;
            sum += uint256(job.openGames) * job.challengerStake;
        }
    }

    function _credits() private view returns (uint256 sum) {
        address[5] memory all = handler.owners();
        for (uint256 i = 0; i < all.length; ++i) {
            sum += _board().credit(all[i]);
        }
    }
}
