"""A job of round numbers: the contract's rules, and changed ones under which bounties are paid."""

from dataclasses import replace
from fractions import Fraction

from tiebreak.incentives.economics import JobEconomics, TransactionCosts

COSTS = TransactionCosts(
    way=30, settle=15, withdraw=8, challenge=40, reclaim=12, concede=19, equivocation=18, defence=280, prosecution=260
)
JOB = JobEconomics(
    reward=130_000, trainer_stake=400_000, challenger_stake=3000, training=100_000, audit=90_000, lie=20_000,
    segments=4, tampered=4, sampled=4, auditors=1, costs=COSTS,
)  # fmt: skip
CHANGED = replace(JOB, oldest_paid=True, challenge_burn=Fraction(1, 2), challenger_stake=150_000)
