"""A device as a whole: how quickly it begins, cold and warm, its other arithmetics, and hostile data."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.gpu.workloads import FULL, TINY, Context, caches
from benchmarks.table import Row
from tiebreak.api.machine import Machine
from tiebreak.api.training.trainer import Trainer
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plan.ziv import Logging
from tiebreak.engine.run.qualify import qualify
from tiebreak.engine.run.worst import CASES, measure, product
from tiebreak.protocol.program.rounding import SumKind

QUALIFIED: Final = ((32, True, True), (32, True, False), (24, False, False), (16, False, True))
"""Arithmetics in addition to doctor's: bits, whether in random order, whether with logged sums. A trial takes one."""
LARGE: Final = product(1, 4096, 1024, 4096)
"""A product that fills a GPU, which those for a CPU do not."""


def first_step(device: str) -> None:
    """Does what `tiebreak.reproducible` does up to step 1 of GPT-2: capture, its check, qualification, the step."""
    workload = (TINY if device == "cpu" else FULL)["gpt2-1024"]
    next(iter(Trainer(workload.task(2), machine=Machine(device=device))))


def start(context: Context) -> Iterator[Row]:
    """Seconds of whole processes, their imports included: with nothing compiled before, then with everything."""
    name = str(context.device)
    for what, command, targets in (
        ("doctor", ("-m", "tiebreak", "doctor", "--device", name), ("<= 20", "<= 5")),
        (
            "gpt2-1024 to step 1",
            ("-c", f"from benchmarks.gpu.device import first_step; first_step({name!r})"),
            ("<= 45", "<= 15"),
        ),
    ):
        with TemporaryDirectory() as folder:
            for how, target in zip(("cold", "warm"), targets, strict=True):
                started = time.perf_counter()
                subprocess.run([sys.executable, *command], env=os.environ | caches(Path(folder)), check=True)
                yield Row(metric=how, case=what, value=time.perf_counter() - started, unit="s", target=target)


def arithmetics(context: Context) -> Iterator[Row]:
    """Qualifies other arithmetics than doctor's. Raises `ConfigurationError` for wrong bits."""
    for bits, permuted, logged in QUALIFIED[:1] if context.trial else QUALIFIED:
        logging = Logging(thresholds={}, tolerances=dict.fromkeys(SumKind, 2)) if logged else None
        arithmetic = Arithmetic(context.device, permute=1 if permuted else None, precision=bits, logging=logging)
        words = [f"{bits} bits", *(["random order"] if permuted else []), *(["logged"] if logged else [])]
        yield Row(metric="equal bits", case=", ".join(words), value=qualify(arithmetic).cases, unit="elements")


def hostile(context: Context) -> Iterator[Row]:
    """The slowdown by each pattern of `tiebreak.engine.run.worst`, a large product first."""
    for case in CASES[3:4] if context.trial else (LARGE, *CASES):
        found = list(measure(case, device=str(context.device), repeats=context.repeats))
        top = max(found, key=lambda slowdown: slowdown.factor)
        yield Row(metric=f"worst: {top.pattern}", case=case.name, value=top.factor, unit="x", target="<= 15")
        yield Row(metric="ordinary", case=case.name, value=1e3 * top.seconds, unit="ms")
