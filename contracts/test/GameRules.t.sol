// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Duration} from "../src/game/Time.sol";
import {GameId, IGame} from "../src/interfaces/IGame.sol";
import {IReferee} from "../src/interfaces/IReferee.sol";
import {GameBase} from "./GameBase.sol";
import {GameTrees} from "./GameTrees.sol";

/// @notice Every rule of SPEC section 10, one at a time.
contract GameRulesTest is GameBase {
    bytes32 private constant WRONG = keccak256("wrong");

    // ---------------------------------------------------------------- 1 DESCEND, 2 SELECT

    function test_a_game_starts_at_the_run_root() external {
        _start();
        IGame.GameState memory state = board.game(gameId);
        require(state.phase == IGame.Phase.DESCEND && state.level == IGame.Level.RUN, "start");
        _equal(GameTrees.root(runLeaves), state.node, "node");
        _equal(2, state.height, "height");
        require(board.mover(gameId) == trainer, "the defender moves first");
    }

    function test_descend_needs_the_right_number_of_nodes() external {
        _start();
        for (uint256 count = 0; count < 5; ++count) {
            if (count == 2) continue;
            _expect(abi.encodeWithSelector(IGame.WrongNodeCount.selector, 2, count));
            _play(trainer, abi.encodeCall(IGame.descend, (gameId, new bytes32[](count))));
        }
    }

    function test_nodes_that_do_not_fold_lose() external {
        _start();
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, new bytes32[](2))));
        _defenderLost(IGame.Reason.BROKEN_TIE);
    }

    function test_a_descent_reveals_no_more_levels_than_remain() external {
        levels = 5;
        _start();
        bytes32[] memory nodes = GameTrees.below(runLeaves, 2, 0, 2);
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, nodes)));
        _play(challenger, abi.encodeCall(IGame.select, (gameId, nodes, 1)));
        IGame.GameState memory state = board.game(gameId);
        require(state.phase == IGame.Phase.OPEN_STEPS && state.segment == 1, "one move to the leaf");
        _equal(nodes[1], state.node, "node");
    }

    function test_select_must_repeat_the_nodes() external {
        _start();
        bytes32[] memory nodes = GameTrees.below(runLeaves, 2, 0, 1);
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, nodes)));
        bytes32[] memory swapped = new bytes32[](2);
        (swapped[0], swapped[1]) = (nodes[1], nodes[0]);
        bytes32 folded = sha256(abi.encodePacked("tb.node.", nodes[1], nodes[0]));
        _expect(abi.encodeWithSelector(IGame.NodesDoNotFold.selector, GameTrees.root(runLeaves), folded));
        _play(challenger, abi.encodeCall(IGame.select, (gameId, swapped, 0)));
        _expect(abi.encodeWithSelector(IGame.WrongNodeCount.selector, 2, 4));
        _play(challenger, abi.encodeCall(IGame.select, (gameId, new bytes32[](4), 0)));
    }

    function test_select_must_point_at_a_node() external {
        _start();
        bytes32[] memory nodes = GameTrees.below(runLeaves, 2, 0, 1);
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, nodes)));
        _expect(abi.encodeWithSelector(IGame.IndexOutOfRange.selector, 2, 2));
        _play(challenger, abi.encodeCall(IGame.select, (gameId, nodes, 2)));
        _play(challenger, abi.encodeCall(IGame.select, (gameId, nodes, 1)));
        IGame.GameState memory state = board.game(gameId);
        _equal(nodes[1], state.node, "node");
        _equal(1, state.position, "position");
        _equal(1, state.height, "height");
    }

    // ---------------------------------------------------------------- padding

    function test_empty_padding_of_the_run_beats_the_challenger() external {
        _start();
        _walk(runLeaves, 3);
        _challengerLost(IGame.Reason.PADDING);
    }

    function test_a_checkpoint_beyond_the_head_loses() external {
        // A head of count 2 whose leaf 2 is set nevertheless.
        _startWith(runLeaves, 2);
        _walk(runLeaves, 2);
        _defenderLost(IGame.Reason.PADDING);
    }

    function test_the_depth_of_a_short_head_is_that_of_the_whole_run() external {
        bytes32[] memory leaves = new bytes32[](4);
        leaves[0] = runLeaves[0];
        for (uint256 i = 1; i < 4; ++i) {
            leaves[i] = GameTrees.empty();
        }
        _startWith(leaves, 1);
        _walk(leaves, 1);
        _challengerLost(IGame.Reason.PADDING);
    }

    function test_padding_of_the_steps() external {
        _start();
        _walk(runLeaves, 1);
        _openSteps(1);
        _walk(_stepLeaves(1), 3);
        _challengerLost(IGame.Reason.PADDING);
    }

    function test_a_step_beyond_the_segment_loses() external {
        _start();
        _walk(runLeaves, 1);
        bytes32[] memory leaves = GameTrees.padded(_stepLeaves(1));
        leaves[3] = WRONG;
        _play(trainer, abi.encodeCall(IGame.openSteps, (gameId, GameTrees.root(leaves), GameTrees.proof(leaves, 2))));
        _walk(leaves, 3);
        _defenderLost(IGame.Reason.PADDING);
    }

    function test_padding_of_the_body() external {
        _walkToValue(2, 3);
        _challengerLost(IGame.Reason.PADDING);
    }

    function test_padding_of_the_commits() external {
        _walkToValue(2, 6);
        _challengerLost(IGame.Reason.PADDING);
    }

    function test_a_value_beyond_the_body_loses() external {
        _walkToStep(2);
        bytes32[] memory body = _bodyLeaves(2);
        body[3] = WRONG;
        _play(
            trainer,
            abi.encodeCall(
                IGame.openValues, (gameId, _stateRoot(2), LOSS_BITS, 0, GameTrees.root(body), GameTrees.proof(body, 2))
            )
        );
        bytes32[] memory all = _valueLeaves(2);
        all[3] = WRONG;
        _walk(all, 3);
        _defenderLost(IGame.Reason.PADDING);
    }

    function test_padding_of_the_chunks() external {
        _walkToChunk(2, 3);
        _challengerLost(IGame.Reason.PADDING);
    }

    function test_padding_of_the_terms() external {
        _walkToChunk(2, 1);
        _openChunk(1);
        _selectElement(5, 1, LONG);
        _openTerms();
        _walk(termLeaves, 3);
        _challengerLost(IGame.Reason.PADDING);
    }

    // ---------------------------------------------------------------- 3 OPEN_STEPS

    function test_open_steps_must_end_in_the_checkpoint() external {
        _start();
        _walk(runLeaves, 0);
        bytes32[] memory leaves = _stepLeaves(1); // another segment's
        _play(trainer, abi.encodeCall(IGame.openSteps, (gameId, GameTrees.root(leaves), GameTrees.proof(leaves, 2))));
        _defenderLost(IGame.Reason.BROKEN_TIE);
    }

    function test_open_steps_needs_a_proof_as_long_as_the_tree_is_deep() external {
        _start();
        _walk(runLeaves, 0);
        _expect(abi.encodeWithSelector(IGame.WrongProofLength.selector, 2, 3));
        _play(trainer, abi.encodeCall(IGame.openSteps, (gameId, WRONG, new bytes32[](3))));
    }

    function test_a_segment_of_one_step_is_opened_at_once() external {
        _start();
        _walk(runLeaves, 2);
        IGame.GameState memory state = board.game(gameId);
        require(state.phase == IGame.Phase.OPEN_VALUES && state.level == IGame.Level.STEPS, "at once");
        _equal(7, state.step, "step");
        _equal(runLeaves[2], state.stepsRoot, "the record is the tree");
        _openValues(7);
        _requirePhase(gameId, IGame.Phase.DESCEND);
    }

    // ---------------------------------------------------------------- 4 OPEN_VALUES

    function test_open_values_enters_the_value_tree() external {
        _walkToStep(5);
        _openValues(5);
        IGame.GameState memory state = board.game(gameId);
        require(state.level == IGame.Level.VALUES && state.phase == IGame.Phase.DESCEND, "level");
        _equal(GameTrees.root(_valueLeaves(5)), state.node, "value root");
        _equal(3, state.height, "D + 1");
        _equal(5, state.step, "step");
    }

    function test_open_values_of_another_step_loses() external {
        _walkToStep(5);
        _openValues(4);
        _defenderLost(IGame.Reason.BROKEN_TIE);
    }

    function test_a_rounding_log_under_policy_exact_loses() external {
        // A defender that has committed to a log in its records.
        bytes32 recordWithLog = sha256(abi.encodePacked("tb.recrd", uint64(7), _stateRoot(7), LOSS_BITS, WRONG));
        bytes32[] memory leaves = runLeaves;
        leaves[2] = recordWithLog;
        _startWith(leaves, 3);
        _walk(leaves, 2);
        bytes32[] memory body = _bodyLeaves(7);
        _play(
            trainer,
            abi.encodeCall(
                IGame.openValues,
                (gameId, _stateRoot(7), LOSS_BITS, WRONG, GameTrees.root(body), GameTrees.proof(body, 2))
            )
        );
        _defenderLost(IGame.Reason.BROKEN_TIE);
    }

    function test_a_body_without_the_loss_loses() external {
        _walkToStep(5);
        bytes32[] memory body = _bodyLeaves(5);
        body[2] = WRONG;
        _play(
            trainer,
            abi.encodeCall(
                IGame.openValues, (gameId, _stateRoot(5), LOSS_BITS, 0, GameTrees.root(body), GameTrees.proof(body, 2))
            )
        );
        _defenderLost(IGame.Reason.BROKEN_TIE);
    }

    function test_open_values_needs_d_siblings() external {
        _walkToStep(5);
        _expect(abi.encodeWithSelector(IGame.WrongProofLength.selector, 2, 1));
        _play(trainer, abi.encodeCall(IGame.openValues, (gameId, _stateRoot(5), LOSS_BITS, 0, WRONG, new bytes32[](1))));
    }

    // ---------------------------------------------------------------- 5 OPEN_TENSOR

    function test_open_tensor_of_a_source_leads_to_the_proof() external {
        _walkToValue(2, SOURCE);
        _openTensor(SOURCE);
        _requirePhase(gameId, IGame.Phase.PROVE);
        _equal(_instructionLeaf(_instruction(SOURCE)), board.game(gameId).instructionLeaf, "instruction");
    }

    function test_open_tensor_of_another_instruction_loses() external {
        _walkToValue(2, LONG);
        bytes memory other = _instruction(2);
        _play(
            trainer,
            abi.encodeCall(
                IGame.openTensor, (gameId, other, GameTrees.proof(programLeaves, 2), GameTrees.root(chunkLeaves))
            )
        );
        _defenderLost(IGame.Reason.BROKEN_TIE);
    }

    function test_open_tensor_must_hash_to_the_value() external {
        _walkToValue(2, LONG);
        _play(
            trainer,
            abi.encodeCall(IGame.openTensor, (gameId, _instruction(LONG), GameTrees.proof(programLeaves, LONG), WRONG))
        );
        _defenderLost(IGame.Reason.BROKEN_TIE);
    }

    function test_open_tensor_needs_a_proof_of_the_program_trees_depth() external {
        _walkToValue(2, LONG);
        _expect(abi.encodeWithSelector(IGame.WrongProofLength.selector, 3, 2));
        _play(trainer, abi.encodeCall(IGame.openTensor, (gameId, _instruction(LONG), new bytes32[](2), WRONG)));
    }

    // ---------------------------------------------------------------- 6 OPEN_CHUNK, 7 SELECT_ELEMENT

    function test_the_last_chunk_is_short() external {
        _walkToChunk(2, 2);
        _openChunk(2);
        _requirePhase(gameId, IGame.Phase.SELECT_ELEMENT);
        _expect(abi.encodeWithSelector(IGame.IndexOutOfRange.selector, 88, 88));
        _selectElement(88, 2, LONG);
        _selectElement(87, 2, LONG);
        _equal(599, board.game(gameId).element, "the last element");
    }

    function test_a_chunk_of_other_bytes_loses() external {
        _walkToChunk(2, 1);
        bytes memory data = _chunk(1);
        data[1023] ^= 0x01;
        _play(trainer, abi.encodeCall(IGame.openChunk, (gameId, data)));
        _defenderLost(IGame.Reason.BROKEN_TIE);
    }

    function test_a_chunk_of_another_length_loses_though_it_hashes_right() external {
        // The defender has committed to a second chunk of 1020 bytes.
        bytes memory short = new bytes(1020);
        chunkLeaves[1] = sha256(abi.encodePacked("tb.chunk", short));
        _walkToChunk(2, 1);
        _play(trainer, abi.encodeCall(IGame.openChunk, (gameId, short)));
        _defenderLost(IGame.Reason.BROKEN_TIE);
    }

    function test_select_element_must_repeat_chunk_and_instruction() external {
        _walkToChunk(2, 1);
        _openChunk(1);
        bytes memory other = _chunk(2);
        bytes32 found = sha256(abi.encodePacked("tb.chunk", other));
        _expect(abi.encodeWithSelector(IGame.WrongChunk.selector, chunkLeaves[1], found));
        _selectElement(0, 2, LONG);
        bytes32 right = _instructionLeaf(_instruction(LONG));
        bytes32 wrong = _instructionLeaf(_instruction(2));
        _expect(abi.encodeWithSelector(IGame.WrongInstructionBytes.selector, right, wrong));
        _selectElement(0, 1, 2);
        _expect(abi.encodeWithSelector(IGame.IndexOutOfRange.selector, 256, 256));
        _selectElement(256, 1, LONG);
        _selectElement(5, 1, LONG);
        IGame.GameState memory state = board.game(gameId);
        _equal(261, state.element, "element");
        _equal(5, state.claimed, "bits");
        _equal(1, state.position, "chunk");
        require(state.phase == IGame.Phase.OPEN_TERMS, "a long reduction");
    }

    function test_an_element_of_few_terms_is_proved_at_once() external {
        // Value 2 is not a loss here: its id is that of a tensor, and the body ends with the loss as before.
        bytes memory plain = _instruction(SOURCE);
        IReferee.Description memory description = abi.decode(plain, (IReferee.Description));
        description.opcode = 2;
        bytes memory instruction = abi.encode(description);
        programLeaves[LONG] = _instructionLeaf(instruction);
        _walkToStep(2);
        bytes32[] memory body = _bodyLeaves(2);
        body[LONG] = referee.outputId(instruction, GameTrees.root(chunkLeaves));
        _play(
            trainer,
            abi.encodeCall(
                IGame.openValues, (gameId, _stateRoot(2), LOSS_BITS, 0, GameTrees.root(body), GameTrees.proof(body, 2))
            )
        );
        bytes32[] memory all = _valueLeaves(2);
        all[LONG] = body[LONG];
        _walk(all, LONG);
        _play(
            trainer,
            abi.encodeCall(
                IGame.openTensor,
                (gameId, instruction, GameTrees.proof(programLeaves, LONG), GameTrees.root(chunkLeaves))
            )
        );
        _walk(chunkLeaves, 0);
        _openChunk(0);
        _play(challenger, abi.encodeCall(IGame.selectElement, (gameId, 9, _chunk(0), instruction)));
        _requirePhase(gameId, IGame.Phase.PROVE);
        referee.answerWith(bytes32(uint256(9)));
        _prove();
        _challengerLost(IGame.Reason.RECOMPUTED);
    }

    // ---------------------------------------------------------------- 8 OPEN_TERMS

    function _walkToTerms() private {
        _walkToChunk(2, 1);
        _openChunk(1);
        _selectElement(5, 1, LONG);
    }

    function _terms(bytes32 root, bytes memory accumulator, bytes32[] memory siblings, uint256 number) private {
        _play(trainer, abi.encodeCall(IGame.openTerms, (gameId, root, accumulator, siblings, _instruction(number))));
    }

    function test_open_terms_with_a_non_canonical_accumulator_loses() external {
        termLeaves[2] = keccak256(abi.encode(false, uint64(5)));
        _walkToTerms();
        _terms(GameTrees.root(termLeaves), abi.encode(false, uint64(5)), GameTrees.proof(termLeaves, 2), LONG);
        _defenderLost(IGame.Reason.BROKEN_TIE);
    }

    function test_open_terms_that_end_in_another_value_lose() external {
        termLeaves[2] = keccak256(abi.encode(true, uint64(6)));
        _walkToTerms();
        _terms(GameTrees.root(termLeaves), abi.encode(true, uint64(6)), GameTrees.proof(termLeaves, 2), LONG);
        _defenderLost(IGame.Reason.BROKEN_TIE);
    }

    function test_open_terms_that_do_not_fold_lose() external {
        _walkToTerms();
        _terms(WRONG, _accumulator(2), GameTrees.proof(termLeaves, 2), LONG);
        _defenderLost(IGame.Reason.BROKEN_TIE);
    }

    function test_open_terms_refuses_another_instruction_or_length() external {
        _walkToTerms();
        bytes32 right = _instructionLeaf(_instruction(LONG));
        bytes32 wrong = _instructionLeaf(_instruction(2));
        _expect(abi.encodeWithSelector(IGame.WrongInstructionBytes.selector, right, wrong));
        _terms(WRONG, _accumulator(2), new bytes32[](2), 2);
        _expect(abi.encodeWithSelector(IGame.WrongProofLength.selector, 2, 3));
        _terms(WRONG, _accumulator(2), new bytes32[](3), LONG);
    }

    // ---------------------------------------------------------------- 9 PROVE

    function test_the_terms_decide() external {
        _walkToTerms();
        _openTerms();
        _walk(termLeaves, 1);
        _requirePhase(gameId, IGame.Phase.PROVE);
        referee.answerWith(WRONG);
        _prove();
        _defenderLost(IGame.Reason.RECOMPUTED);
    }

    function test_a_right_leaf_beats_the_challenger() external {
        _walkToTerms();
        _openTerms();
        _walk(termLeaves, 1);
        referee.answerWith(termLeaves[1]);
        _prove();
        _challengerLost(IGame.Reason.RECOMPUTED);
    }

    function test_a_commit_is_proved_at_once() external {
        _walkToValue(2, 5);
        _requirePhase(gameId, IGame.Phase.PROVE);
        referee.answerWith(_valueLeaves(2)[5]);
        _prove();
        _challengerLost(IGame.Reason.RECOMPUTED);
    }

    function test_a_proof_that_the_referee_refuses_is_illegal() external {
        _walkToValue(2, 5);
        IReferee.Proof memory proof;
        proof.instruction = hex"00";
        _expect(abi.encodeWithSelector(IReferee.MissingElement.selector, 0, 7));
        _play(challenger, abi.encodeCall(IGame.prove, (gameId, proof)));
        _requirePhase(gameId, IGame.Phase.PROVE);
    }

    function test_the_referee_is_told_what_the_game_has_fixed() external {
        _walkToTerms();
        _openTerms();
        _walk(termLeaves, 1);
        IReferee.Context memory context = _context(IReferee.Target.TERMS, LONG, 2);
        context.element = 261;
        context.termsLeaf = 1;
        context.instructionLeaf = _instructionLeaf(_instruction(LONG));
        context.accumulatorRoot = GameTrees.root(termLeaves);
        // Step 2 reads record 1, which stands under the steps root of segment 0.
        context.recordRoot = GameTrees.root(_stepLeaves(0));
        context.recordDepth = 2;
        context.recordPosition = 0;
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

    function _context(IReferee.Target target, uint64 position, uint64 step)
        private
        view
        returns (IReferee.Context memory context)
    {
        context.target = target;
        context.depth = 2;
        context.position = position;
        context.step = step;
        context.stateCount = 2;
        context.dataCount = 1;
        context.programRoot = GameTrees.root(programLeaves);
        context.bodyRoot = GameTrees.root(_bodyLeaves(step));
        context.dataRoot = keccak256("data");
    }

    function _told(IReferee.Context memory context) private {
        referee.expectContext(context);
        _prove();
        _defenderLost(IGame.Reason.RECOMPUTED);
    }

    // ---------------------------------------------------------------- turns

    function test_only_the_mover_moves_and_only_the_phases_move() external {
        _start();
        bytes32[] memory nodes = GameTrees.below(runLeaves, 2, 0, 1);
        _expect(abi.encodeWithSelector(IGame.NotYourTurn.selector, trainer, challenger));
        _play(challenger, abi.encodeCall(IGame.descend, (gameId, nodes)));
        _expect(abi.encodeWithSelector(IGame.WrongPhase.selector, IGame.Phase.SELECT, IGame.Phase.DESCEND));
        _play(challenger, abi.encodeCall(IGame.select, (gameId, nodes, 0)));
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, nodes)));
        require(board.mover(gameId) == challenger, "mover");
        _expect(abi.encodeWithSelector(IGame.NotYourTurn.selector, challenger, client));
        _play(client, abi.encodeCall(IGame.select, (gameId, nodes, 0)));
    }

    function test_every_move_has_its_phase() external {
        _start();
        IReferee.Proof memory proof;
        bytes32[] memory none = new bytes32[](0);
        _wrongPhase(IGame.Phase.OPEN_STEPS, abi.encodeCall(IGame.openSteps, (gameId, WRONG, none)));
        _wrongPhase(IGame.Phase.OPEN_VALUES, abi.encodeCall(IGame.openValues, (gameId, WRONG, 0, WRONG, WRONG, none)));
        _wrongPhase(IGame.Phase.OPEN_TENSOR, abi.encodeCall(IGame.openTensor, (gameId, "", none, WRONG)));
        _wrongPhase(IGame.Phase.OPEN_CHUNK, abi.encodeCall(IGame.openChunk, (gameId, "")));
        _wrongPhase(IGame.Phase.SELECT_ELEMENT, abi.encodeCall(IGame.selectElement, (gameId, 0, "", "")));
        _wrongPhase(IGame.Phase.OPEN_TERMS, abi.encodeCall(IGame.openTerms, (gameId, WRONG, "", none, "")));
        _wrongPhase(IGame.Phase.PROVE, abi.encodeCall(IGame.prove, (gameId, proof)));
    }

    function _wrongPhase(IGame.Phase expected, bytes memory call) private {
        VM.prank(trainer);
        (bool success, bytes memory reason) = address(board).call(call);
        bytes memory right = abi.encodeWithSelector(IGame.WrongPhase.selector, expected, IGame.Phase.DESCEND);
        require(!success && keccak256(reason) == keccak256(right), "phase");
    }

    function test_no_game_and_a_game_that_is_over_take_no_moves() external {
        GameId none = GameId.wrap(WRONG);
        _expect(abi.encodeWithSelector(IGame.NoSuchGame.selector, none));
        _play(address(this), abi.encodeCall(IGame.descend, (none, new bytes32[](2))));
        require(board.mover(none) == address(0), "no mover");
        _start();
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, new bytes32[](2))));
        _expect(abi.encodeWithSelector(IGame.GameIsOver.selector, gameId));
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, new bytes32[](2))));
        _expect(abi.encodeWithSelector(IGame.GameIsOver.selector, gameId));
        _play(address(this), abi.encodeCall(IGame.timeout, (gameId)));
        require(board.mover(gameId) == address(0), "over");
    }

    function test_games_of_a_slashed_job_end_without_payment_beyond_the_stake() external {
        _start();
        GameId other = _challengeAs(stranger, jobId, 3, GameTrees.root(runLeaves), 0);
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, new bytes32[](2))));
        _play(address(this), abi.encodeCall(IGame.reclaim, (other)));
        _equal(CHALLENGER_STAKE, board.credit(stranger), "stake back");
        uint256 credits = board.credit(client) + board.credit(challenger) + board.credit(stranger)
            + board.credit(board.BURN_ADDRESS());
        _equal(address(board).balance, credits, "everything is shared out");
    }

    function test_other_games_go_on_after_a_lost_challenge() external {
        _start();
        GameId lost = gameId;
        gameId = _challengeAs(challenger, jobId, 3, GameTrees.root(runLeaves), 1);
        _warp(current + 1);
        bytes32[] memory nodes = GameTrees.below(runLeaves, 2, 0, 1);
        _play(trainer, abi.encodeCall(IGame.descend, (lost, nodes)));
        _warp(current + CLOCK + 1);
        _play(address(this), abi.encodeCall(IGame.timeout, (lost)));
        _equal(CHALLENGER_STAKE, board.credit(trainer), "first stake");
        _equal(1, board.job(jobId).openGames, "one left");
    }

    // ---------------------------------------------------------------- clocks

    function test_the_defender_may_use_exactly_its_clock() external {
        _start();
        bytes32[] memory nodes = GameTrees.below(runLeaves, 2, 0, 1);
        _warp(START + CLOCK - 1);
        _expect(abi.encodeWithSelector(IGame.ClockRunning.selector, CLOCK, CLOCK - 1));
        _play(address(this), abi.encodeCall(IGame.timeout, (gameId)));
        _warp(START + CLOCK);
        _expect(abi.encodeWithSelector(IGame.ClockRunning.selector, CLOCK, CLOCK));
        _play(address(this), abi.encodeCall(IGame.timeout, (gameId)));
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, nodes)));
        IGame.GameState memory state = board.game(gameId);
        _equal(0, Duration.unwrap(state.defenderRest), "defender's rest");
        _equal(CLOCK, Duration.unwrap(state.challengerRest), "challenger's rest");
    }

    function test_one_second_later_only_the_timeout_is_legal() external {
        _start();
        bytes32[] memory nodes = GameTrees.below(runLeaves, 2, 0, 1);
        _warp(START + CLOCK + 1);
        _expect(abi.encodeWithSelector(IGame.ClockExhausted.selector, CLOCK, CLOCK + 1));
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, nodes)));
        _play(stranger, abi.encodeCall(IGame.timeout, (gameId)));
        _defenderLost(IGame.Reason.TIMEOUT);
    }

    function test_clocks_add_up_over_moves_and_the_challengers_runs_out_too() external {
        _start();
        bytes32[] memory nodes = GameTrees.below(runLeaves, 2, 0, 1);
        _warp(START + 100);
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, nodes)));
        _warp(current + 250);
        _play(challenger, abi.encodeCall(IGame.select, (gameId, nodes, 0)));
        nodes = GameTrees.below(runLeaves, 1, 0, 1);
        _warp(current + 200); // 300 in all: exactly the defender's clock
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, nodes)));
        _warp(current + 50); // exactly the challenger's
        _expect(abi.encodeWithSelector(IGame.ClockRunning.selector, 50, 50));
        _play(address(this), abi.encodeCall(IGame.timeout, (gameId)));
        _warp(current + 1);
        _expect(abi.encodeWithSelector(IGame.ClockExhausted.selector, 50, 51));
        _play(challenger, abi.encodeCall(IGame.select, (gameId, nodes, 0)));
        _play(address(this), abi.encodeCall(IGame.timeout, (gameId)));
        _challengerLost(IGame.Reason.TIMEOUT);
    }

    // ---------------------------------------------------------------- the whole walk

    /// Any path through all trees, at any width of descent, ends in the referee's verdict.
    function testFuzz_any_path_ends_with_the_referee(uint256 seed) external {
        levels = uint8(1 + seed % 5);
        uint64 step = uint64(1 + (seed >> 8) % 6);
        uint256 chunk = (seed >> 16) % 3;
        uint256 leaf = (seed >> 24) % 3;
        _walkToChunk(step, chunk);
        _openChunk(chunk);
        _selectElement(5, chunk, LONG);
        _openTerms();
        _walk(termLeaves, leaf);
        bool honest = (seed >> 32) % 2 == 0;
        referee.answerWith(honest ? termLeaves[leaf] : WRONG);
        _prove();
        if (honest) _challengerLost(IGame.Reason.RECOMPUTED);
        else _defenderLost(IGame.Reason.RECOMPUTED);
    }
}
