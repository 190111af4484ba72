"""Costs along each direction, the bottlenecks and the held-out points as one JSON document: for pages and plots."""

from dataclasses import asdict, replace
from typing import Any, Final

from tiebreak.sim.scale.bottleneck import DIRECTIONS, Bottleneck, Budgets, Growth, bottlenecks, budgets_of
from tiebreak.sim.scale.fitting import CONFIDENCE, Fit, Prediction
from tiebreak.sim.scale.heldout import HeldOut, comparisons
from tiebreak.sim.scale.measurements import Measurements
from tiebreak.sim.scale.model import WHAT, CostModel, Setting
from tiebreak.sim.scale.subjects import transformer_subject

RANGES: Final = {"parameters": (6, 12), "steps": (2, 7), "jobs": (0, 5)}
"""Powers of ten."""
PER_DECADE: Final = 2
SEQUENCE, BATCH = 1024, 8
"""Of the steps of the family that stands for a number of parameters."""
PARAMETERS, STEPS, INTERVAL = 124_000_000, 10_000, 10
"""The job from which each direction starts."""


def sizes(direction: str) -> list[int]:
    """Where a curve has its points."""
    low, high = RANGES[direction]
    count = (high - low) * PER_DECADE
    return [round(10 ** (low + k / PER_DECADE)) for k in range(count + 1)]


def base(step_seconds: float | None = None) -> Setting:
    """The job of the curves."""
    subject = transformer_subject(PARAMETERS, sequence=SEQUENCE, batch=BATCH, steps=STEPS, interval=INTERVAL)
    return Setting(subject=subject, steps=STEPS, interval=INTERVAL, step_seconds=step_seconds)


def curve(growth: Growth, setting: Setting, direction: str) -> list[dict[str, Any]]:
    """A point for each size: the size, what is trained there, all costs, the budget most used."""
    points = []
    for size in sizes(direction):
        scaled = growth.at(setting, direction, size)
        if direction == "steps" and size < setting.interval:
            scaled = replace(setting, steps=size, interval=size)
        spent = growth.spent(scaled)[0]
        points.append(
            {
                "size": size,
                "subject": scaled.subject.name,
                "parameters": scaled.subject.parameters,
                "interval": scaled.interval,
                "costs": {name: told(p) for name, p in growth.model.costs(scaled).named().items()},
                "most_used": spent.budget,
                "share": spent.share,
            }
        )
    return points


def told(prediction: Prediction) -> dict[str, Any]:
    """A prediction as JSON."""
    return {**asdict(prediction), "exact": prediction.is_exact}


def fit_told(fit: Fit) -> dict[str, Any]:
    """A fit as JSON."""
    return {
        "points": fit.points,
        "spread": fit.spread,
        "coefficients": [asdict(coefficient) for coefficient in fit.coefficients],
    }


def held_out_told(found: HeldOut) -> dict[str, Any]:
    """A comparison as JSON."""
    return {
        **asdict(found),
        "predicted": told(found.predicted),
        "factor": found.factor,
        "holds": found.holds,
        "inside": found.is_inside,
    }


def bottleneck_told(found: Bottleneck) -> dict[str, Any]:
    """A bottleneck as JSON."""
    return asdict(found)


def document(m: Measurements, budgets: Budgets) -> dict[str, Any]:
    """Everything that a report shows of scale."""
    model = CostModel.of(m)
    growth = Growth(model=model, budgets=budgets_of(budgets), sequence=SEQUENCE, batch=BATCH)
    setting = base()
    fits = {name: fit_told(value) for name, value in vars(model).items() if isinstance(value, Fit)}
    fits |= {"gas of moves": fit_told(model.gas.moves), "gas of proofs": fit_told(model.gas.proofs)}
    return {
        "name": "scale curves",
        "confidence": CONFIDENCE,
        "environment": m.table.environment,
        "sources": ["scale", *m.others],
        "job": {
            "parameters": setting.subject.parameters,
            "steps": STEPS,
            "interval": INTERVAL,
            "levels": setting.levels,
        },
        "budgets": asdict(budgets),
        "what": {name: {"name": what, "unit": unit} for name, (what, unit) in WHAT.items()},
        "fits": fits,
        "held_out": [held_out_told(found) for found in comparisons(model, m)],
        "curves": {direction: curve(growth, setting, direction) for direction in DIRECTIONS},
        "bottlenecks": [bottleneck_told(found) for found in bottlenecks(growth, setting)],
        "limits": {
            direction: [bottleneck_told(found) for found in growth.limits(setting, direction)]
            for direction in DIRECTIONS
        },
    }
