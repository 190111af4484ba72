// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {GameLogic} from "../game/GameLogic.sol";
import {GameLogs} from "../game/GameLogs.sol";
import {Instant, currentInstant} from "../game/Time.sol";
import {Turns} from "../game/Turns.sol";
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
    using Turns for Turns.Turn;

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
        bytes32 digest = _openGame(head, signature);
        gameId = _gameId(head.jobId, digest, msg.sender, nonce);
        GameState storage state = _games[gameId];
        Turns.Turn memory turn = Turns.load(state);
        if (turn.phase != Phase.NONE) revert GameExists(gameId);
        state.jobId = head.jobId;
        state.challenger = msg.sender;
        turn.last = currentInstant();
        emit GameStarted(gameId, head.jobId, msg.sender, head.count, head.runRoot, nonce);
        // A run of one checkpoint has no padding, so no game is over before its first move.
        GameLogic.begin(state, _jobs, turn, head.runRoot, head.count);
        Turns.save(state, turn);
    }

    /// @inheritdoc IGame
    function descend(GameId gameId, bytes32[] calldata nodes) external {
        (GameState storage state, Turns.Turn memory turn,) = _defender(gameId, Phase.DESCEND);
        emit Descended(gameId, nodes);
        GameLogic.descend(state, turn, nodes);
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function select(GameId gameId, bytes32 node, uint256 index, bytes32[] calldata siblings, bytes32 seal) external {
        (GameState storage state, Turns.Turn memory turn) = _challenger(gameId, Phase.SELECT);
        emit Selected(gameId, index, seal);
        GameLogic.select(state, _jobs, turn, node, index, siblings, seal);
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function openSteps(
        GameId gameId,
        bytes32[] calldata nodes,
        bytes32[] calldata siblings,
        bytes32 stateRoot,
        uint32 lossBits,
        bytes32 logRoot
    ) external {
        (GameState storage state, Turns.Turn memory turn, JobState storage job_) = _defender(gameId, Phase.OPEN_STEPS);
        emit StepsOpened(gameId, nodes);
        bool logged = job_.policy != 0;
        if (logged) emit LogOpened(gameId, logRoot);
        bool tied = GameLogs.openSteps(state, turn, logged, stateRoot, lossBits, logRoot);
        GameLogic.openSteps(state, turn, nodes, siblings, tied);
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function openValues(
        GameId gameId,
        bytes32 stateRoot,
        uint32 lossBits,
        bytes32 logRoot,
        bytes32[] calldata nodes,
        bytes32[] calldata siblings,
        bytes32 stepLog,
        bytes32[] calldata logSiblings
    ) external {
        (GameState storage state, Turns.Turn memory turn, JobState storage job_) = _defender(gameId, Phase.OPEN_VALUES);
        emit ValuesOpened(gameId, stateRoot, lossBits, nodes);
        bool logged = job_.policy != 0;
        if (logged) emit LogOpened(gameId, stepLog);
        bool tied = GameLogs.openValues(state, turn, logged, logRoot, stepLog, logSiblings);
        GameLogic.openValues(state, job_, turn, stateRoot, lossBits, logRoot, nodes, siblings, tied);
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function openTensor(
        GameId gameId,
        bytes calldata instruction,
        bytes32[] calldata siblings,
        bytes32[] calldata nodes
    ) external {
        (GameState storage state, Turns.Turn memory turn, JobState storage job_) = _defender(gameId, Phase.OPEN_TENSOR);
        emit TensorOpened(gameId, nodes);
        GameLogic.openTensor(state, job_, turn, REFEREE, instruction, siblings, nodes);
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function openChunk(GameId gameId, bytes calldata chunk, bytes32 word, bytes32[] calldata siblings) external {
        (GameState storage state, Turns.Turn memory turn, JobState storage job_) = _defender(gameId, Phase.OPEN_CHUNK);
        emit ChunkOpened(gameId, chunk);
        if (turn.sumKind() != 0) emit LogOpened(gameId, word);
        GameLogic.openChunk(state, turn, chunk, GameLogs.openChunk(state, job_, turn, word, siblings));
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function selectElement(GameId gameId, uint256 index, bytes calldata chunk, bytes32 seal) external {
        (GameState storage state, Turns.Turn memory turn) = _challenger(gameId, Phase.SELECT_ELEMENT);
        GameLogic.selectElement(state, turn, index, chunk, seal);
        emit ElementSelected(gameId, state.element, seal);
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function openTerms(GameId gameId, bytes32[] calldata nodes, bytes calldata accumulator, bytes32[] calldata siblings)
        external
    {
        (GameState storage state, Turns.Turn memory turn, JobState storage job_) = _defender(gameId, Phase.OPEN_TERMS);
        emit TermsOpened(gameId, nodes, accumulator);
        GameLogic.openTerms(state, job_, turn, REFEREE, nodes, accumulator, siblings);
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function prove(GameId gameId, IReferee.Proof calldata proof, bytes32 salt, bytes32[] calldata opened) external {
        Instant last = _games[gameId].last;
        (GameState storage state, Turns.Turn memory turn) = _challenger(gameId, Phase.PROVE);
        JobId jobId = state.jobId;
        _requireStatus(jobId, JobStatus.ACTIVE); // (4)
        // SAFETY: whoever saw this proof pending had to fix the same answer in an earlier block, without it.
        if (!turn.last.isAfter(last)) revert TooEarly(last, turn.last);
        (bytes32 right, bytes32 committed) =
            GameLogic.prove(state, _jobs[jobId], turn, REFEREE, GameId.unwrap(gameId), proof, salt, opened);
        emit Proved(gameId, right, committed);
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function concede(GameId gameId) external {
        (GameState storage state, Turns.Turn memory turn) = _load(gameId);
        bool defender = Turns.defenderMoves(turn.phase);
        _requireSide(defender ? _jobs[state.jobId].trainer : state.challenger);
        Turns.spend(state, turn, currentInstant());
        Turns.end(turn, defender, Reason.CONCEDED);
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function timeout(GameId gameId) external {
        (GameState storage state, Turns.Turn memory turn) = _load(gameId);
        Turns.timeout(state, turn, currentInstant());
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function reclaim(GameId gameId) external {
        (GameState storage state, Turns.Turn memory turn) = _load(gameId);
        JobId jobId = state.jobId;
        _requireStatus(jobId, JobStatus.SLASHED);
        turn.phase = Phase.OVER;
        turn.verdict = Verdict.VOID;
        turn.reason = Reason.JOB_SLASHED;
        Turns.save(state, turn);
        emit GameEnded(gameId, Verdict.VOID, Reason.JOB_SLASHED);
        _returnStake(jobId, state.challenger);
    }

    /// @inheritdoc IGame
    function game(GameId gameId) external view returns (GameState memory shown) {
        GameState storage state = _games[gameId];
        shown = state;
        shown.node = GameLogic.nodeOf(state, shown.level, shown.fresh);
    }

    /// @inheritdoc IGame
    function mover(GameId gameId) external view returns (address) {
        GameState storage state = _games[gameId];
        if (state.phase == Phase.NONE || state.phase == Phase.OVER) return address(0);
        return Turns.defenderMoves(state.phase) ? _jobs[state.jobId].trainer : state.challenger;
    }

    /// @inheritdoc IGame
    function gameIdOf(Head calldata head, address challenger, uint64 nonce) external view returns (GameId) {
        return _gameId(head.jobId, Signatures.digest(Signatures.hashHead(head)), challenger, nonce);
    }

    function _gameId(JobId jobId, bytes32 digest, address challenger, uint64 nonce) private pure returns (GameId) {
        return GameId.wrap(sha256(abi.encodePacked(Tags.GAME, jobId, digest, challenger, nonce)));
    }

    /// @dev Numbered plan of a turn: (1) the game exists and has no verdict, (2) the move fits the phase, (3) the
    /// caller is the mover, (4) its job is active, (5) the mover has time left; then its clock is charged.
    function _defender(GameId gameId, Phase expected)
        private
        view
        returns (GameState storage state, Turns.Turn memory turn, JobState storage job_)
    {
        (state, turn) = _load(gameId); // (1)
        _requirePhase(turn, expected); // (2)
        job_ = _jobs[state.jobId];
        _requireSide(job_.trainer); // (3)
        if (job_.status != JobStatus.ACTIVE) _requireStatus(state.jobId, JobStatus.ACTIVE); // (4)
        Turns.spend(state, turn, currentInstant()); // (5)
    }

    /// @dev As `_defender`, but (4) is left to `_close`.
    /// SAFETY: a choice that does not end the game moves no money, so it need not read the job.
    function _challenger(GameId gameId, Phase expected)
        private
        view
        returns (GameState storage state, Turns.Turn memory turn)
    {
        (state, turn) = _load(gameId); // (1)
        _requirePhase(turn, expected); // (2)
        _requireSide(state.challenger); // (3)
        Turns.spend(state, turn, currentInstant()); // (5)
    }

    /// @dev Keeps the turn; if the move ended the game, pays out.
    function _close(GameId gameId, GameState storage state, Turns.Turn memory turn) private {
        Turns.save(state, turn);
        if (turn.phase != Phase.OVER) return;
        JobId jobId = state.jobId;
        // SAFETY: once a job is slashed its money is shared out; its other games can only be reclaimed.
        _requireStatus(jobId, JobStatus.ACTIVE);
        emit GameEnded(gameId, turn.verdict, turn.reason);
        // INVARIANT 7: a game comes here once, for `_load` refuses a game that is over.
        if (turn.verdict == Verdict.DEFENDER_LOST) _convicted(jobId, state.challenger);
        else _defended(jobId);
    }

    function _load(GameId gameId) private view returns (GameState storage state, Turns.Turn memory turn) {
        state = _games[gameId];
        turn = Turns.load(state);
        if (turn.phase == Phase.NONE) revert NoSuchGame(gameId);
        if (turn.phase == Phase.OVER) revert GameIsOver(gameId);
    }

    function _requirePhase(Turns.Turn memory turn, Phase expected) private pure {
        if (turn.phase != expected) revert WrongPhase(expected, turn.phase);
    }

    function _requireSide(address side) private view {
        if (msg.sender != side) revert NotYourTurn(side, msg.sender);
    }
}
