"""All that a fine-tuning service knows, in SQLite or PostgreSQL: keys, and the objects of its interface.

An object is kept as the JSON that its owner reads, beside the columns by which it is found; events and checkpoints are
objects of their job. Contents of files lie in the service's folder (`ServiceStore.path`).
"""

import json
import secrets
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Self

import sqlalchemy as sql

from tiebreak.protocol.errors import ConfigurationError

Json = dict[str, Any]
JOB: Final = "fine_tuning.job"
UNFINISHED: Final = ("queued", "running", "paused")
"""The statuses of a job that is not over."""
PREFIXES: Final = {
    "file": "file-", JOB: "ftjob-", "model": "ft:", "fine_tuning.job.event": "ftevent-",
    "fine_tuning.job.checkpoint": "ftckpt-",
}  # fmt: skip
"""Kind of an object, as its field `object` says it -> how its id begins."""
DATABASE: Final = "service.db"
_META: Final = sql.MetaData()
_KEYS: Final = sql.Table(
    "keys", _META, sql.Column("id", sql.String, primary_key=True), sql.Column("digest", sql.String, unique=True),
    sql.Column("limits", sql.String, nullable=False), sql.Column("withdrawn", sql.Boolean, default=False),
)  # fmt: skip
_OBJECTS: Final = sql.Table(
    "objects", _META, sql.Column("number", sql.Integer, primary_key=True), sql.Column("id", sql.String, unique=True),
    sql.Column("owner", sql.String, index=True), sql.Column("kind", sql.String),
    sql.Column("of", sql.String, index=True), sql.Column("status", sql.String, index=True),
    sql.Column("amount", sql.BigInteger, default=0), sql.Column("body", sql.String),
)  # fmt: skip
"""of: the job of an event or a checkpoint. amount: the bytes of a file, or the tokens that a job has trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """The most that a key may use up: requests a minute, bytes of files, tokens trained, and jobs that are not over."""

    requests: int = 600
    bytes: int = 1 << 33
    tokens: int = 1_000_000_000
    jobs: int = 20

    def changed(self, texts: Collection[str]) -> Self:
        """These limits with other values, each as NAME=NUMBER. Raises `ConfigurationError`."""
        found, names = asdict(self), [one.name for one in fields(self)]
        for text in texts:
            name, _, number = text.partition("=")
            if name not in names or not number.isdecimal():
                raise ConfigurationError(f"expected NAME=NUMBER with a name of {', '.join(names)}, got {text!r}")
            found[name] = int(number)
        return type(self)(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """A customer's key, without its secret. id: what its owner calls it."""

    id: str
    limits: KeyLimits
    withdrawn: bool


class ServiceStore:
    """All that a service keeps. Its methods block, and may be called by several threads of one process."""

    def __init__(self, folder: Path, url: str = "") -> None:
        self.folder, self._lock = folder, threading.RLock()
        (folder / "files").mkdir(parents=True, exist_ok=True)
        self._engine = sql.create_engine(url or f"sqlite:///{folder / DATABASE}", pool_pre_ping=True)
        if self._engine.dialect.name == "sqlite":
            sql.event.listen(self._engine, "connect", _set_up_sqlite)
        _META.create_all(self._engine)

    def close(self) -> None:
        self._engine.dispose()

    def path(self, file_id: str) -> Path:
        """The path of the content of a file."""
        return self.folder / "files" / file_id

    @contextmanager
    def _changing(self) -> Iterator[sql.Connection]:
        with self._lock, self._engine.begin() as connection:
            yield connection

    # ------------------------------------------------------------------ keys

    def add_key(self, name: str, limits: KeyLimits) -> str:
        """Makes a key and returns its secret. Only the hash is kept."""
        if self.keys(name):
            raise ConfigurationError(f"expected a new name, got {name!r}, of which there is a key")
        secret = f"sk-{secrets.token_urlsafe(32)}"
        with self._changing() as connection:
            values = {"id": name, "digest": _digest(secret), "limits": json.dumps(asdict(limits)), "withdrawn": False}
            connection.execute(_KEYS.insert().values(values))
        return secret

    def keys(self, name: str | None = None, *, secret: str | None = None) -> list[AccessKey]:
        """All keys, or the one of a name or a secret."""
        query = sql.select(_KEYS).order_by(_KEYS.c.id)
        if name is not None:
            query = query.where(_KEYS.c.id == name)
        if secret is not None:
            query = query.where(_KEYS.c.digest == _digest(secret))
        with self._engine.connect() as connection:
            rows = connection.execute(query).all()
        return [AccessKey(id=r.id, limits=KeyLimits(**json.loads(r.limits)), withdrawn=r.withdrawn) for r in rows]

    def change_key(self, key: AccessKey) -> None:
        """Gives a key other limits, or withdraws it."""
        values = {"limits": json.dumps(asdict(key.limits)), "withdrawn": key.withdrawn}
        with self._changing() as connection:
            connection.execute(_KEYS.update().where(_KEYS.c.id == key.id).values(values))

    def used(self, owner: str, kind: str) -> int:
        """The sum of the amounts of a key's objects: the bytes of its files, or the tokens of its jobs."""
        query = sql.select(sql.func.sum(_OBJECTS.c.amount)).where(_OBJECTS.c.owner == owner, _OBJECTS.c.kind == kind)
        with self._engine.connect() as connection:
            return int(connection.scalar(query) or 0)

    # ------------------------------------------------------------------ objects

    def add(self, owner: str, body: Json, *, of: str | None = None, amount: int = 0) -> Json:
        """Keeps a new object, which gets an id, unless it has one, and the time. Returns it."""
        kind = body["object"]
        made = {"id": PREFIXES[kind] + secrets.token_hex(12), "created_at": int(time.time()), **body}
        values = {"id": made["id"], "owner": owner, "kind": kind, "of": of, "status": body.get("status"),
                  "amount": amount, "body": json.dumps(made)}  # fmt: skip
        with self._changing() as connection:
            connection.execute(_OBJECTS.insert().values(values))
        return made

    def get(self, owner: str | None, kind: str, object_id: str) -> Json | None:
        """An object, if there is one of this owner; None: of anybody."""
        found = self._found(kind, owner, _OBJECTS.c.id == object_id)
        return found[0][1] if found else None

    def objects(
        self, owner: str | None, kind: str, *, of: str | None = None, after: str | None = None,
        limit: int | None = None, newest_first: bool = True, statuses: Collection[str] | None = None,
    ) -> list[tuple[str, Json]]:  # fmt: skip
        """Objects with their owners, by age. after: only those that come after the one of this id."""
        c, where = _OBJECTS.c, [_OBJECTS.c.of == of]
        if after is not None:
            place = sql.select(c.number).where(c.id == after).scalar_subquery()
            where.append(c.number < place if newest_first else c.number > place)
        if statuses is not None:
            where.append(c.status.in_(statuses))
        return self._found(kind, owner, *where, limit=limit, newest_first=newest_first)

    def _found(
        self, kind: str, owner: str | None, *where: sql.ColumnElement[bool], limit: int | None = None,
        newest_first: bool = False,
    ) -> list[tuple[str, Json]]:  # fmt: skip
        c = _OBJECTS.c
        query = sql.select(c.owner, c.body).where(c.kind == kind, *where).limit(limit)
        query = query.order_by(c.number.desc() if newest_first else c.number)
        with self._engine.connect() as connection:
            rows = connection.execute(query if owner is None else query.where(c.owner == owner)).all()
        return [(row.owner, json.loads(row.body)) for row in rows]

    def change(
        self, object_id: str, statuses: Collection[str] | None = None, *, amount: int | None = None, **values: Any
    ) -> Json | None:  # fmt: skip
        """Changes fields of an object, if its status is among these. Returns it as it is then, or None."""
        c = _OBJECTS.c
        with self._changing() as connection:
            row = connection.execute(sql.select(c.status, c.body).where(c.id == object_id)).first()
            if row is None or (statuses is not None and row.status not in statuses):
                return None
            made: Json = {**json.loads(row.body), **values}
            more = {} if amount is None else {"amount": amount}
            update = _OBJECTS.update().where(c.id == object_id)
            connection.execute(update.values(status=made.get("status"), body=json.dumps(made), **more))
        return made

    def remove(self, object_id: str) -> None:
        """Forgets an object, and the content of a file."""
        with self._changing() as connection:
            connection.execute(_OBJECTS.delete().where(_OBJECTS.c.id == object_id))
        if object_id.startswith(PREFIXES["file"]):
            self.path(object_id).unlink(missing_ok=True)


def _digest(secret: str) -> str:
    """The hash of a secret of 256 random bits, which needs no salt."""
    return sha256(secret.encode()).hexdigest()


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "busy_timeout = 10000"):
        connection.execute(f"PRAGMA {pragma}")
