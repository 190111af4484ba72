"""Referee.sol against `protocol.proof` on random hostile proofs: the same answer, or both refuse.

The contract is the checked-in artifact on an in-process EVM. `TIEBREAK_FUZZ` (default 1) multiplies the number of
cases.
"""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import pytest

from protocol import proof
from protocol.accumulator import encode
from protocol.commitments import StepRecord, data_leaf, identify, state_leaf, tensor_id, tensor_tree
from protocol.errors import EncodingError, VerificationError
from protocol.isa import (
    MAP_SIGNATURES,
    MAX_NUMEL,
    MAX_TERMS,
    TRANSCENDENTALS,
    Access,
    DType,
    GatherParams,
    Instruction,
    IotaParams,
    MapFunction,
    Opcode,
    Params,
    ReduceFunction,
    ScatterParams,
    Slot,
    SourceConst,
    SourceKind,
    WindowFunction,
    WindowParams,
    row_major,
)
from protocol.job import Job
from protocol.merkle import Tree
from protocol.moves import ChunkOpening, Prove, StateWitness, TensorOpening, TensorWitness
from protocol.program import decode_instruction, encode_instruction, instruction_digest
from protocol.reference import accumulators, pack, unpack
from protocol.tags import Digest, Tag, tagged_hash
from tests.chain.support import JOB
from tests.contracts.solidity_referee import Context, RefusedOnChain, SolidityReferee, Target, deploy

FUZZ = int(os.environ.get("TIEBREAK_FUZZ", "1"))
F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL
SLOTS = 3
REFUSED = "refused"
Cases = Callable[[], None]
Data = tuple[DType, tuple[int, ...], bytes]
"""dtype, shape and data of a tensor."""

F32_EDGES = (
    0,
    1,
    0x7FFFFF,
    0x800000,
    0x3F800000,
    0x33800000,
    0x34000000,
    0x7F7FFFFF,
    0x7F800000,
    0x7FC00000,
    0x5EFFFFFF,
)
I64_EDGES = (0, 1, -1, 2, 3, -7, 1 << 24, (1 << 24) + 1, (1 << 53) + 1, (1 << 63) - 1, -(1 << 63), -(1 << 63) + 1)


@pytest.fixture(scope="module")
def referee() -> SolidityReferee:
    return deploy()


def element(rng: random.Random, dtype: DType) -> int:
    """An element of a dtype; edges, near neighbours and cancelling values are likely."""
    if dtype == BOOL:
        return rng.randrange(2)
    if dtype == I64:
        return rng.choice((rng.choice(I64_EDGES), rng.randrange(-9, 9), rng.randrange(-(1 << 63), 1 << 63)))
    moderate = rng.randrange(120, 135) << 23 | rng.getrandbits(23)
    bits = rng.choice((rng.choice(F32_EDGES), moderate, moderate, rng.getrandbits(31)))
    bits = bits if bits & 0x7FFFFFFF <= 0x7F800000 else 0x7FC00000
    return bits if bits == 0x7FC00000 else bits | rng.getrandbits(1) << 31


def tensor(rng: random.Random, dtype: DType, count: int, pool: Sequence[int] = ()) -> Data:
    """A tensor of rank 1 with random elements, of `pool` if given."""
    elements = [rng.choice(pool) if pool else element(rng, dtype) for _ in range(count)]
    return dtype, (count,), pack(dtype, elements)


@dataclass(frozen=True, slots=True)
class Dispute:
    """What a game holds when it comes to PROVE, a proof for it, and the leaf's Python verdict."""

    job: Job
    context: Context
    move: Prove

    def off_chain(self) -> bytes | str:
        """What `protocol.proof` says: the right leaf or bits, or that it refuses."""
        c = self.context
        try:
            if c.target is Target.VALUE and c.position >> c.depth:
                return proof.judge_commit(self.job, c.position, c.body_root, self.move)
            instruction = decode_instruction(self.move.instruction)
            if instruction_digest(self.move.instruction) != c.instruction_leaf:
                return REFUSED
            if c.target is Target.VALUE:
                place = proof.RecordPlace(root=c.record_root, depth=c.record_depth, position=c.record_position)
                return proof.judge_source(self.job, instruction, c.step, place, self.move)
            if c.target is Target.ELEMENT:
                data = proof.judge_element(self.job, instruction, c.step, c.element, c.body_root, self.move)
                return int.from_bytes(data, "little").to_bytes(32, "big")
            leaves = -(-instruction.terms // 4)
            terms = proof.TermsPlace(element=c.element, leaf=c.terms_leaf, leaves=leaves, root=c.accumulator_root)
            return proof.judge_terms(self.job, instruction, terms, c.body_root, self.move)
        except VerificationError:
            return REFUSED


def agree(referee: SolidityReferee, dispute: Dispute) -> bytes | str:
    """Both verdicts, which must be the same."""
    expected = dispute.off_chain()
    found: bytes | str
    try:
        found = referee.judge(dispute.context, dispute.move)
    except RefusedOnChain:
        found = REFUSED
    assert found == expected, dispute
    return found


def open_operands(tensors: Sequence[Data], depth: int) -> tuple[bytes, Prove]:
    """Body root, and a proof (without instruction) that opens all chunks of all tensors; tensor k is value k."""
    body = Tree([identify(*t) for t in tensors], depth)
    opened, chunks = [], []
    for k, (dtype, shape, data) in enumerate(tensors):
        tree = tensor_tree(data)
        siblings = tuple(body.proof(k))
        opened.append(TensorOpening(value=k, dtype=int(dtype), dims=shape, chunk_root=tree.root, siblings=siblings))
        for c in range(tree.count):
            part = data[512 * c : 512 * (c + 1)]
            chunks.append(ChunkOpening(tensor=k, chunk=c, data=part, siblings=tuple(tree.proof(c))))
    return body.root, Prove(instruction=b"", tensors=tuple(opened), chunks=tuple(chunks))


DEPTH = 2
SMALL = replace(JOB, body_count=4, state_count=SLOTS, data_count=SLOTS)


def dispute_of(instruction: Instruction, tensors: Sequence[Data], index: int, leaf: int | None = None) -> Dispute:
    """An honest dispute about an element, or about a leaf of its accumulator tree."""
    encoded = encode_instruction(instruction)
    body_root, move = open_operands(tensors, DEPTH)
    move = replace(move, instruction=encoded)
    context = Context(
        target=Target.ELEMENT,
        depth=DEPTH,
        position=3,
        element=index,
        instruction_leaf=instruction_digest(encoded),
        body_root=body_root,
    )
    if leaf is None:
        return Dispute(SMALL, context, move)
    chain = [encode(a) for a in accumulators_of(instruction, tensors, index)]
    return at_leaf(Dispute(SMALL, context, move), chain, leaf)


def at_leaf(dispute: Dispute, chain: Sequence[bytes], leaf: int) -> Dispute:
    """The dispute at a leaf of the tree over these accumulators."""
    tree = Tree([tagged_hash(Tag.ACCUMULATOR, encoding) for encoding in chain])
    context = replace(dispute.context, target=Target.TERMS, terms_leaf=leaf, accumulator_root=tree.root)
    if leaf == 0:
        return replace(dispute, context=context)
    siblings = tuple(tree.proof(leaf - 1))
    return replace(dispute, context=context, move=replace(dispute.move, previous=chain[leaf - 1], siblings=siblings))


def accumulators_of(instruction: Instruction, tensors: Sequence[Data], index: int) -> list[Any]:
    """The accumulators of one element, from whole tensors."""
    elements = [unpack(dtype, data) for dtype, _, data in tensors]
    return accumulators(instruction, index, lambda k, where: elements[k][where], [t[0] for t in tensors])


ON_CHAIN = [(f, row) for f, rows in MAP_SIGNATURES.items() if f not in TRANSCENDENTALS for row in rows]


def map_of(function: MapFunction, dtype: DType, arity: int, count: int) -> Instruction:
    operands = tuple(Access(k, 0, (1,)) for k in range(arity))
    return Instruction(opcode=Opcode.MAP, function=function, dtype=dtype, shape=(count,), operands=operands)


@pytest.mark.parametrize("function", sorted({f for f, _ in ON_CHAIN}), ids=lambda f: f.name.lower())
def test_every_function_of_map(referee: SolidityReferee, function: MapFunction, cases: Cases) -> None:
    rng = random.Random(f"map/{function}")
    for types, result in (row for f, row in ON_CHAIN if f == function):
        count = 5 * FUZZ
        tensors = [tensor(rng, dtype, count) for dtype in types]
        for index in range(count):
            assert agree(referee, dispute_of(map_of(function, result, len(types), count), tensors, index)) != REFUSED
            cases()


def affine(
    rng: random.Random, value: int, dims: Sequence[int], free: Sequence[bool] | None = None
) -> tuple[Access, int]:
    """A random access over these dims, negative and zero strides included, and the size of tensor that it needs."""
    strides = [rng.randrange(-3, 4) if free is None or free[d] else 0 for d in range(len(dims))]
    reach = [stride * (dim - 1) for stride, dim in zip(strides, dims, strict=True)]
    offset = rng.randrange(3) - sum(r for r in reach if r < 0)
    return Access(value, offset, tuple(strides)), offset + sum(r for r in reach if r > 0) + 1 + rng.randrange(2)


def shape(rng: random.Random, most: int = 4) -> tuple[int, ...]:
    return tuple(rng.randrange(1, most + 1) for _ in range(rng.randrange(4)))


Made = tuple[Instruction, list[Data]]


def random_map(rng: random.Random) -> Made:
    function, (types, result) = rng.choice(ON_CHAIN)
    dims = shape(rng)
    made = [affine(rng, k, dims) for k in range(len(types))]
    tensors = [tensor(rng, dtype, size) for dtype, (_, size) in zip(types, made, strict=True)]
    operands = tuple(access for access, _ in made)
    return Instruction(opcode=Opcode.MAP, function=function, dtype=result, shape=dims, operands=operands), tensors


def random_reduce(rng: random.Random) -> Made:
    function = rng.choice(list(ReduceFunction))
    dtype = rng.choice((F32, F32, I64))
    arity = 2 if function == ReduceFunction.SUM and dtype == F32 and rng.randrange(3) else 1
    dims, reduction = shape(rng, 3), shape(rng)
    made = [affine(rng, k, dims + reduction) for k in range(arity)]
    pool = [element(rng, dtype) for _ in range(3)] if rng.randrange(3) == 0 else ()  # ties of the greatest
    return Instruction(
        opcode=Opcode.REDUCE,
        function=function,
        dtype=I64 if function == ReduceFunction.ARGMAX else dtype,
        shape=dims,
        reduction=reduction,
        operands=tuple(access for access, _ in made),
    ), [tensor(rng, dtype, size, pool) for _, size in made]


def random_gather(rng: random.Random) -> Made:
    dtype, dims = rng.choice(list(DType)), shape(rng)
    (table, size), (index, indices) = affine(rng, 0, dims), affine(rng, 1, dims)
    stride, bound = rng.randrange(-3, 4), rng.randrange(1, 5)
    reach = stride * (bound - 1)
    table = replace(table, offset=table.offset - min(0, reach))
    return Instruction(
        opcode=Opcode.GATHER,
        dtype=dtype,
        shape=dims,
        operands=(table, index),
        params=GatherParams(index_stride=stride, bound=bound),
    ), [
        tensor(rng, dtype, size + abs(reach)),
        tensor(rng, I64, indices, [*range(-1, bound + 1), (1 << 63) - 1, -(1 << 63)]),
    ]


def random_scatter(rng: random.Random) -> Made:
    dims = (rng.randrange(1, 4), *shape(rng, 3))
    matched = [d == 0 or rng.randrange(2) == 0 for d in range(len(dims))]
    box = iter(row_major(tuple(dim for d, dim in enumerate(dims) if matched[d])))
    match = tuple(next(box) if m else 0 for m in matched)
    reduction = shape(rng)
    free = [not m for m in matched] + [True] * len(reduction)
    made = [affine(rng, k, dims + reduction, free) for k in range(2)]
    size = prod(dim for d, dim in enumerate(dims) if matched[d])
    return Instruction(
        opcode=Opcode.SCATTER_SUM,
        dtype=F32,
        shape=dims,
        reduction=reduction,
        operands=tuple(access for access, _ in made),
        params=ScatterParams(match=match),
    ), [tensor(rng, F32, made[0][1]), tensor(rng, I64, made[1][1], range(-1, size + 1))]


def random_window(rng: random.Random) -> Made:
    function, dtype, dims = rng.choice(list(WindowFunction)), rng.choice(list(DType)), shape(rng, 5)
    lo = tuple(rng.randrange(dim) for dim in dims)
    hi = tuple(rng.randrange(low + 1, dim + 1) for low, dim in zip(lo, dims, strict=True))
    step = tuple(rng.choice((1, 1, 2, 3, 1 << 32)) for _ in dims)
    fill = int.from_bytes(pack(dtype, [element(rng, dtype)]), "little") if function == WindowFunction.FILL else 0
    params = WindowParams(lo=lo, hi=hi, step=step, fill=fill)
    made = [affine(rng, 0, params.extents)] + [affine(rng, 1, dims)] * (function == WindowFunction.ELSE)
    return Instruction(
        opcode=Opcode.WINDOW,
        function=function,
        dtype=dtype,
        shape=dims,
        operands=tuple(access for access, _ in made),
        params=params,
    ), [tensor(rng, dtype, size) for _, size in made]


def random_iota(rng: random.Random) -> Made:
    dims = shape(rng, 5)
    params = IotaParams(offset=element(rng, I64), strides=tuple(element(rng, I64) for _ in dims))
    return Instruction(opcode=Opcode.IOTA, dtype=I64, shape=dims, params=params), []


KINDS: dict[str, Callable[[random.Random], Made]] = {
    "map": random_map,
    "reduce": random_reduce,
    "gather": random_gather,
    "scatter_sum": random_scatter,
    "window": random_window,
    "iota": random_iota,
}


def random_dispute(rng: random.Random, kind: str) -> Dispute:
    """An honest dispute about a random element (or leaf) of a random instruction of this kind."""
    instruction, tensors = KINDS[kind](rng)
    index = rng.randrange(instruction.numel)
    leaf = rng.randrange(-(-instruction.terms // 4)) if instruction.terms > 4 else None
    return dispute_of(instruction, tensors, index, leaf)


@pytest.mark.parametrize("kind", KINDS)
def test_random_instructions(referee: SolidityReferee, kind: str, cases: Cases) -> None:
    rng = random.Random(f"honest/{kind}")
    for _ in range(20 * FUZZ):
        assert agree(referee, random_dispute(rng, kind)) != REFUSED
        cases()


def flipped(rng: random.Random, data: bytes) -> bytes:
    """One bit changed; a byte if there was none."""
    if not data:
        return b"\x00"
    k = rng.randrange(len(data))
    return data[:k] + bytes([data[k] ^ 1 << rng.randrange(8)]) + data[k + 1 :]


def changed_list(rng: random.Random, items: tuple[Any, ...], change: Callable[[Any], Any]) -> tuple[Any, ...]:
    """An item changed, dropped, repeated or moved."""
    if not items:
        return items
    k = rng.randrange(len(items))
    return rng.choice(
        (
            (*items[:k], change(items[k]), *items[k + 1 :]),
            (*items[:k], change(items[k]), *items[k + 1 :]),
            items[:k] + items[k + 1 :],
            (*items, items[k]),
            (*items[k:], *items[:k]),
        )
    )


def changed_siblings(rng: random.Random, siblings: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return changed_list(rng, siblings, lambda s: flipped(rng, s)) or (bytes(32),)


def changed_tensor(rng: random.Random, t: TensorOpening) -> TensorOpening:
    dims = rng.choice(((), (0,), (*t.dims, 1), (t.dims[0] + 1,), (1 << 40, 2), (1,) * 8))
    return rng.choice(
        (
            lambda: replace(t, value=rng.choice((t.value ^ 1, 4, (1 << 32) - 1))),
            lambda: replace(t, dtype=rng.choice((0, 1, 2, 3, 255))),
            lambda: replace(t, dims=dims),
            lambda: replace(t, chunk_root=flipped(rng, t.chunk_root)),
            lambda: replace(t, siblings=changed_siblings(rng, t.siblings)),
        )
    )()


def changed_chunk(rng: random.Random, c: ChunkOpening) -> ChunkOpening:
    return rng.choice(
        (
            lambda: replace(c, tensor=rng.choice((c.tensor ^ 1, 7, 255))),
            lambda: replace(c, chunk=rng.choice((c.chunk + 1, (1 << 64) - 1))),
            lambda: replace(c, data=flipped(rng, c.data)),
            lambda: replace(c, data=rng.choice((c.data[:-1], c.data[:1023] + b"\x00", b""))),
            lambda: replace(c, siblings=changed_siblings(rng, c.siblings)),
        )
    )()


def changed_witness(rng: random.Random, move: Prove) -> Prove:
    w = move.witness
    options: list[Callable[[], Any]] = [
        lambda: TensorWitness(tensor_id=bytes([1] * 32), siblings=()),
        lambda: TensorWitness(tensor_id=bytes(32), siblings=(bytes(32),)),
    ]
    if w is not None:
        options += [
            lambda: replace(w, tensor_id=flipped(rng, w.tensor_id)),
            lambda: replace(w, siblings=changed_siblings(rng, w.siblings)),
        ]
    if isinstance(w, StateWitness):
        options += [
            lambda: replace(w, step=w.step ^ 1),
            lambda: replace(w, state_root=flipped(rng, w.state_root)),
            lambda: replace(w, loss_bits=w.loss_bits ^ 1 << rng.randrange(32)),
            lambda: replace(w, log_root=flipped(rng, w.log_root)),
            lambda: replace(w, record_siblings=changed_siblings(rng, w.record_siblings)),
        ]
    return replace(move, witness=rng.choice(options)())


def changed(rng: random.Random, dispute: Dispute) -> Dispute:
    """One thing changed, anywhere in the proof, or the element or leaf that it is asked for."""
    move, c = dispute.move, dispute.context
    some = rng.randrange(1 << 16)
    changes: list[Callable[[], Dispute]] = [
        lambda: replace(dispute, move=replace(move, instruction=flipped(rng, move.instruction))),
        lambda: replace(dispute, move=replace(move, previous=flipped(rng, move.previous))),
        lambda: replace(dispute, move=replace(move, siblings=changed_siblings(rng, move.siblings))),
        lambda: replace(dispute, move=changed_witness(rng, move)),
        lambda: replace(dispute, context=replace(c, element=rng.choice((c.element + 1, some, (1 << 64) - 1)))),
        lambda: replace(dispute, context=replace(c, body_root=flipped(rng, c.body_root))),
    ]
    if c.target is Target.TERMS:
        changes.append(lambda: replace(dispute, context=replace(c, terms_leaf=rng.choice((c.terms_leaf + 1, some)))))
        changes.append(lambda: replace(dispute, context=replace(c, accumulator_root=flipped(rng, c.accumulator_root))))
    if move.tensors:
        tensors: Callable[[], Any] = lambda: changed_list(rng, move.tensors, lambda t: changed_tensor(rng, t))  # noqa: E731
        chunks: Callable[[], Any] = lambda: changed_list(rng, move.chunks, lambda t: changed_chunk(rng, t))  # noqa: E731
        changes += [lambda: replace(dispute, move=replace(move, tensors=tensors()))] * 4
        changes += [lambda: replace(dispute, move=replace(move, chunks=chunks()))] * 4
    return rng.choice(changes)()


def changed_often(rng: random.Random, dispute: Dispute, count: int) -> Iterator[Dispute]:
    """Changes that can be sent at all: the moves' own limits (digests of 32 bytes, u32 ...) hold on both sides."""
    made = 0
    while made < count:
        try:
            other = changed(rng, dispute)
        except EncodingError:
            continue
        made += 1
        yield other


@pytest.mark.parametrize("kind", KINDS)
def test_changed_proofs(referee: SolidityReferee, kind: str, cases: Cases) -> None:
    rng = random.Random(f"changed/{kind}")
    refused = 0
    for _ in range(6 * FUZZ):
        for other in changed_often(rng, random_dispute(rng, kind), 8):
            refused += agree(referee, other) == REFUSED
            cases()
    assert refused > 20 * FUZZ  # most changes are refused; some, as another element, are not


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "iota"])
def test_operands_that_the_program_does_not_have(referee: SolidityReferee, kind: str, cases: Cases) -> None:
    """A defender's value tree may hold anything: other dtypes, sizes, NaN payloads, bools that are none."""
    rng = random.Random(f"foreign/{kind}")
    refused = 0
    for _ in range(20 * FUZZ):
        instruction, tensors = KINDS[kind](rng)
        k = rng.randrange(len(tensors))
        dtype = rng.choice((*DType, tensors[k][0], tensors[k][0]))
        count = rng.choice((1, tensors[k][1][0], tensors[k][1][0], 300))
        tensors[k] = (dtype, (count,), rng.randbytes(count * dtype.size))
        if rng.randrange(2) and dtype == F32:  # NaNs of all kinds
            tensors[k] = (dtype, (count,), (b"\x01\x00\x80\x7f" + rng.randbytes(3) + b"\xff") * (count // 2 + 1))
            tensors[k] = (dtype, (count,), tensors[k][2][: 4 * count])
        index = rng.randrange(instruction.numel)
        dispute = dispute_of(instruction, tensors, index)
        if instruction.terms > 4:
            dispute = at_leaf(dispute, [b""] * -(-instruction.terms // 4), 0)
        refused += agree(referee, dispute) == REFUSED
        cases()
    assert 0 < refused < 20 * FUZZ


def test_forged_accumulators(referee: SolidityReferee, cases: Cases) -> None:
    """The accumulator before may be any that the defender committed: huge sums, flags, NaN, other lengths."""
    rng = random.Random("forged")
    refused = 0
    for _ in range(40 * FUZZ):
        made = random_dispute(rng, rng.choice(("reduce", "scatter_sum")))
        instruction = decode_instruction(made.move.instruction)
        if instruction.terms <= 4:
            continue
        leaves = -(-instruction.terms // 4)
        length = rng.choice((97, 97, 8, 4, 12, 16, len(made.move.previous), len(made.move.previous)))
        forged = rng.choice((rng.randbytes(length), b"\x00" + rng.randbytes(max(0, length - 1)), b"\xff" * length))
        plain = replace(made, move=replace(made.move, previous=b"", siblings=()))
        other = at_leaf(plain, [forged] * leaves, rng.randrange(1, leaves))
        refused += agree(referee, other) == REFUSED
        finish_agrees(referee, made.move.instruction, forged)
        cases()
    assert refused > 0


def finish_agrees(referee: SolidityReferee, encoded: bytes, accumulator: bytes) -> None:
    """`finish` on both sides."""
    instruction = decode_instruction(encoded)
    canonical, leaf, bits = referee.finish(encoded, accumulator)
    try:
        expected_leaf, data = proof.finish(instruction, accumulator, 32)
    except VerificationError:
        assert (canonical, leaf, bits) == (False, bytes(32), 0)
    else:
        assert (canonical, leaf, bits) == (True, expected_leaf, int.from_bytes(data, "little"))


def slotted(rng: random.Random) -> Dispute:
    """An honest dispute about a `source` or a `commit`."""
    kind = rng.choice(("state", "data", "commit", "const", "step"))
    slot, name = rng.randrange(SLOTS), rng.choice(("w", "layer.0/weight", "~" * 255))
    tensor_digest = rng.randbytes(32)
    position, step = rng.randrange(4), rng.randrange(1, 9)
    context = Context(
        target=Target.VALUE,
        depth=DEPTH,
        position=position,
        step=step,
        state_count=SLOTS,
        data_count=SLOTS,
        body_root=rng.randbytes(32),
    )
    if kind in ("const", "step"):
        return _scalar(rng, context, kind)
    if kind == "commit":
        return _commit(context, slot, name, tensor_digest)
    leaf = (state_leaf if kind == "state" else data_leaf)(name, tensor_digest)
    leaves = [rng.randbytes(32) for _ in range(SLOTS)]
    leaves[slot] = leaf
    tree = Tree(leaves)
    function = SourceKind.STATE if kind == "state" else SourceKind.DATA
    params = Slot(slot=slot, name=name)
    encoded = encode_instruction(Instruction(opcode=Opcode.SOURCE, function=function, dtype=F32, params=params))
    context = replace(context, instruction_leaf=instruction_digest(encoded))
    siblings = tuple(tree.proof(slot))
    if kind == "data":
        witness = TensorWitness(tensor_id=tensor_digest, siblings=siblings)
        job = replace(SMALL, data_root=tree.root)
        return Dispute(job, replace(context, data_root=tree.root), Prove(instruction=encoded, witness=witness))
    record = StepRecord(
        step=step - 1, state_root=tree.root, loss_bits=rng.getrandbits(32), log_root=Digest(rng.randbytes(32))
    )
    depth = rng.randrange(4)
    place = rng.randrange(1 << depth)
    records = Tree([record.digest if k == place else rng.randbytes(32) for k in range(1 << depth)])
    state = StateWitness(
        step=record.step,
        state_root=record.state_root,
        loss_bits=record.loss_bits,
        log_root=record.log_root,
        record_siblings=tuple(records.proof(place)),
        tensor_id=tensor_digest,
        siblings=siblings,
    )
    context = replace(context, record_root=records.root, record_depth=depth, record_position=place)
    return Dispute(SMALL, context, Prove(instruction=encoded, witness=state))


def _scalar(rng: random.Random, context: Context, kind: str) -> Dispute:
    dtype = rng.choice(list(DType)) if kind == "const" else I64
    params: Params = None
    if kind == "const":
        params = SourceConst(bits=int.from_bytes(pack(dtype, [element(rng, dtype)]), "little"))
    function = SourceKind.CONST if kind == "const" else SourceKind.STEP
    encoded = encode_instruction(Instruction(opcode=Opcode.SOURCE, function=function, dtype=dtype, params=params))
    return Dispute(SMALL, replace(context, instruction_leaf=instruction_digest(encoded)), Prove(instruction=encoded))


def _commit(context: Context, slot: int, name: str, tensor_digest: bytes) -> Dispute:
    value = context.position
    body = Tree([tensor_digest if k == value else bytes([k] * 32) for k in range(4)])
    params = Slot(slot=slot, name=name)
    encoded = encode_instruction(
        Instruction(opcode=Opcode.COMMIT, dtype=F32, operands=(Access(value, 0, ()),), params=params)
    )
    leaf = (1 << DEPTH) + slot
    program = Tree([instruction_digest(encoded) if k == leaf else bytes([k] * 32) for k in range(2 << DEPTH)])
    witness = TensorWitness(tensor_id=tensor_digest, siblings=tuple(body.proof(value)))
    move = Prove(instruction=encoded, siblings=tuple(program.proof(leaf)), witness=witness)
    job = replace(SMALL, program_root=program.root)
    return Dispute(job, replace(context, position=leaf, body_root=body.root, program_root=program.root), move)


def test_sources_and_commits(referee: SolidityReferee, cases: Cases) -> None:
    rng = random.Random("slotted")
    refused = 0
    for _ in range(20 * FUZZ):
        honest = slotted(rng)
        assert agree(referee, honest) != REFUSED
        for other in changed_often(rng, honest, 5):
            refused += agree(referee, other) == REFUSED
            cases()
    assert refused > 40 * FUZZ


OPERAND_COUNTS = {
    Opcode.SOURCE: (0,),
    Opcode.MAP: (1, 2, 3),
    Opcode.REDUCE: (1, 2),
    Opcode.GATHER: (2,),
    Opcode.SCATTER_SUM: (2,),
    Opcode.WINDOW: (1, 2),
    Opcode.IOTA: (0,),
    Opcode.RANDOM: (2,),
    Opcode.SHUFFLE: (3,),
    Opcode.COMMIT: (1,),
}


def well_formed(encoded: bytes) -> Instruction | None:
    """The instruction, if it decodes and has the form that SPEC 4.1 and 4.3 demand of one on its own."""
    try:
        i = decode_instruction(encoded)
    except EncodingError:
        return None
    named = i.opcode in (Opcode.SOURCE, Opcode.MAP, Opcode.REDUCE, Opcode.WINDOW)
    good = (
        all(dim >= 1 for dim in i.index_space)
        and i.numel <= MAX_NUMEL
        and i.terms <= MAX_TERMS
        and (i.is_reduction or not i.reduction)
        and (named or i.function == 0)
        and len(i.operands) in OPERAND_COUNTS[i.opcode]
    )
    return i if good else None


def test_instruction_bytes(referee: SolidityReferee, cases: Cases) -> None:
    """The contract reads exactly the well-formed encodings, and reads the same in them."""
    rng = random.Random("encodings")
    accepted = 0
    for number in range(200 * FUZZ):
        kind = rng.choice((*KINDS, "slotted"))
        encoded = slotted(rng).move.instruction if kind == "slotted" else encode_instruction(KINDS[kind](rng)[0])
        for _ in range(rng.randrange(3)):
            head = bytearray(encoded.ljust(6, b"\x00"))
            head[rng.randrange(6)] = rng.randrange(12)
            encoded = rng.choice(
                (
                    bytes(head),
                    flipped(rng, encoded),
                    encoded[: rng.randrange(len(encoded))] or b"\x01",
                    encoded + b"\x00",
                )
            )
        if number == 0:
            encoded = bytes(4097)
        expected = well_formed(encoded)
        try:
            found = referee.describe(encoded)
        except RefusedOnChain:
            assert expected is None, encoded.hex()
        else:
            assert expected is not None, encoded.hex()
            size = expected.numel * expected.dtype.size
            leaves = -(-expected.terms // 4) if expected.terms > 4 else 0
            kinds = (int(expected.opcode), int(expected.function), int(expected.dtype))
            digest = instruction_digest(encoded)
            assert found == (digest, *kinds, expected.numel, size, -(-size // 512), leaves)
            root = rng.randbytes(32)
            assert referee.output_id(encoded, root) == tensor_id(expected.dtype, expected.shape, root)
            accepted += 1
        cases()
    assert 40 * FUZZ < accepted < 190 * FUZZ
