"""`gather` and `window` on CPUs: copies of boxes, which moves.c makes."""

import ctypes
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.c.table import FILL, MOVE, Host, TableEntry, Touch, fixed
from tiebreak.engine.arithmetic.c.threads import ZivProgress, sharing, together
from tiebreak.engine.arithmetic.plan.options import Operands
from tiebreak.engine.arithmetic.plan.views import check_reach, coalesce
from tiebreak.engine.native import Build, load
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.program import isa
from tiebreak.protocol.program.isa import Access, DType, Instruction, row_major

MOVED: Final = 4
"""The number of multiplications that take as long as moving an element."""
TASK: Final = 1 << 16
"""The number of elements that a thread moves at a time."""


class _Move(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("size", "rank", "rows", "block")),
        *((name, ctypes.c_int64 * isa.MAX_RANK) for name in ("sizes", "out_steps", "from_steps", "index_steps")),
        *((name, ctypes.c_int64) for name in ("out_first", "from_first", "index_first", "bound", "stride")),
        ("fill", ctypes.c_uint64),
        *((name, ctypes.c_void_p) for name in ("index", "source", "out")),
    ]


def build() -> Build:
    """The compiled kernel, or the reason why there is none."""
    return load(__file__, move_all=(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p))


class Moves:
    """A gather, or a window: one or two copies of boxes."""

    def __init__(self, library: ctypes.CDLL, i: Instruction, dtype: torch.dtype) -> None:
        """dtype: of the elements as they are held."""
        self._library, self._i, self._dtype, size = library, i, dtype, dtype.itemsize
        self._fill, self._work = np.array([0], dtype=np.uint64), MOVED * i.numel
        self._copies: list[tuple[_Move, tuple[int, ...], tuple[tuple[int, int], ...]]] = []
        """Each copy, the operands that it reads (FILL too), and the least and greatest place that it reads there."""
        whole, shape, params = Access(0, 0, row_major(i.shape)), i.shape, i.params
        if isinstance(params, isa.GatherParams):
            table, index = i.operands
            row = _row(i, size)
            if row > 1:  # short rows of a table move as one element each
                shape = shape[:-1]
                whole, table, index = (_in_rows(access, n) for access, n in ((whole, row), (table, row), (index, 1)))
            move = _move(size * row, shape, whole, table, index)
            move.bound, move.stride = params.bound, params.index_stride // row
            fill = (NAN_BITS if i.dtype == DType.F32 else 0) >> (16 if size == 2 else 0)
            move.fill = sum(fill << 8 * size * n for n in range(row))
            table, index = i.operands
            (low, high), ends = table.extent(i.shape), (params.bound - 1) * params.index_stride
            self._copies.append((move, (0, 1), ((low + min(ends, 0), high + max(ends, 0)), index.extent(i.shape))))
            return
        assert isinstance(params, isa.WindowParams)
        if i.function == isa.WindowFunction.FILL:
            self._fill[0] = params.fill
            self._copies.append((_move(size, shape, whole, Access(0, 0, (0,) * len(shape))), (FILL,), ((0, 0),)))
        else:
            self._copies.append((_move(size, shape, whole, i.operands[1]), (1,), (i.operands[1].extent(shape),)))
        steps, box = row_major(shape), params.extents
        first = sum(low * step for low, step in zip(params.lo, steps, strict=True))
        inside = Access(0, first, tuple(n * step for n, step in zip(params.step, steps, strict=True)))
        if prod(box):
            self._copies.append((_move(size, box, inside, i.operands[0]), (0,), (i.operands[0].extent(box),)))

    def run(self, operands: Operands, host: Host, near: object) -> Tensor:
        if operands[0].dtype != self._dtype:  # of a table that no step changes, held in bfloat16 or not
            return Moves(self._library, self._i, operands[0].dtype).run(operands, host, near)
        out, threads, move_all = host.empty(self._i.shape, self._dtype), sharing(self._work), self._library.move_all
        for move, read, reaches in self._copies:
            for operand, reach, dtype in zip(read, reaches, (self._dtype, torch.int64), strict=False):
                if operand != FILL:
                    check_reach(operands[operand], reach)
                    # SAFETY: the kernel reads elements of this size.
                    if operands[operand].dtype != dtype:
                        raise ValueError(f"expected operand {operand} in {dtype}, got {operands[operand].dtype}")
            sources = [self._fill.ctypes.data if operand == FILL else operands[operand].data_ptr() for operand in read]
            move.source, move.index, move.out = (*sources, None)[0], (*sources, None)[1], out.data_ptr()
            progress = ZivProgress()
            together(lambda: move_all(ctypes.byref(move), ctypes.byref(progress)), threads)  # noqa: B023
        return out

    def entries(self, result: int) -> list[TableEntry]:
        found, written = [], Touch.of(result, (0, self._i.numel - 1), self._dtype.itemsize)
        for move, read, reaches in self._copies:
            values = [FILL if operand == FILL else self._i.operands[operand].value for operand in read]
            sizes = self._dtype.itemsize, DType.I64.size
            touches = [Touch.of(*of) for of in zip(values, reaches, sizes, strict=False)]
            fill = self._fill if FILL in read else None
            found.append(
                TableEntry(
                    kind=MOVE, plan=partial(fixed, move), touches=(*touches, written), work=self._work, fill=fill
                )
            )
        return found


def _row(i: Instruction, size: int) -> int:
    """The number of elements of `size` bytes that a gather can move as one of at most 8 bytes."""
    assert isinstance(i.params, isa.GatherParams)
    (table, index), row = i.operands, i.shape[-1] if i.shape else 1
    steps = (*table.strides[:-1], table.offset, i.params.index_stride)
    beside = table.strides[-1:] == (1,) and index.strides[-1] == 0
    return row if size * row in (2, 4, 8) and beside and not any(step % row for step in steps) else 1


def _in_rows(access: Access, row: int) -> Access:
    """An access without its last dim, in units of rows."""
    return Access(access.value, access.offset // row, tuple(stride // row for stride in access.strides[:-1]))


def _move(size: int, sizes: Sequence[int], out: Access, source: Access, index: Access | None = None) -> _Move:
    """A copy of a box of elements of `size` bytes."""
    accesses = (out, source, index or Access(0, 0, (0,) * len(sizes)))
    dims = coalesce(sizes, [access.strides for access in accesses])
    shape = [dim.size for dim in dims] or [1]
    steps = list(zip(*(dim.strides for dim in dims), strict=True)) or [(0,)] * 3
    made = _Move(size=size, rank=len(shape), rows=prod(shape[:-1]), block=max(1, TASK // shape[-1]))
    for name, column in zip(("sizes", "out_steps", "from_steps", "index_steps"), (shape, *steps), strict=True):
        getattr(made, name)[: len(shape)] = column
    made.out_first, made.from_first, made.index_first = (access.offset for access in accesses)
    return made
