"""Inverse functions of sine, cosine and tangent, and of their hyperbolic relatives."""

import math

from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.engine.lowering.scalars import log1p
from tiebreak.protocol.program.isa import MapFunction

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
    nowhere = b.eq(greater, zero)
    found = _first_octant(b, b.where(nowhere, zero, b.div(smaller, greater)))
    found = b.where(steep, _from_right_angles(b, 1, found), found)
    left = b.lt(x, zero)
    return b.signed(b.where(left, _from_right_angles(b, 2, found), found), y)


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
    far = b.lt(b.const(_LARGE), size)
    return b.signed(b.where(far, _log_of_twice(b, size), near), x)


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
    ratio = b.div(b.add(size, size), b.sub(b.const(1.0), size))
    return b.signed(b.scale(log1p(c, ratio), 0.5), x)
