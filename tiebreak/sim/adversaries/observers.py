"""What stands in the place of honest values: observers, as an interpreter takes them, of whole ways to deviate.

All are strong: what is put in is used by everything after it, in the step, in later steps and in the evidence.
"""

from collections.abc import Callable, Collection, Mapping

from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.run.interpreter import Observer
from tiebreak.engine.run.train import Tamper
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import Opcode, Slot, SourceKind
from tiebreak.protocol.program.program import Program

Change = Callable[[Tensor], Tensor]
"""Honest value -> what is put in its place; the honest one is not written to."""
Redone = Mapping[int, Mapping[int, Tensor]]
"""By instruction: by value that it reads, what it reads instead."""


def during(steps: Collection[int], observer: Callable[[int], Observer]) -> Tamper:
    """Deviates in these steps; `observer` makes what a step needs."""
    return lambda step: observer(step) if step in steps else None


def putting(changes: Mapping[int, Change]) -> Observer:
    """Changes the values at these leaves of the value tree."""
    return lambda leaf, tensor: changes[leaf](tensor) if leaf in changes else tensor


def together(*observers: Observer) -> Observer:
    """One after the other."""

    def observe(leaf: int, tensor: Tensor) -> Tensor:
        for each in observers:
            tensor = each(leaf, tensor)
        return tensor

    return observe


def redoing(program: Program, arithmetic: Arithmetic, step: int, redone: Redone) -> Observer:
    """Executes some instructions with other operands than the program's: another seed, another rate, another step."""
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
    """Commits what `choose` makes of the name of a state entry, its new and its old value."""
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
    """The instructions that read the state, and the entries that they read."""
    return {
        number: i.params.name
        for number, i in enumerate(program.body)
        if i.opcode == Opcode.SOURCE and i.function == SourceKind.STATE and isinstance(i.params, Slot)
    }


def commits_by_leaf(program: Program) -> dict[int, str]:
    """The leaves of the value tree that are commits, and the state entries that they write."""
    return {program.leaf_of_commit(slot): name for slot, name in enumerate(program.state_spec())}


def only(program: Program, opcode: Opcode, reads: str | None = None) -> int:
    """The one instruction of a kind, if `reads` is given of those that read this data entry.

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
    """The one source of a kind, with this name if it has one. Raises `ConfigurationError` unless there is one."""
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
