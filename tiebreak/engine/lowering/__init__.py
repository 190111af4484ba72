"""Lowering: the table from ATen operators to instructions. Importing the package fills the table."""

from tiebreak.engine.lowering import (
    convolution,
    elementwise,
    indexing,
    losses,
    normalization,
    pooling,
    reductions,
    resampling,
    sampling,
    scalars,
    scans,
    views,
)
from tiebreak.engine.lowering.registry import INTEGERS, RULES, WHOLE, Context, element_type

__all__ = [
    "INTEGERS",
    "RULES",
    "WHOLE",
    "Context",
    "convolution",
    "element_type",
    "elementwise",
    "indexing",
    "losses",
    "normalization",
    "pooling",
    "reductions",
    "resampling",
    "sampling",
    "scalars",
    "scans",
    "views",
]
