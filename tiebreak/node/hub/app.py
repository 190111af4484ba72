"""The hub over HTTP/1.1 (Starlette on uvicorn); `openapi.json` in this folder describes it.

Nobody has an account. A post is taken for its signature, bytes of a blob are taken because a library names their root
and they hash to it. A refusal is answered with a status and `{"error": "expected ..., got ..."}`.
"""

import asyncio
import contextlib
import logging
import os
import re
import time
from collections import Counter as Tally
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import prometheus_client as prometheus
from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tiebreak.node.hub.blobs import UPLOAD_BYTES, Blobs, DiskFull, UploadMemory
from tiebreak.node.hub.bodies import body_of, chunks
from tiebreak.node.hub.connection import connection_of
from tiebreak.node.hub.limits import PAGE_SECONDS, PROCESSOR, Buckets, Budgets, HubLimits
from tiebreak.node.hub.post_queue import PostQueue, WaitingRequest
from tiebreak.node.hub.post_writer import Arrival, PostResult, PostWriter
from tiebreak.node.hub.store import Store
from tiebreak.node.hub.streams import Listener, Streams, follow
from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.blobs import MAX_BLOB_BYTES, PIECE_BYTES, piece_count
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.errors import ProofError, StateError, VerificationError
from tiebreak.protocol.hashing import DIGEST_BYTES
from tiebreak.protocol.packing import pack
from tiebreak.protocol.parties.posts import MAX_POST_BYTES, SignedPost
from tiebreak.protocol.tags import Digest

MAX_PAGE: Final = 1000
MAX_JOBS: Final = 256
GATHER_SECONDS: Final = 0.01
"""The least time between the starts of two batches of posts: each costs a sync of the disk."""
BLOCK_BYTES: Final = 4 * PIECE_BYTES
"""Bytes of an upload that are checked and written at a time; each upload holds two blocks."""
HELD: Final = "x-tiebreak-held"
"""The header that says how many bytes of a blob are here."""
TROUBLE_SECONDS: Final = 1.0
"""The time between two looks at a database that was away, if no post comes meanwhile."""
_LOG: Final = logging.getLogger(__name__)
_HEX: Final = re.compile("[0-9a-f]{64}")
_RANGE: Final = re.compile("bytes=([0-9]{0,15})-([0-9]{0,15})")
_FAILURES: Final[dict[type[Exception], int]] = {ProofError: 400, StateError: 503, SQLAlchemyError: 503, DiskFull: 507}
"""The answers to errors of others: a client's bytes, the database, the disk."""
_EVENT_STREAM: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
T = TypeVar("T")

Pages = Callable[[Store], Sequence[BaseRoute]]
"""Makes the routes of the pages, from the hub's store."""


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


class Open:
    """Counts what each address has open, so that one cannot take all connections or memory."""

    def __init__(self, what: str, most: int) -> None:
        self._what, self._most = what, most
        self.held: Tally[str] = Tally()

    @contextlib.contextmanager
    def by(self, request: Request) -> Iterator[None]:
        """Hold one more. Raises `HTTPException` if that is too many."""
        address = _address(request)
        if self.held[address] >= self._most:
            raise HTTPException(429, f"expected at most {self._most} {self._what} by one address, got another")
        self.held[address] += 1
        try:
            yield
        finally:
            self.held[address] -= 1
            if not self.held[address]:
                del self.held[address]


class Hub:
    """One hub: its store, its library, its post writer and those who listen. It is made and used in one event loop."""

    def __init__(self, settings: HubSettings) -> None:
        self.domain, self.limits, self.address = settings.domain, settings.limits, Address(settings.key.address)
        self.store = Store(settings.url)
        self._desk = ThreadPoolExecutor(1, "post writer")
        self.blobs = Blobs(settings.folder / "blobs", free_bytes=settings.limits.free_bytes)
        self.post_writer = PostWriter(
            self.store, settings.domain, settings.key, settings.limits, has_room=lambda: self.blobs.has_room(0)
        )
        self.streams = Streams()
        self.listening = Open("streams", settings.limits.streams_per_address)
        self.reading = Open("pages of posts", settings.limits.reads_per_address)
        reads = settings.limits.reads_per_minute
        self.reads: Buckets[str] = Buckets(reads / 60, reads)
        self.viewing = Open("pages", settings.limits.reads_per_address)
        views = settings.limits.pages_per_minute
        self.views: Buckets[str] = Buckets(views / 60, views)
        self.uploading = Open("uploads", settings.limits.uploads_per_address)
        self.in_memory = UploadMemory(UPLOAD_BYTES)
        self._changing: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        strikes = settings.limits.refusals_per_minute
        self.strikes: Buckets[str] = Buckets(strikes / 60, strikes)
        self.place = self.store.last_place()
        self.waiting = 0
        self.waiting_posts = Open("posts at once", settings.limits.waiting_per_address)
        self.budgets = Budgets(settings.limits)
        """Charges each address for a post before the post is decoded."""
        self.metrics = Metrics(self)
        self._line = PostQueue()
        self._ended = ""

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
            if (displaced := self._line.displace(address)) is None:
                return refused
            if not displaced.answer.done():
                displaced.answer.set_result(refused)
        waiting = WaitingRequest(arrival, asyncio.get_running_loop().create_future())
        self.waiting += 1
        try:
            self._line.put(waiting)
            return await waiting.answer
        finally:
            self.waiting -= 1

    async def stand(self) -> tuple[int, int]:
        """The last place and an instant that no later post precedes (`PostWriter.stand`)."""
        at = self._line.earliest(time.time())
        return await asyncio.get_running_loop().run_in_executor(self._desk, self.post_writer.stand, at)

    async def change(self, function: Callable[..., T], root: bytes, *arguments: Any) -> T:
        """Change a blob in a thread. Changes of one blob wait for each other: for a disk, and never for a client."""
        async with self._changing.setdefault(root, asyncio.Lock()):
            return await run_in_threadpool(function, root, *arguments)

    def metered(self, app: ASGIApp) -> ASGIApp:
        """An application of pages for people, with a limit on the pages that an address may ask for."""

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope)
            if not self.views.take(_address(request)):
                most = self.limits.pages_per_minute
                raise HTTPException(429, f"expected at most {most} pages a minute by one address, got more")
            with self.viewing.by(request):
                try:
                    await app(scope, receive, send)
                finally:
                    more = max(0.0, scope.get(PROCESSOR, 0.0) / PAGE_SECONDS - 1)
                    self.views.take(_address(request), min(more, self.views.tokens(_address(request))))

        return respond

    async def serve_posts(self) -> None:
        """Take what waits, batch after batch: while one is on its way to the disk, the next one gathers."""
        loop = asyncio.get_running_loop()
        while True:
            batch: list[WaitingRequest] = []
            # An empty batch finds out whether posts are stored again, and which of the last ones were.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TROUBLE_SECONDS if self.post_writer.trouble else None):
                    batch = await self._line.next_batch()
            start, answers = loop.time(), list[PostResult]()
            try:
                if not self._ended:
                    answers = await loop.run_in_executor(
                        self._desk, self.post_writer.take, [one.arrival for one in batch]
                    )
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
        self._desk.shutdown(wait=True, cancel_futures=True)
        self.store.close()


def make_app(settings: HubSettings, *, pages: Pages | None = None) -> Starlette:
    """The hub as an ASGI application, with its pages if there are any."""
    api = _Api()

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        api.hub = hub = await run_in_threadpool(Hub, settings)
        app.state.hub = hub
        if pages is not None:
            for route in pages(hub.store):
                if isinstance(route, Route):  # what else there is are files, which cost nothing
                    route.app = hub.metered(route.app)
                app.router.routes.append(route)
        serving = asyncio.create_task(hub.serve_posts())
        try:
            yield
        finally:
            serving.cancel()
            await run_in_threadpool(hub.close)

    handlers: dict[Any, Any] = {HTTPException: _refusal, **dict.fromkeys(_FAILURES, _failure), Exception: _bug}
    return Starlette(routes=api.routes(), lifespan=lifespan, exception_handlers=handlers)


async def _refusal(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


async def _failure(_request: Request, error: Exception) -> Response:
    kind = next(kind for kind in _FAILURES if isinstance(error, kind))
    is_away = kind is SQLAlchemyError  # whose own words are of the database's inside
    text = f"expected a database that answers, got {type(error).__name__}" if is_away else str(error)
    return JSONResponse({"error": text}, _FAILURES[kind])


async def _bug(_request: Request, _error: Exception) -> Response:
    return JSONResponse({"error": "expected a hub without bugs, got one; its log says more"}, 500)


class EventStream(Response):
    """A stream of new posts, for as long as the client stays and reads."""

    def __init__(self, hub: Hub, request: Request, jobs: Sequence[bytes] | None, after: int, **wanted: bool) -> None:
        self._hub, self._request, self._after = hub, request, after
        connection = connection_of(request)
        self._listener = Listener(jobs, write=connection.write, cut=connection.cut, **wanted)

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        hub, listener = self._hub, self._listener

        async def leave() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            listener.cut_off()

        async def give(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        async def turn() -> None:
            while not listener.is_cut_off and not hub.reads.take(_address(self._request)):
                await asyncio.sleep(1)

        with hub.listening.by(self._request):
            leaving = asyncio.create_task(leave())
            try:
                await send({"type": "http.response.start", "status": 200, "headers": _EVENT_STREAM})
                with contextlib.suppress(SQLAlchemyError):  # the listener comes back
                    await follow(hub.store, hub.streams, listener, self._after, give, turn)
                await send({"type": "http.response.body", "body": b""})
            finally:
                leaving.cancel()


class PostsPage(Response):
    """Posts from the store. They take memory until the client has read them, so each address has few at once."""

    def __init__(self, hub: Hub, request: Request, **wanted: Any) -> None:
        self._hub, self._request, self._wanted = hub, request, wanted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._hub.reading.by(self._request):
            found = await run_in_threadpool(self._hub.store.posts, **self._wanted)
            body = pack([post.pack() for post in found])
            await Response(body, media_type="application/msgpack")(scope, receive, send)
            await connection_of(self._request).drained()


class FileResponse(Response):
    """A range of a blob."""

    def __init__(self, hub: Hub, request: Request, status: int, headers: dict[str, str], span: tuple[int, int]) -> None:
        super().__init__(None, status, headers, "application/octet-stream")
        self._hub, self._request, self._span = hub, request, span

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        path = self._hub.blobs.path(_root(self._request))
        descriptor = await run_in_threadpool(os.open, path, os.O_RDONLY)
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if self._request.method != "HEAD":
                given = await connection_of(self._request).send_file(descriptor, *self._span)
                self._hub.metrics.given.inc(given)
            await send({"type": "http.response.body"})
        finally:
            os.close(descriptor)


class _Api:
    hub: Hub

    def routes(self) -> list[Route]:
        return [
            Route("/posts", self.add_post, methods=["POST"]),
            Route("/posts", self.list_posts, methods=["GET"]),
            Route("/posts/end", self.end_posts, methods=["GET"]),
            Route("/stream", self.stream, methods=["GET"]),
            Route("/blobs/{root}", self.put_blob, methods=["PUT"]),
            Route("/blobs/{root}", self.get_blob, methods=["GET", "HEAD"]),
            Route("/blobs/{root}/pieces", self.put_pieces, methods=["PUT"]),
            Route("/blobs/{root}/pieces", self.get_pieces, methods=["GET"]),
            Route("/healthz", self.healthz, methods=["GET"]),
            Route("/metrics", self.show_metrics, methods=["GET"]),
            Route("/key", self.key, methods=["GET"]),
            Route("/openapi.json", self.openapi, methods=["GET"]),
        ]

    # ------------------------------------------------------------------ posts

    async def add_post(self, request: Request) -> Response:
        wire, client = await body_of(request, MAX_POST_BYTES), _address(request)
        if self.hub.strikes.tokens(client) < 1:
            most = self.hub.limits.refusals_per_minute
            raise HTTPException(429, f"expected at most {most} posts a minute that are none by one address, got more")
        start = time.perf_counter()
        with self.hub.waiting_posts.by(request):
            answer = await self.hub.post(wire, client)
        self.hub.metrics.seconds.observe(time.perf_counter() - start)
        self.hub.metrics.posts.labels(answer.status).inc()
        if answer.row is None:
            if answer.status == 400:
                self.hub.strikes.take(client)
            raise HTTPException(answer.status, answer.error)
        row = answer.row
        return JSONResponse({"place": row.place, "at": row.at, "signature": "0x" + row.signature.hex()})

    async def list_posts(self, request: Request) -> Response:
        after = _number(request, "after", 0, (1 << 63) - 1, 0)
        limit = _number(request, "limit", 1, MAX_PAGE, 500)
        jobs, games = _digests(request, "job", MAX_JOBS), _digests(request, "game", 1)
        _charge_read(self.hub, request)
        game = games[0] if games else None
        return PostsPage(self.hub, request, after=after, jobs=jobs, game=game, limit=limit)

    async def end_posts(self, request: Request) -> Response:
        (job,) = _digests(request, "job", 1) or [b""]
        if not job:
            raise HTTPException(400, "expected one job, got none")
        _charge_read(self.hub, request)
        with self.hub.reading.by(request):
            pages = await run_in_threadpool(self.hub.store.count, job) // MAX_PAGE
            _charge_read(self.hub, request, min(pages, self.hub.limits.reads_per_minute // 2))
            said = await run_in_threadpool(self.hub.post_writer.complete, Digest(job), await self.hub.stand())
        return Response(pack(said.pack()), media_type="application/msgpack")

    async def stream(self, request: Request) -> Response:
        after = _number(request, "after", 0, (1 << 63) - 1, 0)
        with contextlib.suppress(ValueError):
            after = max(after, min(int(request.headers.get("last-event-id", "0")), (1 << 63) - 1))
        with_posts = _number(request, "posts", 0, 1, 0) == 1
        jobs, offers = _digests(request, "job", MAX_JOBS), _number(request, "offers", 0, 1, 0) == 1
        jobs = jobs or ([] if offers else None)
        return EventStream(self.hub, request, jobs, after, with_posts=with_posts, offers=offers)

    # ------------------------------------------------------------------ blobs

    async def put_pieces(self, request: Request) -> Response:
        root = _root(request)
        size = _number(request, "size", 0, MAX_BLOB_BYTES)
        if size > self.hub.limits.blob_bytes:
            raise HTTPException(413, f"expected at most {self.hub.limits.blob_bytes} bytes, got {size}")
        if not await run_in_threadpool(self.hub.store.is_named, root, size):
            raise HTTPException(403, f"expected a blob of {size} bytes that some library names, got {root.hex()}")
        digests, limits = await body_of(request, piece_count(size) * DIGEST_BYTES), self.hub.limits
        if excess := self.hub.budgets.excess(_address(request), limits.keys_per_address, 1, len(digests), 0):
            raise HTTPException(429, excess)
        if await run_in_threadpool(self.hub.blobs.pieces, root) != (size, digests):
            if not await run_in_threadpool(self.hub.store.charge, root, size, self.hub.limits.bytes_per_key):
                most = self.hub.limits.bytes_per_key
                raise HTTPException(403, f"expected at most {most} bytes by the key that names it, got {size} more")
            await self.hub.change(self.hub.blobs.begin, root, size, digests)
        return JSONResponse({"held": await run_in_threadpool(self.hub.blobs.held, root), "size": size})

    async def get_pieces(self, request: Request) -> Response:
        root = _root(request)
        found = await run_in_threadpool(self.hub.blobs.pieces, root)
        if found is None:
            raise HTTPException(404, f"expected a blob that is here, got {root.hex()}")
        held = await run_in_threadpool(self.hub.blobs.held, root)
        body = found[0].to_bytes(8, "big") + found[1]
        return Response(body, media_type="application/octet-stream", headers={HELD: str(held)})

    async def put_blob(self, request: Request) -> Response:
        root, blobs = _root(request), self.hub.blobs
        offset = _number(request, "offset", 0, MAX_BLOB_BYTES, 0)
        found = await run_in_threadpool(blobs.pieces, root)
        if found is None:
            raise HTTPException(403, f"expected the pieces of {root.hex()} first, got its bytes")
        size = found[0]
        with self.hub.uploading.by(request):
            held = await self.hub.change(blobs.resume, root)
            if held < size or not size:
                if offset > held or offset % PIECE_BYTES:
                    raise HTTPException(409, f"expected offset {held}, got {offset}", {HELD: str(held)})
                held = await self._append(request, root, offset, size)
        return JSONResponse({"held": held, "size": size})

    async def _append(self, request: Request, root: bytes, at: int, size: int) -> int:
        """Write the pieces of a body as they come, one block of them while the next one comes.

        Returns the bytes that are here then; stops reading once they are all, whoever brought them. Bytes after the
        last whole piece are dropped, also if the body breaks off.
        """
        first, length, filled, connection = at, min(BLOCK_BYTES, size - at), 0, connection_of(request)
        block, other = bytearray(length), bytearray(length)
        writing = asyncio.create_task(self._write(root, at, memoryview(b""), size))
        try:
            async for data in chunks(request):
                view = memoryview(data)
                while view:
                    wanted = min(length, size - at)
                    if not wanted:
                        raise HTTPException(413, f"expected {size} bytes, got more")
                    taken = view[: wanted - filled]
                    block[filled : filled + len(taken)] = taken
                    filled, view = filled + len(taken), view[len(taken) :]
                    self.hub.in_memory.hold(connection, min(at + filled - first, 2 * length))
                    if filled == wanted:
                        if await writing == size:
                            return size
                        self.hub.in_memory.release(connection)  # to be the newest
                        writing = asyncio.create_task(self._write(root, at, memoryview(block)[:filled], size))
                        block, other, at, filled = other, block, at + filled, 0
        finally:
            self.hub.in_memory.release(connection)
            await writing
            whole = filled // PIECE_BYTES * PIECE_BYTES
            held = await self._write(root, at, memoryview(block)[:whole], size)
        return held

    async def _write(self, root: bytes, at: int, data: memoryview, size: int) -> int:
        good, held = await run_in_threadpool(self.hub.blobs.check, root, at, data)
        if at + good >= held:  # wrong bytes, and those that are here, wait for nobody and keep nobody waiting
            held = await self.hub.change(self.hub.blobs.append, root, at, data[:good], size)
        if good < len(data):
            raise ProofError(f"piece {(at + good) // PIECE_BYTES}: expected bytes of its digest, got others")
        self.hub.metrics.taken.inc(good)
        return held

    async def get_blob(self, request: Request) -> Response:
        root = _root(request)
        size = await run_in_threadpool(self.hub.blobs.size, root)
        if size is None:
            raise HTTPException(404, f"expected a blob that is here, got {root.hex()}")
        first, end = _range(request, size)
        headers = {
            "accept-ranges": "bytes",
            "content-length": str(end - first),
            "cache-control": "public, max-age=31536000, immutable",
        }
        status = 200
        if "range" in request.headers:
            status, headers["content-range"] = 206, f"bytes {first}-{end - 1}/{size}"
        return FileResponse(self.hub, request, status, headers, (first, end))

    # ------------------------------------------------------------------ about the hub

    async def healthz(self, _request: Request) -> Response:
        if self.hub.trouble:
            raise HTTPException(503, self.hub.trouble)
        place = await run_in_threadpool(self.hub.store.last_place)
        return JSONResponse({"status": "ok", "place": place})

    async def show_metrics(self, _request: Request) -> Response:
        data = prometheus.generate_latest(self.hub.metrics.shown)
        return Response(data, headers={"content-type": prometheus.CONTENT_TYPE_LATEST})

    async def key(self, _request: Request) -> Response:
        domain = self.hub.domain
        contract = f"0x{domain.contract.hex()}"
        found = {"address": f"0x{self.hub.address.hex()}", "chainId": str(domain.chain_id), "contract": contract}
        return JSONResponse(found)

    async def openapi(self, _request: Request) -> Response:
        return Response(description(), media_type="application/json")


def description() -> bytes:
    """The OpenAPI description of this hub."""
    return (files("tiebreak.node.hub") / "openapi.json").read_bytes()


# ---------------------------------------------------------------- incoming data


def _number(request: Request, name: str, low: int, high: int, default: int | None = None) -> int:
    texts = request.query_params.getlist(name)
    if not texts and default is not None:
        return default
    if len(texts) != 1 or not re.fullmatch("[0-9]{1,19}", texts[0]) or not low <= int(texts[0]) <= high:
        raise HTTPException(400, f"expected {name} between {low} and {high}, got {', '.join(texts)[:80]!r}")
    return int(texts[0])


def _digests(request: Request, name: str, most: int) -> list[bytes] | None:
    texts = request.query_params.getlist(name)
    if len(texts) > most or not all(map(_HEX.fullmatch, texts)):
        raise HTTPException(
            400, f"expected at most {most} of {name}, each of 64 hexadecimal digits, got {', '.join(texts)[:80]!r}"
        )
    return [bytes.fromhex(text) for text in texts] or None


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _charge_read(hub: Hub, request: Request, reads: int = 1) -> None:
    if not hub.reads.take(_address(request), reads):
        most = hub.limits.reads_per_minute
        raise HTTPException(429, f"expected at most {most} pages of posts a minute by one address, got more")


def _root(request: Request) -> bytes:
    text = request.path_params["root"]
    if not _HEX.fullmatch(text):
        raise HTTPException(400, f"expected a root of 64 hexadecimal digits, got {text[:80]!r}")
    return bytes.fromhex(text)


def _range(request: Request, size: int) -> tuple[int, int]:
    """The first byte and the end of the range that a request asks for."""
    text = request.headers.get("range")
    if text is None:
        return 0, size
    found = _RANGE.fullmatch(text)
    if found is not None and any(found.groups()):
        first, last = found.groups()
        start = int(first) if first else max(0, size - int(last))
        end = min(size, int(last) + 1) if first and last else size
        if start < end:
            return start, end
    raise HTTPException(
        416, f"expected one range within {size} bytes, got {text[:80]!r}", {"content-range": f"bytes */{size}"}
    )
