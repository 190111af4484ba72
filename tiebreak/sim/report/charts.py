"""Pictures: what is drawn is given as numbers of results files, so that a table beside can say the same.

Colours are Paul Tol's bright scheme, which colour-blind readers can tell apart, and no picture needs them alone:
lines and points are named where they are, and differ in shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log10
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, MultipleLocator, NullFormatter, NullLocator

from tiebreak.sim.report.drawing import INK, drawn, to_svg
from tiebreak.sim.report.tracing import Number
from tiebreak.sim.report.words import rounded

BLUE: Final = "#4477aa"
RED: Final = "#ee6677"
GREEN: Final = "#228833"
YELLOW: Final = "#ccbb44"
CYAN: Final = "#66ccee"
PURPLE: Final = "#aa3377"
COLOURS: Final = (BLUE, RED, GREEN, YELLOW, CYAN, PURPLE)
MARKERS: Final = ("o", "s", "^", "D", "v", "P")
WIDTH: Final = 8.4
"""Inches: a page's width at 12 px text."""
ROW: Final = 0.235
DECADE: Final = 10
MOST_TICKS: Final = 4
UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
TIMES: Final = tuple(
    (count * unit, f"{count} {name}")
    for unit, name, counts in (
        (1, "s", (1, 2, 5, 10, 30)), (60, "min", (1, 2, 5, 10, 30)), (3600, "h", (1, 2, 6, 12)),
        (86400, "d", (1, 2, 5, 10, 30, 100)), (365.25 * 86400, "years", (1, 2, 5)),
    )
    for count in counts
)  # fmt: skip
"""Places on an axis of seconds."""
SHORT: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """An axis: what it shows, and in which unit."""

    label: str
    log: bool = False
    time: bool = False
    """Values are seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A row of `ranges`: a name, its group, and for each measure least, median, greatest (None: there is nothing)."""

    label: str
    group: str
    spreads: tuple[tuple[Number, Number, Number] | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Bins as (from, to, count), and the median."""

    bins: Sequence[tuple[float, float, Number]]
    middle: Number


def tick(value: float, _position: object = None) -> str:
    """A number at an axis: 10k, 2.5M."""
    for scale, unit in SHORT:
        if abs(value) >= scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value:.3g}"


def cut(label: str, most: int = 44) -> str:
    """A name that leaves room for the picture."""
    return label if len(label) <= most else f"{label[: most - 1]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Where a line ends, and how it is called."""

    label: str
    x: float
    y: float
    colour: str


def name_lines(axes: Any, ends: Sequence[End], most: int = 36) -> None:
    """Each line by its end on a logarithmic axis; names that would cover each other are moved apart."""
    low, high = (log10(end) for end in axes.get_ylim())
    inches = axes.get_figure().get_size_inches()[1] * axes.get_position().height
    step, at = (high - low) * 0.19 / max(inches, 0.5), -inf
    for end in sorted(ends, key=lambda end: end.y):
        at = max(log10(end.y), at + step)
        axes.annotate(cut(end.label, most), (end.x, 10**at), xytext=(7, 0), textcoords="offset points",
                      color=end.colour, va="center", fontsize=9, annotation_clip=False)  # fmt: skip


def _axis(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(tick))
    axis.set_minor_formatter(NullFormatter())


def matrix(
    name: str, title: str, rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[Number | None]],
    expected: Sequence[Sequence[bool]],
) -> str:  # fmt: skip
    """Counts as shaded squares with the count in each; a frame where one was expected."""
    with drawn(name):
        figure = Figure(figsize=(WIDTH, 1.2 + ROW * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        for y, (line, frames) in enumerate(zip(cells, expected, strict=True)):
            whole = sum(number.value for number in line if number is not None) or 1
            for x, (number, frame) in enumerate(zip(line, frames, strict=True)):
                _square(axes, x, y, number, whole, frame=frame)
        axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
        axes.set_xticks(range(len(columns)), columns, rotation=38, ha="left", rotation_mode="anchor")
        axes.set_yticks(range(len(rows)), [cut(label) for label in rows])
        axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
        axes.spines[:].set_visible(False)
        return to_svg(figure, title)


def _square(axes: Any, x: int, y: int, number: Number | None, whole: float, *, frame: bool) -> None:
    share = 0 if number is None else number.value / whole
    colour = BLUE if frame else RED
    if share:
        axes.add_patch(mpl.patches.Rectangle((x - 0.46, y - 0.42), 0.92, 0.84, color=colour, alpha=0.15 + 0.5 * share))
        assert number is not None
        axes.text(x, y, tick(number.value), ha="center", va="center", fontsize=9)
    if frame:
        box = mpl.patches.Rectangle((x - 0.46, y - 0.42), 0.92, 0.84, fill=False, edgecolor=BLUE, linewidth=0.8)
        axes.add_patch(box)


def ranges(name: str, title: str, rows: Sequence[Range], measures: Sequence[Measure]) -> str:
    """From least to greatest with a point at the median: a row for each name, a panel for each measure."""
    groups = list(dict.fromkeys(row.group for row in rows))
    with drawn(name):
        figure = Figure(figsize=(WIDTH, 0.9 + ROW * (len(rows) + len(groups))), layout="constrained")
        panels = figure.subplots(1, len(measures), sharey=True, squeeze=False)[0]
        y, labels = 0.0, []
        for i, group in enumerate(groups):
            colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
            panels[0].annotate(cut(group), (0, y), xycoords=("axes fraction", "data"), xytext=(-6, 0), ha="right",
                               textcoords="offset points", color=colour, va="center", fontweight="bold")  # fmt: skip
            for row in (row for row in rows if row.group == group):
                y += 1
                labels.append((y, cut(row.label)))
                for axes, spread in zip(panels, row.spreads, strict=True):
                    if spread is not None:
                        _range(axes, y, spread, colour, marker)
            y += 1
        panels[0].set_yticks([at for at, _ in labels], [text for _, text in labels])
        panels[0].set_ylim(y - 0.3, -0.7)
        for i, (axes, measure) in enumerate(zip(panels, measures, strict=True)):
            found = [spread for row in rows if (spread := row.spreads[i]) is not None]
            _scale(axes, measure, [spread[0].value for spread in found], [spread[2].value for spread in found])
            axes.tick_params(axis="y", length=0)
            axes.grid(axis="x")
        return to_svg(figure, title)


def _range(axes: Any, y: float, spread: tuple[Number, Number, Number], colour: str, marker: str) -> None:
    least, middle, most = (number.value for number in spread)
    axes.plot([least, most], [y, y], color=colour, linewidth=3, alpha=0.45, solid_capstyle="butt")
    axes.plot([middle], [y], marker, color=colour, markersize=5)


def _scale(axes: Any, measure: Measure, lows: Sequence[float], highs: Sequence[float]) -> None:
    """The horizontal axis. Logarithmic only where values differ by more than an order of magnitude."""
    axes.set_xlabel(measure.label)
    low, high = min(lows, default=0), max(highs, default=0)
    if measure.log and 0 < low < high / DECADE:
        axes.set_xscale("log")
        if measure.time:
            inside = [(at, text) for at, text in TIMES if low / 1.2 <= at <= high * 1.2]
            inside = inside[:: -(-len(inside) // MOST_TICKS)]
            axes.set_xticks([at for at, _ in inside], [text for _, text in inside])
            axes.xaxis.set_minor_locator(NullLocator())
            return
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 60 * low else (1,)))
    else:
        axes.set_xlim(left=min(0, low))
        axes.xaxis.set_major_locator(MaxNLocator(MOST_TICKS, integer=True))
        if measure.time and high:
            _hours(axes, high)
            return
    _axis(axes.xaxis)


def histograms(
    name: str, title: str, labels: Sequence[str], panels: Sequence[Sequence[Histogram | None]],
    measures: Sequence[Measure],
) -> str:  # fmt: skip
    """A row for each label, a column for each measure, the median named in each panel."""
    with drawn(name):
        figure = Figure(figsize=(WIDTH, 0.7 + 0.66 * len(labels)), layout="constrained")
        grid = figure.subplots(len(labels), len(measures), sharex="col", squeeze=False)
        for i, measure in enumerate(measures):
            column = [row[i] for row in panels]
            bins = [found for panel in column if panel is not None for found in panel.bins]
            extent = max(high for _, high, _ in bins) - min(low for low, _, _ in bins) if bins else 1
            for y, panel in enumerate(column):
                _panel(grid[y][i], panel, extent or 1, COLOURS[y % len(COLOURS)], measure)
            _scale(grid[-1][i], measure, [low for low, _, _ in bins], [high for _, high, _ in bins])
        for axes, label in zip(grid[:, 0], labels, strict=True):
            axes.set_ylabel(cut(label, 24), rotation=0, ha="right", va="center")
        return to_svg(figure, title)


def _panel(axes: Any, panel: Histogram | None, extent: float, colour: str, measure: Measure) -> None:
    """Bins of one value are bars of a width that can be seen."""
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    if panel is None:
        return
    starts = [start for start, _, _ in panel.bins]
    gap = min([extent / 20, *(b - a for a, b in pairwise(starts))])
    for start, end, count in panel.bins:
        single = {"width": 0.8 * max(gap, extent / 80), "align": "center"}
        wide = {"width": end - start, "align": "edge"} if end > start else single
        axes.bar(start, count.value, color=colour, alpha=0.75, linewidth=0, **wide)
    axes.axvline(panel.middle.value, color=INK, linewidth=1)
    told = time(panel.middle.value) if measure.time else tick(panel.middle.value)
    axes.set_title(f"median {told}", fontsize=8.5, pad=3)


def _hours(axes: Any, most: float) -> None:
    """A linear axis of seconds, in hours or days."""
    unit, name = (86400, "d") if most > 4 * 86400 else (3600, "h") if most > 2 * 3600 else (60, "min")
    axes.xaxis.set_major_locator(MultipleLocator(unit * max(1, -(-most // (unit * MOST_TICKS)))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit:g} {name}" if value else "0"))


def time(seconds: float) -> str:
    """A few digits in the unit that suits."""
    unit, name = next(((unit, name) for unit, name in UNITS if seconds >= unit), (1, "s"))
    return f"{rounded(seconds / unit)} {name}"
