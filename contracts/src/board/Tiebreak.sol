// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {GameLogic} from "../game/GameLogic.sol";
import {currentInstant} from "../game/Time.sol";
import {GameId, IGame} from "../interfaces/IGame.sol";
import {JobId} from "../interfaces/IJobBoard.sol";
import {IReferee} from "../interfaces/IReferee.sol";
import {Tags} from "../libraries/Tags.sol";
import {JobBoard} from "./JobBoard.sol";
import {Signatures} from "./Signatures.sol";

/// @title Tiebreak: the job board and the games of its jobs
/// @notice Thin: `JobBoard` keeps the money, `GameLogic` the rules, the referee recomputes. It has no owner, no
/// upgrade and no pause. Its only calls to others are static calls to the referee and the transfer in `withdraw`.
contract Tiebreak is JobBoard, IGame {
    /// @inheritdoc IGame
    IReferee public immutable REFEREE;

    mapping(GameId => GameState) private _games;

    constructor(IReferee referee) {
        if (address(referee).code.length == 0) revert RefereeMissing(address(referee));
        REFEREE = referee;
    }

    /// @inheritdoc IGame
    function challenge(Head calldata head, bytes calldata signature, uint64 nonce)
        external
        payable
        returns (GameId gameId)
    {
        _openGame(head.jobId, head, signature);
        gameId = gameIdOf(head, msg.sender, nonce);
        GameState storage state = _games[gameId];
        if (state.phase != Phase.NONE) revert GameExists(gameId);
        state.jobId = head.jobId;
        state.challenger = msg.sender;
        state.last = currentInstant();
        emit GameStarted(gameId, head.jobId, msg.sender, head.count, head.runRoot, nonce);
        GameLogic.begin(state, _jobs[head.jobId], head.runRoot, head.count);
        // A run of one checkpoint has no padding, so no game is over before its first move.
    }

    /// @inheritdoc IGame
    function descend(GameId gameId, bytes32[] calldata nodes) external {
        (GameState storage state,) = _turn(gameId, Phase.DESCEND);
        emit Descended(gameId, nodes);
        GameLogic.descend(state, nodes);
        _close(gameId, state);
    }

    /// @inheritdoc IGame
    function select(GameId gameId, bytes32[] calldata nodes, uint256 index) external {
        (GameState storage state, JobState storage job_) = _turn(gameId, Phase.SELECT);
        GameLogic.select(state, job_, nodes, index);
        emit Selected(gameId, index, nodes[index]);
        _close(gameId, state);
    }

    /// @inheritdoc IGame
    function openSteps(GameId gameId, bytes32 stepsRoot, bytes32[] calldata siblings) external {
        (GameState storage state, JobState storage job_) = _turn(gameId, Phase.OPEN_STEPS);
        emit StepsOpened(gameId, stepsRoot);
        GameLogic.openSteps(state, job_, stepsRoot, siblings);
        _close(gameId, state);
    }

    /// @inheritdoc IGame
    function openValues(
        GameId gameId,
        bytes32 stateRoot,
        uint32 lossBits,
        bytes32 logRoot,
        bytes32 bodyRoot,
        bytes32[] calldata siblings
    ) external {
        (GameState storage state, JobState storage job_) = _turn(gameId, Phase.OPEN_VALUES);
        emit ValuesOpened(gameId, stateRoot, lossBits, logRoot, bodyRoot);
        GameLogic.openValues(state, job_, stateRoot, lossBits, logRoot, bodyRoot, siblings);
        _close(gameId, state);
    }

    /// @inheritdoc IGame
    function openTensor(GameId gameId, bytes calldata instruction, bytes32[] calldata siblings, bytes32 chunkRoot)
        external
    {
        (GameState storage state, JobState storage job_) = _turn(gameId, Phase.OPEN_TENSOR);
        emit TensorOpened(gameId, instruction, chunkRoot);
        GameLogic.openTensor(state, job_, REFEREE, instruction, siblings, chunkRoot);
        _close(gameId, state);
    }

    /// @inheritdoc IGame
    function openChunk(GameId gameId, bytes calldata chunk) external {
        (GameState storage state,) = _turn(gameId, Phase.OPEN_CHUNK);
        emit ChunkOpened(gameId, chunk);
        GameLogic.openChunk(state, chunk);
        _close(gameId, state);
    }

    /// @inheritdoc IGame
    function selectElement(GameId gameId, uint256 index, bytes calldata chunk, bytes calldata instruction) external {
        (GameState storage state,) = _turn(gameId, Phase.SELECT_ELEMENT);
        GameLogic.selectElement(state, REFEREE, index, chunk, instruction);
        emit ElementSelected(gameId, state.element, state.claimed);
    }

    /// @inheritdoc IGame
    function openTerms(
        GameId gameId,
        bytes32 accumulatorRoot,
        bytes calldata accumulator,
        bytes32[] calldata siblings,
        bytes calldata instruction
    ) external {
        (GameState storage state, JobState storage job_) = _turn(gameId, Phase.OPEN_TERMS);
        emit TermsOpened(gameId, accumulatorRoot, accumulator);
        GameLogic.openTerms(state, job_, REFEREE, accumulatorRoot, accumulator, siblings, instruction);
        _close(gameId, state);
    }

    /// @inheritdoc IGame
    function prove(GameId gameId, IReferee.Proof calldata proof) external {
        (GameState storage state, JobState storage job_) = _turn(gameId, Phase.PROVE);
        (bytes32 right, bytes32 committed) = GameLogic.prove(state, job_, REFEREE, proof);
        emit Proved(gameId, right, committed);
        _close(gameId, state);
    }

    /// @inheritdoc IGame
    function timeout(GameId gameId) external {
        GameState storage state = _requireOpen(gameId);
        _requireStatus(state.jobId, JobStatus.ACTIVE);
        GameLogic.timeout(state, currentInstant());
        _close(gameId, state);
    }

    /// @inheritdoc IGame
    function reclaim(GameId gameId) external {
        GameState storage state = _requireOpen(gameId);
        _requireStatus(state.jobId, JobStatus.SLASHED);
        state.phase = Phase.OVER;
        state.verdict = Verdict.VOID;
        state.reason = Reason.JOB_SLASHED;
        emit GameEnded(gameId, Verdict.VOID, Reason.JOB_SLASHED);
        _returnStake(state.jobId, state.challenger);
    }

    /// @inheritdoc IGame
    function game(GameId gameId) external view returns (GameState memory) {
        return _games[gameId];
    }

    /// @inheritdoc IGame
    function mover(GameId gameId) external view returns (address) {
        GameState storage state = _games[gameId];
        if (state.phase == Phase.NONE || state.phase == Phase.OVER) return address(0);
        return _mover(state, _jobs[state.jobId]);
    }

    /// @inheritdoc IGame
    function gameIdOf(Head calldata head, address challenger, uint64 nonce) public view returns (GameId) {
        bytes32 digest = Signatures.digest(Signatures.hashHead(head));
        return GameId.wrap(sha256(abi.encodePacked(Tags.GAME, head.jobId, digest, challenger, nonce)));
    }

    /// @dev Numbered plan of a turn: (1) the game exists and has no verdict, (2) its job is active, (3) the move fits
    /// the phase, (4) the caller is the mover, (5) the mover has time left; then its clock is charged.
    function _turn(GameId gameId, Phase expected) private returns (GameState storage state, JobState storage job_) {
        state = _requireOpen(gameId); // (1)
        // SAFETY: once a job is slashed its money is shared out; its other games can only be reclaimed. (2)
        _requireStatus(state.jobId, JobStatus.ACTIVE);
        job_ = _jobs[state.jobId];
        if (state.phase != expected) revert WrongPhase(expected, state.phase); // (3)
        address side = _mover(state, job_);
        if (msg.sender != side) revert NotYourTurn(side, msg.sender); // (4)
        GameLogic.spend(state, currentInstant()); // (5)
    }

    /// @dev If the move ended the game, pays out.
    function _close(GameId gameId, GameState storage state) private {
        if (state.phase != Phase.OVER) return;
        emit GameEnded(gameId, state.verdict, state.reason);
        // INVARIANT 7: a game comes here once, for `_turn` and `timeout` refuse a game that is over.
        if (state.verdict == Verdict.DEFENDER_LOST) _convicted(state.jobId, state.challenger);
        else _defended(state.jobId);
    }

    function _requireOpen(GameId gameId) private view returns (GameState storage state) {
        state = _games[gameId];
        if (state.phase == Phase.NONE) revert NoSuchGame(gameId);
        if (state.phase == Phase.OVER) revert GameIsOver(gameId);
    }

    function _mover(GameState storage state, JobState storage job_) private view returns (address) {
        return GameLogic.defenderMoves(state.phase) ? job_.trainer : state.challenger;
    }
}
