// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IGame} from "../interfaces/IGame.sol";
import {IJobBoard} from "../interfaces/IJobBoard.sol";
import {IReferee} from "../interfaces/IReferee.sol";
import {Commitments} from "../libraries/Commitments.sol";
import {Isa} from "../libraries/Isa.sol";
import {Trees} from "../libraries/Trees.sol";
import {Duration, Instant} from "./Time.sol";

/// @title The rules of the game (SPEC section 10), on a game's and a job's storage
/// @notice One function per move. The caller has checked that the game exists, that it is the mover's turn and that
/// the job is active. A function reverts (illegal move), or changes the game; the game may then be OVER.
library GameLogic {
    /// The loss of record 0: the one NaN.
    uint32 private constant NAN_BITS = uint32(Isa.NAN_BITS);

    // ---------------------------------------------------------------- turns and clocks

    /// @dev INVARIANT 4: the mover is a function of the phase.
    function defenderMoves(IGame.Phase phase) internal pure returns (bool) {
        return phase == IGame.Phase.DESCEND || phase == IGame.Phase.OPEN_STEPS || phase == IGame.Phase.OPEN_VALUES
            || phase == IGame.Phase.OPEN_TENSOR || phase == IGame.Phase.OPEN_CHUNK || phase == IGame.Phase.OPEN_TERMS;
    }

    /// @notice Takes the time since the last move from the mover's clock.
    function spend(IGame.GameState storage game, Instant current) internal {
        Duration used = current.since(game.last);
        bool defender = defenderMoves(game.phase);
        Duration rest = defender ? game.defenderRest : game.challengerRest;
        // INVARIANT 5: exactly the rest may be used, one second more is `timeout`'s. A move and a timeout are never both legal.
        if (used.exceeds(rest)) revert IGame.ClockExhausted(rest, used);
        if (defender) game.defenderRest = rest.minus(used);
        else game.challengerRest = rest.minus(used);
        game.last = current;
    }

    /// @notice The side to move is out of time.
    function timeout(IGame.GameState storage game, Instant current) internal {
        Duration used = current.since(game.last);
        bool defender = defenderMoves(game.phase);
        Duration rest = defender ? game.defenderRest : game.challengerRest;
        if (!used.exceeds(rest)) revert IGame.ClockRunning(rest, used);
        _end(game, defender, IGame.Reason.TIMEOUT);
    }

    // ---------------------------------------------------------------- the walk

    /// @notice Starts the walk at the root of the run tree.
    function begin(IGame.GameState storage game, IJobBoard.JobState storage job, bytes32 runRoot, uint64 count)
        internal
    {
        game.descentLevels = job.descentLevels;
        game.defenderRest = job.clock;
        game.challengerRest = job.clock;
        game.headCount = count;
        game.runRoot = runRoot;
        game.leaves = count;
        _enter(game, job, IGame.Level.RUN, runRoot, Trees.depthOf(checkpoints(job)));
    }

    function descend(IGame.GameState storage game, bytes32[] calldata nodes) internal {
        _requireNodeCount(game, nodes.length);
        if (Trees.foldNodes(nodes) != game.node) return _brokenTie(game);
        game.phase = IGame.Phase.SELECT;
    }

    function select(
        IGame.GameState storage game,
        IJobBoard.JobState storage job,
        bytes32[] calldata nodes,
        uint256 index
    ) internal {
        uint8 levels = _requireNodeCount(game, nodes.length);
        if (index >= nodes.length) revert IGame.IndexOutOfRange(nodes.length, index);
        bytes32 folded = Trees.foldNodes(nodes);
        // INVARIANT 1: they fold to the node, so they are the defender's (SHA-256 has no second set known).
        if (folded != game.node) revert IGame.NodesDoNotFold(game.node, folded);
        bytes32 node = nodes[index];
        uint8 height = game.height - levels;
        game.node = node;
        game.height = height;
        // INVARIANT 3: position < 2^(levels walked) <= 2^64.
        // forge-lint: disable-next-line(unsafe-typecast)
        game.position = uint64((uint256(game.position) << levels) | index);
        if (height > 0) game.phase = IGame.Phase.DESCEND;
        else _leaf(game, job);
    }

    function openSteps(
        IGame.GameState storage game,
        IJobBoard.JobState storage job,
        bytes32 stepsRoot,
        bytes32[] calldata siblings
    ) internal {
        uint64 steps = segmentSteps(job, game.segment);
        uint256 depth = Trees.depthOf(steps);
        _requireProofLength(depth, siblings.length);
        if (Trees.fold(game.node, steps - 1, siblings) != stepsRoot) return _brokenTie(game);
        _enterSteps(game, job, stepsRoot, steps, depth);
    }

    function openValues(
        IGame.GameState storage game,
        IJobBoard.JobState storage job,
        bytes32 stateRoot,
        uint32 lossBits,
        bytes32 logRoot,
        bytes32 bodyRoot,
        bytes32[] calldata siblings
    ) internal {
        uint8 depth = job.depth;
        _requireProofLength(depth, siblings.length);
        if (Commitments.record(game.step, stateRoot, lossBits, logRoot) != game.node) return _brokenTie(game);
        // Policy `exact` keeps no log.
        if (logRoot != bytes32(0)) return _brokenTie(game);
        bytes32 loss = Commitments.scalarId(Isa.F32, lossBits);
        if (Trees.fold(loss, job.bodyCount - 1, siblings) != bodyRoot) return _brokenTie(game);
        game.bodyRoot = bodyRoot;
        bytes32 stateHalf = Trees.pad(stateRoot, Trees.depthOf(job.stateCount), depth);
        _enter(game, job, IGame.Level.VALUES, Trees.parent(bodyRoot, stateHalf), uint256(depth) + 1);
    }

    function openTensor(
        IGame.GameState storage game,
        IJobBoard.JobState storage job,
        IReferee referee,
        bytes calldata instruction,
        bytes32[] calldata siblings,
        bytes32 chunkRoot
    ) internal {
        _requireProofLength(uint256(job.depth) + 1, siblings.length);
        bytes32 leaf = Commitments.instructionLeaf(instruction);
        if (Trees.fold(leaf, game.instruction, siblings) != job.programRoot) return _brokenTie(game);
        game.instructionLeaf = leaf;
        IReferee.Description memory description = referee.describe(instruction);
        if (description.opcode == Isa.SOURCE) {
            game.phase = IGame.Phase.PROVE;
            return;
        }
        if (referee.outputId(instruction, chunkRoot) != game.node) return _brokenTie(game);
        game.dataBytes = description.dataBytes;
        game.leaves = description.chunks;
        _enter(game, job, IGame.Level.CHUNKS, chunkRoot, Trees.depthOf(description.chunks));
    }

    function openChunk(IGame.GameState storage game, bytes calldata chunk) internal {
        uint256 length = Commitments.chunkLength(game.dataBytes, game.position);
        if (chunk.length != length || Commitments.chunkLeaf(chunk) != game.node) return _brokenTie(game);
        game.phase = IGame.Phase.SELECT_ELEMENT;
    }

    function selectElement(
        IGame.GameState storage game,
        IReferee referee,
        uint256 index,
        bytes calldata chunk,
        bytes calldata instruction
    ) internal {
        bytes32 leaf = Commitments.chunkLeaf(chunk);
        if (leaf != game.node) revert IGame.WrongChunk(game.node, leaf);
        _requireInstruction(game, instruction);
        IReferee.Description memory description = referee.describe(instruction);
        uint256 size = description.dataBytes / description.elements;
        if (index >= chunk.length / size) revert IGame.IndexOutOfRange(chunk.length / size, index);
        // A tensor has at most 2^40 elements.
        // forge-lint: disable-next-line(unsafe-typecast)
        game.element = uint64(game.position * (Isa.CHUNK_BYTES / size) + index);
        game.claimed = referee.elementBits(description.dtype, chunk, index);
        game.leaves = description.termLeaves;
        game.phase = description.termLeaves > 0 ? IGame.Phase.OPEN_TERMS : IGame.Phase.PROVE;
    }

    function openTerms(
        IGame.GameState storage game,
        IJobBoard.JobState storage job,
        IReferee referee,
        bytes32 accumulatorRoot,
        bytes calldata accumulator,
        bytes32[] calldata siblings,
        bytes calldata instruction
    ) internal {
        _requireInstruction(game, instruction);
        uint64 leaves = game.leaves;
        uint256 depth = Trees.depthOf(leaves);
        _requireProofLength(depth, siblings.length);
        (bool canonical, bytes32 leaf, uint64 bits) = referee.finish(instruction, accumulator);
        if (!canonical || bits != game.claimed) return _brokenTie(game);
        if (Trees.fold(leaf, leaves - 1, siblings) != accumulatorRoot) return _brokenTie(game);
        game.accumulatorRoot = accumulatorRoot;
        _enter(game, job, IGame.Level.TERMS, accumulatorRoot, depth);
    }

    /// @return right what the referee computed @return committed what the defender had committed
    function prove(
        IGame.GameState storage game,
        IJobBoard.JobState storage job,
        IReferee referee,
        IReferee.Proof calldata proof
    ) internal returns (bytes32 right, bytes32 committed) {
        IReferee.Context memory context = proofContext(game, job);
        right = referee.judge(context, proof);
        committed = context.target == IReferee.Target.ELEMENT ? bytes32(uint256(game.claimed)) : game.node;
        _end(game, right != committed, IGame.Reason.RECOMPUTED);
    }

    // ---------------------------------------------------------------- what the referee is told

    function proofContext(IGame.GameState storage game, IJobBoard.JobState storage job)
        internal
        view
        returns (IReferee.Context memory context)
    {
        IGame.Level level = game.level;
        context.target = level == IGame.Level.VALUES
            ? IReferee.Target.VALUE
            : level == IGame.Level.CHUNKS ? IReferee.Target.ELEMENT : IReferee.Target.TERMS;
        context.depth = job.depth;
        context.position = game.instruction;
        context.element = game.element;
        context.termsLeaf = level == IGame.Level.TERMS ? game.position : 0;
        context.step = game.step;
        context.stateCount = job.stateCount;
        context.dataCount = job.dataCount;
        context.instructionLeaf = game.instructionLeaf;
        context.programRoot = job.programRoot;
        context.bodyRoot = game.bodyRoot;
        context.dataRoot = job.dataRoot;
        context.accumulatorRoot = game.accumulatorRoot;
        _previousRecord(context, game, job);
    }

    /// @dev Where record s-1 stands: record 0, a checkpoint of the run tree, or a step of the same segment. All of
    /// these lie left of the disputed record, so both sides agree on them (INVARIANT 2).
    function _previousRecord(
        IReferee.Context memory context,
        IGame.GameState storage game,
        IJobBoard.JobState storage job
    ) private view {
        uint64 previous = context.step - 1;
        uint64 interval = job.checkpointInterval;
        if (previous == 0) {
            context.recordRoot = Commitments.record(0, job.initialStateRoot, NAN_BITS, bytes32(0));
        } else if (previous % interval == 0) {
            context.recordRoot = game.runRoot;
            context.recordDepth = uint8(Trees.depthOf(checkpoints(job)));
            context.recordPosition = previous / interval - 1;
        } else {
            context.recordRoot = game.stepsRoot;
            context.recordDepth = uint8(Trees.depthOf(segmentSteps(job, game.segment)));
            context.recordPosition = previous - game.segment * interval - 1;
        }
    }

    /// @return ceil(steps / k)
    function checkpoints(IJobBoard.JobState storage job) internal view returns (uint64) {
        return (job.steps - 1) / job.checkpointInterval + 1;
    }

    /// @return the steps of checkpoint `segment`: k, or what remains
    function segmentSteps(IJobBoard.JobState storage job, uint64 segment) internal view returns (uint64) {
        uint64 interval = job.checkpointInterval;
        uint64 rest = job.steps - segment * interval;
        return rest < interval ? rest : interval;
    }

    // ---------------------------------------------------------------- inner workings

    function _enter(
        IGame.GameState storage game,
        IJobBoard.JobState storage job,
        IGame.Level level,
        bytes32 root,
        uint256 depth
    ) private {
        game.level = level;
        game.node = root;
        // A tree is at most 64 deep.
        // forge-lint: disable-next-line(unsafe-typecast)
        game.height = uint8(depth);
        game.position = 0;
        if (depth > 0) game.phase = IGame.Phase.DESCEND;
        else _leaf(game, job);
    }

    function _enterSteps(
        IGame.GameState storage game,
        IJobBoard.JobState storage job,
        bytes32 stepsRoot,
        uint64 steps,
        uint256 depth
    ) private {
        game.stepsRoot = stepsRoot;
        game.leaves = steps;
        _enter(game, job, IGame.Level.STEPS, stepsRoot, depth);
    }

    /// @dev The walk reached a leaf of the current tree.
    function _leaf(IGame.GameState storage game, IJobBoard.JobState storage job) private {
        if (_isPadding(game, job)) {
            // An empty leaf is right here, whatever else stands in the tree.
            return _end(game, game.node != Trees.EMPTY, IGame.Reason.PADDING);
        }
        IGame.Level level = game.level;
        uint64 position = game.position;
        if (level == IGame.Level.RUN) {
            game.segment = position;
            if (segmentSteps(job, position) == 1) return _enterSteps(game, job, game.node, 1, 0);
            game.phase = IGame.Phase.OPEN_STEPS;
        } else if (level == IGame.Level.STEPS) {
            game.step = game.segment * job.checkpointInterval + position + 1;
            game.phase = IGame.Phase.OPEN_VALUES;
        } else if (level == IGame.Level.VALUES) {
            // The value tree has at most 2^21 leaves.
            // forge-lint: disable-next-line(unsafe-typecast)
            game.instruction = uint32(position);
            game.phase = position >> job.depth == 0 ? IGame.Phase.OPEN_TENSOR : IGame.Phase.PROVE;
        } else if (level == IGame.Level.CHUNKS) {
            game.phase = IGame.Phase.OPEN_CHUNK;
        } else {
            game.phase = IGame.Phase.PROVE;
        }
    }

    function _isPadding(IGame.GameState storage game, IJobBoard.JobState storage job) private view returns (bool) {
        IGame.Level level = game.level;
        uint64 position = game.position;
        if (level == IGame.Level.VALUES) {
            uint64 half = uint64(1) << job.depth;
            return position < half ? position >= job.bodyCount : position - half >= job.stateCount;
        }
        return position >= game.leaves;
    }

    function _brokenTie(IGame.GameState storage game) private {
        _end(game, true, IGame.Reason.BROKEN_TIE);
    }

    function _end(IGame.GameState storage game, bool defenderLost, IGame.Reason reason) private {
        game.phase = IGame.Phase.OVER;
        game.verdict = defenderLost ? IGame.Verdict.DEFENDER_LOST : IGame.Verdict.CHALLENGER_LOST;
        game.reason = reason;
    }

    /// @return levels min(r, height)
    function _requireNodeCount(IGame.GameState storage game, uint256 count) private view returns (uint8 levels) {
        uint8 height = game.height;
        levels = game.descentLevels;
        if (height < levels) levels = height;
        if (count != uint256(1) << levels) revert IGame.WrongNodeCount(uint256(1) << levels, count);
    }

    function _requireProofLength(uint256 expected, uint256 actual) private pure {
        if (expected != actual) revert IGame.WrongProofLength(expected, actual);
    }

    function _requireInstruction(IGame.GameState storage game, bytes calldata instruction) private view {
        bytes32 leaf = Commitments.instructionLeaf(instruction);
        if (leaf != game.instructionLeaf) revert IGame.WrongInstructionBytes(game.instructionLeaf, leaf);
    }
}
