"""Costs of steps, states and sums at many sizes. `benchmarks.figures` fits the figures of `tiebreak scale` to them.

    python -m benchmarks.scale [--part NAME ...]

All parts use one thread. Times are CPU seconds of the process, because the machine may be shared; only writing to disk
is measured in wall-clock seconds. Each figure is a median. The parts:

    steps    a step of each workload: its counts, plain FP32 PyTorch, the trainer's step, and the step of a dispute, in
             which every value is hashed. `held out`: not used in the fit, but predicted by it.
    memory   peak of the trainer's process
    states   hashing and writing states
    sums     the accumulator tree of one element of a long sum
    files    bytes of a run directory
    workers  what each of several workers sends and holds, counted from its plan
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click
import torch
from torch import Tensor

from benchmarks.accumulate import cases, tree
from benchmarks.memory import EXACT
from benchmarks.scale_workloads import BATCHED, DIVIDED, FITTED, HELD_OUT, gpt
from benchmarks.steps import ExactStep, eager_step
from benchmarks.table import Row, placed, publish, rows_of
from tiebreak.api.training.bundle import Bundle
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.capture.task import Task
from tiebreak.engine.data.disk import Folder
from tiebreak.engine.data.formats import write_tensors
from tiebreak.engine.data.tensors import identities, identity
from tiebreak.engine.distributed.partition import Partition
from tiebreak.engine.distributed.plan import Plan
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.train import Worker
from tiebreak.lab.incentives.costs import counts_of
from tiebreak.lab.incentives.workers import live_features, sent_features
from tiebreak.lab.sim.games.disputes import DisputeMarket

BUDGET_S: Final = 2.0
"""CPU time that the repeats of one step may take, within the two bounds below."""
LEAST, MOST = 3, 15
MEMORY: Final[dict[str, Callable[[], Task]]] = {
    name: FITTED[name]
    for name in ("gpt 4x256", "gpt 6x384", "gpt 8x512", "mlp 4x1024", "mlp 6x2048", "resnet 32, wide")
} | BATCHED
"""Workloads of two sorts: in some the state takes most of the memory, in the others the values of a step."""
STATES: Final = (
    (8, 1 << 10), (64, 1 << 10), (400, 1 << 10), (8, 1 << 18), (64, 1 << 16), (400, 1 << 15), (8, 1 << 21),
    (64, 1 << 19),
)  # fmt: skip
"""Pairs: the number of tensors, and the number of floats in each."""
WORKERS: Final = (1, 2, 3, 4, 8)
SUMS: Final = (10, 12, 14, 16, 18, 20)


def cpu_seconds(run: Callable[[], object], *, warmup: int = 1) -> list[float]:
    """CPU seconds of several calls, after `warmup` calls that are not counted."""
    found: list[float] = []
    while len(found) < LEAST + warmup or (len(found) < MOST + warmup and sum(found) < BUDGET_S):
        started = time.process_time()
        run()
        found.append(time.process_time() - started)
    return found[warmup:]


def median(metric: str, case: str, seconds: list[float]) -> Row:
    return Row(metric=metric, case=case, value=statistics.median(seconds), unit="s")


# ---------------------------------------------------------------- steps


def steps() -> Iterator[Row]:
    for name, make in {**FITTED, **HELD_OUT}.items():
        click.echo(f"steps: {name}", err=True)
        task = make()
        captured = capture_task(task)
        parameters = sum(p.numel() for p in task.model.parameters())
        counts = {"held out": int(name in HELD_OUT), "parameters": parameters, **asdict(counts_of(captured.program))}
        yield from rows_of(name, "", {f"steps: {what}": value for what, value in counts.items()})
        yield median("steps: eager", name, cpu_seconds(eager_step(task, torch.float32, keep=False)))
        del task
        yield median("steps: trainer", name, cpu_seconds(ExactStep(captured, 100)))
        yield median("steps: hashed", name, cpu_seconds(hashed_step(captured), warmup=0))


def hashed_step(captured: Captured) -> Callable[[], object]:
    """The step of a dispute, which computes the ids of all values."""
    machine = Interpreter(captured.program, Arithmetic())
    state, data = machine.to_device(captured.state), machine.to_device(captured.data)

    def observe(_: int, tensor: Tensor) -> Tensor:
        identity(tensor)
        return tensor

    return lambda: machine.step(1, state, data, observe)


# ---------------------------------------------------------------- memory, states, sums


def memory() -> Iterator[Row]:
    """Peak memory of the trainer's process, which loads a bundle as in `benchmarks.memory`."""
    for name, make in MEMORY.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bundle"
            task = make()
            captured = capture_task(task)
            Bundle.of(captured, name="scale", steps=task.steps, checkpoint_interval=1).save(path)
            counts = counts_of(captured.program)
            del task, captured
            command = [sys.executable, "-m", "benchmarks.memory", "--party", EXACT[0], str(path)]
            found = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        state = counts.state_bytes + counts.data_bytes
        sizes = {"memory: trainer": found, "memory: state": state, "memory: live": counts.live_bytes}
        yield from rows_of(name, "bytes", sizes)


def states() -> Iterator[Row]:
    for tensors, numbers in STATES:
        case = f"{tensors} x {numbers}"
        state = {f"{n}": torch.randn(numbers) for n in range(tensors)}
        yield Row(metric="states: tensors", case=case, value=tensors, unit="")
        yield Row(metric="states: bytes", case=case, value=4 * tensors * numbers, unit="bytes")
        yield median("states: hash", case, cpu_seconds(lambda state=state: identities(state)))  # type: ignore[misc]
        yield median("states: write", case, clock_seconds(state))


def clock_seconds(state: dict[str, Tensor]) -> list[float]:
    """Wall-clock seconds of writing a state and flushing it to disk, as a checkpoint does."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(7):
            started = time.perf_counter()
            with Folder(Path(folder)) as files:
                write_tensors(files, f"{number}.safetensors", state)
            found.append(time.perf_counter() - started)
    return found[1:]


def sums() -> Iterator[Row]:
    """Measures the tree over the partial sums of one element."""
    for log2 in SUMS:
        case = next(cases(log2))[1]
        yield Row(metric="sums: terms", case=f"2^{log2}", value=1 << log2, unit="")
        yield median("sums: tree", f"2^{log2}", cpu_seconds(lambda case=case: tree(case)))  # type: ignore[misc]


def files() -> Iterator[Row]:
    """Sizes of those files in the digits job's run directory whose size no format fixes."""
    task = FITTED["digits"]()
    captured, market = capture_task(task), DisputeMarket()
    job = market.draft(captured, steps=task.steps, checkpoint_interval=task.checkpoint_interval)
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory.create(
            Path(folder) / "run", market.sign(job), captured.program, captured.state, captured.data
        )
        Worker(run, Interpreter(captured.program, Arithmetic()), key=market.parties.trainer).work()
        size = {path.relative_to(run.path).as_posix(): path.stat().st_size for path in run.path.rglob("*.*")}
    found = {
        ("metrics", "a step"): size["metrics.jsonl"] / job.steps,
        ("head", "a checkpoint"): max(v for k, v in size.items() if "heads/" in k),
        ("program", "an instruction"): size["program.tbp"] / len(captured.program.body),
    }
    for (name, case), value in found.items():
        yield Row(metric=f"files: {name}", case=case, value=value, unit="bytes")


def workers() -> Iterator[Row]:
    """Nothing is measured here: a plan counts what a step sends, to the byte, and what is alive at once."""
    for name, model in DIVIDED.items():
        program = capture_task(gpt(model)).program
        for number in WORKERS:
            plan = Plan(Partition(program, number))
            case = f"{name}, {number} workers"
            yield Row(metric="workers: held out", case=case, value=int(number > 4), unit="")
            found = {"live": plan.cost.live_bytes, **{f"live {k}": v for k, v in live_features(model, number).items()}}
            if number > 1:
                found |= {"sent": max(map(sum, zip(*plan.sent.values(), strict=True)))}
                found |= {f"sent {k}": v for k, v in sent_features(model, number).items()}
            yield from rows_of(case, "bytes", {f"workers: {metric}": value for metric, value in found.items()})


# ---------------------------------------------------------------- all of it

PARTS: Final[dict[str, Callable[[], Iterator[Row]]]] = {
    "steps": steps, "memory": memory, "states": states, "sums": sums, "files": files, "workers": workers,
}  # fmt: skip


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice([*PARTS]), help="Only these.")
@placed
def main(parts: tuple[str, ...], folder: Path) -> None:
    """Measure, and write after each part."""
    torch.set_num_threads(1)
    for part in parts or PARTS:
        publish("scale", list(PARTS[part]()), "one thread, CPU seconds; medians", folder=folder)


if __name__ == "__main__":
    main()
