"""Executes one instruction exactly in torch, except for near ties that policy `logged` reports."""

from tiebreak.engine.arithmetic.execute import Arithmetic, Options
from tiebreak.engine.arithmetic.near_ties import Logging, NearTies
from tiebreak.engine.arithmetic.stats import Counts, Stats

__all__ = ["Arithmetic", "Counts", "Logging", "NearTies", "Options", "Stats"]
