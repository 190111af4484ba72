"""Prints the demo's headings, and its result as a table."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tiebreak.demo.results import DemoResult, DisputeResult
from tiebreak.demo.words import short, whole


def heading(console: Console, number: int, title: str) -> None:
    """Prints the heading of one part of the demo."""
    console.print(f"\n[bold]{number}. {escape(title)}[/bold]", highlight=False)


def _verdict(dispute: DisputeResult) -> str:
    colour = "green" if dispute.just else "bold red"
    contract = "–" if dispute.contract is None else f"{dispute.contract} loses"
    return f"[{colour}]{dispute.python} loses / {contract}[/{colour}]"


def dispute_table(result: DemoResult) -> Table:
    """The table of disputes, with one row for each game."""
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
    """Prints the demo's result: audits, forks of plain PyTorch, and the table of disputes."""
    for audit in result.audits:
        word = "[green]the same run root[/green]" if audit.equal else "[bold red]ANOTHER RUN ROOT[/bold red]"
        console.print(f"Audit of {escape(audit.job)}: {word} {short(audit.auditor_root)}", highlight=False)
    for plain in result.plain:
        line = f"Plain FP32 PyTorch, {plain.job}, {plain.settings}: {short(plain.state_sha256)}"
        console.print(escape(line), highlight=False)
    console.print(dispute_table(result))
