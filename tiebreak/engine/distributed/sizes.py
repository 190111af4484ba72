"""The numbers that decide what workers send. Nothing here imports torch, so what only calculates stays quick."""

from typing import Final

LEAST: Final = 1 << 12
"""Results of fewer elements than this, divided by the square of the number of workers, are computed whole, unless an
operand is held in shards. Sending all to everyone costs as many times what shards cost as there are workers."""
SMALL: Final = 1 << 11
"""Results that all need are rounded by every worker, if it sends at most this many sums for that."""
TOLD: Final = 3
"""The part of DDP's bytes that all such sums may take is this, divided by the square of the number of workers. The
smallest results come first."""
SUM_BYTES: Final = 6
BOUND_BYTES: Final = 2
"""The sizes of a partial sum and of its bound, as `tiebreak.engine.distributed.wire` packs them."""
