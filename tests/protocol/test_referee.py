"""The referee over openings: right values for every instruction, and refusal of every wrong opening."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.protocol.oracles import NAN, Stream
from tests.protocol.walks import HONEST, other
from tiebreak.protocol.commitments.records import identify, tensor_id, tensor_tree
from tiebreak.protocol.errors import EncodingError, ProofError
from tiebreak.protocol.game.moves import ChunkOpening, TensorOpening
from tiebreak.protocol.game.referee import Openings, build_openings, judge_element, judge_leaf, judge_scalar_source
from tiebreak.protocol.program.isa import DType, Instruction, MapFunction, Opcode, SourceKind
from tiebreak.protocol.trees import Tree

STEP = 2
"""Step 1's state is ordinary too."""
PROGRAM, VALUES = HONEST.program, HONEST.computed(STEP).values
IDS = [identify(i.dtype, i.shape, data) for i, data in zip(PROGRAM.body, VALUES, strict=True)]
BODY_TREE = Tree(IDS, PROGRAM.half_depth)
JUDGED = [number for number, instruction in enumerate(PROGRAM.body) if instruction.opcode != Opcode.SOURCE]
Proof = tuple[tuple[TensorOpening, ...], tuple[ChunkOpening, ...]]


def prove(number: int, index: int, leaf: int | None = None) -> Proof:
    instruction = PROGRAM.body[number]
    return build_openings(PROGRAM, instruction, index, leaf, body_tree=BODY_TREE, tensor_bytes=VALUES.__getitem__)


def check(proof: Proof, root: bytes = BODY_TREE.root) -> Openings:
    return Openings(body_root=root, half_depth=PROGRAM.half_depth, tensors=proof[0], chunks=proof[1])


def bits_at(number: int, index: int) -> int:
    size = PROGRAM.body[number].dtype.size
    return int.from_bytes(VALUES[number][index * size : (index + 1) * size], "little")


@pytest.mark.parametrize("number", JUDGED)
def test_every_instruction_is_judged_as_it_was_executed(number: int, cases: Callable[[], None]) -> None:
    instruction = PROGRAM.body[number]
    stream = Stream(f"referee/{instruction.opcode}/{instruction.function}")
    for index in {0, instruction.numel - 1, *(stream.below(instruction.numel) for _ in range(6))}:
        if instruction.is_reduction and instruction.terms > 4:
            chain = HONEST.encoded(STEP, number, index)
            assert len(chain) == -(-instruction.terms // 4)
            for leaf, expected in enumerate(chain):
                previous = chain[leaf - 1] if leaf else b""
                openings = check(prove(number, index, leaf))
                assert judge_leaf(instruction, index, leaf, previous, openings) == expected
                cases()
        else:
            assert judge_element(instruction, index, check(prove(number, index)), step=STEP) == bits_at(number, index)
            cases()


def find(opcode: Opcode, function: int = 0) -> int:
    found = enumerate(PROGRAM.body)
    return next(k for k, i in found if (i.opcode, i.function) == (opcode, function) and i.operands)


def test_out_of_bounds_gather_needs_only_its_index() -> None:
    number = next(k for k, i in enumerate(PROGRAM.body) if i.opcode == Opcode.GATHER and i.dtype == DType.F32)
    width = PROGRAM.body[number].shape[1]
    outside = [k for k in range(PROGRAM.body[number].numel) if bits_at(number, k) == NAN]
    assert len(outside) in (width, 2 * width)
    proof = prove(number, outside[0])
    assert [t.value for t in proof[0]] == [PROGRAM.body[number].operands[1].value]
    assert judge_element(PROGRAM.body[number], outside[0], check(proof)) == NAN


def test_changed_operand_changes_the_verdict_and_fails_its_proof() -> None:
    """The proof shows the defender's own operands, so a changed operand changes the verdict with it."""
    number = find(Opcode.MAP, MapFunction.SUB)
    instruction = PROGRAM.body[number]
    operand = instruction.operands[0].value
    forged = VALUES[operand][:4] + other(VALUES[operand][4:])
    values = (*VALUES[:operand], forged, *VALUES[operand + 1 :])
    identity = identify(PROGRAM.body[operand].dtype, PROGRAM.body[operand].shape, forged)
    tree = Tree([*IDS[:operand], identity, *IDS[operand + 1 :]], PROGRAM.half_depth)
    proof = build_openings(PROGRAM, instruction, 1, None, body_tree=tree, tensor_bytes=values.__getitem__)
    assert judge_element(instruction, 1, check(proof, tree.root)) != bits_at(number, 1)
    with pytest.raises(ProofError, match=f"value {operand}: expected root"):
        check(proof)


def with_tensor(proof: Proof, **changes: Any) -> Proof:
    return (replace(proof[0][0], **changes), *proof[0][1:]), proof[1]


def with_chunk(proof: Proof, **changes: Any) -> Proof:
    return proof[0], (replace(proof[1][0], **changes), *proof[1][1:])


TAMPERED: dict[str, tuple[Callable[[Proof], Proof], type[Exception], str]] = {
    "other value": (lambda p: with_tensor(p, value=p[0][0].value + 1), ProofError, "expected root"),
    "value beyond the tree": (lambda p: with_tensor(p, value=1 << 20), ProofError, "expected a position below"),
    "unknown dtype": (lambda p: with_tensor(p, dtype=3), EncodingError, "expected a dtype of 0 to 2, got 3"),
    "zero dim": (lambda p: with_tensor(p, dims=(0, 15)), EncodingError, "dims >= 1"),
    "huge shape": (lambda p: with_tensor(p, dims=(1 << 30, 1 << 30)), EncodingError, "2\\^40 elements"),
    "missing sibling": (lambda p: with_tensor(p, siblings=p[0][0].siblings[1:]), ProofError, "siblings"),
    "extra sibling": (lambda p: with_tensor(p, siblings=(*p[0][0].siblings, bytes(32))), ProofError, "siblings"),
    "no siblings": (lambda p: with_tensor(p, siblings=()), ProofError, "expected 6 siblings"),
    "tensor twice": (lambda p: ((*p[0], p[0][0]), p[1]), ProofError, "opened once"),
    "chunk twice": (lambda p: (p[0], (*p[1], p[1][0])), ProofError, "opened once"),
    "chunk of no tensor": (lambda p: with_chunk(p, tensor=len(p[0])), ProofError, "one of . opened tensors"),
    "chunk of another tensor": (lambda p: with_chunk(p, tensor=1), ProofError, "expected"),
    "chunk beyond the tensor": (lambda p: with_chunk(p, chunk_index=3), ProofError, "expected one of 3 chunks"),
    "other chunk": (lambda p: with_chunk(p, chunk_index=2), ProofError, "expected 176 bytes, got 512"),
    "short chunk": (lambda p: with_chunk(p, data=p[1][0].data[:-1]), ProofError, "expected 512 bytes, got 511"),
    "empty chunk": (lambda p: with_chunk(p, data=b""), ProofError, "expected 512 bytes, got 0"),
    "flipped bit": (lambda p: with_chunk(p, data=other(p[1][0].data)), ProofError, "chunk 0 of value .*expected root"),
    "chunk without siblings": (lambda p: with_chunk(p, siblings=()), ProofError, "expected 2 siblings"),
}


@pytest.mark.parametrize("first", range(5))
def test_later_chunk_proofs_omit_siblings_shared_with_the_first(first: int) -> None:
    """A tensor of 5 chunks, in a tree of depth 3, with each of them opened first."""
    data = bytes(range(200)) * 12
    dims, chunks = (len(data) // 4,), tensor_tree(data)
    body = Tree([tensor_id(DType.F32, dims, chunks.root)], 0)
    tensor = TensorOpening(value=0, dtype=0, dims=dims, chunk_root=chunks.root, siblings=())

    def opened(index: int, height: int | None) -> ChunkOpening:
        siblings = tuple(chunks.proof(index)[:height])
        return ChunkOpening(tensor=0, chunk_index=index, data=data[512 * index :][:512], siblings=siblings)

    def check(*openings: ChunkOpening) -> None:
        Openings(body_root=body.root, half_depth=0, tensors=(tensor,), chunks=openings)

    others = [index for index in range(5) if index != first]
    heights = {index: (first ^ index).bit_length() - 1 for index in others}
    whole = opened(first, None)
    check(whole, *(opened(index, height) for index, height in heights.items()))
    for index, height in heights.items():
        part = opened(index, height)
        with pytest.raises(ProofError, match="expected 3 siblings"):
            check(part)
        for wrong in {*range(4)} - {height}:
            with pytest.raises(ProofError, match=f"expected {height} siblings"):
                check(whole, opened(index, wrong))
        tampered = [replace(part, data=other(part.data))]
        tampered += [replace(part, siblings=(other(part.siblings[0]), *part.siblings[1:]))] if height else []
        for bad in tampered:
            with pytest.raises(ProofError, match="expected root"):
                check(whole, bad)


@pytest.mark.parametrize("name", list(TAMPERED))
def test_tampered_openings_are_refused(name: str) -> None:
    """The first operand of w - scaled at element 0: two tensors, one chunk of two each."""
    change, error, message = TAMPERED[name]
    proof = prove(find(Opcode.MAP, MapFunction.SUB), 0)
    assert [len(part) for part in proof] == [2, 2]
    check(proof)
    with pytest.raises(error, match=message):
        check(change(proof))


def mutate(proof: Proof, choice: int, byte: int, bit: int) -> Proof:
    tensors, chunks = proof
    openings: list[Any] = [*tensors, *chunks]
    at = choice // 8 % len(openings)
    fields = list(openings[at].kinds())
    name = fields[choice % len(fields)]

    def flipped(value: Any) -> Any:
        if isinstance(value, int):
            return value ^ 1 << bit
        if isinstance(value, bytes):
            where = byte % len(value)
            return value[:where] + bytes([value[where] ^ 1 << bit]) + value[where + 1 :]
        where = byte % max(1, len(value))
        return (*value[:where], *map(flipped, value[where : where + 1]), *value[where + 1 :])

    openings[at] = replace(openings[at], **{name: flipped(getattr(openings[at], name))})
    return tuple(openings[: len(tensors)]), tuple(openings[len(tensors) :])


@given(st.sampled_from(JUDGED), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 7))
@settings(max_examples=150)
def test_any_flipped_bit_is_refused(number: int, index: int, choice: int, byte: int, bit: int) -> None:
    """No bit of any opening is free: a proof says exactly one thing or nothing."""
    instruction = PROGRAM.body[number]
    index %= instruction.numel
    leaf = index % -(-instruction.terms // 4) if instruction.is_reduction and instruction.terms > 4 else None
    proof = prove(number, index, leaf)
    assume(proof[0])
    changed = mutate(proof, choice, byte, bit)
    assume(changed != proof)  # the one digest of an empty list of siblings, the one dim of a scalar
    with pytest.raises((ProofError, EncodingError)):
        check(changed)


def test_missing_openings_name_operand_and_element() -> None:
    number = find(Opcode.MAP, MapFunction.SUB)
    instruction = PROGRAM.body[number]
    tensors, chunks = prove(number, 0)
    second = instruction.operands[1].value
    with pytest.raises(ProofError, match=f"chunk 0 of operand 1 \\(value {second}\\) for element 0"):
        judge_element(instruction, 0, check((tensors, tuple(c for c in chunks if c.tensor != 1))))
    with pytest.raises(ProofError, match=f"operand 1 \\(value {second}\\) to be opened for element 0"):
        judge_element(instruction, 0, check((tensors[:1], tuple(c for c in chunks if c.tensor == 0))))
    with pytest.raises(ProofError, match=r"chunk 2 of operand 0 .* for element 299"):
        judge_element(instruction, 299, check((tensors, chunks)))
    with pytest.raises(ProofError, match=r"operand 0 .* to be opened"):
        judge_element(instruction, 0, check(((), ())))


def lie(number: int, dtype: DType, shape: tuple[int, ...], data: bytes) -> tuple[bytes, TensorOpening, ChunkOpening]:
    """A defender that committed to other bytes, of another type, as value `number`: root and consistent openings."""
    chunks = tensor_tree(data)
    tree = Tree([*IDS[:number], tensor_id(dtype, shape, chunks.root), *IDS[number + 1 :]], PROGRAM.half_depth)
    siblings = tuple(tree.proof(number))
    opened = TensorOpening(value=number, dtype=int(dtype), dims=shape, chunk_root=chunks.root, siblings=siblings)
    return tree.root, opened, ChunkOpening(tensor=0, chunk_index=0, data=data, siblings=tuple(chunks.proof(0)))


def lied(function: MapFunction, dtype: DType, data: bytes) -> tuple[Instruction, Openings]:
    instruction = PROGRAM.body[find(Opcode.MAP, function)]
    root, tensor, chunk = lie(instruction.operands[0].value, dtype, (len(data) // dtype.size,), data)
    return instruction, check(((tensor,), (chunk,)), root)


def test_operands_of_wrong_dtype_or_size_are_refused() -> None:
    instruction, openings = lied(MapFunction.TANH, DType.I64, bytes(120))
    with pytest.raises(ProofError, match="expected operand dtypes that fit MAP 12 to F32, got I64"):
        judge_element(instruction, 0, openings)
    with pytest.raises(EncodingError, match="bools of 0 or 1"):
        lied(MapFunction.NOT, DType.BOOL, bytes([1, 0, 2] + [0] * 12))
    instruction, openings = lied(MapFunction.TANH, DType.F32, bytes(12))
    assert judge_element(instruction, 2, openings) == 0
    with pytest.raises(ProofError, match="below 3, got 3"):
        judge_element(instruction, 3, openings)
    instruction, openings = lied(MapFunction.TANH, DType.F32, b"\x01\x00\x80\xff" * 15)
    assert judge_element(instruction, 0, openings) == NAN, "payloads are read as the one NaN"


def test_previous_accumulators_must_be_canonical() -> None:
    number = find(Opcode.REDUCE)
    instruction = PROGRAM.body[number]
    openings = check(prove(number, 0, 1))
    for previous in (b"", bytes(96), bytes(98), b"\x02" + bytes(96), b"\x01" + bytes(95) + b"\x01"):
        with pytest.raises(EncodingError):
            judge_leaf(instruction, 0, 1, previous, openings)
    with pytest.raises(EncodingError, match="no previous accumulator at leaf 0"):
        judge_leaf(instruction, 0, 0, bytes(97), check(prove(number, 0, 0)))
    assert judge_leaf(instruction, 0, 1, b"\x01" + bytes(96), openings) == b"\x01" + bytes(96)


def test_referee_refuses_mismatched_instructions_and_indices() -> None:
    reduce, tanh = find(Opcode.REDUCE), find(Opcode.MAP, MapFunction.TANH)
    openings = check(prove(reduce, 0, 0))
    with pytest.raises(ProofError, match="judge a leaf instead"):
        judge_element(PROGRAM.body[reduce], 0, openings)
    with pytest.raises(ProofError, match="expected a leaf below 4, got 4"):
        judge_leaf(PROGRAM.body[reduce], 0, 4, bytes(97), openings)
    with pytest.raises(ProofError, match="expected an element below 9, got 9"):
        judge_leaf(PROGRAM.body[reduce], 9, 0, b"", openings)
    with pytest.raises(ProofError, match="expected an element below 15, got -1"):
        judge_element(PROGRAM.body[tanh], -1, openings)
    with pytest.raises(ProofError, match="expected a reduction, got MAP 12"):
        judge_leaf(PROGRAM.body[tanh], 0, 0, b"", openings)
    with pytest.raises(ProofError, match="judged by element, got COMMIT 0"):
        judge_element(PROGRAM.commits[0], 0, openings)


def test_referee_judges_constant_and_step_sources(cases: Callable[[], None]) -> None:
    for number, instruction in enumerate(PROGRAM.body):
        if instruction.opcode == Opcode.SOURCE and instruction.function in (SourceKind.CONST, SourceKind.STEP):
            expected = identify(instruction.dtype, (), VALUES[number])
            assert judge_scalar_source(instruction, 2) == expected
            next_step = judge_scalar_source(instruction, 3)
            assert (next_step == expected) == (instruction.function == SourceKind.CONST)
            cases()
