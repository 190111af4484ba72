"""Limits that a hub sets for each key and each address, so that no stranger fills its disk or its time.

A key costs nothing and an address little, so limits by key share the hub among those who keep to one key, and limits by
address bound what one machine with many keys can take. The owner of thousands of addresses can still fill a disk.
A key is charged only for a post that gets a place, as anybody can repeat it; its address for each post that it sends.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Generic, TypeVar

from tiebreak.protocol.parties.posts import MAX_FILES

Network = IPv4Network | IPv6Network
PAGE_SECONDS: Final = 0.05
PROCESSOR: Final = "tiebreak.processor"
"""The item of an ASGI scope that says how many seconds of the processor its answer took."""
HOST_BITS: Final = 64
"""Bits of an IPv6 address that its host may choose as it likes."""
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubLimits:
    """Set in the hub's configuration file under these names."""

    posts_per_minute: int = 1200
    """Posts that one key may send, after a burst of a fifth of them."""
    post_bytes_per_second: int = 1 << 18
    """Bytes of posts that one key may send, after a burst of 128 times as many."""
    rows_per_minute: int = 15_000
    """Rows of the database that the posts of one key may fill (one for a post, one for each file that it lists), after
    a burst of a fifth of them."""
    keys_per_address: int = 4
    """An address may use up the three limits above as if it had this many keys. An IPv6 /64 counts as one address."""
    refusals_per_minute: int = 600
    """Posts from one address that are no posts, or that their senders did not sign; each costs the hub some time."""
    jobs_per_key: int = 1000
    games_per_key: int = 1000
    stranger_bytes: int = 16 << 20
    """Bytes of posts that a key may have in a job without being its client or trainer, such as an auditor's."""
    bytes_per_key: int = 100 << 30
    """Bytes of blobs that the lists of files of a key may name."""
    blob_bytes: int = 32 << 30
    """The most bytes that a single blob may have."""
    free_bytes: int = 1 << 30
    """Below this number of free bytes the disk is full. Then the hub takes only a little more of the posts that heads
    and games of earlier jobs need (see `full_bytes`)."""
    full_bytes: int = 1 << 20
    """Bytes of such posts that a key may have a full hub take in a day, and an address `keys_per_address` times."""
    connections: int = 4096
    """Open connections in all, or a quarter of the files that the system lets a process open, if that is less. One more
    ends another one, of the address with most."""
    connections_per_address: int = 512
    """Open connections of one address, unless it is one of the `proxies`."""
    streams_per_address: int = 256
    reads_per_minute: int = 600
    """Pages of posts (`GET /posts`, or what a stream reads to catch up) by one address."""
    reads_per_address: int = 8
    """Pages of posts that wait to be read by one address at once; each may hold 8 MiB."""
    pages_per_minute: int = 300
    """Pages for people by one address. One that takes more than 0.05 s of the processor counts as several."""
    uploads_per_address: int = 16
    """Uploads at once; each holds two blocks of 4 MiB: one is checked and written while the next one arrives."""
    waiting_posts: int = 2000
    """Posts that the hub has read but not answered yet. One more takes the place of one from the address with most."""
    waiting_per_address: int = 256
    """Posts of one address that the hub has read but not answered yet."""


class Recent(Generic[K, V]):
    """A map whose values weigh at most `size` together. It forgets those that were not used for longest."""

    def __init__(self, size: int) -> None:
        self._size: Final = size
        self._weight = 0
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def put(self, key: K, value: V, weight: int = 1) -> V:
        """Keep a value, unless it weighs more than `size` by itself. Returns it."""
        self._weight -= self._kept.pop(key, (value, 0))[1]
        if weight <= self._size:
            self._kept[key], self._weight = (value, weight), self._weight + weight
        while self._weight > self._size:
            self._weight -= self._kept.popitem(last=False)[1][1]
        return value

    def clear(self) -> None:
        self._kept.clear()
        self._weight = 0


class Buckets(Generic[K]):
    """A token bucket for each key: `rate` a second, and at most `burst` at once."""

    def __init__(self, rate: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._filled: Recent[K, tuple[float, float]] = Recent(100_000)

    def take(self, key: K, amount: float = 1.0) -> bool:
        """Take this many tokens. Returns False, and takes none, if there are fewer."""
        tokens, now = self.tokens(key), self._clock()
        has_them = tokens >= amount
        self._filled.put(key, (tokens - amount * has_them, now))
        return has_them

    def tokens(self, key: K) -> float:
        """The tokens that a key may still spend at this instant; its bucket fills as time passes."""
        now = self._clock()
        tokens, since = self._filled.get(key) or (float(self._burst), now)
        return min(float(self._burst), tokens + (now - since) * self._rate)


class Budgets:
    """Counts the posts, bytes and rows that each key and each address has left."""

    def __init__(self, limits: HubLimits) -> None:
        posts, size, rows = limits.posts_per_minute, limits.post_bytes_per_second, limits.rows_per_minute
        self._all: tuple[tuple[str, Buckets[bytes | str]], ...] = (
            (f"{posts} posts a minute", Buckets(posts / 60, max(1, posts // 5))),
            (f"{size} bytes a second of posts", Buckets(size, 128 * size)),
            (f"{rows} rows a minute", Buckets(rows / 60, max(1 + MAX_FILES, rows // 5))),
        )

    def excess(self, who: bytes | str, keys: int, posts: int, size: int, rows: int) -> str:
        """Charge a key, or an address that counts as `keys` keys. Returns the limit that this exceeds, or "".

        If a limit is exceeded, nothing is charged.
        """
        wanted = [amount / keys for amount in (posts, size, rows)]
        for (limit, buckets), amount in zip(self._all, wanted, strict=True):
            if buckets.tokens(who) < amount:
                return f"expected at most {limit} by one key, or by {keys} keys at one address, got more"
        for (_, buckets), amount in zip(self._all, wanted, strict=True):
            buckets.take(who, amount)
        return ""


# ---------------------------------------------------------------- addresses


def networks_in(text: str) -> tuple[Network, ...]:
    """The addresses and networks that a setting names, separated by commas. Raises `ValueError`."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def address_of(peer: str, forwarded: Sequence[str], proxies: Sequence[Network]) -> str:
    """The address that limits count a request for: its peer, or the last address that a trusted proxy names.

    forwarded: the values of its `X-Forwarded-For`. Those before the last one are the client's own word.
    """
    if is_among(peer, proxies) and forwarded:
        return _counted(forwarded[-1].rpartition(",")[2].strip()) or peer
    return _counted(peer) or peer


def is_among(host: str, networks: Sequence[Network]) -> bool:
    """Whether an address lies in one of the networks."""
    try:
        found = ip_address(host)
    except ValueError:
        return False
    return any(found in network for network in networks)


def _counted(host: str) -> str:
    """An IPv4 address, or the network of an IPv6 one; empty if the text is neither."""
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or ip_network((found, HOST_BITS), strict=False))
