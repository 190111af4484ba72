"""Accumulators against rationals, one encoding each, and the order-independence that the whole design rests on."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.instructions import reduced, scattered
from tests.protocol.oracles import INF, NAN, SIGN, nearest, value
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.program.accumulator import (
    SUM_BYTES,
    Accumulator,
    Kind,
    add_term,
    decode,
    decode_for,
    encode,
    finish,
    initial,
    kind_of,
    leaf_count,
)
from tiebreak.protocol.program.isa import Access, DType, Instruction, Opcode, ReduceFunction, ScatterFunction
from tiebreak.protocol.program.rounding import Rounding

finite = st.one_of(
    st.sampled_from([0, SIGN, 1, SIGN | 1, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000, 0xBF800000, 0x33800000, 0x800000]),
    st.integers(0, 2**32 - 1).filter(lambda b: b & INF != INF),
)
anything = st.one_of(finite, st.sampled_from([INF, SIGN | INF, NAN, 0x7F800001, 0xFFFFFFFF]))
i64s = st.one_of(st.sampled_from([-(2**63), 2**63 - 1, 0, -1, 1]), st.integers(-(2**63), 2**63 - 1))


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


@given(st.lists(st.tuples(anything, anything), min_size=1, max_size=8), st.randoms(use_true_random=False))
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


def test_only_the_last_rounding_overflows() -> None:
    large = 0x7F7FFFFF
    assert finish(run(Kind.F32_SUM, [(large, large)])) == INF
    assert finish(run(Kind.F32_SUM, [(large, large), (large, large | SIGN), (1,) * 2, (0x3F800000,) * 2])) == 0x3F800000


def test_accumulator_addition_wraps_at_768_bits() -> None:
    """Addition is modulo 2^768, so no bytes from the defender can make the next ones unencodable."""
    top = Accumulator(kind=Kind.F32_SUM, value=2 ** (8 * SUM_BYTES - 1) - 1)
    wrapped = add_term(top, (1, 1), 0)
    assert wrapped.value == -(2 ** (8 * SUM_BYTES - 1))
    assert len(encode(wrapped)) == 97


@given(st.lists(i64s, min_size=1, max_size=8))
def test_i64_sum_max_and_argmax_match_python_integers(terms: list[int]) -> None:
    found = finish(run(Kind.I64_SUM, [(x,) for x in terms]))
    assert -(2**63) <= found < 2**63
    assert (found - sum(terms)) % 2**64 == 0
    assert finish(run(Kind.I64_MAX, [(x,) for x in terms])) == max(terms)
    assert finish(run(Kind.I64_ARGMAX, [(x,) for x in terms])) == terms.index(max(terms))


few = st.sampled_from([0, SIGN, 1, SIGN | 1, 0x3F800000, 0x40000000, INF, SIGN | INF, NAN, 0x7F800001])


@given(st.lists(st.one_of(few, anything), min_size=1, max_size=8))
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
    f32, i64 = DType.F32, DType.I64
    scatter = scattered((), (), match=())
    table = [
        (reduction(ReduceFunction.SUM, f32), f32, Kind.F32_SUM),
        (reduction(ReduceFunction.SUM, i64), i64, Kind.I64_SUM),
        (reduction(ReduceFunction.MAX, f32), f32, Kind.F32_MAX),
        (reduction(ReduceFunction.MAX, i64), i64, Kind.I64_MAX),
        (reduction(ReduceFunction.ARGMAX, i64), f32, Kind.F32_ARGMAX),
        (reduction(ReduceFunction.ARGMAX, i64), i64, Kind.I64_ARGMAX),
        (scatter, f32, Kind.F32_SUM),
        (reduction(ReduceFunction.SUM_BF16, f32), f32, Kind.BF16_SUM),
        (replace(scatter, function=ScatterFunction.SUM_BF16), f32, Kind.BF16_SUM),
    ]
    for instruction, operand, kind in table:
        assert kind_of(instruction, operand) == kind
        assert decode_for(instruction, encode(initial(kind))) == initial(kind)
        with pytest.raises(EncodingError):
            decode_for(instruction, b"\0\0")
        cases()
    assert [leaf_count(n) for n in (1, 4, 5, 8, 9, 2**32)] == [1, 1, 2, 2, 3, 2**30]
    with pytest.raises(ValueError, match="expected a reduction"):
        kind_of(Instruction(opcode=Opcode.MAP, dtype=f32), f32)
