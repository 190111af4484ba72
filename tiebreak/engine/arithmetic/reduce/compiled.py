"""The compiled way of `reduce` sums, on CPUs: tables for reduce.c, and threads that run it.

A sum of products over groups of dims (`tiebreak.engine.arithmetic.reduce.pure.Groups`) reads each operand at the sum of
one offset per group, so a plan consists of a few offset tables. Only one block of the output and its panels are held in
FP64.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, isqrt
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.exact import Floats, Integers
from tiebreak.engine.arithmetic.stats import Counts
from tiebreak.engine.arithmetic.threads import sharing, together
from tiebreak.engine.arithmetic.views import MAX_TABLE, Dim, check_reach, offsets_of, size_of
from tiebreak.engine.arithmetic.ziv import Collector, ZivProgress, coefficient, run_kernel
from tiebreak.engine.native import Build, load
from tiebreak.protocol.program.isa import Instruction, row_major

_KC, _CHUNK, _CHAINS = 192, 512, 32  # as in reduce.c
_ADD, _FINISH, _LEAVE = 0, 1, 2
_SOURCE: Final = Path(__file__).with_name("reduce.c")
BLOCK: Final = 512
"""The most rows and columns of a block, which stays in cache with its panels."""
LONG: Final = 4096
"""The number of terms from which on shorter panels pay."""
SHUFFLED_RUNS: Final = 1 << 20
"""The most pieces into which the terms of a sum are cut to be taken in random order."""
FEW: Final = 64
"""The most terms that are taken one by one in random order; longer sums are cut into pieces."""
_LINES: Final = _KC // 16


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
    return load(_SOURCE, contract=signature, add_up=signature, find_greatest=signature)


@dataclass(frozen=True)
class Operand:
    """The places of an operand's batches, own rows and terms; `step` leads from an output of a run to the next."""

    index: int
    """The position among the instruction's operands."""
    batch: Integers
    own: Integers
    k: Integers
    step: int
    reach: tuple[int, int]
    """The least and the greatest place read."""


@dataclass(frozen=True)
class ReduceTables:
    """The tables by which reduce.c computes one instruction."""

    operands: tuple[Operand, ...]
    out: tuple[Integers, ...]
    """The places of (batch, m, n) of a matrix product. Empty if each output has its own terms: o is at place o then."""
    run_k: int
    run_batch: int
    launches: dict[torch.device, Any] = field(default_factory=dict, compare=False)
    """The call that all launches of the Triton kernel share, by device."""
    calls: dict[int, "_Call"] = field(default_factory=dict, compare=False)
    """The call that all runs with terms in order share, by number of threads. One thread at a time may run a plan."""

    @property
    def terms(self) -> int:
        """The number of terms of an element, K."""
        return len(self.operands[0].k) * self.run_k

    @cached_property
    def multiplications(self) -> int:
        """The number of terms of all elements."""
        rows, columns = (len(self.operands[i].own) for i in (0, -1))
        return len(self.operands[0].batch) * self.run_batch * rows * columns * self.terms


def plan_tables(instruction: Instruction, output: Sequence[Dim], reduction: Sequence[Dim]) -> ReduceTables | None:
    """The tables of an f32 sum over coalesced dims. An operand that alone reads the innermost output dim is B.

    None if torch must compute it: outputs or terms that no operand reads, terms that only one of two reads, or tables
    that would be too large.
    """
    if (
        not (output or reduction)
        or not all(any(d.strides) for d in output)
        or not all(all(d.strides) for d in reduction)
    ):
        return None
    accesses, matrix = instruction.operands, not all(all(d.strides) for d in output)
    swapped = matrix and output[-1].strides[1] == 0
    order = (1, 0) if swapped else tuple(range(len(accesses)))
    places = zip(output, row_major(tuple(d.size for d in output)), strict=True)
    groups: list[list[tuple[Dim, int]]] = [[], [], []]
    for dim, place in places:
        groups[0 if all(dim.strides) else 1 if dim.strides[order[0]] else 2].append((dim, place))
    batch, m, n = ([dim for dim, _ in group] for group in groups)
    run_k, run_batch = (1 if matrix else _run(dims) for dims in (reduction, batch))
    k, batch = (list(dims[: len(dims) - (run > 1)]) for dims, run in ((reduction, run_k), (batch, run_batch)))
    if sum(map(size_of, (batch, m, n, k))) > MAX_TABLE:
        return None

    def places_of(dims: Sequence[Dim], operand: int) -> Integers:
        return offsets_of([(d.size, d.strides[operand]) for d in dims])

    operands = tuple(
        Operand(
            o, accesses[o].offset + places_of(batch, o), places_of(own, o), places_of(k, o), int(run_batch > 1),
            accesses[o].extent(instruction.index_space),
        )
        for o, own in zip(order, (m, n), strict=False)
    )  # fmt: skip
    out = tuple(offsets_of([(dim.size, place) for dim, place in group]) for group in groups if matrix)
    return ReduceTables(operands, out, run_k, run_batch)


def _run(dims: Sequence[Dim]) -> int:
    """The number of coordinates of the innermost dim that follow each other in every operand."""
    return dims[-1].size if dims and all(stride == 1 for stride in dims[-1].strides) else 1


def run_tables(
    library: ctypes.CDLL,
    plan: ReduceTables,
    operands: Sequence[Tensor],
    out: Tensor,
    counts: Counts,
    shuffled: torch.Generator | None,
    precision: int,
    near: Collector | None,
) -> None:
    """Writes the result into `out`: f32, contiguous, of the instruction's shape.

    With `shuffled`, the terms are taken in random order. `near` collects open elements that are not settled.
    """
    call = _reading(plan, operands, shuffled)
    task, threads = call.task, call.threads
    task.out = out.data_ptr()
    task.coefficient = call.coefficient if near is None else near.coefficient(call.coefficient)
    parts = call.room() if task.parts > 1 else []
    kernel = library.contract if plan.out else library.add_up

    def compute(progress: ZivProgress) -> bool:
        for what in (_ADD, _FINISH) if task.parts > 1 else (_ADD,):
            progress.next = 0
            if not all(together(lambda: kernel(ctypes.byref(task), what, ctypes.byref(progress)), threads)):  # noqa: B023
                return False
        return True

    progress = run_kernel(compute, out, precision, plan.terms, near)
    del parts
    counts.elements += out.numel()
    progress.add_to(counts, threads)


def leave_sums(
    library: ctypes.CDLL, plan: ReduceTables, operands: Sequence[Tensor], shuffled: torch.Generator | None
) -> tuple[list[Tensor], int]:
    """The FP64 sums and the sizes of all elements before rounding, and how many roundings a term passes through.

    A matrix product has sums (batch, m, n), and the sums of squares of rows (batch, m) and of columns (batch, n). Other
    sums have the sums and those of absolute terms, of the result's elements in order.
    """
    call = _reading(plan, operands, shuffled)
    task, progress = call.task, ZivProgress()
    room, kernel = call.room(), library.contract if plan.out else library.add_up
    if not all(together(lambda: kernel(ctypes.byref(task), _LEAVE, ctypes.byref(progress)), call.threads)):
        raise MemoryError(f"no memory to compute {task.batches} x {task.m} x {task.n} sums")
    sums, sizes = (torch.from_numpy(memory.reshape(task.parts, -1)) for memory in room)
    total, size = (x[0] if len(x) == 1 else x.sum(0) for x in (sums, sizes))
    if not plan.out:
        return [total, size], call.roundings
    rows, columns = torch.split(size.view(task.batches, -1), [task.m, task.n], 1)
    return [total.view(task.batches, task.m, task.n), rows, columns], call.roundings


def run_extreme(library: ctypes.CDLL, plan: ReduceTables, operand: Tensor, out: Tensor, *, place: bool) -> None:
    """Writes the greatest term of each output into `out`, or its position among the terms, which is i64."""
    (source,) = plan.operands
    check_reach(operand, source.reach)
    call = _prepare(plan)
    task, progress = call.task, ZivProgress()
    task.a, task.out = operand.data_ptr(), out.data_ptr()
    together(lambda: library.find_greatest(ctypes.byref(task), int(place), ctypes.byref(progress)), call.threads)


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


def _prepare(plan: ReduceTables, shuffled: torch.Generator | None = None) -> _Call:
    threads = sharing(plan.multiplications)
    if shuffled is None and threads in plan.calls:
        return plan.calls[threads]
    batches, (m, n) = len(plan.operands[0].batch) * plan.run_batch, (len(plan.operands[i].own) for i in (0, -1))
    task = _Contraction(batches=batches, m=m, n=n, k=plan.terms, run_k=plan.run_k, run_batch=plan.run_batch)
    held = _set_tables(task, plan, shuffled)
    roundings = _set_blocks(task, bool(plan.out), threads)
    call = _Call(task, held, threads, task.coefficient, roundings, bool(plan.out))
    if shuffled is None:
        plan.calls[threads] = call
    return call


def _reading(plan: ReduceTables, operands: Sequence[Tensor], shuffled: torch.Generator | None) -> _Call:
    """The call of a plan on these operands, which must outlive it."""
    read = [operands[o.index] for o in plan.operands]
    for operand, tensor in zip(plan.operands, read, strict=True):
        check_reach(tensor, operand.reach)
    call = _prepare(plan, shuffled)
    call.task.a, call.task.b = read[0].data_ptr(), read[1].data_ptr() if len(read) > 1 else None
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


def shuffle(terms: Sequence[Integers], run: int, shuffled: torch.Generator) -> tuple[list[Integers], int]:
    """The terms in random order: single ones if they are few, else in pieces that are one run in memory."""
    total = len(terms[0]) * run
    small = [c for c in range(1, isqrt(run) + 1) if run % c == 0]
    divisors = (*small, *(run // c for c in reversed(small)))
    least = 1 if total <= FEW or run == 1 else _CHAINS
    fitting = [c for c in divisors if c >= least and total // c <= SHUFFLED_RUNS] or [run]
    cut = next((c for c in fitting if c % least == 0), fitting[0])
    starts = np.arange(0, run, cut, dtype=np.int64)
    order = _order(len(terms[0]) * len(starts), shuffled, apart=cut > 1 or total <= FEW)
    return [(table[:, None] + starts).reshape(-1)[order] for table in terms], cut


def _order(count: int, shuffled: torch.Generator, *, apart: bool) -> Integers:
    """A random order of all numbers below `count`.

    Unless `apart`, four that follow each other stay together, and sixteen of them, which share a line of memory, near.
    """

    def drawn(size: int) -> Integers:
        found: Integers = torch.randperm(size, generator=shuffled, device=shuffled.device).cpu().numpy()
        return found

    if apart:
        return drawn(count)
    lines = drawn(ceil(count / 16))
    lines = np.append(lines, np.full(-len(lines) % _LINES, len(lines)))
    pieces = (4 * lines[:, None] + np.arange(4)).reshape(-1, 4 * _LINES)[:, drawn(4 * _LINES)]
    order: Integers = (4 * pieces.reshape(-1, 1) + np.arange(4)).reshape(-1)
    return order[order < count]


def _set_blocks(task: _Contraction, matrix: bool, threads: int) -> int:
    """Chooses the bound, and blocks and parts that give every thread work; returns the roundings on a term's path."""
    wanted = 1 if threads == 1 else 4 * threads
    if matrix:
        task.block_m, task.block_n = min(BLOCK, task.m), min(2 * BLOCK, task.n)
        while _blocks(task) < wanted and max(task.block_m, task.block_n) > 96:
            larger = "block_m" if task.block_m >= task.block_n else "block_n"
            setattr(task, larger, ceil(getattr(task, larger) / 24) * 12)
        parts = min(ceil(wanted / _blocks(task)), task.k // (2 * _KC))
    else:
        parts = min(ceil(wanted / ceil(task.batches / 256)), task.k // (4 * _CHUNK))
    task.parts = ceil(task.k / ceil(task.k / max(1, parts)))
    roundings = task.parts + (_set_panels(task) if matrix else min(task.k, _CHUNK) + ceil(task.k / _CHUNK) + _CHAINS)
    task.coefficient = coefficient(roundings) if task.k > 1 else 0.0
    return int(roundings)


def _set_panels(task: _Contraction) -> int:
    """Chooses how many terms are added at once; returns the roundings on a term's path through a part.

    Short panels cost a little speed, but where there are many, the closer bound saves more on undecided elements.
    """
    terms = ceil(task.k / task.parts)
    task.kc = min(terms, _KC if terms <= LONG else _KC // 2)
    panels = ceil(terms / task.kc)
    task.group = panels if panels <= 16 else isqrt(panels) + 1
    return int(task.kc + task.group + ceil(panels / task.group))


def _blocks(task: _Contraction) -> int:
    return int(task.batches * ceil(task.m / task.block_m) * ceil(task.n / task.block_n))
