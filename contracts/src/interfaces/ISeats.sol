// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Instant} from "../game/Time.sol";
import {IJobBoard, JobId} from "./IJobBoard.sol";

/// @title Seats: receipts of audits, by strangers whom nobody chose (SPEC section 11.1)
/// @notice Of a job with seats, no head is posted. It is sealed first, and what it says is shown only after the auditors
/// have sealed what they computed, so that an auditor that is paid has done the work:
///
///     sealHead ... sealHead (trainer)       progress; the final seal fixes the pool, and binds
///     drawSeats (client, with its secret)   the seats belong to slots of the pool; the time for audits starts
///     sealRoot (a seat's auditor, its bond) what it computed, until the window's end
///     openHead (anyone, a window after that) the final head; the window starts again, for challenges
///     claimSeat (anyone, for the auditor)   until `challengeWindow` after the end of the job
///     closeSeats (anyone, after that)       what nobody claimed: fees to the client, the rest burns
///
/// A seal of a head is H(`tb.hseal` ‖ job ‖ count ‖ run root ‖ salt), of a root H(`tb.rseal` ‖ job ‖ auditor ‖ run root ‖
/// salt); a salt has 32 bytes that nobody else can guess.
///
/// The draw: `nonce` of the job is H(`tb.secrt` ‖ secret), and the final seal stores an entropy that the client did not
/// know when it chose the secret. SAFETY: the trainer is bound, and the pool fixed, before the secret is known, so a
/// trainer has to decide what it sells before it can know who will look; and a builder of blocks has no hash to grind.
/// Only client and trainer together can choose the seats, and they need no contract to pay each other. A client that
/// never draws pays for audits that nobody made.
///
/// Numbered, with n, F and B the seats, fee and bond of a job, W = floor(trainerStake / 2):
///  1. The pot of a job holds n F from its acceptance on, B for each sealed root, and after a slash W - floor(W / (1 + n)).
///  2. A seat is paid once: of a SETTLED job B + F for the root of the head, and else nothing. Of another job B; and F and
///     (SLASHED) floor(W / (1 + n)) unless the final head was opened and has the same root.
///  3. What is left `challengeWindow` after the end is paid out once: F for each seat that got none to the client, unless the
///     job is SETTLED without a draw, and the rest burns.
///
/// SAFETY: a slash takes no auditor's bond. A trainer could bring one about after the fact, by a second head that nobody saw.
interface ISeats {
    /// A member of a pool. A hole has no owner.
    struct Slot {
        address owner;
        Instant since;
    }

    /// What a job with seats keeps besides: three slots.
    struct Seating {
        // -- slot 0
        /// Of the final head, until that is opened; else zero.
        bytes32 headSeal;
        // -- slot 1
        /// prevrandao of the block of the final seal; once the seats are drawn, the seed of the draw.
        bytes32 seed;
        // -- slot 2
        /// Wei that the seats hold. Invariant: fees 2^132, bonds 2^132 and half a stake at most.
        uint160 pot;
        /// When the final head was sealed: slots that were filled before it count.
        Instant sealedAt;
        /// Slots of the pool then.
        uint32 poolLength;
        /// Fees that were paid to auditors. Invariant: at most the job's seats.
        uint8 paid;
        bool isDrawn;
    }

    event PoolJoined(uint256 indexed bond, uint32 slot, address indexed owner);
    event PoolLeft(uint256 indexed bond, uint32 slot, address indexed owner);
    event HeadSealed(JobId indexed jobId, uint64 count, bytes32 headSeal, bool isFinal);
    event SeatsDrawn(JobId indexed jobId, bytes32 seed);
    event RootSealed(JobId indexed jobId, uint8 seat, address indexed auditor, bytes32 rootSeal);
    event SeatClaimed(JobId indexed jobId, uint8 seat, address indexed auditor, uint256 amount);
    event SeatsClosed(JobId indexed jobId, uint256 toClient, uint256 burned);

    /// The bonds of pools are powers of two, in wei.
    error NoSuchPool(uint256 bond);
    /// The slot has an owner, or is beyond the next one.
    error SlotNotFree(uint256 bond, uint32 slot);
    /// The job has no seats: its heads are posted.
    error NoSeats(JobId jobId);
    /// A seal is not zero.
    error EmptySeal();
    /// No sealed final head waits to be opened.
    error NotSealed(JobId jobId);
    error AlreadyDrawn(JobId jobId);
    error AlreadySealed(JobId jobId, uint8 seat);
    /// It does not hash to the job's nonce.
    error WrongSecret(bytes32 expected, bytes32 actual);
    /// What was shown does not hash to what was sealed; zero if nothing was.
    error WrongSealOpened(bytes32 expected, bytes32 actual);
    /// The job was settled with another root.
    error WrongRoot(bytes32 expected, bytes32 actual);
    error JobNotEnded(JobId jobId, IJobBoard.JobStatus status);
    /// Nothing is left, or nothing ever was.
    error PotEmpty(JobId jobId);

    /// @notice Takes a slot of the pool for seats of one bond. Value: that bond, a power of two. The slot is a hole, or the next new one. An
    /// account may have many slots. The deposit is at no stake: it makes slots cost capital.
    function joinPool(uint32 slot) external payable;

    /// @notice Gives the deposit back. Caller: the slot's owner, more than 2^21 seconds after it joined.
    function leavePool(uint256 bond, uint32 slot) external;

    /// @notice Says how far the trainer is, of a job with seats, without showing a root. Caller: the trainer. Counts are
    /// ascending; only the final seal binds. It comes later than half of `challengeWindow`, or of `deadline` if that is less, after
    /// the acceptance: auditors have that time to join the pool.
    function sealHead(JobId jobId, uint64 count, bytes32 headSeal) external;

    /// @notice Opens the secret under the job's nonce. Caller: anyone, once, when the final head is sealed, until the
    /// window's end. The window starts again, and all segments get their audit time, for nobody can have begun before.
    function drawSeats(IJobBoard.Job calldata job, bytes32 secret) external;

    /// @notice Caller: who sits there; value: `seatBond`. Legal from the draw until the window's end, once a seat.
    function sealRoot(JobId jobId, uint8 seat, bytes32 rootSeal) external payable;

    /// @notice Posts the final head that was sealed. Caller: anyone, after the window's end, which is then set anew, and for
    /// `challengeWindow`.
    function openHead(IJobBoard.Head calldata head, bytes calldata signature, bytes32 salt) external;

    /// @notice Pays a seat what it earned, by rule 2. Caller: anyone, until `challengeWindow` after the end of the job.
    function claimSeat(JobId jobId, uint8 seat, address auditor, bytes32 runRoot, bytes32 salt) external;

    /// @notice Pays out what is left, by rule 3. Caller: anyone, after that.
    function closeSeats(JobId jobId) external;

    /// @notice Who sits there: the first of 32 slots H(`tb.seat.` ‖ seed ‖ seat ‖ attempt) mod poolLength that was filled
    /// before the final seal, and still is. Zero before the draw, and if there is none.
    /// SAFETY: by leaving, an account hands a seat on to the next one; it cannot choose to whom, nor take another's.
    function seatOwner(JobId jobId, uint8 seat) external view returns (address);
    function seating(JobId jobId) external view returns (Seating memory);
    /// @notice Zero if nothing is sealed there, or it was claimed.
    function rootSealOf(JobId jobId, uint8 seat) external view returns (bytes32);
    /// @notice Slots of the pool, holes included.
    function poolLength(uint256 bond) external view returns (uint32);
    function poolSlot(uint256 bond, uint32 slot) external view returns (Slot memory);
}
