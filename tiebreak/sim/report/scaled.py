"""Sections on cost at scale: curves in each direction, what gives way first, predictions against measurements."""

from collections.abc import Callable, Iterable
from typing import Final

from tiebreak.sim.report import curve_charts, words
from tiebreak.sim.report.curve_charts import Curve, Pair, Panel
from tiebreak.sim.report.page import Block, Entry, Paragraph, Picture, Section, Table, Text, entry, row, table
from tiebreak.sim.report.results import Key, Results
from tiebreak.sim.report.tracing import Number

DIRECTIONS: Final = {
    "parameters": ("parameters of the model", ("trainer_step", "training", "dispute_time"),
                   ("memory", "run_bytes", "message_bytes"), ("dispute_gas", "job_gas")),
    "steps": ("steps of a job", ("training", "replay_move", "dispute_time"),
              ("run_bytes", "records_bytes", "message_bytes"), ("dispute_gas", "job_gas")),
    "jobs": ("jobs", ("all_auditing",), ("all_bytes",), ("all_gas",)),
}  # fmt: skip
"""Axis, and the costs in the panels for time, bytes and gas."""
NAMES: Final = {
    "replay_move": "dearest move of a dispute", "records_bytes": "records of a run",
    "message_bytes": "messages of a dispute", "dispute_gas": "a dispute", "job_gas": "a job without a dispute",
    "all_gas": "all jobs and disputes",
}  # fmt: skip
"""Where the file's own words lean on the line above them."""
PANELS: Final = ("time of one core", "bytes", "gas")
UNITS: Final[dict[str, Callable[[Number | None], words.Cell]]] = {
    "s": words.span, "bytes": words.size, "gas": words.short, "x": words.times, "": words.short,
}  # fmt: skip


def sections(results: Results) -> tuple[Section, ...]:
    """All that is said of scale."""
    made = (
        Section(title="Growth", anchor="growth", blocks=tuple(_growth(results))),
        Section(title="Predictions, tested", anchor="predictions", blocks=tuple(_predictions(results))),
    )
    return tuple(section for section in made if section.blocks)


def shown(number: Number | None, unit: str) -> words.Cell:
    """In the unit's own words."""
    return UNITS.get(unit, words.plain)(number)


def _growth(found: Results) -> Iterable[Block]:
    job = {name: found.number("job", name) for name in ("parameters", "steps", "interval")}
    yield Paragraph(
        text=(
            "Costs of a job of ", words.short(job["parameters"]), " parameters and ", words.whole(job["steps"]),
            " steps with a checkpoint every ", words.whole(job["interval"]), ", as it grows in one direction at a "
            "time. Bands hold ", words.percent(found.number("confidence")), " of measurements if costs grow as they "
            "did; dashed lines are beyond what was measured. Vertical lines: where the first budget is spent.",
        )
    )  # fmt: skip
    yield _bottlenecks(found)
    for direction in found.keys("curves"):
        axis, *panels = DIRECTIONS[direction]
        title = f"Costs by number of {direction}"
        drawn = [
            Panel(label=label, curves=tuple(_curve(found, direction, cost) for cost in costs if _has(found, cost)))
            for label, costs in zip(PANELS, panels, strict=True)
        ]
        name = f"growth-{direction}"
        svg = curve_charts.curves(name, title, drawn, axis, _stop(found, direction))
        yield Picture(name=name, title=title, svg=svg)
        yield _curve_table(found, direction, [cost for costs in panels for cost in costs if _has(found, cost)])


def _has(found: Results, cost: str) -> bool:
    return cost in found.raw("what")


def _called(found: Results, cost: str) -> str:
    return NAMES.get(cost) or found.text("what", cost, "name")


def _stop(found: Results, direction: str) -> tuple[float, str] | None:
    """Where a direction ends, and at what."""
    for end in found.raw("bottlenecks"):
        if end["direction"] == direction and end["at"] is not None and end["first"] is not None:
            return end["at"], end["first"]["budget"]
    return None


def _curve(found: Results, direction: str, cost: str) -> Curve:
    at = ("curves", direction)
    points = [i for i in found.indices(*at) if cost in found.raw(*at, i, "costs")]
    return Curve(
        label=_called(found, cost),
        unit=found.text("what", cost, "unit"),
        x=tuple(found.number(*at, i, "size") for i in points),
        y=tuple(_bounds(found, *at, i, "costs", cost) for i in points),
        extrapolated=tuple(found.raw(*at, i, "costs", cost, "extrapolated") for i in points),
    )


def _bounds(found: Results, *path: Key) -> tuple[Number, Number, Number]:
    low, value, high = (found.number(*path, what) for what in ("low", "value", "high"))
    return low, value, high


def _estimate(found: Results, unit: str, *path: Key) -> Entry:
    """value, and its bounds where it was not counted."""
    low, value, high = _bounds(found, *path)
    if low.value == high.value:
        return entry(shown(value, unit))
    return Entry((shown(value, unit), " (", shown(low, unit), " … ", shown(high, unit), ")"))


def _curve_table(found: Results, direction: str, costs: list[str]) -> Table:
    at = ("curves", direction)
    rows = tuple(
        row(
            words.short(found.number(*at, i, "size")),
            *(_estimate(found, found.text("what", cost, "unit"), *at, i, "costs", cost) for cost in costs),
            found.text(*at, i, "most_used"), words.percent(found.number(*at, i, "share")),
        )
        for i in found.indices(*at)
    )  # fmt: skip
    heads = (direction, *(_called(found, cost) for cost in costs), "budget most used", "used")
    return table(
        name=f"growth-{direction}", title=f"Costs by number of {direction}", heads=heads, rows=rows,
        folded=True,
    )  # fmt: skip


def _bottlenecks(found: Results) -> Table:
    rows = tuple(_bottleneck(found, i) for i in found.indices("bottlenecks"))
    return table(
        name="bottlenecks", title="What gives way first",
        heads=("direction", "from", "up to", "then", "its limit", "what lifts it"), rows=rows,
        note=("A limit of this version, and not of a user’s means, is marked as such.",),
    )  # fmt: skip


def _bottleneck(found: Results, i: int) -> tuple[Entry, ...]:
    at = ("bottlenecks", i)
    start, end = found.number(*at, "start"), found.optional(*at, "at")
    if found.raw(*at, "first") is None:
        return row(found.text(*at, "direction"), words.short(start), words.short(end), "nothing", "", "")
    own = " (of this version)" if found.raw(*at, "first", "own") else ""
    beyond = " (extrapolated)" if found.raw(*at, "extrapolated") else ""
    return row(
        found.text(*at, "direction"), words.short(start),
        entry("over already") if end is None else Entry((words.short(end), beyond)),
        found.text(*at, "first", "budget") + own,
        shown(found.number(*at, "first", "limit"), found.text(*at, "first", "unit")),
        found.text(*at, "first", "lift"),
    )  # fmt: skip


def _predictions(found: Results) -> Iterable[Block]:
    every = list(found.indices("held_out"))
    if not every:
        return
    groups = list(dict.fromkeys(found.text("held_out", i, "group") for i in every))
    pairs = {group: [_pair(found, i) for i in every if found.text("held_out", i, "group") == group] for group in groups}
    title = "Measured against predicted"
    yield Paragraph(text=_tested(found))
    yield Picture(name="predictions", title=title, svg=curve_charts.parity("predictions", title, pairs))
    yield table(
        name="predictions", title=title, folded=True,
        heads=("what", "case", "predicted", "measured", "off by", "at most", "from"),
        rows=tuple(_prediction(found, i) for i in every),
        note=("Off by: the larger over the smaller. A prediction that misses its bound is red.",),
    )  # fmt: skip


def _tested(found: Results) -> Text:
    holds, inside = (found.total("held_out", each=what) for what in ("holds", "inside"))
    return (
        "Points that no model was fitted to. Of ", words.whole(found.count("held_out")), " predictions ",
        words.whole(holds), " are within their bounds, and ", words.whole(inside),
        " measurements lie in the prediction’s own interval.",
    )  # fmt: skip


def _pair(found: Results, i: int) -> Pair:
    low, value, high = _bounds(found, "held_out", i, "predicted")
    return Pair(low=low, predicted=value, high=high, measured=found.number("held_out", i, "measured"),
                unit=found.text("held_out", i, "unit"), holds=found.raw("held_out", i, "holds"))  # fmt: skip


def _prediction(found: Results, i: int) -> tuple[Entry, ...]:
    at = ("held_out", i)
    unit = found.text(*at, "unit")
    return row(
        found.text(*at, "what"), found.text(*at, "case"), _estimate(found, unit, *at, "predicted"),
        shown(found.number(*at, "measured"), unit),
        entry(words.times(found.number(*at, "factor")), tone="" if found.raw(*at, "holds") else "bad"),
        words.times(found.number(*at, "bound")), f"{found.text(*at, 'source')}.json",
    )  # fmt: skip
