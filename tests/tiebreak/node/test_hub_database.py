"""A hub whose database fails: no post counts twice or is lost, and whoever asks is told what is wrong."""

import http.client
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sql

from tests.parts import slow_except
from tests.protocol.runs import CHALLENGER
from tests.tiebreak.node import hubs
from tests.tiebreak.node.hubs import JOB, OFFER, Running, ask, make_writer, running, settings, steps, take
from tests.waiting import until
from tiebreak.node.hub import service as service_module
from tiebreak.node.hub import store as store_module
from tiebreak.node.hub.store import Store
from tiebreak.node.pages.routes import pages
from tiebreak.node.pages.source import PageContext
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.parties import posts

needs_postgres = pytest.mark.skipif("postgres" not in hubs.DATABASES, reason="needs PostgreSQL")
STORED_AGAIN = "posts are stored again"
CANNOT = "posts cannot be stored"
ENDED = "no further post is taken"


@contextmanager
def failing_commit(store: Store, *, counts: bool) -> Iterator[None]:
    """The next COMMIT raises an error, after it has counted or instead."""
    dialect = store.engine.dialect
    commit = dialect.do_commit

    def fail(connection: Any) -> None:
        if counts:
            commit(connection)
        dialect.do_commit = commit  # type: ignore[method-assign]
        raise dialect.dbapi.OperationalError("the answer is lost")  # type: ignore[union-attr]

    dialect.do_commit = fail  # type: ignore[method-assign]
    yield
    assert dialect.do_commit == commit, "nothing was committed"


@pytest.mark.parametrize("counts", [True, False])
def test_a_hub_survives_a_lost_reply_to_a_commit(store: Store, counts: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The post writer reads the last place again, and says nothing about a job's posts before it has."""
    writer = make_writer(store)
    take(writer, OFFER)
    with failing_commit(store, counts=counts):
        assert [answer.status for answer in take(writer, steps(0), steps(1))] == [507, 507]
    with pytest.raises(StateError, match="expected room and a database"):
        writer.stand(10)
    assert (take(writer), writer.trouble) == ([], "")
    assert [row.place for row in writer.found] == ([2, 3] if counts else [])
    assert writer.stand(10) == (3 if counts else 1, 10)
    (other, *again) = take(writer, steps(2), steps(0), steps(1))
    assert writer.found == []
    assert [answer.row.place for answer in (other, *again) if answer.row] == ([4, 2, 3] if counts else [2, 3, 4])
    assert [answer.is_new for answer in again] == [not counts] * 2
    stored = store.posts(0)
    assert [row.place for row in stored] == [1, 2, 3, 4]
    assert {row.wire for row in stored} == {OFFER, *map(steps, range(3))}
    assert said(caplog) == [CANNOT, STORED_AGAIN]


def test_an_offer_whose_commit_failed_is_forgotten(store: Store) -> None:
    """Its job is not known from memory either, and the offer counts when it comes again."""
    writer = make_writer(store)
    with failing_commit(store, counts=False):
        assert [answer.status for answer in take(writer, OFFER)] == [507]
    assert [answer.status for answer in take(writer, steps(0))] == [403]
    assert [answer.status for answer in take(writer, OFFER, steps(0))] == [200, 200]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of a hub's log, in short."""
    known = (CANNOT, STORED_AGAIN, ENDED)
    lines = [one.getMessage() for one in caplog.records if one.name.startswith("tiebreak.node.hub")]
    return [next(text for text in known if line.startswith(text)) for line in lines]


def test_post_writer_recovers_from_any_database_error(store: Store, cases: Callable[[], None]) -> None:
    """Whichever statement fails, once or twice: places have no gap, and no post is lost or counts twice."""
    writer, executed, broken = make_writer(store), [0], set[int]()

    def execute(*_: Any) -> None:
        executed[0] += 1
        if executed[0] in broken:
            broken.discard(executed[0])
            raise sql.exc.OperationalError("a statement", None, OSError("disk I/O error"))

    take(writer, OFFER)
    sql.event.listen(store.engine, "before_cursor_execute", execute)
    number, is_over = 0, False
    while not is_over:  # the first statement fails, then one of those that look again, then perhaps a third
        number += 1
        for n, more in enumerate(((), (1,), (2,))):
            place, wires = store.last_place(), [steps(3 * number + n), hubs.replayed(3 * number + n, CHALLENGER)]
            broken = {executed[0] + 1 + one for one in (0, number, *(number + one for one in more))}
            answers = [[answer.status for answer in take(writer, *wires)] for _ in range(6)]
            is_over = answers[1] == [200, 200]
            assert (answers[0], answers[-1]) == ([507, 507], [200, 200])
            broken.clear()
            posted = store.posts(place)
            assert [row.place for row in posted] == [place + 1, place + 2]
            assert [row.wire for row in posted] == wires
            cases()
    assert number > 3, "several statements failed"


def test_disk_stays_reported_full_until_a_write_succeeds(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """What is only read says nothing about room, so the log has one ERROR, and health says so all the time."""
    writer, is_full = make_writer(store), [True]

    def execute(_: object, __: object, statement: str, *___: object) -> None:
        if is_full[0] and statement.split(maxsplit=1)[0] in ("INSERT", "UPDATE"):
            raise sql.exc.OperationalError(statement, None, OSError("database or disk is full"))

    sql.event.listen(store.engine, "before_cursor_execute", execute)
    unsigned = replace(posts.SignedPost.decode(OFFER), signature=bytes(65)).encode()
    for _ in range(3):
        assert [(answer.status, answer.row) for answer in take(writer, OFFER, unsigned)] == [(507, None), (400, None)]
        assert (take(writer), writer.trouble == "") == ([], False)
    is_full[0] = False
    assert (take(writer), writer.trouble) == ([], "")
    assert said(caplog) == [CANNOT, STORED_AGAIN]


@pytest.mark.parametrize("change", ["another hub wrote", "posts were lost", "a place has another post"])
def test_post_writer_stops_if_its_posts_in_the_database_changed(store: Store, change: str) -> None:
    """It would sign for a place that another post has. The other hub has the same key, or it would be refused."""
    writer = make_writer(store)
    take(writer, OFFER, steps(0), steps(1))
    with failing_commit(store, counts=False):
        take(writer, steps(2))
    other = Store(store.engine.url.render_as_string(hide_password=False))
    if change != "another hub wrote":
        with other.engine.begin() as connection:
            connection.execute(sql.text("DELETE FROM posts WHERE place = 3"))
    if change != "posts were lost":
        take(make_writer(other), steps(9))
    other.close()
    for _ in range(2):
        with pytest.raises(StateError, match="expected post 3 of this hub to be the last"):
            take(writer, steps(2))
        with pytest.raises(StateError):
            writer.stand(10)
    assert steps(2) not in [row.wire for row in store.posts(0)]


@needs_postgres
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_hub_without_the_writer_lock_writes_nothing(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at a restart of the database. Then another hub may write, and this one does not while that one lives."""
    monkeypatch.setattr(store_module, "_TAKE_LOCK", store_module._TAKE_LOCK.replace("3s", "100ms"))
    store, other = Store(database), Store(database)
    writer = make_writer(store)
    take(writer, OFFER)
    end_sessions(store)
    second = make_writer(other)
    for _ in range(3):
        assert [answer.status for answer in take(writer, steps(0))] == [507]
    assert "LockNotAvailable" in writer.trouble
    other.close()
    assert [answer.row.place for answer in take(writer, steps(0), steps(1)) if answer.row] == [2, 3]
    end_sessions(store)
    (refused,) = take(writer, steps(2))
    assert refused.status == 507
    assert [answer.status for answer in take(writer, steps(2))] == [200], "and has the lock again by itself"
    with pytest.raises(StateError, match="another hub writes to this database"):
        make_writer(other)
    assert second.found == []
    store.close()


def end_sessions(store: Store) -> None:
    """Ends all sessions of a database but this one, as a restart does."""
    ends = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = "
    admin = sql.create_engine(store.engine.url, poolclass=sql.pool.NullPool)
    with admin.connect() as connection:
        connection.execute(sql.text(ends + "current_database()"))


# ---------------------------------------------------------------- over HTTP, with a proxy before the database


class Proxy:
    """Passes bytes between a hub and PostgreSQL.

    is_silent: the next COMMIT is passed on, and no answer let through for as long as its connection lasts. is_away: all
    connections are ended, and no new one is taken.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.is_silent, self.is_away = path, False, False
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._open = set[socket.socket]()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()
        self.cut()

    def cut(self) -> None:
        for line in list(self._open):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, server = self._listening.accept()[0], socket.socket(socket.AF_UNIX)
                if self.is_away:
                    client.close()
                    continue
                server.connect(str(self._path))
                self._open |= {client, server}
                silent = threading.Event()
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(source, target, silent), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, silent: threading.Event) -> None:
        is_answer = source.family == socket.AF_UNIX
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if self.is_silent and not is_answer and b"COMMIT\0" in data:
                    self.is_silent = False
                    silent.set()
                if not (is_answer and silent.is_set()):
                    target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(server: str) -> Iterator[Proxy]:
    made = Proxy(Path(server.removeprefix("?host=")) / ".s.PGSQL.5432")
    yield made
    made.close()


def through(database: str, proxy: Proxy) -> str:
    """The URL of a database behind the proxy."""
    name = urlsplit(database).path
    return f"postgresql+psycopg://tiebreak@127.0.0.1:{proxy.port}{name}?sslmode=disable&gssencmode=disable"


def with_pages(folder: Path) -> Any:
    context = PageContext(domain=OFF_CHAIN, blob=lambda root: folder / root.hex(), now=lambda: 7)
    return lambda store: pages(store, context)


def trouble(hub: Running) -> float:
    """The hub's metric."""
    lines = ask(hub, "GET", "/metrics")[2].decode().splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith("tiebreak_hub_trouble ")]
    return float(found)


@needs_postgres
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.parametrize("fails", slow_except(["counted", "lost", "silent"], "counted"))
def test_a_database_reply_lost_by_a_proxy_only_costs_time(
    database: str, proxy: Proxy, tmp_path: Path, fails: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Posts, receipts and the stream are as without it, and health and metrics say so meanwhile.

    WRITE_SECONDS is short, since the test would wait for 20 seconds in silence otherwise.
    """
    monkeypatch.setattr(store_module, "WRITE_SECONDS", 1.0)
    with running(settings(tmp_path / "hub", through(database, proxy))) as hub:
        hub_client = hub.connect()
        hub_client.post(OFFER)
        coming = listening(hub)
        proxy.is_silent = fails == "silent"
        with nullcontext() if proxy.is_silent else failing_commit(hub.hub.store, counts=fails == "counted"):
            assert [hub_client.post(steps(number)).place for number in range(3)] == [2, 3, 4]
        assert not proxy.is_silent, "a COMMIT went without an answer"
        assert [coming.get(timeout=20) for _ in range(4)] == [1, 2, 3, 4], "each once, in order"
        assert (ask(hub, "GET", "/healthz")[0], trouble(hub)) == (200, 0)
        assert ask(hub, "GET", f"/posts/end?job={JOB.id.hex()}")[0] == 200
    assert said(caplog) == [CANNOT, STORED_AGAIN]


def listening(hub: Running) -> SimpleQueue[int]:
    """The places of all posts, as a listener hears them that listens already."""
    found = SimpleQueue[int]()

    def follow() -> None:
        for verified in hub.connect().follow(0):
            found.put(verified.place)

    threading.Thread(target=follow, daemon=True).start()
    until(lambda: len(hub.hub.streams) == 1)
    return found


def test_a_post_committed_without_a_reply_still_reaches_the_stream(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that never asks again does not keep a post from those who listen."""
    monkeypatch.setattr(service_module, "TROUBLE_SECONDS", 0.1)
    with running(settings(tmp_path / "hub", database)) as hub:
        hub.connect().post(OFFER)
        coming = listening(hub)
        with failing_commit(hub.hub.store, counts=True):
            assert ask(hub, "POST", "/posts", steps(0))[0] == 507
        assert [coming.get(timeout=20) for _ in range(2)] == [1, 2]
        until(lambda: ask(hub, "GET", "/healthz")[0] == 200)


@needs_postgres
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_database_outage_shows_in_health_metrics_posts_and_pages(
    database: str, proxy: Proxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Health, metrics, posts and pages, with one ERROR in the log; and all work again once it is back."""
    asked = ("/posts", f"/posts/end?job={JOB.id.hex()}", "/", "/games", f"/jobs/{JOB.id.hex()}", "/parties/live")
    with running(settings(tmp_path / "hub", through(database, proxy)), pages=with_pages(tmp_path)) as hub:
        hub.connect().post(OFFER)
        assert [ask(hub, "GET", path)[0] for path in asked] == [200] * len(asked)
        following = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=20)
        following.request("GET", "/stream?after=1")
        assert following.getresponse().status == 200
        proxy.is_away = True
        proxy.cut()
        assert ask(hub, "POST", "/posts", steps(0))[0] == 507
        assert [ask(hub, "GET", path)[0] for path in asked] == [503] * len(asked)
        assert ask(hub, "PUT", f"/blobs/{'ab' * 32}/pieces?size=5", bytes(32))[0] == 503
        status, _, body = ask(hub, "GET", "/healthz")
        assert (status, b"expected room and a database to store posts" in body, trouble(hub)) == (503, True, 1)
        proxy.is_away = False
        assert hub.connect().post(steps(0)).place == 2
        until(lambda: ask(hub, "GET", "/")[0] == 200)
        assert [ask(hub, "GET", path)[0] for path in (*asked, "/healthz")] == [200] * (len(asked) + 1)
        assert trouble(hub) == 0
        following.close()
    assert said(caplog) == [CANNOT, STORED_AGAIN]
    assert [one.name for one in caplog.records if one.name.startswith("uvicorn")] == []


def test_a_second_writer_to_the_database_stops_the_hub_with_one_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves what it has, and answers every further post at once."""
    with running(settings(tmp_path / "hub")) as hub:
        hub.connect().post(OFFER)
        assert json.loads(ask(hub, "GET", "/healthz")[2]) == {"status": "ok", "place": 1}
        monkeypatch.setattr(service_module, "TROUBLE_SECONDS", 3600.0)  # the next post is what looks again
        with failing_commit(hub.hub.store, counts=False):
            assert ask(hub, "POST", "/posts", steps(0))[0] == 507
        other = Store(str(hub.hub.store.engine.url))
        make_writer(other).take([hubs.arrived(steps(7))])
        other.close()
        for number in range(5):
            status, _, body = ask(hub, "POST", "/posts", steps(number))
            assert (status, b"another hub wrote" in body) == (503, True)
        assert (ask(hub, "GET", "/healthz")[0], trouble(hub)) == (503, 1)
        assert ask(hub, "GET", f"/posts/end?job={JOB.id.hex()}")[0] == 503
        assert ask(hub, "GET", "/posts")[0] == 200
    assert said(caplog) == [CANNOT, ENDED]
    assert [one.levelno for one in caplog.records if one.getMessage().startswith(ENDED)] == [logging.ERROR]
