"""What commands print: progress of a run with its loss, headings, and the table of a demo."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tiebreak.demo.report import short, whole
from tiebreak.demo.results import DemoResult, DisputeResult


class OnStep(Protocol):
    """Called after each step with its number (from 1), its loss, and more in words."""

    def __call__(self, step: int, loss: float, detail: str = "") -> None:
        """A step is done."""


@contextmanager
def training_progress(console: Console, title: str, steps: int, done: int = 0) -> Iterator[OnStep]:
    """A bar with the loss; `done` steps are already behind a resumed run. Off a terminal, ten lines instead."""
    if not console.is_terminal:
        yield _lines(console, title, steps)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}", style="dim"),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(escape(title), total=steps, completed=done, loss="", detail="")

        def on_step(step: int, loss: float, detail: str = "") -> None:
            progress.update(bar, completed=step, loss=f"loss {loss:.4f}", detail=escape(detail))

        yield on_step


def _lines(console: Console, title: str, steps: int) -> OnStep:
    every = max(1, steps // 10)

    def on_step(step: int, loss: float, detail: str = "") -> None:
        if step % every == 0 or step == steps:
            more = f", {escape(detail)}" if detail else ""
            # A line of words may be wider than the console thinks; where nobody watches, it is one line all the same.
            console.print(
                f"{escape(title)}: step {step} of {steps}, loss {loss:.4f}{more}", highlight=False, soft_wrap=True
            )

    return on_step


def heading(console: Console, number: int, title: str) -> None:
    """One part of a longer story."""
    console.print(f"\n[bold]{number}. {escape(title)}[/bold]", highlight=False)


def _verdict(dispute: DisputeResult) -> str:
    colour = "green" if dispute.just else "bold red"
    contract = "–" if dispute.contract is None else f"{dispute.contract} loses"
    return f"[{colour}]{dispute.python} loses / {contract}[/{colour}]"


def dispute_table(result: DemoResult) -> Table:
    """A row for each game."""
    table = Table(title="Disputes", title_justify="left", header_style="dim", pad_edge=False)
    for name in ("tampered with", "ended at", "committed", "correct"):
        table.add_column(name, overflow="fold")
    for name in ("rounds", "messages", "bytes", "gas"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict: Python / contract")
    for d in result.disputes:
        ended = f"step {whole(d.step)}, instruction {whole(d.instruction)} ({d.operation}), element {whole(d.element)}"
        counts = (str(d.rounds), str(d.messages), whole(d.bytes), whole(d.gas))
        bits = short(d.committed), short(d.correct)
        table.add_row(*map(escape, (d.tampered, ended, *bits, *counts)), _verdict(d))
    return table


def show_result(console: Console, result: DemoResult) -> None:
    """The demo's end: audits, forks of plain PyTorch, and the table of disputes."""
    for audit in result.audits:
        word = "[green]the same run root[/green]" if audit.equal else "[bold red]ANOTHER RUN ROOT[/bold red]"
        console.print(f"Audit of {escape(audit.job)}: {word} {short(audit.auditor_root)}", highlight=False)
    for plain in result.plain:
        line = f"Plain FP32 PyTorch, {plain.job}, {plain.settings}: {short(plain.state_sha256)}"
        console.print(escape(line), highlight=False)
    console.print(dispute_table(result))
