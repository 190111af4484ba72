// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IJobBoard, JobId} from "../interfaces/IJobBoard.sol";

/// @title An example of somebody else's contract: a bonus for a training run that was done and not refuted
/// @notice Sponsors pay in for a job. If the job settles, all of it is the trainer's; if the job ends in any other way
/// or has not begun, each sponsor takes back what it paid.
///
/// It trusts one thing: `IJobBoard.job(jobId)` of the board it was made with. That is enough, because a job id is the
/// hash of everything client and trainer signed (program, initial state, data, steps, stakes), and the board says
/// SETTLED only after the final head stood a whole window with no open game. It never asks who calls, and holds
/// nothing of the board's.
///
/// @dev The same money rules as the board's: what is owed is pulled by its owner; nobody is called on the way.
/// INVARIANT: the balance is at least the sum of all `paid` whose pot was not claimed.
contract CompletionBonus {
    IJobBoard public immutable BOARD;

    /// What one sponsor paid in for one job and has not taken back.
    mapping(JobId => mapping(address => uint256)) public paid;
    /// All that sponsors have in for a job; zero again once the trainer has it.
    mapping(JobId => uint256) public pot;

    event Sponsored(JobId indexed jobId, address indexed sponsor, uint256 amount);
    event TakenBack(JobId indexed jobId, address indexed sponsor, uint256 amount);
    event BonusPaid(JobId indexed jobId, address indexed trainer, uint256 amount);

    /// The board's address holds no code.
    error BoardMissing(address board);
    error NothingPaid();
    /// The job is at a point of its life at which this cannot be done.
    error WrongStatus(JobId jobId, IJobBoard.JobStatus actual);
    /// No bonus, or not the caller's.
    error NothingOwed(JobId jobId, address caller);
    error TransferFailed(address to, uint256 amount);

    constructor(IJobBoard board) {
        if (address(board).code.length == 0) revert BoardMissing(address(board));
        BOARD = board;
    }

    /// @notice Adds to the bonus of a job that has not ended. It may not be on the board yet: its id is known as soon
    /// as its terms are.
    function sponsor(JobId jobId) external payable {
        if (msg.value == 0) revert NothingPaid();
        IJobBoard.JobStatus status = BOARD.job(jobId).status;
        if (status > IJobBoard.JobStatus.ACTIVE) revert WrongStatus(jobId, status);
        paid[jobId][msg.sender] += msg.value;
        pot[jobId] += msg.value;
        emit Sponsored(jobId, msg.sender, msg.value);
    }

    /// @notice Pays the bonus of a settled job to its trainer. Caller: the trainer.
    function claim(JobId jobId) external returns (uint256 amount) {
        IJobBoard.JobState memory job = BOARD.job(jobId);
        if (job.status != IJobBoard.JobStatus.SETTLED) revert WrongStatus(jobId, job.status);
        amount = pot[jobId];
        if (msg.sender != job.trainer || amount == 0) revert NothingOwed(jobId, msg.sender);
        // SAFETY: a settled job stays settled, so `takeBack` never runs for it and `paid` needs no clearing.
        pot[jobId] = 0;
        emit BonusPaid(jobId, msg.sender, amount);
        _pay(amount);
    }

    /// @notice Gives the caller back what it paid for a job that is not running and did not settle.
    function takeBack(JobId jobId) external returns (uint256 amount) {
        IJobBoard.JobStatus status = BOARD.job(jobId).status;
        // While the trainer works it counts on the bonus; afterwards it is the trainer's.
        if (status == IJobBoard.JobStatus.ACTIVE || status == IJobBoard.JobStatus.SETTLED) {
            revert WrongStatus(jobId, status);
        }
        amount = paid[jobId][msg.sender];
        if (amount == 0) revert NothingOwed(jobId, msg.sender);
        paid[jobId][msg.sender] = 0;
        pot[jobId] -= amount;
        emit TakenBack(jobId, msg.sender, amount);
        _pay(amount);
    }

    function _pay(uint256 amount) private {
        (bool success,) = msg.sender.call{value: amount}("");
        if (!success) revert TransferFailed(msg.sender, amount);
    }
}
