"""`reduce` sums: plain sums and sums of products, correctly rounded (the bound: `tiebreak.engine.arithmetic.ziv`).

`pure` computes them in torch on any device; `compiled` runs reduce.c on CPUs, `fused` Triton kernels on GPUs. All give
the same bytes. reduce.c also finds the greatest of some terms, and where it is.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.buffers import Buffers
from tiebreak.engine.arithmetic.exact import Integers
from tiebreak.engine.arithmetic.reduce.compiled import (
    ReduceTables,
    build,
    leave_sums,
    plan_tables,
    run_extreme,
    run_tables,
)
from tiebreak.engine.arithmetic.reduce.fused import leave_fused, run_extreme_fused, run_fused, runs_on
from tiebreak.engine.arithmetic.reduce.pure import PureSums, ReducePart, plan_parts
from tiebreak.engine.arithmetic.rounding import Round
from tiebreak.engine.arithmetic.stats import Counts
from tiebreak.engine.arithmetic.views import Dim, coalesce
from tiebreak.engine.arithmetic.ziv import Collector
from tiebreak.protocol.program.isa import Instruction, ReduceFunction

__all__ = [
    "Partial", "SumPlan", "SumRunner", "build", "plan_extreme", "plan_sum", "run_extreme", "run_extreme_fused",
    "runs_on",
]  # fmt: skip


@dataclass(frozen=True)
class SumPlan:
    """The plan by which one instruction is computed."""

    kind: str
    instruction: Instruction
    wide: tuple[int, ...]
    """The shape of the result in the coalesced dims to which `parts` refer."""
    parts: tuple[ReducePart, ...]
    swapped: bool
    """Whether torch swaps the operands so that M <= N: BLAS is several times faster for long rows of the result."""
    tables: ReduceTables | None
    """The plan of the compiled kernels."""

    @cached_property
    def source(self) -> Integers | None:
        """The number of the kernel's sum for each element of the result; None if they are in order."""
        if self.tables is None or not self.tables.out:
            return None
        batch, m, n = self.tables.out
        places = (batch[:, None, None] + m[:, None] + n).reshape(-1)
        order = np.empty_like(places)
        order[places] = np.arange(len(places))
        return None if np.array_equal(order, places) and bool((np.diff(places) == 1).all()) else order

    def fused(self, device: torch.device) -> ReduceTables | None:
        """The tables, if the Triton kernels compute this sum on the device."""
        return self.tables if self.tables is not None and runs_on(device, self.tables.terms) else None

    def library(self, device: torch.device) -> ctypes.CDLL | None:
        """The compiled kernel, if it computes this sum on the device; otherwise torch does."""
        return build().library if self.tables is not None and device.type == "cpu" else None

    def norms(self, device: torch.device) -> int:
        """The number of norms of rows and columns in a `Partial`; 0 if each element has a sum of absolute terms."""
        tables = self.tables
        if tables is not None and (self.fused(device) is not None or self.library(device) is not None):
            batch, m, n = map(len, tables.out) if tables.out else (0, 0, 0)
            return batch * (m + n)
        (part,) = self.parts
        batch, m, n = part.result_shape
        return batch * (m + n) if part.groups.m or part.groups.n else 0


FEW_TERMS: Final = 16
"""The most terms of a max that reduce.c computes, as torch is faster with more. It computes every argmax."""


def plan_extreme(instruction: Instruction, *, fused: bool = False) -> ReduceTables | None:
    """The plan of reduce.c, or of the Triton kernel, for a max or argmax; None if torch computes it."""
    few = prod(instruction.reduction) <= FEW_TERMS or instruction.function == ReduceFunction.ARGMAX
    return plan_tables(instruction, *_dims(instruction)) if few or fused else None


def _dims(instruction: Instruction) -> tuple[list[Dim], list[Dim]]:
    """The coalesced dims of the output and of the reduction."""
    rank, accesses = len(instruction.shape), instruction.operands
    return (
        coalesce(instruction.shape, [a.strides[:rank] for a in accesses]),
        coalesce(instruction.reduction, [a.strides[rank:] for a in accesses]),
    )


def plan_sum(instruction: Instruction, limit: int) -> SumPlan:
    """The plan of a `reduce` sum (f32) that holds at most about `limit` elements of each FP64 tensor."""
    accesses, (output, reduction) = instruction.operands, _dims(instruction)
    tables = plan_tables(instruction, output, reduction)
    own = [prod(d.size for d in output if d.strides[o]) for o in range(len(accesses))]
    swapped = len(own) == 2 and own[0] > own[1]
    if swapped:
        accesses = accesses[::-1]
        output, reduction = ([Dim(d.size, d.strides[::-1]) for d in dims] for dims in (output, reduction))
    parts = plan_parts(output, reduction, [a.offset for a in accesses], limit)
    kind = "reduce.sum.plain" if len(own) == 1 else "reduce.sum.products"
    return SumPlan(kind, instruction, tuple(d.size for d in output), tuple(parts), swapped, tables)


@dataclass(frozen=True)
class Partial:
    """FP64 sums of all elements of a result over some of their terms; those over the others are added by the caller."""

    sums: Tensor
    """(Bt, M, N), or the result's elements in order."""
    sizes: tuple[Tensor, ...]
    """Sums of absolute terms, like `sums`; or sums of squares, (Bt, M) and (Bt, N), of a product's rows and columns."""
    roundings: int
    """The number of roundings that a term passes through."""
    source: Integers | None
    """The number of the sum for each of the result's elements; None if they are in order."""

    def in_order(self, sums: Tensor) -> Tensor:
        """Numbers like `sums` for the result's elements in order, 1-d."""
        flat = sums.reshape(-1)
        return flat if self.source is None else flat[torch.from_numpy(self.source).to(flat.device)]

    def errors(self, rows: Tensor, columns: Tensor, begin: int, end: int) -> Tensor:
        """Products of a row's number (Bt, M) and a column's (Bt, N), for elements begin ... end - 1 of the result."""
        (batch, m), n = rows.shape, columns.shape[1]
        if self.source is None and batch == 1 and begin % n == 0 and end % n == 0:
            return (rows.view(m, 1)[begin // n : end // n] * columns).view(-1)
        at = torch.arange(begin, end, device=rows.device)
        if self.source is not None:
            at = torch.from_numpy(self.source[begin:end]).to(rows.device)
        row = at.div(n, rounding_mode="floor")
        return rows.view(-1)[row] * columns.view(-1)[row.div(m, rounding_mode="floor") * n + at.remainder(n)]


class SumRunner:
    """Computes planned sums; `buffers` is the source of memory for the compiled kernel's results.

    With `shuffled`, the terms of every reduction are taken in a random order drawn from it.
    """

    def __init__(self, shuffled: torch.Generator | None, buffers: Buffers | None, rounded: Round) -> None:
        self.buffers, self.pure = buffers, PureSums(shuffled, rounded)

    def run(self, plan: SumPlan, operands: Sequence[Tensor], counts: Counts, near: Collector | None = None) -> Tensor:
        """The result, f32, contiguous, of the instruction's shape.

        `near` collects open elements that are not settled.
        """
        pure, shape = self.pure, plan.instruction.shape
        if (tables := plan.fused(operands[0].device)) is not None:
            found = run_fused(plan.instruction, tables, operands, counts, pure.shuffled, pure.rounded, near)
            if found is not None:
                return found
        elif plan.tables is not None and (library := plan.library(operands[0].device)) is not None:
            if self.buffers is None:
                out = torch.empty(shape, dtype=torch.float32)
            else:
                out = self.buffers.empty(shape, torch.float32)
            run_tables(library, plan.tables, operands, out, counts, pure.shuffled, pure.rounded.precision, near)
            return out
        read = operands[::-1] if plan.swapped else operands
        return pure.run(plan.parts, plan.wide, read, counts, near).view(shape)

    def partial(self, plan: SumPlan, operands: Sequence[Tensor]) -> Partial:
        """The FP64 sums that `run` would round."""
        pure = self.pure
        if (tables := plan.fused(operands[0].device)) is not None:
            (sums, *sizes), roundings = leave_fused(tables, operands, pure.shuffled)
            return Partial(sums, tuple(sizes), roundings, plan.source)
        if plan.tables is not None and (library := plan.library(operands[0].device)) is not None:
            (sums, *sizes), roundings = leave_sums(library, plan.tables, operands, pure.shuffled)
            return Partial(sums, tuple(sizes), roundings, plan.source)
        (part,) = plan.parts
        (sums, *sizes), roundings = pure.sums(part, operands[::-1] if plan.swapped else operands)
        numbers, which = part.numbers(torch.arange(sums.numel()), plan.wide)
        source = np.empty(len(numbers), dtype=np.int64)
        source[numbers] = which
        return Partial(sums, tuple(sizes), roundings, source)
