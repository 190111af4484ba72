"""Executes what a `Partition` adds to the instruction set: whole values from shards, and sums over all workers' terms.

**Sums.** Each worker adds its terms up in FP64, with a bound on their absolute values. For every element there is one
owner, which adds the workers' sums and bounds. No term passes through more roundings than on its worker, and one for
each worker after that, so Ziv's test (`tiebreak.engine.arithmetic.plan.ziv`) holds as on one machine, in whatever order
and by whatever algorithm the sums were exchanged. They are sent in 6 bytes, and what that changes is counted as some
more roundings (`tiebreak.engine.distributed.wire`). Of the elements that the test leaves undecided every worker
computes its part exactly, in fixed point; integers are added, and the owner rounds once.

There must be one owner. The same sums, added by two workers in two orders, may differ; then one of them may decide an
element in FP64 that the other cannot decide. Both would be right, but they would no longer wait for the same messages.
Only a small result that all workers need goes another way, because messages take longer than arithmetic: every worker
gets the sums of all, adds them in the order of the workers, and so decides as every other does.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plain.exact import Digits, decide, exact_digits
from tiebreak.engine.arithmetic.plan.options import Operands, Stats
from tiebreak.engine.arithmetic.plan.sums import Partial, kind_of, norms
from tiebreak.engine.arithmetic.plan.ziv import coefficient
from tiebreak.engine.distributed import wire
from tiebreak.engine.distributed.exchange import JOINED, Collectives, Exchange, Swap, numbering
from tiebreak.engine.distributed.layout import Split, share
from tiebreak.engine.distributed.partition import AllGather, SharedSum
from tiebreak.protocol.numbers.float32 import MAX_PRECISION
from tiebreak.protocol.program.isa import Instruction

AHEAD: Final = 1 << 26
"""The bytes of whole weights that are gathered before they are needed."""

_UNDECIDED: Final = 0x7F800001
"""Stands for an element that FP64 does not decide, in the bits of results that are gathered.

A signalling NaN: those that arithmetic makes are quiet, on any device.
"""


class SharedArithmetic(Arithmetic):
    """An `Arithmetic` for the programs of a `Partition`, on one of its workers."""

    def __init__(
        self, exchange: Exchange, device: torch.device | str = "cpu", permute: torch.Generator | int | None = None,
        stats: Stats | None = None, *, precision: int = MAX_PRECISION,
    ) -> None:  # fmt: skip
        super().__init__(device, permute, stats, precision=precision)
        self.exchange = exchange
        self.collectives = Collectives(exchange, self.backend.empty)
        self._ahead: deque[tuple[AllGather, Tensor]] = deque()
        self._flying: dict[int, Callable[[], Tensor]] = {}
        self._bytes = 0
        self._gathers: dict[int, Callable[[], Tensor]] = {}
        self._sent: list[tuple[_Message, Callable[[], Tensor]]] = []
        self._shared: dict[int, _Sum] = {}
        self._messages: dict[int, _Message] = {}

    def look_ahead(self, gathers: Iterable[tuple[AllGather, Tensor]]) -> None:
        """Begins to gather the next step's weights before the step reads them. gathers: in the order of reading.

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
        begun = self._gathers.keys() | {id(each.instruction) for message, _ in self._sent for each in message.sums}
        if late := [(i, read) for i, read in given if id(i) not in begun]:
            self.begin(*zip(*late, strict=True))
        found = {id(i): self._gathers.pop(id(i))() for i in instructions if isinstance(i, AllGather)}
        if sums := [(self._sum(i), read) for i, read in given if isinstance(i, SharedSum)]:
            decided = {
                id(each.instruction): result
                for message, wait in self._sent
                for each, result in zip(message.sums, message.decide(wait()), strict=True)
            }
            self._sent.clear()
            rounded = self._round(sums, [decided[id(each.instruction)] for each, _ in sums])
            found |= {id(each.instruction): result for (each, _), result in zip(sums, rounded, strict=True)}
        return [found[id(i)].view(i.shape) for i in instructions]

    def begin(self, instructions: Sequence[Instruction], operands: Sequence[Operands]) -> None:
        """Begins what several instructions exchange, with their sums in one message; `together` ends it."""
        given = list(zip(instructions, operands, strict=True))
        gathers = [(i, read[0]) for i, read in given if isinstance(i, AllGather)]
        sums = [self._sum(i).begin(read) for i, read in given if isinstance(i, SharedSum)]
        self._agree(sums)
        swaps = [self.collectives.gather(shard, i.split) for i, shard in gathers]
        if not sums:
            waits = self.collectives.start(swaps)
        else:
            key = id(sums[0])
            if key not in self._messages:
                self._messages[key] = _Message(sums, self.collectives)
            message = self._messages[key]
            *waits, total = self.collectives.start([*swaps, message.swap()])
            self._sent.append((message, total))
        self._gathers |= {id(i): wait for (i, _), wait in zip(gathers, waits, strict=True)}

    def _sum(self, i: Instruction) -> "_Sum":
        if id(i) not in self._shared:
            assert isinstance(i, SharedSum)
            self._shared[id(i)] = _Sum(i, self)
        return self._shared[id(i)]

    def _agree(self, sums: Sequence["_Sum"]) -> None:
        """Agrees on the bounds of sums: workers may have different terms, and so different roundings."""
        if not (new := [each for each in sums if each.roundings is None]):
            return
        worst = self.collectives.greatest([each.part.roundings for each in new], self.device)
        for each, roundings in zip(new, worst, strict=True):
            each.roundings = roundings + self.collectives.workers

    def _round(self, sums: Sequence[tuple["_Sum", Operands]], results: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """The results, whole or in shards, from those that FP64 decided of each sum (as for `_settle`)."""
        held, tell = [n for n, (each, _) in enumerate(sums) if not each.whole], self.collectives
        parts = [n for n, (each, _) in enumerate(sums) if each.whole and not each.everywhere]
        swaps = []
        for n in parts:
            bits = results[n][0].view(torch.int32)
            bits[results[n][1]] = _UNDECIDED
            swaps.append(tell.gather(bits, sums[n][0].split))
        told, lengths = torch.empty(0, dtype=torch.int64, device=self.device), [0] * tell.workers
        begins = dict(zip(held, accumulate((sums[n][0].mine.numel for n in held), initial=0), strict=False))
        if held:
            mine = torch.cat([results[n][1] + sums[n][0].owned[0] + begins[n] for n in held])
            mine = mine.to(numbering(sum(sums[n][0].mine.numel for n in held)))
            *wholes, heads = tell.run([*swaps, tell.heads(mine)])
            told, lengths = tell.lists(mine, heads)
        else:
            wholes = tell.run(swaps)
        for n, bits in zip(parts, wholes, strict=True):
            results[n] = bits.view(torch.float32), (bits == _UNDECIDED).nonzero().view(-1)
        if len(told) or any(len(results[n][1]) for n in range(len(sums)) if n not in begins):
            self._settle(sums, results, {n: sums[n][0].among(told, lengths, begins[n]) for n in held})
        return [result for result, _ in results]

    def _settle(
        self, sums: Sequence[tuple["_Sum", Operands]], results: Sequence[tuple[Tensor, Tensor]],
        held: Mapping[int, tuple[Tensor, list[int]]],
    ) -> None:  # fmt: skip
        """Writes what FP64 did not decide; every worker computes its part of all such elements.

        results: those of each sum, with the numbers of its undecided elements, the same on all workers where all get
        the result. held: for the other sums, these numbers on all workers, and how many of them are on each.
        """
        read = [(n, *held.get(n, (results[n][1], None))) for n in range(len(sums))]
        read = [(n, wanted, columns) for n, wanted, columns in read if len(wanted)]
        # Where the bound is finite, so is every term.
        exact = [exact_digits(sums[n][0].mine, sums[n][1], wanted)[0].values for n, wanted, _ in read]
        packed = torch.split(Digits(torch.cat(exact, 1)).packed(), [len(wanted) for _, wanted, _ in read], 1)
        worker, workers = self.exchange.worker, self.collectives.workers
        shares = [
            [part] * workers if columns is None else torch.split(part, columns, 1)
            for part, (*_, columns) in zip(packed, read, strict=True)
        ]
        sent = [torch.cat(parts, 1) for parts in zip(*shares, strict=True)]
        swap = self.collectives.add([each.view(-1) for each in sent], sent[worker].numel(), JOINED + 1)
        total = self.collectives.run([swap])[0].view(sent[worker].shape)
        mine = torch.split(total, [parts[worker].shape[1] for parts in shares], 1)
        for (n, *_), digits in zip(read, mine, strict=True):
            result, here = results[n]
            result[here] = Digits(digits).rounded(sums[n][0].rounded)
            sums[n][0].counts.undecided_twice += len(here)


class _Sum:
    """One sum over all workers' terms, planned once."""

    part: Partial

    def __init__(self, i: SharedSum, arithmetic: SharedArithmetic) -> None:
        self.instruction, self.mine, self.collectives = i, i.mine, arithmetic.collectives
        self.plain = not norms(i.mine)
        self.planned, self.rounded = arithmetic.backend.partial(i.mine), arithmetic.options.rounding(i.mine)
        self.counts = arithmetic.stats.of(kind_of(i.mine))
        self.whole = i.split is None
        self.split = Split(1, i.mine.numel, 1) if i.split is None else i.split
        self.everywhere = i.everywhere
        mine = self.share(arithmetic.exchange.worker)
        self.owned = mine.start, mine.stop
        self.roundings: int | None = None
        """The number of roundings on a term's path, as all workers count them, with the additions of what they send."""

    def share(self, worker: int) -> slice:
        """The elements of the result that a worker decides."""
        if self.everywhere:
            return slice(0, self.mine.numel)
        begin, end = share(self.split.size, worker, self.collectives.workers)
        return slice(begin * self.split.inner, end * self.split.inner)

    def begin(self, operands: Operands) -> "_Sum":
        self.part = self.planned(operands)
        return self

    def spread(self, bounds: Tensor, begin: int, end: int) -> Tensor:
        """The bounds of elements begin ... end - 1 of the result; those of rows and columns are multiplied."""
        if self.plain:
            return bounds
        rows, columns = self.part.sizes
        left, right = torch.split(bounds, [rows.numel(), columns.numel()])
        return self.part.errors(left.view(rows.shape), right.view(columns.shape), begin, end)

    def own(self) -> Sequence[Tensor]:
        """This worker's sums of the result's elements in order, and their sizes."""
        part = self.part
        sums = part.in_order(part.sums)
        return [sums, part.in_order(part.sizes[0])] if self.plain else [sums, *part.sizes]

    def among(self, told: Tensor, lengths: Sequence[int], begin: int) -> tuple[Tensor, list[int]]:
        """This sum's elements in the lists of all workers, and how many of them each worker owns."""
        its = (told >= begin) & (told < begin + self.mine.numel)
        return told[its] - begin, [int(part.sum()) for part in torch.split(its, list(lengths))]


class _Message:
    """Several sums that are sent at once; as one, because most sums have few elements."""

    def __init__(self, sums: Sequence[_Sum], collectives: Collectives) -> None:
        self.sums, self.collectives = sums, collectives
        mine = collectives.exchange.worker
        self._shares = [[each.share(worker) for each in sums] for worker in range(collectives.workers)]
        self._held = [share_.stop - share_.start for share_ in self._shares[mine]]
        self._alike = all(each.everywhere for each in sums)

    def swap(self) -> Swap:
        """This worker's sums of every result, and their bounds, for the workers that decide: FP64 (2, elements)."""
        own = [each.own() for each in self.sums]
        sizes = [
            size if each.plain else size.sqrt() for each, (_, *of) in zip(self.sums, own, strict=True) for size in of
        ]
        flat = wire.above(torch.cat([size.reshape(-1) for size in sizes]))
        lengths = [sum(size.numel() for size in of) for _, *of in own]
        bounds = torch.split(flat, lengths)
        inverse = torch.split(flat.reciprocal(), lengths)
        spread = [each.spread(part, 0, each.mine.numel) for each, part in zip(self.sums, inverse, strict=True)]
        coded = wire.integers(torch.cat([sums for sums, *_ in own]), torch.cat(spread).mul_(wire.SCALE))
        if self._alike:
            pieces = [wire.message(coded, flat)] * self.collectives.workers
        else:
            parts = list(zip(self.sums, torch.split(coded, [len(sums) for sums, *_ in own]), bounds, strict=True))
            pieces = [self._piece(parts, shares) for shares in self._shares]
        mine = pieces[self.collectives.exchange.worker]
        into = [self.collectives.empty(mine.shape, torch.uint8) for _ in pieces]
        size = wire.SUM_BYTES * len(coded) + wire.BOUND_BYTES * len(flat)
        for each in self.sums:  # nothing reads the FP64 sums while the message is on its way
            each.part = replace(each.part, sums=coded.new_empty(0))
        return Swap(pieces, into, size, lambda: self._total(into))

    @staticmethod
    def _piece(parts: Sequence[tuple[_Sum, Tensor, Tensor]], shares: Sequence[slice]) -> Tensor:
        """The message for a worker that decides these shares."""
        given = list(zip(parts, shares, strict=True))
        bounds = [bounds[its] if each.plain else bounds for (each, _, bounds), its in given]
        return wire.message(torch.cat([coded[its] for (_, coded, _), its in given]), torch.cat(bounds))

    def _total(self, received: Sequence[Tensor]) -> Tensor:
        held, device = self._held, received[0].device
        total = torch.zeros((2, sum(held)), dtype=torch.float64, device=device)
        lengths = [
            count if each.plain else sum(size.numel() for size in each.part.sizes)
            for each, count in zip(self.sums, held, strict=True)
        ]
        for sent in received:  # in the order of the workers
            theirs, bounds = wire.parts(sent, sum(held))
            split = zip(self.sums, torch.split(bounds, lengths), strict=True)
            units = torch.cat([each.spread(part, *each.owned) for each, part in split])
            total[1].add_(units)
            total[0].add_(theirs.mul_(units.mul_(1 / wire.SCALE)))
        return total

    def decide(self, total: Tensor) -> list[tuple[Tensor, Tensor]]:
        """This worker's share of each result, and the numbers of the elements in it that FP64 does not decide."""
        for each, part in zip(self.sums, torch.split(total[1], self._held), strict=True):
            assert each.roundings is not None
            part.mul_(coefficient(each.roundings + wire.ROUNDINGS))
            del each.part
        found: list[tuple[Tensor, Tensor]] = []
        begin, every = 0, zip(self.sums, self._held, strict=True)
        for _, group in groupby(every, key=lambda one: one[0].rounded.precision):
            sums, counts = zip(*group, strict=True)
            c, e = total[:, begin : begin + sum(counts)].unbind()
            begin += sum(counts)
            result, undecided = decide(c, e, sums[0].rounded)
            open_ = undecided.nonzero().view(-1)
            usable = e[open_].isfinite()
            result[open_[~usable]] = float("nan")
            ends = [*accumulate(counts)]
            cuts = torch.searchsorted(open_, torch.tensor(ends, device=open_.device)).diff(prepend=open_.new_zeros(1))
            places = zip(ends, torch.split(open_, lengths := cuts.tolist()), torch.split(usable, lengths), strict=True)
            for each, own, (end, here, exactly) in zip(sums, torch.split(result, list(counts)), places, strict=True):
                each.counts.elements += len(own)
                each.counts.undecided += len(here)
                found.append((own, here[exactly] - (end - len(own))))
        return found
