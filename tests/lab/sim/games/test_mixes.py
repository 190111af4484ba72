"""Which games a seed deals: the same to everyone, with nobody left to chance."""

from collections import Counter
from dataclasses import replace

import pytest

from tiebreak.lab.sim.games.line import GameLine
from tiebreak.lab.sim.games.mixes import Mix, Repertoire
from tiebreak.protocol.errors import ConfigurationError

BOTH = ("exact", "logged")
HAND = Repertoire(
    workshops={"bad-log": ("logged",), "censor": BOTH, "hole": BOTH, "lazy": BOTH, "poison": ("exact",), "stall": BOTH},
    singles=("bad-log", "censor", "lazy", "poison", "stall"),
    pairs=[("censor", "poison"), ("lazy", "stall"), ("bad-log", "censor")],
)


def dealt(text: str, games: int, seed: int = 7) -> list[GameLine]:
    mix = Mix.parse(text, HAND)
    return [mix.deal(seed, game, HAND) for game in range(games)]


def test_a_deal_depends_on_seed_and_number_alone() -> None:
    mix = Mix.parse("all", HAND)
    once = dealt("all", 40)
    assert [mix.deal(7, game, HAND) for game in reversed(range(40))] == once[::-1]
    assert dealt("all", 40, seed=8) != once
    assert all(GameLine.parse(str(line), HAND.workshops) == line for line in once)
    assert [line.game for line in once] == list(range(40))


def test_a_mix_keeps_its_proportions_in_every_round() -> None:
    for start in (0, 10, 20):
        sizes = Counter(len(line.adversaries) for line in dealt("all", start + 10)[start:])
        assert sizes == {1: 6, 2: 3, 0: 1}


def test_everyone_is_dealt_once_before_anyone_is_dealt_twice() -> None:
    """20 rounds of 3 games: 60 singles are 12 of each; no matter where a round ends."""
    singles = [line.adversaries[0] for line in dealt("honest,singles:3", 80) if line.adversaries]
    for start in range(0, 60, 5):
        assert sorted(singles[start : start + 5]) == sorted(HAND.singles)
    pairs = [line.adversaries for line in dealt("pairs", 6)]
    assert sorted(pairs) == sorted([tuple(sorted(pair)) for pair in HAND.pairs] * 2)


def test_a_mix_accepts_adversary_names_and_weights() -> None:
    lines = dealt("stall:2,poison+censor:3", 50)
    assert Counter(line.adversaries for line in lines) == {("stall",): 20, ("censor", "poison"): 30}
    assert str(Mix.parse("stall:2,honest", HAND)) == "stall:2,honest:1"
    assert Mix.parse(str(Mix.parse("all", HAND)), HAND) == Mix.parse("all", HAND)


def test_rough_weather_changes_nothing_else() -> None:
    rough = Mix.parse("all", HAND, rough=True)
    assert str(rough) == f"{Mix.parse('all', HAND)} in rough weather"
    for game, calm in enumerate(dealt("all", 40)):
        assert rough.deal(7, game, HAND) == replace(calm, rough=1)


def test_games_get_a_workshop_that_their_adversaries_support() -> None:
    lines = dealt("all", 400)
    assert {line.workshop for line in lines if "bad-log" in line.adversaries} == {"logged"}
    assert {line.workshop for line in lines if "poison" in line.adversaries} == {"exact"}
    assert {line.workshop for line in lines if not line.adversaries} == set(BOTH)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected an adversary of the catalogue, got ''"),
        ("nobody", "got 'nobody'; there are: bad-log, censor"),
        ("stall+nobody", "got 'nobody'"),
        ("stall:0", "expected a weight of 1...1000 after stall:, got '0'"),
        ("stall:1001", "got '1001'"),
        ("stall:", "got ''"),
        ("stall:x", "got 'x'"),
        ("stall,stall:2", "each part of a mix once"),
        ("all,stall", "got 'all'"),
    ],
)
def test_a_malformed_mix_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Mix.parse(text, HAND)
    assert message in str(caught.value)


def test_adversaries_without_a_common_workshop_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected adversaries who can play in one workshop, got bad-log and"):
        dealt("poison+bad-log", 1)


def test_a_mix_part_without_any_adversary_is_refused() -> None:
    mix = Mix.parse("pairs", HAND)
    with pytest.raises(ConfigurationError, match="expected a catalogue with pairs, got one without"):
        mix.deal(7, 0, Repertoire(workshops=HAND.workshops, singles=HAND.singles, pairs=()))
