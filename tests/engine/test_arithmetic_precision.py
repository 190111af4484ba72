"""Sums and transcendentals of 16 to 32 bits: torch and the compiled kernels against integers, bit for bit."""

import math
import random
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.arithmetic_cases import (
    EDGE_F32,
    NON_FINITE,
    Maker,
    check,
    elements_of,
    random_reduction,
    random_scatter,
    sum_of,
    tensor_of,
)
from tests.parts import slow_except
from tiebreak.engine.arithmetic import Arithmetic, reduce
from tiebreak.engine.arithmetic.rounding import Round
from tiebreak.protocol.numbers.float32 import decode, round_f32, round_ratio
from tiebreak.protocol.program.isa import (
    TRANSCENDENTALS,
    Access,
    DType,
    Instruction,
    MapFunction,
    Opcode,
    ReduceFunction,
)

KERNELS = ("pure", "compiled") if reduce.build().library is not None else ("pure",)
PRECISIONS = (16, 17, 23, 24, 25, 31, 32)
SIGN = 0x80000000


@pytest.fixture(autouse=True, params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test here runs with the kernels of this machine's compiler, where there is one, and without."""
    if request.param == "pure":
        monkeypatch.setenv("TIEBREAK_NATIVE", "0")
    return str(request.param)


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
def test_rounding_against_rationals(precision: int, cases: Callable[[int], None]) -> None:
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
def test_rounding_of_any_number(value: float, precision: int) -> None:
    x = torch.tensor([value], dtype=torch.float64)
    right = round_ratio(*value.as_integer_ratio(), precision=precision)
    assert elements_of(Round(precision)(x) + 0.0) == [0 if right == SIGN else right]


@settings(max_examples=300)
@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-3e38, max_value=3e38), st.integers(16, 32))
def test_gaps_are_those_between_neighbours(value: float, precision: int) -> None:
    n, d = abs(value).as_integer_ratio()
    shift = 1200
    below = round_f32((n << shift) // d, -shift, precision=32) & (-1 << (32 - precision))
    while Fraction(*decode_ratio(below)) > Fraction(n, d):
        below -= 1 << (32 - precision)
    above = below + (1 << (32 - precision))
    if above < 0x7F800000:
        gap = Fraction(*decode_ratio(above)) - Fraction(*decode_ratio(below))
        assert Fraction(Round(precision).gaps(torch.tensor([value], dtype=torch.float64)).item()) == gap


def decode_ratio(bits: int) -> tuple[int, int]:
    n, e = decode(bits)
    return (n << e, 1) if e >= 0 else (n, 1 << -e)


@pytest.mark.parametrize("precision", [15, 33, 0])
def test_other_precisions_are_refused(precision: int) -> None:
    with pytest.raises(ValueError, match="a precision of 16 to 32 bits, got"):
        Arithmetic(precision=precision)


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(16, 32))
def test_sums_over_random_views(seed: int, precision: int) -> None:
    make = Maker(random.Random(seed))
    instruction, operands = random_reduction(make, ReduceFunction.SUM, DType.F32)
    check(Arithmetic(precision=precision), instruction, operands)
    check(
        Arithmetic(permute=seed, precision=precision, fp64_elements=make.random.choice([1, 4, 16])),
        instruction,
        operands,
    )


@settings(max_examples=80)
@given(st.integers(0, 2**32), st.integers(16, 32))
def test_scatters_over_random_views(seed: int, precision: int) -> None:
    i, operands = random_scatter(Maker(random.Random(seed)))
    check(Arithmetic(precision=precision), i, operands)
    check(Arithmetic(permute=seed, precision=precision), i, operands)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_sums_beside_every_boundary(precision: int, cases: Callable[[int], None]) -> None:
    """One term at a boundary or a middle, and what lies by less than FP64 can tell on either side of it."""
    far = 0x20000000
    others = ((0, 0), (1, 0), (1 | SIGN, 0), (1, 1), (far, far | SIGN), (far + 1, far | SIGN))
    rows = [(bits, *beside) for bits in boundaries(precision) for beside in others]
    i = Instruction(
        opcode=Opcode.REDUCE, dtype=DType.F32, shape=(len(rows),), reduction=(3,), operands=(Access(0, 0, (3, 1)),)
    )
    terms = tensor_of(DType.F32, [bits for row in rows for bits in row])
    check(Arithmetic(precision=precision), i, [terms])
    by_one = Instruction(
        opcode=Opcode.REDUCE, dtype=DType.F32, shape=(len(rows), 2), reduction=(3,),
        operands=(Access(0, 0, (3, 0, 1)), Access(1, 0, (0, 3, 1))),
    )  # fmt: skip
    check(Arithmetic(precision=precision), by_one, [terms, tensor_of(DType.F32, [0x3F800000] * 3 + [0x3F000001] * 3)])
    cases(3 * len(rows))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("function", sorted(TRANSCENDENTALS))
def test_transcendentals(function: MapFunction, precision: int, cases: Callable[[int], None]) -> None:
    """Arguments that are middles themselves are taken to next to one by tanh, sin, and, beside 1, by exp and cos."""
    halves = [
        0x38000000 | 1 << (31 - precision) if precision < 32 else 0x38000001,
        0x0000C000,
        0x00018000,
        0x1F000000 | 1 << 15,
    ]
    bits = [*EDGE_F32, *NON_FINITE, *halves, *(b | SIGN for b in halves), *(0x3C000000 + 77777 * n for n in range(30))]
    i = Instruction(
        opcode=Opcode.MAP, function=function, dtype=DType.F32, shape=(len(bits),), operands=(Access(0, 0, (1,)),)
    )
    check(Arithmetic(precision=precision), i, [tensor_of(DType.F32, bits)])
    cases(len(bits))


def test_elementwise_results_keep_all_their_bits() -> None:
    """Only sums and transcendentals are rounded to b bits."""
    third = 0x3EAAAAAB
    i = Instruction(
        opcode=Opcode.MAP, function=MapFunction.COPY, dtype=DType.F32, shape=(1,), operands=(Access(0, 0, (1,)),)
    )
    arithmetic = Arithmetic(precision=16)
    assert check(arithmetic, i, [tensor_of(DType.F32, [third])]) == [third]
    assert check(arithmetic, sum_of([third]), [tensor_of(DType.F32, [third])]) == [0x3EAB0000]


@pytest.mark.parametrize("precision", slow_except([16, 20, 27], 20))
@pytest.mark.parametrize("style", ["gauss", "ties", "wide", "any"])
def test_large_products_are_the_same_in_every_way(precision: int, style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks, panels and parts, any number of threads, any order; the exact result rounded once."""
    make = Maker(random.Random(precision))
    left, right = make.tensor(DType.F32, 70 * 900, style), make.tensor(DType.F32, 900 * 110, style)
    i = Instruction(
        opcode=Opcode.REDUCE, dtype=DType.F32, shape=(70, 110), reduction=(900,),
        operands=(Access(0, 0, (900, 0, 1)), Access(1, 0, (0, 1, 110))),
    )  # fmt: skip
    found = Arithmetic(precision=precision).execute(i, [left, right], 0)
    assert not bool((found.view(torch.int32) & ((1 << (32 - precision)) - 1))[~found.isnan()].any())
    monkeypatch.setenv("TIEBREAK_NATIVE", "0")
    other = Arithmetic(permute=3, precision=precision).execute(i, [left, right], 0)
    assert elements_of(found.reshape(-1)) == elements_of(other.reshape(-1))
