"""Rounding along a log, against rationals: neighbours found by bisection, tolerance edges exact and just beside."""

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.oracles import INF, SIGN, grid, nearest, neighbours_of, size, value
from tests.protocol.programs import every_kind
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.program.accumulator import SUM_EXPONENT, Accumulator, Kind, finish
from tiebreak.protocol.program.isa import DType, Opcode, ReduceFunction
from tiebreak.protocol.program.rounding import (
    MAX_TOLERANCE,
    MIN_TOLERANCE,
    NEAREST,
    Direction,
    Rounding,
    SumKind,
    check_tolerances,
    element_rounding,
    pack_tolerances,
    round_sum,
    sum_kind,
    tolerance_of,
)

precisions = st.integers(16, 32)
tolerances = st.integers(MIN_TOLERANCE, MAX_TOLERANCE)
directions = st.sampled_from([Direction.DOWN, Direction.UP])
signs = st.sampled_from([1, -1])


def expected(exact: Fraction, rounding: Rounding) -> int:
    """SPEC section 5.1, word by word."""
    d, u = neighbours_of(abs(exact), rounding.precision)
    if d != INF and rounding.direction != Direction.NONE and rounding.tolerance:
        gap = size(u) - size(d)
        if abs(abs(exact) - (size(d) + size(u)) / 2) <= gap / 2**rounding.tolerance:
            chosen = d if rounding.direction == Direction.DOWN else u
            return chosen | (SIGN if exact < 0 and chosen else 0)
    bits = nearest(exact, rounding.precision)
    return 0 if bits == SIGN else bits


def as_sum(exact: Fraction) -> tuple[int, int]:
    e = 1 - exact.denominator.bit_length()
    return int(exact * 2**-e), e


def check(exact: Fraction, rounding: Rounding) -> None:
    n, e = as_sum(exact)
    right = expected(exact, rounding)
    assert round_sum(n, e, rounding) == right, (exact, rounding)
    assert round_sum(n << 7, e - 7, rounding) == right, "the same number, written with more bits"


@st.composite
def middles(draw: st.DrawFn) -> tuple[int, Fraction, Fraction]:
    """(precision, middle of two neighbours, gap between them): anywhere, or next to an end of the format."""
    precision = draw(precisions)
    step, greatest = grid(precision)
    count = greatest // step
    smallest_normal = 0x00800000 // step
    places = st.one_of(
        st.integers(0, count),
        st.integers(0, 3),
        st.integers(-3, 3).map(lambda k: smallest_normal + k),
        st.integers(0, 3).map(lambda k: count - k),
        st.integers(1, 253).map(lambda k: (k << 23) // step),  # the least and greatest number of a binade
        st.integers(1, 253).map(lambda k: (k << 23) // step - 1),
    )
    d = draw(places) * step
    below, above = size(d), size(d + step)
    return precision, (below + above) / 2, above - below


@given(middles(), tolerances, directions, signs, st.sampled_from([-1, 1]), st.integers(1, 300))
@settings(max_examples=120)
def test_logged_rounding_is_correct_at_tolerance_edges_and_midpoints(
    middle: tuple[int, Fraction, Fraction], tolerance: int, direction: Direction, sign: int, side: int, fine: int
) -> None:
    precision, centre, gap = middle
    rounding = Rounding(precision=precision, tolerance=tolerance, direction=direction)
    edge, little = side * gap / 2**tolerance, gap / 2 ** (tolerance + fine)
    for exact in (centre + edge, centre + edge + little, centre + edge - little, centre, centre + side * gap / 2**fine):
        check(sign * exact, rounding)
    check(sign * (centre - gap / 2), rounding)  # a number of the format: a code cannot move it


@given(
    st.integers(-(2**300), 2**300), st.integers(-400, 100), precisions, st.integers(0, 64), st.sampled_from(Direction)
)
def test_logged_rounding_is_correct_for_any_sum(
    n: int, e: int, precision: int, tolerance: int, direction: Direction
) -> None:
    rounding = Rounding(precision=precision, tolerance=0 if tolerance < 2 else tolerance, direction=direction)
    check(Fraction(n) * Fraction(2) ** e, rounding)


def test_logged_rounding_handles_overflow_and_underflow() -> None:
    greatest, half = as_sum(value(0x7F7FFFFF)), Fraction(2) ** 103
    middle = value(0x7F7FFFFF) + half
    assert round_sum(*as_sum(middle)) == INF
    assert round_sum(*as_sum(middle), Rounding(tolerance=30, direction=Direction.DOWN)) == 0x7F7FFFFF
    assert round_sum(*as_sum(-middle), Rounding(tolerance=30, direction=Direction.UP)) == SIGN | INF
    assert round_sum(*greatest, Rounding(tolerance=2, direction=Direction.UP)) == 0x7F7FFFFF
    for above in (Fraction(2) ** 128, Fraction(2) ** 128 + half, Fraction(2) ** 300):  # no number is above
        assert round_sum(*as_sum(above), Rounding(tolerance=2, direction=Direction.DOWN)) == INF
    least = Fraction(1, 2**150)
    assert round_sum(*as_sum(-least), Rounding(tolerance=20, direction=Direction.DOWN)) == 0  # no -0
    assert round_sum(*as_sum(-least), Rounding(tolerance=20, direction=Direction.UP)) == SIGN | 1
    assert round_sum(0, 0, Rounding(tolerance=2, direction=Direction.UP)) == 0


@given(st.integers(-(2**767), 2**767 - 1), middles(), tolerances, directions)
@settings(max_examples=50)
def test_logged_rounding_applies_to_accumulators(
    any_sum: int, middle: tuple[int, Fraction, Fraction], tolerance: int, direction: Direction
) -> None:
    precision, centre, gap = middle
    rounding = Rounding(precision=precision, tolerance=tolerance, direction=direction)
    near = int((centre + gap / 2**tolerance) * 2**298)
    for held in (any_sum >> any_sum % 700, near, near + 1, -near, -near - 1):
        right = expected(Fraction(held) * Fraction(2) ** SUM_EXPONENT, rounding)
        assert finish(Accumulator(kind=Kind.F32_SUM, value=held), rounding) == right


def test_log_direction_affects_only_finite_f32_sums() -> None:
    up = Rounding(precision=16, tolerance=2, direction=Direction.UP)
    assert finish(Accumulator(kind=Kind.F32_SUM, value=0, invalid=True), up) == 0x7FC00000
    assert finish(Accumulator(kind=Kind.F32_MAX, value=0x3F808000), up) == 0x3F808000
    assert finish(Accumulator(kind=Kind.I64_SUM, value=-5), up) == -5


# ---------------------------------------------------------------- kinds and tolerances


def test_each_instruction_has_its_sum_kind(cases: Callable[[], None]) -> None:
    kinds = {
        (Opcode.REDUCE, ReduceFunction.SUM, DType.F32, 1): SumKind.PLAIN,
        (Opcode.REDUCE, ReduceFunction.SUM, DType.F32, 2): SumKind.PRODUCTS,
        (Opcode.SCATTER_SUM, 0, DType.F32, 2): SumKind.SCATTER,
    }
    found = set()
    for i in every_kind().body:
        key = (i.opcode, i.function, i.dtype, len(i.operands))
        assert sum_kind(i) == kinds.get(key)
        found.add(sum_kind(i))
        cases()
    assert found == {None, *SumKind}


def test_tolerances_pack_a_byte_a_kind() -> None:
    assert pack_tolerances({}) == 0
    packed = pack_tolerances({SumKind.PLAIN: 2, SumKind.PRODUCTS: 40, SumKind.SCATTER: 64})
    assert packed == 0x402802
    assert [tolerance_of(packed, kind) for kind in SumKind] == [2, 40, 64]
    assert [tolerance_of(pack_tolerances({SumKind.PRODUCTS: 7}), kind) for kind in SumKind] == [0, 7, 0]


@given(
    st.one_of(
        st.integers(0, 2**32 - 1),
        st.lists(st.integers(0, 70), min_size=3, max_size=3).map(lambda n: int.from_bytes(bytes(n), "little")),
    )
)
def test_tolerances_out_of_range_are_refused(packed: int) -> None:
    parts = packed.to_bytes(4, "little")
    good = parts[3] == 0 and all(n == 0 or 2 <= n <= 64 for n in parts[:3])
    if good:
        check_tolerances(packed)
        assert pack_tolerances({kind: parts[kind] for kind in SumKind}) == packed
    else:
        with pytest.raises(VerificationError, match="tolerances: expected"):
            check_tolerances(packed)
    for kind, n in product(SumKind, (1, 65, 255)):
        with pytest.raises(VerificationError, match=f"expected 0 or 2 to 64 for {kind.name} sums, got {n}"):
            pack_tolerances({kind: n})


def test_an_element_is_rounded_by_the_tolerance_of_its_kind() -> None:
    tolerances_ = pack_tolerances({SumKind.PLAIN: 11, SumKind.PRODUCTS: 12, SumKind.SCATTER: 13})
    found = {}
    for i in every_kind().body:
        rounding = element_rounding(i, precision=20, tolerances=tolerances_, direction=Direction.UP)
        assert rounding.precision == 20
        assert rounding.direction == (Direction.NONE if sum_kind(i) is None else Direction.UP)
        found[sum_kind(i)] = rounding.tolerance
    assert found == {None: 0, SumKind.PLAIN: 11, SumKind.PRODUCTS: 12, SumKind.SCATTER: 13}
    assert element_rounding(every_kind().body[14], precision=32, tolerances=0) == NEAREST
