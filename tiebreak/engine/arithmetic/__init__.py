"""Executes one instruction exactly in torch; near ties apart, where policy `logged` wants them."""

from tiebreak.engine.arithmetic.execute import Arithmetic, Options
from tiebreak.engine.arithmetic.near_ties import Logging, NearTies
from tiebreak.engine.arithmetic.stats import Counts, Stats

__all__ = ["Arithmetic", "Counts", "Logging", "NearTies", "Options", "Stats"]
