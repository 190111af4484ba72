"""Bits of integers, as arithmetic on them in two's complement; rounded quotients, and remainders.

A remainder of floats is exact: x - q * y is one sum of exact products.
"""

import math
from typing import Final

from tiebreak.engine.lowering.builder import Builder, Ref, Scalar
from tiebreak.engine.lowering.elementwise import div, floor, isinf, sign, trunc
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
    negative = b.both(*(b.lt(v, zero) for v in (x, y)))
    return b.where(negative, b.add(found, b.i64(-1 << count)), found)


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
    if c.dtype == DType.BOOL:
        return c.b.map(MapFunction.NOT, c.ref(x))
    return c.b.sub(c.b.i64(-1), c.ref(x))


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
    right = b.cat([b.full((*x.shape, 1), 1.0), b.neg(y).unsqueeze(-1)], -1)
    return b.dot(left, right, [-1])


def _floored(c: Context, x: Ref, y: Ref) -> Ref:
    """The whole number below the exact x / y; rounding the quotient first may give the next one up."""
    b = c.b
    ratio = b.div(x, y)
    whole = floor(c, ratio, up=False)
    beyond = _opposite(c, _rest(c, x, whole, y), y)
    whole = b.where(beyond, b.sub(whole, b.const(1.0)), whole)
    far = b.where(_opposite(c, x, y), b.const(-1.0), b.const(0.0))
    found = b.add(b.where(isinf(c, y), far, whole), b.sub(x, x))  # NaN of an infinity
    return b.where(b.eq(y, b.const(0.0)), ratio, found)


def _remainder(c: Context, x: Ref, quotient: Ref, y: Ref, far: Ref) -> Ref:
    """x - quotient * y, or NaN where the quotient is 2^24 or more. far: the result for an infinite y."""
    b = c.b
    small = b.lt(b.abs(quotient), b.const(_WHOLE))
    found = b.where(small, _rest(c, x, quotient, y), b.const(math.nan))
    return b.where(isinf(c, y), b.add(far, b.sub(x, x)), found)
