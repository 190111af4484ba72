"""What `tiebreak simulate` writes (`tiebreak.sim.games.summary` says what it means), as far as the report reads it."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tiebreak.sim.report.results import Shape

MAX_GAMES = 10**8
Slug = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=80)]
Words = Annotated[str, Field(max_length=2000)]
Name = Annotated[str, Field(min_length=1, max_length=80)]
Count = Annotated[int, Field(ge=0, le=MAX_GAMES)]
Size = Annotated[int | float, Field(ge=0, le=1e30)]
Amount = Annotated[int | float, Field(ge=-1e30, le=1e30)]
Line = Annotated[str, Field(pattern=r"^v[0-9]{1,3}( [a-z-]{1,30}=[a-z0-9,-]{1,1000}){1,20}$")]
"""Of a game. People copy it into a shell, so nothing else will do."""
Counts = Annotated[dict[Name, Count], Field(max_length=100)]
Environment = Annotated[dict[Name, Words], Field(max_length=100)]


class Distribution(Shape):
    """Least, middle, greatest, and how many lie where."""

    min: Amount
    median: Amount
    max: Amount
    mean: Amount | None = None
    bins: Annotated[list[tuple[Amount, Amount, Count]], Field(default_factory=list, min_length=1, max_length=100)]

    @model_validator(mode="after")
    def _in_order(self) -> "Distribution":
        if not self.min <= self.median <= self.max:
            raise ValueError("the median is not between the least and the greatest")
        return self


class Duels(Shape):
    """Of the games of a story."""

    count: Count
    rounds: Distribution | None
    moves: Distribution | None
    gas: Distribution | None
    bytes: Distribution | None
    seconds: Distribution | None


class Party(Shape):
    """What all parties of a role did and paid."""

    parties: Count
    wei: Distribution | None
    gas: Distribution | None
    steps: Distribution | None
    messages: Distribution | None
    bytes: Distribution | None


Parties = Annotated[dict[Name, Party], Field(max_length=20)]


class Story(Shape):
    """What some games came to."""

    games: Count
    jobs: Counts
    verdicts: Counts
    seconds: Distribution | None
    duels: Duels
    honest: Parties
    dishonest: Parties


class Adversary(Shape):
    """One of the catalogue."""

    name: Name
    role: Name
    gain: Words
    where: Annotated[list[Name], Field(max_length=50)]
    games: Count
    alone: Count
    caught: Counts
    summary: Story
    open: bool = False
    """Whether it does what no rule stops."""
    first: Line | None = None
    """Line of the first game in which it was alone."""


class Promises(Shape):
    """What must not happen, and how often it did."""

    false_heads: Count
    unwatched: Count
    undetected: Count
    honest_slashed: Count
    broken: Count


class Played(Shape):
    """Games by how many did not do as agreed."""

    alone: Count
    together: Count
    honest: Count


class Violation(Shape):
    """A promise that was broken."""

    game: Count
    line: Line
    violation: Words


class Speed(Shape):
    """Of one process."""

    games_per_hour: Size | None


class Simulate(Shape):
    """The file."""

    name: Literal["simulate"]
    version: Literal[1]
    seed: Annotated[int, Field(ge=0, lt=1 << 63)]
    mix: Words
    environment: Environment
    games: Count
    played: Played
    errors: Count
    promises: Promises
    violations: Annotated[list[Violation], Field(max_length=10_000)]
    speed: Speed
    honest: Story
    families: Annotated[dict[Name, Story], Field(default_factory=dict, max_length=20)]
    """By the adversary's role."""
    levels: Annotated[dict[Name, Story], Field(default_factory=dict, max_length=20)]
    """By levels descended at once."""
    notable: Annotated[dict[Name, Line], Field(default_factory=dict, max_length=50)]
    """What for -> line."""
    adversaries: Annotated[dict[Slug, Adversary], Field(max_length=500)]
