"""Honest disputes about random instructions of every kind: what a game holds at PROVE, and a proof for it.

Elements are adversarial: subnormals, ties and their neighbours, sums that cancel to nothing or overflow, signed zeros,
the ends of i64. The verdict of Python's referee on any of them, changed or not, is `Dispute.off_chain`.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from math import prod
from typing import Any, Final

from tests.contracts.roundings import any_rounding, unpacked
from tests.protocol.instructions import counted, drawn, gathered, mapped, reduced, scattered, shuffled, windowed
from tests.protocol.runs import make_job
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.records import identify, tensor_tree
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.game import proof
from tiebreak.protocol.game.moves import ChunkOpening, Prove, TensorOpening
from tiebreak.protocol.game.referee import shared_from
from tiebreak.protocol.numbers.float32 import MAX_PRECISION
from tiebreak.protocol.program import isa
from tiebreak.protocol.program.accumulator import encode
from tiebreak.protocol.program.program import decode_alone, encode_instruction, instruction_digest
from tiebreak.protocol.program.reference import accumulators, pack, unpack
from tiebreak.protocol.tags import EMPTY, Tag, tagged_hash
from tiebreak.protocol.trees import Tree

ZERO: Final = bytes(32)


class Target(IntEnum):
    VALUE = 0
    ELEMENT = 1
    TERMS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """`IReferee.Context`, field by field in its order; `rounding` is packed (`tests.contracts.roundings`)."""

    target: Target
    depth: int
    rounding: int = 32
    position: int = 0
    element: int = 0
    terms_leaf: int = 0
    step: int = 1
    state_count: int = 0
    data_count: int = 0
    instruction_leaf: bytes = ZERO
    program_root: bytes = ZERO
    body_root: bytes = ZERO
    data_root: bytes = ZERO
    record_root: bytes = ZERO
    record_depth: int = 0
    record_position: int = 0
    accumulator_root: bytes = ZERO
    step_log: bytes = ZERO

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(int(v) if isinstance(v, int) else v for v in (getattr(self, name) for name in self.__slots__))


F32, I64, BOOL = isa.DType.F32, isa.DType.I64, isa.DType.BOOL
SLOTS: Final = 3
REFUSED: Final = "refused"
DEPTH: Final = 2
SMALL: Final = replace(
    make_job(steps=7, interval=3), program_root=EMPTY, body_count=4, state_count=SLOTS, data_count=SLOTS,
    initial_state_root=EMPTY, data_root=EMPTY,
)  # fmt: skip
"""A job of which a leaf's verdict needs the roots and the counts."""
Data = tuple[isa.DType, tuple[int, ...], bytes]
"""dtype, shape and data of a tensor."""
Made = tuple[isa.Instruction, list[Data]]
"""An instruction and its operands' tensors: operand k reads value k."""

F32_EDGES = (
    0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x33800000, 0x34000000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x5EFFFFFF,
)  # fmt: skip
I64_EDGES = (0, 1, -1, 2, 3, -7, 1 << 24, (1 << 24) + 1, (1 << 53) + 1, (1 << 63) - 1, -(1 << 63), -(1 << 63) + 1)


def element(rng: random.Random, dtype: isa.DType) -> int:
    """An element of a dtype; edges, near neighbours and cancelling values are likely."""
    if dtype == BOOL:
        return rng.randrange(2)
    if dtype == I64:
        return rng.choice((rng.choice(I64_EDGES), rng.randrange(-9, 9), rng.randrange(-(1 << 63), 1 << 63)))
    moderate = rng.randrange(120, 135) << 23 | rng.getrandbits(23)
    bits = rng.choice((rng.choice(F32_EDGES), moderate, moderate, rng.getrandbits(31)))
    bits = bits if bits & 0x7FFFFFFF <= 0x7F800000 else 0x7FC00000
    return bits if bits == 0x7FC00000 else bits | rng.getrandbits(1) << 31


def summands(rng: random.Random, count: int) -> list[int]:
    """Terms of a sum of floats: of one binade or all, cancelling in pairs, ties, subnormal, next to overflow."""
    style = rng.randrange(6)
    sign = rng.getrandbits(count + 1)
    if style == 0:
        return [element(rng, F32) for _ in range(count)]
    if style == 1:  # pairs that cancel, or all but
        half = [rng.randrange(1, 255) << 23 | rng.getrandbits(23) for _ in range(count // 2 + 1)]
        near = [min(max(x + rng.choice((0, 0, 0, 1, -1)), 0), 0x7F7FFFFF) | 1 << 31 for x in half]
        found = [x for pair in zip(half, near, strict=True) for x in pair][:count]
        rng.shuffle(found)
        return found
    if style == 2:  # 1, halves of its last place, and something tiny
        return [rng.choice((0x3F800000, 0x33800000, 0xB3800000, 0x33000000, 1, 1 << 31 | 1)) for _ in range(count)]
    low, high = ((0, 3), (252, 255), (100, 150))[style - 3]
    return [(rng.randrange(low, high) << 23 | rng.getrandbits(23)) | (sign >> k & 1) << 31 for k in range(count)]


def tensor(rng: random.Random, dtype: isa.DType, count: int, pool: Sequence[int] = ()) -> Data:
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
        """What `tiebreak.protocol.game.proof` says: the right leaf or bits, or that it refuses."""
        c = self.context
        try:
            if c.target is Target.VALUE and c.position >> c.depth:
                return proof.judge_commit(self.job, c.position, c.body_root, self.move)
            if instruction_digest(self.move.instruction) != c.instruction_leaf:
                return REFUSED
            instruction = decode_alone(self.move.instruction)
            if c.target is Target.VALUE:
                if instruction.opcode != isa.Opcode.SOURCE:
                    return REFUSED
                place = proof.RecordPlace(root=c.record_root, depth=c.record_depth, position=c.record_position)
                return proof.judge_source(
                    self.job, instruction, c.step, place, self.move, leaf=c.position, step_log=c.step_log
                )
            if c.target is Target.ELEMENT:
                rounding = unpacked(c.rounding)
                if rounding is None:  # only sums are asked so
                    return REFUSED
                data = proof.judge_element(
                    self.job, instruction, c.element, c.body_root, self.move, step=c.step, rounding=rounding
                )
                return int.from_bytes(data, "little").to_bytes(32, "big")
            return proof.judge_terms(
                self.job, instruction, c.element, c.body_root, self.move, leaf=c.terms_leaf, root=c.accumulator_root
            )
        except VerificationError:
            return REFUSED


def open_operands(tensors: Sequence[Data], depth: int) -> tuple[bytes, Prove]:
    """Body root, and a proof (without instruction) that opens all chunks of all tensors; tensor k is value k."""
    trees = [tensor_tree(data) for _, _, data in tensors]
    body = Tree([identify(*t) for t in tensors], depth)
    opened, chunks = [], []
    for k, ((dtype, shape, data), tree) in enumerate(zip(tensors, trees, strict=True)):
        siblings = tuple(body.proof(k))
        opened.append(TensorOpening(value=k, dtype=int(dtype), dims=shape, chunk_root=tree.root, siblings=siblings))
        for c in range(tree.count):
            part = data[512 * c : 512 * (c + 1)]
            proof = tree.proof(c)[: shared_from(0, c) if c else None]
            chunks.append(ChunkOpening(tensor=k, chunk_index=c, data=part, siblings=tuple(proof)))
    return body.root, Prove(instruction=b"", tensors=tuple(opened), chunks=tuple(chunks))


def dispute_of(
    instruction: isa.Instruction,
    tensors: Sequence[Data],
    index: int,
    leaf: int | None = None,
    rounding: int = MAX_PRECISION,
) -> Dispute:
    encoded = encode_instruction(instruction)
    body_root, move = open_operands(tensors, DEPTH)
    move = replace(move, instruction=encoded)
    context = Context(
        target=Target.ELEMENT,
        depth=DEPTH,
        rounding=rounding,
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
    tree = Tree([tagged_hash(Tag.ACCUMULATOR, encoding) for encoding in chain])
    context = replace(dispute.context, target=Target.TERMS, terms_leaf=leaf, accumulator_root=tree.root)
    if leaf == 0:
        return replace(dispute, context=context)
    siblings = tuple(tree.proof(leaf - 1))
    return replace(dispute, context=context, move=replace(dispute.move, previous=chain[leaf - 1], siblings=siblings))


def accumulators_of(instruction: isa.Instruction, tensors: Sequence[Data], index: int) -> list[Any]:
    elements = [unpack(dtype, data) for dtype, _, data in tensors]
    return accumulators(instruction, index, lambda k, where: elements[k][where], [t[0] for t in tensors])


SIGNATURES = [(f, row) for f, rows in isa.MAP_SIGNATURES.items() for row in rows]


def map_of(function: isa.MapFunction, dtype: isa.DType, arity: int, count: int) -> isa.Instruction:
    return mapped(function, dtype, (count,), *(isa.Access(k, 0, (1,)) for k in range(arity)))


def affine(
    rng: random.Random, value: int, dims: Sequence[int], free: Sequence[bool] | None = None
) -> tuple[isa.Access, int]:
    """A random access over these dims, negative and zero strides included, and the size of tensor that it needs."""
    strides = [rng.randrange(-3, 4) if free is None or free[d] else 0 for d in range(len(dims))]
    reach = [stride * (dim - 1) for stride, dim in zip(strides, dims, strict=True)]
    offset = rng.randrange(3) - sum(r for r in reach if r < 0)
    return isa.Access(value, offset, tuple(strides)), offset + sum(r for r in reach if r > 0) + 1 + rng.randrange(2)


def shape(rng: random.Random, most: int = 4) -> tuple[int, ...]:
    return tuple(rng.randrange(1, most + 1) for _ in range(rng.randrange(4)))


def random_map(rng: random.Random) -> Made:
    function, (types, result) = rng.choice(SIGNATURES)
    dims = shape(rng)
    made = [affine(rng, k, dims) for k in range(len(types))]
    tensors = [tensor(rng, dtype, size) for dtype, (_, size) in zip(types, made, strict=True)]
    return mapped(function, result, dims, *(access for access, _ in made)), tensors


def random_reduce(rng: random.Random, function: isa.ReduceFunction, dtype: isa.DType) -> Made:
    """A reduction of this dtype; of floats, sums of values and of products."""
    is_sum = function in (isa.ReduceFunction.SUM, isa.ReduceFunction.SUM_BF16) and dtype == F32
    arity = 2 if is_sum and rng.randrange(3) else 1
    dims, reduction = shape(rng, 3), shape(rng)
    made = [affine(rng, k, dims + reduction) for k in range(arity)]
    pool = [element(rng, dtype) for _ in range(3)] if not is_sum and rng.randrange(3) == 0 else ()  # ties
    tensors = [tensor(rng, dtype, size, pool) for _, size in made]
    if is_sum:
        tensors = [(F32, (size,), pack(F32, summands(rng, size))) for _, size in made]
    result = I64 if function == isa.ReduceFunction.ARGMAX else dtype
    return reduced(result, dims, reduction, *(access for access, _ in made), function=function), tensors


def random_gather(rng: random.Random) -> Made:
    """Rows, columns and backwards; indices in bounds, next to them and far out."""
    dtype, dims = rng.choice(list(isa.DType)), shape(rng)
    (table, size), (index, indices) = affine(rng, 0, dims), affine(rng, 1, dims)
    stride, bound = rng.randrange(-3, 4), rng.randrange(1, 5)
    reach = stride * (bound - 1)
    table = replace(table, offset=table.offset - min(0, reach))
    return gathered(dtype, dims, table, index, stride=stride, bound=bound), [
        tensor(rng, dtype, size + abs(reach)),
        tensor(rng, I64, indices, [*range(-1, bound + 1), (1 << 63) - 1, -(1 << 63)]),
    ]


def random_scatter(rng: random.Random, function: isa.ScatterFunction = isa.ScatterFunction.SUM) -> Made:
    """One or more matched dims, indices in their box and next to it."""
    dims = (rng.randrange(1, 4), *shape(rng, 3))
    matched = [d == 0 or rng.randrange(2) == 0 for d in range(len(dims))]
    box = iter(isa.row_major(tuple(dim for d, dim in enumerate(dims) if matched[d])))
    match = tuple(next(box) if m else 0 for m in matched)
    reduction = shape(rng)
    free = [not m for m in matched] + [True] * len(reduction)
    made = [affine(rng, k, dims + reduction, free) for k in range(2)]
    size = prod(dim for d, dim in enumerate(dims) if matched[d])
    return scattered(dims, reduction, *(access for access, _ in made), match=match, function=function), [
        (F32, (made[0][1],), pack(F32, summands(rng, made[0][1]))),
        tensor(rng, I64, made[1][1], range(-1, size + 1)),
    ]


def random_window(rng: random.Random, function: isa.WindowFunction) -> Made:
    """A box with steps, up to one that has a single place."""
    dtype, dims = rng.choice(list(isa.DType)), shape(rng, 5)
    lo = tuple(rng.randrange(dim) for dim in dims)
    hi = tuple(rng.randrange(low + 1, dim + 1) for low, dim in zip(lo, dims, strict=True))
    step = tuple(rng.choice((1, 1, 2, 3, 1 << 32)) for _ in dims)
    fill = int.from_bytes(pack(dtype, [element(rng, dtype)]), "little") if function == isa.WindowFunction.FILL else 0
    params = isa.WindowParams(lo=lo, hi=hi, step=step, fill=fill)
    made = [affine(rng, 0, params.extents)] + [affine(rng, 1, dims)] * (function == isa.WindowFunction.ELSE)
    operands = (access for access, _ in made)
    found = windowed(dtype, dims, *operands, lo=lo, hi=hi, step=step, fill=fill)
    return found, [tensor(rng, dtype, size) for _, size in made]


def random_iota(rng: random.Random) -> Made:
    dims = shape(rng, 5)
    return counted(dims, offset=element(rng, I64), strides=tuple(element(rng, I64) for _ in dims)), []


def random_random(rng: random.Random) -> Made:
    dims = shape(rng, 9)
    operands = [isa.Access(k, rng.randrange(3), (0,) * len(dims)) for k in range(2)]
    made = drawn(dims, *operands, stream=rng.getrandbits(32))
    return made, [tensor(rng, I64, operand.offset + 1) for operand in operands]


def random_shuffle(rng: random.Random) -> Made:
    """Any n: small, a power of two or next to one, or anything; indices inside and outside."""
    dims = shape(rng, 3)
    power = (1 << rng.randrange(41)) + rng.randrange(-1, 2)
    n = min(max(rng.choice((rng.randrange(1, 20), power, rng.randrange(1 << 40))), 1), 1 << 40)
    (index, size), (epoch, epochs) = affine(rng, 0, dims), affine(rng, 2, dims)
    seed = isa.Access(1, rng.randrange(2), (0,) * len(dims))
    places = [0, n - 1, n // 2, *(rng.randrange(n) for _ in range(3)), rng.choice((-1, n, I64_EDGES[-2]))]
    made = shuffled(dims, index, seed, epoch, n=n, stream=rng.getrandbits(32))
    return made, [tensor(rng, I64, size, places), tensor(rng, I64, seed.offset + 1), tensor(rng, I64, epochs)]


KINDS: dict[str, Callable[[random.Random], Made]] = {
    "map": random_map,
    "reduce_sum_f32": lambda rng: random_reduce(rng, isa.ReduceFunction.SUM, F32),
    "reduce_sum_i64": lambda rng: random_reduce(rng, isa.ReduceFunction.SUM, I64),
    "reduce_sum_bf16": lambda rng: random_reduce(rng, isa.ReduceFunction.SUM_BF16, F32),
    "reduce_max": lambda rng: random_reduce(rng, isa.ReduceFunction.MAX, rng.choice((F32, I64))),
    "reduce_argmax": lambda rng: random_reduce(rng, isa.ReduceFunction.ARGMAX, rng.choice((F32, I64))),
    "gather": random_gather,
    "scatter_sum": random_scatter,
    "scatter_sum_bf16": lambda rng: random_scatter(rng, isa.ScatterFunction.SUM_BF16),
    "window_fill": lambda rng: random_window(rng, isa.WindowFunction.FILL),
    "window_else": lambda rng: random_window(rng, isa.WindowFunction.ELSE),
    "iota": random_iota,
    "random": random_random,
    "shuffle": random_shuffle,
}
"""Kind -> a random instruction of it, with operands. Sources and commits are in `tests.contracts.slotted`."""
SUMS: Final = ("reduce_sum_f32", "scatter_sum")


def random_dispute(rng: random.Random, kind: str) -> Dispute:
    """An honest dispute about a random element (or leaf) of a random instruction of this kind, at any rounding."""
    instruction, tensors = KINDS[kind](rng)
    index = rng.randrange(instruction.numel)
    leaf = rng.randrange(-(-instruction.terms // 4)) if instruction.terms > 4 else None
    return dispute_of(instruction, tensors, index, leaf, any_rounding(rng))
