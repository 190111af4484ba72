"""Least squares for costs: sums of what each feature costs, none of which is negative, by relative error.

A cost is fitted as sum of coefficient * feature. Every row is divided by its measured value, so that a millisecond
counts as much as a minute, and what is left over is a relative error, of which the fit keeps the standard deviation.
From that and the uncertainty of the coefficients follow the bounds of a prediction (Student's t, 90 %). The bounds hold
if the form of the sum does: beyond the range of what was measured, that is a hope, and the prediction says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt

import numpy as np
from scipy.optimize import nnls
from scipy.stats import t as student

from tiebreak.protocol.errors import ConfigurationError

CONFIDENCE = 0.9
Features = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A predicted value and its bounds; the three are one where the value is counted, not estimated."""

    value: float
    low: float
    high: float
    extrapolated: bool = False

    @classmethod
    def exactly(cls, value: float) -> "Prediction":
        """What is counted."""
        return cls(value=value, low=value, high=value)

    @property
    def is_exact(self) -> bool:
        """Whether nothing was estimated."""
        return self.low == self.high

    def times(self, factor: float) -> "Prediction":
        """So many times as much."""
        return Prediction(
            value=self.value * factor, low=self.low * factor, high=self.high * factor, extrapolated=self.extrapolated
        )

    def plus(self, other: "Prediction") -> "Prediction":
        """The sum; bounds add up, as if both erred alike."""
        return Prediction(
            value=self.value + other.value,
            low=self.low + other.low,
            high=self.high + other.high,
            extrapolated=self.extrapolated or other.extrapolated,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficient:
    """What one unit of a feature costs, its standard error, and the most of the feature that was measured."""

    name: str
    value: float
    error: float
    most: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Fit:
    """A fitted cost. spread: standard deviation of the relative error of what it was fitted to."""

    coefficients: tuple[Coefficient, ...]
    spread: float
    points: int
    covariance: np.ndarray
    """Of the coefficients; zero where one was fitted to its bound of zero."""
    quantile: float

    @classmethod
    def of(cls, rows: Sequence[tuple[Features, float]]) -> "Fit":
        """Fits the rows' values to their features, which are the same in all. Raises `ConfigurationError`."""
        names = tuple(rows[0][0]) if rows else ()
        values = np.array([value for _, value in rows], dtype=float)
        if not names or len(rows) <= len(names):
            raise ConfigurationError(f"expected more measurements than the {len(names)} features, got {len(rows)}")
        if not all(isfinite(value) and value > 0 for value in values):
            raise ConfigurationError("expected measured values above zero, got another")
        design = np.array([[features[name] for name in names] for features, _ in rows], dtype=float)
        most = design.max(axis=0)
        scale = np.where(most > 0, most, 1.0)
        weighted = design / scale / values[:, None]
        found, _ = nnls(weighted, np.ones(len(rows)))
        used = found > 0
        degrees = len(rows) - int(used.sum())
        residual = weighted @ found - 1
        variance = float(residual @ residual) / degrees
        covariance = np.zeros((len(names), len(names)))
        active = np.flatnonzero(used)
        gram = weighted[:, active].T @ weighted[:, active]
        covariance[np.ix_(active, active)] = variance * np.linalg.pinv(gram)
        covariance /= np.outer(scale, scale)
        coefficients = tuple(
            Coefficient(name=name, value=float(found[k] / scale[k]), error=sqrt(covariance[k, k]), most=float(most[k]))
            for k, name in enumerate(names)
        )
        quantile = float(student.ppf((1 + CONFIDENCE) / 2, degrees))
        return cls(
            coefficients=coefficients,
            spread=sqrt(variance),
            points=len(rows),
            covariance=covariance,
            quantile=quantile,
        )

    def predict(self, features: Features) -> Prediction:
        """The cost of one more like those measured. Raises `KeyError` for features that are not the fit's."""
        row = np.array([features[c.name] for c in self.coefficients], dtype=float)
        value = float(row @ [c.value for c in self.coefficients])
        extrapolated = any(features[c.name] > c.most for c in self.coefficients)
        if not value:
            return Prediction(value=0.0, low=0.0, high=inf, extrapolated=True)
        relative = sqrt(self.spread**2 + max(0.0, float(row @ self.covariance @ row)) / value**2)
        factor = 1 + self.quantile * relative
        return Prediction(value=value, low=value / factor, high=value * factor, extrapolated=extrapolated)
