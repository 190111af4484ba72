"""The hub's library: blobs in files, by root. An upload is checked piece by piece before it counts.

    blobs/ab/ROOT          a whole blob
    blobs/ab/ROOT.pieces   u64 size || the digests of its pieces, which hash to the root
    blobs/ab/ROOT.part     what has come so far: whole pieces from the start

`ROOT.pieces` comes first. A part is continued where it ends; after a restart of the hub its pieces are checked again,
since a machine that lost power may have lost some of them. All methods block; the app calls them in threads.
"""

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tiebreak.engine.data.disk import Folder, StorageError, write_file
from tiebreak.node.pieces import good_bytes, write_at
from tiebreak.protocol.commitments.blobs import PIECE_BYTES, check_pieces, piece_count, piece_digest
from tiebreak.protocol.errors import ProofError, StateError
from tiebreak.protocol.hashing import DIGEST_BYTES

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DiskFull(Exception):
    """There is no room for more blobs."""


class Blobs:
    """The files below one folder. Several threads may use it; of one blob, one upload goes on at a time."""

    def __init__(self, folder: Path, *, free_bytes: int) -> None:
        self._folder, self._free = folder, free_bytes
        self._checked: set[str] = set()
        """Parts whose pieces were checked by this process."""
        self._busy: set[bytes] = set()
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, root: bytes) -> Path:
        """The path at which the whole blob is, or will be."""
        name = root.hex()
        return self._folder / name[:2] / name

    def size(self, root: bytes) -> int | None:
        """The size of a whole blob; None if it is not here."""
        try:
            return self.path(root).stat().st_size
        except FileNotFoundError:
            return None

    def pieces(self, root: bytes) -> tuple[int, bytes] | None:
        """The size of a blob and the digests of its pieces, concatenated; None if nobody brought them."""
        try:
            data = self.path(root).with_suffix(".pieces").read_bytes()
        except FileNotFoundError:
            return None
        return int.from_bytes(data[:8], "big"), data[8:]

    def held(self, root: bytes) -> int:
        """The number of bytes of a blob that are here, in whole pieces."""
        if (size := self.size(root)) is not None:
            return size
        try:
            return self.path(root).with_suffix(".part").stat().st_size // PIECE_BYTES * PIECE_BYTES
        except FileNotFoundError:
            return 0

    def begin(self, root: bytes, size: int, digests: bytes) -> None:
        """Take the list of a blob's pieces. Raises `ProofError` if it does not hash to the root."""
        check_pieces(root, size, _split(digests))
        path = self.path(root).with_suffix(".pieces")
        self.check_room(size - self.held(root))
        with self.upload(root), _room():
            Folder.make(path.parent).__exit__()
            write_file(path, size.to_bytes(8, "big") + digests)

    @contextmanager
    def upload(self, root: bytes) -> Iterator[None]:
        """Hold a blob while something is written to it. Raises `StateError` if somebody else does."""
        with self._lock:
            if root in self._busy:
                raise StateError("expected one upload of a blob at a time, got another")
            self._busy.add(root)
        try:
            yield
        finally:
            with self._lock:
                self._busy.discard(root)

    def resume(self, root: bytes) -> int:
        """Check and cut the part of a blob that has come; the number of bytes that stay. Call it within `upload`."""
        path, name = self.path(root).with_suffix(".part"), root.hex()
        held = self.held(root)
        if name in self._checked or not held:
            return held
        found = self.pieces(root)
        assert found is not None, "a part has pieces"
        with path.open("r+b", buffering=0) as file:
            good = good_bytes(file, held, _split(found[1]))
            file.truncate(good)
        self._checked.add(name)
        return good

    def append(self, root: bytes, offset: int, data: memoryview) -> None:
        """Write the next pieces at their offset, as far as they are right.

        Raises `ProofError` for wrong bytes, `DiskFull` without room.
        """
        number, count, good = offset // PIECE_BYTES, piece_count(len(data)), 0
        with self.path(root).with_suffix(".pieces").open("rb") as file:
            digests = _split(os.pread(file.fileno(), count * DIGEST_BYTES, 8 + number * DIGEST_BYTES))
        try:
            for at, digest in enumerate(digests):
                piece = data[at * PIECE_BYTES : (at + 1) * PIECE_BYTES]
                if (found := piece_digest(piece)) != digest:
                    raise ProofError(f"piece {number + at}: expected {digest.hex()}, got {found.hex()}")
                good += len(piece)
        finally:
            self.check_room(good)
            with _room():
                self._write_at(self.path(root).with_suffix(".part"), offset, data[:good])
            self._checked.add(root.hex())

    @staticmethod
    def _write_at(path: Path, offset: int, data: memoryview) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.ftruncate(descriptor, offset)
            write_at(descriptor, data, offset)
        except OSError:
            os.ftruncate(descriptor, offset)
            raise
        finally:
            os.close(descriptor)

    def finish(self, root: bytes) -> None:
        """Give a blob whose last piece came its name."""
        path = self.path(root)
        with _room(), Folder(path.parent) as folder:
            folder.rename(f"{path.name}.part", path.name)
        self._checked.discard(root.hex())

    def has_room(self, wanted: int) -> bool:
        """Whether this many bytes fit above the free bytes that keep the hub answering."""
        return shutil.disk_usage(self._folder).free - wanted >= self._free

    def check_room(self, wanted: int) -> None:
        """Raise `DiskFull` unless there is room for this many bytes (`has_room`)."""
        if not self.has_room(wanted):
            free = shutil.disk_usage(self._folder).free
            raise DiskFull(f"expected {wanted} bytes beside {self._free} that stay free, got {free} on the disk")


@contextmanager
def _room() -> Iterator[None]:
    """Turns the errors of a full disk into `DiskFull`."""
    try:
        yield
    except (OSError, StorageError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in _FULL:
            raise
        raise DiskFull(f"expected room on the disk, got: {cause.strerror}") from error


def _split(digests: bytes) -> list[bytes]:
    if len(digests) % DIGEST_BYTES:
        raise ProofError(f"expected digests of {DIGEST_BYTES} bytes, got {len(digests)} bytes")
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
