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
class Pieces:
    """The amounts that torch computes at once: on a CPU they stay in its cache, elsewhere they give a device work."""

    fp64: int
    """The most elements of one FP64 tensor."""
    functions: int
    """The arguments of a transcendental function."""
    tested: int
    """The elements that Ziv's test takes."""
    added: int
    """The terms that are added exactly."""
    blocks: int
    """The most Philox blocks, of four u32 words each, drawn at once."""
    on_host: bool
    """Whether the host computes, so that numpy can, and memory that is used again saves page faults."""
    looks: bool
    """Whether to look at values in order to leave out work costs less than the work."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of an `Arithmetic`."""

    device: torch.device
    shuffled: torch.Generator | None
    """The source of random orders in which the terms of every sum are taken, long ones in pieces; None for their own
    order. No order changes a bit, which audits use it to show."""
    precision: int
    """The number of bits to which sums and transcendentals are rounded."""
    logging: Logging | None
    """The rules for finding near ties; None under policy `exact`."""
    pieces: Pieces

    def rounding(self, instruction: Instruction) -> Round:
        """Rounds the sums of an instruction: to bfloat16, or to the job's precision."""
        return Round(MIN_PRECISION if instruction.is_bf16_sum else self.precision)
