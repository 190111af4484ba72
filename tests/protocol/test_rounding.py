"""Rounding along a log, against rationals: neighbours found by bisection, tolerance edges exact and just beside."""

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.instructions import mapped, reduced, scattered
from tests.protocol.oracles import INF, SIGN, grid, nearest, value
from tests.protocol.programs import every_kind
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.program.accumulator import SUM_EXPONENT, Accumulator, Kind, finish
from tiebreak.protocol.program.isa import DType, MapFunction, Opcode, ReduceFunction
from tiebreak.protocol.program.rounding import (
    MAX_TOLERANCE,
    MIN_TOLERANCE,
    NEAREST,
    Direction,
    Policy,
    Rounding,
    SumKind,
    check_tolerances,
    element_rounding,
    neighbours,
    pack_tolerances,
    round_sum,
    sum_kind,
    tolerance_of,
)

precisions = st.integers(16, 32)
tolerances = st.integers(MIN_TOLERANCE, MAX_TOLERANCE)
directions = st.sampled_from([Direction.DOWN, Direction.UP])
signs = st.sampled_from([1, -1])


def neighbours_of(magnitude: Fraction, precision: int) -> tuple[int, int] | None:
    """Patterns of d <= magnitude < u, by bisection; None above all numbers. Infinity stands for 2^128."""
    step, greatest = grid(precision)
    if magnitude >= Fraction(2) ** 128:
        return None
    low, high = 0, greatest // step + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if value(middle * step) <= magnitude else (low, middle)
    return low * step, high * step


def size(bits: int) -> Fraction:
    """The magnitude of a pattern; that of infinity is 2^128."""
    return Fraction(2) ** 128 if bits == INF else value(bits)


def expected(exact: Fraction, rounding: Rounding) -> int:
    """SPEC section 5.1, word by word."""
    found = neighbours_of(abs(exact), rounding.precision)
    if found is not None and rounding.direction != Direction.NONE and rounding.tolerance:
        d, u = found
        gap = size(u) - size(d)
        if abs(abs(exact) - (size(d) + size(u)) / 2) <= gap / 2**rounding.tolerance:
            chosen = d if rounding.direction == Direction.DOWN else u
            return chosen | (SIGN if exact < 0 and chosen else 0)
    bits = nearest(exact, rounding.precision)
    return 0 if bits == SIGN else bits


def as_sum(exact: Fraction) -> tuple[int, int]:
    """n and e of a dyadic rational."""
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


@given(
    middles(), tolerances, directions, signs, st.sampled_from([-1, 1]), st.sampled_from([-1, 0, 1]), st.integers(1, 200)
)
@settings(max_examples=200)
def test_at_the_edge_of_the_tolerance_and_just_beside(
    middle: tuple[int, Fraction, Fraction],
    tolerance: int,
    direction: Direction,
    sign: int,
    side: int,
    beside: int,
    fine: int,
) -> None:
    precision, centre, gap = middle
    exact = centre + side * gap / 2**tolerance + beside * gap / 2 ** (tolerance + fine)
    check(sign * exact, Rounding(precision=precision, tolerance=tolerance, direction=direction))


@given(middles(), tolerances, directions, signs, st.sampled_from([-1, 0, 1]), st.integers(0, 300))
@settings(max_examples=150)
def test_next_to_the_middle_and_on_the_numbers(
    middle: tuple[int, Fraction, Fraction], tolerance: int, direction: Direction, sign: int, side: int, fine: int
) -> None:
    precision, centre, gap = middle
    rounding = Rounding(precision=precision, tolerance=tolerance, direction=direction)
    check(sign * (centre + side * gap / 2**fine), rounding)
    check(sign * (centre - gap / 2), rounding)  # a number of the format: a code cannot move it


@given(
    st.integers(-(2**300), 2**300), st.integers(-400, 100), precisions, st.integers(0, 64), st.sampled_from(Direction)
)
@settings(max_examples=200)
def test_any_sum(n: int, e: int, precision: int, tolerance: int, direction: Direction) -> None:
    rounding = Rounding(precision=precision, tolerance=0 if tolerance < 2 else tolerance, direction=direction)
    check(Fraction(n) * Fraction(2) ** e, rounding)


@pytest.mark.parametrize("precision", range(16, 33))
def test_every_precision_at_every_kind_of_place(precision: int, cases: Callable[[int], None]) -> None:
    """By hand what Hypothesis draws: the ends of the format and of a binade, every tolerance, both edges, all codes."""
    step, greatest = grid(precision)
    places = (0, step, 0x00800000 - step, 0x00800000, 0x3F800000 - step, 0x3F800000, greatest - step, greatest)
    for d, tolerance in product(places, range(MIN_TOLERANCE, MAX_TOLERANCE + 1)):
        u, gap = d + step, size(d + step) - size(d)
        even = d if d // step % 2 == 0 else u
        edge, bit = gap / 2**tolerance, gap / 2**80
        for offset in (0, edge, -edge, edge - bit, bit - edge, edge + bit, -edge - bit):
            n, e = as_sum(size(d) + gap / 2 + offset)
            right = even if offset == 0 else d if offset < 0 else u
            near = abs(offset) <= edge
            for direction, bits in zip(Direction, (right, d if near else right, u if near else right), strict=True):
                rounding = Rounding(precision=precision, tolerance=tolerance, direction=direction)
                assert round_sum(n, e, rounding) == bits
                assert round_sum(-n, e, rounding) == (bits | SIGN if bits else 0)
                cases(2)


def test_a_code_cannot_move_what_is_far_from_a_middle(cases: Callable[[], None]) -> None:
    third = as_sum(Fraction(1) + Fraction(5, 2**26))  # 0.625 of an ulp above 1: an eighth of the gap above the middle
    for direction, near, far in ((Direction.DOWN, 0x3F800000, 0x3F800001), (Direction.UP, 0x3F800001, 0x3F800001)):
        assert round_sum(*third, Rounding(tolerance=3, direction=direction)) == near
        assert round_sum(*third, Rounding(tolerance=4, direction=direction)) == far
        assert round_sum(*third, Rounding(direction=direction)) == far  # no tolerance: no log
        cases()


def test_overflow_and_underflow() -> None:
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


def test_neighbours_tell_the_lower_one() -> None:
    rounding = Rounding(precision=16, tolerance=2, direction=Direction.UP)
    assert neighbours(*as_sum(value(0x3F800000) + Fraction(1, 2**8)), rounding) == (0x3F800000, True)
    assert neighbours(*as_sum(value(0x3F800000) + Fraction(1, 2**12)), rounding) == (0x3F800000, False)
    assert neighbours(*as_sum(-value(0x3F810000)), rounding)[1] is False


@given(st.integers(-(2**767), 2**767 - 1), middles(), tolerances, directions)
@settings(max_examples=200)
def test_an_accumulator_is_rounded_likewise(
    any_sum: int, middle: tuple[int, Fraction, Fraction], tolerance: int, direction: Direction
) -> None:
    precision, centre, gap = middle
    rounding = Rounding(precision=precision, tolerance=tolerance, direction=direction)
    near = int((centre + gap / 2**tolerance) * 2**298)
    for held in (any_sum >> any_sum % 700, near, near + 1, -near, -near - 1):
        right = expected(Fraction(held) * Fraction(2) ** SUM_EXPONENT, rounding)
        assert finish(Accumulator(kind=Kind.F32_SUM, value=held), rounding) == right


def test_what_is_no_sum_of_finite_terms_knows_no_direction() -> None:
    up = Rounding(precision=16, tolerance=2, direction=Direction.UP)
    assert finish(Accumulator(kind=Kind.F32_SUM, value=0, invalid=True), up) == 0x7FC00000
    assert finish(Accumulator(kind=Kind.F32_MAX, value=0x3F808000), up) == 0x3F808000
    assert finish(Accumulator(kind=Kind.I64_SUM, value=-5), up) == -5


# ---------------------------------------------------------------- kinds and tolerances


def test_kinds_of_sums(cases: Callable[[], None]) -> None:
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


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=150)
def test_tolerances_in_range_and_nothing_else(packed: int) -> None:
    parts = packed.to_bytes(4, "little")
    good = parts[3] == 0 and all(n == 0 or 2 <= n <= 64 for n in parts[:3])
    if good:
        check_tolerances(packed)
        assert pack_tolerances({kind: parts[kind] for kind in SumKind}) == packed
    else:
        with pytest.raises(VerificationError, match="tolerances: expected"):
            check_tolerances(packed)


@pytest.mark.parametrize("n", [1, 65, 255])
@pytest.mark.parametrize("kind", SumKind)
def test_tolerances_out_of_range(kind: SumKind, n: int) -> None:
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


def test_packed_as_the_contract_takes_it() -> None:
    assert [*Policy] == [0, 1]


def test_a_sum_of_integers_and_a_map_are_not_logged() -> None:
    plain = reduced(DType.I64, (), (2,))
    assert sum_kind(plain) is None
    assert sum_kind(mapped(MapFunction.ADD, DType.F32, ())) is None
    scatter = scattered((2,), (2,), match=(1,))
    assert sum_kind(scatter) is SumKind.SCATTER
