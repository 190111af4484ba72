"""The run directory holds one run on disk, written so that a crash at any moment loses nothing that was committed.

    job.bin                         the signed job (tiebreak.protocol.commitments.job)
    program.tbp                     the program (SPEC 4.1)
    data.safetensors                the job's data
    checkpoints/000000000000.safetensors   the initial state
    checkpoints/000000000040.safetensors   the state after step 40; without the entries that no step changes, which are
                                    those of the initial state, or with all of them
    records.bin                     one 76-byte record per checkpoint (`StepRecord.encode`)
    heads/000000000004.bin          the signed head of count 4
    logs/000000000040.log           policy `logged`: the rounding logs of the segment that ends with step 40
    policy.json                     policy `logged`, optional: `tiebreak.engine.logged.policy`
    metrics.jsonl                   one line per step: step, loss, seconds
    monitor.jsonl                   optional: what the process measured of itself (`tiebreak.api.watching.sampling`)

Files other than `records.bin`, `*.jsonl` and logs appear whole or not at all: they are written under another name,
flushed and renamed. A record is appended after its state and its logs are safe, and a head is signed after its
record is safe. All data that are read back are checked, before use, against the record that commits to them (for logs
by `tiebreak.engine.logged.committed`).
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from tiebreak.engine import data as arrays
from tiebreak.engine.data.disk import Folder, write_file, write_whole
from tiebreak.protocol.commitments.job import Job, SignedHead, SignedJob
from tiebreak.protocol.commitments.records import StepRecord, data_tree, state_tree
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError, VerificationError
from tiebreak.protocol.program.program import Program, ProgramLimits
from tiebreak.protocol.tags import Digest, Tag, tagged_hash
from tiebreak.protocol.trees import Frontier

if TYPE_CHECKING:  # torch comes with the first tensor that is read, so that `tiebreak show` need not wait for it
    from torch import Tensor


T = TypeVar("T")
JOB: Final = "job.bin"
OFFER: Final = "offer.bin"
"""The job with its client's signature, until its trainer has signed it."""
PROGRAM: Final = "program.tbp"
DATA: Final = "data.safetensors"
NAMES: Final = "state_dict.tsv"
"""The names that the module and its adapter's file have for entries of the state. Nobody signs this file."""
MAX_NAMES_BYTES: Final = 1 << 26
ORIGINS: Final = "origins.json"
MAX_ORIGINS_BYTES: Final = 1 << 24
UNCHECKED: Final = "unchecked.txt"
"""Stands in the folder of a run whose capture was not checked against eager PyTorch, or only on a slice."""
MAX_NOTICE_BYTES: Final = 4096
TITLE: Final = "name.txt"
"""The name of the task, for readers. Nobody signs this file."""
MAX_TITLE_BYTES: Final = 100
STATES: Final = "checkpoints"
RECORDS: Final = "records.bin"
HEADS: Final = "heads"
LOGS: Final = "logs"
METRICS: Final = "metrics.jsonl"
RECORD_BYTES: Final = 76
MAX_PROGRAM_BYTES: Final = 1 << 30
MAX_RECORDS_BYTES: Final = 1 << 30
"""Room for 14 million checkpoints.

The limit is needed because a job may name 2^64 steps, and a sparse file of any size costs its sender nothing.
"""
MAX_METRICS_BYTES: Final = 1 << 30
MAX_METRIC_CHARACTERS: Final = 512
MAX_SIGNED_BYTES: Final = 1 << 16
"""The limit for a signed job or a signed head."""
_STATE_NAME: Final = re.compile(r"([0-9]{12,20})\.safetensors")


class RunDirectory:
    """One run on disk, made by `create` or reopened by `open`; both check what they are given."""

    def __init__(self, path: Path, agreement: SignedJob, program: Program) -> None:
        self.path, self.agreement, self.program = path, agreement, program

    @property
    def job(self) -> Job:
        return self.agreement.job

    @classmethod
    def create(
        cls, path: Path, agreement: SignedJob, program: Program, state: Mapping[str, "Tensor"],
        data: Mapping[str, "Tensor"], more: Mapping[str, bytes] = MappingProxyType({}),
    ) -> "RunDirectory":  # fmt: skip
        """Creates a run. Refuses a directory that is in use and inputs that are not the job's. more: further files."""
        agreement.verify()
        lay_out(path, agreement.job, program, state, data, more)
        write_file(path / JOB, agreement.encode())  # last, because a directory with a job counts as complete
        return cls(path, agreement, program)

    @classmethod
    def open(cls, path: Path, limits: ProgramLimits | None = None) -> "RunDirectory":
        """Opens an existing run, perhaps a stranger's.

        Raises `ConfigurationError` if it has no job, and `VerificationError` for anything that contradicts it. Refuses
        a link, a pipe or a device anywhere in the directory; one that appears later is refused when it is met.
        """
        with Folder(path) as folder:
            folder.check()
            if not folder.holds(JOB):
                raise ConfigurationError(
                    f"expected the folder of a run, got {path}, which has no {JOB}; see `tiebreak agree`"
                )
            for name in (STATES, HEADS, LOGS):
                if folder.holds(name):
                    with Folder(path, name) as inner:
                        inner.check()
            agreement = decoded(path / JOB, SignedJob.decode, folder.read(JOB, MAX_SIGNED_BYTES), SignedJob.verify)
            raw = folder.read(PROGRAM, MAX_PROGRAM_BYTES)
        program = decoded(path / PROGRAM, lambda data: Program.decode(data, limits), raw)
        agreement.job.check_program(program)
        return cls(path, agreement, program)

    def folder(self, *inside: str, to_write: bool = False) -> Folder:
        """Opens the directory, or a folder in it. All reads and writes there go through the returned `Folder`."""
        return Folder(self.path, *inside, to_write=to_write)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the run while a process writes into it. Raises `StateError` if another process holds the lock."""
        with self.folder(to_write=True) as folder, folder.lock():
            yield

    def state_path(self, step: int) -> Path:
        """The path of the state after a step, whether or not that state was kept."""
        return self.path / STATES / state_name(step)

    def data(self) -> dict[str, "Tensor"]:
        """The job's data, checked against the data root, as tensors on the mapped file, which must not be written to.

        They are checked at every call, without a cache, because a party that computes with other bytes loses a stake.
        """
        with self.folder() as folder:
            tensors = arrays.map_tensors(folder, DATA, self.program.data_spec())
        check_root(f"{self.path / DATA}", self.job.data_root, data_tree(arrays.data_identities(tensors)).root)
        return tensors

    def state(self, step: int, root: Digest | None = None, *, narrow: bool = False) -> dict[str, "Tensor"]:
        """The state of a checkpoint (or of step 0), checked against `root`, or else against the root in its record.

        narrow: whether f32 entries that no step changes may be in bfloat16, if that holds them exactly. Raises
        `VerificationError`.
        """
        return self._state(step, root, narrow)[0]

    def identities(self, step: int) -> dict[str, Digest]:
        """The ids of the tensors of a checkpoint's state (or of step 0), checked as `state` checks it."""
        return self._state(step, None, True)[1]

    def _state(self, step: int, root: Digest | None, narrow: bool) -> tuple[dict[str, "Tensor"], dict[str, Digest]]:
        with self.folder(STATES) as states:
            tensors = read_state(states, state_name(step), self.program, first=step == 0, narrow=narrow)
        if root is None:
            root = self.job.initial_state_root if step == 0 else self.record_of(step).state_root
        ids = arrays.identities(tensors)
        check_root(f"{self.state_path(step)}: state after step {step}", root, state_tree(ids).root)
        return tensors, ids

    def records(self) -> list[StepRecord]:
        """The records of the checkpoints so far. An incomplete last append is ignored; any other defect is refused."""
        return [StepRecord.decode(raw) for raw in self._raw_records(self.recorded())]

    def recorded(self) -> int:
        """The number of records, from their file's size. Raises `EncodingError` if the job cannot have that many."""
        limit = min(RECORD_BYTES * self.job.checkpoints + RECORD_BYTES - 1, MAX_RECORDS_BYTES)
        with self.folder() as folder:
            return folder.size(RECORDS, limit) // RECORD_BYTES

    def record_digests(self, count: int) -> Iterator[Digest]:
        """The digests of the first `count` records, hashed as they are stored, without decoding."""
        for raw in self._raw_records(count):
            yield tagged_hash(Tag.STEP_RECORD, raw)

    def root(self, count: int | None = None) -> Digest:
        """The root of the run tree over the first `count` checkpoints [default: all so far]."""
        frontier = Frontier()
        for digest in self.record_digests(self.recorded() if count is None else count):
            frontier.append(digest)
        return frontier.root(self.job.run_depth)

    def record_at(self, checkpoint: int) -> StepRecord:
        """The record of a checkpoint (numbered from 0)."""
        return StepRecord.decode(next(self._raw_records(checkpoint + 1, checkpoint)))

    def record_of(self, step: int) -> StepRecord:
        """The record of the checkpoint at a step."""
        if not 1 <= step <= self.job.steps or not self._is_checkpoint(step, self.recorded()):
            raise StateError(f"{self.path}: no record of step {step}")
        return self.record_at(self.job.checkpoint_of(step))

    def _raw_records(self, stop: int, start: int = 0) -> Iterator[bytes]:
        with self.folder() as folder, folder.reading(RECORDS) as (raw_file, _), BufferedReader(raw_file) as file:
            file.seek(start * RECORD_BYTES)
            for checkpoint in range(start, stop):
                raw = file.read(RECORD_BYTES)
                step = int.from_bytes(raw[:8], "big")
                whole = len(raw) == RECORD_BYTES and checkpoint < self.job.checkpoints
                if not whole or step != self.job.last_step(checkpoint):
                    raise EncodingError(f"{self.path / RECORDS}: record {checkpoint} is of step {step}")
                yield raw

    def append_record(self, record: StepRecord) -> None:
        """Appends the next checkpoint's record durably. If its state is to be kept, it must be on disk already."""
        count = self.recorded()
        with self.folder(to_write=True) as folder, folder.changing(RECORDS) as file:
            file.truncate(count * RECORD_BYTES)
            file.seek(0, os.SEEK_END)
            try:
                write_whole(file, memoryview(record.encode()))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(count * RECORD_BYTES)
                raise

    def kept(self) -> list[int]:
        """The steps, ascending, of recorded checkpoints (and 0) whose state is there, judging by file names alone."""
        with self.folder(STATES) as states:
            found = [_STATE_NAME.fullmatch(name) for name in states.names()]
        job, recorded = self.job, self.recorded()
        steps = sorted(int(match[1]) for match in found if match and state_name(int(match[1])) == match[0])
        return [step for step in steps if step == 0 or (step <= job.steps and self._is_checkpoint(step, recorded))]

    def _is_checkpoint(self, step: int, recorded: int) -> bool:
        checkpoint = self.job.checkpoint_of(step)
        return checkpoint < recorded and step == self.job.last_step(checkpoint)

    def kept_before(self, step: int) -> int:
        """The last step up to this one whose state is kept; at least 0, because the initial state always is."""
        return max((kept for kept in self.kept() if kept <= step), default=0)

    def drop_state(self, step: int) -> None:
        """Removes the state after a step; it can be computed again from the last kept state before it."""
        with self.folder(STATES, to_write=True) as states:
            states.remove(state_name(step))

    def drop_parts(self) -> None:
        """Removes unfinished checkpoint files that a killed process left behind."""
        with self.folder(STATES, to_write=True) as states:
            for name in states.names():
                if name.startswith(".") and name.endswith(".part"):
                    states.remove(name)

    def write_state(self, step: int, state: Mapping[str, "Tensor"]) -> None:
        """Stores the state after a step, without the entries that no step changes."""
        changed = {name: tensor for name, tensor in state.items() if not step or name not in self.program.frozen}
        with self.folder(STATES, to_write=True) as states:
            arrays.write_tensors(states, state_name(step), changed, narrow=True)

    def log_bytes(self) -> int:
        """The size of the rounding logs on disk, in bytes."""
        with self.folder() as folder:
            if not folder.holds(LOGS):
                return 0
        with self.folder(LOGS) as logs:
            return sum(logs.size(name) for name in logs.names())

    def write_head(self, head: SignedHead) -> None:
        """Stores a signed head. Refuses a different head of the same count: signing both would be equivocation."""
        name = head_name(head.head.count)
        with self.folder(HEADS, to_write=True) as heads:
            path = heads.path / name
            known = decoded(path, SignedHead.decode, heads.read(name, MAX_SIGNED_BYTES)) if heads.holds(name) else head
            if known.head != head.head:
                raise StateError(
                    f"{path}: a different head of count {head.head.count} is signed already; this machine erred"
                )
            heads.write(name, head.encode())

    def heads(self) -> list[SignedHead]:
        """The signed heads by count, each checked. Raises `VerificationError`."""
        with self.folder(HEADS) as heads:
            found = [self._named_head(heads, name) for name in heads.names() if name.endswith(".bin")]
        return sorted(found, key=lambda head: head.head.count)

    def last_head(self) -> SignedHead | None:
        """The signed head of the highest count, checked, without a look at the others; None if nothing is signed."""
        with self.folder(HEADS) as heads:
            name = max((name for name in heads.names() if name.endswith(".bin")), default=None)
            return None if name is None else self._named_head(heads, name)

    def _named_head(self, heads: Folder, name: str) -> SignedHead:
        path, raw = heads.path / name, heads.read(name, MAX_SIGNED_BYTES)
        head = decoded(path, SignedHead.decode, raw, lambda found: found.verify(self.job, self.agreement.domain))
        if name != head_name(head.head.count):  # otherwise the sender would choose the order
            raise EncodingError(f"{path}: expected the head of this file's count, got one of {head.head.count}")
        return head

    def add_metric(self, step: int, loss: float, seconds: float) -> None:
        """Appends one line of telemetry."""
        line = json.dumps({"step": step, "loss": loss, "seconds": round(seconds, 6)}) + "\n"
        self.append_line(METRICS, line.encode())

    def append_line(self, name: str, line: bytes) -> None:
        """Appends a line to a file of telemetry, on a line of its own even if a killed process left half a one."""
        with self.folder(to_write=True) as folder, folder.changing(name, make=True) as file:
            if end := file.seek(0, os.SEEK_END):
                file.seek(end - 1)
                line = line if file.read(1) == b"\n" else b"\n" + line
            write_whole(file, memoryview(line))

    def metrics(self) -> list[dict[str, float]]:
        """The telemetry by step. The last line of a step counts; an incomplete line is skipped."""
        found: dict[int, dict[str, float]] = {}
        with self.folder() as folder:
            raw = folder.read(METRICS, MAX_METRICS_BYTES) if folder.holds(METRICS) else b""
        # This program writes no longer line, and a deeply nested one can exhaust the C stack of the parser.
        for line in (
            line for line in raw.decode("utf-8", "replace").splitlines() if len(line) <= MAX_METRIC_CHARACTERS
        ):
            try:
                entry = json.loads(line)
                found[int(entry["step"])] = entry
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                continue
        return [found[step] for step in sorted(found)]

    def last_complete(self) -> int:
        """The step of the last checkpoint whose record and state both exist and agree; 0 if there is none."""
        for step in reversed(self.kept()):
            try:
                self.state(step, narrow=True)
            except VerificationError:
                continue
            return step
        return 0


@dataclass(frozen=True, slots=True)
class Keep:
    """The checkpoints that stay on disk: one in every `every`; 0: only the last.

    The initial state and the newest checkpoint stay, so a run can resume. A dropped one is computed again when needed.
    """

    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 0:
            raise ConfigurationError(f"expected to keep every m-th checkpoint, m at least 1, got {self.every}")

    @classmethod
    def parse(cls, text: str) -> "Keep":
        """Parses `all`, `every:M` or `last`. Raises `ConfigurationError`."""
        found = re.fullmatch(r"all|last|every:([1-9][0-9]{0,17})", text)
        if found is None:
            raise ConfigurationError(f"expected all, every:M or last, got {text!r}")
        return cls(int(found[1]) if found[1] else int(text == "all"))

    def __str__(self) -> str:
        return {0: "last", 1: "all"}.get(self.every, f"every:{self.every}")

    def keeps(self, checkpoint: int) -> bool:
        """Whether a checkpoint (numbered from 0) stays once there is a newer one."""
        return self.every > 0 and (checkpoint + 1) % self.every == 0

    def prune(self, run: RunDirectory, newest: int) -> None:
        """Drops the states before step `newest` that need not stay. The state of `newest` must be complete."""
        if self.every == 1:
            return
        for step in run.kept():
            if 0 < step < newest and not self.keeps(run.job.checkpoint_of(step)):
                run.drop_state(step)


ALL = Keep(1)


def lay_out(
    path: Path, job: Job, program: Program, state: Mapping[str, "Tensor"], data: Mapping[str, "Tensor"],
    more: Mapping[str, bytes] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Writes all files of a new run but its signed job, after checking that they are the job's. more: further files."""
    job.check_program(program)
    arrays.check_spec("state", state, program.state_spec(), narrow=True)
    arrays.check_spec("data", data, program.data_spec())
    check_root("initial state", job.initial_state_root, state_tree(arrays.identities(state)).root)
    check_root("data", job.data_root, data_tree(arrays.data_identities(data, cache=arrays.FactsCache())).root)
    with Folder.make(path) as folder:
        if folder.names():
            raise ConfigurationError(f"{path}: expected a new or empty directory; to go on with a run, open it")
        for name in (STATES, HEADS, *([LOGS] if job.is_logged else [])):
            folder.add(name)
        folder.write(PROGRAM, program.encode())
        arrays.write_tensors(folder, DATA, data)
        with Folder(path, STATES) as states:
            arrays.write_tensors(states, state_name(0), state, narrow=True)
        folder.write(RECORDS, b"")
        for name, content in more.items():
            folder.write(name, content)


def read_state(
    states: Folder, name: str, program: Program, *, first: bool = False, narrow: bool = False
) -> dict[str, "Tensor"]:  # fmt: skip
    """The state in a file. Entries that no step changes, and that it lacks, are taken from the initial state beside it.

    first: whether it is the initial state, which has all. Nothing is checked against a root. For the rest see
    `RunDirectory.state`.
    """
    spec, frozen = program.state_spec(), program.frozen
    held = frozen if narrow else frozenset()
    tensors = arrays.read_tensors(states, name, spec, absent=frozenset() if first else frozen, narrow=held)
    if missing := spec.keys() - tensors.keys():
        tensors |= arrays.read_tensors(states, state_name(0), spec, wanted=missing, narrow=held)
    return {entry: tensors[entry] for entry in spec}


def check_root(what: str, expected: bytes, found: bytes) -> None:
    """Raises `VerificationError` unless the roots are the same."""
    if expected != found:
        raise VerificationError(f"{what}: expected root {expected.hex()}, got {found.hex()}")


def decoded(path: Path, decode: Callable[[bytes], T], data: bytes, check: Callable[[T], object] = lambda _: None) -> T:
    """The result of decoding a file's bytes, after `check` has accepted it.

    Any `VerificationError` of either becomes an `EncodingError` that names the file.
    """
    try:
        found = decode(data)
        check(found)
    except VerificationError as error:
        raise EncodingError(f"{path}: {error}") from error
    return found


def titled(name: str) -> bytes:
    """The contents of `TITLE` for a task of this name, cut to its limit."""
    return name.encode("utf-8", "replace")[:MAX_TITLE_BYTES].decode("utf-8", "ignore").encode()


def state_name(step: int) -> str:
    """The name, in the folder of checkpoints, of the state after a step."""
    return f"{step:012d}.safetensors"


def head_name(count: int) -> str:
    """The name, in the folder of heads, of the head over the first `count` checkpoints."""
    return f"{count:012d}.bin"


def kept_steps(run: RunDirectory, count: int) -> list[int]:
    """The steps, ascending, of the initial state and the first `count` checkpoints whose states are still on disk."""
    last = run.job.last_step(count - 1) if count else 0
    return [step for step in run.kept() if step <= last]


def open_offer(folder: Path) -> RunDirectory:
    """Opens the folder of an offer, or of a job that both have signed.

    Raises `StateError` if it holds neither, `VerificationError` if program and signatures are not the job's. State and
    data are checked when they are read.
    """
    with Folder(folder) as files:
        if files.holds(JOB):
            return RunDirectory.open(folder)
        files.check()
        if not files.holds(OFFER):
            raise StateError(f"expected an offer in {folder}, got no {OFFER}; make one with `tiebreak agree`")
        raw_offer = files.read(OFFER, MAX_SIGNED_BYTES)
        offer = decoded(folder / OFFER, SignedJob.decode, raw_offer, SignedJob.verify_offer)
        program = decoded(folder / PROGRAM, Program.decode, files.read(PROGRAM, MAX_PROGRAM_BYTES))
    offer.job.check_program(program)
    return RunDirectory(folder, offer, program)
