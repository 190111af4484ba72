"""Correctly rounded exp, log, tanh, erf, sin and cos of an f32, in integers (SPEC 4.4 and 5).

Ziv's strategy: a function is evaluated in fixed point with p working bits and a bound on its error. If both ends of the
error interval round to the same f32, that is the answer; otherwise p is doubled. Arguments at which a value lies on a
rounding boundary are answered without evaluation. At all others none of the six functions takes such a value, so the
loop ends.

Conventions. An evaluation at p returns `Estimate(n, e, error)`: the exact value lies strictly between
(n - error) * 2^e and (n + error) * 2^e. "ulp" below is one unit of the fixed point in use, 2^-w with w working bits.
Every `>>` and `//` truncates by less than one ulp. A Taylor term obtained from the one before by one product, one shift
and one division carries at most (its predecessor's error times their ratio) + 2 ulp; each bound says how that adds up.
"""

from collections.abc import Callable
from functools import lru_cache
from math import isqrt
from typing import Final, NamedTuple

from tiebreak.protocol.numbers import float32
from tiebreak.protocol.numbers.float32 import INF, NAN_BITS, ONE, SIGN, decode, is_inf, is_nan, is_zero, round_f32

_FIRST_BITS: Final = 64
_MOST_BITS: Final = 1 << 14
"""Far more than any f32 argument needs (the smallest arguments need about 450). Reaching it is a bug."""
_GUARD: Final = 40


class Estimate(NamedTuple):
    """The exact value lies strictly between (n - error) * 2^e and (n + error) * 2^e."""

    n: int
    e: int
    error: int


def _ziv(estimate: Callable[[int], Estimate], precision: int) -> int:
    """The f32 that both ends of the error interval round to, using as many working bits as that takes."""
    bits = _FIRST_BITS
    while bits <= _MOST_BITS:
        n, e, error = estimate(bits)
        if abs(n) > error:
            low = round_f32(n - error, e, precision=precision)
            if low == round_f32(n + error, e, precision=precision):
                return low
        bits *= 2
    raise AssertionError(f"no decision with {_MOST_BITS} bits: an exact case was not treated apart")


@lru_cache(maxsize=64)
def _ln2(w: int) -> int:
    """ln 2 in 2^-w, error < 2 ulp: 2 atanh(1/3), computed with 32 more bits (fewer than w terms of 3 ulp)."""
    return 2 * _arc_tangent(3, w + 32, 1) >> 32


def _arc_tangent(q: int, w: int, sign: int) -> int:
    """artanh(1/q) for sign 1, arctan(1/q) for sign -1, in 2^-w: the sum of sign^k q^-(2k+1) / (2k+1), truncated."""
    total, power, k, factor = 0, (1 << w) // q, 1, 1
    while power:
        total += factor * (power // k)
        power //= q * q
        k, factor = k + 2, sign * factor
    return total


@lru_cache(maxsize=64)
def _pi_at(w: int) -> int:
    """Pi in 2^-w, error < 2 ulp: Machin's formula with 32 more bits (fewer than w terms of 3 ulp, times 20)."""
    return (16 * _arc_tangent(5, w + 32, -1) - 4 * _arc_tangent(239, w + 32, -1)) >> 32


@lru_cache(maxsize=256)
def pi(w: int) -> int:
    """Pi in 2^-w, error < 2 ulp."""
    stored = -(-w // 256) * 256
    return _pi_at(stored) >> (stored - w)


@lru_cache(maxsize=64)
def _two_over_root_pi(w: int) -> int:
    """2 / sqrt(pi) in 2^-w, error < 2 ulp."""
    return isqrt((1 << (4 * w + 2)) // pi(2 * w))


def _fixed(n: int, e: int, w: int) -> int:
    """n * 2^e in 2^-w, rounded down: error < 1 ulp, none if w + e >= 0."""
    shift = e + w
    return n << shift if shift >= 0 else n >> -shift


def _exp_series(r: int, w: int) -> tuple[int, int]:
    """(exp(r * 2^-w) in 2^-w, error in ulp) for |r| < 2^w.

    The j-th ratio of terms is below 1/j, so the errors of terms stay below 2, 3, 3, 3 ... < 6 ulp, and so does the
    first term left out; those after it add up to less.
    """
    total = term = 1 << w
    j = 1
    while term not in (0, -1):
        term = (term * r >> w) // j
        total += term
        j += 1
    return total, 6 * j + 16


def _exp_estimate(n: int, e: int, bits: int) -> Estimate:
    """exp(n * 2^e) for |n * 2^e| < 128.

    x = k ln 2 + r. The error of r is below 1 (x) + 2 |k| < 310 ulp, which exp multiplies by less than 2.
    """
    w = bits + 16
    x = _fixed(n, e, w)
    ln2 = _ln2(w)
    k = (2 * x + ln2) // (2 * ln2)
    value, error = _exp_series(x - k * ln2, w)
    return Estimate(value, k - w, error + 620)


def exp(x: int, precision: int = float32.MAX_PRECISION) -> int:
    """RN(e^x)."""
    if is_nan(x):
        return NAN_BITS
    if is_zero(x):
        return ONE
    n, e = decode(x)
    if is_inf(x) or not -104 << 23 < _fixed(n, e, 23) < 89 << 23:
        # e^89 > 2^128; e^-104 < 2^-150, half of the smallest subnormal.
        return 0 if float32.is_negative(x) else INF
    return _ziv(lambda bits: _exp_estimate(n, e, bits), precision)


def _log_estimate(m: int, e: int, bits: int) -> Estimate:
    """log(m * 2^(e-23)) for 2^23 <= m < 2^24; not for 1.

    With a mantissa above sqrt(2) halved, log = e ln 2 + 2 atanh(z), z = (mantissa - 1) / (mantissa + 1), |z| < 0.1716.
    The sum is at least 2^-25 (m next to 1), so `_GUARD` bits cover the cancellation. Powers of z fall by 34 a term and
    carry < 3 ulp each; (k - 1)/2 terms of < 4 ulp, doubled; the rest < 4 ulp; e ln 2 < 300 ulp.
    """
    w = bits + _GUARD
    one = 1 << 23
    if m > 11863283:  # sqrt(2) * 2^23, rounded up; any value near it would do
        one, e = 1 << 24, e + 1
    top = m - one
    power = (abs(top) << w) // (m + one)
    square = power * power >> w
    total, k = 0, 1
    while power:
        total += power // k
        power = power * square >> w
        k += 2
    return Estimate(e * _ln2(w) + (-2 * total if top < 0 else 2 * total), -w, 4 * k + 310)


def log(x: int, precision: int = float32.MAX_PRECISION) -> int:
    """RN(ln x); -inf for zeros, NaN below."""
    if is_zero(x):
        return SIGN | INF
    if is_nan(x) or float32.is_negative(x):
        return NAN_BITS
    if is_inf(x):
        return INF
    if x == ONE:
        return 0
    n, e = decode(x)
    shift = 24 - n.bit_length()
    return _ziv(lambda bits: _log_estimate(n << shift, e - shift + 23, bits), precision)


def odd_series(y: int, w: int, sign: int, first: int) -> tuple[int, int]:
    """Sum of sign^k y^k / ((first + 1)(first + 2) ... (first + 2k)) for 0 <= y < 2^w, in 2^-w; and its error in ulp.

    first = 1: sinh(x)/x or sin(x)/x, first = 0: cosh(x) or cos(x), y = x^2. Ratios of terms are at most 1/2, so their
    errors stay below 4 ulp; y may itself be off by 2 ulp, which moves the sum by at most 2; the rest is below 4 ulp.
    """
    total = term = 1 << w
    k = first
    while term:
        term = (term * y >> w) // ((k + 1) * (k + 2))
        total += sign * term if k - first & 2 == 0 else term
        k += 2
    return total, 4 * k + 12


def _tanh_estimate(n: int, e: int, bits: int) -> Estimate:
    """tanh(n * 2^e) for 0 < n * 2^e < 16.

    Below 1: x * S / C, S = sinh(x)/x and C = cosh(x), relative precision for any x. Both are at least 1 and less than
    2, so the quotient (between 1/2 and 1) errs by less than error(S) + error(C) + 1. Else with t = exp(-2x) < 0.14:
    (1 - t) / (1 + t), whose derivative is below 2.
    """
    w = bits + 16
    if n.bit_length() + e <= 0:
        y = _fixed(n * n, 2 * e, w)
        s, s_error = odd_series(y, w, 1, 1)
        c, c_error = odd_series(y, w, 1, 0)
        return Estimate(n * ((s << w) // c), e - w, n * (s_error + c_error + 1))
    t, te, t_error = _exp_estimate(-2 * n, e, w)
    drop = -te - w
    t >>= drop
    return Estimate((((1 << w) - t) << w) // ((1 << w) + t), -w, 2 * (t_error >> drop) + 6)


def tanh(x: int, precision: int = float32.MAX_PRECISION) -> int:
    """RN(tanh x), the sign of a zero kept."""
    return _odd(x, 0x41800000, _tanh_estimate, precision)  # 16: 1 - tanh(16) < 2^-45


def _odd(x: int, one_from: int, estimate: Callable[[int, int, int], Estimate], precision: int) -> int:
    """RN of an odd function that rounds to 1 at all f32 from `one_from`, infinity included."""
    if is_nan(x) or is_zero(x):
        return NAN_BITS if is_nan(x) else x
    sign, magnitude = x & SIGN, x & ~SIGN
    if magnitude >= one_from:
        return sign | ONE
    n, e = decode(magnitude)
    return sign | _ziv(lambda bits: estimate(n, e, bits), precision)


def _erf_estimate(n: int, e: int, bits: int) -> Estimate:
    """erf(n * 2^e) for 0 < n * 2^e < 4: 2x / sqrt(pi) * S, S = sum of (-y)^k / (k! (2k+1)), y = x^2 < 16.

    S is between 0.22 and 1, so the error of S is relative. y off by 1 ulp moves S by less than 1/3. An error of 2 ulp
    made in one term grows by at most e^y < 2^24 over all later ones (e^y < 4 below 1); `_GUARD` bits cover that.
    2 / sqrt(pi) < 1.13 errs by < 2 ulp.
    """
    w = bits + _GUARD
    y = _fixed(n * n, 2 * e, w)
    total = term = 1 << w
    k = 0
    while term:
        k += 1
        term = (term * y >> w) // k
        total += -(term // (2 * k + 1)) if k & 1 else term // (2 * k + 1)
    growth = 1 << (24 if n.bit_length() + e > 0 else 2)
    return Estimate(n * (total * _two_over_root_pi(w) >> w), e - w, n * (3 * growth * (k + 2) + 8))


def erf(x: int, precision: int = float32.MAX_PRECISION) -> int:
    """RN(erf x), the sign of a zero kept."""
    return _odd(x, 0x40800000, _erf_estimate, precision)  # 4: 1 - erf(4) < 2^-25.9


def _reduce(n: int, e: int, w: int) -> tuple[int, int]:
    """(k, r) with |n * 2^e| = k pi/2 + r * 2^-w, |r * 2^-w| < 0.79; the error of r is below 3 ulp.

    pi/2 is taken with as many more bits as k has and 4: then k times its error is below 1 ulp. |n * 2^e| >= 1, so it
    is exact in 2^-v.
    """
    v = w + max(0, n.bit_length() + e) + 4
    x, turn = n << (e + v), pi(v)
    k = (2 * x + turn // 2) // turn
    return k, (2 * x - k * turn) >> (v - w + 1)


def _sine_estimate(n: int, e: int, bits: int, quarter: int) -> Estimate:
    """sin(|n * 2^e| + quarter pi/2); n * 2^e is not 0 in the case of sin.

    An absolute error of 3 ulp in r moves either function by 3 ulp at most; sin is |r| * sin(r)/r with |r| < 1.
    """
    w = bits + 16
    if quarter == 0 and n.bit_length() + e <= 0:  # sin below 1: relative precision for any x
        s, error = odd_series(_fixed(n * n, 2 * e, w), w, -1, 1)
        return Estimate(n * s, e - w, n * error)
    k, r = _reduce(n, e, w) if n.bit_length() + e > 0 else (0, _fixed(n, e, w))
    k += quarter
    series, error = odd_series(r * r >> w, w, -1, 1 - (k & 1))
    magnitude, error = (series, error + 3) if k & 1 else (abs(r) * series >> w, error + 5)
    below_zero = (k & 2 != 0) != (k & 1 == 0 and r < 0)
    return Estimate(-magnitude if below_zero else magnitude, -w, error)


def sin(x: int, precision: int = float32.MAX_PRECISION) -> int:
    """RN(sin x), the sign of a zero kept; NaN for infinities."""
    if is_nan(x) or is_inf(x):
        return NAN_BITS
    if is_zero(x):
        return x
    n, e = decode(x & ~SIGN)
    return _ziv(lambda bits: _sine_estimate(n, e, bits, 0), precision) ^ (x & SIGN)


def cos(x: int, precision: int = float32.MAX_PRECISION) -> int:
    """RN(cos x); NaN for infinities."""
    if is_nan(x) or is_inf(x):
        return NAN_BITS
    if is_zero(x):
        return ONE
    n, e = decode(x & ~SIGN)
    return _ziv(lambda bits: _sine_estimate(n, e, bits, 1), precision)
