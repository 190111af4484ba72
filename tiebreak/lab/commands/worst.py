"""`tiebreak worst`: how much longer this machine takes over data that somebody made to be slow."""

import json
from importlib import import_module

import click

from tiebreak import api
from tiebreak.api.machine import Machine
from tiebreak.cli.options import json_option, machine_options


@click.command()
@machine_options("threads")
@json_option
def worst(machine: Machine, as_json: bool) -> None:
    """Measure how much longer a step takes here over hostile data than over ordinary data.

    A job's clocks and windows must allow for that factor: it is a party's setting `slowdown`, and `--slowdown` of an
    offer.
    """
    api.running.use_threads(machine.threads)
    measured = import_module("tiebreak.lab.worst")  # it brings torch: `--help` does not wait for it
    accelerated = any(kernel.compiled for kernel in api.environment.kernels() if kernel.name == "sums")
    found = {"compiled": measured.worst()} if accelerated else {}
    found |= {"without compiler": measured.worst(compiled=False)}
    if as_json:
        click.echo(json.dumps({name: factor.factor for name, factor in found.items()}, indent=1))
        return
    for name, factor in found.items():
        told = f"{factor.factor:.1f} times as long as ordinary data ({factor.case}: {factor.pattern})"
        click.echo(f"{name:<24}{told}")
