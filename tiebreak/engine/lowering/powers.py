"""General powers. The logarithm is held in two numbers, because the exponent multiplies its error.

The two numbers together err by about 2^-29 of the logarithm, and so a power by about 3 ulp, however large the exponent.
"""

import math

from tiebreak.engine.lowering.builder import Builder, Ref, Scalar
from tiebreak.engine.lowering.elementwise import trunc
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction

_LOG_2 = 45426 / 65536
"""log 2, cut to 16 bits, so that its products with whole numbers below 256 are exact."""
_LARGEST = (2 - 2.0**-23) * 2.0**127
_LEAST = 2.0**-149
_SERIES = tuple(2 / n for n in (3, 5, 7, 9, 11))
"""log((1 + z) / (1 - z)) = 2z + z^3 * (2/3 + 2/5 z^2 + ...)."""


def _cut(b: Builder, x: Ref, bits: int) -> Ref:
    """x rounded to its leading `bits` bits, as Veltkamp (1968) does; below 2^100 nothing overflows."""
    spread = b.scale(x, float((1 << 24 - bits) + 1))
    return b.sub(spread, b.sub(spread, x))


def _whole(b: Builder, x: Ref) -> Ref:
    """The nearest whole number, of at most 22 bits."""
    shift = b.const(1.5 * 2**23)
    return b.sub(b.add(x, shift), shift)


def _power_of_two(b: Builder, n: Ref) -> Ref:
    """2^n, exactly, for whole n of at most 80: exp(n * log 2) cut to two bits."""
    return _cut(b, b.map(MapFunction.EXP, b.scale(n, math.log(2))), 2)


def logarithm(b: Builder, x: Ref) -> tuple[Ref, Ref]:
    """log x of a positive finite number as the sum of two.

    x = 2^n * m with m about 1, and log m = log((1 + z) / (1 - z)) with z = (m - 1) / (m + 1), the latter as s + rest.
    """
    one = b.const(1.0)
    n = _whole(b, b.scale(b.map(MapFunction.LOG, x), 1 / math.log(2)))
    half = _whole(b, b.scale(n, 0.5))
    m = b.mul(b.mul(x, _power_of_two(b, b.neg(half))), _power_of_two(b, b.sub(half, n)))
    above, sum_ = b.sub(m, one), b.add(m, one)
    high = _cut(b, sum_, 12)
    low = b.add(m, b.sub(one, high))  # exact, and so are the products with s, but for the last bit of one
    s = _cut(b, b.div(above, sum_), 12)
    rest = b.div(b.sub(b.sub(above, b.mul(s, high)), b.mul(s, low)), sum_)
    z = b.add(s, rest)
    square = b.mul(z, z)
    series = b.polynomial(square, _SERIES)
    of_two, twice = b.scale(n, _LOG_2), b.add(s, s)
    found = b.add(of_two, twice)
    small = b.add(b.add(b.scale(n, math.log(2) - _LOG_2), b.add(rest, rest)), b.mul(b.mul(series, square), z))
    missing = b.add(b.sub(twice, b.sub(found, of_two)), small)
    total = b.add(found, missing)
    return total, b.sub(missing, b.sub(total, found))


def _of_positive(b: Builder, x: Ref, y: Ref) -> Ref:
    """x^y = exp(y * log x) of a positive finite x: h * h with h = exp(p / 2), p the rounded product."""
    y = b.clamp(y, -(2.0**40), 2.0**40)  # beyond, every power but that of 1 is 0 or infinity
    log, rest = logarithm(b, x)
    product = b.mul(y, log)
    y_high, log_high = _cut(b, y, 12), _cut(b, log, 12)
    y_low, log_low = b.sub(y, y_high), b.sub(log, log_high)
    missing = b.sub(b.mul(y_high, log_high), product)
    for left, right in ((y_high, log_low), (y_low, log_high), (y_low, log_low), (y, rest)):
        missing = b.add(missing, b.mul(left, right))
    root = b.map(MapFunction.EXP, b.scale(b.clamp(product, -176.0, 176.0), 0.5))  # finite; its square need not be
    return b.mul(b.add(root, b.mul(root, b.clamp(missing, -0.5, 0.5))), root)


@lowers("pow.Tensor_Tensor", "pow.Scalar")
def power(c: Context, x: Ref | Scalar, y: Ref | Scalar) -> Ref:
    """x^y of floats, by a logarithm in two parts; of negative x where y is whole; a zero result is +0."""
    b = c.b
    if c.dtype != DType.F32:
        raise NotImplementedError("pow of integers by a tensor; multiply, or cast to float32")
    x, y = c.ref(x), c.ref(y)
    zero, one, infinity = b.const(0.0), b.const(1.0), b.const(math.inf)
    size = b.abs(x)
    bounded = b.clamp(size, _LEAST, _LARGEST)
    found = _of_positive(b, bounded, y)

    vast, none = b.eq(size, infinity), b.eq(size, zero)
    grows = b.eq(vast, b.lt(zero, y))
    found = b.where(b.either(vast, none), b.where(grows, infinity, zero), found)
    # Of a negative number: the sign of odd powers, and none of what is not whole.
    negative, nothing = b.lt(x, zero), b.const(math.nan)
    halved = b.scale(y, 0.5)
    whole, even = b.eq(trunc(c, y), y), b.eq(trunc(c, halved), halved)
    odd = b.both(negative, b.both(whole, b.map(MapFunction.NOT, even)))
    found = b.where(odd, b.neg(found), found)
    fails = b.both(negative, b.map(MapFunction.NOT, b.either(whole, b.either(vast, none))))
    found = b.where(fails, nothing, found)
    return b.where(b.either(b.eq(y, zero), b.eq(x, one)), one, b.where(b.eq(y, y), found, nothing))


@lowers("pow.Tensor_Scalar")
def power_of(c: Context, x: Ref, exponent: Scalar) -> Ref:
    """x to a whole or half number up to 64 by repeated products, left to right; to another by logarithm and `exp`."""
    x = c.ref(x)
    doubled = 2 * exponent
    if not abs(exponent) <= 64 or doubled != int(doubled):
        return power(c, x, exponent)
    whole, half = divmod(abs(int(doubled)), 2)
    result: Ref | None = c.b.map(MapFunction.SQRT, x) if half else None
    for _ in range(whole):
        result = x if result is None else c.b.mul(result, x)
    if result is None:
        return c.b.full(x.shape, 1.0, x.dtype)
    return c.b.div(c.b.const(1.0), result) if exponent < 0 else result
