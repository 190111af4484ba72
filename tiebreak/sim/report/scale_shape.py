"""What `tiebreak scale --curves` writes (`tiebreak.sim.scale.curves`), as far as the report reads it."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tiebreak.sim.report.results import Shape
from tiebreak.sim.report.simulate_shape import Environment, Name, Size, Words

Direction = Literal["parameters", "steps", "jobs"]
Cost = Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]


class Predicted(Shape):
    """A value with its bounds; all three are one where it was counted."""

    value: Size
    low: Size
    high: Size
    extrapolated: bool

    @model_validator(mode="after")
    def _in_order(self) -> "Predicted":
        if not self.low <= self.value <= self.high:
            raise ValueError("the value is not between its bounds")
        return self


class Point(Shape):
    """Costs at one size."""

    size: Annotated[int | float, Field(gt=0, le=1e30)]
    costs: Annotated[dict[Cost, Predicted], Field(max_length=100)]
    most_used: Words
    share: Size


class What(Shape):
    """A cost in words, and its unit."""

    name: Name
    unit: Annotated[str, Field(max_length=20)]


class HeldOut(Shape):
    """A prediction of what was measured and not fitted to."""

    group: Name
    what: Name
    case: Words
    unit: Annotated[str, Field(max_length=20)]
    predicted: Predicted
    measured: Annotated[int | float, Field(gt=0, le=1e30)]
    factor: Size
    bound: Size
    holds: bool
    inside: bool
    source: Name


class Spent(Shape):
    """A budget that gives way."""

    budget: Name
    limit: Size
    unit: Annotated[str, Field(max_length=20)]
    lift: Words
    own: bool


class Bottleneck(Shape):
    """What gives way first in a direction."""

    direction: Direction
    start: Size
    at: Size | None
    first: Spent | None
    extrapolated: bool


class Job(Shape):
    """From which each direction starts."""

    parameters: Size
    steps: Size
    interval: Size


class Scale(Shape):
    """The file."""

    name: Literal["scale curves"]
    confidence: Annotated[float, Field(gt=0, lt=1)]
    environment: Environment
    job: Job
    what: Annotated[dict[Cost, What], Field(max_length=100)]
    held_out: Annotated[list[HeldOut], Field(max_length=1000)]
    curves: dict[Direction, Annotated[list[Point], Field(min_length=1, max_length=200)]]
    bottlenecks: Annotated[list[Bottleneck], Field(max_length=10)]
