"""What an adversary is: a name, a place among the parties, what it hopes to gain, and where it must be caught."""

from abc import ABC, abstractmethod
from enum import StrEnum
from random import Random
from typing import ClassVar

from tiebreak.sim.world.cast import Cast


class Role(StrEnum):
    """Who does not do as agreed."""

    CLIENT = "client"
    TRAINER = "trainer"
    CHALLENGER = "challenger"
    AUDITOR = "auditor"
    BUILDER = "builder"
    """Who orders transactions into blocks."""


class Catch(StrEnum):
    """Where a deviation ends."""

    RECOMPUTED = "recomputed"
    """A game walked down to one number, which the referee recomputed."""
    PADDING = "padding"
    """A game ended on a place that must be empty."""
    BROKEN_TIE = "broken tie"
    """An opening was not tied to what was committed before."""
    TIMEOUT = "timeout"
    """It used up its clock: by silence, or by moves that are none."""
    CONCEDED = "conceded"
    """It gave up in a game."""
    EQUIVOCATION = "equivocation"
    """Two heads that it signed for one place were reported."""
    ABANDONED = "abandoned"
    """Its heads did not come within the window."""
    REFUSED = "refused"
    """The contract or the recipient refused its bytes, and nothing had changed."""
    HARMLESS = "harmless"
    """It went its way within the rules, and no other party lost what it was owed."""
    UNPAID = "unpaid"
    """It earned nothing, where who did the work earned."""


class Adversary(ABC):
    """One way of not doing as agreed. Instances are small and hold no state of a game."""

    name: ClassVar[str]
    """Unique in the catalogue, in words: "poisoned label"."""
    role: ClassVar[Role]
    gain: ClassVar[str]
    """What it hopes to gain."""
    caught: ClassVar[frozenset[Catch]]
    """Where it must end; that it ends elsewhere, or nowhere, is a counter-example."""

    open: ClassVar[bool] = False
    """Whether the present rules do not stop it: it is told of as a weakness, and in no mix of caught adversaries."""

    @abstractmethod
    def join(self, cast: Cast, rng: Random) -> None:
        """Takes its place among the parties of a game that is about to be played; all its choices come from `rng`."""
