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
    numbers |= draw_all(shares, "kept", "audit_probability")
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


def test_lies_of_an_honest_trainer_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="lies: expected 0 of an honest trainer"):
        auditor_payoff(JOB, AuditorStrategy.LAZY, TrainerStrategy.HONEST, Fraction(1))
