"""Executes one instruction exactly in torch, except for near ties that policy `logged` reports."""

from tiebreak.engine.arithmetic.execute import Arithmetic, Options
from tiebreak.engine.arithmetic.stats import Counts, Stats
from tiebreak.engine.arithmetic.ziv import Logging, NearTies

__all__ = ["Arithmetic", "Counts", "Logging", "NearTies", "Options", "Stats"]
