"""Curves and walks as inline SVG that stretches with its box and takes its colours from the style sheet.

A stretched picture holds no text, which would stretch with it; labels stand beside it in HTML.
"""

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from tiebreak.node.pages.walk import Range
from tiebreak.node.pages.words import Values

WIDTH: Final = 1000
HEIGHT: Final = 300
MAX_CELLS: Final = 48
"""A tree with more leaves is drawn as one bar."""
NARROWEST: Final = 7
"""The least width of a part that was found, in units of `WIDTH`, so that one of a million can be seen."""


def _svg(kind: str, height: int, parts: Sequence[str], label: str = "") -> Markup:
    """All parts are made of numbers and class names of this module's own."""
    said = Markup('role="img" aria-label="{}"').format(label) if label else Markup('aria-hidden="true"')
    box = f'viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none"'
    return Markup('<svg class="{}" {} {}>{}</svg>').format(kind, said, Markup(box), Markup("".join(parts)))  # noqa: S704


def curve(card: Values, heads: Sequence[int] = (), label: str = "Loss so far") -> Markup:
    """Losses over the steps of a whole run; a hairline where a head was signed."""
    points, steps = card["training"]["points"], card["job"].steps
    parts = [_line("head", x := _across(step, steps), 0, x, HEIGHT) for step in heads]
    if points:
        low, high = extent(points)
        spread = (high - low) or 1.0
        places = [(_across(step, steps), 6 + (HEIGHT - 12) * (high - loss) / spread) for step, loss in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        first, last = places[0][0], places[-1][0]
        parts.append(f'<polygon class="area" points="{first:.1f},{HEIGHT} {path} {last:.1f},{HEIGHT}"/>')
        parts.append(f'<polyline class="loss" points="{path}"/>')
    return _svg("curve", HEIGHT, parts, label)


def extent(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    losses = [loss for _, loss in points]
    return min(losses), max(losses)


def bar(stage: Values) -> Markup:
    """All leaves of a tree: agreed, found or not looked at."""
    found, total = stage["found"], stage["total"]
    low, high = found or (stage["cuts"][-1] if stage["cuts"] else (0, total))
    kind = "found" if found else "open"
    if total <= MAX_CELLS:
        cell = WIDTH / total
        gap = min(4.0, cell / 6)
        kinds = ["agreed" if k < low else kind if k < high else "rest" for k in range(total)]
        parts = [_box(kinds[k], k * cell + gap / 2, cell - gap, 0, 10) for k in range(total)]
    else:
        left, right = _place((low, high), total)
        parts = [_box("agreed", 0, left, 0, 10), _box("rest", right, WIDTH - right, 0, 10)]
        parts.append(_box(kind, left, right - left, 0, 10))
    return _svg("bar", 10, parts, "{title}: of {total} {unit}, what is left of it is agreed".format_map(stage))


def cuts(stage: Values) -> Markup:
    """The ranges that were left after each selection, one below the other."""
    places = [_place(cut, stage["total"]) for cut in stage["cuts"]]
    parts = [_box("cut", left, right - left, 3 * row + 1, 1) for row, (left, right) in enumerate(places)]
    return _svg(f"cuts rows-{min(len(parts), 24)}", max(3 * len(parts), 1), parts)


def fan(stage: Values) -> Markup:
    """A fan from the part that was found to the whole width of the next stage."""
    left, right = _place(stage["found"] or (0, stage["total"]), stage["total"])
    shape = f'<polygon class="fan" points="{left:.1f},0 {right:.1f},0 {WIDTH},10 0,10"/>'
    return _svg("fans", 10, [shape, _line("edge", left, 0, 0, 10), _line("edge", right, 0, WIDTH, 10)])


def _place(cut: Range, total: int) -> tuple[float, float]:
    left, right = WIDTH * cut[0] / total, WIDTH * cut[1] / total
    if right - left < NARROWEST:
        middle = min(max((left + right) / 2, NARROWEST / 2), WIDTH - NARROWEST / 2)
        return middle - NARROWEST / 2, middle + NARROWEST / 2
    return left, right


def _across(step: int, steps: int) -> float:
    return WIDTH * (step - 1) / max(1, steps - 1)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _box(kind: str, x: float, width: float, y: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{max(0.0, width):.1f}" height="{height}"/>'
