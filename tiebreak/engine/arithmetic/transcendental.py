"""exp, log, tanh, erf, sin and cos to b bits: FP64 with a relative bound, Ziv's test, and integers for the rest.

Every supported backend computes these in FP64 within a few ulp. The bound is 16 ulp of 2^-52 each, plus the roundings
of y (1 -+ d). Results whose FP64 value overflows or is subnormal are far outside the range of f32, and both ends of the
interval round to infinity or zero; exact zeros keep their sign.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.precision import Round
from tiebreak.engine.arithmetic.stats import Counts
from tiebreak.protocol.numbers.float32 import MAX_PRECISION
from tiebreak.protocol.program.isa import MapFunction
from tiebreak.protocol.program.reference import TRANSCENDENTAL_FUNCTIONS

_RELATIVE: Final = 17 * 2.0**-52
"""The relative error bound: 16 ulp plus the roundings of the two products."""
_PIECE: Final = 1 << 16
"""The number of elements computed at once: the FP64 temporaries stay in cache."""

FP64: Final[dict[MapFunction, Callable[[Tensor], Tensor]]] = {
    MapFunction.EXP: torch.exp,
    MapFunction.LOG: torch.log,
    MapFunction.TANH: torch.tanh,
    MapFunction.ERF: torch.erf,
    MapFunction.SIN: torch.sin,
    MapFunction.COS: torch.cos,
}


class Transcendentals:
    """The functions on one device. Integer results are cached by operand bits."""

    def __init__(self, precision: int = MAX_PRECISION) -> None:
        self.precision = precision
        self._rounded = Round(precision)
        self._known: dict[tuple[MapFunction, int], int] = {}

    def apply(self, function: MapFunction, x: Tensor, counts: Counts) -> Tensor:
        """f(x), f32, contiguous, of x's shape."""
        x = x.contiguous()
        source, out = x.view(-1), torch.empty(x.shape, dtype=torch.float32, device=x.device)
        target = out.view(-1)
        counts.elements += x.numel()
        step = _PIECE if x.device.type == "cpu" else x.numel()
        for begin in range(0, x.numel(), step):
            self._piece(function, source[begin : begin + step], target[begin : begin + step], counts)
        return out

    def _piece(self, function: MapFunction, x: Tensor, out: Tensor, counts: Counts) -> None:
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
        found = []
        for pattern in bits.tolist():
            value = self.exact_bits(function, pattern & 0xFFFFFFFF)
            found.append(value - (1 << 32) if value >> 31 else value)
        return torch.tensor(found, dtype=torch.int32, device=x.device).view(torch.float32)[which]
