"""A connection of the hub: files leave it through the kernel, and an idle client, or one that does not read, is cut.

ASGI knows neither, so an app finds its connection in the scope, under `EXTENSION`.
"""

import asyncio
import os
from collections import Counter
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


class _Sized:
    """Bytes that h11 counts and never sees."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


class Connection(H11Protocol):
    """One connection, of any number of requests."""

    _patience: asyncio.TimerHandle | None = None
    _waiting: asyncio.TimerHandle | None = None

    def __init__(
        self, *given: Any, open_by_address: Counter[str], most: int, proxies: Sequence[Network], **named: Any
    ) -> None:
        """open_by_address: the number of connections of each address, in the whole hub. most: the most for one.

        proxies: peers that pass on the requests of others, and are believed when they say whose a request is.
        """
        super().__init__(*given, **named)
        self._open, self._most, self._proxies = open_by_address, most, proxies

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = self.client[0] if self.client else ""
        self._address = address_of(peer, (), ())
        self._open[self._address] += 1
        if not is_among(peer, self._proxies) and self._open[self._address] > self._most:
            self.cut()
        self._wait_for_request()
        transport.set_write_buffer_limits(0)  # writing is paused while anything waits for the reader
        app = self.app

        async def with_connection(scope: Any, receive: Any, send: Any) -> None:
            forwarded = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
            scope["client"] = (address_of(peer, forwarded, self._proxies), 0)
            scope["extensions"] = {EXTENSION: self}
            await app(scope, receive, send)

        self.app = with_connection

    def connection_lost(self, exc: Exception | None) -> None:
        self._be_patient(None)
        self._stop_waiting()
        self._open[self._address] -= 1
        if not self._open[self._address]:
            del self._open[self._address]
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        self._wait_for_request()
        super().on_response_complete()  # which may find the next request, if that has come already

    def _wait_for_request(self) -> None:
        """Uvicorn waits for ever for a first request, and for the rest of any that has begun."""
        self._stop_waiting()
        self._waiting = self.loop.call_later(REQUEST_SECONDS, self.cut)

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
