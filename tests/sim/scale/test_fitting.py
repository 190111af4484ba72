"""The fit finds what the data were made of, and its bounds hold as often as they say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiebreak.protocol.errors import ConfigurationError
from tiebreak.sim.scale.fitting import CONFIDENCE, Fit, Prediction

TRUE = {"base": 3e-3, "flops": 2e-11, "bytes": 5e-10}


def made(count: int, noise: float, seed: int) -> list[tuple[dict[str, float], float]]:
    """Costs of the true coefficients over five decades, with relative noise."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        features = {"base": 1.0, "flops": 10 ** rng.uniform(6, 11), "bytes": 10 ** rng.uniform(5, 10)}
        value = sum(TRUE[name] * x for name, x in features.items()) * (1 + noise * rng.standard_normal())
        rows.append((features, value))
    return rows


def test_without_noise_the_coefficients_are_found() -> None:
    fit = Fit.of(made(12, 0.0, 1))
    for coefficient in fit.coefficients:
        assert coefficient.value == pytest.approx(TRUE[coefficient.name], rel=1e-6)
    assert fit.spread < 1e-9
    assert fit.points == 12


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_with_noise_they_are_found_within_their_errors(seed: int) -> None:
    fit = Fit.of(made(60, 0.05, seed))
    for coefficient in fit.coefficients:
        assert abs(coefficient.value - TRUE[coefficient.name]) < 6 * coefficient.error
    assert 0.025 < fit.spread < 0.1


def test_the_bounds_hold_as_often_as_they_say() -> None:
    inside = total = 0
    for seed in range(40):
        fit = Fit.of(made(15, 0.1, seed))
        for features, value in made(25, 0.1, 1000 + seed):
            found = fit.predict(features)
            inside += found.low <= value <= found.high
            total += 1
    assert total == 1000
    assert CONFIDENCE - 0.05 < inside / total < CONFIDENCE + 0.06


def test_a_feature_that_costs_nothing_is_found_to_cost_nothing_and_none_is_negative() -> None:
    rows = [({"a": a, "b": 1 / a}, 2 * a - 0.1 / a) for a in (1.0, 2.0, 3.0, 5.0, 8.0)]
    fit = Fit.of(rows)
    assert [c.value >= 0 for c in fit.coefficients] == [True, True]
    assert fit.coefficients[1].value == fit.coefficients[1].error == 0


def test_beyond_what_was_measured_is_said() -> None:
    fit = Fit.of([({"x": float(x)}, 2.0 * x) for x in range(1, 6)])
    assert not fit.predict({"x": 5}).extrapolated
    assert fit.predict({"x": 5.01}).extrapolated
    assert fit.predict({"x": 0}).high == float("inf")


@pytest.mark.parametrize(
    "rows",
    [[], [({"x": 1.0}, 1.0)], [({"x": 1.0}, 1.0), ({"x": 2.0}, 0.0)], [({"x": 1.0}, 1.0), ({"x": 2.0}, float("nan"))]],
)
def test_what_cannot_be_fitted_is_refused(rows: list[tuple[dict[str, float], float]]) -> None:
    with pytest.raises(ConfigurationError, match="expected "):
        Fit.of(rows)


def test_predictions_add_up() -> None:
    one, two = Prediction(value=2, low=1, high=3), Prediction.exactly(10).times(2)
    assert two.is_exact
    assert one.plus(two) == Prediction(value=22, low=21, high=23)
    assert not one.plus(two).is_exact
