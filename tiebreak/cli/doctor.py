"""`tiebreak doctor`: checks that this machine computes what the specification says, on every path that it has."""

import click

from tiebreak import api
from tiebreak.api.machine import Machine
from tiebreak.cli import options as opt
from tiebreak.protocol.errors import ConfigurationError


@click.command()
@opt.machine_options("threads")
@click.option("--device", help="Check this torch device alone [default: the CPU and every CUDA device].")
@click.option("--pure", is_flag=True, help="Also check torch without our kernels on CUDA devices.")
@opt.json_option
def doctor(machine: Machine, device: str | None, pure: bool, as_json: bool) -> None:
    """Check that this machine computes exactly; show its environment.

    It runs the conformance vectors. Scalar operations on edge cases, and sums of numbers that nearly cancel, are
    compared with integer arithmetic: on the CPU with the compiled kernels and without, and on each CUDA device.
    Training and auditing do the same before they start, and refuse to start on a mismatch.
    """
    api.interpreters.use_threads(machine.threads)
    kernels = api.environment.kernels()

    def row(name: str, value: object) -> None:
        if not as_json:
            click.echo(f"{name:<24}{value}")

    for name, value in api.qualification.lines(kernels):
        row(name, value)
    found = []
    for verdict in api.qualification.verdicts(device, kernels, pure=pure):
        found.append(verdict)
        result = f"exact: {verdict.cases} cases in {verdict.seconds:.1f} s" if verdict.exact else "WRONG, see below"
        row(f"device {verdict.device}, {verdict.path}", result)
    if as_json:
        opt.tell(api.qualification.document(kernels, found), as_json=True)
    if problems := [verdict.problem for verdict in found if not verdict.exact]:
        raise ConfigurationError(problems[0])
