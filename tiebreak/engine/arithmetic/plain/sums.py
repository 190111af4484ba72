"""`reduce` sums of f32 in torch, on any device: this is what an instruction computes, in the order in which to read it.

**Places.** The dims of the output fall into groups, according to the operands that read them: *batch* (both, the only
one, or none), *m* (only the first, which has the rows) and *n* (only the second, which has the columns); those of the
reduction are *k*. So each sum is one batched matrix product C (batch, m, n) = A (batch, m, k) x B (batch, n, k), or,
without m and n, a sum along k of products or of plain numbers. An element is read at the sum of one place per group.

**FP64 in blocks.** Boxes of C are computed one after the other, and each adds up blocks of k in FP64, in which every
product of two f32 is exact. With C comes N', which bounds the sum of absolute terms: that sum itself, or the product of
the norms of a row and a column. Blocks bound how many roundings a term passes through, and boxes how much memory it
takes.

**Ziv's test** (`tiebreak.engine.arithmetic.plan.ziv`, with proofs) rounds C - e and C + e, where e bounds the error by
N'. Where both round to the same number, that is the result.

**Exact digits.** The few elements that this leaves open are summed exactly (`exact`).
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plain.exact import ElementReader, decide, settle
from tiebreak.engine.arithmetic.plan.options import Counts, Operands, Options
from tiebreak.engine.arithmetic.plan.sums import Partial, coalesced, grouped
from tiebreak.engine.arithmetic.plan.views import Dim, View, offsets, size_of
from tiebreak.engine.arithmetic.plan.ziv import Collector, coefficient
from tiebreak.protocol.program.isa import Instruction

BLOCK = 256
"""The number of terms multiplied at once if there are many: the bound is (BLOCK + number of blocks) u, not K u."""
MAX_BLOCKS = 64
WHOLE = 1 << 60
"""A limit that no tensor reaches."""
_BATCH, _M, _N, _K = range(4)
_RESULT = -1
"""The last stride of an output dim is the result's; those before it are the operands', rows first."""
Box = tuple[range, range, range]
"""Row-major numbers of batches, rows and columns."""


class PlainSum:
    """One `reduce` sum of f32. With `shuffled`, its terms are taken in a random order drawn from it."""

    def __init__(self, instruction: Instruction, options: Options, fp64: int) -> None:
        """fp64: about how many elements of one FP64 tensor there are at once."""
        self._instruction, self._shuffled, self._most = instruction, options.shuffled, fp64
        self._rounded = options.rounding(instruction)
        self._order, groups = grouped(instruction)
        self._starts = [instruction.operands[o].offset for o in self._order]
        output = [[Dim(d.size, (*(d.strides[o] for o in self._order), at)) for d, at in group] for group in groups]
        terms = [Dim(d.size, tuple(d.strides[o] for o in self._order)) for d in coalesced(instruction)[1]]
        self._groups: list[list[Dim]] = [*output, terms]
        self._terms, self._matrix = size_of(terms), bool(output[_M] or output[_N])
        block = max(BLOCK, ceil(self._terms / MAX_BLOCKS)) if self._matrix else self._terms
        self._block = min(self._terms if self._terms <= 2 * block else block, fp64)
        self._roundings = self._block + ceil(self._terms / self._block)

    def run(self, operands: Operands, counts: Counts, near: Collector | None) -> Tensor:
        """The result, f32, contiguous, of the instruction's shape. `near` collects near ties that are not settled."""
        out = torch.empty(self._instruction.shape, dtype=torch.float32, device=operands[0].device)
        flat, reader = out.view(-1), ElementReader(self._instruction, operands)
        # A single term is exact: its bound is 0, or NaN if it is not finite.
        factor = coefficient(self._roundings) if self._terms > 1 else 0.0
        factor = factor if near is None else near.coefficient(factor)
        counts.elements += out.numel()
        for box in self._boxes():
            c, sizes = self._sums(operands, box)
            if self._matrix:
                e = sizes[0].sqrt_().mul_(factor)[:, :, None] * sizes[1].sqrt_()[:, None]
            else:
                e = sizes[0].mul_(factor)
            values, undecided = decide(c, e, self._rounded)
            if (view := self._view(flat, _RESULT, 0, (*box, None))) is not None:
                view.copy_(values.view(view.shape))
            else:
                flat[self._places(_RESULT, box, device=flat.device)] = values
            if bool(undecided.any()):
                at = undecided.nonzero().unbind(1)
                numbers = sum(self._along(g, _RESULT, at[g] + box[g].start) for g in (_BATCH, _M, _N))
                assert isinstance(numbers, Tensor)
                flat[numbers] = settle(c[at], e[at], numbers, reader, self._rounded, counts, near)
        return out

    def partial(self, operands: Operands) -> Partial:
        """The FP64 sums, of all elements at once, that `run` would round."""
        box = next(self._boxes())
        sums, sizes = self._sums(operands, box)
        places = self._places(_RESULT, box, device=torch.device("cpu")).reshape(-1).numpy()
        source = np.empty_like(places)
        source[places] = np.arange(len(places))
        return Partial(sums, sizes, self._roundings, source)

    def _boxes(self) -> Iterator[Box]:
        """All elements in boxes that, like what they read of k at once, have at most about `fp64` elements."""
        batches, m, n = (size_of(group) for group in self._groups[:3])
        rows = min(m, max(1, self._most // self._block))
        columns = min(n, max(1, self._most // max(self._block, rows)))
        deep = min(batches, max(1, self._most // max(rows * columns, self._block * max(rows, columns))))
        for b, r, c in product(range(0, batches, deep), range(0, m, rows), range(0, n, columns)):
            yield range(b, min(b + deep, batches)), range(r, min(r + rows, m)), range(c, min(c + columns, n))

    def _sums(self, operands: Operands, box: Box) -> tuple[Tensor, tuple[Tensor, ...]]:
        """C of a box, FP64 (batches, rows, columns), and its sizes.

        The sizes are sums of absolute terms, like C; or those of squares, of a product's rows and columns.
        """
        order, total = None, list[Tensor]()
        if self._shuffled is not None:
            order = torch.randperm(self._terms, generator=self._shuffled, device=self._shuffled.device)
            order = order.to(operands[0].device)
        for begin in range(0, self._terms, self._block):
            end = min(begin + self._block, self._terms)
            k = range(begin, end) if order is None else order[begin:end]
            a, *others = (self._read(operands[o], which, box, k) for which, o in enumerate(self._order))
            if self._matrix:
                (b,) = others
                found = [_matmul(a, b.mT), a.square_().sum(2), b.square_().sum(2)]
            else:
                terms = a.mul_(others[0]) if others else a
                found = [terms.sum(2, keepdim=True), terms.abs_().sum(2, keepdim=True)]
            total = [x.add_(y) for x, y in zip(total, found, strict=True)] if total else found
        return total[0], tuple(total[1:])

    def _read(self, base: Tensor, which: int, box: Box, k: range | Tensor) -> Tensor:
        """A new FP64 tensor (batches, rows or columns, terms) of an operand."""
        lengths = len(box[_BATCH]), len(box[_N if which else _M]), len(k)
        numbers = (box[_BATCH], None, box[_N], k) if which else (box[_BATCH], box[_M], None, k)
        if (view := self._view(base, which, self._starts[which], numbers)) is None:
            view = base.view(-1).take(self._places(which, box, k, device=base.device))
        return view.to(torch.float64).reshape(lengths)

    def _view(self, base: Tensor, which: int, start: int, numbers: Sequence[range | Tensor | None]) -> Tensor | None:
        """A strided view, over the dims of the groups, of an operand or of the result; None if there is none.

        There is one if each group is taken whole, or has one dim, of which a piece is taken.
        """
        dims: list[Dim] = []
        for group, taken in zip(self._groups, numbers, strict=True):
            if taken is None:
                continue
            if isinstance(taken, Tensor) or (len(group) > 1 and len(taken) < size_of(group)):
                return None
            if len(group) == 1:
                start += group[0].strides[which] * taken.start
                dims.append(Dim(len(taken), group[0].strides))
            else:
                dims += group
        sizes = [d.size for d in dims]
        return View.of(start, sizes, [d.strides[which] for d in dims]).on(base).expand(sizes)

    def _places(self, which: int, box: Box, k: range | Tensor | None = None, *, device: torch.device) -> Tensor:
        """The places of an operand's elements (batches, rows or columns, terms), or of the result's."""
        numbered = [torch.arange(each.start, each.stop, device=device) for each in box]
        batch, m, n = (self._along(g, which, numbers) for g, numbers in enumerate(numbered))
        if k is None:
            return batch[:, None, None] + m[:, None] + n
        k = torch.arange(k.start, k.stop, device=device) if isinstance(k, range) else k
        own = n if which else m
        return self._starts[which] + batch[:, None, None] + own[:, None] + self._along(_K, which, k)

    def _along(self, group: int, which: int, numbers: Tensor) -> Tensor:
        """The places of coordinates along the dims of a group, by their row-major numbers."""
        dims = self._groups[group]
        return offsets(numbers, [d.size for d in dims], [d.strides[which] for d in dims], 0)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a[0], b[0])[None] if a.shape[0] == 1 else torch.bmm(a, b)
