"""`tiebreak doctor`: whether this machine computes what the specification says."""

import time

import click
import torch

from engine.arithmetic import Arithmetic
from engine.qualify import qualify
from tiebreak.commands.options import device_option, threads_option
from tiebreak.environment import describe
from tiebreak.running import usable_device


@click.command()
@threads_option
@device_option
def doctor(threads: int | None, device: str) -> None:
    """Run the conformance vectors on this machine and show its environment.

    Every scalar operation on edge cases and every reduction on adversarial cancellation, against integers. Training and
    auditing do the same before they start, and refuse to on a mismatch.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    for name, value in describe():
        click.echo(f"{name:<24}{value}")
    found = usable_device(device)
    started = time.perf_counter()
    report = qualify(Arithmetic(device=found))
    click.echo(f"{'device ' + device:<24}exact: {report.cases} cases in {time.perf_counter() - started:.1f} s")
