"""The files of a job on a party's disk, and their way from one party to another.

The folder of a job is a run directory (`tiebreak.engine.run.directory`). Until its trainer has signed, it holds
`offer.bin` in place of `job.bin` (`api.agreeing.offers`). Its published files are those that an auditor needs,
under the names that they have there, so the folder that `fetch` makes is a run directory again.

A publisher may lie about everything. Numbered plan of a fetch: (1) only the names of this format are looked at, each
with a limit that follows from the job, so nobody chooses a path or fills a disk; (2) a file is fetched under a hidden
name and each piece of it is checked as it comes, so a broken transfer goes on where it stopped; (3) it is checked
against the job, not only against the publisher's list, before it takes its name: signatures, program, state, data,
and records and logs against a signed head; (4) what fails is removed, and the next publisher's file is tried.

The files of a sealed job (`api.agreeing.sealing`) are published as ciphertext, under their names with `.sealed`, and
opened before they are checked. Their folder holds `seal.bin`, and nothing of it is ever published in the clear. Each
publisher's files open with the `seal.bin` that it lists, so nobody can make those of others unreadable.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from io import FileIO
from math import prod
from pathlib import Path
from typing import Final, Protocol

from tiebreak.api.agreement.sealing import MAX_SEAL_BYTES, SEAL, SUFFIX, Sealed, Unseal, readers_of, sealed_bytes
from tiebreak.engine.data import arrays, data_identities, formats
from tiebreak.engine.data.disk import Folder, write_whole
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.logged.encoding import max_sparse_bytes
from tiebreak.engine.logged.files import FILE_HEADER_BYTES
from tiebreak.engine.run import directory
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.node.parts import FilePart, log_name
from tiebreak.node.pieces import pieces_of
from tiebreak.protocol.commitments.blobs import MAX_BLOB_BYTES, blob_root
from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.commitments.job import Job, SignedHead, SignedJob
from tiebreak.protocol.commitments.records import StepRecord, data_tree, run_tree, state_tree
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, EncodingError, VerificationError
from tiebreak.protocol.parties.posts import LibraryBody, PublishedFile
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest

SPARE_BYTES: Final = 1 << 28
"""Free space that fetching leaves on a disk."""
COPY_BYTES: Final = 1 << 22
OPENED: Final = ".open"
FRAME_BYTES: Final = 64
"""More bytes than frame a step's log in its file."""
Spec = dict[str, tuple[DType, tuple[int, ...]]]


class PublishedFiles(Protocol):
    """A store of published files by their roots, such as a hub (`tiebreak.node.hub_client`)."""

    def put(self, file: FileIO, size: int) -> Digest:
        """Store the first `size` bytes of a file, unless they are there already. Returns their root."""

    def get(self, root: Digest, size: int, file: FileIO) -> None:
        """Complete a file that holds nothing, or a beginning of the blob, and check each piece of it.

        Writes no more than `size` bytes. Raises `VerificationError` for bytes that are not the blob's, `CannotCheck` if
        nobody has it or it breaks off; what has come by then stays in the file.
        """


# ---------------------------------------------------------------- published files


def pack(run: RunDirectory, listed: Iterable[FilePart], output: Path) -> None:
    """Copies the parts into a new or empty folder, which then is the run directory that an auditor starts from."""
    listed = list(listed)
    with Folder.make(output) as made:
        if made.names():
            raise ConfigurationError(f"expected a new or empty folder, got {output}; choose another or empty it")
        # The job comes last, because a directory with a job counts as complete.
        for part in sorted(listed, key=lambda part: part.name in (directory.JOB, directory.OFFER)):
            with ExitStack() as stack:
                _make_inside(output, part.inside)
                target = stack.enter_context(Folder(output, *part.inside, to_write=True))
                source, _ = stack.enter_context(stack.enter_context(run.folder(*part.inside)).reading(part.file))
                _copy(source, stack.enter_context(target.replacing(part.file)), part)
        _complete_layout(output, run.job)


def publish(
    run: RunDirectory, listed: Iterable[FilePart], blobs: PublishedFiles | None, count: int,
    sealed: Sealed | None = None,
) -> LibraryBody:  # fmt: skip
    """Uploads the parts, and returns the list of them for the publisher to post. May be repeated after a break.

    blobs: None only lists the parts, as a hub wants to know the list before they come. sealed: the secret of a sealed
    job (`secret_of`). Raises `ConfigurationError` without it for such a job.
    """
    with run.folder() as folder:
        if folder.holds(SEAL) and sealed is None:
            raise ConfigurationError(f"{run.path}: expected the key of a reader, because the job is sealed; got none")
    files = []
    for part in listed:
        with ExitStack() as stack:
            folder = stack.enter_context(run.folder(*part.inside))
            file, _ = stack.enter_context(folder.reading(part.file))
            name, size = part.name, part.size
            if sealed is not None and not is_open(name):
                raw = stack.enter_context(tempfile.TemporaryFile(dir=run.path, buffering=0))
                assert isinstance(raw, FileIO)
                size = sealed.seal(name, file, size, raw)
                raw.seek(0)
                name, file = name + SUFFIX, raw
            root = blob_root(size, pieces_of(file, size)) if blobs is None else blobs.put(file, size)
            files.append(PublishedFile(name=name.encode("ascii"), size=size, root=root))
    files.sort(key=lambda file: file.name)
    return LibraryBody(count=count, logs=int(bool(run.job.is_logged and count)), files=tuple(files))


# ---------------------------------------------------------------- fetched files


def is_open(name: str) -> bool:
    """Whether a file of a sealed job is published in the clear: facts that the board shows anyway, and the readers."""
    return name in (directory.JOB, directory.OFFER, SEAL) or name.startswith(f"{directory.HEADS}/")


def secret_of(run: RunDirectory, unseal: Unseal) -> Sealed | None:
    """The secret of a job, as one of its readers; None if it is not sealed."""
    with run.folder() as folder:
        if not folder.holds(SEAL):
            return None
        data = folder.read(SEAL, MAX_SEAL_BYTES)
    return Sealed(job_id=run.job.id, secret=unseal(data, run.job.id))


@dataclass(slots=True, kw_only=True)
class Fetched:
    """The result of a fetch. missing: the files that no publisher had, or that were false, with the reasons."""

    path: Path
    taken: list[str] = field(default_factory=list)
    """Names of the files that came this time."""
    missing: dict[str, list[str]] = field(default_factory=dict)

    def require(self, *names: str) -> None:
        """Raises `CannotCheck` if one of these files is not there."""
        for name in names:
            if name in self.missing:
                raise CannotCheck(f"{self.path / name}: {'; '.join(self.missing[name]) or 'nobody published it'}")


class Fetcher:
    """Fetches the published files of one job that are not in its folder yet.

    job, domain: known from elsewhere, such as the board or the client's post. listings: those that publishers have
    posted, best first. most: bytes of all files in one go. unseal: opens a sealed job for a reader.
    """

    def __init__(
        self, folder: Path, blobs: PublishedFiles, job: Job, domain: Domain, listings: Sequence[LibraryBody],
        most: int = MAX_BLOB_BYTES, unseal: Unseal | None = None,
    ) -> None:  # fmt: skip
        self.path, self._blobs, self._job, self._domain, self._unseal = folder, blobs, job, domain, unseal
        self._sealed: dict[Digest, Sealed] = {}
        """The job's secret as unsealed, by the root of the `seal.bin` that a publisher lists."""
        self._listings = [{file.name.decode("ascii"): file for file in listing.files} for listing in listings]
        self._left = most
        self._program: Program | None = None
        self._records: list[StepRecord] = []
        self._found = Fetched(path=folder)

    def fetch(self, count: int, *, states: bool = False) -> Fetched:
        """Fetches the files that `parts` names. Those that cannot be had are in `missing`; nothing false is kept.

        Raises `CannotCheck` without a program, a first state or data that are the job's, and `StateError` if another
        process is working in the folder.
        """
        _make_inside(self.path, ())
        with Folder(self.path, to_write=True) as folder, folder.lock():
            _complete_layout(self.path, self._job)
            self._base()
            self._found.require(directory.PROGRAM, f"{directory.STATES}/{directory.state_name(0)}", directory.DATA)
            if count:
                self._progress(count)
            if count and states:
                for name in sorted({name for listing in self._listings for name in listing}):
                    if _STATE.fullmatch(name) and (step := int(name[len(directory.STATES) + 1 :].split(".")[0])):
                        self._state(step)
        return self._found

    def _base(self) -> None:
        """The files that are there before the first step."""
        self._want(directory.JOB, directory.MAX_SIGNED_BYTES, partial(self._check_job, SignedJob.verify))
        self._want(directory.OFFER, directory.MAX_SIGNED_BYTES, partial(self._check_job, SignedJob.verify_offer))
        self._want(SEAL, MAX_SEAL_BYTES, lambda seal, name: readers_of(seal.read(name, MAX_SEAL_BYTES), self._job.id))
        self._want(directory.PROGRAM, directory.MAX_PROGRAM_BYTES, self._check_program)
        if self._program is None:
            return
        self._want(directory.DATA, _most_bytes(self._program.data_spec()), self._check_data, large=True)
        first = partial(self._check_state, self._job.initial_state_root, first=True)
        self._want(f"{directory.STATES}/{directory.state_name(0)}", self._state_bytes(), first, large=True)
        self._want(directory.NAMES, directory.MAX_NAMES_BYTES)  # it is checked whenever it is read
        self._want(directory.UNCHECKED, directory.MAX_NOTICE_BYTES)
        self._want(directory.ORIGINS, directory.MAX_ORIGINS_BYTES)  # shown, never used
        self._want(directory.TITLE, directory.MAX_TITLE_BYTES)  # the same

    def _progress(self, count: int) -> None:
        """The files that the trainer adds at a checkpoint. Records are believed only if the signed head is theirs."""
        head = f"{directory.HEADS}/{directory.head_name(count)}"
        self._want(head, directory.MAX_SIGNED_BYTES, partial(self._check_head, count))
        if head in self._found.missing:
            return
        with Folder(self.path, directory.HEADS) as folder:
            signed = SignedHead.decode(folder.read(directory.head_name(count), directory.MAX_SIGNED_BYTES))
        self._want(directory.RECORDS, directory.RECORD_BYTES * count, partial(self._check_records, signed), grows=True)
        if not self._records:
            return
        if self._job.is_logged and self._program is not None:
            longest = max_sparse_bytes(self._program)
            for checkpoint in range(count):
                most = FILE_HEADER_BYTES + self._job.segment_steps(checkpoint) * (longest + FRAME_BYTES)
                # A log is checked against its record when it is followed; here only its size is.
                self._want(f"{directory.LOGS}/{log_name(self._job, checkpoint)}", most, large=True)
        if count == self._job.checkpoints:
            self._state(self._job.steps)

    def _state(self, step: int) -> None:
        """The state after a step, if a record that a head commits to has its root."""
        if (record := next((record for record in self._records if record.step == step), None)) is not None:
            check = partial(self._check_state, record.state_root)
            self._want(f"{directory.STATES}/{directory.state_name(step)}", self._state_bytes(), check, large=True)

    # ------------------------------------------------------------ one file

    def _want(
        self, name: str, most: int, check: "Check" = lambda _folder, _name: None,
        *, grows: bool = False, large: bool = False,
    ) -> None:  # fmt: skip
        """Takes a file from the first publisher whose file passes.

        grows: one that is there and does not pass may be of an earlier checkpoint. large: one that is there is not read
        again, for it was checked when it came, and whoever computes with it checks it once more.
        """
        part = FilePart(name, 0)
        with Folder(self.path, *part.inside, to_write=True) as folder:
            if folder.holds(part.file):
                with suppress(VerificationError) if grows else nullcontext():
                    if not large:
                        check(folder, part.file)
                    return
            reasons: list[str] = []
            names = (name, name + SUFFIX)
            for listing, one in [(listing, one) for listing in self._listings for one in names if one in listing]:
                try:
                    sealed = self._secret(listing.get(SEAL)) if one != name else None
                    self._take(folder, part, listing[one], sealed, most, check)
                except (VerificationError, CannotCheck) as error:
                    reasons.append(str(error))
                else:
                    self._found.taken.append(name)
                    return
            self._found.missing[name] = reasons

    def _secret(self, seal: PublishedFile | None) -> Sealed:
        """The secret that opens the sealed files of a publisher that lists this `seal.bin`."""
        if seal is None or self._unseal is None:
            raise CannotCheck("it is sealed; the key of a reader opens it")
        if seal.size > MAX_SEAL_BYTES:
            raise EncodingError(f"{SEAL}: expected at most {MAX_SEAL_BYTES} bytes, got {seal.size}")
        if seal.root not in self._sealed:
            with tempfile.TemporaryFile(dir=self.path, buffering=0) as file:
                assert isinstance(file, FileIO)
                self._blobs.get(seal.root, seal.size, file)
                file.seek(0)
                secret = self._unseal(file.read(), self._job.id)
            self._sealed[seal.root] = Sealed(job_id=self._job.id, secret=secret)
        return self._sealed[seal.root]

    def _take(
        self, folder: Folder, part: FilePart, listed: PublishedFile, sealed: Sealed | None, most: int, check: "Check"
    ) -> None:
        most = min(sealed_bytes(most) if sealed else most, self._left)
        if listed.size > most:  # (1)
            raise EncodingError(f"{part.name}: expected at most {most} bytes, got {listed.size}")
        hidden = f".{listed.root.hex()[:32]}.fetch"
        have = folder.size(hidden) if folder.holds(hidden) else 0
        if (free := shutil.disk_usage(folder.path).free) < listed.size - have + SPARE_BYTES:
            raise ConfigurationError(
                f"{folder.path}: expected {listed.size - have + SPARE_BYTES} free bytes, got {free}; free some"
            )
        try:
            with folder.changing(hidden, make=True) as file:  # (2)
                self._blobs.get(listed.root, listed.size, file)
            folder.size(hidden, listed.size)
            plain = _opened(folder, part, hidden, listed.size, sealed) if sealed else hidden
            check(folder, plain)  # (3)
        except VerificationError:
            folder.remove(hidden)  # (4)
            folder.remove(hidden + OPENED)
            raise
        folder.rename(plain, part.file)
        folder.remove(hidden)
        self._left -= listed.size

    def _state_bytes(self) -> int:
        assert self._program is not None  # without it nothing else is fetched
        return _most_bytes(self._program.state_spec())

    # ------------------------------------------------------------ checks against the job

    def _check_job(self, verify: Callable[[SignedJob], object], folder: Folder, name: str) -> None:
        found = SignedJob.decode(folder.read(name, directory.MAX_SIGNED_BYTES))
        if found.job.id != self._job.id or found.domain != self._domain:
            raise VerificationError(
                f"expected job {self._job.id.hex()} on chain {self._domain.chain_id}, got {found.job.id.hex()} on "
                f"{found.domain.chain_id}"
            )
        # The party's own file may have no signatures, if the board stands for them.
        if name not in (directory.JOB, directory.OFFER):
            verify(found)

    def _check_program(self, folder: Folder, name: str) -> None:
        program = Program.decode(folder.read(name, directory.MAX_PROGRAM_BYTES))
        self._job.check_program(program)
        self._program = program

    def _check_data(self, folder: Folder, name: str) -> None:
        assert self._program is not None
        tensors = formats.map_tensors(folder, name, self._program.data_spec())
        directory.check_root("data", self._job.data_root, data_tree(data_identities(tensors)).root)

    def _check_state(self, root: Digest, folder: Folder, name: str, *, first: bool = False) -> None:
        assert self._program is not None
        tensors = directory.read_state(folder, name, self._program, first=first, narrow=True)
        directory.check_root("state", root, state_tree(identities(tensors)).root)

    def _check_head(self, count: int, folder: Folder, name: str) -> None:
        found = SignedHead.decode(folder.read(name, directory.MAX_SIGNED_BYTES))
        found.verify(self._job, self._domain)
        if found.head.count != count:
            raise VerificationError(f"expected a head of count {count}, got one of {found.head.count}")

    def _check_records(self, signed: SignedHead, folder: Folder, name: str) -> None:
        job, count, size = self._job, signed.head.count, directory.RECORD_BYTES
        raw = folder.read(name, size * count)
        found = [StepRecord.decode(raw[at : at + size]) for at in range(0, len(raw), size)]
        if [record.step for record in found] != [job.last_step(checkpoint) for checkpoint in range(count)]:
            raise VerificationError(f"expected records of {count} checkpoints in their order, got others")
        root = run_tree([record.digest for record in found], job.steps, job.checkpoint_interval).root
        directory.check_root("records", signed.head.run_root, root)
        self._records = found


Check = Callable[[Folder, str], object]
"""Raises `VerificationError` unless the file of this name in the folder is what the job asks for."""
_STATE: Final = re.compile(directory.STATES + r"/[0-9]{12,20}\.safetensors")


# ---------------------------------------------------------------- inner workings


def _opened(folder: Folder, part: FilePart, hidden: str, size: int, sealed: Sealed) -> str:
    """Opens a sealed file into another one in its folder. Returns the name of the new file."""
    folder.remove(hidden + OPENED)
    with folder.reading(hidden) as (source, _), folder.changing(hidden + OPENED, make=True) as target:
        sealed.open(part.name, source, size, target)
    return hidden + OPENED


def _most_bytes(spec: Spec) -> int:
    return sum(dtype.size * prod(shape) for dtype, shape in spec.values()) + arrays.MAX_SAFETENSORS_HEADER


def _make_inside(path: Path, inside: Sequence[str]) -> None:
    with Folder.make(path) as folder:
        for name in inside:
            if not folder.holds(name):
                folder.add(name)


def _complete_layout(path: Path, job: Job) -> None:
    """Makes the folders and the empty file of records that every run directory has."""
    for name in (directory.STATES, directory.HEADS, *([directory.LOGS] if job.is_logged else [])):
        _make_inside(path, (name,))
    with Folder(path, to_write=True) as folder:
        if not folder.holds(directory.RECORDS):
            folder.write(directory.RECORDS, b"")


def _copy(source: FileIO, target: FileIO, part: FilePart) -> None:
    left = part.size
    while left:
        if not (data := source.read(min(left, COPY_BYTES))):
            raise EncodingError(f"{part.name}: expected {part.size} bytes, got {part.size - left}")
        write_whole(target, memoryview(data))
        left -= len(data)
