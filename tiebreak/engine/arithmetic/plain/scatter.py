"""`scatter_sum` in torch: only keys that occur are held, so memory is proportional to the source."""

from math import prod

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plain.exact import KeyReader, decide, settle
from tiebreak.engine.arithmetic.plan.options import Counts, Operands, Options
from tiebreak.engine.arithmetic.plan.sums import plan_scatter
from tiebreak.engine.arithmetic.plan.ziv import Collector, coefficient
from tiebreak.protocol.program.isa import Instruction


class PlainScatter:
    """One `scatter_sum`. With `shuffled`, sources are taken in a random order drawn from it."""

    def __init__(self, instruction: Instruction, options: Options) -> None:
        self._plan, self._shuffled = plan_scatter(instruction), options.shuffled
        self._rounded = options.rounding(instruction)

    def run(self, operands: Operands, counts: Counts, near: Collector | None) -> Tensor:
        """The result, f32, contiguous, of the instruction's shape. `near` collects near ties that are not settled."""
        plan, (source, index) = self._plan, operands
        # The key of each source, and its row, for the sources whose index is inside the box.
        j = plan.index.on(index).expand((*plan.keyed, *plan.summed)).reshape(-1)
        rows = plan.source.on(source).expand((*plan.keyed, *plan.summed, *plan.row)).reshape(len(j), prod(plan.row))
        group = torch.arange(prod(plan.keyed), device=j.device).repeat_interleave(prod(plan.summed))
        inside = (j >= 0) & (j < plan.box)
        key, rows = (j + group * plan.box)[inside], rows[inside]
        if self._shuffled is not None:
            order = torch.randperm(len(key), generator=self._shuffled, device=self._shuffled.device).to(key.device)
            key, rows = key[order], rows[order]
        out = torch.zeros((prod(plan.keyed) * plan.box, prod(plan.row)), dtype=torch.float32, device=source.device)
        counts.elements += out.numel()
        if len(key):
            keys, which, sources = torch.unique(key, return_inverse=True, return_counts=True)
            out[keys] = self._sums(keys, which, sources, rows, counts, near)
        return out.view((*plan.keyed, *plan.matched, *plan.row)).permute(plan.order).contiguous()

    def _sums(
        self, keys: Tensor, which: Tensor, sources: Tensor, rows: Tensor, counts: Counts, near: Collector | None
    ) -> Tensor:
        """The sums (keys, row elements) of rows with the same key, which is the `which`th; each has some sources."""
        wide = rows.to(torch.float64)
        c = torch.zeros((len(keys), rows.shape[1]), dtype=torch.float64, device=rows.device)
        e = torch.zeros_like(c)
        c.index_add_(0, which, wide)
        e.index_add_(0, which, wide.abs_())
        # Like `ziv.coefficient(sources)`, but a single term is exact, and 0 times a non-finite size would be NaN.
        factor = (sources + 3).to(torch.float64) * coefficient(-2)
        if near is not None and near.threshold is not None:
            factor = torch.full_like(factor, near.coefficient(1.0))
        e = e.mul_(torch.where(sources > 1, factor, 0.0)[:, None])
        result, undecided = decide(c, e, self._rounded)
        at = undecided.view(-1).nonzero().view(-1)
        if len(at):
            order = which.argsort(stable=True)
            first, count = sources.cumsum(0) - sources, prod(self._plan.summed)
            reader = KeyReader(rows[order], first, sources, int(sources.max()), count)
            numbers = self._plan.numbers(keys, at)
            result.view(-1)[at] = settle(
                c.view(-1)[at], e.view(-1)[at], at, reader, self._rounded, counts, near, numbers=numbers
            )
        return result
