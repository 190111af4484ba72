"""`tiebreak simulate`: games from the command line, and what it says and returns."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tiebreak.parties import Commands
from tiebreak.lab.commands.simulate import PromiseBroken
from tiebreak.lab.sim.games import playing as games
from tiebreak.lab.sim.games.playing import ADVERSARIES, play_line
from tiebreak.lab.sim.games.series import RECORDS, SUMMARY, VIOLATIONS, read
from tiebreak.lab.sim.games.summary import PAGE, summarize, to_markdown
from tiebreak.protocol.errors import VerificationError

Simulate = Callable[..., tuple[str, str]]


@pytest.fixture
def simulate(command: Commands) -> Simulate:
    return lambda *arguments, code=0: command.printed("simulate", *arguments, code=code)


@pytest.mark.slow
def test_simulate_writes_records_and_summary_of_games_on_two_processes(tmp_path: Path, simulate: Simulate) -> None:
    """Real games on two processes; they are what one process plays, and what the summary says."""
    out, err = simulate("--games", 6, "--seed", 11, "--processes", 2, "--output", tmp_path)
    assert "6 games: " in out
    assert "0 of them were paid\nhonest parties lost a stake in 0 games, 0 games broke a promise\n" in out
    assert (tmp_path / PAGE).read_text() == to_markdown(json.loads((tmp_path / SUMMARY).read_text()))
    assert "game 6 of 6, " in err
    head, records = read(tmp_path / RECORDS)
    assert len(records) == 6
    assert json.loads((tmp_path / SUMMARY).read_text()) == summarize(head, records)
    for record in sorted(records, key=lambda record: record["wall"])[:2]:
        assert json.loads(json.dumps(play_line(record["line"]).to_json())) == record["result"]


@pytest.mark.slow
def test_simulate_plays_in_the_workshop_of_your_choice(tmp_path: Path, simulate: Simulate) -> None:
    out, _ = simulate("-n", 3, "-m", "forged-token:2,honest", "-w", "rollouts", "-j", 1, "-o", tmp_path)
    assert "2 false heads were watched by an auditor, 0 of them were paid" in out
    head, records = read(tmp_path / RECORDS)
    assert head.mix == "forged-token:2,honest:1 in workshop rollouts"
    assert all(" workshop=rollouts " in record["line"] for record in records)
    ends = [end for record in records for end in record["result"]["catches"].values()]
    assert ends == ["nonfinite"] * 2
    refused, error = simulate("-n", 3, "-m", "forged-token", "-o", tmp_path / "other", code=1)
    assert "expected an adversary of the catalogue, got 'forged-token'" in refused + error


def test_replay_prints_the_events_and_ending_of_a_game(simulate: Simulate) -> None:
    out, _ = simulate("--replay", "v1 seed=7 game=1")
    assert out.startswith("v1 seed=7 game=1\n")
    assert "trainer accepts the job and pays its stake" in out
    assert "the job: settled" in out
    assert out.endswith("no promise was broken\n")


def test_a_broken_promise_is_exit_code_2(monkeypatch: pytest.MonkeyPatch, simulate: Simulate) -> None:
    """No promise is broken that we know of, so this one is made up."""
    real = games.watch_line

    def broken(line: str) -> Any:
        world, result = real(line)
        return world, type(result)(
            **{name: getattr(result, name) for name in result.__slots__} | {"violations": ("9: x",)}
        )

    monkeypatch.setattr(games, "watch_line", broken)
    out, err = simulate("--replay", "v1 seed=7 game=1", code=2)
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
def test_a_crashed_game_is_reported_at_once_and_kept_in_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulate: Simulate
) -> None:
    monkeypatch.setattr(games, "play_json", failing)
    monkeypatch.setattr(games, "PRELOAD", ())
    few = ["--processes", 1, "--mix", "honest", "--output", tmp_path]
    out, err = simulate("--games", 2, *few, code=2)
    assert err.count("BROKEN PROMISE error: ValueError: no game") == 2
    assert "2 of 2 games broke a promise" in err
    assert out.count("v1 seed=0 game=") == 2
    assert (tmp_path / VIOLATIONS).read_text().count("# error: ValueError: no game") == 2
    monkeypatch.setattr(games, "play_json", playing)
    out, err = simulate("--games", 3, *few, "--resume", code=2)
    assert "2 of 3 games were played before" in err
    assert "3 games: 0 with one adversary, 0 with several, 1 with honest parties only\n2 could not be played; " in out


def test_list_shows_every_adversary(simulate: Simulate) -> None:
    out, _ = simulate("--list")
    assert all(f"\n  {name}\n" in out for name in ADVERSARIES)
    assert out.count("hopes for: ") == out.count("ends: ") == len(ADVERSARIES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--replay", "v1 seed=7"), "ConfigurationError: expected game=NUMBER in the line"),
        (("--replay", "v1 seed=7 game=1", "--list"), "expected --list or --replay, got both"),
        (("--mix", "nobody"), "expected an adversary of the catalogue, got 'nobody'"),
        (("--games", "0"), "0 is not in the range"),
    ],
)
def test_simulate_reports_wrong_options_in_one_line(
    arguments: tuple[str, ...], message: str, simulate: Simulate, tmp_path: Path
) -> None:
    out, err = simulate(*arguments, "--output", tmp_path, code=1)
    assert message in err
    assert out == ""
    assert "Traceback" not in err
