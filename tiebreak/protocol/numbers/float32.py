"""IEEE 754 binary32 in integers (SPEC 4.4 and 5). An f32 is its 32-bit pattern; no floats are used.

Every result is the exact value rounded to nearest, written RN: ties go to even, subnormals are kept, overflow gives an
infinity, and the only NaN is `0x7fc00000`. A `precision` b in 16 ... 32 rounds to a format with b - 9 fraction bits and
the exponent range of f32. Its numbers are the f32 patterns whose lowest 32 - b bits are zero, so one rule serves normal
and subnormal numbers.
"""

import struct
from math import isqrt
from typing import Final

NAN_BITS: Final = 0x7FC00000
"""The canonical NaN."""
INF: Final = 0x7F800000
SIGN: Final = 0x80000000
ONE: Final = 0x3F800000
FRACTION_BITS: Final = 23
MIN_EXPONENT: Final = -149
"""Every finite f32 is an integer multiple of 2^-149."""
MIN_PRECISION: Final = 16
MAX_PRECISION: Final = 32

_I64_MIN: Final = -(1 << 63)
_I64_MAX: Final = (1 << 63) - 1
_QUOTIENT_BITS: Final = 32
"""Bits to which a quotient or root is computed before its sticky bit. More than 25 make the single rounding exact."""


def is_nan(x: int) -> bool:
    """Whether a pattern is any NaN, canonical or not."""
    return x & 0x7FFFFFFF > INF


def is_inf(x: int) -> bool:
    """Whether a pattern is an infinity."""
    return x & 0x7FFFFFFF == INF


def is_finite(x: int) -> bool:
    """Whether a pattern is neither an infinity nor a NaN."""
    return x & INF != INF


def is_zero(x: int) -> bool:
    """Whether a pattern is +0 or -0."""
    return x & 0x7FFFFFFF == 0


def is_negative(x: int) -> bool:
    """Whether the sign bit is set."""
    return x & SIGN != 0


def canonical(x: int) -> int:
    """The pattern itself, or the canonical NaN for any NaN."""
    return NAN_BITS if x & 0x7FFFFFFF > INF else x


def decode(x: int) -> tuple[int, int]:
    """(n, e) with x = n * 2^e exactly, for a finite x; n is signed. The sign of a zero is lost."""
    exponent = x >> FRACTION_BITS & 0xFF
    fraction = x & 0x7FFFFF
    n, e = (fraction | 0x800000, exponent - 150) if exponent else (fraction, MIN_EXPONENT)
    return (-n if x & SIGN else n), e


def scaled(x: int) -> int:
    """A finite x in units of 2^-149, which is an exact integer."""
    n, e = decode(x)
    return n << (e - MIN_EXPONENT)


def round_f32(n: int, e: int, *, sticky: bool = False, precision: int = MAX_PRECISION) -> int:
    """RN of n * 2^e to an f32 of `precision` bits. n = 0 gives +0; a negative n that rounds to zero gives -0.

    `sticky` means that the exact magnitude lies strictly between |n| * 2^e and (|n| + 1) * 2^e. Then |n| must have at
    least 26 bits (or e <= -151), so that no rounding boundary lies strictly inside that interval.
    """
    if not MIN_PRECISION <= precision <= MAX_PRECISION:
        raise ValueError(f"expected a precision of {MIN_PRECISION} to {MAX_PRECISION} bits, got {precision}")
    sign = SIGN if n < 0 else 0
    magnitude = abs(n)
    if sticky:
        assert magnitude.bit_length() >= 26 or e <= MIN_EXPONENT - 2, "a sticky bit needs a longer magnitude"
        magnitude, e = magnitude << 1 | 1, e - 1
    if magnitude == 0:
        return 0
    fraction_bits = precision - 9
    top = max(magnitude.bit_length() + e - 1, -126)  # exponent of the binade, that of the subnormals at least
    shift = top - fraction_bits - e
    if shift <= 0:
        quotient = magnitude << -shift
    else:  # just below half is added to an even quotient, and half to an odd one: ties go to even
        quotient = (magnitude + (1 << (shift - 1)) - 1 + (magnitude >> shift & 1)) >> shift
    # quotient counts units of 2^(top - fraction_bits); a carry to the next binade falls into the exponent field.
    units = quotient << (FRACTION_BITS - fraction_bits)
    return sign | min(units + ((top + 126) << FRACTION_BITS), INF)


def round_ratio(p: int, q: int, *, precision: int = MAX_PRECISION) -> int:
    """RN of p / q for integers p and q > 0. p = 0 gives +0; a negative p that rounds to zero gives -0."""
    shift = max(0, _QUOTIENT_BITS + q.bit_length() - abs(p).bit_length())
    quotient, rest = divmod(abs(p) << shift, q)
    return round_f32(-quotient if p < 0 else quotient, -shift, sticky=rest != 0, precision=precision)


def negate(x: int) -> int:
    """-x; NaN stays NaN."""
    return NAN_BITS if is_nan(x) else x ^ SIGN


def absolute(x: int) -> int:
    """|x|; NaN stays NaN."""
    return NAN_BITS if is_nan(x) else x & ~SIGN


def add(x: int, y: int) -> int:
    """RN(x + y). An exact zero is +0 unless both are -0."""
    if is_nan(x) or is_nan(y):
        return NAN_BITS
    if is_inf(x):
        return NAN_BITS if is_inf(y) and x != y else x
    if is_inf(y):
        return y
    total = scaled(x) + scaled(y)
    return round_f32(total, MIN_EXPONENT) if total else x & y & SIGN


def subtract(x: int, y: int) -> int:
    """RN(x - y)."""
    return add(x, negate(y))


def multiply(x: int, y: int) -> int:
    """RN(x * y). The sign of a zero follows IEEE 754, 6.3."""
    sign = (x ^ y) & SIGN
    if is_nan(x) or is_nan(y):
        return NAN_BITS
    if is_inf(x) or is_inf(y):
        return NAN_BITS if is_zero(x) or is_zero(y) else sign | INF
    (a, d), (b, e) = decode(x), decode(y)
    return sign | round_f32(abs(a * b), d + e)


def divide(x: int, y: int) -> int:
    """RN(x / y) as in IEEE 754: 0/0 and inf/inf give NaN, finite/0 gives an infinity."""
    sign = (x ^ y) & SIGN
    if is_nan(x) or is_nan(y) or (is_inf(x) and is_inf(y)) or (is_zero(x) and is_zero(y)):
        return NAN_BITS
    if is_inf(x) or is_zero(y):
        return sign | INF
    if is_inf(y) or is_zero(x):
        return sign
    (a, d), (b, e) = decode(x), decode(y)
    shift = _QUOTIENT_BITS + 24
    quotient, rest = divmod(abs(a) << shift, abs(b))
    return sign | round_f32(quotient, d - e - shift, sticky=rest != 0)


def square_root(x: int) -> int:
    """RN(sqrt(x)). -0 gives -0; other negative numbers give NaN."""
    if is_nan(x) or (is_negative(x) and not is_zero(x)):
        return NAN_BITS
    if is_zero(x) or is_inf(x):
        return x
    n, e = decode(x)
    shift = 2 * _QUOTIENT_BITS + 24 + (e & 1)  # makes the exponent even and the root long enough
    root = isqrt(n << shift)
    return round_f32(root, (e - shift) >> 1, sticky=root * root != n << shift)


def less(x: int, y: int) -> bool:
    """IEEE 754 x < y; false if either is NaN."""
    return not (is_nan(x) or is_nan(y)) and order(x) < order(y)


def less_equal(x: int, y: int) -> bool:
    """IEEE 754 x <= y; false if either is NaN."""
    return not (is_nan(x) or is_nan(y)) and order(x) <= order(y)


def equal(x: int, y: int) -> bool:
    """IEEE 754 x == y; false if either is NaN, true for -0 and +0."""
    return not (is_nan(x) or is_nan(y)) and order(x) == order(y)


def order(x: int) -> int:
    """An integer that orders all patterns by value; both zeros give 0, and the canonical NaN is above all."""
    return -(x & 0x7FFFFFFF) if x & SIGN else x


def maximum(x: int, y: int) -> int:
    """The larger of two; NaN if either is NaN. A zero result is +0."""
    if is_nan(x) or is_nan(y):
        return NAN_BITS
    return plus_zero(x if order(x) > order(y) else y)


def minimum(x: int, y: int) -> int:
    """The smaller of two; NaN if either is NaN. A zero result is +0."""
    if is_nan(x) or is_nan(y):
        return NAN_BITS
    return plus_zero(x if order(x) < order(y) else y)


def plus_zero(x: int) -> int:
    """The pattern itself, or +0 for -0."""
    return 0 if is_zero(x) else x


def to_bf16(x: int) -> int:
    """RN(x) to bfloat16, which has the upper 16 bits of an f32; zeros keep their sign."""
    if not is_finite(x):
        return canonical(x)
    n, e = decode(x)
    return (x & SIGN) | round_f32(abs(n), e, precision=MIN_PRECISION)


def to_i64(x: int) -> int:
    """Convert to i64, rounding toward zero and saturating. NaN gives 0."""
    if is_nan(x):
        return 0
    if is_inf(x):
        return _I64_MIN if is_negative(x) else _I64_MAX
    n, e = decode(x)
    magnitude = abs(n) << e if e >= 0 else abs(n) >> -e
    return max(_I64_MIN, min(_I64_MAX, -magnitude if n < 0 else magnitude))


def to_float(x: int) -> float:
    """The same number as a Python float, which holds every binary32 number exactly."""
    return float(struct.unpack("<f", x.to_bytes(4, "little"))[0])


def from_i64(x: int) -> int:
    """RN of an integer; 0 gives +0."""
    return round_f32(x, 0)
