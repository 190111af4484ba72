"""Server-sent events: new posts for everybody who listens, each event made once."""

import asyncio
import base64
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from tiebreak.node.hub.store import Row, Store
from tiebreak.protocol.packing import pack
from tiebreak.protocol.parties.posts import Post, PostKind, ReceivedPost, SignedPost

MAX_HELD_BYTES: Final = 4 << 20
"""Bytes of events that may wait for one slow listener. One with more is cut off, and comes back with its cursor."""
_SENT_BYTES: Final = 1 << 16
"""Bytes of events that are joined for a connection at a time. Until then all listeners share one copy of each event."""
PING_SECONDS: Final = 15.0
_ALL, _OFFERS = b"all", b"offers"
_PAGE: Final = 200
_PAGE_BYTES: Final = 1 << 19
"""Bytes of wires that are read at a time for one listener, who may be slow."""


class Listener:
    """One connection. `jobs`: those whose posts it wants, or None for all; `offers`: whether it wants offers of others.

    with_posts: whether events carry the posts. cut: ends the connection.
    """

    def __init__(
        self, jobs: Collection[bytes] | None, *, with_posts: bool, cut: Callable[[], None], offers: bool = False
    ) -> None:
        self.jobs, self.offers, self.with_posts, self._cut = jobs, offers, with_posts, cut
        self.woken = asyncio.Event()
        self._held: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self.is_cut_off = False

    def put(self, place: int, event: bytes) -> None:
        self._bytes += len(event)
        if self._bytes > MAX_HELD_BYTES:
            self.is_cut_off = True
            self._cut()
        else:
            self._held.append((place, event))
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
    """All listeners of a hub, by what they listen to. Use it from its event loop only."""

    def __init__(self) -> None:
        self._listeners: defaultdict[bytes, set[Listener]] = defaultdict(set)
        """The listeners of each job, by its id, and those of `_ALL` and `_OFFERS`."""

    def __len__(self) -> int:
        return len(set[Listener]().union(*self._listeners.values()))

    @contextmanager
    def listened_by(self, listener: Listener) -> Iterator[None]:
        """Calls the listener for each new post, until the context ends."""
        subjects = [*([_ALL] if listener.jobs is None else listener.jobs), *[_OFFERS] * listener.offers]
        for subject in subjects:
            self._listeners[subject].add(listener)
        try:
            yield
        finally:
            for subject in subjects:
                self._listeners[subject].discard(listener)
                if not self._listeners[subject]:
                    del self._listeners[subject]

    def publish(self, row: Row) -> None:
        """Tell those who want to know about a post. An event is made once for all of them."""
        made: dict[bool, bytes] = {}
        subjects = (_ALL, row.job_id, *[_OFFERS] * (row.kind == PostKind.OFFER))
        for listener in set[Listener]().union(*(self._listeners.get(subject, ()) for subject in subjects)):
            if listener.with_posts not in made:
                made[listener.with_posts] = event_of(row.received, row, with_post=listener.with_posts)
            listener.put(row.place, made[listener.with_posts])


def event_of(received: ReceivedPost, post: Post | Row, *, with_post: bool) -> bytes:
    """One event. Its id is the place, the cursor to go on from."""
    data = {"place": received.place, "job": post.job_id.hex(), "game": post.game_id.hex(), "kind": post.kind}
    if with_post:
        data["post"] = base64.b64encode(pack(received.pack())).decode()
    return b"id: %d\ndata: %s\n\n" % (received.place, json.dumps(data).encode())


async def events(
    store: Store, listener: Listener, after: int, turn: Callable[[], Awaitable[None]]
) -> AsyncIterator[bytes]:
    """Events after a place, first from the store, then as they come, until the listener is cut off.

    The listener hears what is new before the store is read, so nothing falls between. turn: waits until it may read a
    page. Ends if the database is away: the listener comes back.
    """
    loop, read = asyncio.get_running_loop(), partial(store.posts, jobs=listener.jobs, offers=listener.offers)
    yield b": what is new, by its place\n\n"
    while True:
        await turn()
        try:
            page = await run_in_threadpool(read, after, limit=_PAGE, most=_PAGE_BYTES)
        except SQLAlchemyError:
            return
        if not page:
            break
        after = page[-1].place
        for received in page:
            yield event_of(received, SignedPost.decode(received.wire).post, with_post=listener.with_posts)
    while not listener.is_cut_off:
        ping = loop.call_later(PING_SECONDS, listener.woken.set)
        await listener.woken.wait()
        ping.cancel()
        after, found = listener.take(after)
        yield found or b":\n\n"
