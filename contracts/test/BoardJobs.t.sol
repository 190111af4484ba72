// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Duration, Instant} from "../src/game/Time.sol";
import {Board} from "../src/board/Board.sol";
import {Games} from "../src/game/Games.sol";
import {GameId, IGame} from "../src/interfaces/IGame.sol";
import {IJobBoard, JobId} from "../src/interfaces/IJobBoard.sol";
import {IReferee} from "../src/interfaces/IReferee.sol";
import {ISeats} from "../src/interfaces/ISeats.sol";
import {BoardBase} from "./BoardBase.sol";
import {GameBase} from "./GameBase.sol";
import {GameTrees} from "./GameTrees.sol";

/// @dev Takes no wei.
contract Refuser {
    function pull(Board board, address payable to) external {
        board.withdraw(to);
    }
}

contract BoardJobsTest is BoardBase {
    bytes32 private constant ROOT = keccak256("run");

    // ---------------------------------------------------------------- offers

    function test_create_keeps_every_field() external {
        IJobBoard.Job memory job = _job(1);
        JobId jobId = _offer(job);
        IJobBoard.JobState memory state = board.job(jobId);
        require(state.client == client && state.trainer == trainer, "parties");
        require(state.status == IJobBoard.JobStatus.OFFERED, "status");
        _equal(job.bodyCount, state.bodyCount, "B");
        _equal(job.stateCount, state.stateCount, "S");
        _equal(job.dataCount, state.dataCount, "data");
        _equal(2, state.depth, "D");
        _equal(job.programRoot, state.programRoot, "program");
        _equal(job.initialStateRoot, state.initialStateRoot, "state");
        _equal(job.dataRoot, state.dataRoot, "data root");
        _equal(7, state.steps, "steps");
        _equal(3, state.checkpointInterval, "k");
        _equal(REWARD, state.reward, "reward");
        _equal(TRAINER_STAKE, state.trainerStake, "trainer stake");
        _equal(CHALLENGER_STAKE, state.challengerStake, "challenger stake");
        _equal(1, state.descentLevels, "r");
        _equal(PRECISION, state.precision, "b");
        _equal(0, state.policy, "policy");
        _equal(0, state.tolerances, "tolerances");
        _equal(WINDOW, Duration.unwrap(state.challengeWindow), "window");
        _equal(CLOCK, Duration.unwrap(state.clock), "clock");
        _equal(CLOCK, Duration.unwrap(board.clock(jobId)), "clock alone");
        _equal(REPLAY, Duration.unwrap(state.replayTime), "replay time");
        _equal(TALK, Duration.unwrap(state.talkTime), "talk time");
        _equal(AUDIT, Duration.unwrap(state.auditTime), "audit time");
        _equal(DEADLINE, Duration.unwrap(state.deadline), "deadline");
        _equal(0, state.seats, "seats");
        _equal(0, state.seatFee, "seat fee");
        _equal(0, state.seatBond, "seat bond");
        _equal(3, board.checkpoints(jobId), "checkpoints");
        _equal(REWARD, address(board).balance, "escrow");
    }

    function test_the_depth_is_that_of_the_larger_half() external {
        IJobBoard.Job memory job = _job(1);
        job.stateCount = 9;
        _equal(4, board.job(_offer(job)).depth, "D by S");
        job.stateCount = 1;
        job.bodyCount = 1;
        _equal(0, board.job(_offer(job)).depth, "D of one instruction");
    }

    function test_create_refuses_each_broken_field() external {
        IJobBoard.Job memory job = _job(1);
        job.client = address(0);
        job = _refused(job, "client", 0);
        job.trainer = address(0);
        job = _refused(job, "trainer", 0);
        job.bodyCount = 0;
        _refused(job, "bodyCount", 0);
        job.bodyCount = (1 << 20) + 1;
        job = _refused(job, "bodyCount", (1 << 20) + 1);
        job.stateCount = 0;
        job = _refused(job, "stateCount", 0);
        job.dataCount = (1 << 20) + 1;
        job = _refused(job, "dataCount", (1 << 20) + 1);
        job.steps = 0;
        job = _refused(job, "steps", 0);
        job.checkpointInterval = 8;
        _refused(job, "checkpointInterval", 8);
        job.checkpointInterval = 0;
        job = _refused(job, "checkpointInterval", 0);
        job.policy = 2;
        job = _refused(job, "policy", 2);
        job.precision = 15;
        _refused(job, "precision", 15);
        job.precision = 33;
        job = _refused(job, "precision", 33);
        job.descentLevels = 0;
        _refused(job, "descentLevels", 0);
        job.descentLevels = 6;
        _refused(job, "descentLevels", 6);
    }

    function test_tolerances_are_none_or_2_to_64_for_each_of_three_kinds() external {
        IJobBoard.Job memory job = _job(1);
        job.tolerances = 20;
        _refused(job, "tolerances", 20); // policy `exact` follows no log
        job.policy = 1;
        for (uint256 kind = 0; kind < 3; ++kind) {
            uint16[3] memory wrong = [uint16(1), 65, 255];
            for (uint256 i = 0; i < 3; ++i) {
                job.tolerances = uint32(uint256(wrong[i]) << 8 * kind);
                _refused(job, "tolerances", wrong[i]);
            }
        }
        job.tolerances = 1 << 25;
        _refused(job, "tolerances", 1 << 25);
        job.tolerances = FINITE_LOSSES | 1 << 16;
        _refused(job, "tolerances", 1);
        (job.tolerances, job.policy) = (FINITE_LOSSES, 0);
        _refused(job, "tolerances", FINITE_LOSSES); // a trainer whose run diverges could not part
        job.policy = 1;
        uint32[6] memory good =
            [uint32(0), 2, 64 << 16, 2 | 64 << 8 | 33 << 16, FINITE_LOSSES, FINITE_LOSSES | 2 | 64 << 8 | 33 << 16];
        for (uint256 i = 0; i < 6; ++i) {
            (job.tolerances, job.nonce, job.precision) = (good[i], 2 + i, 16);
            IJobBoard.JobState memory state = board.job(_offer(job));
            _equal(1, state.policy, "policy");
            _equal(good[i], state.tolerances, "tolerances");
            _equal(16, state.precision, "b");
        }
    }

    function test_create_refuses_amounts_and_times_out_of_range() external {
        IJobBoard.Job memory job = _job(1);
        job.reward = 1 << 128;
        job = _refused(job, "reward", 1 << 128);
        job.trainerStake = 1 << 128;
        job = _refused(job, "trainerStake", 1 << 128);
        job.challengerStake = 1 << 128;
        _refused(job, "challengerStake", 1 << 128);
        job.challengerStake = 0;
        job = _refused(job, "challengerStake", 0);
        job.challengeWindow = 0;
        _refused(job, "challengeWindow", 0);
        job.challengeWindow = (1 << 28) + 1;
        job = _refused(job, "challengeWindow", (1 << 28) + 1);
        job.auditTime = 89_478_486; // three segments: above 2^28
        _refused(job, "auditTime", 3 * uint256(job.auditTime));
        job.auditTime -= 1;
        _offer(job);
        job = _job(1);
        job.deadline = 0;
        _refused(job, "deadline", 0);
        job.deadline = (1 << 28) + 1;
        job = _refused(job, "deadline", (1 << 28) + 1);
        job.clock = 0;
        _refused(job, "clock", 0);
        job.clock = (1 << 25) + 1;
        _refused(job, "clock", (1 << 25) + 1);
    }

    function test_create_refuses_seats_without_a_bond_or_of_policy_logged() external {
        IJobBoard.Job memory job = _job(1);
        (job.seats, job.seatBond) = (17, 1);
        _refused(job, "seats", 17);
        (job.seats, job.seatBond) = (16, 0);
        _refused(job, "seatBond", 0);
        job.seatBond = 3 << 120;
        _refused(job, "seatBond", 3 << 120);
        (job.seatFee, job.seatBond) = (1 << 128, 1);
        _refused(job, "seatFee", 1 << 128);
        (job.seatFee, job.policy) = (0, 1);
        _refused(job, "seats", 16);
        (job.policy, job.seats, job.seatFee, job.seatBond) = (0, 0, 1, 0);
        _refused(job, "seatFee", 1);
        (job.seatFee, job.seatBond) = (0, 1);
        _refused(job, "seatBond", 1);
    }

    function test_create_refuses_a_game_of_more_than_a_year() external {
        IJobBoard.Job memory job = _job(1);
        (job.talkTime, job.clock, job.replayTime) = (5, 1 << 22, 1 << 17);
        uint256 length = 5 + 3 * uint256(job.clock) + 96 * uint256(job.replayTime);
        job.talkTime += uint64((1 << 25) - length);
        _offer(job);
        job.talkTime += 1;
        _refused(job, "gameTime", (1 << 25) + 1);
        job = _job(2);
        job.talkTime = type(uint64).max;
        _refused(job, "gameTime", uint256(type(uint64).max) + 3 * CLOCK + 96 * REPLAY);
        job.talkTime = 0;
        job.replayTime = type(uint64).max;
        _refused(job, "gameTime", 96 * uint256(type(uint64).max) + 3 * CLOCK);
    }

    function test_create_refuses_a_cap_of_games_that_is_cheap_to_fill() external {
        IJobBoard.Job memory job = _job(1);
        (job.reward, job.trainerStake, job.challengerStake) = (8, 12, 3);
        (job.seats, job.seatFee, job.seatBond) = (4, (1 << 13) - 5, 1 << 12);
        _offer(job);
        job.reward += 1;
        _refused(job, "worth", (3 << 14) + 1);
    }

    function test_create_checks_caller_payment_signature_and_reuse() external {
        IJobBoard.Job memory job = _job(1);
        bytes memory signature = _jobSignature(job);
        _expect(abi.encodeWithSelector(IJobBoard.WrongCaller.selector, client, stranger));
        VM.prank(stranger);
        board.createJob{value: REWARD}(job, signature);
        _expect(abi.encodeWithSelector(IJobBoard.WrongPayment.selector, REWARD, REWARD - 1));
        VM.prank(client);
        board.createJob{value: REWARD - 1}(job, signature);
        bytes memory other = _signature(STRANGER_KEY, _typed(JobId.unwrap(board.hashJob(job))));
        _expect(abi.encodeWithSelector(IJobBoard.WrongSigner.selector, trainer, stranger));
        VM.prank(client);
        board.createJob{value: REWARD}(job, other);
        JobId jobId = _offer(job);
        _cancel(jobId);
        _expect(abi.encodeWithSelector(IJobBoard.JobExists.selector, jobId));
        VM.prank(client);
        board.createJob{value: REWARD}(job, signature);
    }

    function test_a_signature_counts_on_one_chain_only() external {
        IJobBoard.Job memory job = _job(1);
        bytes memory signature = _jobSignature(job);
        VM.chainId(99);
        (bool success, bytes memory reason) = _tryCreate(job, signature);
        require(!success && bytes4(reason) == IJobBoard.WrongSigner.selector, "accepted on another chain");
    }

    function test_malformed_signatures_are_refused() external {
        JobId jobId = _activeJob(1);
        IJobBoard.Head memory head = _head(jobId, 1, ROOT);
        (uint8 v, bytes32 r, bytes32 s) = VM.sign(TRAINER_KEY, board.headDigest(head));
        uint256 order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141;
        _refusedSignature(head, abi.encodePacked(r, s));
        _refusedSignature(head, abi.encodePacked(r, s, v, v));
        _refusedSignature(head, abi.encodePacked(r, s, uint8(v - 27)));
        _refusedSignature(head, abi.encodePacked(r, s, uint8(29)));
        // The other s of the same signature, which ecrecover itself would take.
        _refusedSignature(head, abi.encodePacked(r, order - uint256(s), uint8(v == 27 ? 28 : 27)));
        // No key: r is no point's coordinate.
        _refusedSignature(head, abi.encodePacked(bytes32(0), s, v));
        bytes memory foreign = _signature(CLIENT_KEY, board.headDigest(head));
        _expect(abi.encodeWithSelector(IJobBoard.WrongSigner.selector, trainer, client));
        board.postHead(head, foreign);
        board.postHead(head, abi.encodePacked(r, s, v));
    }

    function test_cancel_returns_the_reward() external {
        JobId jobId = _offer(_job(1));
        _expect(abi.encodeWithSelector(IJobBoard.WrongCaller.selector, client, trainer));
        VM.prank(trainer);
        board.cancelJob(jobId);
        _cancel(jobId);
        _requireStatus(jobId, IJobBoard.JobStatus.CANCELLED);
        _equal(REWARD, board.credit(client), "credit");
        _expectStatus(jobId, IJobBoard.JobStatus.OFFERED, IJobBoard.JobStatus.CANCELLED);
        _cancel(jobId);
    }

    function test_accept_takes_exactly_the_stake_from_the_trainer_once() external {
        JobId jobId = _offer(_job(1));
        _expect(abi.encodeWithSelector(IJobBoard.WrongCaller.selector, trainer, stranger));
        VM.prank(stranger);
        board.acceptJob{value: TRAINER_STAKE}(jobId);
        _expect(abi.encodeWithSelector(IJobBoard.WrongPayment.selector, TRAINER_STAKE, TRAINER_STAKE + 1));
        VM.prank(trainer);
        board.acceptJob{value: TRAINER_STAKE + 1}(jobId);
        _accept(jobId);
        _requireStatus(jobId, IJobBoard.JobStatus.ACTIVE);
        _expectStatus(jobId, IJobBoard.JobStatus.OFFERED, IJobBoard.JobStatus.ACTIVE);
        _cancel(jobId);
        _expectStatus(jobId, IJobBoard.JobStatus.OFFERED, IJobBoard.JobStatus.ACTIVE);
        VM.prank(trainer);
        board.acceptJob{value: TRAINER_STAKE}(jobId);
    }

    // ---------------------------------------------------------------- heads

    function test_heads_ascend_and_stay_in_range() external {
        JobId jobId = _activeJob(1);
        _post(jobId, 2, ROOT);
        _equal(2, board.job(jobId).headCount, "count");
        _equal(ROOT, board.job(jobId).headRoot, "root");
        _refusedHead(_head(jobId, 2, ROOT), abi.encodeWithSelector(IJobBoard.HeadNotAscending.selector, 2, 2));
        _refusedHead(_head(jobId, 1, ROOT), abi.encodeWithSelector(IJobBoard.HeadNotAscending.selector, 2, 1));
        _refusedHead(_head(jobId, 0, ROOT), abi.encodeWithSelector(IJobBoard.HeadOutOfRange.selector, 0, 3));
        _refusedHead(_head(jobId, 4, ROOT), abi.encodeWithSelector(IJobBoard.HeadOutOfRange.selector, 4, 3));
        _post(jobId, 3, ROOT);
        _equal(3, board.job(jobId).headCount, "final count");
    }

    function test_a_head_of_no_or_an_offered_job_is_refused() external {
        JobId jobId = board.hashJob(_job(1));
        _refusedHead(_head(jobId, 1, ROOT), _status(jobId, IJobBoard.JobStatus.ACTIVE, IJobBoard.JobStatus.NONE));
        _offer(_job(1));
        _refusedHead(_head(jobId, 1, ROOT), _status(jobId, IJobBoard.JobStatus.ACTIVE, IJobBoard.JobStatus.OFFERED));
        _equal(0, board.checkpoints(JobId.wrap(keccak256("none"))), "checkpoints of no job");
    }

    // ---------------------------------------------------------------- the time for audits, and the deadline

    function test_each_segment_has_its_audit_time_however_late_it_is_posted() external {
        IJobBoard.Job memory job = _job(1);
        job.auditTime = 2 * WINDOW;
        JobId jobId = _offer(job);
        _warp(current + 50); // it counts from acceptance
        _accept(jobId);
        _equal(current, Instant.unwrap(board.job(jobId).auditEnd), "nothing to audit yet");
        _warp(current + WINDOW);
        _post(jobId, 1, ROOT);
        uint256 end = current + 2 * WINDOW;
        _equal(end, Instant.unwrap(board.job(jobId).auditEnd), "one segment");
        _warp(current + WINDOW);
        _post(jobId, 3, ROOT); // the first is still being audited
        end += 2 * 2 * WINDOW;
        _warp(end);
        uint256 before = VM.snapshotState();
        _challenge(jobId, 3, ROOT, 0);
        require(VM.revertToState(before), "back");
        _expect(abi.encodeWithSelector(IJobBoard.WindowOpen.selector, end, end));
        board.settle(jobId);
        _warp(end + 1);
        bytes memory signature = _headSignature(_head(jobId, 3, ROOT));
        _expect(abi.encodeWithSelector(IJobBoard.WindowClosed.selector, end, end + 1));
        VM.prank(challenger);
        board.challenge{value: CHALLENGER_STAKE}(_head(jobId, 3, ROOT), signature, 0);
        board.settle(jobId);
    }

    function test_unused_audit_time_is_not_kept_for_later_segments() external {
        IJobBoard.Job memory job = _job(1);
        job.auditTime = 10;
        JobId jobId = _offer(job);
        _accept(jobId);
        _post(jobId, 2, ROOT);
        _equal(START + 20, Instant.unwrap(board.job(jobId).auditEnd), "two segments");
        _warp(START + 20 + 7);
        _post(jobId, 3, ROOT);
        _equal(current + 10, Instant.unwrap(board.job(jobId).auditEnd), "one more, from now on");
        uint256 end = current + WINDOW; // longer than the audit
        _warp(end);
        _expect(abi.encodeWithSelector(IJobBoard.WindowOpen.selector, end, end));
        board.settle(jobId);
        _warp(end + 1);
        board.settle(jobId);
    }

    function test_heads_in_time_do_not_help_after_the_deadline() external {
        IJobBoard.Job memory job = _job(1);
        job.deadline = 2 * WINDOW + 7;
        JobId jobId = _offer(job);
        _warp(current + 50);
        _accept(jobId);
        uint256 due = current + 2 * WINDOW + 7;
        _warp(current + WINDOW);
        _post(jobId, 1, ROOT);
        _warp(current + WINDOW);
        _post(jobId, 2, ROOT);
        _warp(due);
        _expect(abi.encodeWithSelector(IJobBoard.WindowOpen.selector, due, due));
        _abandon(jobId);
        _warp(due + 1);
        _refusedHead(_head(jobId, 3, ROOT), abi.encodeWithSelector(IJobBoard.WindowClosed.selector, due, due + 1));
        _abandon(jobId);
        _requireStatus(jobId, IJobBoard.JobStatus.ABANDONED);
        _equal(REWARD + TRAINER_STAKE, board.credit(client), "all of it");
    }

    // ---------------------------------------------------------------- heads that contradict each other

    function _opened(JobId jobId, bytes32[] memory leaves, uint64 count, uint256 position)
        private
        view
        returns (IJobBoard.OpenedHead memory opened)
    {
        for (uint256 i = count; i < 3; ++i) {
            leaves[i] = GameTrees.empty();
        }
        bytes32 root = GameTrees.root(leaves);
        opened.count = count;
        opened.runRoot = root;
        opened.signature = _headSignature(_head(jobId, count, root));
        opened.leaf = leaves[position];
        opened.siblings = GameTrees.proof(leaves, position);
    }

    function _leaves(uint256 version) private pure returns (bytes32[] memory leaves) {
        leaves = new bytes32[](3);
        for (uint256 i = 0; i < 3; ++i) {
            leaves[i] = keccak256(abi.encode("record", i, i == 0 ? version : 0));
        }
    }

    function test_records_that_change_are_slashed() external {
        JobId jobId = _activeJob(1);
        IJobBoard.OpenedHead memory first = _opened(jobId, _leaves(0), 1, 0);
        IJobBoard.OpenedHead memory second = _opened(jobId, _leaves(1), 3, 0);
        VM.prank(stranger);
        board.reportInconsistency(jobId, 0, first, second);
        _requireStatus(jobId, IJobBoard.JobStatus.SLASHED);
        _equal(TRAINER_STAKE / 2, board.credit(stranger), "reporter");
        _equal(REWARD, board.credit(client), "client");
        _equal(TRAINER_STAKE - TRAINER_STAKE / 2, _burned(0), "burned");
        _expectStatus(jobId, IJobBoard.JobStatus.ACTIVE, IJobBoard.JobStatus.SLASHED);
        board.reportInconsistency(jobId, 0, first, second);
    }

    function test_what_is_no_contradiction_is_refused() external {
        JobId jobId = _activeJob(1);
        IJobBoard.OpenedHead memory first = _opened(jobId, _leaves(0), 1, 0);
        IJobBoard.OpenedHead memory second = _opened(jobId, _leaves(0), 3, 0);
        _expect(abi.encodeWithSelector(IJobBoard.NoInconsistency.selector, second.leaf));
        board.reportInconsistency(jobId, 0, first, second);
        // A growing run fills places that were empty: no change of a record.
        second = _opened(jobId, _leaves(0), 3, 1);
        IJobBoard.OpenedHead memory behind = _opened(jobId, _leaves(0), 1, 1);
        _expect(abi.encodeWithSelector(IJobBoard.NoRecord.selector, 1, 1));
        board.reportInconsistency(jobId, 1, second, behind);
        _expect(abi.encodeWithSelector(IJobBoard.NoRecord.selector, 1, 1));
        board.reportInconsistency(jobId, 1, behind, second);
    }

    function test_what_the_trainer_did_not_commit_to_is_refused() external {
        JobId jobId = _activeJob(1);
        IJobBoard.OpenedHead memory first = _opened(jobId, _leaves(0), 1, 0);
        IJobBoard.OpenedHead memory second = _opened(jobId, _leaves(1), 3, 0);
        bytes memory signature = second.signature;
        second.signature = _signature(CLIENT_KEY, board.headDigest(_head(jobId, 3, second.runRoot)));
        _expect(abi.encodeWithSelector(IJobBoard.WrongSigner.selector, trainer, client));
        board.reportInconsistency(jobId, 0, first, second);
        (second.signature, second.count) = (signature, 4);
        _expect(abi.encodeWithSelector(IJobBoard.HeadOutOfRange.selector, 4, 3));
        board.reportInconsistency(jobId, 0, first, second);
        second.count = 3;
        bytes32 leaf = second.leaf;
        second.leaf = keccak256("another");
        (bool success, bytes memory reason) = _tryReport(jobId, first, second);
        require(!success && bytes4(reason) == IReferee.WrongRoot.selector, "a leaf that is not there");
        second.leaf = leaf;
        second.siblings = new bytes32[](1);
        _expect(abi.encodeWithSelector(IReferee.WrongSiblingCount.selector, 2, 1));
        board.reportInconsistency(jobId, 0, first, second);
    }

    function _tryReport(JobId jobId, IJobBoard.OpenedHead memory first, IJobBoard.OpenedHead memory second)
        private
        returns (bool, bytes memory)
    {
        return address(board).call(abi.encodeCall(IJobBoard.reportInconsistency, (jobId, 0, first, second)));
    }

    // ---------------------------------------------------------------- losses that the job forbids

    uint32 private constant FINITE_LOSSES = 1 << 24;
    uint32 private constant NAN = 0x7fc00000;
    uint32 private constant INFINITY = 0x7f800000;

    struct LossReport {
        IJobBoard.Head head;
        bytes signature;
        uint64 position;
        bytes32 stateRoot;
        uint32 lossBits;
        bytes32 logRoot;
        bytes32[] siblings;
    }

    function _demanding(uint256 nonce, uint32 tolerances) private returns (JobId jobId) {
        IJobBoard.Job memory job = _job(nonce);
        (job.policy, job.tolerances) = (1, tolerances);
        jobId = _offer(job);
    }

    /// @dev Of the records of steps 3, 6 and 7, the one with these bits.
    function _lossReport(JobId jobId, uint64 position, uint32 lossBits) private view returns (LossReport memory r) {
        (r.position, r.stateRoot, r.lossBits) = (position, keccak256("state"), lossBits);
        r.logRoot = keccak256("log");
        uint64[3] memory steps = [uint64(3), 6, 7];
        bytes32[] memory leaves = new bytes32[](3);
        for (uint64 i = 0; i < 3; ++i) {
            uint32 bits = i == position ? lossBits : 0x40000000;
            leaves[i] = sha256(abi.encodePacked("tb.recrd", steps[i], r.stateRoot, bits, r.logRoot));
        }
        r.head = _head(jobId, 3, GameTrees.root(leaves));
        r.signature = _headSignature(r.head);
        r.siblings = GameTrees.proof(leaves, position);
    }

    function _report(LossReport memory r) private {
        VM.prank(stranger);
        board.reportLoss(r.head, r.signature, r.position, r.stateRoot, r.lossBits, r.logRoot, r.siblings);
    }

    function _refusedReport(LossReport memory r, bytes memory reason) private {
        VM.prank(stranger);
        _expect(reason);
        board.reportLoss(r.head, r.signature, r.position, r.stateRoot, r.lossBits, r.logRoot, r.siblings);
    }

    function _elsewhere(LossReport memory r) private {
        (bool success, bytes memory reason) = _tryLoss(r);
        require(!success && bytes4(reason) == IReferee.WrongRoot.selector, "a record that is not there");
    }

    /// @dev Every pattern, at every checkpoint.
    function testFuzz_every_loss_but_a_finite_one_is_slashed(uint32 bits, uint8 place) external {
        JobId jobId = _demanding(1, FINITE_LOSSES | 20);
        _accept(jobId);
        uint64 position = place % 3;
        uint32 finite = bits & 0x7f800000 == 0x7f800000 ? bits & ~uint32(0x00800000) : bits;
        _refusedReport(
            _lossReport(jobId, position, finite), abi.encodeWithSelector(IJobBoard.FiniteLoss.selector, finite)
        );
        LossReport memory r = _lossReport(jobId, position, bits | INFINITY);
        _report(r);
        _requireStatus(jobId, IJobBoard.JobStatus.SLASHED);
        _equal(TRAINER_STAKE / 2, board.credit(stranger), "reporter");
        _equal(REWARD, board.credit(client), "client");
        _equal(TRAINER_STAKE - TRAINER_STAKE / 2, _burned(0), "burned");
        _refusedReport(r, _wrongStatus(jobId, IJobBoard.JobStatus.SLASHED));
    }

    function test_a_loss_is_reported_in_an_active_job_that_forbids_it() external {
        JobId lax = _demanding(1, 20);
        _accept(lax);
        LossReport memory r = _lossReport(lax, 0, NAN);
        _refusedReport(r, abi.encodeWithSelector(IJobBoard.FiniteLossesNotDemanded.selector, lax));
        JobId jobId = _demanding(2, FINITE_LOSSES);
        r = _lossReport(jobId, 0, NAN);
        _refusedReport(r, _wrongStatus(jobId, IJobBoard.JobStatus.OFFERED));
        _refusedReport(
            _lossReport(JobId.wrap("none"), 0, NAN), _wrongStatus(JobId.wrap("none"), IJobBoard.JobStatus.NONE)
        );
        _accept(jobId);
        // Neither the window nor a game matters.
        _challenge(jobId, 3, r.head.runRoot, 1);
        _warp(START + 10 * WINDOW);
        _report(r);
        _requireStatus(jobId, IJobBoard.JobStatus.SLASHED);
        _equal(TRAINER_STAKE / 2 - RELIEF, board.credit(stranger), "reporter, less the relief");
    }

    /// @dev Else whoever offers a program whose first segment cannot be signed would be paid the stake.
    function test_a_trainer_parts_before_its_first_head_where_losses_are_forbidden() external {
        JobId lax = _demanding(1, 20);
        _accept(lax);
        JobId jobId = _demanding(2, FINITE_LOSSES);
        _accept(jobId);
        uint256 due = START + WINDOW;
        for (uint256 instant = due; instant <= due + 1; ++instant) {
            _warp(instant);
            _refusedPart(client, jobId, abi.encodeWithSelector(IJobBoard.NoHeadPosted.selector));
            _refusedPart(trainer, lax, abi.encodeWithSelector(IJobBoard.NoHeadPosted.selector));
        }
        _refusedPart(trainer, jobId, abi.encodeWithSelector(IJobBoard.WindowClosed.selector, due, due + 1));
        _warp(due);
        _expect(abi.encodeWithSelector(IJobBoard.WindowOpen.selector, due, due));
        _abandon(jobId);
        VM.prank(trainer);
        board.part(jobId);
        _requireStatus(jobId, IJobBoard.JobStatus.PARTED);
        _equal(TRAINER_STAKE, board.credit(trainer), "trainer");
        _equal(REWARD, board.credit(client), "client");
        _equal(0, _burned(REWARD + TRAINER_STAKE), "nothing burned, and the other job holds its own");
    }

    function _refusedPart(address who, JobId jobId, bytes memory reason) private {
        VM.prank(who);
        _expect(reason);
        board.part(jobId);
    }

    function test_a_settled_job_has_no_losses_to_report() external {
        JobId jobId = _demanding(1, FINITE_LOSSES);
        _accept(jobId);
        LossReport memory r = _lossReport(jobId, 2, NAN);
        board.postHead(r.head, r.signature);
        board.acknowledge(r.head, _signature(CLIENT_KEY, board.receiptDigest(r.head)));
        _warp(START + WINDOW + 1);
        board.settle(jobId);
        _refusedReport(r, _wrongStatus(jobId, IJobBoard.JobStatus.SETTLED));
    }

    function test_a_loss_that_the_trainer_did_not_sign_is_refused() external {
        JobId jobId = _demanding(1, FINITE_LOSSES);
        _accept(jobId);
        LossReport memory r = _lossReport(jobId, 1, NAN);
        for (uint64 other = 0; other < 3; other += 2) {
            r.position = other;
            _elsewhere(r);
        }
        for (uint64 behind = 3; behind != 0; behind = behind == 3 ? type(uint64).max : 0) {
            r.position = behind;
            _refusedReport(r, abi.encodeWithSelector(IJobBoard.NoRecord.selector, behind, 3));
        }
        (r.position, r.lossBits) = (1, INFINITY);
        _elsewhere(r);
        (r.lossBits, r.stateRoot) = (NAN, 0);
        _elsewhere(r);
        (r.stateRoot, r.logRoot) = (keccak256("state"), 0);
        _elsewhere(r);
        r.logRoot = keccak256("log");
        r.siblings = new bytes32[](1);
        _refusedReport(r, abi.encodeWithSelector(IReferee.WrongSiblingCount.selector, 2, 1));
        r = _lossReport(jobId, 1, NAN);
        r.signature = _signature(CLIENT_KEY, board.headDigest(r.head));
        _refusedReport(r, abi.encodeWithSelector(IJobBoard.WrongSigner.selector, trainer, client));
        // Nor is a concession of a head its head, or the head of another job this one's.
        r.signature = _concession(TRAINER_KEY, r.head, stranger);
        (bool success,) = _tryLoss(r);
        require(!success, "a concession");
        JobId another = _demanding(2, FINITE_LOSSES);
        LossReport memory theirs = _lossReport(another, 1, NAN);
        (r.head.runRoot, r.signature) = (theirs.head.runRoot, theirs.signature);
        (success,) = _tryLoss(r);
        require(!success, "of another job");
        r = _lossReport(jobId, 1, NAN);
        r.head.count = 4;
        _refusedReport(r, abi.encodeWithSelector(IJobBoard.HeadOutOfRange.selector, 4, 3));
        _report(_lossReport(jobId, 1, NAN));
    }

    function _tryLoss(LossReport memory r) private returns (bool, bytes memory) {
        return address(board)
            .call(
                abi.encodeCall(
                    IJobBoard.reportLoss,
                    (r.head, r.signature, r.position, r.stateRoot, r.lossBits, r.logRoot, r.siblings)
                )
            );
    }

    function _wrongStatus(JobId jobId, IJobBoard.JobStatus actual) private pure returns (bytes memory) {
        return abi.encodeWithSelector(IJobBoard.WrongJobStatus.selector, jobId, IJobBoard.JobStatus.ACTIVE, actual);
    }

    // ---------------------------------------------------------------- settlement

    function test_settle_pays_the_trainer_one_second_after_the_window() external {
        JobId jobId = _activeJob(1);
        _post(jobId, 3, ROOT);
        uint256 end = START + WINDOW;
        for (uint256 instant = end - 1; instant <= end; ++instant) {
            _warp(instant);
            _expect(abi.encodeWithSelector(IJobBoard.WindowOpen.selector, end, instant));
            board.settle(jobId);
        }
        _warp(end + 1);
        _expect(abi.encodeWithSelector(IJobBoard.FinalHeadPosted.selector));
        _abandon(jobId);
        board.settle(jobId);
        _requireStatus(jobId, IJobBoard.JobStatus.SETTLED);
        _equal(REWARD + TRAINER_STAKE, board.credit(trainer), "trainer");
        _expectStatus(jobId, IJobBoard.JobStatus.ACTIVE, IJobBoard.JobStatus.SETTLED);
        board.settle(jobId);
        (bytes memory first, bytes memory second) =
            (_headSignature(_head(jobId, 2, ROOT)), _headSignature(_head(jobId, 2, 0)));
        _expectStatus(jobId, IJobBoard.JobStatus.ACTIVE, IJobBoard.JobStatus.SETTLED);
        board.reportEquivocation(jobId, 2, ROOT, first, 0, second);
    }

    function test_settle_needs_the_final_head_and_no_open_game() external {
        JobId jobId = _activeJob(1);
        _post(jobId, 2, ROOT);
        _warp(START + WINDOW);
        _expect(abi.encodeWithSelector(IJobBoard.FinalHeadMissing.selector, 2, 3));
        board.settle(jobId);
        _post(jobId, 3, ROOT);
        GameId gameId = _challenge(jobId, 3, ROOT, 0);
        _warp(current + WINDOW + 1);
        _expect(abi.encodeWithSelector(IJobBoard.OpenGames.selector, 1));
        board.settle(jobId);
        // The defender has let its clock run out.
        games.timeout(gameId);
        _requireStatus(jobId, IJobBoard.JobStatus.SLASHED);
    }

    function test_challenge_is_legal_until_the_window_ends() external {
        JobId jobId = _activeJob(1);
        _warp(START + WINDOW + 1);
        IJobBoard.Head memory early = _head(jobId, 1, ROOT);
        bytes memory earlySignature = _headSignature(early);
        // Without progress no game starts: a trainer cannot hold up `abandon` by challenging itself.
        _expect(abi.encodeWithSelector(IJobBoard.WindowClosed.selector, START + WINDOW, START + WINDOW + 1));
        VM.prank(challenger);
        board.challenge{value: CHALLENGER_STAKE}(early, earlySignature, 0);
        _warp(START + WINDOW);
        _post(jobId, 3, ROOT); // each head opens the window again, for every signed head
        _challenge(jobId, 1, ROOT, 0);
        uint256 end = current + WINDOW;
        _warp(end - 1);
        _challenge(jobId, 3, ROOT, 1);
        _warp(end);
        _challenge(jobId, 3, ROOT, 2);
        _equal(3, board.job(jobId).openGames, "games");
        _warp(end + 1);
        IJobBoard.Head memory head = _head(jobId, 3, ROOT);
        bytes memory signature = _headSignature(head);
        _expect(abi.encodeWithSelector(IJobBoard.WindowClosed.selector, end, end + 1));
        VM.prank(challenger);
        board.challenge{value: 8 * CHALLENGER_STAKE}(head, signature, 3);
    }

    function test_challenge_refuses_wrong_stake_head_signer_and_reuse() external {
        JobId jobId = _activeJob(1);
        IJobBoard.Head memory head = _head(jobId, 3, ROOT);
        bytes memory signature = _headSignature(head);
        _expect(abi.encodeWithSelector(IJobBoard.WrongPayment.selector, CHALLENGER_STAKE, 0));
        board.challenge(head, signature, 0);
        bytes memory forged = _signature(CHALLENGER_KEY, board.headDigest(head));
        _expect(abi.encodeWithSelector(IJobBoard.WrongSigner.selector, trainer, challenger));
        VM.prank(challenger);
        board.challenge{value: CHALLENGER_STAKE}(head, forged, 0);
        GameId gameId = _challenge(jobId, 3, ROOT, 0);
        require(GameId.unwrap(gameId) == GameId.unwrap(board.gameIdOf(head, challenger, 0)), "game id");
        _expect(abi.encodeWithSelector(IGame.GameExists.selector, gameId));
        VM.prank(challenger);
        board.challenge{value: 2 * CHALLENGER_STAKE}(head, signature, 0);
        head.count = 4;
        _expect(abi.encodeWithSelector(IJobBoard.HeadOutOfRange.selector, 4, 3));
        VM.prank(challenger);
        board.challenge{value: 2 * CHALLENGER_STAKE}(head, signature, 0);
    }

    // ---------------------------------------------------------------- abandonment

    function test_abandon_one_second_after_a_window_without_a_head() external {
        IJobBoard.Job memory job = _job(1);
        job.auditTime = 3 * WINDOW; // for which nobody waits here
        JobId jobId = _offer(job);
        _warp(START + 5000); // the grace period runs from acceptance
        _accept(jobId);
        _expect(abi.encodeWithSelector(IJobBoard.WindowOpen.selector, current + WINDOW, current));
        _abandon(jobId);
        _warp(current + WINDOW);
        _post(jobId, 1, ROOT); // and again from each head
        uint256 end = current + WINDOW;
        for (uint256 instant = end - 1; instant <= end; ++instant) {
            _warp(instant);
            _expect(abi.encodeWithSelector(IJobBoard.WindowOpen.selector, end, instant));
            _abandon(jobId);
        }
        _warp(end + 1);
        VM.prank(stranger);
        board.abandon(jobId);
        _requireStatus(jobId, IJobBoard.JobStatus.ABANDONED);
        _equal(REWARD + TRAINER_STAKE, board.credit(client), "client");
    }

    /// A trainer that is late, and plays against itself meanwhile. The game is played to its end, but brings no head.
    function test_a_game_buys_no_time_for_a_head() external {
        JobId jobId = _activeJob(1);
        uint256 due = START + WINDOW;
        _warp(due);
        GameId gameId = _challenge(jobId, 1, ROOT, 0);
        for (uint256 instant = due - 1; instant <= due; ++instant) {
            _warp(instant);
            uint256 before = VM.snapshotState();
            _post(jobId, 3, ROOT);
            require(VM.revertToState(before), "back");
        }
        _warp(due + 1);
        _refusedHead(_head(jobId, 3, ROOT), abi.encodeWithSelector(IJobBoard.WindowClosed.selector, due, due + 1));
        _expect(abi.encodeWithSelector(IJobBoard.OpenGames.selector, 1));
        board.abandon(jobId);
        VM.prank(challenger);
        games.concede(gameId);
        board.abandon(jobId);
        _equal(REWARD + TRAINER_STAKE, board.credit(client), "client");
    }

    // ---------------------------------------------------------------- equivocation

    /// A concession of a head to the stranger moves what its report moves, to the wei.
    function test_equivocation_slashes_and_voids_the_open_games() external {
        for (uint256 k = 1; k <= 2; ++k) {
            JobId jobId = _activeJob(k);
            GameId gameId = _challenge(jobId, 2, ROOT, 0);
            _expectStatus(jobId, IJobBoard.JobStatus.SLASHED, IJobBoard.JobStatus.ACTIVE);
            games.reclaim(gameId);
            if (k == 1) _report(jobId, ROOT, keccak256("other run"));
            else _concede(_head(jobId, 2, ROOT), stranger);
            _requireStatus(jobId, IJobBoard.JobStatus.SLASHED);
            _equal(k * REWARD, board.credit(client), "client");
            _equal(k * (TRAINER_STAKE / 2 - RELIEF), board.credit(stranger), "reporter");
            _equal(k * (TRAINER_STAKE - TRAINER_STAKE / 2), _burned(CHALLENGER_STAKE + RELIEF), "burned");
            _equal(0, board.credit(trainer), "trainer");
            _expectStatus(jobId, IJobBoard.JobStatus.ACTIVE, IJobBoard.JobStatus.SLASHED);
            VM.prank(trainer);
            games.concede(gameId);
            _warp(current + CLOCK + 1);
            _expectStatus(jobId, IJobBoard.JobStatus.ACTIVE, IJobBoard.JobStatus.SLASHED);
            games.timeout(gameId);
            games.reclaim(gameId);
            _equal(k * (CHALLENGER_STAKE + RELIEF), board.credit(challenger), "challenger");
            require(games.game(gameId).verdict == IGame.Verdict.VOID, "void");
            _expect(abi.encodeWithSelector(IGame.GameIsOver.selector, gameId));
            games.reclaim(gameId);
        }
    }

    /// A cheat that reports itself over sixteen games, its own or not: each has as much as the reporter, and half burns.
    function test_relief_comes_out_of_the_provers_share() external {
        uint256[2] memory stakes = [uint256(1 ether), 0.001 ether + 1];
        for (uint256 k = 0; k < 2; ++k) {
            IJobBoard.Job memory job = _job(k + 1);
            job.challengerStake = stakes[k];
            JobId jobId = _offer(job);
            _accept(jobId);
            IJobBoard.Head memory head = _head(jobId, 2, ROOT);
            bytes memory signature = _headSignature(head);
            VM.deal(challenger, 1e6 ether);
            for (uint64 nonce = 0; nonce < 16; ++nonce) {
                VM.prank(challenger);
                board.challenge{value: stakes[k] << nonce}(head, signature, nonce);
            }
            uint256 before = board.credit(stranger);
            _report(jobId, ROOT, keccak256("other run"));
            uint256 relief = k == 0 ? RELIEF : 0.0005 ether;
            _equal(TRAINER_STAKE / 2 - 16 * relief, board.credit(stranger) - before, "reporter");
            before = board.credit(challenger);
            for (uint64 nonce = 0; nonce < 16; ++nonce) {
                games.reclaim(board.gameIdOf(head, challenger, nonce));
            }
            _equal(((stakes[k] << 16) - stakes[k]) + 16 * relief, board.credit(challenger) - before, "challenger");
            _equal((k + 1) * (TRAINER_STAKE - TRAINER_STAKE / 2), _burned(0), "burned");
        }
    }

    function test_equal_heads_or_forged_ones_are_no_equivocation() external {
        JobId jobId = _activeJob(1);
        bytes memory good = _headSignature(_head(jobId, 2, ROOT));
        _expect(abi.encodeWithSelector(IJobBoard.NoEquivocation.selector, ROOT));
        board.reportEquivocation(jobId, 2, ROOT, good, ROOT, good);
        bytes32 other = keccak256("other run");
        bytes memory forged = _signature(CLIENT_KEY, board.headDigest(_head(jobId, 2, other)));
        _expect(abi.encodeWithSelector(IJobBoard.WrongSigner.selector, trainer, client));
        board.reportEquivocation(jobId, 2, ROOT, good, other, forged);
    }

    function test_a_concession_is_the_trainers_and_names_who_is_paid() external {
        IJobBoard.Head memory head = _head(_activeJob(1), 2, ROOT);
        bytes memory own = _concession(CLIENT_KEY, head, stranger);
        _expect(abi.encodeWithSelector(IJobBoard.WrongSigner.selector, trainer, client));
        board.reportConcession(head, stranger, own);
        bytes memory signature = _concession(TRAINER_KEY, head, stranger);
        VM.expectPartialRevert(IJobBoard.WrongSigner.selector); // the key that fits is anybody's
        board.reportConcession(head, client, signature);
    }

    // ---------------------------------------------------------------- withdrawal

    function test_withdraw_pays_once_to_any_address() external {
        JobId jobId = _offer(_job(1));
        _cancel(jobId);
        _expect(abi.encodeWithSelector(IJobBoard.ZeroAddress.selector));
        VM.prank(client);
        board.withdraw(payable(address(0)));
        address payable fresh = payable(address(0xF00D));
        VM.prank(client);
        _equal(REWARD, board.withdraw(fresh), "amount");
        _equal(REWARD, fresh.balance, "paid");
        _equal(0, address(board).balance, "left");
        _expect(abi.encodeWithSelector(IJobBoard.NothingToWithdraw.selector, client));
        VM.prank(client);
        board.withdraw(fresh);
    }

    function test_a_failed_transfer_keeps_the_credit() external {
        JobId jobId = _offer(_job(1));
        _cancel(jobId);
        Refuser refuser = new Refuser();
        _expect(abi.encodeWithSelector(IJobBoard.TransferFailed.selector, address(refuser), REWARD));
        VM.prank(client);
        board.withdraw(payable(address(refuser)));
        _equal(REWARD, board.credit(client), "credit");
    }

    function test_board_games_and_referee_are_bound_to_each_other() external {
        _expect(abi.encodeWithSelector(IGame.RefereeMissing.selector, address(1)));
        new Games(IReferee(address(1)), board);
        require(address(games.REFEREE()) == address(referee), "referee");
        _expect(abi.encodeWithSelector(IJobBoard.GamesMissing.selector, address(1)));
        new Board(IGame(address(1)));
        require(address(games.BOARD()) == address(board) && address(board.GAMES()) == address(games), "a pair");
        // A second board made with the same games has none that it can start, and no way to end one of the first's.
        Board other = new Board(games);
        IGame.Start memory start;
        _expect(abi.encodeWithSelector(IGame.NotTheBoard.selector, address(board), address(other)));
        VM.prank(address(other));
        games.begin(start);
        JobId jobId = _activeJob(1);
        bytes memory refusal = abi.encodeWithSelector(IJobBoard.WrongCaller.selector, address(games), address(stranger));
        _expect(refusal);
        VM.prank(stranger);
        board.gameEnded(jobId, stranger, 0, true);
        _expect(refusal);
        VM.prank(stranger);
        board.gameVoided(jobId, stranger, 0);
    }

    // ---------------------------------------------------------------- helpers

    function _report(JobId jobId, bytes32 first, bytes32 second) private {
        bytes memory firstSignature = _headSignature(_head(jobId, 2, first));
        bytes memory secondSignature = _headSignature(_head(jobId, 2, second));
        VM.prank(stranger);
        board.reportEquivocation(jobId, 2, first, firstSignature, second, secondSignature);
    }

    function _status(JobId id, IJobBoard.JobStatus due, IJobBoard.JobStatus now_) private pure returns (bytes memory) {
        return abi.encodeWithSelector(IJobBoard.WrongJobStatus.selector, id, due, now_);
    }

    function _expectStatus(JobId jobId, IJobBoard.JobStatus expected, IJobBoard.JobStatus actual) private {
        _expect(_status(jobId, expected, actual));
    }

    /// @return a good job again
    function _refused(IJobBoard.Job memory job, string memory field, uint256 value)
        private
        returns (IJobBoard.Job memory)
    {
        _expect(abi.encodeWithSelector(IJobBoard.InvalidJob.selector, field, value));
        board.createJob(job, "");
        return _job(1);
    }

    function _refusedHead(IJobBoard.Head memory head, bytes memory reason) private {
        bytes memory signature = _headSignature(head);
        _expect(reason);
        board.postHead(head, signature);
    }

    function _refusedSignature(IJobBoard.Head memory head, bytes memory signature) private {
        _expect(abi.encodeWithSelector(IJobBoard.MalformedSignature.selector));
        board.postHead(head, signature);
    }

    function _tryCreate(IJobBoard.Job memory job, bytes memory signature) private returns (bool, bytes memory) {
        VM.prank(client);
        return address(board).call{value: REWARD}(abi.encodeCall(IJobBoard.createJob, (job, signature)));
    }
}

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
        _cancel(jobId);
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
        _equal(MAX - MAX / 2, _burned(0), "burned");
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
            if (job.status == IJobBoard.JobStatus.SLASHED) {
                sum += job.trainerStake - job.trainerStake / 2 + job.openGames * RELIEF; // burned, and kept
            }
        }
        if (games.game(gameId).verdict == IGame.Verdict.CHALLENGER_LOST) {
            sum += CHALLENGER_STAKE - CHALLENGER_STAKE / 2;
        }
    }

    function _credits(address attacker) private view returns (uint256 sum) {
        address[5] memory all = [client, trainer, challenger, stranger, attacker];
        for (uint256 i = 0; i < 5; ++i) {
            sum += board.credit(all[i]);
        }
    }
}
