"""Pictures of a demo as inline SVG. They carry no background and take text colour from the page, light or dark."""

from collections.abc import Sequence
from html import escape
from typing import Final

from matplotlib.figure import Figure

from tiebreak.demo.drawing import INK, drawn, to_svg
from tiebreak.demo.results import DisputeResult, JobResult, WalkStep

BLUE: Final = "#3b82f6"
RED: Final = "#ef4444"


def loss_curve(job: JobResult) -> str:
    """Loss by step, with the checkpoints marked."""
    with drawn(f"loss {job.name}"):
        figure = Figure(figsize=(5.2, 2.7), layout="constrained")
        axes = figure.add_subplot()
        steps = range(1, job.steps + 1)
        axes.plot(steps, job.losses, color=BLUE, linewidth=1.8)
        ends = range(job.checkpoint_interval, job.steps + job.checkpoint_interval, job.checkpoint_interval)
        at = [min(step, job.steps) for step in ends]
        axes.plot(at, [job.losses[s - 1] for s in at], "o", color=BLUE, markersize=4.5, label="signed head")
        axes.set(xlabel="step", ylabel="loss", xlim=(0, job.steps + 1))
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.18, color=INK)
        axes.legend(frameon=False, loc="upper right")
        return to_svg(figure, f"Loss of job {job.name} by step")


def gas_by_move(dispute: DisputeResult) -> str:
    """Gas of every move in order, coloured by who made it. Moves that were not on chain have no bar."""
    with drawn(f"gas {dispute.title}"):
        count = len(dispute.moves)
        figure = Figure(figsize=(7.2, 0.6 + 0.26 * count), layout="constrained")
        axes = figure.add_subplot()
        gas = [(move.gas or 0) / 1000 for move in dispute.moves]
        colours = [RED if move.by == "defender" else BLUE for move in dispute.moves]
        bars = axes.barh(range(count), gas, color=colours, height=0.72)
        axes.bar_label(bars, [f"{move.gas:,}" if move.gas else "" for move in dispute.moves], padding=4, fontsize=8)
        labels = [f"{i + 1}  {move.kind}" for i, move in enumerate(dispute.moves)]
        axes.set_yticks(range(count), labels, fontsize=8.5)
        axes.set(xlabel="thousand gas (red: defender, blue: challenger)", xlim=(0, max([*gas, 1]) * 1.15))
        axes.set_ylim(count - 0.4, -0.6)
        axes.grid(axis="x", alpha=0.18, color=INK)
        axes.tick_params(axis="y", length=0)
        return to_svg(figure, f"Gas by move: {dispute.title}")


ROW: Final = 34
LEFT: Final = 210
WIDTH: Final = 520
RIGHT: Final = 230
BOX: Final = 18
"""Measures of the walk, in units of its view box: row height, the three columns, box height."""


def _row(number: int, step: WalkStep, previous_x: float | None) -> tuple[list[str], float]:
    """SVG of one selection and the horizontal centre of the chosen node."""
    y = 10 + number * ROW
    count = 1 << step.levels
    width = min(30.0, WIDTH / count)
    left = LEFT + (WIDTH - width * count) / 2
    parts = []
    if previous_x is not None:
        start = f'<line class="w-fan" x1="{previous_x:.1f}" y1="{y - ROW + BOX}"'
        parts += [f'{start} x2="{edge:.1f}" y2="{y}"/>' for edge in (left, left + width * count)]
    for i in range(count):
        kind = "agreed" if i < step.index else "chosen" if i == step.index else "rest"
        box = f'x="{left + i * width + 1:.1f}" y="{y}" width="{width - 2:.1f}" height="{BOX}" rx="2"'
        parts.append(f'<rect class="w-{kind}" {box}/>')
    note = escape(step.note or f"node {step.position:,}, height {step.height - step.levels}")
    parts.append(f'<text class="w-place" x="{LEFT + WIDTH + 14}" y="{y + 13}">{note}</text>')
    return parts, left + width * (step.index + 0.5)


def walk(dispute: DisputeResult) -> str:
    """The walk down the tree: a row for each selection; left of the chosen node all is agreed."""
    parts: list[str] = []
    previous: float | None = None
    tree = ""
    for number, step in enumerate(dispute.walk):
        if step.tree != tree:
            tree = step.tree
            y = 10 + number * ROW
            parts.append(f'<text class="w-tree" x="0" y="{y + 13}">{escape(TREES.get(tree, tree))}</text>')
            if number:
                parts.append(f'<line class="w-rule" x1="0" y1="{y - 8}" x2="{LEFT + WIDTH + RIGHT}" y2="{y - 8}"/>')
        row, previous = _row(number, step, previous)
        parts += row
    label = escape(f"Walk down the tree: {dispute.title}")
    box = f"0 0 {LEFT + WIDTH + RIGHT} {10 + len(dispute.walk) * ROW}"
    return f'<svg class="walk" role="img" aria-label="{label}" viewBox="{box}">{"".join(parts)}</svg>'


TREES: Final = {
    "run": "run: which checkpoint",
    "steps": "steps: which step",
    "values": "values: which instruction",
    "chunks": "tensor: which chunk",
    "terms": "sum: which terms",
}
"""What each tree is asked."""


def pictures(jobs: Sequence[JobResult], disputes: Sequence[DisputeResult]) -> dict[str, list[str]]:
    """All pictures of a report: losses by job, walks and gas by dispute ('' where nothing was on chain)."""
    return {
        "losses": [loss_curve(job) for job in jobs],
        "walks": [walk(dispute) for dispute in disputes],
        "gas": [gas_by_move(d) if any(m.gas for m in d.moves) else "" for d in disputes],
    }
