"""Lowering: the table from ATen operators to instructions. Importing the package fills the table."""

# ruff: noqa: F401 (the modules of the first two lines are imported because each fills its part of the table)

from tiebreak.engine.lowering import convolution, elementwise, indexing, pooling, random, reductions, resampling, views
from tiebreak.engine.lowering.more import functions, layers, ordering
from tiebreak.engine.lowering.more.complexes import Complex, complex_rule, has_cut
from tiebreak.engine.lowering.registry import INTEGERS, RULES, WHOLE, Context, element_type

__all__ = ["INTEGERS", "RULES", "WHOLE", "Complex", "Context", "complex_rule", "element_type", "has_cut"]
