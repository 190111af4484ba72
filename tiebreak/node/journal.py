"""The journal of a party: its statements, transactions and findings, in one SQLite file. The only SQL of a party.

    facts     single values: whom the folder belongs to, the secret of seals, which hub was spoken to
    records   the machine's own memory (`parties.events.AppendRecord`), in order
    posts     what it says through a hub, with the exact bytes, so that after a crash the same bytes are sent again
    notes     what its outbox sends to a chain (`chain.outbox.Note`), in order

Every method that writes has synced when it returns (`synchronous=FULL`), so a statement is safe before it leaves. One
process opens a folder at a time. Threads of that process may share a journal. Each row has a digest, and one that is
not as it was written is refused when the file is opened: a party that forgets what it signed may contradict it.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, Final

from tiebreak.engine import system
from tiebreak.engine.data.disk import make_folder
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError
from tiebreak.protocol.packing import pack, unpack
from tiebreak.protocol.parties.events import AppendRecord, Place
from tiebreak.protocol.tags import Digest

FILE: Final = "journal.sqlite"
LOCK: Final = "lock"
JOBS: Final = "jobs"
"""The folder next to the journal, with the files of the party's jobs."""
_VERSION: Final = 1
MAX_PLACE_BYTES: Final = 1 << 16
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value BLOB NOT NULL, digest BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS records (
    id INTEGER PRIMARY KEY, place BLOB NOT NULL UNIQUE, data BLOB NOT NULL, digest BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS posts (
    id INTEGER PRIMARY KEY, job BLOB NOT NULL, number INTEGER NOT NULL, content BLOB NOT NULL UNIQUE,
    wire BLOB NOT NULL, place INTEGER, digest BLOB NOT NULL, UNIQUE (job, number)
);
CREATE INDEX IF NOT EXISTS unheard ON posts (id) WHERE place IS NULL;
CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, note BLOB NOT NULL, digest BLOB NOT NULL);
"""
_DIGESTED: Final = {
    "facts": "name, value", "records": "place, data", "posts": "job, number, content, wire, place", "notes": "note",
}  # fmt: skip
"""The columns that a row's digest covers, by table."""
_PLACED: Final = "UPDATE posts SET place = ?1, digest = digest_of(job, number, content, wire, ?1)"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A post that the hub has not taken yet."""

    id: int
    wire: bytes


class Journal:
    """The journal in a party's folder, which stays locked until `close`."""

    def __init__(self, folder: Path, belongs: Mapping[str, str]) -> None:
        """`belongs`: properties to which the folder is bound for good, such as its role, address, chain and board.

        Raises `StateError` if another process has the folder, `ConfigurationError` if it belongs to something else;
        nothing has been written then.
        """
        make_folder(folder)
        self.folder = folder
        path, signed_for = folder / FILE, "*" if (folder / LOCK).exists() else "*/job.bin"
        self._lock = _locked(folder / LOCK)
        self._mutex = RLock()
        if not (path.exists() and path.stat().st_size) and any((folder / JOBS).glob(signed_for)):
            self._lock.close()
            raise ConfigurationError(
                f"expected {path}, which says what was signed about the jobs beside it, got none; put it back, or "
                "start a new folder with a new key"
            )
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.create_function("digest_of", -1, _digest_of, deterministic=True)
        try:
            self._check(path)
            self._require(path, belongs)
            self._db.executescript(
                f"PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA user_version={_VERSION};" + _TABLES
            )
            for name, value in belongs.items():
                self.keep_fact(f"belongs {name}", value.encode())
        except sqlite3.DatabaseError as error:
            self.close()
            raise ConfigurationError(f"{path}: expected a journal, got a file that SQLite refuses: {error}") from error
        except BaseException:
            self.close()
            raise

    def require(self, name: str, value: str) -> None:
        """Bind the folder to something more. Raises `ConfigurationError` if it is bound to something else."""
        self._require(self.folder / FILE, {name: value})
        self.keep_fact(f"belongs {name}", value.encode())

    def close(self) -> None:
        with self._mutex:  # SQLite crashes if a connection is closed under a thread that reads
            self._db.close()
        self._lock.close()

    def _is_new(self) -> bool:
        return not self._read("SELECT 1 FROM sqlite_master")

    def _check(self, path: Path) -> None:
        """Raises `ConfigurationError` if the file is of another format, or not as it was written."""
        version = self._read("PRAGMA user_version")[0][0]
        if not self._is_new() and version != _VERSION:
            raise ConfigurationError(f"{path}: expected a journal of format {_VERSION}, got {version}")
        # Also compares indices with tables, unlike quick_check: by an index a place is known to be taken.
        damage = "" if (found := self._read("PRAGMA integrity_check(1)")[0][0]) == "ok" else found
        for table, columns in _DIGESTED.items() if not (damage or self._is_new()) else ():
            if self._read(f"SELECT 1 FROM {table} WHERE digest IS NOT digest_of({columns}) LIMIT 1"):  # noqa: S608
                damage = f"a row of {table} has another digest"
        if damage:
            raise ConfigurationError(
                f"{path}: expected a journal as it was written, got a damaged one ({damage}); put the newest "
                "backup back, if nothing was signed since"
            )

    def _require(self, path: Path, belongs: Mapping[str, str]) -> None:
        if self._is_new():
            return
        for name, value in belongs.items():
            if (found := self.fact(f"belongs {name}")) is not None and found != value.encode():
                raise ConfigurationError(
                    f"{path.parent}: expected the folder of {name} {found.decode()}, got {name} {value}; "
                    "use a folder of its own for each board and each key"
                )

    def _write(self, statement: str, *values: Any) -> int:
        """Execute and commit one statement; returns how many rows changed."""
        with self._mutex:
            return self._db.execute(statement, values).rowcount

    def _read(self, statement: str, *values: Any) -> list[Any]:
        with self._mutex:
            return self._db.execute(statement, values).fetchall()

    # ------------------------------------------------------------------ facts

    def fact(self, name: str) -> bytes | None:
        found = self._read("SELECT value FROM facts WHERE name = ?", name)
        return found[0][0] if found else None

    def keep_fact(self, name: str, value: bytes) -> None:
        """Write a fact in place of what it was."""
        self._write("INSERT OR REPLACE INTO facts VALUES (?1, ?2, digest_of(?1, ?2))", name, value)

    def fact_once(self, name: str, make: Callable[[], bytes]) -> bytes:
        """A fact that never changes, made at the first call."""
        with self._mutex:
            if (found := self.fact(name)) is None:
                found = make()
                self.keep_fact(name, found)
            return found

    # ------------------------------------------------------------------ the machine's records

    def records(self) -> list[AppendRecord]:
        """All records, oldest first. Raises `EncodingError` for a damaged one."""
        rows = self._read("SELECT place, data FROM records ORDER BY id")
        return [AppendRecord(place=read_place(place), data=data) for place, data in rows]

    def append(self, record: AppendRecord) -> None:
        """Append a record. If two have one place, the first counts, as it does in the machine."""
        place = write_place(record.place)
        fields = "INSERT OR IGNORE INTO records (place, data, digest) VALUES (?1, ?2, digest_of(?1, ?2))"
        self._write(fields, place, record.data)

    # ------------------------------------------------------------------ posts

    def post(self, job: Digest, content: bytes, sign: Callable[[int], bytes]) -> bool:
        """Keep a statement to be made about a job, unless the same was made before. Returns whether it is new.

        `content` identifies it. `sign` makes the signed bytes, given the number in the job that is its place for good.
        """
        with self._mutex:
            if self._read("SELECT 1 FROM posts WHERE content = ?", content):
                return False
            number = self._read("SELECT COALESCE(MAX(number) + 1, 0) FROM posts WHERE job = ?", job)[0][0]
            values = "VALUES (?1, ?2, ?3, ?4, digest_of(?1, ?2, ?3, ?4, NULL))"
            fields = f"INSERT INTO posts (job, number, content, wire, digest) {values}"
            self._write(fields, job, number, content, sign(number))
            return True

    def unheard(self, after: int = 0, limit: int = 64) -> list[Waiting]:
        """The oldest posts that the hub has not taken yet, behind the one of this id."""
        rows = self._read("SELECT id, wire FROM posts WHERE place IS NULL AND id > ? ORDER BY id LIMIT ?", after, limit)
        return [Waiting(*row) for row in rows]

    def heard(self, waiting: Waiting, place: int) -> None:
        """The hub has taken a post, and gave it this place. A negative place: it refused the post for good."""
        self._write(f"{_PLACED} WHERE id = ?2", place, waiting.id)

    def last_heard(self) -> tuple[int, bytes] | None:
        """The highest place that the hub gave to a post, and the post's bytes."""
        rows = self._read("SELECT place, wire FROM posts WHERE place >= 0 ORDER BY place DESC LIMIT 1")
        return tuple(rows[0]) if rows else None

    def say_all_again(self) -> None:
        """Send everything again, as to a hub that has lost it or is another one."""
        self._write(f"{_PLACED} WHERE place >= 0", None)

    # ------------------------------------------------------------------ an outbox's notes

    def notes(self) -> list[bytes]:
        """The rows that an outbox has noted, oldest first."""
        return [row[0] for row in self._read("SELECT note FROM notes ORDER BY id")]

    def note(self, note: bytes) -> None:
        self._write("INSERT INTO notes (note, digest) VALUES (?1, digest_of(?1))", note)


def _digest_of(*values: bytes | str | int | None) -> bytes:
    """The SHA-256 of the `repr` of a row's values, which differs for different values."""
    return hashlib.sha256(repr(values).encode()).digest()


def _locked(path: Path) -> Any:
    """The open lock file. The system frees the lock when the process ends, however it ends."""
    file = path.open("ab")
    try:
        system.lock(file)
    except OSError as error:
        file.close()
        raise StateError(f"{path.parent}: expected a folder for this process alone, got one in use") from error
    return file


def write_place(place: Place) -> bytes:
    """The canonical bytes of a place: text is wrapped in an array, to tell it from bytes."""
    return pack([[item.encode()] if isinstance(item, str) else item for item in place])


def read_place(data: bytes) -> Place:
    """Invert `write_place`. Raises `EncodingError`."""
    items = unpack(data, MAX_PLACE_BYTES)
    try:
        return tuple(item[0].decode() if isinstance(item, list) else item for item in items)
    except (AttributeError, IndexError, TypeError, UnicodeDecodeError) as error:
        raise EncodingError(f"expected a place of the journal, got {data.hex()[:64]}") from error
