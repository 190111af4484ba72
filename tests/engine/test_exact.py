"""Exact sums, compiled and in torch, against rationals: of any terms, and of terms that cancel over all exponents."""

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.engine.arithmetic_cases import PLAIN, elements_of, kernel_with, product, sum_over, tensor_of
from tests.engine.test_contraction import HAS_LIMBS
from tests.parts import slow_except
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.c import sums
from tiebreak.engine.arithmetic.plain.exact import LEAST, Digits
from tiebreak.engine.arithmetic.plan.options import Round
from tiebreak.engine.native import Build
from tiebreak.protocol.numbers.float32 import plus_zero, round_f32
from tiebreak.protocol.program.isa import Access, DType

KERNELS = (
    ("pure", "compiled", pytest.param("plain", marks=pytest.mark.slow))
    if sums.build().library is not None
    else ("pure",)
)
EXTREMES = [0, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000, 0xBF800000]
EXTREMES += [0x33800000, 0xB3800000]


@pytest.fixture(scope="session")
def plain_kernel(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return kernel_with(tmp_path_factory.mktemp("plain"), PLAIN)


@pytest.fixture(autouse=True, params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test here runs with the kernels of this machine's compiler, where there is one, and without.

    And as on processors without products of 52 bits.
    """
    if request.param == "pure":
        monkeypatch.setenv("TIEBREAK_NATIVE", "0")
    if request.param == "plain":
        built = request.getfixturevalue("plain_kernel")
        monkeypatch.setattr(sums, "build", lambda: built)
    return str(request.param)


def numbers(seed: int, count: int) -> Tensor:
    """f32 of all exponents or of few, extremes among them; the second half often minus the first, in another order."""
    draw = random.Random(seed)
    low, high = draw.choice([(0, 254), (120, 134), (0, 3), (250, 254), (60, 200)])
    made = [draw.randint(low, high) << 23 | draw.getrandbits(23) | draw.getrandbits(1) << 31 for _ in range(count)]
    made = [draw.choice(EXTREMES) if draw.random() < 0.2 else bits for bits in made]
    return tensor_of(DType.F32, made)


def cancelled(seed: int, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Factors (rows, K) and (K, columns) of which the second half takes off what the first half adds, but one."""
    half = left.shape[1] // 2
    left[:, half : 2 * half], right[half : 2 * half] = -left[:, :half], right[:half]
    if seed % 3 and half:
        left[:, 0] = tensor_of(DType.F32, [random.Random(seed).choice(EXTREMES)])
    order = torch.randperm(left.shape[1], generator=torch.Generator().manual_seed(seed))
    return left[:, order].contiguous(), right[order].contiguous()


def right_bits(rows: Sequence[Sequence[float]], precision: int) -> list[int]:
    sums = (sum(map(Fraction, row), Fraction(0)) * Fraction(2) ** -LEAST for row in rows)
    return [plus_zero(round_f32(n.numerator, LEAST, precision=precision)) for n in sums]


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 70), st.integers(16, 32))
def test_exact_sums_match_rational_arithmetic(seed: int, k: int, precision: int) -> None:
    """The digits of terms, and the instruction itself."""
    m, n = 3, seed % 37 + 1
    left, right = numbers(seed, m * k).view(m, k), numbers(seed + 1, k * n).view(k, n)
    if seed % 3 == 0:  # alike, but for powers of two and zeros
        right = right[:, :1] * 2.0 ** -(torch.arange(n) % (seed % 40 + 1)) * (numbers(seed + 2, n) != 0)
    if seed % 4:
        left, right = cancelled(seed, left, right)
    terms = (left.double()[:, None] * right.double().T).reshape(m * n, k)
    wanted, rounded = right_bits(terms.tolist(), precision), Round(precision)
    digits = Digits.zeros(m * n, terms.device)
    digits.add(terms)
    assert elements_of(digits.rounded(rounded)) == wanted
    assert digits.integers() == [int(sum(map(Fraction, row)) * Fraction(2) ** -LEAST) for row in terms.tolist()]
    assert Digits(digits.packed().long()).integers() == digits.integers()
    operands = [left.reshape(-1), right.reshape(-1)]
    found = Arithmetic(precision=precision).execute(product(m, k, n), operands, 0)
    assert elements_of(found.reshape(-1)) == wanted


LONG = [(0, 1000), (1, 3000), (2, 20_000)]


@pytest.mark.parametrize(("seed", "k"), slow_except(LONG, LONG[0], several=True))
def test_long_cancelling_sums_match_rational_arithmetic(seed: int, k: int) -> None:
    """Products, sums along rows and down columns, of terms that cancel over all exponents."""
    right = numbers(seed + 9, k * 9).view(k, 9)
    right = right[:, :1].expand(k, 9).contiguous() if seed % 2 else right
    left, right = cancelled(seed, numbers(seed, 2 * k).view(2, k), right)
    terms = (left.double()[:, None] * right.double().T).reshape(18, k)
    wanted = right_bits(terms.tolist(), 32)
    arithmetic = Arithmetic()
    assert elements_of(arithmetic.execute(product(2, k, 9), [left.view(-1), right.view(-1)], 0).view(-1)) == wanted
    plain = sum_over((2,), (k,), Access(0, 0, (k, 1)))
    wanted = right_bits(left.double().tolist(), 32)
    assert elements_of(arithmetic.execute(plain, [left.view(-1)], 0)) == wanted
    columns = replace(plain, operands=(Access(0, 0, (1, 2)),))
    assert elements_of(arithmetic.execute(columns, [left.T.contiguous().view(-1)], 0)) == wanted


FAULTS_OF_CHUNKS = [
    ("chunks == 1 ? 0 : r;", "0;"),  # rows of several chunks share their sums
    ("if (c + 1 < chunks) continue;", ""),  # sums are rounded before the last chunk
]


@pytest.mark.parametrize(("old", "new"), slow_except(FAULTS_OF_CHUNKS, several=True))
def test_a_kernel_fault_between_chunks_is_caught(
    old: str, new: str, kernel: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Terms of more than one chunk cancel over all exponents."""
    if kernel != "compiled" or not HAS_LIMBS:
        return  # other ways have no chunks
    left, right = cancelled(1, numbers(1, 4 * 300).view(4, 300), numbers(2, 300 * 9).view(300, 9))
    terms = (left.double()[:, None] * right.double().T).reshape(36, 300)
    wanted = right_bits(terms.tolist(), 32)

    def found() -> list[int]:
        return elements_of(Arithmetic().execute(product(4, 300, 9), [left.view(-1), right.view(-1)], 0).view(-1))

    assert found() == wanted
    built = kernel_with(tmp_path, (old, new))
    monkeypatch.setattr(sums, "build", lambda: built)
    assert found() != wanted


@pytest.mark.slow
def test_accumulator_bins_carry_before_they_overflow() -> None:
    """Ties of terms just below 2^53 in one bin, which overflows without carrying; columns 12 bits apart."""
    k, columns = 2048, 16
    right = [torch.full((k,), 11184809.0 * 2.0 ** (12 * j + 3 - 149), dtype=torch.float64) for j in range(columns)]
    left, b = torch.full((3, k), 3 * 2.0**22 * 2.0 ** (127 - 149)), torch.stack(right, 1).float()
    wanted = right_bits((left.double()[:, None] * b.double().T).reshape(-1, k).tolist(), 32)
    found = Arithmetic().execute(product(3, k, columns), [left.view(-1), b.reshape(-1)], 0)
    assert elements_of(found.view(-1)) == wanted
