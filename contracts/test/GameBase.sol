// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {GameId, IGame} from "../src/interfaces/IGame.sol";
import {IJobBoard, JobId} from "../src/interfaces/IJobBoard.sol";
import {IReferee} from "../src/interfaces/IReferee.sol";
import {BoardBase} from "./BoardBase.sol";
import {GameTrees} from "./GameTrees.sol";

/// @notice A synthetic run of 7 steps (segments of 3, 3 and 1) of a program of 3 body instructions and 2 commits:
/// instruction 0 a source, 1 a long reduction with an output of 300 f32 (3 chunks), 2 the loss. Every tree that the
/// walk can enter, at every step, is built here, all with padding leaves: run 3 of 4, steps 3 of 4, body 3 of 4 and
/// commits 2 of 4, chunks 3 of 4, accumulators 3 of 4.
abstract contract GameBase is BoardBase {
    uint32 internal constant LOSS_BITS = 0x3f800000;
    uint64 internal constant SOURCE = 0;
    uint64 internal constant LONG = 1;
    bytes32 internal constant SALT = keccak256("salt");
    bytes32 internal constant WRONG = keccak256("wrong");
    /// 10 of plain sums, 20 of sums of products (the long reduction is one), 30 of scattered ones.
    uint32 internal constant TOLERANCES = 10 | 20 << 8 | 30 << 16;

    bytes32[] internal runLeaves;
    bytes32[] internal programLeaves;
    bytes32[] internal chunkLeaves;
    bytes32[] internal termLeaves;
    /// What the moves of the current game have opened, as `prove` has to repeat it.
    bytes32[] internal opened;
    /// What the challenger seals, and the referee then says.
    bytes32 internal right = keccak256("right");
    bytes private pendingReason;
    uint8 internal levels = 1;
    /// Whether jobs are of policy `logged`. The long reduction is then a logged sum.
    bool internal logged;
    JobId internal jobId;
    GameId internal gameId;

    function setUp() public virtual override {
        super.setUp();
        _makeRun();
        programLeaves = new bytes32[](8);
        for (uint256 i = 0; i < 8; ++i) {
            programLeaves[i] = i == 3 || i > 5 ? GameTrees.empty() : _instructionLeaf(_instruction(i));
        }
        for (uint256 i = 0; i < 3; ++i) {
            chunkLeaves.push(sha256(abi.encodePacked("tb.chunk", _chunk(i))));
            termLeaves.push(keccak256(_accumulator(i)));
        }
    }

    function _makeRun() private {
        delete runLeaves;
        for (uint64 segment = 0; segment < 3; ++segment) {
            bytes32[] memory steps = _stepLeaves(segment);
            runLeaves.push(steps[steps.length - 1]);
        }
    }

    /// @dev From now on, jobs of policy `logged`.
    function _keepLogs() internal {
        logged = true;
        _makeRun();
    }

    function _job(uint256 nonce) internal view virtual override returns (IJobBoard.Job memory job) {
        job = super._job(nonce);
        if (logged) (job.policy, job.tolerances) = (1, TOLERANCES);
        job.programRoot = GameTrees.root(programLeaves);
        job.descentLevels = levels;
    }

    // ---------------------------------------------------------------- the defender's data

    function _instruction(uint256 number) internal pure returns (bytes memory) {
        IReferee.Description memory description;
        description.leaf = bytes32(number); // makes them different
        description.opcode = number == SOURCE ? 1 : number == LONG ? 3 : 10;
        (description.elements, description.dataBytes, description.chunks) = (300, 1200, 3);
        if (number == LONG) (description.termLeaves, description.accumulator, description.sumKind) = (3, 7, 2);
        if (number == 2) {
            (description.opcode, description.elements, description.dataBytes, description.chunks) = (2, 1, 4, 1);
        }
        return abi.encode(description);
    }

    function _instructionLeaf(bytes memory instruction) internal pure returns (bytes32) {
        return sha256(abi.encodePacked("tb.instr", instruction));
    }

    /// @dev Bytes of chunk i of the output of instruction 1: 300 f32 whose bits are their place in the chunk.
    function _chunk(uint256 index) internal pure returns (bytes memory data) {
        data = new bytes(index < 2 ? 512 : 176);
        for (uint256 i = 0; i < data.length; i += 4) {
            data[i] = bytes1(uint8(i / 4));
        }
    }

    /// @dev Accumulator leaf i of element 5 of a chunk, whose bits are 5.
    function _accumulator(uint256 leaf) internal pure returns (bytes memory) {
        return abi.encode(true, uint64(leaf == 2 ? 5 : 100 + leaf));
    }

    function _stateRoot(uint64 step) internal pure returns (bytes32) {
        bytes32[] memory entries = new bytes32[](2);
        entries[0] = keccak256(abi.encode("state", step, uint256(0)));
        entries[1] = keccak256(abi.encode("state", step, uint256(1)));
        return GameTrees.root(entries);
    }

    /// @dev All 8 leaves of the value tree of a step.
    function _valueLeaves(uint64 step) internal view returns (bytes32[] memory leaves) {
        leaves = new bytes32[](8);
        for (uint256 i = 0; i < 8; ++i) {
            leaves[i] = GameTrees.empty();
        }
        leaves[0] = keccak256(abi.encode("source", step));
        leaves[1] = _outputId(_instruction(LONG), GameTrees.root(chunkLeaves));
        leaves[2] = _lossId();
        leaves[4] = keccak256(abi.encode("state", step, uint256(0)));
        leaves[5] = keccak256(abi.encode("state", step, uint256(1)));
    }

    /// @dev As the stub has it.
    function _outputId(bytes memory instruction, bytes32 chunkRoot) internal pure returns (bytes32) {
        return keccak256(abi.encode(instruction, chunkRoot));
    }

    function _body(bytes32[] memory all) internal pure returns (bytes32[] memory leaves) {
        leaves = new bytes32[](4);
        for (uint256 i = 0; i < 4; ++i) {
            leaves[i] = all[i];
        }
    }

    /// @dev Id of the rank-0 f32 tensor 1.0: its data are the bytes 00 00 80 3f.
    function _lossId() internal pure returns (bytes32) {
        bytes32 chunk = sha256(abi.encodePacked("tb.chunk", hex"0000803f"));
        return sha256(abi.encodePacked("tb.tensr", uint8(0), uint8(0), chunk));
    }

    function _record(uint64 step) internal view returns (bytes32) {
        return _record(step, _logRoot((step - 1) / 3));
    }

    function _record(uint64 step, bytes32 logRoot) internal pure returns (bytes32) {
        return sha256(abi.encodePacked("tb.recrd", step, _stateRoot(step), LOSS_BITS, logRoot));
    }

    /// @dev What the log of a step says of a chunk of the long reduction. Of element 5: up in chunk 0, nothing in chunk 1
    /// (nor of any other), the code without a meaning in chunk 2.
    function _word(uint64 step, uint256 chunk) internal view virtual returns (bytes32) {
        if (chunk == 1) return 0;
        return bytes32(uint256(step) << 248 | (chunk == 0 ? uint256(8) : 12) << 240);
    }

    /// @dev What the referee is told of an element of the long reduction.
    function _rounding(uint64 step, uint256 element) internal view returns (uint32) {
        uint256 index = element % 128;
        uint256 code = uint8(_word(step, element / 128)[index / 4]) / 4 ** (index % 4) % 4;
        return logged && code % 3 != 0 ? uint32(PRECISION | 20 << 8 | code << 16) : PRECISION;
    }

    function _wordLeaves(uint64 step) internal view returns (bytes32[] memory leaves) {
        leaves = new bytes32[](3);
        for (uint256 i = 0; i < 3; ++i) {
            bytes32 word = _word(step, i);
            leaves[i] = word == 0 ? GameTrees.empty() : sha256(abi.encodePacked("tb.lgwrd", word));
        }
    }

    /// @dev Leaves of the log tree of a step: as deep as the body half.
    function _logLeaves(uint64 step) internal view returns (bytes32[] memory leaves) {
        leaves = new bytes32[](4);
        for (uint256 i = 0; i < 4; ++i) {
            leaves[i] = i == LONG ? GameTrees.root(_wordLeaves(step)) : GameTrees.empty();
        }
    }

    /// @dev The siblings of the word of a chunk of the long reduction, up to the step log.
    function _wordProof(uint64 step, uint256 chunk) internal view returns (bytes32[] memory siblings) {
        siblings = new bytes32[](4);
        bytes32[] memory low = GameTrees.proof(_wordLeaves(step), chunk);
        bytes32[] memory high = GameTrees.proof(_logLeaves(step), LONG);
        (siblings[0], siblings[1], siblings[2], siblings[3]) = (low[0], low[1], high[0], high[1]);
    }

    function _stepLog(uint64 step) internal view returns (bytes32) {
        return GameTrees.root(_logLeaves(step));
    }

    /// @dev Leaves of the logs tree of a segment.
    function _stepLogs(uint64 segment) internal view returns (bytes32[] memory leaves) {
        leaves = new bytes32[](segment == 2 ? 1 : 3);
        for (uint64 i = 0; i < leaves.length; ++i) {
            leaves[i] = _stepLog(3 * segment + i + 1);
        }
    }

    function _logRoot(uint64 segment) internal view returns (bytes32) {
        return logged ? GameTrees.root(_stepLogs(segment)) : bytes32(0);
    }

    function _stepLeaves(uint64 segment) internal view returns (bytes32[] memory leaves) {
        leaves = new bytes32[](segment == 2 ? 1 : 3);
        for (uint64 i = 0; i < leaves.length; ++i) {
            leaves[i] = _record(3 * segment + i + 1);
        }
    }

    // ---------------------------------------------------------------- playing

    /// @dev The next `_play` must be refused, with exactly this error. (The cheat codes that do the same apply to the
    /// next call of any kind, also to a precompile or the referee while a move's arguments are being made.)
    function _expect(bytes memory reason) internal override {
        require(pendingReason.length == 0, "the refusal expected before was not tried");
        pendingReason = reason;
    }

    function _expectBrokenTie() internal {
        _expect(abi.encodeWithSelector(IGame.BrokenTie.selector));
    }

    function _play(address who, bytes memory move) internal virtual {
        VM.prank(who);
        (bool success, bytes memory reason) = address(games).call(move);
        if (pendingReason.length == 0) {
            if (!success) {
                assembly ("memory-safe") {
                    revert(add(reason, 32), mload(reason))
                }
            }
            return;
        }
        require(!success && keccak256(reason) == keccak256(pendingReason), "refused with the expected error");
        delete pendingReason;
    }

    function _start() internal {
        _startWith(runLeaves, 3);
    }

    function _startWith(bytes32[] memory leaves, uint64 count) internal {
        jobId = _activeJob(uint256(keccak256(abi.encode(levels, leaves))));
        gameId = _challenge(jobId, count, GameTrees.root(leaves), 0);
        delete opened;
        opened.push(GameTrees.root(leaves));
    }

    function _seal(bytes32 answer) internal view returns (bytes32) {
        return sha256(abi.encodePacked("tb.seal.", gameId, answer, SALT));
    }

    /// @dev Through the current tree, whose leaves are given, to a leaf where no seal is kept.
    function _walk(bytes32[] memory leaves, uint256 position) internal {
        _walk(leaves, position, 0);
    }

    /// @dev Descends and selects through the current tree, whose leaves are given, to a leaf.
    function _walk(bytes32[] memory leaves, uint256 position, bytes32 seal) internal {
        uint256 height = GameTrees.depth(leaves);
        while (height > 0) {
            uint256 step = height < levels ? height : levels;
            if (games.game(gameId).phase == IGame.Phase.DESCEND) {
                bytes32[] memory nodes = GameTrees.below(leaves, height, position >> height, step);
                _play(trainer, abi.encodeCall(IGame.descend, (gameId, nodes)));
            }
            height -= step;
            _select(leaves, height, position >> height, height == 0 ? seal : bytes32(0));
        }
    }

    /// @dev Chooses the node (height, position) of the tree.
    function _select(bytes32[] memory leaves, uint256 height, uint256 position, bytes32 seal) internal {
        _play(challenger, _selection(leaves, height, position, seal));
    }

    function _selection(bytes32[] memory leaves, uint256 height, uint256 position, bytes32 seal)
        internal
        view
        returns (bytes memory)
    {
        uint256 step = GameTrees.depth(leaves) - height;
        if (step > levels) step = (step - 1) % levels + 1;
        bytes32[] memory siblings = GameTrees.siblingsUp(leaves, height, position, step);
        bytes32 node = GameTrees.levelAt(leaves, height)[position];
        return abi.encodeCall(IGame.select, (gameId, node, position & ((1 << step) - 1), siblings, seal));
    }

    function _openSteps(uint64 segment) internal {
        _openSteps(_stepLeaves(segment));
    }

    function _openSteps(bytes32[] memory leaves) internal {
        uint64 last = games.game(gameId).step + 2;
        if (logged) _openSteps(leaves, _stateRoot(last), LOSS_BITS, _logRoot((last - 1) / 3));
        else _openSteps(leaves, 0, 0, 0);
    }

    function _openSteps(bytes32[] memory leaves, bytes32 stateRoot, uint32 lossBits, bytes32 logRoot) internal {
        bytes32[] memory nodes = GameTrees.opening(leaves, levels);
        bytes32[] memory siblings = GameTrees.proof(leaves, 2);
        _play(trainer, abi.encodeCall(IGame.openSteps, (gameId, nodes, siblings, stateRoot, lossBits, logRoot)));
        opened.push(GameTrees.root(leaves));
    }

    function _openValues(uint64 step) internal {
        _openValues(step, _valueLeaves(step));
    }

    function _openValues(uint64 step, bytes32[] memory all) internal {
        _play(trainer, _values(step, all));
        opened.push(GameTrees.root(_body(all)));
    }

    function _values(uint64 step, bytes32[] memory all) internal view returns (bytes memory) {
        uint64 segment = (step - 1) / 3;
        if (!logged) return _values(step, all, 0, 0, new bytes32[](0));
        bytes32[] memory siblings = GameTrees.proof(_stepLogs(segment), (step - 1) % 3);
        return _values(step, all, _logRoot(segment), _stepLog(step), siblings);
    }

    function _values(uint64 step, bytes32[] memory all, bytes32 logRoot, bytes32 stepLog, bytes32[] memory logSiblings)
        internal
        view
        returns (bytes memory)
    {
        bytes32[] memory siblings = GameTrees.proof(_body(all), 2);
        bytes32[] memory nodes = GameTrees.opening(all, levels);
        return abi.encodeCall(
            IGame.openValues, (gameId, _stateRoot(step), LOSS_BITS, logRoot, nodes, siblings, stepLog, logSiblings)
        );
    }

    function _openTensor(uint256 number) internal {
        bytes32[] memory nodes;
        if (number != SOURCE) nodes = GameTrees.opening(chunkLeaves, levels);
        _openTensor(_instruction(number), GameTrees.proof(programLeaves, number), nodes);
    }

    function _openTensor(bytes memory instruction, bytes32[] memory siblings, bytes32[] memory nodes) internal {
        _play(trainer, abi.encodeCall(IGame.openTensor, (gameId, instruction, siblings, nodes)));
        opened.push(_instructionLeaf(instruction));
    }

    function _openChunk(uint256 index) internal {
        IGame.GameState memory state = games.game(gameId);
        if (state.summation >> 4 == 0) return _openChunk(_chunk(index));
        _openChunk(_chunk(index), _word(state.step, index), _wordProof(state.step, index));
    }

    /// @dev Of what is not logged.
    function _openChunk(bytes memory data) internal {
        _openChunk(data, 0, new bytes32[](0));
    }

    function _openChunk(bytes memory data, bytes32 word, bytes32[] memory siblings) internal {
        _play(trainer, abi.encodeCall(IGame.openChunk, (gameId, data, word, siblings)));
    }

    /// @dev Of the long reduction: no seal is kept.
    function _selectElement(uint256 index, uint256 chunk) internal {
        _play(challenger, abi.encodeCall(IGame.selectElement, (gameId, index, _chunk(chunk), bytes32(0))));
    }

    function _openTerms() internal {
        _terms(GameTrees.opening(termLeaves, levels), _accumulator(2), GameTrees.proof(termLeaves, 2));
        opened.push(GameTrees.root(termLeaves));
    }

    function _terms(bytes32[] memory nodes, bytes memory accumulator, bytes32[] memory siblings) internal {
        IGame.GameState memory state = games.game(gameId);
        _termsOf(state.step, state.instruction, state.element, nodes, accumulator, siblings);
    }

    function _termsOf(
        uint64 step,
        uint32 value,
        uint64 element,
        bytes32[] memory nodes,
        bytes memory accumulator,
        bytes32[] memory siblings
    ) internal {
        bytes memory move = abi.encodeCall(
            IGame.openTerms, (gameId, step, value, element, nodes, accumulator, siblings)
        );
        _play(trainer, move);
    }

    /// @dev A second after the move before.
    function _prove() internal {
        _warp(current + CLOCK);
        referee.answerWith(right);
        _play(challenger, _proof(SALT, opened));
    }

    function _proof(bytes32 salt, bytes32[] memory list) internal view returns (bytes memory) {
        IReferee.Proof memory proof;
        return abi.encodeCall(IGame.prove, (gameId, proof, salt, list));
    }

    /// @dev To phase OPEN_VALUES of a step of segment 0 or 1.
    function _walkToStep(uint64 step) internal {
        uint64 segment = (step - 1) / 3;
        _start();
        _walk(runLeaves, segment);
        _openSteps(segment);
        _walk(_stepLeaves(segment), (step - 1) % 3);
    }

    /// @dev To a leaf of the value tree of that step that is no padding, sealing what will be right.
    function _walkToValue(uint64 step, uint256 leaf) internal {
        _walkToStep(step);
        _openValues(step);
        _walk(_valueLeaves(step), leaf, _seal(right));
        opened.push(_seal(right));
    }

    /// @dev To phase OPEN_CHUNK of a chunk of the long reduction.
    function _walkToChunk(uint64 step, uint256 chunk) internal {
        _walkToValue(step, LONG);
        _openTensor(LONG);
        _walk(chunkLeaves, chunk);
    }

    /// @dev To phase OPEN_TERMS of element 5 of a chunk.
    function _walkToElement(uint64 step, uint256 chunk) internal {
        _walkToChunk(step, chunk);
        _openChunk(chunk);
        _selectElement(5, chunk);
    }

    /// @dev To phase PROVE of a leaf of the partial sums.
    function _walkToTerms(uint64 step, uint256 chunk, uint256 leaf) internal {
        _walkToElement(step, chunk);
        _openTerms();
        _walk(termLeaves, leaf, _seal(right));
        opened.push(_seal(right));
    }

    // ---------------------------------------------------------------- verdicts

    function _defenderLost(IGame.Reason reason) internal view {
        IGame.GameState memory state = games.game(gameId);
        require(state.phase == IGame.Phase.OVER && state.verdict == IGame.Verdict.DEFENDER_LOST, "defender lost");
        require(state.reason == reason, "reason");
        _requireStatus(jobId, IJobBoard.JobStatus.SLASHED);
        _equal(REWARD, board.credit(client), "refund");
        _equal(CHALLENGER_STAKE + TRAINER_STAKE / 2, board.credit(challenger), "challenger's reward");
        _equal(TRAINER_STAKE - TRAINER_STAKE / 2, _burned(0), "burned");
        _equal(0, board.credit(trainer), "trainer gets nothing");
        _equal(0, board.job(jobId).openGames, "no game left");
    }

    function _challengerLost(IGame.Reason reason) internal view {
        IGame.GameState memory state = games.game(gameId);
        require(state.phase == IGame.Phase.OVER && state.verdict == IGame.Verdict.CHALLENGER_LOST, "challenger lost");
        require(state.reason == reason, "reason");
        _requireStatus(jobId, IJobBoard.JobStatus.ACTIVE);
        _equal(CHALLENGER_STAKE / 2, board.credit(trainer), "half of the stake goes to the trainer");
        _equal(CHALLENGER_STAKE - CHALLENGER_STAKE / 2, _burned(REWARD + TRAINER_STAKE), "the rest burns");
        _equal(0, board.credit(challenger), "challenger gets nothing");
        _equal(0, board.job(jobId).openGames, "no game left");
    }

    // ---------------------------------------------------------------- states signed in talk

    /// @dev The snapshot of a state, as SPEC 11 lays it out.
    function _encode(IGame.GameState memory s) internal pure returns (bytes memory) {
        bytes memory first = abi.encodePacked(uint8(s.phase), uint8(s.level), s.height, s.fresh, s.dtype, s.summation);
        bytes memory second = abi.encodePacked(s.lastChunkBytes, s.position, s.element, s.leaves, s.step, s.instruction);
        return abi.encodePacked(first, second, s.termLeaves, s.node, s.opened, s.log);
    }

    function _idOf(bytes memory snapshot) internal pure returns (bytes32) {
        return sha256(abi.encodePacked("tb.snap.", snapshot));
    }

    function _stateSignature(uint256 key, uint32 sequence, bytes32 id) internal view returns (bytes memory) {
        bytes32 kind = keccak256("State(bytes32 gameId,uint32 sequence,bytes32 snapshot)");
        return _signature(key, _typed(keccak256(abi.encode(kind, gameId, sequence, id))));
    }
}
