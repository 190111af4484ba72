// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Duration, Instant} from "../src/game/Time.sol";
import {GameId, IGame} from "../src/interfaces/IGame.sol";
import {IJobBoard, JobId} from "../src/interfaces/IJobBoard.sol";
import {IReferee} from "../src/interfaces/IReferee.sol";
import {GameBase} from "./GameBase.sol";
import {GameTrees} from "./GameTrees.sol";

/// @notice Plays many games at once, each move legal by construction: of honest and of lying trainers, against honest
/// and arbitrary challengers. Honest sides move in time; the others also stall, give up and point anywhere.
///
/// A lie is a number of bits: which trees of the synthetic run are wrong, and from where on. Every tie of it holds, so
/// only the referee, padding, the clock or a concession ends its games. The truth is lie 0, and the referee knows it.
contract HonestHandler is GameBase {
    struct Play {
        GameId id;
        JobId job;
        uint256 lie;
        address challenger;
        /// The challenger points at the first node that differs from the truth.
        bool honest;
        bytes32[] opened;
        bytes32 answer;
    }

    Play[] private plays;
    mapping(GameId => IGame.Verdict) private verdicts;
    uint256 public calls;
    uint256 public done;
    uint256 public finished;
    uint256 public proved;
    /// Of the proofs, those of a partial sum in a logged game.
    uint256 public provedLogged;

    function setUp() public override {
        super.setUp();
        address[4] memory all = [client, trainer, challenger, stranger];
        for (uint256 i = 0; i < 4; ++i) {
            VM.deal(all[i], 1e9 ether);
        }
        _teach();
    }

    function playCount() external view returns (uint256) {
        return plays.length;
    }

    function gamesAddress() external view returns (address) {
        return address(games);
    }

    function play(uint256 i) external view returns (GameId id, uint256 lie, bool honest) {
        Play storage p = plays[i];
        return (p.id, p.lie, p.honest);
    }

    // ---------------------------------------------------------------- the run, true or not

    /// @dev From which step on the state is wrong: bits 0-2; 0 is never.
    function _isWrong(uint256 lie, uint64 step) private pure returns (bool) {
        return lie % 8 != 0 && step >= lie % 8;
    }

    function _entries(uint256 lie, uint64 step) private pure returns (bytes32[] memory entries) {
        entries = new bytes32[](2);
        uint256 which = _isWrong(lie, step) ? lie : 0;
        // Bits 3-4: which of the two entries is wrong; at least one is.
        uint256 both = (lie >> 3) % 3;
        for (uint256 i = 0; i < 2; ++i) {
            entries[i] = keccak256(abi.encode("state", step, i, both == i ? 0 : which));
        }
    }

    function _recordOf(uint256 lie, uint64 step) private view returns (bytes32) {
        bytes32 root = GameTrees.root(_entries(lie, step));
        return sha256(abi.encodePacked("tb.recrd", step, root, LOSS_BITS, _logRoot((step - 1) / 3)));
    }

    function _recordsOf(uint256 lie, uint64 segment) private view returns (bytes32[] memory leaves) {
        leaves = new bytes32[](segment == 2 ? 1 : 3);
        for (uint64 i = 0; i < leaves.length; ++i) {
            leaves[i] = _recordOf(lie, 3 * segment + i + 1);
        }
    }

    function _runOf(uint256 lie) private view returns (bytes32[] memory leaves) {
        leaves = new bytes32[](3);
        for (uint64 segment = 0; segment < 3; ++segment) {
            bytes32[] memory records = _recordsOf(lie, segment);
            leaves[segment] = records[records.length - 1];
        }
    }

    /// @dev Bit 5: the source is wrong too; bit 6: the output of the long reduction; bit 7: a body leaf is not empty.
    function _valuesOf(uint256 lie, uint64 step) private pure returns (bytes32[] memory leaves) {
        uint256 which = _isWrong(lie, step) ? lie : 0;
        bytes32[] memory entries = _entries(lie, step);
        leaves = new bytes32[](8);
        leaves[0] = keccak256(abi.encode("source", step, (which >> 5) % 2));
        leaves[1] = _outputId(_instruction(LONG), GameTrees.root(_chunksOf(which)));
        leaves[2] = _lossId();
        leaves[3] = (which >> 7) % 2 == 1 ? WRONG : GameTrees.empty();
        (leaves[4], leaves[5]) = (entries[0], entries[1]);
        (leaves[6], leaves[7]) = (GameTrees.empty(), GameTrees.empty());
    }

    /// @dev Bits 8-9: from which chunk on; each wrong chunk is wrong at its element 5, whose bits are then 6.
    function _chunkOf(uint256 which, uint256 index) private pure returns (bytes memory data) {
        data = _chunk(index);
        if ((which >> 6) % 2 == 1 && index >= (which >> 8) % 3) data[20] = bytes1(uint8(6));
    }

    function _chunksOf(uint256 which) private pure returns (bytes32[] memory leaves) {
        leaves = new bytes32[](3);
        for (uint256 i = 0; i < 3; ++i) {
            leaves[i] = sha256(abi.encodePacked("tb.chunk", _chunkOf(which, i)));
        }
    }

    /// @dev Last: the bits that the chunk has. Bits 10-11: from which partial sum on they are wrong.
    function _termsOf(uint256 which, uint256 bits, bool isTrue) private pure returns (bytes32[] memory leaves) {
        leaves = new bytes32[](3);
        for (uint256 i = 0; i < 3; ++i) {
            leaves[i] = keccak256(_sum(which, bits, isTrue, i));
        }
    }

    function _sum(uint256 which, uint256 bits, bool isTrue, uint256 leaf) private pure returns (bytes memory) {
        if (leaf == 2) return abi.encode(true, uint64(bits));
        bool wrong = !isTrue && leaf >= (which >> 10) % 3;
        return abi.encode(true, uint64(wrong ? 200 + leaf : 100 + leaf));
    }

    /// @dev Bits of an element of the truth.
    function _bits(uint64 element) private pure returns (uint256) {
        return element % 128;
    }

    /// @dev Everything that a challenger here can ask: sources, commits, the loss, elements 0 and 5 of each chunk.
    function _teach() private {
        for (uint64 step = 1; step <= 7; ++step) {
            bytes32[] memory leaves = _valuesOf(0, step);
            referee.teach(IReferee.Target.VALUE, step, SOURCE, 0, 0, leaves[0]);
            referee.teach(IReferee.Target.VALUE, step, 4, 0, 0, leaves[4]);
            referee.teach(IReferee.Target.VALUE, step, 5, 0, 0, leaves[5]);
            referee.teach(IReferee.Target.ELEMENT, step, 2, 0, 0, bytes32(uint256(LOSS_BITS)));
            for (uint64 element = 0; element < 300; element += 128) {
                _teachTerms(step, element);
                _teachTerms(step, element + 5);
            }
        }
    }

    function _teachTerms(uint64 step, uint64 element) private {
        bytes32[] memory sums = _termsOf(0, _bits(element), true);
        for (uint64 leaf = 0; leaf < 3; ++leaf) {
            referee.teach(IReferee.Target.TERMS, step, LONG, element, leaf, sums[leaf]);
        }
    }

    // ---------------------------------------------------------------- starting

    function start(uint256 seed) external {
        ++calls;
        _begin(seed);
    }

    function _begin(uint256 seed) private {
        ++done;
        uint256 lie = seed % 3 == 0 ? 0 : (seed >> 8) % 4096;
        if (lie % 8 == 0) lie = 0;
        levels = uint8(1 + (seed >> 24) % 5);
        logged = (seed >> 48) % 2 == 0;
        jobId = _activeJob(plays.length);
        bytes32 root = GameTrees.root(_runOf(lie));
        uint256 count = 1 + (seed >> 32) % 3;
        for (uint64 k = 0; k < count; ++k) {
            // The honest one among others; against the truth no challenger is.
            bool honest = lie != 0 && (k == 0 || (seed >> 40) % 2 == 0);
            address who = k % 2 == 0 ? challenger : stranger;
            Play storage p = plays.push();
            (p.id, p.job, p.lie) = (_challengeAs(who, jobId, 3, root, k), jobId, lie);
            (p.challenger, p.honest) = (who, honest);
            p.opened.push(root);
        }
    }

    // ---------------------------------------------------------------- time

    /// @notice Time passes, but not so much that an honest side would be late.
    function elapse(uint256 seed) external {
        ++calls;
        _elapse(seed % (WINDOW / 4));
    }

    function _elapse(uint256 seconds_) private {
        uint256 most = CLOCK;
        for (uint256 i = 0; i < plays.length; ++i) {
            (bool open, bool isHonest, uint256 left) = _slack(plays[i]);
            if (!open || !isHonest || left >= most) continue;
            if (left == 0) return _moveOf(i, seconds_);
            most = left;
        }
        ++done;
        _warp(current + (seconds_ < most ? seconds_ + 1 : most));
    }

    /// @return open whether someone is to move @return isHonest whether it is honest @return left seconds it still has
    function _slack(Play storage p) private view returns (bool open, bool isHonest, uint256 left) {
        IGame.GameState memory state = games.game(p.id);
        if (state.phase == IGame.Phase.OVER) return (false, false, 0);
        if (board.job(p.job).status != IJobBoard.JobStatus.ACTIVE) return (false, false, 0);
        bool defender = games.mover(p.id) == trainer;
        isHonest = defender ? p.lie == 0 : p.honest;
        uint256 rest = Duration.unwrap(defender ? state.defenderRest : state.challengerRest);
        uint256 end = Instant.unwrap(state.last) + rest + _allowance(state);
        return (true, isHonest, end > current ? end - current : 0);
    }

    /// @dev Written apart from the contract, from SPEC section 10.
    function _allowance(IGame.GameState memory state) private view returns (uint256) {
        if (state.phase == IGame.Phase.PROVE) return CLOCK;
        uint256 replays = REPLAY * board.crowd(state.jobId);
        if (state.phase == IGame.Phase.OPEN_STEPS || state.phase == IGame.Phase.OPEN_VALUES) return replays;
        if (state.phase == IGame.Phase.OPEN_TERMS) return replays;
        bool first = state.phase == IGame.Phase.SELECT && state.fresh;
        bool counts = state.level != IGame.Level.RUN && state.level != IGame.Level.CHUNKS;
        return first && counts ? replays : 0;
    }

    // ---------------------------------------------------------------- moving

    /// @notice The side to move of some open game moves.
    function move(uint256 seed) public {
        ++calls;
        for (uint256 i = 0; i < plays.length; ++i) {
            uint256 k = addmod(seed, i, plays.length);
            if (games.game(plays[k].id).phase != IGame.Phase.OVER) return _moveOf(k, seed >> 16);
        }
        _begin(seed);
    }

    function moveAgain(uint256 seed) external {
        move(seed);
    }

    function moveOnceMore(uint256 seed) external {
        move(seed);
    }

    function _moveOf(uint256 k, uint256 seed) private {
        ++done;
        Play storage p = plays[k];
        gameId = p.id;
        levels = board.job(p.job).descentLevels;
        logged = board.job(p.job).policy == 1;
        IGame.GameState memory state = games.game(gameId);
        if (board.job(p.job).status == IJobBoard.JobStatus.SLASHED) {
            games.reclaim(gameId);
            ++finished;
            return;
        }
        address side = games.mover(gameId);
        (, bool isHonest, uint256 left) = _slack(p);
        uint256 rest = Duration.unwrap(side == trainer ? state.defenderRest : state.challengerRest);
        if (current - Instant.unwrap(state.last) > rest + _allowance(state)) {
            require(!isHonest && left == 0, "an honest side is never late here");
            games.timeout(gameId);
        } else if (!isHonest && seed % 16 == 0) {
            _play(side, abi.encodeCall(IGame.concede, (gameId)));
        } else if (side == trainer) {
            _defend(p, state);
        } else {
            _attack(p, state, seed);
        }
        _check(p, state);
    }

    function _which(Play storage p, IGame.GameState memory state) private view returns (uint256) {
        return _isWrong(p.lie, state.step) ? p.lie : 0;
    }

    /// @dev Leaves of the tree that the game is in: the defender's, or with lie 0 the true one.
    function _tree(uint256 lie, IGame.GameState memory state) private view returns (bytes32[] memory) {
        uint256 which = _isWrong(lie, state.step) ? lie : 0;
        if (state.level == IGame.Level.RUN) return _runOf(lie);
        if (state.level == IGame.Level.STEPS) return _recordsOf(lie, (state.step - 1) / 3);
        if (state.level == IGame.Level.VALUES) return _valuesOf(lie, state.step);
        if (state.level == IGame.Level.CHUNKS) return _chunksOf(which);
        uint256 bits = _claimed(which, state.element);
        return _termsOf(which, bits, bits == _bits(state.element));
    }

    function _claimed(uint256 which, uint64 element) private pure returns (uint256) {
        return uint8(_chunkOf(which, element / 128)[4 * (element % 128)]);
    }

    function _defend(Play storage p, IGame.GameState memory state) private {
        if (state.phase == IGame.Phase.DESCEND) {
            uint256 step = state.height < levels ? state.height : levels;
            bytes32[] memory nodes = GameTrees.below(_tree(p.lie, state), state.height, state.position, step);
            _play(trainer, abi.encodeCall(IGame.descend, (gameId, nodes)));
        } else if (state.phase == IGame.Phase.OPEN_STEPS) {
            bytes32[] memory leaves = _recordsOf(p.lie, (state.step - 1) / 3);
            bytes32 root = GameTrees.root(_entries(p.lie, state.step + 2));
            if (logged) _openSteps(leaves, root, LOSS_BITS, _logRoot((state.step - 1) / 3));
            else _openSteps(leaves, 0, 0, 0);
            p.opened.push(GameTrees.root(leaves));
        } else if (state.phase == IGame.Phase.OPEN_VALUES) {
            bytes32[] memory all = _valuesOf(p.lie, state.step);
            _play(trainer, _valuesMove(p.lie, state.step, all));
            p.opened.push(GameTrees.root(_body(all)));
        } else {
            _defendTensor(p, state);
        }
    }

    function _valuesMove(uint256 lie, uint64 step, bytes32[] memory all) private view returns (bytes memory) {
        bytes32 root = GameTrees.root(_entries(lie, step));
        uint64 segment = (step - 1) / 3;
        bytes32[] memory siblings = GameTrees.proof(_body(all), 2);
        bytes32[] memory nodes = GameTrees.opening(all, levels);
        (bytes32 stepLog, bytes32[] memory logSiblings) = (bytes32(0), new bytes32[](0));
        if (logged) (stepLog, logSiblings) = (_stepLog(step), GameTrees.proof(_stepLogs(segment), (step - 1) % 3));
        return abi.encodeCall(
            IGame.openValues, (gameId, root, LOSS_BITS, _logRoot(segment), nodes, siblings, stepLog, logSiblings)
        );
    }

    function _defendTensor(Play storage p, IGame.GameState memory state) private {
        uint256 which = _which(p, state);
        if (state.phase == IGame.Phase.OPEN_TENSOR) {
            bytes memory instruction = _instruction(state.instruction);
            bytes32[] memory nodes;
            if (state.instruction == LONG) nodes = GameTrees.opening(_chunksOf(which), levels);
            if (state.instruction == 2) {
                nodes = new bytes32[](1);
                nodes[0] = sha256(abi.encodePacked("tb.chunk", hex"0000803f"));
            }
            bytes32[] memory siblings = GameTrees.proof(programLeaves, state.instruction);
            _play(trainer, abi.encodeCall(IGame.openTensor, (gameId, instruction, siblings, nodes)));
            p.opened.push(_instructionLeaf(instruction));
        } else if (state.phase == IGame.Phase.OPEN_CHUNK) {
            bytes memory data = _opened(which, state);
            uint256 chunk = state.position;
            if (!logged || state.instruction != LONG) _openChunk(data);
            else _openChunk(data, _word(state.step, chunk), _wordProof(state.step, chunk));
        } else {
            uint256 bits = uint256(state.node);
            bool isTrue = bits == _bits(state.element);
            bytes32[] memory leaves = _termsOf(which, bits, isTrue);
            bytes32[] memory nodes = GameTrees.opening(leaves, levels);
            bytes memory last = _sum(which, bits, isTrue, 2);
            referee.expectRounding(_rounding(state.step, state.element));
            _terms(nodes, last, GameTrees.proof(leaves, 2));
            p.opened.push(GameTrees.root(leaves));
        }
    }

    /// @dev The chunk that the game is at.
    function _opened(uint256 which, IGame.GameState memory state) private pure returns (bytes memory) {
        return state.instruction == LONG ? _chunkOf(which, state.position) : bytes(hex"0000803f");
    }

    function _attack(Play storage p, IGame.GameState memory state, uint256 seed) private {
        if (state.phase == IGame.Phase.SELECT) {
            _point(p, state, seed >> 8);
        } else if (state.phase == IGame.Phase.SELECT_ELEMENT) {
            bool isLong = state.instruction == LONG;
            uint256 index = isLong && (p.honest || seed % 2 == 0) ? 5 : 0;
            p.answer = bytes32(uint256(LOSS_BITS));
            bytes32 seal = isLong ? bytes32(0) : _seal(p.answer);
            bytes memory data = _opened(_which(p, state), state);
            _play(p.challenger, abi.encodeCall(IGame.selectElement, (gameId, index, data, seal)));
            if (!isLong) p.opened.push(seal);
        } else if (current < Instant.unwrap(state.last) + CLOCK) {
            _elapse(Instant.unwrap(state.last) + CLOCK - current - 1); // it would be too early
        } else if (p.answer == WRONG) {
            _play(p.challenger, abi.encodeCall(IGame.concede, (gameId))); // it sealed no answer
        } else {
            _play(p.challenger, _proof(SALT, p.opened));
            ++proved;
            if (logged && state.level == IGame.Level.TERMS) ++provedLogged;
        }
    }

    /// @dev The honest point at the first leaf that differs, the others anywhere.
    function _point(Play storage p, IGame.GameState memory state, uint256 seed) private {
        bytes32[] memory leaves = _tree(p.lie, state);
        bytes32[] memory truth = _tree(0, state);
        uint256 height = state.height > levels ? state.height - levels : 0;
        uint256 position = p.honest
            ? _firstDifference(leaves, truth) >> height
            : uint256(state.position) << (state.height - height) | seed % (1 << (state.height - height));
        bytes32 seal = 0;
        bool isPadding = _isPadding(state.level, position);
        if (height == 0 && !isPadding && (state.level == IGame.Level.VALUES || state.level == IGame.Level.TERMS)) {
            p.answer = p.honest || seed % 8 != 7 ? truth[position] : WRONG;
            seal = _seal(p.answer);
        }
        _play(p.challenger, _selection(leaves, height, position, seal));
        if (seal != 0) p.opened.push(seal);
        if (height == 0 && state.level == IGame.Level.RUN && position == 2) p.opened.push(leaves[2]);
    }

    function _isPadding(IGame.Level level, uint256 position) private pure returns (bool) {
        return position == 3 || (level == IGame.Level.VALUES && position > 5);
    }

    function _firstDifference(bytes32[] memory leaves, bytes32[] memory truth) private pure returns (uint256 i) {
        while (leaves[i] == truth[i]) ++i;
    }

    /// @dev Invariants 5 and 8 over one move; and that the honest do not lose.
    function _check(Play storage p, IGame.GameState memory before) private {
        IGame.GameState memory state = games.game(p.id);
        uint256 spent = Duration.unwrap(before.defenderRest) - Duration.unwrap(state.defenderRest);
        spent += Duration.unwrap(before.challengerRest) - Duration.unwrap(state.challengerRest);
        uint256 elapsed = Instant.unwrap(state.last) - Instant.unwrap(before.last);
        uint256 allowance = _allowance(before);
        require(spent == (elapsed > allowance ? elapsed - allowance : 0), "exactly the time used");
        bool over = state.phase == IGame.Phase.OVER;
        require(over == (state.verdict != IGame.Verdict.NONE), "a verdict, exactly when it is over");
        if (!over) return;
        ++finished;
        ++reasons[state.reason];
        verdicts[p.id] = state.verdict;
    }

    mapping(IGame.Reason => uint256) public reasons;

    /// @notice Of a game that ended: what its verdict was when it did.
    function verdictOf(GameId id) external view returns (IGame.Verdict) {
        return verdicts[id];
    }
}

/// @notice An honest party never loses, whatever the other does.
contract GameHonestTest {
    struct FuzzSelector {
        address addr;
        bytes4[] selectors;
    }

    HonestHandler private handler;

    function setUp() external {
        handler = new HonestHandler();
        handler.setUp();
    }

    function targetContracts() external view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    function targetSelectors() external view returns (FuzzSelector[] memory targets) {
        bytes4[] memory selectors = new bytes4[](5);
        selectors[0] = handler.start.selector;
        selectors[1] = handler.elapse.selector;
        selectors[2] = handler.move.selector;
        selectors[3] = handler.moveAgain.selector;
        selectors[4] = handler.moveOnceMore.selector;
        targets = new FuzzSelector[](1);
        targets[0] = FuzzSelector(address(handler), selectors);
    }

    /// forge-config: default.invariant.runs = 8
    /// forge-config: default.invariant.depth = 96
    /// forge-config: ci.invariant.runs = 16
    /// forge-config: ci.invariant.depth = 128
    function invariant_the_honest_never_lose() external view {
        IGame games = IGame(handler.gamesAddress());
        for (uint256 i = 0; i < handler.playCount(); ++i) {
            (GameId id, uint256 lie, bool honest) = handler.play(i);
            IGame.Verdict verdict = games.game(id).verdict;
            require(lie != 0 || verdict != IGame.Verdict.DEFENDER_LOST, "an honest trainer lost");
            require(!honest || verdict != IGame.Verdict.CHALLENGER_LOST, "an honest challenger lost");
            require(verdict == IGame.Verdict.VOID || verdict == handler.verdictOf(id), "one verdict");
        }
    }

    /// @dev Not vacuous: every call acts.
    function afterInvariant() external view {
        require(handler.done() >= handler.calls(), "every call acts");
    }

    /// The same handler, driven for long: games are played to each of their ends.
    function test_the_handler_reaches_every_end() external {
        for (uint256 i = 0; i < 1500; ++i) {
            uint256 seed = uint256(keccak256(abi.encode(i)));
            if (i % 60 == 0) handler.start(seed);
            else if (i % 6 == 0) handler.elapse(seed);
            else handler.move(seed);
        }
        require(handler.reasons(IGame.Reason.PADDING) > 0, "padding");
        require(handler.reasons(IGame.Reason.RECOMPUTED) > 4, "proofs");
        require(handler.reasons(IGame.Reason.TIMEOUT) > 0, "timeouts");
        require(handler.reasons(IGame.Reason.CONCEDED) > 0, "concessions");
        require(handler.finished() > 20 && handler.proved() > 4, "games");
        require(handler.provedLogged() > 0, "sums of logged games");
        this.invariant_the_honest_never_lose();
    }
}
