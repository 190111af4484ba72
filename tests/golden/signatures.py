"""A program with every signature of every instruction, built by hand: each function on each type that it takes.

Its three states, of f32, i64 and bool, are mixed from everything that is computed.
"""

from itertools import cycle

from tests.protocol.instructions import (
    BOOL,
    F32,
    I64,
    STEP_NUMBER,
    committed,
    const,
    counted,
    drawn,
    gathered,
    reduced,
    scattered,
    shuffled,
    source,
    whole,
    windowed,
)
from tests.protocol.oracles import Stream
from tests.protocol.programs import Body
from tiebreak.protocol.program.isa import (
    MAP_SIGNATURES,
    Access,
    DType,
    MapFunction,
    ReduceFunction,
    ScatterFunction,
    SourceKind,
)
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.reference import pack

N = 24
SHAPE = (N,)
_ONE = (1,)


class Mixer(Body):
    """Holds one value of each type, into which it mixes the others."""

    def __init__(self) -> None:
        super().__init__()
        self.held = {
            BOOL: self.add(source(SourceKind.STATE, "bits", BOOL, N)),
            I64: self.add(source(SourceKind.STATE, "counts", I64, N, slot=1)),
            F32: self.add(source(SourceKind.STATE, "numbers", F32, N, slot=2)),
        }
        self.start = dict(self.held)
        self.half, self.bound = self.add(const(0x3F000000)), self.add(const(0x40800000))
        self.least, self.three = self.add(const(0xC0800000)), self.add(const(3, I64))
        self.scale = self.add(const(0x5D800000))

    def mix(self, dtype: DType, value: int) -> None:
        """Mixes a value in. Numbers, bounded by 4, are also counted in units of 2^-60, which keeps their bits."""
        own = self.held[dtype]
        if dtype == BOOL:
            self.held[dtype] = self.map(MapFunction.NE, BOOL, SHAPE, own, value)
        elif dtype == I64:
            self.held[dtype] = self.map(MapFunction.ADD, I64, SHAPE, self.map(MapFunction.MUL, I64, SHAPE, own,
                                        self.three), value)  # fmt: skip
        else:
            known = self.map(MapFunction.EQ, BOOL, SHAPE, value, value)
            value = self.map(MapFunction.WHERE, F32, SHAPE, known, value, own)
            value = self.map(MapFunction.MIN, F32, SHAPE, value, self.bound)
            value = self.map(MapFunction.MAX, F32, SHAPE, value, self.least)
            units = self.map(MapFunction.MUL, F32, SHAPE, value, self.scale)
            self.mix(BOOL, known)
            self.mix(I64, self.map(MapFunction.CAST, I64, SHAPE, units))
            both = self.map(MapFunction.SUB, F32, SHAPE, value, own)
            self.held[dtype] = self.map(MapFunction.MUL, F32, SHAPE, both, self.half)

    def every_map(self) -> None:
        """Each function of `map` on each of its types, of what is held and of what the step starts from."""
        for function, accepted in MAP_SIGNATURES.items():
            for types, result in accepted:
                sides = cycle((self.held, self.start))
                self.mix(result, self.map(function, result, SHAPE, *(next(sides)[dtype] for dtype in types)))


def signatures() -> Program:
    b = Mixer()
    seed, step = b.add(source(SourceKind.DATA, "seed", I64)), b.add(STEP_NUMBER)
    b.every_map()
    zero = (0,)
    place = b.add(counted(SHAPE, offset=0, strides=_ONE))
    order = Access(place, 0, _ONE), Access(seed, 0, zero), Access(step, 0, zero)
    shuffle = b.add(shuffled(SHAPE, *order, n=N, stream=1))
    b.mix(I64, shuffle)
    b.mix(F32, b.add(drawn(SHAPE, Access(seed, 0, zero), Access(step, 0, zero), stream=2)))
    for dtype in DType:
        held, start = (whole(value, SHAPE) for value in (b.held[dtype], b.start[dtype]))
        b.mix(dtype, b.add(gathered(dtype, SHAPE, Access(b.held[dtype], 0, zero), whole(shuffle, SHAPE), stride=1,
                                    bound=N - 1)))  # fmt: skip
        inner = Access(b.held[dtype], 0, _ONE)
        b.mix(dtype, b.add(windowed(dtype, SHAPE, inner, lo=(2,), hi=(N - 1,), step=(2,), fill=1)))
        b.mix(dtype, b.add(windowed(dtype, SHAPE, held, start, lo=(1,), hi=(N - 2,), step=(1,))))
    rows, columns = Access(b.held[F32], 0, (0, 1)), Access(b.start[F32], N - 1, (0, -1))
    for function in (ReduceFunction.SUM, ReduceFunction.SUM_BF16):
        b.mix(F32, b.add(reduced(F32, SHAPE, SHAPE, Access(b.held[F32], 0, (0, 1)), function=function)))
        b.mix(F32, b.add(reduced(F32, SHAPE, SHAPE, rows, columns, function=function)))
    b.mix(I64, b.add(reduced(I64, SHAPE, SHAPE, Access(b.held[I64], 0, (0, 1)))))
    for dtype in (F32, I64):
        b.mix(dtype, b.add(reduced(dtype, SHAPE, (4,), Access(b.held[dtype], 0, (0, 5)), function=ReduceFunction.MAX)))
        b.mix(I64, b.add(reduced(I64, SHAPE, SHAPE, Access(b.held[dtype], 0, (0, 1)), function=ReduceFunction.ARGMAX)))
    eighth = b.map(MapFunction.MOD, I64, SHAPE, b.held[I64], b.add(const(8, I64)))
    for scatter in ScatterFunction:
        terms = Access(b.held[F32], 0, (0, 1)), Access(eighth, 0, (0, 1))
        b.mix(F32, b.add(scattered(SHAPE, SHAPE, *terms, match=_ONE, function=scatter)))
    last = {dtype: b.held[dtype] for dtype in DType}
    b.add(reduced(F32, (), SHAPE, whole(last[F32], SHAPE)))
    states = (("bits", BOOL), ("counts", I64), ("numbers", F32))
    commits = tuple(committed(name, dtype, SHAPE, last[dtype], slot=slot) for slot, (name, dtype) in enumerate(states))
    program = Program(tuple(b.instructions), commits)
    program.validate()
    return program


def signatures_state() -> dict[str, bytes]:
    stream = Stream("corpus/signatures")
    numbers = [stream.bits(1) << 31 | (118 + stream.below(12)) << 23 | stream.bits(23) for _ in range(N)]
    return {
        "bits": bytes(stream.bits(1) for _ in range(N)),
        "counts": pack(I64, [stream.bits(20) - (1 << 19) for _ in range(N)]),
        "numbers": pack(F32, numbers),
    }


def signatures_data() -> dict[str, bytes]:
    return {"seed": pack(I64, [987654321])}
