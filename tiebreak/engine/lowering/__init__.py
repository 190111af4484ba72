"""Lowering: the table from ATen operators to instructions. Importing the package fills the table."""

from tiebreak.engine.lowering import (  # noqa: F401 - each fills its part of the table
    bits,
    convolution,
    elementwise,
    gamma,
    grouped,
    indexing,
    inverses,
    losses,
    normalization,
    ordering,
    pooling,
    powers,
    quantization,
    quotients,
    random,
    reductions,
    resampling,
    sampling,
    scalars,
    scans,
    scattering,
    views,
)
from tiebreak.engine.lowering.complexes import Complex, complex_rule, has_cut
from tiebreak.engine.lowering.registry import INTEGERS, RULES, WHOLE, Context, element_type

__all__ = ["INTEGERS", "RULES", "WHOLE", "Complex", "Context", "complex_rule", "element_type", "has_cut"]
