"""Slow-down of trainer and auditor against eager FP32 and FP64 PyTorch: same step, same process, interleaved.

    python -m benchmarks.engine [--threads N] [WORKLOAD ...]

A step is forward, backward and optimizer on a fresh batch. The auditor's step is the trainer's; `auditor, permuted`
also takes every sum's terms in a random order (of more than 64 terms, pieces of four or more), which is more than an
auditor has to do. The bound is the time that the step's products alone take in FP64, at the rate of this machine's
vendor GEMM on its best shape.
`benchmarks.memory` measures peak memory.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
import torch

from benchmarks.steps import ExactStep, eager_step
from benchmarks.table import Row, interleaved, placed, publish, rows_of
from benchmarks.workloads import WORKLOADS
from tiebreak.engine.arithmetic import Stats
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.system import usable_cores
from tiebreak.protocol.program.isa import Opcode
from tiebreak.protocol.program.program import Program

REPEATS: Final = {"gpt2": 7, "resnet50-32": 15, "resnet50-224": 5, "digits": 15, "text": 15}
_WITHIN: Final = {"gpt2": 0.95, "resnet50-32": 1.5, "resnet50-224": 1.5, "digits": 1.2, "text": 1.5}
TARGETS: Final = {name: f"<= {ratio}" for name, ratio in _WITHIN.items()}
PERMUTED: Final = "auditor, permuted"


def products(program: Program) -> float:
    """Floating-point operations in a step's sums of products."""
    found = 0
    for i in program.body:
        if i.opcode == Opcode.REDUCE and len(i.operands) == 2:
            terms = 1
            for size in i.index_space:
                terms *= size
            found += 2 * terms
    return float(found)


def fp64_rate() -> float:
    """Operations per second of the vendor's FP64 matrix product, on the best of several shapes."""
    best = 0.0
    for m, k, n in ((512, 768, 3072), (512, 3072, 768), (1024, 1024, 1024)):
        a, b = torch.randn(m, k, dtype=torch.float64), torch.randn(k, n, dtype=torch.float64)
        for _ in range(5):
            started = time.perf_counter()
            torch.mm(a, b)
            best = max(best, 2 * m * n * k / (time.perf_counter() - started))
    return best


def measure(name: str, threads: int) -> list[Row]:
    """Rows of one workload at one thread count."""
    torch.set_num_threads(threads)
    task = WORKLOADS[name]()
    started = time.perf_counter()
    captured = capture_task(task)
    case = f"{name}, {threads} thread{'s' if threads > 1 else ''}"
    rows = [
        Row(metric="capture", case=name, value=time.perf_counter() - started, unit="s",
            target="< 60 s" if name == "gpt2" else ""),
        Row(metric="instructions", case=name, value=len(captured.program.body), unit=""),
    ]  # fmt: skip
    trainer = ExactStep(captured, task.steps)
    candidates: dict[str, Callable[[], object]] = {
        "eager FP32": eager_step(task, torch.float32),
        "eager FP64": eager_step(task, torch.float64),
        "trainer": trainer,
        PERMUTED: ExactStep(captured, task.steps, permute=1),
    }
    seconds = interleaved(candidates, REPEATS[name], warmup=2)
    rows += rows_of(case, "ms", {f"{who}: a step": 1e3 * s for who, s in seconds.items()})
    for who in ("trainer", PERMUTED):
        ratios = {f"{who} / {base}": seconds[who] / seconds[base] for base in ("eager FP32", "eager FP64")}
        rows += rows_of(case, "x", ratios, {f"{who} / eager FP32": TARGETS.get(name, "")})
    rows += bound(captured.program, case, seconds)
    steps = REPEATS[name] + 2
    resolving = trainer.arithmetic.stats.seconds_resolving / steps / seconds["trainer"]
    rows.append(Row(metric="resolving", case=case, value=resolving, unit="of the trainer's step", target="< 0.03"))
    return rows + undecided(name, trainer.arithmetic.stats)


def bound(program: Program, case: str, seconds: dict[str, float]) -> list[Row]:
    """Rows that compare the trainer with the FP64 products alone."""
    least = products(program) / fp64_rate()
    return [
        Row(metric="products", case=case, value=products(program) / 1e9, unit="GFLOP a step"),
        Row(metric="bound: FP64 products alone", case=case, value=1e3 * least, unit="ms"),
        Row(metric="bound / eager FP32", case=case, value=least / seconds["eager FP32"], unit="x"),
        Row(metric="trainer / bound", case=case, value=seconds["trainer"] / least, unit="x"),
    ]


def undecided(name: str, stats: Stats) -> list[Row]:
    """The share of elements that FP64 and its error bound did not decide, by kind of instruction."""
    rows = []
    for kind, counts in stats.kinds.items():
        if not counts.elements:
            continue
        figures = {
            "undecided": counts.undecided,
            "settled in integers": counts.undecided_twice,
            "FP64-then-round wrong": counts.double_rounded,
        }
        shares = {what: number / counts.elements for what, number in figures.items()}
        rows += rows_of(f"{name}, {kind}", "of elements", shares)
    return rows


@click.command()
@click.argument("workloads", nargs=-1, type=click.Choice(sorted(WORKLOADS)))
@click.option("--threads", type=click.IntRange(min=1), default=usable_cores(), show_default="all cores")
@placed
def main(workloads: tuple[str, ...], threads: int, folder: Path) -> None:
    """Measure WORKLOADS (default: all)."""
    rows = [row for name in workloads or WORKLOADS for row in measure(name, threads)]
    publish("engine", rows, "policy exact, medians", folder=folder)


if __name__ == "__main__":
    main()
