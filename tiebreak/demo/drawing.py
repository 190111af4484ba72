"""Matplotlib figures as inline SVG in the page's own text colour, light or dark."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

INK: Final = "#7b7b7b"
"""Stands for the page's own text colour while matplotlib draws."""
STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a name is only a dollar sign
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
}


@contextmanager
def drawn(salt: str) -> Iterator[None]:
    """Sets matplotlib up for one picture. The salt makes its ids unique on a page and the same every time."""
    settings: Any = STYLE | {"svg.hashsalt": salt}
    with mpl.rc_context(settings):
        yield


def to_svg(figure: Figure, label: str) -> str:
    """The figure as an SVG element that scales with its container and has a label."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # matplotlib names this machine's fonts, but the page's own fonts should be used.
    svg = re.sub(r"font(?:-family)?: ?([^;\"']*)'[^\"]*?sans-serif[^;\"]*", r"font: \1 system-ui, sans-serif", svg)
    svg = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", svg, count=1)
    # Ids of groups (axes_1, text_7) repeat in every picture, and nothing refers to them.
    svg = re.sub(r'(?<=<g) id="[A-Za-z][A-Za-z.0-9]*_\d+"', "", svg)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
    return svg.replace(INK, "currentColor").strip()
