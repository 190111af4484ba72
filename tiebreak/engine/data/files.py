"""Arrays that stay in their files: where the bytes are, and reading them in blocks. Imports no torch.

A pass over a whole array (hashing, checking, converting) reads it in blocks, so that a file of any size takes 16 MiB of
memory, and a file that is cut short meanwhile is an error. For tensors on the mapped file see `mapped`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from tiebreak.engine.data.disk import Stamp, opened, read_exactly
from tiebreak.engine.data.elements import Element
from tiebreak.protocol.errors import EncodingError, StateError
from tiebreak.protocol.program.isa import MAX_NUMEL, MAX_RANK, DType

BLOCK_BYTES: Final = 1 << 24
"""The size of one read: a multiple of every element's size and of a subtree of the chunk tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayFile:
    """An array in a file, row-major from byte `offset` on. Checked against the file's size when made.

    `name`: its name within a file that holds several arrays. `stamp`: that of the file when its header was read.
    """

    path: Path
    name: str = ""
    element: Element
    big_endian: bool = False
    shape: tuple[int, ...]
    offset: int
    stamp: Stamp

    def __post_init__(self) -> None:
        shape = self.shape
        if len(shape) > MAX_RANK or any(dim < 1 for dim in shape) or prod(shape) > MAX_NUMEL:
            raise EncodingError(f"{self}: expected rank <= {MAX_RANK}, dims >= 1, at most 2^40 elements; got {shape}")
        if self.offset < 0 or self.offset + self.nbytes > self.stamp.size:
            raise EncodingError(
                f"{self}: expected {self.nbytes} bytes from byte {self.offset} on, got a file of {self.stamp.size}"
            )

    def __str__(self) -> str:
        return f"{self.path}, {self.name}" if self.name else str(self.path)

    @property
    def nbytes(self) -> int:
        """The size of the array in bytes."""
        return prod(self.shape) * self.element.size

    @property
    def committed(self) -> DType | None:
        """Its type in a job as it stands; None if it has to be converted."""
        return None if self.big_endian else self.element.committed

    def blocks(self) -> Iterator[memoryview]:
        """The bytes, in order, in blocks of 16 MiB (the last one shorter). Each block is overwritten by the next.

        Raises `EncodingError` if the file cannot be read, and `StateError` if it was replaced or changes meanwhile.
        """
        with self.opened() as file:
            file.seek(self.offset)
            buffer, left = memoryview(bytearray(min(BLOCK_BYTES, self.nbytes))), self.nbytes
            while left:
                block = buffer[: min(left, len(buffer))]
                if read_exactly(file, block) != len(block):
                    raise EncodingError(f"{self}: expected {left} bytes more, got the end of the file")
                left -= len(block)
                yield block
            self._check_stamp(Stamp.of(file))

    @contextmanager
    def opened(self) -> Iterator[FileIO]:
        """Opens the file. Raises `StateError` for one that has changed, `EncodingError` for one that is gone."""
        with opened(self.path) as (file, stamp):
            self._check_stamp(stamp)
            yield file

    def _check_stamp(self, found: Stamp) -> None:
        if not found.same_bytes(self.stamp):
            raise StateError(
                f"{self.path}: expected the file as it was when it was opened, got a changed one; open it again"
            )


def check_bools(what: object, data: memoryview) -> None:
    """Raises `EncodingError` unless every byte is 0 or 1: torch loads any byte as a bool, but no proof may open one."""
    greatest = int(np.frombuffer(data, np.uint8).max(initial=0))
    if greatest > 1:
        raise EncodingError(f"{what}: expected bools of 0 and 1, got {greatest}")
