"""`scatter_sum` in torch: only keys that occur are held, so memory is proportional to the source."""

from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plain.settling import Settler, decide
from tiebreak.engine.arithmetic.plan.options import Operands
from tiebreak.engine.arithmetic.plan.rounding import Round
from tiebreak.engine.arithmetic.plan.scatter import ScatterPlan
from tiebreak.engine.arithmetic.plan.stats import Counts
from tiebreak.engine.arithmetic.plan.ziv import Collector, coefficient


@dataclass(frozen=True)
class _Reader:
    """Reads the terms of single elements, numbered row-major over (occurring keys, row)."""

    rows: Tensor
    """f32 (sources, row elements), sorted by key."""
    first: Tensor
    """i64 (keys,): the first source of each key."""
    count: Tensor
    """i64 (keys,): how many sources each key has."""
    terms: int
    """The length to which the lists of terms are padded: the largest count."""

    def read(self, elements: Tensor, begin: int, end: int) -> Tensor:
        width = self.rows.shape[1]
        key = elements.div(width, rounding_mode="floor")
        position = torch.arange(begin, end, dtype=torch.int64, device=elements.device)
        inside = position < self.count[key][:, None]
        place = torch.where(inside, self.first[key][:, None] + position, 0)
        found = self.rows[place, (elements - key * width)[:, None]].to(torch.float64)
        return torch.where(inside, found, 0.0)


@dataclass(frozen=True)
class PlainScatter:
    """Computes planned scatter sums. With `shuffled`, sources are taken in a random order drawn from it."""

    shuffled: torch.Generator | None
    rounded: Round
    added: int
    """The number of terms that are added exactly at once."""

    def run(self, plan: ScatterPlan, operands: Operands, counts: Counts, near: Collector | None) -> Tensor:
        """The result, f32, contiguous, of the instruction's shape.

        `near` collects open elements that are not settled.
        """
        source, index = operands
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
        if bool(undecided.any()):
            order = which.argsort(stable=True)
            reader = _Reader(rows[order], count.cumsum(0) - count, count, int(count.max()))
            Settler(self.rounded, counts, near, self.added).settle(
                result, undecided, c, lambda at: e.view(-1)[at], reader,
                places=partial(plan.numbers, keys), count=prod(plan.summed),
            )  # fmt: skip
            counts.elements -= result.numel()  # all outputs were counted, including those that no source reaches
        out[keys] = result
