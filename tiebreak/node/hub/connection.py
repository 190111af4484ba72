"""A connection of the hub: files leave it through the kernel, and whoever does not read is cut off.

ASGI knows neither, so an app finds its connection in the scope, under `EXTENSION`.
"""

import asyncio
import os
from contextlib import closing
from typing import Any, Final, cast

import h11
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

EXTENSION: Final = "tiebreak.connection"
PATIENCE_SECONDS: Final = 30.0
"""A reader that takes nothing of what waits for it within this time is cut off."""
SENT_BYTES: Final = 8 << 20
"""Handed to the kernel at a time; a socket takes less."""


class _Sized:
    """Bytes that h11 counts and never sees."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


class Connection(H11Protocol):
    """One connection, of any number of requests."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # writing is paused while anything waits for the reader
        app = self.app

        async def with_connection(scope: Any, receive: Any, send: Any) -> None:
            scope["extensions"] = {EXTENSION: self}
            await app(scope, receive, send)

        self.app = with_connection

    def connection_lost(self, exc: Exception | None) -> None:
        self._be_patient(None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._be_patient(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._be_patient(None)
        super().resume_writing()

    def _be_patient(self, waiting: int | None) -> None:
        """Look again later whether fewer than so many bytes wait; None: nothing waits any more."""
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
