"""Lowering: a table from ATen operators to instructions. Importing the package fills the table."""

from engine.lowering import (
    convolution,
    elementwise,
    indexing,
    normalization,
    pooling,
    reductions,
    resampling,
    sampling,
    scalars,
    scans,
    views,
)
from engine.lowering.registry import DTYPES, RULES, WHOLE, Context

__all__ = [
    "DTYPES",
    "RULES",
    "WHOLE",
    "Context",
    "convolution",
    "elementwise",
    "indexing",
    "normalization",
    "pooling",
    "reductions",
    "resampling",
    "sampling",
    "scalars",
    "scans",
    "views",
]
