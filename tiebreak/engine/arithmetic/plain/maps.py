"""`map` in torch, one instruction at a time (SPEC 4.4).

IEEE hardware rounds f32 add, sub, mul and div correctly. Nothing here may use a Python scalar or a CPU scalar tensor as
a divisor (CUDA multiplies by the reciprocal), `alpha`, `addcmul`, `addcdiv`, `lerp` or anything else that contracts
into FMA, nor write to operands in place.

**exp, log, tanh, erf, sin and cos** are computed in FP64 with a relative bound; then come Ziv's test, and integers for
the rest. Every supported backend computes these in FP64 within a few ulp. The bound is 16 ulp of 2^-52 each, plus the
roundings of y (1 -+ d). Results whose FP64 value overflows or is subnormal are far outside the range of f32, and both
ends of the interval round to infinity or zero; exact zeros keep their sign.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plan.options import Counts, Round
from tiebreak.protocol.numbers.float32 import MAX_PRECISION
from tiebreak.protocol.program.isa import DType, MapFunction
from tiebreak.protocol.program.reference import TRANSCENDENTAL_FUNCTIONS

Function = Callable[[Sequence[Tensor], Tensor], None]
"""Writes a function of the operands into `out`, which is new, contiguous and of the result's dtype.

Operands are broadcastable views, one of which has the result's shape.
"""

_I64_MAX: Final = (1 << 63) - 1
_I64_MIN: Final = -(1 << 63)
_STICKY_BITS: Final = 11


def _direct(function: Callable[..., Tensor]) -> Function:
    def write(x: Sequence[Tensor], out: Tensor) -> None:
        function(*x, out=out)

    return write


def _copied(function: Callable[..., Tensor]) -> Function:
    """A function whose result is converted to the dtype of `out`, exactly or rounded once."""

    def write(x: Sequence[Tensor], out: Tensor) -> None:
        out.copy_(function(*x))

    return write


def _plus_zero(function: Callable[..., Tensor]) -> Function:
    """f32 max and min, whose zero results are made +0."""

    def write(x: Sequence[Tensor], out: Tensor) -> None:
        function(*x, out=out)
        if out.dtype == torch.float32:
            out.add_(0.0)

    return write


def _floordiv(a: Tensor, b: Tensor) -> Tensor:
    # Division by 0, and of -2^63 by -1, traps on CPUs, so neither reaches the hardware.
    quotient = torch.div(a, torch.where((b == 0) | (b == -1), 1, b), rounding_mode="floor")
    quotient = torch.where(b == -1, a.neg(), quotient)
    return torch.where(b == 0, 0, quotient)


def _mod(a: Tensor, b: Tensor) -> Tensor:
    none = (b == 0) | (b == -1)
    return torch.where(none, 0, torch.remainder(a, torch.where(none, 1, b)))


def _f32_to_i64(x: Sequence[Tensor], out: Tensor) -> None:
    # In C++ a cast of NaN, or of a value that does not fit, is undefined, so only values that fit are cast.
    value = x[0]
    limit = torch.full((), 2.0**63, dtype=torch.float32, device=value.device)
    out.copy_(torch.where(value.abs() < limit, value, 0.0).to(torch.int64))
    out.masked_fill_(value >= limit, _I64_MAX)
    out.masked_fill_(value <= -limit, _I64_MIN)


def _i64_to_f32(value: Tensor) -> Tensor:
    # Some vector units go through FP64 and round twice. Up to 53 bits FP64 is exact; longer integers are first cut
    # to 53 bits with a sticky bit (rounding to odd), after which one rounding to FP32 is right.
    top = value >> 53
    long = (top != 0) & (top != -1)
    exact = torch.where(long, 0, value).to(torch.float64)
    if bool(long.any()):
        cut = (value >> _STICKY_BITS) | ((value & ((1 << _STICKY_BITS) - 1)) != 0)
        exact = torch.where(long, cut.to(torch.float64) * 2.0**_STICKY_BITS, exact)
    return exact


_NAMED: Final = ("add", "sub", "mul", "div", "neg", "abs", "lt", "le", "eq", "ne", "where")
"""The functions that torch has by the same name, and computes as they are."""
_FUNCTIONS: Final[dict[MapFunction, Function]] = {
    **{MapFunction[name.upper()]: _direct(getattr(torch, name)) for name in _NAMED},
    MapFunction.COPY: _copied(lambda x: x),
    # torch.sqrt of f32 on CPUs is MKL's, which is not correctly rounded: it takes 0x3f7fffff to 1. In FP64 an error of
    # some ulp is harmless: the significand s of a root, 2^23 <= s < 2^24, and a midpoint m of two f32 differ by
    # |s^2 - m^2| / (s + m) >= (1/4) / 2^25 = 2^-27, that is 4 ulp of FP64.
    MapFunction.SQRT: _copied(lambda x: x.to(torch.float64).sqrt_()),
    MapFunction.BF16: _copied(lambda x: x.to(torch.bfloat16)),
    MapFunction.MAX: _plus_zero(torch.maximum),
    MapFunction.MIN: _plus_zero(torch.minimum),
    MapFunction.AND: _direct(torch.logical_and),
    MapFunction.OR: _direct(torch.logical_or),
    MapFunction.NOT: _direct(torch.logical_not),
    MapFunction.FLOORDIV: _copied(_floordiv),
    MapFunction.MOD: _copied(_mod),
}

_CASTS: Final[dict[tuple[torch.dtype, DType], Function]] = {
    (torch.float32, DType.I64): _f32_to_i64,
    (torch.float32, DType.BOOL): _copied(lambda x: x.ne(0)),
    (torch.int64, DType.F32): _copied(_i64_to_f32),
    (torch.int64, DType.BOOL): _copied(lambda x: x.ne(0)),
    (torch.bool, DType.F32): _copied(lambda x: x),
    (torch.bool, DType.I64): _copied(lambda x: x),
}


def function_of(function: MapFunction, source: torch.dtype, result: DType) -> Function:
    """The implementation of a function that is not transcendental. `source` is the dtype of the first operand."""
    return _CASTS[source, result] if function == MapFunction.CAST else _FUNCTIONS[function]


# exp, log, tanh, erf, sin and cos

_RELATIVE: Final = 17 * 2.0**-52
"""The relative error bound: 16 ulp plus the roundings of the two products."""

FP64: Final[dict[MapFunction, Callable[[Tensor], Tensor]]] = {
    function: getattr(torch, function.name.lower()) for function in TRANSCENDENTAL_FUNCTIONS
}


class Transcendentals:
    """The functions, `piece` elements at once. Integer results are cached by operand bits."""

    def __init__(self, precision: int, piece: int) -> None:
        self.precision, self._piece = precision, piece
        self._rounded = Round(precision)
        self._known: dict[tuple[MapFunction, int], int] = {}

    def apply(self, function: MapFunction, x: Tensor, counts: Counts) -> Tensor:
        """f(x), f32, contiguous, of x's shape."""
        x = x.contiguous()
        source, out = x.view(-1), torch.empty(x.shape, dtype=torch.float32, device=x.device)
        target = out.view(-1)
        counts.elements += x.numel()
        for begin in range(0, x.numel(), self._piece):
            part = slice(begin, begin + self._piece)
            self._write(function, source[part], target[part], counts)
        return out

    def _write(self, function: MapFunction, x: Tensor, out: Tensor, counts: Counts) -> None:
        y = FP64[function](x.to(torch.float64))
        if self.precision == MAX_PRECISION:
            torch.mul(y, 1.0 - _RELATIVE, out=out)
        else:
            out.copy_(self._rounded(y * (1.0 - _RELATIVE)))
        undecided = out.ne(self._rounded(y * (1.0 + _RELATIVE)))
        if bool(undecided.any()):
            undecided &= ~torch.isnan(y)
            at = undecided.nonzero().view(-1)
            counts.undecided += len(at)
            exact = self._exact(function, x[at])
            counts.double_rounded += int(self._rounded(y[at]).ne(exact).sum())
            out[at] = exact

    def exact_bits(self, function: MapFunction, bits: int) -> int:
        """The bits of the rounded exact result, computed in integers, for the bits of an argument."""
        key = function, bits
        if key not in self._known:
            self._known[key] = TRANSCENDENTAL_FUNCTIONS[function](bits, self.precision)
        return self._known[key]

    def _exact(self, function: MapFunction, x: Tensor) -> Tensor:
        bits, which = torch.unique(x.view(torch.int32), return_inverse=True)
        found = [self.exact_bits(function, pattern & 0xFFFFFFFF) for pattern in bits.tolist()]
        return torch.from_numpy(np.array(found, np.uint32).view(np.float32)).to(x.device)[which]
