"""max, argmax, sums of integers, gather, window, iota and constants in torch: what never rounds."""

from collections.abc import Sequence
from math import prod
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plan.views import View, ramp
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.protocol.program import isa
from tiebreak.protocol.program.isa import DType, Instruction

_BITS: Final = {DType.F32: torch.int32, DType.I64: torch.int64, DType.BOOL: torch.int8}
"""Signed integers of each dtype's size."""


def filled(shape: Sequence[int], dtype: DType, bits: int, device: torch.device) -> Tensor:
    """A tensor filled with one element, given by its bits as in `SourceConst`."""
    signed = int.from_bytes(bits.to_bytes(dtype.size, "little"), "little", signed=True)
    return torch.full(tuple(shape), signed, dtype=_BITS[dtype], device=device).view(TORCH_DTYPES[dtype])


def constant(i: Instruction, device: torch.device) -> Tensor:
    assert isinstance(i.params, isa.SourceConst)
    return filled((), i.dtype, i.params.bits, device)


def iota(instruction: Instruction, device: torch.device) -> Tensor:
    """An `iota`, which wraps around."""
    params, shape = instruction.params, instruction.shape
    assert isinstance(params, isa.IotaParams)
    return ramp(shape, params.strides, device).add_(params.offset).expand(shape).contiguous()


def extreme(instruction: Instruction, operands: Sequence[Tensor]) -> Tensor:
    """A `reduce` max or argmax."""
    access, shape = instruction.operands[0], instruction.shape
    x = View.of_access(access, instruction.index_space).on(operands[0])
    dims = tuple(range(len(shape), x.dim()))
    # A dim that the operand ignores repeats its element: it has size 1 here, and its first position is the answer.
    if instruction.function == isa.ReduceFunction.MAX:
        found = x.amax(dims) if dims else x.clone()
        if found.is_floating_point():
            found = found.add_(0.0)
    else:
        found = _first_greatest(x, dims, instruction.reduction)
    return found.expand(shape).contiguous()


def _first_greatest(x: Tensor, dims: tuple[int, ...], reduction: Sequence[int]) -> Tensor:
    """The row-major index of the first NaN, else of the first of the greatest; torch.argmax promises no order."""
    if not dims:
        return torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    positions = ramp([x.shape[d] for d in dims], isa.row_major(tuple(reduction)), x.device)
    best = x.eq(x.amax(dims, keepdim=True))
    if x.is_floating_point():
        best = best.logical_or_(x.ne(x))  # with a NaN the maximum is NaN, and nothing equals it
    return torch.where(best, positions, prod(reduction)).amin(dims)


def wrapping_sum(i: Instruction, operands: Sequence[Tensor]) -> Tensor:
    """A `reduce` sum of integers, which wraps around."""
    x = View.of_access(i.operands[0], i.index_space).on(operands[0])
    rank = len(i.shape)
    x = x.expand((*x.shape[:rank], *i.reduction))
    total = x.sum(tuple(range(rank, x.dim()))) if i.reduction else x
    return total.expand(i.shape).clone(memory_format=torch.contiguous_format)


def gather(instruction: Instruction, operands: Sequence[Tensor], *, reads_values: bool) -> Tensor:
    """A `gather`; out-of-bounds indices give NaN, 0 or false. reads_values: as in `Options`."""
    params, shape = instruction.params, instruction.shape
    assert isinstance(params, isa.GatherParams)
    table, index = operands
    if table.device != index.device:  # the table did not fit on the device
        return gather(instruction, (table, index.to(table.device)), reads_values=True).to(index.device)
    j = View.of_access(instruction.operands[1], shape).on(index)
    inside = j.clamp(0, params.bound - 1)
    outside, j = inside != j, inside
    access = instruction.operands[0]
    place = j * params.index_stride + ramp(shape, access.strides, table.device) + access.offset
    found = table.reshape(-1).take(place).expand(shape).contiguous()
    if not reads_values or bool(outside.any()):
        found = found.masked_fill(outside, float("nan") if instruction.dtype == DType.F32 else 0)
    return found


def window(instruction: Instruction, operands: Sequence[Tensor]) -> Tensor:
    """A `window`: the first operand inside the box, the fill or the second operand outside."""
    params, shape = instruction.params, instruction.shape
    assert isinstance(params, isa.WindowParams)
    if instruction.function == isa.WindowFunction.FILL:
        out = filled(shape, instruction.dtype, params.fill, operands[0].device)
    else:
        out = torch.empty(shape, dtype=operands[1].dtype, device=operands[1].device)
        out.copy_(View.of_access(instruction.operands[1], shape).on(operands[1]))
    box = out
    for d, (lo, hi, step) in enumerate(zip(params.lo, params.hi, params.step, strict=True)):
        if (lo, hi, step) != (0, shape[d], 1):
            box = box[(slice(None),) * d + (slice(lo, hi, step),)]
    box.copy_(View.of_access(instruction.operands[0], params.extents).on(operands[0]))
    return out
