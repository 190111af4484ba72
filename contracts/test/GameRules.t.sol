// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Duration} from "../src/game/Time.sol";
import {IGame} from "../src/interfaces/IGame.sol";
import {IReferee} from "../src/interfaces/IReferee.sol";
import {GameBase} from "./GameBase.sol";
import {GameTrees} from "./GameTrees.sol";

/// @notice The rules of SPEC section 10 for the moves 1 ... 8, one at a time.
contract GameRulesTest is GameBase {
    // ---------------------------------------------------------------- 1 DESCEND, 2 SELECT

    function test_a_game_starts_at_the_run_root() external {
        _start();
        IGame.GameState memory state = games.game(gameId);
        require(state.phase == IGame.Phase.DESCEND && state.level == IGame.Level.RUN, "start");
        _equal(GameTrees.root(runLeaves), state.node, "node");
        _equal(GameTrees.root(runLeaves), state.opened, "opened");
        _equal(2, state.height, "height");
        _equal(3, state.leaves, "count of the head");
        _equal(1, state.descentLevels, "r");
        _equal(REPLAY, Duration.unwrap(state.replayTime), "replay time");
        require(state.fresh && state.challenger == challenger && state.jobId == jobId, "parties");
        require(games.mover(gameId) == trainer, "the defender moves first");
    }

    function test_descend_needs_the_right_number_of_nodes_that_fold() external {
        _start();
        _expectBrokenTie();
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, new bytes32[](2))));
        for (uint256 count = 0; count < 5; ++count) {
            if (count == 2) continue;
            _expect(abi.encodeWithSelector(IGame.WrongNodeCount.selector, 2, count));
            _play(trainer, abi.encodeCall(IGame.descend, (gameId, new bytes32[](count))));
        }
    }

    function test_a_descent_reveals_no_more_levels_than_remain() external {
        levels = 5;
        _start();
        bytes32[] memory nodes = GameTrees.below(runLeaves, 2, 0, 2);
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, nodes)));
        _select(runLeaves, 0, 1, 0);
        IGame.GameState memory state = games.game(gameId);
        require(state.phase == IGame.Phase.OPEN_STEPS, "one move to the leaf");
        _equal(4, state.step, "first step of the segment");
        _equal(3, state.leaves, "steps of the segment");
        _equal(nodes[1], state.node, "node");
    }

    function test_select_takes_a_node_of_the_defenders_only() external {
        _start();
        bytes32[] memory nodes = GameTrees.below(runLeaves, 2, 0, 1);
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, nodes)));
        bytes32[] memory siblings = new bytes32[](1);
        siblings[0] = nodes[1];
        bytes32 folded = sha256(abi.encodePacked("tb.node.", WRONG, nodes[1]));
        _expect(abi.encodeWithSelector(IGame.NodeDoesNotFold.selector, GameTrees.root(runLeaves), folded));
        _play(challenger, abi.encodeCall(IGame.select, (gameId, WRONG, 0, siblings, 0)));
        // The right node at the other place.
        folded = sha256(abi.encodePacked("tb.node.", nodes[1], nodes[0]));
        _expect(abi.encodeWithSelector(IGame.NodeDoesNotFold.selector, GameTrees.root(runLeaves), folded));
        _play(challenger, abi.encodeCall(IGame.select, (gameId, nodes[0], 1, siblings, 0)));
        for (uint256 count = 0; count < 4; ++count) {
            if (count == 1) continue;
            _expect(abi.encodeWithSelector(IGame.WrongProofLength.selector, 1, count));
            // No siblings at all would make the root its own child.
            bytes32 node = count == 0 ? GameTrees.root(runLeaves) : WRONG;
            _play(challenger, abi.encodeCall(IGame.select, (gameId, node, 0, new bytes32[](count), 0)));
        }
        siblings[0] = nodes[0];
        uint256[3] memory indices = [uint256(2), 3, type(uint256).max];
        for (uint256 i = 0; i < 3; ++i) {
            _expect(abi.encodeWithSelector(IGame.IndexOutOfRange.selector, 2, indices[i]));
            _play(challenger, abi.encodeCall(IGame.select, (gameId, nodes[1], indices[i], siblings, 0)));
        }
        _play(challenger, abi.encodeCall(IGame.select, (gameId, nodes[1], 1, siblings, 0)));
        IGame.GameState memory state = games.game(gameId);
        _equal(nodes[1], state.node, "node");
        _equal(1, state.position, "position");
        _equal(1, state.height, "height");
        require(state.phase == IGame.Phase.DESCEND && !state.fresh, "phase");
    }

    function test_a_seal_is_refused_where_none_is_kept() external {
        _start();
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, GameTrees.below(runLeaves, 2, 0, 1))));
        _refusedSeal(runLeaves, 1, 0); // inside a tree
        _select(runLeaves, 1, 0, 0);
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, GameTrees.below(runLeaves, 1, 0, 1))));
        _refusedSeal(runLeaves, 0, 0); // a leaf of the run
        _select(runLeaves, 0, 0, 0);
        _openSteps(0);
        _select(_stepLeaves(0), 1, 0, 0);
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, GameTrees.below(_stepLeaves(0), 1, 0, 1))));
        _refusedSeal(_stepLeaves(0), 0, 0); // a leaf of the steps
    }

    function test_a_seal_is_refused_at_a_chunk_and_at_padding() external {
        levels = 5;
        uint256 id = VM.snapshotState();
        _walkToValue(2, LONG);
        _openTensor(LONG);
        _refusedSeal(chunkLeaves, 0, 1);
        require(VM.revertToState(id), "back");
        _walkToStep(2);
        _openValues(2);
        _refusedSeal(_valueLeaves(2), 0, 3);
        _select(_valueLeaves(2), 0, 3, 0);
        _challengerLost(IGame.Reason.PADDING);
    }

    function _refusedSeal(bytes32[] memory leaves, uint256 height, uint256 position) private {
        _expect(abi.encodeWithSelector(IGame.UnexpectedSeal.selector, WRONG));
        _select(leaves, height, position, WRONG);
    }

    // ---------------------------------------------------------------- padding

    function test_empty_padding_of_each_tree_beats_the_challenger() external {
        for (uint256 tree = 0; tree < 6; ++tree) {
            uint256 id = VM.snapshotState();
            if (tree == 0) {
                _start();
                _walk(runLeaves, 3);
            } else if (tree == 1) {
                _start();
                _walk(runLeaves, 1);
                _openSteps(1);
                _walk(_stepLeaves(1), 3);
            } else if (tree < 4) {
                _walkToStep(2);
                _openValues(2);
                _walk(_valueLeaves(2), tree == 2 ? 3 : 6); // behind the body, behind the commits
            } else if (tree == 4) {
                _walkToChunk(2, 3);
            } else {
                _walkToElement(2, 1);
                _openTerms();
                _walk(termLeaves, 3);
            }
            _challengerLost(IGame.Reason.PADDING);
            require(VM.revertToState(id), "back");
        }
    }

    function test_padding_that_is_set_beats_the_defender() external {
        for (uint256 tree = 0; tree < 3; ++tree) {
            uint256 id = VM.snapshotState();
            if (tree == 0) {
                // A head of count 2 whose leaf 2 is set nevertheless.
                _startWith(runLeaves, 2);
                _walk(runLeaves, 2);
            } else if (tree == 1) {
                _start();
                _walk(runLeaves, 1);
                bytes32[] memory leaves = GameTrees.padded(_stepLeaves(1));
                leaves[3] = WRONG;
                _openSteps(leaves);
                _walk(leaves, 3);
            } else {
                _walkToStep(2);
                bytes32[] memory all = _valueLeaves(2);
                all[3] = WRONG;
                _openValues(2, all);
                _walk(all, 3);
            }
            _defenderLost(IGame.Reason.PADDING);
            require(VM.revertToState(id), "back");
        }
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

    // ---------------------------------------------------------------- 3 OPEN_STEPS

    function test_open_steps_shows_the_first_nodes_of_a_tree_that_ends_in_the_checkpoint() external {
        _start();
        _walk(runLeaves, 0);
        uint256 id = VM.snapshotState(); // a refusal must not count as something opened
        _expectBrokenTie();
        _openSteps(1); // another segment's
        require(VM.revertToState(id), "back");
        _expect(abi.encodeWithSelector(IGame.WrongProofLength.selector, 2, 3));
        _play(trainer, abi.encodeCall(IGame.openSteps, (gameId, new bytes32[](2), new bytes32[](3), 0, 0, 0)));
        _expect(abi.encodeWithSelector(IGame.WrongNodeCount.selector, 2, 1));
        _play(trainer, abi.encodeCall(IGame.openSteps, (gameId, new bytes32[](1), new bytes32[](2), 0, 0, 0)));
        _openSteps(0);
        IGame.GameState memory state = games.game(gameId);
        require(state.phase == IGame.Phase.SELECT && state.level == IGame.Level.STEPS && state.fresh, "phase");
        _equal(GameTrees.root(_stepLeaves(0)), state.node, "root");
        _equal(2, state.height, "depth");
        _equal(keccak256(abi.encode(opened[0], opened[1])), state.opened, "digest");
    }

    function test_a_segment_of_one_step_is_opened_at_once() external {
        _start();
        _walk(runLeaves, 2);
        IGame.GameState memory state = games.game(gameId);
        require(state.phase == IGame.Phase.OPEN_VALUES && state.level == IGame.Level.STEPS, "at once");
        _equal(7, state.step, "step");
        _equal(keccak256(abi.encode(opened[0], runLeaves[2])), state.opened, "the record is the tree");
        _openValues(7);
        _requirePhase(gameId, IGame.Phase.SELECT);
    }

    // ---------------------------------------------------------------- 4 OPEN_VALUES

    function test_open_values_enters_the_value_tree() external {
        _walkToStep(5);
        _openValues(5);
        IGame.GameState memory state = games.game(gameId);
        require(state.level == IGame.Level.VALUES && state.phase == IGame.Phase.SELECT, "level");
        _equal(GameTrees.root(_valueLeaves(5)), state.node, "value root");
        _equal(3, state.height, "D + 1");
        _equal(5, state.step, "step");
    }

    function test_a_rounding_log_under_policy_exact_is_refused() external {
        // A defender that has committed to a log in its records.
        bytes32[] memory leaves = runLeaves;
        leaves[2] = _record(7, WRONG);
        _startWith(leaves, 3);
        _walk(leaves, 2);
        _expectBrokenTie();
        _play(trainer, _values(7, _valueLeaves(7), WRONG, 0, new bytes32[](0)));
    }

    /// The right half of the value tree is the state's, at any width of descent.
    function test_commits_of_another_state_are_refused() external {
        for (levels = 1; levels <= 5; ++levels) {
            _walkToStep(5);
            for (uint256 leaf = 4; leaf < 8; ++leaf) {
                bytes32[] memory all = _valueLeaves(5);
                all[leaf] = WRONG;
                _expectBrokenTie();
                _play(trainer, _values(5, all));
            }
        }
    }

    function test_values_of_another_step_or_without_the_loss_or_of_other_lengths_are_refused() external {
        _walkToStep(5);
        _expectBrokenTie();
        _openValues(4);
        bytes32[] memory all = _valueLeaves(5);
        all[2] = WRONG;
        _expectBrokenTie();
        _openValues(5, all);
        _expect(abi.encodeWithSelector(IGame.WrongProofLength.selector, 2, 1));
        _valuesOfLengths(2, 1);
        _expect(abi.encodeWithSelector(IGame.WrongNodeCount.selector, 2, 3));
        _valuesOfLengths(3, 2);
    }

    function _valuesOfLengths(uint256 nodes, uint256 siblings) private {
        (bytes32[] memory first, bytes32[] memory second) = (new bytes32[](nodes), new bytes32[](siblings));
        bytes32[] memory none = new bytes32[](0);
        _play(trainer, abi.encodeCall(IGame.openValues, (gameId, _stateRoot(5), LOSS_BITS, 0, first, second, 0, none)));
    }

    // ---------------------------------------------------------------- 5 OPEN_TENSOR

    function test_open_tensor_keeps_what_later_moves_need() external {
        _walkToValue(2, LONG);
        _openTensor(LONG);
        IGame.GameState memory state = games.game(gameId);
        require(state.phase == IGame.Phase.SELECT && state.level == IGame.Level.CHUNKS, "phase");
        _equal(GameTrees.root(chunkLeaves), state.node, "chunk root");
        _equal(3, state.leaves, "chunks");
        _equal(176, state.lastChunkBytes, "last chunk");
        _equal(3, state.termLeaves, "leaves of the terms");
        _equal(7, state.summation, "what is accumulated");
        _equal(1, state.instruction, "instruction");
    }

    function test_open_tensor_of_a_source_leads_to_the_proof() external {
        _walkToValue(2, SOURCE);
        _expect(abi.encodeWithSelector(IGame.WrongNodeCount.selector, 0, 2));
        bytes32[] memory siblings = GameTrees.proof(programLeaves, SOURCE);
        _play(trainer, abi.encodeCall(IGame.openTensor, (gameId, _instruction(SOURCE), siblings, new bytes32[](2))));
        _openTensor(SOURCE);
        _requirePhase(gameId, IGame.Phase.PROVE);
        _equal(_valueLeaves(2)[SOURCE], games.game(gameId).node, "the leaf is what is proved");
    }

    function test_another_tensor_than_the_value_is_refused() external {
        _walkToValue(2, LONG);
        _expectBrokenTie();
        _openTensor(_instruction(2), GameTrees.proof(programLeaves, 2), GameTrees.opening(chunkLeaves, 1));
        bytes32[] memory nodes = new bytes32[](2);
        (nodes[0], nodes[1]) = (WRONG, WRONG);
        _expectBrokenTie();
        _openTensor(_instruction(LONG), GameTrees.proof(programLeaves, LONG), nodes);
        // Nor without the nodes and a proof of the program tree's depth.
        _expect(abi.encodeWithSelector(IGame.WrongProofLength.selector, 3, 2));
        _openTensor(_instruction(LONG), new bytes32[](2), new bytes32[](2));
        bytes32[] memory siblings = GameTrees.proof(programLeaves, LONG);
        for (uint256 count = 0; count < 6; ++count) {
            if (count == 2) continue;
            _expect(abi.encodeWithSelector(IGame.WrongNodeCount.selector, 2, count));
            _openTensor(_instruction(LONG), siblings, new bytes32[](count));
        }
    }

    // ---------------------------------------------------------------- 6 OPEN_CHUNK, 7 SELECT_ELEMENT

    function test_the_last_chunk_is_short() external {
        _walkToChunk(2, 2);
        _openChunk(2);
        _requirePhase(gameId, IGame.Phase.SELECT_ELEMENT);
        _expect(abi.encodeWithSelector(IGame.IndexOutOfRange.selector, 44, 44));
        _selectElement(44, 2);
        _selectElement(43, 2);
        _equal(299, games.game(gameId).element, "the last element");
    }

    function test_a_chunk_of_other_bytes_is_refused() external {
        _walkToChunk(2, 1);
        bytes memory data = _chunk(1);
        data[511] ^= 0x01;
        _expectBrokenTie();
        _openChunk(data);
    }

    function test_a_chunk_of_another_length_is_refused_though_it_hashes_right() external {
        // The defender has committed to a second chunk of 508 bytes, and to a last one of 512.
        (bytes memory short, bytes memory long) = (new bytes(508), new bytes(512));
        chunkLeaves[1] = sha256(abi.encodePacked("tb.chunk", short));
        chunkLeaves[2] = sha256(abi.encodePacked("tb.chunk", long));
        uint256 id = VM.snapshotState();
        _walkToChunk(2, 1);
        _expectBrokenTie();
        _openChunk(short);
        require(VM.revertToState(id), "back");
        _walkToChunk(2, 2);
        _expectBrokenTie();
        _openChunk(long);
    }

    function test_select_element_must_repeat_the_chunk() external {
        _walkToChunk(2, 1);
        _openChunk(1);
        bytes32 found = sha256(abi.encodePacked("tb.chunk", _chunk(2)));
        _expect(abi.encodeWithSelector(IGame.WrongChunk.selector, chunkLeaves[1], found));
        _selectElement(0, 2);
        _expect(abi.encodeWithSelector(IGame.IndexOutOfRange.selector, 128, 128));
        _selectElement(128, 1);
        _expect(abi.encodeWithSelector(IGame.IndexOutOfRange.selector, 128, type(uint256).max));
        _selectElement(type(uint256).max, 1);
        _expect(abi.encodeWithSelector(IGame.UnexpectedSeal.selector, WRONG)); // none before the terms are opened
        _play(challenger, abi.encodeCall(IGame.selectElement, (gameId, 5, _chunk(1), WRONG)));
        _selectElement(5, 1);
        IGame.GameState memory state = games.game(gameId);
        _equal(133, state.element, "element");
        _equal(bytes32(uint256(5)), state.node, "bits");
        _equal(1, state.position, "chunk");
        require(state.phase == IGame.Phase.OPEN_TERMS, "a long reduction");
    }

    /// Bits are read least significant byte first, at each width and place.
    function testFuzz_elements_are_little_endian(bytes32 data, uint8 dtype, uint256 index) external {
        dtype %= 3;
        uint256 size = dtype == 0 ? 4 : dtype == 1 ? 8 : 1;
        index %= 32 / size;
        bytes memory chunk = abi.encode(data);
        IReferee.Description memory description = abi.decode(_instruction(2), (IReferee.Description));
        (description.elements, description.dtype, description.dataBytes) = (uint64(32 / size), dtype, 32);
        bytes memory instruction = abi.encode(description);
        programLeaves[LONG] = _instructionLeaf(instruction);
        delete chunkLeaves;
        chunkLeaves.push(sha256(abi.encodePacked("tb.chunk", chunk)));
        _walkToStep(2);
        bytes32[] memory all = _valueLeaves(2);
        all[LONG] = _outputId(instruction, chunkLeaves[0]);
        _openValues(2, all);
        _walk(all, LONG, _seal(right));
        bytes32[] memory siblings = GameTrees.proof(programLeaves, LONG);
        _openTensor(instruction, siblings, chunkLeaves);
        // A tree of one chunk has no levels.
        _requirePhase(gameId, IGame.Phase.OPEN_CHUNK);
        _openChunk(chunk);
        _play(challenger, abi.encodeCall(IGame.selectElement, (gameId, index, chunk, WRONG)));
        uint256 bits = 0;
        for (uint256 i = size; i > 0; --i) {
            bits = bits << 8 | uint8(chunk[index * size + i - 1]);
        }
        _equal(bytes32(bits), games.game(gameId).node, "bits");
        _equal(index, games.game(gameId).element, "element");
        _requirePhase(gameId, IGame.Phase.PROVE);
    }

    // ---------------------------------------------------------------- 8 OPEN_TERMS

    function test_open_terms_enters_the_terms() external {
        _walkToElement(2, 1);
        _openTerms();
        IGame.GameState memory state = games.game(gameId);
        require(state.phase == IGame.Phase.SELECT && state.level == IGame.Level.TERMS, "phase");
        _equal(GameTrees.root(termLeaves), state.node, "root");
        _equal(2, state.height, "depth");
        _equal(133, state.element, "the element is kept");
    }

    function test_a_last_accumulator_stands_in_the_tree_and_gives_the_claimed_bits() external {
        _walkToElement(2, 1);
        _expect(abi.encodeWithSelector(IGame.WrongProofLength.selector, 2, 3));
        _terms(new bytes32[](2), _accumulator(2), new bytes32[](3));
        _expect(abi.encodeWithSelector(IGame.WrongNodeCount.selector, 2, 4));
        _terms(new bytes32[](4), _accumulator(2), new bytes32[](2));
        bytes32[] memory siblings = GameTrees.proof(termLeaves, 2);
        siblings[1] = WRONG;
        _expectBrokenTie();
        _terms(GameTrees.opening(termLeaves, 1), _accumulator(2), siblings);
        bytes[2] memory others = [abi.encode(true, uint64(6)), abi.encode(false, uint64(5))]; // other bits; none at all
        for (uint256 i = 0; i < 2; ++i) {
            termLeaves[2] = keccak256(others[i]);
            _expectBrokenTie();
            _terms(GameTrees.opening(termLeaves, 1), others[i], GameTrees.proof(termLeaves, 2));
        }
    }

    /// Another element may have the same bits, so its partial sums would tie.
    function test_open_terms_names_the_selected_element() external {
        _walkToElement(2, 1);
        bytes32[] memory nodes = GameTrees.opening(termLeaves, 1);
        bytes32[] memory siblings = GameTrees.proof(termLeaves, 2);
        for (uint256 which = 0; which < 3; ++which) {
            _expect(abi.encodeWithSelector(IGame.WrongPlace.selector, 2, LONG, 133));
            _termsOf(which == 0 ? 1 : 2, which == 1 ? 2 : 1, which == 2 ? 5 : 133, nodes, _accumulator(2), siblings);
        }
        _termsOf(2, 1, 133, nodes, _accumulator(2), siblings);
        _requirePhase(gameId, IGame.Phase.SELECT);
    }
}
