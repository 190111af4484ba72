"""A tiny program with every kind of instruction, and its data, for tests of the referee and of the game."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.protocol.oracles import Stream
from tests.protocol.whole_steps import execute, new_state
from tiebreak.protocol.commitments.records import identify, tensor_tree
from tiebreak.protocol.program.isa import (
    Access,
    DType,
    GatherParams,
    Instruction,
    IotaParams,
    MapFunction,
    Opcode,
    Params,
    RandomParams,
    ReduceFunction,
    ScatterParams,
    ShuffleParams,
    Slot,
    SourceConst,
    SourceKind,
    WindowFunction,
    WindowParams,
    row_major,
)
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.reference import pack
from tiebreak.protocol.trees import Tree

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL
ROWS, WIDTH, TOKENS, VOCABULARY = 20, 15, 9, 7
"""The state `w` is ROWS x WIDTH f32: 1200 bytes, two chunks. The data: token ids and a table of rates."""

Shape = tuple[int, ...]


class Body:
    """Collects body instructions; every method returns the new value's number."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []

    def add(
        self,
        opcode: Opcode,
        dtype: DType,
        shape: Shape = (),
        operands: tuple[Access, ...] = (),
        *,
        function: int = 0,
        reduction: Shape = (),
        params: Params = None,
    ) -> int:
        instruction = Instruction(
            opcode=opcode,
            function=function,
            dtype=dtype,
            shape=shape,
            reduction=reduction,
            operands=operands,
            params=params,
        )
        self.instructions.append(instruction)
        return len(self.instructions) - 1

    def map(self, function: MapFunction, dtype: DType, shape: Shape, *values: int) -> int:
        """A map of contiguous operands, each of the result's shape or of rank 0 (broadcast)."""
        operands = []
        for value in values:
            same = self.instructions[value].shape == shape
            operands.append(Access(value, 0, row_major(shape) if same else (0,) * len(shape)))
        return self.add(Opcode.MAP, dtype, shape, tuple(operands), function=function)


def every_kind() -> Program:
    """Rows of a table are drawn by a shuffle, summed, compared, selected, scattered back and subtracted."""
    b = Body()
    source = Opcode.SOURCE
    ids = b.add(source, I64, (TOKENS,), function=SourceKind.DATA, params=Slot(slot=0, name="ids"))
    seed = b.add(source, I64, function=SourceKind.DATA, params=Slot(slot=1, name="seed"))
    mask = b.add(source, BOOL, (WIDTH,), function=SourceKind.STATE, params=Slot(slot=0, name="mask"))
    w = b.add(source, F32, (ROWS, WIDTH), function=SourceKind.STATE, params=Slot(slot=1, name="w"))
    step = b.add(source, I64, function=SourceKind.STEP)
    rate = b.add(source, F32, params=SourceConst(bits=0x3C000000))
    iota = b.add(Opcode.IOTA, I64, (TOKENS,), params=IotaParams(offset=-1, strides=(1,)))
    one, zero = (1,), (0,)
    place = b.add(
        Opcode.SHUFFLE,
        I64,
        (TOKENS,),
        (Access(iota, 0, one), Access(seed, 0, zero), Access(step, 0, zero)),
        params=ShuffleParams(n=TOKENS - 1, stream=1),
    )
    token = b.add(
        Opcode.GATHER,
        I64,
        (TOKENS,),
        (Access(ids, 0, zero), Access(place, 0, one)),
        params=GatherParams(index_stride=1, bound=TOKENS),
    )
    rows = b.add(
        Opcode.GATHER,
        F32,
        (TOKENS, WIDTH),
        (Access(w, 0, (0, 1)), Access(token, 0, (1, 0))),
        params=GatherParams(index_stride=WIDTH, bound=VOCABULARY),
    )
    drawn = b.add(
        Opcode.RANDOM,
        F32,
        (TOKENS, WIDTH),
        (Access(seed, 0, (0, 0)), Access(step, 0, (0, 0))),
        params=RandomParams(stream=2),
    )
    noisy = b.map(MapFunction.ADD, F32, (TOKENS, WIDTH), rows, drawn)
    keep = b.add(
        Opcode.MAP,
        F32,
        (TOKENS, WIDTH),
        (Access(mask, 0, (0, 1)), Access(noisy, 0, (WIDTH, 1)), Access(rate, 0, (0, 0))),
        function=MapFunction.WHERE,
    )
    reduce = Opcode.REDUCE
    gram = b.add(
        reduce, F32, (3, 3), (Access(noisy, 0, (WIDTH, 0, 1)), Access(w, 0, (0, 1, WIDTH))), reduction=(WIDTH,)
    )
    total = b.add(reduce, F32, (), (Access(keep, 0, (WIDTH, 1)),), reduction=(2, 2))
    largest = b.add(reduce, F32, (WIDTH,), (Access(w, 0, (1, WIDTH)),), reduction=(ROWS,), function=ReduceFunction.MAX)
    where = b.add(reduce, I64, (WIDTH,), (Access(w, 0, (1, WIDTH)),), reduction=(ROWS,), function=ReduceFunction.ARGMAX)
    count = b.add(reduce, I64, (), (Access(token, 0, one),), reduction=(TOKENS,))
    most = b.add(reduce, I64, (), (Access(token, 0, one),), reduction=(TOKENS,), function=ReduceFunction.MAX)
    first = b.add(reduce, I64, (), (Access(ids, 0, one),), reduction=(TOKENS,), function=ReduceFunction.ARGMAX)
    change = b.add(
        Opcode.SCATTER_SUM,
        F32,
        (ROWS, WIDTH),
        (Access(keep, 0, (0, 1, WIDTH)), Access(token, 0, (0, 0, 1))),
        reduction=(TOKENS,),
        params=ScatterParams(match=(1, 0)),
    )
    padded = b.add(
        Opcode.WINDOW,
        F32,
        (ROWS, WIDTH),
        (Access(gram, 0, (3, 1)),),
        function=WindowFunction.FILL,
        params=WindowParams(lo=(1, 0), hi=(4, 5), step=(1, 2), fill=0x80000000),
    )
    joined = b.add(
        Opcode.WINDOW,
        F32,
        (ROWS, WIDTH),
        (Access(change, 0, (WIDTH, 1)), Access(padded, 0, (WIDTH, 1))),
        function=WindowFunction.ELSE,
        params=WindowParams(lo=(0, 0), hi=(ROWS, 14), step=(1, 1)),
    )
    scaled = b.map(MapFunction.MUL, F32, (ROWS, WIDTH), joined, rate)
    updated = b.map(MapFunction.SUB, F32, (ROWS, WIDTH), w, scaled)
    squashed = b.map(MapFunction.TANH, F32, (WIDTH,), largest)
    high = b.map(MapFunction.LT, BOOL, (WIDTH,), squashed, rate)
    flipped = b.map(MapFunction.NOT, BOOL, (WIDTH,), high)
    both = b.map(MapFunction.ADD, I64, (), count, b.map(MapFunction.MAX, I64, (), most, first))
    shifted = b.map(MapFunction.ADD, I64, (WIDTH,), where, both)
    floated = b.map(MapFunction.CAST, F32, (WIDTH,), shifted)
    summed = b.add(reduce, F32, (), (Access(floated, 0, one),), reduction=(WIDTH,))
    b.map(MapFunction.ADD, F32, (), summed, total)
    commits = (_commit(0, "mask", b, flipped), _commit(1, "w", b, updated))
    program = Program(tuple(b.instructions), commits)
    program.validate()
    return program


def _commit(slot: int, name: str, body: Body, value: int) -> Instruction:
    made_by = body.instructions[value]
    operands = (Access(value, 0, row_major(made_by.shape)),)
    params = Slot(slot=slot, name=name)
    return Instruction(opcode=Opcode.COMMIT, dtype=made_by.dtype, shape=made_by.shape, operands=operands, params=params)


def initial_state() -> dict[str, bytes]:
    """Finite weights of moderate size and a mask."""
    stream = Stream("programs/state")
    w = [stream.bits(1) << 31 | (118 + stream.below(12)) << 23 | stream.bits(23) for _ in range(ROWS * WIDTH)]
    return {"mask": bytes(stream.bits(1) for _ in range(WIDTH)), "w": pack(F32, w)}


def job_data() -> dict[str, bytes]:
    """Token ids (one outside the vocabulary, so that its gather is out of bounds) and the seed."""
    ids = [3, 0, 6, 3, VOCABULARY, 1, 3, 5, 2]
    return {"ids": pack(I64, ids), "seed": pack(I64, [-12345678901])}


@dataclass(frozen=True)
class Step:
    """One executed step: the data of every value, the tree over their ids (depth D) and the next state."""

    values: tuple[bytes, ...]
    body_tree: Tree
    state: dict[str, bytes]


def body_tree(program: Program, values: tuple[bytes, ...]) -> Tree:
    """The body half of the value tree."""
    ids = [identify(i.dtype, i.shape, data) for i, data in zip(program.body, values, strict=True)]
    return Tree(ids, program.half_depth)


def run_step(program: Program, state: Mapping[str, bytes], data: Mapping[str, bytes], step: int) -> Step:
    """Execute a step with the integer reference."""
    values = tuple(execute(program, state, data, step))
    return Step(values, body_tree(program, values), new_state(program, values))


def chunk_root(data: bytes) -> bytes:
    """Root of the chunk tree of tensor data."""
    return tensor_tree(data).root
