"""`scatter_sum` on CPUs by scatter.c, which writes into the result itself, through tables of places."""

import ctypes
from math import ceil
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.c.table import SCATTER, Host, TableEntry, Touch
from tiebreak.engine.arithmetic.c.threads import ZivProgress, run_kernel, sharing, together
from tiebreak.engine.arithmetic.plan.options import Operands, Options
from tiebreak.engine.arithmetic.plan.sums import ScatterTables
from tiebreak.engine.arithmetic.plan.views import check_reach
from tiebreak.engine.arithmetic.plan.ziv import Collector
from tiebreak.engine.native import Build, load
from tiebreak.protocol.program.isa import DType, Instruction

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


class TabledScatter:
    """A `scatter_sum` that scatter.c computes. With `options.shuffled`, sources are taken in random order."""

    def __init__(self, library: ctypes.CDLL, tables: ScatterTables, i: Instruction, options: Options) -> None:
        self._library, self._tables, self._i, self._shuffled = library, tables, i, options.shuffled
        self._precision = options.rounding(i).precision
        self._groups, self._rows, self._sources = len(tables.out[0]), len(tables.out[2]), len(tables.source[1])
        self._work = self._groups * self._rows * self._sources

    def run(self, operands: Operands, host: Host, near: Collector | None) -> Tensor:
        out, threads = torch.zeros(self._i.shape, dtype=torch.float32), sharing(self._work)
        for tensor, reach in zip(operands, self._tables.reach, strict=True):
            check_reach(tensor, reach)
        task, held = self._plan(threads)
        task.source, task.index, task.out = (tensor.data_ptr() for tensor in (*operands, out))
        task.coefficient = 0.0 if near is None or near.threshold is None else near.coefficient(1.0)

        def compute(progress: ZivProgress) -> bool:
            progress.next = 0
            add = self._library.scatter_sum
            return all(together(lambda: add(ctypes.byref(task), ctypes.byref(progress)), threads))

        progress = run_kernel(compute, out, self._precision, self._sources, near)
        del held
        counts = host.stats.of("scatter_sum")
        counts.elements += out.numel()
        progress.add_to(counts, threads)
        return out

    def entries(self, result: int) -> list[TableEntry]:
        values, sizes = (access.value for access in self._i.operands), (DType.F32.size, DType.I64.size)
        read = [Touch.of(*of) for of in zip(values, self._tables.reach, sizes, strict=True)]
        written = Touch.of(result, (0, self._i.numel - 1), DType.F32.size)
        return [
            TableEntry(
                kind=SCATTER, plan=self._plan, touches=(*read, written), work=self._work, number=self._precision,
                counted="scatter_sum", varies=self._shuffled is not None,
            )
        ]  # fmt: skip

    def _plan(self, threads: int) -> tuple[_Scatter, object]:
        """The arguments of the kernel without the memory that it reads and writes, and what must outlive them."""
        places, wanted, t = self._tables.source[1], self._tables.index[1], self._tables
        if self._shuffled is not None:
            order = torch.randperm(len(places), generator=self._shuffled, device=self._shuffled.device).cpu().numpy()
            places, wanted = places[order], wanted[order]
        block = self._rows if threads == 1 else max(BLOCK, ceil(self._rows * self._groups / (4 * threads)))
        held = (t.source[0], places, t.source[2], t.index[0], wanted, *t.out)
        sizes = self._groups, self._sources, self._rows, len(t.out[1]), block
        return _Scatter(*sizes, *(table.ctypes.data for table in held)), held
