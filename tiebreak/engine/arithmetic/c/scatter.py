"""`scatter_sum` on CPUs by scatter.c, which writes into the result itself, through tables of places."""

import ctypes
from math import ceil
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.c.threads import ZivProgress, run_kernel, sharing, together
from tiebreak.engine.arithmetic.plan.options import Counts, Operands
from tiebreak.engine.arithmetic.plan.sums import ScatterTables
from tiebreak.engine.arithmetic.plan.views import check_reach
from tiebreak.engine.arithmetic.plan.ziv import Collector
from tiebreak.engine.native import Build, load

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
    return load(__file__, scatter_sum=(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p))


def scatter(
    library: ctypes.CDLL, tables: ScatterTables, operands: Operands, out: Tensor, counts: Counts,
    shuffled: torch.Generator | None, precision: int, near: Collector | None,
) -> Tensor:  # fmt: skip
    """Adds the sums to `out`, f32 zeros of the instruction's shape.

    With `shuffled`, sources are taken in random order. `near` collects open elements that are not settled.
    """
    source, index = operands
    for tensor, reach in zip(operands, tables.reach, strict=True):
        check_reach(tensor, reach)
    places, wanted = tables.source[1], tables.index[1]
    if shuffled is not None:
        order = torch.randperm(len(places), generator=shuffled, device=shuffled.device).cpu().numpy()
        places, wanted = places[order], wanted[order]
    groups, rows = len(tables.out[0]), len(tables.out[2])
    threads = sharing(groups * rows * len(places))
    block = rows if threads == 1 else max(BLOCK, ceil(rows * groups / (4 * threads)))
    held = (tables.source[0], places, tables.source[2], tables.index[0], wanted, *tables.out)
    task = _Scatter(
        groups, len(places), rows, len(tables.out[1]), block, *(table.ctypes.data for table in held),
        source.data_ptr(), index.data_ptr(), out.data_ptr(),
        0.0 if near is None or near.threshold is None else near.coefficient(1.0),
    )  # fmt: skip

    def compute(progress: ZivProgress) -> bool:
        progress.next = 0
        return all(together(lambda: library.scatter_sum(ctypes.byref(task), ctypes.byref(progress)), threads))

    progress = run_kernel(compute, out, precision, len(places), near)
    del held
    counts.elements += out.numel()
    progress.add_to(counts, threads)
    return out
