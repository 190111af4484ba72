"""The run directory: everything of one run on disk, written so that a crash at any moment loses nothing committed.

    job.bin                         the signed job (protocol.job)
    program.tbp                     the program (SPEC 4.1)
    data.safetensors                the job's data
    checkpoints/000000000040.safetensors   the state after step 40; step 0 is the initial state
    records.bin                     one 76-byte record per checkpoint: u64 step, state root, u32 loss bits, log root
    heads/000000000004.bin          the signed head of count 4
    metrics.jsonl                   one line per step: step, loss, seconds
    environment.json                what computed it

Files other than `records.bin` and `metrics.jsonl` appear whole or not at all (written beside, flushed, renamed). A
record is appended after its state is safe, a head is signed after its record is. Whatever is read back is checked
against the record that commits it before it is used.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.tensors import Spec, canonical, check_spec, identities
from protocol.codec import Reader, unsigned
from protocol.commitments import StepRecord, data_tree, state_tree
from protocol.errors import ConfigurationError, EncodingError, StateError, VerificationError
from protocol.isa import DType
from protocol.job import Job, SignedHead, SignedJob
from protocol.program import Limits, Program
from protocol.tags import Digest

RECORD_BYTES: Final = 76
MAX_PROGRAM_BYTES: Final = 1 << 30
MAX_RECORDS_BYTES: Final = 1 << 30
"""14 million checkpoints. A job may name 2^64 steps, and a sparse file of any size costs its sender nothing."""
MAX_METRICS_BYTES: Final = 1 << 30
MAX_METRIC_CHARACTERS: Final = 512
_HEADER_BYTES: Final = 1 << 24
_SAFETENSORS_DTYPES: Final = {DType.F32: "F32", DType.I64: "I64", DType.BOOL: "BOOL"}


class StorageError(ConfigurationError):
    """The disk refused: full, read-only, or not there. What was committed before is intact."""


@contextmanager
def _storing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"cannot write {path}: {error}. Nothing committed is lost; free or change the disk and run again to resume"
        ) from error


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that becomes `path`, durably, when the block succeeds."""
    temporary = path.with_name(f".{path.name}.part")
    with _storing(path):
        try:
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
            _sync_directory(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_file(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all. Raises `StorageError`."""
    with _replacing(path) as temporary:
        temporary.write_bytes(content)


def read_file(path: Path, limit: int) -> bytes:
    """Reads a file of at most `limit` bytes. Raises `EncodingError` if it is missing, larger or no plain file."""
    try:
        size = _plain_size(path)
        if size > limit:
            raise EncodingError(f"{path}: expected at most {limit} bytes, got {size}")
        return path.read_bytes()
    except OSError as error:
        raise EncodingError(f"{path}: cannot be read: {error}") from error


def _plain_size(path: Path) -> int:
    """Bytes of a plain file. A stranger's folder may hold a pipe, which blocks, or a link to an endless device."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise EncodingError(f"{path}: expected a plain file, got another kind")
    return found.st_size


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors as safetensors, whole or not at all. Raises `StorageError`."""
    plain = {name: canonical(tensor.detach()).to("cpu").contiguous().clone() for name, tensor in tensors.items()}
    with _replacing(path) as temporary:
        save_file(plain, temporary)


def read_tensors(path: Path, spec: Spec) -> dict[str, Tensor]:
    """Reads exactly the tensors of `spec`; everything is checked against it before any tensor is loaded.

    Raises `EncodingError` for a file that is missing, truncated, oversized, or holds other names, dtypes or shapes.
    """
    expected = sum(dtype.size * prod(shape) for dtype, shape in spec.values())
    try:
        size = _plain_size(path)
        if size > expected + _HEADER_BYTES:
            raise EncodingError(f"{path}: expected about {expected} bytes, got {size}")
        with safe_open(path, framework="pt", device="cpu") as file:
            _check_header(path, file, spec)
            tensors = {name: file.get_tensor(name) for name in spec}
    except (OSError, SafetensorError) as error:
        raise EncodingError(f"{path}: not a readable safetensors file: {error}") from error
    check_spec(str(path), tensors, spec)
    return tensors


def _check_header(path: Path, file: Any, spec: Spec) -> None:
    names = set(file.keys())
    if names != set(spec):
        missing, extra = sorted(set(spec) - names), sorted(names - set(spec))
        raise EncodingError(f"{path}: expected {len(spec)} tensors; missing {missing[:3]}, unexpected {extra[:3]}")
    for name, (dtype, shape) in spec.items():
        part = file.get_slice(name)
        found = part.get_dtype(), tuple(part.get_shape())
        if found != (_SAFETENSORS_DTYPES[dtype], shape):
            raise EncodingError(f"{path}, {name}: expected {dtype.name} {shape}, got {found[0]} {found[1]}")


def encode_record(record: StepRecord) -> bytes:
    """76 bytes of a record."""
    return unsigned(record.step, 8) + record.state_root + unsigned(record.loss_bits, 4) + record.log_root


def decode_record(data: bytes) -> StepRecord:
    """The inverse of `encode_record`."""
    reader = Reader(data)
    record = StepRecord(
        step=reader.unsigned(8),
        state_root=Digest(reader.take(32)),
        loss_bits=reader.unsigned(4),
        log_root=Digest(reader.take(32)),
    )
    reader.finish()
    return record


class RunDirectory:
    """One run on disk. Made by `create`, opened again by `open`; both check what they are given."""

    def __init__(self, path: Path, agreement: SignedJob, program: Program) -> None:
        self.path = path
        self.agreement = agreement
        self.program = program

    @property
    def job(self) -> Job:
        """The job."""
        return self.agreement.job

    @classmethod
    def create(
        cls, path: Path, agreement: SignedJob, program: Program, state: Mapping[str, Tensor], data: Mapping[str, Tensor]
    ) -> "RunDirectory":
        """A new run; refuses a directory in use and inputs that are not the job's."""
        agreement.verify()
        job = agreement.job
        job.check_program(program)
        check_spec("state", state, program.state_spec())
        check_spec("data", data, program.data_spec())
        _check_root("initial state", job.initial_state_root, state_tree(identities(state)).root)
        _check_root("data", job.data_root, data_tree(identities(data)).root)
        if path.exists() and any(path.iterdir()):
            raise ConfigurationError(f"{path}: expected a new or empty directory; to go on with a run, open it")
        with _storing(path):
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            (path / "heads").mkdir(exist_ok=True)
        run = cls(path, agreement, program)
        write_file(path / "program.tbp", program.encode())
        write_tensors(path / "data.safetensors", data)
        write_tensors(run.state_path(0), state)
        write_file(path / "records.bin", b"")
        write_file(path / "job.bin", agreement.encode())  # last: a directory with a job is complete
        return run

    @classmethod
    def open(cls, path: Path, limits: Limits | None = None) -> "RunDirectory":
        """An existing run, perhaps a stranger's. Raises `VerificationError` for what is not as the job says."""
        agreement = SignedJob.decode(read_file(path / "job.bin", 1 << 16))
        agreement.verify()
        program = Program.decode(read_file(path / "program.tbp", MAX_PROGRAM_BYTES), limits)
        agreement.job.check_program(program)
        return cls(path, agreement, program)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held while a process writes into the run; a second one is refused."""
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise StateError(f"{self.path}: another process is working on this run") from error
        try:
            yield
        finally:
            lock.release()

    def state_path(self, step: int) -> Path:
        """Where the state after a step is, if it is kept."""
        return self.path / "checkpoints" / f"{step:012d}.safetensors"

    def data(self) -> dict[str, Tensor]:
        """The job's data, checked against the data root."""
        tensors = read_tensors(self.path / "data.safetensors", self.program.data_spec())
        _check_root("data", self.job.data_root, data_tree(identities(tensors)).root)
        return tensors

    def state(self, step: int) -> dict[str, Tensor]:
        """The state of a checkpoint (or step 0), checked against its record. Raises `VerificationError`."""
        tensors = read_tensors(self.state_path(step), self.program.state_spec())
        expected = self.job.initial_state_root if step == 0 else self.record_of(step).state_root
        _check_root(f"state after step {step}", expected, state_tree(identities(tensors)).root)
        return tensors

    def records(self) -> list[StepRecord]:
        """The records of the checkpoints so far. A torn last append is ignored, anything else that is off refused."""
        limit = min(RECORD_BYTES * self.job.checkpoints + RECORD_BYTES - 1, MAX_RECORDS_BYTES)
        raw = read_file(self.path / "records.bin", limit)
        count = len(raw) // RECORD_BYTES
        records = [decode_record(raw[i * RECORD_BYTES : (i + 1) * RECORD_BYTES]) for i in range(count)]
        for checkpoint, record in enumerate(records):
            if checkpoint >= self.job.checkpoints or record.step != self.job.last_step(checkpoint):
                raise EncodingError(f"{self.path / 'records.bin'}: record {checkpoint} is of step {record.step}")
        return records

    def record_of(self, step: int) -> StepRecord:
        """The record of a checkpoint's step."""
        for record in self.records():
            if record.step == step:
                return record
        raise StateError(f"{self.path}: no record of step {step}")

    def append_record(self, record: StepRecord) -> None:
        """Adds the next checkpoint's record, durably; its state must be written already."""
        path = self.path / "records.bin"
        count = len(self.records())
        with _storing(path), path.open("rb+") as file:
            file.truncate(count * RECORD_BYTES)
            file.seek(0, os.SEEK_END)
            try:
                file.write(encode_record(record))
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                file.close()
                os.truncate(path, count * RECORD_BYTES)
                raise

    def write_state(self, step: int, state: Mapping[str, Tensor]) -> None:
        """Keeps the state after a step."""
        write_tensors(self.state_path(step), state)

    def write_head(self, head: SignedHead) -> None:
        """Keeps a signed head; a different one of the same count is refused, for signing both would be equivocation."""
        path = self.path / "heads" / _head_name(head.head.count)
        if path.exists() and SignedHead.decode(read_file(path, 1 << 16)).head != head.head:
            raise StateError(
                f"{path}: a different head of count {head.head.count} is signed already; this machine erred"
            )
        write_file(path, head.encode())

    def heads(self) -> list[SignedHead]:
        """The signed heads, by count, each checked. Raises `VerificationError`."""
        heads = []
        for path in sorted((self.path / "heads").glob("*.bin")):
            head = SignedHead.decode(read_file(path, 1 << 16))
            head.verify(self.job, self.agreement.domain)
            if path.name != _head_name(head.head.count):  # else the order would be the sender's choice
                raise EncodingError(f"{path}: expected the head of this file's count, got one of {head.head.count}")
            heads.append(head)
        return sorted(heads, key=lambda head: head.head.count)

    def add_metric(self, step: int, loss: float, seconds: float) -> None:
        """Appends one line of telemetry."""
        path = self.path / "metrics.jsonl"
        with _storing(path), path.open("a") as file:
            file.write(json.dumps({"step": step, "loss": loss, "seconds": round(seconds, 6)}) + "\n")

    def metrics(self) -> list[dict[str, float]]:
        """Telemetry by step, the last line of a step counting; a torn line is left out."""
        path = self.path / "metrics.jsonl"
        found: dict[int, dict[str, float]] = {}
        text = read_file(path, MAX_METRICS_BYTES).decode("utf-8", "replace") if path.exists() else ""
        # A longer line is not ours; and a deeply nested one can exhaust the C stack of the parser.
        for line in (line for line in text.splitlines() if len(line) <= MAX_METRIC_CHARACTERS):
            try:
                entry = json.loads(line)
                found[int(entry["step"])] = entry
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                continue
        return [found[step] for step in sorted(found)]

    def last_complete(self) -> int:
        """Step of the last checkpoint whose record and state are both there and agree; 0 if there is none."""
        for record in reversed(self.records()):
            try:
                self.state(record.step)
            except VerificationError:
                continue
            return record.step
        return 0


def _check_root(what: str, expected: bytes, found: bytes) -> None:
    if expected != found:
        raise VerificationError(f"{what}: expected root {expected.hex()}, got {found.hex()}")


def _head_name(count: int) -> str:
    return f"{count:012d}.bin"
