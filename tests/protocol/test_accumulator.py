"""Accumulators against rationals, one encoding each, and the order-independence that the whole design rests on.

Then by the block against one term at a time, on data made to break sums, maxima and access maps.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parts import slow_except
from tests.protocol.instructions import Shape, reduced, scattered
from tests.protocol.oracles import INF, NAN, SIGN, Stream, nearest, value
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.program.accumulator import (
    BLOCK_LEAVES,
    BLOCK_TERMS,
    SUM_BYTES,
    Accumulator,
    ElementTerms,
    Kind,
    PartialSums,
    add_term,
    after_leaves,
    decode,
    decode_for,
    encode,
    finish,
    initial,
    kind_of,
    leaf_count,
)
from tiebreak.protocol.program.isa import Access, DType, Instruction, Opcode, ReduceFunction, ScatterFunction, row_major
from tiebreak.protocol.program.reference import accumulators, pack, unpack
from tiebreak.protocol.program.rounding import Rounding

F32, I64 = DType.F32, DType.I64
FLOATS = {Kind.F32_SUM, Kind.BF16_SUM, Kind.F32_MAX, Kind.F32_ARGMAX}
ONE, LARGEST, SMALLEST_NORMAL = 0x3F800000, 0x7F7FFFFF, 0x00800000
NOTABLE = [0, 1, 0x7FFFFF, SMALLEST_NORMAL, ONE, ONE + 1, 0x33800000, 0x4B7FFFFF, LARGEST]
FINITE = [sign | x for x in NOTABLE for sign in (0, SIGN)]
ODD = [INF, SIGN | INF, NAN, 0x7F800001, 0xFFFFFFFF]
ENDS = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**32, 2**63 - 1]

finite = st.one_of(st.sampled_from(FINITE), st.integers(0, 2**32 - 1).filter(lambda b: b & INF != INF))
floats = st.one_of(finite, finite, finite, st.sampled_from(FINITE + ODD))
ordered = st.one_of(st.sampled_from([0, SIGN, 1, SIGN | 1, ONE, *ODD]), floats)
longs = st.one_of(st.sampled_from(ENDS), st.integers(-(2**63), 2**63 - 1))


def run(kind: Kind, terms: list[tuple[int, ...]]) -> Accumulator:
    accumulator = initial(kind)
    for position, factors in enumerate(terms):
        accumulator = add_term(accumulator, factors, position)
        assert decode(kind, encode(accumulator)) == accumulator
    return accumulator


terms_of = st.sampled_from([(finite,), (finite, finite)]).flatmap(lambda f: st.lists(st.tuples(*f), max_size=12))


@given(terms_of, st.integers(24, 32))
@settings(max_examples=100)
def test_a_sum_is_the_rounded_rational(terms: list[tuple[int, ...]], precision: int) -> None:
    exact = sum((prod(map(value, factors)) for factors in terms), Fraction(0))
    expected = nearest(exact, precision)
    assert finish(run(Kind.F32_SUM, terms), Rounding(precision=precision)) == (0 if expected == SIGN else expected)


@given(st.lists(st.tuples(floats, floats), min_size=1, max_size=8), st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_sums_do_not_depend_on_order(terms: list[tuple[int, int]], random: object) -> None:
    shuffled = list(terms)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert encode(run(Kind.F32_SUM, terms)) == encode(run(Kind.F32_SUM, shuffled))


@pytest.mark.parametrize("factors", [(NAN, 0), (INF, 0), (0, INF), (0x3F800000, SIGN | INF), (0xFF800001,), (INF,)])
def test_a_nonfinite_factor_makes_the_sum_nan_for_good(factors: tuple[int, ...]) -> None:
    accumulator = run(Kind.F32_SUM, [(1, 1)[: len(factors)], factors, (0x3F800000, 0x3F800000)[: len(factors)]])
    assert encode(accumulator) == b"\x01" + bytes(SUM_BYTES)
    assert finish(accumulator) == NAN


def test_accumulator_addition_wraps_at_768_bits() -> None:
    """Addition is modulo 2^768, so no bytes from the defender can make the next ones unencodable."""
    top = Accumulator(kind=Kind.F32_SUM, value=2 ** (8 * SUM_BYTES - 1) - 1)
    wrapped = add_term(top, (1, 1), 0)
    assert wrapped.value == -(2 ** (8 * SUM_BYTES - 1))
    assert len(encode(wrapped)) == 97


@given(st.lists(longs, min_size=1, max_size=8))
def test_i64_sum_max_and_argmax_match_python_integers(terms: list[int]) -> None:
    found = finish(run(Kind.I64_SUM, [(x,) for x in terms]))
    assert -(2**63) <= found < 2**63
    assert (found - sum(terms)) % 2**64 == 0
    assert finish(run(Kind.I64_MAX, [(x,) for x in terms])) == max(terms)
    assert finish(run(Kind.I64_ARGMAX, [(x,) for x in terms])) == terms.index(max(terms))


@given(st.lists(ordered, min_size=1, max_size=8))
def test_f32_max_and_argmax_match_rationals_and_propagate_nan(terms: list[int]) -> None:
    largest, where = run(Kind.F32_MAX, [(x,) for x in terms]), run(Kind.F32_ARGMAX, [(x,) for x in terms])
    nans = [k for k, x in enumerate(terms) if x & 0x7FFFFFFF > INF]
    if nans:
        assert (finish(largest), finish(where)) == (NAN, nans[0])
        return
    keys = [value(x) if x & INF != INF else Fraction(2) ** 200 * (-1 if x & SIGN else 1) for x in terms]
    first = keys.index(max(keys))
    assert finish(where) == first
    assert finish(largest) == (terms[first] if keys[first] else 0)


def test_argmax_of_the_smallest_elements_is_the_first() -> None:
    assert finish(run(Kind.F32_ARGMAX, [(SIGN | INF,), (SIGN | INF,)])) == 0
    assert finish(run(Kind.I64_ARGMAX, [(-(2**63),)])) == 0
    assert finish(run(Kind.F32_ARGMAX, [(SIGN,), (0,)])) == 0
    assert encode(run(Kind.F32_ARGMAX, [(SIGN,), (0,)])).hex() == "80000000" + "0" * 16


def test_initial_accumulators_have_fixed_encodings() -> None:
    assert {kind: encode(initial(kind)).hex() for kind in Kind} == {
        Kind.F32_SUM: "00" * 97, Kind.I64_SUM: "00" * 8, Kind.F32_MAX: "ff800000", Kind.I64_MAX: "80" + "00" * 7,
        Kind.F32_ARGMAX: "ff800000" + "ff" * 8, Kind.I64_ARGMAX: "80" + "00" * 7 + "ff" * 8, Kind.BF16_SUM: "00" * 97,
    }  # fmt: skip


@given(st.sampled_from(list(Kind)), st.binary(max_size=100), st.binary(min_size=97, max_size=97))
def test_accumulator_decoding_is_injective(kind: Kind, data: bytes, integer: bytes) -> None:
    with suppress(EncodingError):
        assert encode(decode(kind, data)) == data
    assert encode(decode(Kind.F32_SUM, b"\0" + integer[1:])) == b"\0" + integer[1:], "any integer without a flag"


def reduction(function: ReduceFunction, dtype: DType) -> Instruction:
    operands = (Access(0, 0, (1,)),)
    return reduced(dtype, (), (9,), *operands, function=function)


def test_each_reduction_has_its_accumulator_kind(cases: Callable[[], None]) -> None:
    scatter = scattered((), (), match=())
    table = [
        (reduction(ReduceFunction.SUM, F32), F32, Kind.F32_SUM),
        (reduction(ReduceFunction.SUM, I64), I64, Kind.I64_SUM),
        (reduction(ReduceFunction.MAX, F32), F32, Kind.F32_MAX),
        (reduction(ReduceFunction.MAX, I64), I64, Kind.I64_MAX),
        (reduction(ReduceFunction.ARGMAX, I64), F32, Kind.F32_ARGMAX),
        (reduction(ReduceFunction.ARGMAX, I64), I64, Kind.I64_ARGMAX),
        (scatter, F32, Kind.F32_SUM),
        (reduction(ReduceFunction.SUM_BF16, F32), F32, Kind.BF16_SUM),
        (replace(scatter, function=ScatterFunction.SUM_BF16), F32, Kind.BF16_SUM),
    ]
    for instruction, operand, kind in table:
        assert kind_of(instruction, operand) == kind
        assert decode_for(instruction, encode(initial(kind))) == initial(kind)
        with pytest.raises(EncodingError):
            decode_for(instruction, b"\0\0")
        cases()
    assert [leaf_count(n) for n in (1, 4, 5, 8, 9, 2**32)] == [1, 1, 2, 2, 3, 2**30]
    with pytest.raises(ValueError, match="expected a reduction"):
        kind_of(Instruction(opcode=Opcode.MAP, dtype=F32), F32)


# ---------------------------------------------------------------- by the block


def array(kind: Kind, values: Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.uint32 if kind in FLOATS else np.int64)


def one_by_one(start: Accumulator, terms: Sequence[tuple[int, ...] | None], first: int = 0) -> list[bytes]:
    """The oracle: None is a term that does not match."""
    found, held = [], start
    for number, factors in enumerate(terms):
        if factors is not None:
            held = add_term(held, factors, first + number)
        if number % 4 == 3 or number == len(terms) - 1:
            found.append(encode(held))
    return found


def rows(
    start: Accumulator, terms: Sequence[tuple[int, ...]], matches: list[bool] | None = None, first: int = 0
) -> list:
    factors = [array(start.kind, column) for column in zip(*terms, strict=True)]
    mask = None if matches is None else np.array(matches)
    return after_leaves(start, factors, mask, first)


@given(st.data())
@settings(max_examples=100)
def test_blockwise_accumulation_matches_one_term_at_a_time(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(Kind)))
    of_kind = {Kind.F32_SUM: floats, Kind.BF16_SUM: floats, Kind.F32_MAX: ordered, Kind.F32_ARGMAX: ordered}.get(
        kind, longs
    )
    arity = data.draw(st.integers(1, 2)) if kind.is_f32_sum else 1
    terms = data.draw(st.lists(st.tuples(*[of_kind] * arity), min_size=1, max_size=40))
    wanted = one_by_one(initial(kind), terms)
    assert rows(initial(kind), terms) == wanted
    cut = 4 * data.draw(st.integers(0, (len(terms) - 1) // 4))
    start = decode(kind, wanted[cut // 4 - 1]) if cut else initial(kind)
    assert rows(start, terms[cut:], first=cut) == wanted[cut // 4 :]


@given(st.lists(st.tuples(st.booleans(), finite, finite), min_size=1, max_size=12))
@settings(max_examples=50)
def test_blockwise_sums_survive_exact_cancellation(halves: list[tuple[bool, int, int]]) -> None:
    there = [(x, y) for _, x, y in halves]
    back = [(x, y ^ SIGN) if first else (x ^ SIGN, y) for first, x, y in halves]
    filler = [(SIGN, ONE)] * (-2 * len(there) % 4)
    terms = [*there, *back, *filler, (1, 1)]
    found = rows(initial(Kind.F32_SUM), terms)
    assert found == one_by_one(initial(Kind.F32_SUM), terms)
    assert found[-2:] == [bytes(97), bytes(96) + b"\1"], "zero, then the smallest product there is"


@given(
    st.integers(-(2 ** (8 * SUM_BYTES - 1)), 2 ** (8 * SUM_BYTES - 1) - 1),
    st.lists(st.tuples(finite, finite), min_size=1, max_size=9),
)
@settings(max_examples=50)
def test_blockwise_sums_from_a_forged_start_wrap_like_the_reference(value: int, terms: list[tuple[int, int]]) -> None:
    top = 2 ** (8 * SUM_BYTES - 1)
    for held in (value, top - 1, -top, -1):
        start = Accumulator(kind=Kind.F32_SUM, value=held)
        assert rows(start, terms) == one_by_one(start, terms)
    flagged = Accumulator(kind=Kind.F32_SUM, value=0, invalid=True)
    assert rows(flagged, terms) == [b"\1" + bytes(96)] * -(-len(terms) // 4)


def test_block_sizes_out_of_range_are_refused() -> None:
    for count in (0, BLOCK_TERMS + 1):
        with pytest.raises(ValueError, match=f"expected 1 to {BLOCK_TERMS} terms, got {count}"):
            after_leaves(initial(Kind.I64_MAX), [np.zeros(count, dtype=np.int64)])


# ---------------------------------------------------------------- through access maps


Form = tuple[Opcode, int, DType, tuple[DType, ...]]
FORMS: list[Form] = [
    (Opcode.REDUCE, ReduceFunction.SUM, F32, (F32,)),
    (Opcode.REDUCE, ReduceFunction.SUM, F32, (F32, F32)),
    (Opcode.REDUCE, ReduceFunction.SUM_BF16, F32, (F32, F32)),
    (Opcode.REDUCE, ReduceFunction.SUM, I64, (I64,)),
    (Opcode.REDUCE, ReduceFunction.MAX, F32, (F32,)),
    (Opcode.REDUCE, ReduceFunction.MAX, I64, (I64,)),
    (Opcode.REDUCE, ReduceFunction.ARGMAX, I64, (F32,)),
    (Opcode.REDUCE, ReduceFunction.ARGMAX, I64, (I64,)),
    (Opcode.SCATTER_SUM, 0, F32, (F32, I64)),
]


def of_form(form: Form, shape: Shape, terms: Shape, operands: Sequence[Access]) -> Instruction:
    opcode, function, dtype, _ = form
    if opcode == Opcode.REDUCE:
        return reduced(dtype, shape, terms, *operands, function=ReduceFunction(function))
    return scattered(shape, terms, *operands, match=row_major(shape))


@st.composite
def instructions(draw: st.DrawFn) -> tuple[Instruction, list[int], tuple[DType, ...]]:
    """A reduction, the sizes of its operands' tensors (exactly what it reaches), and their dtypes."""
    form = draw(st.sampled_from(FORMS))
    opcode, *_, dtypes = form
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=opcode == Opcode.SCATTER_SUM, max_size=2)))
    reduction = tuple(draw(st.lists(st.integers(1, 5), max_size=3)))
    accesses, sizes = [], []
    for number in range(len(dtypes)):
        strides = draw(st.lists(st.integers(-7, 7), min_size=len(shape + reduction), max_size=len(shape + reduction)))
        if draw(st.booleans()):  # row-major over the reduction: dims that are walked as one
            for at in range(len(shape), len(strides)):
                strides[at] = prod(reduction[at - len(shape) + 1 :])
        low, high = Access(number, 0, tuple(strides)).extent(shape + reduction)
        accesses.append(Access(number, -low, tuple(strides)))
        sizes.append(high - low + 1)
    made = of_form(form, shape, reduction, accesses)
    return made, sizes, dtypes


def by_blocks(instruction: Instruction, index: int, data: Sequence[bytes], dtypes: Sequence[DType]) -> list[bytes]:
    sums = PartialSums(ElementTerms(instruction, index, data, dtypes))
    found = b"".join(sums.block(n) for n in range(-(-sums.count // BLOCK_LEAVES)))
    width = len(encode(initial(kind_of(instruction, dtypes[0]))))
    return [found[at : at + width] for at in range(0, len(found), width)]


def by_reference(instruction: Instruction, index: int, data: Sequence[bytes], dtypes: Sequence[DType]) -> list[bytes]:
    operands = [unpack(dtype, tensor) for dtype, tensor in zip(dtypes, data, strict=True)]
    return [encode(a) for a in accumulators(instruction, index, lambda k, where: operands[k][where], dtypes)]


@given(instructions(), st.data())
@settings(max_examples=60)
def test_blockwise_terms_follow_the_access_maps(
    made: tuple[Instruction, list[int], tuple[DType, ...]], data: st.DataObject
) -> None:
    instruction, sizes, dtypes = made
    indices = st.integers(-1, instruction.numel)
    elements = [floats if dtype == F32 else indices if number else longs for number, dtype in enumerate(dtypes)]
    tensors = [
        pack(dtype, data.draw(st.lists(of_operand, min_size=size, max_size=size)))
        for dtype, size, of_operand in zip(dtypes, sizes, elements, strict=True)
    ]
    for index in range(instruction.numel):
        found = by_blocks(instruction, index, tensors, dtypes)
        assert found == by_reference(instruction, index, tensors, dtypes)


@pytest.mark.parametrize(
    "form",
    slow_except(FORMS, *FORMS[1::3]),
    ids=lambda form: f"{form[0].name} {form[1]} {'x'.join(t.name for t in form[3])}",
)
def test_accumulators_over_several_blocks_match_the_reference(form: Form) -> None:
    """Two blocks and a little, three dims of which none divides a block; the last terms are the special ones."""
    opcode, *_, dtypes = form
    reduction = (7, 11, 433)
    terms = prod(reduction)
    assert 2 * BLOCK_TERMS < terms < 3 * BLOCK_TERMS
    stream = Stream(f"prefixes {form}")
    floats = [stream.bits(32) for _ in range(terms)]
    floats = [x if x & INF != INF else x & ~INF for x in floats]
    floats[-9:] = [LARGEST, LARGEST | SIGN, INF, 0, NAN, SIGN | INF, SIGN, 1, ONE]
    longs = [stream.bits(64) - 2**63 for _ in range(terms)] if opcode == Opcode.REDUCE else [0, 1] * terms
    strides = [(4763, 433, 1), (1, 7, 77)]
    operands = [Access(k, 0, (0, *strides[k])) for k in range(len(dtypes))]
    instruction = of_form(form, (2,), reduction, operands)
    tensors = [pack(t, (floats if t == F32 else longs)[:terms]) for t in dtypes]
    assert by_blocks(instruction, 1, tensors, dtypes) == by_reference(instruction, 1, tensors, dtypes)


def test_blocks_can_be_computed_in_any_order_and_repeatedly() -> None:
    count = 2 * BLOCK_TERMS + 5
    data = np.arange(count, dtype="<i8").tobytes()
    terms = ElementTerms(dot(count, dtype=I64, operands=1), 0, [data], [I64])
    wanted = [
        BLOCK_TERMS * (BLOCK_TERMS - 1) // 2,
        2 * BLOCK_TERMS * (2 * BLOCK_TERMS - 1) // 2,
        count * (count - 1) // 2,
    ]
    sums = PartialSums(terms)
    for number in (2, 0, 1, 1, 2, 0):
        assert int.from_bytes(sums.block(number)[-8:], "big") == wanted[number]
    for number in (-1, 3):
        with pytest.raises(ValueError, match=f"got number {number}"):
            sums.block(number)


# ---------------------------------------------------------------- what is refused


def dot(terms: int, *, dtype: DType = F32, operands: int = 2) -> Instruction:
    return reduced(dtype, (), (terms,), *tuple(Access(k, 0, (1,)) for k in range(operands)))


@pytest.mark.parametrize(
    ("access", "message"),
    [
        (Access(1, 0, (1,)), "operand 1: expected elements below 9, got 0 to 9"),
        (Access(1, -1, (1,)), "operand 1: expected elements below 9, got -1 to 8"),
        (Access(1, 8, (-1,)), "operand 1: expected elements below 9, got -1 to 8"),
        (Access(1, 0, (2**62,)), f"operand 1: expected elements below 9, got 0 to {9 * 2**62}"),
    ],
)
def test_an_element_outside_a_tensor_is_never_read(access: Access, message: str) -> None:
    instruction = dot(10)
    instruction = replace(instruction, operands=(instruction.operands[0], access))
    with pytest.raises(ValueError, match=f"^{message}$"):
        ElementTerms(instruction, 0, [bytes(40), bytes(36)], [F32, F32])


def test_strides_of_size_one_dimensions_are_ignored() -> None:
    access = Access(0, 1, (2**63 - 1, 1, -(2**63)))
    instruction = replace(dot(1), reduction=(1, 3, 1), operands=(access,))
    data = pack(F32, [NAN, ONE, 1, SIGN])
    assert by_blocks(instruction, 0, [data], [F32]) == by_reference(instruction, 0, [data], [F32])


def test_only_elements_of_reductions_have_terms() -> None:
    for index in (-1, 1):
        with pytest.raises(ValueError, match=f"expected an element below 1, got {index}"):
            ElementTerms(dot(1), index, [bytes(4)] * 2, [F32, F32])
    with pytest.raises(ValueError, match="expected a reduction, got MAP"):
        ElementTerms(Instruction(opcode=Opcode.MAP, dtype=F32, operands=(Access(0, 0, ()),)), 0, [bytes(4)], [F32])
