"""`tiebreak doctor`: whether this machine computes what the specification says, on every path that it has."""

import json

import click

from tiebreak import api
from tiebreak.cli.options import threads_option
from tiebreak.protocol.errors import ConfigurationError


@click.command()
@threads_option
@click.option("--device", help="Qualify this torch device alone [default: the CPU and every CUDA device].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of lines.")
def doctor(threads: int | None, device: str | None, as_json: bool) -> None:
    """Run the conformance vectors on this machine and show its environment.

    Every scalar operation on edge cases and every reduction on adversarial cancellation, against integers: with the
    compiled kernels and without, and on each device. Training and auditing do the same before they start, and refuse to
    on a mismatch.
    """
    api.running.use_threads(threads)
    kernels = api.environment.kernels()
    if not as_json:
        for name, value in api.qualification.lines(kernels):
            click.echo(f"{name:<24}{value}")
    found = []
    for verdict in api.qualification.verdicts(device, kernels):
        found.append(verdict)
        if not as_json:
            result = f"exact: {verdict.cases} cases in {verdict.seconds:.1f} s" if verdict.exact else "WRONG, see below"
            click.echo(f"{f'device {verdict.device}, {verdict.path}':<24}{result}")
    if as_json:
        click.echo(json.dumps(api.qualification.document(kernels, found), indent=1))
    problems = [verdict.problem for verdict in found if not verdict.exact]
    if problems:
        raise ConfigurationError(problems[0])
