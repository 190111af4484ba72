// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Duration} from "../game/Time.sol";
import {GameId, IGame} from "../interfaces/IGame.sol";
import {IJobBoard, JobId} from "../interfaces/IJobBoard.sol";
import {Tags} from "../libraries/Tags.sol";
import {Receipts} from "./Receipts.sol";
import {Seats} from "./Seats.sol";
import {Signatures} from "./Signatures.sol";

/// @title The board: jobs, their money, and the one place that starts and pays out games
/// @notice Thin: `JobBoard` keeps the money, `Receipts` those of logs, `Seats` pays for audits, `Games` plays. It has no
/// owner, no upgrade and no pause. It calls the games that it was made with, to start one, and in `withdraw` the address
/// that the caller names.
contract Board is Receipts, Seats {
    /// @inheritdoc IJobBoard
    IGame public immutable GAMES;

    /// @dev SAFETY: what the games can do is end a game that this board started, once each; whom they pay the board knows.
    modifier onlyGames() {
        if (msg.sender != address(GAMES)) revert WrongCaller(address(GAMES), msg.sender);
        _;
    }

    /// @param games made before, with the address that this contract gets
    constructor(IGame games) {
        if (address(games).code.length == 0) revert GamesMissing(address(games));
        GAMES = games;
    }

    /// @inheritdoc IJobBoard
    function challenge(Head calldata head, bytes calldata signature, uint64 nonce)
        external
        payable
        returns (GameId gameId)
    {
        (bytes32 digest, uint8 rank) = _openGame(head, signature);
        gameId = _gameId(head.jobId, digest, msg.sender, nonce);
        emit GameStarted(gameId, head.jobId, msg.sender, head.count, head.runRoot, nonce);
        GAMES.begin(_start(gameId, head, rank));
    }

    /// @inheritdoc IJobBoard
    function gameEnded(JobId jobId, address challenger, uint8 rank, bool defenderLost)
        external
        onlyGames
        // SAFETY: once a job is slashed its money is shared out; its other games can only be reclaimed.
        onlyStatus(jobId, JobStatus.ACTIVE)
    {
        if (defenderLost) _convicted(jobId, challenger, rank);
        else _defended(jobId, rank);
    }

    /// @inheritdoc IJobBoard
    function gameVoided(JobId jobId, address challenger, uint8 rank)
        external
        onlyGames
        onlyStatus(jobId, JobStatus.SLASHED)
    {
        _voided(jobId, challenger, rank);
    }

    /// @inheritdoc IJobBoard
    function crowd(JobId jobId) external view returns (uint256) {
        return _jobs[jobId].crowd;
    }

    /// @inheritdoc IJobBoard
    function clock(JobId jobId) external view returns (Duration) {
        return _jobs[jobId].clock;
    }

    /// @inheritdoc IJobBoard
    function gameIdOf(Head calldata head, address challenger, uint64 nonce) external view returns (GameId) {
        return _gameId(head.jobId, Signatures.digest(Signatures.hashHead(head)), challenger, nonce);
    }

    /// @inheritdoc IJobBoard
    function programRoot(JobId jobId) external view returns (bytes32) {
        return _jobs[jobId].programRoot;
    }

    /// @inheritdoc IJobBoard
    function segments(JobId jobId) external view returns (uint64 steps, uint64 checkpointInterval) {
        JobState storage state = _jobs[jobId];
        return (state.steps, state.checkpointInterval);
    }

    /// @inheritdoc IJobBoard
    function origin(JobId jobId) external view returns (Origin memory) {
        JobState storage state = _jobs[jobId];
        return Origin({
            programRoot: state.programRoot,
            initialStateRoot: state.initialStateRoot,
            dataRoot: state.dataRoot,
            dataCount: state.dataCount,
            steps: state.steps,
            checkpointInterval: state.checkpointInterval
        });
    }

    function _gameId(JobId jobId, bytes32 digest, address challenger, uint64 nonce) private pure returns (GameId) {
        return GameId.wrap(sha256(abi.encodePacked(Tags.GAME, jobId, digest, challenger, nonce)));
    }

    function _start(GameId gameId, Head calldata head, uint8 rank) private view returns (IGame.Start memory start) {
        JobState storage state = _jobs[head.jobId];
        start.gameId = gameId;
        start.jobId = head.jobId;
        start.challenger = msg.sender;
        start.rank = rank;
        start.runRoot = head.runRoot;
        start.count = head.count;
        start.trainer = state.trainer;
        start.depth = state.depth;
        start.precision = state.precision;
        start.policy = state.policy;
        start.bodyCount = state.bodyCount;
        start.stateCount = state.stateCount;
        // Those of sums: the game has no say in losses.
        // forge-lint: disable-next-line(unsafe-typecast)
        start.tolerances = uint24(state.tolerances);
        start.steps = state.steps;
        start.checkpointInterval = state.checkpointInterval;
        start.clock = state.clock;
        start.replayTime = state.replayTime;
        start.talkTime = state.talkTime;
        start.descentLevels = state.descentLevels;
    }
}
