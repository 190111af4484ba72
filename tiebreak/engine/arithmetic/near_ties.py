r"""Sums that lie near the middle between two neighbours, as policy `logged` needs to see them (SPEC section 5.1).

An engine computes a sum as c with an error of at most e (or, with a calibrated threshold, of e as far as calibration
has seen): e = coefficient * N, N >= \Sigma|terms| or the product of the norms of both factors. The element is *open* if
c - e and c + e round to different numbers. Where e is small against the job's tolerance, e <= 2^-n * gap / 2, c is
kept, rounded, and reported: x, the exact sum, then lies within 2e <= 2^-n * gap of the middle, which is what SPEC 5.1
asks of an entry. Where it is not, cancellation has left c too inaccurate, and the element is settled exactly.

**On a grid.** Many plain sums of f32 are exactly a middle. Where all terms are multiples of 2^(E+k-52), with |terms| <
2^E and K <= 2^k (k > 0), all partial sums in any order are exact in FP64, so no two machines differ: such an element
is settled and not reported. The test depends on nothing but the terms and K, so all parties agree on it.
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
"""u of FP64."""
LEAST: Final = 2.0**-52
"""The least coefficient: c - e and c + e are rounded to FP64 too, so a smaller e would be lost."""
_EVERYTHING: Final = 2.0**600
"""A limit that no error exceeds."""


@dataclass(frozen=True)
class Logging:
    """How sums are computed and tested under policy `logged`."""

    thresholds: Mapping[SumKind, float | None]
    """kappa of each kind: e = kappa * u * N. None: the proven bound."""
    tolerances: Mapping[SumKind, int]
    """n of each kind; 0: never logged."""
    everything: bool = False
    """For calibration: every element whose e is not 0 and reaches a middle is reported, whatever its tolerance."""

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
        """For calibration: c of every element, with e = threshold * u * N."""
        return cls(dict.fromkeys(SumKind, threshold), dict.fromkeys(SumKind, MIN_TOLERANCE), everything=True)

    def logs(self, kind: SumKind) -> bool:
        """Whether sums of a kind are logged at all."""
        return bool(self.tolerances.get(kind, 0))

    def collector(self, kind: SumKind) -> "Collector":
        """What one sum of a kind is computed with."""
        limit = _EVERYTHING if self.everything else 2.0 ** -(self.tolerances[kind] + 1)
        return Collector(self.thresholds.get(kind), limit, grid=not self.everything)


@dataclass(frozen=True)
class NearTies:
    """Elements of one result that are open and were left rounded from c: by number (row-major), ascending."""

    elements: Integers
    values: Floats
    """c"""
    errors: Floats
    """e"""

    def __len__(self) -> int:
        return len(self.elements)


@dataclass
class Collector:
    """Takes the near ties of one instruction while it is computed."""

    threshold: float | None
    limit: float
    """Open elements are reported up to an error of this times the gap around them."""
    grid: bool
    """Whether elements whose terms lie on a grid are settled instead."""
    _found: list[tuple[Integers, Floats, Floats]] = field(default_factory=list)

    def coefficient(self, proven: float) -> float:
        """What times N is e: the threshold's, or the proven one. Where the result is exact, that is 0."""
        return proven if self.threshold is None or not proven else max(self.threshold * UNIT, LEAST)

    def add(self, elements: Integers, values: Floats, errors: Floats) -> None:
        """Reports some elements, by their numbers in the result."""
        if len(elements):
            self._found.append((elements, values, errors))

    @property
    def count(self) -> int:
        """Elements reported so far."""
        return sum(len(elements) for elements, _, _ in self._found)

    def found(self) -> NearTies | None:
        """All of them in order; None if there are none."""
        if not self._found:
            return None
        elements, values, errors = (np.concatenate(parts) for parts in zip(*self._found, strict=True))
        order: NDArray[np.intp] = np.argsort(elements, kind="stable")
        return NearTies(elements[order], values[order], errors[order])
