"""A proxy between parties and their hub or node: it drops, delays, doubles, reorders, and cuts off what passes."""

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from random import Random
from urllib.parse import urlsplit

LONGEST_DELAY = 3.0
"""Seconds; a tenth of what networks are expected to do, as the blocks of these tests are a twelfth of Ethereum's."""


class Proxy:
    """Passes connections on to a server of this machine."""

    def __init__(self, url: str, seed: int) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._rng, self._listening = Random(seed), socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.faults: Counter[str] = Counter()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _strikes(self, fault: str, share: float) -> bool:
        found = self._rng.random() < share
        self.faults[fault] += found
        return found

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                theirs, _ = self._listening.accept()
                if self._strikes("dropped", 0.05):
                    theirs.close()
                    continue
                ours = socket.create_connection(self._target)  # type: ignore[arg-type]
                for pair, is_request in (((theirs, ours), True), ((ours, theirs), False)):
                    threading.Thread(target=self._pass_on, args=(*pair, is_request), daemon=True).start()

    def _repeat_late(self, data: bytes) -> None:
        """What was said comes once more after what was said later; delays overtake nobody who waits for answers."""
        time.sleep(self._rng.uniform(0, LONGEST_DELAY))
        self._repeat(data)

    def _repeat(self, data: bytes) -> None:
        with contextlib.suppress(OSError), socket.create_connection(self._target) as twin:  # type: ignore[arg-type]
            twin.sendall(data)
            twin.shutdown(socket.SHUT_WR)
            twin.settimeout(1)
            twin.recv(1 << 16)

    def _pass_on(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self._strikes("delayed", 0.03):
                    time.sleep(self._rng.uniform(0, LONGEST_DELAY))
                if is_request and self._strikes("doubled", 0.10):
                    self._repeat(data)
                if is_request and self._strikes("reordered", 0.05):
                    threading.Thread(target=self._repeat_late, args=(data,), daemon=True).start()
                if self._strikes("cut", 0.03):
                    target.sendall(data[: len(data) // 2])
                    break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextlib.contextmanager
def proxy(url: str, seed: int) -> Iterator[Proxy]:
    found = Proxy(url, seed)
    try:
        yield found
    finally:
        found.close()
