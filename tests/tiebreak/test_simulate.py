"""`tiebreak simulate`: games from the command line, and what it says and returns."""

import json
from pathlib import Path
from typing import Any

import pytest

from tiebreak.api import games
from tiebreak.cli.main import run, tiebreak
from tiebreak.cli.simulate import PromiseBroken
from tiebreak.protocol.errors import VerificationError
from tiebreak.sim.games.playing import ADVERSARIES, play_line
from tiebreak.sim.games.records import RECORDS, read
from tiebreak.sim.games.series import SUMMARY, VIOLATIONS
from tiebreak.sim.games.summary import PAGE, summarize, to_markdown


def simulate(*arguments: object) -> int:
    return run(tiebreak, ["simulate", *map(str, arguments)])


@pytest.mark.slow
def test_a_few_games_of_all_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real games on two processes; they are what one process plays, and what the summary says."""
    assert simulate("--games", 6, "--seed", 11, "--processes", 2, "--output", tmp_path) == 0
    out, err = capsys.readouterr()
    assert "6 games: " in out
    assert "0 of them were paid\nhonest parties lost a stake in 0 games, 0 games broke a promise\n" in out
    assert (tmp_path / PAGE).read_text() == to_markdown(json.loads((tmp_path / SUMMARY).read_text()))
    assert "game 6 of 6, " in err
    head, records = read(tmp_path / RECORDS)
    assert len(records) == 6
    assert json.loads((tmp_path / SUMMARY).read_text()) == summarize(head, records)
    for record in sorted(records, key=lambda record: record["wall"])[:2]:
        assert json.loads(json.dumps(play_line(record["line"]).to_json())) == record["result"]


def test_replay_tells_the_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--replay", "v1 seed=7 game=1") == 0
    out = capsys.readouterr().out
    assert out.startswith("v1 seed=7 game=1\n")
    assert "trainer accepts the job and pays its stake" in out
    assert "the job: settled" in out
    assert out.endswith("no promise was broken\n")


def test_a_broken_promise_is_exit_code_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """No promise is broken that we know of, so this one is made up."""
    real = games.watch_line

    def broken(line: str) -> Any:
        world, result = real(line)
        return world, type(result)(
            **{name: getattr(result, name) for name in result.__slots__} | {"violations": ("9: x",)}
        )

    monkeypatch.setattr(games, "watch_line", broken)
    assert simulate("--replay", "v1 seed=7 game=1") == 2
    out, err = capsys.readouterr()
    assert "BROKEN PROMISE 9: x" in out
    assert err == "PromiseBroken: the game 'v1 seed=7 game=1' broke a promise: 9: x\n"
    assert issubclass(PromiseBroken, VerificationError)


def failing(line: str) -> dict[str, Any]:
    raise ValueError("no game")


def playing(line: str) -> dict[str, Any]:
    nothing: dict[str, Any] = {name: [] for name in ("adversaries", "parties", "duels", "violations")}
    told = {"line": line, "catches": {}, "job_status": "settled", "false_head": False, "watched": True, "seconds": 1}
    told["faults"] = {}
    return nothing | told


@pytest.mark.slow
def test_a_crash_is_told_at_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(games, "play_json", failing)
    monkeypatch.setattr(games, "PRELOAD", ())
    assert simulate("--games", 2, "--processes", 1, "--mix", "honest", "--output", tmp_path) == 2
    out, err = capsys.readouterr()
    assert err.count("BROKEN PROMISE error: ValueError: no game") == 2
    assert "2 of 2 games broke a promise" in err
    assert out.count("v1 seed=0 game=") == 2
    assert (tmp_path / VIOLATIONS).read_text().count("# error: ValueError: no game") == 2
    monkeypatch.setattr(games, "play_json", playing)
    assert simulate("--games", 3, "--processes", 1, "--mix", "honest", "--output", tmp_path, "--resume") == 2
    out, err = capsys.readouterr()
    assert "2 of 3 games were played before" in err
    assert "3 games: 0 with one adversary, 0 with several, 1 with honest parties only\n2 could not be played; " in out


def test_list_shows_everyone(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--list") == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name}\n" in out for name in ADVERSARIES)
    assert out.count("hopes for: ") == out.count("ends: ") == len(ADVERSARIES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--replay", "v1 seed=7"), "ConfigurationError: expected game=NUMBER in the line"),
        (("--replay", "v1 seed=7 game=1 with=nobody"), "expected an adversary of the catalogue, got 'nobody'"),
        (("--replay", "v1 seed=7 game=1", "--list"), "expected --list or --replay, got both"),
        (("--mix", "nobody"), "expected an adversary of the catalogue, got 'nobody'"),
        (("--mix", "honest:0"), "expected a weight of 1...1000 after honest:, got '0'"),
        (("--games", "0"), "0 is not in the range"),
        (("--seed", "-1"), "-1 is not in the range"),
        (("--processes", "0"), "0 is not in the range"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert simulate(*arguments, "--output", tmp_path) == 1
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""
    assert "Traceback" not in err


def test_results_that_are_there_are_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / RECORDS).write_text("mine")
    assert simulate("--games", 1, "--mix", "honest", "--output", tmp_path) == 1
    assert "go on with it (--resume)?" in capsys.readouterr().err
    assert (tmp_path / RECORDS).read_text() == "mine"
