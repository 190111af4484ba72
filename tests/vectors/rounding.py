"""Vectors of policy `logged`: sums rounded along a log, and the log trees of a small program (SPEC section 5.1)."""

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import numpy as np

from tests.protocol.instructions import committed, const, reduced, scattered, source
from tests.vectors.inputs import Stream
from tests.vectors.instructions import hex_of
from tiebreak.protocol.commitments.log_tree import LogTree, code_in, depth_of_value, logs_tree, word_leaf
from tiebreak.protocol.commitments.records import chunk_count
from tiebreak.protocol.numbers.float32 import INF, MAX_PRECISION, MIN_PRECISION, decode
from tiebreak.protocol.program.accumulator import SUM_EXPONENT, Accumulator, Kind, encode, finish
from tiebreak.protocol.program.isa import Access, DType, ReduceFunction, SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import MAX_TOLERANCE, MIN_TOLERANCE, Direction, Entries, Rounding, StepLog

Json = dict[str, Any]
_PRECISIONS: Final = (16, 17, 20, 23, 24, 29, 32)
_NO_CODE: Final = 3
"""What a word may hold and no log says."""


# ---------------------------------------------------------------- rounding.json


def _lower_neighbours(precision: int, s: Stream) -> Iterator[int]:
    """Patterns d: subnormal, at the ends of binades, even and odd, the greatest of the format."""
    step = 1 << (MAX_PRECISION - precision)
    yield from (0, step, 0x00800000 - step, 0x00800000, 0x3F800000 - step, 0x3F800000, INF - 2 * step, INF - step)
    for _ in range(4):
        yield s.bits(31) % INF // step * step


def _units(pattern: int) -> int:
    """The number of a pattern in units of 2^-298; of infinity, 2^128."""
    if pattern == INF:
        return 1 << (128 - SUM_EXPONENT)
    n, e = decode(pattern)
    return n << (e - SUM_EXPONENT)


def _near(d: int, u: int, tolerance: int) -> Iterator[int]:
    """Sums at the middle of d and u, at both ends of the tolerance and one unit beside them."""
    middle, width = (d + u) // 2, (u - d) >> tolerance
    yield middle
    for side in (width, -width):
        yield from (middle + side - 1, middle + side, middle + side + 1)


def _cases() -> Iterator[tuple[int, Rounding, int]]:
    """(sum, rounding, code): codes 0 and 3 and tolerance 0 round to nearest."""
    s = Stream("rounding along a log")
    for precision in _PRECISIONS:
        step = 1 << (MAX_PRECISION - precision)
        for pattern in _lower_neighbours(precision, s):
            d, u = _units(pattern), _units(pattern + step)
            tolerance = (MIN_TOLERANCE, 24, MAX_TOLERANCE, MIN_TOLERANCE + s.below(40))[s.below(4)]
            for value in _near(d, u, tolerance):
                for code in (Direction.DOWN, Direction.UP):
                    rounding = Rounding(precision=precision, tolerance=tolerance, direction=code)
                    yield (-value if s.bits(1) else value), rounding, code
            plain = Rounding(precision=precision, tolerance=tolerance)
            yield (d + u) // 2, plain, (Direction.NONE, _NO_CODE)[s.bits(1)]
            untold = Rounding(precision=precision, direction=Direction(1 + s.bits(1)))
            yield (d + u) // 2 + 1, untold, untold.direction
            yield d, Rounding(precision=precision, tolerance=MIN_TOLERANCE, direction=Direction.UP), Direction.UP
    for precision in (MIN_PRECISION, MAX_PRECISION):  # no number is above 2^128
        down = Rounding(precision=precision, tolerance=MIN_TOLERANCE, direction=Direction.DOWN)
        yield 1 << (128 - SUM_EXPONENT), down, Direction.DOWN
        yield 3 << (200 - SUM_EXPONENT), down, Direction.DOWN


def roundings() -> Json:
    """Records: 97-byte encoding of a sum ‖ u32 rounding ‖ u32 bits."""
    blob, count = bytearray(), 0
    for value, rounding, code in _cases():
        held = Accumulator(kind=Kind.F32_SUM, value=value)
        packed = rounding.precision | rounding.tolerance << 8 | code << 16
        blob += encode(held) + packed.to_bytes(4, "big") + finish(held, rounding).to_bytes(4, "big")
        count += 1
    return {"count": count, "cases": hex_of(bytes(blob))}


# ---------------------------------------------------------------- logs.json

LARGE: Final = 1000
"""Elements of the longest value: 8 chunks, the last of them not full."""
PLAIN, PRODUCTS, SCATTER, LOSS = 1, 2, 5, 6


@cache
def program() -> Program:
    """Logged sums of several chunks, of one and of a part of one, between values that are never logged."""
    f32 = DType.F32
    one = Access(0, 0, (1, 0))
    body = (
        source(SourceKind.STATE, "w", f32, LARGE),
        reduced(f32, (LARGE,), (1,), one),
        reduced(f32, (3, 100), (2,), Access(0, 5, (100, 1, 1)), Access(1, 0, (0, 1, 1))),
        reduced(f32, (300,), (2,), one, function=ReduceFunction.MAX),
        const(1, DType.I64),
        scattered((129,), (5,), Access(0, 0, (0, 1)), Access(4, 0, (0, 0)), match=(1,)),
        reduced(f32, (), (129,), Access(5, 0, (1,))),
    )  # fmt: skip
    commit = committed("w", f32, (LARGE,), 1)
    found = Program(body, (commit,))
    found.validate()
    return found


def _entries(s: Stream, numel: int, count: int) -> Entries:
    elements = sorted({s.below(numel) for _ in range(count)})
    up = [s.bits(1) == 1 for _ in elements]
    return Entries(np.array(elements, dtype=np.int64), np.array(up, dtype=np.bool_))


def _logs() -> Iterator[StepLog]:
    """Logs of the steps of one segment: nothing, the first and last elements, some, all of one value."""
    s = Stream("logs")
    ends = Entries(np.array([0, LARGE - 1], dtype=np.int64), np.array([True, False]))
    yield StepLog()
    yield StepLog({PLAIN: ends, LOSS: _entries(s, 1, 1)})
    for share in (3, 60):
        sums = (PLAIN, PRODUCTS, SCATTER)
        yield StepLog({value: _entries(s, program().body[value].numel, share) for value in sums})
    full = np.arange(program().body[SCATTER].numel, dtype=np.int64)
    yield StepLog({SCATTER: Entries(full, full % 3 == 0)})


def _openings(tree: LogTree) -> Iterator[Json]:
    for value in (PLAIN, PRODUCTS, SCATTER, LOSS):
        for chunk in range(chunk_count(DType.F32, program().body[value].shape)):
            word = tree.word(value, chunk)
            yield {
                "value": value,
                "chunk": chunk,
                "position": value << depth_of_value(program(), value) | chunk,
                "word": hex_of(word),
                "leaf": hex_of(word_leaf(word)),
                "siblings": hex_of(b"".join(tree.proof(value, chunk))),
            }


def logs() -> Json:
    """A program, the logs of five steps, every word with its proof, and the tree over the step logs."""
    steps, trees = [], []
    for number, log in enumerate(_logs(), 1):
        log.check(program(), number)
        tree = LogTree(program(), log)
        trees.append(tree)
        entries = b"".join(
            value.to_bytes(4, "big") + element.to_bytes(4, "big") + bytes([code])
            for value, found in log.entries.items()
            for element, code in found.directions()
        )
        openings = list(_openings(tree))
        steps.append(
            {"entries": hex_of(entries), "stepLog": hex_of(tree.root), "count": len(openings), "openings": openings}
        )
    over = logs_tree([tree.root for tree in trees])
    proofs = [hex_of(b"".join(over.proof(place))) for place in range(len(trees))]
    words = bytes(range(32))
    return {
        "program": hex_of(program().encode()),
        "depth": program().half_depth,
        "count": len(steps),
        "steps": steps,
        "logRoot": hex_of(over.root),
        "logProofs": proofs,
        "word": hex_of(words),
        "codes": hex_of(bytes(code_in(words, place) for place in range(128))),
    }
