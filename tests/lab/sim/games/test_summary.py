"""The summary of games whose numbers are known, and the page that `tiebreak simulate` writes beside it."""

import json
from typing import Any

from tests.lab.sim.games.players import ADVERSARIES, duel, party, result
from tiebreak.lab.sim.adversaries.base import Catch, Role
from tiebreak.lab.sim.games.line import GameLine
from tiebreak.lab.sim.games.summary import (
    ENDINGS,
    ROLES,
    GamesHeader,
    honest_slashed,
    median,
    summarize,
    to_markdown,
    undetected,
)

HEAD = GamesHeader(seed=7, mix="all", environment={"cpu": "any"}, adversaries=ADVERSARIES)


def record(game: int, *names: str, **changes: Any) -> dict[str, Any]:
    line = str(GameLine(seed=7, game=game, adversaries=names))
    return {"game": game, "line": line, "wall": 0.5, "result": result(line, **changes)}


def test_a_summary_counts_games_promises_endings_and_disputes() -> None:
    broken = {"game": 9, "line": "v1 seed=7 game=9", "wall": 1.5, "error": "ValueError: x", "traceback": "..."}
    records = [
        record(0),
        record(1, "poison", seconds=10, duels=[duel(rounds=3, gas=5), duel(rounds=5, gas=9)]),
        record(2, "poison", seconds=30, violations=["2: the cheat was paid"], job_status="settled", catches={}),
        record(3, "poison", "slow", seconds=10**9),
        record(4, "slow", watched=False, job_status="settled", catches={"slow": "timeout"}),
        broken,
    ]
    summary = summarize(HEAD, records)
    assert summary["games"] == 6
    assert summary["errors"] == 1
    assert summary["played"] == {"alone": 3, "together": 1, "honest": 1}
    assert summary["promises"] == {
        "false_heads": 4, "unwatched": 1, "undetected": 1, "honest_slashed": 0, "broken": 2
    }  # fmt: skip
    assert summary["violations"] == [
        {"game": 2, "line": "v1 seed=7 game=2 with=poison", "violation": "2: the cheat was paid"},
        {"game": 9, "line": "v1 seed=7 game=9", "violation": "error: ValueError: x"},
    ]
    assert summary["speed"]["games_per_hour"] == round(3600 / (4.0 / 6))
    poison = summary["adversaries"]["poison"]
    assert (poison["games"], poison["alone"], poison["caught"]) == (3, 2, {"recomputed": 2})
    assert poison["where"] == ["recomputed"]
    assert poison["summary"]["duels"]["gas"] == {"median": 9, "max": 10**6}
    assert poison["summary"]["duels"]["count"] == 3
    assert summary["adversaries"]["slow"]["caught"] == {"recomputed": 1, "timeout": 1}
    assert summary["adversaries"]["dying"]["summary"]["duels"]["gas"] is None
    assert summary["honest"]["duels"]["count"] == 0
    assert poison["first"] == "v1 seed=7 game=1 with=poison"
    assert summary["adversaries"]["dying"]["first"] is None
    assert {name: story["duels"]["count"] for name, story in summary["levels"].items()} == {"4": 5}
    assert summary["notable"]["most disputes"] == "v1 seed=7 game=1 with=poison"
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_gain_and_gas_are_averaged_by_role_and_honesty() -> None:
    parties = [
        party("trainer", "trainer", "poison", wei=-100, gas=7),
        party("auditor", "auditor", None, wei=50),
        party("second", "auditor", None, wei=0),
        party("builder", "builder", None),
    ]
    summary = summarize(HEAD, [record(1, "poison", parties=parties)])["adversaries"]["poison"]["summary"]
    assert summary["dishonest"] == {"trainer": {"wei": -100, "gas": 7}}
    assert summary["honest"] == {"auditor": {"wei": 25, "gas": 1000}}


def test_an_honest_loser_is_counted() -> None:
    honest_trainer = [party("trainer", "trainer", None), party("auditor", "auditor", "poison")]
    cheating_trainer = [party("trainer", "trainer", "poison"), party("auditor", "auditor", None)]
    lost = [duel(verdict="trainer")]
    assert honest_slashed(result("v1 seed=7 game=1", parties=honest_trainer, job_status="slashed"))
    assert not honest_slashed(result("v1 seed=7 game=1", parties=honest_trainer, duels=lost))
    assert not honest_slashed(result("v1 seed=7 game=1", parties=cheating_trainer, job_status="slashed"))
    assert honest_slashed(result("v1 seed=7 game=1", parties=cheating_trainer, duels=lost))


def test_a_cheat_is_undetected_if_it_was_watched_and_paid() -> None:
    line = "v1 seed=7 game=1 with=poison"
    assert undetected(result(line, violations=["1: one lost", "2: a false head was watched, and a job was settled"]))
    assert not undetected(result(line, violations=["1: one lost"]))
    assert not undetected(result(line, job_status="abandoned"))
    assert not undetected(result("v1 seed=7 game=1"))


def test_a_median_of_wei_is_exact() -> None:
    amounts = [4 * 10**19 + 1, 4 * 10**19 + 3]
    assert median(amounts) == 4 * 10**19 + 2
    assert median([1, 2]) == 1.5


def page(*changes: dict[str, Any]) -> str:
    records = [record(game, *change.pop("names", ()), **change) for game, change in enumerate(changes)]
    return to_markdown(summarize(HEAD, records))


def test_a_broken_promise_stands_in_front_with_its_line() -> None:
    text = page({"names": ("poison",), "violations": ["2: the | cheat\nwas paid"]})
    assert text.index("### Broken promises") < text.index("## Where each adversary ended")
    assert "| 0 | 2: the \\| cheat was paid | `v1 seed=7 game=0 with=poison` |" in text


def test_every_ending_and_role_is_explained() -> None:
    assert {str(catch.value) for catch in Catch} <= set(ENDINGS)
    assert {role.value for role in Role} == set(ROLES)
