"""`tiebreak worst`: how much longer hostile data take here than ordinary data."""

from importlib import import_module

import click

from tiebreak import api
from tiebreak.cli.options import json_option, tell


@click.command()
@json_option
def worst(as_json: bool) -> None:
    """Measure how much longer hostile data take than ordinary data.

    A client who knows the order of its data can aim at one step data that no fast path decides, so the clocks and
    windows of a job must allow for this factor. It is measured on one thread, over a few sums and a few patterns, with
    compiled kernels (if there are any) and without.
    """
    slowest = import_module("tiebreak.lab.worst").worst  # it brings torch: `--help` does not wait for it
    accelerated = any(kernel.compiled for kernel in api.environment.kernels() if kernel.name == "sums")
    found = {"compiled": slowest()} if accelerated else {}
    found["without compiler"] = slowest(compiled=False)
    if as_json:
        tell({name: one.factor for name, one in found.items()}, as_json=True)
        return
    for name, one in found.items():
        click.echo(f"{name:<24}{one.factor:.1f} times as long as ordinary data ({one.case}: {one.pattern})")
