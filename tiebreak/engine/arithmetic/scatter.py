"""`scatter_sum`: the exact sum of all sources whose index points at an output element (SPEC 4.3).

Output dims are *matched* (the index addresses them), *keyed* (the index depends on them) or *row* (the index ignores
them); the other dims are the reduction. With key = keyed coordinate * box + index, every source row (keyed and
reduction coordinate) is added to the row of its key. In torch only keys that occur are held, so memory is proportional
to the source; scatter.c, on CPUs, and `kernels/scatter.py`, on GPUs, write into the result itself and read everything
through tables of places.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil, prod
from types import ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.exact import Integers
from tiebreak.engine.arithmetic.launching import kernels, launch, programs
from tiebreak.engine.arithmetic.rounding import Round
from tiebreak.engine.arithmetic.stats import Counts
from tiebreak.engine.arithmetic.threads import sharing, together
from tiebreak.engine.arithmetic.views import MAX_TABLE, View, check_reach, offsets_of
from tiebreak.engine.arithmetic.ziv import Collector, Settler, ZivProgress, coefficient, decide, run_kernel
from tiebreak.engine.native import Build, load
from tiebreak.protocol.numbers.float32 import MAX_PRECISION
from tiebreak.protocol.program.isa import Instruction, ScatterParams, row_major

BLOCK: Final = 256
"""The least number of row elements per task when several threads share the work."""
OPTIONS: Final[dict[str, Any]] = {"BLOCK": 256, "num_warps": 4, "enable_fp_fusion": False}
"""Lanes of a program of the Triton kernels, and the compiler's options."""


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


def _kernels(device: torch.device) -> ModuleType | None:
    return kernels(f"{__package__}.kernels.scatter", device)


@dataclass(frozen=True)
class ScatterTables:
    """The places that scatter.c and the Triton kernels read and write, by coordinate."""

    source: tuple[Integers, Integers, Integers]
    """Places by keyed, summed and row coordinate."""
    index: tuple[Integers, Integers]
    """Places by keyed and summed coordinate."""
    out: tuple[Integers, Integers, Integers]
    """Places by keyed, matched and row coordinate."""
    reach: tuple[tuple[int, int], tuple[int, int]]
    """The least and the greatest place read of the source and of the index."""
    held: dict[torch.device, list[Tensor]] = field(default_factory=dict)
    """Copies of the tables, made at the first call on a device and kept, so that a step uploads nothing."""

    def on(self, device: torch.device) -> list[Tensor]:
        """The eight tables on a device, where they stay."""
        if device not in self.held:
            tables = (*self.source, *self.index, *self.out)
            self.held[device] = [torch.from_numpy(table).to(device) for table in tables]
        return self.held[device]


@dataclass(frozen=True)
class ScatterPlan:
    """The plan by which one `scatter_sum` is computed."""

    shape: tuple[int, ...]
    source: View
    """Dims (keyed, reduction, row)."""
    index: View
    """Dims (keyed, reduction)."""
    keyed: tuple[int, ...]
    summed: tuple[int, ...]
    row: tuple[int, ...]
    matched: tuple[int, ...]
    order: tuple[int, ...]
    """Permutation that takes (keyed, matched, row) dims to output order."""
    tables: ScatterTables | None
    """The tables of the kernels; None if they would be too large."""

    @property
    def box(self) -> int:
        """The number of outputs that an index can address."""
        return prod(self.matched)

    def numbers(self, keys: Tensor, elements: Tensor) -> tuple[Integers, Integers]:
        """The places in the result of elements numbered over (keys, row), and which element each is."""
        width, at = prod(self.row), elements.cpu().numpy()
        places = keys.cpu().numpy()[at // width] * width + at % width
        if self.shape:
            coordinates = np.unravel_index(places, (*self.keyed, *self.matched, *self.row))
            places = np.ravel_multi_index([coordinates[number] for number in self.order], self.shape)
        return places, np.arange(len(at))


def plan_scatter(instruction: Instruction) -> ScatterPlan:
    """The plan of a validated `scatter_sum`."""
    params, shape, space = instruction.params, instruction.shape, instruction.index_space
    assert isinstance(params, ScatterParams)
    source, index = instruction.operands
    rank = len(shape)
    matched = [d for d in range(rank) if params.match[d] != 0]
    keyed = [d for d in range(rank) if params.match[d] == 0 and index.strides[d] != 0 and shape[d] > 1]
    row = [d for d in range(rank) if d not in matched and d not in keyed]
    summed = list(range(rank, len(space)))

    def view(offset: int, strides: Sequence[int], dims: Sequence[int]) -> View:
        return View.of(offset, [space[d] for d in dims], [strides[d] for d in dims])

    def places(strides: Sequence[int], dims: Sequence[int], offset: int = 0) -> Integers:
        return offset + offsets_of([(space[d], strides[d]) for d in dims])

    tables = None
    if sum(prod(space[d] for d in dims) for dims in (matched, keyed, row, summed)) <= MAX_TABLE:
        written = row_major(shape)
        tables = ScatterTables(
            (places(source.strides, keyed, source.offset), places(source.strides, summed), places(source.strides, row)),
            (places(index.strides, keyed, index.offset), places(index.strides, summed)),
            (places(written, keyed), places(written, matched), places(written, row)),
            (source.extent(space), index.extent(space)),
        )
    placed = [*keyed, *matched, *row]
    return ScatterPlan(
        shape,
        view(source.offset, source.strides, [*keyed, *summed, *row]),
        view(index.offset, index.strides, [*keyed, *summed]),
        tuple(shape[d] for d in keyed),
        instruction.reduction,
        tuple(shape[d] for d in row),
        tuple(shape[d] for d in matched),
        tuple(placed.index(d) for d in range(rank)),
        tables,
    )


@dataclass(frozen=True)
class _Reader:
    """Reads the terms of single elements, numbered row-major over (occurring keys, row)."""

    rows: Tensor
    """f32 (sources, row elements), sorted by key."""
    first: Tensor
    """i64 (keys,): the first source of each key."""
    count: Tensor
    """i64 (keys,)."""
    terms: int
    """The largest count."""

    def read(self, elements: Tensor, begin: int, end: int) -> Tensor:
        width = self.rows.shape[1]
        key = elements.div(width, rounding_mode="floor")
        position = torch.arange(begin, end, dtype=torch.int64, device=elements.device)
        inside = position < self.count[key][:, None]
        place = torch.where(inside, self.first[key][:, None] + position, 0)
        found = self.rows[place, (elements - key * width)[:, None]].to(torch.float64)
        return torch.where(inside, found, 0.0)


@dataclass(frozen=True)
class ScatterRunner:
    """Computes planned scatter sums. With `shuffled`, sources are taken in a random order drawn from it."""

    shuffled: torch.Generator | None = None
    rounded: Round = field(default_factory=Round)

    def run(
        self, plan: ScatterPlan, operands: Sequence[Tensor], counts: Counts, near: Collector | None = None
    ) -> Tensor:
        """The result, f32, contiguous, of the instruction's shape.

        `near` collects open elements that are not settled.
        """
        source, index = operands
        if plan.tables is not None and near is None and _kernels(source.device) is not None:
            return self._fused(plan.shape, plan.tables, source, index, counts)
        if plan.tables is not None and source.device.type == "cpu" and (library := build().library) is not None:
            return self._compiled(library, plan.shape, plan.tables, source, index, counts, near)
        key, rows = self._matching(plan, source, index)
        groups = prod(plan.keyed)
        out = torch.zeros((groups * plan.box, prod(plan.row)), dtype=torch.float32, device=source.device)
        counts.elements += out.numel()
        if len(key):
            self._sums(plan, key, rows, out, counts, near)
        shaped = out.view((*plan.keyed, *plan.matched, *plan.row))
        return shaped.permute(plan.order).contiguous()

    def _compiled(
        self, library: ctypes.CDLL, shape: tuple[int, ...], tables: ScatterTables, source: Tensor, index: Tensor,
        counts: Counts, near: Collector | None,
    ) -> Tensor:  # fmt: skip
        for tensor, reach in zip((source, index), tables.reach, strict=True):
            check_reach(tensor, reach)
        out = torch.zeros(shape, dtype=torch.float32)
        places, wanted = tables.source[1], tables.index[1]
        if self.shuffled is not None:
            order = torch.randperm(len(places), generator=self.shuffled, device=self.shuffled.device).cpu().numpy()
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

        progress = run_kernel(compute, out, self.rounded.precision, len(places), near)
        del held
        counts.elements += out.numel()
        progress.add_to(counts, threads)
        return out

    def _fused(
        self, shape: tuple[int, ...], tables: ScatterTables, source: Tensor, index: Tensor, counts: Counts
    ) -> Tensor:
        """Computes with the Triton kernels; the host waits for nothing."""
        for tensor, reach in zip((source, index), tables.reach, strict=True):
            check_reach(tensor, reach)
        device, (groups, sources, rows) = source.device, (len(table) for table in tables.source)
        held, found = tables.on(device), _kernels(device)
        assert found is not None
        if self.shuffled is not None:
            order = torch.randperm(sources, generator=self.shuffled, device=self.shuffled.device).to(device)
            held = [table[order] if number in (1, 4) else table for number, table in enumerate(held)]
        out = torch.empty(shape, dtype=torch.float32, device=device)
        count, numel, precision = out.numel(), groups * sources * rows, self.rounded.precision
        tasks, terms = ceil(numel / OPTIONS["BLOCK"]), (index, *held, groups, sources, rows, len(tables.out[1]))
        # A term that is alone is decided if it is not rounded: e is less than 2^-28 of it, as tables have 2^24 entries.
        room = min(count, numel if precision < MAX_PRECISION else max(1, numel // 2))
        sums, sizes = torch.zeros((2, count), dtype=torch.float64, device=device)
        slots, opened = sums.view(torch.int64), torch.zeros(1, dtype=torch.int64, device=device)
        listed = torch.empty(room, dtype=torch.int32 if count < 1 << 31 else torch.int64, device=device)
        digits = torch.empty((12, room), dtype=torch.int64, device=device)
        launch(found.add_terms, tasks, source, *terms, sums, sizes, **OPTIONS)
        factor, counters = coefficient(sources) * (1 + 2.0**-20), counts.on(device)  # which is passed in FP32
        launch(
            found.decide_sums, ceil(count / OPTIONS["BLOCK"]), sums, sizes, out, slots, opened, listed, digits,
            counters, count, room, factor, PRECISION=precision, **OPTIONS,
        )  # fmt: skip
        shared = programs(device)
        launch(found.add_open, shared, source, *terms, slots, opened, digits, room, tasks, **OPTIONS)
        launch(
            found.round_listed, shared, digits, *4 * [None], out, opened, listed, counters, 1, 1, count, room,
            MATRIX=False, FIRST=3, SLICES=6, PRECISION=precision, MANY=0, **OPTIONS,
        )  # fmt: skip
        return out

    def _matching(self, plan: ScatterPlan, source: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """The key (sources,) and the f32 rows (sources, row elements) of the sources whose index is inside the box."""
        j = plan.index.on(index).expand((*plan.keyed, *plan.summed)).reshape(-1)
        rows = plan.source.on(source).expand((*plan.keyed, *plan.summed, *plan.row)).reshape(len(j), prod(plan.row))
        inside = (j >= 0) & (j < plan.box)
        each = prod(plan.summed)
        group = torch.arange(prod(plan.keyed), device=j.device).repeat_interleave(each) if plan.keyed else 0
        key = j + group * plan.box
        if not bool(inside.all()):
            key, rows = key[inside], rows[inside]
        if self.shuffled is not None:
            order = torch.randperm(len(key), generator=self.shuffled, device=self.shuffled.device).to(key.device)
            key, rows = key[order], rows[order]
        return key, rows

    def _sums(
        self, plan: ScatterPlan, key: Tensor, rows: Tensor, out: Tensor, counts: Counts, near: Collector | None
    ) -> None:
        keys, which, count = torch.unique(key, return_inverse=True, return_counts=True)
        wide = rows.to(torch.float64)
        c = torch.zeros((len(keys), rows.shape[1]), dtype=torch.float64, device=rows.device)
        e = torch.zeros_like(c)
        c.index_add_(0, which, wide)
        e.index_add_(0, which, wide.abs_())
        # Like `ziv.coefficient(count)`, but a single term is exact, and 0 times a non-finite size would be NaN.
        several = (count + 3).to(torch.float64) * coefficient(-2)
        if near is not None and near.threshold is not None:
            several = torch.full_like(several, near.coefficient(1.0))
        e = e.mul_(torch.where(count > 1, several, 0.0)[:, None])
        result, undecided = decide(c, e, self.rounded)
        if bool(undecided.any()):
            order = which.argsort(stable=True)
            reader = _Reader(rows[order], count.cumsum(0) - count, count, int(count.max()))
            Settler(self.rounded, counts, near).settle(
                result, undecided, c, lambda at: e.view(-1)[at], reader,
                places=partial(plan.numbers, keys), count=prod(plan.summed),
            )  # fmt: skip
            counts.elements -= result.numel()  # all outputs were counted, including those that no source reaches
        out[keys] = result
