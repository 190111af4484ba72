// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Duration, Instant} from "../game/Time.sol";
import {IJobBoard, JobId} from "./IJobBoard.sol";
import {IReferee} from "./IReferee.sol";

/// H(`tb.game.` ‖ job id ‖ head digest ‖ challenger ‖ u64 nonce): names a game.
type GameId is bytes32;

/// @title The game: one walk down run, steps, values, chunks, terms (SPEC section 10)
/// @notice The defender is the job's trainer; the challenger is whoever called `challenge`. A move whose
/// *tie* fails is as illegal as a malformed or out-of-turn one: it reverts, and its maker's clock runs on.
///
/// Invariants of a game that has no verdict:
///  1. `node` is the defender's: revealed by it, or tied to what it had committed before.
///  2. Everything left of the path from the run root to `node` is what both sides agree on; the challenger says so
///     by choosing the first node that differs.
///  3. `height` + the levels already walked = the depth of the current tree; position < 2^(levels walked).
///  4. Exactly one side is to move, and only its clock runs: the mover is a function of the phase.
///  5. Clocks only run down, `last` only grows. With `a` the time talked, the allowances used and the wait for a proof, defenderRest +
///     challengerRest + time used - a = 2 · clock; neither is ever negative. At each instant exactly one of "a move is in time" and
///     "`timeout` is legal" holds.
///  6. Each phase leads to a later one of the same level, to DESCEND or SELECT at less height, or to a lower level. So a game ends.
///  7. The game holds exactly one challenger's stake, that of its rank, until its verdict.
///  8. There is a verdict, and a reason, exactly when the phase is OVER; it never changes, and no move is legal any more.
///  9. `opened` is the digest of one list: run root, steps root, body root, ... (SPEC section 11); `prove` is given that list.
/// 10. A proof is legal only with the answer that was sealed when the leaf was chosen, for this game: in a state that the
///     defender signed, or at least a clock before. So nobody who sees a proof can prove the same before that proof has
///     had as long to come into a block.
/// 11. `log` is the defender's too: its records commit to it, each part is tied to the one before. A game of policy
///     `exact` has none.
/// 12. What an honest defender shows is right wherever it is legal: it ties to `node`, and by record, instruction or
///     element to its place. So an answer to a choice that a reorganisation took back is right for the choice that stands
///     there instead, or reverts.
///
/// The job of a game may have been slashed meanwhile, by another game or for equivocation. Then no move, timeout or
/// concession can end the game (`WrongJobStatus`, from the board); `reclaim` does.
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
        /// The walk ended on a position that must be empty.
        PADDING,
        /// The referee recomputed the leaf.
        RECOMPUTED,
        TIMEOUT,
        /// A side gave up.
        CONCEDED,
        /// The job ended otherwise.
        JOB_SLASHED,
        /// A side signed two states of one sequence number.
        FORKED
    }

    /// A game at its start, as the board knows it: who plays, for which run, and what later moves need of the job.
    struct Start {
        GameId gameId;
        JobId jobId;
        address challenger;
        /// Games of the job that were open already.
        uint8 rank;
        bytes32 runRoot;
        uint64 count;
        address trainer;
        uint8 depth;
        uint8 precision;
        uint8 policy;
        uint24 bodyCount;
        uint24 stateCount;
        uint24 tolerances;
        uint64 steps;
        uint64 checkpointInterval;
        Duration clock;
        Duration replayTime;
        Duration talkTime;
        uint8 descentLevels;
    }

    /// A game: what a snapshot says of it (SPEC section 10.1), and what the chain knows besides.
    struct GameState {
        /// Invariant: OVER exactly if there is a verdict.
        Phase phase;
        Level level;
        /// Levels between `node` and the leaves of its tree. Invariant: at most 64.
        uint8 height;
        /// r of the job.
        uint8 descentLevels;
        /// Set once.
        Verdict verdict;
        /// Set with the verdict.
        Reason reason;
        /// Whether nothing was chosen yet in the current tree.
        bool fresh;
        /// Of the disputed tensor, set by OPEN_TENSOR.
        uint8 dtype;
        /// How an element of it is summed: what it accumulates (0 exactly if elements are judged at once); + 16 times its
        /// kind as a logged sum (0 of policy `exact`, or if it is none), both set by OPEN_TENSOR; + 64 times what the log
        /// says of the element, set by SELECT_ELEMENT.
        uint8 summation;
        /// When the last move was made here.
        Instant last;
        /// Seconds after `last` for which the sides may still talk: until then no clock runs, and states enter.
        Duration talk;
        /// Moves made since the run root, here and in talk. Invariant: only grows.
        uint32 sequence;
        Duration defenderRest;
        Duration challengerRest;
        /// Of `node` among the nodes of its height, from the left. In OPEN_CHUNK and SELECT_ELEMENT: the chunk.
        uint64 position;
        /// What is disputed: a node of the tree, and from SELECT_ELEMENT until OPEN_TERMS, or the proof, the element's
        /// bits as a number.
        bytes32 node;
        /// Digest of what was opened: t_n of SPEC section 11. The run root at first.
        bytes32 opened;
        JobId jobId;
        address challenger;
        /// Row-major element of the tensor, set by SELECT_ELEMENT. Invariant: below 2^40.
        uint64 element;
        /// Leaves that are not padding: of the run tree (c of the head) until its leaf is chosen, then of the steps
        /// tree, and from OPEN_TENSOR on of the chunk tree. Invariant: at least 1.
        uint64 leaves;
        /// From a leaf of RUN on the first step of its segment, from a leaf of STEPS on s. Invariant: at most the job's steps.
        uint64 step;
        /// Leaf of the value tree, set on leaving VALUES. Invariant: below 2^(D+1).
        uint32 instruction;
        /// Leaves of an element's accumulator tree, set by OPEN_TENSOR. Invariant: not 1.
        uint32 termLeaves;
        /// Bytes of the tensor's last chunk, set by OPEN_TENSOR. Invariant: 1 ... 512.
        uint16 lastChunkBytes;
        /// Of the job, for each game of its crowd.
        Duration replayTime;
        /// Games of the job that were open when this one started: its stake is 2^rank of the challenger's. Never changes.
        uint8 rank;
        /// The defender. This and what follows up to `tolerances`: of the job.
        address trainer;
        /// D.
        uint8 depth;
        /// b.
        uint8 precision;
        uint8 policy;
        /// B.
        uint24 bodyCount;
        /// S.
        uint24 stateCount;
        uint24 tolerances;
        /// Of policy `logged`, what of the rounding log was opened last: the log root of the segment (OPEN_STEPS), the step
        /// log (OPEN_VALUES), the log word of the chunk (OPEN_CHUNK of a logged sum). A `source` of late data is proved under
        /// the step log. Of policy `exact` never written.
        bytes32 log;
    }

    event Descended(GameId indexed gameId, bytes32[] nodes);
    event Selected(GameId indexed gameId, uint256 index, bytes32 seal);
    event StepsOpened(GameId indexed gameId, bytes32[] nodes);
    event ValuesOpened(GameId indexed gameId, bytes32 stateRoot, uint32 lossBits, bytes32[] nodes);
    /// (The instruction is the program's, which both sides have.)
    event TensorOpened(GameId indexed gameId, bytes32[] nodes);
    event ChunkOpened(GameId indexed gameId, bytes chunk);
    /// Beside the three openings, of policy `logged`: what `GameState.log` then is.
    event LogOpened(GameId indexed gameId, bytes32 log);
    event ElementSelected(GameId indexed gameId, uint64 element, bytes32 seal);
    event TermsOpened(GameId indexed gameId, bytes32[] nodes, bytes accumulator);
    /// What the referee computed, and what the defender had committed.
    event Proved(GameId indexed gameId, bytes32 right, bytes32 committed);
    /// A state that the other side signed now stands here.
    event Entered(GameId indexed gameId, uint32 sequence, bytes snapshot);
    event Forked(GameId indexed gameId, uint32 sequence, bytes32 first, bytes32 second);
    event GameEnded(GameId indexed gameId, Verdict verdict, Reason reason);

    error GameExists(GameId gameId);
    error NoSuchGame(GameId gameId);
    error GameIsOver(GameId gameId);
    /// The referee's address holds no code.
    error RefereeMissing(address referee);
    /// Not the board.
    error NotTheBoard(address expected, address actual);
    error WrongPhase(Phase expected, Phase actual);
    error NotYourTurn(address expected, address actual);
    /// The mover used more than its rest.
    error ClockExhausted(Duration rest, Duration used);
    /// `timeout` before the mover used more than its rest.
    error ClockRunning(Duration rest, Duration used);
    error WrongNodeCount(uint256 expected, uint256 actual);
    error WrongProofLength(uint256 expected, uint256 actual);
    /// The challenger's node and its siblings do not fold to the node that they should stand below.
    error NodeDoesNotFold(bytes32 expected, bytes32 actual);
    error IndexOutOfRange(uint256 limit, uint256 index);
    error WrongChunk(bytes32 expected, bytes32 actual);
    /// The terms of another element than this, which was selected.
    error WrongPlace(uint64 step, uint32 value, uint64 element);
    /// What the defender shows does not hang together with what it had committed to.
    error BrokenTie();
    /// A seal where none is kept.
    error UnexpectedSeal(bytes32 seal);
    /// A part of a rounding log, or of the record that holds it, where none is shown.
    error UnexpectedLog(bytes32 part);
    /// The answer and the salt are not what was sealed with this leaf.
    error WrongSeal(bytes32 expected, bytes32 actual);
    /// A leaf of this kind has another number of things opened.
    error WrongOpenedCount(uint256 expected, uint256 actual);
    /// The list is not what earlier moves opened.
    error WrongOpened(bytes32 expected, bytes32 actual);
    /// The caller, or who signed a fork, plays on neither side.
    error NotASide(address account);
    /// The time to talk is over; states enter only before `end`.
    error TalkIsOver(Instant end, Instant current);
    /// The state is not later than the one that stands here.
    error StaleState(uint256 standing, uint256 offered);
    error SnapshotLength(uint256 expected, uint256 actual);
    /// The field at this offset of a snapshot is not as in any place of the game (SPEC section 10.1).
    error InvalidSnapshot(uint256 offset, uint256 value);
    /// The two states do not conflict: one snapshot.
    error NoFork(bytes32 snapshot);
    /// A proof before the instant `ripe`, a clock after the move before.
    error TooEarly(Instant ripe, Instant current);

    /// @notice Starts a game. Caller: the board, which has checked the head and holds the stake.
    function begin(Start calldata start) external;

    /// @notice 1, defender: the 2^min(r, height) nodes that stand min(r, height) levels below `node`.
    function descend(GameId gameId, bytes32[] calldata nodes) external;

    /// @notice 2, challenger: the first of them that differs, its index, its siblings up to `node`. At a leaf of the
    /// values or terms that is no padding: the seal of the answer, H(`tb.seal.` ‖ game id ‖ answer ‖ salt); else zero.
    function select(GameId gameId, bytes32 node, uint256 index, bytes32[] calldata siblings, bytes32 seal) external;

    /// @notice 3, defender: first nodes of the tree over the records of the segment; `siblings` of the last record,
    /// which is the disputed checkpoint. Policy `logged`: that record's fields; else zero.
    function openSteps(
        GameId gameId,
        bytes32[] calldata nodes,
        bytes32[] calldata siblings,
        bytes32 stateRoot,
        uint32 lossBits,
        bytes32 logRoot
    ) external;

    /// @notice 4, defender: the record's fields, first nodes of the step's value tree; `siblings` of the loss in its body
    /// half. Policy `logged`: the step log and its siblings up to the log root; else zero and none.
    function openValues(
        GameId gameId,
        bytes32 stateRoot,
        uint32 lossBits,
        bytes32 logRoot,
        bytes32[] calldata nodes,
        bytes32[] calldata siblings,
        bytes32 stepLog,
        bytes32[] calldata logSiblings
    ) external;

    /// @notice 5, defender: the instruction under the program root, first nodes of its output's chunk tree (none of a `source`).
    function openTensor(
        GameId gameId,
        bytes calldata instruction,
        bytes32[] calldata siblings,
        bytes32[] calldata nodes
    ) external;

    /// @notice 6, defender: the chunk's bytes. Of a logged sum under policy `logged`: its log word, and the siblings of
    /// that up to the step log; else zero and none.
    function openChunk(GameId gameId, bytes calldata chunk, bytes32 word, bytes32[] calldata siblings) external;

    /// @notice 7, challenger: which element of the chunk is wrong. The seal of its right bits if they are proved
    /// next; zero if its terms are opened first.
    function selectElement(GameId gameId, uint256 index, bytes calldata chunk, bytes32 seal) external;

    /// @notice 8, defender: first nodes and last leaf of the accumulator tree of the element selected, which it names: that
    /// element of the output of instruction `value` in that step.
    function openTerms(
        GameId gameId,
        uint64 step,
        uint32 value,
        uint64 element,
        bytes32[] calldata nodes,
        bytes calldata accumulator,
        bytes32[] calldata siblings
    ) external;

    /// @notice 9, challenger, a clock after the move before or later, which costs it nothing of its own: the operands. The referee recomputes the leaf. Parts that
    /// this leaf has no use for are empty.
    /// @param salt of the seal
    /// @param opened what earlier moves fixed: run root, steps root, body root, seal of the leaf of the values; then,
    /// unless the leaf is a commit, the instruction's digest; then the seal of the element, or root and seal of the terms
    function prove(GameId gameId, IReferee.Proof calldata proof, bytes32 salt, bytes32[] calldata opened) external;

    /// @notice A state that the other side signed, later than what stands here, is where the game goes on. Caller: a side.
    /// Legal during the talk. Its fields agree with each other and the job, so that the rules have an answer to every move
    /// from there (SPEC section 10.1). SAFETY: its digests are not checked, for whoever plays by the rules signs only what
    /// lawful play led to, and wins from there; who signs anything else harms itself.
    /// @param sequence moves made since the run root
    /// @param snapshot 144 bytes (SPEC section 10.1)
    /// @param signature the other side's, over EIP-712 `State(bytes32 gameId,uint32 sequence,bytes32 snapshot)`
    function enter(GameId gameId, uint32 sequence, bytes calldata snapshot, bytes calldata signature) external;

    /// @notice Proves from a state that the defender signed, judged in memory. Caller: the challenger. Legal at any time
    /// before the verdict, whatever stands here: who could keep it out of the talk's blocks would else have seen the proof.
    /// SAFETY: the seal stands in what the defender signed. It can help a friend to half of its own stake at any time: by
    /// a concession.
    function enterAndProve(
        GameId gameId,
        uint32 sequence,
        bytes calldata snapshot,
        bytes calldata signature,
        IReferee.Proof calldata proof,
        bytes32 salt,
        bytes32[] calldata opened
    ) external;

    /// @notice Ends a game whose one side signed two snapshots (their ids) of one sequence number: it loses. Caller: anyone.
    function reportFork(
        GameId gameId,
        uint32 sequence,
        bytes32 first,
        bytes calldata firstSignature,
        bytes32 second,
        bytes calldata secondSignature
    ) external;

    /// @notice A side gives up, at any time, and loses.
    function concede(GameId gameId) external;

    /// @notice The side to move has used more than its clock. Caller: anyone.
    function timeout(GameId gameId) external;

    /// @notice Gives back the stake of a game whose job was slashed meanwhile. Caller: anyone.
    function reclaim(GameId gameId) external;

    function game(GameId gameId) external view returns (GameState memory);
    /// @notice Whose move it is; zero if nobody's.
    function mover(GameId gameId) external view returns (address);
    function REFEREE() external view returns (IReferee);
    /// @notice The board whose games these are: it starts them and pays them out.
    function BOARD() external view returns (IJobBoard);
}
