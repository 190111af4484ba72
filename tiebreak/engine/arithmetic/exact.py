"""Exact sums of single elements as integers times powers of two: what auditors and referees compare with.

The terms are FP64 numbers below 2^E, K <= 2^k of them. With S = 1.5 * 2^(E+k), h_i = fl(fl(p_i + S) - S) are multiples
of 2^(E+k-52) that add exactly in any order (`tiebreak.engine.arithmetic.ziv`), and what remains, p_i - h_i, is exact
and below 2^(E+k-52). That is repeated until nothing remains; the exact sum is that of the few sums found.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.exact_few import Integers
from tiebreak.engine.arithmetic.views import Dim, coalesce, offsets, read_rows
from tiebreak.protocol.program.isa import Instruction, Opcode, ScatterParams
from tiebreak.protocol.program.rounding import sum_kind

ROW_BUDGET: Final = 1 << 20
"""Terms read at once."""
_UNIT: Final = 400
"""Terms are multiples of 2^-298; what is found of them is counted in 2^-400."""

Exact = tuple[int, int] | None
"""(n, e) of the exact sum n * 2^e; None where a term is not finite."""


@dataclass(frozen=True)
class _Terms:
    """Reads the terms of single elements, numbered row-major over the result."""

    instruction: Instruction
    operands: Sequence[Tensor]

    @property
    def count(self) -> int:
        """Terms of an element, K."""
        return prod(self.instruction.reduction)

    @cached_property
    def _dims(self) -> tuple[list[Dim], list[Dim]]:
        i, rank = self.instruction, len(self.instruction.shape)
        strides = [access.strides for access in i.operands]
        # Also along what the index must match, which neighbours may share with other dims.
        extra = [i.params.match] if isinstance(i.params, ScatterParams) else []
        output = coalesce(i.shape, [*(s[:rank] for s in strides), *extra])
        return output, coalesce(i.reduction, [s[rank:] for s in strides])

    def read(self, elements: Tensor, begin: int, end: int) -> Tensor:
        """Terms begin ... end - 1 of some elements, FP64 (U, end - begin)."""
        output, summed = self._dims
        sizes = [d.size for d in output]
        rows = []
        for o, access in enumerate(self.instruction.operands):
            starts = offsets(elements, sizes, [d.strides[o] for d in output], access.offset)
            steps = [d.strides[o] for d in summed]
            rows.append(read_rows(self.operands[o], starts, [d.size for d in summed], steps, begin, end))
        if self.instruction.opcode == Opcode.SCATTER_SUM:
            wanted = offsets(elements, sizes, [d.strides[2] for d in output], 0)
            return torch.where(rows[1] == wanted[:, None], rows[0].to(torch.float64), 0.0)
        found = rows[0].to(torch.float64)
        return found if len(rows) == 1 else found * rows[1].to(torch.float64)

    def pieces(self, elements: Tensor) -> Iterator[Tensor]:
        """All terms of some elements, piece by piece."""
        for begin in range(0, self.count, ROW_BUDGET):
            yield self.read(elements, begin, min(begin + ROW_BUDGET, self.count))


def exact_sums(instruction: Instruction, operands: Sequence[Tensor], elements: Sequence[int] | Integers) -> list[Exact]:
    """The exact sums of some elements (row-major numbers) of an f32 `reduce` sum or a `scatter_sum`.

    `operands`: the whole tensor that each operand reads, in the operands' order, as `Arithmetic.execute` takes them.
    """
    if sum_kind(instruction) is None:
        raise ValueError(f"expected an f32 sum, got {instruction.opcode.name} {instruction.function}")
    terms = _Terms(instruction, operands)
    numbers = torch.from_numpy(np.array(elements, dtype=np.int64)).to(operands[0].device)
    found: list[Exact] = []
    for chunk in torch.split(numbers, max(1, ROW_BUDGET // terms.count)):
        found += _sums(terms, chunk)
    return found


def _sums(terms: _Terms, elements: Tensor) -> list[Exact]:
    pieces = [terms.read(elements, 0, terms.count)] if terms.count <= ROW_BUDGET else None
    peak = torch.stack([piece.abs().amax(1) for piece in pieces or terms.pieces(elements)]).amax(0)
    finite = peak.isfinite()
    peak = torch.where(finite, peak, 1.0).clamp_min_(2.0**-298)
    width = max(1, (terms.count - 1).bit_length())
    first = (peak.view(torch.int64) >> 52) - 1022 + width
    levels: list[Tensor] = []
    for piece in pieces or terms.pieces(elements):
        _add_levels(torch.where(finite[:, None], piece, 0.0), first, width, levels)
    totals = [0] * len(elements)
    for level in levels:
        for at, value in enumerate(level.tolist()):
            if value:
                numerator, denominator = value.as_integer_ratio()
                totals[at] += (numerator << _UNIT) // denominator
    return [(n, -_UNIT) if usable else None for n, usable in zip(totals, finite.tolist(), strict=True)]


def _add_levels(rest: Tensor, first: Tensor, width: int, levels: list[Tensor]) -> None:
    """Adds the sums of the parts of some terms to those of each level, each below the one before."""
    exponent, level = first, 0
    while bool(rest.any()):
        shift = ((exponent + 1023 << 52) | (1 << 51)).view(torch.float64)[:, None]
        high = (rest + shift).sub_(shift)
        rest = rest - high
        if level == len(levels):
            levels.append(torch.zeros_like(first, dtype=torch.float64))
        levels[level] += high.sum(1)
        exponent, level = exponent + (width - 52), level + 1
