"""Algorithm 3: the search, what the threshold covers, and what becomes of a machine that computes less accurately."""

from collections.abc import Sequence
from fractions import Fraction
from math import log2

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.engine.arithmetic_cases import product
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.c import sums
from tiebreak.engine.arithmetic.plan.ziv import NearTies
from tiebreak.engine.logged import divergence
from tiebreak.engine.logged.calibration import (
    FRACTION,
    HIGH,
    LOW,
    Calibration,
    CalibrationError,
    proven_policy,
    threshold,
)
from tiebreak.engine.logged.divergence import BINS, Comparer, SumObservations, Variant, variants_of
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.rounding import MAX_TOLERANCE, MIN_TOLERANCE, SumKind

ORDERS = variants_of(3, threads=(1,), compiled=sums.build().library is not None)


def matrices(seed: int, rows: int, terms: int, columns: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for size in ((rows, terms), (terms, columns))]


def compared(instruction: Instruction, operands: Sequence[Tensor], ways: Sequence[Variant] = ORDERS) -> SumObservations:
    comparison = Comparer(ways, 32, seed=0)
    comparison.compare(instruction, operands)
    (seen,) = [seen for seen in comparison.seen.values() if seen.total]
    return seen


@given(st.floats(LOW / 4, HIGH / 4))
def test_the_threshold_search_finds_the_smallest_covering_value(largest: float) -> None:
    asked: list[float] = []

    def covers(kappa: float) -> bool:
        asked.append(kappa)
        return largest <= kappa

    found = threshold(LOW, HIGH, covers)
    assert covers(found)
    assert found == LOW or not covers(found * 2 ** (-1 / FRACTION))
    assert len(asked) <= 3 + log2(FRACTION * log2(HIGH / LOW)) + 2
    assert FRACTION * log2(found) == pytest.approx(round(FRACTION * log2(found)), abs=1e-9)


def test_calibration_fails_when_no_threshold_covers_the_errors() -> None:
    with pytest.raises(CalibrationError, match="tiebreak doctor"):
        threshold(LOW, HIGH, lambda _: False)


@given(
    st.lists(st.tuples(st.integers(0, BINS - 1), st.integers(1, 1000)), max_size=8),
    st.floats(0.5, 1e4),
    st.floats(0.01, 1),
)
def test_the_tolerance_keeps_the_requested_share_loggable(
    bins: list[tuple[int, int]], kappa: float, share: float
) -> None:
    """Against fractions: element by element, whether e <= 2^-n gap / 2."""
    seen = SumObservations()
    for at, count in bins:
        seen.counts[at] += count

    def loggable(n: int) -> int:
        ratios = [(Fraction(2) ** (at - BINS // 2), count) for at, count in bins]
        return sum(count for ratio, count in ratios if Fraction(kappa) * 2**n * 2 <= ratio)

    possible = loggable(MIN_TOLERANCE)
    wanted = [n for n in range(MIN_TOLERANCE, MAX_TOLERANCE + 1) if loggable(n) >= share * possible and possible]
    assert seen.tolerance(kappa, share) == max(wanted, default=MIN_TOLERANCE)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(2, 700), st.integers(-20, 20))
def test_the_threshold_covers_errors_between_variants_and_from_exact(seed: int, terms: int, scale: int) -> None:
    """Against rational sums of all elements, not only of those that the comparison took."""
    i, operands = product(3, terms, 5), matrices(seed, 3, terms, 5)
    operands[0] *= 2.0**scale
    operands[0][:, : terms // 2] *= 1e4  # cancellation
    calibration = calibrated(i, operands)
    kappa = calibration.policy(margin=1).thresholds[SumKind.PRODUCTS]
    assert kappa is not None
    exact = [
        sum(Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True))
        for row in operands[0].tolist()
        for column in operands[1].T.tolist()
    ]
    for setting in ORDERS:
        near = Comparer([setting], 32, 0)._near(setting, 2.0**60, i, operands)
        for at, value, error in zip(near.elements.tolist(), near.values.tolist(), near.errors.tolist(), strict=True):
            assert abs(Fraction(value) - exact[at]) <= Fraction(kappa) * Fraction(error) / 2**60


def test_summation_orders_and_kernels_differ_measurably() -> None:
    """Else a threshold proves nothing: computations of one sum do differ."""
    seen = compared(product(40, 3000, 50), matrices(1, 40, 3000, 50))
    assert seen.total == seen.elements == 2000
    assert 0 < seen.largest < 100
    assert seen.error > 0
    assert seen.exact >= divergence.EXACT
    alone = compared(product(40, 3000, 50), matrices(1, 40, 3000, 50), ORDERS[:1])
    assert alone.divergence.max() == 0
    assert alone.error > 0


def test_cancellation_inflates_exponent_units_but_not_error_units() -> None:
    """Terms of 10^6 that leave about 10^-2: the same sums in units of 2^exponent and in units of their own error."""
    operands = matrices(2, 30, 2000, 30)
    usual = compared(product(30, 2000, 30), operands)
    wide = [torch.cat([x, -x, y], dim=d) for x, y, d in zip(operands, operands, (1, 0), strict=True)]
    wide[0][:, :4000] *= 1e6
    wide[1][2000:4000] = wide[1][:2000]
    cancelled = compared(product(30, 6000, 30), wide)
    assert cancelled.of_exponent > 1e4 * usual.of_exponent
    assert cancelled.largest < 4 * usual.largest
    assert cancelled.of_exponent > 2.0**-24, "more than half a gap: no tau covers it"


def calibrated(i: Instruction, operands: Sequence[Tensor]) -> Calibration:
    calibration = Calibration(ORDERS, precision=32)
    calibration._comparison.compare(i, operands)
    return calibration


class Shifted(Comparer):
    """A comparison in which one variant is off by so many units."""

    off = 0.0

    def _near(
        self, variant: Variant, sampling: float, instruction: Instruction, operands: Sequence[Tensor]
    ) -> NearTies:
        near = super()._near(variant, sampling, instruction, operands)
        if variant != self._variants[-1]:
            return near
        return NearTies(near.elements, near.values + self.off * near.errors / sampling, near.errors)


def test_one_inaccurate_variant_raises_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    off = 50.0
    i, operands = product(8, 100, 8), matrices(3, 8, 100, 8)
    monkeypatch.setattr(Shifted, "off", off)
    monkeypatch.setattr("tiebreak.engine.logged.calibration.Comparer", Shifted)
    calibration = calibrated(i, operands)
    kappa = calibration.policy(margin=1).thresholds[SumKind.PRODUCTS]
    assert kappa is not None
    assert off - 2 <= kappa <= 1.2 * off + 4
    with_margin = calibration.policy(margin=10).thresholds[SumKind.PRODUCTS]
    assert with_margin == 10 * kappa


def test_an_inaccurate_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shifted, "off", 2.0**45)
    monkeypatch.setattr("tiebreak.engine.logged.calibration.Comparer", Shifted)
    calibration = calibrated(product(8, 100, 8), matrices(3, 8, 100, 8))
    with pytest.raises(CalibrationError, match="less accurately"):
        calibration.policy()


def test_sampling_a_large_result_estimates_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum may have more elements than are looked at: those near a middle are, and stand for the others."""
    i, operands = product(64, 200, 512), matrices(4, 64, 200, 512)
    whole = compared(i, operands)
    monkeypatch.setattr(divergence, "REPORTED", 1 << 11)
    monkeypatch.setattr(divergence, "SAMPLE", 1 << 10)
    part = compared(i, operands)
    assert part.total == whole.total == 1 << 15
    assert 100 < part.elements <= 1 << 10
    assert part.counts.sum() == pytest.approx(whole.counts.sum(), rel=0.25)
    kappa = 64.0
    assert abs(part.tolerance(kappa, 0.9) - whole.tolerance(kappa, 0.9)) <= 1


def test_calibration_skips_zero_error_and_non_finite_sums() -> None:
    """Zero columns have an error of 0, infinities no finite one: neither is compared, the others are."""
    operands = matrices(6, 6, 50, 6)
    operands[1][:, 2] = 0
    operands[0][4] = float("inf")
    seen = compared(product(6, 50, 6), operands)
    assert seen.total == 36
    assert seen.elements == 25
    nothing = Comparer(ORDERS, 32, 0)
    nothing.compare(product(2, 3, 2), [torch.zeros(2, 3), torch.zeros(3, 2)])
    assert nothing.seen[SumKind.PRODUCTS].elements == 0


def test_variants_cover_every_kernel_thread_count_device_and_order() -> None:
    found = variants_of(3, threads=(1, 2), compiled=True, devices=("cuda:0",), seed=10)
    assert len(found) == len(set(found)) == len(set(map(str, found))) == 2 * (2 + 3) + 4
    for compiled in (True, False):
        own = [s for s in found if s.device == "cpu" and s.compiled == compiled]
        assert {(s.threads, s.order) for s in own} >= {(1, None), (2, None)}
        assert {s.order for s in own} == {None, 11, 12, 13}
    assert {s.order for s in found if s.device == "cuda:0"} == {None, 11, 12, 13}
    assert {s.compiled for s in variants_of(1, threads=(1,), compiled=False)} == {False}


def test_a_calibration_variant_takes_effect_and_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, bool, bool]] = []
    execute = Arithmetic.execute_logged

    def spy(self: Arithmetic, *arguments: object) -> tuple[Tensor, NearTies]:
        seen.append((torch.get_num_threads(), self.backend.name == "C", self.options.shuffled is not None))
        return execute(self, *arguments)  # type: ignore[arg-type]

    torch.set_num_threads(1)
    monkeypatch.setattr(Arithmetic, "execute_logged", spy)
    ways = (Variant(threads=2), Variant(compiled=False, threads=1), Variant(threads=2, order=5))
    compared(product(4, 20, 4), matrices(8, 4, 20, 4), ways)
    assert seen == [(2, True, False), (1, False, False), (2, True, True)]
    assert torch.get_num_threads() == 1


def test_invalid_calibration_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="precision of 16 to 32"):
        Calibration(ORDERS, precision=12)
    with pytest.raises(ConfigurationError, match="at least two variants"):
        Calibration(ORDERS[:1], precision=32)
    calibration = Calibration(ORDERS, precision=32)
    for options, text in [
        ({"margin": 0.5}, "margin of 1"),
        ({"margin": float("nan")}, "margin"),
        ({"share": 0.0}, "share above 0"),
    ]:
        with pytest.raises(ConfigurationError, match=text):
            calibration.policy(**options)  # type: ignore[arg-type]
    assert calibration.policy().thresholds == proven_policy(32).thresholds, "nothing was seen: nothing is measured"
