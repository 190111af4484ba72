"""`reduce` sums: plain sums and sums of products, correctly rounded (the bound: `tiebreak.engine.arithmetic.ziv`).

`pure` computes them in torch on any device; `compiled` runs reduce.c on CPUs. Both give the same bytes. reduce.c also
finds the greatest of some terms, and where it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.buffers import Buffers
from tiebreak.engine.arithmetic.reduce.compiled import Tables, build, plan_tables, run_extreme, run_tables
from tiebreak.engine.arithmetic.reduce.pure import Part, PureSums, plan_parts
from tiebreak.engine.arithmetic.rounding import Round
from tiebreak.engine.arithmetic.stats import Counts
from tiebreak.engine.arithmetic.views import Dim, coalesce
from tiebreak.engine.arithmetic.ziv import Collector
from tiebreak.protocol.program.isa import Instruction, ReduceFunction

__all__ = ["SumPlan", "SumRunner", "build", "plan_extreme", "plan_sum", "run_extreme"]


@dataclass(frozen=True)
class SumPlan:
    """How one instruction is computed."""

    kind: str
    shape: tuple[int, ...]
    wide: tuple[int, ...]
    """The shape in coalesced dims, of which `parts` are."""
    parts: tuple[Part, ...]
    swapped: bool
    """Whether torch swaps the operands so that M <= N: BLAS is several times faster for long rows of the result."""
    tables: Tables | None
    """The plan of the compiled kernel."""


FEW_TERMS: Final = 16
"""Of up to this many terms reduce.c finds the greatest, of more torch; where it is, reduce.c always finds faster."""


def plan_extreme(instruction: Instruction) -> Tables | None:
    """The plan of reduce.c for a max or argmax; None if torch computes it."""
    few = prod(instruction.reduction) <= FEW_TERMS or instruction.function == ReduceFunction.ARGMAX
    return plan_tables(instruction, *_dims(instruction)) if few else None


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
    return SumPlan(kind, instruction.shape, tuple(d.size for d in output), tuple(parts), swapped, tables)


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
        pure = self.pure
        if plan.tables is not None and operands[0].device.type == "cpu" and (library := build().library) is not None:
            if self.buffers is None:
                out = torch.empty(plan.shape, dtype=torch.float32)
            else:
                out = self.buffers.empty(plan.shape, torch.float32)
            run_tables(library, plan.tables, operands, out, counts, pure.shuffled, pure.rounded.precision, near)
            return out
        read = operands[::-1] if plan.swapped else operands
        return pure.run(plan.parts, plan.wide, read, counts, near).view(plan.shape)
