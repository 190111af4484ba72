"""One hub: its posts, blobs, listeners, limits and metrics. `app` makes an ASGI application of it."""

import asyncio
import contextlib
import logging
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import prometheus_client as prometheus
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tiebreak.node.hub.blobs import UPLOAD_BYTES, Blobs, UploadMemory
from tiebreak.node.hub.limits import PAGE_SECONDS, PROCESSOR, Buckets, Budgets, HubLimits
from tiebreak.node.hub.post_writer import Arrival, PostResult, PostWriter
from tiebreak.node.hub.store import Store
from tiebreak.node.hub.streams import Streams
from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.parties.posts import SignedPost
from tiebreak.protocol.parties.turns import Turns

GATHER_SECONDS: Final = 0.01
"""The least time between the starts of two batches of posts: each costs a sync of the disk."""
TROUBLE_SECONDS: Final = 1.0
"""The pause between two attempts to write to a database that failed, if no post comes meanwhile."""
_LOG: Final = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSettings:
    folder: Path
    domain: Domain
    key: keys.PrivateKey
    database: str = ""
    """SQLAlchemy's URL; empty for a file in the folder."""
    limits: HubLimits = field(default_factory=HubLimits)

    @property
    def url(self) -> str:
        return self.database or f"sqlite+pysqlite:///{self.folder.resolve() / 'posts.sqlite'}"


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    arrival: Arrival
    answer: "asyncio.Future[PostResult]"


class PostQueue(Turns[WaitingRequest]):
    """The posts that were read and not answered; `protocol.parties.turns` says in which order they are written.

    All its methods must be called in one event loop.
    """

    def __init__(self) -> None:
        super().__init__(lambda waiting: waiting.arrival)
        self._some = asyncio.Event()

    def put(self, waiting: WaitingRequest) -> None:
        super().put(waiting)
        self._some.set()

    async def next_batch(self) -> list[WaitingRequest]:
        """Wait for posts, and take the next of them. The batch before counts as done."""
        self._taken = []
        await self._some.wait()
        batch = self.batch()
        if not self:
            self._some.clear()
        return batch


class Metrics:
    def __init__(self, hub: "Hub") -> None:
        self.shown = prometheus.CollectorRegistry()
        here: dict[str, Any] = {"registry": self.shown}
        edges = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
        self.posts = prometheus.Counter("tiebreak_hub_posts", "Posts by the status answered", ["status"], **here)
        self.seconds = prometheus.Histogram(
            "tiebreak_hub_post_seconds", "From a post's last byte to its answer", buckets=edges, **here
        )
        self.taken = prometheus.Counter("tiebreak_hub_blob_bytes_taken", "Of blobs, uploaded", **here)
        self.given = prometheus.Counter("tiebreak_hub_blob_bytes_given", "Of blobs, downloaded", **here)
        for name, text, value in (
            ("tiebreak_hub_place", "The last place", lambda: hub.place),
            ("tiebreak_hub_listeners", "Connections that follow what is new", hub.listening.held.total),
            ("tiebreak_hub_waiting_posts", "Posts not answered yet", lambda: hub.waiting),
            ("tiebreak_hub_trouble", "Whether posts cannot be stored", lambda: hub.trouble != ""),
        ):
            prometheus.Gauge(name, text, **here).set_function(value)


def address_of_client(request: Request) -> str:
    """The address that limits count a request for; empty if there is none."""
    return request.client.host if request.client else ""


class Open:
    """Counts what each address has open, so that one cannot take all connections or memory."""

    def __init__(self, what: str, most: int) -> None:
        self._what, self._most = what, most
        self.held: Tally[str] = Tally()

    @contextlib.contextmanager
    def by(self, request: Request) -> Iterator[None]:
        """Hold one more. Raises `HTTPException` if that is too many."""
        address = address_of_client(request)
        if self.held[address] >= self._most:
            raise HTTPException(429, f"expected at most {self._most} {self._what} by one address, got another")
        self.held[address] += 1
        try:
            yield
        finally:
            self.held[address] -= 1
            if not self.held[address]:
                del self.held[address]


def _a_minute(most: int) -> Buckets[str]:
    return Buckets(most / 60, most)


class Hub:
    """One hub: its store, its library, its post writer and those who listen. It is made and used in one event loop."""

    def __init__(self, settings: HubSettings) -> None:
        limits = settings.limits
        self.domain, self.limits, self.address = settings.domain, limits, Address(settings.key.address)
        self.store, self.streams, self._queue = Store(settings.url), Streams(), PostQueue()
        self.blobs = Blobs(settings.folder / "blobs", free_bytes=limits.free_bytes)
        self._writing = ThreadPoolExecutor(1, "post writer")
        self.post_writer = PostWriter(
            self.store, settings.domain, settings.key, limits, has_room=lambda: self.blobs.has_room(0)
        )
        # What each address has open at once, and what it may ask for in a minute.
        self.listening = Open("streams", limits.streams_per_address)
        self.reading = Open("pages of posts", limits.reads_per_address)
        self.viewing = Open("pages", limits.reads_per_address)
        self.uploading = Open("uploads", limits.uploads_per_address)
        self.waiting_posts = Open("posts at once", limits.waiting_per_address)
        self.reads = _a_minute(limits.reads_per_minute)
        self.views = _a_minute(limits.pages_per_minute)
        self.strikes = _a_minute(limits.refusals_per_minute)
        self.budgets = Budgets(limits)
        """Charges each address for a post before the post is decoded."""
        self.in_memory = UploadMemory(UPLOAD_BYTES)
        self._changing: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self.place, self.waiting, self._ended = self.store.last_place(), 0, ""
        self.metrics = Metrics(self)

    @property
    def trouble(self) -> str:
        """The reason why the hub takes no posts; empty if it does."""
        return self._ended or self.post_writer.trouble

    async def post(self, wire: bytes, address: str) -> PostResult:
        """Give a post to the post writer, and wait for its answer."""
        at, limits = time.time(), self.limits
        if excess := self.budgets.excess(address, limits.keys_per_address, 1, len(wire), 0):
            return PostResult(status=429, error=excess)
        try:
            arrival = Arrival(wire=wire, signed=SignedPost.decode(wire), at=at, address=address)
        except VerificationError as error:
            return PostResult(status=400, error=str(error))
        if self.waiting >= limits.waiting_posts:
            refused = PostResult(status=429, error=f"expected at most {limits.waiting_posts} posts at once, got more")
            if (displaced := self._queue.displace(address)) is None:
                return refused
            if not displaced.answer.done():
                displaced.answer.set_result(refused)
        waiting = WaitingRequest(arrival, asyncio.get_running_loop().create_future())
        self.waiting += 1
        try:
            self._queue.put(waiting)
            return await waiting.answer
        finally:
            self.waiting -= 1

    async def stand(self) -> tuple[int, int]:
        """The last place and an instant that no later post precedes (`PostWriter.stand`)."""
        at = self._queue.earliest(time.time())
        return await asyncio.get_running_loop().run_in_executor(self._writing, self.post_writer.stand, at)

    async def change(self, function: Callable[..., T], root: bytes, *arguments: Any) -> T:
        """Change a blob in a thread. Changes of one blob wait for each other: for a disk, and never for a client."""
        async with self._changing.setdefault(root, asyncio.Lock()):
            return await run_in_threadpool(function, root, *arguments)

    def metered(self, app: ASGIApp) -> ASGIApp:
        """An application of pages for people, with a limit on the pages that an address may ask for."""

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope)
            address = address_of_client(request)
            if not self.views.take(address):
                most = self.limits.pages_per_minute
                raise HTTPException(429, f"expected at most {most} pages a minute by one address, got more")
            with self.viewing.by(request):
                try:
                    await app(scope, receive, send)
                finally:
                    more = max(0.0, scope.get(PROCESSOR, 0.0) / PAGE_SECONDS - 1)
                    self.views.take(address, min(more, self.views.tokens(address)))

        return respond

    async def serve_posts(self) -> None:
        """Take what waits, batch after batch: while one is on its way to the disk, the next one gathers."""
        loop = asyncio.get_running_loop()
        while True:
            batch: list[WaitingRequest] = []
            # An empty batch finds out whether posts are stored again, and which of the last ones were.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TROUBLE_SECONDS if self.post_writer.trouble else None):
                    batch = await self._queue.next_batch()
            start, answers = loop.time(), list[PostResult]()
            try:
                if not self._ended:
                    arrivals = [one.arrival for one in batch]
                    answers = await loop.run_in_executor(self._writing, self.post_writer.take, arrivals)
            except Exception as error:
                # A bug of ours, or a database that somebody else wrote. Nobody is told that a post was taken.
                self._ended = f"expected a post writer that takes posts, got one that ended: {error}"[:500]
                _LOG.exception("no further post is taken; start the hub again")
            if self._ended:
                answers = [PostResult(status=503, error=self._ended)] * len(batch)
            for row in [*self.post_writer.found, *(one.row for one in answers if one.row is not None and one.is_new)]:
                self.place = row.place
                self.streams.publish(row)
            for waiting, answer in zip(batch, answers, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(answer)
            await asyncio.sleep(start + GATHER_SECONDS - loop.time())

    def close(self) -> None:
        self._writing.shutdown(wait=True, cancel_futures=True)
        self.store.close()
