"""binary32 in integers against rationals."""

from fractions import Fraction
from math import isqrt

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.protocol.oracles import INF, NAN, SIGN, grid, nearest, value
from tests.vectors.inputs import EDGES as INPUTS
from tiebreak.protocol.numbers import float32

EDGES = [*INPUTS, 3, 0x00FFFFFF, 0x01000000, 0x33800001, 0x3FFFFFFF, 0x40000000, 0x4B000000, 0x4B800000, 0x4B800001,
         0x5EFFFFFF, 0x5F000001, 0x7E800000, 0x7F7FFFFE, 0x7F800001, 0x7FFFFFFF]  # fmt: skip
patterns = st.one_of(
    st.sampled_from([b | s for b in EDGES for s in (0, SIGN)]),
    st.integers(0, 2**32 - 1),
    st.builds(
        lambda s, e, f: s << 31 | e << 23 | f, st.integers(0, 1), st.integers(120, 134), st.integers(0, 2**23 - 1)
    ),
    st.builds(lambda s, f: s << 31 | f, st.integers(0, 1), st.integers(0, 2**24)),
)
finite = patterns.filter(lambda b: b & INF != INF)
precisions = st.integers(24, 32)


@given(st.integers(-(2**300), 2**300), st.integers(-460, 110), precisions)
@example(2**24 - 1, 104, 32)
@example(2**25 - 1, 103, 32)
@example(2**25 - 2, 103, 32)
@example(1, -150, 32)
@example(3, -150, 32)
@example(3, -151, 24)
@example(0, 0, 32)
def test_round_f32_rounds_correctly(n: int, e: int, precision: int) -> None:
    assert float32.round_f32(n, e, precision=precision) == nearest(Fraction(n) * Fraction(2) ** e, precision)


@given(finite, st.integers(-2, 2), st.integers(0, 200), precisions)
def test_round_f32_is_correct_next_to_ties(bits: int, nudge: int, depth: int, precision: int) -> None:
    """Midpoints of the format, and numbers 2^-depth of a midpoint's distance away on either side."""
    step, greatest = grid(precision)
    low = min(bits & ~SIGN & -step, greatest - step)
    middle = (value(low) + value(low + step)) / 2
    exact = middle + nudge * (value(low + step) - middle) / 2**depth / 2
    n, e = exact.numerator, 1 - exact.denominator.bit_length()
    assert Fraction(n) * Fraction(2) ** e == exact
    assert float32.round_f32(n, e, precision=precision) == nearest(exact, precision)
    assert float32.round_f32(-n, e, precision=precision) == (SIGN | nearest(exact, precision) if exact else 0)


@given(st.integers(2**25, 2**90), st.integers(-300, 60), st.integers(1, 2**40 - 1), precisions)
def test_round_f32_is_correct_with_a_sticky_bit(n: int, e: int, fraction: int, precision: int) -> None:
    exact = (n + Fraction(fraction, 2**40)) * Fraction(2) ** e
    assert float32.round_f32(n, e, sticky=True, precision=precision) == nearest(exact, precision)
    assert float32.round_f32(-n, e, sticky=True, precision=precision) == SIGN | nearest(exact, precision)


@given(st.integers(2**23, 2**24 - 1), st.integers(2, 60), precisions)
@settings(max_examples=100)
def test_a_sticky_bit_breaks_a_tie(mantissa: int, depth: int, precision: int) -> None:
    even = (mantissa >> (32 - precision)) & ~1
    tie = (2 * even + 1) << (32 - precision + depth)
    down, up = (even << (33 - precision + depth), (even + 1) << (33 - precision + depth))
    assert float32.round_f32(tie, 0, precision=precision) == nearest(Fraction(down), precision)
    assert float32.round_f32(tie, 0, sticky=True, precision=precision) == nearest(Fraction(up), precision)
    assert float32.round_f32(tie - 1, 0, sticky=True, precision=precision) == nearest(Fraction(down), precision)


@given(st.integers(-(2**200), 2**200), st.integers(1, 2**200), precisions)
def test_round_ratio_rounds_correctly(p: int, q: int, precision: int) -> None:
    assert float32.round_ratio(p, q, precision=precision) == nearest(Fraction(p, q), precision)


def test_rounding_refuses_bad_precision_and_too_short_magnitudes() -> None:
    for precision in (15, 33):
        with pytest.raises(ValueError, match="16 to 32 bits"):
            float32.round_f32(1, 0, precision=precision)
    with pytest.raises(AssertionError):
        float32.round_f32(1, 0, sticky=True)  # too short a magnitude


@given(finite, finite)
def test_arithmetic_is_the_rounded_rational(x: int, y: int) -> None:
    a, b = value(x), value(y)
    for found, exact in ((float32.add(x, y), a + b), (float32.subtract(x, y), a - b), (float32.multiply(x, y), a * b)):
        assert found & ~SIGN == nearest(abs(exact)), (hex(x), hex(y))
        assert exact == 0 or bool(found & SIGN) == (exact < 0)
    assert float32.multiply(x, y) & SIGN == (x ^ y) & SIGN
    if b:
        assert float32.divide(x, y) & ~SIGN == nearest(abs(a / b))
        assert float32.divide(x, y) & SIGN == (x ^ y) & SIGN


@given(finite.filter(lambda b: not b & SIGN and b))
def test_square_root_is_correctly_rounded(x: int) -> None:
    """The root lies between the two midpoints next to the answer: checked by squaring, no root taken."""
    found, exact = float32.square_root(x), value(x)
    below, above = (value(found) + value(found - 1)) / 2, (value(found) + value(found + 1)) / 2
    assert below * below < exact < above * above
    square = isqrt(exact.numerator * exact.denominator)
    if square * square == exact.numerator * exact.denominator:
        assert value(found) == Fraction(square, exact.denominator) or nearest(Fraction(square, exact.denominator))


def test_arithmetic_on_zeros_and_infinities_follows_ieee_754() -> None:
    one, minus = 0x3F800000, 0xBF800000
    minus_inf = SIGN | INF
    assert float32.add(INF, minus_inf) == NAN == float32.subtract(INF, INF)
    assert float32.add(INF, one) == INF == float32.subtract(one, minus_inf)
    assert [float32.add(*z) for z in ((0, 0), (0, SIGN), (SIGN, 0), (SIGN, SIGN), (one, minus))] == [0, 0, 0, SIGN, 0]
    assert [float32.subtract(*z) for z in ((0, 0), (0, SIGN), (SIGN, 0), (SIGN, SIGN))] == [0, 0, SIGN, 0]
    assert float32.multiply(INF, 0) == float32.multiply(SIGN, INF) == NAN
    assert float32.multiply(minus, INF) == minus_inf
    assert float32.multiply(minus, 0) == SIGN == float32.multiply(1, SIGN | 1)
    assert float32.divide(0, SIGN) == float32.divide(INF, minus_inf) == NAN
    assert float32.divide(minus, 0) == minus_inf == float32.divide(one, SIGN) == float32.divide(INF, SIGN)
    assert float32.divide(minus, INF) == SIGN
    assert [float32.square_root(x) for x in (SIGN, 0, INF, minus_inf, minus, SIGN | 1)] == [SIGN, 0, INF, NAN, NAN, NAN]


def test_every_operation_returns_the_canonical_nan() -> None:
    one = 0x3F800000
    for nan in (0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, NAN):
        assert float32.canonical(nan) == NAN == float32.negate(nan) == float32.absolute(nan) == float32.square_root(nan)
        for f in (float32.add, float32.subtract, float32.multiply, float32.divide, float32.maximum, float32.minimum):
            assert f(nan, one) == f(one, nan) == f(INF, nan) == f(nan, nan) == NAN
        for compare in (float32.less, float32.less_equal, float32.equal):
            assert not compare(nan, nan)
            assert not compare(one, nan)
            assert not compare(nan, one)
        assert float32.to_i64(nan) == 0


@given(finite, finite)
def test_comparisons_and_extrema_match_rationals(x: int, y: int) -> None:
    a, b = value(x), value(y)
    assert float32.less(x, y) == (a < b)
    assert float32.less_equal(x, y) == (a <= b)
    assert float32.equal(x, y) == (a == b)
    assert value(float32.maximum(x, y)) == max(a, b)
    assert value(float32.minimum(x, y)) == min(a, b)
    assert SIGN not in (float32.maximum(x, y), float32.minimum(x, y))
    assert value(float32.negate(x)) == -a
    assert value(float32.absolute(x)) == abs(a)


def test_comparisons_handle_infinities_and_signed_zeros() -> None:
    assert float32.less(SIGN | INF, 0xFF7FFFFF)
    assert float32.less(0x7F7FFFFF, INF)
    assert float32.equal(0, SIGN)
    assert not float32.less(SIGN, 0)
    assert float32.maximum(SIGN, SIGN) == float32.minimum(SIGN, 0) == float32.maximum(SIGN | 1, SIGN) == 0
    assert float32.maximum(SIGN | INF, 1) == 1
    assert float32.minimum(SIGN | INF, 1) == SIGN | INF
    assert float32.negate(0) == SIGN
    assert float32.absolute(SIGN) == 0


@given(patterns)
def test_to_i64_truncates_and_saturates(x: int) -> None:
    if x & INF == INF:
        expected = 0 if x & 0x7FFFFF else (-(2**63) if x & SIGN else 2**63 - 1)
    else:
        expected = max(-(2**63), min(2**63 - 1, int(value(x))))
    assert float32.to_i64(x) == expected


@given(st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**26), 2**26)))
@example(2**63 - 1)
@example(-(2**63))
@example(2**24 + 1)
@example(2**24 + 3)
def test_from_i64_rounds_to_nearest(x: int) -> None:
    assert float32.from_i64(x) == nearest(Fraction(x))
