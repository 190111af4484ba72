"""`scatter_sum`: the exact sum of all sources whose index points at an output element (SPEC 4.3).

Output dims are *matched* (the index addresses them), *keyed* (the index depends on them) or *row* (the index ignores
them); the other dims are the reduction. With key = keyed coordinate * box + index, every source row (keyed and
reduction coordinate) is added to the row of its key. Only keys that occur are held, so memory is proportional to the
source.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.exact import Integers
from tiebreak.engine.arithmetic.near_ties import Collector
from tiebreak.engine.arithmetic.precision import Round
from tiebreak.engine.arithmetic.scatter_native import NativeScatter, build, plan_native, run_native
from tiebreak.engine.arithmetic.stats import Counts
from tiebreak.engine.arithmetic.views import View
from tiebreak.engine.arithmetic.ziv import Settler, coefficient, decide
from tiebreak.protocol.program.isa import Instruction, ScatterParams, row_major


@dataclass(frozen=True)
class ScatterPlan:
    """How one `scatter_sum` is computed."""

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
    native: NativeScatter | None
    """The plan of the compiled kernel."""

    @cached_property
    def box(self) -> int:
        """The number of outputs that an index can address."""
        return prod(self.matched)

    def numbers(self, keys: Tensor, elements: Tensor) -> tuple[Integers, Integers]:
        """The places in the result of elements numbered over (keys, row), and which element each is."""
        width = prod(self.row)
        at = elements.cpu().numpy()
        sizes = (*self.keyed, *self.matched, *self.row)
        places = keys.cpu().numpy()[at // width] * width + at % width
        coordinates = np.unravel_index(places, sizes) if sizes else ()
        strides = row_major(self.shape)
        found = np.zeros_like(at)
        # Dim d of the result is dim order[d] of (keyed, matched, row).
        for stride, number in zip(strides, self.order, strict=True):
            found += coordinates[number] * stride
        return found, np.arange(len(at))


def plan_scatter(instruction: Instruction) -> ScatterPlan:
    """The plan of a validated `scatter_sum`."""
    params, shape = instruction.params, instruction.shape
    assert isinstance(params, ScatterParams)
    source, index = instruction.operands
    rank = len(shape)
    matched = [d for d in range(rank) if params.match[d] != 0]
    keyed = [d for d in range(rank) if params.match[d] == 0 and index.strides[d] != 0 and shape[d] > 1]
    row = [d for d in range(rank) if d not in matched and d not in keyed]
    summed = list(range(rank, rank + len(instruction.reduction)))
    space = instruction.index_space

    def view(offset: int, strides: Sequence[int], dims: Sequence[int]) -> View:
        return View.of(offset, [space[d] for d in dims], [strides[d] for d in dims])

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
        plan_native(instruction),
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
        if plan.native is not None and source.device.type == "cpu" and (library := build().library) is not None:
            precision = self.rounded.precision
            return run_native(library, plan.native, source, index, counts, self.shuffled, precision, near)
        key, rows = self._matching(plan, source, index)
        groups = prod(plan.keyed)
        out = torch.zeros((groups * plan.box, prod(plan.row)), dtype=torch.float32, device=source.device)
        counts.elements += out.numel()
        if len(key):
            self._sums(plan, key, rows, out, counts, near)
        shaped = out.view((*plan.keyed, *plan.matched, *plan.row))
        return shaped.permute(plan.order).contiguous()

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
        found = Counts()
        if bool(undecided.any()):
            order = which.argsort(stable=True)
            reader = _Reader(rows[order], count.cumsum(0) - count, count, int(count.max()))
            Settler(self.rounded, found, near).settle(
                result, undecided, c, lambda at: e.view(-1)[at], reader,
                places=partial(plan.numbers, keys), count=prod(plan.summed),
            )  # fmt: skip
        found.elements = 0  # all output elements count, including those that no source reaches
        counts += found
        out[keys] = result
