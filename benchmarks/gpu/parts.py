"""The parts of `benchmarks.gpu`, most valuable first, and what a process of its own does for one."""

import faulthandler
import os
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final

import torch

from benchmarks.gpu import bits, logged, products, steps
from benchmarks.gpu.workloads import FULL, TINY, Context, Function
from benchmarks.table import write
from tiebreak.api.machine.environment import describe, describe_cuda


@dataclass(frozen=True)
class Part:
    """A part, and the seconds that it is guessed to take on 16 cores and an H100."""

    name: str
    seconds: int
    run: Function
    workload: str = ""
    """The workload that it is about, if it is about one."""
    interpreted: bool = True
    """Whether a trial on the CPU interprets the GPU's kernels in it, which takes longer than the CPU's own."""


def _compared(workload: str, cpu: int, device: int) -> tuple[Part, Part]:
    """The CPU's records of a workload, and the device's."""
    return (
        Part(f"cpu-{workload}", cpu, partial(bits.on_cpu, name=workload), workload, interpreted=False),
        Part(f"bits-{workload}", device, partial(bits.on_device, name=workload), workload),
    )


def _timed(workload: str, seconds: int) -> Part:
    return Part(f"steps-{workload}", seconds, partial(steps.measure, name=workload), workload)


PARTS: Final = (
    Part("doctor", 60, bits.doctor, interpreted=False),
    *_compared("digits", 15, 25),
    *_compared("gpt2-64", 75, 130),
    *_compared("resnet-50", 40, 50),
    _timed("gpt2-1024", 190),
    _timed("resnet-50-224", 110),
    Part("kernels", 90, products.measure),
    _timed("gpt2-64", 85),
    _timed("resnet-50", 85),
    *_compared("text", 20, 25),
    Part("emulation", 20, products.emulation),
    Part("logged", 90, logged.measure, interpreted=False),
    *_compared("resnet-50-224", 60, 50),
    *_compared("gpt2-1024", 150, 110),
)


def parts_on(device: str) -> list[Part]:
    """The parts of a measurement, or of a trial on the CPU."""
    workloads = {"", *(TINY if device == "cpu" else FULL)}
    return [part for part in PARTS if part.workload in workloads]


def work(part: Part, device: str, folder: Path, log: Path, told: dict[str, str]) -> None:
    """Runs a part in this process, which prints into `log`, and writes its file. Ends with the process's parent.

    told: what its environment records besides the machine.
    """
    _end_with_parent()
    with log.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    faulthandler.enable(sys.__stderr__)
    started, trial = time.perf_counter(), device == "cpu"
    if trial and not part.interpreted:
        del os.environ["TRITON_INTERPRET"]
    elif trial:
        import_module("tests.engine.interpreted").patch_index()  # what this imports interprets from then on
    context = Context(torch.device(device), folder)
    rows = part.run(context)
    seconds = f"{time.perf_counter() - started:.1f}"
    machine = {**dict(describe()), "triton": version("triton"), **dict(describe_cuda())}
    note = "a trial on the CPU, numbers of no interest" if trial else ""
    write(part.name, rows, note, environment={**machine, **told, "seconds": seconds, **context.told}, folder=folder)


def _end_with_parent() -> None:
    """Ends this process with its parent, so that no part goes on in parallel to those of the next command."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
