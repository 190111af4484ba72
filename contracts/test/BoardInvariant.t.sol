// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Duration, Instant} from "../src/game/Time.sol";
import {GameId, IGame} from "../src/interfaces/IGame.sol";
import {IJobBoard, JobId} from "../src/interfaces/IJobBoard.sol";
import {ISeats} from "../src/interfaces/ISeats.sol";
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
    /// Deposits in the pool, and how often each call of the seats succeeded.
    uint256 public deposits;
    /// Of what was left in pots.
    uint256 public burned;
    uint256[8] public seated;
    uint256 public receipted;
    uint256 public parted;
    uint256 public forbidden;
    /// Games that a signed state entered: what it says is nobody's play, so only a clock or a concession ends it.
    mapping(GameId => bool) private _entered;

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

    function owners() external view returns (address[4] memory) {
        return [client, trainer, challenger, stranger];
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
        _cancel(id);
    }

    function post(uint256 seed) external {
        ++calls;
        (bool found, JobId id) = _find(seed, IJobBoard.JobStatus.ACTIVE);
        if (!found) return;
        uint64 count = board.job(id).headCount;
        if (board.job(id).seats != 0 && (count < 3 || board.seating(id).headSeal != 0)) return seat(seed);
        if (count < 3 && current > _due(id)) _late(id);
        else if (count < 3) _postNext(id, count + 1 + uint64(seed % (3 - count)));
        else if (_windowOver(id) && board.job(id).openGames == 0) _end(id);
    }

    /// @dev The receipt of the last head, or of an earlier one.
    function acknowledge(uint256 seed) external {
        ++calls;
        for (uint256 i = 0; i < jobs.length; ++i) {
            JobId id = jobs[addmod(seed, i, jobs.length)];
            IJobBoard.JobState memory state = board.job(id);
            uint64 known = board.receipts(id);
            if (state.status != IJobBoard.JobStatus.ACTIVE || state.policy == 0 || known == state.headCount) continue;
            uint64 count = known + 1 + uint64((seed >> 8) % (state.headCount - known));
            _acknowledge(id, count);
            ++done;
            return;
        }
        _offerAndAccept(seed);
    }

    function _acknowledge(JobId id, uint64 count) private {
        IJobBoard.Head memory head = _head(id, count, GameTrees.root(runLeaves));
        board.acknowledge(head, _signature(CLIENT_KEY, board.receiptDigest(head)));
        ++receipted;
    }

    /// @dev The window of a job with its final head is over.
    function _end(JobId id) private {
        bool isLogged = board.job(id).policy == 1;
        if (isLogged && board.receipts(id) != 3) _part(id);
        else board.settle(id);
    }

    function _part(JobId id) private {
        VM.prank(current % 2 == 0 || !_windowOver(id) ? client : trainer);
        board.part(id);
        ++parted;
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
        if (seed % 16 == 4) return _contradict(id);
        if (seed % 16 == 8 && board.job(id).policy == 1) return _forbid(id, seed);
        ++slashed;
        if (seed % 16 == 12) return _concede(_head(id, 1, keccak256("first")), stranger);
        bytes memory first = _headSignature(_head(id, 1, keccak256("first")));
        bytes memory second = _headSignature(_head(id, 1, keccak256("second")));
        VM.prank(stranger);
        board.reportEquivocation(id, 1, keccak256("first"), first, keccak256("second"), second);
    }

    /// @dev The trainer leaves before its first head, or the first record of a head has NaN as its loss.
    function _forbid(JobId id, uint256 seed) private {
        IJobBoard.JobState memory state = board.job(id);
        if (seed % 32 == 8 && state.headCount == 0 && state.openGames == 0 && current <= _due(id)) {
            VM.prank(trainer);
            board.part(id);
            ++parted;
            return;
        }
        bytes32[] memory others = new bytes32[](3);
        others[0] = sha256(abi.encodePacked("tb.recrd", uint64(3), bytes32(seed), uint32(0x7fc00000), bytes32(0)));
        (others[1], others[2]) = (keccak256("other"), GameTrees.empty());
        IJobBoard.OpenedHead memory opened = _opened(id, 2, others);
        IJobBoard.Head memory head = _head(id, 2, opened.runRoot);
        VM.prank(stranger);
        board.reportLoss(head, opened.signature, 0, bytes32(seed), 0x7fc00000, 0, opened.siblings);
        ++forbidden;
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
        if (board.seating(id).headSeal != 0 && seed % 4 != 0) {
            if (!_windowOver(id)) return _elapse(seed);
            return current > _due(id) ? _late(id) : _openHead(id, 3, GameTrees.root(runLeaves));
        } else if (board.seating(id).headSeal == 0 && state.headCount == 3) {
            return _windowOver(id) ? _end(id) : _elapse(seed);
        }
        bool parts = state.policy == 1 && state.headCount != 0;
        if (parts ? !_windowOver(id) && current <= _deadline(id) : current <= _due(id)) return _elapse(seed);
        _late(id);
    }

    /// @dev No head comes any more: the job ends if it can.
    function _late(JobId id) private {
        IJobBoard.JobState memory state = board.job(id);
        if (state.openGames != 0) return;
        if (state.policy == 0 || state.headCount == 0) board.abandon(id);
        else if (_windowOver(id) || current > _deadline(id)) _part(id);
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

    // ---------------------------------------------------------------- seats

    /// @dev A pool of two auditors, and seats in the jobs to come.
    function fill() external {
        _joinAs(0, 0);
        _joinAs(1, 1);
        seats = 2;
        address[4] memory all = [client, trainer, challenger, stranger];
        for (uint256 i = 0; i < 4; ++i) {
            VM.deal(all[i], 1e6 ether);
        }
        _warp(current + 1);
    }

    /// @dev The call that a job with seats allows where it stands; else somebody joins or leaves the pool.
    function seat(uint256 seed) public {
        ++calls;
        for (uint256 i = 0; i < jobs.length; ++i) {
            uint256 nonce = addmod(seed, i, jobs.length);
            if (board.job(jobs[nonce]).seats == 0 || !_seatOn(seed >> 8, nonce, jobs[nonce])) continue;
            ++done;
            return;
        }
        _changePool(seed);
        ++done;
    }

    function seatAgain(uint256 seed) external {
        seat(seed);
    }

    function _seatOn(uint256 seed, uint256 nonce, JobId id) private returns (bool) {
        IJobBoard.JobState memory state = board.job(id);
        ISeats.Seating memory seating = board.seating(id);
        if (state.status == IJobBoard.JobStatus.OFFERED || state.status == IJobBoard.JobStatus.CANCELLED) return false;
        if (state.status != IJobBoard.JobStatus.ACTIVE) return _pay(id, state, seating);
        bytes32 root = GameTrees.root(runLeaves);
        if (current > _due(id) && (state.headCount < 3 || seating.headSeal != 0)) {
            _late(id);
            return true;
        }
        if (state.headCount < 3) {
            if (current <= _due(id) - WINDOW / 2) _warp(_due(id) - WINDOW / 2 + 1);
            _sealHead(id, seed % 4 == 0 && state.headCount == 0 ? 1 : 3, root);
            ++seated[0];
            return true;
        }
        if (seating.headSeal == 0) return false;
        if (_windowOver(id)) {
            _openHead(id, 3, root);
            ++seated[1];
            return true;
        }
        if (!seating.isDrawn && seed % 4 != 0) {
            _draw(nonce);
            ++seated[2];
            return true;
        }
        for (uint8 k = 0; k < seats; ++k) {
            if (board.seatOwner(id, k) == address(0) || board.rootSealOf(id, k) != 0) continue;
            _sealRoot(id, k, _sealedRoot(id, k));
            ++seated[3];
            return true;
        }
        return false;
    }

    /// @dev One of four seats has computed something else.
    function _sealedRoot(JobId id, uint8 k) private view returns (bytes32) {
        return uint256(JobId.unwrap(id)) >> (2 * k) & 3 == 0 ? WRONG : GameTrees.root(runLeaves);
    }

    function _pay(JobId id, IJobBoard.JobState memory state, ISeats.Seating memory seating) private returns (bool) {
        if (current > uint256(Instant.unwrap(state.lastProgress)) + WINDOW) {
            if (seating.pot == 0) return false;
            uint256 before = board.credit(client);
            board.closeSeats(id);
            burned += seating.pot - (board.credit(client) - before);
            ++seated[5];
            return true;
        }
        for (uint8 k = 0; k < seats; ++k) {
            bytes32 sealedRoot = board.rootSealOf(id, k);
            if (sealedRoot == 0) continue;
            bytes32 root = _sealedRoot(id, k);
            if (state.status == IJobBoard.JobStatus.SETTLED && root == WRONG) continue;
            // Who sealed it may have left the pool, and the seat gone to another.
            _claim(id, k, sealedRoot == _rootSeal(id, challenger, root) ? challenger : stranger, root);
            ++seated[4];
            return true;
        }
        return false;
    }

    function _changePool(uint256 seed) private {
        uint32 length = board.poolLength(BOND);
        for (uint32 slot = 0; slot < length; ++slot) {
            ISeats.Slot memory found = board.poolSlot(BOND, slot);
            if (found.owner == address(0)) return _joinAs(seed, slot);
            if (current <= uint256(Instant.unwrap(found.since)) + (1 << 21) || seed % 2 == 0) continue;
            VM.prank(found.owner);
            board.leavePool(BOND, slot);
            ++seated[7];
            deposits -= BOND;
            return;
        }
        if (length < 6) _joinAs(seed, length);
        // The deposits' time passes: every window of every job is over.
        else _warp(current + (1 << 21));
    }

    function _joinAs(uint256 seed, uint32 slot) private {
        _join(seed % 2 == 0 ? challenger : stranger, slot);
        ++seated[6];
        deposits += BOND;
    }

    // ---------------------------------------------------------------- games

    function challenge(uint256 seed) external {
        ++calls;
        _startGame(seed);
    }

    function _startGame(uint256 seed) private {
        (bool found, JobId id) = _find(seed, IJobBoard.JobStatus.ACTIVE);
        if (!found || _windowOver(id)) return;
        uint256 open = board.job(id).openGames;
        if (open == 16) return;
        address who = seed % 2 == 0 ? challenger : stranger;
        VM.deal(who, who.balance + (CHALLENGER_STAKE << open));
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

    /// @dev Two sides that sign anything, in turn or not: a state of any kind enters, or one of them is shown to have forked.
    function talk(uint256 seed) external {
        for (uint256 i = 0; i < played.length; ++i) {
            gameId = played[addmod(seed, i, played.length)];
            IGame.GameState memory state = games.game(gameId);
            bool talks = current < Instant.unwrap(state.last) + Duration.unwrap(state.talk);
            if (state.phase == IGame.Phase.OVER || !talks) continue;
            if (board.job(state.jobId).status == IJobBoard.JobStatus.SLASHED) continue;
            _talkOf(seed >> 8, state);
            ++calls;
            ++done;
            return;
        }
        move(seed);
    }

    function _talkOf(uint256 seed, IGame.GameState memory state) private {
        bool byTrainer = seed % 2 == 0;
        uint256 other = state.challenger == challenger ? CHALLENGER_KEY : STRANGER_KEY;
        if (seed % 8 < 2) {
            uint256 key = byTrainer ? TRAINER_KEY : other;
            (bytes32 first, bytes32 second) = (bytes32(seed), bytes32(~seed));
            bytes memory signature = _stateSignature(key, 1, first);
            games.reportFork(gameId, 1, first, signature, second, _stateSignature(key, 1, second));
            require(games.game(gameId).phase == IGame.Phase.OVER, "forked");
            ++verdicts;
            return;
        }
        (uint64 steps, uint64 interval) = board.segments(state.jobId);
        (state.level, state.step, state.node) = (IGame.Level.VALUES, 1, bytes32(seed));
        state.leaves = steps < interval ? steps : interval;
        // The first choice in a tree of values, or a proof of the first commit.
        bool proves = seed >> 8 & 1 == 0;
        (state.phase, state.fresh) = (proves ? IGame.Phase.PROVE : IGame.Phase.SELECT, !proves);
        state.height = proves ? 0 : state.depth + 1;
        state.position = proves ? uint64(1) << state.depth : 0;
        state.instruction = uint32(state.position);
        bytes memory snapshot = _encode(state);
        uint32 sequence = state.sequence + 1;
        bytes memory signed = _stateSignature(byTrainer ? other : TRAINER_KEY, sequence, _idOf(snapshot));
        _play(byTrainer ? trainer : state.challenger, abi.encodeCall(IGame.enter, (gameId, sequence, snapshot, signed)));
        require(games.game(gameId).sequence == sequence, "entered");
        _entered[gameId] = true;
    }

    function _moveOn(uint256 seed, IGame.GameState memory state) private {
        address side = games.mover(gameId);
        uint256 rest = Duration.unwrap(side == trainer ? state.defenderRest : state.challengerRest);
        if (state.phase == IGame.Phase.OPEN_STEPS || state.phase == IGame.Phase.OPEN_VALUES) {
            rest += REPLAY * board.crowd(state.jobId);
        }
        rest += Duration.unwrap(state.talk);
        if (seed % 16 == 0 || _entered[gameId]) {
            _play(side, abi.encodeCall(IGame.concede, (gameId)));
        } else if (current - Instant.unwrap(state.last) > rest) {
            games.timeout(gameId);
        } else if (state.phase == IGame.Phase.DESCEND) {
            bytes32[] memory nodes = GameTrees.below(runLeaves, state.height, state.position, 1);
            _play(side, abi.encodeCall(IGame.descend, (gameId, nodes)));
        } else if (state.phase == IGame.Phase.SELECT) {
            uint256 position = 2 * uint256(state.position) + (seed >> 4) % 2;
            _play(side, _selection(runLeaves, state.height - 1, position, 0));
        } else {
            _play(side, abi.encodeCall(IGame.concede, (gameId)));
        }
        if (games.game(gameId).phase == IGame.Phase.OVER) ++verdicts;
        if (board.job(state.jobId).status == IJobBoard.JobStatus.SLASHED) ++slashed;
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
        uint256 due = _deadline(id);
        uint256 end = Instant.unwrap(state.lastProgress) + WINDOW;
        if (state.headCount != 3) return end < due ? end : due;
        // It is sealed, and a window after the time for audits it has to be opened.
        return (end > Instant.unwrap(state.auditEnd) ? end : Instant.unwrap(state.auditEnd)) + WINDOW;
    }

    function _deadline(JobId id) private view returns (uint256) {
        IJobBoard.JobState memory state = board.job(id);
        return uint256(Instant.unwrap(state.accepted)) + Duration.unwrap(state.deadline);
    }

    /// @dev Of two jobs one has time for audits and one has seats, of three one a short deadline, of four one logs, three talks.
    function _job(uint256 nonce) internal view override returns (IJobBoard.Job memory job) {
        job = super._job(nonce);
        if (nonce % 2 == 0) job.auditTime = WINDOW;
        if (nonce % 3 == 0) job.deadline = WINDOW + WINDOW / 2;
        if (nonce % 4 < 2) (job.seats, job.seatFee, job.seatBond, job.nonce) = (0, 0, 0, nonce);
        if (nonce % 4 == 1) (job.policy, job.tolerances) = (1, 1 << 24);
        if (nonce % 4 != 0) job.talkTime = WINDOW;
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
        handler.fill();
        handler.offer(1);
    }

    function targetContracts() external view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    function targetSelectors() external view returns (FuzzSelector[] memory targets) {
        bytes4[] memory selectors = new bytes4[](14);
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
        selectors[10] = handler.seat.selector;
        selectors[11] = handler.seatAgain.selector;
        selectors[12] = handler.acknowledge.selector;
        selectors[13] = handler.talk.selector;
        targets = new FuzzSelector[](1);
        targets[0] = FuzzSelector(address(handler), selectors);
    }

    /// forge-config: default.invariant.runs = 24
    /// forge-config: default.invariant.depth = 48
    function invariant_the_board_owns_what_it_owes_and_counts_right() external view {
        _owns();
        for (uint256 i = 0; i < handler.jobCount(); ++i) {
            JobId id = handler.jobs(i);
            IJobBoard.JobState memory job = _board().job(id);
            _gamesAreCounted(id, job);
            _receiptsFollowHeads(job, _board().receipts(id));
        }
    }

    function _owns() private view {
        uint256 owed = _held() + handler.deposits() + handler.burned() + _credits();
        require(address(_board()).balance == owed, "solvent, and nothing is stuck");
    }

    /// @dev Not vacuous: in one long run, every call of the seats succeeds many times.
    function test_a_long_run_reaches_every_call_of_the_seats() external {
        for (uint256 i = 0; i < 1500; ++i) {
            uint256 seed = uint256(keccak256(abi.encode(i)));
            uint256 which = (seed >> 128) % 8;
            seed >>= 136;
            if (which == 0) handler.offer(seed);
            else if (which == 1) handler.post(seed);
            else if (which == 2) handler.finish(seed);
            else if (which == 3) handler.equivocate(seed);
            else if (which == 4) handler.withdraw(seed);
            else handler.seat(seed);
            if (i % 50 == 0) _owns();
        }
        _owns();
        for (uint256 k = 0; k < 8; ++k) {
            require(handler.seated(k) >= 10, "each call, ten times");
        }
    }

    function _gamesAreCounted(JobId id, IJobBoard.JobState memory job) private view {
        uint256 open = 0;
        for (uint256 k = 0; k < handler.gameCount(); ++k) {
            IGame.GameState memory state = handler.gameOf(k);
            if (state.jobId == id && state.phase != IGame.Phase.OVER) ++open;
        }
        require(job.openGames == open, "open games");
        require(open <= job.crowd && job.crowd <= 16, "a crowd holds the open games");
        bool mayHaveGames = job.status == IJobBoard.JobStatus.ACTIVE || job.status == IJobBoard.JobStatus.SLASHED;
        require(open == 0 || mayHaveGames, "no game of a job that ended in peace");
    }

    /// @dev Not vacuous: of all calls of a run, most found something to do.
    function afterInvariant() external view {
        uint256 calls = handler.calls();
        if (calls < 24) return; // a run that was cut short, to be shown
        require(3 * handler.done() > 2 * calls, "two of three calls act");
    }

    /// @dev The handler reaches these ends by its own actions.
    function test_jobs_that_forbid_losses_are_slashed_and_parted_before_a_head() external {
        for (uint256 seed = 0; seed < 64 && (handler.parted() == 0 || handler.forbidden() == 0); ++seed) {
            handler.offer(seed);
            handler.equivocate(16 * seed + 8);
        }
        require(handler.parted() > 0 && handler.forbidden() > 0, "parted, and slashed");
        _owns();
    }

    /// @dev And those of policy `logged`.
    function test_jobs_of_policy_logged_part_and_settle() external {
        handler.offer(1);
        for (uint256 seed = 0; seed < 600 && (handler.parted() == 0 || handler.receipted() < 3); ++seed) {
            handler.post(seed * 7);
            if (seed % 5 == 0) handler.acknowledge(seed);
            handler.finish(seed * 65_537);
        }
        require(handler.parted() > 0 && handler.receipted() > 2, "parted, and receipted");
        _owns();
    }

    /// @dev A job keeps what is receipted below what is posted; one that settles has every receipt.
    function _receiptsFollowHeads(IJobBoard.JobState memory job, uint64 count) private pure {
        require(count <= job.headCount && (job.policy == 1 || count == 0), "receipts of posted heads");
        bool settled = job.status == IJobBoard.JobStatus.SETTLED;
        require(!settled || job.policy == 0 || count == 3, "settled with its receipts");
        require(job.status != IJobBoard.JobStatus.PARTED || (job.policy == 1 && count < 3), "parted without them");
    }

    function _board() private view returns (IJobBoard) {
        return IJobBoard(handler.boardAddress());
    }

    /// @dev Rewards, stakes and relief that are still held, and what burned of stakes.
    function _held() private view returns (uint256 sum) {
        for (uint256 i = 0; i < handler.jobCount(); ++i) {
            IJobBoard.JobState memory job = _board().job(handler.jobs(i));
            if (job.status == IJobBoard.JobStatus.OFFERED) sum += job.reward + uint256(job.seats) * job.seatFee;
            if (job.status == IJobBoard.JobStatus.ACTIVE) sum += uint256(job.reward) + job.trainerStake;
            if (job.status == IJobBoard.JobStatus.SLASHED) {
                sum += job.trainerStake - job.trainerStake / 2; // burned
                uint256 share = job.trainerStake / 2 / (1 + job.seats);
                sum += job.openGames * (share / 16 < job.challengerStake / 2 ? share / 16 : job.challengerStake / 2);
            }
            sum += ISeats(address(_board())).seating(handler.jobs(i)).pot;
        }
        for (uint256 k = 0; k < handler.gameCount(); ++k) {
            IGame.GameState memory state = handler.gameOf(k);
            uint256 stake = uint256(_board().job(state.jobId).challengerStake) << state.rank;
            if (state.phase != IGame.Phase.OVER) sum += stake;
            else if (state.verdict == IGame.Verdict.CHALLENGER_LOST) sum += stake - stake / 2; // burned
        }
    }

    function _credits() private view returns (uint256 sum) {
        address[4] memory all = handler.owners();
        for (uint256 i = 0; i < all.length; ++i) {
            sum += _board().credit(all[i]);
        }
    }
}
