"""The closed forms against the board's rules, story by story."""

from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.incentives.rules import JOB, Players, expected_auditor, expected_trainer, play, stories
from tiebreak.lab.incentives.economics import CHEATS, AuditorStrategy, JobEconomics, TrainerStrategy, TransactionCosts
from tiebreak.lab.incentives.model import auditor_payoff, best_cheat, extremes, griefing, trainer_payoff
from tiebreak.protocol.errors import ConfigurationError

amounts = st.integers(0, 10**6)
shares = st.fractions(0, 1, max_denominator=12)


@st.composite
def settings_of_jobs(draw: st.DrawFn) -> JobEconomics:
    def draw_all(values: st.SearchStrategy[Any], *names: str) -> dict[str, Any]:
        return {name: draw(values) for name in names}

    segments, seated = draw(st.integers(1, 5)), draw(st.booleans())
    costs = draw_all(st.integers(0, 500), *(field.name for field in fields(TransactionCosts)))
    costs |= {"defence": draw(st.integers(0, 5000)), "prosecution": costs["challenge"] + draw(st.integers(0, 5000))}
    numbers = draw_all(
        amounts, "reward", "trainer_stake", "challenger_stake", "training", "audit", "lie", "fee", "bond",
        "job_seconds", "game_seconds",
    )  # fmt: skip
    numbers |= draw_all(shares, "kept", "audit_probability", "burn", "challenge_burn")
    numbers |= draw_all(st.booleans(), "whole_first", "proven", "oldest_paid")
    numbers |= {name: share * seated for name, share in draw_all(shares, "bought", "trusting").items()}
    return JobEconomics(
        **numbers, segments=segments, seated=seated, tampered=draw(st.integers(1, segments)),
        sampled=segments if seated else draw(st.integers(1, segments)), auditors=draw(st.integers(1, 3)),
        planted=draw(shares) * (not seated), rate=Fraction(draw(st.integers(0, 100)), 10**9),
        costs=TransactionCosts(**costs),
    )  # fmt: skip


@settings(max_examples=60)
@given(settings_of_jobs(), st.sampled_from(TrainerStrategy))
def test_a_trainer_is_paid_what_the_closed_form_says(s: JobEconomics, strategy: TrainerStrategy) -> None:
    assert expected_trainer(s, strategy) == trainer_payoff(s, strategy)


@pytest.mark.slow
@pytest.mark.parametrize("own", AuditorStrategy)
@pytest.mark.parametrize("strategy", TrainerStrategy)
@settings(max_examples=8)
@given(s=settings_of_jobs(), lies=shares)
def test_an_auditor_is_paid_what_the_closed_form_says(
    s: JobEconomics, own: AuditorStrategy, strategy: TrainerStrategy, lies: Fraction
) -> None:
    lies = Fraction(0) if strategy is TrainerStrategy.HONEST else lies
    assert expected_auditor(s, own, strategy, lies) == auditor_payoff(s, own, strategy, lies)


@settings(max_examples=60)
@given(settings_of_jobs(), st.sampled_from(TrainerStrategy), st.sampled_from([None, *AuditorStrategy]), st.booleans())
def test_no_wei_is_made_or_lost_and_nothing_stays_in_the_board(
    s: JobEconomics, strategy: TrainerStrategy, own: AuditorStrategy | None, decoy: bool
) -> None:
    """This holds in any story; their probabilities add up to one."""
    players, total = Players(trainer=strategy, own=own), Fraction(0)
    for chance, story in stories(s, players, decoy=decoy):
        ledger, total = play(s, players, story), total + chance
        assert sum(ledger.wealth.values()) == ledger.wealth["board"] == 0
        assert ledger.games == []
        assert ledger.status in ("SETTLED", "SLASHED")
    assert total == 1


@pytest.mark.slow
@settings(max_examples=60)
@given(settings_of_jobs())
def test_a_cheat_pays_best_in_one_segment_or_in_all(s: JobEconomics) -> None:
    payoff, strategy, tampered = best_cheat(s)
    everything = [replace(s, tampered=x) for x in range(1, s.segments + 1)]
    assert payoff == max(trainer_payoff(at, cheat) for at in everything for cheat in CHEATS)
    assert trainer_payoff(replace(s, tampered=tampered), strategy) == payoff
    assert {at.tampered for at in extremes(s)} == {1, s.segments}


def test_a_false_challenge_costs_less_than_its_harm_only_without_a_stake() -> None:
    found = {each.attack: each for each in griefing(replace(JOB, challenger_stake=900))}
    free, staked = (found[f"false challenge, {words}, to the end"] for words in ("no stake", "this stake"))
    assert free.factor is not None
    assert staked.factor is not None
    assert free.factor < 1 < staked.factor
    assert staked.compensation >= staked.harm
    assert all(each.attacker >= 0 and each.harm >= 0 for each in found.values())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("reward", -1, "reward: expected 0 or more wei, got -1"),
        ("burn", Fraction(3, 2), "burn: expected a share of 0 to 1, got 3/2"),
        ("segments", 0, "segments: expected at least one, got 0"),
        ("tampered", 5, "tampered: expected 1 to 4, got 5"),
        ("sampled", 0, "sampled: expected 1 to 4, got 0"),
        ("auditors", 1001, "auditors: expected 0 to 1000, got 1001"),
        ("rate", Fraction(-1), "rate: expected 0 or more, got -1"),
    ],
)
def test_economic_settings_out_of_range_are_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        replace(JOB, **{field: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="way: expected 0 or more wei, got -1"):
        TransactionCosts(way=-1)
    with pytest.raises(ConfigurationError, match="lies: expected 0 of an honest trainer"):
        auditor_payoff(JOB, AuditorStrategy.LAZY, TrainerStrategy.HONEST, Fraction(1))
