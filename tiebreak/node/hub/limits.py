"""What a hub allows each key and each address, so that no stranger fills its disk or its time."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Set in the hub's configuration file under these names."""

    posts_per_minute: int = 1200
    """By one key, after a burst of a fifth of it."""
    post_bytes_per_second: int = 1 << 18
    """By one key, after a burst of 128 times as much."""
    refusals_per_minute: int = 600
    """Posts from one address that are no posts, or that their senders did not sign; each costs the hub some time."""
    jobs_per_key: int = 1000
    games_per_key: int = 1000
    stranger_bytes: int = 16 << 20
    """Of posts that a key has in a job of which it is neither the client nor the trainer, such as an auditor's."""
    bytes_per_key: int = 100 << 30
    """Of blobs that a key's libraries name."""
    blob_bytes: int = 32 << 30
    """The most that a single blob may have."""
    free_bytes: int = 1 << 30
    """What is left free on the disk: a job's client and trainer still post when blobs and strangers may not."""
    connections: int = 4096
    connections_per_address: int = 512
    """A reverse proxy on this machine, at 127.0.0.1, is no such address."""
    streams_per_address: int = 256
    reads_per_minute: int = 600
    """Pages of posts (`GET /posts`) by one address."""
    reads_per_address: int = 8
    """Such pages at once, until they were read; each may hold 8 MiB."""
    uploads_per_address: int = 16
    """An upload holds two blocks of 4 MiB: one is checked and written while the next one arrives."""
    waiting_posts: int = 2000
    """Taken by the hub but not answered yet."""


class Recent(Generic[K, V]):
    """A map that forgets what was not used for longest."""

    def __init__(self, size: int) -> None:
        self._size: Final = size
        self._kept: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def put(self, key: K, value: V) -> V:
        self._kept[key] = value
        self._kept.move_to_end(key)
        if len(self._kept) > self._size:
            self._kept.popitem(last=False)
        return value

    def clear(self) -> None:
        self._kept.clear()


class Buckets(Generic[K]):
    """A token bucket for each key: `rate` a second, and at most `burst` at once."""

    def __init__(self, rate: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._filled: Recent[K, tuple[float, float]] = Recent(100_000)

    def take(self, key: K, amount: float = 1.0) -> bool:
        """Take so many tokens. False if there are not as many."""
        tokens, now = self.tokens(key), self._clock()
        has_them = tokens >= amount
        self._filled.put(key, (tokens - amount * has_them, now))
        return has_them

    def tokens(self, key: K) -> float:
        """What a key may still spend at this instant; its bucket fills as time passes."""
        now = self._clock()
        tokens, since = self._filled.get(key) or (float(self._burst), now)
        return min(float(self._burst), tokens + (now - since) * self._rate)
