"""The ways in which kernels read the operands of a product, and copies of those that they would read slowly.

Convolutions are read through tables of places, where few numbers of a row of an image lie side by side, anywhere. So if
a large product would read both operands number by number, they are copied first, with one dim of the terms innermost,
its lanes: channels, or the images of a batch. Lanes come last in the order of the terms, which is free. A multiple of 4
lanes makes four neighbours 16 bytes at a multiple of 16 bytes.

The other dims become two progressions: points, by steps that are shorter than a lane's, such as pixels and the taps of
a filter, which overlap; and lines. A stride becomes a number of points or of lines.
"""

from collections.abc import Sequence
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
"""The least number of multiplications of a product whose operands are copied."""
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
    """A copy of an operand by lines, points and lanes: how many there are, and their steps from the first place."""

    access: Access
    """The way in which the copy is read in place of the operand."""
    reach: tuple[int, int]
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
        first, reach = access.offset + low + least, access.extent((*sizes,))
        return cls(own, reach, first, (lines, points, lanes), (line, point, lane))

    def make(self, x: Any) -> Tensor:
        """The copy of an operand's numbers."""
        check_reach(x, self.reach)
        (lines, points, lanes), block = self.counts, OPTIONS["BLOCK"]
        made = torch.empty(self.counts, dtype=x.dtype, device=x.device)
        programs = lines * ceil(points / block) * ceil(lanes / block)
        launch(kernels("products").copy_lanes, programs, x, made, self.first, points, lanes, *self.steps, **OPTIONS)
        return made


def _places(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, int, int]:
    """The first place, the step and the count of a progression that has all places of a box."""
    step, reach = gcd(*strides) or 1, [stride * (size - 1) for size, stride in zip(sizes, strides, strict=True)]
    return sum(min(0, each) for each in reach), step, 1 + sum(map(abs, reach)) // step


def arrange(i: Instruction, tables: ReduceTables) -> tuple[ReduceTables, dict[int, Copy]]:
    """The tables of a sum, given those of its operands, and copies by operand, if both are slow and that pays."""
    rank, sizes, most = len(i.shape), i.index_space, min(MOST, tables.multiplications // PAYS)
    large = tables.out and tables.multiplications >= LEAST and all(map(_is_slow, tables.operands))
    found, copies = None, dict[int, Copy]()
    for term in (d for d in range(rank, len(sizes)) if large and sizes[d] % 4 == 0):
        dims = sorted(range(len(sizes)), key=term.__eq__)  # with this one last
        operands = [replace(a, strides=tuple(a.strides[d] for d in dims)) for a in i.operands]
        turned = replace(i, reduction=tuple(sizes[d] for d in dims[rank:]), operands=tuple(operands))
        slow = [o.index for o in own.operands if _is_slow(o)] if (own := plan_tables(turned)) else []
        made = {at: Copy.of(operands[at], turned.index_space) for at in slow}
        if (numbers := sum(prod(copy.counts) for copy in made.values())) <= most:
            read = (made[at].access if at in made else a for at, a in enumerate(operands))
            most, found, copies = numbers - 1, plan_tables(replace(turned, operands=tuple(read))), made
    return (tables, {}) if found is None else (found, copies)


def _is_slow(o: Operand) -> bool:
    """Whether an operand is read from tables number by number."""
    layout = OperandLayout.of(o.batch, o.own, o.k)
    return layout.step is None and layout.unit == 1
