"""The run directory: everything of one run on disk, written so that a crash at any moment loses nothing committed.

    job.bin                         the signed job (tiebreak.protocol.commitments.job)
    program.tbp                     the program (SPEC 4.1)
    data.safetensors                the job's data
    checkpoints/000000000040.safetensors   the state after step 40; step 0 is the initial state
    records.bin                     one 76-byte record per checkpoint: u64 step, state root, u32 loss bits, log root
    heads/000000000004.bin          the signed head of count 4
    logs/000000000040.log           policy `logged`: the rounding logs of the segment that ends with step 40
    policy.json                     policy `logged`, if given: the thresholds of whoever computes the run
    metrics.jsonl                   one line per step: step, loss, seconds
    environment.json                what computed it

Files other than `records.bin`, `metrics.jsonl` and logs appear whole or not at all (written beside, flushed, renamed).
A record is appended after its state and its logs are safe, a head is signed after its record is. Whatever is read back
is checked against the record that commits it before it is used (logs: `tiebreak.engine.logged.committed`).
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tiebreak.engine.data import FactsCache, data_identities, open_safetensors
from tiebreak.engine.data.disk import plain_size, read_file, replacing, size_within, storing, write_file, write_whole
from tiebreak.engine.data.tensors import PROTOCOL_DTYPES, Spec, check_spec, identities, plain_bytes
from tiebreak.engine.logged.files import LogFile, Segment
from tiebreak.engine.logged.policy import LoggedPolicy
from tiebreak.protocol.codec import Reader, unsigned
from tiebreak.protocol.commitments.job import Job, SignedHead, SignedJob
from tiebreak.protocol.commitments.records import StepRecord, data_tree, state_tree
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError, VerificationError
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.program.program import Limits, Program
from tiebreak.protocol.program.step_log import StepLog
from tiebreak.protocol.tags import Digest, Tag, tagged_hash

RECORD_BYTES: Final = 76
MAX_PROGRAM_BYTES: Final = 1 << 30
MAX_RECORDS_BYTES: Final = 1 << 30
"""14 million checkpoints. A job may name 2^64 steps, and a sparse file of any size costs its sender nothing."""
MAX_METRICS_BYTES: Final = 1 << 30
MAX_METRIC_CHARACTERS: Final = 512
_HEADER_BYTES: Final = 1 << 24
_CHECKPOINT_NAME: Final = re.compile(r"([0-9]{12,20})\.safetensors")
_SAFETENSORS_DTYPES: Final = {DType.F32: "F32", DType.I64: "I64", DType.BOOL: "BOOL"}


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors as safetensors, whole or not at all, straight from their memory. Raises `StorageError`."""
    # Widest first: so each tensor is aligned to its elements. Names break ties, so equal tensors give equal files.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    with replacing(path) as temporary, temporary.open("wb", buffering=0) as file:
        write_whole(file, memoryview(_header(tensors, order)))
        for name in order:
            write_whole(file, plain_bytes(tensors[name]))


def _header(tensors: Mapping[str, Tensor], order: Sequence[str]) -> bytes:
    """What stands before the data: u64 length, then names, dtypes, shapes and places as JSON, to a multiple of 8."""
    described, end = {}, 0
    for name in order:
        tensor, start = tensors[name], end
        end += tensor.numel() * tensor.element_size()
        dtype = _SAFETENSORS_DTYPES[PROTOCOL_DTYPES[tensor.dtype]]
        described[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_tensors(path: Path, spec: Spec) -> dict[str, Tensor]:
    """Reads exactly the tensors of `spec`; everything is checked against it before any tensor is loaded.

    Raises `EncodingError` for a file that is missing, truncated, oversized, or holds other names, dtypes or shapes.
    """
    expected = sum(dtype.size * prod(shape) for dtype, shape in spec.values())
    try:
        size = plain_size(path)
        if size > expected + _HEADER_BYTES:
            raise EncodingError(f"{path}: expected about {expected} bytes, got {size}")
        with safe_open(path, framework="pt", device="cpu") as file:
            _check_header(path, file, spec)
            tensors = {name: file.get_tensor(name) for name in spec}
    except (OSError, SafetensorError) as error:
        raise EncodingError(f"{path}: not a readable safetensors file: {error}") from error
    check_spec(str(path), tensors, spec)
    return tensors


def map_tensors(path: Path, spec: Spec) -> dict[str, Tensor]:
    """As `read_tensors`, but the tensors stay in the file, which has to stay as it is: nobody may write into either."""
    entries = open_safetensors(path)
    _check_names(path, set(entries), spec)
    for name, (dtype, shape) in spec.items():
        _check_entry(f"{path}, {name}", (dtype, shape), (entries[name].element, entries[name].shape))
    return {name: entries[name].tensor() for name in spec}


def _check_header(path: Path, file: Any, spec: Spec) -> None:
    _check_names(path, set(file.keys()), spec)
    for name, (dtype, shape) in spec.items():
        part = file.get_slice(name)
        _check_entry(f"{path}, {name}", (dtype, shape), (part.get_dtype(), tuple(part.get_shape())))


def _check_names(path: Path, names: set[str], spec: Spec) -> None:
    if names != set(spec):
        missing, extra = sorted(set(spec) - names), sorted(names - set(spec))
        raise EncodingError(f"{path}: expected {len(spec)} tensors; missing {missing[:3]}, unexpected {extra[:3]}")


def _check_entry(what: str, expected: tuple[DType, tuple[int, ...]], found: tuple[str, tuple[int, ...]]) -> None:
    if found != (_SAFETENSORS_DTYPES[expected[0]], expected[1]):
        raise EncodingError(f"{what}: expected {expected[0].name} {expected[1]}, got {found[0]} {found[1]}")


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
        self._logs: LogFile | None = None
        """Of the segment in use."""

    @property
    def job(self) -> Job:
        """The job."""
        return self.agreement.job

    @classmethod
    def create(
        cls,
        path: Path,
        agreement: SignedJob,
        program: Program,
        state: Mapping[str, Tensor],
        data: Mapping[str, Tensor],
        policy: LoggedPolicy | None = None,
    ) -> "RunDirectory":
        """A new run; refuses a directory in use and inputs that are not the job's. policy: see `policy`."""
        agreement.verify()
        job = agreement.job
        job.check_program(program)
        check_spec("state", state, program.state_spec())
        check_spec("data", data, program.data_spec())
        _check_root("initial state", job.initial_state_root, state_tree(identities(state)).root)
        _check_root("data", job.data_root, data_tree(data_identities(data, cache=FactsCache())).root)
        if path.exists() and any(path.iterdir()):
            raise ConfigurationError(f"{path}: expected a new or empty directory; to go on with a run, open it")
        with storing(path):
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            (path / "heads").mkdir(exist_ok=True)
            if job.is_logged:
                (path / "logs").mkdir(exist_ok=True)
        run = cls(path, agreement, program)
        write_file(path / "program.tbp", program.encode())
        write_tensors(path / "data.safetensors", data)
        write_tensors(run.state_path(0), state)
        write_file(path / "records.bin", b"")
        if policy is not None:
            policy.save(run.policy_path)
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
        """The job's data, checked against the data root, on the mapped file: nobody may write into it.

        Checked each time, without a cache: who computes with other bytes loses a stake.
        """
        tensors = map_tensors(self.path / "data.safetensors", self.program.data_spec())
        _check_root("data", self.job.data_root, data_tree(data_identities(tensors)).root)
        return tensors

    def state(self, step: int) -> dict[str, Tensor]:
        """The state of a checkpoint (or step 0), checked against its record. Raises `VerificationError`."""
        tensors = read_tensors(self.state_path(step), self.program.state_spec())
        expected = self.job.initial_state_root if step == 0 else self.record_of(step).state_root
        _check_root(f"state after step {step}", expected, state_tree(identities(tensors)).root)
        return tensors

    def records(self) -> list[StepRecord]:
        """The records of the checkpoints so far. A torn last append is ignored, anything else that is off refused."""
        return [decode_record(raw) for raw in self._raw_records(self.recorded())]

    def recorded(self) -> int:
        """Number of records, by the size of their file. Raises `EncodingError` for more than the job can have."""
        path = self.path / "records.bin"
        limit = min(RECORD_BYTES * self.job.checkpoints + RECORD_BYTES - 1, MAX_RECORDS_BYTES)
        return size_within(path, limit) // RECORD_BYTES

    def record_digests(self, count: int) -> Iterator[Digest]:
        """The digests of the first `count` records: each is stored as what its digest is of."""
        for raw in self._raw_records(count):
            yield tagged_hash(Tag.STEP_RECORD, raw)

    def record_at(self, checkpoint: int) -> StepRecord:
        """The record of a checkpoint (from 0)."""
        with (self.path / "records.bin").open("rb") as file:
            file.seek(checkpoint * RECORD_BYTES)
            raw = file.read(RECORD_BYTES)
        self._check_record(checkpoint, raw)
        return decode_record(raw)

    def record_of(self, step: int) -> StepRecord:
        """The record of a checkpoint's step."""
        if not 1 <= step <= self.job.steps or not self._is_checkpoint(step, self.recorded()):
            raise StateError(f"{self.path}: no record of step {step}")
        return self.record_at(self.job.checkpoint_of(step))

    def _raw_records(self, count: int) -> Iterator[bytes]:
        with (self.path / "records.bin").open("rb") as file:
            for checkpoint in range(count):
                raw = file.read(RECORD_BYTES)
                self._check_record(checkpoint, raw)
                yield raw

    def _check_record(self, checkpoint: int, raw: bytes) -> None:
        step = int.from_bytes(raw[:8], "big")
        if len(raw) != RECORD_BYTES or checkpoint >= self.job.checkpoints or step != self.job.last_step(checkpoint):
            raise EncodingError(f"{self.path / 'records.bin'}: record {checkpoint} is of step {step}")

    def append_record(self, record: StepRecord) -> None:
        """Adds the next checkpoint's record, durably; its state must be written already, if it is to be kept."""
        path, count = self.path / "records.bin", self.recorded()
        with storing(path), path.open("rb+", buffering=0) as file:  # closing a full buffer would fail again
            file.truncate(count * RECORD_BYTES)
            file.seek(0, os.SEEK_END)
            try:
                write_whole(file, memoryview(encode_record(record)))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(count * RECORD_BYTES)
                raise

    def kept(self) -> list[int]:
        """Steps, ascending, of recorded checkpoints (and 0) whose state is there, as far as a file's name says."""
        found = (_CHECKPOINT_NAME.fullmatch(path.name) for path in (self.path / "checkpoints").glob("*"))
        job, recorded = self.job, self.recorded()
        steps = sorted(int(match[1]) for match in found if match)
        return [step for step in steps if step == 0 or (step <= job.steps and self._is_checkpoint(step, recorded))]

    def _is_checkpoint(self, step: int, recorded: int) -> bool:
        checkpoint = self.job.checkpoint_of(step)
        return checkpoint < recorded and step == self.job.last_step(checkpoint)

    def kept_before(self, step: int) -> int:
        """The last step, up to this one, whose state is kept; at least 0, for the initial state always is."""
        return max((kept for kept in self.kept() if kept <= step), default=0)

    def drop_state(self, step: int) -> None:
        """Removes the state after a step; whoever needs it computes it again from the one before it that is kept."""
        path = self.state_path(step)
        with storing(path):
            path.unlink(missing_ok=True)

    def drop_parts(self) -> None:
        """Removes what a killed process had begun to write into the checkpoints."""
        for path in (self.path / "checkpoints").glob(".*.part"):
            with storing(path):
                path.unlink(missing_ok=True)

    def write_state(self, step: int, state: Mapping[str, Tensor]) -> None:
        """Keeps the state after a step."""
        write_tensors(self.state_path(step), state)

    @property
    def policy_path(self) -> Path:
        """Where the policy file is, if there is one."""
        return self.path / "policy.json"

    def policy(self) -> LoggedPolicy | None:
        """The thresholds of whoever computes this run; None: the proven bounds. Nobody else should believe them.

        Raises `EncodingError` for a file that is none.
        """
        return LoggedPolicy.load(self.policy_path) if self.policy_path.exists() else None

    def step_log(self, step: int) -> StepLog:
        """The rounding log of a step. Whether it is the committed one: `tiebreak.engine.logged.committed`.

        Raises `VerificationError` for one that is not there, damaged, or that the program cannot have.
        """
        return self._log_file(step).read(step)

    def write_step_log(self, step: int, log: StepLog) -> None:
        """Adds the log of a step, that of a segment's first step in place of all that the segment has.

        Raises `StateError` for a segment that has a record: its log stays as it was committed.
        """
        checkpoint = self.job.checkpoint_of(step)
        if checkpoint < self.recorded():
            raise StateError(f"{self.path}: expected a step without a record, got step {step}; its log is committed")
        if step == self.job.first_step(checkpoint):
            segment = Segment.of(self.job, checkpoint)
            self._logs = LogFile.create(segment.path(self.path / "logs"), self.program, segment)
        self._log_file(step).append(step, log)

    def log_bytes(self) -> int:
        """Bytes of the rounding logs on disk."""
        return sum(path.stat().st_size for path in (self.path / "logs").glob("*") if path.is_file())

    def sync_logs(self, step: int) -> None:
        """Makes the logs of a step's segment durable: before a record commits to them."""
        self._log_file(step).sync()

    def _log_file(self, step: int) -> LogFile:
        segment = Segment.of(self.job, self.job.checkpoint_of(step))
        if self._logs is None or self._logs.segment != segment:
            self._logs = LogFile.open(segment.path(self.path / "logs"), self.program, segment)
        return self._logs

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
        with storing(path), path.open("a") as file:
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
        for step in reversed(self.kept()):
            try:
                self.state(step)
            except VerificationError:
                continue
            return step
        return 0


def _check_root(what: str, expected: bytes, found: bytes) -> None:
    if expected != found:
        raise VerificationError(f"{what}: expected root {expected.hex()}, got {found.hex()}")


def _head_name(count: int) -> str:
    return f"{count:012d}.bin"
