"""The encoding of rounding logs: what goes in comes out, whatever it is; what is no log is refused by name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebreak.engine.logged import encoding
from tiebreak.protocol.commitments.log_tree import LogTree
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Direction, StepLog

from .log_cases import codes_of, entries, log_of, naive_sparse, peak_of, program_of, programs_and_logs, random_log, row

SMALL_BLOCKS = (1, 7, 64)


@given(programs_and_logs())
def test_log_positions_number_logged_elements_in_program_order(case: tuple[Program, StepLog]) -> None:
    program, log = case
    places = encoding.ElementOrder.of(program)
    naive = row(program)
    assert places.total == len(naive)
    assert [(value, e) for value in places.indices.tolist() for e in range(program.body[value].numel)] == naive
    by_place = {naive.index(where): direction for where, direction in codes_of(log).items()}
    place = np.array(sorted(by_place), dtype=np.int64)
    up = np.array([by_place[k] == Direction.UP for k in sorted(by_place)], dtype=np.bool_)
    assert dict(places.split(place, up)) == dict(log.entries)


@given(programs_and_logs(), st.integers(0, 2**64 - 1), st.sampled_from([*SMALL_BLOCKS, encoding.BLOCK]))
def test_sparse_log_encoding_round_trips(case: tuple[Program, StepLog], step: int, block: int) -> None:
    program, log = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "BLOCK", block)
        data = encoding.encode_sparse(log, program, step)
        found = encoding.decode_sparse(data, program, step)
        limit = encoding.max_sparse_bytes(program)
    assert found == log
    found.check(program, step)
    assert naive_sparse(data, program, block) == codes_of(log)
    assert LogTree(program, found).root == LogTree(program, log).root
    assert encoding.HEADER_BYTES <= len(data) <= limit


def test_sparse_log_encoding_gives_the_specified_bytes() -> None:
    """The format, by hand: three sums of 2, 4 and 1 elements; entries at places 1 (up), 2 (down) and 6 (up)."""
    program = program_of((2, 4, 1))
    log = log_of(program, [(1, Direction.UP), (2, Direction.DOWN), (6, Direction.UP)])
    header = bytes([1]) + (9).to_bytes(8, "big") + (3).to_bytes(8, "big")
    assert encoding.encode_sparse(log, program, 9) == header + bytes([1, 0, 0, 3, 1, 0, 3, 0, 0, 1, 0b10100000])


def test_log_gaps_of_every_byte_width_round_trip() -> None:
    """Places up to 5 * 2^30: one to five planes."""
    program = program_of((1 << 30,) * 5)
    values = encoding.ElementOrder.of(program).indices.tolist()
    for width in range(1, 6):
        k, element = divmod(min(256**width, 5 << 30) - 1, 1 << 30)
        log = StepLog({values[k]: entries([(element, True)])})
        data = encoding.encode_sparse(log, program, 1)
        assert data[encoding.HEADER_BYTES] == width
        assert encoding.decode_sparse(data, program, 1) == log


def test_encoding_a_long_log_takes_memory_in_proportion_to_its_entries() -> None:
    """Two million entries in 40 sums: 18 MB as arrays."""
    each, sums = 50_000, 40
    program = program_of((1 << 20,) * sums)
    one = random_log(program_of((1 << 20,)), each)
    (found,) = one.entries.values()
    log = StepLog(dict.fromkeys(encoding.ElementOrder.of(program).indices.tolist(), found))
    entries_bytes, encoded = 9 * each, list[bytes]()
    peak = peak_of(lambda: encoded.append(encoding.encode_sparse(log, program, 1)))
    assert peak < 2.2 * len(encoded[0]) + 3 * sums * entries_bytes + 64 * encoding.BLOCK
    # All entries, and once more those of a value, while its pieces are joined.
    assert (
        peak_of(lambda: encoding.decode_sparse(encoded[0], program, 1))
        < (sums + 3) * entries_bytes + 64 * encoding.BLOCK
    )
