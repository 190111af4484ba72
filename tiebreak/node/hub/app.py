"""The hub over HTTP/1.1 (Starlette on uvicorn); `openapi.json` in this folder describes it.

Nobody has an account. A post is taken for its signature, bytes of a blob are taken because a library names their root
and they hash to it. A refusal is answered with a status and `{"error": "expected ..., got ..."}`.
"""

import asyncio
import contextlib
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.resources import files
from typing import Any, Final

import prometheus_client as prometheus
from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from tiebreak.node.hub.blobs import DiskFull
from tiebreak.node.hub.connection import body_of, connection_of
from tiebreak.node.hub.service import Hub, HubSettings, address_of_client
from tiebreak.node.hub.store import Store
from tiebreak.node.hub.streams import Listener, events
from tiebreak.protocol import hashing, packing
from tiebreak.protocol.commitments.blobs import MAX_BLOB_BYTES, PIECE_BYTES, piece_count
from tiebreak.protocol.errors import ProofError, StateError
from tiebreak.protocol.parties.posts import MAX_POST_BYTES
from tiebreak.protocol.tags import Digest

MAX_PAGE: Final = 1000
MAX_JOBS: Final = 256
BLOCK_BYTES: Final = 4 * PIECE_BYTES
"""Bytes of an upload that are checked and written at a time; each upload holds as many."""
HELD: Final = "x-tiebreak-held"
"""The header that says how many bytes of a blob are here."""
_HEX: Final = re.compile("[0-9a-f]{64}")
_FAILURES: Final[dict[type[Exception], int]] = {
    ProofError: 400, ClientDisconnect: 400, StateError: 503, SQLAlchemyError: 503, DiskFull: 507,
}  # fmt: skip
"""The answers to errors of others: a client's bytes, the database, the disk."""
_NO_STORE: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}
_FOR_EVER: Final = {"cache-control": "public, max-age=31536000, immutable"}

Pages = Callable[[Store], Sequence[BaseRoute]]
"""Makes the routes of the pages, from the hub's store."""


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


class EventStream(StreamingResponse):
    """A stream of new posts, for as long as the client stays and reads."""

    def __init__(self, hub: Hub, request: Request, jobs: Sequence[bytes] | None, after: int, **wanted: bool) -> None:
        self._hub, self._request = hub, request
        self._listener = Listener(jobs, cut=connection_of(request).cut, **wanted)
        found = events(hub.store, self._listener, after, self._turn)
        super().__init__(found, headers=_NO_STORE, media_type="text/event-stream")

    async def _turn(self) -> None:
        """Wait until the client's address may read a page of posts."""
        while not self._hub.reads.take(address_of_client(self._request)):
            await asyncio.sleep(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._hub.listening.by(self._request), self._hub.streams.listened_by(self._listener):
            await super().__call__(scope, receive, send)


class PostsPage(Response):
    """Posts from the store. They take memory until the client has read them, so each address has few at once."""

    def __init__(self, hub: Hub, request: Request, **wanted: Any) -> None:
        self._hub, self._request, self._wanted = hub, request, wanted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._hub.reading.by(self._request):
            found = await run_in_threadpool(self._hub.store.posts, **self._wanted)
            body = packing.pack([post.pack() for post in found])
            await Response(body, media_type="application/msgpack")(scope, receive, send)
            await connection_of(self._request).drained()


class BlobResponse(FileResponse):
    """A blob, or ranges of it as Starlette reads them. At most two chunks of 64 KiB are in memory."""

    def __init__(self, hub: Hub, path: str, found: os.stat_result) -> None:
        super().__init__(path, headers=_FOR_EVER, media_type="application/octet-stream", stat_result=found)
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            self._hub.metrics.given.inc(len(message.get("body", b"")))
            await send(message)

        await super().__call__(scope, receive, counted)


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
        wire, client = await body_of(request, MAX_POST_BYTES), address_of_client(request)
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
        return Response(packing.pack(said.pack()), media_type="application/msgpack")

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
        if (size := _number(request, "size", 0, MAX_BLOB_BYTES)) > self.hub.limits.blob_bytes:
            raise HTTPException(413, f"expected at most {self.hub.limits.blob_bytes} bytes, got {size}")
        if not await run_in_threadpool(self.hub.store.is_named, root, size):
            raise HTTPException(403, f"expected a blob of {size} bytes that some library names, got {root.hex()}")
        digests, limits = await body_of(request, piece_count(size) * hashing.DIGEST_BYTES), self.hub.limits
        if excess := self.hub.budgets.excess(address_of_client(request), limits.keys_per_address, 1, len(digests), 0):
            raise HTTPException(429, excess)
        if await run_in_threadpool(self.hub.blobs.pieces, root) != (size, digests):
            if not await run_in_threadpool(self.hub.store.charge, root, size, self.hub.limits.bytes_per_key):
                most = self.hub.limits.bytes_per_key
                raise HTTPException(403, f"expected at most {most} bytes by the key that names it, got {size} more")
            await self.hub.change(self.hub.blobs.begin, root, size, digests)
        return JSONResponse({"held": await run_in_threadpool(self.hub.blobs.held, root), "size": size})

    async def get_pieces(self, request: Request) -> Response:
        root = _root(request)
        if (found := await run_in_threadpool(self.hub.blobs.pieces, root)) is None:
            raise HTTPException(404, f"expected a blob that is here, got {root.hex()}")
        held = await run_in_threadpool(self.hub.blobs.held, root)
        body = found[0].to_bytes(8, "big") + found[1]
        return Response(body, media_type="application/octet-stream", headers={HELD: str(held)})

    async def put_blob(self, request: Request) -> Response:
        root, blobs = _root(request), self.hub.blobs
        offset = _number(request, "offset", 0, MAX_BLOB_BYTES, 0)
        if (found := await run_in_threadpool(blobs.pieces, root)) is None:
            raise HTTPException(403, f"expected the pieces of {root.hex()} first, got its bytes")
        size = found[0]
        with self.hub.uploading.by(request):
            if (held := await self.hub.change(blobs.resume, root)) < size or not size:
                if offset > held or offset % PIECE_BYTES:
                    raise HTTPException(409, f"expected offset {held}, got {offset}", {HELD: str(held)})
                held = await self._append(request, root, offset, size)
        return JSONResponse({"held": held, "size": size})

    async def _append(self, request: Request, root: bytes, at: int, size: int) -> int:
        """Write the pieces of a body as they come, a block of them at a time. Returns the bytes that are here then.

        Stops reading once they are all here, whoever brought them. Bytes after the last whole piece are dropped, also
        if the body breaks off.
        """
        block, held, connection = bytearray(), at, connection_of(request)
        try:
            async for data in request.stream():
                block += data
                self.hub.in_memory.hold(connection, len(block))
                if len(block) > size - at:
                    del block[size - at :]
                    raise HTTPException(413, f"expected {size} bytes, got more")
                if len(block) >= min(BLOCK_BYTES, size - at) and block:
                    self.hub.in_memory.release(connection)  # to be the newest
                    whole = len(block) if len(block) == size - at else BLOCK_BYTES
                    written, block = block[:whole], block[whole:]
                    held, at = await self._write(root, at, memoryview(written), size), at + whole
                    if held == size:
                        return size
                    if block:
                        self.hub.in_memory.hold(connection, len(block))
        finally:
            self.hub.in_memory.release(connection)
            whole = len(block) // PIECE_BYTES * PIECE_BYTES
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
        path = self.hub.blobs.path(_root(request))
        try:
            found = await run_in_threadpool(os.stat, path)
        except FileNotFoundError:
            raise HTTPException(404, f"expected a blob that is here, got {path.name}") from None
        return BlobResponse(self.hub, str(path), found)

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


def _charge_read(hub: Hub, request: Request, reads: int = 1) -> None:
    if not hub.reads.take(address_of_client(request), reads):
        most = hub.limits.reads_per_minute
        raise HTTPException(429, f"expected at most {most} pages of posts a minute by one address, got more")


def _root(request: Request) -> bytes:
    text = request.path_params["root"]
    if not _HEX.fullmatch(text):
        raise HTTPException(400, f"expected a root of 64 hexadecimal digits, got {text[:80]!r}")
    return bytes.fromhex(text)
