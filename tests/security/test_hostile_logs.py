"""A stranger's rounding logs as a weapon: bombs, lengths without end, impossible entries, steps out of place."""

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import zstandard

from tests.engine.log_cases import MANY, log_of, peak_of, program_of, random_log, row
from tiebreak.engine.logged.encoding import BLOCK, HEADER_BYTES, decode_sparse, encode_sparse, max_sparse_bytes
from tiebreak.engine.logged.files import LogFile
from tiebreak.protocol.codec import unsigned
from tiebreak.protocol.commitments.log_tree import LogTree
from tiebreak.protocol.errors import EncodingError, VerificationError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Direction, LogError
from tiebreak.protocol.tags import Digest

PROGRAM = program_of(MANY)
TOTAL = 716
JOB = Digest(bytes(range(32)))


def header(count: int, *, form: int = 1, step: int = 1) -> bytes:
    return unsigned(form, 1) + unsigned(step, 8) + unsigned(count, 8)


def part(kept: bytes) -> bytes:
    return unsigned(len(kept), 3) + kept


def zstd(plain: bytes, *, stated: bool = True, magic: bool = False) -> bytes:
    form = zstandard.FORMAT_ZSTD1 if magic else zstandard.FORMAT_ZSTD1_MAGICLESS
    parameters = zstandard.ZstdCompressionParameters(compression_level=1, format=form, write_content_size=stated)
    return zstandard.ZstdCompressor(compression_params=parameters).compress(plain)


def one_block(*planes: bytes, count: int, directions: bytes) -> bytes:
    return header(count) + unsigned(len(planes), 1) + b"".join(part(plane) for plane in planes) + part(directions)


ALL = zstd(bytes(700))
BITS = part(zstd(bytes(88)))  # 700 entries, all of them down


def of_700(plane: bytes) -> bytes:
    return header(700) + b"\1" + part(plane) + BITS


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (header(0, form=2), "expected format 1, got 2"),
        (header(0, step=2), "expected step 1, got 2"),
        (header(TOTAL + 1), "expected at most 716 entries, got 717"),
        (header(2**64 - 1), f"expected at most 716 entries, got {2**64 - 1}"),
        (header(0) + b"\0", "expected the end, got 1 more bytes"),
        (header(1), "truncated: expected 1 more bytes, got 0"),
        (header(1) + b"\0", "expected gaps of 1 to 2 bytes, got 0"),
        (header(1) + b"\3", "expected gaps of 1 to 2 bytes, got 3"),
        (header(1) + b"\1" + b"\0\0\0", "expected a part of 1 to 1 bytes, got 0"),
        (header(1) + b"\1" + b"\xff\xff\xff", "expected a part of 1 to 1 bytes, got 16777215"),
        (of_700(ALL[:-1]), "expected a Zstandard frame"),
        (of_700(ALL + b"\0"), "expected a Zstandard frame"),
        (of_700(ALL + ALL), "expected a Zstandard frame"),
        (of_700(b"\0" * 20), "expected a frame of 700 bytes, got one of"),
        (of_700(b"\xff" * 3), "expected a Zstandard frame"),
        (of_700(zstd(bytes(700), magic=True)), "expected a"),
        (of_700(zstd(bytes(699))), "expected a frame of 700 bytes, got one of 699"),
        (of_700(zstd(bytes(701))), "expected a frame of 700 bytes, got one of 701"),
        (of_700(zstd(bytes(700), stated=False)), "expected a frame of 700 bytes, got one of"),
        (one_block(b"\0", b"\0", count=1, directions=b"\0"), "expected gaps in as few bytes as they need, got 2"),
        (one_block(b"\0", count=1, directions=b"\x40"), "expected zeros after the directions of 1 entries"),
        (one_block(b"\0", count=1, directions=b"\0") + b"\0", "expected the end, got 1 more bytes"),
        (one_block(b"\0", count=1, directions=b"\0")[:-1], "truncated: expected 1 more bytes, got 0"),
    ],
)
def test_malformed_rounding_logs_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(EncodingError) as error:
        decode_sparse(data, PROGRAM, 1)
    assert message in str(error.value)
    assert "rounding log of step 1" in str(error.value)


def test_valid_counterparts_of_the_malformed_logs_decode() -> None:
    good = of_700(ALL)
    assert decode_sparse(good, PROGRAM, 1) == log_of(PROGRAM, dict.fromkeys(range(700), Direction.DOWN).items())
    assert decode_sparse(one_block(b"\0", count=1, directions=b"\x80"), PROGRAM, 1).count == 1


@pytest.mark.parametrize(
    ("gaps", "element"),
    [([716], 513), ([0, 715], 513), ([715, 0, 0], 513), ([60000], 59797), ([0] * 10 + [65535], 65342)],
)
def test_log_entry_beyond_the_last_element_is_refused(gaps: list[int], element: int) -> None:
    raw = np.array(gaps, dtype="<u2").view(np.uint8).reshape(-1, 2)
    data = one_block(raw[:, 0].tobytes(), raw[:, 1].tobytes(), count=len(gaps), directions=bytes((len(gaps) + 7) // 8))
    with pytest.raises(LogError) as error:
        decode_sparse(data, PROGRAM, 1)
    assert (error.value.step, error.value.index, error.value.element) == (1, row(PROGRAM)[-1][0], element)
    assert "out of range: expected an element below 513" in str(error.value)


def test_log_gaps_that_overflow_64_bits_are_refused() -> None:
    """Five planes of 0xff: 65,536 gaps of 2^40 each; three blocks of them. The first is beyond the end already."""
    program = program_of((1 << 30,) * 5)
    full = zstd(b"\xff" * BLOCK)
    block = b"\5" + part(full) * 5 + part(zstd(bytes(BLOCK // 8)))
    with pytest.raises(LogError, match=r"element \d+: out of range"):
        decode_sparse(header(3 * BLOCK) + block * 3, program, 1)


def is_refused_cheaply(frame: bytes, message: str) -> None:
    def attempt() -> None:
        with pytest.raises(EncodingError, match=message):
            decode_sparse(of_700(frame), PROGRAM, 1)

    assert peak_of(attempt) < 1 << 20


def parameters_of(frame: bytes) -> zstandard.FrameParameters:
    return zstandard.get_frame_parameters(frame, format=zstandard.FORMAT_ZSTD1_MAGICLESS)


@pytest.mark.parametrize("size", [1 << 30, (1 << 64) - 3])
def test_zstd_frame_that_claims_a_huge_size_is_refused_cheaply(size: int) -> None:
    """Descriptor of a single-segment frame with eight bytes of content size, then a run of that many zeros."""
    bomb = b"\xe0" + size.to_bytes(8, "little") + b"\x03\x00\x00" * 3
    assert parameters_of(bomb).content_size == size
    is_refused_cheaply(bomb, f"expected a frame of 700 bytes, got one of {size}")


def test_zstd_frame_larger_than_its_header_says_is_refused_cheaply() -> None:
    """A gigabyte of zeros in 30 KB, with a header that promises 700 bytes."""
    runs = b"".join((0x02 | last | (128 << 10) << 3).to_bytes(3, "little") + b"\0" for last in (0, 0, 0, 1))
    bomb = b"\x60" + (700 - 256).to_bytes(2, "little") + runs
    assert parameters_of(bomb).content_size == 700
    is_refused_cheaply(bomb, "expected a Zstandard frame")


def test_zstd_frame_with_a_gigabyte_window_is_refused_cheaply() -> None:
    frame = bytearray(zstd(bytes(700)))
    assert frame[0] & 0x20  # a single segment: no window of its own
    windowed = bytes([frame[0] & ~0x20, 20 << 3]) + bytes(frame[1:])
    assert (parameters_of(windowed).content_size, parameters_of(windowed).window_size) == (700, 1 << 30)
    is_refused_cheaply(windowed, f"expected a window of at most 65536 bytes, got {1 << 30}")


def damaged(data: bytes, program: Program, changes: Sequence[int]) -> dict[str, set[int]]:
    """Every byte changed in these ways: by outcome, the places at which it came. What comes out is always a log."""
    log = decode_sparse(data, program, 1)
    root = LogTree(program, log).root
    outcomes: dict[str, set[int]] = {"refused": set(), "another log": set(), "the same log": set()}
    for place in range(len(data)):
        for change in changes:
            try:
                found = decode_sparse(data[:place] + bytes([data[place] ^ change]) + data[place + 1 :], program, 1)
            except VerificationError:
                outcomes["refused"].add(place)
                continue
            found.check(program, 1)
            assert (found == log) == (LogTree(program, found).root == root)
            outcomes["the same log" if found == log else "another log"].add(place)
    return outcomes


def test_changed_log_bytes_are_refused_or_give_another_log() -> None:
    """Header, width, lengths, padding are refused; gaps and directions say something else, which has another root."""
    log = log_of(PROGRAM, [(1, Direction.UP), (7, Direction.DOWN), (300, Direction.UP)])
    data = encode_sparse(log, PROGRAM, 1)
    gaps, directions = {21, 22, 23, 27, 28, 29}, {33}
    assert len(data) == 34
    outcomes = damaged(data, PROGRAM, range(1, 256))
    # A low byte only moves entries; a high one soon moves them beyond the end, or is a zero too many.
    assert outcomes["another log"] == gaps | directions
    assert outcomes["refused"] == set(range(34)) - {21, 22, 23}
    assert not outcomes["the same log"]


def test_flipped_bits_in_a_compressed_log_rarely_keep_its_meaning() -> None:
    """A frame may say the same in other words (bits that Zstandard leaves free): the same log, with the same root."""
    log = log_of(PROGRAM, dict.fromkeys(range(0, 716, 2), Direction.UP).items())
    data = encode_sparse(log, PROGRAM, 1)
    assert len(data) < 80
    outcomes = damaged(data, PROGRAM, [1 << k for k in range(8)])
    assert outcomes["another log"]
    assert outcomes["refused"] >= set(range(HEADER_BYTES + 4))
    assert len(outcomes["the same log"]) <= 4


@pytest.mark.parametrize("block", [False, True])
def test_a_log_cut_at_any_byte_is_refused(block: bool) -> None:
    program = program_of((10 * BLOCK,)) if block else PROGRAM
    every_third = dict.fromkeys(range(0, 716, 3), Direction.UP)
    log = random_log(program, BLOCK + 5) if block else log_of(PROGRAM, every_third.items())
    data = encode_sparse(log, program, 1)
    near = 100 if block else len(data)
    sizes = {*range(near), *range(0, len(data), 997), *range(len(data) - near, len(data))}
    for size in sizes:
        with pytest.raises(EncodingError, match="truncated"):
            decode_sparse(data[:size], program, 1)


# ---- files


def frame(step: int, data: bytes, *, length: int | None = None) -> bytes:
    head = struct.pack(">QQ", step, len(data) if length is None else length)
    return head + struct.pack(">I", zlib.crc32(data, zlib.crc32(head))) + data


def hostile(path: Path, *frames: bytes, job: bytes = JOB, first: int = 1) -> LogFile:
    path.write_bytes(b"TBLOGS01" + job + unsigned(first, 8) + b"".join(frames))
    return opened(path)


def opened(path: Path) -> LogFile:
    logs = LogFile(path, PROGRAM, JOB, range(1, 4))
    logs.open()
    return logs


EMPTY = [frame(step, header(0, step=step)) for step in range(5)]


def test_log_files_with_misordered_or_extra_steps_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for frames, expected, got in (
        ((EMPTY[2],), 1, 2),
        ((EMPTY[1], EMPTY[1]), 2, 1),
        ((EMPTY[1], EMPTY[3]), 2, 3),
        ((EMPTY[0],), 1, 0),
    ):
        with pytest.raises(EncodingError, match=f"{path}: expected the log of step {expected}, got one of step {got}"):
            hostile(path, *frames)
    with pytest.raises(EncodingError, match=f"{path}: expected the end after the log of step 3, got 37 more bytes"):
        hostile(path, *EMPTY[1:5])
    with pytest.raises(EncodingError, match=f"{path}: expected the end after the log of step 3, got 1 more bytes"):
        hostile(path, *EMPTY[1:4], b"\0")
    assert hostile(path, *EMPTY[1:4]).steps == range(1, 4)


def test_log_lengths_beyond_the_limit_or_the_file_are_refused(tmp_path: Path) -> None:
    path, limit = tmp_path / "log", max_sparse_bytes(PROGRAM)
    for length in (0, HEADER_BYTES - 1, limit + 1, 2**63, 2**64 - 1):
        message = f"{path}: expected {HEADER_BYTES} to {limit} bytes for the log of step 1, got {length}"
        with pytest.raises(EncodingError, match=message):
            hostile(path, frame(1, b"", length=length))
    logs = hostile(path, EMPTY[1], frame(2, header(0, step=2), length=limit))
    assert logs.steps == range(1, 2)
    with pytest.raises(EncodingError, match="expected the log of step 2, got the end after 1 logs, and 37 bytes"):
        logs.read(2)


def test_log_frame_of_another_step_or_without_a_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logs = hostile(path, frame(1, header(0, step=2)), frame(2, b"x" * 40), frame(3, header(0, step=3) + b"\0"))
    for step, message in (
        (1, "expected step 1, got 2"),
        (2, "expected format 1, got 120"),
        (3, "expected the end, got 1 more bytes"),
    ):
        with pytest.raises(EncodingError) as error:
            logs.read(step)
        assert f"{path}: encoded rounding log of step {step}" in str(error.value)
        assert message in str(error.value)


def test_invalid_log_entry_error_names_file_step_and_element(tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = header(1) + b"\2" + part(b"\xff") + part(b"\xff") + part(b"\0")
    with pytest.raises(LogError) as error:
        hostile(path, frame(1, data)).read(1)
    assert (error.value.step, error.value.index, error.value.element) == (1, row(PROGRAM)[-1][0], 65535 - 203)
    assert str(path) in str(error.value)


def test_files_of_another_job_or_without_logs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with pytest.raises(EncodingError, match=f"{path}: expected logs of job {JOB.hex()}, got {bytes(32).hex()}"):
        hostile(path, job=bytes(32))
    with pytest.raises(EncodingError, match=f"{path}: expected a segment from step 1, got 4"):
        hostile(path, first=4)
    path.write_bytes(b"PK" * 40)
    with pytest.raises(EncodingError, match=f"{path}: expected a file of rounding logs, b'TBLOGS01', got b'PKPKPKPK'"):
        opened(path)
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "nothing"):
        with pytest.raises(EncodingError):
            opened(tmp_path / name)
    (tmp_path / "endless").symlink_to("/dev/zero")
    with pytest.raises(EncodingError, match="expected a plain file"):
        opened(tmp_path / "endless")


def test_sparse_terabyte_log_file_is_refused_at_its_first_hole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    hostile(path, EMPTY[1])
    os.truncate(path, 1 << 40)
    with pytest.raises(EncodingError, match="expected the log of step 2, got one of step 0"):
        opened(path)
