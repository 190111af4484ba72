"""How every picture is drawn, and how it becomes SVG: on a page it takes text colour from the page, light or dark.

The same numbers give the same bytes: ids are salted with the picture's name, no date is written, and coordinates are
rounded, so that the last digit of a machine's arithmetic is not seen.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from html import escape
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

INK: Final = "#7b7b7b"
"""Drawn in matplotlib's output wherever the page's own text colour belongs; replaced in the SVG."""
STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # names come from files: a dollar sign is a dollar sign
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "grid.color": INK,
    "grid.alpha": 0.18,
}
DIGITS: Final = 2
"""Of a coordinate, after the point: a hundredth of a point cannot be seen."""
ALONE: Final = (
    "svg{color:#1c1c1e;background:#fff}@media(prefers-color-scheme:dark){svg{color:#e8e8e6;background:#16181b}}"
)
"""A file of its own has no page to take colours from."""


@contextmanager
def drawn(salt: str) -> Iterator[None]:
    """Settings for one picture. The salt keeps ids of several pictures on one page apart, and the same every time."""
    settings: Any = STYLE | {"svg.hashsalt": salt}
    with mpl.rc_context(settings):
        yield


def to_svg(figure: Figure, label: str) -> str:
    """The figure as an SVG element that scales with its container and says what it shows."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # matplotlib names fonts of this machine; the page's own fonts are the right ones.
    svg = re.sub(r"font(?:-family)?: ?([^;\"']*)'[^\"]*?sans-serif[^;\"]*", r"font: \1 system-ui, sans-serif", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    # Names of groups (axes_1, text_7) are the same in every picture, and nothing refers to them.
    svg = re.sub(r'(?<=<g) id="[A-Za-z][A-Za-z.0-9]*_\d+"', "", svg)
    svg = _renamed(re.sub(r"\n +", "\n", svg))
    svg = _MARKED.sub(_hoisted, svg)
    svg = _COORDINATES.sub(lambda found: f'{found[1]}="{_FRACTION.sub(_rounded, found[2])}"', svg)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
    return svg.replace(INK, "currentColor").strip()


def alone(svg: str) -> str:
    """A drawn element as a file of its own, with ground and text colours for light and dark."""
    return re.sub(r"(<svg[^>]*>)", rf"\1<style>{ALONE}</style>", svg, count=1) + "\n"


_ID: Final = re.compile(r' id="([a-z])([0-9a-f]{10})"')


def _renamed(svg: str) -> str:
    """Ids by their order, in place of matplotlib's hashes of exact coordinates. The picture's salt keeps them apart."""
    salt = mpl.rcParams["svg.hashsalt"]
    names = {}
    for number, found in enumerate(dict.fromkeys(_ID.findall(svg))):
        kind, old = found
        names[kind + old] = kind + sha256(f"{salt} {number}".encode()).hexdigest()[:10]
    return re.sub(r'(?<=#)[a-z][0-9a-f]{10}\b|(?<=id=")[a-z][0-9a-f]{10}(?=")', lambda m: names.get(m[0], m[0]), svg)


_MARKED: Final = re.compile(r'<g( [^>]*)?>\s*((?:<use [^>]* style="[^"]*"/>\s*)+)</g>')
_FILL: Final = re.compile(r' style="([^"]*)"/>')


def _hoisted(found: re.Match[str]) -> str:
    """A style that all marks of a group have is written once, on the group."""
    styles = set(_FILL.findall(found[2]))
    if len(styles) > 1:
        return found[0]
    return f'<g{found[1] or ""} style="{styles.pop()}">{_FILL.sub("/>", found[2])}</g>'


_COORDINATES: Final = re.compile(r'(?<=\s)(d|transform|x|y|points|width|height)="([^"]*)"')
_FRACTION: Final = re.compile(r"-?\d+\.\d+")


def _rounded(found: re.Match[str]) -> str:
    text = f"{float(found[0]):.{DIGITS}f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
