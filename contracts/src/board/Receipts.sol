// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Segments} from "../game/Segments.sol";
import {Instant} from "../game/Time.sol";
import {IJobBoard, JobId} from "../interfaces/IJobBoard.sol";
import {JobBoard} from "./JobBoard.sol";
import {Signatures} from "./Signatures.sol";

/// @title Jobs of policy `logged`: the client's receipts, and parting without one
/// @notice Without the trainer's rounding logs nobody can audit a run, and nobody can prove that logs were not sent. So
/// the client signs for the logs of each head, a job settles only with the receipt of its final head, and where no
/// receipt comes the two part: the trainer is paid for what was receipted, and neither can take the other's money.
abstract contract Receipts is JobBoard {
    /// @inheritdoc IJobBoard
    function acknowledge(Head calldata head, bytes calldata clientSignature)
        external
        onlyStatus(head.jobId, JobStatus.ACTIVE)
    {
        JobState storage state = _jobs[head.jobId];
        if (!_isLogged(state)) revert NotLogged();
        uint64 known = _receipts[head.jobId];
        if (head.count <= known) revert ReceiptNotAscending(known, head.count);
        // SAFETY: what a receipt pays for stands on the board, and so had a window in which to challenge it.
        if (head.count > state.headCount) revert HeadNotPosted(state.headCount, head.count);
        // SAFETY: a job settles with the receipt of the very head that is paid. Of earlier heads the roots are not stored,
        // and a receipt of another root harms only the client that signed it.
        if (head.count == state.headCount && head.runRoot != state.headRoot) {
            revert WrongReceipt(state.headRoot, head.runRoot);
        }
        Signatures.check(Signatures.digest(Signatures.hashReceipt(head)), clientSignature, state.client);
        // SAFETY: no window moves: a receipt that comes late must cost the trainer no time.
        _receipts[head.jobId] = head.count;
        emit ReceiptPosted(head.jobId, head.count, head.runRoot);
    }

    /// @inheritdoc IJobBoard
    function part(JobId jobId) external onlyStatus(jobId, JobStatus.ACTIVE) {
        JobState storage state = _jobs[jobId];
        if (!_isLogged(state)) revert NotLogged();
        bool isClient = msg.sender == state.client;
        if (!isClient && msg.sender != state.trainer) revert NotAParty(msg.sender);
        (uint64 count, uint64 last) = (_receipts[jobId], Segments.checkpoints(state));
        if (state.headCount == 0) {
            if (isClient || !_demandsFiniteLosses(state)) revert NoHeadPosted();
            // SAFETY: a client could offer a program whose first segment has a forbidden loss, for the trainer's stake. From
            // the next second on it can abandon the job.
            _requireUntil(_headDue(state));
        } else {
            if (count == last) revert ReceiptsComplete(last);
            Instant end = _windowEnd(state);
            // SAFETY: a head for each window does not hold the reward for ever. Not for the trainer: it would leave before
            // its receipted heads could be challenged.
            if (isClient && state.headCount != last) end = end.earlier(state.accepted.plus(state.deadline));
            _requireOver(end);
        }
        _requireNoGames(state);
        state.status = JobStatus.PARTED;
        uint256 earned = uint256(state.reward) * count / last;
        uint256 toTrainer = earned + state.trainerStake;
        emit JobParted(jobId, count, toTrainer, state.reward - earned);
        _credit(state.trainer, toTrainer);
        _credit(state.client, state.reward - earned);
    }

    /// @inheritdoc IJobBoard
    function receipts(JobId jobId) external view returns (uint64) {
        return _receipts[jobId];
    }

    /// @inheritdoc IJobBoard
    function receiptDigest(Head calldata head) external view returns (bytes32) {
        return Signatures.digest(Signatures.hashReceipt(head));
    }
}
