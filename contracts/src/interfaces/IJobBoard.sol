// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Duration, Instant} from "../game/Time.sol";
import {GameId, IGame} from "./IGame.sol";

/// EIP-712 `hashStruct(Job)`: names a job.
type JobId is bytes32;

using {_jobIdEquals as ==} for JobId global;

function _jobIdEquals(JobId a, JobId b) pure returns (bool) {
    return JobId.unwrap(a) == JobId.unwrap(b);
}

/// @title The job board: escrow, stakes, signed heads, windows, settlement
/// @notice The life of a job:
///
///     createJob (client pays reward and fees)     -> OFFERED
///     acceptJob (trainer pays its stake)          -> ACTIVE      cancelJob (client)        -> CANCELLED
///     postHead, postHead, ... , final head        -> (window runs)
///     settle (anyone, window over, no open game)  -> SETTLED     reward and stake to the trainer
///     a game that the trainer loses, a head that it concedes, two signed heads that cannot both be true,
///     or a signed record whose loss the job forbids
///                                                 -> SLASHED     reward to the client, half of the trainer's stake to
///                                                                whoever proved it (and to the seats), half burned
///     abandon (anyone, no head for a window,      -> ABANDONED   reward and the trainer's stake to the client
///              or no final head by the deadline)
///
/// Of policy `logged`, where heads are worth nothing without the logs that they commit to:
///
///     acknowledge (anyone, the client's receipt)      settle only with that of the final head
///     part (client or trainer, a head posted,
///           window over, not all receipted)       -> PARTED      stake and the receipted share of the reward to the
///                                                                trainer, the rest of the reward to the client
///     abandon only before the first head
///
/// @dev Money rules. Every payment in is exact, but for that of a challenge. Every payment out is a credit that its owner pulls with `withdraw`;
/// no function calls an address on the way. The contract's balance is never below
/// sum(rewards and stakes held by jobs and games) + sum(pots of seats) + sum(deposits in pools) + sum(credits).
///
/// Burning half of the trainer's stake is what makes cheating cost something even for a trainer that challenges
/// itself first, from another address: it can win back at most half. Burned wei are owed to nobody: they stay in this
/// contract's balance for good, and the events say how many. A challenger whom another conviction overtakes is paid a
/// *relief*, r = min(floor(C / 2), floor(share / 16)) with the prover's share, out of that share: its gas.
///
/// Each game that is open at once costs twice as much as the one before: the game that starts over k others, of rank k,
/// costs C 2^k, and there are at most 16. So many false challenges in parallel cost much more than their number; and because
/// half of what a lost challenger staked burns, so does it to challenge oneself so that others find it dear.
///
/// Numbered, for every job, with R, T and C its reward and stakes, n and F its seats and their fee:
///  1. OFFERED holds R + n F; ACTIVE holds R + T (and the pot of the seats n F); other states hold nothing of either.
///  2. Each game without verdict holds C 2^rank, and in SLASHED r; only there and in ACTIVE is a game open.
///  3. On leaving OFFERED or ACTIVE all of R and T becomes credits, in one transaction and once:
///     CANCELLED R + n F to the client; SETTLED R + T to the trainer; ABANDONED R + T to the client; SLASHED R to the client,
///     floor(floor(T / 2) / (1 + n)) to the prover, less r for each game that is still open, which that game holds; the rest
///     of floor(T / 2) to the pot; and ceil(T / 2) burn;
///     PARTED T + floor(R * receipts / checkpoints) to the trainer, the rest of R to the client.
///  4. A game's stake becomes credits, once: the challenger's if it won, and with r if the job was slashed otherwise; else the
///     half, rounded down, is the trainer's, the rest burns.
///  5. The pot of the seats is paid out by the rules of `ISeats`, and each slot of a pool holds its bond.
///  6. So balance = sum(what 1, 2 and 5 say is held) + sum(credits) + what burned + what was forced upon this contract.
///
/// A trainer has to show progress: after accepting, and after each head, it must post a head of higher count within
/// `challengeWindow`, and the final one within `deadline` of accepting. A late head is refused, also while open games hold
/// up `abandon`: the trainer could have started them. The same window is the time to challenge: games start until it ends,
/// against any head that the trainer signed, and start again when the next head is posted. Each segment of a posted head
/// brings `auditTime` besides: whoever replays them one after the other, as fast as that, is never too late.
interface IJobBoard {
    /// What client and trainer sign (SPEC section 8). Field order is that of the EIP-712 type.
    struct Job {
        /// Pays the reward and gets the weights. Invariant: not zero.
        address client;
        /// Trains, posts the stake, signs the heads; defender of every game of the job. Invariant: not zero.
        address trainer;
        /// Root of the program tree (SPEC section 4).
        bytes32 programRoot;
        /// B, body instructions. Invariant: 1 ... 2^20.
        uint32 bodyCount;
        /// S, entries of the state. Invariant: 1 ... 2^20.
        uint32 stateCount;
        /// Entries of the job's data. Invariant: at most 2^20.
        uint32 dataCount;
        /// State root before step 1.
        bytes32 initialStateRoot;
        /// Root of the job's data.
        bytes32 dataRoot;
        /// Steps of the run. Invariant: at least 1.
        uint64 steps;
        /// k: one head leaf per k steps. Invariant: 1 ... steps.
        uint64 checkpointInterval;
        /// 0: `exact`, 1: `logged`. Invariant: one of these.
        uint8 policy;
        /// b: bits to which sums and the functions 10 ... 15 are rounded. Invariant: 16 ... 32.
        uint8 precision;
        /// n of each kind of logged sum (SPEC section 5.1), the first in the lowest byte. Invariant: each 0 or 2 ... 64,
        /// nothing above the third but for the lowest bit, by which the job demands finite losses; 0 of policy `exact`.
        uint32 tolerances;
        /// Wei. Invariant: below 2^128.
        uint256 reward;
        /// Wei. Invariant: below 2^128.
        uint256 trainerStake;
        /// Wei. Invariant: 1 ... 2^128 - 1.
        uint256 challengerStake;
        /// Seconds. Invariant: 1 ... 2^28.
        uint64 challengeWindow;
        /// Seconds, each side's own in one game. Invariant: at least 1; talkTime + 3 clock + 96 replayTime <= 2^25.
        uint64 clock;
        /// Seconds that a move which needs re-execution may take beside the clock, for each game of a crowd.
        uint64 replayTime;
        /// Seconds after the start of a game in which its sides may talk before clocks run.
        uint64 talkTime;
        /// Seconds of audit that each segment of a posted head brings. Invariant: ceil(steps / k) times as long is at most 2^28.
        uint64 auditTime;
        /// Seconds after acceptance within which the final head must be posted. Invariant: 1 ... 2^28.
        uint64 deadline;
        /// Receipts of audits that the client pays for (`ISeats`). Invariant: at most 16, 0 of policy `logged`.
        uint8 seats;
        /// Wei, for each seat. Invariant: below 2^128; 0 without seats.
        uint256 seatFee;
        /// Wei, what the auditor of a seat puts up. Invariant: a power of two, at most 2^127; 0 without seats.
        uint256 seatBond;
        /// r: levels of a tree revealed by one move. Invariant: 1 ... 5.
        uint8 descentLevels;
        /// Makes otherwise equal jobs different.
        uint256 nonce;
    }

    /// What the trainer signs as the run proceeds (SPEC section 8).
    struct Head {
        JobId jobId;
        /// Checkpoints done. Invariant: 1 ... ceil(steps / k).
        uint64 count;
        /// Root of the run tree with leaves 0 ... count-1 set.
        bytes32 runRoot;
    }

    /// A head that the trainer signed, and one leaf of its run tree.
    struct OpenedHead {
        uint64 count;
        bytes32 runRoot;
        bytes signature;
        bytes32 leaf;
        /// From the leaf upwards, one for each level of the job's run tree.
        bytes32[] siblings;
    }

    enum JobStatus {
        /// No such job.
        NONE,
        OFFERED,
        ACTIVE,
        CANCELLED,
        SETTLED,
        SLASHED,
        ABANDONED,
        PARTED
    }

    /// A job as the contract keeps it: eleven slots.
    struct JobState {
        // -- slot 0
        address trainer;
        JobStatus status;
        /// D of SPEC section 4. Invariant: max(ceil(log2 B), ceil(log2 S)).
        uint8 depth;
        /// r. Invariant: 1 ... 5.
        uint8 descentLevels;
        /// b. Invariant: 16 ... 32.
        uint8 precision;
        /// 0: `exact`, 1: `logged`.
        uint8 policy;
        /// B. Invariant: 1 ... 2^20.
        uint24 bodyCount;
        /// S. Invariant: 1 ... 2^20.
        uint24 stateCount;
        // -- slot 1
        address client;
        /// When the job was created, accepted, or the last head was posted, whichever is latest. Invariant: only grows.
        Instant lastProgress;
        /// Until when the segments of all posted heads can be audited, one after the other. Zero before acceptance.
        /// Invariant: only grows.
        Instant auditEnd;
        /// As signed.
        uint8 seats;
        // -- slots 2, 3, 4
        bytes32 programRoot;
        bytes32 initialStateRoot;
        bytes32 dataRoot;
        // -- slot 5
        /// Invariant: at least 1.
        uint64 steps;
        /// k. Invariant: 1 ... steps.
        uint64 checkpointInterval;
        /// Count of the last posted or sealed head, 0 before the first. Invariant: only grows, at most ceil(steps / k).
        uint64 headCount;
        /// Invariant: at most 2^28.
        Duration auditTime;
        // -- slot 6
        /// Held while OFFERED or ACTIVE.
        uint128 reward;
        /// Held while ACTIVE.
        uint128 trainerStake;
        // -- slot 7
        /// C. An open game of rank k holds 2^k times as much.
        uint128 challengerStake;
        /// Invariant: 1 ... 2^24.
        Duration clock;
        /// Games of this job that have no verdict. Invariant: at most 16, 0 unless ACTIVE or SLASHED.
        uint16 openGames;
        /// As signed. Invariant: below 2^25, 0 of policy `exact`.
        uint32 tolerances;
        /// The most games that were open at once since none was. Invariant: at least `openGames`; falls only when a game
        /// starts over none.
        uint8 crowd;
        // -- slot 8
        /// Run root of the last posted head; of a sealed one nothing is known.
        bytes32 headRoot;
        // -- slot 9
        /// Invariant: at most 2^25.
        Duration talkTime;
        /// Invariant: at most 2^25 / 96.
        Duration replayTime;
        /// Invariant: 1 ... 2^28.
        Duration deadline;
        /// Invariant: 1 ... 2^28.
        Duration challengeWindow;
        /// Zero before. Invariant: never changes after.
        Instant accepted;
        /// Invariant: at most 2^20.
        uint32 dataCount;
        // -- slot 10, zero without seats
        uint128 seatFee;
        uint128 seatBond;
    }

    /// What the proof of a value needs of a job.
    struct Origin {
        bytes32 programRoot;
        bytes32 initialStateRoot;
        bytes32 dataRoot;
        uint32 dataCount;
        uint64 steps;
        uint64 checkpointInterval;
    }

    event GameStarted(
        GameId indexed gameId,
        JobId indexed jobId,
        address indexed challenger,
        uint64 count,
        bytes32 runRoot,
        uint64 nonce
    );
    event JobCreated(JobId indexed jobId, address indexed client, address indexed trainer, uint256 reward);
    event JobAccepted(JobId indexed jobId, uint256 trainerStake);
    event JobCancelled(JobId indexed jobId);
    event HeadPosted(JobId indexed jobId, uint64 count, bytes32 runRoot, bool isFinal);
    event JobSettled(JobId indexed jobId, uint256 toTrainer);
    event JobAbandoned(JobId indexed jobId, uint256 toClient);
    event JobSlashed(JobId indexed jobId, address indexed prover, uint256 toProver, uint256 burned);
    /// A game of the job that its challenger lost.
    event StakeLost(JobId indexed jobId, uint256 toTrainer, uint256 burned);
    event ReceiptPosted(JobId indexed jobId, uint64 count, bytes32 runRoot);
    event JobParted(JobId indexed jobId, uint64 receipts, uint256 toTrainer, uint256 toClient);
    event Equivocation(JobId indexed jobId, uint64 count, bytes32 firstRoot, bytes32 secondRoot);
    event Inconsistency(JobId indexed jobId, uint64 position, bytes32 firstLeaf, bytes32 secondLeaf);
    /// The record of this step, under a head that the trainer signed, has an infinite loss or NaN.
    event Nonfinite(JobId indexed jobId, uint64 step, uint32 lossBits);
    /// The trainer has signed that this head is false.
    event Conceded(JobId indexed jobId, address indexed prover, uint64 count, bytes32 runRoot);
    event Credited(address indexed account, uint256 amount);
    event Withdrawn(address indexed account, address indexed to, uint256 amount);

    /// The games' address holds no code.
    error GamesMissing(address games);
    /// A field of the job breaks its invariant.
    error InvalidJob(string field, uint256 value);
    error JobExists(JobId jobId);
    error WrongJobStatus(JobId jobId, JobStatus expected, JobStatus actual);
    /// The caller is not the one who may do this.
    error WrongCaller(address expected, address actual);
    /// The payment is not exact, or of a challenge too small.
    error WrongPayment(uint256 expected, uint256 actual);
    /// Not 65 bytes, v not 27 or 28, s in the upper half, or no key fits.
    error MalformedSignature();
    error WrongSigner(address expected, address actual);
    /// The count is 0 or above the number of checkpoints.
    error HeadOutOfRange(uint64 count, uint64 checkpoints);
    /// The count is not above that of the last posted head.
    error HeadNotAscending(uint64 posted, uint64 count);
    /// The two heads do not conflict: equal roots.
    error NoEquivocation(bytes32 runRoot);
    /// The two heads do not conflict there: equal leaves.
    error NoInconsistency(bytes32 leaf);
    /// The job allows every loss.
    error FiniteLossesNotDemanded(JobId jobId);
    /// The record's loss is neither infinite nor NaN.
    error FiniteLoss(uint32 lossBits);
    /// The head has no record at this position: its count is not above it.
    error NoRecord(uint64 position, uint64 count);
    error FinalHeadMissing(uint64 count, uint64 checkpoints);
    error FinalHeadPosted();
    /// The job has seats.
    error HeadMustBeSealed(JobId jobId);
    /// The final head is sealed, and not opened.
    error FinalHeadSealed(JobId jobId);
    /// Of policy `exact`, which has no logs.
    error NotLogged();
    /// The count is not above that of the last receipt.
    error ReceiptNotAscending(uint64 receipts, uint64 count);
    /// The receipt's count is above that of the last posted head.
    error HeadNotPosted(uint64 posted, uint64 count);
    /// The receipt has the count of the last posted head and another root.
    error WrongReceipt(bytes32 posted, bytes32 runRoot);
    /// Policy `logged`: the client has not signed for the logs of the final head.
    error ReceiptMissing(uint64 receipts, uint64 checkpoints);
    /// Every head has its receipt: the job settles.
    error ReceiptsComplete(uint64 checkpoints);
    /// Policy `logged`: after the first head a late job is parted, not abandoned.
    error HeadsPosted(uint64 count);
    /// Before the first head a late job is abandoned, not parted, but by a trainer whose job demands finite losses.
    error NoHeadPosted();
    /// Neither the client nor the trainer.
    error NotAParty(address caller);
    /// Too early: legal only after `end`.
    error WindowOpen(Instant end, Instant current);
    /// Too late: legal only until `end`.
    error WindowClosed(Instant end, Instant current);
    error OpenGames(uint32 games);
    /// No more games of the job may be open at once.
    error TooManyGames(uint256 most);
    error NothingToWithdraw(address account);
    error TransferFailed(address to, uint256 amount);
    error ZeroAddress();

    /// @notice The client offers a job that the trainer has signed, and pays for it. Caller: `job.client`; value:
    /// `job.reward + job.seats * job.seatFee`.
    function createJob(Job calldata job, bytes calldata trainerSignature) external payable returns (JobId jobId);

    /// @notice Takes back an offer that the trainer has not accepted. Caller: the client.
    function cancelJob(JobId jobId) external;

    /// @notice Caller: the trainer; value: its stake.
    function acceptJob(JobId jobId) external payable;

    /// @notice Posts a head signed by the trainer, of a job without seats. Legal as long as `abandon` is not. Caller: anyone.
    function postHead(Head calldata head, bytes calldata signature) external;

    /// @notice Policy `logged`: the client has signed EIP-712 `Receipt` of this head: it holds the logs of all segments
    /// up to its count, and they hash to it. Counts ascend, up to the last posted head. Caller: anyone.
    function acknowledge(Head calldata head, bytes calldata clientSignature) external;

    /// @notice Two heads of one count with different roots, both signed by the trainer. Caller: anyone; it is rewarded.
    function reportEquivocation(
        JobId jobId,
        uint64 count,
        bytes32 firstRoot,
        bytes calldata firstSignature,
        bytes32 secondRoot,
        bytes calldata secondSignature
    ) external;

    /// @notice Two heads with different leaves at one position below both counts, both signed by the trainer. Caller:
    /// anyone; it is rewarded.
    function reportInconsistency(JobId jobId, uint64 position, OpenedHead calldata first, OpenedHead calldata second)
        external;

    /// @notice A record below the count of a head that the trainer signed has an infinite loss or NaN, in a job that
    /// demands finite losses. Caller: anyone; it is rewarded.
    function reportLoss(
        Head calldata head,
        bytes calldata signature,
        uint64 position,
        bytes32 stateRoot,
        uint32 lossBits,
        bytes32 logRoot,
        bytes32[] calldata siblings
    ) external;

    /// @notice The trainer has signed EIP-712 `Concession` of this head: it is false, and `prover` is to be paid as if it had
    /// proved that. No game is needed. Caller: anyone.
    function reportConcession(Head calldata head, address prover, bytes calldata concession) external;

    /// @notice Ends a job whose final head stood a whole window, when all segments had their audit time and no game is open.
    /// Policy `logged`: with the receipt of that head. Caller: anyone.
    function settle(JobId jobId) external;

    /// @notice Ends a job whose trainer posted no head for more than a window, or not the final one by the deadline. No
    /// game may be open. Caller: anyone. Policy `logged`: only before the first head.
    function abandon(JobId jobId) external;

    /// @notice Policy `logged`: ends a job in which a receipt, or the next head, does not come, when the window of the
    /// last head is over and no game is open. The trainer gets its stake and the share of the reward for the receipted
    /// checkpoints, rounded down; the client the rest. Caller: the client or the trainer; the client also after the
    /// deadline without the final head, whether the window is over or not; and in a job that demands finite losses the
    /// trainer also before its first head, as long as it could post one.
    function part(JobId jobId) external;

    /// @notice Pulls the caller's whole credit to an address of its choice.
    function withdraw(address payable to) external returns (uint256 amount);

    /// @notice Starts a game against a head that the trainer signed, posted or not. Value: at least the challenger's stake
    /// times 2^(open games of the job); what is more is credited back, so that nobody keeps a game out by starting another
    /// just before.
    /// Legal while the job is ACTIVE, until `challengeWindow` after its acceptance or its last posted head, and until `auditEnd`.
    function challenge(Head calldata head, bytes calldata signature, uint64 nonce)
        external
        payable
        returns (GameId gameId);

    /// @notice Pays out a game. Caller: the games. Legal while the job is ACTIVE.
    function gameEnded(JobId jobId, address challenger, uint8 rank, bool defenderLost) external;

    /// @notice Gives back the stake of a game of a SLASHED job, with its relief. Caller: the games.
    function gameVoided(JobId jobId, address challenger, uint8 rank) external;

    function job(JobId jobId) external view returns (JobState memory);
    /// @notice Policy `logged`: the count of the highest head with a receipt, 0 before.
    function receipts(JobId jobId) external view returns (uint64);
    /// @notice The EIP-712 digest that the client signs as the receipt of a head.
    function receiptDigest(Head calldata head) external view returns (bytes32);
    /// @notice The games of this board's jobs.
    function GAMES() external view returns (IGame);
    function gameIdOf(Head calldata head, address challenger, uint64 nonce) external view returns (GameId);
    function programRoot(JobId jobId) external view returns (bytes32);
    function segments(JobId jobId) external view returns (uint64 steps, uint64 checkpointInterval);
    function origin(JobId jobId) external view returns (Origin memory);
    /// @notice The most games of this job that were open at once since none was.
    function crowd(JobId jobId) external view returns (uint256);
    /// @notice What a side's clock starts with in each game of the job, and what a proof waits.
    function clock(JobId jobId) external view returns (Duration);
    function credit(address account) external view returns (uint256);
    /// @notice ceil(steps / k): the count of the final head.
    function checkpoints(JobId jobId) external view returns (uint64);
    function domainSeparator() external view returns (bytes32);
    function hashJob(Job calldata job) external pure returns (JobId);
    /// @notice The EIP-712 digest that the trainer signs.
    function headDigest(Head calldata head) external view returns (bytes32);
}
