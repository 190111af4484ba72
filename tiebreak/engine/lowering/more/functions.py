"""Rare elementwise functions: bits of integers, rounded quotients, inverse and hyperbolic functions, and log gamma.

Bits of integers are arithmetic on them in two's complement. A remainder of floats is exact: x - q * y is one sum of
exact products.
"""

import math
from typing import Final

from tiebreak.engine.lowering.builder import Builder, Ref, Scalar
from tiebreak.engine.lowering.elementwise import div, floor, isinf, log1p, round_, sign, trunc
from tiebreak.engine.lowering.registry import INTEGERS, Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction

_SHIFTS = 6
"""Shifts are below 2^6."""


def _power_of_two(b: Builder, n: Ref) -> Ref:
    """2^n of integers 0 <= n < 64, wrapped: the product of 2^(2^k) for every bit k of n."""
    one, two = b.i64(1), b.i64(2)
    found = one
    for k in range(_SHIFTS):
        bit = b.map(MapFunction.MOD, b.map(MapFunction.FLOORDIV, n, b.i64(1 << k)), two)
        found = b.mul(found, b.where(b.eq(bit, one), b.i64(1 << (1 << k)), one))
    return found


def _width(c: Context) -> tuple[int, bool]:
    """The number of bits of the result's type besides a sign, and whether it has a sign."""
    least, bits = INTEGERS.get(c.result.dtype, (-1, 64))
    return (bits - 1, True) if least else (bits, False)


def _common_bits(c: Context, x: Ref, y: Ref) -> Ref:
    """The bits that x and y both have: taken apart along a last dim, and put together again."""
    b, (count, is_signed) = c.b, _width(c)
    places = _power_of_two(b, b.iota((count,), (1,)))
    two = b.i64(2)
    left, right = (
        b.map(MapFunction.MOD, b.map(MapFunction.FLOORDIV, v.expand(c.shape).unsqueeze(-1), places), two)
        for v in (x, y)
    )
    found = b.sum(b.mul(b.mul(left, right), places), [-1])
    if not is_signed:
        return found
    zero = b.i64(0)
    return b.where(b.both(*(b.lt(v, zero) for v in (x, y))), b.add(found, b.i64(-1 << count)), found)


@lowers("bitwise_and.Tensor", "bitwise_and.Scalar", "logical_and.default", function=MapFunction.AND)
@lowers("bitwise_or.Tensor", "bitwise_or.Scalar", "logical_or.default", function=MapFunction.OR)
@lowers("bitwise_xor.Tensor", "bitwise_xor.Scalar", "logical_xor.default", function=MapFunction.NE)
def bitwise(c: Context, x: Ref | Scalar, y: Ref | Scalar, *, function: MapFunction) -> Ref:
    """And, or, exclusive or of bools and of the bits of integers: or is x + y - and, exclusive or is or - and."""
    b = c.b
    if c.dtype == DType.BOOL:
        return b.map(function, c.ref(x, DType.BOOL), c.ref(y, DType.BOOL))
    x, y = c.ref(x), c.ref(y)
    both = _common_bits(c, x, y)
    if function == MapFunction.AND:
        return both
    either = b.sub(b.add(x, y), both)
    return either if function == MapFunction.OR else b.sub(either, both)


@lowers("bitwise_not.default", "logical_not.default")
def bitwise_not(c: Context, x: Ref) -> Ref:
    """The negation of bools; -1 - x of integers."""
    return c.b.map(MapFunction.NOT, c.ref(x)) if c.dtype == DType.BOOL else c.b.sub(c.b.i64(-1), c.ref(x))


_KINDS = ("Tensor", "Tensor_Scalar", "Scalar_Tensor")


@lowers(*(f"bitwise_left_shift.{kind}" for kind in _KINDS), "__lshift__.Tensor", "__lshift__.Scalar", to_left=True)
@lowers(*(f"bitwise_right_shift.{kind}" for kind in _KINDS), "__rshift__.Tensor", "__rshift__.Scalar", to_left=False)
def shift(c: Context, x: Ref | Scalar, by: Ref | Scalar, *, to_left: bool) -> Ref:
    """x * 2^n, wrapped, or x // 2^n; beyond the type's bits, and by a negative number, all bits are shifted out."""
    b, count = c.b, _width(c)[0]
    x, by = c.ref(x), c.ref(by)
    zero = b.i64(0)
    most = b.i64(count if to_left else min(count, 62))
    fits = b.both(b.le(zero, by), b.le(by, most))
    factor = _power_of_two(b, b.where(fits, by, zero))
    if to_left:
        return b.where(fits, b.mul(x, factor), zero)
    out = b.where(b.lt(x, zero), b.i64(-1), zero)
    return b.where(fits, b.map(MapFunction.FLOORDIV, x, factor), out)


Operand = Ref | Scalar
_WHOLE: Final = float(1 << 24)
"""Below it every whole number is an f32."""


@lowers("div.Tensor_mode", "div.Scalar_mode")
def divide(c: Context, x: Operand, y: Operand, *, rounding_mode: str | None = "floor") -> Ref:
    """x / y; with a rounding mode the whole number below it, or (trunc) that of the rounded quotient towards zero."""
    if rounding_mode is None:
        return div(c, x, y)
    left, right = _operands(c, x, y)
    if c.dtype == DType.I64:
        return c.b.map(MapFunction.FLOORDIV, left, right) if rounding_mode == "floor" else _quotient(c, left, right)
    return _floored(c, left, right) if rounding_mode == "floor" else trunc(c, c.b.div(left, right))


@lowers("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(c: Context, x: Operand, y: Operand) -> Ref:
    """x mod y, with the sign of y; of floats NaN where the quotient is 2^24 or more."""
    left, right = _operands(c, x, y)
    if c.dtype == DType.I64:
        return c.b.map(MapFunction.MOD, left, right)
    far = c.b.where(_opposite(c, left, right), right, left)
    return _remainder(c, left, _floored(c, left, right), right, far)


@lowers("fmod.Tensor", "fmod.Scalar")
def fmod(c: Context, x: Operand, y: Operand) -> Ref:
    """The remainder with the sign of x; of floats NaN where the quotient is 2^24 or more."""
    left, right = _operands(c, x, y)
    if c.dtype == DType.I64:
        return c.b.sub(left, c.b.mul(_quotient(c, left, right), right))
    whole = trunc(c, c.b.div(left, right))
    beyond = _opposite(c, _rest(c, left, whole, right), left)
    return _remainder(c, left, c.b.where(beyond, c.b.sub(whole, sign(c, whole)), whole), right, left)


def _operands(c: Context, x: Operand, y: Operand) -> tuple[Ref, Ref]:
    return c.ref(x).expand(c.shape), c.ref(y).expand(c.shape)


def _opposite(c: Context, x: Ref, y: Ref) -> Ref:
    """Whether one is negative and the other positive."""
    b, zero = c.b, c.b.const(0, x.dtype)
    below, above = (b.both(b.lt(v, zero), b.lt(zero, w)) for v, w in ((x, y), (y, x)))
    return b.either(below, above)


def _quotient(c: Context, x: Ref, y: Ref) -> Ref:
    """The quotient of integers, rounded towards zero."""
    b = c.b
    size = b.map(MapFunction.FLOORDIV, b.abs(x), b.abs(y))
    return b.where(_opposite(c, x, y), b.neg(size), size)


def _rest(c: Context, x: Ref, quotient: Ref, y: Ref) -> Ref:
    """x - quotient * y, rounded once."""
    b = c.b
    left = b.cat([x.unsqueeze(-1), quotient.unsqueeze(-1)], -1)
    return b.dot(left, b.cat([b.full((*x.shape, 1), 1.0), b.neg(y).unsqueeze(-1)], -1), [-1])


def _floored(c: Context, x: Ref, y: Ref) -> Ref:
    """The whole number below the exact x / y; rounding the quotient first may give the next one up."""
    b = c.b
    ratio = b.div(x, y)
    whole = floor(c, ratio, up=False)
    whole = b.where(_opposite(c, _rest(c, x, whole, y), y), b.sub(whole, b.const(1.0)), whole)
    far = b.where(_opposite(c, x, y), b.const(-1.0), b.const(0.0))
    found = b.add(b.where(isinf(c, y), far, whole), b.sub(x, x))  # NaN of an infinity
    return b.where(b.eq(y, b.const(0.0)), ratio, found)


def _remainder(c: Context, x: Ref, quotient: Ref, y: Ref, far: Ref) -> Ref:
    """x - quotient * y, or NaN where the quotient is 2^24 or more. far: the result for an infinite y."""
    b = c.b
    found = b.where(b.lt(b.abs(quotient), b.const(_WHOLE)), _rest(c, x, quotient, y), b.const(math.nan))
    return b.where(isinf(c, y), b.add(far, b.sub(x, x)), found)


_TAN_PI_8 = math.tan(math.pi / 8)
_HALF_PI, _HALF_PI_LOW = 13176795 / 2**23, -4.371139000186241e-08
"""pi / 2 as the sum of two."""
_ATAN = (-0.33333314342036646, 0.1999841574843419, -0.1424241541046215, 0.10585122597502232, -0.060552224648082756)
"""(atan(z) / z - 1) / z^2 as a polynomial in z^2 for z <= tan(pi / 8): atan errs by 2^-30."""
_ASIN = (0.16666752681456512, 0.0749528867082765, 0.0454716072123889, 0.02417295160309099, 0.04217822980941947)
"""(asin(z) / z - 1) / z^2 as a polynomial in z^2 for z <= 1/2: asin errs by 2^-27."""
_LARGE = 4096.0
"""The number from which on the square root of x^2 + 1 or of x^2 - 1 is x."""


def _odd_series(b: Builder, z: Ref, square: Ref, coefficients: tuple[float, ...]) -> Ref:
    """z + z * square * (c0 + c1 * square + ...)."""
    series = b.polynomial(square, coefficients)
    return b.add(z, b.mul(b.mul(z, square), series))


def _from_right_angles(b: Builder, count: float, x: Ref) -> Ref:
    """count * pi / 2 - x."""
    return b.sub(b.const(count * _HALF_PI), b.sub(x, b.const(count * _HALF_PI_LOW)))


def _first_octant(b: Builder, z: Ref) -> Ref:
    """atan of 0 <= z <= 1; above tan(pi / 8) as pi / 4 - atan((1 - z) / (1 + z))."""
    one = b.const(1.0)
    far = b.lt(b.const(_TAN_PI_8), z)
    w = b.where(far, b.div(b.sub(one, z), b.add(one, z)), z)
    found = _odd_series(b, w, b.mul(w, w), _ATAN)
    return b.where(far, _from_right_angles(b, 0.5, found), found)


@lowers("atan.default")
def atan(c: Context, x: Ref) -> Ref:
    """A polynomial up to tan(pi/8); pi/4 less that of (1 - x) / (1 + x) up to 1; pi/2 less that of 1 / x beyond."""
    b, x, one = c.b, c.ref(x), c.b.const(1.0)
    size = b.abs(x)
    steep = b.lt(one, size)
    found = _first_octant(b, b.where(steep, b.div(one, size), size))
    return b.signed(b.where(steep, _from_right_angles(b, 1, found), found), x)


@lowers("atan2.default")
def atan2(c: Context, y: Ref, x: Ref) -> Ref:
    """The angle of (x, y), from atan of the smaller over the greater; 0 at (0, 0). Zeros have no sign."""
    b, y, x = c.b, c.ref(y), c.ref(x)
    zero, one, infinity = b.const(0.0), b.const(1.0), b.const(math.inf)
    up, across = b.abs(y), b.abs(x)
    vast = b.eq(b.map(MapFunction.MAX, up, across), infinity)
    up, across = (b.where(vast, b.where(b.eq(size, infinity), one, zero), size) for size in (up, across))
    steep = b.lt(across, up)
    smaller, greater = b.map(MapFunction.MIN, up, across), b.map(MapFunction.MAX, up, across)
    found = _first_octant(b, b.where(b.eq(greater, zero), zero, b.div(smaller, greater)))
    found = b.where(steep, _from_right_angles(b, 1, found), found)
    return b.signed(b.where(b.lt(x, zero), _from_right_angles(b, 2, found), found), y)


def _asin_of(b: Builder, size: Ref) -> tuple[Ref, Ref, Ref]:
    """The mask |x| > 1/2; asin(sqrt((1 - |x|) / 2)) where it holds, elsewhere asin(|x|); and twice that."""
    half = b.const(0.5)
    far = b.lt(half, size)
    square = b.where(far, b.mul(b.sub(b.const(1.0), size), half), b.mul(size, size))
    found = _odd_series(b, b.where(far, b.map(MapFunction.SQRT, square), size), square, _ASIN)
    return far, found, b.add(found, found)


@lowers("asin.default")
def asin(c: Context, x: Ref) -> Ref:
    """A polynomial up to 1/2; beyond, pi / 2 less twice that of sqrt((1 - x) / 2)."""
    b, x = c.b, c.ref(x)
    far, near, twice = _asin_of(b, b.abs(x))
    return b.signed(b.where(far, _from_right_angles(b, 1, twice), near), x)


@lowers("acos.default")
def acos(c: Context, x: Ref) -> Ref:
    """pi / 2 - asin(x) up to 1/2; beyond, 2 asin(sqrt((1 - x) / 2)), or pi less that of -x."""
    b, x = c.b, c.ref(x)
    far, near, twice = _asin_of(b, b.abs(x))
    beyond = b.where(b.lt(x, b.const(0.0)), _from_right_angles(b, 2, twice), twice)
    return b.where(far, beyond, _from_right_angles(b, 1, b.signed(near, x)))


def _log_of_twice(b: Builder, x: Ref) -> Ref:
    return b.add(b.map(MapFunction.LOG, x), b.const(math.log(2)))


@lowers("asinh.default")
def asinh(c: Context, x: Ref) -> Ref:
    """log1p(x + x^2 / (1 + sqrt(x^2 + 1))), but log(x) + log 2 from 4096 on, with the sign put back."""
    b, x, one = c.b, c.ref(x), c.b.const(1.0)
    size = b.abs(x)
    square = b.mul(size, size)
    root = b.map(MapFunction.SQRT, b.add(square, one))
    near = log1p(c, b.add(size, b.div(square, b.add(one, root))))
    return b.signed(b.where(b.lt(b.const(_LARGE), size), _log_of_twice(b, size), near), x)


@lowers("acosh.default")
def acosh(c: Context, x: Ref) -> Ref:
    """log1p(t + sqrt(t) * sqrt(x + 1)) with t = x - 1, but log(x) + log 2 from 4096 on."""
    b, x, one = c.b, c.ref(x), c.b.const(1.0)
    above = b.sub(x, one)
    roots = (b.map(MapFunction.SQRT, v) for v in (above, b.add(x, one)))  # of what is negative: NaN
    near = log1p(c, b.add(above, b.mul(*roots)))
    return b.where(b.lt(b.const(_LARGE), x), _log_of_twice(b, x), near)


@lowers("atanh.default")
def atanh(c: Context, x: Ref) -> Ref:
    """log1p(2x / (1 - x)) / 2, with the sign put back."""
    b, x = c.b, c.ref(x)
    size = b.abs(x)
    return b.signed(b.scale(log1p(c, b.div(b.add(size, size), b.sub(b.const(1.0), size))), 0.5), x)


_LGAMMA = (0.4227843350065366, 0.32246703468845367, -0.06735228224902842, 0.020580734398536842, -0.007386158630367144,
           0.0028917326862348868, -0.0011859593395562602, 0.0005015166621041213, -0.00025361856759876323,
           0.0001223641744987001)  # fmt: skip
"""log(gamma(2 + p)) / p as a polynomial for |p| <= 1/2, to 2^-31."""
_STIRLING = (1 / 12, -1 / 360, 1 / 1260)
"""log(gamma(x)) - (x - 1/2) * (log(x) - 1) - (log(2 pi) - 1) / 2 in odd powers of 1/x."""
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132)
"""log(x) - 1 / 2x - digamma(x) in powers of 1/x^2."""
_TRIGAMMA = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66)
"""trigamma(x) - 1 / x - 1 / 2x^2 in odd powers of 1/x from the third on."""
_FAR = 8.0
"""The argument from which on all three are computed by their series in 1/x."""


def _less(b: Builder, x: Ref, y: float) -> Ref:
    return b.lt(x, b.const(y))


def _half_turn(c: Context, size: Ref) -> Ref:
    """pi * (x - n) with n the nearest whole number."""
    return c.b.scale(c.b.sub(size, round_(c, size)), math.pi)


def _lgamma_of_positive(b: Builder, x: Ref) -> Ref:
    """log(gamma(x)) of positive x: a polynomial about 2 and gamma(x + 1) = x * gamma(x), or Stirling's series."""
    one = b.const(1.0)
    t, product = x, one
    for _ in range(6):  # down to between 1.5 and 2.5; every difference is exact
        low, less = _less(b, t, 2.5), b.sub(t, one)
        t, product = b.where(low, t, less), b.where(low, product, b.mul(product, less))
    tiny, small = _less(b, x, 0.5), _less(b, x, 1.5)
    p = b.where(tiny, x, b.where(small, b.sub(x, one), b.sub(t, b.const(2.0))))
    log = b.map(MapFunction.LOG, b.where(tiny, b.mul(x, b.add(x, one)), b.where(small, x, product)))
    near = b.add(b.mul(b.polynomial(p, _LGAMMA), p), b.where(small, b.neg(log), log))
    inverse = b.div(one, x)
    rest = b.mul(b.polynomial(b.mul(inverse, inverse), _STIRLING), inverse)
    large = b.mul(b.sub(x, b.const(0.5)), b.sub(b.map(MapFunction.LOG, x), one))
    return b.where(_less(b, x, _FAR), near, b.add(large, b.add(rest, b.const((math.log(2 * math.pi) - 1) / 2))))


@lowers("lgamma.default")
def lgamma(c: Context, x: Ref) -> Ref:
    """A polynomial about 2, recurrence, and Stirling's series from 8 on; reflection if x < 0."""
    b, x = c.b, c.ref(x)
    size = b.abs(x)
    found = _lgamma_of_positive(b, size)
    sine = b.abs(b.map(MapFunction.SIN, _half_turn(c, size)))
    logs = b.add(b.map(MapFunction.LOG, size), b.map(MapFunction.LOG, sine))
    mirrored = b.sub(b.sub(b.const(math.log(math.pi)), logs), found)
    poles = b.eq(sine, b.const(0.0))
    infinity = b.const(math.inf)
    vast = b.eq(size, infinity)
    found = b.where(_less(b, x, 0.0), b.where(poles, infinity, mirrored), found)
    return b.where(vast, infinity, found)


def _above(b: Builder, x: Ref, power: int) -> tuple[Ref, Ref, Ref, Ref]:
    """x + n of at least 8, its inverse, that squared, and the sum of 1 / x^power, 1 / (x + 1)^power, ... before it."""
    one, taken = b.const(1.0), b.const(0.0)
    for _ in range(int(_FAR)):
        low, inverse = _less(b, x, _FAR), b.div(one, x)
        term = inverse if power == 1 else b.mul(inverse, inverse)
        x, taken = b.where(low, b.add(x, one), x), b.where(low, b.add(taken, term), taken)
    inverse = b.div(one, x)
    return x, inverse, b.mul(inverse, inverse), taken


@lowers("digamma.default")
def digamma(c: Context, x: Ref) -> Ref:
    """The series in 1/x from 8 on, and recurrence up to there; reflection if x < 0."""
    b, x = c.b, c.ref(x)
    size, one = b.abs(x), b.const(1.0)
    t, inverse, square, taken = _above(b, size, 1)
    rest = b.add(b.mul(b.polynomial(square, _DIGAMMA), square), b.scale(inverse, 0.5))
    found = b.sub(b.sub(b.map(MapFunction.LOG, t), rest), taken)
    turn = _half_turn(c, size)
    cotangent = b.div(b.scale(b.map(MapFunction.COS, turn), math.pi), b.map(MapFunction.SIN, turn))
    mirrored = b.add(b.add(found, b.div(one, size)), cotangent)
    poles = b.eq(turn, b.const(0.0))
    return b.where(_less(b, x, 0.0), b.where(poles, b.const(math.nan), mirrored), found)


@lowers("polygamma.default")
def polygamma(c: Context, order: int, x: Ref) -> Ref:
    """The first derivative (order 0) or the second (order 1) of the logarithm of the gamma function."""
    if order == 0:
        return digamma(c, x)
    if order != 1:
        raise NotImplementedError("polygamma of an order above 1")
    b, x = c.b, c.ref(x)
    size, one = b.abs(x), b.const(1.0)
    _, inverse, square, taken = _above(b, size, 2)
    found = b.add(b.add(b.mul(b.polynomial(square, _TRIGAMMA), b.mul(square, inverse)), b.scale(square, 0.5)), inverse)
    found = b.add(found, taken)
    sine = b.map(MapFunction.SIN, _half_turn(c, size))
    reflected = b.div(b.const(math.pi), sine)
    own = b.div(one, size)
    mirrored = b.add(b.sub(b.mul(reflected, reflected), found), b.mul(own, own))
    return b.where(_less(b, x, 0.0), mirrored, found)
