"""A hub client against hubs that lie, drip, cut and come back: it believes nothing false and reads what is true."""

import base64
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from random import Random
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests import waiting
from tests.parts import slow_except
from tests.protocol.runs import DOMAIN, TRAINER
from tests.tiebreak.node import hubs
from tests.tiebreak.node.hubs import HUB, JOB, OFFER, Running, download, running, settings, steps, upload
from tiebreak.node import hub_client as client_module
from tiebreak.node import hub_connection as connection_module
from tiebreak.node.hub_client import HubClient, HubForgot, HubRefused
from tiebreak.node.hub_connection import HubClientStopped
from tiebreak.node.pieces import FileSlice
from tiebreak.protocol.commitments.blobs import PIECE_BYTES, blob_root, piece_digest
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, StateError, VerificationError
from tiebreak.protocol.packing import pack
from tiebreak.protocol.parties.posts import Received, ReceivedPost, SignedPost
from tiebreak.protocol.tags import Digest

Script = Callable[[bytes], Iterable[bytes | float]]
"""Maps the head of a request to what is sent, with pauses in seconds; the connection is closed at the end."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(connection_module, "LONGEST_PAUSE", 0.05)


@contextmanager
def liar(script: Script) -> Iterator[str]:
    """A server that answers by a script."""

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            head = b""
            while b"\r\n\r\n" not in head and (data := self.request.recv(1 << 16)):
                head += data
            with contextlib.suppress(OSError):
                for item in script(head):
                    if isinstance(item, float):
                        time.sleep(item)
                    else:
                        self.request.sendall(item)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def receipt(wire: bytes, place: int, *, at: int = 5, key: object = HUB) -> ReceivedPost:
    named = Received(content=SignedPost.decode(wire).post.content, place=place, at=at)
    signature = key.sign(named.digest(DOMAIN))  # type: ignore[attr-defined]
    return ReceivedPost(place=place, at=at, wire=wire, signature=signature)


def as_json(found: ReceivedPost, **changes: object) -> bytes:
    made = {"place": found.place, "at": found.at, "signature": "0x" + found.signature.hex()}
    return json.dumps({**made, **changes}).encode()


def page(*found: ReceivedPost) -> bytes:
    return pack([item.pack() for item in found])


def hub_client(url: str, **given: object) -> HubClient:
    return HubClient(url, DOMAIN, **{"hub": HUB.address, "seconds": 2.0, **given})  # type: ignore[arg-type]


def script_of(*bodies: list[bytes | float]) -> Script:
    """The next answer to each request, and the last one for ever."""
    left = list(bodies)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


GOOD = receipt(OFFER, 3)
LIES: dict[str, list[bytes | float]] = {
    "another key": [answer(as_json(receipt(OFFER, 3, key=TRAINER)))],
    "another place": [answer(as_json(GOOD, place=4))],
    "a negative number": [answer(as_json(GOOD, place=-3))],
    "no JSON": [answer(b"{")],
    "no object": [answer(b"[]")],
    "no hexadecimal": [answer(as_json(GOOD, signature="0xzz"))],
    "an end at once": [],
    "a cut body": [answer(as_json(GOOD))[:-5]],
    "a long body": [b"HTTP/1.1 200 OK\r\n\r\n", *[bytes(1 << 16)] * 3],
    "a server error": [answer(b"oops", "500 Oops")],
    "a full disk": [answer(b'{"error": "full"}', "507 Full")],
    "a redirect to itself": [answer(b"", "503 Later", "Location: /posts")],
    "a negative chunk": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n"],
}


def test_a_receipt_counts_only_if_the_hub_signed_it(cases: Callable[[int], None]) -> None:
    scripts, asked = script_of(*LIES.values(), [answer(as_json(GOOD))]), list[bytes]()

    def script(head: bytes) -> list[bytes | float]:
        asked.append(head)
        return scripts(head)

    with liar(script) as url:
        assert hub_client(url).post(OFFER) == Received(content=SignedPost.decode(OFFER).post.content, place=3, at=5)
    assert len(asked) == len(LIES) + 1, "each lie is asked about again"
    cases(len(LIES))


class Waited(threading.Event):
    """A stop that tells when somebody waits before the next try."""

    waited: Callable[[], None]

    def wait(self, timeout: float | None = None) -> bool:
        self.waited()
        return super().wait(timeout)


def test_hub_refusals_are_reported_and_a_stop_ends_retries() -> None:
    for body in (b'{"error": "no"}', b'{"error": "\\u001b[2J\\u202eno"}', b"\x1b]0;no\x07"):
        with liar(script_of([answer(body, "403 No")])) as url, pytest.raises(HubRefused, match=r"403: .*no") as e:
            hub_client(url).post(OFFER)
        assert e.value.status == 403
        assert str(e.value).isprintable(), "a hub's words write to nobody's terminal"
    with liar(script_of([answer(b'{"error": "no"}', "400 No")])) as url, pytest.raises(HubRefused, match="400: no"):
        next(iter(hub_client(url).follow(0)))
    stop = Waited()
    stop.waited = stop.set
    with pytest.raises(HubClientStopped):
        hub_client("http://127.0.0.1:1", stop=stop).post(OFFER)
    for url in ("ftp://a", "http://", "nothing"):
        with pytest.raises(ConfigurationError, match="expected the URL of a hub"):
            HubClient(url, DOMAIN)
    for data in (b'{"post": ' + b"[" * client_module.MAX_EVENT_BYTES, b"[1]", b'{"post": "?"}', b"\xff"):
        with pytest.raises(VerificationError, match="expected an event"):
            client_module._event(data)


def test_a_page_of_posts_counts_only_if_ordered_and_signed() -> None:
    first, second = receipt(OFFER, 3), receipt(steps(0), 4)
    wrong: list[bytes] = [
        page(second, first), page(first, first), page(receipt(OFFER, 2)), page(receipt(OFFER, 3, key=TRAINER)),
        page(first)[:-1], page(first) + b"\0", pack([[1, 2]]), pack(7), b"",
    ]  # fmt: skip
    with liar(script_of(*([answer(body)] for body in wrong), [answer(page(first, second))])) as url:
        client = hub_client(url)
        verified_posts, last = client.page(2)
    assert [verified.place for verified in verified_posts] == [3, 4]
    assert last == 4
    assert client.lies == len(wrong)


def test_posts_with_an_invalid_sender_signature_are_skipped() -> None:
    signed = SignedPost.decode(steps(0))
    bad = SignedPost(post=signed.post, signature=TRAINER.sign(bytes(32))).encode()
    with liar(script_of([answer(page(receipt(OFFER, 3), receipt(bad, 4), receipt(steps(1), 5)))])) as url:
        client = hub_client(url)
        verified_posts, last = client.page(0)
    assert [verified.place for verified in verified_posts] == [3, 5]
    assert (last, client.lies) == (5, 1)


def test_posts_of_unrequested_jobs_count_as_a_lie_of_the_hub() -> None:
    with liar(script_of([answer(page(receipt(OFFER, 3)))], [answer(page())])) as url:
        client = hub_client(url)
        assert client.page(0, jobs=[Digest(bytes(32))]) == ([], 0)
        assert client.lies == 1


def event(found: ReceivedPost) -> bytes:
    data = json.dumps({"place": found.place, "post": base64.b64encode(pack(found.pack())).decode()})
    return f"id: {found.place}\ndata: {data}\n\n".encode()


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def test_a_stream_that_breaks_lies_and_repeats_is_followed_to_its_end() -> None:
    made = [receipt(OFFER, 1), *(receipt(steps(n), n + 2) for n in range(5))]
    asked = []
    scripts = script_of(
        [STREAM, event(made[0]), event(made[1])],
        [STREAM, b": ping\n\n", event(made[1])],  # again what was seen
        [STREAM, event(made[2])[:-20]],  # cut
        [STREAM, b"data: {}\n\n"],
        [STREAM, b"data: " + b"x" * (2 << 20)],
        [STREAM, event(receipt(steps(0), 9, key=TRAINER))],
        [answer(b"", "503 Later")],
        [STREAM.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n")],
        [STREAM, b": no post\n" * (1 << 18)],
        [STREAM, *(event(item) for item in made[2:]), 5.0],
    )

    def script(head: bytes) -> list[bytes | float]:
        if head.split(b" ")[1] == b"/posts?after=1&limit=1":
            return [answer(page(made[1]))]  # it is asked whether it still has what it gave last
        asked.append(head.split(b" ")[1])
        return scripts(head)

    with liar(script) as url:
        client, places = hub_client(url), []
        for verified in client.follow(0, jobs=[JOB.id]):
            places.append(verified.place)
            if len(places) == 6:
                client.close()
        assert places == [1, 2, 3, 4, 5, 6]
        assert client.lies == 3
        assert asked[0].startswith(b"/stream?after=0&")
        assert all(path.startswith(b"/stream?after=2&") for path in asked[1:])


ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "answers that go on": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a head that drips": (b"HTTP/1.1 200 OK\r\nA: ", b"x"),
    "a body that drips": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
}


@pytest.mark.parametrize("start", [*ENDLESS.values(), (b"", b"")], ids=[*ENDLESS, "silence"])
def test_endless_hub_answers_end_at_the_deadline_or_a_stop(start: tuple[bytes, bytes]) -> None:
    """The hub sends for ever, or holds the connection without a word; each byte would prolong a socket's own limit."""
    came, over, notes = threading.Event(), threading.Event(), list[str]()

    def endless() -> Iterator[bytes | float]:
        yield start[0]
        while not over.is_set():
            came.set()
            yield 0.002
            yield start[1]

    first = iter([endless()])
    with liar(lambda _: next(first, [answer(as_json(GOOD))])) as url:
        client = hub_client(url, seconds=0.5)
        client.note = notes.append
        assert client.post(OFFER).place == 3
        assert notes[0].startswith("is asked again: ")
    asked: list[Callable[[HubClient], object]] = [lambda client: client.page(0), lambda client: list(client.follow(0))]
    for ask in asked:
        came.clear()
        with liar(lambda head: chain([STREAM] if b"/stream" in head else [], endless())) as url:
            client = hub_client(url, seconds=600)
            threading.Thread(target=lambda client=client: came.wait() and client.close()).start()
            with contextlib.suppress(HubClientStopped):
                ask(client)
            assert client.stop.is_set()
    over.set()


TOKENS = (b"-5", b"\r\n", b"9" * 20, b"chunked", b"100 Continue", b"\0", b"\xff", b"[" * 1000, b": ", b"1e999", b"null")


def mutated(data: bytes, rng: Random) -> bytes:
    """Replaces, inserts, doubles or leaves out some bytes, most often in the head."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(min(len(data), rng.choice((30, 120, 1 << 16))))
        token = rng.choice((rng.randbytes(1), rng.choice(TOKENS), data[at : at + 40] * 2, b""))
        data = data[:at] + token + data[at + rng.choice((0, 1, len(token), 20)) :] or b"x"
    return data


def until(ask: Callable[[], Any]) -> Any:
    """What comes of it, however often the hub refuses, or says that it serves another chain."""
    while True:
        with contextlib.suppress(HubRefused, ConfigurationError):
            return ask()


def test_damaged_hub_answers_are_verified_or_requested_again(
    monkeypatch: pytest.MonkeyPatch, cases: Callable[[int], None]
) -> None:
    """Every answer of a true hub, with random damage: it is believed or asked for again, and nothing else happens."""
    monkeypatch.setattr(connection_module, "FIRST_PAUSE", 0.0)
    rng, true = Random(36), receipt(OFFER, 3)
    named = {"address": f"0x{HUB.address.hex()}", "contract": f"0x{DOMAIN.contract.hex()}"}
    named["chainId"] = str(DOMAIN.chain_id)
    bodies = {
        b"POST": answer(as_json(true)),
        b"/posts": answer(page(true)),
        b"/key": answer(json.dumps(named).encode()),
    }
    damaged = 0

    def script(head: bytes) -> list[bytes | float]:
        nonlocal damaged
        asked = head.split(b"\r\n")[0]
        if b"/stream" in asked:
            chunk = event(receipt(OFFER, 1 + int(asked.split(b"=")[1].split(b"&")[0])))
            found = STREAM[:-2] + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(chunk) + chunk
        else:
            found = next(body for name, body in bodies.items() if name in asked)
        damaged += (is_damaged := rng.random() < 0.9)
        return [mutated(found, rng) if is_damaged else found]

    with liar(script) as url:
        for _ in range(60):
            client = hub_client(url)
            assert until(lambda client=client: client.post(OFFER)).place == 3
            verified_posts, last = until(lambda client=client: client.page(2))
            assert ([verified.received for verified in verified_posts], last) in (([], 2), ([], 3), ([true], 3))
            assert until(lambda client=client: next(client.follow(2))).received.wire == OFFER
            assert len(until(lambda: hub_client(url, hub=None).hub)) == 20
    cases(damaged)
    assert damaged > 600


def test_only_own_jobs_and_new_offers_are_read(tmp_path: Path) -> None:
    """A job that becomes one's own is read from its first post; after a start, nothing else is read again."""
    offer, *others = hubs.own_job(PrivateKey.from_int(9))
    with running(settings(tmp_path)) as hub:
        for wire in (OFFER, steps(0), offer, *others, steps(1)):
            hub.connect().post(wire)
        wanted, reader = set[bytes](), hub.connect()
        coming = reader.read(lambda: wanted, 0, b"")
        assert [next(coming).received.wire for _ in range(2)] == [OFFER, offer]
        wanted.add(JOB.id)
        reader.turn()
        assert [next(coming).received.wire for _ in range(3)] == [OFFER, steps(0), steps(1)]
        waiting.until(lambda: len(hub.hub.streams) == 1)
        news = hubs.own_job(PrivateKey.from_int(10))[:2]
        for wire in (*news, steps(2)):
            hub.connect().post(wire)
        assert [next(coming).received.wire for _ in range(2)] == [news[0], steps(2)]
        reader.close()
        again = hub.connect()
        coming = again.read(lambda: wanted, 3, offer)
        assert [next(coming).received.wire for _ in range(4)] == [OFFER, steps(0), steps(1), news[0]]
        again.close()
        forgetful = hub.connect().read(lambda: wanted, 3, b"another post")
        with pytest.raises(HubForgot, match="expected the post in place 3"):
            list(forgetful)


@pytest.mark.parametrize("case", slow_except(["the same", "empty", "filled again"], "empty"))
def test_a_hub_that_lost_posts_is_detected_on_reconnect(tmp_path: Path, case: str) -> None:
    """Its key is the same, and so may be the number of its posts."""
    with running(settings(tmp_path / "hub")) as hub:
        port = int(hub.url.rsplit(":", 1)[1])
        client = hub.connect()
        for wire in (OFFER, steps(0), steps(1)):
            client.post(wire)
        coming = client.follow(0)
        assert [next(coming).place for _ in range(3)] == [1, 2, 3]
        hub.stop()
    with running(settings(tmp_path / ("hub" if case == "the same" else "other")), port) as hub:
        wires = {"the same": (steps(2),), "empty": (), "filled again": (OFFER, steps(1), steps(0), steps(2))}[case]
        for wire in wires:
            hub.connect().post(wire)
        assert client.holds(3, steps(1)) is (case == "the same")
        if case == "the same":
            assert next(coming).received.wire == steps(2)
        else:
            with pytest.raises(HubForgot, match="expected the post in place 3"):
                next(coming)
        client.close()


# ---------------------------------------------------------------- blobs

DATA = Random(3).randbytes(3 * PIECE_BYTES + 99)
DIGESTS = [piece_digest(DATA[at : at + PIECE_BYTES]) for at in range(0, len(DATA), PIECE_BYTES)]
ROOT = blob_root(len(DATA), DIGESTS)
LIST = len(DATA).to_bytes(8, "big") + b"".join(DIGESTS)


def given(part: bytes, *, length: int | None = None) -> bytes:
    size = len(part) if length is None else length
    return f"HTTP/1.1 206 Partial\r\nContent-Length: {size}\r\n\r\n".encode() + part


def blob_script(asked: list[int], lists: Script, blobs: Script = lambda _: []) -> Script:
    """Answers with the list of pieces, and with what `blobs` says or else the range. asked: gets each first byte."""

    def script(head: bytes) -> Iterable[bytes | float]:
        if b"/pieces" in head:
            return lists(head)
        asked.append(int(head.split(b"bytes=")[1].split(b"-")[0]))
        return blobs(head) or [given(DATA[asked[-1] :])]

    return script


def test_downloads_verify_every_piece_and_resume_after_a_break(tmp_path: Path) -> None:
    wrong = bytearray(DATA)
    wrong[PIECE_BYTES + 3] ^= 1
    asked = list[int]()
    blobs = script_of(
        [given(bytes(wrong))],
        [answer(b"", "404 Not Found")],
        [given(DATA[: PIECE_BYTES // 2], length=len(DATA))],
        [given(DATA[:10], length=10)],
        [answer(DATA)],  # not the range that was asked for
        [given(DATA[:-100], length=len(DATA))],
        [],
    )
    lists = script_of([answer(LIST[:-1])], [answer(LIST + bytes(32))], [answer(bytes(len(LIST)))], [answer(LIST)])
    with liar(blob_script(asked, lists, blobs)) as url:
        client = hub_client(url)
        download(client, ROOT, len(DATA), tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA
    assert client.lies >= 3
    assert asked[0] == 0
    assert asked == sorted(asked)


def test_downloads_reuse_only_correct_bytes_of_an_existing_file(tmp_path: Path) -> None:
    path, asked = tmp_path / "blob", list[int]()
    with liar(blob_script(asked, script_of([answer(LIST)]))) as url:
        for before in (DATA[: 2 * PIECE_BYTES + 5], b"x" + DATA[1:] + b"more", DATA, DATA + b"more"):
            path.write_bytes(before)
            download(hub_client(url), ROOT, len(DATA), path)
            assert path.read_bytes() == DATA
    assert asked == [2 * PIECE_BYTES, 0]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Running]:
    """It knows a job, one of whose files is a blob."""
    with running(settings(tmp_path / "hub")) as found:
        found.connect().post(OFFER)
        found.connect().post(hubs.library([("a", ROOT, len(DATA))], 0))
        yield found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The blob."""
    (tmp_path / "up").write_bytes(DATA)
    return tmp_path / "up"


def test_a_file_changed_during_upload_is_a_local_error(hub: Running, path: Path) -> None:
    client = hub.connect()
    asked = client._json

    def changed(method: str, where: str, *arguments: Any, **named: Any) -> dict[str, Any]:
        if "offset" in where:
            path.write_bytes(DATA[:-1] + b"?")
        return asked(method, where, *arguments, **named)

    client._json = changed  # type: ignore[method-assign]
    with pytest.raises(StateError, match="stays as it is"):
        upload(client, path)


def test_a_refusal_amid_a_long_body_is_read_and_a_cut_ends_a_request(path: Path) -> None:
    with liar(script_of([answer(b"", "413 No")])) as url, path.open("rb", buffering=0) as file:
        for body in (FileSlice(file, 0, 9), b"short"):
            connection = connection_module.HubConnection(urlsplit(url), 5.0)
            send = connection._http.request

            def broken(method: str, where: str, *_: object, send: Callable[..., None] = send) -> None:
                send(method, where)
                raise BrokenPipeError

            connection._http.request = broken  # type: ignore[method-assign,assignment]
            with contextlib.nullcontext() if isinstance(body, FileSlice) else pytest.raises(BrokenPipeError):
                assert connection.answer("PUT", "/x", body).status == 413
            connection.close()
        connection = connection_module.HubConnection(urlsplit(url), 5.0)
        connection.cut()
        with pytest.raises(TimeoutError, match="no answer in time"):
            connection.answer("GET", "/x")
        connection.close()


def test_missing_unlisted_and_oversized_blobs_are_refused(hub: Running, path: Path) -> None:
    with pytest.raises(CannotCheck, match="404"):
        download(hub.connect(), ROOT, len(DATA), path.with_name("blob"))
    with pytest.raises(ConfigurationError, match="at most"):
        download(hub.connect(), ROOT, 1 << 60, path.with_name("blob"))
    path.write_bytes(DATA[:-1])
    with pytest.raises(HubRefused, match="some library names"):
        upload(hub.connect(), path)


def test_an_upload_goes_on_after_the_hub_was_away(hub: Running, path: Path) -> None:
    hub.stop()
    stop, again = Waited(), list[Running]()
    with ExitStack() as stack:

        def comes_back() -> None:
            if not again:
                port = int(hub.url.rsplit(":", 1)[1])
                again.append(stack.enter_context(running(settings(path.with_name("hub")), port)))

        stop.waited = comes_back
        assert upload(hub_client(hub.url, stop=stop), path) == ROOT
        assert upload(again[0].connect(), path) == ROOT
        download(again[0].connect(), ROOT, len(DATA), path.with_name("down"))
    assert path.with_name("down").read_bytes() == DATA


@pytest.mark.parametrize("head", [b"Content-Length: 101\r\n", b""], ids=["that says so", "until the connection ends"])
def test_hub_answers_over_the_size_limit_are_refused(head: bytes) -> None:
    whole = [b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + head + b"\r\n" + b"x" * 101]
    with liar(script_of(*[whole])) as url:
        assert hub_client(url)._ask("GET", "/", limit=101) == b"x" * 101
        with pytest.raises(client_module._Away, match="expected at most 100 bytes"):
            hub_client(url)._ask("GET", "/", limit=100)
