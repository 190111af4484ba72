"""The compiled twin of `tiebreak.engine.arithmetic.scatter` on CPUs: plans for scatter.c."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, prod
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.exact import Integers
from tiebreak.engine.arithmetic.near_ties import Collector
from tiebreak.engine.arithmetic.reduce_native import MAX_TABLE, SMALL, Progress, check_reach, offsets_of, run_kernel
from tiebreak.engine.arithmetic.stats import Counts
from tiebreak.engine.arithmetic.threads import together
from tiebreak.engine.native import Build, load
from tiebreak.protocol.numbers.float32 import MAX_PRECISION
from tiebreak.protocol.program.isa import Instruction, ScatterParams

_SOURCE: Final = Path(__file__).with_name("scatter.c")
BLOCK: Final = 256
"""The least number of row elements per task when several threads share the work."""


class _Scatter(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("groups", "sources", "rows", "box", "block")),
        *((name, ctypes.c_void_p) for name in ("source_group", "source_place", "source_row")),
        *((name, ctypes.c_void_p) for name in ("index_group", "index_place")),
        *((name, ctypes.c_void_p) for name in ("out_group", "out_match", "out_row")),
        *((name, ctypes.c_void_p) for name in ("source", "index", "out")),
        ("coefficient", ctypes.c_double),
    ]


def build() -> Build:
    """The compiled kernel, or the reason why there is none."""
    return load(_SOURCE)


@dataclass(frozen=True)
class NativeScatter:
    """How scatter.c computes one instruction: tables of places by coordinate."""

    shape: tuple[int, ...]
    source: tuple[Integers, Integers, Integers]
    """Places by keyed, summed and row coordinate."""
    index: tuple[Integers, Integers]
    """Places by keyed and summed coordinate."""
    out: tuple[Integers, Integers, Integers]
    """Places by keyed, matched and row coordinate."""
    reach: tuple[tuple[int, int], tuple[int, int]]
    """The least and the greatest place read of the source and of the index."""


def plan_native(instruction: Instruction) -> NativeScatter | None:
    """The plan of a validated `scatter_sum`, or None if its tables would be too large."""
    params, shape = instruction.params, instruction.shape
    assert isinstance(params, ScatterParams)
    source, index = instruction.operands
    rank, space = len(shape), instruction.index_space
    matched = [d for d in range(rank) if params.match[d] != 0]
    keyed = [d for d in range(rank) if params.match[d] == 0 and index.strides[d] != 0]
    row = [d for d in range(rank) if params.match[d] == 0 and index.strides[d] == 0]
    summed = list(range(rank, len(space)))
    if sum(prod(space[d] for d in dims) for dims in (matched, keyed, row, summed)) > MAX_TABLE:
        return None
    written = [prod(shape[d + 1 :]) for d in range(rank)]

    def places(strides: Sequence[int], dims: Sequence[int], offset: int = 0) -> Integers:
        return offset + offsets_of([(space[d], strides[d]) for d in dims])

    return NativeScatter(
        shape,
        (places(source.strides, keyed, source.offset), places(source.strides, summed), places(source.strides, row)),
        (places(index.strides, keyed, index.offset), places(index.strides, summed)),
        (places(written, keyed), places(written, matched), places(written, row)),
        (source.extent(space), index.extent(space)),
    )


@cache
def _kernel(library: ctypes.CDLL) -> "ctypes._NamedFuncPointer":
    library.scatter_sum.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.scatter_sum.restype = ctypes.c_int
    return library.scatter_sum


def run_native(
    library: ctypes.CDLL, plan: NativeScatter, source: Tensor, index: Tensor, counts: Counts,
    shuffled: torch.Generator | None, precision: int = MAX_PRECISION, near: Collector | None = None,
) -> Tensor:  # fmt: skip
    """The result, f32, contiguous, of the instruction's shape. With `shuffled`, sources are taken in random order.

    `near` collects open elements that are not settled.
    """
    for tensor, reach in zip((source, index), plan.reach, strict=True):
        check_reach(tensor, reach)
    out = torch.zeros(plan.shape, dtype=torch.float32)
    places, wanted = plan.source[1], plan.index[1]
    if shuffled is not None:
        order = torch.randperm(len(places), generator=shuffled, device=shuffled.device).cpu().numpy()
        places, wanted = places[order], wanted[order]
    groups, rows = len(plan.out[0]), len(plan.out[2])
    threads = 1 if groups * rows * len(places) <= SMALL else torch.get_num_threads()
    block = rows if threads == 1 else max(BLOCK, ceil(rows * groups / (4 * threads)))
    held = (plan.source[0], places, plan.source[2], plan.index[0], wanted, *plan.out)
    task = _Scatter(
        groups, len(places), rows, len(plan.out[1]), block, *(table.ctypes.data for table in held),
        source.data_ptr(), index.data_ptr(), out.data_ptr(),
        0.0 if near is None or near.threshold is None else near.coefficient(1.0),
    )  # fmt: skip
    kernel = _kernel(library)

    def compute(progress: Progress) -> bool:
        progress.next = 0
        return all(together(lambda: kernel(ctypes.byref(task), ctypes.byref(progress)), threads))

    progress = run_kernel(compute, out, precision, len(places), near)
    del held
    counts.elements += out.numel()
    progress.add_to(counts, threads)
    return out
