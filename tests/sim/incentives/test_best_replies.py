"""Best replies by the closed forms and by the board's rules agree; griefing."""

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from tests.sim.incentives import rules
from tests.sim.incentives.jobs import JOB
from tiebreak.sim.incentives.economics import CHEATS, HALF, Auditor, JobEconomics, Trainer, TransactionCosts
from tiebreak.sim.incentives.model import auditor_payoff, extremes, griefing, trainer_payoff

Best = frozenset[str]
"""All best replies: several where they pay the same."""
SEGMENTS = 4


def _best(payoffs: dict[str, Fraction]) -> Best:
    most = max(payoffs.values())
    return frozenset(name for name, payoff in payoffs.items() if payoff == most)


def best_trainer(s: JobEconomics) -> Best:
    """By the closed forms."""
    payoffs = {str(Trainer.HONEST): trainer_payoff(s, Trainer.HONEST)}
    return _best(payoffs | {str(cheat): max(trainer_payoff(at, cheat) for at in extremes(s)) for cheat in CHEATS})


def best_trainer_by_rules(s: JobEconomics) -> Best:
    """Over every number of tampered segments and every story."""
    payoffs = {str(Trainer.HONEST): rules.expected_trainer(s, Trainer.HONEST)}
    every = [replace(s, tampered=x) for x in range(1, s.segments + 1)]
    return _best(payoffs | {str(cheat): max(rules.expected_trainer(at, cheat) for at in every) for cheat in CHEATS})


def best_auditor(s: JobEconomics, cheat: Trainer, lies: Fraction) -> Best:
    """By the closed forms."""
    return _best({str(own): auditor_payoff(s, own, cheat, lies) for own in Auditor})


def best_auditor_by_rules(s: JobEconomics, cheat: Trainer, lies: Fraction) -> Best:
    """Over every story."""
    return _best({str(own): rules.expected_auditor(s, own, cheat, lies) for own in Auditor})


def any_setting(rng: Random) -> JobEconomics:
    """One with every parameter at random, small enough that all its stories can be told."""

    def amount(most: int) -> int:
        return rng.choice((0, rng.randrange(1, most), rng.randrange(most // 2, most)))

    def share() -> Fraction:
        return rng.choice((Fraction(0), Fraction(1), HALF, Fraction(rng.randrange(101), 100)))

    training, segments, challenge = rng.randrange(1, 10**6), rng.randint(1, SEGMENTS), amount(500)
    seated = rng.random() < 1 / 2
    return JobEconomics(
        reward=training + amount(10**6), trainer_stake=amount(10**7), challenger_stake=amount(10**6), training=training,
        audit=amount(10**6), lie=amount(10**6), kept=share(), segments=segments,
        sampled=segments if seated else rng.randint(1, segments),
        whole_first=rng.random() < 1 / 2, auditors=rng.randint(1, 3), audit_probability=share(),
        fee=amount(10**6), proven=rng.random() < 1 / 2, planted=share() * (not seated),
        seated=seated, bond=amount(10**5), bought=share() * seated, trusting=share() * seated,
        rate=Fraction(rng.randrange(100), 10**9),
        job_seconds=rng.randrange(10**7), game_seconds=rng.randrange(10**6), burn=share(), challenge_burn=share(),
        oldest_paid=rng.random() < 1 / 2,
        costs=TransactionCosts(
            way=amount(500), settle=amount(500), withdraw=amount(500), challenge=challenge, reclaim=amount(500),
            concede=amount(500), equivocation=amount(500), defence=amount(5000), prosecution=challenge + amount(5000),
            seal=amount(500), claim=amount(500),
        ),
    )  # fmt: skip


def compare_at_random(points: int, seed: int) -> int:
    """At how many of so many random settings, with a random auditor's world each, the two ways differ."""
    rng, differ = Random(seed), 0  # a simulation
    for _ in range(points):
        s = any_setting(rng)
        cheat = rng.choice(CHEATS)
        lies = Fraction(rng.randrange(1, 101), 100)
        at = replace(s, tampered=rng.randint(1, s.segments))
        same = best_trainer(s) == best_trainer_by_rules(s)
        same &= best_auditor(at, cheat, lies) == best_auditor_by_rules(at, cheat, lies)
        differ += not same
    return differ


def test_the_two_ways_name_the_same_best_replies_at_random_settings() -> None:
    assert compare_at_random(60, seed=3) == 0


@pytest.mark.parametrize("stake", [0, 100_000, 200_000, 300_000, 400_000, 800_000])
@pytest.mark.parametrize("probability", [Fraction(0), Fraction(1, 4), HALF, Fraction(1)])
def test_honesty_is_best_where_the_closed_form_says_so(stake: int, probability: Fraction) -> None:
    """Honest iff P (R + bT + o) >= G + V: every other cheat pays less here."""
    s = replace(JOB, segments=2, sampled=2, tampered=2, trainer_stake=stake, audit_probability=probability)
    own = s.costs.equivocation + s.costs.withdraw - s.costs.settle - s.costs.withdraw
    honest = probability * (s.reward + stake - stake // 2 + own) >= s.training + s.lie
    assert (Trainer.HONEST in best_trainer(s)) == honest
    assert best_trainer_by_rules(s) == best_trainer(s)


def test_a_difference_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """No vacuous agreement: a closed form that forgets the burned half disagrees."""
    monkeypatch.setitem(
        globals(), "trainer_payoff", lambda s, who: trainer_payoff_of(replace(s, burn=Fraction(1)), who)
    )
    assert compare_at_random(60, seed=3) > 0


trainer_payoff_of = trainer_payoff


def test_a_false_challenge_without_a_stake_harms_for_less_than_the_harm() -> None:
    s = replace(JOB, challenger_stake=900)
    found = {each.attack: each for each in griefing(s)}
    free, staked = (found[f"false challenge, {words}, to the end"] for words in ("no stake", "this stake"))
    assert free.factor is not None
    assert staked.factor is not None
    assert free.factor < 1 < staked.factor
    assert staked.compensation >= staked.harm
    assert all(each.attacker >= 0 and each.harm >= 0 for each in found.values())
