"""Elementwise operators: arithmetic, comparison, selection, casts, constants, activations, rounding, exp and powers.

Functions that keep their digits near 0 or for large arguments err by a few ulp wherever the function itself is well
conditioned.
"""

import math
from typing import Any

from tiebreak.engine.lowering.builder import Builder, Ref, Scalar
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction

Operand = Ref | Scalar


@lowers("sub.Tensor", "sub.Scalar", function=MapFunction.SUB)
@lowers("add.Tensor", "add.Scalar", function=MapFunction.ADD)
def add(c: Context, x: Operand, y: Operand, *, alpha: Scalar = 1, function: MapFunction) -> Ref:
    """x + alpha * y, or x - alpha * y; the product is an instruction of its own."""
    scaled = c.ref(y) if alpha == 1 else c.b.mul(c.ref(y), c.ref(alpha))
    return c.b.map(function, c.ref(x), scaled)


@lowers("mul.Tensor", "mul.Scalar")
def mul(c: Context, x: Operand, y: Operand) -> Ref:
    """x * y; of bools: and."""
    return c.b.both(c.ref(x), c.ref(y)) if c.dtype == DType.BOOL else c.b.mul(c.ref(x), c.ref(y))


@lowers("div.Tensor", "div.Scalar")
def div(c: Context, x: Operand, y: Operand) -> Ref:
    """x / y, correctly rounded: never a product with a reciprocal."""
    return c.b.div(c.ref(x), c.ref(y))


def _unary(c: Context, x: Ref, *, function: MapFunction) -> Ref:
    """The function of the same name, correctly rounded."""
    return c.b.map(function, c.ref(x))


for _name in ("neg", "abs", "exp", "log", "tanh", "erf", "sin", "cos", "sqrt"):
    lowers(f"{_name}.default", function=MapFunction[_name.upper()])(_unary)
lowers("_neg_view.default", function=MapFunction.NEG)(_unary)


@lowers("rsqrt.default")
def rsqrt(c: Context, x: Ref) -> Ref:
    """1 / sqrt(x), two roundings."""
    return c.b.div(c.b.const(1.0), c.b.map(MapFunction.SQRT, x))


@lowers("reciprocal.default")
def reciprocal(c: Context, x: Ref) -> Ref:
    """1 / x."""
    return c.b.div(c.b.const(1.0), c.ref(x))


@lowers("sigmoid.default")
def sigmoid(c: Context, x: Ref) -> Ref:
    """1 / (1 + exp(-x))."""
    one = c.b.const(1.0)
    return c.b.div(one, c.b.add(one, c.b.map(MapFunction.EXP, c.b.neg(c.ref(x)))))


@lowers("gelu.default")
def gelu(c: Context, x: Ref, *, approximate: str = "none") -> Ref:
    """0.5 x (1 + erf(x / sqrt 2)), or the tanh form."""
    b, half, one = c.b, c.b.const(0.5), c.b.const(1.0)
    if approximate == "tanh":
        inner = b.scale(b.add(x, b.scale(b.mul(b.mul(x, x), x), 0.044715)), math.sqrt(2 / math.pi))
        return b.mul(b.mul(half, x), b.add(one, b.map(MapFunction.TANH, inner)))
    return b.mul(b.mul(half, x), b.add(one, b.map(MapFunction.ERF, b.scale(x, math.sqrt(0.5)))))


@lowers("relu.default")
def relu(c: Context, x: Ref) -> Ref:
    """max(x, 0); +0 for -0."""
    return c.b.map(MapFunction.MAX, x, c.b.const(0, x.dtype))


@lowers("copysign.Tensor", "copysign.Scalar")
def copysign(c: Context, x: Operand, y: Operand) -> Ref:
    """|x|, negative where y is; zeros have no sign."""
    return c.b.signed(c.b.abs(c.ref(x)), c.ref(y))


@lowers("hypot.default")
def hypot(c: Context, x: Ref, y: Ref) -> Ref:
    """m * sqrt(1 + (n / m)^2) with m the greater magnitude."""
    b, zero, infinity = c.b, c.b.const(0.0), c.b.const(math.inf)
    sizes = [b.abs(c.ref(v)) for v in (x, y)]
    m, n = b.map(MapFunction.MAX, *sizes), b.map(MapFunction.MIN, *sizes)
    ratio = b.div(n, m)
    found = b.mul(m, b.map(MapFunction.SQRT, b.add(b.const(1.0), b.mul(ratio, ratio))))
    return b.where(b.either(b.eq(m, zero), b.eq(m, infinity)), m, found)


@lowers("signbit.default")
def signbit(c: Context, x: Ref) -> Ref:
    """Whether the sign is set, that of -0 too."""
    b, zero = c.b, c.b.const(0, x.dtype)
    if x.dtype != DType.F32:
        return b.lt(c.ref(x, DType.I64), b.i64(0))
    inverse = b.div(b.const(1.0), x)
    return b.lt(b.where(b.eq(x, zero), inverse, x), zero)


@lowers("minimum.default", function=MapFunction.MIN, of_bools=MapFunction.AND)
@lowers("maximum.default", function=MapFunction.MAX, of_bools=MapFunction.OR)
def greater(c: Context, x: Ref, y: Ref, *, function: MapFunction, of_bools: MapFunction) -> Ref:
    """The greater or the smaller; NaN if either is; of bools: or, and."""
    return c.b.map(of_bools if c.dtype == DType.BOOL else function, c.ref(x), c.ref(y))


@lowers("fmin.default", function=MapFunction.MIN, of_bools=MapFunction.AND)
@lowers("fmax.default", function=MapFunction.MAX, of_bools=MapFunction.OR)
def greater_number(c: Context, x: Ref, y: Ref, *, function: MapFunction, of_bools: MapFunction) -> Ref:
    """The greater or the smaller; of a NaN and a number, the number; of bools: or, and."""
    x, y = c.ref(x), c.ref(y)
    if c.dtype == DType.F32:
        x, y = (c.b.where(c.b.ne(v, v), w, v) for v, w in ((x, y), (y, x)))
    return greater(c, x, y, function=function, of_bools=of_bools)


@lowers("clamp.default", "clamp.Tensor")
def clamp(c: Context, x: Ref, low: Operand | None = None, high: Operand | None = None) -> Ref:
    """min(max(x, low), high), of the limits that are given."""
    x = c.ref(x)
    if low is not None:
        x = c.b.map(MapFunction.MAX, x, c.ref(low))
    return x if high is None else c.b.map(MapFunction.MIN, x, c.ref(high))


@lowers("lt.Tensor", "lt.Scalar", function=MapFunction.LT)
@lowers("le.Tensor", "le.Scalar", function=MapFunction.LE)
@lowers("gt.Tensor", "gt.Scalar", function=MapFunction.LT, swap=True)
@lowers("ge.Tensor", "ge.Scalar", function=MapFunction.LE, swap=True)
@lowers("eq.Tensor", "eq.Scalar", function=MapFunction.EQ)
@lowers("ne.Tensor", "ne.Scalar", function=MapFunction.NE)
def compare(c: Context, x: Operand, y: Operand, *, function: MapFunction, swap: bool = False) -> Ref:
    """A comparison in the greater of both dtypes (bool < i64 < f32)."""
    kinds = [v.dtype if isinstance(v, Ref) else DType.F32 if isinstance(v, float) else DType.I64 for v in (x, y)]
    dtype = max(kinds, key=[DType.BOOL, DType.I64, DType.F32].index)
    left, right = c.ref(x, dtype), c.ref(y, dtype)
    return c.b.compare(function, right, left) if swap else c.b.compare(function, left, right)


@lowers("where.self")
def where(c: Context, condition: Ref, x: Ref, y: Ref) -> Ref:
    """x where the condition holds, else y."""
    return c.b.where(condition, c.ref(x), c.ref(y))


@lowers("_to_copy.default")
def to_copy(c: Context, x: Ref, **_: Any) -> Ref:
    """A cast; device and layout mean nothing here."""
    return c.ref(x)


@lowers("copy.default")
def copy(c: Context, _into: Ref, source: Ref, _non_blocking: bool = False) -> Ref:
    """The source, broadcast and cast to what it is copied into."""
    return c.ref(source).expand(c.shape)


@lowers("scalar_tensor.default", "full.default", "full_like.default")
def full(c: Context, *args: Any, **_: Any) -> Ref:
    """One constant at every place: a source of one element."""
    return c.b.full(c.shape, args[-1], c.dtype)


@lowers("arange.start_step")
def arange(c: Context, start: Scalar, _end: Scalar, step: Scalar = 1, **_: Any) -> Ref:
    """start, start + step, ...: integers, or multiples of 2^-16; cast to f32 if asked (exact below 2^24 of them)."""
    parts = 1 if int(start) == start and int(step) == step else 1 << 16
    if int(start * parts) != start * parts or int(step * parts) != step * parts:
        raise NotImplementedError("arange with fractions other than multiples of 2^-16")
    found = c.b.cast(c.b.iota(c.shape, (int(step * parts),), int(start * parts)), c.dtype)
    return found if parts == 1 else c.b.scale(found, 1 / parts)


_WHOLE = float(1 << 23)
"""The number from which on every f32 is an integer."""
_LOG_2 = 45426 / 65536
"""log 2, cut to 16 bits, so that its products with whole numbers below 256 are exact."""
_ERFC = (1.2769783735275269, -0.0927634909749031, -0.16602972149848938, 0.16404040157794952, -0.05422491207718849,
         -0.007935850881040096, 0.008713064715266228, 0.0009292816394008696, -0.0013314421521499753)  # fmt: skip
"""(1 + 2x) * exp(x^2) * erfc(x) as a polynomial in (x - 2) / (x + 2), a form of Shepherd and Laframboise (1981).

It is fitted for 0.45 <= x <= 11, to 2^-25.
"""


def wrapped(b: Builder, x: Ref, low: int, bits: int) -> Ref:
    """Wraps an i64 around like an integer of `bits` bits whose least value is `low`: congruent mod 2^bits."""
    least, size = b.i64(low), b.i64(1 << bits)
    return b.add(b.map(MapFunction.MOD, b.sub(x, least), size), least)


@lowers("sign.default")
def sign(c: Context, x: Ref) -> Ref:
    """1, -1, or 0 for zeros and NaN."""
    zero, one = c.b.const(0, x.dtype), c.b.const(1, x.dtype)
    negative = c.b.where(c.b.lt(x, zero), c.b.const(-1, x.dtype), zero)
    return c.b.where(c.b.lt(zero, x), one, negative)


@lowers("isnan.default")
def isnan(c: Context, x: Ref) -> Ref:
    """Whether x is NaN, the one number that is not equal to itself."""
    return c.b.ne(x, x)


@lowers("isinf.default")
def isinf(c: Context, x: Ref) -> Ref:
    """The magnitude equals infinity."""
    if x.dtype != DType.F32:
        return c.b.full(x.shape, False, DType.BOOL)
    return c.b.eq(c.b.abs(x), c.b.const(math.inf, x.dtype))


def _if_fraction(c: Context, x: Ref, rounded: Ref) -> Ref:
    """`rounded` where x may have a fraction, otherwise x (including infinities and NaN)."""
    return c.b.where(c.b.lt(c.b.abs(x), c.b.const(_WHOLE)), rounded, x)


def _truncated(c: Context, x: Ref) -> Ref:
    return c.b.cast(c.b.cast(x, DType.I64), DType.F32)


@lowers("trunc.default")
def trunc(c: Context, x: Ref) -> Ref:
    """x rounded towards zero, exactly (through i64); a result of zero is +0."""
    return _if_fraction(c, x, _truncated(c, x)) if x.dtype == DType.F32 else x


@lowers("ceil.default", up=True)
@lowers("floor.default", up=False)
def floor(c: Context, x: Ref, *, up: bool) -> Ref:
    """x rounded downwards or (ceil) upwards, exactly; a result of zero is +0."""
    if x.dtype != DType.F32:
        return x
    whole = _truncated(c, x)
    beyond = c.b.lt(whole, x) if up else c.b.lt(x, whole)
    next_one = c.b.map(MapFunction.ADD if up else MapFunction.SUB, whole, c.b.const(1.0))
    return _if_fraction(c, x, c.b.where(beyond, next_one, whole))


@lowers("round.default")
def round_(c: Context, x: Ref) -> Ref:
    """x rounded to nearest, ties to even, exactly: |x| + 2^23 - 2^23, with the sign put back."""
    if x.dtype != DType.F32:
        return x
    shift = c.b.const(_WHOLE)
    return _if_fraction(c, x, c.b.signed(c.b.sub(c.b.add(c.b.abs(x), shift), shift), x))


@lowers("round.decimals")
def round_decimals(c: Context, x: Ref, *, decimals: int) -> Ref:
    """x times a power of ten, to the nearest whole number, and back."""
    if x.dtype != DType.F32:
        raise NotImplementedError("rounding of integers to decimals")
    power = c.b.const(10.0 ** abs(decimals))
    there, back = (c.b.mul, c.b.div) if decimals > 0 else (c.b.div, c.b.mul)
    return back(round_(c, there(x, power)), power)


@lowers("expm1.default")
def expm1(c: Context, x: Ref) -> Ref:
    """u - 1 with u = exp(x) if |x| > 1, else (u - 1) * x / log(u), which keeps its digits near 0; x where u is 1."""
    b = c.b
    one = b.const(1.0)
    u = b.map(MapFunction.EXP, x)
    less = b.sub(u, one)
    near = b.div(b.mul(less, x), b.map(MapFunction.LOG, u))
    return b.where(c.b.lt(one, b.abs(x)), less, b.where(c.b.eq(u, one), x, near))


@lowers("log1p.default")
def log1p(c: Context, x: Ref) -> Ref:
    """log(u) * (x / (u - 1)) with u = 1 + x, which keeps its digits near 0; x where u is 1."""
    b = c.b
    one, infinity = b.const(1.0), b.const(math.inf)
    u = b.add(one, x)
    logarithm = b.map(MapFunction.LOG, u)
    found = b.mul(logarithm, b.div(x, b.sub(u, one)))
    return b.where(c.b.eq(u, one), x, b.where(c.b.eq(u, infinity), logarithm, found))


@lowers("exp2.default")
def exp2(c: Context, x: Ref) -> Ref:
    """exp(n * h) * exp(f * log 2 + n * (log 2 - h)), x = n + f with n whole; h has 16 bits, so that n * h is exact."""
    b = c.b
    x = b.map(MapFunction.MIN, b.map(MapFunction.MAX, x, b.const(-256.0)), b.const(256.0))
    whole = trunc(c, x)
    rest = b.add(b.scale(b.sub(x, whole), math.log(2)), b.scale(whole, math.log(2) - _LOG_2))
    return b.mul(b.map(MapFunction.EXP, b.scale(whole, _LOG_2)), b.map(MapFunction.EXP, rest))


@lowers("log10.default", base=10)
@lowers("log2.default", base=2)
def log_of_base(c: Context, x: Ref, *, base: int) -> Ref:
    """log(x) / log 2, or log(x) / log 10."""
    return c.b.div(c.b.map(MapFunction.LOG, x), c.b.const(math.log(base)))


def _half_power(c: Context, size: Ref) -> Ref:
    """exp(x) / 2, as (h / 2) * h with h = exp(x / 2): finite wherever the result is."""
    root = c.b.map(MapFunction.EXP, c.b.scale(size, 0.5))
    return c.b.mul(c.b.scale(root, 0.5), root)


@lowers("sinh.default")
def sinh(c: Context, x: Ref) -> Ref:
    """(m + m / (m + 1)) / 2 with m = expm1(|x|), but exp(|x|) / 2 from 16 on, with the sign put back."""
    b = c.b
    size = b.abs(x)
    m = expm1(c, size)
    near = b.scale(b.add(m, b.div(m, b.add(m, b.const(1.0)))), 0.5)
    return b.signed(b.where(c.b.lt(b.const(16.0), size), _half_power(c, size), near), x)


@lowers("cosh.default")
def cosh(c: Context, x: Ref) -> Ref:
    """p + 1/4 / p with p = exp(|x|) / 2."""
    half = _half_power(c, c.b.abs(x))
    return c.b.add(half, c.b.div(c.b.const(0.25), half))


@lowers("tan.default")
def tan(c: Context, x: Ref) -> Ref:
    """Divides the rounded sin(x) by the rounded cos(x), and rounds again."""
    return c.b.div(c.b.map(MapFunction.SIN, x), c.b.map(MapFunction.COS, x))


@lowers("erfc.default")
def erfc(c: Context, x: Ref) -> Ref:
    """1 - erf(x) if |x| < 1/2; else exp(-x^2) / (1 + 2x) times a polynomial in (x - 2) / (x + 2), or 2 less that."""
    b = c.b
    size = b.map(MapFunction.MIN, b.abs(x), b.const(11.0))  # beyond 11 the result is 0 or 2
    two = b.const(2.0)
    series = b.polynomial(b.div(b.sub(size, two), b.add(size, two)), _ERFC)
    # x^2 = h^2 + (x - h) * (x + h) with h = x to 4 fraction bits, so that h^2 is exact and the rest is small.
    high = b.sub(b.add(size, b.const(1.5 * 2**19)), b.const(1.5 * 2**19))
    rest = b.mul(b.sub(high, size), b.add(high, size))
    scale = b.div(b.mul(b.map(MapFunction.EXP, rest), series), b.add(b.add(size, size), b.const(1.0)))
    tail = b.mul(scale, b.map(MapFunction.EXP, b.neg(b.mul(high, high))))
    far = b.where(c.b.lt(x, b.const(0.0)), b.sub(two, tail), tail)
    return b.where(c.b.lt(size, b.const(0.5)), b.sub(b.const(1.0), b.map(MapFunction.ERF, x)), far)


@lowers("leaky_relu.default")
def leaky_relu(c: Context, x: Ref, slope: Scalar = 0.01) -> Ref:
    """x where it is positive, else slope * x."""
    return c.b.where(c.b.lt(c.b.const(0.0), x), x, c.b.scale(x, slope))


@lowers("elu.default")
def elu(c: Context, x: Ref, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1) -> Ref:
    """scale * x where x is positive, else (alpha * scale) * expm1(input_scale * x)."""
    b = c.b
    negative = b.scale(expm1(c, x if input_scale == 1 else b.scale(x, input_scale)), float(alpha) * float(scale))
    return b.where(c.b.lt(b.const(0.0), x), x if scale == 1 else b.scale(x, scale), negative)


@lowers("hardtanh.default")
def hardtanh(c: Context, x: Ref, low: Scalar = -1, high: Scalar = 1) -> Ref:
    """Keeps x between two bounds: min(max(x, low), high)."""
    return c.b.map(MapFunction.MIN, c.b.map(MapFunction.MAX, x, c.b.const(low)), c.b.const(high))


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
    found = _of_positive(b, b.clamp(size, _LEAST, _LARGEST), y)

    vast, none = b.eq(size, infinity), b.eq(size, zero)
    grows = b.eq(vast, b.lt(zero, y))
    found = b.where(b.either(vast, none), b.where(grows, infinity, zero), found)
    # Of a negative number: the sign of odd powers, and none of what is not whole.
    negative, nothing = b.lt(x, zero), b.const(math.nan)
    halved = b.scale(y, 0.5)
    whole, even = b.eq(trunc(c, y), y), b.eq(trunc(c, halved), halved)
    found = b.where(b.both(negative, b.both(whole, b.map(MapFunction.NOT, even))), b.neg(found), found)
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
