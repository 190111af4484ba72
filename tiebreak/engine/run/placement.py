"""Placement of a job's data while its steps run: on the device, except tables that do not fit there.

A batch is gathered from its dataset. A dataset that only gathers read may therefore stay on the CPU, mapped from its
file: the indices are sent there and the gathered rows come back. The placement does not affect any result.
"""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.backend import free_memory
from tiebreak.engine.run.schedule import slot_name
from tiebreak.protocol.program.isa import Opcode, SourceKind
from tiebreak.protocol.program.program import Program

SHARE: Final = 2
"""Tables may take 1/SHARE of the device's free memory; the rest is for the steps."""


def tables(program: Program) -> frozenset[str]:
    """The names of data that only gathers read, and only as their table."""
    otherwise = {commit.operands[0].value for commit in program.commits}
    for instruction in program.body:
        first = 1 if instruction.opcode == Opcode.GATHER else 0
        otherwise |= {operand.value for operand in instruction.operands[first:]}
    return frozenset(slot_name(program.body[n]) for n in program.sources(SourceKind.DATA) if n not in otherwise)


def place(
    program: Program, data: Mapping[str, Tensor], device: torch.device, room: int | None = None
) -> dict[str, Tensor]:
    """The data, contiguous, on the device, except tables (from the smallest up) that exceed `room` bytes in total.

    Those tables stay on the CPU. room: by default half of the free memory on a CUDA device, and unlimited elsewhere.
    """
    if room is None and (free := free_memory(device)) is not None:
        room = free // SHARE
    left = {name for name in data if name in tables(program)} if room is not None else set()
    for name in sorted(left, key=lambda name: (data[name].nbytes, name)):
        assert room is not None
        if data[name].nbytes > room:
            break
        room -= data[name].nbytes
        left.discard(name)
    return {name: (tensor.cpu() if name in left else tensor.to(device)).contiguous() for name, tensor in data.items()}
