// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IGame} from "../interfaces/IGame.sol";
import {IJobBoard} from "../interfaces/IJobBoard.sol";
import {Commitments} from "../libraries/Commitments.sol";
import {Isa} from "../libraries/Isa.sol";
import {Tags} from "../libraries/Tags.sol";
import {Trees} from "../libraries/Trees.sol";
import {GameLogic} from "./GameLogic.sol";
import {Segments} from "./Segments.sol";
import {Turns} from "./Turns.sol";

/// @title Where a game stands, in memory: as 144 bytes say (SPEC section 10.1), or as it is stored
library Snapshots {
    uint256 internal constant BYTES = 144;
    uint256 internal constant MAX_HEIGHT = 64;
    uint256 internal constant MAX_ELEMENT = (1 << 40) - 1;
    /// Bit 16 * level + phase: the phases of the levels, TERMS first.
    uint256 private constant PHASES = 0x0206_03c6_0226_0016_000e;
    /// What an element may accumulate (`IReferee.finish`).
    uint256 private constant ACCUMULATORS = 7;

    /// @return what is signed of a snapshot
    function id(bytes calldata snapshot) internal view returns (bytes32) {
        return Commitments.tagged(Tags.SNAPSHOT, snapshot);
    }

    /// @notice Reverts unless the fields are those of a place in this game: see `requireReachable`.
    /// @param descentLevels r
    function decode(bytes calldata snapshot, Turns.Game storage stored, uint256 descentLevels, IJobBoard board)
        internal
        view
        returns (IGame.GameState memory game)
    {
        game = read(snapshot);
        requireReachable(game, stored, descentLevels, board);
    }

    /// @notice Reverts unless every field is in its range.
    function read(bytes calldata snapshot) internal pure returns (IGame.GameState memory game) {
        if (snapshot.length != BYTES) revert IGame.SnapshotLength(BYTES, snapshot.length);
        uint256 word = uint256(bytes32(snapshot[:32]));
        _require(0, word >> 248, uint256(IGame.Phase.DESCEND), uint256(IGame.Phase.PROVE));
        _require(1, word >> 240 & 0xff, 0, uint256(IGame.Level.TERMS));
        _require(2, word >> 232 & 0xff, 0, MAX_HEIGHT);
        _require(3, word >> 224 & 0xff, 0, 1);
        _require(16, uint64(word >> 64), 0, MAX_ELEMENT);
        game.phase = IGame.Phase(word >> 248);
        game.level = IGame.Level(word >> 240 & 0xff);
        // The casts take the field and drop what is above it.
        // forge-lint: disable-start(unsafe-typecast)
        game.height = uint8(word >> 232);
        game.fresh = uint8(word >> 224) != 0;
        game.dtype = uint8(word >> 216);
        game.summation = uint8(word >> 208);
        game.lastChunkBytes = uint16(word >> 192);
        game.position = uint64(word >> 128);
        game.element = uint64(word >> 64);
        game.leaves = uint64(word);
        word = uint128(bytes16(snapshot[32:48]));
        game.step = uint64(word >> 64);
        game.instruction = uint32(word >> 32);
        game.termLeaves = uint32(word);
        // forge-lint: disable-end(unsafe-typecast)
        game.node = bytes32(snapshot[48:80]);
        game.opened = bytes32(snapshot[80:112]);
        game.log = bytes32(snapshot[112:]);
    }

    /// @notice Adds what of the job a proof takes.
    function complete(IGame.GameState memory game, Turns.Game storage stored) internal view {
        game.jobId = stored.jobId;
        game.trainer = stored.trainer;
        game.depth = stored.depth;
        game.precision = stored.precision;
        game.policy = stored.policy;
        game.bodyCount = stored.bodyCount;
        game.stateCount = stored.stateCount;
        game.tolerances = stored.tolerances;
    }

    /// @return game what a snapshot of it would say; and `complete`
    function shown(Turns.Game storage stored, Turns.Turn memory turn)
        internal
        view
        returns (IGame.GameState memory game)
    {
        game.phase = turn.phase;
        game.level = turn.level;
        game.height = turn.height;
        game.fresh = turn.fresh;
        game.dtype = turn.dtype;
        game.summation = turn.summation;
        game.position = turn.position;
        game.node = GameLogic.nodeOf(stored, turn.level, turn.fresh);
        game.opened = stored.opened;
        game.leaves = Turns.leavesOf(stored, turn);
        game.step = stored.step;
        game.element = stored.element;
        game.instruction = stored.instruction;
        game.termLeaves = stored.termLeaves;
        game.lastChunkBytes = stored.lastChunkBytes;
        complete(game, stored);
        // Of policy `exact` there is none to read.
        if (game.policy != 0) game.log = stored.log;
    }

    /// @notice The game goes on from what was signed. Clocks and talk stay as they are.
    function enter(Turns.Game storage stored, Turns.Turn memory turn, IGame.GameState memory game) internal {
        turn.phase = game.phase;
        turn.level = game.level;
        turn.height = game.height;
        turn.fresh = game.fresh;
        turn.dtype = game.dtype;
        turn.summation = game.summation;
        turn.position = game.position;
        stored.node = game.node;
        stored.opened = game.opened;
        // In the run tree `leavesOf` reads `count`, which is the same.
        stored.leaves = game.leaves;
        // In its range, as decoded.
        // forge-lint: disable-next-line(unsafe-typecast)
        (stored.step, stored.element) = (game.step, uint40(game.element));
        (stored.instruction, stored.termLeaves) = (game.instruction, game.termLeaves);
        stored.lastChunkBytes = game.lastChunkBytes;
        // Of policy `exact` there is none, and its slot stays untouched.
        if (stored.policy != 0) stored.log = game.log;
    }

    /// @notice Reverts unless the fields agree with each other and with the job as they do wherever a walk may stand (SPEC
    /// section 10.1), so that every move from here has its rule and every place its tree. SAFETY: that the digests are
    /// those of lawful play is not checked, for that takes the walk; nor what only the program knows: see `IGame.enter`.
    function requireReachable(
        IGame.GameState memory game,
        Turns.Game storage stored,
        uint256 descentLevels,
        IJobBoard board
    ) internal view {
        uint256 phases = PHASES >> 16 * uint256(game.level);
        _hold(1, uint256(game.level), phases >> uint256(game.phase) & 1 != 0);
        bool walks = game.phase <= IGame.Phase.SELECT;
        bool logged = stored.policy != 0;
        if (game.level < IGame.Level.CHUNKS) _requireNoTensor(game, walks);
        else _requireTensor(game, stored, logged);
        uint256 depth = _requireTree(game, stored, board);
        unchecked {
            // SAFETY: what wraps is larger than any depth, and refused.
            bool inTree = walks ? game.height - uint256(1) < depth : game.height == 0;
            _hold(2, game.height, inTree && (!walks || (depth - game.height) % descentLevels == 0));
            bool opens = game.phase == IGame.Phase.DESCEND && game.level != IGame.Level.RUN;
            _hold(3, game.fresh ? 1 : 0, game.fresh == (game.height == depth) && !(game.fresh && opens));
            _hold(8, game.position, walks ? game.position >> (depth - game.height) == 0 : _isLeaf(game, stored));
        }
        bool isLog = logged && game.level != IGame.Level.RUN && !(game.level == IGame.Level.STEPS && game.leaves == 1);
        _hold(112, uint256(game.log), isLog || game.log == 0);
    }

    /// @dev Before OPEN_TENSOR, and at a `source`, nothing is known of a tensor.
    function _requireNoTensor(IGame.GameState memory game, bool walks) private pure {
        _require(4, game.dtype, 0, 0);
        _require(6, game.lastChunkBytes, 0, 0);
        _require(44, game.termLeaves, 0, 0);
        _require(5, game.summation, 0, 0);
        uint256 position = game.level == IGame.Level.VALUES && !walks ? game.position : 0;
        _require(40, game.instruction, position, position);
        _require(16, game.element, 0, 0);
        bool isRoot = game.level == IGame.Level.RUN && game.fresh; // it is not stored: see `GameLogic.nodeOf`
        _hold(48, uint256(game.node), !isRoot || game.node == game.opened);
    }

    /// @dev The tensor, its sum, and the element that was selected, if one was.
    function _requireTensor(IGame.GameState memory game, Turns.Game storage stored, bool logged) private view {
        bool inTerms = game.level == IGame.Level.TERMS;
        bool proves = game.phase == IGame.Phase.PROVE;
        bool selected = inTerms || proves || game.phase == IGame.Phase.OPEN_TERMS;
        _require(4, game.dtype, Isa.F32, Isa.BOOL);
        uint256 size = Isa.size(game.dtype);
        _require(6, game.lastChunkBytes, size, Isa.CHUNK_BYTES);
        _hold(6, game.lastChunkBytes, game.lastChunkBytes % size == 0);
        bool summed = game.termLeaves != 0;
        _require(44, game.termLeaves, 0, Isa.MAX_TERMS / Isa.TERMS_PER_LEAF);
        _hold(44, game.termLeaves, game.termLeaves != 1 && (!selected || summed == (inTerms || !proves)));
        uint256 kind = game.summation >> 4 & 3;
        bool sums = (game.summation & 15 != 0) == summed && game.summation & 15 <= ACCUMULATORS;
        bool logs = kind == 0 || (logged && game.dtype == Isa.F32);
        bool coded = game.summation >> 6 == 0 || (selected && kind != 0 && game.summation >> 6 != 3);
        _hold(5, game.summation, sums && logs && coded);
        _require(40, game.instruction, 0, stored.bodyCount - 1);
        _require(24, game.leaves, 1, Isa.MAX_NUMEL / Isa.CHUNK_BYTES * size);
        uint256 perChunk = Isa.CHUNK_BYTES / size;
        uint256 chunk = game.element / perChunk;
        uint256 inside = chunk + 1 == game.leaves ? game.lastChunkBytes / size : perChunk;
        bool held = chunk < game.leaves && game.element % perChunk < inside && (inTerms || chunk == game.position);
        _hold(16, game.element, selected ? held : game.element == 0);
        _hold(48, uint256(game.node), !selected || inTerms || uint256(game.node) >> 8 * size == 0);
    }

    /// @return depth of the tree in which the node stands; reverts unless its step and its leaves are the job's
    function _requireTree(IGame.GameState memory game, Turns.Game storage stored, IJobBoard board)
        private
        view
        returns (uint256 depth)
    {
        (uint64 steps, uint64 interval) = board.segments(stored.jobId);
        uint64 count = stored.count;
        bool inRun = game.level == IGame.Level.RUN;
        if (inRun && game.phase != IGame.Phase.OPEN_STEPS) {
            _require(32, game.step, 0, 0);
            _require(24, game.leaves, count, count);
        } else {
            _require(32, game.step, 1, steps);
            uint64 segment = (game.step - 1) / interval;
            uint64 place = (game.step - 1) % interval;
            uint64 chosen = game.phase == IGame.Phase.OPEN_VALUES ? game.position : 0;
            bool fits =
                inRun ? place == 0 && segment == game.position : game.level != IGame.Level.STEPS || place == chosen;
            _hold(32, game.step, segment < count && fits);
            uint64 length = Segments.length(steps, interval, segment);
            if (game.level < IGame.Level.CHUNKS) {
                _hold(24, game.leaves, game.leaves == length && !(inRun && length == 1));
            }
        }
        if (game.level == IGame.Level.VALUES) return uint256(stored.depth) + 1;
        if (game.level == IGame.Level.TERMS) return Trees.depthOf(game.termLeaves);
        return Trees.depthOf(inRun ? Segments.checkpoints(steps, interval) : game.leaves);
    }

    /// @dev Whether the position is one of a leaf that is no padding.
    function _isLeaf(IGame.GameState memory game, Turns.Game storage stored) private view returns (bool) {
        uint256 position = game.position;
        if (game.level == IGame.Level.RUN) return position < stored.count;
        if (game.level == IGame.Level.TERMS) return position < game.termLeaves;
        if (game.level != IGame.Level.VALUES) return position < game.leaves;
        uint256 half = uint256(1) << stored.depth;
        if (position < half) return position < stored.bodyCount;
        return game.phase == IGame.Phase.PROVE && position - half < stored.stateCount;
    }

    function _require(uint256 offset, uint256 value, uint256 low, uint256 high) private pure {
        _hold(offset, value, low <= value && value <= high);
    }

    function _hold(uint256 offset, uint256 value, bool holds) private pure {
        if (!holds) revert IGame.InvalidSnapshot(offset, value);
    }
}
