// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Segments} from "../game/Segments.sol";
import {Duration, Instant, currentInstant} from "../game/Time.sol";
import {JobId} from "../interfaces/IJobBoard.sol";
import {ISeats} from "../interfaces/ISeats.sol";
import {Tags} from "../libraries/Tags.sol";
import {JobBoard} from "./JobBoard.sol";
import {Signatures} from "./Signatures.sol";

/// @title Seats
/// @notice See `ISeats`, which is the specification.
abstract contract Seats is JobBoard, ISeats {
    /// SAFETY: else capital for two blocks would fill the pool.
    Duration internal constant POOL_TIME = Duration.wrap(1 << 21);
    /// Slots that are looked at for one seat: bounds the gas. With h of the slots empty, a seat is with a chance of h^32.
    uint256 internal constant ATTEMPTS = 32;

    mapping(JobId => Seating) private _seatings;
    mapping(JobId => mapping(uint8 => bytes32)) private _rootSeals;
    mapping(uint256 => Slot[]) private _pools;

    // ---------------------------------------------------------------- pools

    /// @inheritdoc ISeats
    function joinPool(uint32 slot) external payable {
        if (!_isPool(msg.value)) revert NoSuchPool(msg.value);
        Slot[] storage pool = _pools[msg.value];
        if (slot == pool.length) pool.push();
        if (slot >= pool.length || pool[slot].owner != address(0)) revert SlotNotFree(msg.value, slot);
        pool[slot] = Slot(msg.sender, currentInstant());
        emit PoolJoined(msg.value, slot, msg.sender);
    }

    /// @inheritdoc ISeats
    function leavePool(uint256 bond, uint32 slot) external {
        Slot[] storage pool = _pools[bond];
        _requireCaller(slot < pool.length ? pool[slot].owner : address(0));
        _requireOver(pool[slot].since.plus(POOL_TIME));
        delete pool[slot];
        emit PoolLeft(bond, slot, msg.sender);
        _credit(msg.sender, bond);
    }

    // ---------------------------------------------------------------- the life of a job with seats

    /// @inheritdoc ISeats
    function sealHead(JobId jobId, uint64 count, bytes32 headSeal) external onlyStatus(jobId, JobStatus.ACTIVE) {
        JobState storage state = _jobs[jobId];
        _requireCaller(state.trainer);
        if (state.seats == 0) revert NoSeats(jobId);
        if (headSeal == 0) revert EmptySeal();
        uint64 last = Segments.checkpoints(state);
        if (count > last) revert HeadOutOfRange(count, last);
        // Nobody audits before the draw, which brings the audit time of all segments.
        _advance(state, count);
        _progress(state, 0);
        emit HeadSealed(jobId, count, headSeal, count == last);
        if (count != last) return;
        _requireOver(_joiningEnd(state));
        Seating storage seats = _seatings[jobId];
        seats.headSeal = headSeal;
        seats.seed = bytes32(block.prevrandao);
        seats.sealedAt = currentInstant();
        seats.poolLength = poolLength(state.seatBond);
    }

    /// @inheritdoc ISeats
    function drawSeats(Job calldata job_, bytes32 secret) external {
        JobId jobId = Signatures.hashJob(job_);
        _requireStatus(jobId, JobStatus.ACTIVE);
        JobState storage state = _jobs[jobId];
        Seating storage seats = _sealed(jobId);
        if (seats.isDrawn) revert AlreadyDrawn(jobId);
        _requireWindow(state);
        bytes32 hash = _hash(abi.encodePacked(Tags.SECRET, secret));
        if (hash != bytes32(job_.nonce)) revert WrongSecret(bytes32(job_.nonce), hash);
        seats.seed = _hash(abi.encodePacked(Tags.SEED, jobId, seats.seed, secret));
        seats.isDrawn = true;
        // SAFETY: however late the client draws, the auditors get the time of a whole replay.
        _progress(state, state.headCount);
        emit SeatsDrawn(jobId, seats.seed);
    }

    /// @inheritdoc ISeats
    function sealRoot(JobId jobId, uint8 seat, bytes32 rootSeal) external payable onlyStatus(jobId, JobStatus.ACTIVE) {
        JobState storage state = _jobs[jobId];
        Seating storage seats = _sealed(jobId);
        _requirePayment(state.seatBond);
        // SAFETY: an empty seat, and one that is not drawn, has no owner: nobody sends from address zero.
        _requireCaller(seatOwner(jobId, seat));
        if (rootSeal == 0) revert EmptySeal();
        if (_rootSeals[jobId][seat] != 0) revert AlreadySealed(jobId, seat);
        // SAFETY: nobody may seal a root that it has read from an opened head.
        _requireWindow(state);
        _rootSeals[jobId][seat] = rootSeal;
        seats.pot += state.seatBond;
        emit RootSealed(jobId, seat, msg.sender, rootSeal);
    }

    /// @inheritdoc ISeats
    function openHead(Head calldata head, bytes calldata signature, bytes32 salt)
        external
        onlyStatus(head.jobId, JobStatus.ACTIVE)
    {
        JobState storage state = _jobs[head.jobId];
        Seating storage seats = _sealed(head.jobId);
        (uint64 last,) = _checkHead(state, head, signature);
        // SAFETY: the seal could be one of a smaller head.
        if (head.count != last) revert FinalHeadMissing(head.count, last);
        bytes32 opened = _hash(abi.encodePacked(Tags.HEAD_SEAL, head.jobId, head.count, head.runRoot, salt));
        if (opened != seats.headSeal) revert WrongSealOpened(seats.headSeal, opened);
        _requireOver(_windowEnd(state));
        _requireUntil(_openingDue(state));
        delete seats.headSeal;
        state.headRoot = head.runRoot;
        state.lastProgress = currentInstant();
        emit HeadPosted(head.jobId, last, head.runRoot, true);
    }

    /// @inheritdoc ISeats
    function claimSeat(JobId jobId, uint8 seat, address auditor, bytes32 runRoot, bytes32 salt) external {
        JobState storage state = _jobs[jobId];
        Seating storage seats = _seatings[jobId];
        _requireUntil(_claimEnd(jobId));
        bytes32 opened = _hash(abi.encodePacked(Tags.ROOT_SEAL, jobId, auditor, runRoot, salt));
        bytes32 rootSeal = _rootSeals[jobId][seat];
        if (opened != rootSeal) revert WrongSealOpened(rootSeal, opened);
        delete _rootSeals[jobId][seat];
        bool isSettled = state.status == JobStatus.SETTLED;
        bool agrees = seats.headSeal == 0 && runRoot == state.headRoot;
        if (isSettled && !agrees) revert WrongRoot(state.headRoot, runRoot);
        uint256 amount = state.seatBond;
        if (agrees == isSettled) {
            seats.paid += 1;
            amount += state.seatFee;
            if (state.status == JobStatus.SLASHED) amount += _share(state);
        }
        _pay(seats, amount);
        emit SeatClaimed(jobId, seat, auditor, amount);
        _credit(auditor, amount);
    }

    /// @inheritdoc ISeats
    function closeSeats(JobId jobId) external {
        JobState storage state = _jobs[jobId];
        Seating storage seats = _seatings[jobId];
        _requireOver(_claimEnd(jobId));
        uint256 left = seats.pot;
        // SAFETY: the rest is shared out once.
        if (left == 0) revert PotEmpty(jobId);
        // SAFETY: a client that never drew would have its fees back, and deter nobody: they burn.
        bool isWasted = state.status == JobStatus.SETTLED && !seats.isDrawn;
        uint256 toClient = isWasted ? 0 : uint256(state.seats - seats.paid) * state.seatFee;
        _pay(seats, left);
        emit SeatsClosed(jobId, toClient, left - toClient);
        _credit(state.client, toClient);
    }

    // ---------------------------------------------------------------- views

    /// @inheritdoc ISeats
    function seatOwner(JobId jobId, uint8 seat) public view returns (address) {
        JobState storage state = _jobs[jobId];
        Seating storage seats = _seatings[jobId];
        if (!seats.isDrawn || seat >= state.seats || seats.poolLength == 0) return address(0);
        Slot[] storage pool = _pools[state.seatBond];
        for (uint256 attempt = 0; attempt < ATTEMPTS; ++attempt) {
            bytes32 drawn = _hash(abi.encodePacked(Tags.SEAT, seats.seed, seat, uint8(attempt)));
            Slot storage slot = pool[uint256(drawn) % seats.poolLength];
            if (slot.owner != address(0) && seats.sealedAt.isAfter(slot.since)) return slot.owner;
        }
        return address(0);
    }

    /// @inheritdoc ISeats
    function seating(JobId jobId) external view returns (Seating memory) {
        return _seatings[jobId];
    }

    /// @inheritdoc ISeats
    function rootSealOf(JobId jobId, uint8 seat) external view returns (bytes32) {
        return _rootSeals[jobId][seat];
    }

    /// @inheritdoc ISeats
    function poolLength(uint256 bond) public view returns (uint32) {
        // A slot costs 40,000 gas: 2^32 of them do not fit into the blocks of a century.
        // forge-lint: disable-next-line(unsafe-typecast)
        return uint32(_pools[bond].length);
    }

    /// @inheritdoc ISeats
    function poolSlot(uint256 bond, uint32 slot) public view returns (Slot memory found) {
        if (slot < _pools[bond].length) found = _pools[bond][slot];
    }

    // ---------------------------------------------------------------- for the board

    /// @inheritdoc JobBoard
    function _isSealed(JobId jobId) internal view override returns (bool) {
        return _seatings[jobId].headSeal != 0;
    }

    /// @inheritdoc JobBoard
    function _fund(JobId jobId, uint256 amount) internal override {
        // The casts here cannot truncate: fees and bonds are 32 amounts below 2^128 at most.
        // forge-lint: disable-next-line(unsafe-typecast)
        _seatings[jobId].pot += uint160(amount);
    }

    // ---------------------------------------------------------------- inner workings

    function _hash(bytes memory preimage) private pure returns (bytes32) {
        return sha256(preimage);
    }

    function _pay(Seating storage seats, uint256 amount) private {
        // forge-lint: disable-next-line(unsafe-typecast)
        seats.pot -= uint160(amount);
    }

    /// @dev The seats of a job whose final head is sealed, and not opened.
    function _sealed(JobId jobId) private view returns (Seating storage seats) {
        seats = _seatings[jobId];
        if (seats.headSeal == 0) revert NotSealed(jobId);
    }

    /// @dev Half of the time that a trainer has for its first head. Until then nobody is bound, whatever was computed before.
    /// SAFETY: auditors join the pool of a job that was accepted. Sealed at once, all its slots could be the trainer's own.
    function _joiningEnd(JobState storage state) private view returns (Instant) {
        uint40 window = Duration.unwrap(state.challengeWindow);
        uint40 deadline = Duration.unwrap(state.deadline);
        return state.accepted.plus(Duration.wrap((window < deadline ? window : deadline) / 2));
    }

    /// @dev Until when the seats of a job that has ended can be claimed.
    function _claimEnd(JobId jobId) private view returns (Instant) {
        JobState storage state = _jobs[jobId];
        JobStatus status = state.status;
        bool ended = status == JobStatus.SETTLED || status == JobStatus.SLASHED || status == JobStatus.ABANDONED;
        if (!ended) revert JobNotEnded(jobId, status);
        return state.lastProgress.plus(state.challengeWindow);
    }
}
