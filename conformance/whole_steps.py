"""Runs whole programs on the integer reference: what one step of any program must compute, without torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType

from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.numbers.float32 import MAX_PRECISION
from tiebreak.protocol.program.isa import Instruction, Opcode, Slot, SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.reference import element, pack, unpack
from tiebreak.protocol.program.rounding import Direction, Rounding, StepLog, element_rounding


def execute(
    program: Program,
    state: Mapping[str, bytes],
    data: Mapping[str, bytes],
    step: int,
    precision: int = MAX_PRECISION,
    *,
    tolerances: int = 0,
    log: StepLog | None = None,
    change: Callable[[int, bytes], bytes] = lambda _, found: found,
) -> list[bytes]:
    """Run step `step` (from 1) of a validated program. Returns the data of every body value, in order.

    Under policy `logged`, pass the job's tolerances and the step's log, which must have been checked. `state`, `data`
    and the log's late data map names to tensor data. The new state consists of the values that the commits name
    (`new_state`). Only for small programs: each term takes microseconds.

    change: (number of the value, its data) -> other data, which the instructions after it read.
    """
    named = {SourceKind.STATE: state, SourceKind.DATA: data, SourceKind.LATE: {} if log is None else log.late}
    made: list[bytes] = []
    values: list[list[int]] = []
    for number, i in enumerate(program.body):
        if i.opcode == Opcode.SOURCE and isinstance(i.params, Slot):
            found = _source(i, i.params.name, named[SourceKind(i.function)])
        else:
            nearest = element_rounding(i, precision=precision, tolerances=tolerances)
            entries = None if log is None else log.entries.get(number)
            directions = {} if entries is None else dict(entries.directions())
            found = value_of(program, i, values, step, nearest, directions)
        made.append(change(number, found))
        values.append(unpack(i.dtype, made[-1]))
    return made


def value_of(
    program: Program,
    i: Instruction,
    values: Sequence[Sequence[int]],
    step: int,
    nearest: Rounding,
    directions: Mapping[int, Direction] = MappingProxyType({}),
) -> bytes:
    """The data of a value. `directions` maps the elements that the log mentions to their directions."""
    operands = [values[access.value] for access in i.operands]
    types = program.operand_dtypes(i)

    def read(operand: int, where: int) -> int:
        return operands[operand][where]

    logged = {k: replace(nearest, direction=direction) for k, direction in directions.items()}
    return pack(
        i.dtype, [element(i, k, read, types, step=step, rounding=logged.get(k, nearest)) for k in range(i.numel)]
    )


def _source(instruction: Instruction, name: str, entries: Mapping[str, bytes]) -> bytes:
    if name not in entries:
        raise EncodingError(f"expected an entry named {name}, got {sorted(entries)}")
    expected = prod(instruction.shape) * instruction.dtype.size
    if len(entries[name]) != expected:
        raise EncodingError(f"expected {expected} bytes for entry {name}, got {len(entries[name])}")
    return pack(instruction.dtype, unpack(instruction.dtype, entries[name]))


def new_state(program: Program, values: Sequence[bytes]) -> dict[str, bytes]:
    found = {}
    for commit in program.commits:
        if isinstance(commit.params, Slot):
            found[commit.params.name] = values[commit.operands[0].value]
    return found
