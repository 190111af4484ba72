"""Array files: .npy, .safetensors and raw bytes. Headers count as hostile until checked; nothing is unpickled.

Arrays stay in their files. A pass over a whole array (hashing, checking, converting) reads it in blocks, so that a file
of any size takes 16 MiB of memory, and a file that is cut short meanwhile is an error. For tensors on the mapped file
see `mapped`. Imports no torch, so that weights can be checked without it.
"""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from tiebreak.engine.data.disk import Stamp, opened, read_exactly
from tiebreak.engine.data.elements import Element, of_numpy
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError
from tiebreak.protocol.program.isa import MAX_NUMEL, MAX_RANK, DType
from tiebreak.protocol.strict_json import JsonObject, parse_json

NPY_MAGIC: Final = b"\x93NUMPY"
MAX_NPY_HEADER: Final = 1024
"""numpy writes 128 bytes at rank 8. More could exhaust the stack of Python's parser."""
MAX_SAFETENSORS_HEADER: Final = 1 << 24
MAX_DEPTH: Final = 3
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
        # A new name or mode of the file changes only `changed`; writing into it changes the others too.
        if replace(found, changed=0) != replace(self.stamp, changed=0):
            raise StateError(
                f"{self.path}: expected the file as it was when it was opened, got a changed one; open it again"
            )


def check_bools(what: object, data: memoryview) -> None:
    """Raises `EncodingError` unless every byte is 0 or 1: torch loads any byte as a bool, but no proof may open one."""
    if (greatest := int(np.frombuffer(data, np.uint8).max(initial=0))) > 1:
        raise EncodingError(f"{what}: expected bools of 0 and 1, got {greatest}")


def open_array(
    path: Path | str, *, name: str | None = None, dtype: str | None = None, shape: tuple[int, ...] | None = None,
    offset: int = 0,
) -> ArrayFile:  # fmt: skip
    """Opens the array in a .npy file, the entry `name` of a .safetensors file, or the raw bytes of any other file.

    Raw bytes need `dtype`, a numpy type string such as `<f4`; without `shape` they are one dimension up to the file's
    end. Raises `EncodingError` for a malformed file and `ConfigurationError` for missing arguments.
    """
    path = Path(path)
    if dtype is not None:
        return open_raw(path, dtype, shape, offset)
    if path.suffix == ".npy":
        return open_npy(path)
    if path.suffix != ".safetensors":
        raise ConfigurationError(f"{path}: expected .npy, .safetensors, or a dtype for raw bytes, got none of them")
    entries = open_safetensors(path)
    if name is None and len(entries) == 1:
        return next(iter(entries.values()))
    if name not in entries:
        raise ConfigurationError(f"{path}: expected the name of one of {sorted(entries)[:10]}, got {name!r}")
    return entries[name]


def open_raw(path: Path, dtype: str, shape: tuple[int, ...] | None = None, offset: int = 0) -> ArrayFile:
    """Raw elements from byte `offset` on; without `shape`, up to the end of the file."""
    element, big_endian = of_numpy(dtype)
    with opened(path) as (_, stamp):
        pass
    if shape is None:
        count, rest = divmod(stamp.size - offset, element.size)
        if rest:
            raise EncodingError(f"{path}: expected whole elements of {element.size} bytes, got {rest} bytes more")
        shape = (count,)
    return ArrayFile(path=path, element=element, big_endian=big_endian, shape=shape, offset=offset, stamp=stamp)


def open_npy(path: Path) -> ArrayFile:
    """The array of a .npy file (NEP 1, versions 1 and 2), which must be row-major and hold nothing else."""
    with opened(path) as (file, stamp):
        start = _take(path, file, 10)
        if start[:6] != NPY_MAGIC or start[6] not in (1, 2) or start[7] != 0:
            raise EncodingError(f"{path}: expected a .npy file of version 1.0 or 2.0, got {start[:8]!r}")
        length = start[8:10] if start[6] == 1 else start[8:10] + _take(path, file, 2)
        if (size := int.from_bytes(length, "little")) > MAX_NPY_HEADER:
            raise EncodingError(f"{path}: expected a header of at most {MAX_NPY_HEADER} bytes, got {size}")
        header = _npy_header(path, _take(path, file, size))
        offset = file.tell()
    element, big_endian = of_numpy(header["descr"])
    found = ArrayFile(
        path=path, element=element, big_endian=big_endian, shape=header["shape"], offset=offset, stamp=stamp
    )
    if header["fortran_order"] and sum(dim > 1 for dim in found.shape) > 1:
        raise EncodingError(f"{path}: expected rows one after the other, got Fortran order; save it as C-contiguous")
    if offset + found.nbytes != stamp.size:
        raise EncodingError(f"{path}: expected {offset + found.nbytes} bytes, got {stamp.size}")
    return found


def _npy_header(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header = ast.literal_eval(text.decode("latin-1").strip())
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise EncodingError(f"{path}: expected the header of a .npy file, got {text[:60]!r}") from error
    if not isinstance(header, dict) or set(header) != {"descr", "fortran_order", "shape"}:
        raise EncodingError(f"{path}: expected descr, fortran_order and shape in the header, got {text[:60]!r}")
    shape, kind = header["shape"], header["descr"]
    if not isinstance(kind, str):
        raise EncodingError(f"{path}: expected plain elements, got a structured type")
    if not isinstance(shape, tuple) or any(type(dim) is not int for dim in shape):
        raise EncodingError(f"{path}: expected a shape of integers, got {str(shape)[:60]}")
    if type(header["fortran_order"]) is not bool:
        raise EncodingError(f"{path}: expected fortran_order to be True or False")
    return header


def open_safetensors(path: Path) -> dict[str, ArrayFile]:
    """The arrays of a .safetensors file by name. They must cover its data without gap or overlap."""
    with opened(path) as (file, stamp):
        return safetensors_in(path, file, stamp)


def safetensors_in(path: Path, file: FileIO, stamp: Stamp) -> dict[str, ArrayFile]:
    """The same of a file that is open already, at its start."""
    if (size := int.from_bytes(_take(path, file, 8), "little")) > MAX_SAFETENSORS_HEADER:
        raise EncodingError(f"{path}: expected a header of at most {MAX_SAFETENSORS_HEADER} bytes, got {size}")
    text = _take(path, file, size)
    try:
        header = parse_json(text, MAX_DEPTH)
    except ValueError as error:
        raise EncodingError(f"{path}: not a readable safetensors header: {error}") from error
    if not isinstance(header, dict):
        raise EncodingError(f"{path}: expected a safetensors header of entries by name, got another value")
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, entry, 8 + size, stamp) for name, entry in header.items()}
    end = 8 + size
    for entry in sorted(entries.values(), key=lambda one: one.offset):
        if entry.offset != end:
            raise EncodingError(f"{entry}: expected to begin at byte {end}, got {entry.offset}")
        end += entry.nbytes
    if end != stamp.size:
        raise EncodingError(f"{path}: expected {end} bytes, got {stamp.size}")
    return entries


def _entry(path: Path, name: str, entry: Any, start: int, stamp: Stamp) -> ArrayFile:
    fields = JsonObject(f"{path}, {name[:60]}", entry)
    element = Element(fields.take("dtype", f"one of {', '.join(Element)}", lambda kind: kind in list(Element)))
    counts = "a list of at most 64 integers of 0 to 2^63 - 1"
    shape, places = (fields.take(key, counts, _are_counts) for key in ("shape", "data_offsets"))
    fields.finish()
    if len(places) != 2 or places[1] - places[0] != prod(shape) * element.size:
        raise EncodingError(f"{path}, {name[:60]}: expected {element} {shape} to fill its place, got {places}")
    return ArrayFile(path=path, name=name, element=element, shape=tuple(shape), offset=start + places[0], stamp=stamp)


def _are_counts(values: object) -> bool:
    # SAFETY: a product of many long numbers would take for ever.
    return isinstance(values, list) and len(values) <= 64 and all(type(n) is int and 0 <= n < 1 << 63 for n in values)


def _take(path: Path, file: FileIO, size: int) -> bytes:
    data = bytearray(size)
    if (found := read_exactly(file, memoryview(data))) != size:
        raise EncodingError(f"{path}: expected {size} bytes of a header, got {found}")
    return bytes(data)
