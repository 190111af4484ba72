"""Runs the demo, from its first line to its report, and prints its result as a table."""

import shutil
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tiebreak.api.builtin.loader import load_task
from tiebreak.api.machine.environment import describe
from tiebreak.lab.demo import disputes, report, training
from tiebreak.lab.demo.plain_runs import plain_runs
from tiebreak.lab.demo.report import short
from tiebreak.lab.demo.results import DemoResult, DisputeResult
from tiebreak.lab.sim.games.disputes import Arena, DisputeMarket
from tiebreak.node.pages.words import whole
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import ConfigurationError


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


MARKER = ".tiebreak-demo"
"""Marks a folder that a demo made, so that the next demo may empty it."""
JOBS = ("digits", "text")


def run_demo(output: Path, console: Console, *, steps: int | None = None) -> DemoResult:
    """Runs the whole demo in `output` (emptied if an earlier demo made it) and writes the report there.

    steps: of each job, instead of the task's own; at least 13, so that there is a lie before the last checkpoint.
    """
    started = time.perf_counter()
    _prepare(output)
    heading(console, 1, "Agree: two jobs, captured as programs, signed by client and trainer")
    market = DisputeMarket()
    tasks = [load_task(name, steps=steps) for name in JOBS]
    # A week to challenge: the games are played one after the other, and the proof of each waits for six hours.
    terms = Terms(descent_levels=2, challenge_window=7 * 24 * 3600)
    agreed = [training.agree(market, task, output / "runs" / task.name, console, terms) for task in tasks]
    heading(console, 2, "Train: policy exact, a signed head at every checkpoint, posted to the chain")
    trained = [
        training.train(market, task, compiled, run, console)
        for task, (compiled, run) in zip(tasks, agreed, strict=True)
    ]
    heading(console, 3, "Audit: another process, other settings, the same bits")
    digits = trained[0]
    audit, replay = training.audit(digits, output / "runs" / "digits-audit", console)
    plain = plain_runs(digits.task.name, digits.task.initial_state(), steps=steps)
    roots = {run.state_sha256 for run in plain}
    console.print(
        f"plain FP32 PyTorch under {len(plain)} such settings: {len(roots)} different final states", highlight=False
    )
    for job in trained:
        wrong = sum(row.fp64_differs for row in job.result.rounding)
        total = sum(row.elements for row in job.result.rounding)
        console.print(
            f"{job.task.name}: FP64-then-round would have rounded {wrong:,} of {total:,} results otherwise",
            highlight=False,
        )
    heading(console, 4, "Cheat: every lie is walked down to one number, on the chain too")
    arena = Arena(market, digits.run, replay, digits.interpreter, output / "runs")
    fought = [
        disputes.fight(arena, digits, number, tampered, cheat, console)
        for number, (tampered, cheat) in enumerate(disputes.digits_cheats(arena), start=1)
    ]
    fought.append(disputes.false_challenge(arena, digits, console))
    heading(console, 5, "Show")
    result = DemoResult(
        environment=describe(),
        jobs=tuple(job.result for job in trained),
        audits=(audit,),
        plain=plain,
        disputes=tuple(fought),
        seconds=time.perf_counter() - started,
    )
    show_result(console, result)
    files = report.write(result, output)
    console.print("\n" + "\n".join(f"{path}" for path in files.values()), highlight=False)
    return result


def _prepare(output: Path) -> None:
    if output.exists() and any(output.iterdir()):
        if not (output / MARKER).exists():
            raise ConfigurationError(f"expected a new or empty folder, got {output}; choose another or empty it")
        shutil.rmtree(output)
    output.mkdir(parents=True, exist_ok=True)
    (output / MARKER).touch()
