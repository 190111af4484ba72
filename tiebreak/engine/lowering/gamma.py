"""The logarithm of the gamma function, and its first two derivatives."""

import math

from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.engine.lowering.scalars import round_
from tiebreak.protocol.program.isa import MapFunction

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


def _above(b: Builder, x: Ref, power: int) -> tuple[Ref, Ref]:
    """x + n of at least 8, and the sum of 1 / x^power, 1 / (x + 1)^power, ... before it."""
    one, taken = b.const(1.0), b.const(0.0)
    for _ in range(int(_FAR)):
        low, inverse = _less(b, x, _FAR), b.div(one, x)
        term = inverse if power == 1 else b.mul(inverse, inverse)
        x, taken = b.where(low, b.add(x, one), x), b.where(low, b.add(taken, term), taken)
    return x, taken


@lowers("digamma.default")
def digamma(c: Context, x: Ref) -> Ref:
    """The series in 1/x from 8 on, and recurrence up to there; reflection if x < 0."""
    b, x = c.b, c.ref(x)
    size, one = b.abs(x), b.const(1.0)
    t, taken = _above(b, size, 1)
    inverse = b.div(one, t)
    square = b.mul(inverse, inverse)
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
    t, taken = _above(b, size, 2)
    inverse = b.div(one, t)
    square = b.mul(inverse, inverse)
    found = b.add(b.add(b.mul(b.polynomial(square, _TRIGAMMA), b.mul(square, inverse)), b.scale(square, 0.5)), inverse)
    found = b.add(found, taken)
    sine = b.map(MapFunction.SIN, _half_turn(c, size))
    reflected = b.div(b.const(math.pi), sine)
    own = b.div(one, size)
    mirrored = b.add(b.sub(b.mul(reflected, reflected), found), b.mul(own, own))
    return b.where(_less(b, x, 0.0), mirrored, found)
