"""Runs whole programs on the integer reference: what one step of any program must compute, without torch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.numbers.float32 import MAX_PRECISION
from tiebreak.protocol.program.isa import Instruction, Opcode, Slot, SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.reference import element, pack, unpack
from tiebreak.protocol.program.rounding import Direction, Rounding, element_rounding
from tiebreak.protocol.program.step_log import NO_LOG, StepLog


def execute(
    program: Program,
    state: Mapping[str, bytes],
    data: Mapping[str, bytes],
    step: int,
    precision: int = MAX_PRECISION,
    *,
    tolerances: int = 0,
    log: StepLog = NO_LOG,
) -> list[bytes]:
    """Run step `step` (from 1) of a validated program. Returns the data of every body value, in order.

    Under policy `logged`, pass the job's tolerances and the step's log, which must have been checked. `state` and
    `data` map names to tensor data. The new state consists of the values that the commits name (`new_state`). Only for
    small programs: each term takes microseconds.
    """
    values: list[list[int]] = []
    for value, instruction in enumerate(program.body):
        if instruction.opcode == Opcode.SOURCE and isinstance(instruction.params, Slot):
            entries = state if instruction.function == SourceKind.STATE else data
            values.append(_source(instruction, instruction.params.name, entries))
            continue
        nearest = element_rounding(instruction, precision=precision, tolerances=tolerances)
        directions = dict(log.entries[value].directions()) if value in log.entries else {}
        values.append(_run(program, instruction, values, step, nearest, directions))
    return [pack(i.dtype, elements) for i, elements in zip(program.body, values, strict=True)]


def _run(
    program: Program,
    instruction: Instruction,
    values: Sequence[Sequence[int]],
    step: int,
    nearest: Rounding,
    directions: Mapping[int, Direction],
) -> list[int]:
    """The elements of a value. `directions` maps the elements that the log mentions to their directions."""
    operands = [values[access.value] for access in instruction.operands]
    types = program.operand_dtypes(instruction)

    def read(operand: int, where: int) -> int:
        return operands[operand][where]

    logged = {k: replace(nearest, direction=direction) for k, direction in directions.items()}
    return [
        element(instruction, k, read, types, step=step, rounding=logged.get(k, nearest))
        for k in range(instruction.numel)
    ]


def _source(instruction: Instruction, name: str, entries: Mapping[str, bytes]) -> list[int]:
    if name not in entries:
        raise EncodingError(f"expected an entry named {name}, got {sorted(entries)}")
    expected = prod(instruction.shape) * instruction.dtype.size
    if len(entries[name]) != expected:
        raise EncodingError(f"expected {expected} bytes for entry {name}, got {len(entries[name])}")
    return unpack(instruction.dtype, entries[name])


def new_state(program: Program, values: Sequence[bytes]) -> dict[str, bytes]:
    """The state after a step, from the values that `execute` returned."""
    found = {}
    for commit in program.commits:
        if isinstance(commit.params, Slot):
            found[commit.params.name] = values[commit.operands[0].value]
    return found
