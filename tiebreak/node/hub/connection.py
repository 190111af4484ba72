"""Connections of the hub: files leave through the kernel, and an idle client, or one that does not read, is cut.

Nothing that strangers hold open keeps others out: where no more connections may be open, a new one takes the place of
another (`OpenConnections`). ASGI knows none of this, so an app finds its connection in the scope, under `EXTENSION`.
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final, cast

import h11
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from tiebreak.node.hub.limits import Network, address_of, is_among

EXTENSION: Final = "tiebreak.connection"
PATIENCE_SECONDS: Final = 30.0
"""A reader that takes nothing of what waits for it within this time is cut off."""
REQUEST_SECONDS: Final = 60.0
"""The time that a connection has for the head of a request, from its opening or from the last answer."""
SENT_BYTES: Final = 8 << 20
"""Bytes handed to the kernel at a time; a socket takes fewer."""
GRACE_SECONDS: Final = 1.0
"""The time that a request has to arrive before its connection counts as a slow one."""


class _Sized:
    """Bytes that h11 counts and never sees."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


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
        """A proxy has said whose request this is."""
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
    _waiting: asyncio.TimerHandle | None = None

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
        self._wait_for_request()
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
        self._be_patient(None)
        self._stop_waiting()
        self._open.remove(self)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        cycle: Any = self.cycle  # None before the first request
        if cycle is not before:
            self._stop_waiting()
        if cycle is not None and not cycle.more_body and not cycle.response_complete:
            self._open.complete(self)

    def on_response_complete(self) -> None:
        self._wait_for_request()
        super().on_response_complete()  # which may find the next request, if that has come already

    def _wait_for_request(self) -> None:
        """Uvicorn waits for ever for a first request, and for the rest of any that has begun."""
        self._stop_waiting()
        self._waiting = self.loop.call_later(REQUEST_SECONDS, self.cut)
        self._open.wait(self, self.loop.time())

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._be_patient(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._be_patient(None)
        super().resume_writing()

    def _be_patient(self, waiting: int | None) -> None:
        """Look again later whether fewer than `waiting` bytes wait; None: nothing waits any more."""
        if self._patience is not None:
            self._patience.cancel()
        self._patience = None
        if waiting is not None:
            self._patience = self.loop.call_later(PATIENCE_SECONDS, self._look, waiting)

    def _look(self, before: int) -> None:
        waiting = self.transport.get_write_buffer_size()
        if waiting < before:
            self._be_patient(waiting)
        else:
            self.cut()

    def cut(self) -> None:
        """End the connection, and drop what waits for its reader."""
        self._open.remove(self)
        self.transport.abort()

    def write(self, data: bytes) -> bool:
        """Write a part of a body that goes on. Returns False, and does not, if earlier parts wait for the reader."""
        if self.flow.write_paused or self.transport.is_closing() or self.scope["method"] == "HEAD":
            return False
        self.transport.write(self.conn.send(h11.Data(data=data)) or b"")
        return True

    async def drained(self) -> None:
        """Wait until the reader has taken everything, or is gone."""
        await self.flow.drain()

    async def send_file(self, file: int, at: int, end: int) -> int:
        """Send bytes `at` to `end` of an open file as a part of the body. Returns how many of them left.

        They are fewer if the reader goes away or does not read, or if the file is shorter; then the connection is cut.
        A thread waits for the disk, and none for the reader.
        """
        await self.drained()
        if self.transport.is_closing():
            return 0
        first = at
        try:
            with closing(self.transport.get_extra_info("socket").dup()) as out:
                while at < end and await self._has_room(out.fileno()):
                    try:
                        sent = await run_in_threadpool(os.sendfile, out.fileno(), file, at, min(SENT_BYTES, end - at))
                    except BlockingIOError:
                        continue
                    if not sent:
                        break
                    self.conn.send_with_data_passthrough(h11.Data(data=cast("bytes", _Sized(sent))))
                    at += sent
        except ConnectionError:
            pass
        if at < end:
            self.cut()
            await asyncio.sleep(0)  # now the rest of the app knows
        return at - first

    async def _has_room(self, out: int) -> bool:
        """Wait until the socket takes more. False for a reader that is gone or does not read."""
        ready = asyncio.Event()
        self.loop.add_writer(out, ready.set)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await ready.wait()
        except TimeoutError:
            return False
        finally:
            self.loop.remove_writer(out)
        return not self.transport.is_closing()


def connection_of(request: Request) -> Connection:
    """The connection on which a request came."""
    return cast("Connection", request.scope["extensions"][EXTENSION])
