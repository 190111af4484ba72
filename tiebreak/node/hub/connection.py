"""Connections of the hub: one too many ends another one, and a reader that takes too little is cut.

Nothing that strangers hold open keeps others out: where no more connections may be open, a new one takes the place of
another (`OpenConnections`). ASGI knows none of this, so an app finds its connection in the scope, under `EXTENSION`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from tiebreak.node.hub.limits import Network, address_of, is_among

EXTENSION: Final = "tiebreak.connection"
PATIENCE_SECONDS: Final = 30.0
"""The time that a reader has for what waits for it, in addition to what the bytes take at the least pace."""
LEAST_PACE: Final = 1 << 16
"""The least bytes a second at which a client must read."""
BODY_SECONDS: Final = 60.0
"""The time that a body which the hub reads whole has to arrive."""
GRACE_SECONDS: Final = 1.0
"""The time that a request has to arrive before its connection counts as a slow one."""


class OpenConnections:
    """The connections of a hub, by address. A new one that is one too many ends another one.

    That is one whose request has not come whole for longer than `GRACE_SECONDS`, the oldest of the address with most of
    these. If there is none, it is the oldest connection of the address with most.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one, self._count = most, most_of_one, 0
        self._open: defaultdict[str, dict[Connection, float]] = defaultdict(dict)
        """The connections of each address with the time at which they were opened, the oldest first."""
        self._incomplete: defaultdict[str, dict[Connection, float]] = defaultdict(dict)
        """The connections whose request is incomplete, with the time since which the hub waits for it."""

    def add(self, new: "Connection", now: float, *, is_proxy: bool) -> None:
        """Count a new connection, and cut it or another if these are too many."""
        self._open[new.address][new], self._count = now, self._count + 1
        if not is_proxy and len(self._open[new.address]) > self._most_of_one:
            new.cut()
        elif self._count > self._most:
            held_for_long = [held for held in self._incomplete.values() if _oldest(held) <= now - GRACE_SECONDS]
            greediest = max(held_for_long or self._open.values(), key=lambda held: (len(held), -_oldest(held)))
            next(iter(greediest)).cut()

    def remove(self, gone: "Connection") -> None:
        self.complete(gone)
        self._count -= _drop(self._open, gone)

    def wait(self, waiting: "Connection", now: float) -> None:
        """A connection waits for a request, unless it was cut."""
        self.complete(waiting)
        if waiting in self._open.get(waiting.address, ()):
            self._incomplete[waiting.address][waiting] = now

    def complete(self, served: "Connection") -> None:
        """The request of a connection has come whole."""
        _drop(self._incomplete, served)

    def rename(self, found: "Connection", address: str) -> None:
        """Count a connection for another address: that of the client for whom a proxy sends a request."""
        for held in (self._open, self._incomplete):
            if (since := held.get(found.address, {}).get(found)) is not None:
                _drop(held, found)
                held[address][found] = since
        found.address = address


def _oldest(held: "dict[Connection, float]") -> float:
    return next(iter(held.values()))


def _drop(by_address: "dict[str, dict[Connection, float]]", gone: "Connection") -> bool:
    """Forget a connection. Returns whether it was there."""
    held = by_address.get(gone.address, {})
    was_there = held.pop(gone, None) is not None
    if not held:
        by_address.pop(gone.address, None)
    return was_there


class Connection(H11Protocol):
    """One connection, of any number of requests."""

    _patience: asyncio.TimerHandle | None = None

    def __init__(
        self, *given: Any, open_connections: OpenConnections, proxies: Sequence[Network], **named: Any
    ) -> None:
        """proxies: peers that pass on the requests of others, and are believed when they say whose a request is."""
        super().__init__(*given, **named)
        self._open, self._proxies = open_connections, proxies

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = self.client[0] if self.client else ""
        self.address = address_of(peer, (), ())
        self._open.add(self, self.loop.time(), is_proxy=is_among(peer, self._proxies))
        self._open.wait(self, self.loop.time())
        transport.set_write_buffer_limits(0)  # writing is paused while anything waits for the reader
        app = self.app

        async def with_connection(scope: Any, receive: Any, send: Any) -> None:
            forwarded = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
            self._open.rename(self, address_of(peer, forwarded, self._proxies))
            scope["client"] = (self.address, 0)
            scope["extensions"] = {EXTENSION: self}
            await app(scope, receive, send)

        self.app = with_connection

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_patience()
        self._open.remove(self)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and not cycle.more_body and not cycle.response_complete:
            self._open.complete(self)

    def on_response_complete(self) -> None:
        self._open.wait(self, self.loop.time())
        super().on_response_complete()  # which may find the next request, if that has come already

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_patience()
        seconds = PATIENCE_SECONDS + self.transport.get_write_buffer_size() / LEAST_PACE
        self._patience = self.loop.call_later(seconds, self.cut)

    def resume_writing(self) -> None:
        self._stop_patience()
        super().resume_writing()

    def _stop_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def cut(self) -> None:
        """End the connection, and drop what waits for its reader."""
        self._open.remove(self)
        self.transport.abort()

    async def drained(self) -> None:
        """Wait until the reader has taken everything, or is gone."""
        await self.flow.drain()


def connection_of(request: Request) -> Connection:
    """The connection on which a request came."""
    return cast("Connection", request.scope["extensions"][EXTENSION])


async def body_of(request: Request, limit: int) -> bytes:
    """A whole body. Raises `HTTPException` for one that is too long or does not come in time."""
    parts, held = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for data in request.stream():
                held += len(data)
                if held > limit:
                    raise HTTPException(413, f"expected at most {limit} bytes, got more")
                parts.append(data)
    except TimeoutError:
        raise HTTPException(408, f"expected a body within {BODY_SECONDS:.0f} seconds, got a part of it") from None
    return b"".join(parts)
