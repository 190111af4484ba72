"""Executes one instruction exactly, except for near ties that policy `logged` reports.

`backend` is the one door to the back-ends: `plain` (torch alone, any device), `c` (CPUs) and `gpu` (Triton). Each has a
folder with its kernels beside the code that calls them; `plan` is what they share. All give the same bytes.
"""

from tiebreak.engine.arithmetic.execute import Arithmetic
from tiebreak.engine.arithmetic.plan.options import Counts, Options, Stats
from tiebreak.engine.arithmetic.plan.ziv import Logging, NearTies

__all__ = ["Arithmetic", "Counts", "Logging", "NearTies", "Options", "Stats"]
