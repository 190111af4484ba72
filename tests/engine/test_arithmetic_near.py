"""Near ties of policy `logged`: what is reported lies where it is said to lie, everything else is exact."""

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.arithmetic_cases import (
    STYLES,
    Maker,
    bits_f32,
    elements_of,
    expected,
    map_of,
    product,
    random_reduction,
    random_scatter,
    sum_of,
    sum_over,
    tensor_of,
)
from tests.parts import slow_except
from tiebreak.engine.arithmetic import Arithmetic, Logging, NearTies
from tiebreak.engine.arithmetic.c import threads as kernel_threads
from tiebreak.engine.arithmetic.c.threads import limited
from tiebreak.engine.arithmetic.plain import exact
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.float32 import plus_zero, round_ratio
from tiebreak.protocol.program.accumulator import SUM_EXPONENT, Accumulator
from tiebreak.protocol.program.isa import Access, DType, Instruction, MapFunction, Opcode, ReduceFunction
from tiebreak.protocol.program.reference import accumulators
from tiebreak.protocol.program.rounding import Direction, Rounding, SumKind, neighbours, round_sum, sum_kind

pytestmark = pytest.mark.usefixtures("kernel")
ONE, HALF_ULP, SIGN = 0x3F800000, bits_f32(2.0**-24), 0x80000000
ALL = dict.fromkeys(SumKind, None)


def logging(n: int = 2, kappa: float | None = None) -> Logging:
    return Logging(dict.fromkeys(SumKind, kappa), dict.fromkeys(SumKind, n))


def run(arithmetic: Arithmetic, i: Instruction, operands: Sequence[torch.Tensor]) -> tuple[list[int], NearTies]:
    result, ties = arithmetic.execute_logged(i, operands, 0)
    assert result.shape == i.shape
    assert result.is_contiguous()
    return elements_of(result.reshape(-1)), ties


def exact_sum(i: Instruction, operands: Sequence[torch.Tensor], at: int) -> Fraction | None:
    values = [elements_of(x) for x in operands]
    types = [DType.F32, DType.I64 if i.opcode == Opcode.SCATTER_SUM else DType.F32]
    last: Accumulator = accumulators(i, at, lambda o, where: values[o][where], types[: len(operands)])[-1]
    return None if last.invalid else Fraction(last.value) * Fraction(2) ** SUM_EXPONENT


def check_logged(arithmetic: Arithmetic, i: Instruction, operands: Sequence[torch.Tensor]) -> int:
    """Asserts all that policy `logged` promises; how many elements were reported."""
    options = arithmetic.options
    assert options.logging is not None
    kind = sum_kind(i)
    assert kind is not None
    n, precision = options.logging.tolerances[kind], options.precision
    found, ties = run(arithmetic, i, operands)
    right = expected(i, operands, 0, precision)
    reported = dict(zip(ties.elements.tolist(), zip(ties.values, ties.errors, strict=True), strict=True))
    if len(ties):
        assert sorted(reported) == ties.elements.tolist()
        assert arithmetic.stats.kinds
    for at, (got, want) in enumerate(zip(found, right, strict=True)):
        if at not in reported:
            assert got == want, (at, hex(got), hex(want), i)
            continue
        c, e = reported[at]
        x = exact_sum(i, operands, at)
        assert x is not None
        assert abs(Fraction(float(c)) - x) <= Fraction(float(e))
        assert got == plus_zero(round_ratio(*float(c).as_integer_ratio(), precision=precision))
        sums = arithmetic.exact_sums(i, operands, [at])[0]
        assert sums is not None
        assert Fraction(sums[0]) * Fraction(2) ** sums[1] == x
        assert neighbours(*sums, Rounding(precision=precision, tolerance=n))[1]
        choices = [
            round_sum(*sums, Rounding(precision=precision, tolerance=n, direction=d))
            for d in (Direction.DOWN, Direction.UP)
        ]
        assert got in choices
    return len(reported)


@settings(max_examples=80)
@given(st.integers(0, 2**32), st.integers(16, 32), st.integers(2, 30))
def test_logged_sums_over_random_views_report_true_near_ties(seed: int, precision: int, n: int) -> None:
    make = Maker(random.Random(seed))
    i, operands = random_reduction(make, ReduceFunction.SUM, DType.F32)
    check_logged(Arithmetic(precision=precision, logging=logging(n)), i, operands)
    permuted = Arithmetic(
        permute=seed, precision=precision, logging=logging(n), fp64_elements=make.random.choice([1, 4, 16])
    )
    check_logged(permuted, i, operands)


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(16, 32), st.integers(2, 30), st.sampled_from([None, 1e9]))
def test_logged_scatters_over_random_views_report_true_near_ties(
    seed: int, precision: int, n: int, kappa: float | None
) -> None:
    i, operands = random_scatter(Maker(random.Random(seed)))
    check_logged(Arithmetic(precision=precision, logging=logging(n, kappa)), i, operands)
    check_logged(Arithmetic(permute=seed, precision=precision, logging=logging(n)), i, operands)


@pytest.mark.parametrize("style", slow_except(STYLES, "ties"))
def test_logged_matrix_products_report_true_near_ties(style: str, cases: Callable[[int], None]) -> None:
    """Overflow, subnormals, cancellation and ties among them; non-finite ones are NaN and never reported."""
    make = Maker(random.Random(style))
    left, right = make.tensor(DType.F32, 9 * 300, style), make.tensor(DType.F32, 300 * 8, style)
    left[300:450] = -left[450:600]
    right.view(300, 8)[:150] = right.view(300, 8)[150:]
    for precision in (16, 20, 24, 32):
        check_logged(Arithmetic(precision=precision, logging=logging(2)), product(9, 300, 8), [left, right])
        cases(72)


TIE = [ONE, HALF_ULP]


def test_a_tie_of_exactly_added_terms_is_not_reported() -> None:
    found, ties = run(Arithmetic(logging=logging()), sum_of(TIE), [tensor_of(DType.F32, TIE)])
    assert (found, len(ties)) == ([ONE], 0)
    factors = [tensor_of(DType.F32, [*TIE] * 2), tensor_of(DType.F32, [ONE, 0, ONE, 0])]
    found, ties = run(Arithmetic(logging=logging()), product(2, 2, 2), factors)
    assert (found, len(ties)) == ([ONE, 0, ONE, 0], 0)


def test_a_tie_of_inexactly_added_terms_is_reported() -> None:
    """Its terms cancel to a tie, but in other orders they would not add exactly."""
    terms = [*TIE, 0x20000000, 0x20000000 | SIGN]
    arithmetic = Arithmetic(logging=logging())
    assert check_logged(arithmetic, sum_of(terms), [tensor_of(DType.F32, terms)]) == 1
    counts = arithmetic.stats.of("reduce.sum.plain")
    assert (counts.elements, counts.undecided, counts.logged, counts.undecided_twice) == (1, 1, 1, 0)
    for kind, n in ((SumKind.PRODUCTS, 2), (SumKind.PLAIN, 0)):
        unlogged = Arithmetic(logging=Logging(ALL, {kind: n}))
        found, ties = run(unlogged, sum_of(terms), [tensor_of(DType.F32, terms)])
        assert (found, len(ties)) == ([ONE], 0)
        assert unlogged.stats.of("reduce.sum.plain").logged == 0


def test_near_ties_beyond_the_tolerance_are_settled_exactly() -> None:
    """c is known to 2^-52, the result's gap is 2^-49: too close to call, so nobody is asked."""
    terms = [ONE, bits_f32(2.0**-26 + 2.0**-49), ONE | SIGN, bits_f32(2.0**-51)]
    i, operands = sum_of(terms), [tensor_of(DType.F32, terms)]
    assert check_logged(Arithmetic(logging=logging(2)), i, operands) == 0
    near = [ONE, HALF_ULP, 0x20000000, 0x20000000 | SIGN]
    i, operands = sum_of(near), [tensor_of(DType.F32, near)]
    assert [check_logged(Arithmetic(logging=logging(n)), i, operands) for n in (2, 20, 40)] == [1, 1, 0]


def test_sums_are_exact_when_nobody_records_near_ties() -> None:
    terms = [*TIE, 0x20000000, 0x20000000 | SIGN]
    arithmetic = Arithmetic(logging=logging())
    assert elements_of(arithmetic.execute(sum_of(terms), [tensor_of(DType.F32, terms)], 0).reshape(-1)) == [ONE]


def test_near_ties_of_broadcast_sums_are_reported_for_each_element() -> None:
    """An output dim that no operand reads."""
    terms = [*TIE, 0x20000000, 0x20000000 | SIGN]
    i = sum_over((2, 1, 3), (4,), Access(0, 0, (0, 0, 0, 1)))
    assert check_logged(Arithmetic(logging=logging()), i, [tensor_of(DType.F32, terms)]) == 6


@pytest.mark.parametrize(("precision", "kappa"), [(32, 4.0), (26, 1e3)])
def test_the_reported_error_scales_with_the_threshold(precision: int, kappa: float) -> None:
    """e = kappa * u * N for every kind; the reported set grows with kappa."""
    make = Maker(random.Random(7))
    left, right = make.tensor(DType.F32, 40 * 50, "gauss"), make.tensor(DType.F32, 50 * 60, "gauss")
    norms = left.view(40, 50).double().norm(dim=1)[:, None] * right.view(50, 60).double().norm(dim=0)
    _, ties = run(Arithmetic(precision=precision, logging=logging(2, kappa)), product(40, 50, 60), [left, right])
    _, more = run(Arithmetic(precision=precision, logging=logging(2, 2.0**20)), product(40, 50, 60), [left, right])
    assert len(more)
    found = set(ties.elements.tolist())
    assert found < set(more.elements.tolist())
    errors = torch.from_numpy(more.errors) / 2.0**20 / 2.0**-53
    assert torch.allclose(errors, norms.view(-1)[torch.from_numpy(more.elements)], rtol=1e-5)  # integers round norms up


@pytest.mark.parametrize("precision", [16, 32])
def test_calibration_receives_every_element_with_its_error(precision: int) -> None:
    """c and N of all elements: of products, plain sums and scatters."""
    make = Maker(random.Random(8))
    all_of = Logging.reporting_all()
    left, right = make.tensor(DType.F32, 40 * 50, "gauss"), make.tensor(DType.F32, 50 * 60, "gauss")
    unit = 2.0**-53
    arithmetic = Arithmetic(logging=all_of, precision=precision)
    found, ties = run(arithmetic, product(40, 50, 60), [left, right])
    assert len(ties)
    assert ties.elements.tolist() == list(range(2400))
    norms = left.view(40, 50).double().norm(dim=1)[:, None] * right.view(50, 60).double().norm(dim=0)
    assert torch.allclose(torch.from_numpy(ties.errors) / 2.0**60 / unit, norms.view(-1), rtol=1e-12)
    sums = left.view(40, 50).double() @ right.view(50, 60).double()
    assert torch.allclose(torch.from_numpy(ties.values), sums.view(-1), rtol=0, atol=50 * unit * 100)
    assert found == [plus_zero(round_ratio(*c.as_integer_ratio(), precision=precision)) for c in ties.values.tolist()]
    i = sum_over((40,), (50,), Access(0, 0, (50, 1)))
    _, ties = run(arithmetic, i, [left])
    assert len(ties)
    assert torch.equal(torch.from_numpy(ties.elements), torch.arange(40))
    size = left.view(40, 50).double().abs().sum(1)
    assert torch.allclose(torch.from_numpy(ties.errors) / 2.0**7, size, rtol=1e-12)  # plain sums are FP64


def test_overflow_of_the_near_tie_buffer_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled kernels then compute everything once more; counted is what was done last."""
    monkeypatch.setattr(kernel_threads, "NEAR_ROOM", -150)  # none for the first 16 x 150 elements
    left, right = torch.randn(40 * 50), torch.randn(50 * 60)
    arithmetic = Arithmetic(precision=16, logging=logging(2, 1e12))
    _, ties = run(arithmetic, product(40, 50, 60), [left, right])
    assert len(ties)
    counts = arithmetic.stats.of("reduce.sum.products")
    assert 9 < len(ties) == counts.logged <= counts.undecided < 2400
    assert counts.elements == 2400


@pytest.mark.parametrize("threads", [1, 3])
def test_logged_sums_err_only_at_near_ties_on_any_thread_count(threads: int) -> None:
    """Long sums too, whose terms are cut into parts."""
    left, right = torch.randn(30 * 9000), torch.randn(9000 * 30)
    arithmetic = Arithmetic(precision=24, logging=logging(2, 1e7))
    with limited(threads):
        found, ties = run(arithmetic, product(30, 9000, 30), [left, right])
    assert len(ties)
    exact = Arithmetic(precision=24).execute(product(30, 9000, 30), [left, right], 0)
    wrong = [at for at, (a, b) in enumerate(zip(found, elements_of(exact.view(-1)), strict=True)) if a != b]
    assert set(wrong) <= set(ties.elements.tolist())


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_exact_sums_equal_rational_arithmetic(seed: int) -> None:
    make = Maker(random.Random(seed))
    scattered = seed % 3 == 0
    i, operands = random_scatter(make) if scattered else random_reduction(make, ReduceFunction.SUM, DType.F32)
    elements = [make.random.randrange(i.numel) for _ in range(5)]
    with mock.patch.object(exact, "ROW_BUDGET", 4):  # terms are added in pieces
        sums = Arithmetic().exact_sums(i, operands, elements)
    for at, found in zip(elements, sums, strict=True):
        right = exact_sum(i, operands, at)
        assert (found is None) == (right is None)
        if found is not None:
            assert Fraction(found[0]) * Fraction(2) ** found[1] == right


def test_exact_sums_refuse_instructions_other_than_sums() -> None:
    i = map_of(MapFunction.NEG, DType.F32, (1,), Access(0, 0, (1,)))
    with pytest.raises(ValueError, match="an f32 sum, got MAP"):
        Arithmetic().exact_sums(i, [torch.ones(1)], [0])


@pytest.mark.parametrize(
    ("thresholds", "tolerances", "match"),
    [
        ({SumKind.PLAIN: 0.0}, {}, "a positive threshold for PLAIN sums, got 0.0"),
        ({SumKind.SCATTER: float("nan")}, {}, "a positive threshold for SCATTER sums, got nan"),
        ({}, {SumKind.PRODUCTS: 1}, "0 or 2 to 64 as tolerance of PRODUCTS sums, got 1"),
        ({}, {SumKind.PRODUCTS: 65}, "0 or 2 to 64 as tolerance of PRODUCTS sums, got 65"),
    ],
)
def test_invalid_logging_thresholds_and_tolerances_are_refused(
    thresholds: dict[SumKind, float | None], tolerances: dict[SumKind, int], match: str
) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Logging(thresholds, tolerances)
