// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {CompletionBonus} from "../src/examples/CompletionBonus.sol";
import {IJobBoard, JobId} from "../src/interfaces/IJobBoard.sol";
import {BoardBase} from "./BoardBase.sol";

/// @notice A sponsor that calls back while it is paid, and keeps what the bonus answered.
contract GreedySponsor {
    CompletionBonus private immutable BONUS;
    JobId private job;
    bytes public answer;

    constructor(CompletionBonus bonus) {
        BONUS = bonus;
    }

    function sponsor(JobId jobId) external payable {
        job = jobId;
        BONUS.sponsor{value: msg.value}(jobId);
    }

    function takeBack() external {
        BONUS.takeBack(job);
    }

    receive() external payable {
        try BONUS.takeBack(job) {}
        catch (bytes memory reason) {
            answer = reason;
        }
    }
}

/// @notice A sponsor that takes no money.
contract ProudSponsor {
    function sponsor(CompletionBonus bonus, JobId jobId) external payable {
        bonus.sponsor{value: msg.value}(jobId);
    }

    function takeBack(CompletionBonus bonus, JobId jobId) external {
        bonus.takeBack(jobId);
    }
}

/// @notice The example contract against the real board: every end that a job can come to.
contract ExampleBonusTest is BoardBase {
    CompletionBonus private bonus;
    address private sponsor = address(0x5905);

    function setUp() public override {
        super.setUp();
        bonus = new CompletionBonus(board);
        VM.deal(sponsor, 100 ether);
    }

    function _sponsor(address who, JobId jobId, uint256 amount) private {
        VM.prank(who);
        bonus.sponsor{value: amount}(jobId);
    }

    function _takeBack(address who, JobId jobId) private {
        VM.prank(who);
        bonus.takeBack(jobId);
    }

    function _claim(address who, JobId jobId) private {
        VM.prank(who);
        bonus.claim(jobId);
    }

    function _settled(uint256 nonce) private returns (JobId jobId) {
        jobId = _activeJob(nonce);
        _sponsor(sponsor, jobId, 3 ether);
        _sponsor(stranger, jobId, 1 ether);
        _post(jobId, 3, keccak256("run"));
        _warp(current + WINDOW + 1);
        board.settle(jobId);
    }

    function _wrongStatus(JobId jobId, IJobBoard.JobStatus actual) private pure returns (bytes memory) {
        return abi.encodeWithSelector(CompletionBonus.WrongStatus.selector, jobId, actual);
    }

    function _nothingOwed(JobId jobId, address caller) private pure returns (bytes memory) {
        return abi.encodeWithSelector(CompletionBonus.NothingOwed.selector, jobId, caller);
    }

    function test_aSettledJobPaysItsTrainerOnce() public {
        JobId jobId = _settled(1);
        JobId other = _activeJob(2);
        _sponsor(sponsor, other, 7 ether);
        VM.expectRevert(_nothingOwed(jobId, stranger));
        _claim(stranger, jobId);
        VM.expectRevert(_wrongStatus(jobId, IJobBoard.JobStatus.SETTLED));
        _takeBack(sponsor, jobId);
        uint256 before = trainer.balance;
        _claim(trainer, jobId);
        _equal(before + 4 ether, trainer.balance, "the bonus");
        _equal(7 ether, address(bonus).balance, "the other job's pot");
        _equal(7 ether, bonus.pot(other), "pot");
        VM.expectRevert(_nothingOwed(jobId, trainer));
        _claim(trainer, jobId);
    }

    function test_aSlashedJobPaysItsSponsorsBack() public {
        JobId jobId = _activeJob(1);
        _sponsor(sponsor, jobId, 3 ether);
        _sponsor(stranger, jobId, 1 ether);
        IJobBoard.Head memory first = _head(jobId, 1, keccak256("a"));
        IJobBoard.Head memory second = _head(jobId, 1, keccak256("b"));
        board.reportEquivocation(jobId, 1, first.runRoot, _headSignature(first), second.runRoot, _headSignature(second));
        VM.expectRevert(_wrongStatus(jobId, IJobBoard.JobStatus.SLASHED));
        _claim(trainer, jobId);
        uint256 before = sponsor.balance;
        _takeBack(sponsor, jobId);
        _equal(before + 3 ether, sponsor.balance, "its own part");
        _equal(1 ether, address(bonus).balance, "the other's part");
        VM.expectRevert(_nothingOwed(jobId, sponsor));
        _takeBack(sponsor, jobId);
        _takeBack(stranger, jobId);
        _equal(0, address(bonus).balance, "nothing left");
    }

    function test_anAbandonedJobPaysItsSponsorsBack() public {
        JobId jobId = _activeJob(1);
        _sponsor(sponsor, jobId, 3 ether);
        _warp(current + WINDOW + 1);
        _abandon(jobId);
        VM.expectRevert(_wrongStatus(jobId, IJobBoard.JobStatus.ABANDONED));
        _sponsor(stranger, jobId, 1 ether);
        _takeBack(sponsor, jobId);
        _equal(0, bonus.pot(jobId), "pot");
    }

    function test_aSponsorMayChangeItsMindUntilTheJobRunsAndWhenItIsCancelled() public {
        IJobBoard.Job memory job = _job(1);
        JobId jobId = board.hashJob(job);
        _sponsor(sponsor, jobId, 3 ether); // before the board knows the job
        _takeBack(sponsor, jobId);
        _offer(job);
        _sponsor(sponsor, jobId, 2 ether);
        uint256 before = VM.snapshotState();
        _cancel(jobId);
        _takeBack(sponsor, jobId);
        _equal(0, bonus.paid(jobId, sponsor), "paid back");
        require(VM.revertToState(before), "back");
        _takeBack(sponsor, jobId);
        _sponsor(sponsor, jobId, 1 ether);
        _accept(jobId);
        VM.expectRevert(_wrongStatus(jobId, IJobBoard.JobStatus.ACTIVE));
        _takeBack(sponsor, jobId);
        VM.expectRevert(_wrongStatus(jobId, IJobBoard.JobStatus.ACTIVE));
        _claim(trainer, jobId);
    }

    function test_nothingIsNoBonusAndNobodyNoBoard() public {
        VM.expectRevert(abi.encodeWithSelector(CompletionBonus.NothingPaid.selector));
        _sponsor(sponsor, JobId.wrap(0), 0);
        VM.expectRevert(abi.encodeWithSelector(CompletionBonus.BoardMissing.selector, stranger));
        new CompletionBonus(IJobBoard(stranger));
    }

    function test_aSponsorThatCallsBackGetsNothingTwice() public {
        GreedySponsor greedy = new GreedySponsor(bonus);
        JobId jobId = board.hashJob(_job(1));
        _sponsor(sponsor, jobId, 5 ether);
        greedy.sponsor{value: 2 ether}(jobId);
        greedy.takeBack();
        _equal(2 ether, address(greedy).balance, "its own, once");
        _equal(5 ether, address(bonus).balance, "the other sponsor's");
        _equal(keccak256(_nothingOwed(jobId, address(greedy))), keccak256(greedy.answer()), "refused");
    }

    function test_aSponsorThatTakesNoMoneyKeepsItsClaim() public {
        ProudSponsor proud = new ProudSponsor();
        JobId jobId = board.hashJob(_job(1));
        proud.sponsor{value: 2 ether}(bonus, jobId);
        VM.expectRevert(
            abi.encodeWithSelector(CompletionBonus.TransferFailed.selector, address(proud), uint256(2 ether))
        );
        proud.takeBack(bonus, jobId);
        _equal(2 ether, bonus.paid(jobId, address(proud)), "still owed");
    }
}
