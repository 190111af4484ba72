"""The interpreter of deviating trainers: honest values are replaced while a step is interpreted.

A replaced value is used by everything after it: in the step, in later steps and in the evidence. So a `Cheat`, which
replaces one value of one step, is the strongest form of a local cheat: its trees, records and openings all agree with
each other, and only recomputing the one changed number can convict it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

import torch
from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.data.tensors import identity
from tiebreak.engine.run.interpreter import Interpreter, Observer, State, StepResult
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import DType, Opcode, Slot, SourceKind
from tiebreak.protocol.program.program import Program

T = TypeVar("T")
Change = Callable[[Tensor], Tensor]
"""Maps an honest value to its replacement, without writing to the honest tensor."""
Tamper = Callable[[int], Observer | None]
"""Maps a step to the observer with which a cheat replaces honest values (None: nothing is replaced)."""
Redone = Mapping[int, Mapping[int, Tensor]]
"""Maps an instruction to replacements of its operands, by the value that it reads."""


class Tampered(Interpreter):
    """An honest interpreter whose values are replaced on the way: a cheat computes with it."""

    def __init__(self, honest: Interpreter, tamper: Tamper) -> None:
        vars(self).update(vars(honest))  # plan and kernels, which take long to make, are shared
        self._tamper = tamper

    def step(
        self, number: int, state: State, data: State, observe: Observer | None = None, **options: Any
    ) -> StepResult:
        found = [observer for observer in (self._tamper(number), observe) if observer is not None]
        return super().step(number, state, data, together(*found) if found else None, **options)


def during(steps: Collection[int], observer: Callable[[int], Observer]) -> Tamper:
    """Deviates in these steps only; `observer` makes the observer of a step."""
    return lambda step: observer(step) if step in steps else None


def putting(changes: Mapping[int, Change]) -> Observer:
    """Changes the values at these leaves of the value tree."""
    return lambda leaf, tensor: changes[leaf](tensor) if leaf in changes else tensor


def together(*observers: Observer) -> Observer:
    """Applies several observers, one after the other."""

    def observe(leaf: int, tensor: Tensor) -> Tensor:
        for each in observers:
            tensor = each(leaf, tensor)
        return tensor

    return observe


def redoing(program: Program, arithmetic: Arithmetic, step: int, redone: Redone) -> Observer:
    """Executes some instructions with other operands, such as another seed, learning rate or step."""
    wanted = {operand.value for index in redone for operand in program.body[index].operands}
    held: dict[int, Tensor] = {}

    def observe(leaf: int, tensor: Tensor) -> Tensor:
        if leaf in redone:
            instruction = program.body[leaf]
            read = [redone[leaf].get(operand.value, held.get(operand.value)) for operand in instruction.operands]
            tensor = arithmetic.execute(instruction, [x for x in read if x is not None], step - 1)
        if leaf in wanted:
            held[leaf] = tensor
        return tensor

    return observe


def committing(program: Program, choose: Callable[[str, Tensor, Tensor], Tensor]) -> Observer:
    """Replaces committed state. `choose` gets an entry's name, its new value and its old value."""
    sources, commits = state_sources(program), commits_by_leaf(program)
    old: dict[str, Tensor] = {}

    def observe(leaf: int, tensor: Tensor) -> Tensor:
        if leaf in sources:
            old[sources[leaf]] = tensor
        if leaf in commits:
            return choose(commits[leaf], tensor, old[commits[leaf]])
        return tensor

    return observe


def state_sources(program: Program) -> dict[int, str]:
    """The instructions that read the state, with the entries that they read."""
    return {
        index: i.params.name
        for index, i in enumerate(program.body)
        if i.opcode == Opcode.SOURCE and i.function == SourceKind.STATE and isinstance(i.params, Slot)
    }


def commits_by_leaf(program: Program) -> dict[int, str]:
    """The leaves of the value tree that are commits, with the state entries that they write."""
    return {program.leaf_of_commit(slot): name for slot, name in enumerate(program.state_spec())}


def only(program: Program, opcode: Opcode, reads: str | None = None) -> int:
    """The only instruction with this opcode, among those that read the data entry `reads` if it is given.

    Raises `ConfigurationError` if there are none or several.
    """
    sources = {n for n, i in enumerate(program.body) if isinstance(i.params, Slot) and i.params.name == reads}
    found = [
        n
        for n, i in enumerate(program.body)
        if i.opcode == opcode and (reads is None or any(operand.value in sources for operand in i.operands))
    ]
    if len(found) != 1:
        raise ConfigurationError(f"expected one {opcode.name} of {reads or 'anything'}, got {len(found)}")
    return found[0]


def source(program: Program, kind: SourceKind, name: str | None = None) -> int:
    """The only source of a kind, with this name if one is given.

    Raises `ConfigurationError` if there are none or several.
    """
    found = [
        n
        for n, i in enumerate(program.body)
        if i.opcode == Opcode.SOURCE
        and i.function == kind
        and (name is None or (isinstance(i.params, Slot) and i.params.name == name))
    ]
    if len(found) != 1:
        raise ConfigurationError(f"expected one source {kind.name} {name or ''}, got {len(found)}")
    return found[0]


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
    for index, i in enumerate(program.body):
        data = i.opcode == Opcode.SOURCE and i.function == SourceKind.DATA
        if data and isinstance(i.params, Slot) and i.params.name == name:
            return index
    raise ConfigurationError(f"expected data named {name!r}, got {sorted(program.data_spec())}")


def gathers_of(program: Program, name: str) -> list[int]:
    """The indices of the instructions that gather from a data entry."""
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
    """The indices of the float32 reductions with at least `terms` terms an element."""
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


def low_precision_sum(*, step: int, index: int, element: int) -> Cheat:
    """One sum of products is truncated to TF32, as on a GPU that was allowed to use it."""
    return Cheat(name="sum in TF32", step=step, leaf=index, element=element, change=as_tf32)


# ---------------------------------------------------------------- bytes and openings


def flipped(data: bytes, rng: Random) -> bytes:
    """The same bytes with one bit flipped."""
    place = rng.randrange(8 * len(data))
    changed = bytearray(data)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def one_changed(items: tuple[T, ...], rng: Random, change: Callable[[T], T]) -> tuple[T, ...]:
    """The same items with a random one changed."""
    place = rng.randrange(len(items))
    return (*items[:place], change(items[place]), *items[place + 1 :])
