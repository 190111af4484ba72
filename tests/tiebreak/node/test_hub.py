"""The hub over HTTP: who may write what, what it answers twice, what it refuses, and what survives."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.flow_control import FlowControl

from tests.protocol.runs import CHALLENGER, CLIENT, DOMAIN, TRAINER, make_job
from tests.tiebreak.node import hubs
from tests.tiebreak.node.hubs import JOB, OFFER, Running, ask, make_writer, post, running, settings, steps, take
from tests.waiting import until
from tiebreak.node.hub import connection as connection_module
from tiebreak.node.hub import service as service_module
from tiebreak.node.hub import streams as streams_module
from tiebreak.node.hub.app import description, make_app
from tiebreak.node.hub.connection import GRACE_SECONDS, OpenConnections
from tiebreak.node.hub.limits import PAGE_SECONDS, PROCESSOR, Buckets, HubLimits, Recent, address_of, networks_in
from tiebreak.node.hub.post_writer import Arrival
from tiebreak.node.hub.process import proxies_of
from tiebreak.node.hub.service import PostQueue, WaitingRequest
from tiebreak.node.hub.store import Store, Writer
from tiebreak.node.pages.routes import routes
from tiebreak.node.pages.source import PageContext, PageSource
from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.blobs import PIECE_BYTES, blob_root, piece_digest
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError, StateError
from tiebreak.protocol.packing import unpack
from tiebreak.protocol.parties import posts
from tiebreak.protocol.parties.posts import Complete, Received, ReceivedPost
from tiebreak.protocol.parties.turns import MAX_BATCH, OTHERS, Turns
from tiebreak.protocol.tags import Digest

STRANGER = PrivateKey.from_int(9)
GAME = post(posts.GameBody(head=hubs.HEAD, nonce=1), CHALLENGER, 0, game=hubs.GAME)
MOVE = post(posts.MoveBody(wire=b"a move"), CHALLENGER, 1, game=hubs.GAME)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Running]:
    with running(settings(tmp_path / "hub")) as found:
        yield found


def large(number: int) -> bytes:
    return post(posts.HeadBody(head=hubs.HEAD, leaves=(Digest(bytes(32)),) * 7000), TRAINER, number)


def refused(hub: Running, status: int, wire: bytes) -> str:
    found, _, body = ask(hub, "POST", "/posts", wire)
    assert found == status, body
    reason = json.loads(body)
    assert list(reason) == ["error"]
    return str(reason["error"])


def page(hub: Running, query: str = "") -> list[ReceivedPost]:
    status, _, body = ask(hub, "GET", f"/posts?{query}")
    assert status == 200
    return [ReceivedPost.unpack("page", item) for item in unpack(body, 1 << 24)]


def test_hub_numbers_signs_and_lists_posts_across_restarts(database: str, tmp_path: Path) -> None:
    """And a hub that starts again goes on where it was."""
    wanted, wires = settings(tmp_path / "hub", database), [OFFER, steps(0), GAME, MOVE, steps(1)]
    with running(wanted) as hub:
        received = [hub.connect().post(wire) for wire in wires]
        found = page(hub)
        assert [item.wire for item in found] == wires
        for item in found:
            item.open(DOMAIN, hubs.HUB.address)
        for query, expected in (
            ("after=2&limit=2", [3, 4]), (f"game={hubs.GAME.hex()}", [3, 4]), (f"job={JOB.id.hex()}&after=4", [5]),
            (f"job={'00' * 32}", []),
        ):  # fmt: skip
            assert [item.place for item in page(hub, query)] == expected
        with hub.hub.store.engine.connect() as connection:
            assert Writer(connection).job(JOB.id) == JOB
            assert Writer(connection).challenger(hubs.GAME) == CHALLENGER.address
    with running(wanted) as hub:
        received += [hub.connect().post(wire) for wire in (OFFER, steps(2))]
        assert [found.place for found in received] == [1, 2, 3, 4, 5, 1, 6]
        assert received[5] == received[0]
        assert [item.place for item in page(hub)] == [1, 2, 3, 4, 5, 6]


def test_the_hub_signs_for_all_posts_of_a_job(hub: Running) -> None:
    for n, wire in enumerate((OFFER, steps(0), steps(1))):
        hub.connect().post(wire)
        status, _, body = ask(hub, "GET", f"/posts/end?job={JOB.id.hex()}")
        assert status == 200
        said, found = Complete.unpack("end", unpack(body, 1 << 10)), page(hub, f"job={JOB.id.hex()}")
        keys.verify(said.digest(DOMAIN), said.signature, hubs.HUB.address)
        received = [
            Received(content=posts.SignedPost.decode(one.wire).post.content, place=one.place, at=one.at)
            for one in found
        ]
        assert (said.posts, len(found), said.job_id) == (Complete.hash_of(received), n + 1, JOB.id)
        assert said.at >= found[-1].at
    assert ask(hub, "GET", "/posts/end")[0] == 400


def test_repeated_posts_get_the_same_receipt_and_conflicts_are_refused(hub: Running) -> None:
    hub_client = hub.connect()
    hub_client.post(OFFER)
    first = hub_client.post(steps(7))
    assert hub_client.post(steps(8)).place == 3
    assert hub_client.post(steps(7)) == first
    flipped = posts.SignedPost.decode(steps(7))
    other_end = replace(flipped, signature=flipped.signature[:64] + bytes([55 - flipped.signature[64]]))
    assert hub_client.post(other_end.encode()) == first
    other = post(posts.StepsBody(first_step=99, losses=(), millisteps=0, processor=0, memory=0), TRAINER, 7)
    assert "expected content" in refused(hub, 409, other)
    assert len(page(hub)) == 3


def test_duplicate_posts_in_one_batch_are_stored_once(store: Store) -> None:
    writer = make_writer(store)
    first, same, other = take(writer, OFFER, OFFER, steps(0))
    assert (first.row, first.is_new, same.is_new) == (same.row, True, False)
    assert other.row is not None
    assert other.row.place == 2


def test_only_the_parties_of_a_job_or_game_may_post_to_it(hub: Running) -> None:
    assert "a job that its client offered here" in refused(hub, 403, steps(0))
    by_stranger = posts.Post.of(posts.OfferBody(job=JOB), job_id=JOB.id, number=0, sender=STRANGER.address)
    assert "expected one by" in refused(hub, 403, posts.SignedPost.sign(by_stranger, DOMAIN, STRANGER).encode())
    hub.connect().post(OFFER)
    assert "expected one by" in refused(hub, 403, steps(0, STRANGER))
    assert "a game that was opened" in refused(hub, 403, MOVE)
    forged = replace(hubs.HEAD, signature=STRANGER.sign(hubs.HEAD.head.digest(DOMAIN)))
    opening = post(posts.GameBody(head=forged, nonce=1), CHALLENGER, 0, game=hubs.GAME)
    assert "expected a signature by" in refused(hub, 403, opening)
    hub.connect().post(GAME)
    assert "expected one by" in refused(hub, 403, post(posts.MoveBody(wire=b""), STRANGER, 0, game=hubs.GAME))
    hub.connect().post(post(posts.MoveBody(wire=b""), TRAINER, 0, game=hubs.GAME))


def test_malformed_or_wrongly_signed_posts_are_refused(hub: Running) -> None:
    hub.connect().post(OFFER)
    signatures = (hubs.HUB.sign(bytes(32)), TRAINER.sign(bytes(32)), bytes(65), b"\xff" * 65)
    unsigned = [replace(posts.SignedPost.decode(steps(0)), signature=one).encode() for one in signatures]
    for wire in (b"", OFFER + b"\0", *unsigned):
        assert "expected" in refused(hub, 400, wire)
    assert "at most 262656 bytes" in refused(hub, 413, bytes(posts.MAX_POST_BYTES + 1))
    assert len(page(hub)) == 1


def test_posting_limits_per_key_are_enforced(tmp_path: Path) -> None:
    with running(settings(tmp_path, posts_per_minute=10, jobs_per_key=1, games_per_key=0)) as hub:
        hub.connect().post(OFFER)
        other = make_job(nonce=8)
        offer = posts.Post.of(posts.OfferBody(job=other), job_id=other.id, number=0, sender=CLIENT.address)
        assert "at most 1 jobs" in refused(hub, 429, posts.SignedPost.sign(offer, DOMAIN, CLIENT).encode())
        hub.connect().post(hubs.library([], 1, CLIENT))
        assert "at most 10 posts a minute" in refused(hub, 429, hubs.library([], 2, CLIENT))
        assert "at most 0 games" in refused(hub, 429, GAME)
    with running(settings(tmp_path, post_bytes_per_second=20)) as hub:
        hub.connect().post(OFFER)
        assert "at most 20 bytes a second" in refused(hub, 429, large(5))
    with running(settings(tmp_path, refusals_per_minute=2)) as hub:
        for status in (400, 400, 429):
            refused(hub, status, b"")
        assert "posts a minute that are none" in refused(hub, 429, OFFER)
    with running(settings(tmp_path, waiting_posts=0)) as hub:
        assert "at most 0 posts at once" in refused(hub, 429, OFFER)


def test_replayed_posts_count_against_the_address_not_the_key(store: Store) -> None:
    """A stranger sends all public posts of others again, from one address and from many, as often as it likes."""
    writer, most = make_writer(store), HubLimits().posts_per_minute // 5
    said = [OFFER, *(listing(n, 1000) for n in range(2)), *(steps(n) for n in range(2, 20))]
    another = post(posts.StepsBody(first_step=99, losses=(), millisteps=0, processor=0, memory=0), TRAINER, 2)
    elsewhere = hubs.own_job(TRAINER, CLIENT)[1:]  # posts of another hub, about a job that was never offered here
    assert {answer.status for answer in take(writer, *said, address="")} == {200}
    seen = set[str]()
    for address in ["192.0.2.66"] * 8 + [f"198.51.100.{n}" for n in range(8)]:
        answers = take(writer, *said, another, *elsewhere, address=address)
        assert not any(answer.is_new for answer in answers)
        if address not in seen:  # one that comes again may have used up what an address has
            assert {answer.status for answer in answers} == {200, 403, 409}, "answered, and charged to no key"
        seen.add(address)
    paid = [take(writer, *said[1:3], address="192.0.2.66")[1].status for _ in range(8)]
    assert 429 in paid, "it has used up its own"
    mine = [listing(99, 500), *(steps(n) for n in range(100, 80 + most))]
    answers = take(writer, *mine, address="192.0.2.1")
    assert [(answer.status, answer.is_new) for answer in answers] == [(200, True)] * (most - 19)


def test_posts_of_strangers_in_a_job_are_limited_in_bytes(database: str) -> None:
    """Auditors are no party of a job, so anybody may say what a replay came to, or send what a chain would get."""
    limits = replace(HubLimits(), stranger_bytes=3 * len(hubs.replayed(0, STRANGER)))
    for first in (0, 2):  # by a post writer that has seen them, and by one that starts again
        store = Store(database)
        writer = make_writer(store, limits=limits)
        take(writer, OFFER)
        answers = take(writer, *(hubs.replayed(number, STRANGER) for number in range(first, first + 4)))
        assert [answer.status for answer in answers] == ([200, 200, 200, 403] if first == 0 else [200, 403, 403, 403])
        assert "at most" in answers[-1].error
        (again,) = take(writer, hubs.replayed(0, STRANGER))
        assert again.row is not None, "what is here is answered as before"
        mine = (steps(number) for number in range(10 * first, 10 * first + 9))
        others = take(writer, hubs.replayed(first, CHALLENGER), *mine)
        assert {answer.status for answer in others} == {200}
        store.close()


def test_a_full_disk_reserves_a_little_space_per_key_and_address(store: Store) -> None:
    """Anybody is the client of a job of its own, so on a full disk only heads and games are taken, and few of them."""
    room = [True]
    offers = [hubs.own_job(PrivateKey.from_int(100 + number)) for number in range(3)]
    most = sum(map(len, offers[0][2:5]))
    writer = make_writer(store, limits=HubLimits(full_bytes=most, keys_per_address=2), has_room=lambda: room[0])
    take(writer, OFFER, *(offer for offer, *_ in offers[:2]))
    room[0] = False
    found = take(writer, *offers[2], offers[0][1], steps(0), hubs.replayed(0, STRANGER))
    assert {answer.status for answer in found} == {403, 507}
    for number, (_, _, *wires) in enumerate(offers[:2]):
        assert [answer.status for answer in take(writer, *wires)] == [200] * 3 + [507], number
    answer = post(posts.AnswerBody(job=JOB, signature=b""), TRAINER, 9)
    assert [found.status for found in take(writer, answer)] == [507], "two keys have used up what the address has"
    assert [found.status for found in take(writer, answer, address="192.0.2.2")] == [200]


def listing(number: int, files: int, author: PrivateKey = TRAINER) -> bytes:
    rows = [(f"f{n}", Digest(number.to_bytes(16, "big") + n.to_bytes(16, "big")), n) for n in range(files)]
    return hubs.library(rows, number, author)


def test_listed_files_are_rate_limited_per_key_and_address(store: Store) -> None:
    # A burst is never below one full list.
    writer = make_writer(store, limits=HubLimits(rows_per_minute=1, keys_per_address=1))
    take(writer, OFFER)
    assert [answer.status for answer in take(writer, listing(1, 1000), listing(2, 1000))] == [200, 429]
    assert [answer.status for answer in take(writer, listing(3, 700, CLIENT))] == [429], "another key, the same address"
    assert [answer.status for answer in take(writer, listing(3, 700, CLIENT), address="192.0.2.2")] == [200]
    assert all(store.is_named(Digest(bytes([0] * 15 + [1]) + n.to_bytes(16, "big")), n) for n in (0, 999))


def test_post_queue_puts_moves_first_and_serves_addresses_in_turn() -> None:
    """And neither makes the other late: what counts is when it arrived."""

    async def batches() -> list[list[str]]:
        line, loop, found = PostQueue(), asyncio.get_running_loop(), list[list[str]]()
        sent = [(listing(n, posts.MAX_FILES), f"list{n}") for n in range(3)]
        sent += [*((steps(n), "flood") for n in range(99)), (steps(0), "other")]
        for at, (wire, address) in enumerate([*sent, (MOVE, "player")]):
            line.put(WaitingRequest(hubs.arrived(wire, at, address), loop.create_future()))
        while sum(map(len, found)) < len(sent) + 1:
            assert line.earliest(1000) < 104
            found.append([f"{one.arrival.address} {one.arrival.at:.0f}" for one in await line.next_batch()])
        return found

    first, second, *others = asyncio.run(batches())
    assert first == ["list0 0", "list1 1", "player 103"]
    assert (second[:2], second[-1]) == (["list2 2", "flood 3"], "other 102")
    assert [one for batch in (second[1:-1], *others) for one in batch] == [f"flood {n}" for n in range(3, 102)]


def test_a_flood_of_game_posts_does_not_starve_other_posts() -> None:
    """Anybody may call a post one of a game; by addresses without end, what others post would never be taken."""
    line = Turns[Arrival](lambda one: one)
    line.put(hubs.arrived(OFFER, 0, "client"))
    for batch in range(1, OTHERS + 1):
        for n in range(MAX_BATCH):
            line.put(hubs.arrived(MOVE, batch, f"{batch} {n}"))
        assert ("client" in [one.address for one in line.batch()]) is (batch == OTHERS)
    assert line.earliest(1000) == 0, "what was taken last is not done"


def test_a_full_post_queue_evicts_posts_of_the_greediest_address(tmp_path: Path) -> None:
    """Where no more posts may wait, one from another address displaces the greediest one's newest, games' last."""

    async def greedy() -> list[tuple[str, str]]:
        hub = service_module.Hub(settings(tmp_path, waiting_posts=4))
        sent = [(MOVE, "greedy"), (OFFER, "greedy"), (MOVE, "greedy"), (MOVE, "other"), *[(MOVE, "player")] * 2]
        tasks = {asyncio.create_task(hub.post(wire, who), name=f"{n} {who}"): who for n, (wire, who) in enumerate(sent)}
        done, waiting = await asyncio.wait(tasks, timeout=0.2)
        ended = [(task.get_name(), task.result().error) for task in done]
        for task in waiting:
            task.cancel()
        hub.close()
        return ended

    full = "expected at most 4 posts at once, got more"
    assert sorted(asyncio.run(greedy())) == [("1 greedy", full), ("5 player", full)]


def test_posts_are_timestamped_on_arrival_not_on_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the post writer is busy meanwhile, and whoever asks how things stand."""
    with running(settings(tmp_path)) as hub:
        hub.connect().post(OFFER)
        clock, busy, go_on = [5e9], threading.Event(), threading.Event()
        monkeypatch.setattr(service_module.time, "time", lambda: clock[0])

        def wait() -> None:
            busy.set()
            assert go_on.wait(10)

        hub.hub._writing.submit(wait)
        assert busy.wait(10)
        found: list[int] = []
        sending = [threading.Thread(target=lambda n=n: found.append(hub.connect().post(steps(n)).at)) for n in range(2)]
        for number, thread in enumerate(sending):
            thread.start()
            until(lambda number=number: hub.hub.waiting == number + 1)
        clock[0] += 300
        asking = threading.Thread(target=ask, args=(hub, "GET", f"/posts/end?job={JOB.id.hex()}"))
        asking.start()
        until(lambda: hub.hub._writing._work_queue.qsize() == 2)
        go_on.set()
        for thread in (*sending, asking):
            thread.join(10)
        assert found == [5_000_000_000] * 2


@pytest.mark.parametrize(
    ("peer", "forwarded", "counted"),
    [
        ("127.0.0.1", ["192.0.2.7"], "127.0.0.1"),
        ("10.1.2.3", ["192.0.2.7"], "192.0.2.7"),
        ("10.1.2.3", ["192.0.2.7, 192.0.2.8", "127.0.0.1, 192.0.2.9"], "192.0.2.9"),
        ("10.1.2.3", ["192.0.2.7, 10.1.2.3"], "10.1.2.3"),
        ("10.1.2.3", ["192.0.2.7, unknown"], "10.1.2.3"),
        ("10.1.2.3", [], "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", [], "2001:db8:1:2::/64"),
        ("10.1.2.3", ["2001:db8:1:2::9"], "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", [], "192.0.2.7"),
        ("fe80::1%eth0", [], "fe80::/64"),
        ("", ["192.0.2.7"], ""),
    ],
)
def test_client_address_is_the_last_one_that_a_trusted_proxy_forwarded(
    peer: str, forwarded: list[str], counted: str
) -> None:
    assert address_of(peer, forwarded, networks_in("10.0.0.0/8, 2001:db8:ffff::1")) == counted


def test_forwarded_addresses_are_ignored_without_a_trusted_proxy(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="proxies: expected addresses or networks, got 'nobody'"):
        proxies_of("nobody")
    for proxies, statuses in (("", [200, 429, 429]), ("127.0.0.1", [200, 200, 429])):
        with running(settings(tmp_path, reads_per_minute=1), proxies=proxies) as hub:
            answers = [ask(hub, "GET", "/posts", X_Forwarded_For=f"{n}.1.1.1, 192.0.2.{n // 2}")[0] for n in (1, 2, 3)]
            assert answers == statuses


def test_token_buckets_refill_and_the_recent_cache_evicts_by_weight() -> None:
    now = [0.0]
    bucket: Buckets[bytes] = Buckets(0.5, 2, clock=lambda: now[0])
    assert [bucket.take(b"a") for _ in range(3)] == [True, True, False]
    assert bucket.take(b"b")
    now[0] = 1.9
    assert not bucket.take(b"a")
    now[0] = 4.0
    assert not bucket.take(b"a", 2.1)
    assert bucket.take(b"a", 2)
    assert bucket.tokens(b"a") == 0
    recent: Recent[int, int] = Recent(2)
    for key in (1, 2):
        recent.put(key, key)
    recent.get(1)
    recent.put(3, 3)
    assert [recent.get(key) for key in (1, 2, 3)] == [1, None, 3]
    recent.put(4, 4, 2)
    assert [recent.get(key) for key in (1, 3, 4)] == [None, None, 4], "it weighs as much as two"
    recent.put(5, 5, 3)
    assert [recent.get(key) for key in (4, 5)] == [4, None], "too heavy to be kept, and no reason to forget others"
    recent.put(4, 4, 1)
    recent.put(6, 6)
    assert [recent.get(key) for key in (4, 6)] == [4, 6]


def test_a_database_belongs_to_one_hub_and_one_domain(database: str) -> None:
    store = Store(database)
    make_writer(store)
    store.close()
    for changes in ({"key": CLIENT}, {"domain": replace(DOMAIN, chain_id=5)}):
        other = Store(database)
        with pytest.raises(StateError, match=r"expected a database of (hub|chain)"):
            make_writer(other, **changes)
        other.close()
    with pytest.raises(ConfigurationError, match="URL of an SQLite or PostgreSQL database"):
        Store("nothing")


@pytest.mark.slow
@pytest.mark.skipif("postgres" not in hubs.DATABASES, reason="needs PostgreSQL")
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_two_hubs_cannot_write_to_one_database(database: str) -> None:
    first, second = Store(database), Store(database)
    make_writer(first)
    with pytest.raises(StateError, match="another hub writes to this database"):
        make_writer(second)
    leaving = threading.Timer(0.1, first.close)  # as where the server sees a hub go late
    leaving.start()
    make_writer(second)
    leaving.join()
    second.close()


def test_post_numbers_may_arrive_in_any_order(database: str) -> None:
    numbers = [2**64 - 1, 0, 7, 3, 7, 2**64 - 1, 2**63, 4]
    for _ in range(2):  # by a post writer that has seen them, and by one that starts again
        store = Store(database)
        writer = make_writer(store)
        answers = take(writer, OFFER) + [take(writer, steps(number))[0] for number in numbers]
        places = [answer.row.place for answer in answers if answer.row]
        assert places == [1, 2, 3, 4, 5, 4, 2, 6, 7]
        store.close()


def test_post_timestamps_never_decrease(store: Store) -> None:
    writer = make_writer(store)
    answers = writer.take([hubs.arrived(OFFER, 100.0)])
    for at, wire in ((50.0, steps(0)), (101.5, steps(1))):
        answers += writer.take([hubs.arrived(wire, at)])
    assert [answer.row.at for answer in answers if answer.row] == [100, 100, 101]


# ---------------------------------------------------------------- what is new


def test_event_stream_announces_new_posts_without_their_content(hub: Running) -> None:
    hub.connect().post(OFFER)
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=10)
    connection.request("GET", "/stream", headers={"Last-Event-ID": "0"})
    response = connection.getresponse()
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [response.readline() for _ in range(4)]
    assert lines[2] == b"id: 1\n"
    found = json.loads(lines[3].removeprefix(b"data: "))
    assert found == {"place": 1, "job": JOB.id.hex(), "game": JOB.id.hex(), "kind": 1}
    connection.close()


def test_streams_and_pages_of_posts_are_limited(tmp_path: Path) -> None:
    with running(settings(tmp_path, streams_per_address=0, reads_per_minute=2)) as hub:
        for path, most in (("/stream", "at most 0 streams by one address"), ("/posts", "at most 2 pages of posts a")):
            answers = [ask(hub, "GET", path) for _ in range(3)]
            assert [status for status, _, _ in answers] == ([429] * 3 if path == "/stream" else [200, 200, 429])
            assert most in json.loads(answers[-1][2])["error"]


@pytest.mark.parametrize(("most", "cost"), [(2, 0), (10, 9)])
def test_web_pages_are_limited_by_number_and_processor_time(tmp_path: Path, most: int, cost: int) -> None:
    async def page(request: Request) -> Response:
        request.scope[PROCESSOR] = cost * PAGE_SECONDS
        return Response()

    with running(settings(tmp_path, pages_per_minute=most), pages=lambda _: [Route("/x", page)]) as hub:
        assert [ask(hub, "GET", "/x")[0] for _ in range(3)] == [200, 200, 429]


def test_slow_web_pages_do_not_block_posting(tmp_path: Path) -> None:
    """More pages than the hub has threads, of six addresses, none of which is ready."""
    go_on, asked = threading.Event(), list[str]()

    class Slow(PageSource):
        @property
        def board(self) -> None:
            asked.append("a page")
            go_on.wait(20)

    context = PageContext(domain=DOMAIN, blob=lambda root: tmp_path / root.hex(), now=lambda: 0)
    slow = running(settings(tmp_path), pages=lambda store: routes(Slow(store, context)))
    with slow as hub, ExitStack() as stack:
        for number in range(48):
            reader = stack.enter_context(connect(hub, f"127.0.0.{2 + number // 8}"))
            reader.sendall(b"GET / HTTP/1.1\r\nHost: hub\r\n\r\n")
        until(lambda: hub.hub.viewing.held.total() == 48)
        assert hub.connect().post(OFFER).place == 1
        assert len(page(hub)) == 1
        assert len(asked) <= 4
        go_on.set()


def test_store_selects_the_newest_posts_and_posts_by_kind(store: Store) -> None:
    posted = [wire for n in range(4) for wire in (steps(2 * n), hubs.library([], 2 * n + 1))]
    take(make_writer(store), OFFER, *posted)
    newest: dict[str, Any] = {"newest": True, "limit": 3}
    for after, given, places in (
        (2, newest, [7, 8, 9]),
        (8, newest, [9]),
        (0, {"kinds": (posts.PostKind.OFFER, posts.PostKind.LIBRARY)}, [1, 3, 5, 7, 9]),
        (0, {"jobs": [JOB.id], "kinds": [posts.PostKind.STEPS], "newest": True, "most": 1}, [8]),
    ):
        assert [row.place for row in store.posts(after, **given)] == places


def silent(hub: Running, path: str) -> socket.socket:
    """A connection that asks for something, and reads nothing of the answer."""
    found = socket.create_connection(("127.0.0.1", urlsplit(hub.url).port))
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    found.sendall(f"GET {path} HTTP/1.1\r\nHost: hub\r\n\r\n".encode())
    return found


@pytest.mark.parametrize(("held", "patience"), [(1 << 40, 0.5), (1 << 19, 1e6)], ids=["time", "bytes"])
def test_a_stream_that_nobody_reads_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int, patience: float
) -> None:
    monkeypatch.setattr(streams_module, "MAX_HELD_BYTES", held)
    monkeypatch.setattr(connection_module, "PATIENCE_SECONDS", patience)
    monkeypatch.setattr(connection_module, "LEAST_PACE", 10**9)
    with running(settings(tmp_path)) as hub, silent(hub, "/stream?posts=1"):
        hub.connect().post(OFFER)
        until(lambda: len(hub.hub.streams) == 1)
        for number in range(40):  # more than the buffers of both sockets hold
            hub.connect().post(large(number))
        until(lambda: not hub.hub.listening.held and not len(hub.hub.streams))
        until(lambda: not hub.server.server_state.connections)  # though its reader still has one
        assert len(page(hub, "limit=3")) == 3, "others are served"


def test_a_page_of_posts_counts_toward_limits_until_it_is_read(tmp_path: Path) -> None:
    with running(settings(tmp_path, reads_per_address=1)) as hub:
        hub.connect().post(OFFER)
        for number in range(40):
            hub.connect().post(large(number))
        with silent(hub, "/posts"):
            until(lambda: bool(hub.hub.reading.held))
            status, _, body = ask(hub, "GET", "/posts")
            assert status == 429
            assert b"at most 1 pages of posts by one address" in body
        until(lambda: not hub.hub.reading.held)
        assert ask(hub, "GET", "/posts")[0] == 200


def test_a_slow_reader_is_cut_only_below_the_least_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut once it has taken longer than the least pace allows, and not before."""
    connection: Any = object.__new__(connection_module.Connection)
    connection.loop = loop = Mock()
    connection.transport = Mock(get_write_buffer_size=lambda: 5 * connection_module.LEAST_PACE)
    connection.flow = FlowControl(connection.transport)
    connection.pause_writing()
    loop.call_later.assert_called_once_with(connection_module.PATIENCE_SECONDS + 5, connection.cut)
    connection.resume_writing()
    loop.call_later.return_value.cancel.assert_called_once_with()


def connect(hub: Running, address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", urlsplit(hub.url).port), timeout=10, source_address=(address, 0))


def test_connections_per_address_are_limited(tmp_path: Path) -> None:
    limits = settings(tmp_path, connections_per_address=2)
    with running(limits, proxies="127.0.0.1") as hub, ExitStack() as stack:
        first, _, third = [stack.enter_context(connect(hub, "127.0.0.2")) for _ in range(3)]
        assert third.recv(1) == b"", "one too many is cut at once"
        for address in ("127.0.0.3", "127.0.0.1", "127.0.0.1", "127.0.0.1"):  # the last is a proxy's
            other = stack.enter_context(connect(hub, address))
            other.sendall(b"GET /healthz HTTP/1.1\r\nHost: hub\r\n\r\n")
            assert other.recv(1 << 16).startswith(b"HTTP/1.1 200")
        first.close()
        until(lambda: [c.client[0] for c in hub.server.server_state.connections].count("127.0.0.2") == 1)
        with connect(hub, "127.0.0.2") as again:
            again.sendall(b"GET /healthz HTTP/1.1\r\nHost: hub\r\n\r\n")
            assert again.recv(1 << 16).startswith(b"HTTP/1.1 200")


HALVES = {
    "nothing": b"",
    "half a head": b"GET /healthz HTTP/1.1\r\nHost:",
    "half a body": b"POST /posts HTTP/1.1\r\nHost: hub\r\nContent-Length: 9\r\n\r\nxx",
    "a stream": b"GET /stream HTTP/1.1\r\nHost: hub\r\n\r\n",
}


@pytest.mark.parametrize("half", HALVES)
def test_half_open_requests_do_not_block_other_clients(tmp_path: Path, half: str) -> None:
    """A hub of few connections, so that few fill it: two addresses hold all that they may have, again and again."""
    limits = settings(tmp_path, connections=16, connections_per_address=12)
    with running(limits) as hub, ExitStack() as stack:
        slow = stack.enter_context(connect(hub, "127.0.0.1"))
        slow.sendall(HALVES["half a head"])
        for number in range(40):
            with suppress(OSError):
                stack.enter_context(connect(hub, f"127.0.0.{2 + number % 2}")).sendall(HALVES[half])
            if number % 4 == 3:
                with connect(hub, "127.0.0.4") as other:
                    other.sendall(b"GET /healthz HTTP/1.1\r\nHost: hub\r\n\r\n")
                    assert other.recv(1 << 16).startswith(b"HTTP/1.1 200")
        slow.sendall(b" hub\r\n\r\n")
        assert slow.recv(1 << 16).startswith(b"HTTP/1.1 200"), "one of a few slow ones is not the one to go"
        until(lambda: len(hub.server.server_state.connections) <= 16)


def test_excess_connections_close_the_oldest_slow_one_of_the_greediest() -> None:
    counted, gone, later = OpenConnections(6, 4), list[str](), GRACE_SECONDS
    found: dict[str, Any] = {}
    for name in ("a1", "b1", "b2", "b3", "c1", "a2", "d1", "d2", "d3", "e1"):
        cut = lambda name=name: (gone.append(name), counted.remove(found[name]))  # noqa: E731
        found[name] = Mock(address=name[0], cut=cut)
    for now, name in enumerate(("a1", "b1", "b2", "b3", "c1", "a2")):
        counted.add(found[name], now, is_proxy=False)
        counted.wait(found[name], now)
    for name in ("b1", "a1", "c1"):
        counted.complete(found[name])  # of address b, two are slow; of a, one
    counted.add(found["d1"], 2 + later, is_proxy=False)
    assert gone == ["b2"], "the oldest slow one of the address with most slow ones"
    counted.complete(found["b3"])
    counted.add(found["d2"], 4.9 + later, is_proxy=False)
    assert gone == ["b2", "a1"], "no request is late yet: the oldest of the addresses with most"
    counted.wait(found["b3"], 5)
    counted.rename(found["c1"], "a")
    counted.add(found["d3"], 5 + later, is_proxy=True)
    assert gone == ["b2", "a1", "a2"], "the oldest slow one, of addresses with one each"
    counted.wait(found["a2"], 6)
    counted.add(found["e1"], 99, is_proxy=False)
    assert gone == ["b2", "a1", "a2", "b3"], "what was cut does not count"


# ---------------------------------------------------------------- blobs


def blob(size: int) -> tuple[bytes, Digest, bytes]:
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    digests = [piece_digest(data[at : at + PIECE_BYTES]) for at in range(0, max(1, size), PIECE_BYTES)]
    return data, blob_root(size, digests), b"".join(digests)


SIZE = 2 * PIECE_BYTES + 77
DATA, ROOT, DIGESTS = blob(SIZE)


def name_it(hub: Running, root: Digest = ROOT, size: int = SIZE) -> None:
    hub.connect().post(OFFER)
    hub.connect().post(hubs.library([("a.bin", root, size)], 0))


def test_a_blob_goes_up_in_parts_and_down_in_ranges(hub: Running) -> None:
    name_it(hub)
    where = f"/blobs/{ROOT.hex()}"
    assert ask(hub, "GET", where)[0] == ask(hub, "HEAD", where)[0] == ask(hub, "GET", f"{where}/pieces")[0] == 404
    assert ask(hub, "PUT", where, DATA)[0] == 403
    assert json.loads(ask(hub, "PUT", f"{where}/pieces?size={SIZE}", DIGESTS)[2]) == {"held": 0, "size": SIZE}
    # What follows the last whole piece is left away.
    assert json.loads(ask(hub, "PUT", where, DATA[: PIECE_BYTES + 9])[2]) == {"held": PIECE_BYTES, "size": SIZE}
    status, headers, body = ask(hub, "GET", f"{where}/pieces")
    assert (status, headers["x-tiebreak-held"], body) == (200, str(PIECE_BYTES), SIZE.to_bytes(8, "big") + DIGESTS)
    assert ask(hub, "GET", where)[0] == 404
    found = ask(hub, "PUT", f"{where}?offset={PIECE_BYTES}", DATA[PIECE_BYTES:])
    assert json.loads(found[2]) == {"held": SIZE, "size": SIZE}
    assert ask(hub, "GET", where)[2] == DATA
    assert ask(hub, "HEAD", where)[1]["content-length"] == str(SIZE)
    for text, part in (("5-9", DATA[5:10]), (f"{SIZE - 3}-", DATA[-3:]), ("-4", DATA[-4:]), ("3-99999999", DATA[3:])):
        status, headers, body = ask(hub, "GET", where, range=f"bytes={text}")
        assert (status, body) == (206, part)
        assert headers["content-range"].endswith(f"/{SIZE}")
    for status, text in ((400, "bytes=9-5"), (416, f"bytes={SIZE}-"), (400, "bytes=-"), (400, "octets=1-2")):
        assert ask(hub, "GET", where, range=text)[0] == status
    # Whole: what comes again is not read.
    assert json.loads(ask(hub, "PUT", where, b"")[2])["held"] == SIZE


def test_blobs_at_piece_size_boundaries_round_trip(hub: Running, tmp_path: Path, cases: Callable[[], None]) -> None:
    hub.connect().post(OFFER)
    for number, size in enumerate((0, 1, PIECE_BYTES, PIECE_BYTES + 1)):
        data, root, _ = blob(size)
        hub.connect().post(hubs.library([("a", root, size)], number))
        (tmp_path / "up").write_bytes(data)
        assert hubs.upload(hub.connect(), tmp_path / "up") == root
        hubs.download(hub.connect(), root, size, tmp_path / f"down{size}")
        assert (tmp_path / f"down{size}").read_bytes() == data
        cases()


def test_hostile_blob_uploads_are_refused(tmp_path: Path) -> None:
    with running(settings(tmp_path, blob_bytes=SIZE)) as hub:
        hub.connect().post(OFFER)
        where = f"/blobs/{ROOT.hex()}"
        pieces = f"{where}/pieces?size={SIZE}"
        assert ask(hub, "PUT", pieces, DIGESTS)[0] == 403  # nobody named it
        name_it(hub)
        assert ask(hub, "PUT", f"{where}/pieces?size={SIZE + 1}", DIGESTS)[0] == 413
        assert ask(hub, "PUT", f"{where}/pieces?size={SIZE - 1}", DIGESTS)[0] == 403
        for wrong in (DIGESTS[:-1], DIGESTS[:-32], DIGESTS[32:] + DIGESTS[:32], b""):
            assert ask(hub, "PUT", pieces, wrong)[0] == 400
        assert ask(hub, "PUT", pieces, DIGESTS + bytes(32))[0] == 413
        assert ask(hub, "PUT", pieces, DIGESTS)[0] == 200
        status, _, body = ask(hub, "PUT", where, DATA[:PIECE_BYTES] + b"\xff" + DATA[PIECE_BYTES + 1 :])
        assert status == 400
        assert b"piece 1: expected" in body
        assert ask(hub, "GET", f"{where}/pieces")[1]["x-tiebreak-held"] == str(PIECE_BYTES)
        assert ask(hub, "PUT", f"{where}?offset={PIECE_BYTES}", DATA[PIECE_BYTES:] + b"more")[0] == 413
        assert ask(hub, "PUT", f"{where}?offset={2 * PIECE_BYTES}", DATA[2 * PIECE_BYTES :])[0] == 200
        assert ask(hub, "GET", where)[2] == DATA
        root = blob(SIZE + 1)[1]
        assert "files of at most" in refused(hub, 413, hubs.library([("b", root, SIZE + 1)], 1))
        for path in ("/blobs/00", f"/blobs/{'0' * 63}g", "/blobs/..%2f..%2fetc%2fpasswd", f"{where}?offset=-1"):
            assert ask(hub, "PUT", path, b"x")[0] in (400, 404)


def test_stored_bytes_per_key_are_limited(tmp_path: Path) -> None:
    with running(settings(tmp_path, bytes_per_key=SIZE)) as hub:
        name_it(hub)
        data, root, digests = blob(5)
        hub.connect().post(hubs.library([("b", root, 5)], 1))
        assert ask(hub, "PUT", f"/blobs/{ROOT.hex()}/pieces?size={SIZE}", DIGESTS)[0] == 200
        status, _, body = ask(hub, "PUT", f"/blobs/{root.hex()}/pieces?size=5", digests)
        assert status == 403
        assert b"by the key that names it" in body
        # Somebody else of the job has room for it.
        hub.connect().post(hubs.library([("b", root, 5)], 1, CLIENT))
        assert ask(hub, "PUT", f"/blobs/{root.hex()}/pieces?size=5", digests)[0] == 200
        assert ask(hub, "PUT", f"/blobs/{root.hex()}", data)[0] == 200


def test_a_full_disk_refuses_blobs_and_keeps_serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(settings(tmp_path)) as hub:
        name_it(hub)
        where = f"/blobs/{ROOT.hex()}"
        monkeypatch.setattr(hub.hub.blobs, "_free", 1 << 60)
        status, _, body = ask(hub, "PUT", f"{where}/pieces?size={SIZE}", DIGESTS)
        assert status == 507
        assert b"stay free" in body
        monkeypatch.setattr(hub.hub.blobs, "_free", 0)
        assert ask(hub, "PUT", f"{where}/pieces?size={SIZE}", DIGESTS)[0] == 200

        def full(*_: Any) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("tiebreak.node.hub.blobs.os.pwrite", full)
            assert ask(hub, "PUT", where, DATA)[0] == 507
            assert hub.connect().post(steps(5)).place == 3
        assert ask(hub, "GET", f"{where}/pieces")[1]["x-tiebreak-held"] == "0"
        assert ask(hub, "PUT", where, DATA)[0] == 200
        assert ask(hub, "GET", where)[2] == DATA


def test_a_body_that_drips_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "BODY_SECONDS", 0.2)
    with running(settings(tmp_path)) as hub, closing(http.client.HTTPConnection(urlsplit(hub.url).netloc)) as line:
        line.putrequest("POST", "/posts")
        line.putheader("Content-Length", "100000")
        line.endheaders(b"only a part")
        ended = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                while not ended.wait(0.02):
                    line.send(b"x")

        threading.Thread(target=drip).start()
        assert line.getresponse().status == 408
        ended.set()


def test_every_route_is_described_and_every_description_has_a_route(tmp_path: Path) -> None:
    document, app = json.loads(description()), make_app(settings(tmp_path))
    found = [route for route in app.routes if isinstance(route, Route)]
    routes = {(route.path, method.lower()) for route in found for method in route.methods or ()}
    described = {(path, method) for path, item in document["paths"].items() for method in item}
    described |= {(path, "head") for path, method in described if method == "get"}
    routes |= {(path, "head") for path, method in routes if method == "get"}
    assert described == routes
    assert len(described) > 10
