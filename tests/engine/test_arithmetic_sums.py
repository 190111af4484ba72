"""Sums, plain and of products, and transcendentals, of 16 to 32 bits: torch and the kernels against integers."""

import math
import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.engine.arithmetic_cases import (
    EDGE_F32,
    NON_FINITE,
    Maker,
    bits_f32,
    check,
    elements_of,
    expected,
    map_of,
    matmul,
    random_reduction,
    sum_of,
    sum_over,
    tensor_of,
)
from tests.parts import slow_except
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plain import exact
from tiebreak.engine.arithmetic.plain.exact import TermReader
from tiebreak.engine.arithmetic.plan.options import Round
from tiebreak.engine.arithmetic.plan.sums import _order
from tiebreak.engine.arithmetic.plan.ziv import coefficient
from tiebreak.protocol.numbers.float32 import decode, round_f32, round_ratio
from tiebreak.protocol.program.isa import TRANSCENDENTALS, Access, DType, Instruction, MapFunction, ReduceFunction

ONE, NAN, INF, HUGE = 0x3F800000, 0x7FC00000, 0x7F800000, 0x7F7FFFFF
SIGN = 0x80000000
HALF_ULP = bits_f32(2.0**-24)
FAR = bits_f32(2.0**-98)
TINY = 1
NEXT_TO_A_TIE = [ONE, HALF_ULP, TINY, FAR, FAR | SIGN]
"""1 + 2^-24 + 2^-149: above a tie by less than FP64, or doubled precision beside +-2^-98, can tell."""
PRECISIONS = (16, 17, 23, 24, 25, 31, 32)
pytestmark = pytest.mark.usefixtures("kernel")


def guess(elements: Tensor, reader: TermReader, rounded: Round) -> Tensor:
    """A float sum as last resort. It must be caught."""
    return rounded(reader.read(elements, 0, reader.terms).sum(1))


def run(arithmetic: Arithmetic, i: Instruction, *operands: list[int]) -> list[int]:
    return elements_of(arithmetic.execute(i, [tensor_of(DType.F32, x) for x in operands], 0).reshape(-1))


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.just(32) | st.integers(16, 32))
def test_sums_over_random_views_match_the_integer_reference(seed: int, precision: int) -> None:
    make = Maker(random.Random(seed))
    instruction, operands = random_reduction(make, ReduceFunction.SUM, DType.F32)
    check(Arithmetic(precision=precision), instruction, operands)
    # Cut into slabs and parts of a few elements, and with the terms in a random order: the same bits.
    slabs = make.random.choice([1, 4, 16])
    check(Arithmetic(permute=seed, precision=precision, fp64_elements=slabs), instruction, operands)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_int64_sums_wrap_as_in_the_integer_reference(seed: int) -> None:
    check(Arithmetic(), *random_reduction(Maker(random.Random(seed)), ReduceFunction.SUM, DType.I64))


@pytest.mark.parametrize(("a", "b"), [(INF, 0), (0, INF), (NAN, 0), (INF, ONE)])
def test_a_non_finite_factor_makes_nan(a: int, b: int) -> None:
    """A matrix product may not skip the zero either. The other rows are not touched."""
    left, right = [a, 0, 0, ONE, ONE, ONE], [b, ONE, 0, 0, 0, 0]
    found = check(Arithmetic(), matmul(2, 3, 2), [tensor_of(DType.F32, left), tensor_of(DType.F32, right)])
    assert NAN in found


@pytest.mark.usefixtures("pure")
def test_sums_without_the_exact_fallback_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only exact sums get this right; what replaces them is wrong in some order of the terms."""
    terms = [*NEXT_TO_A_TIE, *[0] * 2000]
    i = sum_of(terms)
    right = Arithmetic()
    assert run(right, i, terms) == expected(i, [tensor_of(DType.F32, terms)]) == [ONE + 1]
    assert right.stats.of("reduce.sum.plain").undecided_twice == 1
    monkeypatch.setattr(exact, "_settled", guess)
    assert run(Arithmetic(), i, terms) == [ONE]


def test_statistics_count_undecided_and_double_rounded_sums(kernel: str) -> None:
    """FP64-then-round gets the second row wrong (a false tie), and the last. The third is on a grid."""
    exactly = 2 if kernel == "compiled" else 3
    rows = [ONE, ONE, ONE, ONE, HALF_ULP, bits_f32(2.0**-80), ONE, HALF_ULP, 0, *NEXT_TO_A_TIE[:3]]
    arithmetic = Arithmetic()
    i = sum_over((4,), (3,), Access(0, 0, (3, 1)))
    assert run(arithmetic, i, rows) == [bits_f32(3.0), ONE + 1, ONE, ONE + 1]
    counts = arithmetic.stats.of("reduce.sum.plain")
    assert (counts.elements, counts.undecided, counts.undecided_twice, counts.double_rounded) == (4, 3, exactly, 2)
    run(arithmetic, i, rows)
    assert (counts.elements, counts.undecided, counts.undecided_twice, counts.double_rounded) == (8, 6, 2 * exactly, 4)
    assert counts.logged == 0


@pytest.mark.parametrize("style", slow_except(["ties", "wide"], "ties"))
def test_long_products_cut_into_slabs_are_exact(style: str) -> None:
    """The second half of each row of the left is minus the first, but one."""
    make, k = Maker(random.Random(style)), 5000
    left, right = (make.tensor(DType.F32, 2 * k, style).reshape(-1, k) for _ in range(2))
    left[:, k // 2 :], right[:, k // 2 :] = -left[:, : k // 2], right[:, : k // 2]
    left[:, 0] = torch.nextafter(left[:, 0], torch.tensor(0.0))
    i = matmul(2, k, 2, transposed=(False, True))
    operands = [left.reshape(-1).contiguous(), right.reshape(-1).contiguous()]
    found = check(Arithmetic(), i, operands)
    assert elements_of(Arithmetic(permute=6, fp64_elements=300).execute(i, operands, 0)) == found


@pytest.mark.parametrize("width", slow_except([7, 24], 7))
def test_convolutions_with_partial_panels_are_exact(width: int) -> None:
    """A convolution of 2 images with 3 channels, 5 filters of 3x3, and what its filters get: columns, then terms."""
    make, line, out = Maker(random.Random(width)), width + 2, 7 * width
    image = make.tensor(DType.F32, 2 * 3 * 9 * line, "gauss")
    filters, grad = make.tensor(DType.F32, 5 * 27, "ties"), make.tensor(DType.F32, 2 * 5 * out, "ties")
    plane = 9 * line
    read = (3 * plane, line, 1, plane, line, 1)  # image, row, column, channel, row and column of the filter
    reads = Access(0, 0, (read[0], 0, *read[1:])), Access(0, 0, (0, *read[3:], *read[:3]))
    forward = sum_over((2, 5, 7, width), (3, 3, 3), reads[0], Access(1, 0, (0, 27, 0, 0, 9, 3, 1)))
    into_filters = sum_over((5, 3, 3, 3), (2, 7, width), reads[1], Access(1, 0, (out, 0, 0, 0, 5 * out, width, 1)))
    for instruction, other in ((forward, filters), (into_filters, grad)):
        found = check(Arithmetic(), instruction, [image, other])
        for arithmetic in (Arithmetic(permute=1), Arithmetic(permute=2), Arithmetic(fp64_elements=64)):
            assert elements_of(arithmetic.execute(instruction, [image, other], 0)) == found


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("count", [1, 17, 193, 4992])
def test_a_random_order_has_each_term_once(count: int, apart: bool) -> None:
    order = _order(count, torch.Generator().manual_seed(count), apart=apart)
    assert sorted(order.tolist()) == list(range(count))
    if count == 4992:
        assert (abs(order[1:] - order[:-1]) > 1).mean() > 0.2
    if count == 4992 and not apart:
        pieces = order.reshape(-1, 4)
        assert (pieces == pieces[:, :1] + np.arange(4)).all()
        assert {len(set((window // 16).tolist())) for window in order.reshape(-1, 192)} == {12}


@pytest.mark.usefixtures("pure")
@pytest.mark.parametrize("k", [1, 700, 70000])
def test_the_claimed_roundings_of_a_product_bound_its_error(k: int) -> None:
    """The claimed depth bounds the true error against integers, and is far below K where K is long."""
    generator = torch.Generator().manual_seed(k)
    a, b = torch.randn((2, k), generator=generator), torch.randn((2, k), generator=generator)
    found = Arithmetic().backend.partial(matmul(2, k, 2, transposed=(False, True)))([a.view(-1), b.view(-1)])
    assert found.roundings <= max(703, 70 + k // 60)
    size = torch.mm(a.double().abs(), b.double().abs().T)
    for row in range(2):
        for column in range(2):
            terms = zip(a[row].tolist(), b[column].tolist(), strict=True)
            exact = sum(int(x * 2**149) * int(y * 2**149) for x, y in terms)
            error = abs(int(found.sums[0, row, column].item() * 2.0**298) - exact)
            assert error <= int(coefficient(found.roundings) * size[row, column].item() * 2.0**298)


def boundaries(precision: int) -> list[int]:
    """Numbers of that precision at the ends of binades, and f32 and middles beside them, of both signs."""
    step = 1 << (32 - precision)
    found = set()
    for base in (0, 0x00800000, 0x3F800000, 0x7F000000, 0x7F800000 - step):
        for units in (-1, 0, 1, 2):
            at = base + units * step
            found |= {at + rest for rest in (-1, 0, 1, step // 2 - 1, step // 2, step // 2 + 1)}
    return [bits | sign for bits in sorted(found) if 0 <= bits < 0x7F800000 for sign in (0, SIGN)]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rounding_at_boundaries_matches_rational_arithmetic(precision: int, cases: Callable[[int], None]) -> None:
    """FP64 numbers at, and one FP64 number beside, every kind of boundary; infinities, NaN of every payload."""
    exact = torch.tensor(
        [float(Fraction(2) ** e * n) for n, e in map(decode, boundaries(precision))], dtype=torch.float64
    )
    rounded = Round(precision)
    for x in (exact, torch.nextafter(exact, exact * 0), torch.nextafter(exact, exact * 4), exact * 2.0**-23):
        ratios = [value.as_integer_ratio() for value in x.tolist()]
        right = [round_ratio(*ratio, precision=precision) for ratio in ratios]
        negative = [
            SIGN if math.copysign(1, value) < 0 and bits == 0 else bits
            for value, bits in zip(x.tolist(), right, strict=True)
        ]
        assert elements_of(rounded(x)) == negative
        cases(len(right))
    payloads = [0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF, -1, 0x7FF8000000000000]
    assert rounded(torch.tensor(payloads).view(torch.float64)).isnan().all()
    infinite = torch.tensor([math.inf, -math.inf, 2.0**128, -(2.0**1023)], dtype=torch.float64)
    assert rounded(infinite).tolist() == [math.inf, -math.inf, math.inf, -math.inf]


@settings(max_examples=300)
@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(16, 32))
def test_rounding_any_float64_matches_rational_arithmetic(value: float, precision: int) -> None:
    x = torch.tensor([value], dtype=torch.float64)
    right = round_ratio(*value.as_integer_ratio(), precision=precision)
    assert elements_of(Round(precision)(x) + 0.0) == [0 if right == SIGN else right]


def decode_ratio(bits: int) -> tuple[int, int]:
    n, e = decode(bits)
    return (n << e, 1) if e >= 0 else (n, 1 << -e)


@settings(max_examples=300)
@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-3e38, max_value=3e38), st.integers(16, 32))
def test_gaps_are_the_distances_between_neighbouring_floats(value: float, precision: int) -> None:
    n, d = abs(value).as_integer_ratio()
    shift = 1200
    below = round_f32((n << shift) // d, -shift, precision=32) & (-1 << (32 - precision))
    while Fraction(*decode_ratio(below)) > Fraction(n, d):
        below -= 1 << (32 - precision)
    above = below + (1 << (32 - precision))
    if above < 0x7F800000:
        gap = Fraction(*decode_ratio(above)) - Fraction(*decode_ratio(below))
        assert Fraction(Round(precision).gaps(torch.tensor([value], dtype=torch.float64)).item()) == gap


def test_precisions_outside_16_to_32_bits_are_refused() -> None:
    for precision in (15, 33):
        with pytest.raises(ValueError, match="a precision of 16 to 32 bits, got"):
            Arithmetic(precision=precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_sums_next_to_rounding_boundaries_are_exact(precision: int, cases: Callable[[int], None]) -> None:
    """One term at a boundary or a middle, and what lies by less than FP64 can tell on either side of it."""
    far = 0x20000000
    others = ((0, 0), (1, 0), (1 | SIGN, 0), (1, 1), (far, far | SIGN), (far + 1, far | SIGN))
    rows = [(bits, *beside) for bits in boundaries(precision) for beside in others]
    i = sum_over((len(rows),), (3,), Access(0, 0, (3, 1)))
    terms = tensor_of(DType.F32, [bits for row in rows for bits in row])
    check(Arithmetic(precision=precision), i, [terms])
    by_one = sum_over((len(rows), 2), (3,), Access(0, 0, (3, 0, 1)), Access(1, 0, (0, 3, 1)))
    check(Arithmetic(precision=precision), by_one, [terms, tensor_of(DType.F32, [0x3F800000] * 3 + [0x3F000001] * 3)])
    cases(3 * len(rows))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("function", sorted(TRANSCENDENTALS))
def test_transcendental_functions_are_correctly_rounded(
    function: MapFunction, precision: int, cases: Callable[[int], None]
) -> None:
    """Arguments that are middles themselves are taken to next to one by tanh, sin, and, beside 1, by exp and cos."""
    halves = [
        0x38000000 | 1 << (31 - precision) if precision < 32 else 0x38000001,
        0x0000C000,
        0x00018000,
        0x1F000000 | 1 << 15,
    ]
    bits = [*EDGE_F32, *NON_FINITE, *halves, *(b | SIGN for b in halves), *(0x3C000000 + 77777 * n for n in range(30))]
    i = map_of(function, DType.F32, (len(bits),), Access(0, 0, (1,)))
    check(Arithmetic(precision=precision), i, [tensor_of(DType.F32, bits)])
    cases(len(bits))


def test_reduced_precision_does_not_round_elementwise_results() -> None:
    """Only sums and transcendentals are rounded to b bits."""
    third = 0x3EAAAAAB
    i = map_of(MapFunction.COPY, DType.F32, (1,), Access(0, 0, (1,)))
    arithmetic = Arithmetic(precision=16)
    assert check(arithmetic, i, [tensor_of(DType.F32, [third])]) == [third]
    assert check(arithmetic, sum_of([third]), [tensor_of(DType.F32, [third])]) == [0x3EAB0000]
