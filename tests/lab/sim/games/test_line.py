"""The line of a game: every game has one, and no other text stands for it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebreak.lab.sim.games import line
from tiebreak.protocol.commitments.terms import MAX_GAME_SECONDS, MAX_SECONDS
from tiebreak.protocol.errors import ConfigurationError

KNOWN = ("censoring-builder", "lazy-auditor", "poisoned-label", "silence-after-a-head")


def wei() -> st.SearchStrategy[int]:
    rounded = st.builds(lambda m, e: m * 10**e, st.integers(0, 500), st.integers(0, 18))
    return st.one_of(rounded, st.integers(0, line.MAX_WEI), st.just(10**18))


def seconds(least: int, most: int) -> st.SearchStrategy[int]:
    whole = st.builds(lambda n, unit: n * unit, st.integers(1, 30), st.sampled_from([1, 60, 3600, 86400]))
    return st.one_of(whole, st.integers(least, most))


GAMES = st.builds(
    line.GameLine, seed=st.integers(0, line.MAX_SEED), game=st.integers(0, line.MAX_GAME),
    adversaries=st.sets(st.sampled_from(KNOWN)).map(lambda names: tuple(sorted(names))),
    workshop=st.sampled_from(line.WORKSHOPS), auditors=st.integers(0, line.MAX_AUDITORS), levels=st.integers(1, 5),
    reward=wei(), trainer_stake=wei(), challenger_stake=wei(), window=seconds(1, MAX_SECONDS),
    clock=seconds(1, MAX_GAME_SECONDS // 4), replay=seconds(0, MAX_GAME_SECONDS // 12), rough=st.integers(0, 1),
)  # fmt: skip


@given(GAMES)
def test_a_game_line_round_trips_through_text(game: line.GameLine) -> None:
    assert line.GameLine.parse(str(game), KNOWN) == game


@given(GAMES, st.data())
def test_an_edited_line_never_means_the_same_game(game: line.GameLine, data: st.DataObject) -> None:
    """Any one edit gives no game, or another one; never a second spelling."""
    text = str(game)
    at = data.draw(st.integers(0, len(text)))
    inserted = data.draw(st.text(st.sampled_from(" 019=,-ev+hms\n\x660"), max_size=2))
    changed = text[:at] + inserted + text[at + data.draw(st.integers(0, 2)) :]
    try:
        found = line.GameLine.parse(changed, KNOWN)
    except ConfigurationError:
        return
    assert (found == game) == (changed == text)


def test_a_line_omits_defaults_and_accepts_unit_suffixes() -> None:
    assert str(line.GameLine(seed=7, game=123)) == "v1 seed=7 game=123"
    text = "v1 seed=7 game=123 with=lazy-auditor,poisoned-label workshop=logged auditors=3 levels=5 " + (
        "reward=15e17 trainer-stake=1001 challenger-stake=0 window=3d clock=90m replay=1s"
    )
    assert line.GameLine.parse(text, KNOWN) == line.GameLine(
        seed=7, game=123, adversaries=("lazy-auditor", "poisoned-label"), workshop="logged", auditors=3, levels=5,
        reward=15 * 10**17, trainer_stake=1001, challenger_stake=0, window=3 * 86400, clock=5400, replay=1,
    )  # fmt: skip


def test_defaults_and_fields_are_pinned_to_the_line_version() -> None:
    """Kept lines mean what they meant: another usual value is another version."""
    assert line.USUAL == {
        "adversaries": (), "workshop": "exact", "auditors": 1, "levels": 4, "reward": 10**19,
        "trainer_stake": 4 * 10**19 + 1, "challenger_stake": 4 * 10**18, "window": 3600, "clock": 1800, "replay": 600,
        "talk": 0, "seats": 0, "rough": 0,
    }  # fmt: skip
    assert list(line.FIELDS) == [
        "seed", "game", "with", "workshop", "auditors", "levels", "reward", "trainer-stake", "challenger-stake",
        "window", "clock", "replay", "talk", "seats", "rough",
    ]  # fmt: skip


BROKEN = [
    ("", "expected a line that starts with v1"),
    ("v2 seed=7 game=1", "expected a line that starts with v1"),
    ("v1", "expected seed=NUMBER"),
    ("v1 seed=7", "expected game=NUMBER"),
    ("v1 game=1 seed=7", "the one way to write this game, 'v1 seed=7 game=1'"),
    ("v1  seed=7 game=1", "expected KEY=VALUE"),
    ("v1 seed=07 game=1", "expected seed=0"),
    ("v1 seed=\u0667 game=1", "expected seed=0"),
    ("v1 seed=9223372036854775808 game=1", "expected seed=0...9223372036854775807, got '9223372036854775808'"),
    ("v1 seed=7 seed=7 game=1", "expected seed once, got it twice"),
    ("v1 seed=7 game=1 colour=red", "with a key of seed, game, with, workshop"),
    ("v1 seed=7 game=1 levels=4", "the one way to write this game, 'v1 seed=7 game=1'"),
    ("v1 seed=7 game=1 levels=6", "expected levels=1...5, got '6'"),
    ("v1 seed=7 game=1 workshop=garage", "expected workshop=exact or logged or rollouts, got 'garage'"),
    (
        "v1 seed=7 game=1 with=poisoned-labels",
        "got 'poisoned-labels' (did you mean poisoned-label?); there are: censor",
    ),
    ("v1 seed=7 game=1 with=", "expected with=ADVERSARY"),
    ("v1 seed=7 game=1 with=poisoned-label,lazy-auditor", "in alphabetical order"),
    ("v1 seed=7 game=1 reward=10e18", "the one way to write this game, 'v1 seed=7 game=1'"),
    ("v1 seed=7 game=1 reward=2000", "reward=2e3"),
    ("v1 seed=7 game=1 reward=1e99", "expected reward=0...5e20"),
    ("v1 seed=7 game=1 clock=120m", "clock=2h"),
    ("v1 seed=7 game=1 clock=60", "expected clock=1s...8388608s"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_a_malformed_line_is_refused_with_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)) as caught:
        line.GameLine.parse(text, KNOWN)
    assert len(str(caught.value)) < 400


def test_a_game_out_of_range_cannot_be_made() -> None:
    with pytest.raises(ConfigurationError, match=r"expected levels=1\.\.\.5, got '0'"):
        line.GameLine(seed=1, game=1, levels=0)
    with pytest.raises(ConfigurationError, match="expected with="):
        line.GameLine(seed=1, game=1, adversaries=("b", "a"))


def test_choices_follow_from_seed_game_and_purpose_alone() -> None:
    """A game that is changed in one respect keeps its keys and the choices of its adversaries."""
    game, other = line.GameLine(seed=7, game=1), line.GameLine(seed=7, game=1, levels=5, adversaries=("lazy-auditor",))
    assert game.random("keys").random() == other.random("keys").random()
    streams = [game.random("keys"), game.random("x"), line.GameLine(seed=7, game=2).random("keys")]
    streams.append(line.GameLine(seed=8, game=1).random("keys"))
    assert len({stream.random() for stream in streams}) == len(streams)
    # Pinned: lines that were kept are to play the same game in years.
    assert game.random("keys").getrandbits(64) == 18336001741783926186
