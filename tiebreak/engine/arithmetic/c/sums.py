"""`reduce` on CPUs by sums.c: threads that run it over the tables of a plan.

Only one block of the output and its panels are held in FP64.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, isqrt
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.c.table import GREATEST, MATRIX, SUMS, Host, TableEntry, Touch
from tiebreak.engine.arithmetic.c.threads import ZivProgress, run_kernel, sharing, together
from tiebreak.engine.arithmetic.plan.options import Operands, Options
from tiebreak.engine.arithmetic.plan.sums import Partial, ReduceTables, kind_of, progression, shuffle
from tiebreak.engine.arithmetic.plan.views import Floats, Integers, check_reach
from tiebreak.engine.arithmetic.plan.ziv import Collector, coefficient
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.engine.native import Build, load
from tiebreak.protocol.program.isa import DType, Instruction, ReduceFunction

_KC, _CHUNK, _RUN = 192, 512, 32  # as in sums.c
_ADD, _FINISH, _LEAVE = 0, 1, 2
BLOCK: Final = 768
"""The most rows of a block: with half as many columns, their panels fit a second-level cache of 1 MiB by turns. Fewer
rows leave room for more columns."""
PANEL: Final = 1 << 27
"""The most bytes of a panel, as f32, of an operand that is held in bfloat16."""
_WIDTH: Final = 24
"""Panels have a multiple of this many rows, which fills tiles of all sizes."""
LONG: Final = 4096
"""The number of terms from which on shorter panels pay."""


class _Contraction(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batches", "m", "n", "k", "block_m", "block_n", "parts", "kc", "group")),
        *((name, ctypes.c_int64) for name in ("run_k", "run_batch", "a_step", "b_step")),
        *((name, ctypes.c_void_p) for name in ("a_batch", "a_m", "a_k", "b_batch", "b_n", "b_k")),
        *((name, ctypes.c_void_p) for name in ("out_batch", "out_m", "out_n", "a", "b", "out", "sums", "sizes")),
        ("coefficient", ctypes.c_double),
    ]


def build() -> Build:
    """The compiled kernel, or the reason why there is none."""
    signature = ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
    return load(__file__, contract=signature, add_up=signature, find_greatest=signature)


@dataclass(frozen=True)
class _Call:
    """The arguments of the kernel, without the memory that it reads and writes."""

    task: _Contraction
    held: list[Integers]
    """The tables to which `task` points."""
    threads: int
    coefficient: float
    roundings: int
    """The number of roundings on a term's path, additions of parts included."""
    matrix: bool

    def room(self) -> list[Floats]:
        """Memory for the FP64 sums and sizes that parts leave, to which the task points from now on."""
        task, count = self.task, self.task.parts * self.task.batches
        outputs, sizes = (task.m * task.n, task.m + task.n) if self.matrix else (1, 1)
        memory = [np.empty(count * outputs), np.empty(count * sizes)]
        task.sums, task.sizes = (int(piece.ctypes.data) for piece in memory)
        return memory


class TabledSum:
    """A `reduce` of f32 that sums.c computes. Only one thread at a time may run it.

    With `options.shuffled`, the terms of sums are taken in random order.
    """

    def __init__(self, library: ctypes.CDLL, tables: ReduceTables, i: Instruction, options: Options) -> None:
        self._library, self._tables, self._i, self._options = library, tables, i, options
        self._shuffled = options.shuffled if i.is_f32_sum else None
        self._precision, self._is_place = options.rounding(i).precision, i.function == ReduceFunction.ARGMAX
        self._kernel = library.contract if tables.out else library.add_up
        self._calls: dict[tuple[int, bool], _Call] = {}
        """The call that all runs with terms in order share, by number of threads and `whole`."""
        self._parts: dict[int, tuple[TabledSum, tuple[Any, ...]]] = {}
        """The sums over panels of an operand in bfloat16, by the first row."""

    def run(self, operands: Operands, host: Host, near: Collector | None) -> Tensor:
        out = host.empty(self._i.shape, TORCH_DTYPES[self._i.dtype])
        for part, read in self._panels(operands, host):
            part._compute(read, out, host, near)
        if self._i.is_f32_sum:
            host.stats.of(kind_of(self._i)).elements += out.numel()
        return out

    def _panels(self, operands: Operands, host: Host) -> Iterator[tuple["TabledSum", Operands]]:
        """The sum on f32 operands; if one is in bfloat16 and large, on panels of it, for some rows or columns each."""
        tables, read = self._tables, list(operands)
        narrow = [n for n, o in enumerate(tables.operands) if operands[o.index].dtype == torch.bfloat16]
        large = max(narrow, key=lambda n: operands[tables.operands[n].index].numel(), default=-1)
        for n in narrow:
            if n != large:
                read[tables.operands[n].index] = host.wide(operands[tables.operands[n].index])
        if large < 0:
            yield self, read
            return
        own, at = tables.operands[large], tables.operands[large].index
        total, steps = len(own.own), (progression(own.own), progression(own.k))
        pieces = ceil(total * len(own.k) * DType.F32.size / PANEL)
        if pieces == 1 or not tables.out or len(own.batch) > 1 or not all(step and step > 0 for step in steps):
            read[at] = host.wide(operands[at])
            yield self, read
            return
        each = ceil(total / pieces / _WIDTH) * _WIDTH
        for first in range(0, total, each):
            if first not in self._parts:
                self._parts[first] = self._part(large, range(first, min(first + each, total)))
            part, places = self._parts[first]
            read[at] = host.wide(operands[at].as_strided(*places))
            yield part, read
            read[at] = operands[at]  # the panel's memory is free for the next one

    def _part(self, which: int, rows: range) -> tuple["TabledSum", tuple[Any, ...]]:
        """The sum for some rows of an operand, and sizes, strides and offset of those in it."""
        tables, whole = self._tables, self._tables.operands[which]
        own, k = whole.own[rows.start : rows.stop], whole.k
        steps, sizes = (int(own[-1] - own[0]) // max(1, len(own) - 1), int(k[1])), (len(own), len(k))
        turned = steps[1] > steps[0]  # terms lie farther apart
        own_step, k_step = (1, len(own)) if turned else (len(k), 1)
        panel = replace(
            whole, batch=np.zeros(1, np.int64), own=own_step * np.arange(len(own)), k=k_step * np.arange(len(k)),
            reach=(0, len(own) * len(k) - 1),
        )  # fmt: skip
        operands = tuple(panel if n == which else operand for n, operand in enumerate(tables.operands))
        places = [of[rows.start : rows.stop] if n == which + 1 else of for n, of in enumerate(tables.out)]
        part = replace(tables, operands=operands, out=tuple(places))
        order = slice(None, None, -1 if turned else 1)
        view = sizes[order], steps[order], int(whole.batch[0] + own[0])
        return TabledSum(self._library, part, self._i, self._options), view

    def _compute(self, operands: Operands, out: Tensor, host: Host, near: Collector | None) -> None:
        call = self._reading(operands)
        task, threads = call.task, call.threads
        task.out = out.data_ptr()
        if not self._i.is_f32_sum:
            find, place, shared = self._library.find_greatest, int(self._is_place), ZivProgress()
            together(lambda: find(ctypes.byref(task), place, ctypes.byref(shared)), threads)
            return
        task.coefficient = call.coefficient if near is None else near.coefficient(call.coefficient)
        parts: list[Floats] = []

        def compute(progress: ZivProgress) -> bool:
            parts.extend(call.room() if task.parts > 1 else [])
            for what in (_ADD, _FINISH) if task.parts > 1 else (_ADD,):
                progress.next = 0
                if not all(together(lambda: self._kernel(ctypes.byref(task), what, ctypes.byref(progress)), threads)):  # noqa: B023
                    return False
            return True

        progress = run_kernel(compute, out, self._precision, self._tables.terms, near)
        progress.add_to(host.stats.of(kind_of(self._i)), threads)

    def entries(self, result: int) -> list[TableEntry]:
        i, tables = self._i, self._tables
        read = [Touch.of(i.operands[o.index].value, o.reach, DType.F32.size) for o in tables.operands]
        is_sum = i.is_f32_sum
        return [
            TableEntry(
                kind=(MATRIX if tables.out else SUMS) if is_sum else GREATEST, plan=self._plan,
                touches=(*read, Touch.of(result, (0, i.numel - 1), i.dtype.size)), work=tables.multiplications,
                number=self._precision if is_sum else int(self._is_place), counted=kind_of(i) if is_sum else "",
                varies=self._shuffled is not None,
            )
        ]  # fmt: skip

    def partial(self, operands: Operands) -> Partial:
        """The FP64 sums and the sizes of all elements before rounding."""
        call = self._reading(operands)
        task, progress, room = call.task, ZivProgress(), call.room()
        run = together(lambda: self._kernel(ctypes.byref(task), _LEAVE, ctypes.byref(progress)), call.threads)
        if not all(run):
            raise MemoryError(f"no memory to compute {task.batches} x {task.m} x {task.n} sums")
        sums, sizes = (torch.from_numpy(memory.reshape(task.parts, -1)) for memory in room)
        total, size = (x[0] if len(x) == 1 else x.sum(0) for x in (sums, sizes))
        if not self._tables.out:
            return Partial(total, (size,), call.roundings, None)
        rows, columns = torch.split(size.view(task.batches, -1), [task.m, task.n], 1)
        return Partial(total.view(task.batches, task.m, task.n), (rows, columns), call.roundings, self._tables.source)

    def _plan(self, threads: int) -> tuple[_Contraction, object]:
        call = self._prepare(threads, whole=True)
        call.task.coefficient = call.coefficient
        return call.task, call.held

    def _reading(self, operands: Operands) -> _Call:
        """The call on these operands, which must outlive it."""
        read = [operands[o.index] for o in self._tables.operands]
        for operand, tensor in zip(self._tables.operands, read, strict=True):
            check_reach(tensor, operand.reach)
        call = self._prepare(sharing(self._tables.multiplications))
        call.task.a, call.task.b = read[0].data_ptr(), read[1].data_ptr() if len(read) > 1 else None
        return call

    def _prepare(self, threads: int, *, whole: bool = False) -> _Call:
        """whole: without parts, whose sums are added by another call."""
        tables, shuffled = self._tables, self._shuffled
        if shuffled is None and (threads, whole) in self._calls:
            return self._calls[threads, whole]
        first, (m, n) = tables.operands[0], (len(tables.operands[i].own) for i in (0, -1))
        batches = len(first.batch) * tables.run_batch
        task = _Contraction(batches=batches, m=m, n=n, k=tables.terms, run_k=tables.run_k, run_batch=tables.run_batch)
        held = _set_tables(task, tables, shuffled)
        roundings = _set_blocks(task, bool(tables.out), threads, whole=whole)
        call = _Call(task, held, threads, task.coefficient, roundings, bool(tables.out))
        if shuffled is None:
            self._calls[threads, whole] = call
        return call


def _set_tables(task: _Contraction, plan: ReduceTables, shuffled: torch.Generator | None) -> list[Integers]:
    """Points `task` to the tables. The returned arrays must outlive it."""
    terms, run = [o.k for o in plan.operands], plan.run_k
    if shuffled is not None:
        terms, run = shuffle(terms, run, shuffled)
        task.run_k = run
    held: list[Integers] = []

    def point(table: Integers) -> int:
        held.append(table)
        return int(table.ctypes.data)

    for name, operand, own, k in zip("ab", plan.operands, ("a_m", "b_n"), terms, strict=False):
        setattr(task, f"{name}_batch", point(operand.batch))
        setattr(task, own, point(operand.own))
        setattr(task, f"{name}_k", point(k))
        setattr(task, f"{name}_step", operand.step)
    for name, table in zip(("out_batch", "out_m", "out_n"), plan.out, strict=False):
        setattr(task, name, point(table))
    return held


def _set_blocks(task: _Contraction, matrix: bool, threads: int, *, whole: bool) -> int:
    """Chooses the bound, and blocks and parts that give every thread work; returns the roundings on a term's path."""
    wanted = 1 if threads == 1 else 4 * threads
    if matrix:
        task.block_m, task.block_n = (m := min(BLOCK, task.m)), min(task.n, 1024, max(BLOCK // 2, BLOCK**2 // 2 // m))
        while _blocks(task) < wanted and max(task.block_m, task.block_n) > 96:
            larger = "block_m" if task.block_m >= task.block_n else "block_n"
            setattr(task, larger, ceil(getattr(task, larger) / 24) * 12)
        parts = min(ceil(wanted / _blocks(task)), task.k // (2 * _KC))
    else:
        parts = min(ceil(wanted / ceil(task.batches / 256)), task.k // (4 * _CHUNK))
    task.parts = 1 if whole else ceil(task.k / ceil(task.k / max(1, parts)))
    roundings = task.parts + min(task.k, _CHUNK) + ceil(task.k / _CHUNK) + _RUN
    if matrix:
        # Short panels cost a little speed, but where there are many, the closer bound saves more on undecided elements.
        terms = ceil(task.k / task.parts)
        task.kc = min(terms, _KC if terms <= LONG else _KC // 2)
        panels = ceil(terms / task.kc)
        task.group = panels if panels <= 16 else isqrt(panels) + 1
        roundings = task.parts + task.kc + task.group + ceil(panels / task.group)
    task.coefficient = coefficient(roundings) if task.k > 1 else 0.0
    return int(roundings)


def _blocks(task: _Contraction) -> int:
    return int(task.batches * ceil(task.m / task.block_m) * ceil(task.n / task.block_n))
