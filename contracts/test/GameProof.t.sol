// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Duration} from "../src/game/Time.sol";
import {GameId, IGame} from "../src/interfaces/IGame.sol";
import {IJobBoard} from "../src/interfaces/IJobBoard.sol";
import {IReferee} from "../src/interfaces/IReferee.sol";
import {GameBase} from "./GameBase.sol";
import {GameTrees} from "./GameTrees.sol";

/// @notice Move 9, its seal, what it has to show again, and who can copy it.
contract GameProofTest is GameBase {
    // ---------------------------------------------------------------- verdicts

    function test_a_commit_is_proved_at_once() external {
        right = _valueLeaves(2)[5];
        _walkToValue(2, 5);
        _requirePhase(gameId, IGame.Phase.PROVE);
        _prove();
        _challengerLost(IGame.Reason.RECOMPUTED);
    }

    /// An element of few terms is proved at once, and its bits are what is compared.
    function test_an_element_of_few_terms() external {
        uint256 id = VM.snapshotState();
        _walkToShortElement(9);
        _prove();
        _challengerLost(IGame.Reason.RECOMPUTED);
        require(VM.revertToState(id), "back");
        _walkToShortElement(10);
        _prove();
        _defenderLost(IGame.Reason.RECOMPUTED);
    }

    /// @dev To the proof of element 9, whose bits are 9, of a map.
    function _walkToShortElement(uint256 answer) private {
        IReferee.Description memory description = abi.decode(_instruction(SOURCE), (IReferee.Description));
        description.opcode = 2;
        bytes memory instruction = abi.encode(description);
        programLeaves[LONG] = _instructionLeaf(instruction);
        _walkToStep(2);
        bytes32[] memory all = _valueLeaves(2);
        all[LONG] = _outputId(instruction, GameTrees.root(chunkLeaves));
        _openValues(2, all);
        _walk(all, LONG, WRONG); // this seal is not asked for again
        opened.push(WRONG);
        _openTensor(instruction, GameTrees.proof(programLeaves, LONG), GameTrees.opening(chunkLeaves, levels));
        _walk(chunkLeaves, 0);
        _openChunk(0);
        right = bytes32(answer);
        _play(challenger, abi.encodeCall(IGame.selectElement, (gameId, 9, _chunk(0), _seal(right))));
        opened.push(_seal(right));
        _requirePhase(gameId, IGame.Phase.PROVE);
    }

    function test_a_proof_that_the_referee_refuses_is_illegal() external {
        _walkToValue(2, 5);
        _warp(current + CLOCK);
        IReferee.Proof memory proof;
        proof.instruction = hex"00";
        _expect(abi.encodeWithSelector(IReferee.MissingElement.selector, 0, 7));
        _play(challenger, abi.encodeCall(IGame.prove, (gameId, proof, SALT, opened)));
        _requirePhase(gameId, IGame.Phase.PROVE);
    }

    // ---------------------------------------------------------------- time and seal

    function test_a_proof_waits_for_a_clock_which_costs_it_nothing() external {
        _walkToTerms(2, 1, 1);
        referee.answerWith(right);
        uint256 sealedAt = current;
        for (uint256 early = CLOCK; early > 0; early = early > 1 ? 1 : 0) {
            _warp(sealedAt + CLOCK - early); // in the block of the seal, and one second too early
            _expect(abi.encodeWithSelector(IGame.TooEarly.selector, sealedAt + CLOCK, current));
            _play(challenger, _proof(SALT, opened));
        }
        for (uint256 late = 0; late < 2; ++late) {
            uint256 id = VM.snapshotState();
            _warp(sealedAt + CLOCK + late * CLOCK); // the first second, and the last
            _play(challenger, _proof(SALT, opened));
            _defenderLost(IGame.Reason.RECOMPUTED);
            _equal(CLOCK - late * CLOCK, Duration.unwrap(games.game(gameId).challengerRest), "rest");
            require(VM.revertToState(id), "back");
        }
        _warp(sealedAt + 2 * CLOCK + 1);
        _expect(abi.encodeWithSelector(IGame.ClockExhausted.selector, CLOCK, CLOCK + 1));
        _play(challenger, _proof(SALT, opened));
        _play(stranger, abi.encodeCall(IGame.timeout, (gameId)));
        _challengerLost(IGame.Reason.TIMEOUT);
    }

    function test_another_salt_or_answer_is_not_what_was_sealed() external {
        _walkToTerms(2, 1, 1);
        _warp(current + CLOCK);
        referee.answerWith(right);
        bytes32 found = sha256(abi.encodePacked("tb.seal.", gameId, right, WRONG));
        _expect(abi.encodeWithSelector(IGame.WrongSeal.selector, opened[6], found));
        _play(challenger, _proof(WRONG, opened));
        // Sealed a guess that was not the answer: the leaf is wrong, but this challenger did not know how.
        referee.answerWith(WRONG);
        _expect(abi.encodeWithSelector(IGame.WrongSeal.selector, opened[6], _seal(WRONG)));
        _play(challenger, _proof(SALT, opened));
        _requirePhase(gameId, IGame.Phase.PROVE);
    }

    // ---------------------------------------------------------------- what was opened

    function test_each_thing_opened_must_be_repeated() external {
        _walkToTerms(2, 1, 1);
        _warp(current + CLOCK);
        bytes32 digest = games.game(gameId).opened;
        _equal(7, opened.length, "run, steps, body, seal, instruction, terms, seal");
        for (uint256 i = 0; i < 7; ++i) {
            bytes32[] memory list = opened;
            list[i] = WRONG;
            _expect(abi.encodeWithSelector(IGame.WrongOpened.selector, digest, _digest(list)));
            _play(challenger, _proof(SALT, list));
        }
        (bytes32[] memory swapped, bytes32 first) = (opened, opened[2]);
        (swapped[2], swapped[3]) = (swapped[3], first);
        _expect(abi.encodeWithSelector(IGame.WrongOpened.selector, digest, _digest(swapped)));
        _play(challenger, _proof(SALT, swapped));
        _equal(_digest(opened), digest, "the digest");
    }

    function _digest(bytes32[] memory list) private pure returns (bytes32 digest) {
        digest = list[0];
        for (uint256 i = 1; i < list.length; ++i) {
            digest = keccak256(bytes.concat(digest, list[i]));
        }
    }

    function test_the_list_has_the_length_of_its_leaf() external {
        _walkToTerms(2, 1, 1);
        _refusedCount(7, 6);
        levels = 2;
        _walkToValue(2, 5);
        _refusedCount(4, 3);
        levels = 3;
        _walkToValue(2, SOURCE);
        _openTensor(SOURCE);
        _refusedCount(5, 3);
        levels = 4;
        _walkToShortElement(10);
        _refusedCount(6, 5);
    }

    /// @dev Nor is another salt than that of the seal, which stands at this place of the list.
    function _refusedCount(uint256 right_, uint256 seal) private {
        _warp(current + CLOCK);
        _equal(right_, opened.length, "the right length");
        for (uint256 count = 0; count < 9; ++count) {
            if (count == right_) continue;
            _expect(abi.encodeWithSelector(IGame.WrongOpenedCount.selector, right_, count));
            _play(challenger, _proof(SALT, new bytes32[](count)));
        }
        referee.answerWith(right);
        bytes32 found = sha256(abi.encodePacked("tb.seal.", gameId, right, WRONG));
        _expect(abi.encodeWithSelector(IGame.WrongSeal.selector, opened[seal], found));
        _play(challenger, _proof(WRONG, opened));
    }

    /// A run root that is itself a digest of two words cannot stretch the list.
    function test_a_run_root_made_as_a_digest_opens_nothing_else() external {
        // The trainer signs keccak256(a ‖ b) as its run root; a list one longer would fold to the same digest.
        bytes32[] memory longer = new bytes32[](6);
        (longer[0], longer[1]) = (keccak256("a"), keccak256("b"));
        bytes32 root = keccak256(bytes.concat(longer[0], longer[1]));
        jobId = _activeJob(1);
        gameId = _challenge(jobId, 3, root, 0);
        _equal(root, games.game(gameId).opened, "t_0");
        // (The walk cannot leave such a root: nothing is known to fold to it. The length alone refuses it.)
        _expectBrokenTie();
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, new bytes32[](2))));
    }

    // ---------------------------------------------------------------- what the referee is told

    function test_the_referee_is_told_what_the_game_has_fixed() external {
        _walkToTerms(2, 1, 1);
        IReferee.Context memory context = _context(IReferee.Target.TERMS, LONG, 2);
        context.element = 133;
        context.termsLeaf = 1;
        context.instructionLeaf = _instructionLeaf(_instruction(LONG));
        context.accumulatorRoot = GameTrees.root(termLeaves);
        _told(context);
    }

    function test_step_one_reads_record_zero() external {
        _walkToValue(1, 4);
        IReferee.Context memory context = _context(IReferee.Target.VALUE, 4, 1);
        context.recordRoot =
            sha256(abi.encodePacked("tb.recrd", uint64(0), keccak256("state 0"), uint32(0x7fc00000), bytes32(0)));
        _told(context);
    }

    function test_the_first_step_of_a_segment_reads_the_checkpoint_before() external {
        _walkToValue(4, 4);
        IReferee.Context memory context = _context(IReferee.Target.VALUE, 4, 4);
        context.recordRoot = GameTrees.root(runLeaves);
        context.recordDepth = 2;
        context.recordPosition = 0;
        _told(context);
    }

    function test_later_steps_read_the_record_before_in_their_segment() external {
        _walkToValue(6, SOURCE);
        _openTensor(SOURCE);
        IReferee.Context memory context = _context(IReferee.Target.VALUE, SOURCE, 6);
        context.instructionLeaf = _instructionLeaf(_instruction(SOURCE));
        context.recordRoot = GameTrees.root(_stepLeaves(1));
        context.recordDepth = 2;
        context.recordPosition = 1;
        _told(context);
    }

    /// Late data stand under it. (Of policy `exact`, the referee is told of none: see the others.)
    function test_a_value_of_a_logged_run_is_told_the_step_log() external {
        _keepLogs();
        _walkToValue(1, SOURCE);
        _openTensor(SOURCE);
        IReferee.Context memory context = _context(IReferee.Target.VALUE, SOURCE, 1);
        context.instructionLeaf = _instructionLeaf(_instruction(SOURCE));
        context.recordRoot =
            sha256(abi.encodePacked("tb.recrd", uint64(0), keccak256("state 0"), uint32(0x7fc00000), bytes32(0)));
        _told(context);
    }

    function test_an_element_is_told_as_one() external {
        _walkToShortElement(10);
        IReferee.Context memory context = _context(IReferee.Target.ELEMENT, LONG, 2);
        context.element = 9;
        context.instructionLeaf = opened[4];
        context.bodyRoot = opened[2];
        _told(context);
    }

    function _context(IReferee.Target target, uint64 position, uint64 step)
        private
        view
        returns (IReferee.Context memory context)
    {
        context.target = target;
        context.depth = 2;
        context.rounding = PRECISION;
        context.position = position;
        context.step = step;
        context.bodyRoot = GameTrees.root(_body(_valueLeaves(step)));
        // What only a value needs is told of none but a value.
        if (target != IReferee.Target.VALUE) return context;
        context.stateCount = 2;
        context.dataCount = 1;
        context.programRoot = GameTrees.root(programLeaves);
        context.dataRoot = keccak256("data");
        if (logged) context.stepLog = _stepLog(step);
    }

    function _told(IReferee.Context memory context) private {
        referee.expectContext(context);
        _prove();
        _defenderLost(IGame.Reason.RECOMPUTED);
    }

    // ---------------------------------------------------------------- runs without a tree

    /// @dev A run of `steps` steps and one checkpoint: the run root is the record of its last step.
    function _startShort(uint64 steps) private {
        IJobBoard.Job memory job = _job(steps);
        (job.steps, job.checkpointInterval) = (steps, steps);
        jobId = _offer(job);
        _accept(jobId);
        gameId = _challenge(jobId, 1, _record(steps), 0);
        delete opened;
        opened.push(_record(steps));
        _equal(_record(steps), games.game(gameId).node, "node");
    }

    function test_a_run_of_one_step_begins_with_its_values() external {
        _startShort(1);
        IGame.GameState memory state = games.game(gameId);
        require(state.phase == IGame.Phase.OPEN_VALUES && state.level == IGame.Level.STEPS, "phase");
        _equal(1, state.step, "step");
        opened.push(_record(1));
        _openValues(1);
        _walk(_valueLeaves(1), 4, _seal(right));
        opened.push(_seal(right));
        _prove();
        _defenderLost(IGame.Reason.RECOMPUTED);
    }

    function test_a_run_of_one_checkpoint_begins_with_its_steps() external {
        _startShort(3);
        IGame.GameState memory state = games.game(gameId);
        require(state.phase == IGame.Phase.OPEN_STEPS && state.level == IGame.Level.RUN, "phase");
        _openSteps(0);
        _walk(_stepLeaves(0), 1);
        _openValues(2);
        _walk(_valueLeaves(2), 4, _seal(right));
        opened.push(_seal(right));
        _prove();
        _defenderLost(IGame.Reason.RECOMPUTED);
    }

    // ---------------------------------------------------------------- who can copy a proof

    /// A mirror plays the same game beside the challenger, move for move, and copies its proof from the queue.
    function test_a_mirror_does_not_win_in_the_same_block() external {
        (GameId own, GameId mirror) = _playBoth(0);
        _warp(current + CLOCK);
        // The mirror's transaction comes first, with all of the challenger's proof in it.
        _mirrorFails(mirror);
        // It stands at the same leaf: to select again, with a seal of the answer that it has learnt, is not its turn.
        _expect(abi.encodeWithSelector(IGame.WrongPhase.selector, IGame.Phase.SELECT, IGame.Phase.PROVE));
        _play(stranger, _selection(termLeaves, 0, 1, _seal(right)));
        gameId = own;
        _play(challenger, _proof(SALT, opened));
        _equal(
            CHALLENGER_STAKE + TRAINER_STAKE / 2 - RELIEF, board.credit(challenger), "the first that knew the answer"
        );
        _play(stranger, abi.encodeCall(IGame.reclaim, (mirror)));
        _equal(2 * CHALLENGER_STAKE + RELIEF, board.credit(stranger), "the mirror has its stake back, and relief");
    }

    function test_a_mirror_does_not_win_one_block_later() external {
        (GameId own, GameId mirror) = _playBoth(0);
        _warp(current + CLOCK);
        gameId = own;
        _play(challenger, _proof(SALT, opened));
        _warp(current + 1);
        _mirrorFails(mirror);
        _play(stranger, abi.encodeCall(IGame.reclaim, (mirror)));
        _equal(2 * CHALLENGER_STAKE + RELIEF, board.credit(stranger), "the mirror has its stake back, and relief");
        _equal(0, board.job(jobId).openGames, "no game left");
    }

    /// A builder keeps a proof out of the blocks, seals its answer in a game of its own, and proves first: a clock later.
    function test_who_seals_the_answer_of_a_proof_that_it_holds_back_comes_a_clock_later() external {
        mirrorSeals = true;
        (GameId own, GameId mirror) = _playBoth(CLOCK); // all but its seal, which it posts when it sees the proof
        (uint256 seen, bytes32[] memory list) = (current, opened);
        (list[3], list[6]) = (_mirrorSeal(mirror), _mirrorSeal(mirror));
        gameId = mirror;
        _warp(seen + CLOCK - 1);
        _expect(abi.encodeWithSelector(IGame.TooEarly.selector, seen + CLOCK, current));
        _play(stranger, _proof(SALT, list));
        uint256 id = VM.snapshotState();
        gameId = own; // in the last second of what it has to bear
        _play(challenger, _proof(SALT, opened));
        _equal(CHALLENGER_STAKE + TRAINER_STAKE / 2 - RELIEF, board.credit(challenger), "who computed");
        require(VM.revertToState(id), "back");
        _warp(seen + CLOCK); // longer than anybody is kept out
        gameId = mirror;
        _play(stranger, _proof(SALT, list));
        require(board.credit(stranger) > TRAINER_STAKE / 2, "the promise ends here"); // with its stake
    }

    function _mirrorSeal(GameId mirror) private view returns (bytes32) {
        return sha256(abi.encodePacked("tb.seal.", mirror, right, SALT));
    }

    bool private mirrorSeals;
    bool private mirroring;

    /// @dev Both games to the proof of the same leaf, the mirror's by as much later. It copies the seals that it saw, or
    /// seals the answer.
    function _playBoth(uint256 later) private returns (GameId own, GameId mirror) {
        levels = 5;
        _walkToTerms(2, 1, 1);
        own = gameId;
        mirror = _challengeAs(stranger, jobId, 3, GameTrees.root(runLeaves), 0);
        gameId = mirror;
        mirroring = true;
        bytes32[] memory kept = opened;
        bytes32 copied = mirrorSeals ? _mirrorSeal(mirror) : kept[6];
        _warp(current + later);
        _walk(runLeaves, 0);
        _openSteps(0);
        _walk(_stepLeaves(0), 1);
        _openValues(2);
        _walk(_valueLeaves(2), LONG, copied);
        _openTensor(LONG);
        _walk(chunkLeaves, 1);
        _openChunk(1);
        _selectElement(5, 1);
        _openTerms();
        _walk(termLeaves, 1, copied);
        mirroring = false;
        opened = kept;
        referee.answerWith(right);
    }

    /// @dev What the mirror's own game opened: the same, but for the seal of the value.
    function _mirrored(GameId mirror) private view returns (bytes32[] memory list) {
        list = opened;
        list[3] = list[6];
        require(_digest(list) == games.game(mirror).opened, "the mirror's list");
    }

    function _mirrorFails(GameId mirror) private {
        gameId = mirror;
        bytes32 found = sha256(abi.encodePacked("tb.seal.", mirror, right, SALT));
        _expect(abi.encodeWithSelector(IGame.WrongSeal.selector, opened[6], found));
        _play(stranger, _proof(SALT, _mirrored(mirror)));
    }

    function _play(address who, bytes memory move) internal override {
        super._play(mirroring && who == challenger ? stranger : who, move);
    }
}
