// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Referee} from "../src/Referee.sol";
import {IReferee} from "../src/interfaces/IReferee.sol";
import {ITranscendentals} from "../src/interfaces/ITranscendentals.sol";
import {Commitments} from "../src/libraries/Commitments.sol";
import {Exact, ExactSum} from "../src/libraries/ExactSum.sol";
import {Isa} from "../src/libraries/Isa.sol";
import {Tags} from "../src/libraries/Tags.sol";
import {Trees} from "../src/libraries/Trees.sol";
import {GasBase} from "./support/GasBase.sol";
import {RefereeBase} from "./support/RefereeBase.sol";

/// @notice The referee on whole instructions, against the vectors of the integer reference.
contract RefereeVectorsTest is RefereeBase {
    function test_elements() public view {
        uint256 judged = 0;
        uint256 instructions = 0;
        for (uint256 k = 0; k < vm.parseJsonUint(json, ".count"); ++k) {
            (IReferee.Context memory context, IReferee.Proof memory proof) = _honest(k);
            if (uint8(proof.instruction[0]) == Isa.SOURCE) continue; // see test_constantsAndTheStep
            if (referee.describe(proof.instruction, 0).termLeaves != 0) continue;
            judged += _judgeAll(k, context, proof);
            ++instructions;
        }
        assertTrue(instructions > 45 && judged > 300, "instructions and elements judged");
    }

    function _judgeAll(uint256 k, IReferee.Context memory context, IReferee.Proof memory proof)
        private
        view
        returns (uint256 judged)
    {
        IReferee.Description memory d = referee.describe(proof.instruction, 0);
        bytes memory result = vm.parseJsonBytes(json, _case(k, "result"));
        assertEq(result.length, d.dataBytes, "bytes of the result");
        uint256 stride = 1 + d.elements / 12;
        for (uint256 e = 0; e < d.elements; e += stride) {
            context.element = uint64(e);
            uint256 bits = _bits(d.dtype, result, e);
            assertEq(uint256(referee.judge(context, proof)), bits, vm.parseJsonString(json, _case(k, "name")));
            ++judged;
        }
    }

    function test_accumulatorLeaves() public view {
        uint256 judged = 0;
        for (uint256 k = 0; k < vm.parseJsonUint(json, ".count"); ++k) {
            (IReferee.Context memory context, IReferee.Proof memory proof) = _honest(k);
            IReferee.Description memory d = referee.describe(proof.instruction, 0);
            if (d.termLeaves == 0) continue;
            string memory name = vm.parseJsonString(json, _case(k, "name"));
            bytes[] memory accumulators = vm.parseJsonBytesArray(json, _case(k, "accumulators"));
            assertEq(accumulators.length, d.termLeaves, name);
            context.element = d.elements - 1;
            for (uint256 l = 0; l < accumulators.length; l += 1 + accumulators.length / 8) {
                _atLeaf(context, proof, accumulators, l);
                bytes32 expected = sha256(abi.encodePacked("tb.accum", accumulators[l]));
                assertEq(referee.judge(context, proof), expected, name);
                ++judged;
            }
            bytes memory result = vm.parseJsonBytes(json, _case(k, "result"));
            (bool canonical, bytes32 leaf, uint64 bits) =
                referee.finish(d.accumulator, 32, accumulators[accumulators.length - 1]);
            assertTrue(canonical, name);
            assertEq(leaf, sha256(abi.encodePacked("tb.accum", accumulators[accumulators.length - 1])), name);
            assertEq(bits, _bits(d.dtype, result, d.elements - 1), name);
        }
        assertTrue(judged > 50, "leaves judged");
    }

    function test_constantsAndTheStep() public view {
        uint256 judged = 0;
        for (uint256 k = 0; k < vm.parseJsonUint(json, ".count"); ++k) {
            (IReferee.Context memory context, IReferee.Proof memory proof) = _honest(k);
            if (uint8(proof.instruction[0]) != Isa.SOURCE) continue;
            context.target = IReferee.Target.VALUE;
            bytes memory result = vm.parseJsonBytes(json, _case(k, "result"));
            bytes32 chunk = sha256(abi.encodePacked("tb.chunk", result));
            bytes32 id = sha256(abi.encodePacked("tb.tensr", proof.instruction[2], uint8(0), chunk));
            assertEq(referee.judge(context, proof), id, vm.parseJsonString(json, _case(k, "name")));
            assertEq(referee.describe(proof.instruction, chunk).id, id, "id of the output");
            uint8 dtype = uint8(proof.instruction[2]);
            assertEq(referee.scalarId(dtype, _bits(dtype, result, 0)), id, "scalarId");
            ++judged;
        }
        assertEq(judged, 5, "sources");
    }
}

/// @notice Leaves of the value tree that are opened by a witness: state, data, late data, commit.
contract RefereeWitnessTest is RefereeBase {
    uint256 private constant SLOTS = 3;

    /// @dev `source` of state (function 2), data (3) or late data (4), or `commit` (opcode 10), of slot 1 with this name.
    function _slotted(uint8 opcode, uint8 func, string memory name) private pure returns (bytes memory instruction) {
        instruction = abi.encodePacked(opcode, func, uint8(0), uint8(0), uint8(0), uint8(opcode == 10 ? 1 : 0));
        if (opcode == 10) instruction = abi.encodePacked(instruction, uint32(5), int64(0));
        uint16 length = uint16(bytes(name).length);
        return abi.encodePacked(instruction, 6 + length, uint32(1), length, name);
    }

    /// @dev Entries of three slots; slot 1 is ("weight", id).
    function _entries(bytes8 tag, bytes32 id) private pure returns (bytes32[] memory) {
        bytes32[] memory leaves = new bytes32[](SLOTS);
        leaves[0] = sha256(abi.encodePacked(tag, uint16(1), "a", bytes32(uint256(1))));
        leaves[1] = sha256(abi.encodePacked(tag, uint16(6), "weight", id));
        leaves[2] = sha256(abi.encodePacked(tag, uint16(1), "z", bytes32(uint256(2))));
        return _padded(leaves, 2);
    }

    function _state(bytes32 id, uint256 recordDepth)
        private
        view
        returns (IReferee.Context memory context, IReferee.Proof memory proof)
    {
        _replace(context, proof, _slotted(1, 2, "weight"));
        (context.target, context.depth, context.step, context.stateCount) =
        (IReferee.Target.VALUE, DEPTH, 5, uint32(SLOTS));
        IReferee.Witness memory w = proof.witness;
        (w.step, w.lossBits, w.tensorId) = (4, 0x3f800000, id);
        (w.stateRoot, w.siblings) = _open(_entries(Tags.STATE_ENTRY, id), 1);
        bytes32[] memory records = new bytes32[](1 << recordDepth);
        context.recordDepth = uint8(recordDepth);
        context.recordPosition = uint64((1 << recordDepth) - 1);
        records[context.recordPosition] = Commitments.record(4, w.stateRoot, w.lossBits, w.logRoot);
        (context.recordRoot, w.recordSiblings) = _open(records, context.recordPosition);
    }

    function testFuzz_state(bytes32 id, uint256 depth) public view {
        (IReferee.Context memory context, IReferee.Proof memory proof) = _state(id, bound(depth, 0, 4));
        assertEq(referee.judge(context, proof), id, "state");
    }

    function test_stateOfAnotherRecordTensorOrName() public {
        (IReferee.Context memory context, IReferee.Proof memory proof) = _state("id", 2);
        proof.witness.step = 3;
        vm.expectRevert(abi.encodeWithSelector(IReferee.WrongRecord.selector, 4, 3));
        referee.judge(context, proof);
        proof.witness.step = 4;
        proof.witness.lossBits += 1;
        vm.expectPartialRevert(IReferee.WrongRoot.selector);
        referee.judge(context, proof);
        (context, proof) = _state("id", 2);
        proof.witness.tensorId = "other";
        vm.expectPartialRevert(IReferee.WrongRoot.selector);
        referee.judge(context, proof);
        (context, proof) = _state("id", 2);
        _replace(context, proof, _slotted(1, 2, "height"));
        vm.expectPartialRevert(IReferee.WrongRoot.selector);
        referee.judge(context, proof);
        (context, proof) = _state("id", 0);
        context.stateCount = 1;
        vm.expectRevert(abi.encodeWithSelector(IReferee.SlotOutOfRange.selector, 1, 1));
        referee.judge(context, proof);
    }

    function test_dataIsNotState() public {
        (IReferee.Context memory context, IReferee.Proof memory proof) = _state("id", 2);
        _replace(context, proof, _slotted(1, 3, "weight"));
        (context.dataCount, context.dataRoot) = (uint32(SLOTS), proof.witness.stateRoot);
        vm.expectRevert(abi.encodeWithSelector(IReferee.UnusedPart.selector, IReferee.Part.RECORD));
        referee.judge(context, proof);
        IReferee.Witness memory w;
        (w.tensorId, w.siblings) = (proof.witness.tensorId, proof.witness.siblings);
        proof.witness = w;
        vm.expectPartialRevert(IReferee.WrongRoot.selector); // another tag
        referee.judge(context, proof);
    }

    /// @dev Late data that a source at this place of the body names, in a log tree that is empty but for them.
    function _late(bytes32 id, uint256 position)
        private
        pure
        returns (IReferee.Context memory context, IReferee.Proof memory proof)
    {
        _replace(context, proof, _slotted(1, 4, "weight"));
        (context.target, context.depth, context.position) = (IReferee.Target.VALUE, DEPTH, uint64(position));
        bytes32[] memory leaves = _padded(new bytes32[](0), DEPTH);
        leaves[position] = proof.witness.tensorId = id;
        (context.stepLog, proof.witness.siblings) = _open(leaves, position);
    }

    function testFuzz_late(bytes32 id, uint256 position) public view {
        (IReferee.Context memory context, IReferee.Proof memory proof) = _late(id, bound(position, 0, (1 << DEPTH) - 1));
        assertEq(referee.judge(context, proof), id, "late");
    }

    function test_lateDataOfAnotherTensorPlaceOrLog() public {
        for (uint256 which = 0; which < 6; ++which) {
            (IReferee.Context memory context, IReferee.Proof memory proof) = _late("id", 5);
            if (which == 0) proof.witness.tensorId = "other";
            if (which == 1) proof.witness.siblings[2] = "other";
            bytes32[] memory siblings = proof.witness.siblings;
            if (which == 2) (siblings[0], siblings[1]) = (siblings[1], siblings[0]);
            if (which == 3) context.position = 4;
            if (which == 4) (context.dataCount, context.dataRoot, context.stepLog) = (8, context.stepLog, "other");
            if (which == 5) context.stepLog = 0; // of policy `exact`
            vm.expectPartialRevert(IReferee.WrongRoot.selector);
            referee.judge(context, proof);
        }
    }

    function test_lateDataHaveAsManySiblingsAsTheLogTreeIsDeep() public {
        for (uint256 count = 0; count < 2 * DEPTH; ++count) {
            if (count == DEPTH) continue;
            (IReferee.Context memory context, IReferee.Proof memory proof) = _late("id", 5);
            proof.witness.siblings = new bytes32[](count);
            vm.expectRevert(abi.encodeWithSelector(IReferee.WrongSiblingCount.selector, DEPTH, count));
            referee.judge(context, proof);
        }
    }

    function test_lateDataAreNotProvedByARecord() public {
        for (uint256 field = 0; field < 5; ++field) {
            (IReferee.Context memory context, IReferee.Proof memory proof) = _late("id", 5);
            IReferee.Witness memory w = proof.witness;
            if (field == 0) w.step = 1;
            if (field == 1) w.stateRoot = "x";
            if (field == 2) w.lossBits = 1;
            if (field == 3) w.logRoot = context.stepLog;
            if (field == 4) w.recordSiblings = new bytes32[](1);
            vm.expectRevert(abi.encodeWithSelector(IReferee.UnusedPart.selector, IReferee.Part.RECORD));
            referee.judge(context, proof);
        }
    }

    /// @dev Commit 1, of value 5, in a program tree that is empty but for it.
    function _commit(bytes32 id, bytes memory instruction)
        private
        pure
        returns (IReferee.Context memory context, IReferee.Proof memory proof)
    {
        (context.target, context.depth, context.position) = (IReferee.Target.VALUE, DEPTH, (uint64(1) << DEPTH) + 1);
        proof.instruction = instruction;
        bytes32[] memory program = _padded(new bytes32[](0), DEPTH + 1);
        program[context.position] = sha256(abi.encodePacked("tb.instr", instruction));
        (context.programRoot, proof.siblings) = _open(program, context.position);
        bytes32[] memory body = _padded(new bytes32[](0), DEPTH);
        body[5] = id;
        proof.witness.tensorId = id;
        (context.bodyRoot, proof.witness.siblings) = _open(body, 5);
    }

    function testFuzz_commit(bytes32 id) public view {
        (IReferee.Context memory context, IReferee.Proof memory proof) = _commit(id, _slotted(10, 0, "weight"));
        bytes32 expected = sha256(abi.encodePacked("tb.state", uint16(6), "weight", id));
        assertEq(referee.judge(context, proof), expected, "commit");
    }

    function test_commitOfAnotherTensorOrProgram() public {
        (IReferee.Context memory context, IReferee.Proof memory proof) = _commit("id", _slotted(10, 0, "weight"));
        proof.witness.tensorId = "other";
        vm.expectPartialRevert(IReferee.WrongRoot.selector);
        referee.judge(context, proof);
        (proof.witness.tensorId, proof.instruction) = ("id", _slotted(10, 0, "height"));
        vm.expectPartialRevert(IReferee.WrongRoot.selector);
        referee.judge(context, proof);
        (context, proof) = _commit("id", _slotted(10, 0, "weight"));
        context.position = uint64(2) << DEPTH;
        bytes32 leaf = sha256(abi.encodePacked("tb.instr", proof.instruction));
        vm.expectRevert(abi.encodeWithSelector(IReferee.WrongInstruction.selector, 0, leaf));
        referee.judge(context, proof);
        (context, proof) = _commit("id", _slotted(1, 2, "weight")); // an instruction of the body
        vm.expectRevert(abi.encodeWithSelector(IReferee.UnsupportedInstruction.selector, 1, 2));
        referee.judge(context, proof);
    }
}

/// @notice What is refused, each by its error.
contract RefereeRefusalsTest is RefereeBase {
    function _expect(IReferee.Context memory c, IReferee.Proof memory p, bytes memory error_) private {
        vm.expectRevert(error_);
        referee.judge(c, p);
    }

    function _sum() private view returns (IReferee.Context memory c, IReferee.Proof memory p) {
        return _honest(_find("sum of 4 products"));
    }

    function test_wrongOrMalformedInstruction() public {
        (IReferee.Context memory c, IReferee.Proof memory p) = _sum();
        bytes32 right = c.instructionLeaf;
        c.instructionLeaf = "another";
        _expect(c, p, abi.encodeWithSelector(IReferee.WrongInstruction.selector, bytes32("another"), right));
        _replace(c, p, hex"00");
        _expect(c, p, abi.encodeWithSelector(IReferee.MalformedInstruction.selector, 1));
    }

    function test_targetsOfTheWrongKind() public {
        (IReferee.Context memory c, IReferee.Proof memory p) = _sum();
        c.target = IReferee.Target.VALUE;
        _expect(c, p, abi.encodeWithSelector(IReferee.UnsupportedInstruction.selector, 3, 0));
        (c, p) = _honest(_find("step number"));
        _expect(c, p, abi.encodeWithSelector(IReferee.UnsupportedInstruction.selector, 1, 1));
        (c, p) = _honest(_find("sum of 5"));
        _expect(c, p, abi.encodeWithSelector(IReferee.UnsupportedInstruction.selector, 3, 0));
        (c, p) = _sum();
        c.target = IReferee.Target.TERMS; // four terms have no tree
        _expect(c, p, abi.encodeWithSelector(IReferee.LeafOutOfRange.selector, 0, 0));
    }

    function test_elementOrLeafOutOfRange() public {
        (IReferee.Context memory c, IReferee.Proof memory p) = _sum();
        uint64 elements = referee.describe(p.instruction, 0).elements;
        c.element = elements - 1;
        referee.judge(c, p);
        c.element = elements;
        _expect(c, p, abi.encodeWithSelector(IReferee.ElementOutOfRange.selector, elements, elements));
        uint256 k = _find("sum of 5");
        (c, p) = _honest(k);
        _atLeaf(c, p, vm.parseJsonBytesArray(json, _case(k, "accumulators")), 1);
        c.termsLeaf = 2;
        _expect(c, p, abi.encodeWithSelector(IReferee.LeafOutOfRange.selector, 2, 2));
    }

    function test_malformedAccumulator() public {
        uint256 k = _find("sum of 16");
        (IReferee.Context memory c, IReferee.Proof memory p) = _honest(k);
        bytes[] memory accumulators = vm.parseJsonBytesArray(json, _case(k, "accumulators"));
        _atLeaf(c, p, accumulators, 2);
        p.previous[96] ^= 0x01; // another
        vm.expectPartialRevert(IReferee.WrongRoot.selector);
        referee.judge(c, p);
        p.previous = hex"00";
        _expect(c, p, abi.encodeWithSelector(IReferee.MalformedAccumulator.selector, hex"00"));
        accumulators[1][0] = 0x02; // the defender's tree holds it, and it is still none
        _atLeaf(c, p, accumulators, 2);
        _expect(c, p, abi.encodeWithSelector(IReferee.MalformedAccumulator.selector, accumulators[1]));
        _atLeaf(c, p, accumulators, 0);
        p.previous = accumulators[0]; // nothing comes before the first leaf
        _expect(c, p, _unused(IReferee.Part.PREVIOUS));
        p.previous = "";
        p.siblings = new bytes32[](2);
        _expect(c, p, _unused(IReferee.Part.SIBLINGS));
    }

    function _unused(IReferee.Part part) private pure returns (bytes memory) {
        return abi.encodeWithSelector(IReferee.UnusedPart.selector, part);
    }

    function test_unusedPartsOfAnElement() public {
        (IReferee.Context memory c, IReferee.Proof memory p) = _sum();
        p.previous = hex"00";
        _expect(c, p, _unused(IReferee.Part.PREVIOUS));
        (c, p) = _sum();
        p.siblings = new bytes32[](1);
        _expect(c, p, _unused(IReferee.Part.SIBLINGS));
        for (uint256 field = 0; field < 7; ++field) {
            (c, p) = _sum();
            if (field == 0) p.witness.step = 1;
            if (field == 1) p.witness.stateRoot = "x";
            if (field == 2) p.witness.lossBits = 1;
            if (field == 3) p.witness.logRoot = "x";
            if (field == 4) p.witness.recordSiblings = new bytes32[](1);
            if (field == 5) p.witness.tensorId = "x";
            if (field == 6) p.witness.siblings = new bytes32[](1);
            _expect(c, p, _unused(IReferee.Part.WITNESS));
        }
    }

    function test_unusedPartsOfAScalar() public {
        uint256 k = _find("step number");
        for (uint256 part = 0; part < 5; ++part) {
            (IReferee.Context memory c, IReferee.Proof memory p) = _honest(k);
            c.target = IReferee.Target.VALUE;
            if (part == 0) p.previous = hex"00";
            if (part == 1) p.siblings = new bytes32[](1);
            if (part == 2) p.tensors = new IReferee.TensorOpening[](1);
            if (part == 3) p.chunks = new IReferee.ChunkOpening[](1);
            if (part == 4) p.witness.tensorId = "x";
            _expect(c, p, _unused(IReferee.Part(part)));
        }
    }

    function test_finishRefuses() public view {
        bytes memory sum = vm.parseJsonBytes(json, _case(_find("sum of 5"), "instruction"));
        uint8 kind = referee.describe(sum, 0).accumulator;
        (bool canonical, bytes32 leaf, uint64 bits) = referee.finish(kind, 32, new bytes(96));
        assertTrue(!canonical && leaf == 0 && bits == 0, "96 bytes are no sum");
        bytes memory flagged = new bytes(97);
        flagged[0] = 0x01;
        (canonical,, bits) = referee.finish(kind, 24, flagged);
        assertTrue(canonical && bits == 0x7fc00000, "a sum that is not finite");
        flagged[96] = 0x01;
        (canonical,,) = referee.finish(kind, 32, flagged);
        assertTrue(!canonical, "that holds an integer");
    }

    function test_finishOfNoKindOrRounding() public {
        for (uint256 kind = 0; kind < 256; ++kind) {
            if ((kind >= 1 && kind <= 5) || kind == 7) continue;
            vm.expectRevert(abi.encodeWithSelector(IReferee.UnknownAccumulator.selector, kind));
            referee.finish(uint8(kind), 32, new bytes(97));
        }
        for (uint256 x = 0; x < 256; ++x) {
            _finish(uint32(x), x >= 16 && x <= 32);
            _finish(uint32(32 | x << 8), x == 0 || (x >= 2 && x <= 64));
            _finish(uint32(16 | 64 << 8 | x << 16), x <= 3);
            _finish(uint32(24 | x << 24), x == 0);
        }
    }

    function _finish(uint32 rounding, bool known) private {
        if (!known) vm.expectRevert(abi.encodeWithSelector(IReferee.RoundingOutOfRange.selector, rounding));
        (bool canonical,, uint64 bits) = referee.finish(1, rounding, new bytes(97));
        if (known) assertTrue(canonical && bits == 0, "a zero sum at any rounding");
    }

    function test_noTranscendentals() public {
        vm.expectRevert(abi.encodeWithSelector(IReferee.TranscendentalsMissing.selector, address(0x7e)));
        new Referee(ITranscendentals(address(0x7e)));
    }

    function test_wrongTensorOpenings() public {
        (IReferee.Context memory c, IReferee.Proof memory p) = _sum();
        p.tensors[0].chunkRoot = "another";
        vm.expectPartialRevert(IReferee.WrongRoot.selector);
        referee.judge(c, p);
        (c, p) = _sum();
        p.tensors[0].value = 1;
        vm.expectPartialRevert(IReferee.WrongRoot.selector);
        referee.judge(c, p);
        (c, p) = _sum();
        p.tensors[0].value = uint32(1) << DEPTH;
        _expect(c, p, abi.encodeWithSelector(IReferee.PositionOutOfRange.selector, 1 << DEPTH, DEPTH));
        (c, p) = _sum();
        p.tensors[1].siblings = new bytes32[](DEPTH + 1);
        _expect(c, p, abi.encodeWithSelector(IReferee.WrongSiblingCount.selector, DEPTH, DEPTH + 1));
    }

    function test_malformedTensorsAndThoseOpenedTwice() public {
        (IReferee.Context memory c, IReferee.Proof memory p) = _sum();
        p.tensors[1].dtype = 3;
        _expect(c, p, abi.encodeWithSelector(IReferee.MalformedTensor.selector, 1));
        (c, p) = _sum();
        p.tensors[1].dims = new uint64[](9);
        _expect(c, p, abi.encodeWithSelector(IReferee.MalformedTensor.selector, 1));
        (c, p) = _sum();
        p.tensors[0].dims[0] = 0;
        _expect(c, p, abi.encodeWithSelector(IReferee.MalformedTensor.selector, 0));
        (c, p) = _sum();
        p.tensors[0].dims[0] = (1 << 40) + 1;
        _expect(c, p, abi.encodeWithSelector(IReferee.MalformedTensor.selector, 0));
        (c, p) = _sum();
        p.tensors[1] = p.tensors[0];
        _expect(c, p, abi.encodeWithSelector(IReferee.OpenedTwice.selector, 1));
        (c, p) = _sum();
        p.chunks[1] = p.chunks[0];
        _expect(c, p, abi.encodeWithSelector(IReferee.OpenedTwice.selector, 1));
    }

    function test_wrongChunks() public {
        (IReferee.Context memory c, IReferee.Proof memory p) = _sum();
        p.chunks[0].tensor = 2;
        _expect(c, p, abi.encodeWithSelector(IReferee.UnknownTensor.selector, 2));
        (c, p) = _sum();
        p.chunks[0].chunkIndex = 1;
        _expect(c, p, abi.encodeWithSelector(IReferee.ChunkOutOfRange.selector, 1, 1));
        (c, p) = _sum();
        uint256 length = p.chunks[0].data.length;
        p.chunks[0].data = bytes.concat(p.chunks[0].data, hex"00");
        _expect(c, p, abi.encodeWithSelector(IReferee.WrongChunkLength.selector, length, length + 1));
        (c, p) = _sum();
        p.chunks[0].data[0] ^= 0x01;
        vm.expectPartialRevert(IReferee.WrongRoot.selector);
        referee.judge(c, p);
    }

    /// @dev Three chunks of one tensor, of a tree of depth 2, and a copy that reads the last.
    function _threeChunks() private pure returns (IReferee.Context memory c, IReferee.Proof memory p) {
        bytes[] memory data = new bytes[](1);
        data[0] = new bytes(1200);
        data[0][1196] = 0x07;
        bytes memory head = abi.encodePacked(uint8(2), uint16(0), uint8(1), uint8(0), uint8(1), uint64(300));
        _replace(c, p, abi.encodePacked(head, uint32(0), int64(0), int64(1), uint16(0)));
        (c.target, c.depth, c.rounding, c.position, c.step) = (IReferee.Target.ELEMENT, DEPTH, 32, 6, 3);
        c.element = 299;
        _openAll(c, p, hex"00", data);
    }

    function test_laterChunksBringTheSiblingsBelowTheFirstsPath() public {
        (IReferee.Context memory c, IReferee.Proof memory p) = _threeChunks();
        for (uint256 k = 0; k < 3; ++k) {
            assertEq(p.chunks[k].siblings.length, k == 0 ? 2 : k - 1, "siblings");
        }
        assertEq(uint256(referee.judge(c, p)), 7, "the last element");
        // The last chunk alone has no first before it.
        (IReferee.ChunkOpening memory first, IReferee.ChunkOpening memory last) = (p.chunks[0], p.chunks[2]);
        p.chunks = new IReferee.ChunkOpening[](1);
        p.chunks[0] = last;
        _expect(c, p, abi.encodeWithSelector(IReferee.WrongSiblingCount.selector, 2, 1));
        // Behind the first, all of its own siblings are too many.
        p.chunks = new IReferee.ChunkOpening[](2);
        (p.chunks[0], p.chunks[1]) = (first, last);
        p.chunks[1].siblings = new bytes32[](2);
        _expect(c, p, abi.encodeWithSelector(IReferee.WrongSiblingCount.selector, 1, 2));
        // Another chunk than the one below the first's sibling.
        (c, p) = _threeChunks();
        p.chunks[1].data[0] ^= 0x01;
        bytes32 found = sha256(abi.encodePacked("tb.chunk", p.chunks[1].data));
        _expect(c, p, abi.encodeWithSelector(IReferee.WrongRoot.selector, p.chunks[0].siblings[0], found));
        (c, p) = _threeChunks();
        p.chunks[2].siblings[0] ^= bytes32(uint256(1));
        vm.expectPartialRevert(IReferee.WrongRoot.selector);
        referee.judge(c, p);
    }

    function test_missingElements() public {
        (IReferee.Context memory c, IReferee.Proof memory p) = _sum();
        p.chunks = new IReferee.ChunkOpening[](0);
        vm.expectPartialRevert(IReferee.MissingElement.selector);
        referee.judge(c, p);
        p.tensors = new IReferee.TensorOpening[](0);
        vm.expectPartialRevert(IReferee.MissingElement.selector);
        referee.judge(c, p);
    }

    /// @dev map copy, f32, rank 0, of this element of value 0.
    function _copy(int64 element, uint8 dtype) private pure returns (bytes memory) {
        return abi.encodePacked(uint8(2), uint8(0), dtype, uint8(0), uint8(0), uint8(1), uint32(0), element, uint16(0));
    }

    function test_elementsOutsideTheTensor() public {
        (IReferee.Context memory c, IReferee.Proof memory p) = _sum();
        int64 size = int64(p.tensors[0].dims[0]);
        _replace(c, p, _copy(size - 1, 0));
        referee.judge(c, p);
        _replace(c, p, _copy(size, 0));
        _expect(c, p, abi.encodeWithSelector(IReferee.MissingElement.selector, 0, size));
        _replace(c, p, _copy(-1, 0));
        _expect(c, p, abi.encodeWithSelector(IReferee.MissingElement.selector, 0, -1));
        _replace(c, p, _copy(0, 1)); // f32 to i64 is no copy
        _expect(c, p, abi.encodeWithSelector(IReferee.UnsupportedInstruction.selector, 2, 0));
    }

    function test_wrongOperandType() public {
        (IReferee.Context memory c, IReferee.Proof memory p) = _sum();
        (c, p) = _honest(_find("i64 sum"));
        bytes memory instruction = p.instruction;
        instruction[2] = 0x00; // an f32 sum of an i64 tensor
        _replace(c, p, instruction);
        c.target = IReferee.Target.TERMS;
        _expect(c, p, abi.encodeWithSelector(IReferee.WrongOperandType.selector, 0, 0, 1));
    }

    function test_malformedBools() public {
        uint256 k = _find("window else of bool");
        for (uint256 at_ = 0; at_ < 70; at_ += 23) {
            (IReferee.Context memory c, IReferee.Proof memory p) = _honest(k);
            bytes[] memory data = vm.parseJsonBytesArray(json, _case(k, "operands"));
            data[1] = new bytes(70);
            data[1][at_] = 0x02;
            _openAll(c, p, vm.parseJsonBytes(json, _case(k, "operandTypes")), data);
            _expect(c, p, abi.encodeWithSelector(IReferee.MalformedBools.selector, 1));
            data[1][at_] = 0x01;
            _openAll(c, p, vm.parseJsonBytes(json, _case(k, "operandTypes")), data);
            referee.judge(c, p);
        }
    }

    function test_nanPayloadsAreRead() public view {
        (IReferee.Context memory c, IReferee.Proof memory p) = _sum();
        bytes[] memory data = new bytes[](1);
        data[0] = hex"010080ff000080ff"; // a NaN with sign and payload, -inf
        _openAll(c, p, hex"00", data);
        _replace(c, p, _copy(0, 0));
        assertEq(uint256(referee.judge(c, p)), 0x7fc00000, "the one NaN");
        _replace(c, p, _copy(1, 0));
        assertEq(uint256(referee.judge(c, p)), 0xff800000, "infinity");
    }
}

/// @notice Policy `logged` at the referee: that nothing but sums reads the log, and what the rule costs. (That sums
/// follow it is compared with Python in Vectors.t.sol and Differential.t.sol.)
contract RefereeLoggedTest is RefereeBase {
    using ExactSum for Exact;

    uint32 private constant ONE = 0x3f800000;
    uint32 private constant HALF_PLACE = 0x33800000;
    /// Gas that the rule may add to a leaf.
    uint256 private constant RULE_BAR = 400;

    function _rounding(uint256 b, uint256 n, uint256 code) private pure returns (uint32) {
        return uint32(b | n << 8 | code << 16);
    }

    /// @dev An element that is a sum of four products with 1.
    function _sum() private view returns (IReferee.Context memory c, IReferee.Proof memory p) {
        bytes memory data = abi.encodePacked(uint8(3), uint16(0), uint8(1), uint8(1), uint8(2), uint64(1), uint64(4));
        data = abi.encodePacked(data, uint32(0), int64(0), int64(0), int64(1));
        data = abi.encodePacked(data, uint32(1), int64(0), int64(0), int64(0), uint16(0));
        (c, p) = _honest(_find("sum of 4"));
        _replace(c, p, data);
        bytes[] memory tensors = new bytes[](2);
        (tensors[0], tensors[1]) = (hex"000080b1000080330000803f00000000", hex"0000803f");
        _openAll(c, p, hex"0000", tensors);
    }

    function _judged(IReferee.Context memory c, IReferee.Proof memory p, uint32 round) private view returns (uint256) {
        c.rounding = round;
        return uint256(referee.judge(c, p));
    }

    /// @dev Of a function only the precision counts, of a max or a leaf of an accumulator tree nothing.
    function test_onlySumsReadTheLog() public {
        string[6] memory names =
            ["tanh", "max of 4 f32", "argmax of 4 i64", "gather rows of f32", "random with seed 0", "window of i64"];
        for (uint256 k = 0; k < names.length; ++k) {
            (IReferee.Context memory c, IReferee.Proof memory p) = _honest(_find(names[k]));
            uint256 found = _judged(c, p, 32);
            assertEq(_judged(c, p, 32 | 64 << 8 | 2 << 16), found, names[k]);
            assertEq(_judged(c, p, 0xffffff00 | 32), found, names[k]);
            if (k != 0) assertEq(_judged(c, p, 0), found, names[k]);
            assertEq(referee.describe(p.instruction, 0).sumKind, 0, names[k]);
        }
        (IReferee.Context memory function_, IReferee.Proof memory proof) = _honest(_find("tanh"));
        function_.rounding = 0xffffff00 | 15;
        vm.expectRevert(abi.encodeWithSelector(ITranscendentals.PrecisionOutOfRange.selector, 15));
        referee.judge(function_, proof);
        uint256 sum = _find("sum of 16");
        (function_, proof) = _honest(sum);
        _atLeaf(function_, proof, vm.parseJsonBytesArray(json, _case(sum, "accumulators")), 1);
        assertEq(_judged(function_, proof, 0), _judged(function_, proof, 32), "an exact sum is not rounded");
    }

    function _gas(bytes memory asked) private view returns (uint256 used) {
        address target = address(referee);
        bool ok;
        assembly ("memory-safe") {
            let before := gas()
            ok := staticcall(before, target, add(asked, 0x20), mload(asked), 0, 0)
            used := sub(before, gas())
        }
        assertTrue(ok, "answered");
    }

    /// @dev What following a log costs, of an element and of a last accumulator.
    function test_gasOfTheRule() public view {
        (IReferee.Context memory c, IReferee.Proof memory p) = _sum();
        bytes memory plain = abi.encodeCall(IReferee.judge, (c, p));
        c.rounding = _rounding(32, 5, 2);
        bytes memory logged = abi.encodeCall(IReferee.judge, (c, p));
        _gas(plain); // the addresses are warm from here
        uint256 without = _gas(plain);
        uint256 with = _gas(logged);
        assertTrue(with > without && with <= without + RULE_BAR, "an element");
        Exact memory sum;
        sum.addValue(ONE);
        sum.addValue(HALF_PLACE);
        without = _gas(abi.encodeCall(IReferee.finish, (1, 32, sum.encode())));
        with = _gas(abi.encodeCall(IReferee.finish, (1, _rounding(32, 5, 2), sum.encode())));
        assertTrue(with > without && with <= without + RULE_BAR, "a last accumulator");
    }
}

/// @notice Reductions of millions and billions of terms, at their first, a middle and the last, shorter leaf: trees of
/// which one path is real, and a tensor of which one chunk is.
contract RefereeLongTest is GasBase {
    using ExactSum for Exact;

    function _data() private pure returns (bytes memory data) {
        for (uint256 k = 0; k < 16; ++k) {
            data = abi.encodePacked(data, keccak256(abi.encode(k)) & ~bytes32(uint256(1 << 30 | 1 << 6) << 7 * 32));
        }
    }

    function _leBits(bytes memory data, uint256 e) private pure returns (uint256) {
        return _bits(0, data, e);
    }

    /// @dev sum of one f32 operand over these reduction dims, row-major, of a tensor of that many elements.
    function _sumOver(uint64[] memory dims) private pure returns (bytes memory data) {
        data = abi.encodePacked(uint8(3), uint16(0), uint8(0), uint8(dims.length), uint8(1));
        for (uint256 d = 0; d < dims.length; ++d) {
            data = abi.encodePacked(data, dims[d]);
        }
        data = abi.encodePacked(data, uint32(0), int64(0));
        for (uint256 d = 0; d < dims.length; ++d) {
            int64 stride = 1;
            for (uint256 e = d + 1; e < dims.length; ++e) {
                stride *= int64(dims[e]);
            }
            data = abi.encodePacked(data, stride);
        }
        return abi.encodePacked(data, uint16(0));
    }

    /// @dev Judges leaf `leaf` of a sum of `terms` terms against the sum of the same terms, and the root's side of it.
    function _judgeLeaf(uint64[] memory dims, uint256 terms, uint256 leaf) private view {
        IReferee.Context memory c;
        IReferee.Proof memory p;
        _replace(c, p, _sumOver(dims));
        (c.target, c.depth, c.rounding, c.position, c.step) = (IReferee.Target.TERMS, uint8(BODY_DEPTH), 32, 9, 3);
        c.termsLeaf = uint64(leaf);
        IReferee.Description memory d = referee.describe(p.instruction, 0);
        assertEq(d.termLeaves, (terms + 3) / 4, "leaves");

        // The chunk that holds the leaf's terms, and the tensor.
        bytes memory data = _data();
        uint256 chunkIndex = leaf / 32; // 128 elements of f32 a chunk, 4 a leaf
        uint256 length = Commitments.chunkLength(4 * terms, chunkIndex);
        data = slice(data, 0, length);
        p.chunks = new IReferee.ChunkOpening[](1);
        (p.chunks[0].chunkIndex, p.chunks[0].data) = (uint64(chunkIndex), data);
        p.chunks[0].siblings = _path(Trees.depthOf(Commitments.chunkCount(4 * terms)), 1);
        p.tensors = new IReferee.TensorOpening[](1);
        p.tensors[0].dims = dims;
        p.tensors[0].chunkRoot = _fold(sha256(abi.encodePacked("tb.chunk", data)), chunkIndex, p.chunks[0].siblings);
        bytes memory encodedDims;
        for (uint256 k = 0; k < dims.length; ++k) {
            encodedDims = abi.encodePacked(encodedDims, dims[k]);
        }
        p.tensors[0].siblings = _path(BODY_DEPTH, 2);
        c.bodyRoot = _fold(Commitments.tensorId(0, encodedDims, p.tensors[0].chunkRoot), 0, p.tensors[0].siblings);

        // The accumulator before, and what must come after it.
        Exact memory sum;
        if (leaf != 0) {
            sum.addValue(0xc2280001);
            p.previous = sum.encode();
            p.siblings = _path(Trees.depthOf(d.termLeaves), 3);
            c.accumulatorRoot = _fold(sha256(abi.encodePacked("tb.accum", p.previous)), leaf - 1, p.siblings);
        }
        for (uint256 term = 4 * leaf; term < 4 * leaf + 4 && term < terms; ++term) {
            sum.addValue(_leBits(data, term % 128));
        }
        assertTrue(!sum.notFinite, "finite terms");
        bytes32 expected = sha256(abi.encodePacked("tb.accum", sum.encode()));
        assertEq(referee.judge(c, p), expected, "leaf");
    }

    function _dims(uint64 a, uint64 b) private pure returns (uint64[] memory dims) {
        dims = new uint64[](b == 0 ? 1 : 2);
        dims[0] = a;
        if (b != 0) dims[1] = b;
    }

    /// @dev 2^24 - 1 terms: 2^22 leaves, the last of three terms.
    function test_millionsOfTerms() public view {
        uint256 terms = (1 << 24) - 1;
        uint256[5] memory leaves = [uint256(0), 1, 1 << 21, (1 << 22) - 2, (1 << 22) - 1];
        for (uint256 k = 0; k < leaves.length; ++k) {
            _judgeLeaf(_dims(uint64(terms), 0), terms, leaves[k]);
        }
        _judgeLeaf(_dims(4096, 4096), 1 << 24, (1 << 22) - 1);
    }

    /// @dev 2^32 terms, the most there are, in two dims and in eight.
    function test_billionsOfTerms() public view {
        uint64[] memory eight = new uint64[](8);
        for (uint256 d = 0; d < 8; ++d) {
            eight[d] = 16;
        }
        uint256[4] memory leaves = [uint256(0), 1 << 29, (1 << 30) - 2, (1 << 30) - 1];
        for (uint256 k = 0; k < leaves.length; ++k) {
            _judgeLeaf(_dims(1 << 16, 1 << 16), 1 << 32, leaves[k]);
            _judgeLeaf(eight, 1 << 32, leaves[k]);
        }
    }

    function test_behindTheLastLeaf() public {
        IReferee.Context memory c;
        IReferee.Proof memory p;
        _replace(c, p, _sumOver(_dims(1 << 16, 1 << 16)));
        (c.target, c.rounding, c.termsLeaf) = (IReferee.Target.TERMS, 32, 1 << 30);
        vm.expectRevert(abi.encodeWithSelector(IReferee.LeafOutOfRange.selector, 1 << 30, 1 << 30));
        referee.judge(c, p);
    }

    function test_moreThanTheMostTerms() public {
        bytes memory instruction = _sumOver(_dims(1 << 16, (1 << 16) + 1));
        vm.expectRevert(abi.encodeWithSelector(IReferee.MalformedInstruction.selector, 14));
        referee.describe(instruction, 0);
        instruction = _sumOver(_dims(1 << 33, 1 << 31)); // wraps to 0 in 64 bits
        vm.expectRevert(abi.encodeWithSelector(IReferee.MalformedInstruction.selector, 6));
        referee.describe(instruction, 0);
    }
}
