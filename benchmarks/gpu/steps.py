"""Whole steps compared with eager PyTorch, their bits, and a breakdown of the exact step's time."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import cycle
from typing import Any, Final

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.roots import STEPS, committed, compare, job_of
from benchmarks.gpu.workloads import Context, capture, release
from benchmarks.steps import ExactStep
from benchmarks.table import Row, interleaved, rows_of
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import Captured
from tiebreak.engine.capture.check import without_tf32
from tiebreak.engine.capture.task import Task
from tiebreak.engine.run.commit import make_record
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.lab.demo.plain import make_optimizer

KERNELS: Final = 15
"""The number of kernels in the breakdown; the rest make one row."""
BATCHES: Final = 4
"""Eager steps take turns at this many batches, which are on the device before."""
BITS: Final = 3
"""The steps whose bits are compared before the times are taken."""
WARMUP: Final = 4
"""Calls before a measurement: the first compiles, and the third is captured as a graph."""
EXACT: Final = "exact"
GRAPHS: Final = "exact by graphs"
PLAIN: Final[dict[str, tuple[torch.dtype | None, bool]]] = {
    "eager FP32": (torch.float32, False),
    "eager FP64": (torch.float64, False),
    "bf16 autocast": (torch.float32, True),
    "as written": (None, False),
}
"""The dtype of the model (None: its own) and whether its forward pass is under bfloat16 autocast."""
TARGETS: Final = {
    ("gpt2-1024", "eager FP32"): "<= 1.5",
    ("gpt2-1024", "bf16 autocast"): "<= 4.5",
    ("resnet-50-224", "eager FP32"): "<= 1.5",
    ("resnet-50-224", "bf16 autocast"): "<= 4.5",
    ("gpt2-64", "eager FP32"): "<= 1.2",
    ("resnet-50", "eager FP32"): "<= 1.2",
}
"""Targets of the ratio of the exact step by graphs to another step, by workload."""
MEMORY: Final = "<= 1.3"
"""The target of the peak memory of `gpt2-1024`, as a multiple of eager FP32's."""


def finish(device: torch.device) -> None:
    """Waits until the device has finished all of its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def eager(task: Task, device: torch.device, dtype: torch.dtype | None, *, mixed: bool = False) -> Callable[[], None]:
    """One step in plain PyTorch: forward (under bf16 autocast if `mixed`), backward, optimizer."""
    model: Any = copy.deepcopy(task.model).to(device, dtype).train()
    optimizer = make_optimizer(task, model)
    data = {n: x.to(dtype) if x.is_floating_point() and dtype is not None else x for n, x in task.data.items()}
    size, examples = task.batch.size, task.batch.examples
    taken = [examples.take(data, torch.randint(0, task.examples, (size,))) for _ in range(BATCHES)]
    batches = cycle([[x.to(device) for x in batch] for batch in taken])

    def step() -> None:
        cast: AbstractContextManager[object] = torch.autocast(device.type, torch.bfloat16) if mixed else nullcontext()
        optimizer.zero_grad()
        with without_tf32():
            with cast:
                loss = task.loss(model, *next(batches))
            torch.autograd.backward(loss)
        optimizer.step()
        finish(device)

    return step


class Exact(ExactStep):
    """The captured step on a device, as training runs it, up to the end of the device's work."""

    def __init__(self, captured: Captured, device: torch.device, steps: int, *, graphs: bool = False) -> None:
        super().__init__(captured, steps, machine=Interpreter(captured.program, Arithmetic(device), graphs=graphs))

    def __call__(self) -> None:
        self.advance()
        finish(self.arithmetic.device)


def measure(context: Context, name: str) -> Iterator[Row]:
    """Bits of a few steps, then times, ratios and memory of one workload, and the shares of its kernels.

    One candidate after the other, each alone in the device's memory. A wrong bit raises `StateError` before any time is
    taken.
    """
    device, workload = context.device, context.workloads[name]
    task = workload.task(STEPS)
    captured = capture(task)
    yield from compare(context, name, BITS, committed(workload) or job_of(task, captured))
    candidates: dict[str, Callable[[], Callable[[], None]]] = {
        EXACT: partial(Exact, captured, device, task.steps),
        **({GRAPHS: partial(Exact, captured, device, task.steps, graphs=True)} if device.type == "cuda" else {}),
    }
    for base in workload.eager:
        dtype, mixed = PLAIN[base]
        candidates[base] = partial(eager, task, device, dtype, mixed=mixed)
    seconds, memory = dict[str, float](), dict[str, float]()
    for who in (GRAPHS, *workload.eager, EXACT):
        if who in candidates and (found := timed(context, who, candidates[who])) is not None:
            seconds[who], memory[who] = found
            yield Row(metric=f"{who}: a step", case=name, value=1e3 * seconds[who], unit="ms")
            if device.type == "cuda":
                yield Row(metric=f"{who}: peak memory", case=name, value=memory[who], unit="GiB")
    best = GRAPHS if GRAPHS in seconds else EXACT
    for base in (base for base in workload.eager if base in seconds and best in seconds):
        target = TARGETS.get((name, base), "")
        ratio = seconds[best] / seconds[base]
        yield Row(metric=f"{best} / {base}", case=name, value=ratio, unit="x", target=target)
        if device.type == "cuda":
            target, ratio = MEMORY if (name, base) == ("gpt2-1024", "eager FP32") else "", memory[best] / memory[base]
            yield Row(metric=f"{best} / {base}: peak memory", case=name, value=ratio, unit="x", target=target)
    exact = Exact(captured, device, task.steps)
    exact()
    hashing = interleaved({"": lambda: make_record(1, exact.state, 0)}, min(3, context.repeats))[""]
    yield Row(metric="hashing of the state", case=name, value=1e3 * hashing, unit="ms")
    yield from shares(exact, device, name)


def timed(context: Context, who: str, make: Callable[[], Callable[[], None]]) -> tuple[float, float] | None:
    """Median seconds of a step and its peak GiB; None, with the reason among the remarks, if it cannot run.

    Nor is there a time of graphs where the engine gave them up.
    """
    device = context.device
    if device.type == "cuda":
        release()
        torch.cuda.reset_peak_memory_stats(device)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            step = make()
            seconds = interleaved({"": step}, context.repeats, 1 if context.trial else WARMUP)[""]
    except torch.OutOfMemoryError as error:
        context.told[who] = f"did not run: {str(error).strip().partition(chr(10))[0]}"
        return None
    context.told.update({f"{who}: said": str(one.message) for one in said})
    if who == GRAPHS and any("CUDA graphs" in str(one.message) for one in said):
        return None
    return seconds, torch.cuda.max_memory_allocated(device) / (1 << 30) if device.type == "cuda" else 0.0


def shares(step: Callable[[], None], device: torch.device, name: str) -> Iterator[Row]:
    """The device's milliseconds in a step by kernel; on a CPU, by torch operator."""
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as seen:
        step()
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU  # operators have their kernels' time, too
    spent = [
        (event.self_device_time_total if on_gpu else event.self_cpu_time_total, event.key, event.count)
        for event in seen.key_averages()
        if event.device_type == kind
    ]
    spent = sorted((row for row in spent if row[0] > 0), reverse=True)
    rest = spent[KERNELS:]
    shown = [*spent[:KERNELS], (sum(row[0] for row in rest), "all others", sum(row[2] for row in rest))]
    yield from rows_of(name, "a step", {"launches": sum(row[2] for row in spent)})
    for micros, key, count in shown:
        yield from rows_of(f"{name}: {key[:80]}", "ms", {f"of a step, {count} calls": micros / 1e3})
