"""Executes one instruction exactly in torch; near ties apart, where policy `logged` wants them."""

from engine.arithmetic.execute import Arithmetic, Options
from engine.arithmetic.near import Logging, NearTies
from engine.arithmetic.stats import Counts, Stats

__all__ = ["Arithmetic", "Counts", "Logging", "NearTies", "Options", "Stats"]
