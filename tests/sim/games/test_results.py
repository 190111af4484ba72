"""The committed games: enough of them, of everyone, and no promise broken. `make bench-simulate` plays them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.source_tree import ROOT
from tiebreak.sim.games.line import GameLine
from tiebreak.sim.games.playing import ADVERSARIES, CAUGHT
from tiebreak.sim.games.series import to_text
from tiebreak.sim.games.summary import to_markdown

PATH = ROOT / "benchmarks" / "results" / "simulate.json"


@pytest.fixture(scope="module")
def summary() -> Any:
    return json.loads(PATH.read_text())


def test_no_promise_was_broken_in_any_game(summary: Any) -> None:
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


def test_everyone_took_part_and_ended_where_it_must(summary: Any, cases: Callable[[], None]) -> None:
    assert set(summary["adversaries"]) == set(ADVERSARIES)
    for name in CAUGHT:
        found = summary["adversaries"][name]
        assert found["alone"] >= 3, name
        assert sum(found["caught"].values()) == found["games"], name
        assert set(found["where"]) & set(found["caught"]), name
        assert GameLine.parse(found["first"], ADVERSARIES).adversaries == (name,)
        cases()


def test_it_is_small_and_as_it_is_written(summary: Any) -> None:
    assert PATH.stat().st_size < 130_000
    assert PATH.read_text() == to_text(summary)
    assert (ROOT / "docs" / "simulation.md").read_text() == to_markdown(summary)
