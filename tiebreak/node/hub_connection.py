"""One HTTP request of a hub's client, which the hub cannot prolong; and the pauses between attempts.

The standard library's client reads a body straight into the buffer that is hashed and written: at the speeds of a
loopback or of a fast network, copies are what a download waits for.
"""

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from random import SystemRandom
from typing import Final
from urllib.parse import SplitResult

from tiebreak.node.pieces import FileSlice
from tiebreak.protocol.commitments.blobs import PIECE_BYTES
from tiebreak.protocol.errors import TiebreakError

FIRST_PAUSE: Final = 0.25
LONGEST_PAUSE: Final = 30.0
_CHANCE: Final = SystemRandom()
"""A source of its own, since a step that another thread captures must not seem to draw Python's shared numbers."""


class HubClientStopped(TiebreakError):
    """The client was stopped before the hub answered."""


class HubAway(TiebreakError):
    """The hub has not answered as it should for so long that the caller does something else meanwhile."""


class HubConnection:
    """A connection for one request, cut some seconds after `renew` was called last, whatever the hub sends.

    A socket's own time-out starts again with each byte that comes, so a hub that drips would hold its caller for ever.
    """

    def __init__(self, parts: SplitResult, seconds: float) -> None:
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._http = kind(str(parts.hostname), parts.port, timeout=seconds, blocksize=PIECE_BYTES)
        self._path, self._seconds = parts.path.rstrip("/"), seconds
        self._socket: socket.socket | None = None
        self._is_cut, self._is_over = False, threading.Event()
        self.renew()
        threading.Thread(target=self._watch, daemon=True).start()

    def renew(self) -> None:
        """Give the hub time for the next part of its answer."""
        self._end = time.monotonic() + self._seconds

    def _watch(self) -> None:
        while (left := self._end - time.monotonic()) > 0:
            if self._is_over.wait(left):
                return
        self.cut()

    def cut(self) -> None:
        """End what another thread does with the connection: it gets an error, or no more bytes.

        Opening one, and the handshake of TLS, end by their own deadlines.
        """
        self._is_cut = True
        if (found := self._socket) is not None:
            with contextlib.suppress(OSError):
                # Of the connection below TLS: a TLS socket's own method would end what another thread reads with.
                socket.socket.shutdown(found, socket.SHUT_RDWR)

    def close(self) -> None:
        self._is_over.set()
        self._http.close()

    def answer(
        self, method: str, path: str, body: bytes | FileSlice | None = None, *, headers: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """Send a request. The head of the answer has come, and its body is still to be read."""
        headers = headers or ({} if body is None else {"Content-Length": str(len(body))})
        # Each of its two parts, the connection and the handshake of TLS, has a deadline of its own.
        self._http.connect()
        self._socket = self._http.sock
        if self._is_cut:
            raise TimeoutError("no answer in time")

        def pieces(part: FileSlice) -> Iterator[bytes]:
            while data := part.read(PIECE_BYTES):
                self.renew()  # for this piece
                yield data

        try:
            sent = pieces(body) if isinstance(body, FileSlice) else body
            self._http.request(method, self._path + path, sent, headers)
        except OSError:
            # A hub that refuses a long body answers before it has read it all, and then closes.
            if not isinstance(body, FileSlice):
                raise
        return self._http.getresponse()


class Pause:
    """Waits between attempts: longer each time, by chance a little more or less, so that parties do not march."""

    def __init__(self, stop: threading.Event, patience: float) -> None:
        self._stop, self._patience = stop, patience
        self.reset()

    def reset(self) -> None:
        """Start again with short pauses, and with all of the patience: the hub has answered."""
        self._seconds, self._end = FIRST_PAUSE, time.monotonic() + self._patience

    def wait(self) -> None:
        """Wait about twice as long as the last time, with random variation. Raises `HubClientStopped` if it is stopped.

        Raises `HubAway` instead of waiting if nothing came for longer than `patience`.
        """
        if time.monotonic() > self._end:
            raise HubAway(f"expected an answer of the hub, got none in {self._patience:.0f} seconds")
        if self._stop.wait(self._seconds * _CHANCE.uniform(0.5, 1.0)):
            raise HubClientStopped("stopped while the hub did not answer")
        self._seconds = min(2 * self._seconds, LONGEST_PAUSE)
