"""The closed forms against the board's rules, story by story."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.incentives.rules import (
    SYBIL,
    TRAINER,
    Ledger,
    Players,
    Story,
    expected_auditor,
    expected_trainer,
    play,
    stories,
)
from tiebreak.protocol.errors import ConfigurationError, StateError
from tiebreak.sim.incentives.economics import CHEATS, Auditor, JobEconomics, Trainer, TransactionCosts
from tiebreak.sim.incentives.model import auditor_payoff, best_cheat, extremes, trainer_payoff


def draw(s: JobEconomics, players: Players, rng: Random, *, decoy: bool = False) -> Story:
    """One story at random: auditors draw segments one by one."""
    lie = decoy or players.trainer is not Trainer.HONEST
    audited, finders, bought, trusted = [], [], [], []
    for number in range(s.auditors):
        if _happens(rng, players.bought(s, number)):
            bought.append(number)
            continue
        stranger = 1 - players.bought(s, number)
        if not _happens(rng, players.chance(s, number) / stranger):
            continue
        if _happens(rng, players.trusts(s, number)):
            trusted.append(number)
            continue
        audited.append(number)
        if lie and any(segment < s.tampered for segment in rng.sample(range(s.segments), s.sampled)):
            finders.append(number)
    rng.shuffle(finders)
    return Story(
        decoy=decoy, audited=tuple(audited), finders=tuple(finders), bought=tuple(bought), trusted=tuple(trusted)
    )


def _happens(rng: Random, probability: Fraction) -> bool:
    return rng.randrange(probability.denominator) < probability.numerator


amounts = st.integers(0, 10**6)
shares = st.fractions(0, 1, max_denominator=12)


@st.composite
def settings_of_jobs(draw: st.DrawFn) -> JobEconomics:
    segments = draw(st.integers(1, 5))
    challenge = draw(st.integers(0, 500))
    seated = draw(st.booleans())
    return JobEconomics(
        reward=draw(amounts),
        trainer_stake=draw(amounts),
        challenger_stake=draw(amounts),
        training=draw(amounts),
        audit=draw(amounts),
        lie=draw(amounts),
        kept=draw(shares),
        segments=segments,
        tampered=draw(st.integers(1, segments)),
        sampled=segments if seated else draw(st.integers(1, segments)),
        whole_first=draw(st.booleans()),
        auditors=draw(st.integers(1, 3)),
        audit_probability=draw(shares),
        fee=draw(amounts),
        proven=draw(st.booleans()),
        planted=draw(shares) * (not seated),
        seated=seated,
        bond=draw(amounts),
        bought=draw(shares) * seated,
        trusting=draw(shares) * seated,
        rate=Fraction(draw(st.integers(0, 100)), 10**9),
        job_seconds=draw(st.integers(0, 10**6)),
        game_seconds=draw(st.integers(0, 10**6)),
        burn=draw(shares),
        challenge_burn=draw(shares),
        oldest_paid=draw(st.booleans()),
        costs=TransactionCosts(
            way=draw(st.integers(0, 500)),
            settle=draw(st.integers(0, 500)),
            withdraw=draw(st.integers(0, 500)),
            challenge=challenge,
            reclaim=draw(st.integers(0, 500)),
            concede=draw(st.integers(0, 500)),
            equivocation=draw(st.integers(0, 500)),
            defence=draw(st.integers(0, 5000)),
            prosecution=challenge + draw(st.integers(0, 5000)),
            seal=draw(st.integers(0, 500)),
            claim=draw(st.integers(0, 500)),
        ),
    )


@settings(max_examples=80)
@given(settings_of_jobs(), st.sampled_from(Trainer))
def test_a_trainer_is_paid_what_the_closed_form_says(s: JobEconomics, strategy: Trainer) -> None:
    assert expected_trainer(s, strategy) == trainer_payoff(s, strategy)


@pytest.mark.slow
@settings(max_examples=120)
@given(settings_of_jobs(), st.sampled_from(Auditor), st.sampled_from(Trainer), shares)
def test_an_auditor_is_paid_what_the_closed_form_says(
    s: JobEconomics, own: Auditor, strategy: Trainer, lies: Fraction
) -> None:
    lies = Fraction(0) if strategy is Trainer.HONEST else lies
    assert expected_auditor(s, own, strategy, lies) == auditor_payoff(s, own, strategy, lies)


@settings(max_examples=100)
@given(settings_of_jobs(), st.sampled_from(Trainer), st.sampled_from([None, *Auditor]), st.booleans(), st.randoms())
def test_no_wei_is_made_or_lost_and_nothing_stays_in_the_board(
    s: JobEconomics, strategy: Trainer, own: Auditor | None, decoy: bool, rng: Random
) -> None:
    players = Players(trainer=strategy, own=own)
    ledger = play(s, players, draw(s, players, rng, decoy=decoy))
    assert sum(ledger.wealth.values()) == 0
    assert ledger.wealth["board"] == 0
    assert ledger.games == []
    assert ledger.status in ("SETTLED", "SLASHED")


@settings(max_examples=60)
@given(settings_of_jobs(), st.sampled_from(Trainer), st.sampled_from([None, *Auditor]))
def test_the_probabilities_of_all_stories_are_one(s: JobEconomics, strategy: Trainer, own: Auditor | None) -> None:
    assert sum(chance for chance, _ in stories(s, Players(trainer=strategy, own=own))) == 1


@pytest.mark.slow
@settings(max_examples=100)
@given(settings_of_jobs())
def test_no_share_of_the_work_pays_a_cheat_more_than_the_smallest_or_the_largest(s: JobEconomics) -> None:
    payoff, strategy, tampered = best_cheat(s)
    everything = [replace(s, tampered=x) for x in range(1, s.segments + 1)]
    assert payoff == max(trainer_payoff(at, cheat) for at in everything for cheat in CHEATS)
    assert trainer_payoff(replace(s, tampered=tampered), strategy) == payoff
    assert {at.tampered for at in extremes(s)} == {1, s.segments}


COSTS = TransactionCosts(
    way=3, settle=2, withdraw=1, challenge=4, reclaim=2, concede=2, equivocation=3, defence=40, prosecution=30
)


def sample() -> JobEconomics:
    return JobEconomics(
        reward=1200, trainer_stake=3001, challenger_stake=90, training=1000, audit=1100, lie=500, segments=10,
        tampered=2, sampled=3, auditors=3, audit_probability=Fraction(1, 3), costs=COSTS,
    )  # fmt: skip


@pytest.mark.slow
def test_games_at_random_pay_what_the_closed_form_says(cases: Callable[[], None]) -> None:
    """Monte Carlo, to five standard errors."""
    games, rng = 4000, Random(20)
    for strategy in Trainer:
        players = Players(trainer=strategy)
        paid = []
        for _ in range(games):
            wealth = play(sample(), players, draw(sample(), players, rng)).wealth
            paid.append(float(wealth[TRAINER] + wealth[SYBIL]))
        mean = sum(paid) / games
        error = (sum((x - mean) ** 2 for x in paid) / (games - 1) / games) ** 0.5
        assert abs(mean - float(trainer_payoff(sample(), strategy))) <= 5 * error + 1e-9
        assert (error > 0) == (strategy not in (Trainer.HONEST, Trainer.SELF)), "whom no audit changes"
        cases()


def test_a_job_cannot_be_settled_over_an_open_game_or_end_twice() -> None:
    ledger = Ledger(job=sample())
    with pytest.raises(StateError, match="expected a job that is ACTIVE, got OFFERED"):
        ledger.settle()
    ledger.accept()
    ledger.challenge("someone")
    with pytest.raises(StateError, match="expected no open game, got 1"):
        ledger.settle()
    ledger.convicted("someone")
    with pytest.raises(StateError, match="ACTIVE, got SLASHED"):
        ledger.equivocation("someone")
    assert ledger.wealth["burned"] == 1501  # an odd wei burns


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("reward", -1, "reward: expected 0 or more wei, got -1"),
        ("burn", Fraction(3, 2), "burn: expected a share of 0 to 1, got 3/2"),
        ("segments", 0, "segments: expected at least one, got 0"),
        ("tampered", 11, "tampered: expected 1 to 10, got 11"),
        ("sampled", 0, "sampled: expected 1 to 10, got 0"),
        ("auditors", 1001, "auditors: expected 0 to 1000, got 1001"),
        ("rate", Fraction(-1), "rate: expected 0 or more, got -1"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        replace(sample(), **{field: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="way: expected 0 or more wei, got -1"):
        TransactionCosts(way=-1)
    with pytest.raises(ConfigurationError, match="lies: expected 0 of an honest trainer"):
        auditor_payoff(sample(), Auditor.LAZY, Trainer.HONEST, Fraction(1))
