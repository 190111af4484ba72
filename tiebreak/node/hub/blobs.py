"""The hub's library: blobs in files, by root. An upload is checked piece by piece before it counts.

    blobs/ab/ROOT          a whole blob
    blobs/ab/ROOT.pieces   u64 size || the digests of its pieces, which hash to the root
    blobs/ab/ROOT.part     what has come so far: whole pieces from the start

`ROOT.pieces` comes first. A part is continued where it ends; after a restart of the hub its pieces are checked again,
since a machine that lost power may have lost some of them. Each piece has one right content, so any number of uploads
write one part together: whoever has the next piece adds it, and nobody waits for an upload that has stopped.

All methods of `Blobs` block. The app calls them in threads, those that change a blob one at a time for each.
"""

import errno
import os
import shutil
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Final

from tiebreak.engine.data.disk import Folder, StorageError, write_file
from tiebreak.node.hub.connection import Connection
from tiebreak.node.pieces import good_bytes, write_at
from tiebreak.protocol.commitments.blobs import PIECE_BYTES, check_pieces, piece_count, piece_digest
from tiebreak.protocol.errors import ProofError, StateError
from tiebreak.protocol.hashing import DIGEST_BYTES

UPLOAD_BYTES: Final = 1 << 29
"""The most memory for bytes of uploads that are not on the disk yet, of all clients together."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DiskFull(Exception):
    """There is no room for more blobs."""


class UploadMemory:
    """Counts the memory of uploads. If it is too much, those are cut which have gone longest without a block written.

    So uploads that stop or drip keep nobody out, and one that is cut goes on after its last whole piece.
    """

    def __init__(self, most: int) -> None:
        self._most, self._held = most, OrderedDict[Connection, int]()

    def hold(self, upload: Connection, size: int) -> None:
        """Count what an upload holds now, instead of what it held before."""
        self._held[upload] = size
        excess = sum(self._held.values()) - self._most
        for slowest, freed in self._held.items():
            if excess <= 0:
                break
            slowest.cut()
            excess -= freed

    def release(self, upload: Connection) -> None:
        """Count nothing for an upload; when it holds something again, it is the newest."""
        self._held.pop(upload, None)


class Blobs:
    """Stores blobs, whole or in part, as files below one folder."""

    def __init__(self, folder: Path, *, free_bytes: int) -> None:
        self._folder, self._free = folder, free_bytes
        self._checked: set[bytes] = set()
        """Blobs whose parts were checked, or begun, by this process."""
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
        with _room(), Folder.make(path.parent):
            write_file(path, size.to_bytes(8, "big") + digests)

    def resume(self, root: bytes) -> int:
        """Check and cut the part of a blob that came before this process began; the number of bytes that are here."""
        if (held := self.held(root)) and root not in self._checked and self.size(root) is None:
            found = self.pieces(root)
            assert found is not None, "a part has pieces"
            with self.path(root).with_suffix(".part").open("r+b", buffering=0) as file:
                held = good_bytes(file, held, _split(found[1]))
                file.truncate(held)
        self._checked.add(root)
        return held

    def check(self, root: bytes, offset: int, data: memoryview) -> tuple[int, int]:
        """The number of bytes at an offset that are right, in whole pieces, and the number that are here already."""
        number, count = offset // PIECE_BYTES, piece_count(len(data))
        with self.path(root).with_suffix(".pieces").open("rb") as file:
            digests = _split(os.pread(file.fileno(), count * DIGEST_BYTES, 8 + number * DIGEST_BYTES))
        pieces = [data[at * PIECE_BYTES : (at + 1) * PIECE_BYTES] for at in range(count)]
        right = takewhile(lambda pair: piece_digest(pair[0]) == pair[1], zip(pieces, digests, strict=False))
        return sum(len(piece) for piece, _ in right), self.held(root)

    def append(self, root: bytes, offset: int, data: memoryview, size: int) -> int:
        """Write those of these right bytes that are not here yet. If all `size` are here then, the blob has its name.

        Returns the number of bytes that are here. Raises `DiskFull`, and `StateError` for an offset beyond them.
        """
        path, held = self.path(root), self.held(root)
        if offset > held:
            raise StateError(f"expected bytes from {held} on, got some from {offset} on")
        if self.size(root) is not None:
            return held
        new = data[held - offset :]
        self.check_room(len(new))
        with _room():
            self._write_at(path.with_suffix(".part"), held, new)
            if held + len(new) == size:
                with Folder(path.parent) as folder:
                    folder.rename(f"{path.name}.part", path.name)
                self._checked.discard(root)
        return held + len(new)

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
