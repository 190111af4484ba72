"""Complex numbers as pairs of real ones, and Fourier transforms as products with a table of the circle.

A rule of the real table serves for complex numbers where an operator acts on both parts alike (`PARTWISE`). The others
are here. The table of a transform of n points holds cosines of n angles, computed with integers and rounded once, so
it has the same bytes everywhere. Each result of a transform is one exact sum of 2 n products, rounded once.

The sign of a zero tells on which side of the negative real axis a number lies. In a step with an operator that
asks for it (`has_cut`), real operands count as x + 0i, and y is added as (1 + 0i) y, which gives PyTorch's zeros.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial, reduce
from math import prod, sqrt
from typing import Any, Final

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map_only

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
_CUTS: Final = ("angle.default", "log.default", "pow.Tensor_Scalar", "rsqrt.default", "sqrt.default")
"""The operators that have two results at the negative real axis."""
_BITS: Final = 128
"""The fraction bits of the fixed point for cosines."""


@dataclass(frozen=True, slots=True)
class Complex:
    """A complex tensor as two of the same shape."""

    real: Ref
    imag: Ref
    open: bool = field(default=False, kw_only=True)
    """Whether the sign of its zeros is not that of PyTorch, which gives both."""


def has_cut(name: str, args: Sequence[Any]) -> bool:
    """Whether an operator has two results at the negative real axis; whole powers have one."""
    return name in _CUTS and not (name == "pow.Tensor_Scalar" and args[1] in range(-64, 65))


def complex_rule(operator: OpOverload) -> Rule | None:
    """The rule of an operator some of whose tensors are complex; None if there is none."""
    name = str(operator).removeprefix("aten.")
    if (rule := _RULES.get(name)) is None and name in PARTWISE and name in RULES:
        rule = partial(_by_part, rule=RULES[name], operator=operator)
    return None if rule is None else partial(_with_zeros, name, rule)


def _with_zeros(name: str, rule: Rule, c: Context, *args: Any, **kwargs: Any) -> Any:
    """Applies a rule, and notes what has zeros of open sign, which no cut may read."""
    is_open = any(isinstance(x, Complex) and (x.open or name == "neg.default") for x in tree_leaves(args))
    if is_open and has_cut(name, args):
        raise NotImplementedError("of `-x`, a zero has either sign in PyTorch; write `-1 * x`")
    if c.cuts and name[:4] in ("add.", "sub."):
        rule = partial(_added, sign=-1 if name[0] == "s" else 1)
    found = rule(c, *args, **kwargs)
    return tree_map_only(Complex, lambda x: replace(x, open=True), found) if is_open else found


def _by_part(c: Context, *args: Any, rule: Rule, operator: OpOverload, **kwargs: Any) -> Any:
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
    """x * y; of a real factor each part is multiplied, where no cut asks for the signs of zeros."""
    b, (left, right) = c.b, (_pair(c, x), _pair(c, y))
    if not (c.cuts or (isinstance(x, Complex | complex) and isinstance(y, Complex | complex))):
        left, factor = (left, right.real) if isinstance(x, Complex | complex) else (right, left.real)
        return Complex(b.mul(left.real, factor), b.mul(left.imag, factor))
    real = b.sub(b.mul(left.real, right.real), b.mul(left.imag, right.imag))
    return Complex(real, b.add(b.mul(left.real, right.imag), b.mul(left.imag, right.real)))


def _added(c: Context, x: Any, y: Any, *, alpha: Scalar = 1, sign: int = 1) -> Complex:
    left, right = _pair(c, x), multiply(c, complex(sign * alpha), y)
    return Complex(c.b.add(left.real, right.real), c.b.add(left.imag, right.imag))


def divide(c: Context, x: Any, y: Any) -> Complex:
    """x / y, as Smith (1962): by the ratio of the divisor's smaller part to its greater one."""
    b, above, divisor = c.b, _pair(c, x), _pair(c, y)
    if not (c.cuts or isinstance(y, Complex | complex)):
        return Complex(b.div(above.real, divisor.real), b.div(above.imag, divisor.real))
    real = b.le(b.abs(divisor.imag), b.abs(divisor.real))
    p, q = b.where(real, divisor.real, divisor.imag), b.where(real, divisor.imag, divisor.real)
    u, v = b.where(real, above.real, above.imag), b.where(real, above.imag, above.real)
    ratio = b.div(q, p)
    scale, product = b.div(b.const(1.0), b.add(p, b.mul(q, ratio))), b.mul(u, ratio)
    imag = b.where(real, b.sub(v, product), b.sub(product, v))
    return Complex(b.mul(b.add(u, b.mul(v, ratio)), scale), b.mul(imag, scale))


def size_of(c: Context, x: Complex) -> Ref:
    """The distance of x from 0, without overflow on the way."""
    found: Ref = RULES["hypot.default"](_real(c), x.real, x.imag)
    return found


def angle(c: Context, x: Complex) -> Ref:
    """The angle from the real axis, from -pi to pi, with the sign of the imaginary part, that of -0 too."""
    b, zero = c.b, c.b.const(0.0)
    real, imag = (b.where(b.eq(part, zero), b.div(b.const(1.0), part), part) for part in (x.real, x.imag))
    nowhere = b.both(b.eq(x.real, zero), b.eq(x.imag, zero))
    return b.signed(RULES["atan2.default"](_real(c), b.abs(x.imag), b.where(nowhere, real, x.real)), imag)


def power(c: Context, x: Complex, exponent: Scalar | complex) -> Complex:
    """x to a real number: a product, or its reciprocal, if that is whole and at most 4, else by size and angle."""
    if isinstance(exponent, complex):
        raise NotImplementedError("a complex exponent; write it as `exp` of a product with `log`")
    if abs(exponent) in (1, 2, 3, 4):
        found = reduce(partial(multiply, c), [x] * abs(int(exponent)))
        return found if exponent > 0 else divide(c, 1.0, found)
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
    assert c.table is not None  # transforms are within a task's step
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
    found = _along(c, c.ref(x, DType.F32), last, n, n // 2 + 1 if onesided or (c.cuts and n > 2) else n, -1)
    if c.cuts and not onesided and n > 2:  # PyTorch's second half is the conjugate of the first
        real, imag = (part.slice(last, 1, (n + 1) // 2).flip(last) for part in (found.real, c.b.neg(found.imag)))
        found = Complex(c.b.cat([found.real, real], last), c.b.cat([found.imag, imag], last))
    sizes = [x.shape[d] for d in dims]
    return _scaled(c, transform(c, found, rest, 0, True) if rest else found, norm, prod(sizes))


def transform_to_real(c: Context, x: Complex, dims: Sequence[int], norm: int, size: int) -> Ref:
    """The inverse of the one-sided transform: the other half is the conjugate of the first, so it counts twice."""
    b, (*rest, last) = c.b, dims
    whole = transform(c, x, rest, 0, False) if rest else x
    place = b.iota((x.real.shape[last],), (2,))
    times = b.where(b.either(b.eq(place, b.i64(0)), b.eq(place, b.i64(size))), b.const(1.0), b.const(2.0))
    times = times.append_dims(x.real.rank - 1 - x.real.dim(last))
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
