"""The ways in which kernels read the operands of a product, and copies of those that they would read slowly.

Convolutions are read through tables of places, and there only rows of images lie side by side: a few numbers, which
begin anywhere. So for a large product such an operand is copied, with one dim of the terms innermost, its lanes: the
channels of images and weights, or the images themselves. Terms are taken so that lanes come last, as their order does
not matter. If there are 4 n lanes, any 4 neighbours are 16 bytes at a multiple of 16 bytes.

The other dims become two progressions: points, by steps that are shorter than a lane's, such as pixels and the taps of
a filter, which overlap; and lines. A stride becomes a number of points or of lines.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd, prod
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.gpu.launching import kernels, launch
from tiebreak.engine.arithmetic.plan.sums import Operand, ReduceTables, plan_tables, progression
from tiebreak.engine.arithmetic.plan.views import Integers, check_reach
from tiebreak.protocol.program.isa import Access, Instruction

OPTIONS: Final[dict[str, Any]] = {"BLOCK": 32, "num_warps": 4, "enable_fp_fusion": False}
"""The points and the lanes that a program copies, and the compiler's options."""
PAYS: Final = 256
"""The least number of multiplications for each number that is copied."""
LEAST: Final = 1 << 27
"""The least number of multiplications of a product whose operands are copied: an H100 does them in some 7 us."""
MOST: Final = 1 << 28
"""The most numbers in the copies of a product's operands."""


@dataclass(frozen=True)
class OperandLayout:
    """The way in which `product` reads an operand: terms (`along`) or rows lie side by side.

    `step` is that of the others. It is None if the places of rows and terms come from tables; then each `run`
    of terms or rows, counted from a multiple of `run`, lie side by side.

    `unit` is 4 where all places and counts are such that four neighbours, counted from a multiple of 4, are 16 bytes
    at a multiple of 16 bytes from the operand's first, all inside or all outside, so they are copied at once. Kernels
    compute with the multiples of `unit` that are not above these numbers, and find the others of a run from its first:
    a promise that does not hold gives wrong sums, in the interpreter too.
    """

    along: bool
    step: int | None
    run: int
    unit: int

    @classmethod
    def of(cls, batch: Integers, own: Integers, k: Integers) -> "OperandLayout":
        """The layout of an operand by its tables of batches, rows and terms."""
        row, term = progression(own), progression(k)
        along = term == 1 or len(k) == 1
        if row is not None and term is not None and (along or row == 1 or len(own) == 1):
            step, count = (row, len(k)) if along else (term, len(own))
            return cls(along, step, 1, 1 if step % 4 or count % 4 or (batch % 4).any() else 4)
        along = _run(k) >= _run(own)
        inner, outer = (k, own) if along else (own, k)
        run = _run(inner)
        fours = run == 4 and not any((table % 4).any() for table in (batch, outer, inner[::4]))
        return cls(along, None, run, 4 if fours else 1)


def _run(table: Integers) -> int:
    """The number of neighbours in a table, 4, 2 or 1, that always lie side by side."""
    for run in (4, 2):
        if len(table) % run == 0 and (table.reshape(-1, run) == table[::run, None] + np.arange(run)).all():
            return run
    return 1


@dataclass(frozen=True)
class Copy:
    """A copy of an operand by lines, points and lanes: how many there are, and their steps in the operand."""

    access: Access
    """What reads the copy in place of the operand."""
    reach: tuple[int, int]
    """The least and the greatest place read in the operand."""
    first: int
    counts: tuple[int, int, int]
    steps: tuple[int, int, int]

    @classmethod
    def of(cls, access: Access, sizes: Sequence[int]) -> "Copy":
        """The copy of what is read over an index space, with its last dim innermost."""
        *others, lane = access.strides
        *counts, lanes = sizes
        far, near = ([s if (abs(s) >= abs(lane)) is is_far else 0 for s in others] for is_far in (True, False))
        (low, line, lines), (least, point, points) = (_places(counts, strides) for strides in (far, near))
        read = (lanes * (x // line * points + y // point) for x, y in zip(far, near, strict=True))
        own = Access(access.value, -lanes * (low // line * points + least // point), (*read, 1))
        return cls(
            own, access.extent((*sizes,)), access.offset + low + least, (lines, points, lanes), (line, point, lane)
        )

    @property
    def numel(self) -> int:
        return prod(self.counts)

    def make(self, x: Any) -> Tensor:
        """The copy of an operand's numbers."""
        check_reach(x, self.reach)
        (lines, points, lanes), block = self.counts, OPTIONS["BLOCK"]
        made = torch.empty(self.numel, dtype=x.dtype, device=x.device)
        programs = lines * ceil(points / block) * ceil(lanes / block)
        launch(kernels("products").copy_lanes, programs, x, made, self.first, points, lanes, *self.steps, **OPTIONS)
        return made


def _places(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, int, int]:
    """The first place, the step and the count of a progression that has all places of a box."""
    step, reach = gcd(*strides) or 1, [stride * (size - 1) for size, stride in zip(sizes, strides, strict=True)]
    return sum(min(0, each) for each in reach), step, 1 + sum(map(abs, reach)) // step


def arrange(i: Instruction, tables: ReduceTables) -> tuple[ReduceTables, dict[int, Copy]]:
    """The tables of a sum, given those of its operands, and the fewest copies that make none slow, where these pay.

    Copies stand at the numbers of their operands.
    """
    most, found = min(MOST, tables.multiplications // PAYS), (tables, dict[int, Copy]())
    large = tables.out and tables.multiplications >= LEAST
    for turned in _orders(i) if large and any(map(_is_slow, tables.operands)) else ():
        slow = [o.index for o in _tables(turned).operands if _is_slow(o)]
        copies = {at: Copy.of(turned.operands[at], turned.index_space) for at in slow}
        numbers = sum(copy.numel for copy in copies.values())
        if numbers <= most:
            read = (copies[at].access if at in copies else a for at, a in enumerate(turned.operands))
            most, found = numbers - 1, (_tables(replace(turned, operands=tuple(read))), copies)
    return found


def _tables(i: Instruction) -> ReduceTables:
    tables = plan_tables(i)
    assert tables is not None  # it has tables with its terms in another order
    return tables


def _orders(i: Instruction) -> Iterator[Instruction]:
    """A sum with each of its dims of terms last whose size is a multiple of 4."""
    for term in range(len(i.shape), len(i.index_space)):
        if i.index_space[term] % 4 == 0:
            dims = sorted(range(len(i.index_space)), key=term.__eq__)
            operands = tuple(replace(a, strides=tuple(a.strides[d] for d in dims)) for a in i.operands)
            yield replace(i, reduction=tuple(i.index_space[d] for d in dims[len(i.shape) :]), operands=operands)


def _is_slow(o: Operand) -> bool:
    """Whether an operand is read from tables number by number."""
    layout = OperandLayout.of(o.batch, o.own, o.k)
    return layout.step is None and layout.unit == 1
