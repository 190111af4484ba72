"""`shuffle` on GPUs: one launch of a Triton kernel (`kernels/random.py`) in place of hundreds of calls of torch."""

from math import ceil
from typing import Any, Final

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.gpu.launching import kernels, launch
from tiebreak.engine.arithmetic.plain.random import operands_of
from tiebreak.engine.arithmetic.plan.options import Operands
from tiebreak.protocol.numbers.philox import half_width
from tiebreak.protocol.program.isa import Instruction, ShuffleParams

OPTIONS: Final[dict[str, Any]] = {"BLOCK": 256, "num_warps": 4, "enable_fp_fusion": False}
"""Lanes of a program of the kernels, and the compiler's options."""


def shuffle(instruction: Instruction, operands: Operands) -> Tensor:
    """The i64 result of a `shuffle` instruction."""
    params = instruction.params
    assert isinstance(params, ShuffleParams)
    index, epoch, seed = operands_of(instruction, operands)
    out = torch.empty_like(index, memory_format=torch.contiguous_format)
    launch(
        kernels("random").permute, ceil(out.numel() / OPTIONS["BLOCK"]), out, index.contiguous(), epoch.contiguous(),
        seed, _signed(params.stream), params.n, half_width(params.n), out.numel(), **OPTIONS,
    )  # fmt: skip
    return out.view(instruction.shape)


def _signed(word: int) -> int:
    """A word of 32 bits as i32, so that a kernel's argument has one type."""
    return word - (word >> 31 << 32)
