"""The referee: computes from openings alone what one element, or one accumulator leaf, must be (SPEC 9 and 10, PROVE).

All input comes from a party to a dispute. Numbered plan of `Openings`, in order:
(1) each tensor has a known dtype and a possible shape, and no value is opened twice;
(2) its id is at the position of its value in the body half of the defender's value tree;
(3) each chunk names an opened tensor, lies inside it, is opened once, and has the length that the shape says;
(4) its digest is at its index under the tensor's chunk root, or under a sibling of the tensor's first opened chunk;
(5) bools are 0 or 1. (NaN payloads are accepted: every f32 NaN is read as the canonical NaN.)
Plan of judging: (6) the operands' dtypes fit the instruction; (7) every element that is read has been opened.

Two things are deliberately not checked. The instruction need not be checked against SPEC section 4: both parties
validated the program before they signed its root, and the game checks that the instruction is under that root. Unused
openings are allowed: they prove nothing and harm nobody.
"""

from collections.abc import Callable, Sequence
from math import prod

from tiebreak.protocol.commitments import records
from tiebreak.protocol.errors import EncodingError, ProofError
from tiebreak.protocol.game.moves import ChunkOpening, TensorOpening
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.program.accumulator import decode, encode, kind_of
from tiebreak.protocol.program.isa import TERMS_PER_LEAF, DType, Instruction, Opcode, signatures
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.reference import Reader, accumulate_leaf, element, needed_elements, pack, to_raw, unpack
from tiebreak.protocol.program.rounding import NEAREST, Rounding
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree, depth_of, verify

TensorBytes = Callable[[int], bytes | memoryview]
"""Maps a value number to the value's data."""


class Openings:
    """The openings of one proof, verified. Raises `ProofError` or `EncodingError` unless all of them hold."""

    __slots__ = ("_chunks", "_firsts", "_sizes", "_types")

    def __init__(
        self,
        *,
        body_root: bytes,
        half_depth: int,
        tensors: Sequence[TensorOpening],
        chunks: Sequence[ChunkOpening],
    ) -> None:
        """`body_root` is the root of the body half of the value tree, `half_depth` its depth D."""
        self._types: dict[int, DType] = {}
        self._sizes: dict[int, int] = {}
        self._chunks: dict[tuple[int, int], list[int]] = {}
        self._firsts: dict[int, ChunkOpening] = {}
        for tensor in tensors:
            self._add_tensor(tensor, body_root, half_depth)
        for chunk in chunks:
            if not 0 <= chunk.tensor < len(tensors):  # (3)
                raise ProofError(f"expected the index of one of {len(tensors)} opened tensors, got {chunk.tensor}")
            self._add_chunk(chunk, tensors[chunk.tensor])

    def _add_tensor(self, tensor: TensorOpening, body_root: bytes, half_depth: int) -> None:
        dtype = _dtype(tensor)
        if tensor.value in self._types:  # (1)
            raise ProofError(f"expected each value to be opened once, got value {tensor.value} twice")
        identity = records.tensor_id(dtype, tensor.dims, tensor.chunk_root)  # (1)
        _verify(f"value {tensor.value}", body_root, half_depth, tensor.value, identity, tensor.siblings)  # (2)
        self._types[tensor.value] = dtype
        self._sizes[tensor.value] = prod(tensor.dims)

    def _add_chunk(self, chunk: ChunkOpening, tensor: TensorOpening) -> None:
        what = f"chunk {chunk.chunk_index} of value {tensor.value}"
        dtype = self._types[tensor.value]
        count = records.chunk_count(dtype, tensor.dims)
        if not 0 <= chunk.chunk_index < count:  # (3)
            raise ProofError(f"{what}: expected one of {count} chunks")
        if (tensor.value, chunk.chunk_index) in self._chunks:  # (3)
            raise ProofError(f"{what}: expected each chunk to be opened once, got it twice")
        length = records.chunk_length(dtype, tensor.dims, chunk.chunk_index)
        if len(chunk.data) != length:  # (3)
            raise ProofError(f"{what}: expected {length} bytes, got {len(chunk.data)}")
        leaf = records.chunk_digest(chunk.data)
        root, depth, position = tensor.chunk_root, depth_of(count), chunk.chunk_index
        first = self._firsts.setdefault(tensor.value, chunk)
        if first is not chunk:
            depth = shared_from(first.chunk_index, position)
            root, position = first.siblings[depth], position % (1 << depth)
        _verify(what, root, depth, position, leaf, chunk.siblings)  # (4)
        self._chunks[tensor.value, chunk.chunk_index] = unpack(dtype, chunk.data)  # (5)

    def operand_dtypes(self, instruction: Instruction) -> tuple[DType, ...]:
        """The operands' dtypes: opened, or implied by the instruction. Raises `ProofError` if they do not fit it."""
        opened = [self._types.get(access.value) for access in instruction.operands]
        for expected in _signatures(instruction):
            matches = zip(opened, expected, strict=True)
            if all(found in (None, wanted) for found, wanted in matches):
                return expected
        names = [found.name if found is not None else "not open" for found in opened]
        raise ProofError(f"expected operand dtypes that fit {_name(instruction)}, got {', '.join(names)}")  # (6)

    def reader(self, instruction: Instruction) -> Reader:
        """Reads the instruction's operands. Raises a `ProofError` that names an element that was not opened."""

        def read(operand: int, where: int) -> int:
            value = instruction.operands[operand].value
            if value not in self._types:  # (7)
                raise ProofError(f"expected operand {operand} (value {value}) to be opened for element {where}")
            if not 0 <= where < self._sizes[value]:  # (7)
                size = self._sizes[value]
                raise ProofError(f"expected an element of operand {operand} (value {value}) below {size}, got {where}")
            chunk, offset = divmod(where * self._types[value].size, CHUNK_BYTES)
            elements = self._chunks.get((value, chunk))
            if elements is None:  # (7)
                raise ProofError(f"expected chunk {chunk} of operand {operand} (value {value}) for element {where}")
            return elements[offset // self._types[value].size]

        return read


def shared_from(first: int, other: int) -> int:
    """The height at which the path of chunk `other` reaches a sibling of the path of chunk `first` of the same tensor.

    Only the first opened chunk of a tensor brings all siblings. Any other brings those below that height.
    """
    return (first ^ other).bit_length() - 1


def _dtype(tensor: TensorOpening) -> DType:
    try:
        return DType(tensor.dtype)
    except ValueError:
        raise EncodingError(f"value {tensor.value}: expected a dtype of 0 to 2, got {tensor.dtype}") from None


def _verify(what: str, root: bytes, depth: int, position: int, leaf: bytes, siblings: Sequence[bytes]) -> None:
    try:
        verify(root, depth, position, leaf, siblings)
    except ProofError as error:
        raise ProofError(f"{what}: {error}") from None


def _name(instruction: Instruction) -> str:
    return f"{instruction.opcode.name} {instruction.function} to {instruction.dtype.name}"


def _signatures(instruction: Instruction) -> list[tuple[DType, ...]]:
    """The accepted operand dtypes for the instruction's result dtype and number of operands."""
    if instruction.opcode in (Opcode.SOURCE, Opcode.COMMIT):
        raise ProofError(f"expected an instruction that is judged by element, got {_name(instruction)}")
    count = len(instruction.operands)
    accepted = signatures(instruction) or ()
    return [types for types, result in accepted if result == instruction.dtype and len(types) == count]


def _check_index(instruction: Instruction, index: int) -> None:
    if not 0 <= index < instruction.numel:
        raise ProofError(f"expected an element below {instruction.numel}, got {index}")


def judge_element(
    instruction: Instruction, index: int, openings: Openings, *, step: int = 1, rounding: Rounding = NEAREST
) -> int:
    """The correct bits (unsigned, as in tensor data) of element `index` of an instruction's result.

    Raises `ProofError` if the openings do not show all that is needed, or if the element is a reduction with more than
    one leaf of terms: those are judged leaf by leaf.
    """
    _check_index(instruction, index)
    if instruction.is_reduction and instruction.terms > TERMS_PER_LEAF:
        raise ProofError(f"expected at most {TERMS_PER_LEAF} terms, got {instruction.terms}: judge a leaf instead")
    types = openings.operand_dtypes(instruction)
    found = element(instruction, index, openings.reader(instruction), types, step=step, rounding=rounding)
    return to_raw(instruction.dtype, found)


def judge_leaf(instruction: Instruction, index: int, leaf: int, previous: bytes, openings: Openings) -> bytes:
    """The correct encoding of leaf `leaf` in the accumulator tree of element `index`.

    `previous` is the encoding in leaf - 1, and empty for leaf 0. Raises `ProofError` or `EncodingError`.
    """
    _check_index(instruction, index)
    if not instruction.is_reduction:
        raise ProofError(f"expected a reduction, got {_name(instruction)}")
    leaves = -(-instruction.terms // TERMS_PER_LEAF)
    if not 0 <= leaf < leaves:
        raise ProofError(f"expected a leaf below {leaves}, got {leaf}")
    if leaf == 0 and previous:
        raise EncodingError(f"expected no previous accumulator at leaf 0, got {len(previous)} bytes")
    types = openings.operand_dtypes(instruction)
    before = decode(kind_of(instruction, types[0]), previous) if leaf else None
    return encode(accumulate_leaf(instruction, index, leaf, before, openings.reader(instruction), types))


def judge_scalar_source(instruction: Instruction, step: int) -> Digest:
    """The correct tensor id of a `source` const or of the step number, in step `step` (counted from 1)."""
    found = element(instruction, 0, _no_operands, (), step=step)
    return records.identify(instruction.dtype, instruction.shape, pack(instruction.dtype, [found]))


def _no_operands(operand: int, where: int) -> int:
    raise ProofError(f"expected no operand, got a read of operand {operand}, element {where}")


def build_openings(
    program: Program,
    instruction: Instruction,
    index: int,
    leaf: int | None,
    *,
    body_tree: Tree,
    tensor_bytes: TensorBytes,
    tree_of: Callable[[int], Tree] | None = None,
) -> tuple[tuple[TensorOpening, ...], tuple[ChunkOpening, ...]]:
    """The openings that `judge_element` (`leaf` is None) or `judge_leaf` needs, sorted and without repetition.

    `body_tree` is the prover's value tree or its body half. `tensor_bytes` returns a value's data, and `tree_of` its
    chunk tree, which is built from the data if `tree_of` is None.
    """
    data: dict[int, bytes | memoryview] = {}

    def read(operand: int, where: int) -> int:
        value = instruction.operands[operand].value
        if value not in data:
            data[value] = tensor_bytes(value)
        dtype = program.body[value].dtype
        return unpack(dtype, data[value][where * dtype.size : (where + 1) * dtype.size])[0]

    needed = needed_elements(instruction, index, leaf, read, program.operand_dtypes(instruction))
    places = set()
    for operand, where in needed:
        value = instruction.operands[operand].value
        places.add((value, where * program.body[value].dtype.size // CHUNK_BYTES))
    values = sorted({value for value, _ in places})
    trees = {value: tree_of(value) if tree_of else records.tensor_tree(data[value]) for value in values}
    firsts: dict[int, int] = {}

    def siblings(value: int, chunk: int) -> tuple[bytes, ...]:
        proof, first = trees[value].proof(chunk), firsts.setdefault(value, chunk)
        return tuple(proof if first == chunk else proof[: shared_from(first, chunk)])

    tensors = tuple(_open_tensor(program, value, trees[value], body_tree) for value in values)
    chunks = tuple(
        ChunkOpening(
            tensor=values.index(value),
            chunk_index=chunk,
            data=bytes(data[value][chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]),
            siblings=siblings(value, chunk),
        )
        for value, chunk in sorted(places)
    )
    return tensors, chunks


def _open_tensor(program: Program, value: int, tree: Tree, body_tree: Tree) -> TensorOpening:
    produced_by = program.body[value]
    return TensorOpening(
        value=value,
        dtype=int(produced_by.dtype),
        dims=produced_by.shape,
        chunk_root=tree.root,
        siblings=tuple(body_tree.proof(value)[: program.half_depth]),
    )
