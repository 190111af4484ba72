"""Ziv's test in torch, on any device, and what settles the elements that it leaves open.

`tiebreak.engine.arithmetic.plan.ziv` has the bound, doubled precision and near ties, with their proofs.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plain.exact import ROW_BUDGET, add_elements, round_to_odd, two_sum
from tiebreak.engine.arithmetic.plan.rounding import Round
from tiebreak.engine.arithmetic.plan.stats import Counts
from tiebreak.engine.arithmetic.plan.views import Integers
from tiebreak.engine.arithmetic.plan.ziv import DENSE, Collector, coefficient

PIECE: Final = 1 << 18
"""The number of terms of one element read at once."""
_MIN_PRODUCT_EXPONENT: Final = -298

Errors = Callable[[Tensor], Tensor]
"""e of some elements (i64 numbers), FP64."""
Places = Callable[[Tensor], tuple[Integers, Integers]]
"""Places of elements (i64 numbers, U of them) in the result: (numbers there, which of the U each is)."""


class TermReader(Protocol):
    """Reads the exact terms of single output elements again."""

    @property
    def terms(self) -> int:
        """The number of terms of an element, K."""

    def read(self, elements: Tensor, begin: int, end: int) -> Tensor:
        """Terms begin ... end-1 of some elements (i64 numbers, U of them), exact: FP64 (U, end - begin)."""


def decide(c: Tensor, e: Tensor, rounded: Round) -> tuple[Tensor, Tensor]:
    """Ziv's test of FP64 values within +-e: (f32 results, contiguous; mask of the undecided). Any shape."""
    high = rounded(torch.add(c, e), torch.contiguous_format)
    undecided = rounded(torch.sub(c, e)).ne(high)  # true for NaN
    return high.add_(0.0), undecided  # -0 + 0 = +0


def decide_outer(c: Tensor, left: Tensor, right: Tensor, rounded: Round, piece: int) -> tuple[Tensor, Tensor]:
    """`decide` for c (Bt, M, N) and e = left (Bt, M) x right (Bt, N), at most about `piece` elements at once."""
    batch, m, n = c.shape
    if c.numel() <= piece:
        return _decide_outer(c, left[:, :, None], right[:, None, :], rounded)
    result = torch.empty(c.shape, dtype=torch.float32, device=c.device)
    undecided = torch.empty(c.shape, dtype=torch.bool, device=c.device)
    rows, batches = max(1, piece // n), max(1, piece // (m * n))
    for b in range(0, batch, batches):
        for r in range(0, m, rows):
            part = slice(b, b + batches), slice(r, r + rows)
            high, different = _decide_outer(c[part], left[part][:, :, None], right[part[0], None, :], rounded)
            result[part], undecided[part] = high, different
    return result, undecided


def _decide_outer(c: Tensor, left: Tensor, right: Tensor, rounded: Round) -> tuple[Tensor, Tensor]:
    # The bound holds with or without FMA, which only omits a rounding.
    high = rounded(torch.addcmul(c, left, right), torch.contiguous_format)
    undecided = rounded(torch.addcmul(c, left, right, value=-1)).ne(high)
    return high.add_(0.0), undecided


def round_pair(s: Tensor, t: Tensor, rounded: Round) -> Tensor:
    """RN(s + t) for any FP64 s and t."""
    return rounded(round_to_odd(*two_sum(s, t)))


def _power(exponent: Tensor) -> Tensor:
    """1.5 * 2^exponent as FP64, for i64 exponents of normal numbers."""
    return ((exponent + 1023 << 52) | (1 << 51)).view(torch.float64)


def _peak(pieces: Iterable[Tensor]) -> Tensor:
    """The largest absolute term of each element."""
    return torch.stack([piece.abs().amax(1) for piece in pieces]).amax(0)


def _above(peak: Tensor) -> Tensor:
    """The least exponent E, i64, with peak < 2^E, for peaks in FP64."""
    return (peak.clamp_min(2.0**_MIN_PRODUCT_EXPONENT).view(torch.int64) >> 52) - 1022


def _pieces(reader: TermReader, elements: Tensor) -> Iterator[Tensor]:
    for begin in range(0, reader.terms, PIECE):
        yield reader.read(elements, begin, min(begin + PIECE, reader.terms))


def doubled(reader: TermReader, elements: Tensor, rounded: Round) -> tuple[Tensor, Tensor]:
    """Sums some elements' terms in doubled precision: (f32 results, mask of those still undecided), each (U,)."""
    k = max(1, (reader.terms - 1).bit_length())
    pieces = [reader.read(elements, 0, reader.terms)] if reader.terms <= PIECE else None
    peak = _peak(pieces or _pieces(reader, elements))
    above = _above(peak)
    first = _power(above + k)[:, None]
    if pieces is not None:
        high = (pieces[0] + first).sub_(first)
        if bool(high.eq(pieces[0]).all()):  # nothing is left: exact. So it is for most plain sums, many of them ties
            return rounded(high.sum(1)).add_(0.0), torch.zeros_like(peak, dtype=torch.bool)
    second = _power(above + (2 * k - 52))[:, None]
    sums = torch.zeros((4, len(elements)), dtype=torch.float64, device=elements.device)
    for piece in pieces or _pieces(reader, elements):
        high = (piece + first).sub_(first)
        rest = piece - high
        middle = (rest + second).sub_(second)
        rest = rest.sub_(middle)
        sums += torch.stack((high.sum(1), middle.sum(1), rest.sum(1), rest.abs_().sum(1)))
    h1, h2, low, size = sums.unbind()
    s, t = two_sum(h1, h2)
    tail = t + low
    # t + low is rounded unless low is 0; so are tail - e and tail + e.
    e = size * coefficient(reader.terms) + torch.where(size > 0, tail.abs() * 2.0**-51, 0.0)
    below, upper = round_pair(s, torch.stack((tail - e, tail + e)), rounded).unbind()
    return upper + 0.0, below.ne(upper)


def on_grid(reader: TermReader, elements: Tensor, count: int) -> Tensor:
    """The elements whose terms (`count` of them by definition) add exactly in any order."""
    if not len(elements):
        return torch.zeros((0,), dtype=torch.bool, device=elements.device)
    found = []
    for chunk in torch.split(elements, max(1, ROW_BUDGET // min(reader.terms, PIECE))):
        shift = _power(_above(_peak(_pieces(reader, chunk))) + max(1, (count - 1).bit_length()))[:, None]
        fits = torch.ones_like(chunk, dtype=torch.bool)
        for piece in _pieces(reader, chunk):
            fits &= (piece + shift).sub_(shift).eq(piece).all(1)
        found.append(fits)
    return torch.cat(found)


@dataclass(frozen=True)
class Settler:
    """Computes again, with more precision, the elements whose rounding FP64 leaves open."""

    rounded: Round
    counts: Counts
    near: Collector | None = None
    """Collects the open elements that are reported."""
    added: int = ROW_BUDGET
    """The number of terms that are added exactly at once."""

    def settle(
        self,
        result: Tensor,
        undecided: Tensor,
        c: Tensor,
        errors: Errors,
        reader: TermReader,
        *,
        places: Places,
        count: int,
        whole: Callable[[Tensor], Tensor] | None = None,
        exactly: Callable[[Tensor], Tensor] | None = None,
        among: int = 0,
    ) -> None:
        """Writes the exact results of undecided elements into `result` (f32, contiguous), or reports them to `near`.

        Elements are numbered row-major over `result`, `undecided` and `c`. Those with an error that is not finite are
        NaN. Reads at most about `ROW_BUDGET` terms at a time. `count`: the number of terms of an element by the
        instruction's definition. `whole` computes rows m of a product (Bt, M, N) exactly: (rows,) -> (Bt, rows, N).
        `exactly` computes the exact results of elements with finite terms: (elements,) -> f32, in place of the reader.
        `among`: how many elements there are, if `result` has only some of them.
        """
        among = among or result.numel()
        self.counts.elements += among
        open_ = int(undecided.count_nonzero())
        self.counts.undecided += open_
        flat, fp64 = result.view(-1), c.reshape(-1)
        if self.near is not None and open_:
            undecided = self._report(self.near, flat, fp64, undecided, errors, reader, places, count)
            open_ = int(undecided.count_nonzero())
        if not open_ or (whole is not None and self._settle_rows(result, undecided, c, open_, whole)):
            return
        elements = undecided.reshape(-1).nonzero().view(-1)
        usable = errors(elements).isfinite()
        if not bool(usable.all()):
            flat[elements[~usable]] = float("nan")
            elements = elements[usable]
        if exactly is not None:
            if len(elements):
                self.counts.undecided_twice += len(elements)
                self._put(flat, fp64, elements, exactly(elements))
            return
        dense = len(elements) * DENSE >= among
        for chunk in torch.split(elements, max(1, ROW_BUDGET // min(reader.terms, PIECE))):
            if dense:
                self._put(flat, fp64, chunk, self._exact(chunk, reader))
                continue
            values, left = doubled(reader, chunk, self.rounded)
            if bool(left.any()):
                values[left] = self._exact(chunk[left], reader)
            self._put(flat, fp64, chunk, values)

    def _settle_rows(
        self, result: Tensor, undecided: Tensor, c: Tensor, count: int, whole: Callable[[Tensor], Tensor]
    ) -> bool:
        """Settles `count` elements of a product (Bt, M, N) as whole rows, if these have few others."""
        batch, m, n = result.shape
        if count * DENSE < batch * n:
            return False
        rows = undecided.any(2).any(0).nonzero().view(-1)
        if count * DENSE < batch * len(rows) * n:
            return False
        values = whole(rows)
        every = len(rows) == m
        c, undecided = (c, undecided) if every else (c[:, rows], undecided[:, rows])
        settled = undecided & values.eq(values)  # not NaN
        self.counts.undecided_twice += int(settled.count_nonzero())
        self.counts.double_rounded += int(settled.logical_and_(self.rounded(c).ne(values)).count_nonzero())
        if every:
            torch.where(undecided, values, result, out=result)
        else:
            result[:, rows] = torch.where(undecided, values, result[:, rows])
        return True

    def _put(self, flat: Tensor, fp64: Tensor, elements: Tensor, values: Tensor) -> None:
        self.counts.double_rounded += int(self.rounded(fp64[elements]).ne(values).sum())
        flat[elements] = values

    def _exact(self, elements: Tensor, reader: TermReader) -> Tensor:
        self.counts.undecided_twice += len(elements)
        chunks = torch.split(elements, max(1, self.added // reader.terms))
        found = [add_elements(reader.read, chunk, reader.terms, self.added)[0] for chunk in chunks]
        return torch.cat([total.rounded(self.rounded) for total in found])

    def _report(
        self,
        near: Collector,
        flat: Tensor,
        fp64: Tensor,
        undecided: Tensor,
        errors: Errors,
        reader: TermReader,
        places: Places,
        count: int,
    ) -> Tensor:
        """Reports the open elements that may be left as they are; returns the mask of the others."""
        elements = undecided.reshape(-1).nonzero().view(-1)
        c, e = fp64[elements], errors(elements)
        logged = (e <= self.rounded.gaps(c).mul_(near.limit)) & c.isfinite()  # false for NaN
        if near.grid:
            at = logged.nonzero().view(-1)
            logged[at[on_grid(reader, elements[at], count)]] = False
        chosen, c, e = elements[logged], c[logged], e[logged]
        flat[chosen] = self.rounded(c).add_(0.0)
        numbers, which = places(chosen)
        near.add(numbers, c.cpu().numpy()[which], e.cpu().numpy()[which])
        self.counts.logged += len(numbers)
        return undecided.clone().view(-1).index_fill_(0, chosen, False).view(undecided.shape)
