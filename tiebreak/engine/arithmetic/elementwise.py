"""`map` (SPEC 4.4) in native torch operations. IEEE hardware rounds f32 add, sub, mul and div correctly.

This module must not use a Python scalar or a CPU scalar tensor as a divisor (CUDA multiplies by the reciprocal),
`alpha`, `addcmul`, `addcdiv`, `lerp` or anything else that contracts into FMA, nor write to operands in place. Operands
are broadcastable views, one of which has the result's shape; `out` is new, contiguous and of the result's dtype.
"""

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from tiebreak.protocol.program.isa import DType, MapFunction

Kernel = Callable[[Sequence[Tensor], Tensor], None]
"""Writes a function of the operands into `out`."""

_I64_MAX: Final = (1 << 63) - 1
_I64_MIN: Final = -(1 << 63)
_STICKY_BITS: Final = 11


def _direct(function: Callable[..., Tensor]) -> Kernel:
    def kernel(x: Sequence[Tensor], out: Tensor) -> None:
        function(*x, out=out)

    return kernel


def _copy(x: Sequence[Tensor], out: Tensor) -> None:
    out.copy_(x[0])


def _plus_zero(function: Callable[..., Tensor]) -> Kernel:
    """f32 max and min, whose zero results are made +0."""

    def kernel(x: Sequence[Tensor], out: Tensor) -> None:
        function(*x, out=out)
        if out.dtype == torch.float32:
            out.add_(0.0)

    return kernel


def _sqrt(x: Sequence[Tensor], out: Tensor) -> None:
    # torch.sqrt of f32 on CPUs is MKL's, which is not correctly rounded: it takes 0x3f7fffff to 1. In FP64 an error of
    # some ulp is harmless: the significand s of a root, 2^23 <= s < 2^24, and a midpoint m of two f32 differ by
    # |s^2 - m^2| / (s + m) >= (1/4) / 2^25 = 2^-27, that is 4 ulp of FP64.
    out.copy_(x[0].to(torch.float64).sqrt_())


def _floordiv(x: Sequence[Tensor], out: Tensor) -> None:
    a, b = x
    # Division by 0, and of -2^63 by -1, traps on CPUs, so neither reaches the hardware.
    safe = torch.where((b == 0) | (b == -1), 1, b)
    quotient = torch.div(a, safe, rounding_mode="floor")
    quotient = torch.where(b == -1, a.neg(), quotient)
    out.copy_(torch.where(b == 0, 0, quotient))


def _mod(x: Sequence[Tensor], out: Tensor) -> None:
    a, b = x
    none = (b == 0) | (b == -1)
    out.copy_(torch.where(none, 0, torch.remainder(a, torch.where(none, 1, b))))


def _f32_to_i64(x: Sequence[Tensor], out: Tensor) -> None:
    # In C++ a cast of NaN, or of a value that does not fit, is undefined, so only values that fit are cast.
    value = x[0]
    limit = torch.full((), 2.0**63, dtype=torch.float32, device=value.device)
    fits = value.abs() < limit
    out.copy_(torch.where(fits, value, 0.0).to(torch.int64))
    out.masked_fill_(value >= limit, _I64_MAX)
    out.masked_fill_(value <= -limit, _I64_MIN)


def _i64_to_f32(x: Sequence[Tensor], out: Tensor) -> None:
    # Some vector units go through FP64 and round twice. Up to 53 bits FP64 is exact; longer integers are first cut
    # to 53 bits with a sticky bit (rounding to odd), after which one rounding to FP32 is right.
    value = x[0]
    top = value >> 53
    long = (top != 0) & (top != -1)
    exact = torch.where(long, 0, value).to(torch.float64)
    if bool(long.any()):
        cut = (value >> _STICKY_BITS) | ((value & ((1 << _STICKY_BITS) - 1)) != 0)
        exact = torch.where(long, cut.to(torch.float64) * 2.0**_STICKY_BITS, exact)
    out.copy_(exact)


def _to_bool(x: Sequence[Tensor], out: Tensor) -> None:
    torch.ne(x[0], 0, out=out)


_FUNCTIONS: Final[dict[MapFunction, Kernel]] = {
    MapFunction.COPY: _copy,
    MapFunction.ADD: _direct(torch.add),
    MapFunction.SUB: _direct(torch.sub),
    MapFunction.MUL: _direct(torch.mul),
    MapFunction.DIV: _direct(torch.div),
    MapFunction.SQRT: _sqrt,
    MapFunction.NEG: _direct(torch.neg),
    MapFunction.ABS: _direct(torch.abs),
    MapFunction.MAX: _plus_zero(torch.maximum),
    MapFunction.MIN: _plus_zero(torch.minimum),
    MapFunction.LT: _direct(torch.lt),
    MapFunction.LE: _direct(torch.le),
    MapFunction.EQ: _direct(torch.eq),
    MapFunction.NE: _direct(torch.ne),
    MapFunction.AND: _direct(torch.logical_and),
    MapFunction.OR: _direct(torch.logical_or),
    MapFunction.NOT: _direct(torch.logical_not),
    MapFunction.WHERE: _direct(torch.where),
    MapFunction.FLOORDIV: _floordiv,
    MapFunction.MOD: _mod,
}

_CASTS: Final[dict[tuple[torch.dtype, DType], Kernel]] = {
    (torch.float32, DType.I64): _f32_to_i64,
    (torch.float32, DType.BOOL): _to_bool,
    (torch.int64, DType.F32): _i64_to_f32,
    (torch.int64, DType.BOOL): _to_bool,
    (torch.bool, DType.F32): _copy,
    (torch.bool, DType.I64): _copy,
}


def kernel_of(function: MapFunction, source: torch.dtype, result: DType) -> Kernel:
    """The kernel of a function that is not transcendental. `source` is the dtype of the first operand."""
    return _CASTS[source, result] if function == MapFunction.CAST else _FUNCTIONS[function]
