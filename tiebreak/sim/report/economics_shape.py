"""What `make bench-economics` writes (`benchmarks.economics`, `sim.incentives`), as far as the report reads it."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tiebreak.sim.report.results import Shape
from tiebreak.sim.report.simulate_shape import Amount, Count, Environment, Name, Size, Words

Share = Annotated[int | float, Field(ge=0, le=1)]
Argument = Annotated[str, Field(pattern=r"^(--[a-z-]{1,40}|[0-9.]{1,80})$")]
"""Of a line that people copy into a shell."""
Codes = Annotated[
    list[Annotated[list[Annotated[int, Field(ge=0, le=20)]], Field(max_length=200)]], Field(max_length=200)
]


class Condition(Shape):
    """What must hold for honesty and diligence to be best replies."""

    name: Words
    holds: bool
    slack: Amount
    against: Words


class Margin(Shape):
    """By which factor a figure may be off; null: by any."""

    figure: Words
    down: Size | None
    up: Size | None
    breaks_down: Words
    breaks_up: Words


class Rate(Shape):
    """What an audit probability costs."""

    probability: Share
    discovery: Share
    stake: Size
    replays: Size
    capital: Size
    total: Size


class Equilibrium(Shape):
    """What becomes of a way to have jobs audited."""

    name: Words
    lies: Share
    audit_probability: Share
    accepted: Share
    cheat: Words
    cost: Size


class Griefing(Shape):
    """What it costs to make others lose."""

    attack: Words
    attacker: Size
    harm: Size
    compensation: Size
    factor: Size | None


class Terms(Shape):
    """Of a job."""

    reward: Size
    trainer_stake: Size
    challenger_stake: Size
    challenge_window: Size
    clock: Size
    replay_time: Size
    descent_levels: Count


class Preset(Shape):
    """What was found of one job."""

    figures: Environment
    terms: Terms
    agree: Annotated[list[Argument], Field(max_length=40)]
    audit_fee: Size
    decoys: Share | None
    conditions: Annotated[list[Condition], Field(min_length=1, max_length=20)]
    margins: Annotated[list[Margin], Field(max_length=30)]
    rates: Annotated[list[Rate], Field(max_length=30)]
    equilibria: Annotated[list[Equilibrium], Field(max_length=30)]
    griefing: Annotated[list[Griefing], Field(max_length=30)]


class Axis(Shape):
    """Of a grid."""

    name: Words
    values: Annotated[list[Amount], Field(min_length=2, max_length=200)]

    @model_validator(mode="after")
    def _grow(self) -> "Axis":
        if any(b <= a for a, b in zip(self.values, self.values[1:], strict=False)):
            raise ValueError("the values of an axis do not grow")
        return self


class Region(Shape):
    """Best replies over a grid, found in two ways; numbers are of `labels`, the first of which is the honest one."""

    name: Words
    party: Literal["trainer", "auditor"]
    labels: Annotated[list[Name], Field(min_length=2, max_length=20)]
    x: Axis
    y: Axis
    closed: Codes
    rules: Codes
    disagreements: Count

    @model_validator(mode="after")
    def _fits(self) -> "Region":
        for grid in (self.closed, self.rules):
            if len(grid) != len(self.y.values) or any(len(line) != len(self.x.values) for line in grid):
                raise ValueError("a grid does not have the size of its axes")
            if any(code >= len(self.labels) for line in grid for code in line):
                raise ValueError("a grid has a number without a label")
        return self


class Solved(Shape):
    """Equilibria over the trainer's stake."""

    name: Words
    x: Axis
    lies: Annotated[list[Share], Field(max_length=200)]
    audit_probability: Annotated[list[Share], Field(max_length=200, alias="audit probability")]
    settle: Annotated[list[Share], Field(max_length=200, alias="false jobs that settle")]

    @model_validator(mode="after")
    def _fits(self) -> "Solved":
        if {len(self.lies), len(self.audit_probability), len(self.settle)} != {len(self.x.values)}:
            raise ValueError("a curve does not have the length of its axis")
        return self


class Played(Shape):
    """What a trainer was paid in games at random."""

    strategy: Name
    games: Count
    mean: Amount
    error: Size
    expected: Amount


class Sweep(Shape):
    """Grids around one job."""

    seed: Count
    points: Count
    disagreements: Count
    regions: Annotated[list[Region], Field(max_length=50)]
    equilibria: Annotated[list[Solved], Field(max_length=20)]
    simulated: Annotated[list[Played], Field(max_length=20)]


class Economics(Shape):
    """The file."""

    name: Literal["economics"]
    note: Words
    environment: Environment
    presets: Annotated[
        dict[Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")], Preset], Field(min_length=1, max_length=20)
    ]
    sweep: Sweep
