"""Executes one instruction exactly in torch (policy `exact`)."""

from engine.arithmetic.execute import Arithmetic, Options
from engine.arithmetic.stats import Counts, Stats

__all__ = ["Arithmetic", "Counts", "Options", "Stats"]
