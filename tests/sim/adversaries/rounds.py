"""Whole games of one adversary: what they must come to, whoever it is."""

from dataclasses import replace
from random import Random

from tiebreak.sim.adversaries.base import Adversary
from tiebreak.sim.world.cast import TERMS, Cast
from tiebreak.sim.world.game import play
from tiebreak.sim.world.result import DuelResult, GameResult, PartyResult
from tiebreak.sim.world.workshop import Workshop


def result_of(kind: type[Adversary], seed: int, **terms: int) -> GameResult:
    """A game of an adversary, whatever comes of it; on other terms, if they are given."""
    adversary, rng = kind(), Random(seed)
    cast = Cast(workshop=Workshop.open("exact"), terms=replace(TERMS, **terms))
    adversary.join(cast, rng)
    cast.expected[adversary.name] = frozenset(catch.value for catch in adversary.caught)
    return play(cast, f"{adversary.name} {seed}", rng)


def played(kind: type[Adversary], seed: int, **terms: int) -> GameResult:
    """A game of an adversary; it must end where it says, and break no promise."""
    result = result_of(kind, seed, **terms)
    assert result.violations == ()
    assert result.catches[kind.name] in kind.caught
    return result


def party(result: GameResult, name: str) -> PartyResult:
    """One party's account."""
    (found,) = [party for party in result.parties if party.name == name]
    return found


def duel(result: GameResult, challenger: str) -> DuelResult:
    """The one game of a challenger."""
    (found,) = [found for found in result.duels if found.challenger == challenger]
    return found
