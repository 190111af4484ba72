"""Members and results of chains of elementwise instructions, for every way of running them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.protocol.program.isa import DType, Instruction, MapFunction

Chained = Collection[MapFunction]
CHAINED: Final = frozenset(MapFunction) - {MapFunction.LOG, MapFunction.ERF, MapFunction.SIN, MapFunction.COS}
"""The functions of `map` that may be part of a chain on CPUs; on GPUs all may."""


@dataclass(frozen=True, slots=True)
class Member:
    """An instruction of a chain, and what becomes of its result."""

    number: int
    instruction: Instruction
    operand_dtypes: tuple[DType, ...]
    operand_numels: tuple[int, ...]
    exported: bool
    """Whether its result is used outside the chain."""
    sealed: bool
    """Whether its result is committed: NaN becomes canonical, and the kernel notes whether all elements are finite."""
    replaces: int | None = None
    """The value whose memory the result may reuse: this chain reads it in place, and nothing reads it afterwards."""


def sole_member(instruction: Instruction, operands: Sequence[Tensor]) -> Member:
    """One instruction as a chain of its own, whose value comes after those of the operands."""
    read = [operands[access.value] for access in instruction.operands]
    dtypes, numels = tuple(PROTOCOL_DTYPES[x.dtype] for x in read), tuple(x.numel() for x in read)
    return Member(len(operands), instruction, dtypes, numels, exported=True, sealed=True)


def common_numel(members: Sequence[Member]) -> int:
    """The number of elements of each member's result."""
    numel = members[0].instruction.numel
    # SAFETY: every register is a run of this many elements.
    if any(m.instruction.numel != numel for m in members):
        raise ValueError(f"expected members of {numel} elements, got {[m.instruction.numel for m in members]}")
    return numel


def check_value(tensor: Tensor, number: int, wanted: torch.dtype, numel: int, device: str) -> Tensor:
    """SAFETY: kernels read `numel` elements from the tensor's first on, and nothing else of it."""
    where = tensor.device.type
    if tensor.dtype != wanted or tensor.numel() != numel or not tensor.is_contiguous() or where != device:
        raise ValueError(
            f"value {number}: expected {numel} contiguous elements of {wanted} on {device}, got {tensor.dtype} "
            f"{tuple(tensor.shape)} on {tensor.device}"
        )
    return tensor


@dataclass(frozen=True, slots=True)
class Result:
    """The exported results of a chain by value number; for the sealed ones, whether all elements are finite."""

    tensors: dict[int, Tensor]
    finite: dict[int, bool]
