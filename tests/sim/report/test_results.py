"""A results file is other people's bytes: what is not as it should be is one clear line."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sim.games import players
from tests.sim.report import synthetic
from tiebreak.protocol.errors import ConfigurationError, EncodingError
from tiebreak.sim.games.line import GameLine
from tiebreak.sim.games.records import Head
from tiebreak.sim.games.summary import summarize
from tiebreak.sim.report import results, simulated
from tiebreak.sim.report.results import Results
from tiebreak.sim.report.simulate_shape import Simulate


def read(found: Any) -> Results:
    text = found if isinstance(found, str) else json.dumps(found)
    return Results("simulate.json", text.encode(), Simulate)


def changed(change: Callable[[Any], object]) -> Any:
    found = synthetic.simulate()
    change(found)
    return found


LABEL = ("adversaries", "poisoned-label")
WRONG = [
    (lambda f: f.update(version=2), r"#/version: .*1"),
    (lambda f: f.update(name="economics"), r"#/name"),
    (lambda f: f.pop("promises"), r"#/promises: Field required"),
    (lambda f: f["promises"].pop("undetected"), r"#/promises/undetected: Field required"),
    (lambda f: f["promises"].update(undetected="0"), r"#/promises/undetected: .*integer"),
    (lambda f: f["promises"].update(undetected=0.5), r"#/promises/undetected: .*integer"),
    (lambda f: f["promises"].update(undetected=True), r"#/promises/undetected: .*integer"),
    (lambda f: f["promises"].update(undetected=-1), r"#/promises/undetected: .*greater"),
    (lambda f: f.update(games=10**9), r"#/games: .*less"),
    (lambda f: f.update(games=10**4000), r"#/games"),
    (lambda f: f.update(environment={"x" * 81: "y"}), r"#/environment"),
    (lambda f: f.update(environment={"x": "y" * 2001}), r"#/environment/x"),
    (lambda f: f["adversaries"].update({"../../x": f["adversaries"]["two-heads"]}), r"#/adversaries"),
    (lambda f: f["adversaries"]["two-heads"]["caught"].update(elsewhere=None), r"#/adversaries/two-heads/caught"),
    (lambda f: f["adversaries"]["two-heads"]["summary"]["duels"]["gas"].update(median=1e99), r"/gas/median"),
    (
        lambda f: f["adversaries"]["two-heads"]["summary"]["duels"]["gas"].update(max=0),
        r"/gas: .*median is not between",
    ),
    (lambda f: f["adversaries"]["two-heads"]["summary"]["duels"]["gas"].update(bins=[]), r"/gas/bins"),
    (lambda f: f["adversaries"]["two-heads"]["summary"]["duels"]["gas"].update(bins=[[1, 2]]), r"/gas/bins/0"),
    (lambda f: f.update(violations=[{}] * 10_001), r"#/violations"),
]


@pytest.mark.parametrize(("change", "where"), WRONG)
def test_what_is_wrong_is_named_with_its_place(change: Callable[[Any], object], where: str) -> None:
    with pytest.raises(EncodingError, match=r"^expected another content of simulate\.json at #/") as caught:
        read(changed(change))
    assert re.search(where, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "1", "NaN", '{"games": Infinity}', "[" * 100_000,
        '{"games": ' + "9" * 5000 + "}", "\ufeff{}", '{"a": 1} trailing',
    ],
)  # fmt: skip
def test_what_is_no_results_file_at_all(text: str) -> None:
    with pytest.raises(EncodingError, match=r"^expected "):
        read(text)


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(EncodingError, match=r"expected another content of simulate\.json at #: "):
        Results("simulate.json", b'{"a": "\xff"}', Simulate)


def test_unknown_fields_are_left_alone() -> None:
    assert read(changed(lambda f: f.update(more={"x": [None]}))).number("games").value == 321


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"expected a results file at .*none\.json, got no such file"):
        Results.read(tmp_path / "none.json", Simulate)


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "simulate.json"
    path.write_text(json.dumps(synthetic.simulate()))
    size = path.stat().st_size
    monkeypatch.setattr(results, "MAX_BYTES", size)
    assert Results.read(path, Simulate).sha256
    monkeypatch.setattr(results, "MAX_BYTES", size - 1)
    with pytest.raises(EncodingError, match=f"expected at most {size - 1:,} bytes in simulate.json, got {size:,}"):
        Results.read(path, Simulate)


def test_what_is_not_there_is_none() -> None:
    found = read(synthetic.simulate())
    assert found.optional("adversaries", "two-heads", "caught", "nowhere") is None
    assert found.optional("honest", "duels", "rounds") is None
    games = found.optional("games")
    assert games is not None
    assert games.value == 321


def test_what_the_games_write_is_read() -> None:
    """The summary of played games, by the code that writes it."""
    records = [
        {"game": game, "line": line, "wall": 0.5, "result": players.result(line)}
        for game in range(12)
        for line in [str(GameLine(seed=7, game=game, adversaries=("poison",) * (game % 2)))]
    ]
    head = Head(seed=7, mix="all", environment={"cpu": "any"}, adversaries=players.ADVERSARIES)
    found = read(summarize(head, records))
    assert found.number("adversaries", "poison", "alone").value == 6
    assert {section.title for section in simulated.sections(found)} == {
        "Promises", "Who was caught where", "Disputes", "What each side pays", "To play again",
    }  # fmt: skip
