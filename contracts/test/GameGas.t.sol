// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Referee} from "../src/Referee.sol";
import {Transcendentals} from "../src/Transcendentals.sol";
import {GameId, IGame} from "../src/interfaces/IGame.sol";
import {IJobBoard, JobId} from "../src/interfaces/IJobBoard.sol";
import {IReferee} from "../src/interfaces/IReferee.sol";
import {BoardBase} from "./BoardBase.sol";
import {GameBase} from "./GameBase.sol";
import {GasBase} from "./support/GasBase.sol";

/// @notice Gas of each move as a whole transaction (base cost, calldata of its real bytes, execution, refunds), in a
/// game as large as GPT-2's: 1024 checkpoints of 1024 steps, D = 13, 2^17 chunks of random bytes, an instruction of
/// 200 bytes (a convolution), 192 partial sums; one level a move; the real referee.
///
/// Trees are too large to be made: a path of random siblings and the root to which it folds cost the same.
contract GameGasTest is BoardBase {
    /// What Cartesi PRT publishes for a move is 65 000 ... 90 000.
    uint256 private constant BAR = 65_000;

    uint32 private constant LOSS_BITS = 0x40a51d3c;
    uint256 private constant CHUNK = 0xb3a5;
    uint256 private constant VALUE = 1707;
    uint256 private constant LEAF = 77;

    /// Of moves that have one of their own: see `setUp`.
    mapping(bytes32 => uint256) private bars;
    /// Names of the moves that were.
    string private above;

    JobId private jobId;
    GameId private gameId;
    bytes private chunk;
    bytes private instruction;
    bytes private accumulator;
    bytes32[] private opened;

    struct Path {
        bytes32 leaf;
        uint256 position;
        bytes32[] siblings;
    }

    Path private run;
    Path private steps;
    Path private loss;
    Path private value;
    Path private program;
    Path private chunks;
    Path private lastTerms;
    Path private terms;
    /// Of a game of policy `logged`: the word of the chunk in the step's log, and that in the segment's.
    Path private word;
    Path private stepLogs;
    bytes32 private directions;
    bytes32 private stateRoot = keccak256("state");
    bytes32 private stateHalf;

    function setUp() public override {
        super.setUp();
        _deploy(new Referee(new Transcendentals()));
        _makeInstruction();
        _makeElement();
        _makeProgram();
        _makeStep();
        jobId = _activeJob(1);
        // Above the bar, and held where they are: 14 siblings and 200 bytes of calldata, and six slots that each of these
        // must read, three or four of which it writes. (Starting a game makes five slots, the leaf
        // of the run the sixth; an end pays out. A challenge and the concession of a lost game are below 300,000.)
        bars[keccak256("openValues")] = 71_000;
        bars[keccak256("openTerms")] = 71_500;
        bars[keccak256("openTensor")] = 92_000;
        // Beside that, of policy `logged`: a slot for the log, first made, then written; ten siblings; thirty.
        bars[keccak256("logged openSteps")] = 88_500;
        bars[keccak256("logged openValues")] = 87_500;
        bars[keccak256("logged openChunk")] = 90_500;
        bars[keccak256("logged openTerms")] = 72_000;
        bars[keccak256("challenge")] = 168_500;
        bars[keccak256("concede and be slashed")] = 131_500;
        bars[keccak256("select checkpoint")] = 75_500;
        bars[keccak256("concede")] = 99_000;
        // Two accounts' first credits, and a path of ten siblings.
        bars[keccak256("reportLoss")] = 110_000;
    }

    function _job(uint256 nonce) internal view override returns (IJobBoard.Job memory job) {
        job = super._job(nonce);
        (job.programRoot, job.bodyCount, job.stateCount) = (_root(program), 5000, 444);
        (job.steps, job.checkpointInterval, job.precision) = (1 << 20, 1 << 10, 32);
        if (_isLogged()) (job.policy, job.tolerances) = (1, 20 | 20 << 8 | 20 << 16);
    }

    function _isLogged() private view returns (bool) {
        return directions != 0;
    }

    // ---------------------------------------------------------------- the trees

    function _bytes(string memory name, uint256 length) private pure returns (bytes memory data) {
        for (uint256 i = 0; i < length; i += 32) {
            data = bytes.concat(data, keccak256(abi.encode(name, i)));
        }
        assembly ("memory-safe") {
            mstore(data, length)
        }
    }

    /// @dev A path of random siblings.
    function _path(string memory name, bytes32 leaf, uint256 position, uint256 depth)
        private
        pure
        returns (Path memory p)
    {
        (p.leaf, p.position, p.siblings) = (leaf, position, new bytes32[](depth));
        for (uint256 k = 0; k < depth; ++k) {
            p.siblings[k] = keccak256(abi.encode(name, k));
        }
    }

    /// @dev Makes two paths one tree, in whose halves they stand.
    function _join(Path memory left, Path memory right) private pure {
        uint256 top = left.siblings.length - 1;
        left.siblings[top] = _node(right, top);
        right.siblings[top] = _node(left, top);
    }

    /// @dev The node of the path at a height.
    function _node(Path memory p, uint256 height) private pure returns (bytes32 node) {
        node = p.leaf;
        for (uint256 k = 0; k < height; ++k) {
            bytes32 s = p.siblings[k];
            bool isRight = (p.position >> k) & 1 == 1;
            node = sha256(isRight ? abi.encodePacked("tb.node.", s, node) : abi.encodePacked("tb.node.", node, s));
        }
    }

    function _root(Path memory p) private pure returns (bytes32) {
        return _node(p, p.siblings.length);
    }

    /// @dev The two children of the path's node at a height.
    function _children(Path memory p, uint256 height) private pure returns (bytes32[] memory nodes) {
        nodes = new bytes32[](2);
        uint256 bit = (p.position >> (height - 1)) & 1;
        nodes[bit] = _node(p, height - 1);
        nodes[1 - bit] = p.siblings[height - 1];
    }

    /// @dev A convolution: output of rank 4, reduction of rank 3, two operands.
    function _makeInstruction() private {
        bytes memory data = abi.encodePacked(uint8(3), uint8(0), uint8(0), uint8(4), uint8(3), uint8(2));
        data = abi.encodePacked(data, uint64(8), uint64(16), uint64(1024), uint64(128));
        data = abi.encodePacked(data, uint64(768), uint64(1), uint64(1));
        data = abi.encodePacked(data, uint32(1601), int64(-12345));
        data = abi.encodePacked(data, int64(786432), int64(0), int64(768), int64(-128), int64(1), int64(96), int64(3));
        data = abi.encodePacked(data, uint32(1204), int64(0));
        data = abi.encodePacked(data, int64(0), int64(98304), int64(0), int64(768), int64(1), int64(96), int64(3));
        instruction = abi.encodePacked(data, uint16(0));
        _equal(200, instruction.length, "bytes of the instruction");
    }

    /// @dev A chunk of random bytes, one element of which is what its last accumulator says.
    function _makeElement() private {
        // About 1.6 in units of 2^-298: 37 bytes from the lowest on may be set, random products fill them to 2^-60 or so.
        accumulator = abi.encodePacked(uint8(0), new bytes(58), uint8(1), _bytes("sum", 8), new bytes(29));
        _equal(97, accumulator.length, "bytes of an accumulator");
        IReferee.Description memory d = games.REFEREE().describe(instruction, 0);
        (bool canonical, bytes32 leaf, uint64 bits) = games.REFEREE().finish(d.accumulator, 32, accumulator);
        require(canonical && d.termLeaves == 192 && d.chunks == 1 << 17, "the element's accumulators");
        chunk = _bytes("chunk", 512);
        for (uint256 i = 0; i < 4; ++i) {
            chunk[4 * 37 + i] = bytes1(uint8(bits >> (8 * i)));
        }
        Path memory last = _path("last terms", leaf, 191, 8);
        Path memory disputed = _path("terms", keccak256("terms"), LEAF, 8);
        _join(disputed, last);
        (lastTerms, terms) = (last, disputed);
    }

    function _makeProgram() private {
        program = _path("program", sha256(bytes.concat("tb.instr", instruction)), VALUE, 14);
        chunks = _path("chunks", sha256(bytes.concat("tb.chunk", chunk)), CHUNK, 17);
    }

    function _makeStep() private {
        bytes32 id = games.REFEREE().describe(instruction, _root(chunks)).id;
        Path memory disputed = _path("value", id, VALUE, 13);
        Path memory last = _path("loss", games.REFEREE().scalarId(0, LOSS_BITS), 4999, 13);
        _join(disputed, last);
        bytes32 empty = sha256("tb.empty");
        bytes32 padded = stateRoot;
        for (uint256 k = 0; k < 13; ++k) {
            if (k >= 9) padded = sha256(abi.encodePacked("tb.node.", padded, empty));
            empty = sha256(abi.encodePacked("tb.node.", empty, empty));
        }
        stateHalf = padded;
        loss = last;
        // The whole value tree: the body half with the state half beside it.
        bytes32[] memory siblings = new bytes32[](14);
        for (uint256 k = 0; k < 13; ++k) {
            siblings[k] = disputed.siblings[k];
        }
        siblings[13] = padded;
        value = Path(id, VALUE, siblings);
        // The last step of segment 1022.
        bytes32 record = sha256(abi.encodePacked("tb.recrd", uint64(1023 << 10), stateRoot, LOSS_BITS, _logRoot()));
        steps = _path("steps", record, 1023, 10);
        run = _path("run", record, 1022, 10);
    }

    /// @dev A job of policy `logged`, whose log says something of most elements: also of the disputed one, element 37.
    function _keepLog() private {
        directions = keccak256("directions") & ~bytes32(uint256(3 << 2) << 176) | bytes32(uint256(2 << 2) << 176);
        word = _path("words", sha256(abi.encodePacked("tb.lgwrd", directions)), VALUE << 17 | CHUNK, 30);
        stepLogs = _path("step logs", _root(word), 1023, 10);
        _makeStep();
        jobId = _activeJob(2);
    }

    function _logRoot() private view returns (bytes32) {
        return _isLogged() ? _root(stepLogs) : bytes32(0);
    }

    // ---------------------------------------------------------------- playing

    /// @dev Makes a move as a transaction, and reports its gas if it has a name.
    function _moveAt(address to, uint256 wei_, string memory name, address who, bytes memory data) private {
        VM.prank(who);
        (bool success, bytes memory result) = to.call{value: wei_}(data);
        uint256 gas = VM.lastCallGas().gasTotalUsed;
        if (!success) {
            assembly ("memory-safe") {
                revert(add(result, 32), mload(result))
            }
        }
        require(gas > _calldataGas(data), "a whole transaction");
        if (_isLogged()) name = _changes(name) ? string.concat("logged ", name) : "";
        if (bytes(name).length == 0) return;
        VM.snapshotValue("GameGas", name, gas);
        uint256 bar = bars[keccak256(bytes(name))];
        if (bar == 0) bar = BAR;
        if (gas > bar) above = string.concat(above, " ", name);
    }

    function _move(string memory name, address who, bytes memory data) private {
        _moveAt(address(games), 0, name, who, data);
    }

    /// @dev Whether policy `logged` makes a difference to the move.
    function _changes(string memory name) private pure returns (bool) {
        string[5] memory all = ["openSteps", "openValues", "openChunk", "selectElement", "openTerms"];
        for (uint256 i = 0; i < all.length; ++i) {
            if (keccak256(bytes(name)) == keccak256(bytes(all[i]))) return true;
        }
        return false;
    }

    /// @dev No transaction costs less than this (EIP-2028): so what was measured is a whole one.
    function _calldataGas(bytes memory data) private pure returns (uint256 gas) {
        gas = 21_000;
        for (uint256 i = 0; i < data.length; ++i) {
            gas += data[i] == 0 ? 4 : 16;
        }
    }

    function _descend(string memory name, Path memory p, uint256 height) private {
        _move(name, trainer, abi.encodeCall(IGame.descend, (gameId, _children(p, height))));
    }

    function _select(string memory name, Path memory p, uint256 height, bytes32 seal) private {
        uint256 index = (p.position >> (height - 1)) & 1;
        bytes32[] memory siblings = new bytes32[](1);
        siblings[0] = p.siblings[height - 1];
        bytes32 node = _node(p, height - 1);
        _move(name, challenger, abi.encodeCall(IGame.select, (gameId, node, index, siblings, seal)));
    }

    /// @dev From the node at `height` to the leaf; names are given to the moves that differ from others.
    function _walk(Path memory p, uint256 height, string memory first, string memory last, bytes32 seal) private {
        bool shown = games.game(gameId).phase == IGame.Phase.SELECT;
        for (uint256 h = height; h > 0; --h) {
            if (!shown) _descend(h == 8 ? "descend" : "", p, h);
            shown = false;
            _select(h == height ? first : h == 1 ? last : h == 2 ? "select" : "", p, h, h == 1 ? seal : bytes32(0));
        }
    }

    function _begin() private {
        IJobBoard.Head memory head = _head(jobId, 1024, _root(run));
        bytes memory signature = _headSignature(head);
        gameId = board.gameIdOf(head, challenger, 7);
        bytes memory move = abi.encodeCall(IJobBoard.challenge, (head, signature, 7));
        _moveAt(address(board), CHALLENGER_STAKE, "challenge", challenger, move);
        opened.push(head.runRoot);
    }

    function _openSteps() private {
        (bytes32 root, uint32 lossBits) = _isLogged() ? (stateRoot, LOSS_BITS) : (bytes32(0), uint32(0));
        bytes32[] memory nodes = _children(steps, 10);
        bytes memory move = abi.encodeCall(IGame.openSteps, (gameId, nodes, steps.siblings, root, lossBits, _logRoot()));
        _move("openSteps", trainer, move);
        opened.push(_root(steps));
    }

    function _openValues() private {
        bytes32[] memory nodes = _children(value, 14);
        _equal(stateHalf, nodes[1], "the state's half");
        bytes32 stepLog = _isLogged() ? stepLogs.leaf : bytes32(0);
        (bytes32[] memory lossProof, bytes32[] memory logProof) = (loss.siblings, stepLogs.siblings);
        bytes memory move = abi.encodeCall(
            IGame.openValues, (gameId, stateRoot, LOSS_BITS, _logRoot(), nodes, lossProof, stepLog, logProof)
        );
        _move("openValues", trainer, move);
        opened.push(nodes[0]);
    }

    function _openTensor() private {
        bytes memory move =
            abi.encodeCall(IGame.openTensor, (gameId, instruction, program.siblings, _children(chunks, 17)));
        _move("openTensor", trainer, move);
        opened.push(program.leaf);
    }

    function _openTerms() private {
        IGame.GameState memory state = games.game(gameId);
        (uint64 step, uint32 number, uint64 element) = (state.step, state.instruction, state.element);
        bytes32[] memory siblings = lastTerms.siblings;
        bytes memory move = abi.encodeCall(
            IGame.openTerms, (gameId, step, number, element, _children(terms, 8), accumulator, siblings)
        );
        _move("openTerms", trainer, move);
        opened.push(_root(terms));
    }

    function _openChunk() private {
        _move("openChunk", trainer, abi.encodeCall(IGame.openChunk, (gameId, chunk, directions, word.siblings)));
    }

    /// forge-config: default.isolate = true
    function test_gas_of_every_move() external {
        _playAll();
    }

    /// Words and step logs among random siblings, as in a run whose every chunk has an entry.
    /// forge-config: default.isolate = true
    function test_gas_of_the_moves_of_a_logged_job() external {
        _keepLog();
        _playAll();
        _equal(2, games.game(gameId).summation >> 6, "the log was followed");
    }

    /// Of a record in the same tree, of a job of policy `logged`.
    /// forge-config: default.isolate = true
    function test_gas_of_a_report_of_a_loss() external {
        IJobBoard.Job memory job = _job(9);
        (job.policy, job.tolerances) = (1, 1 << 24);
        JobId demanding = _offer(job);
        _accept(demanding);
        (uint32 nan, bytes32 logs) = (0x7fc00000, keccak256("logs"));
        bytes32 leaf = sha256(abi.encodePacked("tb.recrd", uint64(1023 << 10), stateRoot, nan, logs));
        Path memory p = _path("run", leaf, 1022, 10);
        IJobBoard.Head memory head = _head(demanding, 1024, _root(p));
        bytes memory call =
            abi.encodeCall(IJobBoard.reportLoss, (head, _headSignature(head), 1022, stateRoot, nan, logs, p.siblings));
        _moveAt(address(board), 0, "reportLoss", stranger, call);
        require(bytes(above).length == 0, string.concat("above the bar:", above));
    }

    function _playAll() private {
        _begin();
        _descend("descend first", run, 10);
        _walk(run, 10, "select first", "select checkpoint", 0);
        _openSteps();
        _walk(steps, 10, "select first step node", "select step", 0);
        _openValues();
        _walk(value, 14, "select first value node", "select value", keccak256("seal"));
        _openTensor();
        _walk(chunks, 17, "", "select chunk", 0);
        _openChunk();
        _move("selectElement", challenger, abi.encodeCall(IGame.selectElement, (gameId, 37, chunk, 0)));
        _openTerms();
        _walk(terms, 8, "select first terms node", "select terms", keccak256("seal"));
        require(games.game(gameId).phase == IGame.Phase.PROVE, "walked to the proof");
        uint256 id = VM.snapshotState();
        _move("concede and be slashed", trainer, abi.encodeCall(IGame.concede, (gameId)));
        require(VM.revertToState(id), "back");
        _move("concede", challenger, abi.encodeCall(IGame.concede, (gameId)));
        require(bytes(above).length == 0, string.concat("moves above the bar:", above));
    }
}

/// @notice The largest proof: a sum of products whose terms stand in eight chunks.
contract LargestProof is GasBase {
    uint256 public constant ofTheBoard = BOARD;
    uint256 public constant ofTheBoardForAValue = BOARD_FOR_A_VALUE;
    uint256 public constant ofEachWord = HAND_OVER;

    function make() external pure returns (IReferee.Proof memory proof) {
        bytes memory instruction = _reduction(0, 0, _operands(2, 0, 4, 0xbfc00001));
        (, proof) = _leafProof(instruction, _operands(2, 0, 4, 0xbfc00001), _sum());
    }
}

/// @notice What `prove` costs besides its calldata and the referee's work, which `RefereeGasTest` takes as an allowance:
/// with a referee that answers at once, from storage as a transaction finds it; and what handing over the largest proof
/// adds to a small one.
contract GameProofGasTest is GameBase {
    error OtherPart(uint256 used, uint256 stated);

    LargestProof private immutable MAKER = new LargestProof();

    function _small() private returns (bytes memory data) {
        _walkToTerms(2, 1, 1);
        _warp(current + CLOCK);
        referee.answerWith(right);
        return _proof(SALT, opened);
    }

    function _used(bytes memory data) private returns (uint256) {
        VM.prank(challenger);
        uint256 before = gasleft();
        (bool ok,) = address(games).call(data);
        uint256 used = before - gasleft();
        require(ok, "proved");
        return used;
    }

    function test_handingOverTheLargestProof() external {
        bytes memory small = _small();
        bytes memory large = abi.encodeCall(IGame.prove, (gameId, MAKER.make(), SALT, opened));
        uint256 id = VM.snapshotState();
        uint256 least = _used(small);
        VM.revertToState(id);
        uint256 most = _used(large);
        require(large.length > 10_000, "the largest proof");
        uint256 allowed = MAKER.ofEachWord() * (large.length - small.length) / 32;
        require(most > least && most - least <= allowed, "handing on");
    }

    /// forge-config: default.isolate = true
    function test_theBoardsPartOfAProof() external {
        uint256 used = _execution(_small());
        uint256 most = MAKER.ofTheBoard();
        if (used <= most - 2_000 || used > most) revert OtherPart(used, most);
    }

    /// A source's, of which the referee is told most.
    /// forge-config: default.isolate = true
    function test_theBoardsPartOfAValuesProof() external {
        _walkToValue(6, SOURCE);
        _openTensor(SOURCE);
        _warp(current + CLOCK);
        uint256 used = _execution(_proof(SALT, opened));
        uint256 most = MAKER.ofTheBoardForAValue();
        if (used <= most - 2_000 || used > most) revert OtherPart(used, most);
    }

    /// @dev Gas of a winning proof as a transaction, less what its data cost. In the referee's place stands code that
    /// does nothing but answer: the stub's own storage is not the board's part.
    function _execution(bytes memory data) private returns (uint256 used) {
        // PUSH32 right, PUSH0, MSTORE, PUSH1 32, PUSH0, RETURN
        VM.etch(address(referee), abi.encodePacked(uint8(0x7f), right, hex"5f5260205ff3"));
        VM.prank(challenger);
        (bool ok,) = address(games).call(data);
        require(ok, "proved");
        used = VM.lastCallGas().gasTotalUsed - 21_000;
        for (uint256 k = 0; k < data.length; ++k) {
            used -= data[k] == 0 ? 4 : 16;
        }
        _defenderLost(IGame.Reason.RECOMPUTED);
    }
}
