"""The committed games: enough of them, of everyone, and no promise broken. `make bench-simulate` plays them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.simulate import LINK, PAGE, TABLES
from tests.source_tree import ROOT
from tiebreak.lab.sim.adversaries import rollouts
from tiebreak.lab.sim.games.line import GameLine, slug
from tiebreak.lab.sim.games.playing import ADVERSARIES
from tiebreak.lab.sim.games.series import to_text
from tiebreak.lab.sim.games.summary import to_markdown

PATH, ROUGH = (ROOT / "benchmarks" / "results" / f"{name}.json" for name in ("simulate", "rough"))


USUAL = set(ADVERSARIES) - {slug(kind.name) for kind in rollouts.ADVERSARIES}
"""All that play outside the workshop of rollouts."""


@pytest.fixture(scope="module")
def summary() -> Any:
    return json.loads(PATH.read_text())


@pytest.fixture(scope="module")
def rough() -> Any:
    return json.loads(ROUGH.read_text())


@pytest.mark.parametrize("series", ["summary", "rough"])
def test_no_promise_was_broken_in_any_game(series: str, request: pytest.FixtureRequest) -> None:
    summary = request.getfixturevalue(series)
    assert summary["games"] >= 1000
    assert summary["promises"] == {
        "false_heads": summary["promises"]["false_heads"],
        "unwatched": summary["promises"]["unwatched"],
        "undetected": 0,
        "honest_slashed": 0,
        "broken": 0,
    }
    assert summary["violations"] == []
    assert summary["errors"] == 0
    assert summary["promises"]["false_heads"] > summary["games"] // 3
    assert sum(summary["played"].values()) == summary["games"]


def test_committed_games_catch_every_adversary_as_expected(summary: Any, cases: Callable[[], None]) -> None:
    assert set(summary["adversaries"]) == USUAL
    for name in USUAL:
        found = summary["adversaries"][name]
        assert found["alone"] >= 3, name
        assert sum(found["caught"].values()) == found["games"], name
        assert set(found["where"]) & set(found["caught"]), name
        assert GameLine.parse(found["first"], ADVERSARIES).adversaries == (name,)
        cases()


def test_rough_weather_games_include_every_fault_and_adversary(rough: Any) -> None:
    assert rough["mix"].endswith("in rough weather")
    assert set(rough["faults"]) == {
        "posts lost", "posts late", "posts doubled", "transactions lost", "transactions late", "restarts",
        "reorganisations",
    }  # fmt: skip
    assert min(rough["faults"].values()) >= rough["games"] // 4
    assert rough["faults"]["restarts"] >= 2 * rough["games"]
    assert all(rough["adversaries"][name]["games"] for name in USUAL)


def test_committed_results_are_small_and_match_their_tables(summary: Any, rough: Any) -> None:
    for path, found in ((PATH, summary), (ROUGH, rough)):
        assert path.stat().st_size < 130_000
        assert path.read_text() == to_text(found)
    assert TABLES.read_text() == to_markdown(summary, rough)
    assert (page := PAGE.read_text()) == to_markdown(summary, rough, details=LINK)
    assert len(page.splitlines()) <= 60
