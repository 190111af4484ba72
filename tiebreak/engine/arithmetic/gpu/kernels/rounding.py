"""Rounding on GPUs: of FP64 numbers, and of sums of two."""

import triton
import triton.language as tl


@triton.jit
def round_to(x, PRECISION: tl.constexpr):
    """FP64 to an f32 number of b bits: `arithmetic/plan/options.py` has the proof. A zero has any sign."""
    if PRECISION == 32:
        return x.to(tl.float32)
    drop: tl.constexpr = 61 - PRECISION
    bits = x.to(tl.int64, bitcast=True)
    kept = (bits + ((bits >> drop) & 1) + ((1 << (drop - 1)) - 1)) & (-1 << drop)
    shift: tl.constexpr = 1.5 * 2.0 ** (-65 - PRECISION)
    rounded = tl.where(tl.abs(x) < 2.0**-126, (x + shift) - shift, kept.to(tl.float64, bitcast=True))
    return tl.where(x == x, rounded, x).to(tl.float32)


@triton.jit
def two_sum(a, b):
    """(s, t) with s = fl(a + b) and s + t = a + b."""
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


@triton.jit
def to_odd(s, t):
    """s + t, |t| <= ulp(s) / 2, rounded to FP64, to the neighbour with odd significand unless it is exact."""
    bits = s.to(tl.int64, bitcast=True)
    away = tl.where((s < 0) == (t < 0), 1, -1)
    return tl.where((t != 0) & ((bits & 1) == 0), bits + away, bits).to(tl.float64, bitcast=True)


@triton.jit
def round_pair(s, t, PRECISION: tl.constexpr):
    """RN(s + t) of any two FP64 numbers."""
    high, low = two_sum(s, t)
    return round_to(to_odd(high, low), PRECISION)
