"""Cheating trainers that change one honest value of one step and compute everything after it consistently.

This is the strongest form of a local cheat. Its trees, records and openings all agree with each other, so that only
recomputing the one changed number can convict it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tiebreak.engine.data.tensors import identity
from tiebreak.engine.run.interpreter import Observer
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import DType, Opcode, Slot, SourceKind
from tiebreak.protocol.program.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheat:
    """Replaces element `element` of the value at `leaf` of the value tree in step `step`."""

    name: str = "one number"
    step: int
    leaf: int
    element: int
    change: Callable[[Tensor], Tensor]
    """Maps the old element (rank 0) to the new one."""

    def tamper(self, step: int) -> Observer | None:
        return self._observe if step == self.step else None

    def _observe(self, leaf: int, tensor: Tensor) -> Tensor:
        if leaf != self.leaf:
            return tensor
        changed = tensor.clone()
        flat = changed.view(-1)
        flat[self.element] = self.change(flat[self.element])
        if identity(changed) == identity(tensor):  # compared as bits: -0 differs from +0, and a NaN equals itself
            raise ConfigurationError(f"{self.name}: expected the change to change something")
        return changed


def _source_of(program: Program, name: str) -> int:
    for number, i in enumerate(program.body):
        data = i.opcode == Opcode.SOURCE and i.function == SourceKind.DATA
        if data and isinstance(i.params, Slot) and i.params.name == name:
            return number
    raise ConfigurationError(f"expected data named {name!r}, got {sorted(program.data_spec())}")


def gathers_of(program: Program, name: str) -> list[int]:
    """The numbers of the instructions that gather from a data entry."""
    source = _source_of(program, name)
    return [n for n, i in enumerate(program.body) if i.opcode == Opcode.GATHER and i.operands[0].value == source]


def poisoned_label(program: Program, *, labels: str, step: int, element: int, classes: int) -> Cheat:
    """One example of one batch gets the next class as its label."""
    return Cheat(
        name="poisoned label",
        step=step,
        leaf=gathers_of(program, labels)[0],
        element=element,
        change=lambda label: (label + 1) % classes,
    )


def changed_learning_rate(program: Program, *, step: int, factor: float) -> Cheat:
    """One step uses another learning rate than the agreed schedule's."""
    return Cheat(
        name="changed learning rate",
        step=step,
        leaf=gathers_of(program, "learning_rate")[0],
        element=0,
        change=lambda rate: rate * factor,
    )


def flip_bit(value: Tensor, bit: int) -> Tensor:
    """A float32 of rank 0 with one bit of its pattern flipped."""
    mask = torch.tensor(1 << bit if bit < 31 else -(1 << 31), dtype=torch.int32, device=value.device)
    return (value.reshape(1).view(torch.int32) ^ mask).view(torch.float32).reshape(())


def flipped_weight_bit(program: Program, *, state: str, step: int, element: int, bit: int = 0) -> Cheat:
    """One bit of one weight differs in the state after a step."""
    slots = list(program.state_spec())
    if state not in slots:
        raise ConfigurationError(f"expected a state entry, got {state!r}; there are {slots[:5]} ...")
    return Cheat(
        name="flipped weight bit",
        step=step,
        leaf=program.leaf_of_commit(slots.index(state)),
        element=element,
        change=lambda weight: flip_bit(weight, bit),
    )


def long_sums(program: Program, terms: int) -> list[int]:
    """The numbers of the float32 reductions with at least `terms` terms an element."""
    return [
        n
        for n, i in enumerate(program.body)
        if i.opcode == Opcode.REDUCE and i.function == 0 and i.dtype == DType.F32 and i.terms >= terms
    ]


TF32_MASK = -(1 << 13)
"""Clears the fraction bits that TF32 lacks."""


def as_tf32(value: Tensor) -> Tensor:
    """A float32 of rank 0, truncated to TF32's 10 fraction bits."""
    return (value.reshape(1).view(torch.int32) & TF32_MASK).view(torch.float32).reshape(())


def low_precision_sum(*, step: int, leaf: int, element: int) -> Cheat:
    """One sum of products is truncated to TF32, as on a GPU that was allowed to use it."""
    return Cheat(name="sum in TF32", step=step, leaf=leaf, element=element, change=as_tf32)
