"""Whole games of one adversary: what they must come to, whoever it is."""

from random import Random

from sim.adversaries.base import Adversary
from sim.computing.workshop import Workshop
from sim.world.cast import Cast
from sim.world.game import play
from sim.world.result import DuelResult, GameResult, PartyResult


def played(kind: type[Adversary], seed: int, name: str = "exact") -> GameResult:
    """A game of an adversary; it must end where it says, and break no promise."""
    adversary, rng = kind(), Random(seed)
    cast = Cast(workshop=Workshop.open(name))
    adversary.join(cast, rng)
    for joined, allowed in expected(cast, adversary).items():
        cast.expected[joined] = allowed
    result = play(cast, f"{adversary.name} {seed}", rng)
    assert result.violations == ()
    assert result.catches[adversary.name] in adversary.caught, result
    return result


def expected(_cast: Cast, adversary: Adversary) -> dict[str, frozenset[str]]:
    """Where the adversary has to end."""
    return {adversary.name: frozenset(catch.value for catch in adversary.caught)}


def party(result: GameResult, name: str) -> PartyResult:
    """One party's account."""
    (found,) = [party for party in result.parties if party.name == name]
    return found


def duel(result: GameResult, challenger: str) -> DuelResult:
    """The one game of a challenger."""
    (found,) = [found for found in result.duels if found.challenger == challenger]
    return found
