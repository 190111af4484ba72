// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Duration, Instant} from "../game/Time.sol";
import {IJobBoard, JobId} from "./IJobBoard.sol";
import {IReferee} from "./IReferee.sol";

/// H(`tb.game.` ‖ job id ‖ head digest ‖ challenger ‖ u64 nonce): names a game.
type GameId is bytes32;

/// @title The game: one walk down run, steps, values, chunks, terms (SPEC section 10)
/// @notice The defender is the job's trainer; the challenger is whoever called `challenge`. A *tie* that fails is a
/// verdict (the defender loses at once); a malformed or out-of-turn move reverts and changes nothing.
///
/// Invariants of a game that has no verdict:
///  1. `node` is the defender's: revealed by it, or tied to what it had committed before.
///  2. Everything left of the path from the run root to `node` is what both sides agree on; the challenger says so
///     by choosing the first node that differs.
///  3. `height` + the levels already walked = the depth of the current tree; position < 2^(levels walked).
///  4. Exactly one side is to move, and only its clock runs: the mover is a function of the phase.
///  5. defenderRest + challengerRest + time used = 2 · clock; neither is ever negative.
///  6. Each phase leads to a later one of the same level, to DESCEND or SELECT at less height, or to a lower level. So a game ends.
///  7. The game holds exactly one challenger's stake, until its verdict.
interface IGame {
    /// What the next move is. The numbers are the message kinds of SPEC section 9.
    enum Phase {
        /// No such game.
        NONE,
        DESCEND,
        SELECT,
        OPEN_STEPS,
        OPEN_VALUES,
        OPEN_TENSOR,
        OPEN_CHUNK,
        SELECT_ELEMENT,
        OPEN_TERMS,
        PROVE,
        /// It has a verdict.
        OVER
    }

    /// The tree in which `node` stands.
    enum Level {
        RUN,
        STEPS,
        VALUES,
        CHUNKS,
        TERMS
    }

    enum Verdict {
        NONE,
        DEFENDER_LOST,
        CHALLENGER_LOST,
        /// The job was slashed by another game or for an equivocation; the stake went back.
        VOID
    }

    /// Why a game ended.
    enum Reason {
        NONE,
        /// A tie that failed.
        BROKEN_TIE,
        /// The walk ended on a position that must be empty.
        PADDING,
        /// The referee recomputed the leaf.
        RECOMPUTED,
        TIMEOUT,
        /// The job ended otherwise.
        JOB_SLASHED
    }

    /// A game as the contract keeps it.
    struct GameState {
        // -- the slot that every move writes
        Phase phase;
        Level level;
        /// Levels between `node` and the leaves of its tree.
        uint8 height;
        /// r of the job.
        uint8 descentLevels;
        Verdict verdict;
        Reason reason;
        /// When the last move was made.
        Instant last;
        Duration defenderRest;
        Duration challengerRest;
        /// Of `node` among the nodes of its height, from the left. In OPEN_CHUNK and SELECT_ELEMENT: the chunk.
        uint64 position;
        // --
        bytes32 node;
        JobId jobId;
        address challenger;
        /// c of the challenged head. Invariant: 1 ... ceil(steps / k).
        uint64 headCount;
        /// Leaf of the value tree, set on leaving VALUES. Invariant: below 2^(D+1).
        uint32 instruction;
        bytes32 runRoot;
        /// Set by OPEN_STEPS; the segment's one record if it has one step.
        bytes32 stepsRoot;
        /// Body half of the value tree, set by OPEN_VALUES.
        bytes32 bodyRoot;
        /// Set by OPEN_TENSOR: digest of the disputed instruction.
        bytes32 instructionLeaf;
        /// Set by OPEN_TERMS.
        bytes32 accumulatorRoot;
        /// Checkpoint whose steps are disputed, from 0, set on leaving RUN.
        uint64 segment;
        /// s, from 1, set on leaving STEPS.
        uint64 step;
        /// Leaves of the current tree that are not padding; of no meaning in VALUES, which has two halves.
        uint64 leaves;
        /// Bytes of the disputed tensor, set by OPEN_TENSOR.
        uint64 dataBytes;
        /// Row-major element of the tensor, set by SELECT_ELEMENT.
        uint64 element;
        /// The defender's value of that element.
        uint64 claimed;
    }

    event GameStarted(
        GameId indexed gameId,
        JobId indexed jobId,
        address indexed challenger,
        uint64 count,
        bytes32 runRoot,
        uint64 nonce
    );
    event Descended(GameId indexed gameId, bytes32[] nodes);
    event Selected(GameId indexed gameId, uint256 index, bytes32 node);
    event StepsOpened(GameId indexed gameId, bytes32 stepsRoot);
    event ValuesOpened(GameId indexed gameId, bytes32 stateRoot, uint32 lossBits, bytes32 logRoot, bytes32 bodyRoot);
    event TensorOpened(GameId indexed gameId, bytes instruction, bytes32 chunkRoot);
    event ChunkOpened(GameId indexed gameId, bytes chunk);
    event ElementSelected(GameId indexed gameId, uint64 element, uint64 claimed);
    event TermsOpened(GameId indexed gameId, bytes32 accumulatorRoot, bytes accumulator);
    /// What the referee computed, and what the defender had committed.
    event Proved(GameId indexed gameId, bytes32 right, bytes32 committed);
    event GameEnded(GameId indexed gameId, Verdict verdict, Reason reason);

    error GameExists(GameId gameId);
    error NoSuchGame(GameId gameId);
    error GameIsOver(GameId gameId);
    /// The referee's address holds no code.
    error RefereeMissing(address referee);
    error WrongPhase(Phase expected, Phase actual);
    error NotYourTurn(address expected, address actual);
    /// The mover used more than its rest.
    error ClockExhausted(Duration rest, Duration used);
    /// `timeout` before the mover used more than its rest.
    error ClockRunning(Duration rest, Duration used);
    error WrongNodeCount(uint256 expected, uint256 actual);
    error WrongProofLength(uint256 expected, uint256 actual);
    /// The challenger's nodes do not fold to the node that they should stand below.
    error NodesDoNotFold(bytes32 expected, bytes32 actual);
    error IndexOutOfRange(uint256 limit, uint256 index);
    error WrongChunk(bytes32 expected, bytes32 actual);
    error WrongInstructionBytes(bytes32 expected, bytes32 actual);

    /// @notice Starts a game against a head that the trainer signed, posted or not. Value: the challenger's stake.
    /// Legal while the job is ACTIVE, until `challengeWindow` after its acceptance or its last posted head.
    function challenge(IJobBoard.Head calldata head, bytes calldata signature, uint64 nonce)
        external
        payable
        returns (GameId gameId);

    /// @notice 1, defender: the 2^min(r, height) nodes that stand min(r, height) levels below `node`.
    function descend(GameId gameId, bytes32[] calldata nodes) external;

    /// @notice 2, challenger: the same nodes, and the index of the first that differs.
    function select(GameId gameId, bytes32[] calldata nodes, uint256 index) external;

    /// @notice 3, defender: the root over the records of the segment, whose last is the disputed checkpoint.
    function openSteps(GameId gameId, bytes32 stepsRoot, bytes32[] calldata siblings) external;

    /// @notice 4, defender: the record's fields and the body half of the step's value tree, whose last leaf is the loss.
    function openValues(
        GameId gameId,
        bytes32 stateRoot,
        uint32 lossBits,
        bytes32 logRoot,
        bytes32 bodyRoot,
        bytes32[] calldata siblings
    ) external;

    /// @notice 5, defender: the instruction under the program root, and the chunk root of its output.
    function openTensor(GameId gameId, bytes calldata instruction, bytes32[] calldata siblings, bytes32 chunkRoot)
        external;

    /// @notice 6, defender: the chunk's bytes.
    function openChunk(GameId gameId, bytes calldata chunk) external;

    /// @notice 7, challenger: which element of the chunk is wrong.
    function selectElement(GameId gameId, uint256 index, bytes calldata chunk, bytes calldata instruction) external;

    /// @notice 8, defender: root and last leaf of the element's accumulator tree.
    function openTerms(
        GameId gameId,
        bytes32 accumulatorRoot,
        bytes calldata accumulator,
        bytes32[] calldata siblings,
        bytes calldata instruction
    ) external;

    /// @notice 9, challenger: the operands. The referee recomputes the leaf. Parts that this leaf has no use for are empty.
    function prove(GameId gameId, IReferee.Proof calldata proof) external;

    /// @notice The side to move has used more than its clock. Caller: anyone.
    function timeout(GameId gameId) external;

    /// @notice Gives back the stake of a game whose job was slashed meanwhile. Caller: anyone.
    function reclaim(GameId gameId) external;

    function game(GameId gameId) external view returns (GameState memory);
    /// @notice Whose move it is; zero if nobody's.
    function mover(GameId gameId) external view returns (address);
    function gameIdOf(IJobBoard.Head calldata head, address challenger, uint64 nonce) external view returns (GameId);
    function REFEREE() external view returns (IReferee);
}
