"""The forward part of a step alone: the loss, without gradients and without a new state.

The loss of a step is bound to its checkpoint: by the record if it is the checkpoint's own step, and otherwise by the
ring of losses in its state (docs/decisions/trees-and-hashes.md). Results are defined by their instructions, so
computing fewer of them changes no bit of those that are left.
"""

from dataclasses import replace

import torch

from tiebreak.engine.capture.compile import TELEMETRY
from tiebreak.engine.run.interpreter import State, loss_bits
from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.program import Program


def loss_alone(program: Program) -> Program:
    """The instructions that the loss needs, for an interpreter. They commit nothing, so no job is about their root."""
    needed = {len(program.body) - 1}
    for number in range(len(program.body) - 1, -1, -1):
        if number in needed:
            needed |= {operand.value for operand in program.body[number].operands}
    at = {number: place for place, number in enumerate(sorted(needed))}

    def moved(instruction: Instruction) -> Instruction:
        operands = tuple(replace(operand, value=at[operand.value]) for operand in instruction.operands)
        return replace(instruction, operands=operands)

    return Program(body=tuple(moved(program.body[number]) for number in sorted(needed)), commits=())


def losses_in(state: State, steps: int) -> list[int]:
    """The bits of the losses of a segment of `steps` steps, from the state at its end; empty if it has no ring."""
    ring = state.get(TELEMETRY)
    if ring is None or ring.dtype != torch.float32 or ring.dim() != 1 or len(ring) < steps:
        return []
    return [loss_bits(ring[place]) for place in range(steps)]
