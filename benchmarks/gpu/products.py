"""Sums of products against vendor BLAS and the roofline of this device.

Products are computed as this device would, from tables, by integers and in FP64: bits first, then times.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from math import ceil, prod
from typing import Final
from unittest import mock

import torch
from torch import Tensor

from benchmarks.gpu.steps import finish
from benchmarks.gpu.workloads import Context, capture, make
from benchmarks.table import Row, interleaved, rows_of
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.gpu import operands as reading
from tiebreak.engine.arithmetic.plan.sums import plan_tables
from tiebreak.engine.arithmetic.plan.ziv import UNIT
from tiebreak.engine.capture.check import without_tf32
from tiebreak.engine.native import INTEGERS
from tiebreak.protocol.program.isa import Access, DType, Instruction, Opcode
from tiebreak.protocol.program.program import Program

PRODUCTS: Final = (
    ("NN", 8192, 768, 3072), ("NT", 8192, 3072, 768), ("TN", 768, 8192, 3072), ("TN", 3072, 8192, 768),
    ("NT", 8192, 768, 50257), ("NN", 512, 768, 3072),
)  # fmt: skip
"""Layouts (N row-major, T transposed), m, k and n of GPT-2 124M on 8 x 1024 tokens, and one on 8 x 64."""
CONVOLUTIONS: Final = 10
"""The number of ResNet-50's sums of products that are measured."""
SQUARE: Final = 8192
"""Rows and columns of the FP64 product, and of the copy, that show the roofline."""
SHORTEST: Final = 5e-3
"""Seconds that a measurement takes at least."""


def product(layout: str, m: int, k: int, n: int) -> Instruction:
    """A product of matrices (m, k) x (k, n)."""
    a, b = (k, 0, 1) if layout[0] == "N" else (1, 0, m), (0, 1, n) if layout[1] == "N" else (0, k, 1)
    return Instruction(
        opcode=Opcode.REDUCE, dtype=DType.F32, shape=(m, n), reduction=(k,), operands=(Access(0, 0, a), Access(1, 0, b))
    )


def largest(program: Program, count: int) -> list[Instruction]:
    """The sums of products that take most of a step's operations, one of each form."""
    forms: dict[object, Instruction] = {}
    work: Counter[object] = Counter()
    for i in program.body:
        if i.opcode == Opcode.REDUCE and i.is_f32_sum and len(i.operands) == 2:
            form = i.shape, i.reduction, tuple((a.offset, a.strides) for a in i.operands)
            forms[form] = i
            work[form] += i.numel * prod(i.reduction)
    return [forms[form] for form, _ in work.most_common(count)]


def seconds_of(runs: dict[str, Callable[[], object]], context: Context) -> dict[str, float]:
    """The seconds of one call each, from a measurement of enough calls that it is not too short."""

    def repeated(run: Callable[[], object], count: int) -> None:
        for _ in range(count):
            run()
        finish(context.device)

    counts = {}
    for who, run in runs.items():
        repeated(run, 1)  # compiles
        started = time.perf_counter()
        repeated(run, 1)
        counts[who] = ceil(SHORTEST / (time.perf_counter() - started))
    found = interleaved({who: partial(repeated, run, counts[who]) for who, run in runs.items()}, context.repeats)
    return {who: seconds / counts[who] for who, seconds in found.items()}


def measure(context: Context) -> Iterator[Row]:
    """GFLOP/s of each product and its share of the roofline, ours and the vendor's on matrices of the same sizes."""
    device, size = context.device, 64 if context.trial else SQUARE
    x = torch.randn(size, size, device=device, dtype=torch.float64)
    other = torch.empty_like(x)
    seconds = seconds_of({"mm": lambda: torch.mm(x, x, out=other), "copy": lambda: other.copy_(x)}, context)
    peak, bandwidth = 2.0 * size**3 / seconds["mm"], 2.0 * x.nbytes / seconds["copy"]
    yield from rows_of("roofline", "GFLOP/s", {"cuBLAS FP64, square": peak / 1e9})
    yield from rows_of("roofline", "GB/s", {"a copy": bandwidth / 1e9})
    far = distance(context)
    yield Row(metric="FP64 product", case="distance from the CPU's", value=far, unit="of the bound", target="<= 1")
    for layout, *sizes in (("TN", 32, 48, 32),) if context.trial else PRODUCTS:
        yield from one(product(layout, *sizes), f"GPT-2, {layout}", context, peak, bandwidth)
    # Last, because it needs `transformers`, which may not be installed.
    task = make("resnet-small", 1, {}) if context.trial else context.workloads["resnet-50-224"].task(1)
    convolutions = largest(capture(task).program, 2 if context.trial else CONVOLUTIONS)
    for number, i in enumerate(convolutions, 1):
        yield from one(i, f"ResNet-50, {number}", context, peak, bandwidth)


def one(i: Instruction, name: str, context: Context, peak: float, bandwidth: float) -> list[Row]:
    """The rows of one sum of products; for the vendor it is a product of matrices in any case."""
    tables, device = plan_tables(i), context.device
    if tables is None or not tables.out:  # without rows and columns
        return []
    first, last, k = tables.operands[0], tables.operands[-1], tables.terms
    batch, m, n = len(first.batch), len(first.own), len(last.own)
    read = {o.index: o.reach[1] + 1 for o in tables.operands}
    operands = [torch.randn(read[at], device=device) for at in range(2)]
    arithmetic, by_tables, fp64 = (Arithmetic(device) for _ in range(3))
    by_integers = Arithmetic(device, by_integers=True)
    with mock.patch.multiple(reading, progression=lambda _: None, LEAST=1 << 62):  # a plan is kept
        right = by_tables.execute(i, operands, 0)
    differ = int((arithmetic.execute(i, operands, 0) != right).sum())
    differ += int((by_integers.execute(i, operands, 0) != right).sum())
    with mock.patch.dict(os.environ, {INTEGERS: "0"}):
        differ += int((fp64.execute(i, operands, 0) != right).sum())
    a, b = torch.randn(batch, m, k, device=device), torch.randn(batch, k, n, device=device)
    a64, b64 = a.double(), b.double()

    def vendor() -> Tensor:
        with without_tf32():
            return a @ b

    seconds = seconds_of(
        {
            "exact": lambda: arithmetic.execute(i, operands, 0),
            "exact, by tables": lambda: by_tables.execute(i, operands, 0),
            "exact, by integers": lambda: by_integers.execute(i, operands, 0),
            "exact, FP64": lambda: fp64.execute(i, operands, 0),
            "cuBLAS FP64": lambda: a64 @ b64,
            "cuBLAS FP32": vendor,
        },
        context,
    )
    flops, moved = 2.0 * batch * m * n * k, 4.0 * (sum(read.values()) + i.numel)
    case, counts = f"{name}: {batch} x {m} x {k} x {n}", arithmetic.stats.of("reduce.sum.products")
    left = by_integers.stats.of("reduce.sum.products")
    rows = rows_of(case, "GFLOP/s", {who: flops / each / 1e9 for who, each in seconds.items()})
    rows += rows_of(case, "elements", {"bits that differ from those by tables": differ})
    return rows + rows_of(case, "", {
        "share of the roofline": max(flops / peak, moved / bandwidth) / seconds["exact"],
        "share of undecided elements": counts.undecided / max(1, counts.elements),
        "share of undecided elements, by integers": left.undecided / max(1, left.elements),
    })  # fmt: skip


def distance(context: Context) -> float:
    """The most that FP64 products of the vendor and of the CPU differ by, as a share of what rounding allows both."""
    size = 8 if context.trial else 1024
    a, b = (torch.randn(size, size).double() * 2.0 ** torch.randint(-20, 20, (size, 1)) for _ in range(2))
    allowed = 2 * size * UNIT * (a.abs() @ b.abs())
    return float(((a.to(context.device) @ b.to(context.device)).cpu() - a @ b).abs().div_(allowed).max())
