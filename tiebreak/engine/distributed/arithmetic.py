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
from tiebreak.engine.arithmetic.exact import Digits, exact_digits
from tiebreak.engine.arithmetic.execute import Operands
from tiebreak.engine.arithmetic.reduce import Partial, SumPlan, SumRunner, plan_sum
from tiebreak.engine.arithmetic.stats import Stats
from tiebreak.engine.arithmetic.ziv import coefficient, decide
from tiebreak.engine.distributed.exchange import JOINED, Collectives, Exchange, Swap
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
        self.tape = exchange if isinstance(exchange, Recorder | Player) else None
        self._ahead: deque[tuple[AllGather, Tensor]] = deque()
        self._flying: dict[int, Callable[[], Tensor]] = {}
        self._bytes = 0
        self._shared: dict[int, _Sum] = {}

    def _empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        if self.buffers is not None:  # fresh pages cost more than the way between two workers of one machine
            return self.buffers.empty(shape, dtype)
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def look_ahead(self, gathers: Iterable[tuple[AllGather, Tensor]]) -> None:
        """What the next step gathers, in the order in which it does, from shards that exist: they are sent beforehand.

        So the weights of the next layers are on their way while this one is computed.
        """
        self._ahead, self._bytes = deque(gathers), 0
        self._send()

    def _send(self) -> None:
        begun = []
        while self._ahead and self._bytes < AHEAD:
            begun.append(self._ahead.popleft())
            self._bytes += begun[-1][0].numel * begun[-1][0].dtype.size
        waits = self.collectives.start([self.collectives.gather(shard, i.split) for i, shard in begun])
        self._flying |= {id(i): wait for (i, _), wait in zip(begun, waits, strict=True)}

    def together(self, instructions: Sequence[Instruction], operands: Sequence[Operands]) -> list[Tensor]:
        """The results of several instructions that exchange something, and none of which reads another's."""
        if len(instructions) == 1 and (flying := self._flying.pop(id(instructions[0]), None)) is not None:
            (i,) = instructions
            self._bytes -= i.numel * i.dtype.size
            self._send()
            return [flying().view(i.shape)]
        given = list(zip(instructions, operands, strict=True))
        sums = [(self._sum(i), read) for i, read in given if isinstance(i, SharedSum)]
        self._agree([each.begin(read) for each, read in sums])
        swaps = [
            self.collectives.gather(read[0], i.split) if isinstance(i, AllGather) else self._sum(i).swap()
            for i, read in given
        ]
        found = self.collectives.run(swaps)
        added = iter([x for (i, _), x in zip(given, found, strict=True) if isinstance(i, SharedSum)])
        rounded = iter(self._round(sums, list(added)))
        return [
            (next(rounded) if isinstance(i, SharedSum) else x).view(i.shape)
            for (i, _), x in zip(given, found, strict=True)
        ]

    def _sum(self, i: Instruction) -> "_Sum":
        if id(i) not in self._shared:
            assert isinstance(i, SharedSum)
            self._shared[id(i)] = _Sum(i, self)
        return self._shared[id(i)]

    def _agree(self, sums: Sequence["_Sum"]) -> None:
        """Agrees on the bounds of sums: workers may have different terms, and so different roundings."""
        tape = self.tape if self.tape is not None and self.tape.running else None
        new = sums if tape is not None else [each for each in sums if each.coefficient is None]
        if not new:
            return
        own = torch.tensor([each.part.roundings for each in new], dtype=torch.float64)
        if tape is not None:  # another machine may take other ways
            (own,) = tape.own([own], lambda: [torch.full_like(own, torch.inf)])
        worst = self.collectives.greatest([int(count) for count in own.tolist()], self.device)
        for each, roundings in zip(new, worst, strict=True):
            each.coefficient = coefficient(roundings + self.collectives.workers)

    def _round(self, sums: Sequence[tuple["_Sum", Operands]], added: Sequence[Tensor]) -> list[Tensor]:
        """The whole results, or shards of them, from what all workers' parts add up to."""
        results = [each.decide(total) for (each, _), total in zip(sums, added, strict=True)]
        self._settle(sums, results)
        scattered = [n for n, (each, _) in enumerate(sums) if each.whole and not each.everywhere]
        swaps = [self.collectives.gather(results[n][0], sums[n][0].split) for n in scattered]
        gathered = dict(zip(scattered, self.collectives.run(swaps), strict=True))
        return [gathered.get(n, result) for n, (result, _) in enumerate(results)]

    def _settle(self, sums: Sequence[tuple["_Sum", Operands]], results: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Writes what FP64 did not decide; every worker computes its part of all such elements.

        results: of each sum, with the numbers of its undecided elements. If all workers decided, these are the same for
        all; otherwise they are told to all, as numbers into the results of all such sums, one after the other.
        """
        owned = [n for n, (each, _) in enumerate(sums) if not each.everywhere]
        begins, count = {}, 0
        for n in owned:
            begins[n], count = count, count + sums[n][0].mine.numel
        told, lengths = torch.empty(0, dtype=torch.int64, device=self.device), [0] * self.collectives.workers
        if owned:
            mine = [results[n][1] + sums[n][0].owned[0] + begins[n] for n in owned]
            told, lengths = self.collectives.gather_lists(torch.cat(mine))
        if not len(told) and not any(len(results[n][1]) for n in range(len(sums)) if n not in begins):
            return
        pieces: list[list[Tensor]] = [[] for _ in lengths]
        open_: list[tuple[int, Digits, int]] = []
        for n, (each, operands) in enumerate(sums):
            wanted, columns = results[n][1], None
            if n in begins:
                wanted, columns = each.among(told, lengths, begins[n])
            if not len(wanted):
                continue
            digits, _ = exact_digits(each.mine, operands, wanted)  # where the bound is finite, so is every term
            shares = [digits.values] * len(lengths) if columns is None else torch.split(digits.values, columns, 1)
            for piece, share_ in zip(pieces, shares, strict=True):
                piece.append(share_.reshape(-1))
            open_.append((n, digits, shares[self.exchange.worker].shape[1]))
        sent = [torch.cat(piece) for piece in pieces]
        total = self.collectives.run([self.collectives.add(sent, len(sent[self.exchange.worker]), JOINED + 1)])[0]
        rest = total
        for n, digits, held in open_:
            rows = len(digits.values)
            digits.values, rest = rest[: rows * held].view(rows, held), rest[rows * held :]
            result, here = results[n]
            result[here] = digits.rounded(sums[n][0].runner.pure.rounded)
            sums[n][0].counts.undecided_twice += len(here)


class _Sum:
    """One sum over all workers' terms, planned once."""

    part: Partial

    def __init__(self, i: SharedSum, arithmetic: SharedArithmetic) -> None:
        self.instruction, self.mine, self.collectives = i, i.mine, arithmetic.collectives
        self.tape = arithmetic.tape
        self.plan: SumPlan = plan_sum(i.mine, NO_LIMIT)
        self.runner: SumRunner = arithmetic.runner(i.mine)
        self.counts = arithmetic.stats.of(self.plan.kind)
        self.whole = i.split is None
        self.split = Split(1, i.mine.numel, 1) if i.split is None else i.split
        begin, end = share(self.split.size, arithmetic.exchange.worker, arithmetic.exchange.workers)
        self.everywhere = everywhere(i)
        self.owned = (0, i.mine.numel) if self.everywhere else (begin * self.split.inner, end * self.split.inner)
        self.coefficient: float | None = None

    def begin(self, operands: Operands) -> "_Sum":
        self.part = self.runner.partial(self.plan, operands)
        return self

    def swap(self) -> Swap:
        """The sums of what this worker has of the result, and then their sizes."""
        sums, *sizes = self._own()
        parts, whole = ([sums, *sizes], sums[:0]) if len(sizes) == 1 else ([sums], torch.cat([*map(_flat, sizes)]))
        if not self.everywhere:
            return self.collectives.add_shares(parts, whole, self.split.size, self.split.inner)
        joined = torch.cat([*parts, whole])
        return self.collectives.add([joined] * self.collectives.workers, len(joined), joined.nbytes)

    def _own(self) -> Sequence[Tensor]:
        """This worker's sums of the result's elements in order, and their sizes."""
        part, factor = self.part, self.coefficient
        assert factor is not None
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

    def decide(self, total: Tensor) -> tuple[Tensor, Tensor]:
        """What this worker has of the result, and the numbers of the elements in it that FP64 does not decide."""
        factor, count, part = self.coefficient, self.owned[1] - self.owned[0], self.part
        assert factor is not None
        c, sizes = total[:count], total[count:]
        if len(part.sizes) == 1:
            e = sizes.mul_(factor)
        else:
            rows, columns = part.sizes
            sizes = sizes.sqrt_()
            left, right = sizes[: rows.numel()].view(rows.shape), sizes[rows.numel() :].view(columns.shape)
            e = part.errors(left.mul_(factor), right, *self.owned)
        del self.part
        result, undecided = decide(c, e, self.runner.pure.rounded)
        here = undecided.nonzero().view(-1)
        self.counts.elements += len(result)
        self.counts.undecided += len(here)
        usable = e[here].isfinite()
        result[here[~usable]] = float("nan")
        return result, here[usable]

    def among(self, told: Tensor, lengths: Sequence[int], begin: int) -> tuple[Tensor, list[int]]:
        """This sum's elements in the lists of all workers, and how many of them each worker owns."""
        its = (told >= begin) & (told < begin + self.mine.numel)
        columns = [int(part.sum()) for part in torch.split(its, list(lengths))]
        return told[its] - begin, columns


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1)
