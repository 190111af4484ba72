"""FP64 sums and their bounds as workers send them: 6 bytes a sum, 2 bytes a bound.

    low      u32 each   of the sums, the low 32 bits of 2^47 + q, where q is the sum in units of 2^-47 times its bound,
                        rounded to an integer
    high     u16 each   the high 16 bits of the same
    bounds   u16 each   the leading 16 bits of FP64 numbers: sign, exponent, 4 bits of the fraction

All little-endian, one run after the other. A plain sum's bound is greater than the sum of its absolute terms; that of a
product is its row's times its column's, which are greater than their norms.

**The error.** Let a worker's sum be C and its bound N, as they are in FP64, and D = 2^-47 N. N exceeds a size that was
computed with a relative error below 2^-17 by a factor of 1 + 2^-16 at least, so |C| < N, and 48 bits hold q. The sender
computes C / D with four roundings (two reciprocals, their product, that times C), and rounds to an integer. C / D is
below 2^47, so with u = 2^-53 |q D - C| <= (1/2 + 2^-4 (1 + 2^-40)) D < 36.1 u N. D is exact: its factors have 5 bits.
The receiver rounds q D once, by at most u N (1 + 2^-46). So what it adds is within 38 u N of C: as if each term of the
sum had passed through 38 more roundings. `ROUNDINGS` has two to spare.

**Not finite.** The bound of a size that is not finite is infinite, and q is 0. The receiver's bound is then infinite,
too, and the element is NaN. The least bound is 2^-400, so that no reciprocal overflows. It is that of zeros.
"""

from typing import Final

import torch
from torch import Tensor

SUM_BYTES: Final = 6
BOUND_BYTES: Final = 2
SCALE: Final = 2.0**47
"""Units of a bound."""
ROUNDINGS: Final = 40
"""The roundings that the encoding adds to those on a term's path."""
_BIAS: Final = 1.5 * 2.0**52 + SCALE
"""The number from which on FP64 numbers are integers with the same leading bits; the others are those of 2^47 + q."""
_LEADING: Final = 0x4338
_LEAST, _INFINITE = (1023 - 400) << 4, 0x7FF << 4


def above(sizes: Tensor) -> Tensor:
    """Rounds non-negative sizes (FP64, any shape) up to bounds (FP64) whose leading 16 bits hold them."""
    larger = sizes.nan_to_num(nan=torch.inf, posinf=torch.inf).mul_(1 + 2.0**-16)
    leading = (larger.view(torch.int64) >> 48).add_(1).clamp_(_LEAST, _INFINITE)
    return (leading << 48).view(torch.float64)


def integers(sums: Tensor, per_bound: Tensor) -> Tensor:
    """The FP64 numbers that `message` takes, from sums (FP64, 1-d) and `SCALE` divided by the bound of each."""
    return (sums * per_bound).add_(_BIAS).nan_to_num_(nan=_BIAS, posinf=_BIAS, neginf=_BIAS)


def message(sums: Tensor, bounds: Tensor) -> Tensor:
    """The bytes of some sums, as `integers` gives them, and of bounds (FP64, 1-d)."""
    sent = torch.empty(SUM_BYTES * len(sums) + BOUND_BYTES * len(bounds), dtype=torch.uint8, device=sums.device)
    low, high, leading = _runs(sent, len(sums))
    low.copy_(sums.view(torch.int32)[::2])
    high.copy_(sums.view(torch.int16)[2::4])
    leading.copy_(bounds.view(torch.int16)[3::4])
    return sent


def parts(sent: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`count` sums, in units of 2^-47 times their bounds, and the bounds, FP64, of a message (1-d, u8)."""
    low, high, leading = _runs(sent, count)
    sums = torch.empty(count, dtype=torch.float64, device=sent.device)
    sums.view(torch.int32)[::2] = low
    sums.view(torch.int16)[2::4] = high
    sums.view(torch.int16)[3::4] = _LEADING
    return sums.sub_(_BIAS), (leading.to(torch.int64) << 48).view(torch.float64)


def _runs(sent: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    low, high, leading = torch.split(sent, [4 * count, 2 * count, len(sent) - SUM_BYTES * count])
    return low.view(torch.int32), high.view(torch.int16), leading.view(torch.int16)
