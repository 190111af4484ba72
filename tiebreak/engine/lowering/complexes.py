"""Complex numbers as pairs of real ones, and Fourier transforms as products with a table of the circle.

A rule of the real table serves for complex numbers where an operator acts on both parts alike (`PARTWISE`). The others
are here. The table of a transform of n points holds cosines of n angles, computed with integers and rounded once, so
it has the same bytes everywhere. Each result of a transform is one exact sum of 2 n products, rounded once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from math import prod, sqrt
from typing import Any, Final

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from tiebreak.engine.lowering.builder import Ref, Scalar
from tiebreak.engine.lowering.registry import RULES, Context, Rule
from tiebreak.protocol.numbers.transcendental import odd_series, pi
from tiebreak.protocol.program.isa import DType, MapFunction

PARTWISE: Final = frozenset({
    "_neg_view.default", "add.Scalar", "add.Tensor", "alias.default", "as_strided.default", "cat.default",
    "clone.default", "constant_pad_nd.default", "copy.default", "cumsum.default", "diagonal.default",
    "empty_strided.default", "expand.default", "flip.default", "full.default", "full_like.default", "gather.default",
    "index.Tensor", "index_put.default", "index_select.default", "lift_fresh_copy.default", "mean.default",
    "mean.dim", "neg.default", "new_empty_strided.default", "permute.default", "roll.default",
    "scalar_tensor.default", "select.int", "slice.Tensor", "slice_scatter.default", "split_with_sizes.default",
    "squeeze.dims", "sub.Scalar", "sub.Tensor", "sum.dim_IntList", "tril.default", "triu.default",
    "unsqueeze.default", "view.default", "where.self",
})  # fmt: skip
"""Operators that act on real and imaginary parts alike."""
_SELECTING: Final = ("condition", "index", "indices")
"""The arguments of these operators that are no numbers."""
_BITS: Final = 128
"""The fraction bits of the fixed point for cosines."""


@dataclass(frozen=True, slots=True)
class Complex:
    """A complex tensor as two of the same shape."""

    real: Ref
    imag: Ref


def complex_rule(operator: OpOverload) -> Rule | None:
    """The rule of an operator some of whose tensors are complex; None if there is none."""
    name = str(operator).removeprefix("aten.")
    if name in _RULES:
        return _RULES[name]
    rule = RULES.get(name) if name in PARTWISE else None
    return None if rule is None else lambda c, *args, **kwargs: _by_part(c, rule, operator, args, kwargs)


def _by_part(c: Context, rule: Rule, operator: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    kinds = {a.name: str(a.type) for a in operator._schema.arguments}

    def part(value: Any, name: str, *, imag: bool) -> Any:
        if isinstance(value, list | tuple):
            return [part(one, name, imag=imag) for one in value]
        if isinstance(value, Complex | Ref) and name not in _SELECTING:
            own = _pair(c, value)
            return own.imag if imag else own.real
        is_number = isinstance(value, int | float | complex) and name != "alpha"
        if is_number and ("number" in kinds[name] or "Tensor" in kinds[name]):
            return complex(value).imag if imag else complex(value).real
        return value

    def run(*, imag: bool) -> Any:
        given = [part(value, name, imag=imag) for value, name in zip(args, kinds, strict=False)]
        return rule(_real(c), *given, **{name: part(value, name, imag=imag) for name, value in kwargs.items()})

    real, imag = run(imag=False), run(imag=True)
    return Complex(real, imag) if isinstance(real, Ref) else list(map(Complex, real, imag))


def _real(c: Context) -> Context:
    """The context of the same operator on real tensors."""

    def real(value: Tensor) -> Tensor:
        dtype = torch.float32 if value.is_complex() else value.dtype
        return torch.empty_strided(value.shape, value.stride(), dtype=dtype, device="meta")

    result, operands = tree_map_only(Tensor, real, (c.result, c.operands))
    return replace(c, result=result, operands=operands)


def _pair(c: Context, value: Complex | Ref | Scalar | complex) -> Complex:
    if isinstance(value, Complex):
        return value
    if isinstance(value, Ref):
        return Complex(c.b.cast(value, DType.F32), c.b.full(value.shape, 0.0))
    return Complex(c.b.const(complex(value).real), c.b.const(complex(value).imag))


def multiply(c: Context, x: Any, y: Any) -> Complex:
    """x * y; of a real factor each part is multiplied."""
    b, (left, right) = c.b, (_pair(c, x), _pair(c, y))
    if not (isinstance(x, Complex | complex) and isinstance(y, Complex | complex)):
        left, factor = (left, right.real) if isinstance(x, Complex | complex) else (right, left.real)
        return Complex(b.mul(left.real, factor), b.mul(left.imag, factor))
    real = b.sub(b.mul(left.real, right.real), b.mul(left.imag, right.imag))
    return Complex(real, b.add(b.mul(left.real, right.imag), b.mul(left.imag, right.real)))


def divide(c: Context, x: Any, y: Any) -> Complex:
    """x / y. A complex divisor is first divided by the greater of its parts, so that its square is from 1 to 2."""
    b, divisor, above = c.b, _pair(c, y), _pair(c, x)
    if isinstance(y, Complex | complex):
        greatest = b.map(MapFunction.MAX, b.abs(divisor.real), b.abs(divisor.imag))
        unit = Complex(b.div(divisor.real, greatest), b.neg(b.div(divisor.imag, greatest)))
        square = b.add(b.mul(unit.real, unit.real), b.mul(unit.imag, unit.imag))
        above = multiply(c, x, unit)
        above, divisor = Complex(b.div(above.real, square), b.div(above.imag, square)), Complex(greatest, greatest)
    return Complex(b.div(above.real, divisor.real), b.div(above.imag, divisor.real))


def size_of(c: Context, x: Complex) -> Ref:
    """The distance of x from 0, without overflow on the way."""
    found: Ref = RULES["hypot.default"](_real(c), x.real, x.imag)
    return found


def angle(c: Context, x: Complex) -> Ref:
    """The angle from the real axis, from -pi to pi; 0 at 0."""
    found: Ref = RULES["atan2.default"](_real(c), x.imag, x.real)
    return found


def power(c: Context, x: Complex, exponent: Scalar | complex) -> Complex:
    """x to a real number: a product if that is one of 2, 3, 4, else by size and angle."""
    if isinstance(exponent, complex):
        raise NotImplementedError("a complex exponent; write it as `exp` of a product with `log`")
    if exponent in (2, 3, 4):
        return reduce(partial(multiply, c), [x] * int(exponent))
    return polar(c, RULES["pow.Tensor_Scalar"](_real(c), size_of(c, x), exponent), c.b.scale(angle(c, x), exponent))


def equal(c: Context, x: Any, y: Any) -> Ref:
    """Whether both parts are equal."""
    left, right = _pair(c, x), _pair(c, y)
    return c.b.both(c.b.eq(left.real, right.real), c.b.eq(left.imag, right.imag))


def matmul(c: Context, x: Any, y: Any) -> Complex:
    """A product of matrices, or of batches of them: each part is one exact sum."""
    b, left, right = c.b, _pair(c, x), _pair(c, y)
    wide, minus = b.cat([left.real, left.imag], -1), b.neg(right.imag)
    first, second = b.cat([right.real, minus], -2), b.cat([right.imag, right.real], -2)
    return Complex(b.matmul(wide, first), b.matmul(wide, second))


def polar(c: Context, size: Ref, angle: Ref) -> Complex:
    """size * (cos(angle), sin(angle))."""
    b = c.b
    return Complex(b.mul(size, b.map(MapFunction.COS, angle)), b.mul(size, b.map(MapFunction.SIN, angle)))


def to_copy(c: Context, x: Complex | Ref, **_: Any) -> Complex | Ref:
    """A cast; of a complex number, to a real one, its real part."""
    return _pair(c, x) if c.result.is_complex() else c.ref(_pair(c, x).real)


# Fourier transforms


@cache
def circle(n: int) -> Tensor:
    """cos(2 pi m / 4 n) for m = 0 ... 4 n - 1, f32, each rounded from integers."""
    quarter, step = [1.0], pi(_BITS) // (2 * n)
    for m in range(1, n):
        square = (step * m) ** 2 >> _BITS
        quarter.append(odd_series(square, _BITS, -1, 0)[0] / (1 << _BITS))
    quarter.append(0.0)
    falling = [-quarter[abs(2 * n - m)] for m in range(n + 1, 3 * n)]
    return torch.tensor([*quarter, *falling, *quarter[:0:-1]], dtype=torch.float32)


def _waves(c: Context, n: int, rows: int, columns: int, shift: int) -> Ref:
    """cos(2 pi (i k / n + shift / 4 n)) for i < rows and k < columns."""
    b = c.b
    product = b.mul(b.iota((rows, 1), (4, 0)), b.iota((1, columns), (0, 1)))
    place = b.map(MapFunction.MOD, b.add(product, b.i64(shift % (4 * n))), b.i64(4 * n))
    return b.gather(c.table(circle(n)), place, 1, 4 * n, (0, 0))


def _along(c: Context, x: Complex | Ref, d: int, n: int, results: int, sign: int) -> Complex:
    """The sums of x_i exp(sign 2 pi sqrt(-1) i k / n) over dim d, for k < results."""
    b, parts = c.b, [x] if isinstance(x, Ref) else [x.real, x.imag]
    order = [*(e for e in range(parts[0].rank) if e != parts[0].dim(d)), parts[0].dim(d)]
    moved = [part.permute(order) for part in parts]
    shape, terms = moved[0].shape[:-1], moved[0].shape[-1]
    flat = b.cat([b.reshape(part, (prod(shape), terms)) for part in moved], -1)

    def part(*shifts: int) -> Ref:
        table = b.cat([_waves(c, n, terms, results, shift) for shift in shifts[: len(parts)]], 0)
        return b.reshape(b.matmul(flat, table), (*shape, results)).unpermute(order)

    return Complex(part(0, sign * n), part(-sign * n, 0))


def _scaled(c: Context, x: Complex, norm: int, count: int) -> Complex:
    """Divided by nothing, the root of the number of points, or that number, as torch's `normalization` says."""
    return multiply(c, x, {0: 1.0, 1: 1 / sqrt(count), 2: 1 / count}[norm]) if norm else x


def transform(c: Context, x: Any, dims: Sequence[int], norm: int, forward: bool) -> Complex:
    """A discrete Fourier transform, or its inverse without the division, over each of the dims in turn."""
    found = _pair(c, x)
    sizes = [found.real.shape[d] for d in dims]
    for d, n in zip(dims, sizes, strict=True):
        found = _along(c, found, d, n, n, -1 if forward else 1)
    return _scaled(c, found, norm, prod(sizes))


def transform_real(c: Context, x: Ref, dims: Sequence[int], norm: int, onesided: bool) -> Complex:
    """The transform of real numbers; of the last dim only the first half and one, if it is one-sided."""
    *rest, last = dims
    n = x.shape[last]
    found = _along(c, c.ref(x, DType.F32), last, n, n // 2 + 1 if onesided else n, -1)
    sizes = [x.shape[d] for d in dims]
    return _scaled(c, transform(c, found, rest, 0, True) if rest else found, norm, prod(sizes))


def transform_to_real(c: Context, x: Complex, dims: Sequence[int], norm: int, size: int) -> Ref:
    """The inverse of the one-sided transform: the other half is the conjugate of the first, so it counts twice."""
    b, (*rest, last) = c.b, dims
    whole = transform(c, x, rest, 0, False) if rest else x
    place = b.iota((x.real.shape[last],), (2,))
    once = b.either(b.eq(place, b.i64(0)), b.eq(place, b.i64(size)))
    times = b.where(once, b.const(1.0), b.const(2.0))
    for _ in range(x.real.rank - 1 - x.real.dim(last)):
        times = times.unsqueeze(-1)
    count = size * prod(x.real.shape[d] for d in rest)
    return _scaled(c, _along(c, multiply(c, whole, times), last, size, size, 1), norm, count).real


_RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(("mul.Tensor", "mul.Scalar"), multiply),
    **dict.fromkeys(("div.Tensor", "div.Scalar"), divide),
    **dict.fromkeys(("mm.default", "bmm.default"), matmul),
    **dict.fromkeys(
        ("_conj.default", "_conj_physical.default", "conj_physical.default"),
        lambda c, x: Complex(x.real, c.b.neg(x.imag)),
    ),
    "complex.default": lambda c, *parts: Complex(*(c.ref(x, DType.F32).expand(c.shape) for x in parts)),
    "exp.default": lambda c, x: polar(c, c.b.map(MapFunction.EXP, x.real), x.imag),
    "polar.default": polar,
    "abs.default": size_of,
    "angle.default": angle,
    "log.default": lambda c, x: Complex(c.b.map(MapFunction.LOG, size_of(c, x)), angle(c, x)),
    "pow.Tensor_Scalar": power,
    "reciprocal.default": lambda c, x: divide(c, 1.0, x),
    "rsqrt.default": lambda c, x: power(c, x, -0.5),
    "sqrt.default": lambda c, x: power(c, x, 0.5),
    **dict.fromkeys(("eq.Scalar", "eq.Tensor"), equal),
    "view_as_complex.default": lambda _, x: Complex(x.select(-1, 0), x.select(-1, 1)),
    "view_as_real.default": lambda c, x: c.b.cat([x.real.unsqueeze(-1), x.imag.unsqueeze(-1)], -1),
    "_to_copy.default": to_copy,
    "_fft_c2c.default": transform,
    "_fft_r2c.default": transform_real,
    "_fft_c2r.default": transform_to_real,
}
"""The rules for complex numbers of operators that do not act on both parts alike, by overload name."""
