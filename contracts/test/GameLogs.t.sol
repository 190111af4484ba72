// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IGame} from "../src/interfaces/IGame.sol";
import {IReferee} from "../src/interfaces/IReferee.sol";
import {GameBase} from "./GameBase.sol";
import {GameTrees} from "./GameTrees.sol";

/// @notice The rules of SPEC section 10 that policy `logged` adds, and that policy `exact` has nothing of them.
contract GameLogsTest is GameBase {
    bytes32[] private none;

    // ---------------------------------------------------------------- policy `exact`

    function test_exact_steps_name_no_record() external {
        _start();
        _walk(runLeaves, 0);
        bytes32[] memory leaves = _stepLeaves(0);
        _expectLog(_stateRoot(3));
        _openSteps(leaves, _stateRoot(3), 0, 0);
        _expectLog(bytes32(uint256(LOSS_BITS)));
        _openSteps(leaves, 0, LOSS_BITS, 0);
        _expectLog(WRONG);
        _openSteps(leaves, 0, 0, WRONG);
    }

    function test_exact_values_have_no_step_log() external {
        _walkToStep(5);
        bytes32[] memory all = _valueLeaves(5);
        _expectLog(WRONG);
        _play(trainer, _values(5, all, 0, WRONG, none));
        _expectLength(0, 1);
        _play(trainer, _values(5, all, 0, 0, new bytes32[](1)));
    }

    function test_exact_chunks_have_no_word() external {
        _walkToChunk(2, 0);
        _expectLog(_word(2, 0));
        _openChunk(_chunk(0), _word(2, 0), none);
        _expectLength(0, 4);
        _openChunk(_chunk(0), 0, new bytes32[](4));
    }

    function test_exact_games_keep_no_log() external {
        _walkToTerms(2, 0, 1);
        IGame.GameState memory state = games.game(gameId);
        _equal(bytes32(0), state.log, "no log");
        _equal(7, state.summation, "what is accumulated, and no kind of a logged sum");
    }

    // ---------------------------------------------------------------- what is kept

    function test_the_log_is_kept_as_it_is_opened() external {
        _keepLogs();
        _start();
        _walk(runLeaves, 1);
        _equal(bytes32(0), games.game(gameId).log, "nothing is opened");
        _openSteps(1);
        _equal(_logRoot(1), games.game(gameId).log, "the segment's");
        _walk(_stepLeaves(1), 1);
        _openValues(5);
        _equal(_stepLog(5), games.game(gameId).log, "the step's");
        _walk(_valueLeaves(5), LONG, _seal(right));
        _openTensor(LONG);
        _equal(7 + 16 * 2, games.game(gameId).summation, "a sum of products");
        _walk(chunkLeaves, 0);
        _openChunk(0);
        _equal(_word(5, 0), games.game(gameId).log, "the chunk's");
        _selectElement(5, 0);
        _equal(7 + 16 * 2 + 64 * 2, games.game(gameId).summation, "element 5 went up");
    }

    function test_a_word_without_entries_is_kept_as_none() external {
        _keepLogs();
        _walkToElement(5, 1);
        IGame.GameState memory state = games.game(gameId);
        _equal(bytes32(0), state.log, "no entry in chunk 1");
        _equal(7 + 16 * 2, state.summation, "nor of element 5");
    }

    /// Any path through all trees of a run, at any width of descent, ends in the referee's verdict, which is told how to round.
    function testFuzz_any_path_ends_with_the_referee(uint256 seed) external {
        if ((seed >> 40) % 2 == 0) _keepLogs();
        levels = uint8(1 + seed % 5);
        uint64 step = uint64(1 + (seed >> 8) % 6);
        uint256 leaf = (seed >> 24) % 3;
        bool honest = (seed >> 32) % 2 == 0;
        uint256 chunk = (seed >> 16) % 3;
        if (honest) right = termLeaves[leaf];
        referee.expectRounding(_rounding(step, 128 * chunk + 5));
        _walkToTerms(step, chunk, leaf);
        _prove();
        if (honest) _challengerLost(IGame.Reason.RECOMPUTED);
        else _defenderLost(IGame.Reason.RECOMPUTED);
    }

    function test_another_rounding_would_be_seen() external {
        _keepLogs();
        _walkToElement(5, 0); // the referee expects that of an exact job
        _expect(abi.encodeWithSelector(IReferee.RoundingOutOfRange.selector, PRECISION | 20 << 8 | 2 << 16));
        _terms(GameTrees.opening(termLeaves, levels), _accumulator(2), GameTrees.proof(termLeaves, 2));
    }

    // ---------------------------------------------------------------- 3 OPEN_STEPS

    function test_the_fields_must_be_those_of_the_checkpoint() external {
        _keepLogs();
        for (uint256 which = 0; which < 5; ++which) {
            uint256 id = VM.snapshotState();
            _start();
            _walk(runLeaves, 1);
            (bytes32 stateRoot, uint32 lossBits, bytes32 logRoot) = (_stateRoot(6), LOSS_BITS, _logRoot(1));
            if (which == 0) stateRoot = _stateRoot(5);
            if (which == 1) lossBits ^= 1;
            if (which == 2) logRoot = _logRoot(0);
            if (which == 3) logRoot = 0; // as of a run that logs nothing at all
            _expectBrokenTie();
            _openSteps(_stepLeaves(which == 4 ? 0 : 1), stateRoot, lossBits, logRoot); // or all right, of other steps
            VM.revertToState(id);
        }
    }

    // ---------------------------------------------------------------- 4 OPEN_VALUES

    function test_the_step_log_needs_siblings_of_the_segments_depth() external {
        _keepLogs();
        _walkToStep(5);
        bytes32[] memory all = _valueLeaves(5);
        for (uint256 count = 0; count < 4; ++count) {
            if (count == 2) continue;
            _expectLength(2, count);
            _play(trainer, _values(5, all, _logRoot(1), _stepLog(5), new bytes32[](count)));
        }
        _expectBrokenTie(); // the log root must be the record's
        _play(trainer, _values(5, all, _logRoot(0), _stepLog(2), GameTrees.proof(_stepLogs(0), 1)));
    }

    function test_another_steps_log_is_refused() external {
        _keepLogs();
        for (uint64 other = 4; other < 8; ++other) {
            uint256 id = VM.snapshotState();
            _walkToStep(5);
            // With its own siblings it stands under the same root, at another place; 7 is of another segment.
            bytes32[] memory siblings = GameTrees.proof(_stepLogs(1), (other - 4) % 3);
            if (other != 5) _expectBrokenTie();
            _play(trainer, _values(5, _valueLeaves(5), _logRoot(1), _stepLog(other), siblings));
            if (other == 5) _requirePhase(gameId, IGame.Phase.SELECT);
            VM.revertToState(id);
        }
    }

    function test_all_records_of_a_segment_hold_its_log_root() external {
        _keepLogs();
        // The record of step 5 holds another log root, under which a step log stands; only the checkpoint's is the segment's.
        bytes32[] memory records = _stepLeaves(1);
        bytes32[] memory siblings = new bytes32[](2);
        (siblings[0], siblings[1]) = (WRONG, WRONG);
        bytes32 pair = sha256(abi.encodePacked("tb.node.", WRONG, _stepLog(5)));
        bytes32 other = sha256(abi.encodePacked("tb.node.", pair, WRONG));
        records[1] = _record(5, other);
        _start();
        _walk(runLeaves, 1);
        _openSteps(records);
        _walk(records, 1);
        _expectBrokenTie();
        _play(trainer, _values(5, _valueLeaves(5), other, _stepLog(5), siblings));
    }

    function test_a_segment_of_one_step_has_its_own_log_root() external {
        _keepLogs();
        _start();
        _walk(runLeaves, 2);
        _requirePhase(gameId, IGame.Phase.OPEN_VALUES);
        _equal(bytes32(0), games.game(gameId).log, "nothing is opened");
        _expectLength(0, 1);
        _play(trainer, _values(7, _valueLeaves(7), _stepLog(7), _stepLog(7), new bytes32[](1)));
        _expectBrokenTie(); // its step log is its log root
        _play(trainer, _values(7, _valueLeaves(7), _stepLog(7), _stepLog(6), none));
        _openValues(7);
        _equal(_stepLog(7), games.game(gameId).log, "the step's");
        _requirePhase(gameId, IGame.Phase.SELECT);
    }

    // ---------------------------------------------------------------- 6 OPEN_CHUNK

    function test_the_word_needs_siblings_up_to_the_step_log() external {
        _keepLogs();
        _walkToChunk(5, 0);
        for (uint256 count = 0; count < 7; ++count) {
            if (count == 4) continue;
            _expectLength(4, count);
            _openChunk(_chunk(0), _word(5, 0), new bytes32[](count));
        }
        _expectBrokenTie(); // another chunk, with the right word
        _openChunk(_chunk(2), _word(5, 0), _wordProof(5, 0));
    }

    function test_a_word_of_another_place_is_refused() external {
        _keepLogs();
        // Another chunk's, with its own siblings; the own one left out or altered; another step's; the leaf for a word.
        bytes32[5] memory words = [_word(5, 2), 0, _word(5, 0) ^ bytes32(uint256(1)), _word(6, 0), _wordLeaves(5)[0]];
        for (uint256 which = 0; which < words.length; ++which) {
            uint256 id = VM.snapshotState();
            _walkToChunk(5, 0);
            uint64 step = which == 3 ? 6 : 5;
            _expectBrokenTie();
            _openChunk(_chunk(0), words[which], _wordProof(step, which == 0 ? 2 : 0));
            VM.revertToState(id);
        }
    }

    function test_an_entry_where_the_log_has_none_is_refused() external {
        _keepLogs();
        _walkToChunk(5, 1);
        _expectBrokenTie();
        _openChunk(_chunk(1), bytes32(uint256(1)), _wordProof(5, 1));
    }

    function test_what_is_no_logged_sum_has_no_word() external {
        _keepLogs();
        _walkToFewTerms(0);
        _equal(0, games.game(gameId).summation, "nothing is summed");
        _expectLog(_word(2, 0));
        _openChunk(_chunk(0), _word(2, 0), none);
        _expectLength(0, 4);
        _openChunk(_chunk(0), 0, _wordProof(2, 0));
        _openChunk(_chunk(0));
        _equal(_stepLog(2), games.game(gameId).log, "the step's is what was opened last");
        _proveFewTerms(PRECISION);
    }

    // ---------------------------------------------------------------- 7 SELECT_ELEMENT, 9 PROVE

    /// A sum of few terms is proved at once, and the referee is told what the log says of it and within which tolerance.
    function test_a_sum_of_few_terms_is_proved_with_its_direction() external {
        _keepLogs();
        uint32[3] memory tolerances = [uint32(10), 20, 30];
        for (uint8 kind = 1; kind <= 3; ++kind) {
            uint256 id = VM.snapshotState();
            _walkToFewTerms(kind);
            _equal(16 * uint256(kind), games.game(gameId).summation, "a logged sum, judged at once");
            _openChunk(_chunk(0), _word(2, 0), _wordProof(2, 0));
            _proveFewTerms(PRECISION | tolerances[kind - 1] << 8 | 2 << 16);
            VM.revertToState(id);
        }
    }

    /// The code of each element is read where SPEC section 5.1 puts it.
    function testFuzz_codes_stand_where_they_are_read(bytes32 word, uint256 index) external {
        index %= 128;
        (_isDrawn, _drawn) = (true, word);
        _keepLogs();
        _walkToChunk(2, 0);
        _openChunk(0);
        _selectElement(index, 0);
        // As integers: a word's bytes are most significant first, the codes in a byte least significant first.
        uint256 code = uint256(word) / 2 ** (248 - 8 * (index / 4)) % 256 / 4 ** (index % 4) % 4;
        if (code == 3) code = 0;
        _equal(7 + 16 * 2 + 64 * code, games.game(gameId).summation, "code");
    }

    // ---------------------------------------------------------------- helpers

    bool private _isDrawn;
    bytes32 private _drawn;

    /// @dev The word of chunk 0 may be drawn.
    function _word(uint64 step, uint256 chunk) internal view override returns (bytes32) {
        return _isDrawn && chunk == 0 ? _drawn : super._word(step, chunk);
    }

    function _expectLog(bytes32 part) private {
        _expect(abi.encodeWithSelector(IGame.UnexpectedLog.selector, part));
    }

    function _expectLength(uint256 expected, uint256 actual) private {
        _expect(abi.encodeWithSelector(IGame.WrongProofLength.selector, expected, actual));
    }

    /// @dev To phase OPEN_CHUNK of chunk 0 in step 2, of a logged sum of few terms (kind 0: of a map).
    function _walkToFewTerms(uint8 kind) private {
        IReferee.Description memory description = abi.decode(_instruction(LONG), (IReferee.Description));
        (description.opcode, description.sumKind) = (kind == 0 ? 2 : kind == 3 ? 5 : 3, kind);
        (description.termLeaves, description.accumulator) = (0, 0);
        bytes memory instruction = abi.encode(description);
        programLeaves[LONG] = _instructionLeaf(instruction);
        _walkToStep(2);
        bytes32[] memory all = _valueLeaves(2);
        all[LONG] = _outputId(instruction, GameTrees.root(chunkLeaves));
        _openValues(2, all);
        _walk(all, LONG, _seal(right));
        opened.push(_seal(right));
        _openTensor(instruction, GameTrees.proof(programLeaves, LONG), GameTrees.opening(chunkLeaves, levels));
        _walk(chunkLeaves, 0);
    }

    /// @dev Chooses element 5 of that chunk, and proves it: the referee is told exactly this rounding.
    function _proveFewTerms(uint32 rounding) private {
        _play(challenger, abi.encodeCall(IGame.selectElement, (gameId, 5, _chunk(0), _seal(right))));
        opened.push(_seal(right));
        IReferee.Context memory context;
        (context.target, context.depth, context.rounding) = (IReferee.Target.ELEMENT, 2, rounding);
        (context.position, context.step, context.element) = (LONG, 2, 5);
        (context.bodyRoot, context.instructionLeaf) = (opened[2], opened[4]);
        referee.expectContext(context);
        _prove();
        _defenderLost(IGame.Reason.RECOMPUTED);
    }
}
