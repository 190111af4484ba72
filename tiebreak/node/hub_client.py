"""A hub's client: it sends and reads posts, and uploads and downloads blobs. It trusts the hub with nothing.

A hub may be away, slow, or lie. Its posts count only with its own signature and the sender's, in strictly
growing places; pieces of a blob count by their digests. Whatever else comes is dropped, counted in
`HubClient.lies`, and asked for again after a pause that grows, so a bad hub costs time. Whatever exception its bytes
raise, the hub is "away"; and no byte prolongs a request, since a timer cuts the connection.
"""

import base64
import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from math import inf
from typing import Final, TypeVar
from urllib.parse import SplitResult, urlsplit

from tiebreak.node.hub_connection import HubAway, HubClientStopped, HubConnection, Pause
from tiebreak.node.pieces import FileSlice, good_bytes, pieces_of, write_at
from tiebreak.protocol.commitments import blobs, keys
from tiebreak.protocol.commitments.blobs import PIECE_BYTES, blob_root, check_piece, check_pieces, piece_count
from tiebreak.protocol.commitments.eip712 import ADDRESS_BYTES, Address, Domain
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, StateError, TiebreakError, VerificationError
from tiebreak.protocol.hashing import DIGEST_BYTES
from tiebreak.protocol.packing import Fields, unpack
from tiebreak.protocol.parties.posts import Body, Post, PostKind, Received, ReceivedPost, SignedPost
from tiebreak.protocol.strict_json import JsonObject, parse_json
from tiebreak.protocol.tags import Digest

MAX_ANSWER_BYTES: Final = 16 << 20
MAX_EVENT_BYTES: Final = 1 << 20
PAGE: Final = 200
MAX_JOBS: Final = 256
"""The most jobs that one request names."""
SECONDS: Final = 30.0
"""The time for a request and its answer, a MiB of a blob, or a line of a stream: a hub pings every 15 seconds."""
_PASSING: Final = frozenset({408, 429, 500, 502, 503, 504, 507})
"""Statuses after which the same request is sent again."""

T = TypeVar("T")


class HubRefused(TiebreakError):
    """The hub refuses a request, and would refuse it again: status and reason as it gave them."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"the hub refused with {status}: {text}")
        self.status, self.text = status, text


class HubForgot(TiebreakError):
    """The hub no longer has a post that it gave: it lost its posts, or another with its key has taken over."""


class _Away(Exception):
    """The hub did not answer, or not as it should; ask again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPost:
    """A post as it came from the hub, with all signatures checked."""

    received: ReceivedPost
    post: Post
    body: Body

    @property
    def place(self) -> int:
        return self.received.place

    @property
    def at(self) -> int:
        return self.received.at


class HubClient:
    """One hub. All methods block and may be called from several threads; each call has connections of its own.

    hub: the address of the hub's key. If it is not given, the first answer of the hub settles it for this object.
    stop: once it is set, every method that waits raises `HubClientStopped`, or ends if it iterates.
    patience: after this many seconds without an answer, every method but `follow` raises `HubAway`.
    """

    def __init__(
        self, url: str, domain: Domain, *, hub: Address | None = None, stop: threading.Event | None = None,
        seconds: float = SECONDS, patience: float = inf,
    ) -> None:  # fmt: skip
        self._parts, self._domain, self._seconds, self._patience = _parts_of(url), domain, seconds, patience
        self._hub, self.stop = hub, stop or threading.Event()
        self.lies = 0
        """The number of the hub's answers that did not verify."""
        self.note: Callable[[str], None] = lambda _: None
        """Called before a request is repeated, with the reason."""
        self._connections: set[HubConnection] = set()
        self._turned = threading.Event()
        self._listening: HubConnection | None = None

    def turn(self) -> None:
        """Let `read` ask again which jobs are wanted."""
        self._turned.set()
        if (connection := self._listening) is not None:
            connection.cut()

    def close(self) -> None:
        """Set `stop`, and end all requests that are under way."""
        self.stop.set()
        for connection in list(self._connections):
            connection.cut()

    # ------------------------------------------------------------------ posts

    @property
    def hub(self) -> Address:
        """The address that signs the hub's receipts. Raises `ConfigurationError` for a hub of another domain."""
        if self._hub is None:
            self._hub = self._again(self._ask_key)
        return self._hub

    def post(self, wire: bytes) -> Received:
        """Post these bytes until the hub has them. Raises `HubRefused` if it refuses them for good."""
        content = SignedPost.decode(wire).post.content

        def once() -> Received:
            found = self._json("POST", "/posts", wire)
            place, at = (found.integer(name, 0, (1 << 64) - 1) for name in ("place", "at"))
            received = Received(content=content, place=place, at=at)
            keys.verify(received.digest(self._domain), found.data("signature", keys.SIGNATURE_BYTES), self.hub)
            return received

        return self._again(once)

    def holds(self, place: int, wire: bytes) -> bool:
        """Whether the hub has these bytes in a place that it gave them."""
        verified_posts, _ = self.page(place - 1, limit=1)
        return [(verified.place, verified.received.wire) for verified in verified_posts] == [(place, wire)]

    def page(self, after: int, *, jobs: Sequence[bytes] = (), limit: int = PAGE) -> tuple[list[VerifiedPost], int]:
        """The posts after a place, and the place up to which the hub has been read; the same place if none came."""
        query = [f"after={after}", f"limit={limit}", *(f"job={job.hex()}" for job in jobs)]

        def once() -> tuple[list[VerifiedPost], int]:
            found = unpack(self._ask("GET", "/posts?" + "&".join(query)), MAX_ANSWER_BYTES)
            rows = Fields("page", found, len(found) if isinstance(found, list) else 0)
            verified_posts, last = [], after
            for _ in range(len(found)):
                verified, last = self._verified(ReceivedPost.unpack(*rows.next()), last, jobs)
                verified_posts += [verified] if verified else []
            return verified_posts, last

        return self._again(once)

    def read(self, wanted: Callable[[], Collection[bytes]], after: int, last: bytes) -> Iterator[VerifiedPost]:
        """Letters of the jobs wanted, each of them from its first, and all offers after a place, until `stop` is set.

        wanted: is asked again after each `turn`; posts of a job are in order. If there are more jobs than a request
        names, posts of others come, too. last: the bytes in the place up to which everything was read. Raises
        `HubForgot` if the hub does not have them, or the last that came, any more.
        """
        known: set[bytes] = set()
        while not self.stop.is_set():
            self._turned.clear()
            jobs = set(wanted())
            new, known = sorted(jobs - known), jobs
            for start in range(0, len(new), MAX_JOBS):
                at = 0
                while at < after:
                    verified_posts, end = self.page(at, jobs=new[start : start + MAX_JOBS])
                    yield from (verified for verified in verified_posts if verified.place <= after)
                    at = end if end > at else after
            is_few = len(jobs) <= MAX_JOBS
            for verified in self.follow(after, jobs=sorted(jobs) if is_few else (), offers=is_few, last=last):
                after, last = verified.place, verified.received.wire
                yield verified

    def follow(
        self, after: int, *, jobs: Sequence[bytes] = (), offers: bool = False, last: bytes = b""
    ) -> Iterator[VerifiedPost]:
        """Letters as they come, each once and in order, until `stop` is set or `turn` is called.

        offers: only of these jobs, even if they are none, and the offers of others. last: the bytes in place `after`.
        Raises `HubForgot` if the hub does not have them, or after a break the last that came, any more.
        """
        pause, held = Pause(self.stop, inf), (after, last) if last else None
        while not self.stop.is_set() and not self._turned.is_set():
            try:
                if held is not None and not self.holds(*held):
                    raise HubForgot(f"expected the post in place {held[0]} as before, got another or none")
                for verified, place in self._listen(after, jobs, offers=offers):
                    after = place
                    pause.reset()
                    if verified is not None:
                        held = verified.place, verified.received.wire
                        yield verified
            except HubClientStopped:
                return
            except Exception as error:
                if self._turned.is_set() and not isinstance(error, HubForgot):
                    return
                self._passing(error)
            if self._turned.is_set():
                return
            with contextlib.suppress(HubClientStopped):
                pause.wait()

    def _listen(self, after: int, jobs: Sequence[bytes], *, offers: bool) -> Iterator[tuple[VerifiedPost | None, int]]:
        query = "&".join([f"after={after}", "posts=1", *["offers=1"] * offers, *(f"job={job.hex()}" for job in jobs)])
        with self._connected() as connection:
            self._listening = connection
            if self._turned.is_set():
                return
            response = connection.answer("GET", f"/stream?{query}")
            if response.status != 200:
                raise HubRefused(response.status, _reason(response.read(1000)))
            idle = 0
            while not self.stop.is_set():
                connection.renew()
                data = response.readline(MAX_EVENT_BYTES + 1)
                idle += len(data)
                if not data.endswith(b"\n") or idle > 2 * MAX_EVENT_BYTES:
                    raise _Away("the stream ended, or was flooded with what is no post")
                if data.startswith(b"data: "):
                    received = ReceivedPost.unpack("event", unpack(_event(data[6:]), MAX_EVENT_BYTES))
                    verified, after = self._verified(received, after, jobs, offers=offers)
                    idle = 0
                    yield verified, after

    def _verified(
        self, received: ReceivedPost, after: int, jobs: Sequence[bytes], *, offers: bool = False
    ) -> tuple[VerifiedPost | None, int]:
        """The post and its place. None for one whose sender's signature is bad; a bad one of the hub is a lie."""
        if received.place <= after:
            raise VerificationError(f"expected a place after {after}, got {received.place}")
        signed = SignedPost.decode(received.wire)
        is_asked = signed.post.job_id in jobs or (signed.post.kind == PostKind.OFFER if offers else not jobs)
        if not is_asked:
            raise VerificationError(f"expected posts of the jobs asked for, got one of {signed.post.job_id.hex()}")
        named = Received(content=signed.post.content, place=received.place, at=received.at)
        keys.verify(named.digest(self._domain), received.signature, self.hub)
        try:
            return VerifiedPost(received=received, post=signed.post, body=signed.verify(self._domain)), received.place
        except Exception:  # a stranger's post, which must not keep back those behind it
            self.lies += 1
            return None, received.place

    def _ask_key(self) -> Address:
        found = self._json("GET", "/key")
        address, contract = (Address(found.data(name, ADDRESS_BYTES)) for name in ("address", "contract"))
        domain = Domain(chain_id=int(found.text("chainId", "[0-9]{1,78}", "digits")), contract=contract)
        if domain != self._domain:
            raise ConfigurationError(
                f"expected a hub for chain {self._domain.chain_id}, contract 0x{self._domain.contract.hex()}, got one "
                f"for chain {domain.chain_id}, contract 0x{domain.contract.hex()}"
            )
        return address

    # ------------------------------------------------------------------ blobs

    def put(self, file: FileIO, size: int) -> Digest:
        """Bring the first `size` bytes of a file to the hub, from where an earlier upload ended.

        A library has to name them first: raises `HubRefused` if none does. They must not change meanwhile; raises
        `StateError` if they do.
        """
        digests = pieces_of(file, size)
        root = blob_root(size, digests)
        where = f"/blobs/{root.hex()}"

        def once() -> Digest:
            with contextlib.suppress(HubRefused):
                self._ask("HEAD", where)
                return root
            try:
                held = self._json("PUT", f"{where}/pieces?size={size}", b"".join(digests)).integer("held", 0, size)
                if held % PIECE_BYTES and held != size:
                    raise VerificationError(f"expected whole pieces of {size} bytes, got {held} bytes")
                found = self._json("PUT", f"{where}?offset={held}", FileSlice(file, held, size))
            except HubRefused as error:
                if error.status != 409:
                    raise
                raise _Away("it holds less than it said") from error
            if found.integer("held", 0, size) != size:
                raise _Away("the upload ended early")
            return root

        try:
            return self._again(once)
        except HubRefused as error:
            if error.status == 400 and pieces_of(file, size) != digests:
                raise StateError("expected that a file stays as it is while it is sent, got other bytes") from error
            raise

    def get(self, root: Digest, size: int, file: FileIO) -> None:
        """Complete a file that holds nothing, or a beginning of the blob. Each piece is checked before it is written.

        Bytes that came before a break stay in the file. Raises `CannotCheck` if the hub does not have the blob. Nothing
        is synced: the caller that gives the file its name does that.
        """
        if not 0 <= size <= blobs.MAX_BLOB_BYTES:
            raise ConfigurationError(f"expected at most {blobs.MAX_BLOB_BYTES} bytes, got {size}")
        try:
            digests = self._again(lambda: self._digests(root, size))
        except HubRefused as error:
            raise CannotCheck(str(error)) from error
        held, pause = good_bytes(file, size, digests), Pause(self.stop, self._patience)
        while held < size:
            before = held
            try:
                for end in self._pieces(file, root, held, size, digests):
                    held = end
                    pause.reset()
            except Exception as error:
                self._passing(error)
            if held == before:
                pause.wait()
        file.truncate(size)

    def _digests(self, root: Digest, size: int) -> list[bytes]:
        data = self._ask("GET", f"/blobs/{root.hex()}/pieces", limit=8 + piece_count(size) * DIGEST_BYTES)
        digests = [data[at : at + DIGEST_BYTES] for at in range(8, len(data), DIGEST_BYTES)]
        check_pieces(root, size, digests)
        return digests

    def _pieces(self, file: FileIO, root: Digest, held: int, size: int, digests: Sequence[bytes]) -> Iterator[int]:
        """Read the missing bytes. Yields how much is right, all of it from the start, after each piece."""
        with self._connected() as connection:
            response = connection.answer("GET", f"/blobs/{root.hex()}", headers={"Range": f"bytes={held}-{size - 1}"})
            if response.status != 206:
                raise _Away(f"{response.status}: {_reason(response.read(1000))}")
            piece = memoryview(bytearray(PIECE_BYTES))
            for at in range(held, size, PIECE_BYTES):
                view, filled = piece[: size - at], 0
                connection.renew()
                while filled < len(view):
                    if self.stop.is_set():
                        raise HubClientStopped("stopped while a blob was fetched")
                    if not (came := response.readinto(view[filled:])):
                        raise _Away("the body ended early")
                    filled += came
                check_piece(digests, at // PIECE_BYTES, view)
                yield write_at(file.fileno(), view, at)

    # ------------------------------------------------------------------ requests

    def _again(self, once: Callable[[], T]) -> T:
        """Repeat a request until the hub answers.

        Raises `HubRefused`, `HubAway` after `patience`, or `HubClientStopped` once `stop` is set.
        """
        pause = Pause(self.stop, self._patience)
        while True:
            try:
                return once()
            except Exception as error:
                self._passing(error)
            pause.wait()

    def _passing(self, error: Exception) -> None:
        """Note why an answer does not count. Raises the error if it is not the hub's, or is the hub's last word."""
        is_ours = isinstance(error, TiebreakError) and not isinstance(error, VerificationError | HubAway)
        if isinstance(error, HubRefused):
            is_ours = error.status not in _PASSING
        elif isinstance(error, OSError):
            is_ours = error.errno in _OURS
        if is_ours:
            raise error
        self.lies += isinstance(error, VerificationError)
        if not self.stop.is_set():
            self.note(f"is asked again: {str(error)[:200] or repr(error)}")

    @contextlib.contextmanager
    def _connected(self) -> Iterator[HubConnection]:
        connection = HubConnection(self._parts, self._seconds)
        self._connections.add(connection)
        try:
            if self.stop.is_set():
                raise HubClientStopped("stopped before the hub was asked")
            yield connection
        finally:
            self._connections.discard(connection)
            connection.close()

    def _ask(
        self, method: str, path: str, body: bytes | FileSlice | None = None, *, limit: int = MAX_ANSWER_BYTES
    ) -> bytes:
        """One request. Raises `HubRefused` for an answer that refuses, `_Away` for none, or one that is too large."""
        with self._connected() as connection:
            response = connection.answer(method, path, body)
            parts, held = [], 0
            while data := response.read1(1 << 16):
                parts.append(data)
                held += len(data)
                if held > limit:
                    raise _Away(f"expected at most {limit} bytes, got more")
            if response.length not in (None, 0) and method != "HEAD":
                raise _Away("the answer was cut off")
        if not 200 <= response.status < 300:
            raise HubRefused(response.status, _reason(b"".join(parts)))
        return b"".join(parts)

    def _json(self, method: str, path: str, body: bytes | FileSlice | None = None) -> JsonObject:
        return JsonObject.parse("answer", self._ask(method, path, body, limit=1 << 16), 1)


_OURS: Final = frozenset({2, 13, 20, 21, 27, 28, 30, 122})
"""Errors of this machine's files (ENOENT, EACCES, ENOSPC, ...), which no other attempt would mend."""


def _parts_of(url: str) -> SplitResult:
    with contextlib.suppress(ValueError):  # of a port that is none
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    raise ConfigurationError(f"expected the URL of a hub, such as http://127.0.0.1:8787, got {url}")


def _event(data: bytes) -> bytes:
    """The packed post in the data of an event."""
    try:
        return base64.b64decode(parse_json(data, 1)["post"], validate=True)
    except (ValueError, KeyError, TypeError) as error:
        raise VerificationError(f"expected an event with a post, got {data[:80]!r}") from error


def _reason(data: bytes) -> str:
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return str(parse_json(data, 1)["error"])[:500]
    return data[:200].decode("utf-8", "replace")
