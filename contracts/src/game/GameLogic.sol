// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IGame} from "../interfaces/IGame.sol";
import {IJobBoard} from "../interfaces/IJobBoard.sol";
import {IReferee} from "../interfaces/IReferee.sol";
import {Commitments} from "../libraries/Commitments.sol";
import {Isa} from "../libraries/Isa.sol";
import {Trees} from "../libraries/Trees.sol";
import {ProofContext} from "./ProofContext.sol";
import {RefereeCalls} from "./RefereeCalls.sol";
import {Segments} from "./Segments.sol";
import {Duration} from "./Time.sol";
import {Turns} from "./Turns.sol";

/// @title The rules of the game (SPEC section 10), on a game's storage
/// @notice One function per move. The caller has checked that the game exists, that it is the mover's turn and that
/// it is in time. A function reverts (illegal move), or changes the game and the turn, which the caller saves; the
/// game may then be OVER. `GameLogs` has the part of the rounding log.
library GameLogic {
    using Turns for Turns.Turn;

    // ---------------------------------------------------------------- the walk

    /// @notice Starts the walk at the root of the run tree.
    function begin(Turns.Game storage game, Turns.Turn memory turn, IGame.Start calldata start) internal {
        game.jobId = start.jobId;
        _keepTerms(game, start);
        turn.descentLevels = start.descentLevels;
        turn.defenderRest = start.clock;
        turn.challengerRest = start.clock;
        turn.talk = start.talkTime;
        bytes32 runRoot = start.runRoot;
        game.opened = runRoot;
        (game.challenger, game.count) = (start.challenger, start.count);
        // At most 2^25 / 96.
        // forge-lint: disable-next-line(unsafe-typecast)
        (game.replayTime, game.rank) = (uint24(Duration.unwrap(start.replayTime)), start.rank);
        uint256 depth = Trees.depthOf(Segments.checkpoints(start.steps, start.checkpointInterval));
        turn.level = IGame.Level.RUN;
        turn.fresh = true;
        // A tree is at most 64 deep.
        // forge-lint: disable-next-line(unsafe-typecast)
        turn.height = uint8(depth);
        turn.phase = IGame.Phase.DESCEND;
        // The run root stands in `opened`: of a deep tree it need not be written twice, the first choice replaces it.
        if (depth <= 1) game.node = runRoot;
        // A run of one checkpoint has no padding and no seal.
        if (depth == 0) _enterSegment(game, turn, runRoot, start.steps, start.checkpointInterval);
    }

    /// @notice The node of a game: that of its slot, or the run root before anything was chosen.
    function nodeOf(Turns.Game storage game, IGame.Level level, bool fresh) internal view returns (bytes32) {
        return fresh && level == IGame.Level.RUN ? game.opened : game.node;
    }

    function descend(Turns.Game storage game, Turns.Turn memory turn, bytes32[] calldata nodes) internal view {
        _requireNodes(turn, turn.height, nodes.length);
        requireTie(Trees.foldNodes(nodes) == _node(game, turn));
        turn.phase = IGame.Phase.SELECT;
    }

    function select(
        Turns.Game storage game,
        IJobBoard board,
        Turns.Turn memory turn,
        bytes32 node,
        uint256 index,
        bytes32[] calldata siblings,
        bytes32 seal
    ) internal {
        uint256 levels = _levels(turn, turn.height);
        if (index >> levels != 0) revert IGame.IndexOutOfRange(uint256(1) << levels, index);
        requireProofLength(levels, siblings.length);
        bytes32 above = _node(game, turn);
        bytes32 found = Trees.fold(node, index, siblings);
        // INVARIANT 1: it stands below the node, so it is the defender's (SHA-256 has no second set known).
        if (found != above) revert IGame.NodeDoesNotFold(above, found);
        game.node = node;
        turn.fresh = false;
        unchecked {
            // INVARIANT 3: levels <= height; position < 2^(levels walked) <= 2^64.
            // forge-lint: disable-next-line(unsafe-typecast)
            turn.height -= uint8(levels);
            // forge-lint: disable-next-line(unsafe-typecast)
            turn.position = uint64((uint256(turn.position) << levels) | index);
        }
        turn.phase = IGame.Phase.DESCEND;
        if (turn.height == 0 && _leaf(game, board, turn, node)) _extend(game, seal);
        else _requireNoSeal(seal);
    }

    function openSteps(
        Turns.Game storage game,
        Turns.Turn memory turn,
        bytes32[] calldata nodes,
        bytes32[] calldata siblings
    ) internal {
        uint64 steps = game.leaves;
        uint256 depth = Trees.depthOf(steps);
        _requireNodes(turn, depth, nodes.length);
        requireProofLength(depth, siblings.length);
        bytes32 root = Trees.foldNodes(nodes);
        requireTie(Trees.fold(_node(game, turn), steps - 1, siblings) == root);
        _extend(game, root);
        // A segment of one step is not opened, so the depth is at least 1.
        _enter(game, turn, IGame.Level.STEPS, root, depth);
    }

    function openValues(
        Turns.Game storage game,
        Turns.Turn memory turn,
        bytes32 stateRoot,
        uint32 lossBits,
        bytes32 logRoot,
        bytes32[] calldata nodes,
        bytes32[] calldata siblings
    ) internal {
        uint256 depth = game.depth;
        _requireNodes(turn, depth + 1, nodes.length);
        requireProofLength(depth, siblings.length);
        requireTie(Commitments.record(game.step, stateRoot, lossBits, logRoot) == game.node);
        uint256 half = nodes.length / 2;
        bytes32 bodyRoot = Trees.foldNodes(nodes[:half]);
        requireTie(Trees.fold(Commitments.lossId(lossBits), game.bodyCount - 1, siblings) == bodyRoot);
        bytes32 stateHalf = Trees.pad(stateRoot, Trees.depthOf(game.stateCount), depth);
        requireTie(Trees.foldNodes(nodes[half:]) == stateHalf);
        _extend(game, bodyRoot);
        _enter(game, turn, IGame.Level.VALUES, Trees.parent(bodyRoot, stateHalf), depth + 1);
    }

    function openTensor(
        Turns.Game storage game,
        IJobBoard board,
        Turns.Turn memory turn,
        IReferee referee,
        bytes calldata instruction,
        bytes32[] calldata siblings,
        bytes32[] calldata nodes
    ) internal {
        requireProofLength(uint256(game.depth) + 1, siblings.length);
        bytes32 leaf = Commitments.instructionLeaf(instruction);
        requireTie(Trees.fold(leaf, game.instruction, siblings) == board.programRoot(game.jobId));
        // Whether the number of nodes is right is known only below; one that is no level's is never.
        bytes32 root = Trees.isLevel(nodes.length) ? Trees.foldNodes(nodes) : bytes32(0);
        IReferee.Description memory description = RefereeCalls.describe(referee, instruction, root);
        if (description.opcode == Isa.SOURCE) {
            if (nodes.length != 0) revert IGame.WrongNodeCount(0, nodes.length);
            _extend(game, leaf);
            turn.phase = IGame.Phase.PROVE;
            return;
        }
        uint256 depth = Trees.depthOf(description.chunks);
        _requireNodes(turn, depth, nodes.length);
        requireTie(description.id == game.node);
        _extend(game, leaf);
        _keep(game, turn, description, game.policy != 0);
        _enter(game, turn, IGame.Level.CHUNKS, root, depth);
    }

    function openChunk(Turns.Game storage game, Turns.Turn memory turn, bytes calldata chunk) internal view {
        uint256 length = turn.position + 1 == game.leaves ? game.lastChunkBytes : Isa.CHUNK_BYTES;
        requireTie(chunk.length == length && Commitments.chunkLeaf(chunk) == game.node);
        turn.phase = IGame.Phase.SELECT_ELEMENT;
    }

    function selectElement(
        Turns.Game storage game,
        Turns.Turn memory turn,
        uint256 index,
        bytes calldata chunk,
        bytes32 seal
    ) internal {
        bytes32 leaf = Commitments.chunkLeaf(chunk);
        bytes32 node = game.node;
        if (leaf != node) revert IGame.WrongChunk(node, leaf);
        uint256 size = Isa.size(turn.dtype);
        // The chunk's length is that of the shape, so what is inside it is inside the tensor.
        if (index >= chunk.length / size) revert IGame.IndexOutOfRange(chunk.length / size, index);
        // A tensor has at most 2^40 elements.
        // forge-lint: disable-next-line(unsafe-typecast)
        game.element = uint40(turn.position * (Isa.CHUNK_BYTES / size) + index);
        game.node = bytes32(_littleEndian(chunk, index * size, size));
        if (turn.sumKind() != 0) turn.follow(game.log, index);
        if (turn.accumulator() != 0) {
            _requireNoSeal(seal);
            turn.phase = IGame.Phase.OPEN_TERMS;
        } else {
            _extend(game, seal);
            turn.phase = IGame.Phase.PROVE;
        }
    }

    /// @dev INVARIANT 12: partial sums tie to the element's bits alone, and another element may have the same.
    function requirePlace(Turns.Game storage game, uint64 step, uint32 value, uint64 element) internal view {
        bool isSelected = step == game.step && value == game.instruction && element == game.element;
        if (!isSelected) revert IGame.WrongPlace(game.step, game.instruction, game.element);
    }

    function openTerms(
        Turns.Game storage game,
        Turns.Turn memory turn,
        IReferee referee,
        bytes32[] calldata nodes,
        bytes calldata accumulator,
        bytes32[] calldata siblings
    ) internal {
        uint256 leaves = game.termLeaves;
        uint256 depth = Trees.depthOf(leaves);
        _requireNodes(turn, depth, nodes.length);
        requireProofLength(depth, siblings.length);
        (bool canonical, bytes32 leaf, uint64 bits) = referee.finish(
            turn.accumulator(), ProofContext.rounding(game.precision, game.tolerances, turn.summation), accumulator
        );
        requireTie(canonical && bytes32(uint256(bits)) == game.node);
        bytes32 root = Trees.foldNodes(nodes);
        requireTie(Trees.fold(leaf, leaves - 1, siblings) == root);
        _extend(game, root);
        // More than 4 terms are at least 2 leaves: the depth is at least 1.
        _enter(game, turn, IGame.Level.TERMS, root, depth);
    }

    /// @notice On a game in memory, which is as it was stored or as the defender signed it.
    /// @return right what the referee computed @return committed what the defender had committed
    function prove(
        IGame.GameState memory game,
        IJobBoard board,
        IReferee referee,
        bytes32 gameId,
        IReferee.Proof calldata proof,
        bytes32 salt,
        bytes32[] calldata opened
    ) internal view returns (bytes32 right, bytes32 committed) {
        ProofContext.check(game, opened);
        right = RefereeCalls.judge(referee, ProofContext.make(game, board, opened), proof);
        bytes32 expected = ProofContext.sealOf(game.level, opened);
        bytes32 found = Commitments.seal(gameId, right, salt);
        // INVARIANT 10: who proves had the answer when it chose the leaf, before any proof could be copied.
        if (found != expected) revert IGame.WrongSeal(expected, found);
        committed = game.node;
    }

    // ---------------------------------------------------------------- inner workings

    /// @dev Enters a tree whose nodes, min(r, depth) levels down, have just been shown.
    function _enter(Turns.Game storage game, Turns.Turn memory turn, IGame.Level level, bytes32 root, uint256 depth)
        private
    {
        game.node = root;
        turn.level = level;
        // A tree is at most 64 deep.
        // forge-lint: disable-next-line(unsafe-typecast)
        turn.height = uint8(depth);
        turn.position = 0;
        turn.fresh = true;
        // Only a tensor of one chunk has a tree without levels.
        turn.phase = depth > 0 ? IGame.Phase.SELECT : IGame.Phase.OPEN_CHUNK;
    }

    /// @dev The walk reached a leaf of the current tree. The job is read only where it is needed.
    /// @return isSealed whether the seal given with it is kept
    function _leaf(Turns.Game storage game, IJobBoard board, Turns.Turn memory turn, bytes32 node)
        private
        returns (bool isSealed)
    {
        IGame.Level level = turn.level;
        uint64 position = turn.position;
        if (level == IGame.Level.VALUES) return _valueLeaf(game, turn, node);
        if (position >= (level == IGame.Level.TERMS ? game.termLeaves : Turns.leavesOf(game, turn))) {
            return _padding(turn, node);
        }
        if (level == IGame.Level.RUN) {
            (uint64 steps, uint64 interval) = board.segments(game.jobId);
            _enterSegment(game, turn, node, steps, interval);
        } else if (level == IGame.Level.STEPS) {
            game.step += position;
            turn.phase = IGame.Phase.OPEN_VALUES;
        } else if (level == IGame.Level.CHUNKS) {
            turn.phase = IGame.Phase.OPEN_CHUNK;
        } else {
            turn.phase = IGame.Phase.PROVE;
            return true;
        }
    }

    /// @dev The value tree has two halves, each with its own padding.
    function _valueLeaf(Turns.Game storage game, Turns.Turn memory turn, bytes32 node) private returns (bool isSealed) {
        uint64 position = turn.position;
        uint64 half = uint64(1) << game.depth;
        bool isCommit = position >= half;
        if (isCommit ? position - half >= game.stateCount : position >= game.bodyCount) return _padding(turn, node);
        // The value tree has at most 2^21 leaves.
        // forge-lint: disable-next-line(unsafe-typecast)
        game.instruction = uint32(position);
        turn.phase = isCommit ? IGame.Phase.PROVE : IGame.Phase.OPEN_TENSOR;
        return true;
    }

    /// @dev An empty leaf is right here, whatever else stands in the tree.
    /// @return isSealed no seal is kept
    function _padding(Turns.Turn memory turn, bytes32 node) private pure returns (bool isSealed) {
        turn.end(node != Trees.EMPTY, IGame.Reason.PADDING);
        return false;
    }

    function _enterSegment(Turns.Game storage game, Turns.Turn memory turn, bytes32 node, uint64 steps, uint64 interval)
        private
    {
        uint64 length = Segments.length(steps, interval, turn.position);
        game.step = Segments.firstStep(interval, turn.position);
        game.leaves = length;
        if (length > 1) {
            turn.phase = IGame.Phase.OPEN_STEPS;
            return;
        }
        // The segment's one record is its steps tree.
        _extend(game, node);
        turn.level = IGame.Level.STEPS;
        turn.position = 0;
        turn.fresh = true;
        turn.phase = IGame.Phase.OPEN_VALUES;
    }

    /// @dev One write: all of the slot is known here.
    function _keepTerms(Turns.Game storage game, IGame.Start calldata start) private {
        uint256 word = uint160(start.trainer) | uint256(start.depth) << 160 | uint256(start.precision) << 168;
        word |= uint256(start.policy) << 176 | uint256(start.bodyCount) << 184 | uint256(start.stateCount) << 208;
        word |= uint256(start.tolerances) << 232;
        assembly ("memory-safe") {
            sstore(add(game.slot, 6), word)
        }
    }

    /// @dev What later moves need of the instruction.
    function _keep(
        Turns.Game storage game,
        Turns.Turn memory turn,
        IReferee.Description memory description,
        bool logged
    ) private {
        turn.dtype = description.dtype;
        turn.sums(description.termLeaves > 0 ? description.accumulator : 0, logged ? description.sumKind : 0);
        game.leaves = description.chunks;
        game.termLeaves = description.termLeaves;
        // At most 512, by the number of chunks.
        // forge-lint: disable-next-line(unsafe-typecast)
        game.lastChunkBytes = uint16(Commitments.chunkLength(description.dataBytes, description.chunks - 1));
    }

    /// @dev t_{n+1} of SPEC section 11.
    function _extend(Turns.Game storage game, bytes32 x) private {
        game.opened = ProofContext.extended(game.opened, x);
    }

    function _node(Turns.Game storage game, Turns.Turn memory turn) private view returns (bytes32) {
        return nodeOf(game, turn.level, turn.fresh);
    }

    /// @dev The unsigned number in `size` bytes, least significant first; they lie inside the chunk.
    function _littleEndian(bytes calldata chunk, uint256 offset, uint256 size) private pure returns (uint256 bits) {
        assembly ("memory-safe") {
            for { let i := 0 } lt(i, size) { i := add(i, 1) } {
                bits := or(bits, shl(shl(3, i), byte(0, calldataload(add(chunk.offset, add(offset, i))))))
            }
        }
    }

    /// @return min(r, height)
    function _levels(Turns.Turn memory turn, uint256 height) private pure returns (uint256) {
        return height < turn.descentLevels ? height : turn.descentLevels;
    }

    function _requireNodes(Turns.Turn memory turn, uint256 height, uint256 count) private pure {
        uint256 expected = uint256(1) << _levels(turn, height);
        if (count != expected) revert IGame.WrongNodeCount(expected, count);
    }

    /// @dev What the defender shows has to hang together with what it had committed to.
    function requireTie(bool holds) internal pure {
        if (!holds) revert IGame.BrokenTie();
    }

    function requireProofLength(uint256 expected, uint256 actual) internal pure {
        if (expected != actual) revert IGame.WrongProofLength(expected, actual);
    }

    function _requireNoSeal(bytes32 seal) private pure {
        if (seal != bytes32(0)) revert IGame.UnexpectedSeal(seal);
    }
}
