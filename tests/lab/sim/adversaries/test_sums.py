"""Sums of hardware that nobody controls, against rationals."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.sim.adversaries.playing import job_of
from tiebreak.lab.sim.adversaries import numbers
from tiebreak.lab.sim.adversaries.tampering import deviating, during, together
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.protocol.numbers.float32 import decode, round_f32

NUMBERS = st.floats(-16, 16, width=32).filter(lambda x: x == 0 or abs(x) > 2**-20)
ROWS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12)


def array(*values: float) -> numbers.Floats:
    return np.array(values, dtype=np.float32)


def factors(row: list[tuple[float, float]]) -> list[numbers.Floats]:
    return [array(*(pair[k] for pair in row)).reshape(1, -1) for k in range(2)]


def bits_of(x: np.float32) -> int:
    return int(np.asarray(x, dtype=np.float32).view(np.uint32))


def value_of(bits: int) -> Fraction:
    n, e = decode(bits)
    return n * Fraction(2) ** e


def exact(row: list[tuple[float, float]]) -> Fraction:
    return sum((Fraction(a) * Fraction(b) for a, b in row), Fraction(0))


@given(ROWS, st.sampled_from((16, 24, 32)))
def test_rounding_toward_zero_truncates_the_exact_sum(row: list[tuple[float, float]], precision: int) -> None:
    """Where FP64 holds the sum exactly, as of such factors it does."""
    total, found = exact(row), value_of(bits_of(numbers.TOWARD_ZERO.sum(factors(row), precision)[0]))
    if Fraction(float(total)) != total or 0 < abs(total) < Fraction(2) ** -100:
        return
    assert abs(found) <= abs(total)
    assert found * total >= 0
    significand = precision - 8
    if total:
        gap = Fraction(2) ** (int(np.frexp(float(total))[1]) - significand)
        assert abs(total) - abs(found) < gap
        assert found / gap == int(found / gap)


@given(ROWS, st.sampled_from((16, 24, 32)))
def test_tf32_sums_are_rounded_to_nearest(row: list[tuple[float, float]], precision: int) -> None:
    cut = [tuple(float(numbers.truncated(10)(array(x))[0]) for x in pair) for pair in row]
    total = exact(cut)  # type: ignore[arg-type]
    if Fraction(float(total)) != total:
        return
    denominator = total.denominator.bit_length() - 1
    expected = round_f32(total.numerator, -denominator, precision=precision)
    assert bits_of(numbers.TF32.sum(factors(row), precision)[0]) == (0 if expected == 1 << 31 else expected)


@given(ROWS)
def test_native_sums_round_every_step(row: list[tuple[float, float]]) -> None:
    total = np.float32(0)
    for a, b in row:
        total = np.float32(total + np.float32(np.float32(a) * np.float32(b)))
    assert bits_of(numbers.NATIVE.sum(factors(row), 32)[0]) == bits_of(total + np.float32(0.0))


@given(st.floats(width=32, allow_nan=False), st.integers(1, 22))
def test_truncation_clears_bits(x: float, fraction: int) -> None:
    (bits,) = numbers.truncated(fraction)(array(x)).view(np.uint32).tolist()
    assert bits == bits_of(np.float32(x)) >> 23 - fraction << 23 - fraction


@pytest.mark.parametrize("hardware", [numbers.TOWARD_ZERO, numbers.TF32, numbers.BFLOAT16, numbers.NATIVE])
def test_sums_with_infinite_or_nan_terms_are_not_finite(hardware: numbers.Hardware) -> None:
    for bad in (float("inf"), float("nan")):
        assert not np.isfinite(hardware.sum(factors([(1.0, 1.0), (bad, 1.0)]), 32)[0])


def test_recomputing_every_sum_of_a_step_gives_the_honest_run(workshop: Workshop) -> None:
    """Sums that change nothing give the honest run: all operands are found, in the right order."""
    sums = [n for n, i in enumerate(workshop.program.body) if numbers.is_f32_sum(i)]
    assert len(sums) > 10
    precise = numbers.Hardware(factor=lambda x: x, single=False, last=np.rint)
    seen: list[int] = []

    def count(leaf: int, tensor: torch.Tensor) -> torch.Tensor:
        seen.extend([leaf] if leaf in sums else [])
        return tensor

    observer = together(numbers.summing(workshop.program, precise, 32), count)
    work = deviating(workshop, job_of(workshop), during((10,), lambda _: observer), first_step=10)
    assert seen[: len(sums)] == sums
    assert work.lie is None, "rounding FP64 sums to nearest was right for every sum of this step"
