"""Predicts the time of a step on an H100 and an H200, before any was measured, from captured programs and machine code.

    python -m benchmarks.gpu_model      writes results/gpu_model.json; captures real programs, runs none of them

Sums and extremes are counted as `gpu/sums.py` would launch them: tiles, parts, and the instructions of a step of the
innermost loop as compiled for sm_90. Chains are a launch each, and scatter sums six, bound by memory. All else runs in
torch: tiny models of the same kinds are run on the CPU to count torch's operations and the bytes that these read and
write, per element of a result.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil, prod
from pathlib import Path
from typing import Any, Final
from unittest import mock

import click
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.kernels import assemble
from benchmarks.real_models import SMALL, make_real_task
from benchmarks.table import placed, publish, rows_of
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.gpu import sums as launching
from tiebreak.engine.arithmetic.gpu.chains import LaunchedChains
from tiebreak.engine.arithmetic.plan.sums import ReduceTables, plan_tables
from tiebreak.engine.capture import step as capturing
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.capture.task import Windows
from tiebreak.engine.native import pure_path
from tiebreak.engine.run import schedule
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.worst import Case, plain, product
from tiebreak.protocol.program.isa import DType, Instruction, Opcode, ReduceFunction, ScatterParams
from tiebreak.protocol.program.program import Program

BANDWIDTHS: Final = {"H100": 3.35e12, "H200": 4.8e12}
"""Bytes per second of the SXM modules' memory, as published. All else is the same chip."""
WORKLOADS: Final = {
    "ResNet-50, 16 x 32 x 32": ("resnet-50", 0),
    "GPT-2 124M, 8 x 64": ("gpt2-124m", 64),
    "GPT-2 124M, 8 x 1024": ("gpt2-124m", 1024),
}
"""Tasks by name, and the length of their texts."""
HOSTILE: Final = (
    plain(1, 1_000_000), plain(768, 8192, columns=True), product(1, 256, 512, 256), product(1, 64, 4096, 64),
    product(1, 8, 50_000, 8), product(1, 256, 16, 256), product(16, 64, 64, 64), product(1, 4096, 768, 3072),
)  # fmt: skip
"""Plain sums, products of `tiebreak.engine.run.worst`, and one that fills a GPU."""
PROCESSORS: Final = 132
CLOCK: Final = 1.98e9
"""The clock rate: with 256 FP64 operations a clock in each multiprocessor's matrix units, the published 67 TFLOP/s."""
CLOCKS: Final = {"DMMA": 16.0, r"D(ADD|MUL|FMA)": 0.5, "F2F": 2.0, "": 0.25}
"""Clocks of a multiprocessor for one instruction of a warp, by kind; kinds overlap, and each instruction is issued.
DMMA has 4,096 operations. FP64 additions: 64 a clock. Conversions to FP64: a guess, 16 a clock."""
TRITON_LAUNCH, TORCH_LAUNCH = 20e-6, 5e-6
"""Seconds of the host for a launch, from Python. These are guesses."""
UNDECIDED: Final = {"contract": 1.4e-4, "batched": 2.6e-3, "add_up": 5e-2}
"""The share of elements that Ziv's test left on GPT-2 on a CPU: of matrix products, batched ones, plain sums."""


@dataclass(frozen=True)
class Loop:
    """A kernel's machine code: clocks of one step of its innermost loops, and of the rest once, for all warps."""

    step: float
    rest: float


@cache
def loop_of(kernel: str) -> Loop:
    """The loop of a kernel compiled for sm_90 with products, at 32 bits."""
    code: list[str] = []
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    for line in assemble("sm_90", kernel, 32).code.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line):
            labels[label[1]] = len(code)
        elif found := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?(\w.*)", line):
            code.append(found[1])
            target = re.match(r"BRA.*`\((\.L_x_\d+)\)", found[1])
            if target and labels.get(target[1], len(code)) < len(code) - 1:
                loops.append((labels[target[1]], len(code)))
    inner = [x for x in loops if not any(y != x and x[0] <= y[0] and y[1] <= x[1] for y in loops)]
    rest = [line for at, line in enumerate(code) if not any(begin <= at < end for begin, end in inner)]
    warps = (launching.settling(1 << 12) if kernel == "settle" else launching.OPTIONS)["num_warps"]

    def clocks(lines: list[str]) -> float:
        return warps * max(n * sum(bool(re.match(kind, x)) for x in lines) for kind, n in CLOCKS.items())

    return Loop(sum(clocks(code[begin:end]) for begin, end in inner), clocks(rest))


@dataclass
class Spent:
    """The time of a step or a part of it, without the bandwidth's share: (clocks' seconds, bytes) of each kernel."""

    kernels: list[tuple[float, float]] = field(default_factory=list)
    host: float = 0.0
    launches: int = 0

    def add(self, seconds: float, moved: float, host: float, launches: int = 1) -> None:
        """Adds some launches that are one after the other on the device."""
        self.kernels.append((seconds, moved))
        self.host += host
        self.launches += launches

    def device(self, bandwidth: float) -> float:
        """Seconds on the device: each kernel is bound by its instructions or by memory."""
        return sum(max(seconds, moved / bandwidth) for seconds, moved in self.kernels)


def seconds_of(kernel: str, programs: float, steps: int) -> float:
    """The seconds of programs that multiprocessors share, each with `steps` steps of the innermost loop."""
    loop = loop_of(kernel)
    return ceil(programs / PROCESSORS) * (steps * loop.step + loop.rest) / CLOCK


def sums(i: Instruction, tables: ReduceTables, spent: Spent) -> None:
    """Adds what a sum or an extreme takes: each operand is read from memory once, as far as it is reached."""
    k, batches = tables.terms, len(tables.operands[0].batch) * tables.run_batch
    extreme = i.function in (ReduceFunction.MAX, ReduceFunction.ARGMAX)
    kernel = "find_greatest" if extreme else "contract" if tables.out else "add_up"
    parts = add_kernel(kernel, tables, spent)
    if extreme:
        return
    spent.add(0.0, 0.0, TORCH_LAUNCH)  # a list of length zero
    if parts > 1:
        spent.add(0.0, 8.0 * parts * (i.numel + sum(len(o.own) for o in tables.operands) * batches), TRITON_LAUNCH)
    listed = round(UNDECIDED["batched" if tables.out and batches > 1 else kernel] * i.numel)
    spent.add(settling_seconds(listed, k), 8.0 * k * listed, TRITON_LAUNCH)
    if k > launching.LONG:
        spent.add(0.0, 0.0, TORCH_LAUNCH + TRITON_LAUNCH, 2)  # digits, and their rounding
    if tables.out and parts == 1:
        spent.add(0.0, 0.0, TRITON_LAUNCH)  # finds that little is undecided


def add_kernel(kernel: str, tables: ReduceTables, spent: Spent) -> int:
    """Adds the first kernel of a sum, or of an extreme; returns the parts of its terms."""
    k, batches = tables.terms, len(tables.operands[0].batch) * tables.run_batch
    options = launching.tile("cuda", 90) if tables.out else launching.lanes(tables)
    m, n = (len(tables.operands[o].own) if tables.out else 1 for o in (0, -1))
    tiles = ceil(batches / options["BLOCK_M"])
    if tables.out:
        tiles = batches * ceil(m / options["BLOCK_M"]) * ceil(n / options["BLOCK_N"])
    parts = max(1, min(ceil(4 * PROCESSORS / tiles), k // launching.FEWEST))
    moved = 4.0 * (sum(o.reach[1] - o.reach[0] + 1 for o in tables.operands) + batches * m * n)
    spent.add(seconds_of(kernel, tiles * parts, ceil(ceil(k / parts) / options["BLOCK_K"])), moved, TRITON_LAUNCH)
    return parts


def settling_seconds(listed: int, terms: int) -> float:
    """The seconds of settling `listed` elements in fixed point."""
    options = launching.settling(terms)
    programs, steps = ceil(listed / options["BLOCK_M"]), ceil(terms / options["BLOCK_K"])
    if terms > launching.LONG and 0 < listed <= 4 * PROCESSORS:
        parts = 4 * PROCESSORS // programs
        programs, steps = programs * parts, ceil(steps / parts)
    return seconds_of("settle", programs, steps)


def hostile(case: Case) -> tuple[float, float]:
    """The factors by which a sum is slower if FP64 decides nothing: if doubled precision does all of it, or nothing."""
    i = case.instruction
    ordinary, tables, again = Spent(), plan_tables(i), 0.0
    assert tables is not None
    if add_kernel("contract" if tables.out else "add_up", tables, ordinary) == 1 and tables.out:
        (batches, m, n), blocks = i.shape, launching.twice(launching.tile("cuda", 90))
        tiles = batches * ceil(m / blocks["BLOCK_M"]) * ceil(n / blocks["BLOCK_N"])
        again = seconds_of("contract_twice", tiles, ceil(tables.terms / blocks["BLOCK_K"]))
    whole, exactly = ordinary.device(BANDWIDTHS["H100"]), settling_seconds(i.numel, tables.terms)
    return 1 + (again or exactly) / whole, 1 + (again + exactly) / whole


# ---- everything else ----

Kind = tuple[Opcode, int, DType]


class Operations(TorchDispatchMode):
    """Counts torch's operations other than views, and the bytes of the tensors that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.bytes = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and "empty" not in str(func):
            tensors = [x for x in tree_leaves((args, kwargs or {}, result)) if isinstance(x, Tensor)]
            self.bytes += sum(x.untyped_storage().nbytes() if 0 in x.stride() else x.nbytes for x in tensors)
            self.count += 1
        return result


class Counting(Arithmetic):
    """Runs instructions in torch, and counts (calls, elements, operations, bytes) by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[Kind, list[int]] = defaultdict(lambda: [0, 0, 0, 0])

    def execute(self, instruction: Instruction, operands: Any, step: int) -> Tensor:
        with Operations() as counted:
            result = super().execute(instruction, operands, step)
        row = self.seen[kind_of(instruction)]
        for at, n in enumerate((1, instruction.numel, counted.count, counted.bytes)):
            row[at] += n
        return result


def kind_of(i: Instruction) -> Kind:
    """The properties that decide how torch computes an instruction, but for its views."""
    return i.opcode, int(i.function), i.dtype


def count_others() -> dict[Kind, tuple[float, float]]:
    """Torch's operations for an instruction of each kind, and bytes for an element, in two steps of tiny models."""
    with pure_path():
        arithmetic = Counting()
        for name in SMALL:
            compiled = capture_task(make_real_task(name, steps=2))
            machine = Interpreter(compiled.program, arithmetic)
            state = machine.to_device(compiled.state)
            for step in (1, 2):
                state = machine.step(step, state, compiled.data).state
    return {
        kind: (count / calls, moved / elements) for kind, (calls, elements, count, moved) in arithmetic.seen.items()
    }


def predict(program: Program, others: dict[Kind, tuple[float, float]]) -> tuple[Spent, Spent, int]:
    """The time of sums and extremes, that of all else, and the FP64 operations of sums. Raises `KeyError`."""
    summed, rest, flops = Spent(), Spent(), 0
    for unit in schedule.plan(program, LaunchedChains.functions):
        if schedule.is_elementwise(program.body[unit.members[0]], LaunchedChains.functions):
            # a chain reads each value from outside once, and stores those of its results that others use
            inside, body = set(unit.members), program.body
            read = {a.value for n in unit.members for a in body[n].operands} - inside
            used = {a.value for n, i in enumerate(body) if n not in inside for a in i.operands}
            used |= {commit.operands[0].value for commit in program.commits}
            rest.add(0.0, float(sum(body[n].numel * body[n].dtype.size for n in read | (inside & used))), TRITON_LAUNCH)
            continue
        for i in (program.body[n] for n in unit.members):
            if i.opcode == Opcode.SOURCE:  # is there before the step
                continue
            tables = None
            if i.opcode == Opcode.REDUCE and i.is_f32_sum:
                tables = plan_tables(i)
                flops += i.numel * prod(i.reduction) * len(i.operands)
            elif i.opcode == Opcode.REDUCE and program.body[i.operands[0].value].dtype == DType.F32:
                tables = plan_tables(i)
            if tables is not None:
                sums(i, tables, summed)
            elif i.opcode == Opcode.SCATTER_SUM:  # two fills, four kernels, of which the last two find nothing to do
                assert isinstance(i.params, ScatterParams)
                kept = prod(size for size, match in zip(i.shape, i.params.match, strict=True) if match == 0)
                moved = 12.0 * kept * prod(i.reduction) + 44.0 * i.numel
                rest.add(0.0, moved, 2 * TORCH_LAUNCH + 4 * TRITON_LAUNCH, 6)
            elif i.opcode == Opcode.SHUFFLE:
                rest.add(0.0, 24.0 * i.numel, TRITON_LAUNCH)
            else:
                count, each = others[kind_of(i)]
                rest.add(0.0, each * i.numel, count * TORCH_LAUNCH, round(count))
    return summed, rest, flops


def captured(name: str, length: int) -> Program:
    """A task's program. Capture's rehearsal, which takes the memory of a step in eager PyTorch, is left out."""
    task = make_real_task(name, steps=1)
    if length:
        text, examples = (
            torch.zeros(8 * length + 1, dtype=torch.int64),
            Windows(name="text", length=length + 1, stride=length),
        )
        task = replace(task, data={"text": text}, batch=replace(task.batch, examples=examples))
    with mock.patch.object(capturing, "examine", return_value=frozenset()):
        return capture_task(task).program


@click.command(help=__doc__)
@placed
def main(folder: Path) -> None:
    others, rows = count_others(), []
    for name, workload in WORKLOADS.items():
        summed, rest, flops = predict(captured(*workload), others)
        for gpu, bandwidth in BANDWIDTHS.items():
            times = [summed.device(bandwidth), rest.device(bandwidth), summed.host + rest.host]
            found = {
                "step, ms": 1e3 * sum(times),
                "sums, ms": 1e3 * times[0],
                "all others, ms": 1e3 * times[1],
                "host, ms": 1e3 * times[2],
                "launches": summed.launches + rest.launches,
                "sums at 67 TFLOP/s, ms": 1e3 * flops / 67e12,
            }
            rows += rows_of(f"{gpu}: {name}", "", found)
    for case in HOSTILE:
        rows += rows_of(case.name, "", dict(zip(("doubled, times", "exactly, times"), hostile(case), strict=True)))
    publish("gpu_model", rows, "predicted, not measured", folder=folder)


if __name__ == "__main__":
    main()
