"""Ziv's test in torch, on any device, and exact sums in fixed point for the elements that it leaves open.

`tiebreak.engine.arithmetic.plan.ziv` has the bound and near ties, with their proofs.

**Digits.** Terms are FP64 numbers: exact products of two f32, or f32 themselves, which are multiples of 2^-298 below
2^256. A sum of terms is kept as *digits*, signed 64-bit integers with room for carries (Neal's small superaccumulator,
2015, for many elements at once).

**Terms.** With S = 1.5 * 2^(52 + g), fl(fl(p + S) - S) is p rounded to a multiple of 2^g, for |p| < 2^(51 + g), and the
remainder is exact and at most 2^(g - 1). As g goes down a fixed grid of 32 bits, each step moves the highest digit of
the remainders into the sums; the loop skips steps without remainders.

**Rounding.** What does not fit a signed digit is carried. Digits are then read from the highest down, 16 bits at a
time, until they make an integer of 37 to 53 bits. What is below it adds up to less than 0.51, with the sign of the next
digit that is not zero. f32 numbers and the middles between them have 25 bits, so half of that sign stands for it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plan.options import Counts, Round
from tiebreak.engine.arithmetic.plan.views import Dim, Integers, coalesce, offsets, read_rows
from tiebreak.engine.arithmetic.plan.ziv import Collector
from tiebreak.protocol.program.isa import Instruction, Opcode, ScatterParams
from tiebreak.protocol.program.rounding import sum_kind

ROW_BUDGET: Final = 1 << 18
"""The number of terms read at once, which stay in a CPU's cache."""
LEAST: Final = -298
"""Terms are multiples of 2^LEAST."""
_BITS: Final = 32
_HALF: Final = 1 << 15
_DIGITS: Final = 20
"""Enough for 506 + 48 bits, 2^31 terms and a sign."""

Exact = tuple[int, int] | None
"""(n, e) of the exact sum n * 2^e; None if a term is not finite."""


class Digits:
    """Exact sums of some elements, as i64 digits (digits, U) of 32 bits, the lowest of weight 2^LEAST."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    @classmethod
    def zeros(cls, elements: int, device: torch.device) -> "Digits":
        """Sums without terms."""
        return cls(torch.zeros((_DIGITS, elements), dtype=torch.int64, device=device))

    def add(self, terms: Tensor) -> None:
        """Adds finite terms (U, K), K at most 2^20."""
        rest, peak = terms, float(terms.abs().max()) if terms.numel() else 0.0
        while peak:
            digit = (int(np.frexp(peak)[1]) - 1 - LEAST) // _BITS
            shift = 1.5 * 2.0 ** (52 + LEAST + _BITS * digit)
            high = (rest + shift).sub_(shift)
            self.values[digit] += (high.sum(1) * 2.0 ** -(LEAST + _BITS * digit)).to(torch.int64)
            rest = rest - high
            peak = float(rest.abs().max())

    def packed(self) -> Tensor:
        """The same numbers in digits of i32, which are unique."""
        values = self.values.clone()
        while bool((up := (values + (1 << (_BITS - 1))).bitwise_right_shift_(_BITS)).any()):
            values -= up << _BITS
            values[1:] += up[:-1]
        return values.to(torch.int32)

    def rounded(self, rounded: Round) -> Tensor:
        """RN of each sum, f32 (U,); zero is +0."""
        digits = self.packed().to(torch.int64)
        number = torch.zeros(digits.shape[1:], dtype=torch.float64, device=digits.device)
        below, unit = torch.zeros_like(number), torch.zeros_like(digits[0])
        used = digits.any(1).nonzero().view(-1).tolist()
        for at in range(2 * (used[-1] if used else -1) + 1, 2 * (used[0] if used else 0) - 1, -1):
            low = (digits[at // 2] + _HALF).bitwise_and_(2 * _HALF - 1).sub_(_HALF)
            digit = low if at % 2 == 0 else (digits[at // 2] - low).bitwise_right_shift_(16)
            short = number.abs() < 2.0**36
            below = torch.where(short | (below != 0), below, digit.sign().to(torch.float64))
            number = torch.where(short, number * 2.0**16 + digit, number)
            unit = torch.where(short, at, unit)
        scale = (unit.mul_(16).add_(LEAST + 1023)).bitwise_left_shift_(52).view(torch.float64)
        return rounded(number.add_(below, alpha=0.5).mul_(scale)).add_(0.0)

    def integers(self) -> list[int]:
        """The sums in units of 2^LEAST."""
        return [sum(digit << (_BITS * at) for at, digit in enumerate(row)) for row in self.values.T.tolist()]


# ---- single elements of an instruction ----


def pieces(reader: "TermReader", elements: Tensor) -> Iterator[Tensor]:
    """All terms of some elements, about `ROW_BUDGET` at once."""
    step = max(1, ROW_BUDGET // max(1, len(elements)))
    for begin in range(0, reader.terms, step):
        yield reader.read(elements, begin, min(begin + step, reader.terms))


@dataclass(frozen=True)
class ElementReader:
    """Reads the exact terms of single elements again, by their row-major numbers in the result."""

    instruction: Instruction
    operands: Sequence[Tensor]

    @property
    def terms(self) -> int:
        """The number of terms of an element, K."""
        return prod(self.instruction.reduction)

    @property
    def count(self) -> int:
        """The number of terms that an element adds."""
        return self.terms

    @cached_property
    def _dims(self) -> tuple[list[Dim], list[Dim]]:
        i, rank = self.instruction, len(self.instruction.shape)
        strides = [access.strides for access in i.operands]
        # The match strides count as another operand, so that dims are merged only where these allow it too.
        extra = [i.params.match] if isinstance(i.params, ScatterParams) else []
        output = coalesce(i.shape, [*(s[:rank] for s in strides), *extra])
        return output, coalesce(i.reduction, [s[rank:] for s in strides])

    def read(self, elements: Tensor, begin: int, end: int) -> Tensor:
        """Terms begin ... end - 1 of some elements, FP64 (U, end - begin)."""
        i, (output, summed), rows = self.instruction, self._dims, list[Tensor]()
        sizes, terms = [d.size for d in output], [d.size for d in summed]
        for o, (base, access) in enumerate(zip(self.operands, i.operands, strict=True)):
            places = offsets(elements, sizes, [d.strides[o] for d in output], access.offset)
            rows.append(read_rows(base, places, terms, [d.strides[o] for d in summed], begin, end))
        if i.opcode == Opcode.SCATTER_SUM:
            wanted = offsets(elements, sizes, [d.strides[2] for d in output], 0)
            return torch.where(rows[1] == wanted[:, None], rows[0].to(torch.float64), 0.0)
        found = rows[0].to(torch.float64)
        return found if len(rows) == 1 else found * rows[1].to(torch.float64)


@dataclass(frozen=True)
class KeyReader:
    """Reads the exact terms of single sums of a `scatter_sum` again, numbered row-major over (occurring keys, row)."""

    rows: Tensor
    """f32 (sources, row elements), sorted by key."""
    first: Tensor
    """i64 (keys,): the first source of each key."""
    sources: Tensor
    """i64 (keys,): how many sources each key has."""
    terms: int
    """The length to which the lists of terms are padded: the most sources of a key."""
    count: int
    """K: the number of terms of an element by the instruction's definition."""

    def read(self, elements: Tensor, begin: int, end: int) -> Tensor:
        width = self.rows.shape[1]
        key = elements.div(width, rounding_mode="floor")
        position = torch.arange(begin, end, dtype=torch.int64, device=elements.device)
        inside = position < self.sources[key][:, None]
        place = torch.where(inside, self.first[key][:, None] + position, 0)
        return torch.where(inside, self.rows[place, (elements - key * width)[:, None]].to(torch.float64), 0.0)


TermReader = ElementReader | KeyReader
"""Reads terms begin ... end - 1 of some elements, exactly: i64 numbers, U of them -> FP64 (U, end - begin)."""


def add_elements(reader: TermReader, elements: Tensor) -> tuple[Digits, Tensor]:
    """The exact sums of some elements, and a mask of those with only finite terms."""
    total, finite = Digits.zeros(len(elements), elements.device), torch.ones_like(elements, dtype=torch.bool)
    for piece in pieces(reader, elements):
        usable = piece.isfinite()
        if not bool(usable.all()):
            finite &= usable.all(1)
            piece = torch.where(usable, piece, 0.0)
        total.add(piece)
    return total, finite


def exact_sums(instruction: Instruction, operands: Sequence[Tensor], elements: Sequence[int] | Integers) -> list[Exact]:
    """The exact sums of some elements (row-major numbers) of an f32 `reduce` sum or a `scatter_sum`.

    `operands`: for each operand the whole tensor that it reads, in order, as for `Arithmetic.execute`.
    """
    if sum_kind(instruction) is None:
        raise ValueError(f"expected an f32 sum, got {instruction.opcode.name} {instruction.function}")
    numbers = torch.from_numpy(np.array(elements, dtype=np.int64)).to(operands[0].device)
    total, finite = exact_digits(instruction, operands, numbers)
    return [(n, LEAST) if usable else None for n, usable in zip(total.integers(), finite.tolist(), strict=True)]


def exact_digits(instruction: Instruction, operands: Sequence[Tensor], elements: Tensor) -> tuple[Digits, Tensor]:
    """The exact sums of some elements (i64 row-major numbers), and a mask of those with only finite terms."""
    reader = ElementReader(instruction, operands)
    found = [add_elements(reader, chunk) for chunk in torch.split(elements, max(1, ROW_BUDGET // reader.terms))]
    return Digits(torch.cat([total.values for total, _ in found], 1)), torch.cat([finite for _, finite in found])


def decide(c: Tensor, e: Tensor, rounded: Round) -> tuple[Tensor, Tensor]:
    """Ziv's test of FP64 values within +-e: (f32 results, contiguous; mask of the undecided). Any shape."""
    high = rounded(torch.add(c, e), torch.contiguous_format)
    undecided = rounded(torch.sub(c, e)).ne(high)  # true for NaN
    return high.add_(0.0), undecided  # -0 + 0 = +0


def settle(
    c: Tensor, e: Tensor, elements: Tensor, reader: TermReader, rounded: Round, counts: Counts, near: Collector | None,
    *, numbers: Tensor | None = None, exactly: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """The exact results of open elements, f32, or RN(c) of those that are reported to `near`; all tensors 1-d.

    Elements with an error that is not finite have a term that is not, and are NaN. `elements`: their numbers for the
    reader. `numbers`: those in the result, if they are others. `exactly` computes the exact results of some of them
    (their positions in `elements`) in place of the reader.
    """
    counts.undecided += len(c)
    plain = rounded(c).add_(0.0)
    values = torch.where(e.isfinite(), plain, float("nan"))
    open_ = e.isfinite()
    if near is not None:
        logged = (e <= rounded.gaps(c).mul_(near.limit)) & c.isfinite()  # false for NaN
        if near.grid:
            at = logged.nonzero().view(-1)
            logged[at[on_grid(reader, elements[at])]] = False
        places = (elements if numbers is None else numbers)[logged].cpu().numpy()
        near.add(places, c[logged].cpu().numpy(), e[logged].cpu().numpy())
        counts.logged += len(places)
        values, open_ = torch.where(logged, plain, values), open_ & ~logged
    at = open_.nonzero().view(-1)
    if len(at):
        found = exactly(at) if exactly is not None else _settled(elements[at], reader, rounded)
        counts.undecided_twice += len(at)
        counts.double_rounded += int(plain[at].ne(found).sum())
        values[at] = found
    return values


def _settled(elements: Tensor, reader: TermReader, rounded: Round) -> Tensor:
    chunks = torch.split(elements, max(1, ROW_BUDGET // reader.terms))
    return torch.cat([add_elements(reader, chunk)[0].rounded(rounded) for chunk in chunks])


def on_grid(reader: TermReader, elements: Tensor) -> Tensor:
    """The elements whose terms add exactly in any order: all are multiples of a number that FP64 can count them in."""
    found = [torch.zeros(0, dtype=torch.bool, device=elements.device)]
    for chunk in torch.split(elements, max(1, ROW_BUDGET // reader.terms)):
        # The least exponent E with |terms| < 2^E, and S = 1.5 * 2^(E + k) for 2^k terms by definition.
        peak = torch.stack([terms.abs().amax(1) for terms in pieces(reader, chunk)]).amax(0)
        above = (peak.clamp_min_(2.0**LEAST).view(torch.int64) >> 52) - 1022 + max(1, (reader.count - 1).bit_length())
        shift = ((above + 1023 << 52) | (1 << 51)).view(torch.float64)[:, None]
        fits = [(terms + shift).sub_(shift).eq(terms).all(1) for terms in pieces(reader, chunk)]
        found.append(torch.stack(fits).all(0))
    return torch.cat(found)
