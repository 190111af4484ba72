// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Duration, Instant} from "../src/game/Time.sol";
import {Snapshots} from "../src/game/Snapshots.sol";
import {Turns} from "../src/game/Turns.sol";
import {GameId, IGame} from "../src/interfaces/IGame.sol";
import {IJobBoard, JobId} from "../src/interfaces/IJobBoard.sol";
import {IReferee} from "../src/interfaces/IReferee.sol";
import {GameBase} from "./GameBase.sol";
import {GameTrees} from "./GameTrees.sol";

/// @notice States that the sides signed in talk: what enters, what is judged at once, and who forked.
contract GameTalkTest is GameBase {
    uint64 private constant TALKED = 500;

    /// A game of the vectors, with its job's steps and checkpoint interval.
    Turns.Game private _vector;
    uint64 private _steps;
    uint64 private _interval;

    /// A state of the game as play on chain came to it.
    struct Reached {
        bytes snapshot;
        uint32 sequence;
        bytes32[] opened;
    }

    function _job(uint256 nonce) internal view override returns (IJobBoard.Job memory job) {
        job = super._job(nonce);
        job.talkTime = TALKED;
    }

    /// @dev The state at which a walk arrives; the game itself is taken back to its start.
    function _reach(uint256 walk) private returns (Reached memory reached) {
        uint256 id = VM.snapshotState();
        if (walk == 0) _walkToStep(2);
        else if (walk == 1) _walkToValue(2, LONG);
        else if (walk == 2) _walkToChunk(2, 1);
        else if (walk == 3) _walkToElement(2, 1);
        else if (walk == 4) _walkToTerms(2, 1, 1);
        else _walkToValue(2, walk == 5 ? 4 : SOURCE); // a commit, or a source
        if (walk == 6) _openTensor(SOURCE);
        IGame.GameState memory state = games.game(gameId);
        reached = Reached(_encode(state), state.sequence, opened);
        require(VM.revertToState(id), "back");
        _start();
        require(games.game(gameId).sequence == 0 && reached.sequence > 0, "at its start");
    }

    function _entry(uint256 key, uint32 sequence, bytes memory snapshot) private view returns (bytes memory) {
        bytes memory signature = _stateSignature(key, sequence, _idOf(snapshot));
        return abi.encodeCall(IGame.enter, (gameId, sequence, snapshot, signature));
    }

    function _entryAndProof(uint256 key, Reached memory r, bytes32 salt) private view returns (bytes memory) {
        IReferee.Proof memory proof;
        bytes memory signature = _stateSignature(key, r.sequence, _idOf(r.snapshot));
        return abi.encodeCall(IGame.enterAndProve, (gameId, r.sequence, r.snapshot, signature, proof, salt, r.opened));
    }

    function _requireAt(Reached memory r) private view {
        IGame.GameState memory state = games.game(gameId);
        require(keccak256(_encode(state)) == keccak256(r.snapshot), "the state that was signed");
        _equal(r.sequence, state.sequence, "its sequence");
    }

    // ---------------------------------------------------------------- entering

    /// Each side enters what the other signed; play goes on from there as if it had been made here.
    function test_a_state_enters_and_play_goes_on_from_it() external {
        for (uint256 walk = 0; walk < 7; ++walk) {
            for (uint256 side = 0; side < 2; ++side) {
                uint256 id = VM.snapshotState();
                Reached memory r = _reach(walk);
                if (side == 0) _play(trainer, _entry(CHALLENGER_KEY, r.sequence, r.snapshot));
                else _play(challenger, _entry(TRAINER_KEY, r.sequence, r.snapshot));
                _requireAt(r);
                _warp(current + CLOCK); // from the game's start on: no move was made here
                if (walk == 0) {
                    _openValues(2);
                } else if (walk == 3) {
                    _openTerms();
                } else if (walk > 3) {
                    referee.answerWith(right);
                    _play(challenger, _proof(SALT, r.opened));
                }
                if (walk > 3) _defenderLost(IGame.Reason.RECOMPUTED);
                else if (walk % 3 == 0) _equal(r.sequence + 1, games.game(gameId).sequence, "one move more");
                require(VM.revertToState(id), "back");
            }
        }
    }

    /// What stands here may be a state that was entered, or moves made here meanwhile: only a later one replaces it.
    function test_only_a_later_state_enters() external {
        uint256 id = VM.snapshotState();
        Reached memory early = _reach(0);
        require(VM.revertToState(id), "back");
        Reached memory late = _reach(2);
        _play(trainer, _entry(CHALLENGER_KEY, late.sequence, late.snapshot));
        _expect(abi.encodeWithSelector(IGame.StaleState.selector, late.sequence, early.sequence));
        _play(challenger, _entry(TRAINER_KEY, early.sequence, early.snapshot));
        _expect(abi.encodeWithSelector(IGame.StaleState.selector, late.sequence, late.sequence));
        _play(challenger, _entry(TRAINER_KEY, late.sequence, late.snapshot));
        _openChunk(1);
        _equal(late.sequence + 1, games.game(gameId).sequence, "sequence");
        _expect(abi.encodeWithSelector(IGame.StaleState.selector, late.sequence + 1, late.sequence + 1));
        _play(challenger, _entry(TRAINER_KEY, late.sequence + 1, late.snapshot));
        _expect(abi.encodeWithSelector(IGame.IndexOutOfRange.selector, 1 << 15, (1 << 15) + 1));
        _play(challenger, _entry(TRAINER_KEY, (1 << 15) + 1, late.snapshot));
        _play(challenger, _entry(TRAINER_KEY, 1 << 15, late.snapshot));
        _openChunk(1);
        _equal((1 << 15) + 1, games.game(gameId).sequence, "sequence");
    }

    function test_only_a_side_enters_and_only_what_the_other_signed() external {
        Reached memory r = _reach(1);
        _expect(abi.encodeWithSelector(IGame.NotASide.selector, stranger));
        _play(stranger, _entry(TRAINER_KEY, r.sequence, r.snapshot));
        _expect(abi.encodeWithSelector(IJobBoard.WrongSigner.selector, challenger, trainer));
        _play(trainer, _entry(TRAINER_KEY, r.sequence, r.snapshot));
        _expect(abi.encodeWithSelector(IJobBoard.WrongSigner.selector, trainer, stranger));
        _play(challenger, _entry(STRANGER_KEY, r.sequence, r.snapshot));
        _expect(abi.encodeWithSelector(IJobBoard.MalformedSignature.selector));
        _play(challenger, abi.encodeCall(IGame.enter, (gameId, r.sequence, r.snapshot, "")));
        _play(challenger, _entry(TRAINER_KEY, r.sequence, r.snapshot));
        _requireAt(r);
    }

    function test_states_enter_until_the_talk_is_over() external {
        Reached memory r = _reach(1);
        uint256 id = VM.snapshotState();
        _warp(START + TALKED - 1);
        _play(challenger, _entry(TRAINER_KEY, r.sequence, r.snapshot));
        require(VM.revertToState(id), "back");
        for (uint256 later = 0; later < 2; ++later) {
            _warp(START + TALKED + later);
            _expect(abi.encodeWithSelector(IGame.TalkIsOver.selector, START + TALKED, START + TALKED + later));
            _play(challenger, _entry(TRAINER_KEY, r.sequence, r.snapshot));
        }
    }

    /// Whoever keeps a proof out of the blocks until the talk is over has not kept it out.
    function test_a_signed_leaf_is_judged_at_any_time_and_wherever_the_game_stands() external {
        Reached memory r = _reach(4);
        referee.answerWith(right);
        for (uint256 later = 0; later < 3; ++later) {
            uint256 id = VM.snapshotState();
            _warp(START + TALKED - 1 + later * later * CLOCK);
            if (later == 1) {
                _play(trainer, abi.encodeCall(IGame.descend, (gameId, GameTrees.below(runLeaves, 2, 0, 1))));
            }
            if (later == 0) _play(trainer, _entry(CHALLENGER_KEY, r.sequence, r.snapshot)); // it stands here already
            _play(challenger, _entryAndProof(TRAINER_KEY, r, SALT));
            _defenderLost(IGame.Reason.RECOMPUTED);
            _expect(abi.encodeWithSelector(IGame.GameIsOver.selector, gameId));
            _play(challenger, _entryAndProof(TRAINER_KEY, r, SALT));
            require(VM.revertToState(id), "back");
        }
    }

    function test_a_snapshot_has_its_ranges() external {
        Reached memory r = _reach(1);
        _refused(abi.encodePacked(r.snapshot, uint8(0)), 0, 145, "length");
        _refused("", 0, 0, "length");
        _refusedByte(r.snapshot, 0, 0, "phase");
        _refusedByte(r.snapshot, 0, 10, "phase");
        _refusedByte(r.snapshot, 1, 5, "level");
        _refusedByte(r.snapshot, 2, 65, "height");
        _refusedByte(r.snapshot, 3, 2, "fresh");
        bytes memory large = abi.encodePacked(r.snapshot);
        large[18] = 0x01; // element: bytes 16 ... 23
        _refused(large, 16, 1 << 40, "element");
    }

    function _refusedByte(bytes memory snapshot, uint256 offset, uint8 value, string memory field) private {
        bytes memory other = abi.encodePacked(snapshot);
        other[offset] = bytes1(value);
        _refused(other, offset, value, field);
    }

    function _refused(bytes memory snapshot, uint256 offset, uint256 value, string memory field) private {
        bytes memory move = _entry(TRAINER_KEY, 1000, snapshot);
        _expect(
            bytes32(bytes(field)) == bytes32("length")
                ? abi.encodeWithSelector(IGame.SnapshotLength.selector, 144, value)
                : abi.encodeWithSelector(IGame.InvalidSnapshot.selector, offset, value)
        );
        _play(challenger, move);
    }

    /// Two that work together may enter whatever agrees with itself and the job. It stands here as signed, no move from
    /// there fails but with an error of these contracts, and the game ends by the clocks.
    function testFuzz_whatever_enters_ends(uint256 seed, bytes32 node, bytes32 log) external {
        Reached memory r = _reach(seed % 7);
        uint256 changes = seed >> 8 & 3;
        if (changes > 1) (r.snapshot, changes) = (_changed(r.snapshot, 48, 32, node), changes - 2);
        if (changes > 0) r.snapshot = _changed(r.snapshot, 112, 32, log);
        for (uint256 i = 0; i < (seed >> 16 & 3); ++i) {
            uint8 value = uint8(seed >> 32 + 24 * i);
            uint256 place = uint8(seed >> 40 + 24 * i) % 48;
            r.snapshot =
                _changed(r.snapshot, place, 1, bytes32(bytes1(seed >> 48 + 24 * i & 1 == 0 ? value : value & 7)));
        }
        (bool entered, bytes memory why) = _try(challenger, _entry(TRAINER_KEY, r.sequence, r.snapshot));
        if (!entered) {
            require(bytes4(why) == IGame.InvalidSnapshot.selector, "named");
            return;
        }
        _requireAt(r);
        referee.answerWith(node);
        _try(challenger, _entryAndProof(TRAINER_KEY, r, SALT));
        bytes32[] memory nodes = new bytes32[](seed >> 128 & 7);
        for (uint256 i = 0; i < nodes.length; ++i) {
            nodes[i] = node;
        }
        _tryMoves(seed >> 136 & 3, node, nodes);
        if (games.game(gameId).phase == IGame.Phase.OVER) return;
        address side = games.mover(gameId);
        _warp(START + TALKED + 2 * CLOCK + REPLAY + 1); // more than any allowance
        _play(stranger, abi.encodeCall(IGame.timeout, (gameId)));
        if (side == trainer) _defenderLost(IGame.Reason.TIMEOUT);
        else _challengerLost(IGame.Reason.TIMEOUT);
    }

    function _tryMoves(uint256 index, bytes32 node, bytes32[] memory nodes) private {
        bytes memory chunk = new bytes(512);
        _try(trainer, abi.encodeCall(IGame.descend, (gameId, nodes)));
        _try(challenger, abi.encodeCall(IGame.select, (gameId, node, index, nodes, 0)));
        _try(trainer, abi.encodeCall(IGame.openSteps, (gameId, nodes, nodes, 0, 0, 0)));
        _try(trainer, abi.encodeCall(IGame.openValues, (gameId, 0, 0, 0, nodes, nodes, 0, nodes)));
        _try(trainer, abi.encodeCall(IGame.openTensor, (gameId, chunk, nodes, nodes)));
        _try(trainer, abi.encodeCall(IGame.openChunk, (gameId, chunk, node, nodes)));
        _try(challenger, abi.encodeCall(IGame.selectElement, (gameId, index, chunk, node)));
        uint64 element = games.game(gameId).element;
        _try(trainer, abi.encodeCall(IGame.openTerms, (gameId, 1, 1, element, nodes, chunk, nodes)));
    }

    /// @dev A call that may be refused, but by an error with a name.
    function _try(address who, bytes memory move) private returns (bool success, bytes memory why) {
        VM.prank(who);
        (success, why) = address(games).call(move);
        require(success || (why.length >= 4 && bytes4(why) != 0x4e487b71), "no panic, and not without a word");
    }

    function _changed(bytes memory snapshot, uint256 place, uint256 size, bytes32 value)
        private
        pure
        returns (bytes memory other)
    {
        other = abi.encodePacked(snapshot);
        for (uint256 i = 0; i < size; ++i) {
            other[place + i] = value[i];
        }
    }

    // ---------------------------------------------------------------- judged at once

    function test_a_signed_leaf_is_judged_without_a_stored_game() external {
        for (uint256 walk = 4; walk < 7; ++walk) {
            uint256 id = VM.snapshotState();
            if (walk == 6) right = termLeaves[1]; // then it costs the challenger
            Reached memory r = _reach(walk == 6 ? 4 : walk);
            referee.answerWith(right);
            // In the block of the challenge: the seal stands in what the defender signed.
            _play(challenger, _entryAndProof(TRAINER_KEY, r, SALT));
            if (walk == 6) _challengerLost(IGame.Reason.RECOMPUTED);
            else _defenderLost(IGame.Reason.RECOMPUTED);
            require(games.game(gameId).step == 0, "nothing of the state is stored");
            require(VM.revertToState(id), "back");
        }
    }

    /// The referee is told the step log that the defender signed, whether the state was entered first or not.
    function test_a_signed_source_is_judged_under_its_step_log() external {
        _keepLogs();
        for (uint256 which = 0; which < 4; ++which) {
            uint256 id = VM.snapshotState();
            Reached memory r = _reach(6);
            bytes32 stepLog = _stepLog(2);
            if (which > 1) {
                stepLog = WRONG;
                r.snapshot = _changed(r.snapshot, 112, 32, WRONG);
            }
            _expectSource(r, stepLog);
            if (which % 2 == 0) {
                _play(challenger, _entryAndProof(TRAINER_KEY, r, SALT));
            } else {
                _play(challenger, _entry(TRAINER_KEY, r.sequence, r.snapshot));
                _equal(stepLog, games.game(gameId).log, "the one that was signed");
                opened = r.opened;
                _prove();
            }
            _defenderLost(IGame.Reason.RECOMPUTED);
            require(VM.revertToState(id), "back");
        }
    }

    /// @dev From now on the referee answers to nothing but the source in step 2 under this step log.
    function _expectSource(Reached memory r, bytes32 stepLog) private {
        IReferee.Context memory context;
        (context.target, context.depth, context.rounding) = (IReferee.Target.VALUE, 2, PRECISION);
        (context.position, context.step, context.stateCount, context.dataCount) = (SOURCE, 2, 2, 1);
        (context.programRoot, context.dataRoot) = (GameTrees.root(programLeaves), keccak256("data"));
        (context.bodyRoot, context.instructionLeaf) = (r.opened[2], r.opened[4]);
        (context.recordRoot, context.recordDepth, context.stepLog) = (r.opened[1], 2, stepLog);
        referee.expectContext(context);
        referee.answerWith(right);
    }

    function test_only_a_leaf_that_the_defender_signed_is_judged() external {
        uint256 id = VM.snapshotState();
        Reached memory leaf = _reach(4);
        referee.answerWith(right);
        _expect(abi.encodeWithSelector(IGame.NotYourTurn.selector, challenger, trainer));
        _play(trainer, _entryAndProof(CHALLENGER_KEY, leaf, SALT));
        _expect(abi.encodeWithSelector(IJobBoard.WrongSigner.selector, trainer, challenger));
        _play(challenger, _entryAndProof(CHALLENGER_KEY, leaf, SALT));
        bytes32 wrong = sha256(abi.encodePacked("tb.seal.", gameId, right, WRONG));
        _expect(abi.encodeWithSelector(IGame.WrongSeal.selector, leaf.opened[6], wrong));
        _play(challenger, _entryAndProof(TRAINER_KEY, leaf, WRONG));
        require(VM.revertToState(id), "back");
        Reached memory chunk = _reach(2);
        _expect(abi.encodeWithSelector(IGame.WrongPhase.selector, IGame.Phase.PROVE, IGame.Phase.OPEN_CHUNK));
        _play(challenger, _entryAndProof(TRAINER_KEY, chunk, SALT));
    }

    function test_no_clock_runs_while_the_sides_talk() external {
        _start();
        _warp(START + 400);
        _play(trainer, abi.encodeCall(IGame.descend, (gameId, GameTrees.below(runLeaves, 2, 0, 1))));
        IGame.GameState memory state = games.game(gameId);
        _equal(CLOCK, Duration.unwrap(state.defenderRest), "talked, not used");
        _equal(100, Duration.unwrap(state.talk), "left of the talk");
        _warp(START + TALKED + 30);
        _select(runLeaves, 1, 0, 0);
        state = games.game(gameId);
        _equal(CLOCK - 30, Duration.unwrap(state.challengerRest), "from the end of the talk on");
        _equal(0, Duration.unwrap(state.talk), "none is left");
        _equal(START + TALKED + 30, Instant.unwrap(state.last), "last");
        _warp(current + CLOCK);
        _expect(abi.encodeWithSelector(IGame.ClockRunning.selector, CLOCK, CLOCK));
        _play(stranger, abi.encodeCall(IGame.timeout, (gameId)));
        _warp(current + 1);
        _play(stranger, abi.encodeCall(IGame.timeout, (gameId)));
        _defenderLost(IGame.Reason.TIMEOUT);
    }

    // ---------------------------------------------------------------- forks

    function test_who_signs_two_states_of_one_number_loses() external {
        Reached memory r = _reach(1);
        bytes32 id = _idOf(r.snapshot);
        for (uint256 side = 0; side < 2; ++side) {
            uint256 before = VM.snapshotState();
            uint256 key = side == 0 ? TRAINER_KEY : CHALLENGER_KEY;
            if (side == 0) _warp(START + TALKED + 1); // at any time before the verdict
            _play(stranger, _fork(key, id, key, WRONG));
            if (side == 0) _defenderLost(IGame.Reason.FORKED);
            else _challengerLost(IGame.Reason.FORKED);
            _expect(abi.encodeWithSelector(IGame.GameIsOver.selector, gameId));
            _play(stranger, _fork(key, id, key, WRONG));
            require(VM.revertToState(before), "back");
        }
    }

    function test_what_is_no_fork() external {
        _start();
        _expect(abi.encodeWithSelector(IGame.NoFork.selector, WRONG));
        _play(stranger, _fork(TRAINER_KEY, WRONG, TRAINER_KEY, WRONG));
        _expect(abi.encodeWithSelector(IGame.NotASide.selector, stranger));
        _play(stranger, _fork(STRANGER_KEY, WRONG, STRANGER_KEY, right));
        _expect(abi.encodeWithSelector(IJobBoard.WrongSigner.selector, trainer, challenger));
        _play(stranger, _fork(TRAINER_KEY, WRONG, CHALLENGER_KEY, right));
        bytes memory later = _stateSignature(TRAINER_KEY, 8, right);
        bytes memory first = _stateSignature(TRAINER_KEY, 7, WRONG);
        bytes memory move = abi.encodeCall(IGame.reportFork, (gameId, 7, WRONG, first, right, later));
        VM.prank(stranger);
        (bool success,) = address(games).call(move);
        require(!success, "two numbers are no fork");
    }

    function _fork(uint256 firstKey, bytes32 first, uint256 secondKey, bytes32 second)
        private
        view
        returns (bytes memory)
    {
        bytes memory one = _stateSignature(firstKey, 7, first);
        bytes memory two = _stateSignature(secondKey, 7, second);
        return abi.encodeCall(IGame.reportFork, (gameId, 7, first, one, second, two));
    }

    // ---------------------------------------------------------------- what Python writes

    function decode(bytes calldata snapshot) external pure returns (IGame.GameState memory) {
        return Snapshots.read(snapshot);
    }

    function identify(bytes calldata snapshot) external view returns (bytes32) {
        return Snapshots.id(snapshot);
    }

    /// The vectors that Python is held to; `_encode` puts each field where SPEC 11 has it.
    function test_snapshots_of_the_vectors() external view {
        string memory json = VM.readFile("../tests/vectors/snapshots.json");
        uint256 count = VM.parseJsonUint(json, ".count");
        for (uint256 i = 0; i < count; ++i) {
            string memory one = string.concat(".cases[", VM.toString(i), "].");
            bytes memory encoded = VM.parseJsonBytes(json, string.concat(one, "encoded"));
            _equal(VM.parseJsonBytes32(json, string.concat(one, "id")), this.identify(encoded), "id");
            _equal(keccak256(encoded), keccak256(_encode(this.decode(encoded))), "fields");
        }
        bytes[] memory refused = VM.parseJsonBytesArray(json, ".refused");
        for (uint256 i = 0; i < refused.length; ++i) {
            (bool decoded,) = address(this).staticcall(abi.encodeCall(this.decode, (refused[i])));
            require(!decoded, "refused");
        }
        require(count > 40 && refused.length > 5, "cases");
    }

    function enterVector(bytes calldata snapshot, uint256 descentLevels) external view {
        Snapshots.decode(snapshot, _vector, descentLevels, IJobBoard(address(this)));
    }

    function segments(JobId) external view returns (uint64, uint64) {
        return (_steps, _interval);
    }

    /// What enters, and what is refused in the words of Python: whole games, and each state with a field changed.
    function test_what_enters_as_in_the_vectors() external {
        string memory json = VM.readFile("../tests/vectors/snapshots.json");
        uint256 taken;
        uint256 refused;
        for (uint256 game = 0; game < 2; ++game) {
            string memory one = string.concat(".entered[", VM.toString(game), "].");
            _steps = uint64(VM.parseJsonUint(json, string.concat(one, "steps")));
            _interval = uint64(VM.parseJsonUint(json, string.concat(one, "checkpointInterval")));
            _vector.policy = uint8(VM.parseJsonUint(json, string.concat(one, "policy")));
            _vector.depth = uint8(VM.parseJsonUint(json, string.concat(one, "depth")));
            _vector.bodyCount = uint24(VM.parseJsonUint(json, string.concat(one, "bodyCount")));
            _vector.stateCount = uint24(VM.parseJsonUint(json, string.concat(one, "stateCount")));
            _vector.count = uint64(VM.parseJsonUint(json, string.concat(one, "count")));
            uint256 r = VM.parseJsonUint(json, string.concat(one, "descentLevels"));
            uint256[] memory states = VM.parseJsonUintArray(json, string.concat(one, "states"));
            for (uint256 i = 0; i < states.length; ++i) {
                this.enterVector(_case(json, states[i]), r);
            }
            bytes memory changes = VM.parseJsonBytes(json, string.concat(one, "changes"));
            for (uint256 place = 0; place < changes.length; place += 12) {
                bytes memory snapshot = _case(json, uint8(changes[place]));
                snapshot =
                    _changed(snapshot, uint8(changes[place + 1]), uint8(changes[place + 2]), _word(changes, place + 4));
                uint256 offset = uint8(changes[place + 3]);
                (bool entered, bytes memory why) =
                    address(this).staticcall(abi.encodeCall(this.enterVector, (snapshot, r)));
                require(entered == (offset == 255), "taken");
                if (entered) {
                    ++taken;
                    continue;
                }
                ++refused;
                uint256 size = offset < 6 ? 1 : offset < 8 ? 2 : offset < 40 ? 8 : offset < 48 ? 4 : 32;
                uint256 value = uint256(_word(snapshot, offset)) >> 256 - 8 * size;
                require(
                    keccak256(why) == keccak256(abi.encodeWithSelector(IGame.InvalidSnapshot.selector, offset, value)),
                    "words"
                );
            }
        }
        require(taken > 50 && refused > 300, "cases");
    }

    function _case(string memory json, uint256 number) private pure returns (bytes memory) {
        return VM.parseJsonBytes(json, string.concat(".cases[", VM.toString(number), "].encoded"));
    }

    function _word(bytes memory data, uint256 place) private pure returns (bytes32 word) {
        assembly ("memory-safe") {
            word := mload(add(add(data, 32), place))
        }
    }
}
