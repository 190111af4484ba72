"""A device as a whole: how quickly it begins, its other arithmetics, hostile data, and the largest model it trains."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch

from benchmarks.gpu.roots import STEPS
from benchmarks.gpu.steps import Exact, timed
from benchmarks.gpu.workloads import FULL, TINY, Context, caches, capture, make
from benchmarks.table import Row
from tiebreak.api.machine import Machine
from tiebreak.api.training.trainer import Trainer
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.backend import free_memory
from tiebreak.engine.arithmetic.plan.ziv import Logging
from tiebreak.engine.capture.captured import Captured
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.run.cost import cost_of
from tiebreak.engine.run.qualify import qualify
from tiebreak.lab.worst import CASES, measure, product
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
    """The slowdown by each pattern of `tiebreak.lab.worst`, a large product first."""
    for case in CASES[3:4] if context.trial else (LARGE, *CASES):
        found = list(measure(case, device=str(context.device), repeats=context.repeats))
        top = max(found, key=lambda slowdown: slowdown.factor)
        yield Row(metric=f"worst: {top.pattern}", case=case.name, value=top.factor, unit="x", target="<= 15")
        yield Row(metric="ordinary", case=case.name, value=1e3 * top.seconds, unit="ms")


def largest(context: Context) -> Iterator[Row]:
    """The most layers of a wide GPT-2 that are trained whole in FP32, by AdamW on 1 x 1024 tokens, with checkpoints.

    It begins with as many as the programs of one layer and of two let expect, and takes a twelfth off until they fit.
    """
    name, sizes = ("gpt2-small", {}) if context.trial else ("gpt2-wide", {"length": 1024})

    def captured(layers: int) -> Captured:
        return capture(make(name, STEPS, {**sizes, "layers": layers}))

    def trained() -> Exact:
        exact = Exact(made, context.device, STEPS, graphs=not context.trial)
        copies.append({name: tensor.clone() for name, tensor in exact.state.items()})  # as at a checkpoint
        return exact

    costs = [cost_of(captured(layers).program) for layers in (1, 2)]
    one, two = (cost.state_bytes + cost.changed_bytes + cost.passing_bytes for cost in costs)
    room, found, copies = free_memory(context.device) or 2 * two - one, None, list[dict[str, torch.Tensor]]()
    layers = 1 + (room - one) // (two - one)
    while found is None and layers:
        made = captured(layers)
        if (found := timed(context, f"{layers} layers", trained)) is None:
            copies.clear()
            layers = layers * 11 // 12
    if found is not None:
        size = sum(tensor.numel() for entry, tensor in made.state.items() if entry.startswith(MODEL))
        yield Row(metric="layers", case=name, value=layers, unit="")
        yield Row(metric="parameters", case=name, value=size / 1e9, unit="1e9")
        yield Row(metric="a step", case=name, value=1e3 * found[0], unit="ms")
        yield Row(metric="peak memory", case=name, value=found[1], unit="GiB")
