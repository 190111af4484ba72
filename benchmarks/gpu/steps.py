"""Whole steps compared with eager PyTorch, and a breakdown of the exact step's time."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import cycle
from typing import Any, Final, TypeVar

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.workloads import Context
from benchmarks.steps import ExactStep
from benchmarks.table import Row, interleaved, rows_of
from tiebreak.demo.tasks.plain import make_optimizer
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.capture.task import Task
from tiebreak.engine.run.commit import make_record
from tiebreak.engine.run.graphs import Reads
from tiebreak.engine.run.interpreter import Interpreter

T = TypeVar("T")
KERNELS: Final = 15
"""The number of kernels in the breakdown; the rest make one row."""
SETTLING: Final = "settle"
"""The kernel that settles undecided elements."""
BATCHES: Final = 4
"""Eager steps take turns at this many batches, which are on the device before."""
EXACT: Final = "exact"
GRAPHS: Final = "exact by graphs"
"""A candidate where nothing prevents it; the reason is told where something does."""
TARGETS: Final = {"eager FP32": "<= 1.5", "bf16 autocast": "<= 4.5"}
"""The targets of the ratio to each, on a GPU, for workloads with `AT_FULL_SIZE`."""
AT_FULL_SIZE: Final = ("gpt2-1024", "resnet-50-224")


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


def eager(
    task: Task, device: torch.device, dtype: torch.dtype, *, mixed: bool = False, compiled: bool = False
) -> Callable[[], None]:
    """One step in plain PyTorch: forward (under bf16 autocast if `mixed`), backward, optimizer."""
    module = copy.deepcopy(task.model).to(device, dtype).train()
    optimizer = make_optimizer(task, module)
    model: Any = module
    if compiled:  # without a GPU, only the capture that precedes code generation is tried out
        model = torch.compile(module, backend="inductor" if device.type == "cuda" else "eager")
    data = {n: x.to(dtype) if x.is_floating_point() else x for n, x in task.data.items()}
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

    def __init__(self, compiled: Captured, device: torch.device, steps: int, *, graphs: bool = False) -> None:
        super().__init__(compiled, steps, machine=Interpreter(compiled.program, Arithmetic(device), graphs=graphs))

    def __call__(self) -> None:
        self.advance()
        finish(self.arithmetic.device)


def measure(context: Context, name: str) -> list[Row]:
    """Times, ratios, memory and shares of one workload."""
    device, repeats, f32 = context.device, context.repeats, torch.float32
    task, candidates = context.workloads[name].task(2 * repeats), dict[str, Callable[[], object]]()
    for base, how in {
        "eager FP32": partial(eager, task, device, f32),
        "eager FP64": partial(eager, task, device, torch.float64),
        "bf16 autocast": partial(eager, task, device, f32, mixed=True),
        "compiled bf16": partial(eager, task, device, f32, mixed=True, compiled=True),
    }.items():
        if (step := attempt(context, base, partial(warmed, how))) is not None:
            candidates[base] = step
    compiled = capture_task(task)
    exact = candidates[EXACT] = Exact(compiled, device, task.steps)
    if device.type == "cuda":
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            graphs = partial(Exact, compiled, device, task.steps, graphs=True)
            step = attempt(context, GRAPHS, partial(warmed, graphs, times=3))
        if step is not None and not said:
            candidates[GRAPHS] = step
        context.told.update({f"{GRAPHS}: said": str(one.message) for one in said})
    seconds = interleaved(candidates, repeats, min(3, repeats))
    rows = rows_of(name, "ms", {f"{who}: a step": 1e3 * each for who, each in seconds.items()})
    for base in [who for who in candidates if who != EXACT]:
        target = TARGETS.get(base, "") if name in AT_FULL_SIZE else ""
        ratio = seconds[EXACT] / seconds[base]
        rows.append(Row(metric=f"exact / {base}", case=name, value=ratio, unit="x", target=target))
    if device.type == "cuda":
        rows += rows_of(name, "GiB", {f"{who}: peak memory": peak(run, device) for who, run in candidates.items()})
    hashing = interleaved({"": lambda: make_record(1, exact.state, 0)}, min(3, repeats))[""]
    rows += rows_of(name, "x", {"hashing of the state / a step": hashing / seconds[EXACT]})
    rows += attempt(context, "shares", lambda: shares(exact, device, name, seconds[EXACT])) or []
    return rows + (attempt(context, "reads by the host", lambda: waits(exact, device, name)) or [])


def attempt(context: Context, what: str, run: Callable[[], T]) -> T | None:
    """Runs what may lack memory, a compiler or the right to profile; tells the reason if it fails, and returns None."""
    try:
        return run()
    except Exception as error:  # of torch, of its compiler, of a compiler's subprocess
        context.told[what] = f"did not run: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        return None


def warmed(make: Callable[[], Callable[[], None]], times: int = 1) -> Callable[[], None]:
    """The function from `make`, called already, so that compiling, planning and capture are not measured."""
    step = make()
    for _ in range(times):
        step()
    return step


def peak(step: Callable[[], object], device: torch.device) -> float:
    """Peak GiB allocated on the device during a step, including what all candidates hold."""
    torch.cuda.reset_peak_memory_stats(device)
    step()
    return torch.cuda.max_memory_allocated(device) / (1 << 30)


def shares(step: Callable[[], None], device: torch.device, name: str, seconds: float) -> list[Row]:
    """The shares of the device's work in a step that takes `seconds`, by kernel; on a CPU, by torch operator."""
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as seen:
        step()
    spent = [
        (event.self_device_time_total if on_gpu else event.self_cpu_time_total, event.key, event.count)
        for event in seen.key_averages()
        if event.device_type
        == (DeviceType.CUDA if on_gpu else DeviceType.CPU)  # operators have their kernels' time too
    ]
    spent = sorted((row for row in spent if row[0] > 0), reverse=True)
    total = sum(row[0] for row in spent)
    settling = sum(time for time, key, _ in spent if key == SETTLING)
    rest = spent[KERNELS:]
    shown = [*spent[:KERNELS], (sum(row[0] for row in rest), "all others", sum(row[2] for row in rest))]
    rows = rows_of(name, "", {
        "share in which the device works": total / 1e6 / seconds,
        "share of resolving": settling / total,
        "launches": sum(row[2] for row in spent),
    })  # fmt: skip
    for time, key, count in shown:
        rows += rows_of(f"{name}: {key[:80]}", "", {f"share of a step, {count} calls": time / total})
    return rows


def waits(step: Callable[[], None], device: torch.device, name: str) -> list[Row]:
    """The reads that keep a step from being replayed as a CUDA graph: each time that the host waits for the device."""
    with Reads() as reads:
        step()
    found = {f"reads by the host: {place}": count for place, count in sorted(reads.seen.items())}
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step()
        torch.cuda.set_sync_debug_mode("default")
        found["reads by the host, as CUDA counts them"] = sum("synchroniz" in str(each.message) for each in caught)
    return rows_of(name, "a step", found)
