"""A tiny program with every kind of instruction, and its data, for tests of the referee and of the game."""

from collections.abc import Collection
from dataclasses import replace

from tests.protocol.instructions import (
    BOOL,
    F32,
    I64,
    STEP_NUMBER,
    Shape,
    committed,
    const,
    counted,
    drawn,
    gathered,
    mapped,
    reduced,
    scattered,
    shuffled,
    source,
    whole,
    windowed,
)
from tests.protocol.oracles import Stream
from tiebreak.protocol.program.isa import Access, DType, Instruction, MapFunction, ReduceFunction, Slot, SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.reference import pack

ROWS, WIDTH, TOKENS, VOCABULARY = 20, 15, 9, 7
"""The state `w` is ROWS x WIDTH f32: 1200 bytes, two chunks. The data: token ids and a table of rates."""


class Body:
    """Collects body instructions; every method returns the new value's number."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []

    def add(self, instruction: Instruction) -> int:
        self.instructions.append(instruction)
        return len(self.instructions) - 1

    def map(self, function: MapFunction, dtype: DType, shape: Shape, *values: int) -> int:
        """A map of contiguous operands, each of the result's shape or of rank 0 (broadcast)."""
        none = (0,) * len(shape)
        operands = (
            whole(value, shape) if self.instructions[value].shape == shape else Access(value, 0, none)
            for value in values
        )
        return self.add(mapped(function, dtype, shape, *operands))


def every_kind() -> Program:
    """Rows of a table are drawn by a shuffle, summed, compared, selected, scattered back and subtracted."""
    b = Body()
    ids = b.add(source(SourceKind.DATA, "ids", I64, TOKENS))
    seed = b.add(source(SourceKind.DATA, "seed", I64, slot=1))
    mask = b.add(source(SourceKind.STATE, "mask", BOOL, WIDTH))
    w = b.add(source(SourceKind.STATE, "w", F32, ROWS, WIDTH, slot=1))
    step = b.add(STEP_NUMBER)
    rate = b.add(const(0x3C000000))
    iota = b.add(counted((TOKENS,), offset=-1, strides=(1,)))
    one, zero = (1,), (0,)
    order = Access(iota, 0, one), Access(seed, 0, zero), Access(step, 0, zero)
    place = b.add(shuffled((TOKENS,), *order, n=TOKENS - 1, stream=1))
    token = b.add(gathered(I64, (TOKENS,), Access(ids, 0, zero), Access(place, 0, one), stride=1, bound=TOKENS))
    table = Access(w, 0, (0, 1)), Access(token, 0, (1, 0))
    rows = b.add(gathered(F32, (TOKENS, WIDTH), *table, stride=WIDTH, bound=VOCABULARY))
    noise = b.add(drawn((TOKENS, WIDTH), Access(seed, 0, (0, 0)), Access(step, 0, (0, 0)), stream=2))
    noisy = b.map(MapFunction.ADD, F32, (TOKENS, WIDTH), rows, noise)
    chosen = Access(mask, 0, (0, 1)), Access(noisy, 0, (WIDTH, 1)), Access(rate, 0, (0, 0))
    keep = b.add(mapped(MapFunction.WHERE, F32, (TOKENS, WIDTH), *chosen))
    gram = b.add(reduced(F32, (3, 3), (WIDTH,), Access(noisy, 0, (WIDTH, 0, 1)), Access(w, 0, (0, 1, WIDTH))))
    total = b.add(reduced(F32, (), (2, 2), Access(keep, 0, (WIDTH, 1))))
    columns, ids_in_order, tokens = Access(w, 0, (1, WIDTH)), Access(ids, 0, one), Access(token, 0, one)
    largest = b.add(reduced(F32, (WIDTH,), (ROWS,), columns, function=ReduceFunction.MAX))
    where = b.add(reduced(I64, (WIDTH,), (ROWS,), columns, function=ReduceFunction.ARGMAX))
    count = b.add(reduced(I64, (), (TOKENS,), tokens))
    most = b.add(reduced(I64, (), (TOKENS,), tokens, function=ReduceFunction.MAX))
    first = b.add(reduced(I64, (), (TOKENS,), ids_in_order, function=ReduceFunction.ARGMAX))
    kept = Access(keep, 0, (0, 1, WIDTH)), Access(token, 0, (0, 0, 1))
    change = b.add(scattered((ROWS, WIDTH), (TOKENS,), *kept, match=(1, 0)))
    box, shape = {"lo": (1, 0), "hi": (4, 5), "step": (1, 2)}, (ROWS, WIDTH)
    padded = b.add(windowed(F32, shape, Access(gram, 0, (3, 1)), **box, fill=0x80000000))
    both_parts = Access(change, 0, (WIDTH, 1)), Access(padded, 0, (WIDTH, 1))
    joined = b.add(windowed(F32, shape, *both_parts, lo=(0, 0), hi=(ROWS, 14), step=(1, 1)))
    scaled = b.map(MapFunction.MUL, F32, shape, joined, rate)
    updated = b.map(MapFunction.SUB, F32, shape, w, scaled)
    squashed = b.map(MapFunction.TANH, F32, (WIDTH,), largest)
    high = b.map(MapFunction.LT, BOOL, (WIDTH,), squashed, rate)
    flipped = b.map(MapFunction.NOT, BOOL, (WIDTH,), high)
    both = b.map(MapFunction.ADD, I64, (), count, b.map(MapFunction.MAX, I64, (), most, first))
    shifted = b.map(MapFunction.ADD, I64, (WIDTH,), where, both)
    floated = b.map(MapFunction.CAST, F32, (WIDTH,), shifted)
    summed = b.add(reduced(F32, (), (WIDTH,), Access(floated, 0, one)))
    b.map(MapFunction.ADD, F32, (), summed, total)
    commits = committed("mask", BOOL, (WIDTH,), flipped), committed("w", F32, shape, updated, slot=1)
    program = Program(tuple(b.instructions), commits)
    program.validate()
    return program


def reads_late(program: Program, names: Collection[str]) -> Program:
    """The program with the data of these names late."""
    late = {name: name in names for name in program.data_spec()}
    slots = {name: list(late.values())[:k].count(late[name]) for k, name in enumerate(late)}

    def moved(i: Instruction) -> Instruction:
        if i not in program.data_slots or not isinstance(i.params, Slot):
            return i
        name = i.params.name
        kind = SourceKind.LATE if late[name] else SourceKind.DATA
        return replace(i, function=kind, params=Slot(slot=slots[name], name=name))

    return Program(tuple(map(moved, program.body)), program.commits)


def initial_state() -> dict[str, bytes]:
    stream = Stream("programs/state")
    w = [stream.bits(1) << 31 | (118 + stream.below(12)) << 23 | stream.bits(23) for _ in range(ROWS * WIDTH)]
    return {"mask": bytes(stream.bits(1) for _ in range(WIDTH)), "w": pack(F32, w)}


def job_data() -> dict[str, bytes]:
    """Token ids (one outside the vocabulary, so that its gather is out of bounds) and the seed."""
    ids = [3, 0, 6, 3, VOCABULARY, 1, 3, 5, 2]
    return {"ids": pack(I64, ids), "seed": pack(I64, [-12345678901])}
