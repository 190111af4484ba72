"""Elementwise operators: arithmetic, comparison, selection, casts, activations, constants."""

import math
from typing import Any

from tiebreak.engine.lowering.builder import Ref, Scalar
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
    if c.dtype == DType.BOOL:
        return c.b.both(c.ref(x), c.ref(y))
    return c.b.mul(c.ref(x), c.ref(y))


@lowers("div.Tensor", "div.Scalar")
def div(c: Context, x: Operand, y: Operand) -> Ref:
    """x / y, correctly rounded: never a product with a reciprocal."""
    return c.b.div(c.ref(x), c.ref(y))


_UNARY = {
    "neg": MapFunction.NEG,
    "abs": MapFunction.ABS,
    "exp": MapFunction.EXP,
    "log": MapFunction.LOG,
    "tanh": MapFunction.TANH,
    "erf": MapFunction.ERF,
    "sin": MapFunction.SIN,
    "cos": MapFunction.COS,
    "sqrt": MapFunction.SQRT,
}


def _unary(c: Context, x: Ref, *, function: MapFunction) -> Ref:
    """The function of the same name, correctly rounded."""
    return c.b.map(function, c.ref(x))


for _name, _function in _UNARY.items():
    lowers(f"{_name}.default", function=_function)(_unary)
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
        cube = b.mul(b.mul(x, x), x)
        inner = b.scale(b.add(x, b.scale(cube, 0.044715)), math.sqrt(2 / math.pi))
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
    simple = b.either(b.eq(m, zero), b.eq(m, infinity))
    return b.where(simple, m, found)


@lowers("signbit.default")
def signbit(c: Context, x: Ref) -> Ref:
    """Whether the sign is set, that of -0 too."""
    b, zero = c.b, c.b.const(0, x.dtype)
    if x.dtype != DType.F32:
        return b.lt(c.ref(x, DType.I64), b.i64(0))
    inverse = b.div(b.const(1.0), x)
    below = b.where(b.eq(x, zero), inverse, x)
    return b.lt(below, zero)


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


def _common(x: Operand, y: Operand) -> DType:
    """The dtype in which two operands are compared: the greater one in bool < i64 < f32."""
    order = {DType.BOOL: 0, DType.I64: 1, DType.F32: 2}
    kinds = [v.dtype if isinstance(v, Ref) else DType.F32 if isinstance(v, float) else DType.I64 for v in (x, y)]
    return max(kinds, key=order.__getitem__)


@lowers("lt.Tensor", "lt.Scalar", function=MapFunction.LT)
@lowers("le.Tensor", "le.Scalar", function=MapFunction.LE)
@lowers("gt.Tensor", "gt.Scalar", function=MapFunction.LT, swap=True)
@lowers("ge.Tensor", "ge.Scalar", function=MapFunction.LE, swap=True)
@lowers("eq.Tensor", "eq.Scalar", function=MapFunction.EQ)
@lowers("ne.Tensor", "ne.Scalar", function=MapFunction.NE)
def compare(c: Context, x: Operand, y: Operand, *, function: MapFunction, swap: bool = False) -> Ref:
    """A comparison in the greater of both dtypes (bool < i64 < f32)."""
    dtype = _common(x, y)
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
