"""`tiebreak calibrate`: measures how far sums may be from exact on these machines; makes policies of logged runs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress

from tiebreak import api
from tiebreak.cli.capture import captured
from tiebreak.cli.options import NEW_FILE, json_option, number, tell
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION

if TYPE_CHECKING:
    from tiebreak.engine.logged.calibration import OnProgress
    from tiebreak.engine.logged.policy import LoggedPolicy, MeasuredSums

MAX_ORDERS, MAX_MARGIN = 100, 2.0**20
STEPS, ORDERS, MARGIN, SHARE = 3, 4, 8.0, 0.99
"""The defaults of `tiebreak.calibrate`, copied here so that the help need not import it."""


@click.command()
@click.argument("sources", metavar="TASK-OR-RUN...", nargs=-1)
@number("--precision", MIN_PRECISION, MAX_PRECISION, MAX_PRECISION, "Bits to which sums and functions are rounded.")
@number("--steps", 1, None, STEPS, "Steps of each program.")
@number("--orders", 1, MAX_ORDERS, ORDERS, "Random orders of the terms of each sum, on each kernel and device.")
@click.option("--margin", type=click.FloatRange(1, MAX_MARGIN), default=MARGIN, show_default=True,
              help="Safety factor on the measured differences.")  # fmt: skip
@click.option("--share", type=click.FloatRange(0, 1, min_open=True), default=SHARE, show_default=True,
              help="Share of elements that may be logged; others near a tie are computed exactly.")  # fmt: skip
@click.option("--threads", type=click.IntRange(1), help="Threads to compare with one [default: all cores, 2 or more].")
@click.option("--device", "devices", multiple=True, help="Device to compare with the CPU [default: every CUDA device].")
@number("--seed", 0, (1 << 62) - 1, 0, "Seed of the orders and of the sample of elements.")
@click.option("--proven", is_flag=True, help="Skip measuring; use the proven bounds.")
@click.option("--output", "-o", type=NEW_FILE, default=Path("policy.json"), show_default=True,
              help="New file for the policy.")  # fmt: skip
@json_option
def calibrate(
    sources: tuple[str, ...], precision: int, steps: int, orders: int, margin: float, share: float,
    threads: int | None, devices: tuple[str, ...], seed: int, proven: bool, output: Path, as_json: bool,
) -> None:  # fmt: skip
    """Measure how far sums differ between machines, for a policy.

    The policy file is for `tiebreak agree --policy`. Each TASK-OR-RUN is digits, text, a Python file with task() (which
    is run), a folder of `tiebreak capture` or of a run. Its first steps are computed exactly, and every sum in them
    again: in random orders, with compiled kernels and without, with one thread and many, on each device. The threshold
    of each kind of sum is the smallest that covers every difference seen, times --margin, in units of the element's own
    error (Algorithm 3 of the paper).

    A trainer logs the sums that lie so near to a tie that another machine could round them the other way; the narrower
    the tolerance printed here, the less such a log can decide. An auditor does well to calibrate on its own machine.
    It takes minutes; the file appears when all is measured, and one that exists is not touched.
    """
    if output.exists():
        raise ConfigurationError(f"expected a new file for the policy, got {output}, which exists; choose another")
    if proven != (not sources):
        got = "both" if proven else "neither"
        raise ConfigurationError(f"expected tasks or runs to measure, or --proven, got {got}")
    console, jobs = Console(stderr=True), []
    for source in sources:
        folder = Path(source)
        jobs.append(api.calibrating.job_in(folder) if folder.is_dir() else captured(api.loader.load_task(source)))
    policy = api.calibrating.calibrate(
        *jobs, precision=precision, steps=steps, orders=orders, margin=margin, share=share,
        threads=threads, devices=devices or None, seed=seed, progress=lambda name: _progress(console, name),
    )  # fmt: skip
    policy.save(output)
    if as_json:
        tell({"digest": policy.digest, "file": str(output), **json.loads(policy.encode())}, as_json=True)
        return
    show(policy)
    click.echo(f"policy {policy.digest} in {output}")


@contextmanager
def _progress(console: Console, name: str) -> Iterator["OnProgress"]:
    """Shows a bar on a terminal, and ten lines elsewhere."""

    def on_line(done: int, total: int) -> None:
        if done % max(1, total // 10) == 0 or done == total:
            console.print(escape(f"comparing {name}: sum {done} of {total}"), highlight=False, soft_wrap=True)

    if not console.is_terminal:
        yield on_line
        return
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=console) as progress:
        bar = progress.add_task(escape(f"comparing {name}"), total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def show(policy: "LoggedPolicy") -> None:
    """Prints a policy as a table with a column for each kind of sum."""
    kinds = [kind for kind, tolerance in policy.tolerances.items() if tolerance]
    click.echo(f"{policy.precision} bits, computed in FP64; thresholds and divergences in units of u times")
    click.echo("the norm of an element's terms, the tolerance as a share of the gap between its neighbours")
    click.echo("".join([" " * 28, *(f"{kind.name.lower():>14}" for kind in kinds)]))
    sums = None if policy.measurements is None else policy.measurements.sums

    def row(title: str, cells: list[str]) -> None:
        click.echo(f"{title:<28}" + "".join(f"{cell:>14}" for cell in cells))

    def measured(title: str, cell: str, attribute: str) -> None:
        found: list[MeasuredSums | None] = [(sums or {}).get(kind) for kind in kinds]
        row(title, ["-" if one is None else format(getattr(one, attribute), cell) for one in found])

    if sums is not None:
        measured("elements compared", ",d", "elements")
        measured("... with the exact sum", ",d", "exact")
        measured("largest divergence", ".3g", "divergence")
        measured("largest error", ".3g", "error")
    row("threshold", ["proven" if (t := policy.thresholds[kind]) is None else f"{t:.3g}" for kind in kinds])
    row("tolerance", [f"2^-{policy.tolerances[kind]}" for kind in kinds])
    if sums is not None:
        measured("share logged", ".2g", "logged")
        measured("share computed exactly", ".2g", "resolved")
        measured("divergence, in gaps", ".2g", "of_gap")
        measured("... in 2^exponent (paper)", ".2g", "of_exponent")
