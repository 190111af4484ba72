r"""Sums near the middle between two neighbours, as policy `logged` needs them (SPEC section 5.1).

An engine computes a sum as c with an error of at most e (with a calibrated threshold, as far as calibration has seen):
e = coefficient * N, where N >= \Sigma|terms| or N is the product of the norms of both factors. The element is *open* if
c - e and c + e round to different numbers. If e is small against the job's tolerance, e <= 2^-n * gap / 2, then c is
kept, rounded, and reported: the exact sum x lies within 2e <= 2^-n * gap of the middle, as SPEC 5.1 requires of an
entry. Otherwise cancellation has left c too inaccurate, and the element is settled exactly.

**On a grid.** Many plain sums of f32 are exactly a middle. If all terms are multiples of 2^(E+k-52), with |terms| < 2^E
and K <= 2^k (k > 0), all partial sums in any order are exact in FP64, so no two machines differ: such an element is
settled and not reported. This test depends only on the terms and K, so all parties agree on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tiebreak.engine.arithmetic.exact import Floats, Integers
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.rounding import MAX_TOLERANCE, MIN_TOLERANCE, SumKind

UNIT: Final = 2.0**-53
"""u, the unit roundoff of FP64."""
LEAST: Final = 2.0**-52
"""The least coefficient: c - e and c + e are rounded to FP64 too, so a smaller e would be lost."""
_EVERYTHING: Final = 2.0**600
"""A limit that no error exceeds."""


@dataclass(frozen=True)
class Logging:
    """How sums are computed and tested under policy `logged`."""

    thresholds: Mapping[SumKind, float | None]
    """kappa of each kind, with e = kappa * u * N. None stands for the proven bound."""
    tolerances: Mapping[SumKind, int]
    """n of each kind; 0 if the kind is never logged."""
    everything: bool = False
    """For calibration: report every element whose e is not 0 and reaches a middle, regardless of its tolerance."""

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
        """For calibration: reports c of every element, with e = threshold * u * N."""
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
    """The computed sums c."""
    errors: Floats
    """Their errors e."""

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

    @property
    def count(self) -> int:
        """The number of elements reported so far."""
        return sum(len(elements) for elements, _, _ in self._found)

    def found(self) -> NearTies:
        """All reported elements in order."""
        if not self._found:
            return NOTHING_NEAR
        elements, values, errors = (np.concatenate(parts) for parts in zip(*self._found, strict=True))
        order: NDArray[np.intp] = np.argsort(elements, kind="stable")
        return NearTies(elements[order], values[order], errors[order])
