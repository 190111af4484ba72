"""The base class of adversaries. It gives the name, the place among the parties, the hoped-for gain and the endings."""

from abc import ABC, abstractmethod
from enum import StrEnum
from random import Random
from typing import ClassVar

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


class Adversary(ABC):
    """One way to deviate from the protocol. Instances are small and hold no state of a game."""

    name: ClassVar[str]
    """Unique in the catalogue, in words: "poisoned label"."""
    role: ClassVar[Role]
    gain: ClassVar[str]
    """What the adversary hopes to gain."""
    caught: ClassVar[frozenset[Catch]]
    """The endings that the adversary may have. Any other ending is a counter-example."""

    open: ClassVar[bool] = False
    """Whether the present rules do not stop it.

    It is then listed as a weakness, and no mix of caught adversaries has it.
    """

    @abstractmethod
    def join(self, cast: Cast, rng: Random) -> None:
        """Take a place in the cast of a game that is about to be played. All choices come from `rng`."""
