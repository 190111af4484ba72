"""Reads logs in the form for tools (SPEC sections 5.1 and 5.2)."""

from math import prod

import numpy as np

from tiebreak.protocol.codec import Reader
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.reference import pack, unpack
from tiebreak.protocol.program.rounding import Direction, Entries, StepLog, check_tolerances


def entries_of(cases: Reader) -> dict[int, Entries]:
    """A step's entries from ascending records of u32 value, u32 element and u8 code; the program is not asked.

    Raises `EncodingError` for another order, or a code other than 1 and 2.
    """
    entries: dict[int, list[tuple[int, int]]] = {}
    before = -1
    while cases.remaining:
        place, code = cases.unsigned(8), cases.unsigned(1)
        if place <= before or code not in (Direction.DOWN, Direction.UP):
            raise EncodingError(f"expected ascending places with codes 1 or 2, got {place:016x} with {code}")
        before = place
        entries.setdefault(place >> 32, []).append((place & 0xFFFFFFFF, code))
    arrays = {value: np.array(pairs, dtype=np.int64) for value, pairs in entries.items()}
    return {value: Entries(pairs[:, 0], pairs[:, 1] == Direction.UP) for value, pairs in arrays.items()}


def read_logs(data: bytes, program: Program, steps: int) -> tuple[int, list[StepLog]]:
    """The tolerances and the steps' logs of a plain log file. Raises `VerificationError`."""
    reader, logs = Reader(data), list[StepLog]()
    tolerances = reader.unsigned(4)
    check_tolerances(tolerances)
    for step in range(1, steps + 1):
        entries = entries_of(Reader(reader.take(9 * reader.unsigned(4))))
        late = {
            name: pack(dtype, unpack(dtype, reader.take(dtype.size * prod(shape))))
            for name, (dtype, shape) in program.late_spec().items()
        }
        logs.append(StepLog(entries, late))
        logs[-1].check(program, step)
    reader.finish()
    return tolerances, logs
