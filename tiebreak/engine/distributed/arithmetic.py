"""Executes what a `Partition` adds to the instruction set: whole values from shards, and sums over all workers' terms.

**Sums.** Each worker adds its terms up in FP64, with a bound on their absolute values. For every element there is one
owner, which adds the workers' sums and bounds. No term passes through more roundings than on its worker, and one for each
worker after that, so Ziv's test (`tiebreak.engine.arithmetic.ziv`) holds as on one machine, in whatever order and by
whatever algorithm the sums were exchanged. Of the elements that it leaves undecided every worker computes its part exactly,
in fixed point; integers are added, and the owner rounds once.

There must be one owner. The same sums, added by two workers in two orders, may differ; then one of them may decide an
element in FP64 that the other cannot decide. Both would be right, but they would no longer wait for the same messages.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.exact import exact_digits
from tiebreak.engine.arithmetic.execute import Compiled, Operands
from tiebreak.engine.arithmetic.reduce import Partial, SumPlan, SumRunner, plan_sum
from tiebreak.engine.arithmetic.stats import Stats
from tiebreak.engine.arithmetic.ziv import coefficient, decide
from tiebreak.engine.distributed.exchange import Collectives, Exchange
from tiebreak.engine.distributed.layout import Split, share
from tiebreak.engine.distributed.partition import AllGather, SharedSum
from tiebreak.protocol.numbers.float32 import MAX_PRECISION
from tiebreak.protocol.program.isa import Instruction

_NO_LIMIT = 1 << 60


class SharedArithmetic(Arithmetic):
    """An `Arithmetic` for the programs of a `Partition`, on one of its workers."""

    def __init__(
        self, exchange: Exchange, device: torch.device | str = "cpu", permute: torch.Generator | int | None = None,
        stats: Stats | None = None, *, precision: int = MAX_PRECISION,
    ) -> None:  # fmt: skip
        super().__init__(device, permute, stats, precision=precision)
        self.exchange = exchange
        self.collectives = Collectives(exchange, self._empty)

    def _empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        if self.chains is not None:  # fresh pages cost more than the way between two workers of one machine
            return self.chains.buffers.empty(shape, dtype)
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def _compile(self, i: Instruction, operands: Operands) -> Compiled:
        if isinstance(i, AllGather):
            return lambda x, *_: self.collectives.gather(x[0], i.split).view(i.shape)
        if isinstance(i, SharedSum):
            shared = _Sum(i, self)
            return lambda x, *_: shared.run(x)
        return super()._compile(i, operands)


class _Sum:
    """One sum over all workers' terms, planned once."""

    def __init__(self, i: SharedSum, arithmetic: SharedArithmetic) -> None:
        self.mine, self.collectives = i.mine, arithmetic.collectives
        self.plan: SumPlan = plan_sum(i.mine, _NO_LIMIT)
        self.runner: SumRunner = arithmetic.runner(i.mine)
        self.counts = arithmetic.stats.of(self.plan.kind)
        self.whole = i.split is None
        self.split = Split(1, i.mine.numel, 1) if i.split is None else i.split
        self.shape = i.shape
        begin, end = share(self.split.size, arithmetic.exchange.worker, arithmetic.exchange.workers)
        self.owned = begin * self.split.inner, end * self.split.inner
        self.coefficient: float | None = None

    def run(self, operands: Operands) -> Tensor:
        part = self.runner.partial(self.plan, operands)
        if self.coefficient is None:  # workers may have different terms, and so different roundings
            worst = self.collectives.greatest(part.roundings, part.sums.device)
            self.coefficient = coefficient(worst + self.collectives.workers)
        c = self._owned(part.in_order(part.sums))
        e = self._errors(part, self.coefficient)
        result, undecided = decide(c, e, self.runner.pure.rounded)
        self._settle(result, undecided, e, operands)
        return (self.collectives.gather(result, self.split) if self.whole else result).view(self.shape)

    def _owned(self, parts: Tensor) -> Tensor:
        """The sums of what all workers have for the elements that this one owns."""
        return self.collectives.add_shares(parts, self.split.size, self.split.inner)

    def _errors(self, part: Partial, factor: float) -> Tensor:
        """e of the elements that this worker owns."""
        if len(part.sizes) == 1:
            return self._owned(part.in_order(part.sizes[0])).mul_(factor)
        rows, columns = part.sizes
        both = self.collectives.add(torch.cat((rows.reshape(-1), columns.reshape(-1)))).sqrt_()
        left, right = both[: rows.numel()].view(rows.shape), both[rows.numel() :].view(columns.shape)
        return part.errors(left.mul_(factor), right, *self.owned)

    def _settle(self, result: Tensor, undecided: Tensor, e: Tensor, operands: Operands) -> None:
        """Writes what FP64 did not decide; every worker computes its part of all such elements."""
        here = undecided.nonzero().view(-1)
        self.counts.elements += len(result)
        self.counts.undecided += len(here)
        usable = e[here].isfinite()
        result[here[~usable]] = float("nan")
        here = here[usable]
        wanted = self.collectives.gather_lists(here + self.owned[0])
        if not len(wanted):
            return
        digits, _ = exact_digits(self.mine, operands, wanted)  # where e is finite, so is every term
        total = self.collectives.add(digits.values.reshape(-1)).view(digits.values.shape)
        mine = (wanted >= self.owned[0]) & (wanted < self.owned[1])
        digits.values = total[:, mine]
        result[here] = digits.rounded(self.runner.pure.rounded)
        self.counts.undecided_twice += len(here)
