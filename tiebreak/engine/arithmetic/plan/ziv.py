r"""Rounds FP64 sums correctly to f32 numbers of b bits by Ziv's test, and resolves exactly what the test leaves open.

**The bound.** Let u = 2^-53 and let a result C be computed from exact reals t_1 ... t_K (f32 values, or products of
two, which FP64 holds exactly: 48 bits, exponents within -298 ... 256, so nothing under- or overflows) such that no
t_i passes through more than n FP64 roundings on its way into C. Then C = sum t_i (1 + d_i) with |d_i| <= (1+u)^n - 1,
so |C - exact| <= g(n) T with T = sum |t_i| and g(n) = n u / (1 - n u). This holds for every order of summation, with
blocks or without, and with FMA (which only omits roundings). n is K for a plain loop (K - 1 additions, 1 to
spare), and s + b if K is cut into b blocks of at most s terms whose results are added by plain additions.

**What is computed.** T itself is not known, but a computed T' or product of norms N' >= T (1 - small), with at most
2K + 8 roundings. For K <= 2^32 these relative errors, that of g's denominator and those of computing the bound itself
are below 2^-17 together. C + e and C - e are rounded too, by at most u (|C| + e) <= 2 u T (1 + 2^-17): two more
roundings in n. So e = (n + 3) u (1 + 2^-16) N' makes fl(C - e) <= exact <= fl(C + e). `coefficient(n)` is that factor.
If every term is zero, e is 0 and C is 0.

**The test.** Rounding to b bits is monotone: if RN(fl(C - e)) = RN(fl(C + e)), that is RN(exact). Zeros of either
sign compare equal and become +0. A non-finite factor makes N' non-finite, and so e (in products of norms, inf * 0 is
NaN); the test then fails, and the element is NaN by SPEC 5.

**Doubled precision** (GPUs) adds terms in one pass, in any order, by TwoSum. The error of an addition in FP64 is an
FP64 number, so sum p_i = s + sum r_j exactly, where s is the computed sum and r_j are the errors of all additions. The
r_j are added plainly to L, and their sizes to T': with r_j in place of t_i, the bound above holds for L, since r_j are
multiples of 2^-298 too. So fl(L - e) <= sum r_j <= fl(L + e), and where the exact sums s + fl(L - e) and s + fl(L + e)
round to one number, that is the result. A sum of two numbers is rounded to FP64 *to odd* before it is rounded to b
bits, so that the second rounding never sees a false tie. If no addition errs, e is 0, which decides ties whose partial
sums all fit into FP64.

**Exact.** Elements that are still undecided are summed in fixed point: in torch (`arithmetic/plain/exact.py`), and by
kernels. The compiled ones (exact.h) have no doubled precision: C of a plain sum, or of at most 64 products, is exact if
its terms lie on a grid, and every other undecided sum goes to the superaccumulator.

**Near ties** (SPEC section 5.1). Under policy `logged`, an engine computes a sum as c with an error of at most e (with
a calibrated threshold, as far as calibration has seen): e = coefficient * N with the N above. The element is *open* if
c - e and c + e round to different numbers. If e is small against the job's tolerance, e <= 2^-n * gap / 2, then c is
kept, rounded, and reported: the exact sum x lies within 2e <= 2^-n * gap of the middle, as SPEC 5.1 requires of an
entry. Otherwise cancellation has left c too inaccurate, and the element is settled exactly.

**On a grid.** Many plain sums of f32 are exactly a middle. If all terms are multiples of 2^(E+k-52), with |terms| < 2^E
and K <= 2^k (k > 0), all partial sums in any order are exact in FP64, so no two machines differ: such an element is
settled and not reported. This test depends only on the terms and K, so all parties agree on it.

The compiled kernels do all this in exact.h.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tiebreak.engine.arithmetic.plan.views import Floats, Integers
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.rounding import MAX_TOLERANCE, MIN_TOLERANCE, SumKind

UNIT: Final = 2.0**-53
"""u, the unit roundoff of FP64."""
LEAST: Final = 2.0**-52
"""The least coefficient: c - e and c + e are rounded to FP64 too, so a smaller e would be lost."""
_EVERYTHING: Final = 2.0**600
"""A limit that no error exceeds."""
DENSE: Final = 8
"""Kernels on GPUs have room for one undecided element in this many."""


def coefficient(roundings: int) -> float:
    """(n + 3) u (1 + 2^-16): this factor times a bound on the sum of absolute terms bounds the error, see above."""
    return (roundings + 3) * UNIT * (1 + 2.0**-16)


@dataclass(frozen=True)
class Logging:
    """The rules by which sums are computed and tested under policy `logged`."""

    thresholds: Mapping[SumKind, float | None]
    """kappa of each kind, with e = kappa * u * N. None stands for the proven bound."""
    tolerances: Mapping[SumKind, int]
    """n of each kind; 0 if the kind is never logged."""
    everything: bool = False
    """Whether calibration wants every element reported whose e is not 0 and reaches a middle, at any tolerance."""

    def __post_init__(self) -> None:
        for kind in SumKind:
            threshold, n = self.thresholds.get(kind), self.tolerances.get(kind, 0)
            if threshold is not None and not (isfinite(threshold) and threshold > 0):
                raise ConfigurationError(f"expected a positive threshold for {kind.name} sums, got {threshold}")
            if n and not MIN_TOLERANCE <= n <= MAX_TOLERANCE:
                raise ConfigurationError(
                    f"expected 0 or {MIN_TOLERANCE} to {MAX_TOLERANCE} as tolerance of {kind.name} sums, got {n}"
                )

    @classmethod
    def reporting_all(cls, threshold: float = 2.0**60) -> "Logging":
        """The rules for calibration: c of every element is reported, with e = threshold * u * N."""
        return cls(dict.fromkeys(SumKind, threshold), dict.fromkeys(SumKind, MIN_TOLERANCE), everything=True)

    def logs(self, kind: SumKind) -> bool:
        """Whether sums of a kind are logged at all."""
        return bool(self.tolerances.get(kind, 0))

    def collector(self, kind: SumKind) -> "Collector":
        """The collector for one sum of a kind."""
        limit = _EVERYTHING if self.everything else 2.0 ** -(self.tolerances[kind] + 1)
        return Collector(self.thresholds.get(kind), limit, grid=not self.everything)


@dataclass(frozen=True)
class NearTies:
    """The open elements of one result that were left as rounded from c, by row-major number, ascending."""

    elements: Integers
    values: Floats
    """c of Ziv's test: the sums as they were computed, before rounding."""
    errors: Floats
    """e of Ziv's test, one for each value."""

    def __len__(self) -> int:
        return len(self.elements)


NOTHING_NEAR: Final = NearTies(np.empty(0, np.int64), np.empty(0), np.empty(0))


@dataclass
class Collector:
    """Collects the near ties of one instruction while it is computed."""

    threshold: float | None
    limit: float
    """Open elements are reported if their error is at most this times the gap around them."""
    grid: bool
    """Whether elements whose terms lie on a grid are settled instead of reported."""
    _found: list[tuple[Integers, Floats, Floats]] = field(default_factory=list)

    def coefficient(self, proven: float) -> float:
        """The factor with e = factor * N: the threshold's, or the proven one. An exact result keeps 0."""
        return proven if self.threshold is None or not proven else max(self.threshold * UNIT, LEAST)

    def add(self, elements: Integers, values: Floats, errors: Floats) -> None:
        """Reports some elements, by their numbers in the result."""
        if len(elements):
            self._found.append((elements, values, errors))

    def found(self) -> NearTies:
        """The reported elements in order."""
        if not self._found:
            return NOTHING_NEAR
        elements, values, errors = (np.concatenate(parts) for parts in zip(*self._found, strict=True))
        order: NDArray[np.intp] = np.argsort(elements, kind="stable")
        return NearTies(elements[order], values[order], errors[order])
