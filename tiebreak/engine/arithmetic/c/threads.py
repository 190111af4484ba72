"""Python threads for compiled kernels, and the state and near ties that kernels of sums share among them.

`ctypes` releases the interpreter's lock while a kernel runs.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import Final, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plan.options import Counts
from tiebreak.engine.arithmetic.plan.ziv import Collector

P = ParamSpec("P")
T = TypeVar("T")
SMALL: Final = 1 << 23
"""Work of up to this many multiplications is as fast on one thread: to wake one takes 100 us on virtual machines."""
_NEAR_TIE: Final = np.dtype([("place", np.int64), ("c", np.float64), ("e", np.float64)])
"""`near_tie` of exact.h."""
NEAR_ROOM: Final = 1 << 12
"""The initial room for near ties, in addition to one for every 16 elements."""
_held = threading.local()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    # A thread has the modes of the one that makes it, which may flush subnormals.
    return ThreadPoolExecutor(threads, "kernel", torch.set_flush_denormal, (False,))


if hasattr(os, "register_at_fork"):  # a forked child has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def available() -> int:
    """The number of threads for kernels: torch's, or inside `torch_alone` the one that torch had before."""
    return getattr(_held, "threads", 0) or torch.get_num_threads()


def sharing(multiplications: int) -> int:
    """The number of threads that should share this much work, or work that takes as long."""
    return 1 if multiplications <= SMALL else available()


def together(work: Callable[[], T], threads: int) -> list[T]:
    """Calls `work` on `threads` threads at once, including this one; returns all results. Raises if any call raises."""
    if threads <= 1:
        return [work()]
    others = [_pool(threads - 1).submit(work) for _ in range(threads - 1)]
    try:
        return [work(), *(other.result() for other in others)]
    finally:
        wait(others)  # whatever interrupts this thread: they write to memory that is freed next


@contextmanager
def limited(count: int) -> Iterator[None]:
    """Limits torch to this many threads inside the block, and restores the old number after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def torch_alone() -> Iterator[None]:
    """Inside the block torch computes on this thread alone, and kernels on as many as it had.

    After each operation, torch's threads wait for the next one by spinning, for milliseconds, on the cores on which a
    kernel's threads should run. A thread that first uses torch while another one is in such a block has one thread too.
    """
    before = getattr(_held, "threads", 0)
    _held.threads = available()
    try:
        with limited(1):
            yield
    finally:
        _held.threads = before


def spread(work: Callable[P, T]) -> Callable[P, T]:
    """Makes a function that is long enough run on all of torch's threads, inside `torch_alone` too."""

    def run(*arguments: P.args, **options: P.kwargs) -> T:
        with limited(available()):
            return work(*arguments, **options)

    return run


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


def run_kernel(
    compute: Callable[["ZivProgress"], bool], out: Tensor, precision: int, terms: int, near: Collector | None
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
