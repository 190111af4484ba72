"""One segment's logs in one file: appended step by step, found without reading others, torn and broken ones named."""

import struct
from pathlib import Path

import pytest

from tests.engine.processes import file_size
from tiebreak.engine.data.disk import StorageError
from tiebreak.engine.logged.files import FILE_HEADER_BYTES, LogFile
from tiebreak.protocol.errors import EncodingError, StateError
from tiebreak.protocol.program.rounding import Direction, LogError, StepLog
from tiebreak.protocol.tags import Digest

from .log_cases import MANY, entries, log_of, program_of

PROGRAM = program_of(MANY)
JOB = Digest(bytes(range(32)))
FRAME = struct.Struct(">QQI")
LOGS = {
    5: log_of(PROGRAM, [(0, Direction.UP), (300, Direction.DOWN)]),
    6: StepLog(),
    7: log_of(PROGRAM, dict.fromkeys(range(100, 700), Direction.UP).items()),
    8: log_of(PROGRAM, [(715, Direction.DOWN)]),
}


def log_file(path: Path) -> LogFile:
    return LogFile(path, PROGRAM, JOB, range(5, 9))


def filled(folder: Path, last: int = 8) -> LogFile:
    logs = log_file(folder / "000000000008.log")
    logs.create()
    for step in range(5, last + 1):
        logs.append(step, LOGS[step])
    return logs


def opened(path: Path) -> LogFile:
    logs = log_file(path)
    logs.open()
    return logs


def read_all(path: Path) -> dict[int, StepLog]:
    logs = opened(path)
    return {step: logs.read(step) for step in range(5, 9)}


def starts(raw: bytes) -> list[int]:
    """Where frames begin, and where the last one ends."""
    found = [FILE_HEADER_BYTES]
    while found[-1] < len(raw):
        found.append(found[-1] + FRAME.size + FRAME.unpack_from(raw, found[-1])[1])
    assert found[-1] == len(raw)
    return found


def test_an_open_log_reader_sees_later_appends(tmp_path: Path) -> None:
    writer = filled(tmp_path, 5)
    reader = opened(writer.path)
    assert reader.steps == range(5, 6)
    writer.append(6, LOGS[6])
    writer.append(7, LOGS[7])
    assert reader.read(7) == LOGS[7]
    assert reader.steps == range(5, 8)


def test_log_steps_are_appended_once_and_in_order(tmp_path: Path) -> None:
    logs = filled(tmp_path, 6)
    for step in (6, 8, 5, 4, 9):
        with pytest.raises(StateError, match=f"expected the log of step 7, got that of step {step}"):
            logs.append(step, StepLog())
    logs.append(7, LOGS[7])
    logs.append(8, LOGS[8])
    with pytest.raises(StateError, match="expected the log of no further step, got that of step 9"):
        logs.append(9, StepLog())
    for step in (4, 9):
        with pytest.raises(StateError, match=f"expected a step from 5 to 8, got {step}"):
            logs.read(step)
    assert read_all(logs.path) == LOGS


def test_refusing_an_invalid_log_leaves_the_file_unchanged(tmp_path: Path) -> None:
    logs = filled(tmp_path, 6)
    raw = logs.path.read_bytes()
    with pytest.raises(LogError, match="step 7, instruction 0"):
        logs.append(7, StepLog({0: entries([(0, True)])}))
    assert logs.path.read_bytes() == raw
    logs.append(7, LOGS[7])
    assert logs.read(7) == LOGS[7]


def test_reading_one_steps_log_decodes_no_other_step(tmp_path: Path) -> None:
    path = filled(tmp_path).path
    raw = bytearray(path.read_bytes())
    first, second, third, *_ = starts(bytes(raw))
    for begin, end in ((first, second), (second, third)):
        raw[begin + FRAME.size : end] = b"\xff" * (end - begin - FRAME.size)
    path.write_bytes(raw)
    logs = opened(path)
    assert logs.read(7) == LOGS[7]
    assert logs.read(8) == LOGS[8]
    for step in (5, 6):
        with pytest.raises(EncodingError, match=f"{path}: expected checksum .* of the log of step {step}, got"):
            logs.read(step)


def test_a_log_file_cut_at_any_byte_stays_usable(tmp_path: Path) -> None:
    """Whole frames before the cut are read, the torn one is named as such, and appending goes on in its place."""
    path = filled(tmp_path).path
    raw = path.read_bytes()
    begins = starts(raw)
    for size in range(len(raw)):
        path.write_bytes(raw[:size])
        if size < FILE_HEADER_BYTES:
            with pytest.raises(EncodingError, match=f"{path}: expected"):
                opened(path)
            continue
        logs = opened(path)
        whole = sum(end <= size for end in begins[1:])
        assert logs.steps == range(5, 5 + whole)
        assert logs.torn == size - begins[whole]
        torn = f", and {logs.torn} bytes of a frame that is not whole" if logs.torn else ""
        with pytest.raises(
            EncodingError, match=f"{path}: expected the log of step 8, got the end after {whole} logs{torn}$"
        ):
            logs.read(8)
        assert {step: logs.read(step) for step in logs.steps} == {step: LOGS[step] for step in logs.steps}
        for step in range(logs.steps.stop, 9):
            logs.append(step, LOGS[step])
        assert path.read_bytes() == raw


def test_any_changed_byte_of_a_log_file_is_refused(tmp_path: Path) -> None:
    """The header is compared whole, a frame has a checksum: no single byte can change without being noticed."""
    path = filled(tmp_path).path
    raw = path.read_bytes()
    assert raw
    for place in range(len(raw)):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ (1 << place % 8)]) + raw[place + 1 :])
        with pytest.raises(EncodingError):
            read_all(path)


def test_a_full_disk_loses_no_logged_step(tmp_path: Path) -> None:
    logs = filled(tmp_path, 6)
    raw = logs.path.read_bytes()
    with file_size(len(raw) + 10), pytest.raises(StorageError, match=r"000000000008\.log"):
        logs.append(7, LOGS[7])
    assert logs.path.read_bytes() == raw
    logs.append(7, LOGS[7])
    assert logs.read(7) == LOGS[7]


def test_a_missing_log_file_is_an_error_for_each_operation(tmp_path: Path) -> None:
    logs = filled(tmp_path, 6)
    logs.path.unlink()
    with pytest.raises(StorageError, match=r"000000000008\.log"):
        logs.append(7, LOGS[7])
    with pytest.raises(StorageError, match=r"000000000008\.log"):
        logs.sync()
    with pytest.raises(EncodingError, match=r"000000000008\.log: cannot be read"):
        logs.read(5)
    with pytest.raises(StorageError, match="logs"):
        log_file(tmp_path / "logs" / "1.log").create()
