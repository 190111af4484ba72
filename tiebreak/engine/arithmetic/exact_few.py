"""Exact sums of few undecided elements on a CPU, where calls, not terms, are what takes time.

The terms are FP64 numbers, multiples of 2^-298 below 2^256 (`tiebreak.engine.arithmetic.ziv`), so nothing here over- or
underflows. Each element is settled by the first of two tests that applies.

**On a grid.** If with |p_i| < 2^E, K <= 2^k, k > 0 and S = 1.5 * 2^(E+k) every fl(fl(p_i + S) - S) is p_i, then all
p_i are multiples of q = 2^(E+k-52), and their partial sums, at most 2^k 2^E = 2^52 q, are exact in any order. So it is
for most plain sums, whose ties are many.

**By `math.fsum`**, which returns the exact sum rounded to nearest (Shewchuk 1997: its partials represent the exact
sum; they need IEEE FP64 additions rounded to nearest, as everything here does). Let x be the exact sum, s = fsum(p) =
RN64(x) and r = fsum(p, -s) = RN64(x - s). x - s is 0 or at least 2^-298, so r has its sign, and is 0 only with it. If
r = 0, s is x. Else x lies strictly between s and the FP64 neighbour of s on the side of r: at a distance of at most
half an ulp or, below a power of two, half the smaller one. Of these two neighbours the one with an odd significand is
x rounded *to odd* (s itself is not 0, as x is not and RN64 does not underflow). Midpoints of two f32 numbers of b bits,
and the value from which they overflow, are FP64 numbers with even significands, so x and its rounding to odd lie on the
same side of each of them, and one rounding to b bits is RN(x).
"""

import math
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from tiebreak.engine.arithmetic.precision import Round

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

FEW_TERMS: Final = 1 << 16
"""Terms, of all undecided elements together, that are read at once this way."""
FSUM_TERMS: Final = 1 << 11
"""Terms that are added one by one."""


def add_few(terms: Floats, rounded: Round) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Exact sums of the rows of `terms` (U, K), K > 0: (f32 results, which of them were found), each (U,).

    A row with a non-finite term is NaN.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(terms).max(1)
        shift = np.ldexp(1.5, np.frexp(size)[1] + max(1, (terms.shape[1] - 1).bit_length()))[:, None]
        high = terms + shift
        high -= shift
        finite = np.isfinite(size)
        found = (high == terms).all(1) & finite
        sums = high.sum(1)
        if not found.all():
            left = np.flatnonzero(~found)
            if left.size * terms.shape[1] <= FSUM_TERMS:
                sums[left] = rounded_to_odd(np.where(finite[left][:, None], terms[left], 0.0))
                found[left] = True
            sums[~finite] = np.nan
            found |= ~finite
        # A sum that is zero is +0. torch rounds without a warning where FP32 overflows.
        return rounded(torch.from_numpy(sums)).add_(0.0).numpy(), found


def rounded_to_odd(terms: Floats) -> Floats:
    """Exact sums of the rows of finite terms (U, K), rounded to FP64 to odd, (U,)."""
    sums, rests = [], []
    for row in terms.tolist():
        total = math.fsum(row)
        row.append(-total)
        sums.append(total)
        rests.append(math.fsum(row))
    s, r = np.array(sums), np.array(rests)
    bits = s.view(np.int64)
    even = (r != 0) & (bits & 1 == 0)
    return np.where(even, bits + np.where((s > 0) == (r > 0), 1, -1), bits).view(np.float64)
