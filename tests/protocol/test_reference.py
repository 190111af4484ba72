"""The integer reference against plain loops over coordinates, with rationals and Python integers as oracles.

Then Philox against Random123's known answers, and the shuffle as a permutation.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol import instructions
from tests.protocol.oracles import INF, NAN, SIGN, Stream, nearest, value
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.numbers.philox import philox4x32, random_bits, shuffle
from tiebreak.protocol.program.accumulator import Accumulator, Kind, finish
from tiebreak.protocol.program.isa import (
    MAP_SIGNATURES,
    Access,
    DType,
    Instruction,
    MapFunction,
    Opcode,
    ReduceFunction,
    Slot,
    SourceKind,
)
from tiebreak.protocol.program.reference import (
    Reader,
    accumulate_leaf,
    accumulators,
    element,
    from_raw,
    needed_elements,
    pack,
    scalar,
    to_raw,
    unpack,
)
from tiebreak.protocol.program.rounding import Rounding

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL
ONE = 0x3F800000
i64s = st.one_of(st.sampled_from([-(2**63), 2**63 - 1, 0, 1, -1, 2, -2]), st.integers(-(2**63), 2**63 - 1))


def reader(*operands: Sequence[int]) -> Reader:
    def read(operand: int, where: int) -> int:
        assert where >= 0
        return operands[operand][where]

    return read


def floats(stream: Stream, count: int) -> list[int]:
    """Finite numbers of moderate exponents, so that sums cancel and round."""
    return [stream.bits(1) << 31 | (115 + stream.below(24)) << 23 | stream.bits(23) for _ in range(count)]


def wrap(x: int) -> int:
    return x % 2**64 - (2**64 if x % 2**64 >= 2**63 else 0)


@given(i64s, i64s)
@settings(max_examples=200)
def test_i64_map_functions_match_python_integers(x: int, y: int) -> None:
    def run(function: MapFunction, *values: int) -> int:
        types = (I64,) * len(values)
        result = next(out for operands, out in MAP_SIGNATURES[function] if operands == types)
        return scalar(function, types, result, values)

    assert run(MapFunction.ADD, x, y) == wrap(x + y)
    assert run(MapFunction.SUB, x, y) == wrap(x - y)
    assert run(MapFunction.MUL, x, y) == wrap(x * y)
    assert run(MapFunction.NEG, x) == wrap(-x)
    assert run(MapFunction.ABS, x) == wrap(abs(x))
    assert run(MapFunction.MAX, x, y) == max(x, y)
    assert run(MapFunction.MIN, x, y) == min(x, y)
    compares = [run(f, x, y) for f in (MapFunction.LT, MapFunction.LE, MapFunction.EQ, MapFunction.NE)]
    assert compares == [x < y, x <= y, x == y, x != y]
    quotient, rest = run(MapFunction.FLOORDIV, x, y), run(MapFunction.MOD, x, y)
    if y == 0:
        assert quotient == rest == 0
    else:
        assert wrap(quotient * y + rest) == x
        assert 0 <= rest < y if y > 0 else y < rest <= 0


def test_bool_map_functions_match_truth_tables() -> None:
    table = {(x, y): [x & y, x | y, int(x == y), int(x != y)] for x in (0, 1) for y in (0, 1)}
    functions = (MapFunction.AND, MapFunction.OR, MapFunction.EQ, MapFunction.NE)
    for (x, y), expected in table.items():
        assert [scalar(f, (BOOL, BOOL), BOOL, (x, y)) for f in functions] == expected
    assert [scalar(MapFunction.NOT, (BOOL,), BOOL, (x,)) for x in (0, 1)] == [1, 0]


def test_cast_copy_and_where_give_the_expected_values() -> None:
    cast, where = MapFunction.CAST, MapFunction.WHERE
    assert scalar(cast, (F32,), I64, (0xC0200000,)) == -2  # -2.5
    assert scalar(cast, (I64,), F32, (2**24 + 1,)) == 0x4B800000
    assert scalar(cast, (BOOL,), F32, (1,)) == ONE
    assert scalar(cast, (BOOL,), I64, (1,)) == 1
    assert [scalar(cast, (I64,), BOOL, (x,)) for x in (0, -5)] == [0, 1]
    assert [scalar(cast, (F32,), BOOL, (x,)) for x in (SIGN, NAN)] == [0, 1]
    assert scalar(MapFunction.COPY, (F32,), F32, (0xFFFFFFFF,)) == NAN
    assert scalar(MapFunction.COPY, (F32,), F32, (SIGN,)) == SIGN
    assert scalar(where, (BOOL, F32, F32), F32, (1, 0x7F800001, 5)) == NAN
    assert scalar(where, (BOOL, I64, I64), I64, (0, 3, -4)) == -4


def test_every_map_signature_is_implemented(cases: Callable[[], None]) -> None:
    """No pair of function and dtypes in the registry is missing, and results are elements of the result's dtype."""
    sample = {F32: [SIGN, 0xBFC00000, NAN, INF, 3], I64: [-(2**63), 2**63 - 1, 0, -1, 7], BOOL: [0, 1]}
    for function, signatures in MAP_SIGNATURES.items():
        for types, result in signatures:
            for values in product(*(sample[t] for t in types)):
                found = scalar(function, types, result, values)
                assert type(found) is int
                assert from_raw(result, to_raw(result, found)) == found
                assert to_raw(result, found) < 2 ** (8 * result.size)
                assert result != BOOL or found in (0, 1)
                cases()


def test_map_reads_through_access_maps() -> None:
    """x transposed and reversed, minus a broadcast row: strides that are permuted, negative and zero."""
    x, row = list(range(100, 112)), [7, 8, 9, 10]
    operands = (Access(0, 11, (-1, -3)), Access(1, 0, (0, 1)))
    i = instructions.mapped(MapFunction.SUB, I64, (3, 4), *operands)
    found = [element(i, k, reader(x, row), (I64, I64)) for k in range(12)]
    assert found == [x[11 - a - 3 * b] - row[b] for a in range(3) for b in range(4)]


def test_convolution_is_a_contraction_over_an_overlapping_view(cases: Callable[[], None]) -> None:
    stream = Stream("reference/conv")
    channels, side, filters, width = 2, 5, 3, 3
    image, weight = floats(stream, channels * side * side), floats(stream, filters * channels * width * width)
    out = (side - width) // 2 + 1
    operands = (
        Access(0, 0, (0, 2 * side, 2, side * side, side, 1)),
        Access(1, 0, (channels * width**2, 0, 0, width**2, width, 1)),
    )
    i = instructions.reduced(F32, (filters, out, out), (channels, width, width), *operands)
    for e, (f, y, x) in enumerate(product(range(filters), range(out), range(out))):
        exact = Fraction(0)
        for c, dy, dx in product(range(channels), range(width), range(width)):
            pixel = image[c * side * side + (2 * y + dy) * side + 2 * x + dx]
            exact += value(pixel) * value(weight[((f * channels + c) * width + dy) * width + dx])
        for precision in (24, 32):
            rounding = Rounding(precision=precision)
            assert element(i, e, reader(image, weight), (F32, F32), rounding=rounding) == nearest(exact, precision)
            cases()


def test_i64_row_reductions_match_python() -> None:
    rows = [[3, -5, 9, 9, 1, 0], [-1, -1, -(2**63), -4, -5, -6]]
    flat = [x for row in rows for x in row]
    for function, expected in (
        (ReduceFunction.SUM, [wrap(sum(row)) for row in rows]),
        (ReduceFunction.MAX, [9, -1]),
        (ReduceFunction.ARGMAX, [2, 0]),
    ):
        i = instructions.reduced(I64, (2,), (2, 3), Access(0, 0, (6, 3, 1)), function=function)
        assert [element(i, k, reader(flat), (I64,)) for k in range(2)] == expected


def test_accumulators_are_prefixes_and_leaves_chain() -> None:
    stream = Stream("reference/leaves")
    x, y = floats(stream, 10), floats(stream, 10)
    i = instructions.reduced(F32, (), (5, 2), Access(0, 0, (2, 1)), Access(1, 0, (2, 1)))
    read = reader(x, y)
    found = accumulators(i, 0, read, (F32, F32))
    assert len(found) == 3
    for leaf, end in enumerate((4, 8, 10)):
        exact = sum((value(a) * value(b) for a, b in zip(x[:end], y[:end], strict=True)), Fraction(0))
        assert Fraction(found[leaf].value) / 2**298 == exact
        previous = found[leaf - 1] if leaf else None
        assert accumulate_leaf(i, 0, leaf, previous, read, (F32, F32)) == found[leaf]
    assert finish(found[-1]) == element(i, 0, read, (F32, F32))
    for leaf, previous in ((3, found[2]), (-1, None), (1, None), (0, found[0])):
        with pytest.raises(ValueError, match="expected a"):
            accumulate_leaf(i, 0, leaf, previous, read, (F32, F32))
    with pytest.raises(EncodingError, match="expected an accumulator of kind f32 sum"):
        accumulate_leaf(i, 0, 1, Accumulator(kind=Kind.I64_SUM, value=0), read, (F32, F32))


def test_gather_out_of_bounds_gives_nan_or_zero() -> None:
    table = [10, 11, 12, 20, 21, 22, 30, 31, 32]
    index = [2, 0, -1, 3, 2**63 - 1, -(2**63)]
    for dtype, outside in ((F32, NAN), (I64, 0)):
        i = instructions.gathered(dtype, (6, 3), Access(0, 0, (0, 1)), Access(1, 0, (1, 0)), stride=3, bound=3)
        found = [element(i, k, reader(table, index), (dtype, I64)) for k in range(18)]
        assert found == [30, 31, 32, 10, 11, 12] + [outside] * 12
    i = instructions.gathered(BOOL, (2,), Access(0, 1, (0,)), Access(1, 0, (1,)), stride=-1, bound=2)
    assert [element(i, k, reader([0, 1], [0, 5]), (BOOL, I64)) for k in range(2)] == [1, 0]


def test_scatter_sum_is_the_gradient_of_an_embedding() -> None:
    stream = Stream("reference/scatter")
    rows, width, tokens = 4, 3, 9
    gradient = floats(stream, tokens * width)
    index = [stream.below(rows + 2) - 1 for _ in range(tokens)]  # some point nowhere
    i = instructions.scattered(
        (rows, width), (tokens,), Access(0, 0, (0, 1, width)), Access(1, 0, (0, 0, 1)), match=(1, 0)
    )
    for r, c in product(range(rows), range(width)):
        exact = sum((value(gradient[t * width + c]) for t in range(tokens) if index[t] == r), Fraction(0))
        assert element(i, r * width + c, reader(gradient, index), (F32, I64)) == nearest(exact)
    needed = needed_elements(i, 4, 1, reader(gradient, index), (F32, I64))
    assert {e for operand, e in needed if operand == 1} == {4, 5, 6, 7}
    assert {e for operand, e in needed if operand == 0} == {t * width + 1 for t in range(4, 8) if index[t] == 1}


def test_scatter_sum_ignores_nonfinite_sources_elsewhere() -> None:
    i = instructions.scattered((2,), (2,), Access(0, 0, (0, 1)), Access(1, 0, (0, 1)), match=(1,))
    assert [element(i, k, reader([INF, ONE], [0, 1]), (F32, I64)) for k in range(2)] == [NAN, ONE]


def test_window_pads_dilates_and_concatenates() -> None:
    x = [1, 2, 3, 4, 5, 6]
    pad = instructions.windowed(I64, (4, 6), Access(0, 0, (3, 1)), lo=(1, 0), hi=(3, 6), step=(1, 2), fill=2**64 - 9)
    found = [element(pad, k, reader(x), (I64,)) for k in range(24)]
    outside = [-9] * 6
    assert found == [*outside, 1, -9, 2, -9, 3, -9, 4, -9, 5, -9, 6, -9, *outside]
    cat = instructions.windowed(I64, (5,), Access(0, 0, (1,)), Access(1, 0, (1,)), lo=(1,), hi=(3,), step=(1,))
    assert [element(cat, k, reader([70, 71], x), (I64, I64)) for k in range(5)] == [1, 70, 71, 4, 5]


def test_gather_and_window_canonicalize_nans() -> None:
    payload = [0xFFC00001]
    gather = instructions.gathered(F32, (), Access(0, 0, ()), Access(1, 0, ()), stride=1, bound=1)
    assert element(gather, 0, reader(payload, [0]), (F32, I64)) == NAN
    window = instructions.windowed(F32, (2,), Access(0, 0, (1,)), Access(1, 0, (0,)), lo=(0,), hi=(1,), step=(1,))
    assert [element(window, k, reader(payload, payload), (F32, F32)) for k in range(2)] == [NAN, NAN]


def test_iota_random_shuffle_and_scalar_sources_match_their_definitions() -> None:
    iota = instructions.counted((2, 3), offset=2**63 - 2, strides=(10, 1))
    assert [element(iota, k, reader(), ()) for k in range(6)] == [
        wrap(2**63 - 2 + 10 * a + b) for a in (0, 1) for b in range(3)
    ]
    seed, step = -77, 5
    scalars = (Access(0, 0, (0,)), Access(1, 0, (0,)))
    draw = instructions.drawn((9,), *scalars, stream=4)
    assert [element(draw, k, reader([seed], [step]), (I64, I64)) for k in range(9)] == [
        random_bits(seed, step, 4, k) for k in range(9)
    ]
    operands = (Access(0, 0, (1,)), Access(1, 0, (0,)), Access(2, 0, (1,)))
    order = instructions.shuffled((6,), *operands, n=5, stream=6)
    read = reader([0, 1, 2, 3, 4, 5], [seed], [3, 3, 3, 3, 3, 4])
    found = [element(order, k, read, (I64, I64, I64)) for k in range(6)]
    assert found == [shuffle(k, seed, 3, 5, 6) for k in range(5)] + [-1]
    assert element(instructions.const(2**64 - 3, I64), 0, reader(), ()) == -3
    assert element(instructions.STEP_NUMBER, 0, reader(), (), step=9) == 8


def test_whole_tensors_are_not_computed_by_element() -> None:
    sources = [(Opcode.SOURCE, kind) for kind in (SourceKind.STATE, SourceKind.DATA, SourceKind.LATE)]
    for opcode, function in (*sources, (Opcode.COMMIT, 0)):
        i = Instruction(opcode=opcode, function=function, dtype=F32, params=Slot(slot=0, name="w"))
        with pytest.raises(ValueError, match="not computed element by element"):
            element(i, 0, reader(), ())


def test_needed_elements_depend_on_gather_indices() -> None:
    i = instructions.gathered(F32, (2,), Access(0, 0, (0,)), Access(1, 0, (1,)), stride=1, bound=4)
    read = reader([0, 1, 2, 3], [3, 9])
    assert needed_elements(i, 0, None, read, (F32, I64)) == ((1, 0), (0, 3))
    assert needed_elements(i, 1, None, read, (F32, I64)) == ((1, 1),)
    operands = (Access(0, 0, (1,)), Access(1, 0, (1,)), Access(2, 0, (0,)))
    where = instructions.mapped(MapFunction.WHERE, F32, (2,), *operands)
    assert needed_elements(where, 1, None, reader([0, 1], [5, 6], [7]), (BOOL, F32, F32)) == ((0, 1), (1, 1), (2, 0))


@given(st.sampled_from([F32, I64, BOOL]), st.binary(max_size=64))
def test_packed_tensors_round_trip(dtype: DType, data: bytes) -> None:
    try:
        elements = unpack(dtype, data)
    except EncodingError:
        assert len(data) % dtype.size or (dtype == BOOL and set(data) - {0, 1})
        return
    assert unpack(dtype, pack(dtype, elements)) == elements
    if not (dtype == F32 and NAN in elements):
        assert pack(dtype, elements) == data


# ---------------------------------------------------------------- random numbers

KNOWN = [  # Random123 kat_vectors, philox4x32 10: counter, key, answer
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_matches_known_answers(counter: str, key: str, answer: str) -> None:
    assert philox4x32(words(counter), words(key)) == words(answer)  # type: ignore[arg-type]


@given(
    st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**40 - 1)
)
@settings(max_examples=100)
def test_random_float_is_the_top_24_bits_of_the_philox_word(seed: int, step: int, stream: int, index: int) -> None:
    counter = (index // 4 % 2**32, index // 4 // 2**32, step % 2**32, stream)
    word = philox4x32(counter, (seed % 2**32, seed // 2**32 % 2**32))[index % 4]
    found = value(random_bits(seed, step, stream, index))
    assert found * 2**24 == word >> 8
    assert 0 <= found < 1


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 64, 65, 257])
def test_shuffle_is_a_permutation(n: int, cases: Callable[[], None]) -> None:
    for seed, epoch, stream in ((0, 0, 0), (-5, 3, 9)):
        found = [shuffle(i, seed, epoch, n, stream) for i in range(n)]
        assert sorted(found) == list(range(n))
        assert n < 60 or found != list(range(n))
        cases()


def naive_shuffle(index: int, seed: int, epoch: int, n: int, stream: int) -> int:
    """SPEC section 7 to the letter, with bit strings for the halves."""
    bits = len(f"{n - 1:b}") if n > 1 else 0
    w = max(1, -(-bits // 2))
    key = (seed % 2**32, seed // 2**32 % 2**32)
    x = index
    while True:
        text = f"{x:0{2 * w}b}"
        left, right = int(text[:w], 2), int(text[w:], 2)
        for q in range(8):
            word = philox4x32((right, 2**31 + q, epoch % 2**32, stream), key)[0]
            left, right = right, left ^ (word % 2**w)
        x = left * 2**w + right
        if x < n:
            return x


@given(
    st.one_of(st.integers(1, 40), st.integers(1, 2**40)),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**34),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**40),
)
@settings(max_examples=100)
def test_shuffle_is_the_one_of_the_specification(n: int, seed: int, epoch: int, stream: int, index: int) -> None:
    found = shuffle(index % n, seed, epoch, n, stream)
    assert found == naive_shuffle(index % n, seed, epoch, n, stream)
    assert 0 <= found < n
    assert {shuffle(outside, seed, epoch, n, stream) for outside in (-1, n, n + index)} == {-1}
