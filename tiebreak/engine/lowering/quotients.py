"""Rounded quotients, and remainders. A remainder of floats is exact: x - q * y is one sum of exact products."""

import math
from typing import Final

from tiebreak.engine.lowering.builder import Ref, Scalar
from tiebreak.engine.lowering.elementwise import div
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.engine.lowering.scalars import floor, isinf, sign, trunc
from tiebreak.protocol.program.isa import DType, MapFunction

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
