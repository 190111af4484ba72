"""Measures how far apart the values of one sum are in several variants, in units of each element's own error."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import log2
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.c.threads import limited
from tiebreak.engine.arithmetic.plan.ziv import UNIT, Logging, NearTies
from tiebreak.engine.logged.policy import MeasuredSums
from tiebreak.protocol.numbers.float32 import FRACTION_BITS, MAX_PRECISION
from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.rounding import MAX_TOLERANCE, MIN_TOLERANCE, SumKind, sum_kind

SAMPLE: Final = 1 << 16
"""The number of elements of one sum that are compared in one step."""
EXACT: Final = 16
"""The number of these that are compared with the exact sum: this many at random, and as many that diverge most."""
REPORTED: Final = 1 << 20
"""Sums of up to this many elements are examined in full; of larger ones, the elements nearest to a middle."""
EVERYTHING: Final = 2.0**60
"""A threshold so large that every element lies near a middle."""
BINS: Final = 256
_LEAST_EXPONENT: Final = -126

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_LOWER: Final[Floats] = np.ldexp(1.0, np.arange(-(BINS // 2), BINS // 2))
"""The lower ends of the bins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to compute a sum. order: the seed of the order of its terms; None keeps their own order."""

    device: str = "cpu"
    compiled: bool = True
    threads: int = 1
    order: int | None = None

    def __str__(self) -> str:
        words = [self.device]
        if self.device == "cpu":
            words += ["compiled" if self.compiled else "pure"]
            words += ["1 thread" if self.threads == 1 else f"{self.threads} threads"]
        return ", ".join(words if self.order is None else [*words, f"order {self.order}"])


def variants_of(
    orders: int, *, threads: Sequence[int], compiled: bool, devices: Sequence[str] = (), seed: int = 0
) -> tuple[Variant, ...]:
    """Variants on each kernel and device: the terms' own order, and `orders` permuted ones, seeded from `seed` + 1 on.

    threads: thread counts; each is used with the terms' own order, and they take turns for the permuted ones. compiled:
    whether to use the compiled kernels in addition to the pure path. devices: those besides the CPU.
    """
    found = []
    for kernel in (True, False) if compiled else (False,):
        found += [Variant(compiled=kernel, threads=count) for count in threads]
        found += [
            Variant(compiled=kernel, threads=threads[k % len(threads)], order=seed + 1 + k) for k in range(orders)
        ]
    for device in devices:
        found += [Variant(device=device, order=order) for order in (None, *range(seed + 1, seed + 1 + orders))]
    return tuple(found)


@dataclass
class SumObservations:
    """The observations of one kind of sum; `counts` and `divergence` are by bins of gap / (u times the norm)."""

    total: int = 0
    """The elements of all sums, whether or not they were compared."""
    elements: int = 0
    exact: int = 0
    error: float = 0.0
    of_gap: float = 0.0
    of_exponent: float = 0.0
    counts: Floats = field(default_factory=lambda: np.zeros(BINS))
    """The number of elements, estimated from those that were compared. Bin k: 2^(k - 128) <= ratio < 2^(k - 127)."""
    divergence: Floats = field(default_factory=lambda: np.zeros(BINS))
    """The largest divergence in each bin."""

    @property
    def largest(self) -> float:
        """The largest distance between two values, or from the exact sum, in units of u times the norm."""
        return max(float(self.divergence.max()), self.error)

    def tolerance(self, kappa: float, share: float) -> int:
        """The largest n at which this share of the elements that can be logged at all (at n = 2) is loggable."""
        possible = float(self.counts[_loggable(kappa, MIN_TOLERANCE)].sum())
        narrow = range(MAX_TOLERANCE, MIN_TOLERANCE, -1)
        enough = (n for n in narrow if float(self.counts[_loggable(kappa, n)].sum()) >= share * possible > 0)
        return next(enough, MIN_TOLERANCE)

    def measured(self, kappa: float, tolerance: int) -> MeasuredSums:
        """The measurements for the policy file, with the shares that result from a threshold and a tolerance."""
        open_ = self.counts * np.minimum(1.0, 2 * kappa / (1.5 * _LOWER))  # a middle lies within e on either side
        loggable, every = _loggable(kappa, tolerance), max(1, self.total)
        return MeasuredSums(
            elements=self.elements, exact=self.exact, divergence=float(self.divergence.max()), error=self.error,
            of_gap=self.of_gap, of_exponent=self.of_exponent, logged=min(1.0, float(open_[loggable].sum()) / every),
            resolved=min(1.0, float(open_[~loggable].sum()) / every),
        )  # fmt: skip


def _loggable(kappa: float, tolerance: int) -> NDArray[np.bool_]:
    """The bins whose elements have an error that is small against the tolerance: e <= 2^-n gap / 2."""
    small: NDArray[np.bool_] = kappa * 2.0 ** (tolerance + 1) <= _LOWER
    return small


class Comparer:
    """Computes sums in several variants, and adds the observations to the `SumObservations` of their kind."""

    def __init__(self, variants: Sequence[Variant], precision: int, seed: int) -> None:
        self.seen = {kind: SumObservations() for kind in SumKind}
        self._variants = tuple(variants)
        self._precision = precision
        self._exact = Arithmetic(precision=precision)
        self._random = np.random.default_rng(seed)
        self._made: dict[tuple[Variant, float], Arithmetic] = {}

    def compare(self, instruction: Instruction, operands: Sequence[Tensor]) -> None:
        """Compares one logged sum. Its operands are on the CPU."""
        kind = sum_kind(instruction)
        assert kind is not None  # the caller has checked that it is a logged sum
        seen, sampling = self.seen[kind], EVERYTHING
        fraction_bits = self._precision - (MAX_PRECISION - FRACTION_BITS)
        if instruction.numel > REPORTED:  # a threshold within which about `REPORTED` well-conditioned ones are reported
            sampling = float(2.0 ** round(log2(REPORTED / instruction.numel / UNIT) - fraction_bits - 1))
        seen.total += instruction.numel
        elements, values, units, each = self._values(instruction, operands, sampling)
        if not len(elements):
            return
        unit, apart = units.min(0), values.max(0) - values.min(0)
        # 2^exponent of each element, and the gap between its neighbours of that precision.
        exponents = np.ldexp(1.0, np.maximum(np.frexp(np.abs(values).max(0))[1] - 1, _LEAST_EXPONENT))
        gaps = exponents * 2.0**-fraction_bits
        chance = 1.0 if sampling == EVERYTHING else np.minimum(1.0, 2 * sampling * unit / gaps)
        bins = np.clip(np.frexp(gaps / unit)[1] - 1 + BINS // 2, 0, BINS - 1)
        np.add.at(seen.counts, bins, each / chance)
        np.maximum.at(seen.divergence, bins, apart / unit)
        seen.elements += len(elements)
        seen.of_gap = max(seen.of_gap, float((apart / gaps).max()))
        seen.of_exponent = max(seen.of_exponent, float((apart / exponents).max()))
        worst = np.argsort(apart / unit)[-EXACT:]
        some = np.union1d(worst, self._random.choice(len(elements), min(EXACT, len(elements)), replace=False))
        sums = self._exact.exact_sums(instruction, operands, elements[some])
        for at, total in zip(some.tolist(), sums, strict=True):
            if total is not None:
                seen.exact += 1
                seen.error = max(seen.error, _error(values[:, at], units[:, at], total))

    def _values(
        self, instruction: Instruction, operands: Sequence[Tensor], sampling: float
    ) -> tuple[Integers, Floats, Floats, float]:
        """Elements, c and u times the norm of each in each variant, and how many elements each one represents."""
        chosen: Integers = np.empty(0, np.int64)
        found: list[NearTies] = []
        each = 1.0
        for variant in self._variants:
            near = self._near(variant, sampling, instruction, operands)
            usable = np.isfinite(near.values) & np.isfinite(near.errors) & (near.errors > 0)
            if not found:
                chosen = near.elements[usable]
                if len(chosen) > SAMPLE:
                    each = len(chosen) / SAMPLE
                    chosen = np.sort(self._random.choice(chosen, SAMPLE, replace=False))
            chosen = np.intersect1d(chosen, near.elements[usable], assume_unique=True)
            found.append(_only(near, chosen))
        last = [_only(near, chosen) for near in found]
        values = np.stack([near.values for near in last])
        return chosen, values, np.stack([near.errors for near in last]) / sampling, each

    def _near(
        self, variant: Variant, sampling: float, instruction: Instruction, operands: Sequence[Tensor]
    ) -> NearTies:
        """The elements that one variant reports of a sum."""
        with limited(variant.threads):
            arithmetic = self._made.get((variant, sampling))
            if arithmetic is None:
                logging = Logging.reporting_all(sampling)
                arithmetic = Arithmetic(
                    variant.device, variant.order, precision=self._precision, logging=logging, compiled=variant.compiled
                )
                self._made[variant, sampling] = arithmetic
            there = [operand.to(arithmetic.device) for operand in operands]
            return arithmetic.execute_logged(instruction, there, 0)[1]


def _only(near: NearTies, elements: Integers) -> NearTies:
    """The report restricted to some of its elements."""
    at = np.searchsorted(near.elements, elements)
    return NearTies(elements, near.values[at], near.errors[at])


def _error(values: Floats, units: Floats, total: tuple[int, int]) -> float:
    """The largest distance of some values from the exact n * 2^e, in units."""
    n, e = total
    exact = Fraction(n) * Fraction(2) ** e
    return max(
        float(abs(Fraction(value) - exact) / Fraction(unit))
        for value, unit in zip(values.tolist(), units.tolist(), strict=True)
    )
