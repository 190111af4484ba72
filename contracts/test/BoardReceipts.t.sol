// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Instant} from "../src/game/Time.sol";
import {GameId, IGame} from "../src/interfaces/IGame.sol";
import {IJobBoard, JobId} from "../src/interfaces/IJobBoard.sol";
import {Signatures} from "../src/board/Signatures.sol";
import {BoardBase} from "./BoardBase.sol";
import {TestBase} from "./support/TestBase.sol";

/// @notice Jobs of policy `logged`: receipts, who is paid without the last one, and when.
contract BoardReceiptsTest is BoardBase, TestBase {
    bytes32 private constant ROOT = keccak256("run");
    bytes32 private constant OTHER = keccak256("other run");

    function _job(uint256 nonce) internal view override returns (IJobBoard.Job memory job) {
        job = super._job(nonce);
        job.policy = 1;
        // An odd reward: a third of it is no whole number of wei.
        job.reward = REWARD + 1;
    }

    function _receipt(uint256 key, IJobBoard.Head memory head) private view returns (bytes memory) {
        return _signature(key, board.receiptDigest(head));
    }

    function _acknowledge(JobId jobId, uint64 count, bytes32 root) private {
        IJobBoard.Head memory head = _head(jobId, count, root);
        board.acknowledge(head, _receipt(CLIENT_KEY, head));
    }

    function _refusedReceipt(uint256 key, IJobBoard.Head memory head, bytes memory reason) private {
        bytes memory signature = _receipt(key, head);
        _expect(reason);
        board.acknowledge(head, signature);
    }

    function _part(address who, JobId jobId) private {
        VM.prank(who);
        board.part(jobId);
    }

    function _refusedPart(address who, JobId jobId, bytes memory reason) private {
        _expect(reason);
        _part(who, jobId);
    }

    function _open(uint256 end, uint256 instant) private pure returns (bytes memory) {
        return abi.encodeWithSelector(IJobBoard.WindowOpen.selector, end, instant);
    }

    function _exactJob() private returns (JobId jobId) {
        IJobBoard.Job memory job = super._job(77);
        jobId = _offer(job);
        _accept(jobId);
        _post(jobId, 3, ROOT);
    }

    // ---------------------------------------------------------------- what is signed

    /// Python, which wrote the vectors, is held to another implementation of EIP-712.
    function test_receipts_are_those_of_the_vectors() external {
        string memory json = vectors("receipts.json");
        uint256 count = vm.parseJsonUint(json, ".count");
        require(count > 2, "cases");
        for (uint256 i = 0; i < count; ++i) {
            string memory one = string.concat(".cases[", vm.toString(i), "].");
            VM.chainId(vm.parseJsonUint(json, string.concat(one, "chainId")));
            address contract_ = address(bytes20(vm.parseJsonBytes(json, string.concat(one, "contract"))));
            IJobBoard.Head memory head = IJobBoard.Head({
                jobId: JobId.wrap(vm.parseJsonBytes32(json, string.concat(one, "jobId"))),
                count: uint64(vm.parseJsonUint(json, string.concat(one, "headCount"))),
                runRoot: vm.parseJsonBytes32(json, string.concat(one, "runRoot"))
            });
            bytes32 digest = Signatures.digest(contract_, Signatures.hashReceipt(head));
            _equal(vm.parseJsonBytes32(json, string.concat(one, "digest")), digest, "digest");
            bytes memory signature = vm.parseJsonBytes(json, string.concat(one, "signature"));
            address client_ = address(bytes20(vm.parseJsonBytes(json, string.concat(one, "client"))));
            require(this.recover(digest, signature) == client_, "signer");
        }
    }

    function recover(bytes32 digest, bytes calldata signature) external pure returns (address) {
        return Signatures.recover(digest, signature);
    }

    // ---------------------------------------------------------------- receipts

    function test_anyone_shows_a_receipt_of_a_posted_head() external {
        JobId jobId = _activeJob(1);
        _equal(0, board.receipts(jobId), "none");
        _post(jobId, 2, ROOT);
        // Of an earlier head, whose root is not kept; then of the posted one.
        _acknowledge(jobId, 1, OTHER);
        _equal(1, board.receipts(jobId), "one");
        bytes memory signature = _receipt(CLIENT_KEY, _head(jobId, 2, ROOT));
        VM.prank(stranger);
        board.acknowledge(_head(jobId, 2, ROOT), signature);
        _equal(2, board.receipts(jobId), "two");
    }

    function test_receipts_that_are_none_are_refused() external {
        JobId jobId = _activeJob(1);
        IJobBoard.Head memory head = _head(jobId, 1, ROOT);
        bytes memory unposted = abi.encodeWithSelector(IJobBoard.HeadNotPosted.selector, 0, 1);
        _refusedReceipt(CLIENT_KEY, head, unposted);
        _post(jobId, 1, ROOT);
        _refusedReceipt(TRAINER_KEY, head, abi.encodeWithSelector(IJobBoard.WrongSigner.selector, client, trainer));
        bytes memory asHead = _signature(CLIENT_KEY, board.headDigest(head));
        vm.expectPartialRevert(IJobBoard.WrongSigner.selector);
        board.acknowledge(head, asHead);
        _expect(abi.encodeWithSelector(IJobBoard.MalformedSignature.selector));
        board.acknowledge(head, "");
        _refusedReceipt(
            CLIENT_KEY, _head(jobId, 1, OTHER), abi.encodeWithSelector(IJobBoard.WrongReceipt.selector, ROOT, OTHER)
        );
        _refusedReceipt(
            CLIENT_KEY, _head(jobId, 0, ROOT), abi.encodeWithSelector(IJobBoard.ReceiptNotAscending.selector, 0, 0)
        );
        _acknowledge(jobId, 1, ROOT);
        _refusedReceipt(CLIENT_KEY, head, abi.encodeWithSelector(IJobBoard.ReceiptNotAscending.selector, 1, 1));
        _refusedReceipt(
            CLIENT_KEY, _head(jobId, 2, ROOT), abi.encodeWithSelector(IJobBoard.HeadNotPosted.selector, 1, 2)
        );
    }

    function test_policy_exact_knows_no_receipts() external {
        JobId jobId = _exactJob();
        IJobBoard.Head memory head = _head(jobId, 3, ROOT);
        _refusedReceipt(CLIENT_KEY, head, abi.encodeWithSelector(IJobBoard.NotLogged.selector));
        _warp(current + WINDOW + 1);
        _refusedPart(client, jobId, abi.encodeWithSelector(IJobBoard.NotLogged.selector));
        board.settle(jobId);
    }

    /// A receipt is one of this chain and this board.
    function test_a_receipt_of_another_chain_is_none() external {
        JobId jobId = _activeJob(1);
        _post(jobId, 1, ROOT);
        IJobBoard.Head memory head = _head(jobId, 1, ROOT);
        bytes memory signature = _receipt(CLIENT_KEY, head);
        VM.chainId(5);
        vm.expectPartialRevert(IJobBoard.WrongSigner.selector);
        board.acknowledge(head, signature);
    }

    // ---------------------------------------------------------------- the ends of a job

    function test_a_job_settles_with_the_receipt_of_its_final_head_only() external {
        JobId jobId = _activeJob(1);
        _post(jobId, 3, ROOT);
        _acknowledge(jobId, 2, OTHER);
        uint256 end = current + WINDOW;
        _warp(end + 1);
        _expect(abi.encodeWithSelector(IJobBoard.ReceiptMissing.selector, 2, 3));
        board.settle(jobId);
        uint256 before = VM.snapshotState();
        _part(trainer, jobId); // nobody has to wait for it
        require(VM.revertToState(before), "back");
        _acknowledge(jobId, 3, ROOT);
        _refusedPart(client, jobId, abi.encodeWithSelector(IJobBoard.ReceiptsComplete.selector, 3));
        board.settle(jobId);
        _requireStatus(jobId, IJobBoard.JobStatus.SETTLED);
        _equal(REWARD + 1 + TRAINER_STAKE, board.credit(trainer), "trainer");
        _refusedReceipt(CLIENT_KEY, _head(jobId, 3, ROOT), _status(jobId, IJobBoard.JobStatus.SETTLED));
    }

    function _status(JobId jobId, IJobBoard.JobStatus actual) private pure returns (bytes memory) {
        return abi.encodeWithSelector(IJobBoard.WrongJobStatus.selector, jobId, IJobBoard.JobStatus.ACTIVE, actual);
    }

    /// A client that lets its trainer wait, and then takes the stake because the next head is late.
    function test_a_late_receipt_takes_no_stake() external {
        JobId jobId = _activeJob(1);
        _post(jobId, 1, ROOT);
        uint256 end = current + WINDOW;
        _warp(end);
        _acknowledge(jobId, 1, ROOT);
        _equal(end, uint256(Instant.unwrap(board.job(jobId).lastProgress)) + WINDOW, "moves no window");
        _warp(end + 1);
        _expect(abi.encodeWithSelector(IJobBoard.HeadsPosted.selector, 1));
        _abandon(jobId);
        _part(client, jobId);
        _equal(TRAINER_STAKE + (REWARD + 1) / 3, board.credit(trainer), "trainer");
    }

    function test_a_job_without_a_head_is_abandoned_not_parted() external {
        JobId jobId = _activeJob(1);
        _warp(current + WINDOW + 1);
        _refusedPart(client, jobId, abi.encodeWithSelector(IJobBoard.NoHeadPosted.selector));
        _abandon(jobId);
        _equal(REWARD + 1 + TRAINER_STAKE, board.credit(client), "client");
    }

    function test_either_party_parts_one_second_after_the_window() external {
        for (uint64 receipts = 0; receipts < 3; ++receipts) {
            address who = receipts % 2 == 0 ? trainer : client;
            (uint256 ours, uint256 theirs) = (board.credit(trainer), board.credit(client));
            JobId jobId = _activeJob(receipts + 1);
            _post(jobId, 3, ROOT);
            if (receipts != 0) _acknowledge(jobId, receipts, OTHER);
            uint256 end = current + WINDOW;
            for (uint256 instant = end - 1; instant <= end; ++instant) {
                _warp(instant);
                _refusedPart(trainer, jobId, _open(end, instant));
                _refusedPart(client, jobId, _open(end, instant));
            }
            _warp(end + 1);
            _refusedPart(stranger, jobId, abi.encodeWithSelector(IJobBoard.NotAParty.selector, stranger));
            _part(who, jobId);
            _requireStatus(jobId, IJobBoard.JobStatus.PARTED);
            uint256 earned = (REWARD + 1) * receipts / 3;
            _equal(ours + TRAINER_STAKE + earned, board.credit(trainer), "trainer");
            _equal(theirs + REWARD + 1 - earned, board.credit(client), "client");
            _expect(_status(jobId, IJobBoard.JobStatus.PARTED));
            _part(who, jobId);
        }
    }

    /// Without the next head in time, the client need not wait for the deadline either, nor after it for the window.
    function test_the_deadline_is_the_clients() external {
        IJobBoard.Job memory job = _job(1);
        job.deadline = WINDOW / 2;
        JobId jobId = _offer(job);
        _accept(jobId);
        uint256 due = current + WINDOW / 2;
        _post(jobId, 2, ROOT);
        uint256 end = current + WINDOW;
        _warp(due);
        _refusedPart(client, jobId, _open(due, due));
        _warp(due + 1);
        // A trainer would leave before its receipted heads could be challenged.
        _refusedPart(trainer, jobId, _open(end, due + 1));
        _part(client, jobId);
    }

    function test_nobody_parts_over_an_open_game() external {
        JobId jobId = _activeJob(1);
        _post(jobId, 2, ROOT);
        _acknowledge(jobId, 2, ROOT);
        GameId gameId = _challenge(jobId, 2, ROOT, 0);
        _warp(current + WINDOW + 1);
        _refusedPart(trainer, jobId, abi.encodeWithSelector(IJobBoard.OpenGames.selector, 1));
        games.timeout(gameId); // the trainer did not answer
        _requireStatus(jobId, IJobBoard.JobStatus.SLASHED);
        _equal(REWARD + 1, board.credit(client), "the reward, receipts or not");
        _expect(_status(jobId, IJobBoard.JobStatus.SLASHED));
        _part(trainer, jobId);
    }

    function test_the_whole_range_of_rewards_is_shared_out(uint128 reward, uint64 steps, uint64 receipts) external {
        IJobBoard.Job memory job = _job(1);
        (job.reward, job.steps, job.checkpointInterval) = (reward, uint64(bound(steps, 1, type(uint64).max)), 1);
        job.challengerStake = type(uint128).max;
        VM.deal(client, reward);
        JobId jobId = _offer(job);
        _accept(jobId);
        _post(jobId, job.steps, ROOT);
        receipts = uint64(bound(receipts, 0, job.steps - 1));
        if (receipts != 0) _acknowledge(jobId, receipts, ROOT);
        _warp(current + WINDOW + 1);
        _part(client, jobId);
        uint256 earned = board.credit(trainer) - TRAINER_STAKE;
        _equal(reward, earned + board.credit(client), "all of it");
        // floor(reward * receipts / steps), by its definition
        uint256 owed = uint256(reward) * receipts;
        require(earned * job.steps <= owed && owed < (earned + 1) * job.steps, "the receipted share, rounded down");
    }
}
