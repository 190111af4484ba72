"""Pictures of incentives: best replies over grids, equilibria over a stake, margins around recommended terms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan
from textwrap import fill
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from tiebreak.sim.report.charts import BLUE, COLOURS, MARKERS, RED, WIDTH, cut, tick
from tiebreak.sim.report.drawing import INK, drawn, to_svg
from tiebreak.sim.report.tracing import Number
from tiebreak.sim.report.words import rounded

ACROSS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Best replies at points: codes of labels, found by rules and in closed form; rows go up."""

    title: str
    xlabel: str
    ylabel: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    rules: Sequence[Sequence[int]]
    closed: Sequence[Sequence[int]]


def regions(name: str, title: str, labels: Sequence[str], grids: Sequence[Grid]) -> str:
    """A panel for each grid: points are the sweep's, the line is where the closed form's best reply changes."""
    across = min(ACROSS, len(grids))
    down = -(-len(grids) // across)
    used = sorted({code for grid in grids for line in grid.rules for code in line})
    with drawn(name):
        figure = Figure(figsize=(WIDTH, 0.6 + 2.65 * down), layout="constrained")
        every = figure.subplots(down, across, squeeze=False).ravel()
        for axes, grid in zip(every, grids, strict=False):
            _grid(axes, grid, used)
        for axes in every[len(grids) :]:
            axes.set_visible(False)
        handles = [
            Line2D([], [], color=COLOURS[i % len(COLOURS)], marker=MARKERS[i % len(MARKERS)], linestyle="")
            for i in used
        ]  # fmt: skip
        handles.append(Line2D([], [], color=INK, linewidth=1.4))
        told = [*(labels[i] for i in used), "closed form’s boundary"]
        figure.legend(handles, told, loc="outside upper left", ncols=2, frameon=False, fontsize=9)
        return to_svg(figure, title)


def _grid(axes: Any, grid: Grid, used: Sequence[int]) -> None:
    for code in used:
        points = [
            (x, y) for y, line in zip(grid.y, grid.rules, strict=True)
            for x, found in zip(grid.x, line, strict=True) if found == code
        ]  # fmt: skip
        if points:
            axes.plot(*zip(*points, strict=True), MARKERS[code % len(MARKERS)], color=COLOURS[code % len(COLOURS)],
                      markersize=2.8, alpha=0.8, linewidth=0)  # fmt: skip
    _boundary(axes, grid)
    axes.set_title(fill(grid.title, 30), fontsize=9)
    axes.set_xlabel(fill(grid.xlabel, 34), fontsize=8.5)
    axes.set_ylabel(fill(grid.ylabel, 30), fontsize=8.5)
    axes.tick_params(labelsize=8)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(tick))


def _boundary(axes: Any, grid: Grid) -> None:
    """Along the middle between neighbours of which the closed form says another best reply; one path with gaps."""
    right, up = _edges(grid.x), _edges(grid.y)
    xs: list[float] = []
    ys: list[float] = []
    for j, line in enumerate(grid.closed):
        for i, (here, beside) in enumerate(pairwise(line)):
            if here != beside:
                xs += [right[i + 1], right[i + 1], nan]
                ys += [up[j], up[j + 1], nan]
    for j, (lower, upper) in enumerate(pairwise(grid.closed)):
        for i, (here, above) in enumerate(zip(lower, upper, strict=True)):
            if here != above:
                xs += [right[i], right[i + 1], nan]
                ys += [up[j + 1], up[j + 1], nan]
    axes.plot(xs, ys, color=INK, linewidth=1.4, solid_capstyle="round")


def _edges(values: Sequence[float]) -> list[float]:
    middles = [(a + b) / 2 for a, b in pairwise(values)]
    return [values[0] - (middles[0] - values[0]), *middles, values[-1] + (values[-1] - middles[-1])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A case of `shares`: one curve in each panel."""

    label: str
    x: tuple[Number, ...]
    y: tuple[tuple[Number, ...], ...]


def shares(name: str, title: str, lines: Sequence[Line], panels: Sequence[str], xlabel: str) -> str:
    """A panel for each share, a line for each case."""
    with drawn(name):
        figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
        every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for i, (axes, panel) in enumerate(zip(every, panels, strict=True)):
            for k, line in enumerate(lines):
                axes.plot(
                    [number.value for number in line.x], [number.value for number in line.y[i]],
                    color=COLOURS[k % len(COLOURS)], marker=MARKERS[k % len(MARKERS)], markersize=3.5, linewidth=1.4,
                    label=line.label, alpha=0.9,
                )  # fmt: skip
            axes.set_title(panel)
            axes.set_ylim(-0.03, 1.03)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
            axes.grid()
        every[len(panels) // 2].set_xlabel(xlabel)
        handles, labels = every[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=2, frameon=False, fontsize=9)
        return to_svg(figure, title)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack:
    """A row of `factors`: how far down and up a figure may go; None: as far as was looked."""

    label: str
    down: Number | None
    up: Number | None


def factors(name: str, title: str, labels: Sequence[str], panels: Mapping[str, Sequence[Slack]], most: float) -> str:
    """A panel for each case: bars around one, on a logarithmic axis, and how far they go."""
    with drawn(name):
        figure = Figure(figsize=(WIDTH, 0.9 + 0.34 * len(labels)), layout="constrained")
        every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (panel, rows) in zip(every, panels.items(), strict=True):
            for row in rows:
                _factor(axes, labels.index(row.label), row, most)
            axes.axvline(1, color=INK, linewidth=1)
            axes.set(xscale="log", xlim=(1 / most / 60, most * 60), ylim=(len(labels) - 0.4, -0.6))
            axes.set_title(panel)
            axes.set_xticks([1 / most, 1, most])
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{tick(value)}×"))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.tick_params(axis="y", length=0)
            axes.grid(axis="x")
        every[0].set_yticks(range(len(labels)), [cut(label, 50) for label in labels], fontsize=9)
        return to_svg(figure, title)


def _factor(axes: Any, y: int, row: Slack, most: float) -> None:
    low = 1 / most if row.down is None else max(row.down.value, 1 / most)
    high = most if row.up is None else min(row.up.value, most)
    axes.plot([low, high], [y, y], color=BLUE, linewidth=7, alpha=0.5, solid_capstyle="butt")
    for at, number, aligned, shift in ((low, row.down, "right", -4), (high, row.up, "left", 4)):
        text = "any" if number is None else f"{rounded(number.value)}×"
        axes.annotate(text, (at, y), xytext=(shift, 0), textcoords="offset points", ha=aligned, va="center",
                      fontsize=8, color=INK if number is None else RED)  # fmt: skip


def costs(
    name: str, title: str, panels: Mapping[str, tuple[Sequence[Number], Sequence[tuple[str, Sequence[Number]]]]]
) -> str:  # fmt: skip
    """A panel for each case: ether against the audit probability, both logarithmic."""
    with drawn(name):
        figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
        every = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (panel, (x, lines)) in zip(every, panels.items(), strict=True):
            for k, (label, values) in enumerate(lines):
                at = [(a.value, b.value / 1e18) for a, b in zip(x, values, strict=True) if b.value > 0]
                if at:
                    axes.plot(*zip(*at, strict=True), color=COLOURS[k], marker=MARKERS[k], markersize=4, linewidth=1.6,
                              alpha=0.9, label=label)  # fmt: skip
            axes.set(xscale="log", yscale="log", xlabel="each auditor audits")
            axes.set_title(panel)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
            axes.yaxis.set_major_formatter(FuncFormatter(tick))
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_minor_formatter(NullFormatter())
            axes.grid()
        every[0].set_ylabel("ether a job")
        handles, labels = every[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False, fontsize=9)
        return to_svg(figure, title)
