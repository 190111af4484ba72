"""Shows what the engine executes, unit by unit, for whoever looks for the place where two runs part.

With TIEBREAK_TRACE=1 each unit is a line on stderr: the step, its instructions by index and by name, the shape of the
last result, the back-end, the time until it returned (a GPU may still be at work), and the place in the model. Nothing
else changes.
"""

import sys
from time import perf_counter
from typing import Any

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.run.schedule import Unit
from tiebreak.protocol.program.isa import Instruction, Opcode
from tiebreak.protocol.program.program import Program


def show(step: int, executor: Any, program: Program, arithmetic: Arithmetic) -> None:
    """Lets an executor of a step (`interpreter.Planned`) show each unit once it was executed."""
    execute = executor.execute

    def shown(unit: Unit, chain: Any) -> None:
        started = perf_counter()
        execute(unit, chain)
        took = 1e3 * (perf_counter() - started)
        sys.stderr.write(f"step {step}, {describe(unit, program, arithmetic)}, {took:.3f} ms\n")

    executor.execute = shown


def describe(unit: Unit, program: Program, arithmetic: Arithmetic) -> str:
    """A unit that was executed, in words."""
    members = [program.body[n] for n in unit.members]
    last, backend = members[-1], arithmetic.backend
    by = "given" if last.opcode == Opcode.SOURCE else "torch" if id(last) in backend.left else backend.name
    indices = str(unit.members[0]) if len(members) == 1 else f"{unit.members[0]} to {unit.members[-1]}"
    size = " x ".join(map(str, last.shape)) or "scalar"
    return f"{indices}: {' '.join(map(_name, members))}, {last.dtype.name} {size}, {by}, {last.origin or '-'}"


def _name(i: Instruction) -> str:
    function = getattr(i.function, "name", "")
    return f"{i.opcode.name}.{function}".rstrip(".").lower()
