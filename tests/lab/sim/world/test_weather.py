"""Rough weather: what it may cost, that it strikes, and that journals are what the parties come through it with."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebreak.lab.sim.games.playing import play_line, watch_line
from tiebreak.lab.sim.world import weather
from tiebreak.lab.sim.world.agents import Agent
from tiebreak.lab.sim.world.weather import LATEST, READ_AGAIN, Weather

SETTLED = "v1 seed=5 game={} window=1d clock=6h talk=1h rough=1"
SLASHED = "v1 seed=5 game={} with=one-false-sum window=1d clock=6h talk=1h rough=1"
KINDS = {
    "posts lost", "posts late", "posts doubled", "transactions lost", "transactions late", "restarts", "reorganisations"
}  # fmt: skip
BLOCK = 12


@given(st.integers(0, 2**32), st.integers(0, 5000), st.integers(0, 3))
def test_rough_weather_delays_a_party_no_longer_than_its_budget(seed: int, seconds: int, depth: int) -> None:
    found, spent = Weather(Random(seed), seconds=seconds, depth=depth), Counter[str]()
    rng = Random(seed + 1)
    for _ in range(200):
        party, lost = rng.choice("abc"), rng.randrange(400)
        spent[party] += found.transaction(party, BLOCK)
        if death := found.death(party, 5, lost):
            assert 0 <= death[0] <= 5
            spent[party] += death[1] + lost
        vanished = found.vanishing(BLOCK)
        assert 0 <= vanished <= depth
        for each in "abc":
            spent[each] += 2 * (vanished + 1) * BLOCK if vanished else 0
            assert spent[each] <= seconds


def test_lost_posts_do_not_lose_reads() -> None:
    found = Weather(Random(1), seconds=1, depth=0)
    posts = [found.posts() for _ in range(1000)]
    assert {len(copies) for copies in posts} == {0, 1, 2, 3}
    assert all(0 <= late < LATEST for copies in posts for late in copies)
    readings = [found.readings() for _ in range(1000)]
    assert min(map(len, readings)) == 1
    assert max(min(late) for late in readings) >= READ_AGAIN
    # A builder that takes all of a party's time leaves none for the weather.
    assert {tuple(Weather(Random(k), seconds=0, depth=0).readings()) for k in range(100)} == {(0,)}


def test_the_same_line_gives_the_same_faults() -> None:
    world, once = watch_line(SLASHED.format(1))
    assert play_line(SLASHED.format(1)) == once
    assert once.faults
    assert once.faults["restarts"] > 0
    assert once.violations == ()
    calm = play_line(SLASHED.format(1).removesuffix(" rough=1"))
    assert calm.faults == {}
    assert (calm.catches, calm.job_status) == (once.catches, once.job_status)
    assert world.weather is not None


@pytest.mark.slow
def test_every_fault_strikes_and_every_kind_of_party_dies() -> None:
    faults, died = Counter[str](), Counter[str]()
    for game in range(8):
        for line in (SETTLED, SLASHED):
            world, result = watch_line(line.format(game))
            assert result.violations == ()
            assert result.job_status == ("settled" if line == SETTLED else "slashed")
            faults += Counter(result.faults)
            for agent in world.parties.values():
                assert isinstance(agent, Agent)
                died[agent.ROLE] += agent.lives - 1
    assert set(faults) == KINDS
    assert min(died[role] for role in ("client", "trainer", "auditor")) >= 5, died
    assert died["builder"] == 0


@pytest.mark.slow
def test_without_its_journal_a_party_breaks_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes down again what it had written, as the games' eighth promise sees."""
    monkeypatch.setattr(Agent, "journal", lambda _: [])
    games = [line.format(game) for line in (SETTLED, SLASHED) for game in range(4)]
    assert any(play_line(line).violations for line in games)


@pytest.mark.slow
def test_more_than_the_clocks_can_bear_breaks_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the bound on what the weather may cost is not what keeps the games quiet."""
    monkeypatch.setattr(Weather, "_spend", lambda *_: True)
    monkeypatch.setattr(weather, "DOWN", (6 * 3600,))
    assert any(play_line(SLASHED.format(game)).violations for game in range(4))
