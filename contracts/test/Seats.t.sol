// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {GameId} from "../src/interfaces/IGame.sol";
import {IJobBoard, JobId} from "../src/interfaces/IJobBoard.sol";
import {ISeats} from "../src/interfaces/ISeats.sol";
import {BoardBase} from "./BoardBase.sol";
import {TestBase} from "./support/TestBase.sol";

/// @notice A job with three seats, drawn from a pool of two auditors with two slots each, and what each ending pays.
contract SeatsTest is BoardBase, TestBase {
    bytes32 private constant ROOT = keccak256("run");
    bytes32 private constant OTHER = keccak256("other run");
    uint256 private constant HALF = TRAINER_STAKE / 2;
    uint256 private constant SHARE = HALF / 4;
    uint256 private constant POOL_TIME = 1 << 21;
    JobId private jobId;

    function setUp() public override {
        super.setUp();
        seats = 3;
        for (uint32 slot = 0; slot < 4; ++slot) {
            _join(slot < 2 ? challenger : stranger, slot);
        }
        jobId = _activeJob(1);
        _warp(current + WINDOW / 2 + 1);
    }

    function _error(bytes4 selector) private view returns (bytes memory) {
        return abi.encodeWithSelector(selector, jobId);
    }

    function _drawn() private {
        _sealHead(jobId, 3, ROOT);
        _draw(1);
    }

    /// @dev The head is open, and seats 0 and 1 have sealed these roots.
    function _opened(bytes32 first, bytes32 second) private {
        _drawn();
        _sealRoot(jobId, 0, first);
        _sealRoot(jobId, 1, second);
        _warp(current + WINDOW + 1);
        _openHead(jobId, 3, ROOT);
    }

    function _seedOf(JobId job, bytes32 entropy, bytes32 secret) private pure returns (bytes32) {
        return sha256(abi.encodePacked("tb.seed.", job, entropy, secret));
    }

    function _slotOf(bytes32 seed, uint8 seat, uint8 attempt, uint256 length) private pure returns (uint256) {
        return uint256(sha256(abi.encodePacked("tb.seat.", seed, seat, attempt))) % length;
    }

    function _leave(address who, uint32 slot) private {
        VM.prank(who);
        board.leavePool(BOND, slot);
    }

    function _sealAs(address who, uint256 paid, uint8 seat, bytes32 seal) private {
        VM.prank(who);
        board.sealRoot{value: paid}(jobId, seat, seal);
    }

    function _sealHeadAs(address who, uint64 count, bytes32 seal) private {
        VM.prank(who);
        board.sealHead(jobId, count, seal);
    }

    function _slashed() private {
        bytes memory first = _headSignature(_head(jobId, 1, ROOT));
        bytes memory second = _headSignature(_head(jobId, 1, OTHER));
        VM.prank(client);
        board.reportEquivocation(jobId, 1, ROOT, first, OTHER, second);
    }

    // ---------------------------------------------------------------- what Python computes

    /// The functions that this file holds the contract to are those of the vectors.
    function test_seals_and_draws_are_those_of_the_vectors() external view {
        string memory json = vectors("seats.json");
        uint256 count = vm.parseJsonUint(json, ".count");
        require(count > 2, "cases");
        for (uint256 i = 0; i < count; ++i) {
            string memory one = string.concat(".cases[", vm.toString(i), "].");
            JobId job = JobId.wrap(_word(json, one, "jobId"));
            (bytes32 root, bytes32 salt) = (_word(json, one, "runRoot"), _word(json, one, "salt"));
            uint64 heads = uint64(vm.parseJsonUint(json, string.concat(one, "headCount")));
            _equal(_word(json, one, "headSeal"), _headSeal(job, heads, root, salt), "head's seal");
            address auditor = address(bytes20(vm.parseJsonBytes(json, string.concat(one, "auditor"))));
            _equal(_word(json, one, "rootSeal"), _rootSeal(job, auditor, root, salt), "root's seal");
            bytes32 secret = _word(json, one, "secret");
            _equal(uint256(_word(json, one, "nonce")), _nonceOf(secret), "nonce");
            bytes32 seed = _seedOf(job, _word(json, one, "entropy"), secret);
            _equal(_word(json, one, "seed"), seed, "seed");
            _checkSlots(json, one, seed);
        }
    }

    function _checkSlots(string memory json, string memory one, bytes32 seed) private pure {
        uint256 length = vm.parseJsonUint(json, string.concat(one, "poolLength"));
        uint256[] memory slots = vm.parseJsonUintArray(json, string.concat(one, "slots"));
        require(slots.length == 16 * 32, "every seat and attempt");
        for (uint256 k = 0; k < slots.length; ++k) {
            // forge-lint: disable-next-line(unsafe-typecast)
            _equal(slots[k], _slotOf(seed, uint8(k / 32), uint8(k % 32), length), "slot");
        }
    }

    function _word(string memory json, string memory one, string memory name) private pure returns (bytes32) {
        return vm.parseJsonBytes32(json, string.concat(one, name));
    }

    // ---------------------------------------------------------------- pools

    function test_a_slot_is_a_hole_or_the_next() external {
        _equal(4, board.poolLength(BOND), "slots");
        _expect(abi.encodeWithSelector(ISeats.SlotNotFree.selector, BOND, 3));
        _join(client, 3);
        _expect(abi.encodeWithSelector(ISeats.SlotNotFree.selector, BOND, 5));
        _join(client, 5);
        _warp(START + POOL_TIME + 1);
        _leave(challenger, 1);
        _join(client, 1);
        require(board.poolSlot(BOND, 1).owner == client, "in the hole");
        _equal(4, board.poolLength(BOND), "as many");
        _expect(abi.encodeWithSelector(ISeats.NoSuchPool.selector, 3));
        board.joinPool{value: 3}(0);
    }

    function test_a_deposit_stays_for_its_time_and_comes_back() external {
        _expect(abi.encodeWithSelector(IJobBoard.WrongCaller.selector, challenger, stranger));
        _leave(stranger, 0);
        _expect(abi.encodeWithSelector(IJobBoard.WrongCaller.selector, address(0), stranger));
        _leave(stranger, 4);
        _warp(START + POOL_TIME);
        _expect(abi.encodeWithSelector(IJobBoard.WindowOpen.selector, START + POOL_TIME, current));
        _leave(challenger, 0);
        _warp(current + 1);
        _leave(challenger, 0);
        _equal(BOND, board.credit(challenger), "the deposit");
        _expect(abi.encodeWithSelector(IJobBoard.WrongCaller.selector, address(0), challenger));
        _leave(challenger, 0);
    }

    // ---------------------------------------------------------------- sealed heads

    function test_the_fees_are_paid_with_the_offer_and_come_back_with_it() external {
        IJobBoard.Job memory job = _job(2);
        bytes memory signature = _jobSignature(job);
        _expect(abi.encodeWithSelector(IJobBoard.WrongPayment.selector, REWARD + 3 * FEE, REWARD));
        VM.prank(client);
        board.createJob{value: REWARD}(job, signature);
        JobId offered = _offer(job);
        _cancel(offered);
        _equal(REWARD + 3 * FEE, board.credit(client), "reward and fees");
        _expect(abi.encodeWithSelector(ISeats.JobNotEnded.selector, offered, IJobBoard.JobStatus.CANCELLED));
        board.closeSeats(offered);
    }

    function test_a_head_is_sealed_and_not_posted() external {
        IJobBoard.Head memory head = _head(jobId, 1, ROOT);
        bytes memory signature = _headSignature(head);
        _expect(_error(IJobBoard.HeadMustBeSealed.selector));
        board.postHead(head, signature);
        _warp(START + WINDOW);
        _sealHead(jobId, 1, ROOT);
        _equal(1, board.job(jobId).headCount, "progress");
        _equal(0, board.seating(jobId).headSeal, "binds nobody");
        _warp(START + 2 * WINDOW);
        _sealHead(jobId, 3, ROOT);
        _equal(_headSeal(jobId, 3, ROOT), board.seating(jobId).headSeal, "binds");
        _equal(0, board.job(jobId).headRoot, "and says nothing");
    }

    function test_who_seals_a_head_and_what() external {
        _expect(abi.encodeWithSelector(IJobBoard.WrongCaller.selector, trainer, client));
        _sealHeadAs(client, 1, ROOT);
        _expect(abi.encodeWithSelector(ISeats.EmptySeal.selector));
        _sealHeadAs(trainer, 1, 0);
        _expect(abi.encodeWithSelector(IJobBoard.HeadOutOfRange.selector, 4, 3));
        _sealHeadAs(trainer, 4, ROOT);
        _sealHead(jobId, 2, ROOT);
        _expect(abi.encodeWithSelector(IJobBoard.HeadNotAscending.selector, 2, 2));
        _sealHeadAs(trainer, 2, ROOT);
        seats = 0;
        JobId plain = _activeJob(3);
        _expect(abi.encodeWithSelector(ISeats.NoSeats.selector, plain));
        VM.prank(trainer);
        board.sealHead(plain, 1, ROOT);
    }

    // ---------------------------------------------------------------- the draw

    function test_seats_are_drawn_after_the_final_seal_with_the_secret_once() external {
        IJobBoard.Job memory job = _job(1);
        _sealHead(jobId, 2, ROOT);
        _expect(_error(ISeats.NotSealed.selector));
        board.drawSeats(job, bytes32(uint256(1)));
        bytes32 entropy = keccak256("entropy");
        VM.prevrandao(entropy);
        _sealHead(jobId, 3, ROOT);
        VM.prevrandao(keccak256("of the draw"));
        require(board.seatOwner(jobId, 0) == address(0), "nobody before the draw");
        bytes32 wrong = sha256(abi.encodePacked("tb.secrt", uint256(2)));
        _expect(abi.encodeWithSelector(ISeats.WrongSecret.selector, bytes32(job.nonce), wrong));
        board.drawSeats(job, bytes32(uint256(2)));
        _draw(1);
        bytes32 seed = board.seating(jobId).seed;
        _equal(_seedOf(jobId, entropy, bytes32(uint256(1))), seed, "seed");
        _expect(_error(ISeats.AlreadyDrawn.selector));
        board.drawSeats(job, bytes32(uint256(1)));
    }

    function test_a_draw_in_the_last_second_gives_the_whole_time() external {
        IJobBoard.Job memory job = _job(2);
        job.auditTime = WINDOW; // three segments
        jobId = _offer(job);
        _accept(jobId);
        _warp(current + WINDOW / 2 + 1);
        _sealHead(jobId, 3, ROOT);
        _warp(current + WINDOW);
        uint256 before = VM.snapshotState();
        _warp(current + 1);
        _expect(abi.encodeWithSelector(IJobBoard.WindowClosed.selector, current - 1, current));
        board.drawSeats(job, bytes32(uint256(2)));
        require(VM.revertToState(before), "back");
        board.drawSeats(job, bytes32(uint256(2)));
        _warp(current + 3 * WINDOW);
        _sealRoot(jobId, 0, ROOT);
        _warp(current + 1);
        address owner = board.seatOwner(jobId, 1);
        _expect(abi.encodeWithSelector(IJobBoard.WindowClosed.selector, current - 1, current));
        _sealAs(owner, BOND, 1, ROOT);
        _openHead(jobId, 3, ROOT);
    }

    /// @dev The first slot that counts, computed apart from the contract.
    function _owner(uint8 seat, uint256 length, uint256 sealedAt) private view returns (address) {
        bytes32 seed = board.seating(jobId).seed;
        for (uint8 attempt = 0; attempt < 32; ++attempt) {
            uint256 index = _slotOf(seed, seat, attempt, length);
            ISeats.Slot memory slot = board.poolSlot(BOND, uint32(index));
            if (slot.owner != address(0) && _unwrap(slot) < sealedAt) return slot.owner;
        }
        return address(0);
    }

    function _unwrap(ISeats.Slot memory slot) private pure returns (uint256 since) {
        assembly ("memory-safe") {
            since := mload(add(slot, 32))
        }
    }

    /// forge-config: default.fuzz.runs = 24
    /// forge-config: ci.fuzz.runs = 64
    function testFuzz_seats_go_to_slots_filled_before_the_seal(uint256 nonce, uint8 empty) external {
        _warp(START + POOL_TIME + 1);
        jobId = _activeJob(nonce);
        for (uint32 slot = 0; slot < 4; ++slot) {
            if ((empty >> slot) & 1 == 0) continue;
            _leave(slot < 2 ? challenger : stranger, slot);
        }
        _warp(current + WINDOW / 2 + 1);
        _sealHead(jobId, 3, ROOT);
        // In the second of the seal: too late.
        if (empty & 1 == 1) _join(client, 0);
        _join(client, 4);
        _draw(nonce);
        for (uint8 seat = 0; seat < 3; ++seat) {
            address owner = board.seatOwner(jobId, seat);
            require(owner == _owner(seat, 4, current), "drawn");
            require(owner != client, "too late");
            require(owner != address(0) || empty & 0xf == 0xf, "an owner, as long as there is one");
        }
        require(board.seatOwner(jobId, 3) == address(0), "no such seat");
    }

    function test_who_leaves_hands_the_seat_on() external {
        _drawn();
        _warp(START + POOL_TIME + 1);
        address first = board.seatOwner(jobId, 0);
        for (uint32 slot = 0; slot < 4; ++slot) {
            if (board.poolSlot(BOND, slot).owner != first) continue;
            _leave(first, slot);
        }
        address second = board.seatOwner(jobId, 0);
        require(second == (first == challenger ? stranger : challenger), "the other");
    }

    function test_the_seal_waits_for_auditors_and_an_empty_pool_leaves_the_seats_empty() external {
        IJobBoard.Job memory job = _job(2);
        (job.seatBond, job.deadline) = (1, WINDOW - 200);
        jobId = _offer(job);
        _accept(jobId);
        _warp(current + WINDOW / 2 - 100);
        _expect(abi.encodeWithSelector(IJobBoard.WindowOpen.selector, current, current));
        _sealHeadAs(trainer, 3, ROOT);
        _warp(current + 1);
        _sealHead(jobId, 3, ROOT);
        board.drawSeats(job, bytes32(uint256(2)));
        require(board.seatOwner(jobId, 0) == address(0), "nobody");
    }

    // ---------------------------------------------------------------- sealed roots

    function test_a_seat_is_sealed_once_by_its_owner_with_its_bond() external {
        _sealHead(jobId, 3, ROOT);
        _expect(abi.encodeWithSelector(IJobBoard.WrongCaller.selector, address(0), challenger));
        _sealAs(challenger, BOND, 0, ROOT);
        _draw(1);
        address owner = board.seatOwner(jobId, 0);
        _expect(abi.encodeWithSelector(IJobBoard.WrongCaller.selector, owner, client));
        _sealAs(client, BOND, 0, ROOT);
        _expect(abi.encodeWithSelector(IJobBoard.WrongPayment.selector, BOND, BOND - 1));
        _sealAs(owner, BOND - 1, 0, ROOT);
        _expect(abi.encodeWithSelector(ISeats.EmptySeal.selector));
        _sealAs(owner, BOND, 0, 0);
        _sealRoot(jobId, 0, ROOT);
        _equal(_rootSeal(jobId, owner, ROOT), board.rootSealOf(jobId, 0), "sealed");
        _expect(abi.encodeWithSelector(ISeats.AlreadySealed.selector, jobId, 0));
        _sealAs(owner, BOND, 0, OTHER);
    }

    function test_no_root_is_sealed_after_the_window_or_the_opening() external {
        _drawn();
        uint256 end = current + WINDOW;
        address owner = board.seatOwner(jobId, 0);
        _warp(end + 1);
        _expect(abi.encodeWithSelector(IJobBoard.WindowClosed.selector, end, end + 1));
        _sealAs(owner, BOND, 0, ROOT);
        _openHead(jobId, 3, ROOT);
        _expect(_error(ISeats.NotSealed.selector));
        _sealAs(owner, BOND, 0, ROOT);
    }

    // ---------------------------------------------------------------- opening

    function test_what_is_opened_was_sealed_and_signed() external {
        IJobBoard.Head memory head = _head(jobId, 3, ROOT);
        bytes memory signature = _headSignature(head);
        _expect(_error(ISeats.NotSealed.selector));
        board.openHead(head, signature, HEAD_SALT);
        _drawn();
        uint256 end = current + WINDOW;
        _warp(end);
        _expect(abi.encodeWithSelector(IJobBoard.WindowOpen.selector, end, end));
        board.openHead(head, signature, HEAD_SALT);
        _warp(end + 1);
        bytes memory foreign = _signature(CLIENT_KEY, board.headDigest(head));
        _expect(abi.encodeWithSelector(IJobBoard.WrongSigner.selector, trainer, client));
        board.openHead(head, foreign, HEAD_SALT);
        bytes32 opened = sha256(abi.encodePacked("tb.hseal", jobId, uint64(3), ROOT, ROOT_SALT));
        _expect(abi.encodeWithSelector(ISeats.WrongSealOpened.selector, _headSeal(jobId, 3, ROOT), opened));
        board.openHead(head, signature, ROOT_SALT);
        board.openHead(head, signature, HEAD_SALT);
        _equal(ROOT, board.job(jobId).headRoot, "posted");
        _expect(_error(ISeats.NotSealed.selector));
        board.openHead(head, signature, HEAD_SALT);
    }

    function test_the_seal_of_a_smaller_head_is_no_final_one() external {
        bytes32 seal = _headSeal(jobId, 2, ROOT);
        _sealHeadAs(trainer, 3, seal);
        _warp(current + WINDOW + 1);
        IJobBoard.Head memory head = _head(jobId, 2, ROOT);
        bytes memory signature = _headSignature(head);
        _expect(abi.encodeWithSelector(IJobBoard.FinalHeadMissing.selector, 2, 3));
        board.openHead(head, signature, HEAD_SALT);
    }

    function test_the_window_is_set_anew_by_the_opening() external {
        _drawn();
        _warp(current + WINDOW + 1);
        _expect(_error(IJobBoard.FinalHeadSealed.selector));
        board.settle(jobId);
        _openHead(jobId, 3, ROOT);
        uint256 end = current + WINDOW;
        _warp(end);
        uint256 before = VM.snapshotState();
        _challenge(jobId, 3, ROOT, 0);
        require(VM.revertToState(before), "back");
        _expect(abi.encodeWithSelector(IJobBoard.WindowOpen.selector, end, end));
        board.settle(jobId);
        _warp(end + 1);
        _expect(abi.encodeWithSelector(IJobBoard.FinalHeadPosted.selector));
        _abandon(jobId);
        board.settle(jobId);
    }

    function test_who_does_not_open_is_abandoned_a_window_later() external {
        _drawn();
        uint256 due = current + 2 * WINDOW;
        _warp(due);
        _expect(abi.encodeWithSelector(IJobBoard.WindowOpen.selector, due, due));
        _abandon(jobId);
        uint256 before = VM.snapshotState();
        _openHead(jobId, 3, ROOT);
        require(VM.revertToState(before), "back");
        _warp(due + 1);
        IJobBoard.Head memory head = _head(jobId, 3, ROOT);
        bytes memory signature = _headSignature(head);
        _expect(abi.encodeWithSelector(IJobBoard.WindowClosed.selector, due, due + 1));
        board.openHead(head, signature, HEAD_SALT);
        _abandon(jobId);
        _equal(REWARD + TRAINER_STAKE, board.credit(client), "client");
    }

    // ---------------------------------------------------------------- what each ending pays

    function _pays(uint8 seat, bytes32 root, uint256 expected) private {
        address auditor = board.seatOwner(jobId, seat);
        uint256 before = board.credit(auditor);
        _claim(jobId, seat, auditor, root);
        _equal(expected, board.credit(auditor) - before, "what the seat is paid");
        bytes32 opened = _rootSeal(jobId, auditor, root);
        _expect(abi.encodeWithSelector(ISeats.WrongSealOpened.selector, bytes32(0), opened));
        _claim(jobId, seat, auditor, root);
    }

    /// @dev Closes the seats, once; then nothing is left in the pot.
    function _closes(uint256 toClient, uint256 burned) private {
        uint256 end = current + WINDOW;
        _warp(end);
        _expect(abi.encodeWithSelector(IJobBoard.WindowOpen.selector, end, end));
        board.closeSeats(jobId);
        _warp(end + 1);
        _expect(abi.encodeWithSelector(IJobBoard.WindowClosed.selector, end, end + 1));
        _claim(jobId, 0, challenger, ROOT);
        (uint256 before, uint256 ashes) = (board.credit(client), _burned(board.seating(jobId).pot));
        board.closeSeats(jobId);
        _equal(toClient, board.credit(client) - before, "to the client");
        _equal(burned, _burned(0) - ashes, "burned");
        _equal(0, board.seating(jobId).pot, "pot");
        _expect(_error(ISeats.PotEmpty.selector));
        board.closeSeats(jobId);
    }

    function test_a_settled_job_pays_those_who_have_its_root() external {
        _opened(ROOT, OTHER);
        _expect(abi.encodeWithSelector(ISeats.JobNotEnded.selector, jobId, IJobBoard.JobStatus.ACTIVE));
        _claim(jobId, 0, challenger, ROOT);
        _warp(current + WINDOW + 1);
        board.settle(jobId);
        _pays(0, ROOT, BOND + FEE);
        address wrong = board.seatOwner(jobId, 1);
        _expect(abi.encodeWithSelector(ISeats.WrongRoot.selector, ROOT, OTHER));
        _claim(jobId, 1, wrong, OTHER);
        _closes(2 * FEE, BOND);
    }

    function test_the_fees_of_a_job_that_nobody_drew_burn() external {
        _sealHead(jobId, 3, ROOT);
        _warp(current + WINDOW + 1);
        _openHead(jobId, 3, ROOT);
        _warp(current + WINDOW + 1);
        board.settle(jobId);
        _closes(0, 3 * FEE);
    }

    function test_a_slashed_job_pays_those_who_saw_the_lie() external {
        _opened(ROOT, OTHER);
        _slashed();
        _equal(REWARD + SHARE, board.credit(client), "a share for the one who convicts");
        _pays(0, ROOT, BOND);
        _pays(1, OTHER, BOND + FEE + SHARE);
        _closes(2 * FEE, HALF - 2 * SHARE);
    }

    function test_a_job_slashed_before_it_was_opened_pays_all_who_sealed() external {
        _drawn();
        _sealRoot(jobId, 0, ROOT);
        _sealRoot(jobId, 1, OTHER);
        _slashed();
        _pays(0, ROOT, BOND + FEE + SHARE);
        _pays(1, OTHER, BOND + FEE + SHARE);
        _closes(FEE, HALF - 3 * SHARE);
    }

    function test_an_abandoned_job_pays_all_who_sealed() external {
        _drawn();
        _sealRoot(jobId, 2, ROOT);
        _warp(current + 2 * WINDOW + 1);
        _abandon(jobId);
        _pays(2, ROOT, BOND + FEE);
        _closes(2 * FEE, 0);
    }

    function test_a_job_abandoned_before_the_final_seal_gives_the_fees_back() external {
        _warp(START + WINDOW + 1);
        _abandon(jobId);
        _closes(3 * FEE, 0);
    }

    /// A seal names its auditor, so a copy of one is of no use to another.
    function test_a_copied_seal_is_worth_nothing() external {
        _drawn();
        uint8 other = board.seatOwner(jobId, 0) == board.seatOwner(jobId, 1) ? 2 : 1;
        address first = _sealRoot(jobId, 0, ROOT);
        address second = board.seatOwner(jobId, other);
        require(first != second, "two auditors sit there");
        bytes32 copied = _rootSeal(jobId, first, ROOT);
        _sealAs(second, BOND, other, copied);
        _warp(current + WINDOW + 1);
        _openHead(jobId, 3, ROOT);
        _warp(current + WINDOW + 1);
        board.settle(jobId);
        bytes32 opened = _rootSeal(jobId, second, ROOT);
        _expect(abi.encodeWithSelector(ISeats.WrongSealOpened.selector, copied, opened));
        _claim(jobId, other, second, ROOT);
        // Who shows it is paid for the one who made it.
        uint256 before = board.credit(first);
        _claim(jobId, other, first, ROOT);
        _equal(before + BOND + FEE, board.credit(first), "the maker of the seal");
    }

    function test_a_conviction_in_a_game_pays_a_share() external {
        _opened(OTHER, OTHER);
        GameId gameId = _challenge(jobId, 3, ROOT, 0);
        VM.prank(trainer);
        games.concede(gameId);
        _requireStatus(jobId, IJobBoard.JobStatus.SLASHED);
        _equal(CHALLENGER_STAKE + SHARE, board.credit(challenger), "a seat or not");
    }

    function test_the_largest_amounts_fit_into_the_pot() external {
        uint256 max = type(uint128).max;
        seats = 16;
        IJobBoard.Job memory job = _job(2);
        (job.trainerStake, job.challengerStake, job.seatFee, job.seatBond) = (max, max, max, 1 << 127);
        VM.deal(client, 20 * max);
        VM.deal(trainer, max);
        VM.deal(stranger, 20 * max);
        VM.prank(stranger);
        board.joinPool{value: 1 << 127}(0);
        jobId = _offer(job);
        _accept(jobId);
        _warp(current + WINDOW / 2 + 1);
        _sealHead(jobId, 3, ROOT);
        board.drawSeats(job, bytes32(uint256(2)));
        bytes32 seal = _rootSeal(jobId, stranger, OTHER);
        for (uint8 seat = 0; seat < 16; ++seat) {
            _sealAs(stranger, 1 << 127, seat, seal);
        }
        _slashed();
        _equal(16 * max + (16 << 127) + max / 2 - max / 34, board.seating(jobId).pot, "pot");
        for (uint8 seat = 0; seat < 16; ++seat) {
            _claim(jobId, seat, stranger, OTHER);
        }
        _equal(16 * (max + (1 << 127) + max / 34), board.credit(stranger), "seats");
        _closes(0, max / 2 - 17 * (max / 34));
    }
}
