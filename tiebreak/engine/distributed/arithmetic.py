"""Executes what a `Partition` adds to the instruction set: whole values from shards, and sums over all workers' terms.

**Sums.** Each worker adds its terms up in FP64, with a bound on their absolute values. For every element there is one
owner, which adds the workers' sums and bounds. No term passes through more roundings than on its worker, and one for
each worker after that, so Ziv's test (`tiebreak.engine.arithmetic.ziv`) holds as on one machine, in whatever order and
by whatever algorithm the sums were exchanged. Of the elements that it leaves undecided every worker computes its part
exactly, in fixed point; integers are added, and the owner rounds once.

There must be one owner. The same sums, added by two workers in two orders, may differ; then one of them may decide an
element in FP64 that the other cannot decide. Both would be right, but they would no longer wait for the same messages.
Only a small result that all workers need goes another way, because messages take longer than arithmetic: every worker
gets the sums of all, adds them in the order of the workers, and so decides as every other does.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

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
from tiebreak.engine.distributed.tape import Player, Recorder
from tiebreak.protocol.numbers.float32 import MAX_PRECISION
from tiebreak.protocol.program.isa import Instruction

AHEAD: Final = 1 << 26
"""The bytes of whole weights that are gathered before they are needed."""
SMALL: Final = 1 << 12
"""Results of up to this many elements are rounded by every worker, if all need them."""
NO_LIMIT: Final = 1 << 60


def everywhere(i: SharedSum) -> bool:
    """Whether every worker adds and rounds all of a sum; otherwise each element has one owner."""
    return i.split is None and i.mine.numel <= SMALL


class SharedArithmetic(Arithmetic):
    """An `Arithmetic` for the programs of a `Partition`, on one of its workers."""

    def __init__(
        self, exchange: Exchange, device: torch.device | str = "cpu", permute: torch.Generator | int | None = None,
        stats: Stats | None = None, *, precision: int = MAX_PRECISION,
    ) -> None:  # fmt: skip
        super().__init__(device, permute, stats, precision=precision)
        self.exchange = exchange
        self.collectives = Collectives(exchange, self._empty)
        self._ahead: deque[tuple[AllGather, Tensor]] = deque()
        self._flying: dict[int, Callable[[], Tensor]] = {}
        self._bytes = 0

    def _empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        if self.chains is not None:  # fresh pages cost more than the way between two workers of one machine
            return self.chains.buffers.empty(shape, dtype)
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def look_ahead(self, gathers: Iterable[tuple[AllGather, Tensor]]) -> None:
        """What the next step gathers, in the order in which it does, from shards that exist: they are sent beforehand.

        So the weights of the next layers are on their way while this one is computed.
        """
        self._ahead, self._bytes = deque(gathers), 0
        self._send()

    def _send(self) -> None:
        while self._ahead and self._bytes < AHEAD:
            i, shard = self._ahead.popleft()
            self._bytes += i.numel * i.dtype.size
            self._flying[id(i)] = self.collectives.gather(shard, i.split)

    def _gathered(self, i: AllGather, shard: Tensor) -> Tensor:
        flying = self._flying.pop(id(i), None)
        if flying is None:
            return self.collectives.gather(shard, i.split)()
        self._bytes -= i.numel * i.dtype.size
        self._send()
        return flying()

    def _compile(self, i: Instruction, operands: Operands) -> Compiled:
        if isinstance(i, AllGather):
            return lambda x, *_: self._gathered(i, x[0]).view(i.shape)
        if isinstance(i, SharedSum):
            shared = _Sum(i, self)
            return lambda x, *_: shared.run(x)
        return super()._compile(i, operands)


class _Sum:
    """One sum over all workers' terms, planned once."""

    def __init__(self, i: SharedSum, arithmetic: SharedArithmetic) -> None:
        self.mine, self.collectives = i.mine, arithmetic.collectives
        self.tape = arithmetic.exchange if isinstance(arithmetic.exchange, Recorder | Player) else None
        self.plan: SumPlan = plan_sum(i.mine, NO_LIMIT)
        self.runner: SumRunner = arithmetic.runner(i.mine)
        self.counts = arithmetic.stats.of(self.plan.kind)
        self.whole = i.split is None
        self.split = Split(1, i.mine.numel, 1) if i.split is None else i.split
        self.shape = i.shape
        begin, end = share(self.split.size, arithmetic.exchange.worker, arithmetic.exchange.workers)
        self.everywhere = everywhere(i)
        self.owned = (0, i.mine.numel) if self.everywhere else (begin * self.split.inner, end * self.split.inner)
        self.coefficient: float | None = None

    def run(self, operands: Operands) -> Tensor:
        part = self.runner.partial(self.plan, operands)
        if self.coefficient is None or (self.tape is not None and self.tape.running):
            self.coefficient = coefficient(self._most_roundings(part) + self.collectives.workers)
        c, e = self._added(part, self.coefficient)
        result, undecided = decide(c, e, self.runner.pure.rounded)
        self._settle(result, undecided, e, operands)
        if self.whole and not self.everywhere:
            result = self.collectives.gather(result, self.split)()
        return result.view(self.shape)

    def _most_roundings(self, part: Partial) -> int:
        """Of all workers, which may have different terms."""
        own = torch.tensor([part.roundings], dtype=torch.float64)
        if self.tape is not None:  # another machine may take other ways
            (own,) = self.tape.own([own], lambda: [torch.tensor([torch.inf])])
        return self.collectives.greatest(int(own), part.sums.device)

    def _own(self, part: Partial, factor: float) -> Sequence[Tensor]:
        """This worker's sums of the result's elements in order, and their sizes."""
        sums, plain = part.in_order(part.sums), len(part.sizes) == 1
        own = [sums, part.in_order(part.sizes[0])] if plain else [sums, *part.sizes]
        if self.tape is None:
            return own

        def within() -> Sequence[Tensor]:
            sizes = [2 * factor * size for size in own[1:]]
            if plain:
                return [sizes[0], sizes[0]]
            rows, columns = (size.sqrt() for size in part.sizes)
            return [part.errors(rows.mul_(2 * factor), columns, 0, self.mine.numel), *sizes]

        return self.tape.own(own, within)

    def _added(self, part: Partial, factor: float) -> tuple[Tensor, Tensor]:
        """C and e of the elements that this worker owns."""
        sums, *sizes = self._own(part, factor)
        if len(sizes) == 1:
            c, e, _ = self._add([sums, *sizes], sums[:0])
            return c, e.mul_(factor)
        rows, columns = sizes
        c, both = self._add([sums], torch.cat((rows.reshape(-1), columns.reshape(-1))))
        both = both.sqrt()
        left, right = both[: rows.numel()].view(rows.shape), both[rows.numel() :].view(columns.shape)
        return c, part.errors(left.mul_(factor), right, *self.owned)

    def _add(self, parts: Sequence[Tensor], whole: Tensor) -> Sequence[Tensor]:
        """The sums over all workers of what this one owns of `parts`, and of `whole`."""
        if not self.everywhere:
            return self.collectives.add_shares(parts, whole, self.split.size, self.split.inner)
        return torch.split(self.collectives.add_in_turn(torch.cat([*parts, whole])), [*map(len, parts), len(whole)])

    def _settle(self, result: Tensor, undecided: Tensor, e: Tensor, operands: Operands) -> None:
        """Writes what FP64 did not decide; every worker computes its part of all such elements."""
        here = undecided.nonzero().view(-1)
        self.counts.elements += len(result)
        self.counts.undecided += len(here)
        usable = e[here].isfinite()
        result[here[~usable]] = float("nan")
        here = here[usable]
        wanted, lengths = (here, []) if self.everywhere else self.collectives.gather_lists(here + self.owned[0])
        if not len(wanted):
            return
        digits, _ = exact_digits(self.mine, operands, wanted)  # where e is finite, so is every term
        if self.everywhere:
            digits.values = self.collectives.add_in_turn(digits.values.reshape(-1)).view(digits.values.shape)
        else:
            digits.values = self.collectives.add_lists(digits.values, lengths)
        result[here] = digits.rounded(self.runner.pure.rounded)
        self.counts.undecided_twice += len(here)
