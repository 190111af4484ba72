"""Files and the pieces of blobs: hashed, checked and written, by a hub and by its clients."""

import os
from collections.abc import Sequence
from io import FileIO
from typing import Final

from tiebreak.protocol.commitments.blobs import PIECE_BYTES, piece_count, piece_digest
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.tags import Digest

_WRITE_BYTES: Final = 1 << 14
"""The larger a write, the larger the blocks of memory that Linux takes for it; in a virtual machine large ones are
probably those that the host has taken back, and cost up to three times the processor time."""


class FileSlice:
    """Some bytes of a file, as the body of a request. The position of the file stays as it is."""

    def __init__(self, file: FileIO, at: int, end: int) -> None:
        self._file, self._at, self._end = file, at, end

    def __len__(self) -> int:
        return self._end - self._at

    def read(self, size: int) -> bytes:
        data = os.pread(self._file.fileno(), min(size, self._end - self._at), self._at)
        self._at += len(data)
        return data


def pieces_of(file: FileIO, size: int) -> list[Digest]:
    """The digests of the pieces of a file's first `size` bytes. Raises `EncodingError` if it has fewer."""
    part, digests = FileSlice(file, 0, size), []
    for number in range(piece_count(size)):
        data = part.read(PIECE_BYTES)
        if len(data) != min(PIECE_BYTES, size - number * PIECE_BYTES):
            raise EncodingError(f"expected {size} bytes, got the end of the file before")
        digests.append(piece_digest(data))
    return digests


def good_bytes(file: FileIO, size: int, digests: Sequence[bytes]) -> int:
    """The number of bytes from the start of a file that match the digests of their pieces."""
    part, good = FileSlice(file, 0, size), 0
    for digest in digests:
        data = part.read(PIECE_BYTES)
        if len(data) != min(PIECE_BYTES, size - good) or piece_digest(data) != digest:
            break
        good += len(data)
    return good


def write_at(descriptor: int, data: memoryview, at: int) -> int:
    """Write all of the data at a place of a file. Returns where it ends."""
    while data:
        written = os.pwrite(descriptor, data[:_WRITE_BYTES], at)
        data, at = data[written:], at + written
    return at
