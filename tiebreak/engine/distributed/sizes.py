"""The numbers from which follows what workers send. Nothing here imports torch, so what only calculates stays quick."""

from typing import Final

LEAST: Final = 1 << 10
"""Results of fewer elements are computed whole, unless an operand is held in shards."""
SMALL: Final = 1 << 11
"""Results that all need are rounded by every worker, if it sends at most this many sums for that."""
SUM_BYTES: Final = 6
BOUND_BYTES: Final = 2
"""Of a partial sum and of its bound, as `tiebreak.engine.distributed.wire` packs them."""
