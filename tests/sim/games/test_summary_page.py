"""The page that `tiebreak simulate` writes beside its summary."""

from typing import Any

from tests.sim.games.players import ADVERSARIES, duel, party, result
from tiebreak.sim.adversaries.base import Catch, Role
from tiebreak.sim.games.line import GameLine
from tiebreak.sim.games.records import GamesHeader
from tiebreak.sim.games.summary import ENDINGS, ROLES, summarize, table, to_markdown


def page(*changes: dict[str, Any]) -> str:
    records = []
    for game, change in enumerate(changes):
        line = str(GameLine(seed=7, game=game, adversaries=change.pop("names", ())))
        records.append({"game": game, "line": line, "wall": 0.5, "result": result(line, **change)})
    return to_markdown(summarize(GamesHeader(seed=7, mix="all", environment={}, adversaries=ADVERSARIES), records))


def test_the_page_tells_endings_disputes_and_money() -> None:
    parties = [party("trainer", "trainer", "poison", wei=-(10**18), gas=7), party("auditor", "auditor", None, wei=0)]
    text = page(
        {}, {"names": ("poison",), "parties": parties, "duels": [duel(moves=1234, gas=5, bytes=6, seconds=120)]}
    )
    assert "2 games of seed 7 and mix `all`: 1 with one adversary, 0 with several, 1 with honest parties" in text
    assert "In 1 games a trainer signed a false head while an auditor was watching; in 0 of them it was paid." in text
    assert "| poison | trainer | work not done | 1 | recomputed 1 |" in text
    assert "| poison | 1 | 1,234 | 1,234 | 5 | 5 | 6 | 2 | 2 |" in text
    assert "| poison | -1 | 7 | – | – | 0 | 1,000 |" in text
    assert "| poison | `v1 seed=7 game=1 with=poison` |" in text
    assert "### Broken promises" not in text


def test_a_broken_promise_stands_in_front_with_its_line() -> None:
    text = page({"names": ("poison",), "violations": ["2: the | cheat\nwas paid"]})
    assert text.index("### Broken promises") < text.index("## Where each adversary ended")
    assert "| 0 | 2: the \\| cheat was paid | `v1 seed=7 game=0 with=poison` |" in text


def test_every_ending_and_role_is_explained() -> None:
    assert {str(catch.value) for catch in Catch} <= set(ENDINGS)
    assert {role.value for role in Role} == set(ROLES)


def test_columns_of_numbers_stand_to_the_right() -> None:
    assert table(("a", "b"), [("x", 1000)]) == "| a | b |\n| --- | ---: |\n| x | 1,000 |"
    assert table(("a",), []) == "| a |\n| --- |"
