r"""Rounds FP64 sums correctly to f32 numbers of b bits by Ziv's test, and resolves exactly what the test leaves open.

**The bound.** Let u = 2^-53 and let a result C be computed from exact reals t_1 ... t_K (f32 values, or products of
two, which FP64 holds exactly: 48 bits, exponents within -298 ... 256, so nothing under- or overflows) such that no
t_i passes through more than n FP64 roundings on its way into C. Then C = sum t_i (1 + d_i) with |d_i| <= (1+u)^n - 1,
so |C - exact| <= g(n) T with T = sum |t_i| and g(n) = n u / (1 - n u). This holds for every order of summation, with
blocks or without, and with FMA (which only omits roundings). n is K for a plain loop (K - 1 additions, 1 to
spare), and s + b if K is cut into b blocks of at most s terms whose results are added by plain additions.

**What is computed.** T itself is not known, but a computed T' or product of norms N' >= T (1 - small), with at most
2K + 8 roundings. For K <= 2^32 these relative errors, that of g's denominator and those of computing the bound itself
are below 2^-17 together. C + e and C - e are rounded too, by at most u (|C| + e) <= 2 u T (1 + 2^-17): two more
roundings in n. So e = (n + 3) u (1 + 2^-16) N' makes fl(C - e) <= exact <= fl(C + e). `coefficient(n)` is that factor.
If every term is zero, e is 0 and C is 0.

**The test.** Rounding to b bits is monotone: if RN(fl(C - e)) = RN(fl(C + e)), that is RN(exact). Zeros of either
sign compare equal and become +0. A non-finite factor makes N' non-finite, and so e (in products of norms, inf * 0 is
NaN); the test then fails, and the element is NaN by SPEC 5.

**Doubled precision.** The terms p_i of an undecided element are read again. With |p_i| < 2^E and K <= 2^k, let S =
1.5 * 2^(E+k). h_i = fl(fl(p_i + S) - S) is a multiple of q = 2^(E+k-52), |h_i| <= 2^E, and p_i - h_i is exact and at
most q/2. Partial sums of h_i are multiples of q, at most 2^k 2^E = 2^52 q: exact in any order. The remainders are
split once more in the same way (E' = E+k-52), and what then remains is summed with the bound above; it is nearly always
zero, which makes the result exact, ties included. With TwoSum, H1 + H2 + L becomes s + t, |t| <= ulp(s)/2, which is
rounded to FP64 *to odd* before it is rounded to b bits, so that the second rounding never sees a false tie.

**Exact.** Elements that are still undecided are summed in fixed point (`tiebreak.engine.arithmetic.exact`). If many
elements of a result are undecided, this is done at once, for a matrix product as a whole, and takes about equally long
for any data. The compiled kernels (exact.h) have no doubled precision: C of a plain sum whose terms lie on a grid is
exact, and every other undecided sum goes to the superaccumulator.

**Near ties** (SPEC section 5.1). Under policy `logged`, an engine computes a sum as c with an error of at most e (with
a calibrated threshold, as far as calibration has seen): e = coefficient * N with the N above. The element is *open* if
c - e and c + e round to different numbers. If e is small against the job's tolerance, e <= 2^-n * gap / 2, then c is
kept, rounded, and reported: the exact sum x lies within 2e <= 2^-n * gap of the middle, as SPEC 5.1 requires of an
entry. Otherwise cancellation has left c too inaccurate, and the element is settled exactly.

**On a grid.** Many plain sums of f32 are exactly a middle. If all terms are multiples of 2^(E+k-52), with |terms| < 2^E
and K <= 2^k (k > 0), all partial sums in any order are exact in FP64, so no two machines differ: such an element is
settled and not reported. This test depends only on the terms and K, so all parties agree on it.

The compiled kernels do all this in exact.h; `run_kernel` calls them.
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tiebreak.engine.arithmetic.exact import CACHED as ADDED
from tiebreak.engine.arithmetic.exact import ROW_BUDGET, Floats, Integers, add_elements, round_to_odd, two_sum
from tiebreak.engine.arithmetic.rounding import Round
from tiebreak.engine.arithmetic.stats import Counts
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.rounding import MAX_TOLERANCE, MIN_TOLERANCE, SumKind

UNIT: Final = 2.0**-53
"""u, the unit roundoff of FP64."""
LEAST: Final = 2.0**-52
"""The least coefficient: c - e and c + e are rounded to FP64 too, so a smaller e would be lost."""
_EVERYTHING: Final = 2.0**600
"""A limit that no error exceeds."""
PIECE: Final = 1 << 18
"""The number of terms of one element read at once."""
CACHED: Final = 1 << 16
"""The number of elements tested at once on a CPU."""
_MIN_PRODUCT_EXPONENT: Final = -298

Errors = Callable[[Tensor], Tensor]
"""e of some elements (i64 numbers), FP64."""
Places = Callable[[Tensor], tuple[Integers, Integers]]
"""Places of elements (i64 numbers, U of them) in the result: (numbers there, which of the U each is)."""
DENSE: Final = 8
"""All undecided elements are summed exactly at once if they are one in this many."""


def coefficient(roundings: int) -> float:
    """(n + 3) u (1 + 2^-16): this factor times a bound on the sum of absolute terms bounds the error, see above."""
    return (roundings + 3) * UNIT * (1 + 2.0**-16)


# ---- near ties ----


@dataclass(frozen=True)
class Logging:
    """The rules by which sums are computed and tested under policy `logged`."""

    thresholds: Mapping[SumKind, float | None]
    """kappa of each kind, with e = kappa * u * N. None stands for the proven bound."""
    tolerances: Mapping[SumKind, int]
    """n of each kind; 0 if the kind is never logged."""
    everything: bool = False
    """Whether calibration wants every element reported whose e is not 0 and reaches a middle, at any tolerance."""

    def __post_init__(self) -> None:
        for kind in SumKind:
            threshold, n = self.thresholds.get(kind), self.tolerances.get(kind, 0)
            if threshold is not None and not (isfinite(threshold) and threshold > 0):
                raise ConfigurationError(f"expected a positive threshold for {kind.name} sums, got {threshold}")
            if n and not MIN_TOLERANCE <= n <= MAX_TOLERANCE:
                raise ConfigurationError(
                    f"expected 0 or {MIN_TOLERANCE} to {MAX_TOLERANCE} as tolerance of {kind.name} sums, got {n}"
                )

    @classmethod
    def reporting_all(cls, threshold: float = 2.0**60) -> "Logging":
        """The rules for calibration: c of every element is reported, with e = threshold * u * N."""
        return cls(dict.fromkeys(SumKind, threshold), dict.fromkeys(SumKind, MIN_TOLERANCE), everything=True)

    def logs(self, kind: SumKind) -> bool:
        """Whether sums of a kind are logged at all."""
        return bool(self.tolerances.get(kind, 0))

    def collector(self, kind: SumKind) -> "Collector":
        """The collector for one sum of a kind."""
        limit = _EVERYTHING if self.everything else 2.0 ** -(self.tolerances[kind] + 1)
        return Collector(self.thresholds.get(kind), limit, grid=not self.everything)


@dataclass(frozen=True)
class NearTies:
    """The open elements of one result that were left as rounded from c, by row-major number, ascending."""

    elements: Integers
    values: Floats
    """c of Ziv's test: the sums as they were computed, before rounding."""
    errors: Floats
    """e of Ziv's test, one for each value."""

    def __len__(self) -> int:
        return len(self.elements)


NOTHING_NEAR: Final = NearTies(np.empty(0, np.int64), np.empty(0), np.empty(0))


@dataclass
class Collector:
    """Collects the near ties of one instruction while it is computed."""

    threshold: float | None
    limit: float
    """Open elements are reported if their error is at most this times the gap around them."""
    grid: bool
    """Whether elements whose terms lie on a grid are settled instead of reported."""
    _found: list[tuple[Integers, Floats, Floats]] = field(default_factory=list)

    def coefficient(self, proven: float) -> float:
        """The factor with e = factor * N: the threshold's, or the proven one. An exact result keeps 0."""
        return proven if self.threshold is None or not proven else max(self.threshold * UNIT, LEAST)

    def add(self, elements: Integers, values: Floats, errors: Floats) -> None:
        """Reports some elements, by their numbers in the result."""
        if len(elements):
            self._found.append((elements, values, errors))

    @property
    def count(self) -> int:
        """The number of elements reported so far."""
        return sum(len(elements) for elements, _, _ in self._found)

    def found(self) -> NearTies:
        """The reported elements in order."""
        if not self._found:
            return NOTHING_NEAR
        elements, values, errors = (np.concatenate(parts) for parts in zip(*self._found, strict=True))
        order: NDArray[np.intp] = np.argsort(elements, kind="stable")
        return NearTies(elements[order], values[order], errors[order])


# ---- in torch ----


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


def decide_outer(c: Tensor, left: Tensor, right: Tensor, rounded: Round) -> tuple[Tensor, Tensor]:
    """`decide` for c (Bt, M, N) and e = left (Bt, M) x right (Bt, N), in pieces that fit into a CPU's cache."""
    batch, m, n = c.shape
    if c.device.type != "cpu" or c.numel() <= CACHED:
        return _decide_outer(c, left[:, :, None], right[:, None, :], rounded)
    result = torch.empty(c.shape, dtype=torch.float32)
    undecided = torch.empty(c.shape, dtype=torch.bool)
    rows, batches = max(1, CACHED // n), max(1, CACHED // (m * n))
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
    """E with peak < 2^E, i64."""
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
    """Settles undecided elements."""

    rounded: Round
    counts: Counts
    near: Collector | None = None
    """Collects the open elements that are reported."""

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
        budget = ADDED if elements.device.type == "cpu" else ROW_BUDGET
        chunks = torch.split(elements, max(1, budget // reader.terms))
        found = [add_elements(reader.read, chunk, reader.terms, budget)[0] for chunk in chunks]
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


# ---- compiled ----


class ZivProgress(ctypes.Structure):
    """`progress` of exact.h: state that threads share, and their counters."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("next", "undecided", "twice", "wrong", "nanoseconds", "logged")),
        *((name, ctypes.c_int64) for name in ("precision", "grid", "room")),
        ("limit", ctypes.c_double),
        ("near", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
    ]

    def add_to(self, counts: Counts, threads: int) -> None:
        """Adds the counters of a run on `threads` threads."""
        counts.undecided += self.undecided
        counts.logged += self.logged
        counts.undecided_twice += self.twice
        counts.double_rounded += self.wrong
        counts.seconds_resolving += self.nanoseconds / 1e9 / threads


_NEAR_TIE: Final = np.dtype([("place", np.int64), ("c", np.float64), ("e", np.float64)])
"""`near_tie` of exact.h."""
NEAR_ROOM: Final = 1 << 12
"""The initial room for near ties, in addition to one for every 16 elements."""


def run_kernel(
    compute: Callable[["ZivProgress"], bool],
    out: Tensor,
    precision: int,
    terms: int,
    near: Collector | None,
) -> ZivProgress:
    """Fills `out` by calling `compute`, which returns False if memory ran out; returns the counters.

    `terms`: the number of terms of an element, by the instruction's definition. Near ties go to `near`, if it is given.
    """
    if near is None:
        progress = ZivProgress(precision=precision, result=out.data_ptr())
        if not compute(progress):
            raise MemoryError(f"no memory to compute {tuple(out.shape)}")
        return progress
    grid = max(1, (terms - 1).bit_length()) if near.grid else 0
    room = out.numel() if near.limit > 1 else min(out.numel(), NEAR_ROOM + out.numel() // 16)
    while True:
        held = np.empty(room, dtype=_NEAR_TIE)
        progress = ZivProgress(
            precision=precision, grid=grid, room=room, limit=near.limit, near=held.ctypes.data,
            result=out.data_ptr(),
        )  # fmt: skip
        if not compute(progress):
            raise MemoryError(f"no memory to compute {tuple(out.shape)}")
        if progress.logged <= room:
            found = held[: progress.logged]
            near.add(found["place"].copy(), found["c"].copy(), found["e"].copy())
            return progress
        room = progress.logged  # the second run finds the same near ties
