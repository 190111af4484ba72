// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Signatures} from "../board/Signatures.sol";
import {GameId, IGame} from "../interfaces/IGame.sol";
import {IJobBoard, JobId} from "../interfaces/IJobBoard.sol";
import {IReferee} from "../interfaces/IReferee.sol";
import {GameLogic} from "./GameLogic.sol";
import {GameLogs} from "./GameLogs.sol";
import {Snapshots} from "./Snapshots.sol";
import {Duration, Instant, currentInstant} from "./Time.sol";
import {Turns} from "./Turns.sol";

/// @title The games of a board's jobs
/// @notice Thin: `GameLogic` has the rules, the referee recomputes, the board holds the money. It has no owner, no
/// upgrade and no pause, and holds no wei. Its only calls to others are to the referee and the board that it was made with.
contract Games is IGame {
    using Turns for Turns.Turn;

    /// @inheritdoc IGame
    IReferee public immutable REFEREE;
    /// @inheritdoc IGame
    IJobBoard public immutable BOARD;

    /// A sequence number that may be entered. No walk has a thousand moves, so those after it fit too.
    uint256 private constant MAX_SEQUENCE = 1 << 15;

    mapping(GameId => Turns.Game) private _games;

    /// @param board made next, so there is no code to look for yet. A board that was made with other games starts none here.
    constructor(IReferee referee, IJobBoard board) {
        if (address(referee).code.length == 0) revert RefereeMissing(address(referee));
        REFEREE = referee;
        BOARD = board;
    }

    /// @inheritdoc IGame
    function begin(Start calldata start) external {
        if (msg.sender != address(BOARD)) revert NotTheBoard(address(BOARD), msg.sender);
        Turns.Game storage state = _games[start.gameId];
        Turns.Turn memory turn;
        Turns.load(state, turn);
        if (turn.phase != Phase.NONE) revert GameExists(start.gameId);
        turn.last = currentInstant();
        // A run of one checkpoint has no padding, so no game is over before its first move.
        GameLogic.begin(state, turn, start);
        Turns.save(state, turn);
    }

    /// @inheritdoc IGame
    function descend(GameId gameId, bytes32[] calldata nodes) external {
        Turns.Turn memory turn;
        Turns.Game storage state = _turn(gameId, turn, Phase.DESCEND);
        emit Descended(gameId, nodes);
        GameLogic.descend(state, turn, nodes);
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function select(GameId gameId, bytes32 node, uint256 index, bytes32[] calldata siblings, bytes32 seal) external {
        Turns.Turn memory turn;
        Turns.Game storage state = _turn(gameId, turn, Phase.SELECT);
        emit Selected(gameId, index, seal);
        GameLogic.select(state, BOARD, turn, node, index, siblings, seal);
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
        Turns.Turn memory turn;
        Turns.Game storage state = _turn(gameId, turn, Phase.OPEN_STEPS);
        emit StepsOpened(gameId, nodes);
        bool logged = state.policy != 0;
        if (logged) emit LogOpened(gameId, logRoot);
        GameLogs.openSteps(state, turn, logged, stateRoot, lossBits, logRoot);
        GameLogic.openSteps(state, turn, nodes, siblings);
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
        Turns.Turn memory turn;
        Turns.Game storage state = _turn(gameId, turn, Phase.OPEN_VALUES);
        emit ValuesOpened(gameId, stateRoot, lossBits, nodes);
        bool logged = state.policy != 0;
        if (logged) emit LogOpened(gameId, stepLog);
        GameLogs.openValues(state, turn, logged, logRoot, stepLog, logSiblings);
        GameLogic.openValues(state, turn, stateRoot, lossBits, logRoot, nodes, siblings);
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function openTensor(
        GameId gameId,
        bytes calldata instruction,
        bytes32[] calldata siblings,
        bytes32[] calldata nodes
    ) external {
        Turns.Turn memory turn;
        Turns.Game storage state = _turn(gameId, turn, Phase.OPEN_TENSOR);
        emit TensorOpened(gameId, nodes);
        GameLogic.openTensor(state, BOARD, turn, REFEREE, instruction, siblings, nodes);
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function openChunk(GameId gameId, bytes calldata chunk, bytes32 word, bytes32[] calldata siblings) external {
        Turns.Turn memory turn;
        Turns.Game storage state = _turn(gameId, turn, Phase.OPEN_CHUNK);
        emit ChunkOpened(gameId, chunk);
        if (turn.sumKind() != 0) emit LogOpened(gameId, word);
        GameLogs.openChunk(state, turn, word, siblings);
        GameLogic.openChunk(state, turn, chunk);
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function selectElement(GameId gameId, uint256 index, bytes calldata chunk, bytes32 seal) external {
        Turns.Turn memory turn;
        Turns.Game storage state = _turn(gameId, turn, Phase.SELECT_ELEMENT);
        GameLogic.selectElement(state, turn, index, chunk, seal);
        emit ElementSelected(gameId, state.element, seal);
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function openTerms(
        GameId gameId,
        uint64 step,
        uint32 value,
        uint64 element,
        bytes32[] calldata nodes,
        bytes calldata accumulator,
        bytes32[] calldata siblings
    ) external {
        Turns.Turn memory turn;
        Turns.Game storage state = _turn(gameId, turn, Phase.OPEN_TERMS);
        emit TermsOpened(gameId, nodes, accumulator);
        GameLogic.requirePlace(state, step, value, element);
        GameLogic.openTerms(state, turn, REFEREE, nodes, accumulator, siblings);
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function prove(GameId gameId, IReferee.Proof calldata proof, bytes32 salt, bytes32[] calldata opened) external {
        Turns.Turn memory turn;
        Turns.Game storage state = _turn(gameId, turn, Phase.PROVE);
        _judge(gameId, state, turn, Snapshots.shown(state, turn), proof, salt, opened);
    }

    /// @inheritdoc IGame
    function enter(GameId gameId, uint32 sequence, bytes calldata snapshot, bytes calldata signature) external {
        Turns.Turn memory turn;
        Turns.Game storage state = _load(gameId, turn);
        address other = _isDefender(state, msg.sender) ? state.challenger : state.trainer;
        Turns.requireTalk(turn, currentInstant());
        if (sequence <= turn.sequence) revert StaleState(turn.sequence, sequence);
        if (sequence > MAX_SEQUENCE) revert IndexOutOfRange(MAX_SEQUENCE, sequence);
        _requireSigned(gameId, sequence, snapshot, signature, other);
        emit Entered(gameId, sequence, snapshot);
        Snapshots.enter(state, turn, Snapshots.decode(snapshot, state, turn.descentLevels, BOARD));
        turn.sequence = sequence;
        Turns.save(state, turn);
    }

    /// @inheritdoc IGame
    function enterAndProve(
        GameId gameId,
        uint32 sequence,
        bytes calldata snapshot,
        bytes calldata signature,
        IReferee.Proof calldata proof,
        bytes32 salt,
        bytes32[] calldata opened
    ) external {
        Turns.Turn memory turn;
        Turns.Game storage state = _load(gameId, turn);
        _requireSide(state.challenger);
        _requireSigned(gameId, sequence, snapshot, signature, state.trainer);
        GameState memory signed = Snapshots.decode(snapshot, state, turn.descentLevels, BOARD);
        if (signed.phase != Phase.PROVE) revert WrongPhase(Phase.PROVE, signed.phase);
        Snapshots.complete(signed, state);
        _judge(gameId, state, turn, signed, proof, salt, opened);
    }

    /// @inheritdoc IGame
    function reportFork(
        GameId gameId,
        uint32 sequence,
        bytes32 first,
        bytes calldata firstSignature,
        bytes32 second,
        bytes calldata secondSignature
    ) external {
        Turns.Turn memory turn;
        Turns.Game storage state = _load(gameId, turn);
        if (first == second) revert NoFork(first);
        address board = address(BOARD);
        address signer = Signatures.recover(Signatures.stateDigest(board, gameId, sequence, first), firstSignature);
        bool defender = _isDefender(state, signer);
        Signatures.check(Signatures.stateDigest(board, gameId, sequence, second), secondSignature, signer);
        emit Forked(gameId, sequence, first, second);
        Turns.end(turn, defender, Reason.FORKED);
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function concede(GameId gameId) external {
        Turns.Turn memory turn;
        Turns.Game storage state = _load(gameId, turn);
        Turns.end(turn, _isDefender(state, msg.sender), Reason.CONCEDED);
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function timeout(GameId gameId) external {
        Turns.Turn memory turn;
        Turns.Game storage state = _load(gameId, turn);
        Turns.timeout(state, BOARD, turn, currentInstant());
        _close(gameId, state, turn);
    }

    /// @inheritdoc IGame
    function reclaim(GameId gameId) external {
        Turns.Turn memory turn;
        Turns.Game storage state = _load(gameId, turn);
        turn.phase = Phase.OVER;
        turn.verdict = Verdict.VOID;
        turn.reason = Reason.JOB_SLASHED;
        Turns.save(state, turn);
        emit GameEnded(gameId, Verdict.VOID, Reason.JOB_SLASHED);
        BOARD.gameVoided(state.jobId, state.challenger, state.rank);
    }

    /// @inheritdoc IGame
    function game(GameId gameId) external view returns (GameState memory shown) {
        Turns.Game storage state = _games[gameId];
        Turns.Turn memory turn;
        Turns.load(state, turn);
        shown = Snapshots.shown(state, turn);
        shown.verdict = turn.verdict;
        shown.reason = turn.reason;
        shown.descentLevels = turn.descentLevels;
        shown.last = turn.last;
        shown.talk = turn.talk;
        shown.sequence = uint32(turn.sequence);
        shown.defenderRest = turn.defenderRest;
        shown.challengerRest = turn.challengerRest;
        shown.challenger = state.challenger;
        shown.replayTime = Duration.wrap(state.replayTime);
        shown.rank = state.rank;
    }

    /// @inheritdoc IGame
    function mover(GameId gameId) external view returns (address) {
        Turns.Game storage state = _games[gameId];
        Turns.Turn memory turn;
        Turns.load(state, turn);
        Phase phase = turn.phase;
        if (phase == Phase.NONE || phase == Phase.OVER) return address(0);
        return Turns.defenderMoves(phase) ? state.trainer : state.challenger;
    }

    /// @dev Numbered plan of a turn: (1) the game exists and has no verdict, (2) the move fits the phase, (3) the
    /// caller is the mover, (4) a proof has waited, (5) the mover has time left; then its clock is charged.
    /// SAFETY: a move that does not end the game moves no money, so it need not ask whether the job is still active.
    function _turn(GameId gameId, Turns.Turn memory turn, Phase expected)
        private
        view
        returns (Turns.Game storage state)
    {
        state = _load(gameId, turn); // (1)
        if (turn.phase != expected) revert WrongPhase(expected, turn.phase); // (2)
        _requireSide(Turns.defenderMoves(expected) ? state.trainer : state.challenger); // (3)
        Instant current = currentInstant();
        if (expected == Phase.PROVE) Turns.requireRipe(state, BOARD, turn.last, current); // (4)
        Turns.spend(state, BOARD, turn, current); // (5)
    }

    /// @dev Reverts unless `signer` signed that the game stands there after so many moves.
    function _requireSigned(
        GameId gameId,
        uint32 sequence,
        bytes calldata snapshot,
        bytes calldata signature,
        address signer
    ) private view {
        bytes32 hash = Signatures.stateDigest(address(BOARD), gameId, sequence, Snapshots.id(snapshot));
        Signatures.check(hash, signature, signer);
    }

    /// @dev The referee's answer ends the game.
    function _judge(
        GameId gameId,
        Turns.Game storage state,
        Turns.Turn memory turn,
        GameState memory judged,
        IReferee.Proof calldata proof,
        bytes32 salt,
        bytes32[] calldata opened
    ) private {
        (bytes32 right, bytes32 committed) =
            GameLogic.prove(judged, BOARD, REFEREE, GameId.unwrap(gameId), proof, salt, opened);
        emit Proved(gameId, right, committed);
        Turns.end(turn, right != committed, Reason.RECOMPUTED);
        _close(gameId, state, turn);
    }

    /// @dev Keeps the turn; if the move ended the game, has the board pay out.
    function _close(GameId gameId, Turns.Game storage state, Turns.Turn memory turn) private {
        Turns.save(state, turn);
        if (turn.phase != Phase.OVER) return;
        emit GameEnded(gameId, turn.verdict, turn.reason);
        // INVARIANT 7: a game comes here once, for `_load` refuses a game that is over.
        // SAFETY: the board refuses what ends a game of a job that is not active, and then nothing has changed.
        BOARD.gameEnded(state.jobId, state.challenger, state.rank, turn.verdict == Verdict.DEFENDER_LOST);
    }

    function _load(GameId gameId, Turns.Turn memory turn) private view returns (Turns.Game storage state) {
        state = _games[gameId];
        Turns.load(state, turn);
        if (turn.phase == Phase.NONE) revert NoSuchGame(gameId);
        if (turn.phase == Phase.OVER) revert GameIsOver(gameId);
    }

    /// @dev Reverts unless the account plays on one of the sides.
    function _isDefender(Turns.Game storage state, address account) private view returns (bool defender) {
        defender = account == state.trainer;
        if (!defender && account != state.challenger) revert NotASide(account);
    }

    function _requireSide(address side) private view {
        if (msg.sender != side) revert NotYourTurn(side, msg.sender);
    }
}
