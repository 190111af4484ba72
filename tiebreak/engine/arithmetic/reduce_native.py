"""The compiled twin of `tiebreak.engine.arithmetic.reduce` on CPUs: plans for reduce.c, and threads that run them.

A sum of products over groups of dims (`tiebreak.engine.arithmetic.reduce.Groups`) reads each operand at the sum of one
offset per group, so a plan consists of a few offset tables. Only one block of the output and its panels are held in
FP64.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, isqrt, prod
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.exact import Floats, Integers
from tiebreak.engine.arithmetic.near_ties import Collector
from tiebreak.engine.arithmetic.stats import Counts
from tiebreak.engine.arithmetic.threads import together
from tiebreak.engine.arithmetic.views import Dim, coalesce
from tiebreak.engine.arithmetic.ziv import coefficient
from tiebreak.engine.native import Build, load
from tiebreak.protocol.numbers.float32 import MAX_PRECISION
from tiebreak.protocol.program.isa import Instruction

_SOURCE: Final = Path(__file__).with_name("reduce.c")
_KC, _CHUNK, _CHAINS = 192, 512, 32  # as in reduce.c
BLOCK: Final = 512
"""The most rows and columns of a block, which stays in cache with its panels."""
SMALL: Final = 1 << 18
"""Up to this many multiplications, one thread is faster than several."""
LONG: Final = 4096
"""From this many terms on, shorter panels pay."""
MAX_TABLE: Final = 1 << 24
"""The most entries in the tables of a plan: 128 MiB."""
SHUFFLED_RUNS: Final = 1 << 20
"""The most pieces into which the terms of a sum are cut to be taken in random order."""


class _Contraction(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batches", "m", "n", "k", "block_m", "block_n", "parts", "kc", "group")),
        *((name, ctypes.c_int64) for name in ("run_k", "run_batch", "a_step", "b_step")),
        *((name, ctypes.c_void_p) for name in ("a_batch", "a_m", "a_k", "b_batch", "b_n", "b_k")),
        *((name, ctypes.c_void_p) for name in ("out_batch", "out_m", "out_n", "a", "b", "out", "sums", "sizes")),
        ("coefficient", ctypes.c_double),
    ]


class Progress(ctypes.Structure):
    """`progress` of exact.h: state that threads share, and their counters."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("next", "undecided", "twice", "wrong", "nanoseconds", "logged")),
        *((name, ctypes.c_int64) for name in ("precision", "grid", "room")),
        ("limit", ctypes.c_double),
        ("near", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
    ]

    def add_to(self, counts: Counts, threads: int) -> None:
        """Adds the counters of a run on `threads` threads."""
        counts.undecided += self.undecided
        counts.logged += self.logged
        counts.undecided_twice += self.twice
        counts.double_rounded += self.wrong
        counts.seconds_resolving += self.nanoseconds / 1e9 / threads


_NEAR_TIE: Final = np.dtype([("place", np.int64), ("c", np.float64), ("e", np.float64)])
"""`near_tie` of exact.h."""
NEAR_ROOM: Final = 1 << 12
"""The initial room for near ties, in addition to one for every 16 elements."""


def run_kernel(
    compute: Callable[["Progress"], bool],
    out: Tensor,
    precision: int,
    terms: int,
    near: Collector | None,
) -> Progress:
    """Fills `out` by calling `compute`, which returns False if memory ran out; returns the counters.

    `terms`: the number of terms of an element, by the instruction's definition. Near ties go to `near`, if it is given.
    """
    grid = max(1, (terms - 1).bit_length()) if near is not None and near.grid else 0
    room, limit = 0, 0.0
    if near is not None:
        room, limit = out.numel() if near.limit > 1 else min(out.numel(), NEAR_ROOM + out.numel() // 16), near.limit
    while True:
        held = np.empty(room, dtype=_NEAR_TIE)
        progress = Progress(
            precision=precision, grid=grid, room=room, limit=limit, near=held.ctypes.data,
            result=out.data_ptr(),
        )  # fmt: skip
        if not compute(progress):
            raise MemoryError(f"no memory to compute {tuple(out.shape)}")
        if near is None:
            return progress
        if progress.logged <= room:
            found = held[: progress.logged]
            near.add(found["place"].copy(), found["c"].copy(), found["e"].copy())
            return progress
        room = progress.logged  # the second run finds the same near ties


def build() -> Build:
    """The compiled kernel, or the reason why there is none."""
    signature = ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
    return load(_SOURCE, contract=signature, add_up=signature)


@dataclass(frozen=True)
class Operand:
    """Where an operand's batches, own rows and terms start; `step` leads from an output of a run to the next."""

    index: int
    """The position among the instruction's operands."""
    batch: Integers
    own: Integers
    k: Integers
    step: int
    reach: tuple[int, int]
    """The least and the greatest place read."""


@dataclass(frozen=True)
class NativePlan:
    """How reduce.c computes one instruction."""

    shape: tuple[int, ...]
    operands: tuple[Operand, ...]
    out: tuple[Integers, Integers, Integers]
    """The places of (batch, m, n); without m and n, output o is at place o."""
    sizes: tuple[int, int, int, int]
    """Batches, M, N, K."""
    run_k: int
    run_batch: int

    @property
    def matrix(self) -> bool:
        """Whether it is a matrix product; otherwise each output has its own terms."""
        return len(self.out[0]) > 0


def plan_native(instruction: Instruction) -> NativePlan | None:
    """The plan of a `reduce` sum (f32), or None if the pure path must run: for terms or outputs that nothing reads."""
    rank = len(instruction.shape)
    accesses = instruction.operands
    output = coalesce(instruction.shape, [a.strides[:rank] for a in accesses])
    reduction = coalesce(instruction.reduction, [a.strides[rank:] for a in accesses])
    if not output and not reduction:
        return None
    if any(not any(d.strides) for d in (*output, *reduction)):
        return None
    if len(accesses) == 1:
        return _plan_flat(instruction, output, reduction)
    if any(not all(d.strides) for d in reduction):
        return None
    if all(all(d.strides) for d in output):
        return _plan_flat(instruction, output, reduction)
    return _plan_matrix(instruction, output, reduction)


def _places(dims: Sequence[Dim], operand: int) -> Integers:
    """The offsets of the coordinates of some dims, row-major."""
    return offsets_of([(d.size, d.strides[operand]) for d in dims])


def offsets_of(steps: Sequence[tuple[int, int]]) -> Integers:
    """The sums of coordinate * stride over a box of (size, stride), row-major."""
    place = np.zeros((1,), dtype=np.int64)
    for size, stride in steps:
        place = (place[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
    return place


def check_reach(tensor: Tensor, reach: tuple[int, int]) -> None:
    """Raises `ValueError` unless the least and the greatest place read lie inside a contiguous tensor."""
    # SAFETY: the kernels trust their tables. Validating the program has checked the same, but this costs nothing.
    if reach[0] < 0 or reach[1] >= tensor.numel() or not tensor.is_contiguous():
        raise ValueError(f"expected places 0 ... {tensor.numel() - 1} of a contiguous tensor, got {reach}")


def _size(dims: Sequence[Dim]) -> int:
    return prod(d.size for d in dims)


def _plan_flat(instruction: Instruction, output: list[Dim], reduction: list[Dim]) -> NativePlan | None:
    """The plan if every operand reads every output dim."""
    run_k = reduction[-1].size if reduction and all(s == 1 for s in reduction[-1].strides) else 1
    run_batch = output[-1].size if output and all(s == 1 for s in output[-1].strides) else 1
    k = reduction[:-1] if run_k > 1 else reduction
    batch = output[:-1] if run_batch > 1 else output
    if _size(k) + _size(batch) > MAX_TABLE:
        return None
    none = np.empty(0, dtype=np.int64)
    operands = tuple(
        Operand(
            o, access.offset + _places(batch, o), none, _places(k, o), int(run_batch > 1),
            access.extent(instruction.index_space),
        )
        for o, access in enumerate(instruction.operands)
    )  # fmt: skip
    sizes = _size(output), 0, 0, _size(reduction)
    return NativePlan(instruction.shape, operands, (none, none, none), sizes, run_k, run_batch)


def _plan_matrix(instruction: Instruction, output: list[Dim], reduction: list[Dim]) -> NativePlan | None:
    """The plan if one operand reads the rows and the other the columns.

    The operand that reads the innermost dim, if there is one, is the one of the columns.
    """
    accesses, inner = instruction.operands, output[-1].strides
    first = 1 if inner[0] and not inner[1] else 0
    a, b = first, 1 - first
    strides = [prod(d.size for d in output[i + 1 :]) for i in range(len(output))]
    groups: list[list[tuple[Dim, int]]] = [[], [], []]
    for dim, stride in zip(output, strides, strict=True):
        groups[0 if all(dim.strides) else 1 if dim.strides[a] else 2].append((dim, stride))
    batch, m, n = ([dim for dim, _ in group] for group in groups)
    if sum(map(_size, (batch, m, n, reduction))) > MAX_TABLE:
        return None
    operands = tuple(
        Operand(o, accesses[o].offset + _places(batch, o), _places(own, o), _places(reduction, o), 0,
                accesses[o].extent(instruction.index_space))
        for o, own in ((a, m), (b, n))
    )  # fmt: skip
    out_batch, out_m, out_n = (offsets_of([(dim.size, stride) for dim, stride in group]) for group in groups)
    sizes = _size(batch), _size(m), _size(n), _size(reduction)
    return NativePlan(instruction.shape, operands, (out_batch, out_m, out_n), sizes, 1, 1)


def run_native(
    library: ctypes.CDLL,
    plan: NativePlan,
    operands: Sequence[Tensor],
    out: Tensor,
    counts: Counts,
    shuffled: torch.Generator | None,
    precision: int = MAX_PRECISION,
    near: Collector | None = None,
) -> None:
    """Writes the result into `out`: f32, contiguous, of the instruction's shape.

    With `shuffled`, the terms are taken in random order. `near` collects open elements that are not settled.
    """
    read = [operands[o.index] for o in plan.operands]
    for operand, tensor in zip(plan.operands, read, strict=True):
        check_reach(tensor, operand.reach)
    threads = torch.get_num_threads()
    batches, m, n, k = plan.sizes
    threads = 1 if max(1, m) * max(1, n) * batches * k <= SMALL else threads
    task = _Contraction(
        batches=batches, m=m, n=n, k=k, run_k=plan.run_k, run_batch=plan.run_batch,
        a=read[0].data_ptr(), b=read[1].data_ptr() if len(read) > 1 else None, out=out.data_ptr(),
    )  # fmt: skip
    tables = _set_tables(task, plan, shuffled)
    held = _set_blocks(task, plan.matrix, threads)
    task.coefficient = task.coefficient if near is None else near.coefficient(task.coefficient)
    kernel = library.contract if plan.matrix else library.add_up

    def compute(progress: Progress) -> bool:
        for finish in (0, 1) if task.parts > 1 else (0,):
            progress.next = 0
            if not all(together(lambda: kernel(ctypes.byref(task), finish, ctypes.byref(progress)), threads)):  # noqa: B023
                return False
        return True

    progress = run_kernel(compute, out, precision, k, near)
    del tables, held
    counts.elements += out.numel()
    progress.add_to(counts, threads)


def _set_tables(task: _Contraction, plan: NativePlan, shuffled: torch.Generator | None) -> list[Integers]:
    """Points `task` to the tables. The returned arrays must outlive it."""
    terms, run = [o.k for o in plan.operands], plan.run_k
    if shuffled is not None:
        terms, run = _shuffle(terms, run, shuffled)
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
    task.out_batch, task.out_m, task.out_n = (point(table) for table in plan.out)
    return held


def _shuffle(terms: Sequence[Integers], run: int, shuffled: torch.Generator) -> tuple[list[Integers], int]:
    """The terms in random order, run by run; runs are cut as short as `SHUFFLED_RUNS` allows."""
    small = [c for c in range(1, isqrt(run) + 1) if run % c == 0]
    divisors = (*small, *(run // c for c in reversed(small)))
    cut = next((c for c in divisors if len(terms[0]) * (run // c) <= SHUFFLED_RUNS), run)
    starts = np.arange(0, run, cut, dtype=np.int64)
    order = torch.randperm(len(terms[0]) * len(starts), generator=shuffled, device=shuffled.device).cpu().numpy()
    return [(table[:, None] + starts).reshape(-1)[order] for table in terms], cut


def _set_blocks(task: _Contraction, matrix: bool, threads: int) -> list[Floats]:
    """Chooses the bound, and blocks and parts that give every thread work; returns the memory of the parts."""
    wanted = 1 if threads == 1 else 4 * threads
    if matrix:
        task.block_m, task.block_n = min(BLOCK, task.m), min(2 * BLOCK, task.n)
        while _blocks(task) < wanted and max(task.block_m, task.block_n) > 96:
            larger = "block_m" if task.block_m >= task.block_n else "block_n"
            setattr(task, larger, ceil(getattr(task, larger) / 24) * 12)
        parts = min(ceil(wanted / _blocks(task)), task.k // (2 * _KC))
        outputs, sizes = task.m * task.n, task.m + task.n
    else:
        parts = min(ceil(wanted / ceil(task.batches / 256)), task.k // (4 * _CHUNK))
        outputs = sizes = 1
    task.parts = ceil(task.k / ceil(task.k / max(1, parts)))
    roundings = task.parts + (_set_panels(task) if matrix else min(task.k, _CHUNK) + ceil(task.k / _CHUNK) + _CHAINS)
    task.coefficient = coefficient(roundings) if task.k > 1 else 0.0
    if task.parts == 1:
        return []
    held = [np.empty(task.parts * task.batches * count) for count in (outputs, sizes)]
    task.sums, task.sizes = (int(memory.ctypes.data) for memory in held)
    return held


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
