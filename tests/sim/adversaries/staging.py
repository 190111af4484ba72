"""Whole games of who stands beside: with a diligent auditor, or without."""

from dataclasses import replace
from random import Random
from typing import Any

from tiebreak.sim.adversaries.base import Adversary
from tiebreak.sim.world.cast import TERMS, Cast
from tiebreak.sim.world.game import play
from tiebreak.sim.world.result import GameResult, PartyResult
from tiebreak.sim.world.workshop import Workshop

HALF = TERMS.trainer_stake // 2


def stage(adversary: Adversary, rng: Random, **changes: Any) -> Cast:
    """A cast that the adversary has joined. `changes`: fields of the cast, or of its terms."""
    named = {name: value for name, value in changes.items() if name in Cast.__dataclass_fields__}
    terms = {name: value for name, value in changes.items() if name not in named}
    cast = Cast(workshop=Workshop.open("exact"), **named)
    cast.terms = replace(cast.terms, **terms)
    adversary.join(cast, rng)
    if not adversary.open:
        cast.expected[adversary.name] = frozenset(str(catch) for catch in adversary.caught)
    return cast


def staged(kind: type[Adversary], seed: int, **changes: Any) -> GameResult:
    """A game of an adversary, which has to break no promise and to end where it says."""
    rng = Random(seed)
    result = play(stage(kind(), rng, **changes), f"{kind.name} {seed}", rng)
    assert result.violations == ()
    assert kind.open or result.catches[kind.name] in kind.caught
    return result


def party(result: GameResult, name: str) -> PartyResult:
    """One party's account."""
    (found,) = [party for party in result.parties if party.name == name]
    return found


def of(result: GameResult, kind: type[Adversary]) -> PartyResult:
    """The account of who is an adversary of this kind."""
    (found,) = [party for party in result.parties if party.adversary == kind.name]
    return found
