"""The slowdown of sums over hostile data: every pattern of `tiebreak.lab.worst` on every shape.

    python -m benchmarks.hostile [--commit]

The search covers shapes (plain sums, products, batches, a convolution, a scatter; 16 to 50,000 terms), patterns (exact
ties, near ties at several depths, subnormals, huge beside small, noise that cancels) and the share of rows that are
hostile. Each factor is the time of the pattern divided by that of ordinary data. Both are the best of several runs,
which take turns in one process. One thread is enough, because the factor is about arithmetic and threads share it
evenly.
"""

from pathlib import Path

import click
import torch

from benchmarks.table import Row, placed, publish, rows_of
from tiebreak.engine.arithmetic.c.threads import limited
from tiebreak.lab.worst import CASES, measure

SHARES = (1.0, 0.1)
TARGETS = {"compiled": "<= 8", "without compiler": ""}
"""Torch alone has no bar: its exact digits are there to be read, and a party with a stake refuses it."""


@click.command()
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True)
@placed
def main(repeats: int, folder: Path) -> None:
    """Measure the factor of hostile data."""
    rows: list[Row] = []
    with limited(1):
        for kernels, target in TARGETS.items():
            for case in CASES:
                found = [
                    (factor, share)
                    for share in SHARES
                    for factor in measure(case, compiled=kernels == "compiled", repeats=repeats, share=share)
                ]
                top, share = max(found, key=lambda pair: pair[0].factor)
                click.echo(
                    f"{kernels}: {case.name}: {top.factor:.1f} times by {top.pattern}, {share:g} of rows", err=True
                )
                named = f"{kernels}, {case.name}"
                rows.append(Row(metric="worst", case=named, value=top.factor, unit="x", target=target))
                rows.append(Row(metric="ordinary", case=named, value=1e3 * top.seconds, unit="ms"))
                rows += rows_of(named, "x", {f"hostile: {f.pattern}": f.factor for f, share in found if share == 1})
    publish("hostile", rows, f"torch {torch.__version__}, one thread", folder=folder)


if __name__ == "__main__":
    main()
