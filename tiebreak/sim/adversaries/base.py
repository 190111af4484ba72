"""What an adversary is: its name, its place among the parties, what it hopes to gain, and how it may end.

Every module of this folder ends with a table of its adversaries. Above the table stands what they do: a function that
computes a false run, or an agent that decides otherwise than an honest one. Its docstring says what it does.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from tiebreak.sim.world.cast import Cast


class Role(StrEnum):
    """The kinds of parties that may be dishonest."""

    CLIENT = "client"
    TRAINER = "trainer"
    CHALLENGER = "challenger"
    AUDITOR = "auditor"
    BUILDER = "builder"
    """The party that orders transactions into blocks."""


class Catch(StrEnum):
    """How a deviation ends."""

    RECOMPUTED = "recomputed"
    """A game went down to one number, and the referee recomputed it."""
    PADDING = "padding"
    """A game ended on a place that must be empty."""
    BROKEN_TIE = "broken tie"
    """An opening did not match an earlier commitment."""
    TIMEOUT = "timeout"
    """The party used up its clock, by silence or by invalid moves."""
    CONCEDED = "conceded"
    """The party gave up in a game."""
    EQUIVOCATION = "equivocation"
    """Two heads that it signed for the same count were reported."""
    ABANDONED = "abandoned"
    """Its heads did not come within the window."""
    REFUSED = "refused"
    """The contract or the recipient refused its bytes, and nothing changed."""
    HARMLESS = "harmless"
    """It stayed within the rules, and no other party lost what it was owed."""
    UNPAID = "unpaid"
    """It earned nothing where a party that did the work earned something."""


OPEN: Final = frozenset[Catch]()
"""The endings of a weakness: the present rules do not stop it, so it may end anywhere."""


@dataclass(frozen=True, kw_only=True)
class Adversary(ABC):
    """One way to deviate from the protocol. It holds no state of a game."""

    name: str
    """Unique in the catalogue, in words: "poisoned label"."""
    role: Role
    gain: str
    """What the adversary hopes to gain."""
    caught: frozenset[Catch]
    """The endings that the adversary may have; any other is a counter-example. `OPEN` for a weakness."""

    @property
    def open(self) -> bool:
        """Whether it is a weakness. No mix of caught adversaries has it."""
        return not self.caught

    @abstractmethod
    def join(self, cast: Cast, rng: Random) -> None:
        """Take a place in the cast of a game that is about to be played. All choices come from `rng`."""
