"""The sweep: both ways of finding best replies agree, and what is written is what was found."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from tests.sim.incentives.jobs import CHANGED, JOB
from tiebreak.sim.incentives import sweep as sweeping
from tiebreak.sim.incentives.figures import PRESETS
from tiebreak.sim.incentives.gas import RESULTS, measured
from tiebreak.sim.incentives.griefing import griefing, insurance_stake
from tiebreak.sim.incentives.model import trainer_payoff
from tiebreak.sim.incentives.recommend import recommend
from tiebreak.sim.incentives.setting import HALF, Setting, Trainer
from tiebreak.sim.incentives.sweep import LABELS, Axis, compare_at_random, multiples, shares, simulate, trainer_region


def test_the_two_ways_agree_at_random_settings() -> None:
    assert compare_at_random(60, seed=3) == 0


def test_a_difference_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """No vacuous agreement: a closed form that forgets the burned half disagrees."""
    right = sweeping.trainer_payoff
    monkeypatch.setattr(sweeping, "trainer_payoff", lambda s, who: right(replace(s, burn=Fraction(1)), who))
    assert compare_at_random(60, seed=3) > 0


def test_a_region_has_the_closed_forms_boundary() -> None:
    """Honest iff P (R + bT + o) >= G + V: every other cheat pays less here."""
    base = replace(JOB, segments=2, sampled=2, tampered=2)
    p, stake = shares("p", "audit_probability"), multiples("T", "trainer_stake", "training", 8)
    region = trainer_region("a", base, replace_axis(p), replace_axis(stake))
    assert region.disagreements == 0
    content = region.document()
    assert content["closed"] == content["rules"]
    for y, row in zip(replace_axis(stake).values, content["closed"], strict=True):
        for x, best in zip(replace_axis(p).values, row, strict=True):
            t = int(y * base.training)
            own = base.costs.equivocation + base.costs.withdraw - base.costs.settle - base.costs.withdraw
            honest = x * (base.reward + t - t // 2 + own) >= base.training + base.lie
            assert (LABELS["trainer"][best] == Trainer.HONEST) == honest


def replace_axis(axis: Axis) -> Axis:
    return replace(axis, values=axis.values[::4])


def test_games_at_random_are_seeded() -> None:
    s = replace(JOB, audit_probability=HALF, segments=1, sampled=1, tampered=1)
    first, again, other = (list(simulate(s, 200, seed)) for seed in (5, 5, 6))
    assert first == again
    assert first != other
    assert all(abs(each.mean - each.expected) <= 5 * each.error + 1 for each in first)


def test_the_committed_sweep_has_no_disagreement_and_is_of_this_model() -> None:
    path = RESULTS / "economics.json"
    content = json.loads(path.read_text())
    assert path.stat().st_size < 300_000
    swept = content["sweep"]
    assert swept["disagreements"] == 0
    assert swept["points"] > 4000
    assert all(region["labels"] == list(LABELS[region["party"]]) for region in swept["regions"])
    assert all(region["closed"] == region["rules"] for region in swept["regions"])
    for name, wanted in content["presets"].items():
        f = PRESETS[name].figures
        assert recommend(f, measured(f.descent_levels)).terms.trainer_stake == wanted["terms"]["trainer_stake"], (
            "run make bench-economics"
        )


def test_a_false_challenge_without_a_stake_harms_for_less_than_the_harm() -> None:
    s = replace(JOB, challenger_stake=900)
    found = {each.attack: each for each in griefing(s)}
    free, staked = (found[f"false challenge, {words}, to the end"] for words in ("no stake", "this stake"))
    assert free.factor is not None
    assert staked.factor is not None
    assert free.factor < 1 < staked.factor
    assert staked.compensation >= staked.harm
    assert all(each.attacker >= 0 and each.harm >= 0 for each in found.values())


def test_a_cheat_does_not_challenge_itself_first_from_this_stake_on() -> None:
    free = replace(JOB.costs, challenge=0, concede=0, withdraw=0, equivocation=0)
    s = replace(CHANGED, audit_probability=HALF, costs=free)
    stake = insurance_stake(s, HALF)
    assert stake is not None

    def insured(c: int, at: Setting) -> bool:
        tried = replace(at, challenger_stake=c)
        return trainer_payoff(tried, Trainer.INSURED) > trainer_payoff(tried, Trainer.HEDGED)

    assert insured(stake * 9 // 10, s)
    assert not insured(stake * 11 // 10, s)
    assert insurance_stake(s, Fraction(1)) is None
