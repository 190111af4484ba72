"""Many games on several processes: the same results as on one, and whatever breaks a game is in its record."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.lab.sim.games.players import play, play_unwritable
from tests.source_tree import ROOT
from tiebreak.lab.sim.games.line import GameLine
from tiebreak.lab.sim.games.runner import attempt, play_games
from tiebreak.lab.sim.games.series import RECORDS, read


def lines(*names: str) -> list[tuple[int, str]]:
    """A game for each name; honest of an empty one."""
    games = [GameLine(seed=7, game=i, adversaries=(name,) if name else ()) for i, name in enumerate(names)]
    return [(game.game, str(game)) for game in games]


def without_wall(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = [{key: value for key, value in record.items() if key != "wall"} for record in records]
    return sorted(kept, key=lambda record: record["game"])


def test_two_processes_find_what_one_finds() -> None:
    games = lines(*["", "poison"] * 10)
    one = list(play_games(games, play, processes=1))
    two = list(play_games(games, play, processes=2))
    assert [record["game"] for record in one] == list(range(20))
    assert without_wall(one) == without_wall(two) == without_wall([attempt(play, *game) for game in games])


def test_a_game_that_raises_is_recorded_with_its_error_and_line() -> None:
    (broken, fine) = play_games(lines("breaking", "poison"), play, processes=1)
    assert broken["error"] == "ValueError: expected a game, got none"
    assert "players.py" in broken["traceback"]
    assert broken["line"] == "v1 seed=7 game=0 with=breaking"
    assert fine["result"]["line"] == "v1 seed=7 game=1 with=poison"


def test_a_process_that_dies_takes_one_game_with_it() -> None:
    records = without_wall(list(play_games(lines("poison", "dying", "poison", "dying", ""), play, processes=2)))
    assert [record["game"] for record in records] == list(range(5))
    assert [record.get("error") for record in records] == [
        None, "the process that played it ended with code -9", None, "the process that played it ended with code -9",
        None,
    ]  # fmt: skip


@pytest.mark.slow
def test_a_game_that_hangs_is_ended_at_its_time_limit() -> None:
    records = without_wall(list(play_games(lines("hanging", "poison"), play, processes=1, limit=3)))
    assert records[0]["error"] == "no end after 3 seconds"
    assert records[1]["result"]["catches"] == {"poison": "recomputed"}


def test_a_result_that_is_no_json_is_an_error() -> None:
    (record,) = play_games(lines(""), play_unwritable, processes=1)
    assert record["error"].startswith("ValueError: Out of range float values")


def test_closing_the_iterator_stops_the_running_games() -> None:
    games = play_games(lines("poison", *["hanging"] * 4), play, processes=2)
    assert next(games)["game"] == 0
    start = time.perf_counter()
    games.close()
    assert time.perf_counter() - start < 30  # not the minute that a hanging game takes


RUN = """
import sys
from pathlib import Path
from tiebreak.lab.sim.games.summary import GamesHeader
from tiebreak.lab.sim.games.series import open_ledger
from tiebreak.lab.sim.games.runner import play_games
from tests.lab.sim.games.players import play
from tests.lab.sim.games.test_runner import lines

if __name__ == "__main__":
    head = GamesHeader(seed=7, mix="slow:1", environment={}, adversaries={})
    with open_ledger(Path(sys.argv[1]), head, resume=True) as ledger:
        todo = [game for game in lines(*["slow"] * 8) if game[0] not in ledger.done]
        print(len(todo), flush=True)
        for record in play_games(todo, play, processes=2):
            ledger.add(record)
            print(record["game"], flush=True)
"""


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_killed_series_of_games_resumes_with_the_unplayed_ones(tmp_path: Path, how: signal.Signals) -> None:
    """It loses the games in flight, nothing else, and its processes end with it."""
    run = start(tmp_path)
    assert run.stdout is not None
    assert run.stdout.readline() == "8\n"
    seen = {int(run.stdout.readline()) for _ in range(3)}
    if how == signal.SIGINT:
        os.killpg(run.pid, how)  # as a terminal does: every process of the group gets it
    else:
        run.kill()
    _, errors = run.communicate(timeout=60)
    if how == signal.SIGINT:
        assert errors.count("Traceback") == 1, errors  # of the run, none of its processes
    done = {record["game"] for record in read(tmp_path / RECORDS)[1]}
    assert seen <= done
    assert len(done) < 8
    again = start(tmp_path)
    output, _ = again.communicate(timeout=100)
    assert int(output.splitlines()[0]) == 8 - len(done)
    assert {record["game"]: record["line"] for record in read(tmp_path / RECORDS)[1]} == dict(lines(*["slow"] * 8))
