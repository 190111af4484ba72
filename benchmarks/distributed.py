"""One step over several workers: its time against one worker's, and the bytes it moves against plain FP32 DDP.

    python -m benchmarks.distributed [--workers N] [WORKLOAD ...]

Workers are processes of this machine with one thread each, which exchange over gloo.
Exact steps and eager PyTorch, on all workers and on the first one alone, take turns, so all are slowed down by the same
drift. DDP is `torch.nn.parallel.DistributedDataParallel` of the same model in FP32, each worker with its share of the
batch. It all-reduces one FP32 gradient a parameter, for which a worker sends 2 (N - 1) / N times their size.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

import click
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.nn.parallel import DistributedDataParallel

from benchmarks.steps import ExactStep, eager_step
from benchmarks.table import Row, placed, publish, rows_of
from benchmarks.workloads import WORKLOADS
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.distributed.arithmetic import SharedArithmetic
from tiebreak.engine.distributed.exchange import Torch
from tiebreak.engine.distributed.layout import share
from tiebreak.engine.distributed.train import SharedInterpreter
from tiebreak.engine.run.interpreter import Interpreter

REPEATS: Final = {"gpt2": 5, "resnet50-32": 7, "resnet50-224": 3, "digits": 15, "text": 15}
WARMUP: Final = 2
TIMEOUT: Final = timedelta(minutes=5)
"""The longest wait for another worker, which captures, compiles and measures alone meanwhile."""
EXACT, ALONE, DDP, EAGER = "exact, all workers", "exact, one worker", "eager DDP", "eager, one worker"


def work(worker: int, workers: int, store: str, name: str, results: str) -> None:
    """One worker: measures, and the first one writes what it found."""
    torch.set_num_threads(1)
    # A file, since a port may be another run's, whose workers would wait with ours; an end, since gloo's is 30 minutes.
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=worker, world_size=workers, timeout=TIMEOUT)
    task = WORKLOADS[name]()
    captured, exchange, first = capture_task(task), Torch(), worker == 0
    rows = slice(*share(task.batch.size, worker, workers))
    shared = SharedInterpreter(captured.program, SharedArithmetic(exchange))
    shared.compare({"program": captured.program.root})
    steps: dict[str, Callable[[], object] | None] = {
        EXACT: ExactStep(captured, task.steps, machine=shared),
        ALONE: ExactStep(captured, task.steps, machine=Interpreter(captured.program, Arithmetic())) if first else None,
        DDP: eager_step(task, torch.float32, rows=rows, wrap=DistributedDataParallel),
        EAGER: eager_step(task, torch.float32) if first else None,
    }
    seconds: dict[str, list[float]] = {who: [] for who in steps}
    for turn in range(WARMUP + REPEATS[name]):
        for who, step in steps.items():
            dist.barrier()
            sent, messages, started = exchange.bytes_sent, exchange.exchanges, time.perf_counter()
            if step is not None:
                step()
            if turn >= WARMUP:
                seconds[who].append(time.perf_counter() - started)
            if who == EXACT:
                moved, begun = exchange.bytes_sent - sent, exchange.exchanges - messages
    most = torch.tensor(moved, dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    if first:
        parameters = sum(p.numel() for p in task.model.parameters() if p.requires_grad)
        found = {"moved": most.item(), "messages": float(begun), "ddp": 8 * parameters * (workers - 1) / workers}
        found |= {who: statistics.median(times) for who, times in seconds.items()}
        Path(results).write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


def measure(name: str, workers: int, folder: Path) -> list[Row]:
    results = folder / f"distributed-{os.getpid()}.json"
    store = results.with_suffix(".store").absolute()
    store.unlink(missing_ok=True)
    processes.spawn(work, args=(workers, str(store), name, str(results)), nprocs=workers)  # type: ignore[no-untyped-call]
    store.unlink(missing_ok=True)
    found: dict[str, float] = json.loads(results.read_text("utf-8"))
    results.unlink()
    case = f"{name}, {workers} workers of 1 thread"
    return [
        *rows_of(case, "ms", {f"{who}: a step": 1e3 * found[who] for who in (EXACT, ALONE, DDP, EAGER)}),
        Row(metric="one worker / all", case=case, value=found[ALONE] / found[EXACT], unit="x",
            target=">= 1.7" if (name, workers) == ("gpt2", 2) else ""),
        Row(metric="one worker / all, eager DDP", case=case, value=found[EAGER] / found[DDP], unit="x"),
        Row(metric="bytes sent", case=case, value=found["moved"] / 1e6, unit="MB a step, worker with most"),
        Row(metric="messages", case=case, value=found["messages"], unit="a step and worker"),
        Row(metric="bytes / ddp", case=case, value=found["moved"] / found["ddp"], unit="x", target="<= 1.55"),
    ]  # fmt: skip


@click.command()
@click.argument("workloads", nargs=-1, type=click.Choice(sorted(WORKLOADS)))
@click.option("--workers", type=click.IntRange(min=2), default=2, show_default=True)
@placed
def main(workloads: tuple[str, ...], workers: int, folder: Path) -> None:
    """Measure WORKLOADS (default: all)."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row for name in workloads or WORKLOADS for row in measure(name, workers, folder)]
    publish("distributed", rows, "policy exact, medians", folder=folder)


if __name__ == "__main__":
    main()
