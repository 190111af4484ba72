"""Sums as uncontrolled hardware computes them: in another precision, or with another rounding.

Each takes the terms one after the other in numpy's elementwise IEEE operations, so that a cheat's bytes, too, are the
same on any machine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tiebreak.engine.arithmetic.views import View
from tiebreak.engine.run.interpreter import Observer
from tiebreak.protocol.program.isa import Instruction, Opcode
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import sum_kind

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
_NO_SIGNIFICAND = 8
"""Bits of a float32 outside its significand. The significand has 24 bits, including the implicit leading one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """How sums are computed: the change of factors, the type of partial sums, the rounding of the last one."""

    factor: Callable[[Floats], Floats]
    single: bool
    """Whether products and partial sums are rounded to FP32; otherwise they are FP64."""
    last: Callable[[Doubles], Doubles]
    """Rounds a scaled significand to an integer."""

    def sum(self, factors: Sequence[Floats], precision: int) -> Floats:
        """The sums of an instruction, rounded to `precision` bits.

        Each factor is [elements, terms]; the result is [elements].
        """
        read = [self.factor(x) for x in factors] if len(factors) > 1 else list(factors)
        with np.errstate(all="ignore"):
            total = _single(read) if self.single else _double(read)
            return self._rounded(total, precision)

    def _rounded(self, total: Doubles, precision: int) -> Floats:
        bits = precision - _NO_SIGNIFICAND
        significand, exponent = np.frexp(total)
        rounded: Doubles = np.ldexp(self.last(np.ldexp(significand, bits)), exponent - bits)
        positive: Doubles = rounded + 0.0  # a zero sum is +0
        return positive.astype(np.float32)


def _single(factors: Sequence[Floats]) -> Doubles:
    """Products and partial sums in FP32."""
    total = np.zeros(len(factors[0]), dtype=np.float32)
    for k in range(factors[0].shape[1]):
        term: Floats = factors[0][:, k]
        for other in factors[1:]:
            term = np.multiply(term, other[:, k], dtype=np.float32)
        total = np.add(total, term, dtype=np.float32)
    return total.astype(np.float64)


def _double(factors: Sequence[Floats]) -> Doubles:
    """Exact products, and partial sums in FP64."""
    total = np.zeros(len(factors[0]), dtype=np.float64)
    for k in range(factors[0].shape[1]):
        term: Doubles = factors[0][:, k].astype(np.float64)
        for other in factors[1:]:
            term = np.multiply(term, other[:, k], dtype=np.float64)
        total = np.add(total, term, dtype=np.float64)
    return total


def as_it_is(x: Floats) -> Floats:
    return x


def truncated(fraction: int) -> Callable[[Floats], Floats]:
    """Cuts factors off after `fraction` fraction bits."""
    mask = np.uint32(0xFFFFFFFF >> 23 - fraction << 23 - fraction)
    return lambda x: (np.ascontiguousarray(x).view(np.uint32) & mask).view(np.float32)


TOWARD_ZERO = Hardware(factor=as_it_is, single=False, last=np.trunc)
TF32 = Hardware(factor=truncated(10), single=False, last=np.rint)
BFLOAT16 = Hardware(factor=truncated(7), single=False, last=np.rint)
NATIVE = Hardware(factor=as_it_is, single=True, last=np.rint)
"""FP32 sums without correction, as any kernel makes them."""


def is_f32_sum(instruction: Instruction) -> bool:
    """Whether the instruction is a sum of float32 values that this module can compute."""
    return instruction.opcode == Opcode.REDUCE and sum_kind(instruction) is not None


def summing(program: Program, hardware: Hardware, precision: int) -> Observer:
    """Computes every sum of a step as this hardware does."""
    sums = {n: i for n, i in enumerate(program.body) if is_f32_sum(i)}
    wanted = {operand.value for i in sums.values() for operand in i.operands}
    held: dict[int, Tensor] = {}

    def observe(leaf: int, tensor: Tensor) -> Tensor:
        if leaf in sums:
            factors = [_factors(sums[leaf], k, held) for k in range(len(sums[leaf].operands))]
            tensor = torch.from_numpy(hardware.sum(factors, precision)).view(tensor.shape)
        if leaf in wanted:
            held[leaf] = tensor
        return tensor

    return observe


def _factors(i: Instruction, operand: int, held: dict[int, Tensor]) -> Floats:
    view = View.of_access(i.operands[operand], i.index_space)
    read: Floats = view.on(held[i.operands[operand].value]).expand(i.index_space).reshape(i.numel, -1).numpy()
    return read
