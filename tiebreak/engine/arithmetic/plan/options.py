"""The options of an `Arithmetic`, which every back-end reads, and what a back-end prepares."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plan.rounding import Round
from tiebreak.engine.arithmetic.plan.ziv import Collector, Logging
from tiebreak.protocol.numbers.float32 import MIN_PRECISION
from tiebreak.protocol.program.isa import Instruction

Operands = Sequence[Tensor]
Prepared = Callable[[Operands, int, Collector | None], Tensor]
"""A prepared instruction: (operands, step, collector of a logged sum's near ties) -> result."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of an `Arithmetic`."""

    device: torch.device
    shuffled: torch.Generator | None
    """The source of random orders in which the terms of every sum are taken, by kernels long ones in pieces; None for
    their own order. No order changes a bit, which audits use it to show."""
    precision: int
    """The number of bits to which sums and transcendentals are rounded."""
    logging: Logging | None
    """The rules for finding near ties; None under policy `exact`."""
    fp64: int
    """About how many elements one FP64 tensor of torch's has: on a CPU it stays in the cache, elsewhere it gives a
    device work."""
    looks: bool
    """Whether to look at values in order to leave out work costs less than the work."""
    compiled: bool
    """Whether compiled kernels may compute; without them it is torch alone."""
    by_integers: bool
    """Whether integers compute all matrix products that they can, faster or not; else the environment decides."""

    def rounding(self, instruction: Instruction) -> Round:
        """Rounds the sums of an instruction: to bfloat16, or to the job's precision."""
        return Round(MIN_PRECISION if instruction.is_bf16_sum else self.precision)
