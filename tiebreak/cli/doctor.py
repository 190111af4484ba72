"""`tiebreak doctor`: whether this machine computes what the specification says, on every path that it has."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass

import click
import torch

from tiebreak.api.environment import Kernel, describe, describe_cuda, kernels
from tiebreak.api.running import usable_device
from tiebreak.cli.options import threads_option
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.native import pure_path
from tiebreak.engine.run.qualify import qualify
from tiebreak.protocol.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the conformance vectors said of one path. problem: empty if it is exact."""

    device: str
    path: str
    """compiled: with the accelerators that this machine has; pure: torch alone."""
    cases: int
    seconds: float
    problem: str

    @property
    def exact(self) -> bool:
        """Whether every case had the integer reference's bits."""
        return not self.problem


def examine(device: str, path: str) -> Verdict:
    """Qualifies one path. Raises `ConfigurationError` for a device that is not there."""
    found = usable_device(device)
    try:
        with pure_path() if path == "pure" else nullcontext():
            report = qualify(Arithmetic(device=found))
    except ConfigurationError as error:
        return Verdict(device=device, path=path, cases=0, seconds=0.0, problem=str(error))
    return Verdict(device=device, path=path, cases=report.cases, seconds=report.seconds, problem="")


def paths(device: str | None, accelerated: bool) -> Iterator[tuple[str, str]]:
    """(device, path) of everything there is to qualify, or of one device."""
    wanted = [device] if device is not None else ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    for name in wanted:
        if accelerated and name == "cpu":
            yield name, "compiled"
        yield name, "pure"


def _lines(found: tuple[Kernel, ...]) -> Iterator[tuple[str, str]]:
    yield from describe()
    yield from describe_cuda()
    for kernel in found:
        yield f"kernel {kernel.name}", kernel.detail if kernel.compiled else f"none: {kernel.detail}"


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
    if threads is not None:
        torch.set_num_threads(threads)
    accelerators = kernels()
    if not as_json:
        for name, value in _lines(accelerators):
            click.echo(f"{name:<24}{value}")
    verdicts = []
    for where, path in paths(device, any(kernel.compiled for kernel in accelerators if kernel.name != "hasher")):
        verdict = examine(where, path)
        verdicts.append(verdict)
        if not as_json:
            result = f"exact: {verdict.cases} cases in {verdict.seconds:.1f} s" if verdict.exact else "WRONG, see below"
            click.echo(f"{f'device {where}, {path}':<24}{result}")
    if as_json:
        click.echo(json.dumps(_document(accelerators, verdicts), indent=1))
    problems = [verdict.problem for verdict in verdicts if not verdict.exact]
    if problems:
        raise ConfigurationError(problems[0])


def _document(accelerators: tuple[Kernel, ...], verdicts: list[Verdict]) -> dict[str, object]:
    return {
        "environment": dict((*describe(), *describe_cuda())),
        "kernels": [asdict(kernel) for kernel in accelerators],
        "qualification": [asdict(verdict) | {"exact": verdict.exact} for verdict in verdicts],
        "exact": all(verdict.exact for verdict in verdicts),
    }
