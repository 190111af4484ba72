"""`tiebreak doctor`: checks that this machine computes what the specification says, on every path that it has."""

import click

from tiebreak import api
from tiebreak.api.machine import Machine
from tiebreak.cli import options as opt
from tiebreak.protocol.errors import ConfigurationError


@click.command()
@opt.machine_options("threads")
@click.option("--device", help="Check this torch device alone [default: the CPU and every CUDA device].")
@click.option("--worst", is_flag=True, help="Measure how much longer hostile data take here than ordinary data.")
@click.option("--pure", is_flag=True, help="Also check torch without our kernels on CUDA devices.")
@opt.json_option
def doctor(machine: Machine, device: str | None, worst: bool, pure: bool, as_json: bool) -> None:
    """Check that this machine computes exactly; show its environment.

    It runs the conformance vectors. Scalar operations on edge cases, and sums of numbers that nearly cancel, are
    compared with integer arithmetic: on the CPU with the compiled kernels and without, and on each CUDA device.
    Training and auditing do the same before they start, and refuse to start on a mismatch. --worst also measures how
    much longer a step takes on data that somebody made to be slow: a job's clocks and windows must allow for that.
    """
    api.running.use_threads(machine.threads)
    kernels = api.environment.kernels()

    def row(name: str, value: object) -> None:
        if not as_json:
            click.echo(f"{name:<24}{value}")

    for name, value in api.qualification.lines(kernels):
        row(name, value)
    factors = api.qualification.worst_factors(kernels) if worst else {}
    found = []
    for verdict in api.qualification.verdicts(device, kernels, pure=pure):
        found.append(verdict)
        result = f"exact: {verdict.cases} cases in {verdict.seconds:.1f} s" if verdict.exact else "WRONG, see below"
        row(f"device {verdict.device}, {verdict.path}", result)
    for name, factor in factors.items():
        times = f"{factor.factor:.1f} times as long as ordinary data ({factor.case}: {factor.pattern})"
        row(f"worst, {name}", times)
    if as_json:
        document = api.qualification.document(kernels, found)
        if factors:
            document["worst"] = {name: factor.factor for name, factor in factors.items()}
        opt.tell(document, as_json=True)
    problems = [verdict.problem for verdict in found if not verdict.exact]
    if problems:
        raise ConfigurationError(problems[0])
