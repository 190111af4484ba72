"""A series: the games of one seed and mix, played into a folder and resumable from it.

    games.jsonl      every game; the only file that cannot be rebuilt from another
    summary.json     the summary of all games (`tiebreak.lab.sim.games.summary`), written at the end
    summary.md       the same as a page
    violations.txt   games that broke a promise, in the form of the kept counter-examples; only if there are any

The first file grows by one line for each game, so that a killed run can be resumed. Its first line is the head:

    {"format": "tiebreak games", "version": 1, "seed", "mix", "environment", "adversaries"}
        mix: as `str(Mix)`; adversaries: slug -> {"name", "role", "gain", "caught"} of everyone

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from filelock import FileLock, Timeout

from tiebreak.engine.data.disk import write_file
from tiebreak.lab.sim.games.mixes import Mix, Repertoire
from tiebreak.lab.sim.games.runner import Json, Play, encode, play_games
from tiebreak.lab.sim.games.summary import PAGE, GamesHeader, summarize, to_markdown
from tiebreak.protocol.errors import ConfigurationError, EncodingError
from tiebreak.protocol.strict_json import parse_json

RECORDS: Final = "games.jsonl"
LOCK: Final = ".lock"
MAX_DEPTH: Final = 32


def read(path: Path) -> tuple[GamesHeader, list[Json]]:
    """The head of a file and its records, sorted by game number. An incomplete last line is ignored.

    Raises `ConfigurationError` if there is no file, `EncodingError` if it is not a file of results.
    """
    if not path.is_file():
        raise ConfigurationError(f"expected results in {path}, got no such file")
    whole = path.read_bytes().rpartition(b"\n")[0].split(b"\n")
    if whole == [b""]:
        raise EncodingError(f"expected a line of JSON in {path}, got none")
    found = []
    for number, line in enumerate(whole, start=1):
        try:
            found.append(parse_json(line, MAX_DEPTH))
        except ValueError:
            found.append(None)
        if not isinstance(found[-1], dict) or (number > 1 and not isinstance(found[-1].get("game"), int)):
            what = "a game" if number > 1 else "the head"
            raise EncodingError(f"expected {what} in line {number} of {path}, got none")
    records = sorted(found[1:], key=lambda record: record["game"])
    numbers = [record["game"] for record in records]
    if len(set(numbers)) < len(numbers):
        raise EncodingError(f"expected each game once in {path}, got one twice")
    return GamesHeader.of(found[0]), records


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


# ---------------------------------------------------------------- playing them

SUMMARY: Final = "summary.json"
VIOLATIONS: Final = "violations.txt"
_LISTS: Final = ("adversaries", "levels", "environment", "violations", "notable")


@dataclass(frozen=True, kw_only=True)
class Series:
    """A choice of games, and of how they are played. play, preload: as for `play_games`."""

    head: GamesHeader
    mix: Mix
    repertoire: Repertoire
    games: int
    play: Play
    preload: tuple[str, ...] = ()

    def line(self, game: int) -> str:
        return str(self.mix.deal(self.head.seed, game, self.repertoire))

    def run(
        self,
        folder: Path,
        *,
        processes: int,
        resume: bool,
        on_start: Callable[[int], None] = lambda _: None,
        on_record: Callable[[Json, int], None] = lambda *_: None,
    ) -> Json:
        """Plays all games that the folder lacks, and returns the summary of all its games.

        on_start: called with the number of games already there. on_record: called with each new record, and the number
        of games that are there then. Raises `ConfigurationError` as `open_ledger`, and for a folder that holds other
        games than these.
        """
        with open_ledger(folder, self.head, resume=resume) as ledger:
            lines = {game: self.line(game) for game in range(self.games)}
            for game, done in ledger.done.items():
                if lines.get(game, done) != done:
                    raise ConfigurationError(
                        f"expected game {game} of {folder} to be {lines[game]!r}, as it is dealt now, got {done!r}; "
                        "start anew"
                    )
            todo = [(game, line) for game, line in lines.items() if game not in ledger.done]
            on_start(self.games - len(todo))
            for number, record in enumerate(play_games(todo, self.play, processes=processes, preload=self.preload)):
                ledger.add(record)
                on_record(record, self.games - len(todo) + number + 1)
        return write_summary(folder)


def write_summary(folder: Path) -> Json:
    """Rebuilds and writes the summary of a folder from its games, and the list of broken promises."""
    summary = summarize(*read(folder / RECORDS))
    write_file(folder / SUMMARY, to_text(summary).encode())
    write_file(folder / PAGE, to_markdown(summary).encode())
    found = [f"# {' '.join(v['violation'].split())}\n{v['line']}\n" for v in summary["violations"]]
    (folder / VIOLATIONS).unlink(missing_ok=True)
    if found:
        write_file(folder / VIOLATIONS, "".join(found).encode())
    return summary


def to_text(summary: Json) -> str:
    """A summary as JSON with one entry a line, so that two summaries can be compared."""

    def dense(value: object) -> str:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))

    def listed(value: Json | list[Json]) -> str:
        if isinstance(value, dict):
            return "{" + ",".join(f"\n  {dense(key)}: {dense(one)}" for key, one in value.items()) + "}"
        return "[" + ",".join(f"\n  {dense(one)}" for one in value) + "]"

    lines = [f" {dense(key)}: {listed(value) if key in _LISTS else dense(value)}" for key, value in summary.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
