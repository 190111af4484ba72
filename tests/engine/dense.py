"""The paper's encoding of a step's rounding log, for comparison: a base-3 digit for every element, five in a byte.

The digits are those of Algorithm 4: 0 down, 1 nothing, 2 up. The elements of all logged sums stand in program order;
byte k holds elements 5k to 5k + 4, the first with weight 81, the last with weight 1. Unused digits of the last byte are
1. There is no header: the program gives the length of the file, and its keeper knows which step it belongs to.

Files are written and read in blocks, at a cost per byte and per entry and not per element.
"""

from collections.abc import Iterator
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from tiebreak.engine.logged.encoding import ElementOrder, joined
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.step_log import Entries, Integers, Mask, StepLog

DIGITS: Final = 5
NOTHING: Final = 121
"""Five digits 1."""
MAX_BYTE: Final = 242
BLOCK_BYTES: Final = 1 << 20
_WEIGHTS: Final = np.array([81, 27, 9, 3, 1], dtype=np.int64)
_DIGITS_OF: Final = np.arange(MAX_BYTE + 1)[:, None] // _WEIGHTS % 3
_Bytes = NDArray[np.uint8]


def naive_bytes(program: Program) -> int:
    """The size with one byte per element, to which the paper's packing is compared."""
    return ElementOrder.of(program).total


def dense_bytes(program: Program) -> int:
    """The size with five elements per byte."""
    return -(-naive_bytes(program) // DIGITS)


def write_dense(log: StepLog, program: Program, step: int, file: BinaryIO) -> None:
    """Writes the log of a step. Raises `LogError` for one that is impossible for the program."""
    log.check(program, step)
    places, size = ElementOrder.of(program), dense_bytes(program)
    for first in range(0, size, BLOCK_BYTES):
        block = np.full(min(BLOCK_BYTES, size - first), NOTHING, dtype=np.uint8)
        for place, up in _within(log, places, first * DIGITS, (first + len(block)) * DIGITS):
            change = np.where(up, 1, -1) * _WEIGHTS[place % DIGITS]
            np.add.at(block, place // DIGITS, change.astype(np.uint8))  # modulo 256, but the final sum is within 242
        file.write(block.data)


def read_dense(file: BinaryIO, program: Program, step: int) -> StepLog:
    """The log of a step, from the rest of a file. Raises `EncodingError`."""
    places, size = ElementOrder.of(program), dense_bytes(program)
    found: dict[int, list[Entries]] = {}
    for first in range(0, size, BLOCK_BYTES):
        raw = file.read(min(BLOCK_BYTES, size - first))
        if len(raw) != min(BLOCK_BYTES, size - first):
            raise _error(step, f"truncated: expected {size} bytes, got {first + len(raw)}")
        for value, entries in _entries_in(np.frombuffer(raw, dtype=np.uint8), first, places, step):
            found.setdefault(value, []).append(entries)
    if file.read(1):
        raise _error(step, f"expected the end after {size} bytes, got more")
    return StepLog({value: joined(pieces) for value, pieces in found.items()})


def _within(log: StepLog, places: ElementOrder, first: int, last: int) -> Iterator[tuple[Integers, Mask]]:
    """The places, relative to `first`, and directions of the entries whose place is in this range."""
    low, high = np.searchsorted(places.starts, (first, last), side="right")
    for k in range(max(int(low) - 1, 0), min(int(high), len(places.values))):
        entries = log.entries.get(int(places.values[k]))
        if entries is not None:
            start = int(places.starts[k])
            a, b = np.searchsorted(entries.elements, (first - start, last - start))
            yield entries.elements[a:b] + (start - first), entries.up[a:b]


def _entries_in(block: _Bytes, first: int, places: ElementOrder, step: int) -> Iterator[tuple[int, Entries]]:
    """The entries of a block whose first byte has number `first`."""
    said = np.flatnonzero(block != NOTHING)
    wrong = np.flatnonzero(block[said] > MAX_BYTE)
    if wrong.size:
        byte = int(said[wrong[0]])
        raise _error(step, f"byte {first + byte}: expected at most {MAX_BYTE}, got {block[byte]}")
    rows, columns = np.nonzero(_DIGITS_OF[block[said]] != 1)
    place = (first + said[rows]) * DIGITS + columns
    if len(place) and place[-1] >= places.total:
        raise _error(step, f"byte {place[-1] // DIGITS}: expected nothing after {places.total} elements, got a digit")
    up = _DIGITS_OF[block[said[rows]], columns] == 2
    yield from places.split(place, up)


def _error(step: int, rule: str) -> EncodingError:
    return EncodingError(f"dense rounding log of step {step}, {rule}")
