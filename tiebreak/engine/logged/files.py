"""The rounding logs of one segment of a run, in one file that grows step by step.

    header   "TBLOGS01" ‖ job id ‖ u64 first step of the segment
    frame    u64 step ‖ u64 length ‖ u32 CRC-32 of step, length and log ‖ the log (tiebreak.engine.logged.encoding)

There is one frame per step, in order. A trainer's claims are in its head, which commits to the log's tree; the checksum
only tells a faulty disk from a lie. A killed process may leave part of a frame behind, which counts as not written. A
log whose head is not signed yet is worth nothing, so a segment that is trained again starts a new file
(`LogFile.create`).

Finding a step reads only the frames' headers; reading a log holds the entries of one value.
"""

import os
import struct
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Final

from tiebreak.engine.data.disk import Folder, write_whole
from tiebreak.engine.logged.encoding import HEADER_BYTES, decode_entries, encode_sparse, max_sparse_bytes
from tiebreak.engine.run.directory import LOGS, RunDirectory
from tiebreak.protocol.codec import unsigned
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import EncodingError, StateError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.step_log import Entries, LogError, StepLog
from tiebreak.protocol.tags import Digest

MAGIC: Final = b"TBLOGS01"
FILE_HEADER_BYTES: Final = len(MAGIC) + 40
_FRAME: Final = struct.Struct(">QQI")
_PIECE: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The steps of one checkpoint of a job."""

    job_id: Digest
    first: int
    last: int

    @classmethod
    def of(cls, job: Job, checkpoint: int) -> "Segment":
        """The segment of a checkpoint (numbered from 0)."""
        return cls(job_id=job.id, first=job.first_step(checkpoint), last=job.last_step(checkpoint))

    def path(self, logs: Path) -> Path:
        """The path of its file, which is named by its last step, as the checkpoint's state is."""
        return logs / f"{self.last:012d}.log"

    @property
    def header(self) -> bytes:
        """The header of its file."""
        return MAGIC + self.job_id + unsigned(self.first, 8)


class LogFiles:
    """The rounding logs in a run's directory, of one segment at a time."""

    def __init__(self, run: RunDirectory) -> None:
        self.path, self.job, self.program = run.path, run.job, run.program
        self._run = run
        self._open: LogFile | None = None

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
        if step == self.job.first_step(checkpoint):
            segment = Segment.of(self.job, checkpoint)
            self._open = LogFile.create(segment.path(self.path / LOGS), self.program, segment)
        self._of(checkpoint).append(step, log)

    def sync(self, checkpoint: int) -> None:
        """Makes the logs of a segment durable; to be called before a record commits to them."""
        self._of(checkpoint).sync()

    def _of(self, checkpoint: int) -> "LogFile":
        segment = Segment.of(self.job, checkpoint)
        if self._open is None or self._open.segment != segment:
            self._open = LogFile.open(segment.path(self.path / LOGS), self.program, segment)
        return self._open


class LogFile:
    """One segment's file, made by `create` or reopened by `open`. Only one process at a time may write into it."""

    def __init__(self, path: Path, program: Program, segment: Segment) -> None:
        self.path = path
        self.segment = segment
        self._program = program
        self._limit = max_sparse_bytes(program)
        self._frames = array("Q")
        self._end = FILE_HEADER_BYTES
        self._size = FILE_HEADER_BYTES

    @classmethod
    def create(cls, path: Path, program: Program, segment: Segment) -> "LogFile":
        """Makes a file without logs, replacing an existing one. Raises `StorageError`."""
        logs = cls(path, program, segment)
        with logs._folder(to_write=True) as folder:
            folder.write(path.name, segment.header)
        return logs

    @classmethod
    def open(cls, path: Path, program: Program, segment: Segment) -> "LogFile":
        """Opens an existing file, perhaps a stranger's. Raises `EncodingError`."""
        logs = cls(path, program, segment)
        with logs._reading() as file:
            logs._check_header(file.read(FILE_HEADER_BYTES))
        logs._scan()
        return logs

    @property
    def steps(self) -> range:
        """The steps whose logs were complete when last looked at."""
        return range(self.segment.first, self.segment.first + len(self._frames))

    @property
    def torn(self) -> int:
        """The number of bytes of an incomplete frame at the end."""
        return self._size - self._end

    def append(self, step: int, log: StepLog) -> None:
        """Adds the log of the next step, after cutting off an incomplete frame. Durable after `sync`.

        Raises `LogError` for a log that is impossible for the program, and `StorageError` if the disk refuses; then the
        file is as before.
        """
        if step != self.steps.stop or step > self.segment.last:
            raise StateError(f"{self.path}: expected the log of {self._next()}, got that of step {step}")
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
        """The log of a step, which passes `StepLog.check`. Raises the errors of `entries`."""
        return StepLog(dict(self.entries(step)))

    def entries(self, step: int) -> Iterator[tuple[int, Entries]]:
        """The log of a step, value by value.

        Raises `EncodingError` if the log is missing or broken, and `LogError` if it is impossible for the program.
        """
        if not self.segment.first <= step <= self.segment.last:
            raise StateError(
                f"{self.path}: expected a step from {self.segment.first} to {self.segment.last}, got {step}"
            )
        if step not in self.steps:
            self._scan()  # the file may have grown
        if step not in self.steps:
            torn = f", and {self.torn} bytes of a frame that is not whole" if self.torn else ""
            raise EncodingError(
                f"{self.path}: expected the log of step {step}, got the end after {len(self.steps)} logs{torn}"
            )
        return self._entries(step)

    def _entries(self, step: int) -> Iterator[tuple[int, Entries]]:
        with self._reading() as file:
            file.seek(self._frames[step - self.segment.first])
            length, checksum = self._frame(file.read(_FRAME.size), step)
            start = file.tell()
            self._check_sum(file, step, length, checksum)
            file.seek(start)
            try:
                yield from decode_entries(file, length, self._program, step)
            except LogError as error:
                rule = f"{error.rule} ({self.path})"
                raise LogError(rule, step=error.step, value=error.value, element=error.element) from error
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
                if step > self.segment.last:
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

    def _check_header(self, found: bytes) -> None:
        segment = self.segment
        if found[:8] != MAGIC:
            raise EncodingError(f"{self.path}: expected a file of rounding logs, {MAGIC!r}, got {found[:8]!r}")
        if found[8:40] != segment.job_id:
            raise EncodingError(f"{self.path}: expected logs of job {segment.job_id.hex()}, got {found[8:40].hex()}")
        if found[40:] != unsigned(segment.first, 8):
            first = int.from_bytes(found[40:], "big")
            raise EncodingError(f"{self.path}: expected a segment from step {segment.first} on, got one from {first}")

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

    def _next(self) -> str:
        return f"step {self.steps.stop}" if self.steps.stop <= self.segment.last else "no further step"
