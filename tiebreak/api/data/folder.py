"""A folder of imported arrays.

    tokens.npy            each array, little-endian float32 or int64
    arrays.json           file, element type, shape and id of each array, and the source; written last

`tiebreak data import` makes the folder and tasks read it. Its contents are checked like any file from elsewhere.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import Tensor

from tiebreak.engine.data import ArrayFile, FactsCache, examine, map_array, open_npy
from tiebreak.engine.data.disk import Folder, StorageError, make_folder, read_file
from tiebreak.engine.data.elements import Array, Element
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.strict_json import JsonObject

MANIFEST: Final = "arrays.json"
FORMAT: Final = 1
MAX_MANIFEST_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 4
HEADER_BYTES: Final = 512
"""Size of the header of every .npy file written here, whatever its final shape. A multiple of 64, like numpy's own."""
NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

OnBytes = Callable[[int], None]
"""Called with the number of further bytes of the source that have been read."""


class ArrayWriter:
    """Writes a .npy file that grows by rows; its length is known only at the end."""

    def __init__(self, path: Path, dtype: DType, row: tuple[int, ...]) -> None:
        """`row`: the shape of one row; () makes an array of one dimension."""
        self.path, self.dtype, self.row = path, dtype, row
        self._kind = Element[dtype.name].numpy
        self._elements = 0
        self._file = path.open("xb")
        self._file.write(bytes(HEADER_BYTES))

    def append(self, values: Array) -> None:
        """Adds whole rows, an array of shape [rows, *row]."""
        if values.shape[1:] != self.row:
            raise EncodingError(f"{self.path.stem}: expected rows of shape {self.row}, got {values.shape[1:]}")
        self.extend(values)

    def extend(self, values: Array) -> None:
        """Adds elements in row-major order, little-endian and of the array's dtype."""
        if values.dtype != self._kind:
            raise EncodingError(f"{self.path.stem}: expected {self._kind.str}, got {values.dtype.str}")
        self._file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        self._elements += values.size

    def finish(self) -> None:
        """Writes the header and syncs the file to disk. Raises `ConfigurationError` if nothing was added."""
        if not self._elements:
            raise ConfigurationError(f"{self.path.stem}: expected at least one row, got none; look at the source")
        rows, rest = divmod(self._elements, prod(self.row))
        assert not rest, "rows were added whole"
        text = f"{{'descr': '{self._kind.str}', 'fortran_order': False, 'shape': {(rows, *self.row)}, }}".encode()
        self._file.seek(0)
        head = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little")
        self._file.write(head + text.ljust(HEADER_BYTES - 11) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()

    def close(self) -> None:
        """Closes the file without writing a header."""
        self._file.close()


@dataclass
class Import:
    """An import in progress. `source` goes into the manifest and says what was imported, and how."""

    folder: Path
    source: Mapping[str, Any]
    writers: dict[str, ArrayWriter] = field(default_factory=dict)

    def array(self, name: str, dtype: DType, row: tuple[int, ...]) -> ArrayWriter:
        """The writer of an array, which is created when it is first asked for."""
        if name not in self.writers:
            if not NAME.fullmatch(name):
                raise ConfigurationError(f"expected a name of letters, digits, _ . and - for an array, got {name!r}")
            self.writers[name] = ArrayWriter(self.folder / f"{name}.npy", dtype, row)
        return self.writers[name]

    def append(self, name: str, dtype: DType, values: Array) -> None:
        """Adds rows to an array; `values` has shape [rows, ...]."""
        self.array(name, dtype, values.shape[1:]).append(values)


@contextmanager
def importing(folder: Path, source: Mapping[str, Any]) -> Iterator[Import]:
    """Writes arrays into a new or empty folder. The manifest comes last, so a folder without one is not an import.

    Raises `StorageError` if the disk fails. A failed import removes whatever it has written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"expected a new or empty folder, got {folder}; choose another or empty it")
    made = Import(folder, source)
    try:
        make_folder(folder)
        yield made
        if not made.writers:
            raise ConfigurationError("expected at least one array, got none; look at the source")
        for writer in made.writers.values():
            writer.finish()
        with Folder(folder, to_write=True) as files:
            files.sync()  # the name of the manifest must not be safe before those of the arrays
            files.write(MANIFEST, _manifest(made).encode())
    except BaseException as error:
        for writer in made.writers.values():
            writer.close()
            writer.path.unlink(missing_ok=True)
        if isinstance(error, OSError | StorageError):
            raise StorageError(f"cannot write {folder}: {error.__cause__ or error}. Nothing was imported") from error
        raise


def _manifest(made: Import) -> str:
    arrays = {}
    for name, writer in sorted(made.writers.items()):
        array = open_npy(writer.path)
        arrays[name] = {
            "file": writer.path.name,
            "element": str(array.element),
            "shape": list(array.shape),
            "identity": examine(array).identity.hex(),
        }
    return json.dumps({"format": FORMAT, "arrays": arrays, "source": dict(made.source)}, indent=2) + "\n"


def open_folder(folder: Path | str) -> dict[str, ArrayFile]:
    """The arrays of an import, by name. Raises `EncodingError` if the files do not match the manifest."""
    return {name: array for name, (array, _) in _listed(Path(folder)).items()}


def load_arrays(folder: Path | str) -> dict[str, Tensor]:
    """The arrays of an import, by name, as tensors on the mapped files, for use as a task's data.

    Do not write into them. Each array is checked against its id in the manifest; from the second time on, the cache
    answers this check.
    """
    listed, cache = _listed(Path(folder)), FactsCache()
    for array, identity in listed.values():
        if (found := examine(array, cache=cache).identity.hex()) != identity:
            raise EncodingError(f"{array}: expected id {identity}, got {found}; import it again")
    return {name: map_array(array) for name, (array, _) in listed.items()}


def _listed(folder: Path) -> dict[str, tuple[ArrayFile, str]]:
    """The arrays that the manifest lists and the ids that it gives them, by name."""
    path = folder / MANIFEST
    if not path.exists():
        raise StateError(f"expected imported arrays in {folder}, got no {MANIFEST}; see `tiebreak data import`")
    manifest, found = JsonObject.parse(str(path), read_file(path, MAX_MANIFEST_BYTES), MAX_DEPTH), {}
    manifest.integer("format", FORMAT, FORMAT)
    manifest.inner("source")  # for people
    for name, entry in manifest.inner("arrays").objects().items():
        if not NAME.fullmatch(name):
            raise EncodingError(f"{path}: expected a name like {NAME.pattern}, got {name[:100]!r}")
        file = f"{name}.npy"
        entry.same("file", file)
        array = open_npy(folder / file)
        entry.same("element", str(array.element), f", as in {file}")
        entry.same("shape", list(array.shape), f", as in {file}")
        if array.committed is None:
            raise EncodingError(f"{path}: expected little-endian F32, I64 or BOOL in {file}, got {array.element}")
        found[name] = array, entry.text("identity")
        entry.finish()
    manifest.finish()
    return found
