"""The rounding logs of one segment of a run, in one file that grows step by step.

    header   "TBLOGS01" ‖ job id ‖ u64 first step of the segment
    frame    u64 step ‖ u64 length ‖ u32 CRC-32 of step, length and log ‖ the log (tiebreak.engine.logged.encoding)

There is one frame per step, in order. A trainer's claims are in its head, which commits to the log's tree; the checksum
only tells a faulty disk from a lie. A killed process may leave part of a frame behind, which counts as not written. A
log whose head is not signed yet is worth nothing, so a segment that is trained again starts a new file
(`LogFile.create`).

Finding a step reads only the frames' headers.
"""

import os
import struct
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Final

from tiebreak.engine.data.disk import Folder, write_whole
from tiebreak.engine.logged.encoding import HEADER_BYTES, encode_sparse, max_sparse_bytes, read_sparse
from tiebreak.engine.run.directory import LOGS, RunDirectory
from tiebreak.protocol.codec import unsigned
from tiebreak.protocol.errors import EncodingError, StateError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import LogError, StepLog
from tiebreak.protocol.tags import Digest

MAGIC: Final = b"TBLOGS01"
FILE_HEADER_BYTES: Final = len(MAGIC) + 40
_FRAME: Final = struct.Struct(">QQI")
_PIECE: Final = 1 << 20


class LogFiles:
    """The rounding logs in a run's directory, of one segment at a time."""

    def __init__(self, run: RunDirectory) -> None:
        self.path, self.job, self.program = run.path, run.job, run.program
        self._run = run
        self._in_use: tuple[int, LogFile] | None = None

    def step_log(self, step: int) -> StepLog:
        """The rounding log of a step, not checked against its commitment: `tiebreak.engine.logged.committed` does that.

        Raises `VerificationError` for a log that is missing, damaged or impossible for the program.
        """
        return self._of(self.job.checkpoint_of(step)).read(step)

    def write(self, step: int, log: StepLog) -> None:
        """Adds the log of a step. The log of a segment's first step replaces all earlier logs of the segment.

        Raises `StateError` for a segment that has a record, because its logs are committed.
        """
        checkpoint = self.job.checkpoint_of(step)
        if checkpoint < self._run.recorded():
            raise StateError(f"{self.path}: expected a step without a record, got step {step}; its log is committed")
        self._of(checkpoint, new=step == self.job.first_step(checkpoint)).append(step, log)

    def sync(self, checkpoint: int) -> None:
        """Makes the logs of a segment durable; to be called before a record commits to them."""
        self._of(checkpoint).sync()

    def _of(self, checkpoint: int, *, new: bool = False) -> "LogFile":
        """The file of a segment. new: a file without logs."""
        if new or self._in_use is None or self._in_use[0] != checkpoint:
            first, last = self.job.first_step(checkpoint), self.job.last_step(checkpoint)
            file = LogFile(log_path(self.path, last), self.program, self.job.id, range(first, last + 1))
            if new:
                file.create()
            else:
                file.open()
            self._in_use = checkpoint, file
        return self._in_use[1]


def log_path(run: Path, last_step: int) -> Path:
    """The file of the segment that ends with this step, named as the checkpoint's state is."""
    return run / LOGS / f"{last_step:012d}.log"


class LogFile:
    """One segment's file. Only one process at a time may write into it. Call `create` or `open` first."""

    def __init__(self, path: Path, program: Program, job_id: Digest, segment: range) -> None:
        """segment: the steps between two checkpoints whose logs the file holds."""
        self.path, self.segment, self._program = path, segment, program
        self._header = MAGIC + job_id + unsigned(segment.start, 8)
        self._limit = max_sparse_bytes(program)
        self._frames = array("Q")
        self._end = FILE_HEADER_BYTES
        self._size = FILE_HEADER_BYTES

    def create(self) -> None:
        """Makes a file without logs, replacing an existing one. Raises `StorageError`."""
        with self._folder(to_write=True) as folder:
            folder.write(self.path.name, self._header)

    def open(self) -> None:
        """Opens an existing file, perhaps a stranger's. Raises `EncodingError`."""
        with self._reading() as file:
            found = file.read(FILE_HEADER_BYTES)
        for what, part, show in (
            ("a file of rounding logs,", slice(0, 8), repr),
            ("logs of job", slice(8, 40), bytes.hex),
            ("a segment from step", slice(40, 48), lambda raw: str(int.from_bytes(raw, "big"))),
        ):
            if found[part] != self._header[part]:
                raise EncodingError(f"{self.path}: expected {what} {show(self._header[part])}, got {show(found[part])}")
        self._scan()

    @property
    def steps(self) -> range:
        """The steps whose logs were complete when last looked at."""
        return self.segment[: len(self._frames)]

    @property
    def torn(self) -> int:
        """The number of bytes of an incomplete frame at the end."""
        return self._size - self._end

    def append(self, step: int, log: StepLog) -> None:
        """Adds the log of the next step, after cutting off an incomplete frame. Durable after `sync`.

        Raises `LogError` for a log that is impossible for the program, and `StorageError` if the disk refuses; then the
        file is as before.
        """
        if step != self.steps.stop or step not in self.segment:
            due = f"step {self.steps.stop}" if self.steps.stop in self.segment else "no further step"
            raise StateError(f"{self.path}: expected the log of {due}, got that of step {step}")
        data = encode_sparse(log, self._program, step)
        head = unsigned(step, 8) + unsigned(len(data), 8)
        frame = head + unsigned(zlib.crc32(data, zlib.crc32(head)), 4) + data
        with self._folder(to_write=True) as folder, folder.changing(self.path.name) as file:
            file.truncate(self._end)
            file.seek(self._end)
            try:
                write_whole(file, memoryview(frame))
            except OSError:
                file.truncate(self._end)
                raise
        self._frames.append(self._end)
        self._end = self._size = self._end + len(frame)

    def sync(self) -> None:
        """Makes all appended logs durable; to be called before a record commits to them."""
        with self._folder(to_write=True) as folder, folder.changing(self.path.name) as file:
            os.fsync(file.fileno())

    def read(self, step: int) -> StepLog:
        """The log of a step, which passes `StepLog.check`.

        Raises `EncodingError` if the log is missing or broken, and `LogError` if it is impossible for the program.
        """
        if step not in self.segment:
            raise StateError(f"{self.path}: expected a step from {self.segment[0]} to {self.segment[-1]}, got {step}")
        if step not in self.steps:
            self._scan()  # the file may have grown
        if step not in self.steps:
            torn = f", and {self.torn} bytes of a frame that is not whole" if self.torn else ""
            raise EncodingError(
                f"{self.path}: expected the log of step {step}, got the end after {len(self.steps)} logs{torn}"
            )
        with self._reading() as file:
            file.seek(self._frames[step - self.segment.start])
            length, checksum = self._frame(file.read(_FRAME.size), step)
            start = file.tell()
            self._check_sum(file, step, length, checksum)
            file.seek(start)
            try:
                return read_sparse(file, length, self._program, step)
            except LogError as error:
                rule = f"{error.rule} ({self.path})"
                raise LogError(rule, step=error.step, index=error.index, element=error.element) from error
            except EncodingError as error:
                raise EncodingError(f"{self.path}: {error}") from error

    @contextmanager
    def _reading(self) -> Iterator[BinaryIO]:
        with self._folder() as folder, folder.reading(self.path.name) as (file, _), BufferedReader(file) as buffered:
            yield buffered

    def _folder(self, *, to_write: bool = False) -> Folder:
        # The user may name the run's folder through a link, but the folder of its logs must not be one.
        return Folder(self.path.parent.parent, self.path.parent.name, to_write=to_write)

    def _scan(self) -> None:
        """Finds the frames after the known ones."""
        with self._reading() as file:
            self._size = os.fstat(file.fileno()).st_size
            while self._end < self._size:
                step = self.steps.stop
                if step not in self.segment:
                    rest = self._size - self._end
                    raise EncodingError(
                        f"{self.path}: expected the end after the log of step {step - 1}, got {rest} more bytes"
                    )
                file.seek(self._end)
                head = file.read(_FRAME.size)
                if len(head) < _FRAME.size:
                    return
                length, _ = self._frame(head, step)
                if self._end + _FRAME.size + length > self._size:
                    return
                self._frames.append(self._end)
                self._end += _FRAME.size + length

    def _frame(self, head: bytes, expected: int) -> tuple[int, int]:
        """The length and the checksum of a frame."""
        step, length, checksum = _FRAME.unpack(head.ljust(_FRAME.size, b"\0"))
        if step != expected:
            raise EncodingError(f"{self.path}: expected the log of step {expected}, got one of step {step}")
        if not HEADER_BYTES <= length <= self._limit:
            raise EncodingError(
                f"{self.path}: expected {HEADER_BYTES} to {self._limit} bytes for the log of step {step}, got {length}"
            )
        return length, checksum

    def _check_sum(self, file: BinaryIO, step: int, length: int, expected: int) -> None:
        found, rest = zlib.crc32(unsigned(step, 8) + unsigned(length, 8)), length
        while rest:
            piece = file.read(min(rest, _PIECE))
            if not piece:
                raise EncodingError(f"{self.path}: expected {rest} more bytes of the log of step {step}, got the end")
            found, rest = zlib.crc32(piece, found), rest - len(piece)
        if found != expected:
            raise EncodingError(
                f"{self.path}: expected checksum {expected:08x} of the log of step {step}, got {found:08x}"
            )
