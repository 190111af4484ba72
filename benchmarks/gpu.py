"""Slow-down on a GPU against eager FP32 (TF32 off), FP64 and bf16 autocast, and each kernel's share of the time.

    python -m benchmarks.gpu                                  writes results/gpu.json
    python -m benchmarks.gpu --device cpu --output FOLDER     tests the benchmark itself on tiny models

Nothing is measured unless the state after some steps equals the CPU's.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import click
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.table import RESULTS, Row, interleaved, placed, publish
from tests.golden.models import REAL, SMALL, make_real_task
from tiebreak.api.environment import describe_cuda
from tiebreak.api.running import usable_device
from tiebreak.demo.tasks.plain import make_optimizer
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.compile import Compiled, compile_task
from tiebreak.engine.capture.task import Task
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.qualify import qualify
from tiebreak.protocol.commitments.records import state_tree

REPEATS = 15
KERNELS = 15
"""The number of kernels in the breakdown; the rest make one row."""
TARGET = "<= 1.8"


@contextmanager
def without_tf32() -> Iterator[None]:
    """Turns TF32 off for products and convolutions of eager FP32; torch's default turns it on for convolutions."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def finish(device: torch.device) -> None:
    """Waits until the device has finished all of its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def eager(task: Task, device: torch.device, dtype: torch.dtype, mixed: bool = False) -> Callable[[], None]:
    """One step in plain PyTorch: fresh batch, forward (under bf16 autocast if `mixed`), backward, optimizer."""
    model = copy.deepcopy(task.model).to(device, dtype).train()
    optimizer = make_optimizer(task, model)
    data = {n: x.to(dtype) if x.is_floating_point() else x for n, x in task.data.items()}

    def step() -> None:
        index_B = torch.randint(0, task.examples, (task.batch.size,))
        batch = [x.to(device) for x in task.batch.examples.take(data, index_B)]
        cast: AbstractContextManager[object] = torch.autocast(device.type, torch.bfloat16) if mixed else nullcontext()
        optimizer.zero_grad()
        with without_tf32():
            with cast:
                loss = task.loss(model, *batch)
            torch.autograd.backward(loss)
        optimizer.step()
        finish(device)

    return step


class Exact:
    """The captured step on a device; each call continues from the state that the last one left."""

    def __init__(self, compiled: Compiled, arithmetic: Arithmetic, steps: int) -> None:
        self._machine = Interpreter(compiled.program, arithmetic)
        self.state = {name: tensor.clone() for name, tensor in self._machine.to_device(compiled.state).items()}
        self._data = self._machine.place_data(compiled.data)
        self._number, self._steps = 0, steps

    def __call__(self) -> None:
        self._number = self._number % self._steps + 1
        self.state = self._machine.step(self._number, self.state, self._data).state
        finish(self._machine.arithmetic.device)


def check_root(compiled: Compiled, device: torch.device, steps: int) -> str:
    """The state root after some steps. Exits if the device's root is not the CPU's."""
    roots = []
    for arithmetic in (Arithmetic("cpu"), Arithmetic(device, permute=1)):
        machine = Exact(compiled, arithmetic, steps)
        for _ in range(steps):
            machine()
        roots.append(state_tree(identities(machine.state)).root.hex())
    if roots[0] != roots[1]:
        sys.exit(f"expected the CPU's state root {roots[0]} after {steps} steps, got {roots[1]} on {device}")
    return roots[0]


def breakdown(step: Callable[[], None], device: torch.device, case: str) -> list[Row]:
    """Each kernel's share of the device time of one step; on a CPU, each torch operator's share."""
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as seen:
        step()
    spent = [
        (event.self_device_time_total if on_gpu else event.self_cpu_time_total, event.key, event.count)
        for event in seen.key_averages()
    ]
    spent = sorted((row for row in spent if row[0] > 0), reverse=True)
    total = sum(row[0] for row in spent)
    shown = [(key[:80], time, count) for time, key, count in spent[:KERNELS]]
    shown.append(("all others", sum(row[0] for row in spent[KERNELS:]), sum(row[2] for row in spent[KERNELS:])))
    return [
        Row(metric=f"share of a step, {count} calls", case=f"{case}: {key}", value=time / total, unit="")
        for key, time, count in shown
    ]


def measure(name: str, device: torch.device, steps: int, size: int) -> list[Row]:
    task = make_real_task(name, steps=max(steps, REPEATS), size=size)
    compiled = compile_task(task)
    check_root(compiled, device, steps)
    case = f"{name}, batch {task.batch.size}"
    exact = Exact(compiled, Arithmetic(device), task.steps)
    candidates: dict[str, Callable[[], object]] = {
        "eager FP32": eager(task, device, torch.float32),
        "eager FP64": eager(task, device, torch.float64),
        "bf16 autocast": eager(task, device, torch.float32, mixed=True),
        "exact": exact,
    }
    seconds = interleaved(candidates, REPEATS, warmup=3)
    rows = [Row(metric="state equal to the CPU's", case=name, value=steps, unit="steps")]
    rows += [Row(metric=f"{who}: a step", case=case, value=1e3 * s, unit="ms") for who, s in seconds.items()]
    for base in list(candidates)[:-1]:
        target = TARGET if base == "eager FP32" else ""
        ratio = seconds["exact"] / seconds[base]
        rows.append(Row(metric=f"exact / {base}", case=case, value=ratio, unit="x", target=target))
    if device.type == "cuda":
        rows += [
            Row(metric=f"{who}: peak memory", case=case, value=peak(candidates[who], device), unit="GiB")
            for who in candidates
        ]
    return rows + breakdown(exact, device, case)


def peak(step: Callable[[], object], device: torch.device) -> float:
    """Peak GiB allocated on the device during a step, including what all candidates hold."""
    torch.cuda.reset_peak_memory_stats(device)
    step()
    return torch.cuda.max_memory_allocated(device) / (1 << 30)


@click.command()
@click.option("--device", default="cuda", show_default=True, help="cpu: try out, on small models.")
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True, help="Steps compared with the CPU's.")
@click.option("--size", type=click.IntRange(1), default=1, show_default=True, help="Factor of the batches.")
@placed
def main(device: str, folder: Path, steps: int, size: int) -> None:
    """Measure; see the module."""
    if device == "cpu" and folder == RESULTS:
        raise click.UsageError("--commit is for a GPU's results, not for a trial on the CPU")
    found = usable_device(device)
    qualify(Arithmetic(found))
    rows = [row for name in (SMALL if device == "cpu" else REAL) for row in measure(name, found, steps, size)]
    note = "a trial on the CPU, numbers of no interest" if device == "cpu" else "policy exact on a GPU, medians"
    publish("gpu", rows, note, environment=(("device", device), *describe_cuda()), folder=folder)


if __name__ == "__main__":
    main()
