// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Segments} from "../game/Segments.sol";
import {Duration, Instant, currentInstant} from "../game/Time.sol";
import {IJobBoard, JobId} from "../interfaces/IJobBoard.sol";
import {Commitments} from "../libraries/Commitments.sol";
import {Float32} from "../libraries/Float32.sol";
import {Trees} from "../libraries/Trees.sol";
import {Signatures} from "./Signatures.sol";

/// @title The job board
/// @notice See `IJobBoard`, which is the specification.
///
/// INVARIANT: balance >= Σ rewards of OFFERED and ACTIVE jobs + Σ trainer stakes of ACTIVE jobs
///            + Σ challenger stakes of games without verdict, each doubled by its rank, and of SLASHED jobs with their relief,
///            + Σ pots of seats + Σ deposits in pools + Σ credits. What burned is the rest, for good.
abstract contract JobBoard is IJobBoard {
    uint256 internal constant MAX_ENTRIES = 1 << 20;
    uint256 internal constant MAX_AMOUNT = type(uint128).max;
    /// Longest window, audit time and deadline: 8.5 years. Nobody's money is held for longer than these, and one game.
    uint256 internal constant MAX_SECONDS = 1 << 28;
    /// Longest game, with its talk, clocks and allowances: 388 days. No sum with an instant overflows 40 bits.
    uint256 internal constant MAX_GAME_SECONDS = 1 << 25;
    /// At once, of one job.
    uint256 internal constant MAX_GAMES = 16;
    /// How many challenger's stakes all may be worth that a false run can win or keep.
    uint256 internal constant MAX_WORTH = 1 << (MAX_GAMES - 2);
    uint256 internal constant MIN_PRECISION = 16;
    uint256 internal constant MAX_PRECISION = 32;
    uint256 internal constant LOGGED = 1;
    uint256 internal constant MIN_TOLERANCE = 2;
    uint256 internal constant MAX_TOLERANCE = 64;
    /// The bit of the tolerances by which a job demands finite losses, above those of three kinds of sums.
    uint32 internal constant FINITE_LOSSES = 1 << 24;
    uint256 internal constant MAX_DESCENT_LEVELS = 5;
    uint256 internal constant MAX_SEATS = 16;

    mapping(JobId => JobState) internal _jobs;
    mapping(address => uint256) internal _credits;
    /// Policy `logged`: the count of the highest head whose logs the client has signed for. Invariant: at most `headCount`.
    mapping(JobId => uint64) internal _receipts;

    modifier onlyStatus(JobId jobId, JobStatus expected) {
        _requireStatus(jobId, expected);
        _;
    }

    /// @inheritdoc IJobBoard
    function createJob(Job calldata job_, bytes calldata trainerSignature) external payable returns (JobId jobId) {
        _checkJob(job_);
        _requireCaller(job_.client);
        _requirePayment(job_.reward + job_.seats * job_.seatFee);
        jobId = Signatures.hashJob(job_);
        // SAFETY: the trainer's signature binds this chain and this contract; without it anyone could offer work in its name.
        Signatures.check(Signatures.digest(JobId.unwrap(jobId)), trainerSignature, job_.trainer);
        JobState storage state = _jobs[jobId];
        // SAFETY: an id is used once, also after the job ended: old signed heads must not count for a second run.
        if (state.status != JobStatus.NONE) revert JobExists(jobId);
        _store(state, job_);
        emit JobCreated(jobId, job_.client, job_.trainer, job_.reward);
    }

    /// @inheritdoc IJobBoard
    function cancelJob(JobId jobId) external onlyStatus(jobId, JobStatus.OFFERED) {
        JobState storage state = _jobs[jobId];
        _requireCaller(state.client);
        state.status = JobStatus.CANCELLED;
        emit JobCancelled(jobId);
        _credit(state.client, state.reward + _fees(state));
    }

    /// @inheritdoc IJobBoard
    function acceptJob(JobId jobId) external payable onlyStatus(jobId, JobStatus.OFFERED) {
        JobState storage state = _jobs[jobId];
        _requireCaller(state.trainer);
        _requirePayment(state.trainerStake);
        state.status = JobStatus.ACTIVE;
        Instant current = currentInstant();
        (state.lastProgress, state.auditEnd, state.accepted) = (current, current, current);
        if (state.seats != 0) _fund(jobId, _fees(state));
        emit JobAccepted(jobId, state.trainerStake);
    }

    /// @inheritdoc IJobBoard
    function postHead(Head calldata head, bytes calldata signature) external onlyStatus(head.jobId, JobStatus.ACTIVE) {
        JobState storage state = _jobs[head.jobId];
        // SAFETY: an auditor of a seat would read here what it is paid to compute.
        if (state.seats != 0) revert HeadMustBeSealed(head.jobId);
        (uint64 last,) = _checkHead(state, head, signature);
        _progress(state, _advance(state, head.count));
        state.headRoot = head.runRoot;
        emit HeadPosted(head.jobId, head.count, head.runRoot, head.count == last);
    }

    /// @inheritdoc IJobBoard
    function reportEquivocation(
        JobId jobId,
        uint64 count,
        bytes32 firstRoot,
        bytes calldata firstSignature,
        bytes32 secondRoot,
        bytes calldata secondSignature
    ) external onlyStatus(jobId, JobStatus.ACTIVE) {
        JobState storage state = _jobs[jobId];
        if (firstRoot == secondRoot) revert NoEquivocation(firstRoot);
        _checkHead(state, Head(jobId, count, firstRoot), firstSignature);
        _checkHead(state, Head(jobId, count, secondRoot), secondSignature);
        emit Equivocation(jobId, count, firstRoot, secondRoot);
        // SAFETY: a copied transaction can take the reporter's reward, never the client's refund or the trainer's loss.
        _slash(jobId, msg.sender);
    }

    /// @inheritdoc IJobBoard
    function reportInconsistency(JobId jobId, uint64 position, OpenedHead calldata first, OpenedHead calldata second)
        external
        onlyStatus(jobId, JobStatus.ACTIVE)
    {
        _checkOpened(jobId, position, first);
        _checkOpened(jobId, position, second);
        // SAFETY: records never change, so an honest trainer's heads have the same leaf wherever both have one.
        if (first.leaf == second.leaf) revert NoInconsistency(first.leaf);
        emit Inconsistency(jobId, position, first.leaf, second.leaf);
        _slash(jobId, msg.sender);
    }

    /// @inheritdoc IJobBoard
    function reportLoss(
        Head calldata head,
        bytes calldata signature,
        uint64 position,
        bytes32 stateRoot,
        uint32 lossBits,
        bytes32 logRoot,
        bytes32[] calldata siblings
    ) external onlyStatus(head.jobId, JobStatus.ACTIVE) {
        JobState storage state = _jobs[head.jobId];
        if (!_demandsFiniteLosses(state)) revert FiniteLossesNotDemanded(head.jobId);
        if (Float32.isFinite(lossBits)) revert FiniteLoss(lossBits);
        uint64 step = Segments.lastStep(state.steps, state.checkpointInterval, position);
        bytes32 leaf = Commitments.record(step, stateRoot, lossBits, logRoot);
        // SAFETY: an honest trainer signs no such record, so the game need not tell whether the program led to it.
        _checkRecord(state, head, signature, position, leaf, siblings);
        emit Nonfinite(head.jobId, step, lossBits);
        _slash(head.jobId, msg.sender);
    }

    /// @inheritdoc IJobBoard
    function reportConcession(Head calldata head, address prover, bytes calldata concession)
        external
        onlyStatus(head.jobId, JobStatus.ACTIVE)
    {
        // SAFETY: whoever signs this gives up its stake. Whether it signed the head as well is of no matter, and a trainer that
        // concedes to a key of its own gets what two heads of one count bring it (`reportEquivocation`), no wei more.
        bytes32 digest = Signatures.digest(Signatures.hashConcession(head, prover));
        Signatures.check(digest, concession, _jobs[head.jobId].trainer);
        emit Conceded(head.jobId, prover, head.count, head.runRoot);
        _slash(head.jobId, prover);
    }

    /// @inheritdoc IJobBoard
    function settle(JobId jobId) external onlyStatus(jobId, JobStatus.ACTIVE) {
        JobState storage state = _jobs[jobId];
        uint64 last = Segments.checkpoints(state);
        if (state.headCount != last) revert FinalHeadMissing(state.headCount, last);
        if (state.seats != 0 && _isSealed(jobId)) revert FinalHeadSealed(jobId);
        if (_isLogged(state) && _receipts[jobId] != last) revert ReceiptMissing(_receipts[jobId], last);
        _requireOver(_windowEnd(state));
        _requireNoGames(state);
        _end(state, JobStatus.SETTLED);
        uint256 amount = uint256(state.reward) + state.trainerStake;
        emit JobSettled(jobId, amount);
        _credit(state.trainer, amount);
    }

    /// @inheritdoc IJobBoard
    function abandon(JobId jobId) external onlyStatus(jobId, JobStatus.ACTIVE) {
        JobState storage state = _jobs[jobId];
        // SAFETY: a client that keeps its receipts back stops an honest trainer, and must not be paid for that: they part.
        if (_isLogged(state) && state.headCount != 0) revert HeadsPosted(state.headCount);
        _requireOver(_due(jobId));
        // SAFETY: an open game is played to its end first, so client and trainer together cannot cut a challenger off.
        _requireNoGames(state);
        _end(state, JobStatus.ABANDONED);
        uint256 amount = uint256(state.reward) + state.trainerStake;
        emit JobAbandoned(jobId, amount);
        _credit(state.client, amount);
    }

    /// @inheritdoc IJobBoard
    function withdraw(address payable to) external returns (uint256 amount) {
        if (to == address(0)) revert ZeroAddress();
        amount = _credits[msg.sender];
        if (amount == 0) revert NothingToWithdraw(msg.sender);
        // SAFETY: the credit is gone before the call, and this is the only call that carries wei: re-entering finds zero.
        _credits[msg.sender] = 0;
        emit Withdrawn(msg.sender, to, amount);
        (bool success,) = to.call{value: amount}("");
        if (!success) revert TransferFailed(to, amount);
    }

    /// @inheritdoc IJobBoard
    function job(JobId jobId) external view returns (JobState memory) {
        return _jobs[jobId];
    }

    /// @inheritdoc IJobBoard
    function credit(address account) external view returns (uint256) {
        return _credits[account];
    }

    /// @inheritdoc IJobBoard
    function checkpoints(JobId jobId) external view returns (uint64) {
        JobState storage state = _jobs[jobId];
        return state.status == JobStatus.NONE ? 0 : Segments.checkpoints(state);
    }

    /// @inheritdoc IJobBoard
    function domainSeparator() external view returns (bytes32) {
        return Signatures.domainSeparator(address(this));
    }

    /// @inheritdoc IJobBoard
    function hashJob(Job calldata job_) external pure returns (JobId) {
        return Signatures.hashJob(job_);
    }

    /// @inheritdoc IJobBoard
    function headDigest(Head calldata head) external view returns (bytes32) {
        return Signatures.digest(Signatures.hashHead(head));
    }

    // ---------------------------------------------------------------- for the games

    /// @dev Reverts unless a game may start against this head now; then counts it.
    /// @return digest what the trainer signed
    /// @return rank how many games were open
    function _openGame(Head calldata head, bytes calldata signature)
        internal
        onlyStatus(head.jobId, JobStatus.ACTIVE)
        returns (bytes32 digest, uint8 rank)
    {
        JobState storage state = _jobs[head.jobId];
        uint256 open = state.openGames;
        if (open >= MAX_GAMES) revert TooManyGames(MAX_GAMES);
        // Below MAX_GAMES.
        // forge-lint: disable-next-line(unsafe-typecast)
        rank = uint8(open);
        uint256 stake = _stakeOf(state, rank);
        if (msg.value < stake) revert WrongPayment(stake, msg.value);
        (, digest) = _checkHead(state, head, signature);
        // SAFETY: a game ends within three clocks and its allowances, and none starts after the window, so nobody can hold up
        // `settle` or `abandon` for good: not a challenger, and not a trainer that challenges itself (its stake comes back to it).
        _requireWindow(state);
        // SAFETY: an allowance that a side has counted on does not shrink while its game is open.
        if (open == 0 || open >= state.crowd) state.crowd = rank + 1;
        state.openGames = rank + 1;
        _credit(msg.sender, msg.value - stake);
    }

    /// @dev The challenger lost: half of its stake, rounded down, goes to the trainer, the rest burns.
    /// SAFETY: so a trainer that challenges itself, to make it dear for others, gets at most half of it back.
    function _defended(JobId jobId, uint8 rank) internal {
        JobState storage state = _jobs[jobId];
        state.openGames -= 1;
        uint256 stake = _stakeOf(state, rank);
        emit StakeLost(jobId, stake / 2, stake - stake / 2);
        _credit(state.trainer, stake / 2);
    }

    /// @dev The defender lost: the challenger gets its stake back and the trainer is slashed.
    function _convicted(JobId jobId, address challenger, uint8 rank) internal {
        _returnStake(jobId, challenger, rank, 0);
        _slash(jobId, challenger);
    }

    /// @dev The job was slashed over this game, whose challenger gets its stake back, and the relief that was kept for it.
    function _voided(JobId jobId, address challenger, uint8 rank) internal {
        _returnStake(jobId, challenger, rank, _relief(_jobs[jobId]));
    }

    function _returnStake(JobId jobId, address challenger, uint8 rank, uint256 more) private {
        JobState storage state = _jobs[jobId];
        state.openGames -= 1;
        _credit(challenger, _stakeOf(state, rank) + more);
    }

    /// @dev What a challenger is paid whom another one's conviction, or a report, has overtaken: as much as the stake of a
    /// false challenge pays its victim.
    /// SAFETY: it comes out of the prover's share, never out of what burns: a cheat that convicts itself, over games of its own
    /// as well, moves its own money and gets no more. At most a sixteenth, so that 15 others leave the prover as much.
    function _relief(JobState storage state) private view returns (uint256) {
        uint256 most = _share(state) / MAX_GAMES;
        uint256 half = state.challengerStake / 2;
        return half < most ? half : most;
    }

    /// @dev What the game that starts over `rank` others holds.
    function _stakeOf(JobState storage state, uint8 rank) private view returns (uint256) {
        return uint256(state.challengerStake) << rank;
    }

    function _isLogged(JobState storage state) internal view returns (bool) {
        return state.policy == LOGGED;
    }

    function _demandsFiniteLosses(JobState storage state) internal view returns (bool) {
        return state.tolerances & FINITE_LOSSES != 0;
    }

    function _requireStatus(JobId jobId, JobStatus expected) internal view {
        JobStatus actual = _jobs[jobId].status;
        if (actual != expected) revert WrongJobStatus(jobId, expected, actual);
    }

    // ---------------------------------------------------------------- for the seats

    /// @return whether the final head is sealed, and not opened
    function _isSealed(JobId jobId) internal view virtual returns (bool);

    /// @dev Adds to the pot of the seats.
    function _fund(JobId jobId, uint256 amount) internal virtual;

    /// @return what whoever convicts the trainer gets, and each seat that saw the lie
    function _share(JobState storage state) internal view returns (uint256) {
        return state.trainerStake / 2 / (1 + uint256(state.seats));
    }

    /// @return whether seats of this bond have a pool: powers of two have.
    /// SAFETY: with any bond, each job could have a pool of its own, in which nobody but its trainer had the time to join.
    function _isPool(uint256 bond) internal pure returns (bool) {
        return bond != 0 && bond & (bond - 1) == 0;
    }

    function _credit(address account, uint256 amount) internal {
        if (amount == 0) return;
        _credits[account] += amount;
        emit Credited(account, amount);
    }

    /// @dev A head of this count is posted or sealed.
    function _advance(JobState storage state, uint64 count) internal returns (uint64 gained) {
        // SAFETY: ascending, so nobody can replay an old head to move the windows.
        if (count <= state.headCount) revert HeadNotAscending(state.headCount, count);
        // SAFETY: else a trainer that is late would gain the time of a game that it starts against itself, because no job
        // is abandoned over an open game.
        _requireUntil(_headDue(state));
        gained = count - state.headCount;
        state.headCount = count;
    }

    /// @dev The window starts again, and each of the new segments gets its audit time, after those before it.
    /// SAFETY: what was made up is posted whole at once, at any time; to replay it takes as long as to train it.
    function _progress(JobState storage state, uint64 gained) internal {
        Instant current = currentInstant();
        state.lastProgress = current;
        // All segments' together are at most 2^28 seconds.
        // forge-lint: disable-next-line(unsafe-typecast)
        Duration audits = Duration.wrap(uint40(gained * Duration.unwrap(state.auditTime)));
        state.auditEnd = state.auditEnd.later(current).plus(audits);
    }

    /// @dev Count in range and signed by the trainer.
    /// @return last the count of the final head
    /// @return digest what the trainer signed
    function _checkHead(JobState storage state, Head memory head, bytes calldata signature)
        internal
        view
        returns (uint64 last, bytes32 digest)
    {
        last = Segments.checkpoints(state);
        if (head.count == 0 || head.count > last) revert HeadOutOfRange(head.count, last);
        digest = Signatures.digest(Signatures.hashHead(head));
        Signatures.check(digest, signature, state.trainer);
    }

    // ---------------------------------------------------------------- inner workings

    /// @dev Client gets the reward back; prover, other challengers and seats half of the stake; the rest burns.
    function _slash(JobId jobId, address prover) private {
        JobState storage state = _jobs[jobId];
        // SAFETY: the status changes once, so a stake is shared out once; other games of the job are reclaimed, not won.
        _end(state, JobStatus.SLASHED);
        uint256 half = state.trainerStake / 2;
        uint256 toProver = _share(state);
        if (state.seats != 0) _fund(jobId, half - toProver);
        uint256 overtaken = state.openGames;
        if (overtaken != 0) toProver -= overtaken * _relief(state);
        emit JobSlashed(jobId, prover, toProver, state.trainerStake - half);
        _credit(state.client, state.reward);
        _credit(prover, toProver);
    }

    /// @dev The status changes for the last time. Seats can be claimed for a window from now on.
    function _end(JobState storage state, JobStatus status) private {
        state.status = status;
        if (state.seats != 0) state.lastProgress = currentInstant();
    }

    function _checkJob(Job calldata job_) private pure {
        _require("client", uint160(job_.client), 1, type(uint160).max);
        _require("trainer", uint160(job_.trainer), 1, type(uint160).max);
        _require("bodyCount", job_.bodyCount, 1, MAX_ENTRIES);
        _require("stateCount", job_.stateCount, 1, MAX_ENTRIES);
        _require("dataCount", job_.dataCount, 0, MAX_ENTRIES);
        _require("steps", job_.steps, 1, type(uint64).max);
        _require("checkpointInterval", job_.checkpointInterval, 1, job_.steps);
        _require("policy", job_.policy, 0, LOGGED);
        _require("precision", job_.precision, MIN_PRECISION, MAX_PRECISION);
        // A byte for each of three kinds of sums, and a bit; none of policy `exact`, whose trainers cannot part.
        _require("tolerances", job_.tolerances, 0, job_.policy == LOGGED ? FINITE_LOSSES | type(uint24).max : 0);
        for (uint256 rest = uint24(job_.tolerances); rest != 0; rest >>= 8) {
            uint256 n = rest & 0xff;
            if (n != 0) _require("tolerances", n, MIN_TOLERANCE, MAX_TOLERANCE);
        }
        _require("reward", job_.reward, 0, MAX_AMOUNT);
        _require("trainerStake", job_.trainerStake, 0, MAX_AMOUNT);
        // SAFETY: a challenge that costs nothing would delay every job.
        _require("challengerStake", job_.challengerStake, 1, MAX_AMOUNT);
        _require("challengeWindow", job_.challengeWindow, 1, MAX_SECONDS);
        _require("clock", job_.clock, 1, MAX_GAME_SECONDS);
        // SAFETY: two clocks, the wait for a proof, which is one more, and six allowances after the talk, every game is over
        // (invariant 12 of the game), also when as many are open at once as may be.
        uint256 replays = 6 * MAX_GAMES * uint256(job_.replayTime);
        _require("gameTime", uint256(job_.talkTime) + 3 * uint256(job_.clock) + replays, 0, MAX_GAME_SECONDS);
        // SAFETY: all segments together, so that a final head at once holds no money for longer.
        uint256 audits = uint256(Segments.checkpoints(job_.steps, job_.checkpointInterval)) * job_.auditTime;
        _require("auditTime", audits, 0, MAX_SECONDS);
        _require("deadline", job_.deadline, 1, MAX_SECONDS);
        bool seated = job_.seats != 0;
        // Policy `logged` has no receipts of audits: what an auditor computes there depends on the trainer's log.
        _require("seats", job_.seats, 0, job_.policy == LOGGED ? 0 : MAX_SEATS);
        _require("seatFee", job_.seatFee, 0, seated ? MAX_AMOUNT : 0);
        _require("seatBond", job_.seatBond, 0, seated ? MAX_AMOUNT : 0);
        if (seated && !_isPool(job_.seatBond)) revert InvalidJob("seatBond", job_.seatBond);
        _require("descentLevels", job_.descentLevels, 1, MAX_DESCENT_LEVELS);
        // SAFETY: a trainer that fills its job with games of its own, so that nobody else can challenge, burns half of
        // 2^MAX_GAMES - 1 stakes: twice what that can win or keep for it.
        uint256 worth = job_.reward + job_.trainerStake + job_.seats * (job_.seatFee + job_.seatBond);
        _require("worth", worth, 0, MAX_WORTH * job_.challengerStake);
    }

    function _require(string memory field, uint256 value, uint256 low, uint256 high) private pure {
        if (value < low || value > high) revert InvalidJob(field, value);
    }

    function _store(JobState storage state, Job calldata job_) private {
        state.client = job_.client;
        // The casts here cannot truncate: `_checkJob` has bounded every field.
        state.bodyCount = uint24(job_.bodyCount);
        state.stateCount = uint24(job_.stateCount);
        state.dataCount = job_.dataCount;
        state.tolerances = job_.tolerances;
        state.trainer = job_.trainer;
        state.status = JobStatus.OFFERED;
        state.descentLevels = job_.descentLevels;
        state.precision = job_.precision;
        state.policy = job_.policy;
        uint256 bodyDepth = Trees.depthOf(job_.bodyCount);
        uint256 stateDepth = Trees.depthOf(job_.stateCount);
        state.depth = uint8(bodyDepth > stateDepth ? bodyDepth : stateDepth);
        state.programRoot = job_.programRoot;
        state.initialStateRoot = job_.initialStateRoot;
        state.dataRoot = job_.dataRoot;
        state.steps = job_.steps;
        state.checkpointInterval = job_.checkpointInterval;
        state.challengeWindow = Duration.wrap(uint40(job_.challengeWindow));
        state.clock = Duration.wrap(uint40(job_.clock));
        state.replayTime = Duration.wrap(uint40(job_.replayTime));
        state.talkTime = Duration.wrap(uint40(job_.talkTime));
        state.auditTime = Duration.wrap(uint40(job_.auditTime));
        state.deadline = Duration.wrap(uint40(job_.deadline));
        state.reward = uint128(job_.reward);
        state.trainerStake = uint128(job_.trainerStake);
        state.challengerStake = uint128(job_.challengerStake);
        state.lastProgress = currentInstant();
        if (job_.seats == 0) return;
        state.seats = job_.seats;
        (state.seatFee, state.seatBond) = (uint128(job_.seatFee), uint128(job_.seatBond));
    }

    function _requireCaller(address expected) internal view {
        if (msg.sender != expected) revert WrongCaller(expected, msg.sender);
    }

    function _requirePayment(uint256 expected) internal view {
        if (msg.value != expected) revert WrongPayment(expected, msg.value);
    }

    function _checkOpened(JobId jobId, uint64 position, OpenedHead calldata opened) private view {
        Head memory head = Head(jobId, opened.count, opened.runRoot);
        _checkRecord(_jobs[jobId], head, opened.signature, position, opened.leaf, opened.siblings);
    }

    /// @dev Position below the count, and the leaf under a head that the trainer signed.
    function _checkRecord(
        JobState storage state,
        Head memory head,
        bytes calldata signature,
        uint64 position,
        bytes32 leaf,
        bytes32[] calldata siblings
    ) private view {
        if (position >= head.count) revert NoRecord(position, head.count);
        (uint64 last,) = _checkHead(state, head, signature);
        Trees.verify(head.runRoot, Trees.depthOf(last), position, leaf, siblings);
    }

    /// @dev The last instant at which a game may start.
    function _windowEnd(JobState storage state) internal view returns (Instant) {
        return state.lastProgress.plus(state.challengeWindow).later(state.auditEnd);
    }

    function _requireOver(Instant end) internal view {
        if (!currentInstant().isAfter(end)) revert WindowOpen(end, currentInstant());
    }

    /// @dev The window is still open.
    function _requireWindow(JobState storage state) internal view {
        _requireUntil(_windowEnd(state));
    }

    function _requireUntil(Instant end) internal view {
        if (currentInstant().isAfter(end)) revert WindowClosed(end, currentInstant());
    }

    /// @dev By when the next head must be posted or sealed.
    function _headDue(JobState storage state) internal view returns (Instant) {
        // SAFETY: a head for each window does not hold the reward for ever.
        return state.lastProgress.plus(state.challengeWindow).earlier(state.accepted.plus(state.deadline));
    }

    /// @dev By when the final head must be opened that is sealed.
    function _openingDue(JobState storage state) internal view returns (Instant) {
        return _windowEnd(state).plus(state.challengeWindow);
    }

    /// @dev After this anybody may abandon the job.
    function _due(JobId jobId) private view returns (Instant) {
        JobState storage state = _jobs[jobId];
        if (state.headCount != Segments.checkpoints(state)) return _headDue(state);
        if (!_isSealed(jobId)) revert FinalHeadPosted();
        return _openingDue(state);
    }

    /// @return what the client pays for seats beside the reward
    function _fees(JobState storage state) private view returns (uint256) {
        return uint256(state.seats) * state.seatFee;
    }

    function _requireNoGames(JobState storage state) internal view {
        if (state.openGames != 0) revert OpenGames(state.openGames);
    }
}
