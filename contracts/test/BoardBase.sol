// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Board} from "../src/board/Board.sol";
import {Signatures} from "../src/board/Signatures.sol";
import {Games} from "../src/game/Games.sol";
import {GameId, IGame} from "../src/interfaces/IGame.sol";
import {IJobBoard, JobId} from "../src/interfaces/IJobBoard.sol";
import {IReferee} from "../src/interfaces/IReferee.sol";
import {GameStubReferee} from "./GameStubReferee.sol";
import {Vm} from "./support/TestBase.sol";

/// @notice A board over a stub referee, four funded actors and a job of 7 steps with checkpoints at 3, 6 and 7.
abstract contract BoardBase {
    Vm internal constant VM = Vm(address(uint160(uint256(keccak256("hevm cheat code")))));

    uint256 internal constant CLIENT_KEY = 0xC11E;
    uint256 internal constant TRAINER_KEY = 0x7EA1;
    uint256 internal constant CHALLENGER_KEY = 0xC4A1;
    uint256 internal constant STRANGER_KEY = 0x57EA;
    uint256 internal constant REWARD = 10 ether;
    uint256 internal constant TRAINER_STAKE = 5 ether + 1;
    uint256 internal constant CHALLENGER_STAKE = 1 ether;
    /// Of a job without seats: a sixteenth of the prover's share is less than half of a challenger's stake.
    uint256 internal constant RELIEF = TRAINER_STAKE / 2 / 16;
    uint64 internal constant WINDOW = 1000;
    uint64 internal constant CLOCK = 300;
    uint64 internal constant REPLAY = 120;
    uint64 internal constant TALK = 0;
    uint64 internal constant AUDIT = 0;
    uint64 internal constant DEADLINE = 100_000;
    uint256 internal constant FEE = 0.3 ether;
    uint256 internal constant BOND = 1 << 59;
    bytes32 internal constant HEAD_SALT = keccak256("salt of the head");
    bytes32 internal constant ROOT_SALT = keccak256("salt of a root");
    uint8 internal constant PRECISION = 30;
    uint256 internal constant START = 1_700_000_000;

    address internal client;
    address internal trainer;
    address internal challenger;
    address internal stranger;
    GameStubReferee internal referee;
    Board internal board;
    Games internal games;
    /// Of the jobs that are made from now on.
    uint8 internal seats;

    /// @dev Time as the test has set it: the compiler may not read `block.timestamp` again after `warp`.
    uint256 internal current;

    function setUp() public virtual {
        client = _actor(CLIENT_KEY);
        trainer = _actor(TRAINER_KEY);
        challenger = _actor(CHALLENGER_KEY);
        stranger = _actor(STRANGER_KEY);
        referee = new GameStubReferee();
        _deploy(IReferee(address(referee)));
        _warp(START);
    }

    /// @dev The games are made with the address that the board will have: that of this contract's next creation but one.
    function _deploy(IReferee with) internal {
        address next = VM.computeCreateAddress(address(this), VM.getNonce(address(this)) + 1);
        games = new Games(with, IJobBoard(next));
        board = new Board(games);
        require(address(board) == next, "bound to each other");
    }

    function _actor(uint256 key) private returns (address account) {
        account = VM.addr(key);
        VM.deal(account, 1000 ether);
    }

    function _warp(uint256 timestamp) internal {
        current = timestamp;
        VM.warp(timestamp);
    }

    function _job(uint256 nonce) internal view virtual returns (IJobBoard.Job memory) {
        return IJobBoard.Job({
            client: client,
            trainer: trainer,
            programRoot: keccak256("program"),
            bodyCount: 3,
            stateCount: 2,
            dataCount: 1,
            initialStateRoot: keccak256("state 0"),
            dataRoot: keccak256("data"),
            steps: 7,
            checkpointInterval: 3,
            policy: 0,
            precision: PRECISION,
            tolerances: 0,
            reward: REWARD,
            trainerStake: TRAINER_STAKE,
            challengerStake: CHALLENGER_STAKE,
            challengeWindow: WINDOW,
            clock: CLOCK,
            replayTime: REPLAY,
            talkTime: TALK,
            auditTime: AUDIT,
            deadline: DEADLINE,
            seats: seats,
            seatFee: seats == 0 ? 0 : FEE,
            seatBond: seats == 0 ? 0 : BOND,
            descentLevels: 1,
            nonce: seats == 0 ? nonce : _nonceOf(bytes32(nonce))
        });
    }

    function _signature(uint256 key, bytes32 digest) internal pure returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = VM.sign(key, digest);
        return abi.encodePacked(r, s, v);
    }

    function _typed(bytes32 structHash) internal view returns (bytes32) {
        return keccak256(abi.encodePacked(hex"1901", board.domainSeparator(), structHash));
    }

    function _jobSignature(IJobBoard.Job memory job) internal view returns (bytes memory) {
        return _signature(TRAINER_KEY, _typed(JobId.unwrap(board.hashJob(job))));
    }

    function _offer(IJobBoard.Job memory job) internal returns (JobId jobId) {
        bytes memory signature = _jobSignature(job);
        VM.prank(job.client);
        return board.createJob{value: job.reward + job.seats * job.seatFee}(job, signature);
    }

    function _accept(JobId jobId) internal {
        uint256 stake = board.job(jobId).trainerStake;
        VM.prank(trainer);
        board.acceptJob{value: stake}(jobId);
    }

    function _activeJob(uint256 nonce) internal returns (JobId jobId) {
        jobId = _offer(_job(nonce));
        _accept(jobId);
    }

    /// @dev By the client.
    function _cancel(JobId jobId) internal {
        VM.prank(client);
        board.cancelJob(jobId);
    }

    /// @dev By the client; anybody may.
    function _abandon(JobId jobId) internal {
        VM.prank(client);
        board.abandon(jobId);
    }

    function _head(JobId jobId, uint64 count, bytes32 runRoot) internal pure returns (IJobBoard.Head memory) {
        return IJobBoard.Head(jobId, count, runRoot);
    }

    function _headSignature(IJobBoard.Head memory head) internal view returns (bytes memory) {
        return _signature(TRAINER_KEY, board.headDigest(head));
    }

    function _concession(uint256 key, IJobBoard.Head memory head, address prover) internal view returns (bytes memory) {
        return _signature(key, _typed(Signatures.hashConcession(head, prover)));
    }

    function _concede(IJobBoard.Head memory head, address prover) internal {
        board.reportConcession(head, prover, _concession(TRAINER_KEY, head, prover));
    }

    function _post(JobId jobId, uint64 count, bytes32 runRoot) internal {
        IJobBoard.Head memory head = _head(jobId, count, runRoot);
        board.postHead(head, _headSignature(head));
    }

    /// @dev What the board has and owes nobody, beside what it holds.
    function _burned(uint256 held) internal view returns (uint256) {
        address[4] memory all = [client, trainer, challenger, stranger];
        for (uint256 i = 0; i < 4; ++i) {
            held += board.credit(all[i]);
        }
        return address(board).balance - held;
    }

    // ---------------------------------------------------------------- seats

    function _join(address who, uint32 slot) internal {
        VM.prank(who);
        board.joinPool{value: BOND}(slot);
    }

    function _headSeal(JobId jobId, uint64 count, bytes32 runRoot) internal pure returns (bytes32) {
        return _headSeal(jobId, count, runRoot, HEAD_SALT);
    }

    function _headSeal(JobId jobId, uint64 count, bytes32 runRoot, bytes32 salt) internal pure returns (bytes32) {
        return sha256(abi.encodePacked("tb.hseal", jobId, count, runRoot, salt));
    }

    function _nonceOf(bytes32 secret) internal pure returns (uint256) {
        return uint256(sha256(abi.encodePacked("tb.secrt", secret)));
    }

    function _sealHead(JobId jobId, uint64 count, bytes32 runRoot) internal {
        // A call of a precompile would use up the prank.
        bytes32 seal = _headSeal(jobId, count, runRoot);
        VM.prank(trainer);
        board.sealHead(jobId, count, seal);
    }

    /// @dev The client's secret of the job that `_job(nonce)` makes is the nonce.
    function _draw(uint256 nonce) internal {
        board.drawSeats(_job(nonce), bytes32(nonce));
    }

    function _rootSeal(JobId jobId, address auditor, bytes32 runRoot) internal pure returns (bytes32) {
        return _rootSeal(jobId, auditor, runRoot, ROOT_SALT);
    }

    function _rootSeal(JobId jobId, address auditor, bytes32 runRoot, bytes32 salt) internal pure returns (bytes32) {
        return sha256(abi.encodePacked("tb.rseal", jobId, auditor, runRoot, salt));
    }

    function _sealRoot(JobId jobId, uint8 seat, bytes32 runRoot) internal returns (address auditor) {
        auditor = board.seatOwner(jobId, seat);
        bytes32 seal = _rootSeal(jobId, auditor, runRoot);
        VM.prank(auditor);
        board.sealRoot{value: BOND}(jobId, seat, seal);
    }

    function _openHead(JobId jobId, uint64 count, bytes32 runRoot) internal {
        IJobBoard.Head memory head = _head(jobId, count, runRoot);
        board.openHead(head, _headSignature(head), HEAD_SALT);
    }

    function _claim(JobId jobId, uint8 seat, address auditor, bytes32 runRoot) internal {
        board.claimSeat(jobId, seat, auditor, runRoot, ROOT_SALT);
    }

    // ---------------------------------------------------------------- games

    function _challenge(JobId jobId, uint64 count, bytes32 runRoot, uint64 nonce) internal returns (GameId) {
        return _challengeAs(challenger, jobId, count, runRoot, nonce);
    }

    function _challengeAs(address who, JobId jobId, uint64 count, bytes32 runRoot, uint64 nonce)
        internal
        returns (GameId)
    {
        IJobBoard.Head memory head = _head(jobId, count, runRoot);
        bytes memory signature = _headSignature(head);
        IJobBoard.JobState memory state = board.job(jobId);
        uint256 stake = uint256(state.challengerStake) << state.openGames;
        VM.prank(who);
        return board.challenge{value: stake}(head, signature, nonce);
    }

    function _expect(bytes memory data) internal virtual {
        VM.expectRevert(data);
    }

    function _equal(uint256 expected, uint256 actual, string memory what) internal pure {
        require(expected == actual, what);
    }

    function _equal(bytes32 expected, bytes32 actual, string memory what) internal pure {
        require(expected == actual, what);
    }

    function _requireStatus(JobId jobId, IJobBoard.JobStatus expected) internal view {
        require(board.job(jobId).status == expected, "job status");
    }

    function _requirePhase(GameId gameId, IGame.Phase expected) internal view {
        require(games.game(gameId).phase == expected, "phase");
    }
}
