"""The verifier's dilemma: how often trainers lie and auditors audit when neither can gain by changing.

All auditors are alike, and a cheat is the one that pays the trainer most. `threshold` says how often a lie must be
found, and `deterrent` how often each auditor must audit, before honesty pays. Below that every trainer cheats, above it
none does. The gain of an auditor falls with the probability p with which the others audit, because finders share.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from tiebreak.sim.incentives.economics import CHEATS, Auditor, JobEconomics, Trainer
from tiebreak.sim.incentives.model import auditor_payoff, best_cheat, extremes, trainer_payoff

GRID: Final = 1 << 48
"""A probability that is a root is given as the least sufficient multiple of 1 / GRID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equilibrium:
    """lies: share of jobs whose trainer cheats. audit_probability: of each auditor. discovery: that a lie is found."""

    lies: Fraction
    audit_probability: Fraction
    discovery: Fraction
    cheat: Trainer
    tampered: int

    @property
    def accepted(self) -> Fraction:
        """Share of all jobs that settle although they are false."""
        return self.lies * (1 - self.discovery)


def threshold(s: JobEconomics, strategy: Trainer) -> Fraction | None:
    """P*: the probability of discovery at which honesty pays as well as this cheat. None: no probability suffices.

    For a naive cheat, for instance: P* = (G + V - g) / (R + T + V(1-k) + gas of a lost game - ...). A payoff is linear
    in P, so it is computed from the two ends. False alarms are those of the given job.
    """
    never, always = replace(s, auditors=0), replace(s, auditors=1, audit_probability=Fraction(1), sampled=s.segments)
    honest = trainer_payoff(s, Trainer.HONEST)
    free, caught = trainer_payoff(never, strategy), trainer_payoff(always, strategy)
    if free <= honest:
        return Fraction(0)
    return None if caught > honest else (free - honest) / (free - caught)


def least(holds: Callable[[Fraction], bool]) -> Fraction | None:
    """The least multiple of 1 / GRID up to 1 from which on a condition holds; None if it fails at 1."""
    first = bisect_left(range(GRID + 1), True, key=lambda part: holds(Fraction(part, GRID)))
    return Fraction(first, GRID) if first <= GRID else None


def deterrent(s: JobEconomics) -> tuple[Fraction, Trainer, int] | None:
    """(p*, strategy, tampered): how often each auditor must audit, and for which cheat.

    None if always is not enough.
    """
    found: tuple[Fraction, Trainer, int] | None = None
    for at in extremes(s):
        for strategy in CHEATS:
            wanted = threshold(at, strategy)
            if wanted is None:
                return None
            p = least(lambda p, at=at, wanted=wanted: replace(at, audit_probability=p).discovery >= wanted)  # type: ignore[misc]
            if p is None:
                return None
            if found is None or p > found[0]:
                found = p, strategy, at.tampered
    return found


def advantage(s: JobEconomics, p: Fraction, lies: Fraction, cheat: tuple[Trainer, int], interest: int = 0) -> Fraction:
    """What an audit pays above laziness if the others audit with probability p.

    interest: what discovering a lie saves the auditor besides, such as reward and harm for a client that audits itself.
    """
    strategy, tampered = cheat if lies else (Trainer.HONEST, cheat[1])
    at = replace(s, audit_probability=p, tampered=tampered)
    diligent, lazy = (auditor_payoff(at, own, strategy, lies) for own in (Auditor.DILIGENT, Auditor.LAZY))
    found = (1 - at.planted) * lies * at.detection if strategy is not Trainer.SELF else 0
    return diligent - lazy + found * interest


def solve(s: JobEconomics, interest: int = 0) -> Equilibrium:
    """The symmetric equilibrium; if there are several, the one with the most audits.

    If all trainers lie, and auditing pays against one cheat but not against the next, `audit_probability` is where both
    pay the trainer the same, and trainers mix them.
    """

    def at(p: Fraction, lies: Fraction, cheat: tuple[Trainer, int]) -> Equilibrium:
        found = replace(s, audit_probability=p, tampered=cheat[1]).discovery
        return Equilibrium(lies=lies, audit_probability=p, discovery=found, cheat=cheat[0], tampered=cheat[1])

    def cheat_at(p: Fraction) -> tuple[Trainer, int]:
        _, strategy, tampered = best_cheat(replace(s, audit_probability=p))
        return strategy, tampered

    def all_lie(p: Fraction) -> bool:
        """Whether auditing no longer pays although every trainer cheats."""
        return advantage(s, p, Fraction(1), cheat_at(p), interest) <= 0

    one, none = Fraction(1), Fraction(0)
    bound = deterrent(s)
    if bound is None:
        p = least(all_lie)
        p = one if p is None else p
        return at(p, one, cheat_at(p))
    enough, cheat = bound[0], (bound[1], bound[2])
    if advantage(s, one, none, cheat, interest) >= 0:
        return at(one, none, cheat)
    lazy = advantage(s, enough, none, cheat, interest)
    if lazy > 0:
        p = least(lambda p: advantage(s, p, none, cheat, interest) <= 0)
        return at(one if p is None else p, none, cheat)
    busy = advantage(s, enough, one, cheat, interest)
    if busy >= 0 and busy > lazy:
        return at(enough, -lazy / (busy - lazy), cheat)
    p = least(all_lie)
    p = enough if p is None else min(p, enough)
    return at(p, one, cheat_at(p))
