"""Waiting for what other processes and threads do."""

import time
from collections.abc import Callable


def until(is_so: Callable[[], bool], seconds: float = 20) -> None:
    """Ask again and again until it is so; fails after so long."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"it did not come to that in {seconds:g} s"
        time.sleep(0.02)
