"""A series of games in a folder: what is in it follows from seed and mix, whoever played it in how many sittings."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.sim.counterexamples.keep import load
from tests.lab.sim.games.players import ADVERSARIES, play
from tiebreak.lab.sim.games.mixes import Mix, Repertoire
from tiebreak.lab.sim.games.runner import Json
from tiebreak.lab.sim.games.series import RECORDS, SUMMARY, VIOLATIONS, Series, read, write_summary
from tiebreak.lab.sim.games.summary import GamesHeader, summarize
from tiebreak.protocol.errors import ConfigurationError

pytestmark = pytest.mark.slow

PLAYERS = Repertoire(
    workshops=dict.fromkeys(ADVERSARIES, ("exact",)), singles=("poison", "slow"), pairs=[("poison", "slow")]
)


def series(mix: str = "all", games: int = 20, player: Callable[[str], Json] = play) -> Series:
    dealt = Mix.parse(mix, PLAYERS)
    head = GamesHeader(seed=7, mix=str(dealt), environment={"cpu": "any"}, adversaries=ADVERSARIES)
    return Series(head=head, mix=dealt, repertoire=PLAYERS, games=games, play=player)


def test_a_summary_can_be_rebuilt_from_the_records_of_its_folder(tmp_path: Path) -> None:
    summary = series().run(tmp_path, processes=2, resume=False)
    assert summary["games"] == 20
    assert summary["played"] == {"alone": 12, "together": 6, "honest": 2}
    assert json.loads((tmp_path / SUMMARY).read_text()) == summary == summarize(*read(tmp_path / RECORDS))
    written = (tmp_path / SUMMARY).read_bytes()
    (tmp_path / SUMMARY).unlink()
    assert write_summary(tmp_path) == summary
    assert (tmp_path / SUMMARY).read_bytes() == written
    assert not (tmp_path / VIOLATIONS).exists()


def test_games_that_break_a_promise_are_saved_as_lines(tmp_path: Path) -> None:
    summary = series("breaking:1,honest:1", games=4).run(tmp_path, processes=1, resume=False)
    assert summary["promises"]["broken"] == summary["errors"] == 2
    kept = load(tmp_path / VIOLATIONS)
    assert [example.line for example in kept] == [violation["line"] for violation in summary["violations"]]
    assert {example.cause for example in kept} == {"error: ValueError: expected a game, got none"}


def test_resume_refuses_games_dealt_from_another_catalogue(tmp_path: Path) -> None:
    """An example is a catalogue that had other adversaries."""
    series().run(tmp_path, processes=1, resume=False)
    more = replace(PLAYERS, singles=("dying", "poison", "slow"))
    changed = replace(series(), repertoire=more)
    with pytest.raises(ConfigurationError, match=r"expected game \d+ of .* as it is dealt now, got"):
        changed.run(tmp_path, processes=1, resume=True)
