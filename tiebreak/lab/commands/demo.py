"""`tiebreak demo`: the whole path on real data."""

from importlib import import_module
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from tiebreak.cli.options import output_option
from tiebreak.protocol.errors import VerificationError

WIDTH: Final = 150
"""The width of output into a file or a pipe; it leaves room for the table."""


class DemoFailure(VerificationError):
    """An audit or a verdict did not have its expected outcome."""


@click.command()
@output_option("demo-output", "Folder for runs and report; emptied if a demo made it.")
@click.option("--steps", type=click.IntRange(13), help="Steps of each job, for a shorter demo.  [default: their own]")
def demo(output: Path, steps: int | None) -> None:
    """Play the whole path: train, audit, cheat, dispute, settle.

    Two models are trained honestly on scikit-learn's digits and on the text of Python's own documentation. An auditor
    replays one under other settings and gets the same bits. Then trainers cheat, one number at a time; each is walked
    down to that number and loses its stake in an embedded Ethereum chain. Writes report.html, report.md, result.json.
    """
    console = Console()
    run = import_module("tiebreak.lab.demo.run")  # it brings torch: `--help` does not wait for it
    result = run.run_demo(output, console if console.is_terminal else Console(width=WIDTH), steps=steps)
    if not result.succeeded:
        raise DemoFailure("an audit disagreed or a game was decided for the wrong side; see the report")
