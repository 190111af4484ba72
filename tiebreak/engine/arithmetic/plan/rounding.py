"""Rounds FP64 to f32 numbers of b bits (1 sign, 8 exponent, b - 9 fraction bits): to nearest, ties to even.

A normal result keeps b - 9 of the 52 fraction bits. Adding half of the last kept bit's weight, less one unit unless
that bit is set, and truncating the rest rounds the magnitude, including a carry into the exponent; 2^128 becomes
infinity, as in FP32. Below 2^-126 the spacing is fixed, 2^(-126-(b-9)): adding and subtracting 1.5 * 2^52 times the
spacing rounds to it, except for the sign of a zero. Infinities stay as they are. A NaN is handled separately, because
its payload might carry into the sign.
"""

from typing import Final

import torch
from torch import Tensor

from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION

_LEAST_NORMAL: Final = 2.0**-126
_EXPONENT_MASK: Final = 0x7FF << 52


class Round:
    """`round(x)`: rounds FP64 numbers of any shape and device to a new f32 tensor of some precision."""

    def __init__(self, precision: int = MAX_PRECISION) -> None:
        if not MIN_PRECISION <= precision <= MAX_PRECISION:
            raise ValueError(f"expected a precision of {MIN_PRECISION} to {MAX_PRECISION} bits, got {precision}")
        self.precision = precision

    def __call__(self, x: Tensor, memory_format: torch.memory_format = torch.preserve_format) -> Tensor:
        """Rounds; a zero result keeps its sign."""
        if self.precision == MAX_PRECISION:
            return x.to(torch.float32, memory_format=memory_format)
        drop = 61 - self.precision
        bits = x.view(torch.int64)
        kept = (bits >> drop).bitwise_and_(1).add_((1 << (drop - 1)) - 1).add_(bits)
        normal = kept.bitwise_and_(-1 << drop).view(torch.float64)
        shift = 1.5 * 2.0 ** (-65 - self.precision)
        small = (x + shift).sub_(shift).copysign_(x)
        rounded = torch.where(x.abs() < _LEAST_NORMAL, small, normal)
        return torch.where(x.isnan(), x, rounded).to(torch.float32, memory_format=memory_format)

    def gaps(self, c: Tensor) -> Tensor:
        """The gap between the two neighbours, of this precision, around each finite FP64 number."""
        power = (c.contiguous().view(torch.int64) & _EXPONENT_MASK).view(torch.float64)
        return power.clamp_min_(_LEAST_NORMAL).mul_(2.0 ** (9 - self.precision))
