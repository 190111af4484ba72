"""A worker process and the connection to it: canonical records, bounded in size, never pickles.

A worker runs what strangers wrote, so its process may become theirs, and the process that leads it may hold a key. What
a worker says therefore counts as a stranger's: each frame is 4 bytes, its length, and the msgpack array [place of the
record's type among those that this end takes, its fields] (`tiebreak.protocol.packing`). A frame that is too long or is
anything else raises `EncodingError`, the end of the connection `EOFError`. On a socket that does not block, neither a
worker that reads nothing nor one that stops amid a frame holds up its leader.

Parties (`tiebreak.node.pool`) and audits (`tiebreak.api.auditing.replayers`) start their workers here. The leader has
one thread for each worker, which sends a task and waits for the answer.
"""

import os
import selectors
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from socket import SHUT_RDWR, gethostname, socket, socketpair
from threading import Lock, Thread
from typing import Any, Final

from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.packing import AnyOf, Record, pack, unpack

READ_BYTES: Final = 1 << 16
MAX_OWED_BYTES: Final = 1 << 20
"""The most bytes that may wait for a worker before something more is sent to it."""
STOP_SECONDS: Final = 5
LOOK_SECONDS: Final = 1.0
"""The longest time after which it is seen that another thread has something to send."""


class Channel:
    """One end of a connection. Several threads may send, one receives."""

    def __init__(
        self, end: socket, *, sends: tuple[type[Record], ...], takes: tuple[type[Record], ...], limit: int = 1 << 30
    ) -> None:
        """limit: the most bytes of a frame that is taken."""
        self._end, self._sends, self._takes, self.limit = end, AnyOf(sends), AnyOf(takes), limit
        self._owed, self._heard, self._records = bytearray(), bytearray(), deque[Any]()
        self._sending = Lock()

    def fileno(self) -> int:
        return self._end.fileno()

    @property
    def owes(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._owed)

    def send(self, record: Record) -> None:
        """Sends a record; if the socket does not block, as much of it as the other end takes now."""
        self._sends.check("record", record)
        data = pack(self._sends.pack(record))
        with self._sending:
            if len(self._owed) > MAX_OWED_BYTES:
                raise TimeoutError("expected a worker that reads what it is sent, got one that does not")
            self._owed += len(data).to_bytes(4, "big") + data
        self.flush()

    def flush(self) -> None:
        """Goes on with what waits to be sent."""
        with self._sending, suppress(BlockingIOError):
            while self._owed:
                del self._owed[: self._end.send(self._owed)]

    def receive(self) -> list[Any]:
        """Reads once, and returns the records that are complete."""
        try:
            data = self._end.recv(READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise EOFError("the connection ended")
        self._heard += data
        found = []
        while len(self._heard) >= 4:
            if (length := int.from_bytes(self._heard[:4], "big")) > self.limit:
                raise EncodingError(f"expected a record of at most {self.limit} bytes, got one of {length}")
            if len(self._heard) < 4 + length:
                break
            found.append(self._takes.unpack("record", unpack(bytes(self._heard[4 : 4 + length]), self.limit)))
            del self._heard[: 4 + length]
        return found

    def wait(self, end: float | None = None) -> Any:
        """The next record. Raises `TimeoutError` at the instant `end` by the monotonic clock."""
        while True:
            left = LOOK_SECONDS if end is None else min(LOOK_SECONDS, end - time.monotonic())
            if left <= 0:
                raise TimeoutError("it took too long")
            if self._records:
                return self._records.popleft()
            with selectors.DefaultSelector() as selector:
                selector.register(self, selectors.EVENT_READ | (selectors.EVENT_WRITE if self.owes else 0))
                events = sum(found for _, found in selector.select(left))
            if events & selectors.EVENT_WRITE:
                with suppress(OSError):  # reading finds that the other end is gone
                    self.flush()
            if events & selectors.EVENT_READ:
                self._records += self.receive()

    def listen(self, on_record: Callable[[Any], None]) -> None:
        """Passes each record to a thread, and ends the process when the connection closes."""

        def take() -> None:
            try:
                while True:
                    for record in self.receive():
                        on_record(record)
            except (EOFError, OSError):
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)

        Thread(target=take, daemon=True).start()

    def shut(self) -> None:
        """Ends the connection for both ends, even if a process that the worker has left behind holds the other one."""
        with suppress(OSError):
            self._end.shutdown(SHUT_RDWR)

    def close(self) -> None:
        self._end.close()


class _Spawned(subprocess.Popen[bytes]):
    """A process that imports everything anew, with the methods of `multiprocessing.Process`."""

    def join(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(seconds)

    @property
    def exitcode(self) -> int | None:
        return self.returncode


def spawn(end: socket, module: str) -> _Spawned:
    """Starts `module.serve` on this end of a connection. In a session of its own, Ctrl-C ends it by its connection."""
    program = f"from {module} import serve; serve({end.fileno()})"
    # -P: a module of the user's in the current folder must not stand in for another.
    command = [sys.executable, "-P", "-c", program]
    return _Spawned(command, stdin=subprocess.DEVNULL, pass_fds=[end.fileno()], start_new_session=True)


def worker_name(pid: int | None = None) -> str:
    """The name of a worker in messages; None: of this process."""
    return f"process {pid or os.getpid()} of {gethostname()}"


class WorkerProcess:
    """A process that does tasks, and the leader's end of the connection to it."""

    def __init__(
        self, start: Callable[[socket], BaseProcess | _Spawned], sends: tuple[type[Record], ...],
        takes: tuple[type[Record], ...], limit: int,
    ) -> None:  # fmt: skip
        """start: begins the process, given the worker's end of the connection."""
        ours, theirs = socketpair()
        with theirs:
            self._process = start(theirs)
        ours.setblocking(False)
        self.channel, self.pid = Channel(ours, sends=sends, takes=takes, limit=limit), self._process.pid
        self.name = worker_name(self.pid)

    def kill(self) -> None:
        """Ends the process at once. Any thread may call this; one that waits for an answer gets `EOFError`."""
        self._process.kill()
        self.channel.shut()

    def end(self) -> int | None:
        """Ends the process if it has not ended, and closes the connection. Returns the exit code, if it is known."""
        self._process.kill()
        self._process.join(STOP_SECONDS)
        self.channel.close()
        return self._process.exitcode
