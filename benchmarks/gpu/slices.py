"""The slices of `benchmarks.gpu`, most valuable first, what was predicted of each, and the process that runs one."""

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Final

import torch

from benchmarks.gpu.workloads import FULL, TINY, Context
from benchmarks.table import Row, write
from tiebreak.api.machine.environment import describe, describe_cuda

LIMIT: Final = 240
"""Seconds after which a slice is ended. Three of them, with the start of the machine, fit into a quarter of an hour."""


@dataclass(frozen=True)
class Slice:
    """One process of a few minutes, with a file of its own."""

    name: str
    function: str
    """MODULE:FUNCTION below `benchmarks.gpu`, imported by the slice's process alone: what one slice needs and does not
    find stops no other. It takes a `Context`, and the workload if there is one, and yields rows."""
    workload: str = ""
    predicted: Mapping[str, float] = field(default_factory=dict)
    """Values by "CASE: METRIC", written into the file before anything is measured."""
    interpreted: bool = True
    """Whether a trial on the CPU interprets the GPU's kernels in it, which takes longer than the CPU's own."""


def _steps(name: str, **milliseconds: float) -> Slice:
    predicted = {f"{name}: {who.replace('_', ' ')}: a step": value for who, value in milliseconds.items()}
    return Slice(name, "steps:measure", name, predicted)


def _roots(name: str) -> Slice:
    return Slice(f"roots-{name}", "roots:compare", name)


PRODUCTS: Final = {
    f"GPT-2, {case}: {who}": gigaflops
    for case in (
        "NN: 1 x 8192 x 768 x 3072", "NT: 1 x 8192 x 3072 x 768", "TN: 1 x 768 x 8192 x 3072",
        "TN: 1 x 3072 x 8192 x 768", "NT: 1 x 8192 x 768 x 50257", "NN: 1 x 512 x 768 x 3072",
    )
    for who, gigaflops in (
        ("exact", 45_000), ("exact, by tables", 7_000), ("exact, by integers", 40_000), ("cuBLAS FP64", 57_000),
    )
}  # fmt: skip
"""Predictions of the products in GFLOP/s."""

SLICES: Final = (
    Slice("products", "products:measure", predicted=PRODUCTS),
    _steps("gpt2-1024", exact_by_graphs=230, eager_FP32=204, eager_FP64=303, bf16_autocast=72),
    _steps("resnet-50-224", exact_by_graphs=28, eager_FP32=25.4, eager_FP64=59.1, bf16_autocast=21.9),
    _steps("gpt2-64", exact_by_graphs=27, eager_FP32=29.3, eager_FP64=42.8, bf16_autocast=32.8),
    _steps("resnet-50", exact_by_graphs=10, eager_FP32=15.4, eager_FP64=17.1, bf16_autocast=21.1),
    _steps("digits", exact_by_graphs=0.85, eager_FP32=2.1, eager_FP64=2.0, bf16_autocast=2.2),
    _steps("text"),
    Slice("start", "device:start", predicted={
        "doctor: cold": 15, "doctor: warm": 6, "gpt2-1024 to step 1: cold": 45, "gpt2-1024 to step 1: warm": 20,
    }, interpreted=False),
    _roots("resnet-50"),
    _roots("gpt2-64"),
    _roots("digits"),
    _roots("text"),
    Slice("logged", "logged:measure", interpreted=False),
    _steps("bf16", exact_by_graphs=230, bf16_autocast=72),
    _steps("llama"),
    Slice("hostile", "device:hostile", interpreted=False),
    Slice("arithmetics", "device:arithmetics", interpreted=False),
    Slice("largest", "device:largest", predicted={
        "gpt2-wide: layers": 13, "gpt2-wide: parameters": 2.8, "gpt2-wide: a step": 470, "gpt2-wide: peak memory": 77,
    }, interpreted=False),
)  # fmt: skip
"""Predictions of exact steps, of 28 November 2026, take products at 45 TFLOP/s, 60 to 78 % of an H100's FP64 matrix
peak by their machine code, what else is moved at 2.7 TB/s, and settling as counted; those of eager steps are what an
H100 took. Where nothing was reckoned there is none."""


def slices_on(device: str) -> dict[str, Slice]:
    """The slices of a measurement, or of a trial on the CPU, by name."""
    workloads = {"", *(TINY if device == "cpu" else FULL)}
    return {each.name: each for each in SLICES if each.workload in workloads}


def run(name: str, device: str, folder: Path, told: Mapping[str, str]) -> None:
    """Runs a slice in this process, and writes its file anew with each row, so that what is known is never lost.

    told: what its environment records in addition to the machine.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    faulthandler.enable()
    chosen, trial, started = slices_on(device)[name], device == "cpu", time.perf_counter()
    machine = {**dict(describe()), "triton": version("triton"), **dict(describe_cuda()), **told}
    context, rows = Context(torch.device(device)), list[Row]()

    def save(*, finished: bool) -> None:
        seconds = f"{time.perf_counter() - started:.1f}"
        note = "a trial on the CPU, numbers of no interest" if trial else ""
        environment = {**machine, "seconds": seconds, **context.told}
        more = {"predicted": dict(chosen.predicted), "finished": finished}
        write(name, rows, note, environment=environment, folder=folder, **more)

    save(finished=False)
    if os.environ.get("TRITON_INTERPRET") == "1":
        import_module("tests.engine.interpreted").patch_index()  # what this imports interprets from then on
    module, _, function = chosen.function.partition(":")
    measure: Callable[..., Iterable[Row]] = getattr(import_module(f"benchmarks.gpu.{module}"), function)
    for row in measure(context, chosen.workload) if chosen.workload else measure(context):
        rows.append(row)
        save(finished=False)
    save(finished=True)


def _end_with_parent() -> None:
    """Ends this process and those that it started as soon as the other end of its standard input is gone."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4]))
