"""All SQL of a hub: its posts, in SQLite (one file, WAL) or PostgreSQL, through SQLAlchemy Core.

One process writes, one batch of posts in a transaction, so places are in the order in which they become visible. On
PostgreSQL it writes through the session that holds the writer's lock: who loses the lock can't write, and who gets it
knows that the last transaction of the session before has ended. Readers see a post only once it is on the disk.
"""

import os
import socket
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import sqlalchemy as sql

from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import ConfigurationError, StateError
from tiebreak.protocol.packing import unpack
from tiebreak.protocol.parties.posts import MAX_POST_BYTES, PostKind, Received, ReceivedPost
from tiebreak.protocol.tags import Digest

VERSION: Final = "1"
MAX_PAGE_BYTES: Final = 8 << 20
"""Bytes of posts that one answer of `GET /posts` holds at most."""
_LOCK: Final = 0x7469656272656B
"""PostgreSQL's number of the writer's lock."""
_LOCK_NOT_AVAILABLE: Final = "55P03"
"""The SQLSTATE of a wait for a lock that was too long."""
WRITE_SECONDS: Final = 20.0
"""Seconds that PostgreSQL has for a batch. Then the connection is cut, since a lost server raises no error itself."""
_NETWORK: Final = {"connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "tcp_user_timeout": 20_000}
_TAKE_LOCK: Final = (
    # The server lets go of a lock whose holder has gone after half a minute, not after the system's two hours.
    "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; "
    # It may notice a little later that the last hub has gone.
    f"SET LOCAL lock_timeout = '3s'; SELECT pg_advisory_lock({_LOCK})"
)

_TABLES: Final = sql.MetaData()


def _column(name: str, kind: Any = sql.LargeBinary, **given: Any) -> sql.Column[Any]:
    return sql.Column(name, kind, **{"nullable": False, **given})


_facts = sql.Table(
    "facts", _TABLES,
    _column("name", sql.String(32), primary_key=True),
    _column("value", sql.String(200)),
)  # fmt: skip
_jobs = sql.Table(
    "jobs", _TABLES,
    _column("job_id", primary_key=True),
    _column("client", index=True),
    _column("place", sql.BigInteger, index=True),
    _column("job"),
)  # fmt: skip
_games = sql.Table(
    "games", _TABLES,
    _column("game_id", primary_key=True),
    _column("job_id", index=True),
    _column("challenger", index=True),
    _column("place", sql.BigInteger),
)  # fmt: skip
_posts = sql.Table(
    "posts", _TABLES,
    _column("place", sql.BigInteger, primary_key=True, autoincrement=False),
    _column("at", sql.BigInteger),
    *(_column(name) for name in ("job_id", "game_id", "sender")),
    _column("number"),  # u64, which no BIGINT holds
    _column("kind", sql.SmallInteger),
    *(_column(name) for name in ("content", "wire", "signature")),
    sql.Index("one_content", "job_id", "sender", "number", unique=True),
    sql.Index("of_a_job", "job_id", "place"),
    sql.Index("of_a_game", "game_id", "place"),
)  # fmt: skip
_named = sql.Table(
    "named", _TABLES,
    _column("root", primary_key=True),
    _column("size", sql.BigInteger, primary_key=True, autoincrement=False),
    _column("owner", primary_key=True),
    _column("charged", sql.Boolean),
    sql.Index("of_an_owner", "owner", "charged"),
)  # fmt: skip
_NAME: Final = sql.text(
    "INSERT INTO named (root, size, owner, charged) VALUES (:root, :size, :owner, FALSE) ON CONFLICT DO NOTHING"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    place: int
    at: int
    job_id: Digest
    game_id: Digest
    sender: Address
    number: int
    kind: int
    content: Digest
    wire: bytes
    signature: bytes

    @property
    def received(self) -> ReceivedPost:
        return ReceivedPost(place=self.place, at=self.at, wire=self.wire, signature=self.signature)


class LastPost(NamedTuple):
    """The place of the newest post, its instant, and the hub's signature over both."""

    place: int
    at: int
    signature: bytes


class Store:
    """A hub's database. Reads are safe from any thread; `writing` is for the one post writer."""

    def __init__(self, url: str) -> None:
        self.is_sqlite = url.startswith("sqlite")
        try:
            self.engine = sql.create_engine(url, pool_size=10, connect_args={} if self.is_sqlite else _NETWORK)
        except (sql.exc.ArgumentError, sql.exc.NoSuchModuleError) as error:
            raise ConfigurationError(f"expected the URL of an SQLite or PostgreSQL database, got {url}") from error
        if self.is_sqlite:
            sql.event.listen(self.engine, "connect", _set_up_sqlite)
        self._connection: sql.Connection | None = None
        """The connection through which the post writer writes."""

    def close(self) -> None:
        self._leave()
        self.engine.dispose()

    # ------------------------------------------------------------------ the post writer's

    def open_for_writing(self, facts: Mapping[str, str]) -> LastPost:
        """Make the tables if there are none. Returns the last post.

        facts: values that never change under the posts: the hub's address and its domain. Raises `StateError` if the
        database was made for others, or if another post writer writes; an error closes the store.
        """
        try:
            with self.writing() as writer:
                writer.set_up({"version": VERSION, **facts})
                return writer.last()
        except BaseException as error:
            self.close()
            if getattr(getattr(error, "orig", None), "sqlstate", None) == _LOCK_NOT_AVAILABLE:
                raise StateError("another hub writes to this database; stop it first") from error
            raise

    @contextmanager
    def writing(self) -> Iterator["Writer"]:
        """A transaction: all that is written in it counts when it ends, or nothing. Raises SQLAlchemy's errors.

        After an error it is unknown which, until the next transaction looks: its session has the lock again by then.
        """
        timer = threading.Timer(WRITE_SECONDS, self._cut)
        timer.start()
        try:
            if self._connection is None:
                self._connection = self.engine.connect()
                if not self.is_sqlite:
                    self._connection.exec_driver_sql(_TAKE_LOCK)
                    self._connection.commit()
            with self._connection.begin():
                yield Writer(self._connection)
        except sql.exc.SQLAlchemyError:
            self._leave()
            raise
        finally:
            timer.cancel()

    def _leave(self) -> None:
        """End the post writer's session, and with it the lock: a pool would keep both."""
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
        self._connection = None

    def _cut(self) -> None:
        """Cut the post writer's connection to a server, so that it gets an error instead of silence."""
        if self._connection is not None and not self.is_sqlite:
            driver: Any = self._connection.connection.driver_connection
            with socket.socket(fileno=os.dup(driver.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    # ------------------------------------------------------------------ anybody's

    def last_place(self) -> int:
        with self.engine.connect() as connection:
            return Writer(connection).last().place

    def posts(
        self, after: int, *, jobs: Collection[bytes] | None = None, game: bytes | None = None, offers: bool = False,
        kinds: Collection[int] | None = None, newest: bool = False, limit: int = 500, most: int = MAX_PAGE_BYTES,
    ) -> list[ReceivedPost]:  # fmt: skip
        """The posts after a place, in order: at most `limit` posts, and at most `most` bytes of wires, or one post.

        jobs, game, kinds: only posts of one of these jobs, of this game, or of these kinds. offers: and the offers of
        all other jobs. newest: the last of these posts instead of the first.
        """
        c = _posts.c
        order = c.place.desc() if newest else c.place
        query = sql.select(c.place, c.at, c.wire, c.signature).where(c.place > after).order_by(order).limit(limit)
        if jobs is not None:
            query = query.where(sql.or_(c.job_id.in_(jobs), *([c.kind == int(PostKind.OFFER)] if offers else [])))
        if game is not None:
            query = query.where(c.game_id == game)
        if kinds is not None:
            query = query.where(c.kind.in_(kinds))
        found, held = [], 0
        with self.engine.connect() as connection:
            for row in connection.execution_options(yield_per=20).execute(query):
                found.append(ReceivedPost(place=row.place, at=row.at, wire=row.wire, signature=row.signature))
                held += len(row.wire)
                if held > most - MAX_POST_BYTES:
                    break
        return found[::-1] if newest else found

    def count(self, job_id: bytes) -> int:
        """The number of posts about a job."""
        with self.engine.connect() as connection:
            return _total(connection, sql.func.count(_posts.c.place), _posts.c.job_id == job_id)

    def received(self, job_id: bytes, until: int) -> list[Received]:
        """The content, place and instant of each post of a job up to a place, as its receipt has them, by place."""
        c = _posts.c
        query = sql.select(c.content, c.place, c.at).where(c.job_id == job_id, c.place <= until).order_by(c.place)
        with self.engine.connect() as connection:
            rows = connection.execute(query).all()
        return [Received(content=Digest(bytes(content)), place=place, at=at) for content, place, at in rows]

    def is_named(self, root: bytes, size: int) -> bool:
        """Whether some library names a blob with this root and size."""
        query = sql.select(_named.c.owner).where(_named.c.root == root, _named.c.size == size).limit(1)
        with self.engine.connect() as connection:
            return connection.scalar(query) is not None

    def charge(self, root: bytes, size: int, quota: int) -> bool:
        """Charge a blob to one of those who named it. False if it is above the quota of each of them."""
        c = _named.c
        this = sql.and_(c.root == root, c.size == size)
        with self.engine.begin() as connection:
            rows = connection.execute(sql.select(c.owner, c.charged).where(this)).all()
            if any(row.charged for row in rows):
                return True
            for row in rows:
                held = _total(connection, sql.func.sum(c.size), c.owner == row.owner, c.charged)
                if held + size <= quota:
                    connection.execute(_named.update().where(this, c.owner == row.owner).values(charged=True))
                    return True
        return False


class Writer:
    """The post writer's questions and writes within one transaction."""

    def __init__(self, connection: sql.Connection) -> None:
        self._connection = connection

    def set_up(self, facts: Mapping[str, str]) -> None:
        """Make the tables if there are none. Raises `StateError` if they were made for other facts."""
        _TABLES.create_all(self._connection)
        if not (found := {row.name: row.value for row in self._connection.execute(sql.select(_facts))}):
            self._connection.execute(_facts.insert(), [{"name": n, "value": v} for n, v in facts.items()])
        for name, value in found.items():
            if facts.get(name) != value:
                raise StateError(f"expected a database of {name} {facts.get(name)}, got one of {value}")

    def try_out(self) -> None:
        """Write what is there already, to find out whether there is room."""
        self._connection.execute(_facts.update().values(value=_facts.c.value))

    def last(self) -> LastPost:
        """The last post; zeros in an empty database."""
        c = _posts.c
        query = sql.select(c.place, c.at, c.signature).order_by(c.place.desc()).limit(1)
        row = self._connection.execute(query).first()
        return LastPost(0, 0, b"") if row is None else LastPost(row.place, row.at, bytes(row.signature))

    def found(self, job_id: bytes, sender: bytes, number: int) -> Row | None:
        """The post of a sender with this number within a job."""
        c = _posts.c
        query = sql.select(_posts).where(c.job_id == job_id, c.sender == sender, c.number == _number(number))
        row = self._connection.execute(query).mappings().first()
        return None if row is None else Row(**{**row, "number": number})

    def highest(self, job_id: bytes, sender: bytes) -> int:
        """The highest number of a sender's posts within a job; -1 if there are none."""
        c = _posts.c
        query = sql.select(c.number).where(c.job_id == job_id, c.sender == sender).order_by(c.number.desc()).limit(1)
        found = self._connection.scalar(query)
        return -1 if found is None else int.from_bytes(found, "big")

    def bytes_of(self, job_id: bytes, sender: bytes) -> int:
        """The bytes of a sender's posts within a job."""
        c = _posts.c
        return _total(self._connection, sql.func.sum(sql.func.length(c.wire)), c.job_id == job_id, c.sender == sender)

    def job(self, job_id: bytes) -> Job | None:
        data = self._connection.scalar(sql.select(_jobs.c.job).where(_jobs.c.job_id == job_id))
        return None if data is None else Job.unpack("job", unpack(bytes(data), len(data)))

    def challenger(self, game_id: bytes) -> Address | None:
        found = self._connection.scalar(sql.select(_games.c.challenger).where(_games.c.game_id == game_id))
        return None if found is None else Address(found)

    def jobs_of(self, client: bytes) -> int:
        return _total(self._connection, sql.func.count(_jobs.c.job_id), _jobs.c.client == client)

    def games_of(self, challenger: bytes) -> int:
        return _total(self._connection, sql.func.count(_games.c.game_id), _games.c.challenger == challenger)

    def add(self, rows: Sequence[Row]) -> None:
        values: list[dict[str, Any]] = [
            {name: getattr(row, name) for name in Row.__slots__} | {"number": _number(row.number)} for row in rows
        ]
        if values:
            self._connection.execute(_posts.insert(), values)

    def add_job(self, job_id: bytes, client: bytes, place: int, job: bytes) -> None:
        self._connection.execute(_jobs.insert().values(job_id=job_id, client=client, place=place, job=job))

    def add_game(self, game_id: bytes, job_id: bytes, challenger: bytes, place: int) -> None:
        values = {"game_id": game_id, "job_id": job_id, "challenger": challenger, "place": place}
        self._connection.execute(_games.insert(), values)

    def name(self, files: Sequence[tuple[bytes, int]], owner: bytes) -> None:
        """Note which blobs a library names, by root and size."""
        if rows := [{"root": root, "size": size, "owner": owner} for root, size in dict.fromkeys(files)]:
            self._connection.execute(_NAME, rows)


def _total(connection: sql.Connection, amount: sql.ColumnElement[Any], *where: sql.ColumnElement[bool]) -> int:
    """A count or sum over the rows that fit; 0 if there are none."""
    return int(connection.scalar(sql.select(amount).where(*where)) or 0)


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "busy_timeout = 10000", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _number(number: int) -> bytes:
    return number.to_bytes(8, "big")
