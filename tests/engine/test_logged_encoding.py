"""Both encodings of rounding logs: what goes in comes out, whatever it is; what is no log is refused by name."""

import tracemalloc
from collections.abc import Callable
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiebreak.engine.logged import encoding
from tiebreak.engine.logged.encoding import (
    BLOCK,
    HEADER_BYTES,
    ElementOrder,
    decode_sparse,
    encode_sparse,
    max_sparse_bytes,
)
from tiebreak.protocol.commitments.log_tree import LogTree
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Direction, sum_kind
from tiebreak.protocol.program.step_log import LogError, StepLog

from . import dense
from .dense import dense_bytes, naive_bytes, read_dense, write_dense
from .log_cases import (
    MANY,
    codes_of,
    entries,
    log_of,
    naive_dense,
    naive_sparse,
    program_of,
    programs_and_logs,
    random_log,
    row,
)

SMALL_BLOCKS = (1, 7, 64)


def dense_of(log: StepLog, program: Program) -> bytes:
    file = BytesIO()
    write_dense(log, program, 1, file)
    return file.getvalue()


@given(programs_and_logs())
def test_places_are_the_elements_of_logged_sums_in_program_order(case: tuple[Program, StepLog]) -> None:
    program, log = case
    places = ElementOrder.of(program)
    naive = row(program)
    assert places.total == len(naive) == naive_bytes(program)
    assert [(value, e) for value in places.values.tolist() for e in range(program.body[value].numel)] == naive
    by_place = {naive.index(where): direction for where, direction in codes_of(log).items()}
    place = np.array(sorted(by_place), dtype=np.int64)
    up = np.array([by_place[k] == Direction.UP for k in sorted(by_place)], dtype=np.bool_)
    assert dict(places.split(place, up)) == dict(log.entries)


@given(programs_and_logs(), st.integers(0, 2**64 - 1), st.sampled_from([*SMALL_BLOCKS, BLOCK]))
def test_sparse_round_trip(case: tuple[Program, StepLog], step: int, block: int) -> None:
    program, log = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "BLOCK", block)
        data = encode_sparse(log, program, step)
        found = decode_sparse(data, program, step)
        limit = max_sparse_bytes(program)
    assert found == log
    found.check(program, step)
    assert naive_sparse(data, program, block) == codes_of(log)
    assert HEADER_BYTES <= len(data) <= limit


@given(programs_and_logs(), st.sampled_from([*SMALL_BLOCKS, dense.BLOCK_BYTES]))
def test_dense_round_trip(case: tuple[Program, StepLog], block: int) -> None:
    program, log = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "BLOCK_BYTES", block)
        data = dense_of(log, program)
        assert read_dense(BytesIO(data), program, 1) == log
    assert len(data) == dense_bytes(program) == -(-naive_bytes(program) // 5)
    assert naive_dense(BytesIO(data), program) == codes_of(log)


@given(programs_and_logs())
def test_sparse_to_dense_and_back_is_the_same_bytes(case: tuple[Program, StepLog]) -> None:
    program, log = case
    sparse, packed = encode_sparse(log, program, 1), dense_of(log, program)
    assert dense_of(decode_sparse(sparse, program, 1), program) == packed
    again = read_dense(BytesIO(packed), program, 1)
    assert encode_sparse(again, program, 1) == sparse
    assert LogTree(program, again).root == LogTree(program, log).root


def test_known_bytes() -> None:
    """The two formats, by hand: three sums of 2, 4 and 1 elements; entries at places 1 (up), 2 (down) and 6 (up)."""
    program = program_of((2, 4, 1))
    log = log_of(program, [(1, Direction.UP), (2, Direction.DOWN), (6, Direction.UP)])
    header = bytes([1]) + (9).to_bytes(8, "big") + (3).to_bytes(8, "big")
    assert encode_sparse(log, program, 9) == header + bytes([1, 0, 0, 3, 1, 0, 3, 0, 0, 1, 0b10100000])
    assert dense_of(log, program) == bytes([81 + 2 * 27 + 0 * 9 + 3 + 1, 81 + 2 * 27 + 9 + 3 + 1])


@pytest.mark.parametrize("count", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_whole_and_broken_blocks(count: int) -> None:
    program = program_of((40 * BLOCK,))
    log = random_log(program, count)
    assert log.count == count
    assert decode_sparse(encode_sparse(log, program, 2), program, 2) == log


def test_gaps_of_every_width() -> None:
    """Places up to 5 * 2^30: one to five planes."""
    program = program_of((1 << 30,) * 5)
    values = ElementOrder.of(program).values.tolist()
    for width in range(1, 6):
        k, element = divmod(min(256**width, 5 << 30) - 1, 1 << 30)
        log = StepLog({values[k]: entries([(element, True)])})
        data = encode_sparse(log, program, 1)
        assert data[HEADER_BYTES] == width
        assert decode_sparse(data, program, 1) == log


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda v: StepLog({v: entries([(5, True), (5, True)])}), "instruction {v}, element 5: element twice"),
        (lambda v: StepLog({v: entries([(5, True), (4, True)])}), "instruction {v}, element 4: unsorted"),
        (lambda v: StepLog({v: entries([(129, True)])}), "instruction {v}, element 129: out of range: expected an"),
        (lambda v: StepLog({v: entries([(-1, True)])}), "instruction {v}, element -1: out of range"),
        (lambda v: StepLog({v: entries([])}), "instruction {v}: expected as many directions as elements, at least one"),
        (lambda v: StepLog({0: entries([(0, True)])}), "instruction 0: expected a sum of f32"),
        (lambda v: StepLog({10**6: entries([(0, True)])}), "instruction 1000000: expected a sum of f32"),
        (lambda v: StepLog({v: entries([(1, True)]), v - 2: entries([(1, True)])}), "in order"),
    ],
)
def test_what_cannot_be_a_log_is_not_written(made: Callable[[int], StepLog], message: str) -> None:
    program = program_of(MANY)
    value = [value for value, body in enumerate(program.body) if sum_kind(body) is not None][1]
    with pytest.raises(LogError) as error:
        encode_sparse(made(value), program, 7)
    assert message.format(v=value) in str(error.value)
    assert "step 7" in str(error.value)
    with pytest.raises(LogError) as error:
        write_dense(made(value), program, 7, BytesIO())
    assert message.format(v=value) in str(error.value)


def peak_of(work: Callable[[], object]) -> int:
    """Bytes of the greatest allocation while it works, beyond what there was."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_of_a_long_log_goes_with_its_entries() -> None:
    """Ten million entries in 40 sums: 90 MB as arrays."""
    each, sums = 250_000, 40
    program = program_of((1 << 20,) * sums)
    one = random_log(program_of((1 << 20,)), each)
    (found,) = one.entries.values()
    log = StepLog(dict.fromkeys(ElementOrder.of(program).values.tolist(), found))
    entries_bytes, encoded = 9 * each, list[bytes]()
    peak = peak_of(lambda: encoded.append(encode_sparse(log, program, 1)))
    assert peak < 2.2 * len(encoded[0]) + 3 * sums * entries_bytes + 64 * BLOCK
    # All entries, and once more those of a value, while its pieces are joined.
    assert peak_of(lambda: decode_sparse(encoded[0], program, 1)) < (sums + 3) * entries_bytes + 64 * BLOCK


def test_memory_of_a_log_in_one_sum() -> None:
    """Two million entries of one value: a few arrays of that size, whole."""
    count = 2_000_000
    program = program_of((1 << 26,))
    log = random_log(program, count)
    data = encode_sparse(log, program, 1)
    assert peak_of(lambda: encode_sparse(log, program, 1)) < 2 * 9 * count + 64 * BLOCK
    assert peak_of(lambda: decode_sparse(data, program, 1)) < 3 * 9 * count + 64 * BLOCK


def test_memory_of_a_dense_log_goes_with_its_blocks() -> None:
    """2^26 elements, 13 MB as bytes, a thousand entries."""
    program = program_of((1 << 26,))
    log = random_log(program, 1000)

    class Sink(BytesIO):
        written = 0

        def write(self, data: object) -> int:
            self.written += len(memoryview(data))  # type: ignore[arg-type]
            return 0

    sink = Sink()
    assert peak_of(lambda: write_dense(log, program, 1, sink)) < 6 * dense.BLOCK_BYTES
    assert sink.written == dense_bytes(program) == 13_421_773
    file = BytesIO(dense_of(log, program))
    assert peak_of(lambda: read_dense(file, program, 1)) < 6 * dense.BLOCK_BYTES


def test_dense_refuses_what_is_no_log() -> None:
    program = program_of(MANY)
    log = log_of(program, [(0, Direction.UP), (715, Direction.DOWN)])
    good = dense_of(log, program)
    assert len(good) == 144
    for size in range(len(good)):
        with pytest.raises(EncodingError, match=rf"step 4, truncated: expected 144 bytes, got {size}$"):
            read_dense(BytesIO(good[:size]), program, 4)
    with pytest.raises(EncodingError, match="step 4, expected the end after 144 bytes, got more"):
        read_dense(BytesIO(good + b"y"), program, 4)
    for byte in range(243, 256):
        with pytest.raises(EncodingError, match=f"step 4, byte 70: expected at most 242, got {byte}"):
            read_dense(BytesIO(good[:70] + bytes([byte]) + good[71:]), program, 4)
    for digit in (0, 2):  # 716 elements: the last four digits are padding
        for weight in (27, 9, 3, 1):
            byte = good[-1] + (digit - 1) * weight
            with pytest.raises(EncodingError, match="byte 143: expected nothing after 716 elements, got a digit"):
                read_dense(BytesIO(good[:-1] + bytes([byte])), program, 4)


@settings(max_examples=40)
@given(programs_and_logs(), st.data())
def test_a_changed_digit_is_another_log(case: tuple[Program, StepLog], data: st.DataObject) -> None:
    """A byte of the dense encoding: refused, or the log of other codes, with another root. None is the same."""
    program, log = case
    raw = bytearray(dense_of(log, program))
    if not raw:
        return
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = read_dense(BytesIO(bytes(raw)), program, 1)
    except EncodingError:
        return
    found.check(program, 1)
    assert found != log
    assert LogTree(program, found).root != LogTree(program, log).root
