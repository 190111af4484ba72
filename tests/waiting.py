"""Polling for conditions that other processes and threads bring about, and a free port for them."""

import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress


def free_port() -> int:
    """A port of this machine that nobody listens at.

    It is below those that systems give to outgoing connections: one of these could take it before a server does.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def until(is_so: Callable[[], bool], seconds: float = 20, pause: float = 0.02) -> None:
    """Polls a condition every `pause` seconds until it holds; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"it did not come to that in {seconds:g} s"
        time.sleep(pause)
