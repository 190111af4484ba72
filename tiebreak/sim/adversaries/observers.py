"""Observers that replace honest values while a step is interpreted. Deviating trainers are built from them.

A replaced value is used by everything after it: in the step, in later steps and in the evidence.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.run.interpreter import Interpreter, Observer, State, StepResult
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import Opcode, Slot, SourceKind
from tiebreak.protocol.program.program import Program

Change = Callable[[Tensor], Tensor]
"""Maps an honest value to its replacement, without writing to the honest tensor."""
Tamper = Callable[[int], Observer | None]
"""Maps a step to the observer with which a cheat replaces honest values (None: nothing is replaced)."""
Redone = Mapping[int, Mapping[int, Tensor]]
"""Maps an instruction to replacements of its operands, by the number of the value that it reads."""


class Tampered(Interpreter):
    """What a cheat computes with: an honest interpreter, whose values are replaced on the way."""

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
    wanted = {operand.value for number in redone for operand in program.body[number].operands}
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
        number: i.params.name
        for number, i in enumerate(program.body)
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
