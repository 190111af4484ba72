"""The state that threads of a kernel of sums share, and the near ties that they report (`progress` of exact.h)."""

import ctypes
from collections.abc import Callable
from typing import Final

import numpy as np
from torch import Tensor

from tiebreak.engine.arithmetic.plan.stats import Counts
from tiebreak.engine.arithmetic.plan.ziv import Collector


class ZivProgress(ctypes.Structure):
    """`progress` of exact.h: state that threads share, and their counters."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("next", "undecided", "twice", "wrong", "nanoseconds", "logged")),
        *((name, ctypes.c_int64) for name in ("precision", "grid", "room")),
        ("limit", ctypes.c_double),
        ("near", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
    ]

    def add_to(self, counts: Counts, threads: int) -> None:
        """Adds the counters of a run on `threads` threads."""
        counts.undecided += self.undecided
        counts.logged += self.logged
        counts.undecided_twice += self.twice
        counts.double_rounded += self.wrong
        counts.seconds_resolving += self.nanoseconds / 1e9 / threads


_NEAR_TIE: Final = np.dtype([("place", np.int64), ("c", np.float64), ("e", np.float64)])
"""`near_tie` of exact.h."""
NEAR_ROOM: Final = 1 << 12
"""The initial room for near ties, in addition to one for every 16 elements."""


def run_kernel(
    compute: Callable[["ZivProgress"], bool],
    out: Tensor,
    precision: int,
    terms: int,
    near: Collector | None,
) -> ZivProgress:
    """Fills `out` by calling `compute`, which returns False if memory ran out; returns the counters.

    `terms`: the number of terms of an element, by the instruction's definition. Near ties go to `near`, if it is given.
    """
    if near is None:
        progress = ZivProgress(precision=precision, result=out.data_ptr())
        if not compute(progress):
            raise MemoryError(f"no memory to compute {tuple(out.shape)}")
        return progress
    grid = max(1, (terms - 1).bit_length()) if near.grid else 0
    room = out.numel() if near.limit > 1 else min(out.numel(), NEAR_ROOM + out.numel() // 16)
    while True:
        held = np.empty(room, dtype=_NEAR_TIE)
        progress = ZivProgress(
            precision=precision, grid=grid, room=room, limit=near.limit, near=held.ctypes.data,
            result=out.data_ptr(),
        )  # fmt: skip
        if not compute(progress):
            raise MemoryError(f"no memory to compute {tuple(out.shape)}")
        if progress.logged <= room:
            found = held[: progress.logged]
            near.add(found["place"].copy(), found["c"].copy(), found["e"].copy())
            return progress
        room = progress.logged  # the second run finds the same near ties
