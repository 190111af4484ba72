"""Writes a demo's result as files for people and programs: report.html (self-contained), report.md, result.json.

The pictures are inline SVG, without a background and in the page's own text colour, light or dark.
"""

from html import escape
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tiebreak.lab.demo.results import DemoResult, DisputeResult, JobResult, WalkStep
from tiebreak.node.pages.words import whole
from tiebreak.protocol.commitments.terms import ether

HTML: Final = "report.html"
MARKDOWN: Final = "report.md"
JSON: Final = "result.json"


def short(digest: str) -> str:
    """The two ends of a long hex string; a short one stays whole."""
    return digest if len(digest) <= 18 else f"{digest[:10]}…{digest[-6:]}"


def share(part: int, whole: int) -> str:
    """Formats a ratio so that it is readable over many orders of magnitude."""
    return "0" if part == 0 or whole == 0 else f"{part / whole:.1e}"


def gain(wei: int) -> str:
    """Formats a party's gain; a minus marks a loss."""
    return f"{'+' if wei >= 0 else ''}{ether(wei)}"


def cell(text: object) -> str:
    """Escapes text that would otherwise end a Markdown table cell."""
    return str(text).replace("|", "\\|").replace("\n", " ")


def environment(*, html: bool) -> Environment:
    """The template environment with its filters. Only Markdown has `cell`."""
    made = Environment(
        loader=PackageLoader("tiebreak.lab.demo", "templates"),
        autoescape=html,  # noqa: S701 (Markdown has a filter of its own)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"short": short, "whole": whole, "gain": gain, "cell": cell}
    made.globals["share"] = share
    return made


def to_html(result: DemoResult) -> str:
    """A self-contained page that loads no other resources."""
    losses, walks = map(loss_curve, result.jobs), map(walk, result.disputes)
    drawn = {
        name: list(map(Markup, svgs)) for name, svgs in (("losses", losses), ("walks", walks))
    }  # our own SVG, escaped where made
    return environment(html=True).get_template("report.html.j2").render(r=result, pictures=drawn)


def to_markdown(result: DemoResult) -> str:
    return environment(html=False).get_template("report.md.j2").render(r=result)


def write(result: DemoResult, folder: Path) -> dict[str, Path]:
    """Writes the three files and returns their paths by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {HTML: to_html(result), MARKDOWN: to_markdown(result), JSON: result.to_json()}
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8")
    return {name: folder / name for name in contents}


# ---------------------------------------------------------------- pictures

WIDTH: Final = 380
HEIGHT: Final = 200
LEFT: Final = 40
BOTTOM: Final = 36
"""Measures of the curve in units of its view box: the whole, and the margins that hold the axes' labels."""


def loss_curve(job: JobResult) -> str:
    """The loss at each step, with a dot where a head was signed."""
    most = max(*job.losses, 1e-9)

    def at(step: int, loss: float) -> tuple[float, float]:
        return LEFT + (WIDTH - LEFT - 8) * step / job.steps, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 10) * loss / most

    points = [at(step, loss) for step, loss in enumerate(job.losses, start=1)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = [f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.8"/>']
    for end in range(job.checkpoint_interval, job.steps + job.checkpoint_interval, job.checkpoint_interval):
        x, y = points[min(end, job.steps) - 1]
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
    for loss in (0.0, most / 2, most):
        y = at(0, loss)[1]
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" opacity=".18"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{loss:.2g}</text>')
    words = {at(1, 0)[0]: "1", at(job.steps, 0)[0]: str(job.steps), WIDTH / 2: "steps; a dot is a signed head"}
    parts += [f'<text x="{x:.1f}" y="{HEIGHT - 18}" text-anchor="middle">{text}</text>' for x, text in words.items()]
    label = escape(f"Loss of job {job.name} by step")
    style = 'fill="currentColor" font-size="12"'
    return f'<svg role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>{"".join(parts)}</svg>'


TREES: Final = {
    "run": "run: which checkpoint",
    "steps": "steps: which step",
    "values": "values: which instruction",
    "chunks": "tensor: which chunk",
    "terms": "sum: which terms",
}
"""The question that the walk asks in each tree."""
ROW: Final = 30
NODES: Final = 150
NOTES: Final = 210
BOX: Final = 16
"""Measures of the walk in units of its view box: row height, two columns, box height. They are legible on a phone."""


def walk(dispute: DisputeResult) -> str:
    """The walk down the tree: one row for each selection. Everything to the left of the chosen node is agreed."""
    parts: list[str] = []
    previous: float | None = None
    tree, y = "", 2
    for step in dispute.walk:
        if step.tree != tree:
            tree, previous = step.tree, None
            parts.append(f'<text class="w-tree" x="0" y="{y + 13}">{escape(TREES.get(tree, tree))}</text>')
            y += ROW - 8
        row, previous = _row(y, step, previous)
        parts += row
        y += ROW
    label = escape(f"Walk down the tree: {dispute.title}")
    box = f"0 0 {NODES + NOTES} {y}"
    return f'<svg class="walk" role="img" aria-label="{label}" viewBox="{box}">{"".join(parts)}</svg>'


def _row(y: int, step: WalkStep, previous: float | None) -> tuple[list[str], float]:
    """The SVG of one selection, and the horizontal centre of its chosen node, where the lines of the next row start."""
    count = 1 << step.levels
    width = min(26.0, NODES / count)
    left = (NODES - width * count) / 2
    parts = []
    if previous is not None:
        start = f'<line class="w-fan" x1="{previous:.1f}" y1="{y - ROW + BOX}"'
        parts += [f'{start} x2="{edge:.1f}" y2="{y}"/>' for edge in (left, left + width * count)]
    for i in range(count):
        kind = "agreed" if i < step.index else "chosen" if i == step.index else "rest"
        box = f'x="{left + i * width + 1:.1f}" y="{y}" width="{width - 2:.1f}" height="{BOX}" rx="2"'
        parts.append(f'<rect class="w-{kind}" {box}/>')
    note = escape(step.note or f"node {step.position:,}, height {step.height - step.levels}")
    parts.append(f'<text class="w-place" x="{NODES + 14}" y="{y + 12}">{note}</text>')
    return parts, left + width * (step.index + 0.5)
