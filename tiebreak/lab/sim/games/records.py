"""Results on disk: a JSON Lines file that grows by one line for each game, so that a killed run can be resumed.

The first line is the head:

    {"format": "tiebreak games", "version": 1, "seed", "mix", "environment", "adversaries"}
        mix: as `str(Mix)`; adversaries: slug -> {"name", "role", "gain", "caught", "open"} of everyone

Then follows a record for each game, in the order in which they ended:

    {"game", "line", "wall", "result"}
        wall: seconds that it took to play; result: a `GameResult`
    {"game", "line", "wall", "error", "traceback"}
        a game that could not be played to its end, which also counts as a broken promise

Each line is written at once. If a killed process left an incomplete last line, it is removed when the file is opened
again.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from filelock import FileLock, Timeout

from tiebreak.protocol.errors import ConfigurationError, EncodingError
from tiebreak.protocol.strict_json import parse_json

FORMAT: Final = "tiebreak games"
VERSION: Final = 1
RECORDS: Final = "games.jsonl"
LOCK: Final = ".lock"
MAX_DEPTH: Final = 32

Json = dict[str, Any]
"""A JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GamesHeader:
    """The properties that all games of a file have in common."""

    seed: int
    mix: str
    environment: Mapping[str, str]
    adversaries: Mapping[str, Mapping[str, Any]]

    def to_json(self) -> Json:
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def of(cls, found: Json) -> "GamesHeader":
        """Parse the first line. Raises `EncodingError` for a file of another format or version."""
        if (found.get("format"), found.get("version")) != (FORMAT, VERSION):
            got = f"{found.get('format')!r}, version {found.get('version')!r}"
            raise EncodingError(f"expected a file of {FORMAT!r}, version {VERSION}, got {got}")
        return cls(**{name: found[name] for name in cls.__slots__})


def read(path: Path) -> tuple[GamesHeader, list[Json]]:
    """The head of a file and its records, sorted by game number. An incomplete last line is ignored.

    Raises `ConfigurationError` if there is no file, `EncodingError` if it is not a file of results.
    """
    if not path.is_file():
        raise ConfigurationError(f"expected results in {path}, got no such file")
    whole = path.read_bytes().rpartition(b"\n")[0].split(b"\n")
    if whole == [b""]:
        raise EncodingError(f"expected a line of JSON in {path}, got none")
    found = [_object(line, number, path) for number, line in enumerate(whole, start=1)]
    records = sorted(found[1:], key=lambda record: record["game"])
    numbers = [record["game"] for record in records]
    if len(set(numbers)) < len(numbers):
        raise EncodingError(f"expected each game once in {path}, got one twice")
    return GamesHeader.of(found[0]), records


def _object(line: bytes, number: int, path: Path) -> Json:
    try:
        found = parse_json(line, MAX_DEPTH)
    except ValueError:
        found = None
    if not isinstance(found, dict) or (number > 1 and not isinstance(found.get("game"), int)):
        raise EncodingError(f"expected {'a game' if number > 1 else 'the head'} in line {number} of {path}, got none")
    return found


class ResultsFile:
    """A file of results, open for writing. Only one process at a time may have it open."""

    def __init__(self, file: TextIO, done: dict[int, str]) -> None:
        self._file = file
        self.done = done
        """Maps each recorded game to its line."""

    def add(self, record: Json) -> None:
        self._file.write(encode(record))
        self._file.flush()
        self.done[record["game"]] = record["line"]


def encode(found: Json) -> str:
    """One line of the file. Equal records encode to equal bytes."""
    return json.dumps(found, separators=(",", ":"), allow_nan=False) + "\n"


@contextmanager
def open_ledger(folder: Path, head: GamesHeader, *, resume: bool) -> Iterator[ResultsFile]:
    """Open the results file of a folder: a new one, or with `resume` an existing one of the same seed and mix.

    Raises `ConfigurationError` for an existing file without `resume`, for one of another seed or mix, and for one that
    another process has open.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RECORDS
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise ConfigurationError(f"expected {folder} for this run alone, got another that writes there") from error
    try:
        done = _go_on(path, head, resume=resume)
        with path.open("a", encoding="utf-8") as file:
            if file.tell() == 0:
                file.write(encode(head.to_json()))
                file.flush()
            yield ResultsFile(file, done)
    finally:
        lock.release()


def _go_on(path: Path, head: GamesHeader, *, resume: bool) -> dict[int, str]:
    """The games that are done, after an incomplete last line was removed."""
    if not path.exists():
        return {}
    if not resume:
        raise ConfigurationError(f"expected no results in {path.parent}, got {path.name}; go on with it (--resume)?")
    whole = path.read_bytes().rfind(b"\n") + 1
    os.truncate(path, whole)
    if whole == 0:
        return {}
    found, records = read(path)
    if (found.seed, found.mix) != (head.seed, head.mix):
        raise ConfigurationError(
            f"expected results of seed {head.seed} and mix {head.mix} in {path}, got seed {found.seed} and {found.mix}"
        )
    return {record["game"]: record["line"] for record in records}
