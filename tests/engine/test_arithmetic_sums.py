"""Sums, plain and of products: torch against integers, bit for bit."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.engine.arithmetic_cases import (
    Maker,
    bits_f32,
    check,
    elements_of,
    expected,
    random_reduction,
    sum_of,
    tensor_of,
)
from tiebreak.engine.arithmetic import Arithmetic, reduce, ziv
from tiebreak.engine.arithmetic.reduce.compiled import _order
from tiebreak.engine.arithmetic.reduce.pure import multiply
from tiebreak.engine.arithmetic.rounding import Round
from tiebreak.engine.arithmetic.ziv import Settler, TermReader, coefficient, round_pair
from tiebreak.protocol.numbers.float32 import round_ratio
from tiebreak.protocol.program.isa import Access, DType, Instruction, Opcode, ReduceFunction

ONE, NAN, INF, HUGE = 0x3F800000, 0x7FC00000, 0x7F800000, 0x7F7FFFFF
HALF_ULP = bits_f32(2.0**-24)
FAR = bits_f32(2.0**-98)
TINY = 1
NEXT_TO_A_TIE = [ONE, HALF_ULP, TINY, FAR, FAR | 0x80000000]
"""1 + 2^-24 + 2^-149: above a tie by less than FP64, or doubled precision beside +-2^-98, can tell."""


KERNELS = ("pure", "compiled") if reduce.build().library is not None else ("pure",)


@pytest.fixture(autouse=True, params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test here runs with the kernel of this machine's compiler, where there is one, and without."""
    if request.param == "pure":
        monkeypatch.setenv("TIEBREAK_NATIVE", "0")
    return str(request.param)


def guess(settler: Settler, elements: Tensor, reader: TermReader) -> Tensor:
    """A float sum as last resort. It must be caught."""
    return settler.rounded(reader.read(elements, 0, reader.terms).sum(1))


def run(arithmetic: Arithmetic, i: Instruction, *operands: list[int]) -> list[int]:
    return elements_of(arithmetic.execute(i, [tensor_of(DType.F32, x) for x in operands], 0).reshape(-1))


def matmul_of(batch: int, m: int, n: int, k: int) -> Instruction:
    accesses = (Access(0, 0, (m * k, k, 0, 1)), Access(1, 0, (k * n, 0, 1, n)))
    return Instruction(opcode=Opcode.REDUCE, dtype=DType.F32, shape=(batch, m, n), reduction=(k,), operands=accesses)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_sums_over_random_views(seed: int) -> None:
    make = Maker(random.Random(seed))
    instruction, operands = random_reduction(make, ReduceFunction.SUM, DType.F32)
    check(Arithmetic(), instruction, operands)
    # Cut into slabs and parts of a few elements, and with the terms in a random order: the same bits.
    check(Arithmetic(permute=seed, fp64_elements=make.random.choice([1, 4, 16])), instruction, operands)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_wrapping_sums_over_random_views(seed: int) -> None:
    check(Arithmetic(), *random_reduction(Maker(random.Random(seed)), ReduceFunction.SUM, DType.I64))


@pytest.mark.parametrize(
    ("terms", "result"),
    [
        ([ONE, HALF_ULP], ONE),  # a tie, to even
        ([ONE + 1, HALF_ULP], ONE + 2),  # a tie, to even, up
        ([ONE, HALF_ULP, TINY], ONE + 1),
        ([ONE, HALF_ULP, TINY | 0x80000000], ONE),
        (NEXT_TO_A_TIE, ONE + 1),
        ([*NEXT_TO_A_TIE[:2], TINY | 0x80000000, *NEXT_TO_A_TIE[3:]], ONE),
        ([HUGE, HUGE, HUGE | 0x80000000], HUGE),
        ([HUGE, bits_f32(2.0**103)], INF),  # exactly half an ulp above the greatest
        ([HUGE, bits_f32(2.0**103), TINY | 0x80000000], HUGE),
        ([ONE, ONE | 0x80000000], 0),
        ([0x80000000, 0x80000000], 0),
        ([0x80000000], 0),
        ([TINY | 0x80000000], TINY | 0x80000000),
        ([INF], NAN),
        ([INF, ONE], NAN),
        ([INF, INF | 0x80000000], NAN),
        ([NAN], NAN),
    ],
)
def test_by_hand(terms: list[int], result: int) -> None:
    for seed in (None, 1, 2, 3):
        assert run(Arithmetic(permute=seed), sum_of(terms), terms) == [result]
    assert run(Arithmetic(), sum_of(terms, terms), terms, [ONE] * len(terms)) == [result]
    scatter_like = replace(sum_of(terms), shape=(3,), operands=(Access(0, 0, (0, 1)),))
    assert run(Arithmetic(), scatter_like, terms) == [result] * 3


@pytest.mark.parametrize(("a", "b"), [(INF, 0), (0, INF), (NAN, 0), (INF, ONE)])
def test_a_non_finite_factor_makes_nan(a: int, b: int) -> None:
    """Also where a matrix product would skip the zero. The other rows are not touched."""
    left, right = [a, 0, 0, ONE, ONE, ONE], [b, ONE, 0, 0, 0, 0]
    found = check(Arithmetic(), matmul_of(1, 2, 2, 3), [tensor_of(DType.F32, left), tensor_of(DType.F32, right)])
    assert NAN in found


@pytest.mark.usefixtures("pure")
def test_an_engine_without_the_integers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only exact sums get this right; what replaces them is wrong in some order of the terms."""
    terms = [*NEXT_TO_A_TIE, *[0] * 2000]
    i = sum_of(terms)
    exact = Arithmetic()
    assert run(exact, i, terms) == expected(i, [tensor_of(DType.F32, terms)]) == [ONE + 1]
    assert exact.stats.of("reduce.sum.plain").undecided_twice == 1
    monkeypatch.setattr(Settler, "_exact", guess)
    assert run(Arithmetic(), i, terms) == [ONE]


@pytest.mark.usefixtures("pure")
@pytest.mark.parametrize("count", [3, 40])
def test_few_and_many_agree(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Undecided elements settled one by one or all at once: the same bits and counts but the integers."""
    make = Maker(random.Random(count))
    i = Instruction(
        opcode=Opcode.REDUCE,
        dtype=DType.F32,
        shape=(count, 9),
        reduction=(5, 4),
        operands=(Access(0, 4, (20, 0, -1, 5)), Access(1, 160, (0, -20, 1, 0))),
    )
    for style in ("ties", "any"):
        operands = [make.tensor(DType.F32, 20 * count + 20, style), make.tensor(DType.F32, 200, style)]
        found, undecided = [], []
        for dense in (0, 1 << 60):
            monkeypatch.setattr(ziv, "DENSE", dense)
            arithmetic = Arithmetic()
            found.append(check(arithmetic, i, operands))
            counts = arithmetic.stats.of("reduce.sum.products")
            undecided.append((counts.elements, counts.undecided, counts.double_rounded))
        assert found[0] == found[1]
        assert undecided[0] == undecided[1]
        assert undecided[0][1] > 0


def test_what_is_counted(kernel: str) -> None:
    """FP64-then-round gets the second row wrong (a false tie), and the last. The third is on a grid."""
    exactly = 2 if kernel == "compiled" else 3
    rows = [ONE, ONE, ONE, ONE, HALF_ULP, bits_f32(2.0**-80), ONE, HALF_ULP, 0, *NEXT_TO_A_TIE[:3]]
    arithmetic = Arithmetic()
    i = Instruction(opcode=Opcode.REDUCE, dtype=DType.F32, shape=(4,), reduction=(3,), operands=(Access(0, 0, (3, 1)),))
    assert run(arithmetic, i, rows) == [bits_f32(3.0), ONE + 1, ONE, ONE + 1]
    counts = arithmetic.stats.of("reduce.sum.plain")
    assert (counts.elements, counts.undecided, counts.undecided_twice, counts.double_rounded) == (4, 3, exactly, 2)
    run(arithmetic, i, rows)
    assert (counts.elements, counts.undecided, counts.undecided_twice, counts.double_rounded) == (8, 6, 2 * exactly, 4)
    assert counts.logged == 0


@pytest.mark.parametrize("style", ["gauss", "ties", "wide"])
@pytest.mark.parametrize(("batch", "m", "n", "k"), [(1, 3, 2, 1500), (2, 2, 2, 700), (1, 1, 1, 5000), (3, 1, 4, 40)])
def test_long_products(style: str, batch: int, m: int, n: int, k: int) -> None:
    """K in blocks, in slabs, and cancelling: the second half of each row of the left is minus the first, but one."""
    make = Maker(random.Random(k))
    left, right = (make.tensor(DType.F32, batch * k * wide, style).reshape(-1, k) for wide in (m, n))
    half = k // 2
    left[:, half : 2 * half] = -left[:, :half]
    right[:, half : 2 * half] = right[:, :half]
    left[:, 0] = torch.nextafter(left[:, 0], torch.tensor(0.0))
    i = matmul_of(batch, m, n, k)
    i = replace(i, operands=(i.operands[0], Access(1, 0, (n * k, 0, k, 1))))
    operands = [left.reshape(-1).contiguous(), right.reshape(-1).contiguous()]
    found = check(Arithmetic(), i, operands)
    for arithmetic in (Arithmetic(permute=5), Arithmetic(permute=6, fp64_elements=300)):
        assert elements_of(arithmetic.execute(i, operands, 0)) == found


def test_the_same_bits_with_any_number_of_threads() -> None:
    make = Maker(random.Random(1))
    operands = [make.tensor(DType.F32, 64 * 300, "gauss") for _ in range(2)]
    i = matmul_of(1, 64, 64, 300)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(elements_of(Arithmetic().execute(i, operands, 0)))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]


def test_convolution_over_overlapping_views() -> None:
    """2 images, 3 channels, 6x6, 2 filters of 3x3: seven dims, and both gradients read the same way."""
    make = Maker(random.Random(2))
    image, filters = make.tensor(DType.F32, 2 * 3 * 36, "ties"), make.tensor(DType.F32, 2 * 27, "gauss")
    i = Instruction(
        opcode=Opcode.REDUCE,
        dtype=DType.F32,
        shape=(2, 2, 4, 4),
        reduction=(3, 3, 3),
        operands=(Access(0, 0, (108, 0, 6, 1, 36, 6, 1)), Access(1, 0, (0, 27, 0, 0, 9, 3, 1))),
    )
    for limit in (None, 64, 7):
        check(Arithmetic(fp64_elements=limit), i, [image, filters])


@pytest.mark.parametrize("width", [4, 7, 9, 24])
def test_rows_of_an_image_end_within_panels(width: int) -> None:
    """A convolution of 2 images with 3 channels, 5 filters of 3x3, and what its filters get: columns, then terms."""
    make, line, out = Maker(random.Random(width)), width + 2, 7 * width
    image = make.tensor(DType.F32, 2 * 3 * 9 * line, "gauss")
    filters, grad = make.tensor(DType.F32, 5 * 27, "ties"), make.tensor(DType.F32, 2 * 5 * out, "ties")
    plane = 9 * line
    read = (3 * plane, line, 1, plane, line, 1)  # image, row, column, channel, row and column of the filter
    forward = Instruction(
        opcode=Opcode.REDUCE, dtype=DType.F32, shape=(2, 5, 7, width), reduction=(3, 3, 3),
        operands=(Access(0, 0, (read[0], 0, *read[1:])), Access(1, 0, (0, 27, 0, 0, 9, 3, 1))),
    )  # fmt: skip
    into_filters = Instruction(
        opcode=Opcode.REDUCE, dtype=DType.F32, shape=(5, 3, 3, 3), reduction=(2, 7, width),
        operands=(Access(0, 0, (0, *read[3:], *read[:3])), Access(1, 0, (out, 0, 0, 0, 5 * out, width, 1))),
    )  # fmt: skip
    for instruction, other in ((forward, filters), (into_filters, grad)):
        found = check(Arithmetic(), instruction, [image, other])
        for seed in range(3):
            assert elements_of(Arithmetic(permute=seed).execute(instruction, [image, other], 0)) == found


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("count", [1, 3, 16, 17, 191, 192, 193, 4992])
def test_a_random_order_has_each_term_once(count: int, apart: bool) -> None:
    order = _order(count, torch.Generator().manual_seed(count), apart=apart)
    assert sorted(order.tolist()) == list(range(count))
    if count == 4992:
        assert (abs(order[1:] - order[:-1]) > 1).mean() > 0.2
    if count == 4992 and not apart:
        pieces = order.reshape(-1, 4)
        assert (pieces == pieces[:, :1] + np.arange(4)).all()
        assert {len(set((window // 16).tolist())) for window in order.reshape(-1, 192)} == {12}


@pytest.mark.parametrize("k", [1, 2, 700, 5000, 70000])
def test_the_number_of_roundings_of_a_blocked_product(k: int) -> None:
    """The claimed depth bounds the true error against integers, and is far below K where K is long."""
    generator = torch.Generator().manual_seed(k)
    a, b = (torch.randn((1, 2, k), generator=generator).to(torch.float64) for _ in range(2))
    c, depth = multiply(a, b.transpose(1, 2))
    assert depth <= max(520, 70 + k // 60)
    size = torch.mm(a[0].abs(), b[0].abs().T)
    for row in range(2):
        for column in range(2):
            exact = sum(
                int(x * 2**149) * int(y * 2**149)
                for x, y in zip(a[0, row].tolist(), b[0, column].tolist(), strict=True)
            )
            error = abs(int(c[0, row, column].item() * 2.0**298) - exact)
            assert error <= int(coefficient(depth) * size[row, column].item() * 2.0**298)


@settings(max_examples=200, deadline=None)
@given(st.floats(-1e30, 1e30), st.floats(-1e30, 1e30), st.integers(16, 32))
def test_round_pair(s: float, t: float, precision: int) -> None:
    """Against rationals."""
    (n, d), (p, q) = s.as_integer_ratio(), t.as_integer_ratio()
    pair = (torch.tensor([x], dtype=torch.float64) for x in (s, t))
    found = elements_of(round_pair(*pair, Round(precision)) + 0.0)[0]
    right = round_ratio(n * q + p * d, d * q, precision=precision)
    assert found == (0 if right == 0x80000000 else right)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**24 - 1), st.integers(-3, 3), st.floats(-1e-20, 1e-20), st.integers(-160, 100), st.integers(16, 32)
)
def test_round_pair_next_to_ties(n: int, eighths: int, rest: float, e: int, precision: int) -> None:
    n = 2 ** (precision - 9) + n % 2 ** (precision - 9)
    near = (n + 0.5 + eighths / 8) * 2.0**e, rest * 2.0**e
    test_round_pair.hypothesis.inner_test(*near, precision)  # type: ignore[attr-defined]


def test_cases_were_run(cases: Callable[[int], None]) -> None:
    """The random reductions reach every group of dims."""
    kinds = set()
    for seed in range(300):
        i, _ = random_reduction(Maker(random.Random(seed)), ReduceFunction.SUM, DType.F32)
        rank = len(i.shape)
        for d, size in enumerate(i.index_space):
            if size > 1:
                kinds.add((d < rank, tuple(a.strides[d] != 0 for a in i.operands)))
    assert len(kinds) == 2 * (2 + 4)
    cases(len(kinds))
