"""Python threads for compiled kernels: `ctypes` releases the interpreter's lock while a kernel runs."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Final, TypeVar

import torch

T = TypeVar("T")
SMALL: Final = 1 << 23
"""Up to this many multiplications, one thread is as fast as several: to wake one takes 100 us on virtual machines."""


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="kernel")


if hasattr(os, "register_at_fork"):  # a forked child has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def sharing(multiplications: int) -> int:
    """How many threads should share so much work, or work that takes as long."""
    return 1 if multiplications <= SMALL else torch.get_num_threads()


def together(work: Callable[[], T], threads: int) -> list[T]:
    """Calls `work` on `threads` threads at once, including this one; returns all results. Raises if any call raises."""
    if threads <= 1:
        return [work()]
    others = [_pool(threads - 1).submit(work) for _ in range(threads - 1)]
    return [work(), *(other.result() for other in others)]


@contextmanager
def limited(count: int) -> Iterator[None]:
    """Limits torch to this many threads inside the block, and restores the old number after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
