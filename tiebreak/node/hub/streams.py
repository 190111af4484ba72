"""Server-sent events: new posts for everybody who listens, each event made once."""

import asyncio
import base64
import json
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from starlette.concurrency import run_in_threadpool

from tiebreak.node.hub.store import Row, Store
from tiebreak.protocol.packing import pack
from tiebreak.protocol.parties.posts import PostKind, ReceivedPost, SignedPost

MAX_HELD_BYTES: Final = 4 << 20
"""Bytes of events that may wait for one slow listener. One with more is cut off, and comes back with its cursor."""
_SENT_BYTES: Final = 1 << 16
"""Bytes of events that are joined for a connection at a time. Until then all listeners share one copy of each event."""
PING_SECONDS: Final = 15.0
_PAGE: Final = 200
_PAGE_BYTES: Final = 1 << 19
"""Bytes of wires that are read at a time for one listener, who may be slow."""


class Listener:
    """One connection. `jobs`: those whose posts it wants, or None for all; `offers`: whether it wants offers of others.

    with_posts: whether events carry the posts.

    write: sends an event at once, or returns False if earlier ones still wait for the reader. cut: ends the connection.
    """

    def __init__(
        self, jobs: Collection[bytes] | None, *, with_posts: bool, write: Callable[[bytes], bool],
        cut: Callable[[], None], offers: bool = False,
    ) -> None:  # fmt: skip
        self.offers = offers
        self.jobs, self.with_posts, self._write, self._cut = jobs, with_posts, write, cut
        self.has_all = False
        """Whether all earlier events have been written, so that the next one may be, past the task that follows."""
        self.woken = asyncio.Event()
        self._held: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self.is_cut_off = False

    def put(self, place: int, event: bytes) -> None:
        if self.has_all and not self._held and self._write(event):
            return
        self._bytes += len(event)
        if self._bytes > MAX_HELD_BYTES:
            self.cut_off()
        else:
            self._held.append((place, event))
            self.woken.set()

    def cut_off(self) -> None:
        self.is_cut_off = True
        self._cut()
        self.woken.set()

    def take(self, after: int) -> tuple[int, bytes]:
        """Events that wait, of places after this one, with the last place: all, or as many as are sent at a time."""
        found, size = [], 0
        while self._held and size < _SENT_BYTES:
            place, event = self._held.popleft()
            self._bytes -= len(event)
            if place > after:
                after = place
                found.append(event)
                size += len(event)
        if not self._held:
            self.woken.clear()
        return after, b"".join(found)


class Streams:
    """All listeners of a hub. Use it from its event loop only."""

    def __init__(self) -> None:
        self._all: set[Listener] = set()
        self._offers: set[Listener] = set()
        self._of_job: dict[bytes, set[Listener]] = {}

    def __len__(self) -> int:
        return len(self._all | self._offers | {listener for group in self._of_job.values() for listener in group})

    def add(self, listener: Listener) -> None:
        if listener.jobs is None:
            self._all.add(listener)
        if listener.offers:
            self._offers.add(listener)
        for job in listener.jobs or ():
            self._of_job.setdefault(job, set()).add(listener)

    def remove(self, listener: Listener) -> None:
        self._all.discard(listener)
        self._offers.discard(listener)
        for job in listener.jobs or ():
            group = self._of_job.get(job, set())
            group.discard(listener)
            if not group:
                self._of_job.pop(job, None)

    def publish(self, row: Row) -> None:
        """Tell those who want to know about a post."""
        made: dict[bool, bytes] = {}
        of_job = self._of_job.get(row.job_id, set())
        for group in (self._all, of_job, self._offers - of_job if row.kind == PostKind.OFFER else ()):
            for listener in group:
                if listener.with_posts not in made:
                    ids = (row.job_id, row.game_id, row.kind)
                    made[listener.with_posts] = event_of(row.received, *ids, with_post=listener.with_posts)
                listener.put(row.place, made[listener.with_posts])


def event_of(received: ReceivedPost, job_id: bytes, game_id: bytes, kind: int, *, with_post: bool) -> bytes:
    """One event. Its id is the place, the cursor to go on from."""
    data: dict[str, str | int] = {"place": received.place, "job": job_id.hex(), "game": game_id.hex(), "kind": kind}
    if with_post:
        data["post"] = base64.b64encode(pack(received.pack())).decode()
    return b"id: %d\ndata: %s\n\n" % (received.place, json.dumps(data).encode())


async def follow(
    store: Store, streams: Streams, listener: Listener, after: int, send: Callable[[bytes], Awaitable[None]],
    turn: Callable[[], Awaitable[None]],
) -> None:  # fmt: skip
    """Sends the events after a place, first from the store, then as they come, until the listener is cut off.

    The listener is added before the store is read, so nothing falls between. turn: waits until it may read a page.
    """
    loop = asyncio.get_running_loop()
    streams.add(listener)
    try:
        await send(b": what is new, by its place\n\n")
        while not listener.is_cut_off:
            await turn()
            if not (page := await run_in_threadpool(_page, store, listener, after)):
                break
            after = page[-1][0]
            for _, event in page:
                await send(event)
        while not listener.is_cut_off:
            ping = loop.call_later(PING_SECONDS, listener.woken.set)
            listener.has_all = True
            await listener.woken.wait()
            listener.has_all = False
            ping.cancel()
            after, events = listener.take(after)
            await send(events or b":\n\n")
    finally:
        streams.remove(listener)


def _page(store: Store, listener: Listener, after: int) -> list[tuple[int, bytes]]:
    found = []
    for received in store.posts(after, jobs=listener.jobs, offers=listener.offers, limit=_PAGE, most=_PAGE_BYTES):
        post = SignedPost.decode(received.wire).post
        ids = (post.job_id, post.game_id, post.kind)
        found.append((received.place, event_of(received, *ids, with_post=listener.with_posts)))
    return found
