"""Arrays that stay in their files: where the bytes are, reading them in blocks, and tensors on mapped memory.

A pass over a whole array (hashing, checking, converting) reads it in blocks, so that a file of any size takes 16 MiB of
memory, and a file that is cut short meanwhile is an error. Only the scattered reads of training use a mapping. The
mapping is shared and read-only. Whatever its size, it takes no memory of its own, because the system may drop its pages
at any time. Writing into such a tensor ends the process, and so does reading a part that was cut off the file.
"""

import mmap
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tiebreak.engine.data.disk import Stamp, opened, read_exactly
from tiebreak.engine.data.elements import Element
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError
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
        with self._opened() as file:
            file.seek(self.offset)
            buffer, left = memoryview(bytearray(min(BLOCK_BYTES, self.nbytes))), self.nbytes
            while left:
                block = buffer[: min(left, len(buffer))]
                if read_exactly(file, block) != len(block):
                    raise EncodingError(f"{self}: expected {left} bytes more, got the end of the file")
                left -= len(block)
                yield block
            self._check_stamp(Stamp.of(file))

    def tensor(self) -> Tensor:
        """The array as a tensor on the mapped file: float32, int64, a narrower integer or bool.

        Only bools are read at once, to check them. The tensor must not be written to. Raises `ConfigurationError` for
        elements that have to be converted first, `StateError` if the file has changed, and `EncodingError` for bools
        other than 0 and 1.
        """
        usable = self.element.mapped and not self.big_endian
        if not usable or self.offset % self.element.size:
            got = "elements that are not aligned" if usable else f"{'big-endian ' * self.big_endian}{self.element}"
            raise ConfigurationError(
                f"{self}: expected little-endian F32, I64, I32, I16, I8, U8 or BOOL, got {got}; convert it with "
                "`tiebreak data import`"
            )
        if self.committed == DType.BOOL:
            for block in self.blocks():
                check_bools(self, block)
        start = self.offset - self.offset % mmap.ALLOCATIONGRANULARITY
        with self._opened() as file:
            length = self.offset - start + self.nbytes
            mapping = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=start)
        array = np.frombuffer(mapping, self.element.numpy, prod(self.shape), self.offset - start)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # it is read-only, on purpose
            tensor = torch.from_numpy(array.reshape(self.shape))
        if self.committed == DType.BOOL:
            tensor = tensor.view(torch.bool)
        _SOURCES[tensor] = self
        return tensor

    def check_unchanged(self) -> None:
        """Raises `StateError` if the file was written to since it was opened, and `EncodingError` if it is gone."""
        with self._opened():
            pass

    @contextmanager
    def _opened(self) -> Iterator[FileIO]:
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


_SOURCES: Final = WeakTensorKeyDictionary()


def source_of(tensor: Tensor) -> ArrayFile | None:
    """The array behind a mapped tensor, if the tensor is the whole array; otherwise None."""
    found = _SOURCES.get(tensor)  # type: ignore[no-untyped-call]
    assert found is None or isinstance(found, ArrayFile)
    return found


def check_unchanged(tensors: Iterable[Tensor]) -> None:
    """Raises `StateError` if the file of a mapped tensor was written to since it was opened.

    Results computed from it since may belong to another run, so none of them may be signed.
    """
    arrays = {array.path: array for tensor in tensors if (array := source_of(tensor)) is not None}
    for array in arrays.values():
        array.check_unchanged()
