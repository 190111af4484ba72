"""Mixed equilibria: against the closed form where there is one, and that nobody can do better by itself where not."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from tests.lab.incentives.rules import COSTS, JOB, best_slots, expected_auditor, expected_trainer, stranger_earns
from tiebreak.lab.incentives import model
from tiebreak.lab.incentives.economics import CHEATS, AuditorStrategy, TrainerStrategy


def test_nobody_audits_where_cheats_report_themselves_and_no_fee_is_paid() -> None:
    """The contract as it is, anonymous auditors, no fee: every trainer cheats and nobody looks."""
    found = model.solve(JOB)
    assert (found.lies, found.audit_probability, found.cheat) == (1, 0, TrainerStrategy.HEDGED)
    assert found.accepted == 1


def test_a_fee_that_covers_an_audit_makes_trainers_honest() -> None:
    without_relief = replace(JOB, challenger_stake=1, auditors=2)
    short, enough = (model.solve(replace(without_relief, fee=fee)) for fee in (89_999, 90_000))
    assert (short.lies, short.audit_probability) == (1, 0)
    assert (enough.lies, enough.audit_probability) == (0, 1)


def test_enough_decoys_make_audits_pay_and_trainers_honest() -> None:
    s = replace(JOB, planted=Fraction(6, 10))
    found = model.solve(s)
    assert (found.lies, found.audit_probability) == (0, 1)
    assert model.solve(replace(s, planted=Fraction(1, 10))).lies == 1


def test_a_client_that_audits_for_itself_is_sometimes_cheated() -> None:
    found = model.solve(JOB, interest=JOB.reward + 50_000)
    late = COSTS.challenge + COSTS.reclaim + COSTS.withdraw
    assert found.lies == Fraction(JOB.audit, JOB.reward + 50_000 + JOB.relief - late)
    at = replace(JOB, audit_probability=found.audit_probability, tampered=found.tampered)
    cheating = expected_trainer(at, found.cheat) - expected_trainer(at, TrainerStrategy.HONEST)
    assert abs(cheating) <= 1  # wei, by the rules, story by story; the probability is a root, to 2^-48


def test_auditors_that_share_decoys_audit_less_often() -> None:
    s = replace(JOB, planted=Fraction(9, 10), auditors=4)
    found = model.solve(s)
    assert found.lies == 0
    assert 0 < found.audit_probability < 1
    assert abs(model.advantage(s, found.audit_probability, Fraction(0), (found.cheat, found.tampered))) <= 1
    best, _, _ = model.best_cheat(replace(s, audit_probability=found.audit_probability))
    assert best < model.trainer_payoff(s, TrainerStrategy.HONEST)


def test_a_lie_that_is_worth_any_stake_is_audited_by_whom_it_harms() -> None:
    s = replace(JOB, lie=10**7)
    assert model.deterrent(s) is None
    found = model.solve(s, interest=JOB.reward)
    assert found.lies == 1
    assert 0 < found.audit_probability < 1, "where reporting itself at once pays as much, which nobody can audit"


# ---------------------------------------------------------------- seats

SEATED = replace(
    JOB, seated=True, auditors=2, fee=100_000, bond=90_000, bought=Fraction(1, 4), trainer_stake=700_000,
    costs=replace(COSTS, seal=30, claim=20),
)  # fmt: skip


def test_with_auditor_seats_trainers_are_honest_and_every_seat_audits(cases: Callable[[], None]) -> None:
    """Neither side gains by leaving it: by the rules, against everything that the other strategies could do."""
    found = model.solve(SEATED)
    assert (found.lies, found.audit_probability) == (0, 1)
    honest = expected_trainer(SEATED, TrainerStrategy.HONEST)
    diligent = expected_auditor(SEATED, AuditorStrategy.DILIGENT, TrainerStrategy.HONEST, Fraction(0))
    for tampered in range(1, SEATED.segments + 1):
        assert all(expected_trainer(replace(SEATED, tampered=tampered), cheat) < honest for cheat in CHEATS)
        cases()
    for own in AuditorStrategy:
        assert (
            own is AuditorStrategy.DILIGENT
            or expected_auditor(SEATED, own, TrainerStrategy.HONEST, Fraction(0)) < diligent
        )
        cases()


@pytest.mark.parametrize(
    ("condition", "holds", "breaks"),
    [
        ("no cheat pays more", {"bought": Fraction(1, 3)}, {"bought": Fraction(9, 10)}),
        ("no cheat pays more", {"audit_probability": Fraction(1, 2)}, {"audit_probability": Fraction(1, 20)}),
        ("auditing pays, with all trainers honest", {"fee": 90_050}, {"fee": 90_049}),
        ("auditing pays more than a root that the trainer shows", {"trainer_stake": 531_360},
         {"trainer_stake": 531_359}),
    ],
)  # fmt: skip
def test_each_condition_on_seats_breaks_at_its_stated_bound(
    condition: str, holds: dict[str, Fraction | int], breaks: dict[str, Fraction | int]
) -> None:
    """F = A + gas; W / (1 + n) + relief = A + gas of a challenge and its reclaim. Below, a deviation pays."""
    dear = replace(SEATED, joined_for=Fraction(10**7))  # no slots are bought
    before, after = (model.conditions(replace(dear, **changes)) for changes in (holds, breaks))  # type: ignore[arg-type]
    assert {c.name for c in before if not c.holds} == set()
    assert {c.name for c in after if not c.holds} == {condition}


POOLED = replace(SEATED, auditors=1, fee=120_050, bought=Fraction(3, 4))
"""A seat earns a stranger 30,000, and the trainer 120,000: with 40 slots, 10 of them strangers', each pays 750."""


def test_at_the_computed_pool_share_nobody_gains_by_changing_slots() -> None:
    """Strangers join while a slot pays, and a trainer's own seats earn their fee without a replay."""
    cost = Fraction(30_000, 40)
    assert (POOLED.own_share, POOLED.stranger_gain) == (Fraction(3, 4), 30_000)
    assert stranger_earns(POOLED, 10, 30) == cost
    assert stranger_earns(POOLED, 11, 30) < cost, "one more loses"
    _, own = best_slots(POOLED, TrainerStrategy.HONEST, 10, cost, 90)
    assert own == 30
    for share in (Fraction(4, 5), Fraction(9, 10)):
        assert POOLED.buying(share) == (10 * share / (1 - share) - 30) * cost
    # Shared with as many seats of another trainer's jobs, where its slots have to replay, it takes fewer.
    shared = max((Fraction(own * (120_000 + 30_000), 10 + own) - own * 2 * cost, own) for own in range(90))
    assert shared[1] < own


@pytest.mark.parametrize("stake", [3 * 10**5, 2 * 10**6])
def test_buying_pool_slots_makes_lies_pay_as_the_closed_form_predicts(stake: int) -> None:
    """The best of all numbers of slots, against the shares that `stuffing` tries: at most an eighth of a seat less."""
    s, cost = replace(POOLED, trainer_stake=stake, bought=Fraction(3, 4)), Fraction(30_000, 40)
    honest = best_slots(s, TrainerStrategy.HONEST, 10, cost, 60)[0]
    lying = max(best_slots(replace(s, tampered=4), cheat, 10, cost, 320)[0] for cheat in CHEATS)
    assert -s.fee // 8 <= model.stuffing(s).slack - (honest - lying) <= s.fee // 8
    assert model.stuffing(s).holds is (stake > 10**6)


def test_a_guessed_root_costs_the_bond_and_never_pays() -> None:
    """No guess of 256 bits is right. The bond prices sealing what one was told and has not computed."""
    free = replace(SEATED, bond=0)
    assert model.solve(free).lies == 0
    guess = expected_auditor(SEATED, AuditorStrategy.GUESSING, TrainerStrategy.HONEST, Fraction(0))
    assert guess == -SEATED.bond - SEATED.costs.seal
