"""A demo's pictures as inline SVG, without a background and in the page's own text colour, light or dark."""

from collections.abc import Sequence
from html import escape
from typing import Final

from matplotlib.figure import Figure

from tiebreak.demo.drawing import INK, drawn, to_svg
from tiebreak.demo.results import DisputeResult, JobResult, WalkStep


def loss_curve(job: JobResult) -> str:
    """The loss at each step, with the checkpoints marked."""
    with drawn(f"loss {job.name}"):
        figure = Figure(figsize=(5.2, 2.7), layout="constrained")
        axes = figure.add_subplot()
        steps = range(1, job.steps + 1)
        axes.plot(steps, job.losses, color=INK, linewidth=1.8)
        ends = range(job.checkpoint_interval, job.steps + job.checkpoint_interval, job.checkpoint_interval)
        at = [min(step, job.steps) for step in ends]
        axes.plot(at, [job.losses[s - 1] for s in at], "o", color=INK, markersize=4.5, label="signed head")
        axes.set(xlabel="step", ylabel="loss", xlim=(0, job.steps + 1))
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.18, color=INK)
        axes.legend(frameon=False, loc="upper right")
        return to_svg(figure, f"Loss of job {job.name} by step")


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


def pictures(jobs: Sequence[JobResult], disputes: Sequence[DisputeResult]) -> dict[str, list[str]]:
    """All pictures of a report: the losses of each job and the walk of each dispute."""
    return {"losses": [loss_curve(job) for job in jobs], "walks": [walk(dispute) for dispute in disputes]}
