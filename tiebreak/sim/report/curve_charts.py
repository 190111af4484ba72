"""Pictures of cost at scale: curves with their bounds, and predictions beside measurements. Axes are logarithmic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from tiebreak.sim.report.charts import BLUE, COLOURS, MARKERS, RED, TIMES, WIDTH, End, cut, name_lines, tick
from tiebreak.sim.report.drawing import INK, drawn, to_svg
from tiebreak.sim.report.tracing import Number

BYTES: Final = tuple(
    (10.0**power, f"{10 ** (power % 3)} {unit}")
    for unit, least in (("B", 0), ("kB", 3), ("MB", 6), ("GB", 9), ("TB", 12), ("PB", 15), ("EB", 18))
    for power in range(least, least + 3)
)
YEARS: Final = tuple((10**power * 365.25 * 86400, f"{10**power:,} years") for power in range(1, 10))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A cost over sizes: low, value, high; and where it is beyond what was measured."""

    label: str
    unit: str
    x: tuple[Number, ...]
    y: tuple[tuple[Number, Number, Number], ...]
    extrapolated: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Curves of one unit."""

    label: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A prediction and what was measured."""

    low: Number
    predicted: Number
    high: Number
    measured: Number
    unit: str
    holds: bool


def curves(
    name: str, title: str, panels: Sequence[Panel], xlabel: str, stop: tuple[float, str] | None
) -> str:  # fmt: skip
    """A panel for each unit; lines are named at their ends, and dashed where extrapolated."""
    panels = [panel for panel in panels if panel.curves]
    with drawn(name):
        figure = Figure(figsize=(WIDTH, 1.0 + 2.35 * len(panels)), layout="constrained")
        every = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, panel in zip(every, panels, strict=True):
            axes.set_xscale("log")
            axes.set_yscale("log")
            for curve, colour in zip(panel.curves, COLOURS, strict=False):
                _draw(axes, curve, colour)
            _vertical(axes, panel.curves[0].unit)
            name_lines(axes, [
                End(label=curve.label, x=curve.x[-1].value, y=curve.y[-1][1].value, colour=colour)
                for curve, colour in zip(panel.curves, COLOURS, strict=False)
            ])  # fmt: skip
            axes.set_title(panel.label)
            axes.grid()
            if stop is not None:
                axes.axvline(stop[0], color=INK, linewidth=1, linestyle=":")
        if stop is not None:
            every[0].annotate(cut(stop[1]), (stop[0], 1), xycoords=("data", "axes fraction"), xytext=(4, -3),
                              textcoords="offset points", va="top", fontsize=9)  # fmt: skip
        every[-1].set_xlabel(xlabel)
        every[-1].xaxis.set_major_locator(LogLocator(numticks=12))
        every[-1].xaxis.set_major_formatter(FuncFormatter(tick))
        return to_svg(figure, title)


def _draw(axes: Any, curve: Curve, colour: str) -> None:
    x = [number.value for number in curve.x]
    y = [value.value for _, value, _ in curve.y]
    axes.fill_between(
        x, [low.value for low, _, _ in curve.y], [high.value for _, _, high in curve.y], color=colour, alpha=0.16,
        linewidth=0,
    )  # fmt: skip
    known = sum(not beyond for beyond in curve.extrapolated)
    axes.plot(x[:known], y[:known], color=colour, linewidth=1.8)
    axes.plot(x[max(0, known - 1) :], y[max(0, known - 1) :], color=colour, linewidth=1.4, linestyle=(0, (4, 2)))


def _vertical(axes: Any, unit: str) -> None:
    """Ticks that are read as times or bytes."""
    low, high = axes.get_ylim()
    named = {"s": (*TIMES, *YEARS), "bytes": BYTES}.get(unit)
    if named is None:
        axes.yaxis.set_major_formatter(FuncFormatter(tick))
        axes.yaxis.set_minor_formatter(NullFormatter())
        return
    inside = [(at, text) for at, text in named if low <= at <= high]
    inside = inside[:: max(1, -(-len(inside) // 7))]
    axes.set_yticks([at for at, _ in inside], [text for _, text in inside])
    axes.yaxis.set_minor_locator(NullLocator())


def parity(name: str, title: str, groups: Mapping[str, Sequence[Pair]]) -> str:
    """A panel for each group: predictions with their bounds across, measurements up; right ones are on the line."""
    across = min(3, len(groups))
    down = -(-len(groups) // across)
    with drawn(name):
        figure = Figure(figsize=(WIDTH, 0.3 + 2.9 * down), layout="constrained")
        every = figure.subplots(down, across, squeeze=False).ravel()
        for axes, (group, pairs) in zip(every, groups.items(), strict=False):
            values = [number.value for pair in pairs for number in (pair.low, pair.high, pair.measured)]
            ends = (min(v for v in values if v > 0) / 1.6, max(values) * 1.6)
            axes.plot(ends, ends, color=INK, linewidth=0.8)
            for i, unit in enumerate(dict.fromkeys(pair.unit for pair in pairs)):
                _pairs(axes, [pair for pair in pairs if pair.unit == unit], MARKERS[i % len(MARKERS)])
            units = ", ".join(filter(None, dict.fromkeys(pair.unit for pair in pairs)))
            axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="predicted", ylabel="measured")
            axes.set_title(f"{group} ({units})" if units not in ("", group) else group)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(LogLocator(numticks=5))
                axis.set_major_formatter(FuncFormatter(tick))
                axis.set_minor_formatter(NullFormatter())
            axes.grid()
        for axes in every[len(groups) :]:
            axes.set_visible(False)
        return to_svg(figure, title)


def _pairs(axes: Any, pairs: Sequence[Pair], marker: str) -> None:
    for pair in pairs:
        colour = BLUE if pair.holds else RED
        at = pair.measured.value
        axes.plot([pair.low.value, pair.high.value], [at, at], color=colour, linewidth=2.5, alpha=0.35)
        axes.plot([pair.predicted.value], [at], marker, color=colour, markersize=4.5)
