// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "./interfaces/IReferee.sol";
import {ITranscendentals} from "./interfaces/ITranscendentals.sol";
import {Accumulator, AccumulatorKind, Accumulators} from "./libraries/Accumulators.sol";
import {Commitments} from "./libraries/Commitments.sol";
import {ExactSum} from "./libraries/ExactSum.sol";
import {Instruction, InstructionCodec} from "./libraries/InstructionCodec.sol";
import {Isa} from "./libraries/Isa.sol";
import {MapFunctions, Scalars} from "./libraries/MapFunctions.sol";
import {Openings, Operands} from "./libraries/Openings.sol";
import {Philox} from "./libraries/Philox.sol";
import {Tags} from "./libraries/Tags.sol";
import {Trees} from "./libraries/Trees.sol";

/// @title The referee: recomputes one leaf at the bottom of a dispute, in integers
/// @notice See `IReferee`, which is the specification.
///
/// Plan of `judge`: (1) the instruction is the one in dispute; (2) every opening verifies; (3) what is asked for
/// exists; (4) the operands' elements are read and the leaf is recomputed; (5) nothing else is in the proof.
contract Referee is IReferee {
    using InstructionCodec for Instruction;
    using Accumulators for Accumulator;
    using Openings for Operands;

    uint256 private constant MASK64 = 0xffffffffffffffff;

    /// @notice Computes the functions 10 ... 15 of `map`.
    ITranscendentals public immutable TRANSCENDENTALS;

    constructor(ITranscendentals transcendentals) {
        if (address(transcendentals).code.length == 0) revert TranscendentalsMissing(address(transcendentals));
        TRANSCENDENTALS = transcendentals;
    }

    /// @inheritdoc IReferee
    function judge(Context calldata context, Proof calldata proof) external view returns (bytes32) {
        bytes32 leaf = Commitments.instructionLeaf(proof.instruction);
        if (context.target == Target.VALUE && context.position >> context.depth == 1) {
            // (1) A commit is not opened by the defender, so the proof opens it in the program tree.
            Trees.verify(context.programRoot, context.depth + 1, context.position, leaf, proof.siblings);
            return _commit(context, proof);
        }
        // INVARIANT: (1) the instruction is the one that the defender opened. Its preimage is unique.
        if (leaf != context.instructionLeaf) revert WrongInstruction(context.instructionLeaf, leaf);
        Instruction memory i = InstructionCodec.decode(proof.instruction);
        if (context.target == Target.VALUE) return _source(context, proof, i);
        _requireUnused(Part.WITNESS, _isEmpty(proof.witness)); // (5)
        // INVARIANT: (3) the element exists.
        if (context.element >= i.elements) revert ElementOutOfRange(context.element, i.elements);
        Operands memory o = Openings.verify(context.bodyRoot, context.depth, proof.tensors, proof.chunks); // (2)
        _requireTypes(i, o); // (2)
        if (context.target == Target.TERMS) return _terms(context, proof, i, o);
        _requireUnused(Part.PREVIOUS, proof.previous.length == 0); // (5)
        _requireUnused(Part.SIBLINGS, proof.siblings.length == 0);
        return bytes32(_element(i, o, context.element, context.rounding));
    }

    /// @inheritdoc IReferee
    function describe(bytes calldata instruction, bytes32 chunkRoot) external view returns (Description memory d) {
        Instruction memory i = InstructionCodec.decode(instruction);
        uint256 dataBytes = i.elements * Isa.size(i.dtype);
        d.leaf = Commitments.instructionLeaf(instruction);
        d.id = Commitments.tensorIdAt(i.dtype, i.rank, i.dimsAt, chunkRoot);
        (d.opcode, d.dtype, d.elements) = (uint8(i.opcode), uint8(i.dtype), uint64(i.elements));
        (d.dataBytes, d.chunks) = (uint64(dataBytes), uint64(Commitments.chunkCount(dataBytes)));
        d.termLeaves = uint32(i.termLeaves());
        if (d.termLeaves != 0) d.accumulator = Accumulators.code(i);
        d.sumKind = Accumulators.sumKind(i);
    }

    /// @inheritdoc IReferee
    function scalarId(uint8 dtype, uint64 bits) external pure returns (bytes32) {
        return Commitments.scalarId(dtype, bits);
    }

    /// @inheritdoc IReferee
    function finish(uint8 accumulatorKind, uint32 rounding, bytes calldata accumulator)
        external
        view
        returns (bool canonical, bytes32 leaf, uint64 bits)
    {
        AccumulatorKind kind = Accumulators.kindOfLast(accumulatorKind, accumulator.length);
        Accumulator memory last;
        (canonical, last) = Accumulators.decode(kind, accumulator);
        if (!canonical) return (false, 0, 0);
        return (true, Commitments.tagged(Tags.ACCUMULATOR, accumulator), last.result(rounding));
    }

    /// @dev The right leaf of the value tree for commit `position - 2^depth`: the state entry of its operand.
    /// Why the slot and the name are not compared with the position: a program in which they differ is refused by
    /// both parties before its root is signed.
    function _commit(Context calldata context, Proof calldata proof) private view returns (bytes32) {
        Instruction memory i = InstructionCodec.decode(proof.instruction);
        if (i.opcode != Isa.COMMIT) i.unsupported();
        Witness calldata w = proof.witness;
        _requireNoOpenings(proof); // (5)
        _requireUnused(Part.RECORD, _isRecordEmpty(w));
        Trees.verify(context.bodyRoot, context.depth, i.operandValue(0), w.tensorId, w.siblings); // (2)
        return Commitments.entry(Tags.STATE_ENTRY, i.encodedName(), w.tensorId);
    }

    /// @dev The right leaf of the value tree for a `source`: the id of its tensor.
    function _source(Context calldata context, Proof calldata proof, Instruction memory i)
        private
        view
        returns (bytes32)
    {
        if (i.opcode != Isa.SOURCE) i.unsupported();
        Witness calldata w = proof.witness;
        _requireNoOpenings(proof); // (5)
        _requireUnused(Part.SIBLINGS, proof.siblings.length == 0);
        if (i.func == Isa.SOURCE_CONST || i.func == Isa.SOURCE_STEP) {
            _requireUnused(Part.WITNESS, _isEmpty(w));
            bool isConstant = i.func == Isa.SOURCE_CONST;
            return Commitments.scalarId(i.dtype, isConstant ? i.paramUnsigned(0) : context.step - 1);
        }
        if (i.func != Isa.SOURCE_STATE) {
            _requireUnused(Part.RECORD, _isRecordEmpty(w));
            if (i.func == Isa.SOURCE_DATA) {
                _verifyEntry(Tags.DATA_ENTRY, context.dataRoot, context.dataCount, i, w); // (2)
            } else {
                // INVARIANT: (2) late data stand in the step's log tree where their source stands in the body.
                Trees.verify(context.stepLog, context.depth, context.position, w.tensorId, w.siblings);
            }
            return w.tensorId;
        }
        // INVARIANT: (2) the state before the step is that of record s-1, which stands where the game says.
        if (w.step != context.step - 1) revert WrongRecord(context.step - 1, w.step);
        bytes32 record = Commitments.record(w.step, w.stateRoot, w.lossBits, w.logRoot);
        Trees.verify(context.recordRoot, context.recordDepth, context.recordPosition, record, w.recordSiblings);
        _verifyEntry(Tags.STATE_ENTRY, w.stateRoot, context.stateCount, i, w);
        return w.tensorId;
    }

    /// @dev INVARIANT: (5) a value leaf is proved without accumulators and operands.
    function _requireNoOpenings(Proof calldata proof) private pure {
        _requireUnused(Part.PREVIOUS, proof.previous.length == 0);
        _requireUnused(Part.TENSORS, proof.tensors.length == 0);
        _requireUnused(Part.CHUNKS, proof.chunks.length == 0);
    }

    function _requireUnused(Part part, bool isEmpty) private pure {
        if (!isEmpty) revert UnusedPart(part);
    }

    function _isEmpty(Witness calldata w) private pure returns (bool) {
        return _isRecordEmpty(w) && w.tensorId == 0 && w.siblings.length == 0;
    }

    function _isRecordEmpty(Witness calldata w) private pure returns (bool) {
        return w.step == 0 && w.stateRoot == 0 && w.lossBits == 0 && w.logRoot == 0 && w.recordSiblings.length == 0;
    }

    function _verifyEntry(bytes8 tag, bytes32 root, uint256 count, Instruction memory i, Witness calldata w)
        private
        view
    {
        uint256 slot = i.slot();
        // INVARIANT: (3) the slot exists.
        if (slot >= count) revert SlotOutOfRange(slot, count);
        bytes32 leaf = Commitments.entry(tag, i.encodedName(), w.tensorId);
        Trees.verify(root, Trees.depthOf(count), slot, leaf, w.siblings);
    }

    /// @dev Operands that are open have the dtypes of SPEC 4.3, also where they are not read. (`map` reads all of its
    /// operands and checks them with its function; an argmax reads at least one element.)
    function _requireTypes(Instruction memory i, Operands memory o) private pure {
        if (i.opcode == Isa.MAP || (i.opcode == Isa.REDUCE && i.func == Isa.REDUCE_ARGMAX)) return;
        bool integers = i.opcode == Isa.RANDOM || i.opcode == Isa.SHUFFLE;
        bool indexes = i.opcode == Isa.GATHER || i.opcode == Isa.SCATTER_SUM;
        for (uint256 k = 0; k < i.operandCount; ++k) {
            o.requireType(k, i.operandValue(k), integers || (indexes && k == 1) ? Isa.I64 : i.dtype);
        }
    }

    /// @dev The right leaf number `termsLeaf` of the accumulator tree.
    function _terms(Context calldata context, Proof calldata proof, Instruction memory i, Operands memory o)
        private
        view
        returns (bytes32)
    {
        uint256 leaf = context.termsLeaf;
        uint256 leaves = i.termLeaves();
        // INVARIANT: (3) the leaf exists.
        if (leaf >= leaves) revert LeafOutOfRange(leaf, leaves);
        AccumulatorKind kind = _kind(i, o, context.element);
        Accumulator memory a = Accumulators.start(kind);
        if (leaf == 0) {
            _requireUnused(Part.PREVIOUS, proof.previous.length == 0); // (5) nothing comes before the first leaf
            _requireUnused(Part.SIBLINGS, proof.siblings.length == 0);
        } else {
            bool canonical;
            (canonical, a) = Accumulators.decode(kind, proof.previous);
            // INVARIANT: (2) the accumulator before is well formed and stands in the defender's tree.
            if (!canonical) revert MalformedAccumulator(proof.previous);
            bytes32 digest = Commitments.tagged(Tags.ACCUMULATOR, proof.previous);
            Trees.verify(context.accumulatorRoot, Trees.depthOf(leaves), leaf - 1, digest, proof.siblings);
        }
        uint256 first = leaf * Isa.TERMS_PER_LEAF;
        uint256 end = first + Isa.TERMS_PER_LEAF;
        _accumulate(i, o, a, context.element, first, end < i.terms ? end : i.terms); // (4)
        return Commitments.accumulatorLeaf(a.encode());
    }

    /// @dev The right bits of one element. (4)
    function _element(Instruction memory i, Operands memory o, uint256 element, uint256 rounding)
        private
        view
        returns (uint256)
    {
        uint256 opcode = i.opcode;
        if (opcode == Isa.MAP) return _map(i, o, element, rounding);
        if (i.isReduction()) {
            // INVARIANT: a long reduction has accumulators, and is judged by their leaves.
            if (i.terms > Isa.TERMS_PER_LEAF) i.unsupported();
            Accumulator memory a = Accumulators.start(_kind(i, o, element));
            _accumulate(i, o, a, element, 0, i.terms);
            return a.result(rounding);
        }
        if (opcode == Isa.GATHER) return _gather(i, o, element);
        if (opcode == Isa.WINDOW) return _window(i, o, element);
        if (opcode == Isa.IOTA) return uint256(i.paramSigned(0) + i.dotOutput(element, i.paramsAt + 8)) & MASK64;
        if (opcode == Isa.RANDOM) {
            return Philox.random(_integer(i, o, 0, element), _integer(i, o, 1, element), i.slot(), element);
        }
        if (opcode == Isa.SHUFFLE) return _shuffle(i, o, element);
        i.unsupported(); // source, commit: whole tensors
    }

    /// @dev The i64 that operand k holds at the output coordinate, in two's complement.
    function _integer(Instruction memory i, Operands memory o, uint256 k, uint256 element)
        private
        pure
        returns (uint256)
    {
        return o.read(k, i.operandValue(k), Isa.I64, i.baseElement(k, element));
    }

    function _shuffle(Instruction memory i, Operands memory o, uint256 element) private pure returns (uint256) {
        (uint256 index, uint256 seed) = (_integer(i, o, 0, element), _integer(i, o, 1, element));
        return Philox.shuffle(index, seed, _integer(i, o, 2, element), i.paramUnsigned(0), i.paramUnsigned(8) >> 32);
    }

    function _map(Instruction memory i, Operands memory o, uint256 element, uint256 rounding)
        private
        view
        returns (uint256)
    {
        Scalars memory s;
        s.count = i.operandCount;
        for (uint256 k = 0; k < s.count; ++k) {
            int256 pos = i.baseElement(k, element);
            uint256 value = i.operandValue(k);
            s.dtypes[k] = o.dtypeOf(k, value, pos);
            s.bits[k] = o.read(k, value, s.dtypes[k], pos);
        }
        if (!MapFunctions.isTranscendental(i.func)) return MapFunctions.apply_(i.func, i.dtype, s);
        MapFunctions.requireTypes(i.func, i.dtype, s);
        // SAFETY: an f32 that was read has 32 bits, a known function 8. Only sums are logged: the rest is the precision.
        return TRANSCENDENTALS.evaluate(uint8(i.func), uint32(s.bits[0]), uint8(rounding));
    }

    /// @dev What is accumulated. Only an argmax needs its operand's tensor to tell.
    function _kind(Instruction memory i, Operands memory o, uint256 element) private pure returns (AccumulatorKind) {
        uint256 dtype = i.dtype;
        if (i.opcode == Isa.REDUCE && i.func == Isa.REDUCE_ARGMAX) {
            dtype = o.dtypeOf(0, i.operandValue(0), i.baseElement(0, element));
        }
        return Accumulators.kindOf(i, dtype);
    }

    /// @dev Takes terms first ... end-1 of the element.
    function _accumulate(
        Instruction memory i,
        Operands memory o,
        Accumulator memory a,
        uint256 element,
        uint256 first,
        uint256 end
    ) private pure {
        bool scatters = i.opcode == Isa.SCATTER_SUM;
        bool multiplies = !scatters && i.operandCount == 2;
        bool integers = a.kind == AccumulatorKind.I64_SUM || a.kind == AccumulatorKind.I64_MAX
            || a.kind == AccumulatorKind.I64_ARGMAX;
        uint256 dtype = integers ? Isa.I64 : Isa.F32;
        int256 target = scatters ? i.dotOutput(element, i.paramsAt) : int256(0);
        int256 base0 = i.baseElement(0, element);
        int256 base1 = scatters || multiplies ? i.baseElement(1, element) : int256(0);
        for (uint256 term = first; term < end; ++term) {
            if (scatters && MapFunctions.signed(_term(i, o, 1, Isa.I64, base1, term)) != target) continue;
            uint256 x = _term(i, o, 0, dtype, base0, term);
            if (multiplies) ExactSum.addProduct(a.sum, x, _term(i, o, 1, dtype, base1, term));
            else a.take(x, term);
        }
    }

    function _term(Instruction memory i, Operands memory o, uint256 k, uint256 dtype, int256 base, uint256 term)
        private
        pure
        returns (uint256)
    {
        return o.read(k, i.operandValue(k), dtype, base + i.termOffset(k, term));
    }

    function _gather(Instruction memory i, Operands memory o, uint256 element) private pure returns (uint256) {
        int256 j = MapFunctions.signed(o.read(1, i.operandValue(1), Isa.I64, i.baseElement(1, element)));
        if (j < 0 || uint256(j) >= i.paramUnsigned(8)) return i.dtype == Isa.F32 ? Isa.NAN_BITS : 0;
        // SAFETY: j is below 2^64, the stride of magnitude at most 2^63.
        int256 pos = i.baseElement(0, element) + j * i.paramSigned(0);
        return MapFunctions.normal(i.dtype, o.read(0, i.operandValue(0), i.dtype, pos));
    }

    function _window(Instruction memory i, Operands memory o, uint256 element) private pure returns (uint256) {
        (bool inside, int256 pos) = _insideBox(i, element);
        if (inside) return MapFunctions.normal(i.dtype, o.read(0, i.operandValue(0), i.dtype, pos));
        if (i.func == Isa.WINDOW_FILL) return i.paramUnsigned(24 * i.rank);
        pos = i.baseElement(1, element);
        return MapFunctions.normal(i.dtype, o.read(1, i.operandValue(1), i.dtype, pos));
    }

    /// @dev Whether the output coordinate is in the box, and the element that the first operand has there.
    function _insideBox(Instruction memory i, uint256 element) private pure returns (bool inside, int256 pos) {
        pos = i.operandOffset(0);
        for (uint256 d = i.rank; d != 0;) {
            --d;
            uint256 size = i.dim(d);
            int256 c = int256(element % size);
            element /= size;
            int256 lo = i.paramSigned(24 * d);
            int256 step = int256(i.paramUnsigned(24 * d + 16));
            // SAFETY: a step is at least 1.
            if (c < lo || c >= i.paramSigned(24 * d + 8) || (c - lo) % step != 0) return (false, 0);
            pos += (c - lo) / step * i.outputStride(0, d);
        }
        return (true, pos);
    }
}
