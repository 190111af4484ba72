"""The numbers from which follows what workers send. Nothing here imports torch, so what only calculates stays quick."""

from typing import Final

LEAST: Final = 1 << 12
"""Divided by the square of the number of workers: results of fewer elements are computed whole, unless an operand is
held in shards. Telling all costs as many times what shards do as there are workers."""
SMALL: Final = 1 << 11
"""Results that all need are rounded by every worker, if it sends at most this many sums for that."""
TOLD: Final = 3
"""Divided by the square of the number of workers: the part of DDP's bytes that all such sums may take. The smallest
results come first."""
SUM_BYTES: Final = 6
BOUND_BYTES: Final = 2
"""Of a partial sum and of its bound, as `tiebreak.engine.distributed.wire` packs them."""
