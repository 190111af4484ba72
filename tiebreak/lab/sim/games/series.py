"""A series: the games of one seed and mix, played into a folder and resumable from it.

    games.jsonl      every game (`tiebreak.lab.sim.games.records`)
    summary.json     the summary of all games (`tiebreak.lab.sim.games.summary`), written at the end
    summary.md       the same as a page (`tiebreak.lab.sim.games.summary`)
    violations.txt   games that broke a promise, in the form of the kept counter-examples; only if there are any

All other files can be rebuilt from the first at any time.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tiebreak.engine.data.disk import write_file
from tiebreak.lab.sim.games.mixes import Mix, Repertoire
from tiebreak.lab.sim.games.records import RECORDS, GamesHeader, Json, ResultsFile, open_ledger, read
from tiebreak.lab.sim.games.runner import Play, play_games
from tiebreak.lab.sim.games.summary import PAGE, summarize, to_markdown
from tiebreak.protocol.errors import ConfigurationError

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
        on_record: Callable[[Json], None] = lambda _: None,
    ) -> Json:
        """Plays all games that the folder lacks, and returns the summary of all its games.

        on_start: called with the number of games already there. on_record: called with each new record. Raises
        `ConfigurationError` as `open_ledger`, and for a folder that holds other games than these.
        """
        with open_ledger(folder, self.head, resume=resume) as ledger:
            todo = list(self._todo(ledger, folder))
            on_start(self.games - len(todo))
            for record in play_games(todo, self.play, processes=processes, preload=self.preload):
                ledger.add(record)
                on_record(record)
        return write_summary(folder)

    def _todo(self, ledger: ResultsFile, folder: Path) -> Iterator[tuple[int, str]]:
        for game in range(self.games):
            line, done = self.line(game), ledger.done.get(game)
            if done is None:
                yield game, line
            elif done != line:
                raise ConfigurationError(
                    f"expected game {game} of {folder} to be {line!r}, as it is dealt now, got {done!r}; start anew"
                )


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
