// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// @title The referee: what one leaf of a disputed step must be
/// @notice Stateless. It recomputes one node at the bottom of the walk (SPEC section 10, phase PROVE) from openings
/// that it verifies itself, and returns what is *right*; the game compares that with what the defender committed.
/// It never decides who wins, holds no funds and has no owner.
///
/// Bits. Wherever an element's value is a `uint64`, f32 is its bit pattern in the low 32 bits, i64 its two's
/// complement, bool 0 or 1.
///
/// Refusals. Every function either returns the one right answer or reverts with a custom error that carries the
/// offending values. A revert in `judge` means "this proof proves nothing": the move is illegal and the game is
/// unchanged. The functions that the game needs for a *tie* (SPEC section 10) return a flag instead, because a
/// tie that fails is a verdict and not a refusal.
interface IReferee {
    /// What stands at the disputed leaf.
    enum Target {
        /// A leaf of the value tree: `source` or `commit`. Answer: the digest of the right leaf.
        VALUE,
        /// One element of a tensor, computed at once. Answer: its bits, as a number.
        ELEMENT,
        /// A leaf of the accumulator tree of one element. Answer: the digest of the right leaf.
        TERMS
    }

    /// What the game has agreed on by the time the challenger proves. The referee trusts every field of it.
    struct Context {
        /// The leaf to judge.
        Target target;
        /// D of SPEC section 4: each half of the value tree and of the program tree has 2^D leaves.
        uint8 depth;
        /// How the element is rounded: b of the job | n << 8 | code << 16. b: 16 ... 32. n: for a sum, the job's
        /// tolerance for its kind, 0 or 2 ... 64. code: what the step's rounding log says of the element, 0 ... 3 (SPEC
        /// section 5.1). Where nothing is logged n and code are 0; what is no sum reads b alone.
        uint32 rounding;
        /// Leaf of the value tree: body instruction i at i, commit k at 2^D + k. Invariant: below 2^(D+1).
        uint64 position;
        /// Element of the tensor, row-major (ELEMENT, TERMS).
        uint64 element;
        /// Leaf of the accumulator tree (TERMS).
        uint64 termsLeaf;
        /// s, the number of the disputed step, from 1.
        uint64 step;
        /// S, entries of the state. (This and what else only a VALUE needs, the board leaves zero for other targets.)
        uint32 stateCount;
        /// Entries of the job's data (VALUE).
        uint32 dataCount;
        /// H(`tb.instr` ‖ encoding), as opened in phase OPEN_TENSOR. Ignored if `position` is a commit's: that
        /// instruction is opened in the proof, under `programRoot`.
        bytes32 instructionLeaf;
        /// Root of the program tree (depth D+1) (VALUE).
        bytes32 programRoot;
        /// Root of the body half of the defender's value tree.
        bytes32 bodyRoot;
        /// Root of the job's data entries (VALUE).
        bytes32 dataRoot;
        /// Root of a tree that holds record s-1 (VALUE): run tree, steps tree or, for s = 1, record 0 itself (depth 0).
        bytes32 recordRoot;
        /// Depth of that tree.
        uint8 recordDepth;
        /// Position of record s-1 in that tree.
        uint64 recordPosition;
        /// Root of the accumulator tree (TERMS); its depth follows from the instruction.
        bytes32 accumulatorRoot;
        /// Root of the step's log tree (VALUE), of depth D: the id of late data is leaf `position`. Zero of policy `exact`.
        bytes32 stepLog;
    }

    /// A tensor opened as the output of a body instruction.
    struct TensorOpening {
        /// Number of the instruction, position in the body half of the value tree.
        uint32 value;
        uint8 dtype;
        uint64[] dims;
        bytes32 chunkRoot;
        /// D siblings in the body half, from the leaf upwards.
        bytes32[] siblings;
    }

    /// A chunk opened under the chunk root of an opened tensor. The first of a tensor has a sibling for each level of its
    /// chunk tree. Another has those below the level at which its path reaches one of the first's siblings: with the
    /// indices i of the first and j, that is sibling number bitlength(i xor j) - 1.
    struct ChunkOpening {
        /// Index into the proof's tensors.
        uint8 tensor;
        uint64 chunkIndex;
        bytes data;
        bytes32[] siblings;
    }

    /// What a `source` of state, data or late data, or a `commit`, is proved with; unused fields are zero and empty.
    struct Witness {
        /// Record s-1 (`source` of state): its own step number, state root, loss bits, rounding-log root.
        uint64 step;
        bytes32 stateRoot;
        uint32 lossBits;
        bytes32 logRoot;
        bytes32[] recordSiblings;
        /// The tensor's id: in the state or data leaf, or itself the leaf of the log tree (`source`); in the body half (`commit`).
        bytes32 tensorId;
        /// Siblings of that leaf.
        bytes32[] siblings;
    }

    /// The challenger's proof (message body 9 of SPEC section 9). Parts that the leaf has no use for must be empty:
    /// a commit takes instruction, siblings and witness (without the record); a `source` of state the whole
    /// witness, of data and late data the witness without the record, of a scalar nothing but the instruction; an
    /// ELEMENT tensors and chunks; TERMS these, and above leaf 0 previous and siblings.
    struct Proof {
        /// The instruction's encoding.
        bytes instruction;
        /// TERMS: the accumulator before the disputed leaf; empty at leaf 0 and for other targets.
        bytes previous;
        /// Siblings of `previous` (leaf termsLeaf - 1); for a commit, of the instruction under the program root.
        bytes32[] siblings;
        TensorOpening[] tensors;
        ChunkOpening[] chunks;
        Witness witness;
    }

    /// A part of a proof. RECORD: the first five fields of the witness.
    enum Part {
        PREVIOUS,
        SIBLINGS,
        TENSORS,
        CHUNKS,
        WITNESS,
        RECORD
    }

    /// What the game needs to know of an instruction and its output.
    struct Description {
        /// H(`tb.instr` ‖ encoding): its leaf in the program tree.
        bytes32 leaf;
        /// Tensor id of the output, if its chunk tree has the root that was given.
        bytes32 id;
        uint8 opcode;
        /// dtype of the result.
        uint8 dtype;
        /// Elements of the result, at least 1.
        uint64 elements;
        /// Bytes of the result's data.
        uint64 dataBytes;
        /// Chunks of the result: leaves of its chunk tree.
        uint64 chunks;
        /// Leaves of an element's accumulator tree, or 0 if elements are judged at once (no reduction, or K <= 4).
        uint32 termLeaves;
        /// What is accumulated, for `finish`; 0 if nothing is.
        uint8 accumulator;
        /// 1 + the kind of a logged sum (SPEC section 5.1): 1 plain, 2 products, 3 scatter; 0 if it is none.
        uint8 sumKind;
    }

    /// Bytes are not exactly one instruction. `offset` is where reading stopped.
    error MalformedInstruction(uint256 offset);
    /// The opcode, function and dtypes do not go together, or not with this target.
    error UnsupportedInstruction(uint8 opcode, uint8 func);
    /// The proof's instruction is not the one that the game has fixed.
    error WrongInstruction(bytes32 expected, bytes32 actual);
    /// A part of the proof that a leaf of this kind has no use for is not empty.
    error UnusedPart(Part part);
    /// The witness's record is not that of the step before.
    error WrongRecord(uint64 expected, uint64 actual);
    /// A proof has another number of siblings than its tree is deep.
    error WrongSiblingCount(uint256 expected, uint256 actual);
    /// A position outside its tree.
    error PositionOutOfRange(uint256 position, uint256 depth);
    /// An opening leads to another root.
    error WrongRoot(bytes32 expected, bytes32 actual);
    /// A tensor opening whose dtype, rank or dims cannot be a tensor.
    error MalformedTensor(uint256 tensor);
    /// A chunk opening names a tensor that the proof does not open.
    error UnknownTensor(uint256 tensor);
    /// A value or a chunk is opened twice. `index` is that of the second opening.
    error OpenedTwice(uint256 index);
    /// A chunk of bools holds a byte that is neither 0 nor 1.
    error MalformedBools(uint256 chunk);
    /// A chunk index outside the tensor.
    error ChunkOutOfRange(uint256 chunkIndex, uint256 chunks);
    /// A chunk of another length than the tensor's shape says.
    error WrongChunkLength(uint256 expected, uint256 actual);
    /// No opening holds this element of this operand.
    error MissingElement(uint256 operand, int256 element);
    /// An operand's tensor has another dtype than the instruction needs.
    error WrongOperandType(uint256 operand, uint8 expected, uint8 actual);
    /// The element is outside the instruction's result.
    error ElementOutOfRange(uint256 element, uint256 elements);
    /// The leaf is outside the accumulator tree.
    error LeafOutOfRange(uint256 leaf, uint256 leaves);
    /// An accumulator that is not the one encoding of a value.
    error MalformedAccumulator(bytes accumulator);
    /// A witness's slot is outside the state or the data.
    error SlotOutOfRange(uint256 slot, uint256 count);
    /// `finish` was asked for a kind that `describe` never names.
    error UnknownAccumulator(uint8 kind);
    /// A sum was to be rounded in a way that is none: see `Context.rounding`.
    error RoundingOutOfRange(uint32 rounding);
    /// The constructor was given an address without code.
    error TranscendentalsMissing(address given);

    /// @notice The right value of the leaf that `context` names.
    /// @return answer VALUE and TERMS: the digest of the right leaf. ELEMENT: the right bits.
    function judge(Context calldata context, Proof calldata proof) external view returns (bytes32 answer);

    /// @notice Reads an instruction. Reverts if the bytes are not exactly one.
    /// @param chunkRoot root of the chunk tree of its output
    function describe(bytes calldata instruction, bytes32 chunkRoot)
        external
        view
        returns (Description memory description);

    /// @notice The id of the rank-0 tensor that holds `bits`: an f32 scalar such as the loss (dtype 0), an i64 or a bool.
    function scalarId(uint8 dtype, uint64 bits) external pure returns (bytes32 id);

    /// @notice What the last accumulator of an element says.
    /// @param accumulatorKind as in `Description.accumulator`
    /// @param rounding as in `Context`
    /// @return canonical whether the bytes are the one encoding of an accumulator of this kind
    /// @return leaf its digest in the accumulator tree (0 if not canonical)
    /// @return bits the value of the element, a sum rounded as `rounding` says (0 if not canonical)
    function finish(uint8 accumulatorKind, uint32 rounding, bytes calldata accumulator)
        external
        view
        returns (bool canonical, bytes32 leaf, uint64 bits);
}
