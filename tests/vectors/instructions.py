"""Test vectors of whole instructions: each with small operands (value k is operand k's data) and all of its result."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from tests.protocol import instructions
from tests.vectors.inputs import I64_EDGES, Stream
from tiebreak.protocol.numbers.float32 import INF, NAN_BITS, ONE, SIGN
from tiebreak.protocol.program.accumulator import encode
from tiebreak.protocol.program.isa import Access, DType, Instruction, MapFunction, ReduceFunction, ScatterFunction
from tiebreak.protocol.program.program import encode_instruction
from tiebreak.protocol.program.reference import accumulators, element, pack

F32: Final = DType.F32
I64: Final = DType.I64
BOOL: Final = DType.BOOL
STEP: Final = 3
"""The step in which every case is evaluated (it matters to `source` step alone)."""

Operand = tuple[DType, Sequence[int]]


class Case(NamedTuple):
    """One instruction with its operands' elements."""

    name: str
    instruction: Instruction
    operands: tuple[Operand, ...]


def _cancelling(s: Stream, count: int) -> list[int]:
    """Pairs that cancel but for their last bits, spread over many binades, and a few small numbers that remain."""
    found: list[int] = []
    while len(found) < count:
        x = s.f32(90, 160)
        found += [x, (x ^ SIGN) + s.below(3) - 1, s.f32(60, 90)]
    return found[:count]


def _ties(s: Stream, count: int) -> list[int]:
    """1, then halves of its ulp with signs, then one tiny number: the sum is a tie or next to one."""
    tail = [s.bits(1) << 31 | 0x33800000 for _ in range(count - 2)]
    return [ONE | s.bits(23), *tail, s.bits(1) << 31 | s.below(2)]


def _subnormal(s: Stream, count: int) -> list[int]:
    return [s.bits(1) << 31 | s.bits(24) for _ in range(count)]


def _large(s: Stream, count: int) -> list[int]:
    return [s.f32(250, 255) for _ in range(count)]


def _nonfinite(s: Stream, count: int) -> list[int]:
    found = [s.f32(120, 130) for _ in range(count)]
    found[s.below(count)] = (INF, INF | SIGN, NAN_BITS)[s.below(3)]
    return found


def _zeros(s: Stream, count: int) -> list[int]:
    return [s.bits(1) << 31 for _ in range(count)]


_ROWS: Final = (_cancelling, _ties, _subnormal, _large, _nonfinite, _zeros)


def _reduce(function: ReduceFunction, dtype: DType, rows: int, terms: int, operands: int) -> Instruction:
    accesses = tuple(Access(k, 0, (terms, 1)) for k in range(operands))
    return instructions.reduced(dtype, (rows,), (terms,), *accesses, function=function)


def _sums() -> Iterator[Case]:
    for terms in (1, 3, 4, 5, 16, 33):
        s = Stream(f"sums of {terms}")
        data = [x for make in _ROWS for x in make(s, max(terms, 2))[-terms:]]
        other = [x for make in _ROWS for x in make(s, max(terms, 2))[-terms:]]
        ones = [ONE | s.bits(1) << 31 for _ in data]
        rows = len(_ROWS)
        yield Case(f"sum of {terms}", _reduce(ReduceFunction.SUM, F32, rows, terms, 1), ((F32, data),))
        two = _reduce(ReduceFunction.SUM, F32, rows, terms, 2)
        yield Case(f"sum of {terms} products", two, ((F32, data), (F32, other)))
        yield Case(f"sum of {terms} signed terms", two, ((F32, data), (F32, ones)))
    s = Stream("long sum")
    long = _cancelling(s, 600)
    yield Case("sum of 600 products", _reduce(ReduceFunction.SUM, F32, 1, 600, 2), ((F32, long), (F32, long[::-1])))
    for operands in (1, 2):
        name = f"sum of 33 {('terms', 'products')[operands - 1]} to bf16"
        data = [x for make in _ROWS for x in make(s, 33)]
        both = ((F32, data), (F32, [ONE | s.bits(1) << 31 for _ in data]))[:operands]
        yield Case(name, _reduce(ReduceFunction.SUM_BF16, F32, len(_ROWS), 33, operands), both)
    middle = [ONE, 0x3B800000, 1, ONE, 0x3B800000, 0, ONE, 0x3B800000, SIGN | 1, 0x3F810000, 0x3B800000, 0]
    yield Case("ties of bf16", _reduce(ReduceFunction.SUM_BF16, F32, 4, 3, 1), ((F32, middle),))
    integers = [s.i64() for _ in range(18)] + list(I64_EDGES)
    yield Case("i64 sum", _reduce(ReduceFunction.SUM, I64, 4, 9, 1), ((I64, integers),))


def _greatest() -> Iterator[Case]:
    few = (0, SIGN, 1, SIGN | 1, ONE, ONE | SIGN, INF, INF | SIGN, 0x7F7FFFFF)
    for terms in (1, 4, 7):
        s = Stream(f"greatest of {terms}")
        rows = [[few[s.below(len(few))] for _ in range(terms)] for _ in range(5)]
        rows += [_zeros(s, terms), [INF | SIGN] * terms, _nonfinite(s, terms), [s.f32(1, 255) for _ in range(terms)]]
        with_nans = [NAN_BITS if s.bits(2) == 0 else few[s.below(len(few))] for _ in range(terms)]
        data = [x for row in [*rows, with_nans] for x in row]
        integers = [I64_EDGES[s.below(len(I64_EDGES))] for _ in range(5 * terms)] + [-(1 << 63)] * terms
        for function, dtype in ((ReduceFunction.MAX, F32), (ReduceFunction.ARGMAX, I64)):
            name = function.name.lower()
            yield Case(f"{name} of {terms} f32", _reduce(function, dtype, 10, terms, 1), ((F32, data),))
            yield Case(f"{name} of {terms} i64", _reduce(function, I64, 6, terms, 1), ((I64, integers),))


def _contractions() -> Iterator[Case]:
    s = Stream("contractions")
    a, b = [s.f32(117, 132) for _ in range(15)], [s.f32(117, 132) for _ in range(20)]
    matmul = instructions.reduced(F32, (3, 4), (5,), Access(0, 0, (5, 0, 1)), Access(1, 0, (0, 1, 4)))
    yield Case("matmul", matmul, ((F32, a), (F32, b)))
    image, weight = [s.f32(120, 130) for _ in range(72)], [s.f32(120, 130) for _ in range(36)]
    convolution = instructions.reduced(
        F32, (2, 2, 2), (2, 3, 3), Access(0, 0, (0, 12, 2, 36, 6, 1)), Access(1, 0, (18, 0, 0, 9, 3, 1))
    )
    yield Case("convolution with stride 2", convolution, ((F32, image), (F32, weight)))
    pooled = instructions.reduced(I64, (3, 3), (2, 2), Access(0, 71, (-12, -2, -6, -1)), function=ReduceFunction.ARGMAX)
    yield Case("pooling backwards through memory", pooled, ((F32, image),))


def _gathers() -> Iterator[Case]:
    s = Stream("gathers")
    index = [2, 0, -1, 4, (1 << 63) - 1, -(1 << 63), 3, 5]
    table = [s.f32(1, 255) for _ in range(14)] + [NAN_BITS]
    tables: dict[DType, list[int]] = {F32: table, I64: [s.i64() for _ in range(15)], BOOL: [1] * 8 + [0, 1] * 3 + [1]}
    for dtype, elements in tables.items():
        rows = instructions.gathered(dtype, (8, 3), Access(0, 0, (0, 1)), Access(1, 0, (1, 0)), stride=3, bound=5)
        yield Case(f"gather rows of {dtype.name.lower()}", rows, ((dtype, elements), (I64, index)))
    along = instructions.gathered(F32, (3,), Access(0, 4, (5,)), Access(1, 7, (-1,)), stride=-1, bound=5)
    yield Case("gather backwards", along, ((F32, table), (I64, index)))


def _scatters() -> Iterator[Case]:
    s = Stream("scatters")
    source = _cancelling(s, 27)
    index = [1, 0, 1, 3, 1, -1, 4, 1, 0]
    embedding = instructions.scattered((4, 3), (9,), Access(0, 0, (0, 1, 3)), Access(1, 0, (0, 0, 1)), match=(1, 0))
    yield Case("scatter_sum to rows", embedding, ((F32, source), (I64, index)))
    to_bf16 = replace(embedding, function=ScatterFunction.SUM_BF16)
    yield Case("scatter_sum to rows of bf16", to_bf16, ((F32, source), (I64, index)))
    source[4] = INF
    flat = [0, 5, 5, 2, 2, 2, 4, 1, 5, 0, 3, 3, 6, -7, 4, 2, 2, 0]
    plane = instructions.scattered((2, 3), (6, 3), Access(0, 0, (0, 0, 3, 1)), Access(1, 0, (0, 0, 3, 1)), match=(3, 1))
    yield Case("scatter_sum to a plane", plane, ((F32, source), (I64, flat)))


def _windows() -> Iterator[Case]:
    s = Stream("windows")
    inside = [s.f32(1, 255) for _ in range(5)] + [NAN_BITS]
    for fill in (0, SIGN, INF | SIGN, NAN_BITS):
        pad = instructions.windowed(F32, (4, 6), Access(0, 0, (3, 1)), lo=(1, 0), hi=(3, 6), step=(1, 2), fill=fill)
        yield Case(f"window with fill {fill:08x}", pad, ((F32, inside),))
    integers = instructions.windowed(I64, (5,), Access(0, 1, (-1,)), lo=(1,), hi=(4,), step=(2,), fill=(1 << 64) - 5)
    yield Case("window of i64", integers, ((I64, [11, -12]),))
    join = instructions.windowed(
        BOOL, (3, 2), Access(0, 0, (0, 1)), Access(1, 0, (2, 1)), lo=(1, 0), hi=(2, 2), step=(1, 1)
    )
    yield Case("window else of bool", join, ((BOOL, [1, 1]), (BOOL, [0, 1, 0, 0, 1, 0])))
    scalar = instructions.windowed(F32, (), Access(0, 2, ()), lo=(), hi=(), step=(), fill=0)
    yield Case("window of rank 0", scalar, ((F32, inside),))


def _generators() -> Iterator[Case]:
    iota = instructions.counted((3, 4), offset=(1 << 63) - 6, strides=(4, -3))
    yield Case("iota that wraps", iota, ())
    for seed, step in ((0, 0), (-1, (1 << 32) + 5), (0x0123456789ABCDEF, 77)):
        scalars = (Access(0, 0, (0,)), Access(1, 0, (0,)))
        yield Case(
            f"random with seed {seed}", instructions.drawn((11,), *scalars, stream=9), ((I64, [seed]), (I64, [step]))
        )
        for n in (1, 2, 10, 17):
            order = instructions.shuffled(
                (19,), Access(0, 0, (1,)), Access(1, 0, (0,)), Access(2, 0, (0,)), n=n, stream=8
            )
            index = [*range(-1, 17), 1 << 40]
            yield Case(f"shuffle {n} with seed {seed}", order, ((I64, index), (I64, [seed]), (I64, [step])))


def _maps() -> Iterator[Case]:
    s = Stream("maps")
    x, y = [s.f32(110, 140) for _ in range(12)], [s.f32(110, 140) for _ in range(4)]
    reverse = instructions.mapped(MapFunction.DIV, F32, (3, 4), Access(0, 11, (-1, -3)), Access(1, 0, (0, 1)))
    yield Case("map through strides", reverse, ((F32, x), (F32, y)))
    flags = [s.bits(1) for _ in range(12)]
    operands = (Access(0, 0, (4, 1)), Access(1, 0, (4, 1)), Access(2, 0, (0, 1)))
    where = instructions.mapped(MapFunction.WHERE, F32, (3, 4), *operands)
    yield Case("where", where, ((BOOL, flags), (F32, x), (F32, y)))
    tanh = instructions.mapped(MapFunction.TANH, F32, (12,), Access(0, 0, (1,)))
    yield Case("tanh", tanh, ((F32, x),))
    scaled = instructions.mapped(MapFunction.FLOORDIV, I64, (), Access(0, 0, ()), Access(1, 1, ()))
    yield Case("floordiv of rank 0", scaled, ((I64, [-(1 << 63)]), (I64, [3, -1])))


def _sources() -> Iterator[Case]:
    for dtype, bits in ((F32, ONE), (F32, NAN_BITS), (I64, (1 << 64) - 9), (BOOL, 1)):
        yield Case(f"const {dtype.name.lower()} {bits:x}", instructions.const(bits, dtype), ())
    yield Case("step number", instructions.STEP_NUMBER, ())


def all_cases() -> Iterator[Case]:
    """Every case, in file order."""
    for family in (
        _maps, _sums, _greatest, _contractions, _gathers, _scatters, _windows, _generators, _sources,
    ):  # fmt: skip
        yield from family()


def evaluate(case: Case) -> dict[str, Any]:
    """A case as JSON: encodings and data in hex; for reductions, the accumulators of the last element too."""
    i = case.instruction
    types = tuple(dtype for dtype, _ in case.operands)

    def read(operand: int, where: int) -> int:
        if where < 0:
            raise IndexError(where)
        return case.operands[operand][1][where]

    result = pack(i.dtype, [element(i, k, read, types, step=STEP) for k in range(i.numel)])
    leaves = accumulators(i, i.numel - 1, read, types) if i.is_reduction else []
    return {
        "name": case.name,
        "instruction": hex_of(encode_instruction(i)),
        "operandTypes": hex_of(bytes(types)),
        "operands": [hex_of(pack(dtype, elements)) for dtype, elements in case.operands],
        "result": hex_of(result),
        "accumulators": [hex_of(encode(leaf)) for leaf in leaves],
    }


def hex_of(data: bytes) -> str:
    """0x and two digits a byte."""
    return "0x" + data.hex()
